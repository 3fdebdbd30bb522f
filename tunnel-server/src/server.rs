//! The composition root: the only file that knows all parts of the server.
//!
//! Start: everything that can fail is done before anything is served, so that a wrong configuration
//! never answers a single request. Stop: in the order of who depends on whom, each step with its
//! reason where it stands.

pub(crate) mod drain;
mod shard;

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::{runtime::Handle, time::interval};
use tunnel_http::listener::{self, Bound};
use tunnel_http::outgoing::ViaName;
use tunnel_ops::{
    admin::{AdminBindError, AdminListener, BearerFileError, BearerGuard},
    descriptors,
    signals::Shutdown,
    task::Owned,
    telemetry::RequestId,
    tls_files::TlsFilesError,
};

use self::shard::{Listeners, Shard};
use crate::{
    admin,
    allowance::Allowance,
    auth::{AuthSetupError, Authenticator},
    config::{Config, effective::Effective},
    connect::gate::Gate,
    events::{Event, EventKind, Events},
    held::Threads,
    metrics::Metrics,
    node::{self, Life, Node, Tls},
    public::{
        answer::Cors,
        places::{self, Places},
    },
    registry::Registry,
    router::Router,
    runtimes::NameError,
};

/// Time between two looks at what may be forgotten.
const SWEEP: Duration = Duration::from_secs(10);

/// Lines about tunnel clients that are refused: those of a bad rollout at once, then one in a second.
const REFUSAL_LINES: u32 = 20;
const REFUSAL_LINE_EACH: Duration = Duration::from_secs(1);

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
        let parts = Parts::new(&config)?;
        let count = shard_count(config.settings.shards as usize);
        let tunnel = listen("tunnel", config.settings.tunnel_listen, count)?;
        let public = listen("public", config.settings.public_listen, count)?;
        let admin = AdminListener::bind(config.settings.admin_listen).await?;
        let addresses = Addresses {
            tunnel: tunnel.address,
            public: public.address,
            admin: admin.local_addr(),
        };
        let shards = tunnel
            .sockets
            .into_iter()
            .zip(public.sockets)
            .map(|(tunnel, public)| Listeners { tunnel, public })
            .collect();
        let node = Arc::new(parts.into_node(config));
        node.tls.show(&node.metrics);
        node.metrics.show_holdings(&node)?;
        Ok(Self {
            node,
            shards,
            admin,
            addresses,
        })
    }

    /// Reads and checks all that a server of this configuration would, and binds nothing. Tells what each
    /// setting stands at.
    ///
    /// # Errors
    /// When something in it cannot be used.
    pub fn check(config: &Config) -> Result<Effective, BindError> {
        let parts = Parts::new(config)?;
        Ok(config.effective(&parts.authenticator.contents()))
    }

    /// What its parts share, for whoever changes something while it runs.
    pub(crate) fn node(&self) -> Arc<Node> {
        self.node.clone()
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
            shards,
            admin,
            addresses,
        } = self;
        node.threads.add(Handle::current());
        let mut running = Vec::new();
        for (number, listeners) in shards.into_iter().enumerate() {
            let shard = Shard::start(number, node.clone(), listeners);
            running.push(shard.map_err(|error| RunError::Shard(number, error))?);
        }
        let routes = admin::routes(&node, shutdown.clone(), addresses.admin);
        // The last to stop: how the rest stops can be watched there.
        let admin = Owned::spawn("admin", admin.serve(routes, std::future::pending()));
        for (listener, address) in [
            ("tunnel", addresses.tunnel),
            ("public", addresses.public),
            ("admin", addresses.admin),
        ] {
            tracing::info!(listener, %address, "listening");
        }
        // Keys behind a URL are there before the first client needs them.
        node.authenticator.start();
        let housekeeping = Owned::spawn("housekeeping", sweep(node.clone()));
        let failed = wait(&shutdown, &mut running).await;
        node.events.tell(Event::new(EventKind::Draining));
        // From here on not ready, so that load balancers look elsewhere while all is still served.
        if failed.is_none() {
            tokio::select! {
                () = drain::drain(&node, &mut running) => {}
                () = shutdown.forced() => {}
            }
        }
        drop(housekeeping);
        // What is left had its time: the shards' runtimes end with their tasks.
        drop(running);
        drop(admin);
        tracing::info!("stopped");
        failed.map_or(Ok(()), |number| Err(RunError::ShardFailed(number)))
    }
}

/// What is made of the configuration and the files that it names, before anything is bound.
struct Parts {
    metrics: Arc<Metrics>,
    events: Arc<Events>,
    registry: Arc<Registry>,
    router: Router,
    authenticator: Arc<Authenticator>,
    tls: Tls,
    admin_guard: Option<BearerGuard>,
}

impl Parts {
    fn new(config: &Config) -> Result<Self, BindError> {
        let metrics = Metrics::new()?;
        let events = Events::new(&RequestId::new().as_str()[..8]);
        let registry = Registry::new(metrics.clone(), events.clone());
        let router = Router::new(&config.runtimes, &config.settings.domain, &registry)?;
        registry.set_limits(config);
        let authenticator = Authenticator::new(config)?;
        metrics.show_credentials(&authenticator)?;
        Ok(Self {
            tls: Tls::new(config, authenticator.client_auth())?,
            admin_guard: node::admin_guard(config)?,
            metrics,
            events,
            registry,
            router,
            authenticator,
        })
    }

    fn into_node(self, config: Config) -> Node {
        let all = places::within(
            config.settings.max_connections as usize,
            descriptors::limit(),
        );
        let each = config.settings.max_connections_per_address as usize;
        let tunnels_each = config.settings.max_tunnel_connections_per_address as usize;
        Node {
            authenticator: self.authenticator,
            router: self.router,
            registry: self.registry,
            metrics: self.metrics,
            places: Places::new(all, each),
            tunnel_places: Places::new(all, tunnels_each),
            tls: self.tls,
            gate: Gate::new(
                config.settings.max_handshakes as usize,
                config.settings.handshake_queue as usize,
            ),
            checks: Arc::default(),
            refusal_lines: Allowance::new(REFUSAL_LINES, REFUSAL_LINE_EACH),
            cors: ArcSwap::from_pointee(Cors::of(&config.settings.cors_origin)),
            via: ViaName::new(&RequestId::new().as_str()[..12]),
            events: self.events,
            last_reload: Mutex::default(),
            admin_guard: ArcSwapOption::from_pointee(self.admin_guard),
            started: SystemTime::now(),
            threads: Threads::default(),
            life: Life::new(),
            live: ArcSwap::from_pointee(config),
        }
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

/// Forgets what nobody needs any more.
async fn sweep(node: Arc<Node>) {
    let mut round = interval(SWEEP);
    loop {
        round.tick().await;
        node.registry.sweep();
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
