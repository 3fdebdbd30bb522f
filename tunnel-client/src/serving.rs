//! The composition root of `serve`: the client's routes behind a listener, without a tunnel.
//!
//! ```text
//!   Serving ─┬─ admin listener     page, status, metrics, health, readiness
//!            ├─ routes             the table, and the upstreams that it leads to
//!            ├─ reload             a new table when the file changes
//!            └─ front listener ─▶ exchanges ─▶ routes ─▶ upstream
//! ```
//!
//! It starts each part after those that it needs, and stops them in reverse.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tunnel_http::access_log::AccessLog;
use tunnel_ops::admin::{AdminListener, AdminRoutes, AdminSettings};
use tunnel_ops::inherited::{Inherited, UnclaimedError};
use tunnel_ops::signals::Shutdown;
use tunnel_ops::task::Owned;
use tunnel_ops::telemetry::tracer::{Exporter, Exporting};
use tunnel_ops::timestamp::Timestamp;
use tunnel_ops::watch::WatchError;
use tunnel_routing::Routes;
use tunnel_routing::upstream::{UpstreamError, UpstreamShared};

use crate::admin;
use crate::client::{ClientError, bind_admin, tracer};
use crate::config::reload::Reloader;
use crate::config::{ConfigError, Given, ServeConfig};
use crate::exchange::Exchanges;
use crate::metrics::Metrics;
pub use crate::serve::ListenError;
use crate::serve::{self, FrontListener, Leaving};

/// A client without a tunnel that takes no request yet.
pub struct Serving {
    admin: Option<(AdminListener, AdminRoutes)>,
    routes: Arc<Routes>,
    metrics: Arc<Metrics>,
    reloader: Option<Reloader>,
    exporter: Option<Exporter>,
    front: FrontListener,
    leaving: Leaving,
}

/// The addresses of the listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The front listener.
    pub front: SocketAddr,
    /// The admin listener; `None` if it is off.
    pub admin: Option<SocketAddr>,
}

/// Why it cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServingError {
    /// What a client with a tunnel has too.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The listener.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// What was given.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An upstream.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// Sockets that systemd has passed.
    #[error(transparent)]
    Unclaimed(#[from] UnclaimedError),
    /// The configuration's files.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The metrics.
    #[error("the metrics cannot be made: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The listener, after it was bound.
    #[error("cannot accept connections: {0}")]
    Accept(#[from] io::Error),
}

impl Serving {
    /// Binds the listeners. Must be called within a runtime.
    ///
    /// # Errors
    /// See [`ServingError`].
    pub fn new(config: ServeConfig, access_log: AccessLog) -> Result<Self, ServingError> {
        Self::bind(config, access_log, Inherited::default())
    }

    fn bind(
        config: ServeConfig,
        access_log: AccessLog,
        mut inherited: Inherited,
    ) -> Result<Self, ServingError> {
        let settings = config.settings;
        let metrics = Arc::new(Metrics::new()?);
        access_log.count_lost(metrics.access_log_lost.clone());
        let admin = settings.admin_listen;
        let admin = admin.map(|address| bind_admin(address, &mut inherited));
        let admin = admin.transpose()?;
        let allowed = AdminSettings {
            allowed_hosts: settings.admin_host.clone(),
        };
        let ready = {
            let metrics = Arc::clone(&metrics);
            move || serve::readiness(&metrics)
        };
        let memory = metrics.memory(settings.max_buffered_size)?;
        let shared = Arc::new(UpstreamShared::new(
            settings.dns_server.as_deref().unwrap_or_default(),
            memory,
            settings.upstream_idle_pool as usize,
        ));
        let routes = Routes::new(
            &config.routes,
            shared,
            settings.problem_detail,
            Arc::clone(metrics.routes()),
        )?;
        let routes = Arc::new(routes);
        let (own, counted) = (Arc::clone(&routes), Arc::clone(&metrics));
        let api = admin::Api {
            metrics: Arc::clone(&metrics),
            routes: Arc::clone(&routes),
            tunnel: None,
            tails: Arc::clone(access_log.tails()),
            started: Timestamp::now(),
        };
        let answers = admin::routes_with(api, allowed, ready);
        let (tracer, exporter) =
            tracer(config.tracer.as_ref(), &metrics).map_err(ClientError::from)?;
        let exchanges = Exchanges::new(own, counted, access_log, tracer);
        let leaving = Leaving {
            delay: settings.drain_delay,
            grace: settings.grace_period,
        };
        let front = FrontListener::bind(
            settings,
            config.certificate,
            config.problem_page,
            exchanges,
            Arc::clone(&metrics),
            &mut inherited,
        )?;
        inherited.finish()?;
        Ok(Self {
            admin: admin.map(|listener| (listener, answers)),
            routes,
            metrics,
            reloader: None,
            exporter,
            front,
            leaving,
        })
    }

    /// As [`Self::new`] with sockets that the process has inherited, and reloads the routes when their files change, and on
    /// SIGHUP.
    ///
    /// # Errors
    /// See [`ServingError`].
    pub fn with_reload(
        given: Given,
        access_log: AccessLog,
        inherited: Inherited,
    ) -> Result<Self, ServingError> {
        // Before the files are read, so that no edit in between is missed.
        let reloader = Reloader::new(given.clone(), |source| ServeConfig::check(source).map(drop))?;
        let source = given.merge().map_err(ConfigError::from)?;
        let mut serving = Self::bind(ServeConfig::check(&source)?, access_log, inherited)?;
        serving.reloader = Some(reloader);
        Ok(serving)
    }

    /// The addresses of the listeners.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        Addresses {
            front: self.front.address(),
            admin: (self.admin.as_ref()).map(|(listener, _)| listener.local_addr()),
        }
    }

    /// Serves requests until shutdown, then finishes the open ones.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), ServingError> {
        let Self {
            admin,
            routes,
            metrics,
            reloader,
            exporter,
            front,
            leaving,
        } = self;
        // The admin listener first, so that probes are answered "not ready".
        let admin = admin.map(|(listener, answers)| {
            Owned::spawn("admin", listener.serve(answers, std::future::pending()))
        });
        let exporting = exporter.map(Exporter::start);
        // Then the reload.
        let reloading = reloader.map(|reloader| reloader.start(Arc::clone(&routes), metrics));
        // The front listener starts last and ends first: during its shutdown, open exchanges still have their upstreams, and
        // the admin listener answers.
        let result = front.run(&shutdown, leaving).await;
        drop(reloading);
        drop(routes);
        Exporting::finish(exporting, &shutdown).await;
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
