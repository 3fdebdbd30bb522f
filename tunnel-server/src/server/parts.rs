//! The parts of a server, made from its configuration, and the parts that each listener uses.
//!
//! Used in this folder only: a listener gets the parts that its connections use, and each function the parts
//! that it uses.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::oneshot;
use tunnel_directory::{NodeName, shared::NodeSettings};
use tunnel_http::{access_log::AccessLog, outgoing::ViaName, permits::Permits};
use tunnel_ops::{
    admin::{BearerFileError, BearerGuard},
    descriptors,
    task::Owned,
    telemetry::RequestId,
    telemetry::tracer::{Exporter, Tracer},
    tls_files::TlsFilesError,
};

use super::{BindError, moving, shard::Listeners, tls::ListenerTls};
use crate::{
    acme::Acme,
    admin::{
        self,
        api::{Api, Reach},
        usage::{ReadLimits, UsedLimitView},
    },
    allowance::Allowance,
    auth::Authenticator,
    budget::usage::Usage,
    config::{Config, Settings, effective::Effective, live::LiveConfig},
    connect::{TunnelListener, checks::Checks, gate::Gate},
    directory::Directory,
    events::Events,
    gauges::{Gauges, Threads},
    kept_revocations::KeptRevocations,
    lifecycle::Lifecycle,
    managed::{self, Managed},
    metrics::Metrics,
    peers::{PeerListener, Peers},
    public::{PublicListener, answer::Cors},
    registry::Registry,
    replica::EtcdReplica,
    router::Router,
    webhook::Webhook,
};

/// Log lines about refused tunnel clients: the first 20 at once, then one per second.
const REFUSAL_LINES: u32 = 20;
const REFUSAL_LINE_EACH: Duration = Duration::from_secs(1);

/// All parts of a server.
pub(crate) struct Parts {
    pub(super) config: Arc<LiveConfig>,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) registry: Arc<Registry>,
    pub(super) router: Arc<Router>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) access_log: AccessLog,
    pub(super) tracer: Tracer,
    /// Sends the spans of the tracer; `None` if that is off, or once it was started.
    pub(super) exporter: Mutex<Option<Exporter>>,
    pub(super) events: Arc<Events>,
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) tls: ListenerTls,
    /// `None` if all certificates come from files.
    pub(super) acme: Option<Arc<Acme>>,
    pub(super) public_permits: Arc<Permits<Usage>>,
    pub(super) tunnel_permits: Arc<Permits>,
    pub(super) unknown_permits: Arc<Permits>,
    pub(super) gate: Arc<Gate>,
    pub(super) checks: Arc<Checks>,
    pub(super) cors: Arc<ArcSwap<Cors>>,
    pub(super) admin_guard: Arc<ArcSwapOption<BearerGuard>>,
    pub(super) webhook: Option<Arc<Webhook>>,
    /// `None` if the admin API makes no runtimes.
    pub(super) managed: Option<Arc<Managed>>,
    /// What nodes keep in etcd together; `None` for a server that stands alone.
    pub(super) replica: Option<Arc<EtcdReplica>>,
    /// The revocations of the admin API.
    pub(super) revocations: Arc<KeptRevocations>,
    /// Held while runtimes or a configuration are put in force.
    pub(super) applying: Mutex<()>,
    pub(super) threads: Threads,
}

