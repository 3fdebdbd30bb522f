//! The composition root: this folder alone knows all parts of the server.
//!
//! Start: everything that can fail is done before anything is served, so that a wrong configuration
//! never answers a single request. Stop: in the order of dependence, each step with its
//! reason where it stands.

pub(crate) mod drain;
pub mod handover;
mod managing;
mod moving;
mod parts;
pub(crate) mod reload;
mod shard;
mod spread;
mod supervisor;
mod tls;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join;
use tokio::{
    runtime::Handle,
    time::{Instant, interval, timeout},
};
use tunnel_directory::DirectoryError;
use tunnel_http::{
    access_log::AccessLog,
    listener::{self, Bound},
};
use tunnel_ops::faults::FaultyFile;
use tunnel_ops::socket::listen_advice;
use tunnel_ops::{
    admin::{AdminBindError, AdminListener, BearerFileError},
    inherited::{Inherited, UnclaimedError},
    signals::Shutdown,
    task::Owned,
    telemetry::tracer::{Exporter, Exporting},
    tls_files::TlsFilesError,
};

pub(crate) use self::parts::{connection_limit, descriptors_for};
use self::{
    drain::Deadlines,
    handover::{Predecessor, Successor},
    parts::Parts,
    shard::{Shard, Sockets},
};
use crate::{
    acme::{Acme, AcmeTasks},
    admin::{
        self,
        api::{Api, Reach},
    },
    auth::AuthSetupError,
    config::{Config, effective::Effective},
    events::{Event, EventKind},
    kept_revocations::RevocationsFileError,
    managed::ManagedStoreError,
    peers::Peers,
    registry::Registry,
    runtimes::HostError,
};

/// Time between two looks at what may be forgotten.
const SWEEP: Duration = Duration::from_secs(10);

