//! The composition root: the only file that knows all parts of the server.
//!
//! Start: everything that can fail is done before anything is served, so that a wrong configuration
//! never answers a single request. Stop: in the order of who depends on whom, each step with its
//! reason where it stands.

mod shard;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http::HeaderValue;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
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
    metrics::Metrics,
    public::{Places, answer::Cors, outgoing::ViaName},
    registry::Registry,
    router::Router,
    runtimes::NameError,
};

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 4_096;

/// Rest after an accept error such as "too many open files": trying at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a stopping server waits for a request that may be on its way. Who connects just in case
/// would hold it up for the whole grace period.
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// What all parts of a running server share.
pub struct Node {
    /// The checked configuration.
    pub config: Config,
    /// From host to session.
    pub router: Router,
    /// Which tunnel each runtime has.
    pub registry: Arc<Registry>,
    /// Every metric.
    pub metrics: Arc<Metrics>,
    /// Places for public connections.
    pub places: Arc<Places>,
    /// Pages that may read our own answers.
    pub cors: Cors,
    /// Our name in `Via`.
    pub via: ViaName,
    /// Whether each exchange is logged.
    pub access_log: bool,
    stopping: Shutdown,
}

impl Node {
    /// Whether what an address says of who asked before it is believed.
    #[must_use]
    pub fn is_trusted(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.config
            .trusted_proxies
            .iter()
            .any(|network| network.contains(&address))
    }

    /// Resolves when the server accepts no more.
    pub async fn stopping(&self) {
        self.stopping.asked().await;
    }

    /// Resolves a moment after that: for so long a stopping server waits for those that have not
    /// asked for anything yet.
    pub async fn patience_ended(&self) {
        self.stopping().await;
        sleep(STOP_PATIENCE).await;
    }

    /// Whether the server accepts no more.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_asked()
    }
}

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

fn shard_count(asked: usize) -> usize {
    match asked {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}

/// One address, bound as often as there are shards.
struct Bound {
    address: SocketAddr,
    sockets: Vec<std::net::TcpListener>,
}

fn listen(listener: &'static str, address: SocketAddr, count: usize) -> Result<Bound, BindError> {
    let failed = |source| BindError::Listen {
        listener,
        address,
        source,
    };
    // Sharing a port would let a second server take half of the connections unnoticed. Bound alone
    // first, an address in use is found; a port that the system chose is nobody else's anyway.
    if count == 1 || address.port() != 0 {
        let alone = bind(address, false).map_err(failed)?;
        if count == 1 {
            let address = alone.local_addr().map_err(failed)?;
            return Ok(Bound {
                address,
                sockets: vec![alone],
            });
        }
    }
    let mut sockets = vec![bind(address, true).map_err(failed)?];
    let address = sockets[0].local_addr().map_err(failed)?;
    while sockets.len() < count {
        sockets.push(bind(address, true).map_err(failed)?);
    }
    Ok(Bound { address, sockets })
}

fn bind(address: SocketAddr, is_shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The next connection. Errors of single connections, and of having too many open, never end it.
pub(crate) async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection, trying again");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}
