//! Finds the runtime of a host, and a session of it.
//!
//! A host belongs to one runtime or to none; there is no fallback to another. The lookup uses the checked host, in the
//! bytes that are forwarded. Listed runtimes are in a table that is replaced as a whole; a runtime that only a credential
//! has named is found by its label in the registry, and one that only other nodes have held in the shared directory.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::time::Instant;
use tunnel_directory::RuntimeLabel;
use tunnel_proto::{
    problem::{Hop, Problem, Reason},
    session::Session,
};

use crate::{
    budget::{Budget, usage::Usage},
    peers::Forward,
    registry::{Registry, Slot},
    runtimes::{HostError, HostName, RuntimeEntry, Runtimes},
    tunnel::Tunnel,
};

/// `Retry-After` for a runtime that is offline: about the time that a tunnel client needs to come back after a restart or
/// a loss of its network.
const OFFLINE_RETRY: Duration = Duration::from_secs(5);

/// The hosts that are served.
pub struct Router {
    hosts: ArcSwap<HashMap<Box<str>, Arc<Slot>>>,
    registry: Arc<Registry>,
    domain: HostName,
}

impl Router {
    /// Makes the table of the listed runtimes.
    ///
    /// # Errors
    /// When a label under `domain` is not a valid host name.
    pub fn new(
        runtimes: &Runtimes,
        domain: &HostName,
        registry: &Arc<Registry>,
    ) -> Result<Self, HostError> {
        let router = Self {
            hosts: ArcSwap::default(),
            registry: registry.clone(),
            domain: domain.clone(),
        };
        router.replace(runtimes)?;
        Ok(router)
    }

    /// Replaces the listed runtimes. Those that are in both tables keep their tunnels.
    ///
    /// # Errors
    /// When a label under the domain is not a valid host name; nothing changes then.
    pub fn replace(&self, runtimes: &Runtimes) -> Result<(), HostError> {
        self.commit(self.prepare(runtimes)?);
        Ok(())
    }

    /// The first part of [`Self::replace`], which can fail.
    pub(crate) fn prepare(&self, runtimes: &Runtimes) -> Result<NextHosts, HostError> {
        let named = runtimes.iter().map(|runtime| {
            let own = HostName::of_runtime(&runtime.label, &self.domain)?;
            Ok((runtime.clone(), own))
        });
        named.collect::<Result<_, _>>().map(NextHosts)
    }

    /// The second part of [`Self::replace`], which cannot fail.
    pub(crate) fn commit(&self, NextHosts(runtimes): NextHosts) {
        let mut hosts = HashMap::new();
        let mut labels: HashSet<&RuntimeLabel> = HashSet::new();
        for (runtime, own) in &runtimes {
            let slot = self.registry.list(runtime);
            labels.insert(&runtime.label);
            for host in runtime.hosts.iter().chain([own]) {
                hosts.insert(host.as_str().into(), slot.clone());
            }
        }
        self.hosts.store(Arc::new(hosts));
        self.registry.keep_listed(|label| labels.contains(label));
    }

    /// The domain under which runtimes have their hosts.
    pub(crate) fn domain(&self) -> &HostName {
        &self.domain
    }

    /// The number of hosts of the listed runtimes.
    pub(crate) fn hosts(&self) -> usize {
        self.hosts.load().len()
    }

    /// The route to the runtime of `host`, which is in lower case and without port.
    #[must_use]
    pub fn route(&self, host: &str, offline_wait: Duration) -> Route {
        let listed = self.hosts.load().get(host).cloned();
        Route {
            slot: listed.or_else(|| self.unlisted(host)),
            offline_wait,
        }
    }

    /// The label of the runtime of a host that is not checked; `None` if the host belongs to no runtime.
    pub(crate) fn label_of(&self, host: &str) -> Option<String> {
        let route = self.route(&host.to_ascii_lowercase(), Duration::ZERO);
        route.label().map(ToString::to_string)
    }

    /// Whether the host is that of a known runtime. It is in lower case and without port.
    pub(crate) fn is_runtime(&self, host: &str) -> bool {
        self.hosts.load().contains_key(host) || self.unlisted(host).is_some()
    }

    fn unlisted(&self, host: &str) -> Option<Arc<Slot>> {
        let below = host.strip_suffix(self.domain.as_str())?;
        let label = below.strip_suffix('.')?;
        self.registry.known(label)
    }
}

