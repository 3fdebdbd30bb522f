//! What all parts of a running server share.
//!
//! Made once, when the server has bound its listeners; every connection and session holds it. It has no
//! behaviour of its own beyond answering what the configuration and the shutdown say.

use std::{net::IpAddr, sync::Arc, time::Duration};

use tokio::time::sleep;
use tunnel_ops::signals::Shutdown;

use crate::{
    config::Config,
    metrics::Metrics,
    public::{answer::Cors, outgoing::ViaName, places::Places},
    registry::Registry,
    router::Router,
};

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
    /// Places for tunnel connections. Not counted by address: many may come through one proxy.
    pub tunnel_places: Arc<Places>,
    /// Pages that may read our own answers.
    pub cors: Cors,
    /// Our name in `Via`.
    pub via: ViaName,
    /// Whether each exchange is logged.
    pub access_log: bool,
    pub(crate) stopping: Shutdown,
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
