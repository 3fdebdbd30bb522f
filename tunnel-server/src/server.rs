//! The composition root: this folder alone knows all parts of the server.
//!
//! Start: everything that can fail is done before anything is served, so that a wrong configuration
//! never answers a single request. Stop: in the order of dependence, each step with its
//! reason where it stands.

pub(crate) mod drain;
mod moving;
mod parts;
pub(crate) mod reload;
mod shard;
mod tls;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{interval, timeout},
};
use tunnel_http::{
    access_log::AccessLog,
    listener::{self, Bound},
};
use tunnel_ops::socket::listen_advice;
use tunnel_ops::{
    admin::{AdminBindError, AdminListener, BearerFileError},
    signals::Shutdown,
    task::Owned,
    telemetry::tracer::{Exporter, Exporting},
    tls_files::TlsFilesError,
};

pub(crate) use self::parts::connection_limit;
use self::{
    parts::Parts,
    shard::{Shard, Sockets},
};
use crate::{
    acme::Acme,
    admin::{self, api::Reach},
    auth::AuthSetupError,
    config::{Config, effective::Effective},
    directory::DirectoryError,
    events::{Event, EventKind},
    registry::Registry,
    runtimes::NameError,
};

/// Time between two looks at what may be forgotten.
const SWEEP: Duration = Duration::from_secs(10);

/// Time for events that the platform has not taken yet when the server stops.
const LAST_EVENTS: Duration = Duration::from_secs(1);

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
    Name(#[from] NameError),
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
}

impl Server {
    /// Binds all listeners; nothing is served before [`Server::run`]. What is served is in `access_log`.
    ///
    /// # Errors
    /// When an address cannot be bound, or something in the configuration cannot be used.
    pub async fn bind(config: Config, access_log: AccessLog) -> Result<Self, BindError> {
        let parts = Arc::new(Parts::new(config, access_log)?);
        let config = parts.config.load_full();
        let count = shard_count(config.settings.shards as usize);
        let tunnel = match config.is_one_listener() {
            true => None,
            false => Some(listen("tunnel", config.settings.tunnel_listen, count)?),
        };
        let public = listen("public", config.settings.public_listen, count)?;
        let admin = AdminListener::bind(config.settings.admin_listen).await?;
        let peer = match (&config.shared_directory, config.settings.peer_listen) {
            (Some(_), Some(address)) => Some(listen("peer", address, count)?),
            _ => None,
        };
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
        let mut peer_sockets = peer
            .map(|peer| peer.sockets)
            .unwrap_or_default()
            .into_iter();
        let tunnel_sockets = tunnel.map(|tunnel| tunnel.sockets);
        let mut tunnel_sockets = tunnel_sockets.unwrap_or_default().into_iter();
        let sockets = public.sockets.into_iter().map(|public| Sockets {
            tunnel: tunnel_sockets.next(),
            public,
            peer: peer_sockets.next(),
        });
        let shards = sockets.collect();
        // Weak, since the parts hold the registry that the gauges are in.
        let weak = Arc::downgrade(&parts);
        let count = move || weak.upgrade().map(|parts| parts.gauges());
        parts.metrics.show_gauges(count)?;
        Ok(Self {
            parts,
            shards,
            admin,
            addresses,
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
        } = self;
        parts.threads.add(Handle::current());
        let links = parts.links(true);
        let reach = match addresses.admin.ip().is_loopback() {
            true => Reach::Local,
            false => Reach::Network,
        };
        let api = parts.admin_api(reach, links.clone());
        let routes = admin::routes(api, shutdown.clone());
        // The first to start and the last to stop: how the rest does so can be watched there.
        let admin = Owned::spawn("admin", admin.serve(routes, std::future::pending()));
        let exporting = parts.exporter.lock().take().map(Exporter::start);
        let registry = Arc::downgrade(&parts.registry);
        let directory = parts.registry.directory().start(registry);
        if !is_directory_ready(&parts, &shutdown).await? {
            return Ok(());
        }
        if let Some(acme) = &parts.acme {
            acme.load().await;
        }
        let mut running = Vec::new();
        let listeners = parts.listeners(shards.len(), addresses.public.port(), links);
        for (number, (listeners, sockets)) in listeners.into_iter().zip(shards).enumerate() {
            let shard = Shard::start(number, &parts.threads, listeners, sockets);
            running.push(shard.map_err(|error| RunError::Shard(number, error))?);
        }
        addresses.log();
        // Keys behind a URL are there before the first client needs them.
        parts.authenticator.start();
        let housekeeping = Owned::spawn("housekeeping", sweep(parts.registry.clone()));
        let moving = Owned::spawn("moving", parts.move_sessions());
        let webhook = parts.start_webhook();
        // After the listeners, which an ACME server connects to.
        let acme = parts.acme.as_ref().map(Acme::start);
        let failed = wait(&parts, &shutdown, &mut running).await;
        drop((moving, acme));
        parts.lifecycle.leave();
        parts.events.report(Event::new(EventKind::Draining));
        if let Some(directory) = parts.registry.directory().shared() {
            directory.leave();
        }
        // From here on not ready, so that load balancers look elsewhere while all is still served.
        if !matches!(failed, Some(RunError::ShardFailed(_))) {
            let config = parts.config.load_full();
            tokio::select! {
                () = drain::drain(&parts.lifecycle, &config, &mut running) => {}
                () = shutdown.forced() => {}
            }
        }
        drop(housekeeping);
        // What is left had its time: the shards' runtimes end with their tasks.
        drop(running);
        // Before this node's key is removed, which they would write again.
        drop(directory);
        if let Some(directory) = parts.registry.directory().shared() {
            directory.depart().await;
        }
        if let Some((running, webhook)) = webhook {
            drop(running);
            let _ = timeout(LAST_EVENTS, webhook).await;
        }
        // All exchanges have ended.
        Exporting::finish(exporting, &shutdown).await;
        drop(admin);
        tracing::info!("stopped");
        failed.map_or(Ok(()), Err)
    }
}

impl BindError {
    /// Whether the configuration is at fault, or a file that it names.
    #[must_use]
    pub fn is_of_configuration(&self) -> bool {
        match self {
            Self::AdminToken(_) | Self::Tls(_) | Self::Auth(_) | Self::Name(_) => true,
            Self::Listen { .. } | Self::Admin(_) | Self::Metrics(_) => false,
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

/// Waits until a shutdown is requested, by a signal or by the operator, or until something has failed: a shard has ended by
/// itself, or the node must not take part in the shared directory any more.
async fn wait(parts: &Parts, shutdown: &Shutdown, running: &mut [Shard]) -> Option<RunError> {
    let shards = running.iter_mut().map(|shard| Box::pin(shard.ended()));
    let failed = async {
        match parts.registry.directory().shared() {
            Some(directory) => directory.failed().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = shutdown.requested() => None,
        () = parts.lifecycle.shutdown_requested() => None,
        ((), number, _) = futures_util::future::select_all(shards) => {
            Some(RunError::ShardFailed(number))
        }
        error = failed => Some(error.into()),
    }
}

async fn finish(running: &mut [Shard]) {
    for shard in running {
        shard.ended().await;
    }
}

fn listen(name: &'static str, address: SocketAddr, count: usize) -> Result<Bound, BindError> {
    listener::listen(address, count).map_err(|source| BindError::Listen {
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