impl Parts {
    /// Makes all parts, reading the files that the configuration names. Binds nothing.
    ///
    /// # Errors
    /// When something in the configuration cannot be used.
    pub(super) fn new(config: Config, access_log: AccessLog) -> Result<Self, BindError> {
        let metrics = Metrics::new()?;
        access_log.count_lost(metrics.access_log_lost.clone());
        let (tracer, exporter) = tracer(&config, &metrics)?;
        let events = Events::new(&RequestId::new().as_str()[..8]);
        let etcd = config.shared_directory.as_ref();
        let etcd = etcd.map(|shared| tunnel_etcd::Client::new(shared.etcd.clone()));
        let directory = directory(&config, etcd.clone(), &metrics);
        let registry = Registry::with(directory, metrics.clone(), events.clone());
        let settings = &config.settings;
        let router = Router::new(&config.runtimes, &settings.domain, &registry)?;
        registry.set_limits(&config);
        let authenticator = Authenticator::new(&config)?;
        metrics.register_credentials(&authenticator)?;
        let replica = etcd.clone().map(|client| {
            let has_documents = settings.managed_runtimes.is_some();
            EtcdReplica::new(client, &settings.etcd_prefix, has_documents, managed::merge)
        });
        let managed = Managed::new(&config, replica.as_ref());
        let revocations = KeptRevocations::new(settings, replica.as_ref(), &authenticator);
        let acme = Acme::new(&config, etcd, metrics.clone(), events.clone())?;
        let shown = acme.as_ref().map(|acme| acme.certificate());
        let tls = ListenerTls::new(&config, authenticator.client_auth(), shown)?;
        tls.show(&metrics);
        let webhook = Webhook::new(&config, &metrics)?;
        let all = connection_limit(&config);
        let (handshakes, queue) = (settings.max_handshakes, settings.handshake_queue);
        Ok(Self {
            registry,
            router: Arc::new(router),
            authenticator,
            metrics,
            access_log,
            tracer,
            exporter: Mutex::new(exporter),
            events,
            lifecycle: Arc::new(Lifecycle::new()),
            tls,
            acme,
            public_permits: Permits::new(all, settings.max_connections_per_address as usize),
            tunnel_permits: Permits::new(all, settings.max_tunnel_connections_per_address as usize),
            unknown_permits: Permits::new(all, unknown_each(settings)),
            gate: Gate::new(handshakes as usize, queue as usize),
            checks: Arc::default(),
            cors: Arc::new(ArcSwap::from_pointee(Cors::of(&settings.cors_origin))),
            admin_guard: Arc::new(ArcSwapOption::from_pointee(admin_guard(&config)?)),
            webhook,
            managed,
            replica,
            revocations,
            applying: Mutex::new(()),
            threads: Threads::default(),
            config: Arc::new(LiveConfig::new(config)),
        })
    }

    /// The value of each setting in force.
    pub(super) fn effective(&self) -> Effective {
        self.config.load().effective(&self.authenticator.contents())
    }

    /// The parts that each shard serves its connections with; the first one has these links to other nodes.
    pub(super) fn listeners(
        &self,
        shards: usize,
        public_port: u16,
        links: Option<Arc<Peers>>,
    ) -> Vec<Listeners> {
        let tunnel = self.tunnel_listener(public_port);
        let via = ViaName::new(&RequestId::new().as_str()[..12]);
        let peer = self.tls.links.as_ref().map(|links| {
            Arc::new(PeerListener {
                registry: self.registry.clone(),
                metrics: self.metrics.clone(),
                lifecycle: self.lifecycle.clone(),
                tls: links.listener.clone(),
                tracer: self.tracer.clone(),
                api: admin::router(self.admin_api(Reach::Nodes, None)),
            })
        });
        let more = (1..shards).map(|_| self.links(false));
        let listeners = std::iter::once(links).chain(more).map(|links| Listeners {
            tunnel: tunnel.clone(),
            public: self.public_listener(via.clone(), links, &tunnel),
            peer: peer.clone(),
        });
        listeners.collect()
    }

    /// The links of one shard to other nodes.
    pub(super) fn links(&self, sends_reports: bool) -> Option<Arc<Peers>> {
        let directory = self.registry.directory().shared()?.clone();
        let tls = self.tls.links.as_ref()?.dialling.clone();
        let metrics = self.metrics.clone();
        let peers = Peers::new(directory, tls, metrics, &self.registry, sends_reports);
        Some(peers)
    }

    /// The parts that the connections of the public listener use.
    fn public_listener(
        &self,
        via: ViaName,
        peers: Option<Arc<Peers>>,
        tunnel: &Arc<TunnelListener>,
    ) -> Arc<PublicListener> {
        let takes_tunnels = !tunnel.hosts.is_empty();
        Arc::new(PublicListener {
            tunnel: takes_tunnels.then(|| tunnel.clone()),
            unknown: self.unknown_permits.clone(),
            config: self.config.clone(),
            router: self.router.clone(),
            peers,
            metrics: self.metrics.clone(),
            access_log: self.access_log.clone(),
            tracer: self.tracer.clone(),
            lifecycle: self.lifecycle.clone(),
            permits: self.public_permits.clone(),
            tls: self.tls.public.clone(),
            cors: self.cors.clone(),
            via,
        })
    }

