//! Which tunnel each runtime has on this node.
//!
//! A session joins with [`Registry::join`] and leaves when its [`Membership`] is dropped. An entry is
//! removed only by the membership that made it, and only while it is still the one: whoever comes
//! late finds his successor's entry and leaves it alone. Nothing here awaits under a lock.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use tunnel_proto::{handshake::InstanceId, session::Session};

use crate::{directory::Directory, metrics::Metrics, runtimes::RuntimeLabel, tunnel::Tunnel};

/// How long after its last session a runtime counts as one that is just coming back.
const RETURNING: Duration = Duration::from_secs(60);

/// Requests that may wait for one runtime to come back.
const WAITING: usize = 256;

/// All runtimes' tunnels on this node.
pub struct Registry {
    directory: Directory,
    metrics: Arc<Metrics>,
    slots: Mutex<HashMap<RuntimeLabel, Arc<Slot>>>,
}

/// The place of one runtime's tunnel.
pub struct Slot {
    label: RuntimeLabel,
    state: Mutex<State>,
    /// Told whenever a session has joined.
    joined: Notify,
    waiting: AtomicUsize,
}

struct State {
    tunnel: Option<Arc<Tunnel>>,
    /// When the runtime was last online; at first when it became known.
    last_online: Instant,
}

impl State {
    /// Whether the runtime has been offline for so long that nobody should wait for it. A tunnel whose
    /// sessions are all leaving is not offline: its client is on its way back.
    fn is_gone(&self, now: Instant) -> bool {
        self.tunnel.is_none() && self.last_online + RETURNING < now
    }
}

/// A session's membership in its runtime's tunnel; ends with it.
pub struct Membership {
    registry: Arc<Registry>,
    slot: Arc<Slot>,
    tunnel: Arc<Tunnel>,
    session: Session,
}

impl Registry {
    /// A registry without any tunnel.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            directory: Directory::default(),
            metrics,
            slots: Mutex::default(),
        })
    }

    /// The place of a runtime that is known to be served.
    pub fn slot(&self, label: &RuntimeLabel) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        let slot = slots.entry(label.clone()).or_insert_with(|| {
            Arc::new(Slot {
                label: label.clone(),
                state: Mutex::new(State {
                    tunnel: None,
                    last_online: Instant::now(),
                }),
                joined: Notify::new(),
                waiting: AtomicUsize::new(0),
            })
        });
        slot.clone()
    }

    /// Adds an authenticated session to its runtime's tunnel. When another instance held the
    /// runtime, it is superseded at once.
    pub fn join(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        instance: &InstanceId,
        session: Session,
    ) -> Membership {
        let mut state = slot.state.lock();
        // Claimed under the slot's lock, so that claim and entry change in the same order.
        let claim = self.directory.claim(&slot.label, instance);
        let held = state.tunnel.as_ref().filter(|held| held.claim() == &claim);
        let tunnel = match held {
            Some(held) => held.clone(),
            None => {
                let tunnel = Arc::new(Tunnel::new(claim, self.metrics.runtime(&slot.label)));
                if let Some(older) = state.tunnel.replace(tunnel.clone()) {
                    older.supersede(instance);
                }
                tunnel
            }
        };
        tunnel.add(session.clone());
        drop(state);
        self.metrics.sessions.inc();
        slot.joined.notify_waiters();
        Membership {
            registry: self.clone(),
            slot: slot.clone(),
            tunnel,
            session,
        }
    }
}

impl Slot {
    /// The runtime's label.
    #[must_use]
    pub fn label(&self) -> &RuntimeLabel {
        &self.label
    }

    /// The tunnel and the session that takes the next exchange, if the runtime is online.
    #[must_use]
    pub fn online(&self) -> Option<(Arc<Tunnel>, Session)> {
        let tunnel = self.state.lock().tunnel.clone()?;
        let session = tunnel.session()?;
        Some((tunnel, session))
    }

