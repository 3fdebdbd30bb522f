//! The composition root: the only place that knows all parts of a client.
//!
//! ```text
//!   Client ─┬─ admin listener        page, status, metrics, health, readiness
//!           ├─ routes                the table, and the upstreams that it leads to
//!           ├─ reload                a new table when the file changes
//!           └─ tunnel ─▶ sessions ─▶ exchanges ─▶ routes ─▶ upstream
//! ```
//!
//! It starts each part after those that it needs, and stops them in reverse.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::SystemTime;

use ipnet::IpNet;
use tokio::sync::watch;
use tunnel_http::access_log::AccessLog;
use tunnel_ops::admin::{AdminBindError, AdminListener, AdminRoutes, AdminSettings};
use tunnel_ops::inherited::Inherited;
use tunnel_ops::signals::Shutdown;
use tunnel_ops::task::Owned;
use tunnel_ops::telemetry::RequestId;
use tunnel_ops::telemetry::tracer::{Exporter, Exporting, Tracer, TracerSettings};
use tunnel_ops::timestamp::Timestamp;
use tunnel_ops::tls_files::TlsFilesError;
use tunnel_ops::watch::{FileWatch, WatchError};
use tunnel_proto::handshake::InstanceSecret;
use tunnel_proto::redial::RedialSettings;
use tunnel_proto::session::SessionSettings;
use tunnel_routing::Routes;
use tunnel_routing::upstream::{UpstreamError, UpstreamShared};

pub use crate::admin::Welcomed;
use crate::admin::{self, LiveSessions};
use crate::config::reload::Reloader;
use crate::config::{Config, ConfigError, Given, OnRefusal};
use crate::credential::{CredentialFiles, Credentials};
use crate::dial::{Dialler, RefusedLogins};
use crate::exchange::Exchanges;
use crate::metrics::Metrics;
use crate::session::SessionParts;
use crate::status::TunnelStatus;
pub use crate::tunnel::GivenUp;
use crate::tunnel::{DiallingParts, Tunnel, TunnelParts};

/// A client that has not dialled yet.
pub struct Client {
    admin: Option<(AdminListener, AdminRoutes)>,
    routes: Arc<Routes>,
    metrics: Arc<Metrics>,
    reloader: Option<Reloader>,
    exporter: Option<Exporter>,
    tunnel: Tunnel,
}

/// Where a client listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// For the operator; none if that is off.
    pub admin: Option<SocketAddr>,
}

/// Why a client cannot start, or does not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The admin listener.
    #[error(transparent)]
    Admin(#[from] AdminBindError),
    /// The admin listener, for no known reason.
    #[error("cannot listen on {0} (--admin-listen) at once")]
    AdminNotBound(SocketAddr),
    /// The instance id.
    #[error("the system gives no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The metrics.
    #[error("the metrics cannot be made: {0}")]
    Metrics(#[from] prometheus::Error),
    /// An upstream.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The CA files of the server, the proxy or the collector.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// The files of the credential, or of the configuration.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// What was given.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server refuses what a person has to mend.
    #[error(transparent)]
    GivenUp(#[from] GivenUp),
}

impl Client {
    /// Prepares all that does not need the network, and binds the admin listener. Must be called
    /// within a runtime.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn new(config: Config, access_log: AccessLog) -> Result<Self, ClientError> {
        let metrics = Arc::new(Metrics::new()?);
        access_log.count_lost(metrics.access_log_lost.clone());
        let admin = config.settings.admin_listen;
        let admin = admin.map(|address| bind_admin(address, &mut Inherited::default()));
        let admin = admin.transpose()?;
        let settings = AdminSettings {
            allowed_hosts: config.settings.admin_host.clone(),
        };
        let memory = metrics.memory(config.settings.max_buffered_size)?;
        let shared = Arc::new(UpstreamShared::new(
            config.settings.dns_server.as_deref().unwrap_or_default(),
            Arc::clone(&memory),
            config.settings.upstream_idle_pool as usize,
        ));
        let routes = Routes::new(
            &config.all_routes(),
            shared,
            config.settings.problem_detail,
            Arc::clone(metrics.routes()),
        )?;
        let routes = Arc::new(routes);
        let (own, counted) = (Arc::clone(&routes), Arc::clone(&metrics));
        let status = Arc::<TunnelStatus>::default();
        let api = admin::Api {
            metrics: Arc::clone(&metrics),
            routes: Arc::clone(&routes),
            tunnel: Some(Arc::clone(&status)),
            tails: Arc::clone(access_log.tails()),
            started: Timestamp::now(),
        };
        let admin = admin.map(|listener| (listener, admin::routes(api, settings)));
        let (tracer, exporter) = tracer(config.tracer.as_ref(), &metrics)?;
        let exchanges = Exchanges::new(own, counted, access_log, tracer);
        let sessions = SessionParts {
            exchanges,
            metrics: Arc::clone(&metrics),
            memory,
            live: Arc::new(LiveSessions::new(Arc::clone(&metrics))),
            status,
            settings: SessionSettings {
                ping_interval: config.settings.ping_interval,
                ..SessionSettings::default()
            },
            welcome_limit: config.settings.dial_timeout,
            tell_routes: config.settings.tell_routes,
        };
        let tunnel = tunnel(config, sessions)?;
        Ok(Self {
            admin,
            routes,
            metrics,
            reloader: None,
            exporter,
            tunnel,
        })
    }

    /// Starts a client from what was given. Its routes are read again when their files change, and on SIGHUP.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn with_reload(given: Given, access_log: AccessLog) -> Result<Self, ClientError> {
        // Before the files are read, so that no edit in between is missed.
        let reloader = Reloader::new(given.clone(), |source| Config::check(source).map(drop))?;
        let source = given.merge().map_err(ConfigError::from)?;
        let mut client = Self::new(Config::check(&source)?, access_log)?;
        client.reloader = Some(reloader);
        Ok(client)
    }

    /// Believes another wall clock than the system's: for tests of what follows a jump.
    #[must_use]
    pub fn with_wall_clock(
        mut self,
        clock: impl Fn() -> SystemTime + Send + Sync + 'static,
    ) -> Self {
        self.tunnel.set_wall_clock(Box::new(clock));
        self
    }

    /// Where it listens.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            admin: (self.admin.as_ref()).map(|(listener, _)| listener.local_addr()),
        }
    }

    /// What the server has said when it welcomed the last session; `None` before the first.
    pub fn welcomed(&self) -> watch::Receiver<Option<Welcomed>> {
        self.tunnel.welcomed()
    }

    /// Keeps the tunnel up until asked to stop.
    ///
    /// # Errors
    /// When the server refuses what a person has to mend, and the client is not set to wait then.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), ClientError> {
        let Self {
            admin,
            routes,
            metrics,
            reloader,
            exporter,
            tunnel,
        } = self;
        // First the admin listener, so that probes get "not ready" instead of
        // nothing. It never ends by itself.
        let admin = admin.map(|(listener, routes)| {
            Owned::spawn("admin", listener.serve(routes, std::future::pending()))
        });
        let exporting = exporter.map(Exporter::start);
        // Then what changes what exchanges need.
        let reloading = reloader.map(|reloader| reloader.start(Arc::clone(&routes), metrics));
        // The tunnel last: from its first session on, requests come. It is also the first to end,
        // and while it leaves, open exchanges still have their upstreams, and the admin listener answers.
        let result = tunnel.run(&shutdown).await;
        drop(reloading);
        drop(routes);
        Exporting::finish(exporting, &shutdown).await;
        drop(admin);
        tracing::info!("tunnel-client has stopped");
        Ok(result?)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("addresses", &self.addresses())
            .finish_non_exhaustive()
    }
}