    /// The parts that the connections of the tunnel listener use.
    fn tunnel_listener(&self, public_port: u16) -> Arc<TunnelListener> {
        Arc::new(TunnelListener {
            config: self.config.clone(),
            authenticator: self.authenticator.clone(),
            registry: self.registry.clone(),
            metrics: self.metrics.clone(),
            events: self.events.clone(),
            lifecycle: self.lifecycle.clone(),
            permits: self.tunnel_permits.clone(),
            tls: self.tls.tunnel.clone(),
            hosts: self.config.load().settings.tunnel_host.clone(),
            gate: self.gate.clone(),
            checks: self.checks.clone(),
            public_port,
            refusal_lines: Allowance::new(REFUSAL_LINES, REFUSAL_LINE_EACH),
        })
    }

    /// Sends events to the platform from now on, if it wants them: until the sender is dropped and all are sent.
    pub(super) fn start_webhook(&self) -> Option<(oneshot::Sender<()>, Owned<()>)> {
        let webhook = self.webhook.clone()?;
        let (running, is_running) = oneshot::channel();
        let (events, reader) = (self.events.clone(), self.events.read());
        let task = webhook.send_all(events, reader, is_running);
        Some((running, Owned::spawn("webhook", task)))
    }

    /// Moves sessions to other nodes, where that is needed.
    pub(super) fn move_sessions(&self) -> impl Future<Output = ()> + Send + use<> {
        moving::move_sessions(
            self.registry.clone(),
            self.lifecycle.clone(),
            self.config.clone(),
            self.metrics.clone(),
        )
    }

    /// The admin API, which asks other nodes over these links.
    pub(super) fn admin_api(&self, reach: Reach, peers: Option<Arc<Peers>>) -> Api {
        Api {
            config: self.config.clone(),
            authenticator: self.authenticator.clone(),
            registry: self.registry.clone(),
            metrics: self.metrics.clone(),
            events: self.events.clone(),
            tails: self.access_log.tails().clone(),
            lifecycle: self.lifecycle.clone(),
            acme: self.acme.clone(),
            certificates: self.tls.read_certificates(),
            limits: self.read_limits(),
            managed: self.managed.clone(),
            revocations: self.revocations.clone(),
            guard: self.admin_guard.clone(),
            reach,
            peers,
        }
    }

    /// Reads the limits of the whole server, and how much of each is used.
    fn read_limits(&self) -> ReadLimits {
        let (public, tunnel) = (self.public_permits.clone(), self.tunnel_permits.clone());
        let (config, metrics) = (self.config.clone(), self.metrics.clone());
        let registry = self.registry.clone();
        Arc::new(move || {
            let handshakes = usize::try_from(metrics.open_handshakes()).unwrap_or_default();
            let max_handshakes = config.load().settings.max_handshakes as usize;
            let mut all = registry.used_limits();
            all.extend([
                ("public connections", public.usage()),
                ("tunnel connections", tunnel.usage()),
                ("handshakes", (handshakes, max_handshakes)),
            ]);
            let view = |(used, limit): (usize, usize)| UsedLimitView {
                used: used as u64,
                limit: limit as u64,
            };
            let all = all.into_iter();
            all.map(|(name, usage)| (name.to_owned(), view(usage)))
                .collect()
        })
    }

