//! The composition root: the only file that knows all parts of the server.
//!
//! Start: everything that can fail is done before anything is served, so that a wrong configuration
//! never answers a single request. Stop: in the order of who depends on whom, each step with its
//! reason where it stands.

mod shard;

use std::{io, net::SocketAddr, sync::Arc};

use http::HeaderValue;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tunnel_ops::{
    admin::{AdminBindError, AdminListener, AdminRoutes, Readiness},
    signals::{Shutdown, Trigger},
    task::Owned,
    telemetry::RequestId,
    tls_files::{self, TlsFilesError},
};

use self::shard::{Listeners, Shard};
use crate::{
    config::Config,
    listener::{self, Bound},
    metrics::Metrics,
    node::Node,
    public::{answer::Cors, outgoing::ViaName, places::Places},
    registry::Registry,
    router::Router,
    runtimes::NameError,
};

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A listener's address cannot be bound.
    #[error("cannot listen on {address} for {listener}: {source}")]
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
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// A runtime's host is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The metrics cannot be registered.
    #[error("cannot register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Why a running server ended other than by being asked.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The operating system gave no thread or runtime.
    #[error("cannot start shard {0}: {1}")]
    Shard(usize, #[source] io::Error),
    /// A shard ended by a fault of ours.
    #[error("shard {0} has failed")]
    ShardFailed(usize),
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
}

/// A server whose listeners are bound.
pub struct Server {
    node: Arc<Node>,
    stop: Trigger,
    shards: Vec<Listeners>,
    admin: AdminListener,
    addresses: Addresses,
}

impl Server {
    /// Binds all listeners; nothing is served before [`Server::run`].
    ///
    /// # Errors
    /// When an address cannot be bound, or something in the configuration cannot be used.
    pub async fn bind(config: Config) -> Result<Self, BindError> {
        let metrics = Metrics::new()?;
        let registry = Registry::new(metrics.clone());
        let router = Router::new(
            &config.runtimes,
            &config.domain,
            &registry,
            config.offline_wait,
        )?;
        let tunnel_tls = tls_files::server_config(&config.tunnel_tls, &[b"http/1.1"])?;
        let public_tls = match &config.public_tls {
            Some(identity) => Some(tls_files::server_config(identity, &[b"h2", b"http/1.1"])?),
            None => None,
        };
        let count = shard_count(config.shards);
        let tunnel = listen("tunnel", config.tunnel_listen, count)?;
        let public = listen("public", config.public_listen, count)?;
        let admin = AdminListener::bind(config.admin_listen).await?;
        let addresses = Addresses {
            tunnel: tunnel.address,
            public: public.address,
            admin: admin.local_addr(),
        };
        let shards = tunnel
            .sockets
            .into_iter()
            .zip(public.sockets)
            .map(|(tunnel, public)| Listeners {
                tunnel,
                public,
                tunnel_tls: TlsAcceptor::from(tunnel_tls.clone()),
                public_tls: public_tls.clone().map(TlsAcceptor::from),
            })
            .collect();
        let (stop, stopping) = Shutdown::manual();
        let origins = config.cors_origins.iter();
        let node = Arc::new(Node {
            router,
            registry,
            metrics,
            tunnel_places: Places::new(config.max_connections, usize::MAX),
            places: Places::new(config.max_connections, config.max_connections_per_address),
            cors: Cors::new(
                origins.filter_map(|origin| HeaderValue::from_str(origin.as_str()).ok()),
            ),
            via: ViaName::new(&RequestId::new().as_str()[..12]),
            access_log: config.access_log,
            stopping,
            config,
        });
        Ok(Self {
            node,
            stop,
            shards,
            admin,
            addresses,
        })
    }

    /// Where it listens; the ports that were asked for as 0 are known here.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until asked to stop, and through the grace period then.
    ///
    /// # Errors
    /// When a shard cannot be started, or fails.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), RunError> {
        let Self {
            node,
            stop,
            shards,
            admin,
            addresses,
        } = self;
        let mut running = Vec::new();
        for (number, listeners) in shards.into_iter().enumerate() {
            let shard = Shard::start(number, node.clone(), listeners);
            running.push(shard.map_err(|error| RunError::Shard(number, error))?);
        }
        let routes = {
            let asked = shutdown.clone();
            AdminRoutes::new(node.metrics.registry().clone(), move || {
                if asked.is_asked() {
                    Readiness::NotReady("the server is stopping".into())
                } else {
                    Readiness::Ready
                }
            })
        };
        // The last to stop: how the rest stops can be watched there.
        let admin = Owned::spawn("admin", admin.serve(routes, std::future::pending()));
        for (listener, address) in [
            ("tunnel", addresses.tunnel),
            ("public", addresses.public),
            ("admin", addresses.admin),
        ] {
            tracing::info!(listener, %address, "listening");
        }
        let failed = wait(&shutdown, &mut running).await;
        // From here on not ready, so that load balancers look elsewhere while all is still served.
        if failed.is_none() {
            tokio::select! {
                () = sleep(node.config.drain_delay) => {}
                () = shutdown.forced() => {}
            }
        }
        // Sessions are told to drain and connections to finish; both happen in the shards.
        stop.ask();
        tokio::select! {
            _ = timeout(node.config.grace_period, finish(&mut running)) => {}
            () = shutdown.forced() => {}
        }
        // What is left had its time: the shards' runtimes end with their tasks.
        drop(running);
        drop(admin);
        tracing::info!("stopped");
        failed.map_or(Ok(()), |number| Err(RunError::ShardFailed(number)))
    }
}

/// Until asked to stop, or until a shard has ended by itself, which is a fault.
async fn wait(shutdown: &Shutdown, running: &mut [Shard]) -> Option<usize> {
    let shards = running.iter_mut().map(|shard| Box::pin(shard.ended()));
    tokio::select! {
        () = shutdown.asked() => None,
        ((), number, _) = futures_util::future::select_all(shards) => Some(number),
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

fn shard_count(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}