/// Time for those who read at the admin listener to get the last events: less than drain.rs leaves for the exit of a
/// server with a grace period of 2 s or more.
const LAST_READS: Duration = Duration::from_millis(100);

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A listener's address cannot be bound.
    #[error("cannot listen on {address} (--{listener}-listen): {source}{}", listen_advice(.source))]
    Listen {
        /// Which listener: tunnel or public.
        listener: &'static str,
        /// Its address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Sockets were inherited that belong to no listener.
    #[error(transparent)]
    Unclaimed(#[from] UnclaimedError),
    /// A socket cannot be prepared for a new process that takes over.
    #[error("cannot keep the listeners' sockets for an upgrade: {0}")]
    Sockets(#[source] io::Error),
    /// The admin listener's address cannot be bound.
    #[error(transparent)]
    Admin(#[from] AdminBindError),
    /// The operator's token cannot be used.
    #[error(transparent)]
    AdminToken(#[from] BearerFileError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// The credentials cannot be checked.
    #[error(transparent)]
    Auth(#[from] AuthSetupError),
    /// A runtime's host is not valid.
    #[error(transparent)]
    Name(#[from] HostError),
    /// The metrics cannot be registered.
    #[error("cannot register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Why a running server ended although no shutdown was requested.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The operating system gave no thread or runtime.
    #[error("cannot start shard {0}: {1}")]
    Shard(usize, #[source] io::Error),
    /// A shard ended by a fault of ours.
    #[error("shard {0} has failed")]
    ShardFailed(usize),
    /// The node cannot take part in the shared directory.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The managed runtimes cannot be read.
    #[error(transparent)]
    Managed(#[from] ManagedStoreError),
    /// The revocations of the admin API cannot be read.
    #[error(transparent)]
    Revocations(#[from] RevocationsFileError),
}

/// Where a server listens.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// For tunnel clients.
    pub tunnel: SocketAddr,
    /// For platform clients.
    pub public: SocketAddr,
    /// For the operator.
    pub admin: SocketAddr,
    /// For other server nodes, if there are any.
    pub peer: Option<SocketAddr>,
}

/// What a server has of its process, beside its configuration. The default is that of a server within another program.
#[derive(Debug, Default)]
pub struct Process {
    /// The sockets that it was started with.
    pub inherited: Inherited,
    /// The process whose listeners it takes over.
    pub predecessor: Option<Predecessor>,
    /// Whether a new process of the running program can take over from it.
    pub can_be_upgraded: bool,
}

impl Addresses {
    fn log(&self) {
        for (listener, address) in [
            ("tunnel", Some(self.tunnel)),
            ("public", Some(self.public)),
            ("peer", self.peer),
            ("admin", Some(self.admin)),
        ] {
            if let Some(address) = address {
                tracing::info!(listener, %address, "listening");
            }
        }
    }
}

/// A server whose listeners are bound.
pub struct Server {
    parts: Arc<Parts>,
    shards: Vec<Sockets>,
    admin: AdminListener,
    addresses: Addresses,
    predecessor: Option<Predecessor>,
    /// All sockets once more, with the names of their listeners, for a new process.
    kept: Vec<(&'static str, TcpListener)>,
}

impl Server {
    /// Binds all listeners; nothing is served before [`Server::run`]. What is served is in `access_log`.
    ///
    /// # Errors
    /// When an address cannot be bound, or something in the configuration cannot be used.
    pub async fn bind(config: Config, access_log: AccessLog) -> Result<Self, BindError> {
        Self::bind_in(Process::default(), config, access_log).await
    }

    /// As [`Server::bind`], with sockets that the process has inherited.
    ///
    /// # Errors
    /// As [`Server::bind`]; also when systemd listens where no listener is configured.
    pub async fn bind_in(
        process: Process,
        config: Config,
        access_log: AccessLog,
    ) -> Result<Self, BindError> {
        let Process {
            mut inherited,
            predecessor,
            can_be_upgraded,
        } = process;
        let parts = Arc::new(Parts::new(config, access_log)?);
        let config = parts.config.load_full();
        let count = shard_count(config.settings.shards as usize);
        let mut listen = |name, address| listen(name, address, count, &mut inherited);
        let tunnel = match config.is_one_listener() {
            true => None,
            false => Some(listen("tunnel", config.settings.tunnel_listen)?),
        };
        let public = listen("public", config.settings.public_listen)?;
        let peer = match (&config.shared_directory, config.settings.peer_listen) {
            (Some(_), Some(address)) => Some(listen("peer", address)?),
            _ => None,
        };
        let admin = config.settings.admin_listen;
        let admin = match inherited.take("admin", admin).pop() {
            Some(socket) => AdminListener::on(socket).map_err(BindError::Sockets)?,
            None => AdminListener::bind(admin).await?,
        };
        // Those of a predecessor whose listener is configured elsewhere now are closed with it.
        if predecessor.is_none() {
            inherited.finish()?;
        }
        let peer_address = peer.as_ref().map(|peer| peer.address);
        let addresses = Addresses {
            tunnel: (tunnel.as_ref()).map_or(public.address, |tunnel| tunnel.address),
            public: public.address,
            admin: admin.local_addr(),
            peer: peer_address,
        };
        if let (Some(directory), Some(address)) =
            (parts.registry.directory().shared(), peer_address)
        {
            directory.set_peer_port(address.port());
        }
        let tunnel = tunnel.map(|tunnel| (tunnel.shards, tunnel.kept));
        let (tunnel_shards, tunnel_kept) = tunnel.unwrap_or_default();
        let mut kept = Vec::new();
        if can_be_upgraded {
            parts.lifecycle.upgrades.enable();
            kept.push(("admin", admin.socket().map_err(BindError::Sockets)?));
            kept.extend(tunnel_kept.into_iter().map(|socket| ("tunnel", socket)));
            kept.extend(public.kept.into_iter().map(|socket| ("public", socket)));
        }
        let mut tunnel_shards = tunnel_shards.into_iter();
        let mut peer_shards = peer.map(|peer| peer.shards).unwrap_or_default().into_iter();
        let shards = public.shards.into_iter().map(|public| Sockets {
            tunnel: tunnel_shards.next().unwrap_or_default(),
            public,
            peer: peer_shards.next().unwrap_or_default(),
        });
        let shards = shards.collect();
        // Weak, since the parts hold the registry that the gauges are in.
        let weak = Arc::downgrade(&parts);
        let count = move || weak.upgrade().map(|parts| parts.gauges());
        parts.metrics.show_gauges(count)?;
        Ok(Self {
            parts,
            shards,
            admin,
            addresses,
            predecessor,
            kept,
        })
    }

    /// Reads and checks all that a server of this configuration would, and binds nothing. Returns the
    /// effective value of each setting.
    ///
    /// # Errors
    /// When something in it cannot be used.
    pub fn check(config: &Config) -> Result<Effective, BindError> {
        Ok(Parts::new(config.clone(), AccessLog::off())?.effective())
    }

    /// Its parts, for the reload of the configuration.
    pub(crate) fn parts(&self) -> Arc<Parts> {
        self.parts.clone()
    }

    /// Where it listens, with the actual ports of addresses that were given with port 0.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until a shutdown is requested, and then through the grace period.
    ///
    /// # Errors
    /// When a shard cannot be started, or fails.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), RunError> {
        let Self {
            parts,
            shards,
            admin,
            addresses,
            predecessor,
            mut kept,
        } = self;
        parts.threads.add(Handle::current());
        let links = parts.links(true);
        // The first to start, unless a predecessor has it, and the last to stop: how the rest does so can be watched there.
        let api = parts.admin_api(reach(addresses.admin), links.clone());
        let admin = serve_admin(admin, api, shutdown.clone());
        let admin = Owned::spawn("admin", admin);
        if predecessor.is_none() {
            parts.lifecycle.serve_tunnels();
            parts.lifecycle.serve_admin();
        }
        let exporting = parts.exporter.lock().take().map(Exporter::start);
        let registry = Arc::downgrade(&parts.registry);
        let directory = parts.registry.directory().start(registry);
        if !is_directory_ready(&parts, &shutdown).await? {
            return Ok(());
        }
        let Some(managing) = managing::start(&parts, &shutdown).await? else {
            return Ok(());
        };
        if let Some(acme) = &parts.acme {
            acme.load().await;
        }
        let mut running = start_shards(&parts, shards, addresses.public.port(), links)?;
        // Keys behind a URL are there before the first client needs them.
        parts.authenticator.start();
        let serving = Owned::spawn("taking over", take_over(parts.clone(), predecessor));
        addresses.log();
        let housekeeping = Owned::spawn("housekeeping", sweep(parts.registry.clone()));
        let moving = Owned::spawn("moving", parts.move_sessions());
        let webhook = parts.start_webhook();
        // After the listeners, which an ACME server connects to.
        let acme = parts.acme.as_ref().map(Acme::start);
        let ended = wait(&parts, &shutdown, &mut running, &kept).await;
        drop(moving);
        if let Some(acme) = &parts.acme {
            acme.stop();
        }
        drop(serving);
        let grace = parts.config.load().settings.grace_period;
        let is_node = parts.registry.directory().shared().is_some();
        let has_farewell = is_node || webhook.is_some() || exporting.is_some();
        let deadlines = Deadlines::new(grace, has_farewell, Instant::now());
        let (failed, successor) = leave(&parts, ended).await;
        // Else connections would wait in them.
        kept.clear();
        // From here on not ready, so that load balancers look elsewhere while all is still served.
        if !matches!(failed, Some(RunError::ShardFailed(_))) {
            tokio::select! {
                () = drain(&parts, &mut running, successor, acme, deadlines) => {}
                () = shutdown.forced() => {}
            }
        }
        drop(housekeeping);
        // What is left had its time: the shards' runtimes end with their tasks.
        parts.lifecycle.cut();
        drop(running);
        drop(managing);
        // All exchanges have ended.
        let left = deadlines.farewell.saturating_duration_since(Instant::now());
        let exported = Exporting::finish_within(left, exporting, &shutdown);
        let _ = join(timeout(left, drain::take_leave(&parts, webhook)), exported).await;
        drop(directory);
        parts.lifecycle.exit();
        let _ = timeout(LAST_READS, admin).await;
        tracing::info!("stopped");
        failed.map_or(Ok(()), Err)
    }
}

/// Drains, and removes meanwhile what proves names to an ACME server, within the grace period.
async fn drain(
    parts: &Parts,
    running: &mut [Shard],
    successor: Option<Successor>,
    acme: Option<AcmeTasks>,
    deadlines: Deadlines,
) {
    let grace = parts.config.load().settings.grace_period;
    let removing = async {
        if let Some(acme) = acme
            && timeout(grace * 9 / 10, acme.ended()).await.is_err()
        {
            tracing::warn!(
                "a record in DNS may be left, since --acme-dns-hook has not ended in the grace period"
            );
        }
    };
    let draining = drain::drain(parts, running, successor, deadlines);
    join(draining, removing).await;
}

fn start_shards(
    parts: &Parts,
    sockets: Vec<Sockets>,
    public_port: u16,
    links: Option<Arc<Peers>>,
) -> Result<Vec<Shard>, RunError> {
    let listeners = parts.listeners(sockets.len(), public_port, links);
    let shards = listeners.into_iter().zip(sockets).enumerate();
    let shards = shards.map(|(number, (listeners, sockets))| {
        let shard = Shard::start(number, &parts.threads, listeners, sockets);
        shard.map_err(|error| RunError::Shard(number, error))
    });
    shards.collect()
}

/// Accepts at the admin listener from when a predecessor has handed it over, or at once, until a new process takes over;
/// serves streams until the server exits.
async fn serve_admin(admin: AdminListener, api: Api, shutdown: Shutdown) {
    let lifecycle = api.lifecycle.clone();
    let routes = admin::routes(api, shutdown);
    lifecycle.serving_admin().await;
    let closes = async {
        tokio::select! {
            _ = lifecycle.replaced() => {}
            () = lifecycle.exiting() => {}
        }
    };
    admin.serve(routes, closes).await;
}

fn reach(admin: SocketAddr) -> Reach {
    match admin.ip().is_loopback() {
        true => Reach::Local,
        false => Reach::Network,
    }
}

/// Says to everybody that the server leaves, and gives a successor the admin listener, and its tunnel clients if it does not
/// have them yet. Returns what has failed, and the successor.
async fn leave(parts: &Parts, ended: Ended) -> (Option<RunError>, Option<Successor>) {
    parts.lifecycle.leave();
    let draining = Event::new(EventKind::Draining);
    parts.events.report(match &ended {
        Ended::Replaced(successor) => {
            draining.detail(format!("process {} takes over", successor.id()))
        }
        Ended::Requested | Ended::Failed(_) => draining,
    });
    if let Some(directory) = parts.registry.directory().shared() {
        directory.leave();
    }
    let failed = match ended {
        Ended::Requested => None,
        Ended::Failed(error) => Some(error),
        Ended::Replaced(mut successor) => {
            // Before it notifies anybody itself.
            supervisor::replaced_by(successor.id());
            parts.lifecycle.replace(successor.id());
            if successor.is_confirmed() {
                successor.confirm().await;
                return (None, Some(successor));
            }
            if let Some(managed) = &parts.managed {
                managed.stop_changes().await;
            }
            successor.serve_tunnels(parts.registry.hand_over()).await;
            return (None, Some(successor));
        }
    };
    supervisor::stopping();
    (failed, None)
}

/// Begins to serve: at once, or as a predecessor hands its clients over.
async fn take_over(parts: Arc<Parts>, predecessor: Option<Predecessor>) {
    let lifecycle = &parts.lifecycle;
    if let Some(predecessor) = predecessor {
        match predecessor.ready(parts.empty_lists()).await {
            Ok(mut channel) => {
                let handed = channel.tunnels().await;
                // The predecessor changes them no more, and may have done so since they were read here.
                managing::read_again(&parts).await;
                parts.registry.expect(handed);
                tracing::info!("taking over: tunnel clients move here");
                lifecycle.serve_tunnels();
                if !channel.is_confirmed_later() {
                    lifecycle.serve_admin();
                }
                channel.public().await;
                tracing::info!("taking over: platform clients are served here");
                lifecycle.serve_public();
                channel.confirmed().await;
            }
            // It does not wait for this process then, and ends it.
            Err(error) => tracing::error!(%error, "the process to take over from has ended"),
        }
    }
    lifecycle.serve_tunnels();
    lifecycle.serve_public();
    lifecycle.serve_admin();
    supervisor::ready();
}

impl BindError {
    /// The file at fault, if it is one that a setting names.
    pub(crate) fn file(&self) -> Option<FaultyFile<'_>> {
        match self {
            Self::AdminToken(error) => Some(error.file().into()),
            Self::Tls(error) => error.file(),
            Self::Auth(error) => error.file(),
            _ => None,
        }
    }

    /// Whether the configuration is at fault, or a file that it names.
    #[must_use]
    pub fn is_of_configuration(&self) -> bool {
        match self {
            Self::AdminToken(_)
            | Self::Tls(_)
            | Self::Auth(_)
            | Self::Name(_)
            | Self::Unclaimed(_) => true,
            Self::Listen { .. } | Self::Admin(_) | Self::Sockets(_) | Self::Metrics(_) => false,
        }
    }
}

/// Forgets runtimes that are gone, in rounds.
async fn sweep(registry: Arc<Registry>) {
    let mut round = interval(SWEEP);
    loop {
        round.tick().await;
        registry.sweep();
    }
}

/// Waits until the node takes part in a shared directory. Returns false if a shutdown is requested meanwhile.
async fn is_directory_ready(parts: &Parts, shutdown: &Shutdown) -> Result<bool, RunError> {
    let Some(directory) = parts.registry.directory().shared() else {
        return Ok(true);
    };
    tracing::info!(node = %directory.node().name, "waiting for the directory in etcd");
    tokio::select! {
        ready = directory.ready() => ready.map(|()| true).map_err(RunError::from),
        () = shutdown.requested() => Ok(false),
        () = parts.lifecycle.shutdown_requested() => Ok(false),
    }
}

/// Why a server stops serving.
enum Ended {
    /// A shutdown was requested.
    Requested,
    /// A new process has taken over, or is ready to if it is of an earlier version.
    Replaced(Successor),
    /// Something has failed.
    Failed(RunError),
}

/// Waits until a shutdown is requested, by a signal or by the operator, a new process is ready to take over, or something
/// has failed: a shard has ended by itself, or the node must not take part in the shared directory any more.
async fn wait(
    parts: &Parts,
    shutdown: &Shutdown,
    running: &mut [Shard],
    kept: &[(&'static str, TcpListener)],
) -> Ended {
    let shards = running.iter_mut().map(|shard| Box::pin(shard.ended()));
    let failed = async {
        match parts.registry.directory().shared() {
            Some(directory) => directory.failed().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = shutdown.requested() => Ended::Requested,
        () = parts.lifecycle.shutdown_requested() => Ended::Requested,
        ((), number, _) = futures_util::future::select_all(shards) => {
            Ended::Failed(RunError::ShardFailed(number))
        }
        error = failed => Ended::Failed(error.into()),
        successor = handover::successor(parts, kept) => Ended::Replaced(successor),
    }
}

async fn finish(running: &mut [Shard]) {
    for shard in running {
        shard.ended().await;
    }
}

fn listen(
    name: &'static str,
    address: SocketAddr,
    count: usize,
    inherited: &mut Inherited,
) -> Result<Bound, BindError> {
    let bound = listener::listen(name, address, count, inherited);
    bound.map_err(|source| BindError::Listen {
        listener: name,
        address,
        source,
    })
}

fn shard_count(configured: usize) -> usize {
    match configured {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}