    /// The current values of the gauges. The tables' names are those of docs/reference/metrics.md.
    pub(super) fn gauges(&self) -> Gauges {
        Gauges {
            tasks: self.threads.tasks(),
            buffered_bytes: self.registry.buffered(),
            entries: [
                ("claims", self.registry.claims()),
                ("runtimes", self.registry.len()),
                ("hosts", self.router.hosts()),
                ("labels", self.registry.directory().owned_labels()),
                (
                    "platform_questions",
                    self.authenticator.open_platform_queries(),
                ),
                (
                    "platform_answers",
                    self.authenticator.cached_platform_answers(),
                ),
                ("exchanges", self.registry.open()),
                ("websockets", self.registry.websockets()),
                ("waiting", self.registry.waiting()),
                ("streams", self.registry.streams()),
                ("public_addresses", self.public_permits.addresses()),
                ("tunnel_addresses", self.tunnel_permits.addresses()),
                ("unknown_addresses", self.unknown_permits.addresses()),
                ("gate_addresses", self.gate.addresses()),
                ("checks", self.checks.len()),
                ("event_readers", self.events.readers()),
                ("tails", self.access_log.tails().count()),
            ],
            runtimes: self.registry.states(),
            listed: match self.config.load().settings.runtime_metrics {
                true => self.registry.listed(),
                false => Vec::new(),
            },
        }
    }
}

/// The tracer, and what sends its spans. A node of several is known to the collector by its name.
fn tracer(config: &Config, metrics: &Metrics) -> Result<(Tracer, Option<Exporter>), TlsFilesError> {
    let node = config.settings.node.as_ref().map(NodeName::as_str);
    let instance = RequestId::new();
    let mut attributes = vec![
        ("service.name", "tunnel-server"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", node.unwrap_or(instance.as_str())),
    ];
    attributes.extend(node.map(|node| ("tunnel.node", node)));
    Tracer::with_exporter(config.tracer.as_ref(), &attributes, &metrics.spans)
}

/// The claims: in memory, or shared with other nodes.
fn directory(config: &Config, etcd: Option<tunnel_etcd::Client>, metrics: &Metrics) -> Directory {
    let (Some(shared), Some(client)) = (&config.shared_directory, etcd) else {
        return Directory::default();
    };
    let mut random = [0; 8];
    // As for request ids: a system without random numbers has none for TLS either.
    let _ = getrandom::fill(&mut random);
    let random = u64::from_ne_bytes(random);
    let prefix = &config.settings.etcd_prefix;
    let node = NodeSettings {
        name: shared.node.clone(),
        peer: shared.links.as_ref().map(|links| links.advertised.clone()),
        zone: config.settings.zone.as_deref().map(Into::into),
        without_directory: config.settings.without_directory,
    };
    Directory::on_etcd(client, prefix, node, random, metrics.directory.clone())
}

/// Connections of one address of which it is not known yet whose they are.
pub(crate) fn unknown_each(settings: &Settings) -> usize {
    let (public, tunnel) = (
        settings.max_connections_per_address,
        settings.max_tunnel_connections_per_address,
    );
    public.max(tunnel) as usize
}

/// Fewest connections that a listener may have, however few files the process may have open.
const MIN_CONNECTIONS: usize = 32;

/// Connections that each listener may have.
pub(crate) fn connection_limit(config: &Config) -> usize {
    let wanted = config.settings.max_connections as usize;
    within(wanted, descriptors::limit())
}

/// The number of connections of each of the two listeners: at most three quarters of the limit on open files, so that a
/// full listener leaves some for the other one, for the admin listener and for files.
fn within(wanted: usize, descriptors: Option<u64>) -> usize {
    let Some(descriptors) = descriptors.and_then(|all| usize::try_from(all).ok()) else {
        return wanted;
    };
    wanted.min((descriptors - descriptors / 4).max(MIN_CONNECTIONS))
}

/// A limit on open files with which each listener may have this many connections.
pub(crate) fn descriptors_for(connections: usize) -> usize {
    connections + connections / 3
}

/// Reads the admin token, if one is configured.
pub(super) fn admin_guard(config: &Config) -> Result<Option<BearerGuard>, BearerFileError> {
    let path = config.settings.admin_token_file.as_deref();
    path.map(BearerGuard::load).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        assert_eq!(within(50_000, None), 50_000);
        assert_eq!(within(50_000, Some(1_048_576)), 50_000);
        assert_eq!(within(50_000, Some(4_096)), 3_072);
        assert_eq!(within(100, Some(4_096)), 100);
        assert_eq!(within(50_000, Some(10)), MIN_CONNECTIONS);
        for wanted in [50_000, 50_001, 50_002] {
            let enough = descriptors_for(wanted) as u64;
            assert_eq!(within(wanted, Some(enough)), wanted);
        }
    }
}