/// Runtimes to serve next, each with its host under the domain.
pub(crate) struct NextHosts(Vec<(Arc<RuntimeEntry>, HostName)>);

/// Where an exchange is sent next.
pub enum NextHop {
    /// Through a session of this node.
    Local(Arc<Tunnel>, Session),
    /// Through another node.
    Peer(Forward),
}

/// The route of one host to its runtime, which may be offline.
pub struct Route {
    /// `None` if the host belongs to no runtime.
    slot: Option<Arc<Slot>>,
    offline_wait: Duration,
}

impl Route {
    /// The runtime's slot.
    ///
    /// # Errors
    /// When the host is no runtime's.
    pub(crate) fn slot(&self) -> Result<&Arc<Slot>, Problem> {
        let problem = |reason, detail| Problem::new(Hop::Server, reason, detail);
        let unknown = || problem(Reason::RuntimeUnknown, "no runtime is served at this host");
        self.slot.as_ref().ok_or_else(unknown)
    }

    /// The label of the host's runtime; `None` if the host belongs to no runtime.
    pub(crate) fn label(&self) -> Option<&RuntimeLabel> {
        self.slot.as_ref().map(|slot| slot.label())
    }

    /// The budget of the host's runtime; `None` if the host belongs to no runtime.
    #[must_use]
    pub fn budget(&self) -> Option<&Arc<Budget>> {
        self.slot.as_ref().map(|slot| slot.budget())
    }

    /// Where the next exchange of a request is sent: a session of this node, or else one of another node that `elsewhere`
    /// finds. A request may need several; `waits_until`, initially `None`, is kept for all of them, so that it waits for
    /// all together no longer than for one. `weight` is its memory in bytes while it waits, computed only then; it counts
    /// for the address of `usage`.
    ///
    /// # Errors
    /// When the host belongs to no runtime, the runtime has no live session and gets none in time, or too many requests
    /// wait, or hold too much memory.
    pub async fn next_hop(
        &self,
        waits_until: &mut Option<Instant>,
        usage: Option<&Arc<Usage>>,
        weight: impl FnOnce() -> usize,
        elsewhere: impl Fn(&RuntimeLabel) -> Option<Forward>,
    ) -> Result<NextHop, Problem> {
        let slot = self.slot()?;
        let local = |(tunnel, session)| NextHop::Local(tunnel, session);
        let find = || {
            let online = slot.online().map(local);
            online.or_else(|| elsewhere(slot.label()).map(NextHop::Peer))
        };
        if let Some(found) = find() {
            return Ok(found);
        }
        // Boxed, so that requests that need not wait do not reserve space for the state of waiting.
        let now = Instant::now();
        let until = *waits_until.get_or_insert_with(|| now + self.offline_wait);
        let left = until.saturating_duration_since(now);
        let last_resort = || slot.last_resort().map(local);
        let waiting = Box::pin(slot.found_within(left, usage, weight, find, last_resort));
        waiting.await?.ok_or_else(|| {
            let detail = "the runtime's tunnel client is not connected";
            Problem::new(Hop::Server, Reason::RuntimeOffline, detail).retry_after(OFFLINE_RETRY)
        })
    }
}

#[cfg(test)]
mod tests {
    use tunnel_ops::config_file::TomlFile;

    use super::*;
    use crate::{events::Events, metrics::Metrics};

    #[tokio::test(start_paused = true)]
    async fn a_request_that_needs_several_sessions_waits_no_longer_than_for_one() {
        let domain = "tunnels.localhost".parse().unwrap();
        let text = "[[runtime]]\naccount = \"acme\"\nname = \"prod\"\n";
        let runtimes = Runtimes::parse(&TomlFile::from_text("r.toml", text), &domain).unwrap();
        let registry = Registry::new(Metrics::new().unwrap(), Events::new("t"));
        let router = Router::new(&runtimes, &domain, &registry).unwrap();
        let wait = Duration::from_secs(5);
        let route = router.route("acme-prod.tunnels.localhost", wait);
        let (start, mut waits_until) = (Instant::now(), None);
        for _ in 0..3 {
            let problem = route
                .next_hop(&mut waits_until, None, || 0, |_| None)
                .await
                .err()
                .unwrap();
            assert_eq!(problem.reason(), Reason::RuntimeOffline);
            assert_eq!(start.elapsed(), wait);
        }
    }
}
