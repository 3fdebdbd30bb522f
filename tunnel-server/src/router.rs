//! From a host to its runtime, and from there to a session.
//!
//! The table has exact hosts only: a host is one runtime's or nobody's, and no request ever falls
//! through to another. The lookup is by the checked request's host, the same bytes that are sent on.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tunnel_proto::{
    problem::{Hop, Problem, Reason},
    session::Session,
};

use crate::{
    registry::{Registry, Slot},
    runtimes::{HostName, NameError, Runtimes},
    tunnel::Tunnel,
};

/// What `Retry-After` says of a runtime that is offline: about as long as a client needs that was
/// restarted or has lost its network.
const OFFLINE_RETRY: Duration = Duration::from_secs(5);

/// All hosts that are served.
pub struct Router {
    hosts: HashMap<Box<str>, Arc<Slot>>,
    /// How long a request waits for its runtime to come back.
    offline_wait: Duration,
}

impl Router {
    /// The table of all listed runtimes.
    ///
    /// # Errors
    /// When a label under `domain` makes no valid host name.
    pub fn new(
        runtimes: &Runtimes,
        domain: &HostName,
        registry: &Registry,
        offline_wait: Duration,
    ) -> Result<Self, NameError> {
        let mut hosts = HashMap::new();
        for runtime in runtimes.iter() {
            let slot = registry.slot(&runtime.label);
            let own = HostName::of_runtime(&runtime.label, domain)?;
            for host in runtime.hosts.iter().chain([&own]) {
                hosts.insert(host.as_str().into(), slot.clone());
            }
        }
        Ok(Self {
            hosts,
            offline_wait,
        })
    }

    /// The way to the runtime of `host`, which is in lower case and without port.
    #[must_use]
    pub fn route(&self, host: &str) -> Route {
        Route {
            slot: self.hosts.get(host).cloned(),
            offline_wait: self.offline_wait,
        }
    }
}

/// The way to one host's runtime, online or not.
pub struct Route {
    /// `None` when the host is nobody's.
    slot: Option<Arc<Slot>>,
    offline_wait: Duration,
}

impl Route {
    /// The session that carries the next exchange.
    ///
    /// # Errors
    /// When the host is nobody's, or its runtime has no live session and none came in time.
    pub async fn session(&self) -> Result<(Arc<Tunnel>, Session), Problem> {
        let Some(slot) = &self.slot else {
            return Err(Problem::new(
                Hop::Server,
                Reason::RuntimeUnknown,
                "no runtime is served at this host",
            ));
        };
        if let Some(online) = slot.online() {
            return Ok(online);
        }
        // Boxed, so that the many who need not wait do not carry what waiting takes.
        let waiting = Box::pin(slot.online_within(self.offline_wait));
        waiting.await.ok_or_else(|| {
            Problem::new(
                Hop::Server,
                Reason::RuntimeOffline,
                "the runtime's tunnel client is not connected",
            )
            .retry_after(OFFLINE_RETRY)
        })
    }
}