/// The tracer, and what sends its spans.
pub(crate) fn tracer(
    settings: Option<&TracerSettings>,
    metrics: &Metrics,
) -> Result<(Tracer, Option<Exporter>), TlsFilesError> {
    let instance = RequestId::new();
    let attributes = [
        ("service.name", "tunnel-client"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", instance.as_str()),
    ];
    Tracer::with_exporter(settings, &attributes, &metrics.spans)
}

fn tunnel(config: Config, sessions: SessionParts) -> Result<Tunnel, ClientError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)?;
    let files = CredentialFiles {
        token: config.settings.token_file.clone(),
        certificate: config.client_certificate.clone(),
    };
    let credentials = Arc::new(Credentials::new(files));
    // Before they are read for the first time, so that no change is missed.
    let files = FileWatch::new(credentials.paths())?;
    let servers = config.servers.iter();
    let refused = RefusedLogins::new(config.settings.refusal_wait);
    let diallers =
        servers.map(|server| Dialler::new(&config, server, Arc::clone(&credentials), &refused));
    let dialling = DiallingParts {
        diallers: diallers.collect::<Result<_, _>>()?,
        credentials: Arc::clone(&credentials),
        instance: InstanceSecret::from_random(random),
        allow_from: networks(config.settings.allow_from.as_deref().unwrap_or_default()),
        sessions,
        refusal_wait: config.settings.refusal_wait,
        exits_on_refusal: config.settings.on_refusal == OnRefusal::Exit,
        redial: RedialSettings {
            base: config.settings.redial_base,
            cap: config.settings.redial_cap,
            stable: config.settings.redial_stable,
        },
    };
    Ok(Tunnel::new(TunnelParts {
        dialling,
        credentials,
        files,
        sessions: config.settings.sessions as usize,
        max_age: config.settings.max_session_age,
        grace_period: config.settings.grace_period,
    }))
}

/// A list of networks as the wire has it; none when there is no bound.
pub(crate) fn networks(allowed: &[IpNet]) -> Option<String> {
    let list: Vec<_> = allowed.iter().map(ToString::to_string).collect();
    (!list.is_empty()).then(|| list.join(","))
}

/// Binds the admin listener.
///
/// # Errors
/// When that cannot be.
pub(crate) fn bind_admin(
    address: SocketAddr,
    inherited: &mut Inherited,
) -> Result<AdminListener, ClientError> {
    if let Some(socket) = inherited.take("admin", address).pop() {
        tracing::info!(listener = "admin", %address, "listening");
        return AdminListener::on(socket).map_err(|_| ClientError::AdminNotBound(address));
    }
    // Only names would have to be waited for; an address is bound at once.
    let mut binding = pin!(AdminListener::bind(address));
    match binding
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(bound) => {
            let listener = bound?;
            let address = listener.local_addr();
            tracing::info!(listener = "admin", %address, "listening");
            Ok(listener)
        }
        Poll::Pending => Err(ClientError::AdminNotBound(address)),
    }
}
