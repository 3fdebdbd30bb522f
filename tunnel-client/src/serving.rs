//! The composition root of `serve`: the client's routes behind a listener, without a tunnel.
//!
//! ```text
//!   Serving ─┬─ admin listener     metrics, health, readiness
//!            ├─ upstream           what routes lead to
//!            └─ front listener ─▶ exchanges ─▶ routes ─▶ upstream
//! ```
//!
//! It starts them in the order of who needs whom, and stops them in the other.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tunnel_ops::admin::{AdminListener, AdminRoutes, AdminSettings};
use tunnel_ops::signals::Shutdown;
use tunnel_ops::task::Owned;

use crate::admin;
use crate::client::{ClientError, bind_admin};
use crate::config::ServeConfig;
use crate::exchange::Exchanges;
use crate::metrics::Metrics;
use crate::routes::Routes;
pub use crate::serve::ListenError;
use crate::serve::{self, FrontListener, Leaving};
use crate::upstream::{Upstream, UpstreamError, UpstreamOptions, UpstreamShared, UpstreamTls};

/// A client without a tunnel that takes no request yet.
pub struct Serving {
    admin: Option<(AdminListener, AdminRoutes)>,
    upstream: Arc<Upstream>,
    front: FrontListener,
    config: ServeConfig,
}

/// Where it listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// For requests.
    pub front: SocketAddr,
    /// For the operator; none if that is off.
    pub admin: Option<SocketAddr>,
}

/// Why it cannot start, or does not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServingError {
    /// What a client with a tunnel has too.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The listener.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The upstream.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The metrics.
    #[error("the metrics cannot be made: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The listener, once it was bound.
    #[error("cannot accept connections: {0}")]
    Accept(#[from] io::Error),
}

impl Serving {
    /// Binds the listeners. Must be called within a runtime.
    ///
    /// # Errors
    /// See [`ServingError`].
    pub fn new(config: ServeConfig) -> Result<Self, ServingError> {
        let metrics = Arc::new(Metrics::new()?);
        let admin = config.admin_listen.map(bind_admin).transpose()?;
        let settings = AdminSettings {
            allowed_hosts: config.admin_hosts.clone(),
        };
        let ready = {
            let metrics = Arc::clone(&metrics);
            move || serve::readiness(&metrics)
        };
        let routes = admin::routes_with(&metrics, settings, ready);
        let shared = Arc::new(UpstreamShared::new(&config.dns_servers));
        let options = UpstreamOptions {
            tls: UpstreamTls {
                roots: config.upstream_roots.clone(),
                ..UpstreamTls::default()
            },
            connect_timeout: config.upstream_connect_timeout,
            head_timeout: config.upstream_head_timeout,
            idle_timeout: None,
            max_body: None,
            idle_pool: config.upstream_idle_pool,
        };
        let upstream = Arc::new(Upstream::new(config.upstream.clone(), &options, &shared)?);
        let table = Routes::to(Arc::clone(&upstream));
        let exchanges = Exchanges::new(table, Arc::clone(&metrics), config.access_log);
        let front = FrontListener::bind(config.listen.clone(), exchanges, metrics)?;
        Ok(Self {
            admin: admin.map(|listener| (listener, routes)),
            upstream,
            front,
            config,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        Addresses {
            front: self.front.address(),
            admin: (self.admin.as_ref()).map(|(listener, _)| listener.local_addr()),
        }
    }

    /// Takes requests until asked to stop, and finishes those that are open.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), ServingError> {
        let Self {
            admin,
            upstream,
            front,
            config,
        } = self;
        // First the admin listener, so that whoever starts it is told "not ready" instead of nothing.
        let admin = admin.map(|(listener, routes)| {
            Owned::spawn("admin", listener.serve(routes, std::future::pending()))
        });
        // Then what exchanges need.
        let tending = {
            let upstream = Arc::clone(&upstream);
            Owned::spawn("upstream", async move { upstream.tend().await })
        };
        // The listener last, and it is the first to end: while it leaves, open exchanges still have their
        // upstreams, and the operator sees it.
        let leaving = Leaving {
            delay: config.drain_delay,
            grace: config.grace_period,
        };
        let result = front.run(&shutdown, leaving).await;
        drop(tending);
        drop(upstream);
        drop(admin);
        tracing::info!("tunnel-client has stopped");
        Ok(result?)
    }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving")
            .field("addresses", &self.addresses())
            .finish_non_exhaustive()
    }
}
