//! The composition root: the only place that knows all parts of a client.
//!
//! ```text
//!   Client ─┬─ admin listener        metrics, health, readiness
//!           ├─ upstream              what routes lead to
//!           └─ tunnel ─▶ sessions ─▶ exchanges ─▶ routes ─▶ upstream
//! ```
//!
//! It starts them in the order of who needs whom, and stops them in the other.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tunnel_ops::admin::{AdminBindError, AdminListener};
use tunnel_ops::signals::Shutdown;
use tunnel_ops::task::Owned;
use tunnel_ops::tls_files::TlsFilesError;
use tunnel_proto::handshake::InstanceId;
use tunnel_proto::session::SessionSettings;

use crate::admin;
use crate::config::{Config, OnRefusal};
use crate::dial::Dialler;
use crate::exchange::Exchanges;
use crate::metrics::Metrics;
use crate::routes::Routes;
use crate::session::SessionParts;
pub use crate::tunnel::GivenUp;
use crate::tunnel::{RedialSettings, Tunnel, TunnelParts};
use crate::upstream::{Upstream, UpstreamSettings};

/// A client that has not dialled yet.
pub struct Client {
    metrics: Arc<Metrics>,
    admin: Option<AdminListener>,
    upstream: Arc<Upstream>,
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
    #[error("cannot listen on {0} for the operator at once")]
    AdminNotBound(SocketAddr),
    /// The instance id.
    #[error("the system gives no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The metrics.
    #[error("the metrics cannot be made: {0}")]
    Metrics(#[from] prometheus::Error),
    /// TLS to the server or the upstream.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// The server refuses for good.
    #[error(transparent)]
    GivenUp(#[from] GivenUp),
}

impl Client {
    /// Prepares all that does not need the network, and binds the admin listener. Must be called
    /// within a runtime.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn new(config: Config) -> Result<Self, ClientError> {
        let metrics = Arc::new(Metrics::new()?);
        let admin = config.admin_listen.map(bind_admin).transpose()?;
        let upstream = Arc::new(Upstream::new(UpstreamSettings {
            url: config.upstream.clone(),
            roots: config.upstream_roots.clone(),
            connect_timeout: config.upstream_connect_timeout,
            head_timeout: config.upstream_head_timeout,
            idle_pool: config.upstream_idle_pool,
        })?);
        let routes = Routes::to(Arc::clone(&upstream));
        let exchanges = Exchanges::new(routes, Arc::clone(&metrics), config.access_log);
        let sessions = SessionParts {
            exchanges,
            metrics: Arc::clone(&metrics),
            settings: SessionSettings {
                ping_interval: config.ping_interval,
                ..SessionSettings::default()
            },
            welcome_limit: config.dial_timeout,
        };
        let tunnel = tunnel(config, sessions)?;
        Ok(Self {
            metrics,
            admin,
            upstream,
            tunnel,
        })
    }

    /// Where it listens.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            admin: self.admin.as_ref().map(AdminListener::local_addr),
        }
    }

    /// Keeps the tunnel up until asked to stop.
    ///
    /// # Errors
    /// When the server refuses for good, and the client is not told to wait then.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), ClientError> {
        let Self {
            metrics,
            admin,
            upstream,
            tunnel,
        } = self;
        // First the admin listener, so that whoever starts the client is told "not ready" instead of
        // nothing. It never ends by itself.
        let admin = admin.map(|listener| {
            let serving = listener.serve(admin::routes(metrics), std::future::pending());
            Owned::spawn("admin", serving)
        });
        // Then what exchanges need.
        let sweeping = {
            let upstream = Arc::clone(&upstream);
            Owned::spawn("upstream", async move { upstream.sweep().await })
        };
        // The tunnel last: from its first session on, requests come. It is also the first to end,
        // and while it leaves, open exchanges still have their upstreams, and the operator sees it.
        let result = tunnel.run(&shutdown).await;
        drop(sweeping);
        drop(upstream);
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

fn tunnel(config: Config, sessions: SessionParts) -> Result<Tunnel, ClientError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)?;
    let roots = &config.server_roots;
    let dialler = Dialler::new(config.server, roots, config.token_file, config.dial_timeout)?;
    Ok(Tunnel::new(TunnelParts {
        dialler,
        instance: InstanceId::from_random(random),
        sessions,
        redial: RedialSettings {
            base: config.redial_base,
            cap: config.redial_cap,
            stable: config.redial_stable,
            after_refusal: match config.on_refusal {
                OnRefusal::Exit => None,
                OnRefusal::Retry => Some(config.refusal_wait),
            },
        },
        grace_period: config.grace_period,
    }))
}

fn bind_admin(address: SocketAddr) -> Result<AdminListener, ClientError> {
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