    /// The same, after waiting a set time for a runtime that was online a short while ago.
    pub async fn online_within(&self, wait: Duration) -> Option<(Arc<Tunnel>, Session)> {
        let now = Instant::now();
        if self.state.lock().is_gone(now) {
            return None;
        }
        let _place = Waiting::enter(&self.waiting)?;
        loop {
            let joined = self.joined.notified();
            if let Some(online) = self.online() {
                return Some(online);
            }
            timeout_at(now + wait, joined).await.ok()?;
        }
    }
}

/// A place among those that wait for a runtime.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(count: &'a AtomicUsize) -> Option<Self> {
        let place = Self(count);
        (count.fetch_add(1, Ordering::AcqRel) < WAITING).then_some(place)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Membership {
    /// The tunnel that the session belongs to.
    #[must_use]
    pub fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.slot.state.lock();
        let is_last = self.tunnel.remove(&self.session);
        let is_held = state
            .tunnel
            .as_ref()
            .is_some_and(|held| Arc::ptr_eq(held, &self.tunnel));
        if is_held {
            state.last_online = Instant::now();
        }
        if is_last && is_held {
            state.tunnel = None;
            self.registry
                .directory
                .release(&self.slot.label, self.tunnel.claim().epoch);
        }
        drop(state);
        self.registry.metrics.sessions.dec();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tunnel_proto::session::{SessionSettings, Side};

    use super::*;

    async fn session() -> Session {
        let (io, _) = tokio::io::duplex(64);
        let settings = SessionSettings::default();
        let (session, _, driver) = Session::new(io, Bytes::new(), Side::Server, settings);
        // A driver that is dropped ends its session; here it has to look alive.
        std::mem::forget(driver);
        session
    }

    fn instance(number: u8) -> InstanceId {
        InstanceId::from_random([number; 16])
    }

    fn registry() -> (Arc<Registry>, Arc<Slot>) {
        let registry = Registry::new(Metrics::new().unwrap());
        let account = "acme".parse().unwrap();
        let slot = registry.slot(&RuntimeLabel::new(&account, &"prod".parse().unwrap()).unwrap());
        (registry, slot)
    }

    #[tokio::test]
    async fn a_late_leave_does_not_remove_the_successor() {
        let (registry, slot) = registry();
        let older = registry.join(&slot, &instance(1), session().await);
        let newer = registry.join(&slot, &instance(2), session().await);
        assert_eq!(older.tunnel().superseded().await, instance(2));
        drop(older);
        assert_eq!(slot.online().unwrap().0.claim(), newer.tunnel().claim());
        drop(newer);
        assert!(slot.online().is_none());
    }

    #[tokio::test]
    async fn sessions_of_one_instance_make_one_tunnel() {
        let (registry, slot) = registry();
        let first = registry.join(&slot, &instance(1), session().await);
        let second = registry.join(&slot, &instance(1), session().await);
        assert_eq!(slot.online().unwrap().0.session_count(), 2);
        drop(first);
        assert!(slot.online().is_some());
        drop(second);
        assert!(slot.online().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_runtime_that_is_coming_back() {
        let (registry, slot) = registry();
        let wait = Duration::from_secs(5);
        let (online, _membership) = tokio::join!(slot.online_within(wait), async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            registry.join(&slot, &instance(1), session().await)
        });
        assert!(online.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_long_lived_runtime_whose_session_is_leaving() {
        let (registry, slot) = registry();
        let leaving = registry.join(&slot, &instance(1), session().await);
        tokio::time::sleep(RETURNING * 2).await;
        leaving.session.start_drain();
        let wait = Duration::from_secs(5);
        let (online, _membership) = tokio::join!(slot.online_within(wait), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            registry.join(&slot, &instance(1), session().await)
        });
        assert!(online.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_runtime_that_is_long_gone() {
        let (_registry, slot) = registry();
        let wait = Duration::from_secs(5);
        let start = Instant::now();
        assert!(slot.online_within(wait).await.is_none());
        assert_eq!(start.elapsed(), wait);
        tokio::time::sleep(RETURNING).await;
        let start = Instant::now();
        assert!(slot.online_within(wait).await.is_none());
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
