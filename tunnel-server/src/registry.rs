//! The tunnel of each runtime on this node.
//!
//! A session joins with [`Registry::join`] and leaves when its [`Membership`] is dropped. A membership removes the entry
//! of its tunnel only if it is still its own, so that a late one does not remove its successor's. Nothing here awaits
//! under a lock.

mod counts;
mod handover;
mod nodes;
mod observer;
mod waiting;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use ipnet::IpNet;
use tokio::{sync::Notify, time::Instant};
use tunnel_directory::{Claim, ClaimRefusal, Epoch, OnConflict, RETURN_WINDOW, RuntimeLabel};
use tunnel_proto::{control::RoutesSummary, handshake::InstanceId, session::Session};

pub(crate) use self::{
    handover::HandedRuntimes,
    nodes::{Moved, SpreadWalk},
};
use crate::{
    allowance::Allowance,
    auth::Grant,
    budget::{Budget, NodeBudget},
    config::Config,
    directory::{ClaimGuard, Directory, EtcdDirectory, Observer},
    events::Events,
    history::History,
    lock::{Mutex, RwLock},
    metrics::{Metrics, RuntimeMetrics},
    runtimes::RuntimeEntry,
    tunnel::{Directive, Member, Peer, Tunnel},
};

/// Shortest time between two reports that instances take a runtime from each other.
const CONTEST_EACH: Duration = Duration::from_secs(60);

/// How often a claim is made again because a later one has joined first.
const CLAIM_ROUNDS: u32 = 16;

/// All runtimes' tunnels on this node.
pub struct Registry {
    directory: Directory,
    metrics: Arc<Metrics>,
    events: Arc<Events>,
    budget: Arc<NodeBudget>,
    /// Notified when a link to another node has opened.
    linked: Arc<Notify>,
    slots: RwLock<HashMap<RuntimeLabel, Arc<Slot>>>,
    /// Another process has the runtimes from now on, and says which of them are offline.
    is_handed: AtomicBool,
}

/// One runtime: its entry, and its tunnel while it is online.
pub struct Slot {
    label: RuntimeLabel,
    entry: ArcSwap<RuntimeEntry>,
    /// Its entry in the runtimes file. Without one, a credential has named it, and it is removed some time after its last
    /// session.
    listed: ArcSwapOption<RuntimeEntry>,
    state: Mutex<State>,
    /// Notified whenever a session has joined.
    joined: Notify,
    /// Notified whenever a link to another node has opened.
    linked: Arc<Notify>,
    /// The directory, if other nodes share it.
    shared: Option<Arc<EtcdDirectory>>,
    budget: Arc<Budget>,
    history: Arc<History>,
    /// Reports that instances take the runtime from each other.
    contests: Allowance,
    /// The series of requests that are forwarded to other nodes, and the time of the last one.
    forwarded: Mutex<Option<(Arc<RuntimeMetrics>, Instant)>>,
}

struct State {
    tunnel: Option<Arc<Tunnel>>,
    /// The newest claim that has had a tunnel here.
    newest: Option<Epoch>,
    /// When the runtime came online; `None` while it is offline.
    online_since: Option<SystemTime>,
    /// When the runtime was last online; initially when it became known.
    last_online: Instant,
    /// When it was last online, by the wall clock; `None` before the first time.
    last_online_at: Option<SystemTime>,
    /// It is online at another process, which has handed it over: until when its client should be here.
    expected_until: Option<Instant>,
}

impl State {
    /// Whether the runtime has been offline here for so long that nothing need be kept of it.
    fn is_gone(&self, now: Instant) -> bool {
        self.tunnel.is_none() && self.last_online + RETURN_WINDOW < now
    }

    /// The runtime has a new tunnel.
    fn on_online(&mut self) {
        self.online_since.get_or_insert_with(SystemTime::now);
        self.expected_until = None;
    }

    /// Whether this is the runtime's current tunnel.
    fn holds(&self, tunnel: &Arc<Tunnel>) -> bool {
        let current = self.tunnel.as_ref();
        current.is_some_and(|current| Arc::ptr_eq(current, tunnel))
    }
}

/// The request of a session to join its runtime's tunnel.
pub struct JoinRequest<'a> {
    /// The runtime, as its credential names it.
    pub runtime: &'a Arc<RuntimeEntry>,
    /// The instance that the session belongs to.
    pub instance: &'a InstanceId,
    /// The session, which is ready.
    pub session: &'a Session,
    /// The tunnel client at its other end.
    pub peer: Peer,
    /// The source networks that the instance allows for its runtime.
    pub allow_from: Option<Vec<IpNet>>,
    /// What happens when another instance holds the runtime.
    pub on_conflict: OnConflict,
}

/// Why a session does not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinRefusal {
    /// The instance does not get the runtime.
    #[error(transparent)]
    Claim(#[from] ClaimRefusal),
    /// The instance has the most sessions that are allowed.
    #[error("the instance has as many sessions as a tunnel may have")]
    TooMany,
}

/// A session's membership in its runtime's tunnel; ends with it.
pub struct Membership {
    registry: Arc<Registry>,
    slot: Arc<Slot>,
    tunnel: Arc<Tunnel>,
    member: Member,
    /// Released after the session has left the tunnel.
    guard: ClaimGuard,
}

impl Registry {
    /// A registry without any tunnel.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, events: Arc<Events>) -> Arc<Self> {
        Self::with(Directory::default(), metrics, events)
    }

    /// A registry without any tunnel, with the claims of this directory.
    #[must_use]
    pub fn with(directory: Directory, metrics: Arc<Metrics>, events: Arc<Events>) -> Arc<Self> {
        Arc::new(Self {
            directory,
            metrics,
            events,
            budget: Arc::default(),
            linked: Arc::default(),
            slots: RwLock::default(),
            is_handed: AtomicBool::new(false),
        })
    }

    /// The slot of a runtime that the runtimes file lists.
    pub fn list(&self, entry: &Arc<RuntimeEntry>) -> Arc<Slot> {
        let mut slots = self.slots.write();
        let slot = self.slot_of(&mut slots, entry);
        slot.listed.store(Some(entry.clone()));
        match slot.tunnel() {
            // An online runtime follows its credentials, which its sessions check again by themselves.
            Some(_) if slot.entry().is_same_runtime(entry) => {}
            Some(other) => {
                other.direct(Directive::Disconnect);
                slot.update(entry);
            }
            None => slot.update(entry),
        }
        slot
    }

    /// Marks all other runtimes as not listed; they are removed some time after their last session.
    pub fn keep_listed(&self, is_listed: impl Fn(&RuntimeLabel) -> bool) {
        for (label, slot) in &*self.slots.read() {
            if !is_listed(label) {
                slot.listed.store(None);
            }
        }
    }

    /// Sets the default limits of runtimes, and the limits of all runtimes together.
    pub fn set_limits(&self, config: &Config) {
        self.budget.set(config.node_limits(), config.limits());
        for slot in self.slots.read().values() {
            slot.budget.refresh();
        }
    }

    /// The slot of a runtime, if it is known.
    #[must_use]
    pub fn slot(&self, label: &str) -> Option<Arc<Slot>> {
        self.slots.read().get(label).cloned()
    }

    /// The claims.
    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    fn slot_of(
        &self,
        slots: &mut HashMap<RuntimeLabel, Arc<Slot>>,
        entry: &Arc<RuntimeEntry>,
    ) -> Arc<Slot> {
        let slot = slots.entry(entry.label.clone()).or_insert_with(|| {
            Arc::new(Slot {
                label: entry.label.clone(),
                entry: ArcSwap::new(entry.clone()),
                listed: ArcSwapOption::empty(),
                state: Mutex::new(State {
                    tunnel: None,
                    newest: None,
                    online_since: None,
                    last_online: Instant::now(),
                    last_online_at: None,
                    expected_until: None,
                }),
                joined: Notify::new(),
                linked: self.linked.clone(),
                shared: self.directory.shared().cloned(),
                budget: Budget::new(self.budget.clone()),
                history: Arc::default(),
                contests: Allowance::new(1, CONTEST_EACH),
                forwarded: Mutex::new(None),
            })
        });
        slot.clone()
    }

    /// All slots, in no order.
    #[must_use]
    pub fn slots(&self) -> Vec<Arc<Slot>> {
        self.slots.read().values().cloned().collect()
    }

    /// Removes runtimes that are not listed and have been offline for a while, and reports those that were handed over and
    /// have not come.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.directory.sweep();
        self.report_missing(now);
        self.slots.write().retain(|_, slot| {
            let is_known = slot.listed.load().is_some();
            let is_forwarded = slot.has_forwarded_lately(now);
            let is_in_use = is_forwarded || slot.budget.waiting() + slot.budget.open() > 0;
            is_known || is_in_use || !slot.state.lock().is_gone(now)
        });
    }

    /// Checks whether an instance would get a runtime now. If not, the holder is pinged, so that a dead one does not
    /// keep the runtime for long.
    ///
    /// # Errors
    /// When it would not.
    pub async fn precheck(
        &self,
        runtime: &Arc<RuntimeEntry>,
        instance: &InstanceId,
        on_conflict: OnConflict,
    ) -> Result<(), ClaimRefusal> {
        let is_listed = self.check_listing(runtime)?;
        let claimant = runtime.claimant(is_listed, instance, on_conflict);
        let precheck = self.directory.precheck(claimant).await;
        // Whether the holder lives is all the same where another runtime has the label.
        let is_lost = !matches!(&precheck, Ok(()) | Err(ClaimRefusal::LabelTaken(_)));
        let slot = || self.slot(runtime.label.as_str());
        if is_lost && let Some(tunnel) = slot().and_then(|slot| slot.tunnel()) {
            tunnel.ping_now();
        }
        precheck
    }

    /// Whether the runtime is listed.
    ///
    /// # Errors
    /// When another runtime is listed with its label.
    fn check_listing(&self, runtime: &RuntimeEntry) -> Result<bool, ClaimRefusal> {
        match self.slot(runtime.label.as_str()) {
            Some(slot) => slot.check_listing(runtime),
            None => Ok(false),
        }
    }

    /// The instance that holds a runtime, on this node or on another that shares the directory.
    #[must_use]
    pub fn holder(&self, runtime: &RuntimeLabel) -> Option<InstanceId> {
        let local = self.slot(runtime.as_str()).and_then(|slot| slot.tunnel());
        if let Some(tunnel) = local {
            return Some(tunnel.claim().instance.clone());
        }
        let directory = self.directory.shared()?;
        directory.holders(runtime.as_str())?;
        Some(directory.current(runtime.as_str())?.instance)
    }

    /// Adds an authenticated session to its runtime's tunnel. When another instance held the runtime,
    /// it is superseded at once.
    ///
    /// # Errors
    /// When the instance does not get the runtime, or has too many sessions.
    pub async fn join(
        self: &Arc<Self>,
        request: JoinRequest<'_>,
    ) -> Result<Membership, JoinRefusal> {
        let JoinRequest {
            runtime,
            instance,
            session,
            peer,
            allow_from,
            on_conflict,
        } = request;
        let mut rounds = 0..CLAIM_ROUNDS;
        let (guard, slots, slot) = loop {
            if rounds.next().is_none() {
                return Err(ClaimRefusal::Unavailable.into());
            }
            let is_listed = self.check_listing(runtime)?;
            let claimant = runtime.claimant(is_listed, instance, on_conflict);
            let guard = self.directory.claim(claimant).await?;
            // Locked until the tunnel is stored in the slot, so that `sweep` does not remove the slot in between.
            let mut slots = self.slots.write();
            let slot = self.slot_of(&mut slots, runtime);
            if slot.state.lock().newest <= Some(guard.claim().epoch) {
                break (guard, slots, slot);
            }
            // A later claim joined first, and may have ended since: this claim is outdated.
        };
        // The list may have changed meanwhile.
        slot.check_listing(runtime)?;
        let mut state = slot.state.lock();
        let (tunnel, is_takeover) = self.tunnel_of(&slot, &state, guard.claim(), allow_from);
        session.set_account(slot.budget.memory());
        let added = tunnel.add(session.clone(), peer);
        let Some(member) = added else {
            // Pings them all, since some may be dead without it being known.
            tunnel.ping_now();
            return Err(JoinRefusal::TooMany);
        };
        state.newest = Some(guard.claim().epoch);
        if is_takeover {
            slot.update(runtime);
            state.on_online();
        }
        let older = match is_takeover {
            true => state.tunnel.replace(tunnel.clone()),
            false => None,
        };
        // Another node's claim may have superseded it before.
        let older = older.filter(|older| !older.is_superseded());
        if let Some(older) = &older {
            let by = instance.clone();
            older.direct(Directive::Superseded { by });
            self.metrics.takeovers.inc();
        }
        drop(state);
        drop(slots);
        if is_takeover {
            self.report_tunnel(&slot.label, older.as_deref());
        }
        self.check_newer(runtime, guard.claim());
        self.share_limits(&slot);
        self.metrics.sessions.inc();
        slot.joined.notify_waiters();
        Ok(Membership {
            registry: self.clone(),
            slot,
            tunnel,
            member,
            guard,
        })
    }
}

impl Registry {
    /// The tunnel that a session of this claim joins, and whether it is a new one. A newer claim of the instance that is
    /// here changes nothing for its sessions.
    fn tunnel_of(
        &self,
        slot: &Slot,
        state: &State,
        claim: &Claim,
        allow_from: Option<Vec<IpNet>>,
    ) -> (Arc<Tunnel>, bool) {
        let present = state.tunnel.as_ref();
        let is_own = |present: &&Arc<Tunnel>| {
            present.claim().instance == claim.instance && !present.is_superseded()
        };
        if let Some(present) = present.filter(is_own) {
            present.adopt(claim.epoch);
            return (present.clone(), false);
        }
        let metrics = self.metrics.runtime(&slot.label, &slot.history);
        let tunnel = Tunnel::new(claim.clone(), allow_from, metrics);
        (Arc::new(tunnel), true)
    }

    /// Acts on a claim of another node that was made while a session joined, and so has not found it.
    fn check_newer(&self, runtime: &RuntimeEntry, than: &Claim) {
        if let Some(newer) = self.directory.newer(runtime, than) {
            self.on_claim(&runtime.label, &newer);
        }
    }
}

impl Slot {
    /// The runtime's label.
    #[must_use]
    pub fn label(&self) -> &RuntimeLabel {
        &self.label
    }

    /// The runtime's current entry.
    #[must_use]
    pub fn entry(&self) -> Guard<Arc<RuntimeEntry>> {
        self.entry.load()
    }

    /// The tunnel, if there is one.
    #[must_use]
    pub fn tunnel(&self) -> Option<Arc<Tunnel>> {
        self.state.lock().tunnel.clone()
    }

    /// Since when the runtime is online, if it is.
    #[must_use]
    pub fn online_since(&self) -> Option<SystemTime> {
        self.state.lock().online_since
    }

    /// When it was last online, if it was and is not.
    #[must_use]
    pub fn last_online(&self) -> Option<SystemTime> {
        self.state.lock().last_online_at
    }

    /// The runtime's limits and usage.
    #[must_use]
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// What is remembered of the runtime.
    #[must_use]
    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Whether it is to be reported that instances take the runtime from each other.
    pub(crate) fn is_contested_anew(&self) -> bool {
        self.contests.take().is_some()
    }

    /// Whether this runtime is listed.
    ///
    /// # Errors
    /// When another one is listed with its label.
    fn check_listing(&self, runtime: &RuntimeEntry) -> Result<bool, ClaimRefusal> {
        match &*self.listed.load() {
            Some(listed) if listed.is_same_runtime(runtime) => Ok(true),
            Some(_) => Err(ClaimRefusal::LabelTaken(runtime.label.clone())),
            None => Ok(false),
        }
    }

    /// Replaces the runtime's entry.
    fn update(&self, entry: &Arc<RuntimeEntry>) {
        self.budget.set(entry.limits);
        self.budget.set_allow_from(entry.allow_from.clone());
        self.entry.store(entry.clone());
    }
}

impl Membership {
    /// The runtime's slot.
    #[must_use]
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The tunnel that the session belongs to.
    #[must_use]
    pub fn tunnel(&self) -> &Arc<Tunnel> {
        &self.tunnel
    }

    /// Stores the session's new credential, and its data of the runtime.
    pub fn on_credential(&self, grant: &Grant) {
        *self.member.peer.credential.lock() = grant.into();
        let state = self.slot.state.lock();
        let is_held = state.holds(&self.tunnel);
        if is_held && **self.slot.entry() != *grant.runtime {
            self.slot.update(&grant.runtime);
        }
    }

    /// Stores the client's report of its routes for the operator, in place of an earlier one.
    pub fn on_routes(&self, summary: RoutesSummary) {
        *self.member.peer.routes.lock() = Some(summary.bounded());
    }

    /// The client takes no more exchanges on this session. If it takes none on any session, the instance leaves.
    pub fn on_drain(&self) {
        self.member.session.start_drain();
        if self.tunnel.is_leaving() {
            self.guard.leave();
        }
    }

    /// The client has another session, which it prefers.
    pub fn on_moved(&self) {
        self.tunnel.on_moved(&self.member);
    }

    /// Resolves when the client has another session, which it prefers.
    pub async fn moved(&self) {
        self.tunnel.moved(&self.member).await;
    }

    /// The session is not silent any more.
    pub fn on_recovery(&self) {
        self.tunnel.on_recovery();
        self.slot.joined.notify_waiters();
    }

    /// Resolves with the strongest directive to this session of at least this level.
    pub async fn directive(&self, level: usize) -> Directive {
        self.tunnel.directive(&self.member, level).await
    }

    /// Resolves when a newer session of this tunnel takes exchanges.
    pub async fn replaced(&self) {
        self.tunnel.replaced(&self.member).await;
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.slot.state.lock();
        let is_last = self.tunnel.remove(&self.member.session);
        let is_held = state.holds(&self.tunnel);
        if is_held {
            state.last_online = Instant::now();
            state.last_online_at = Some(SystemTime::now());
        }
        let is_offline = is_last && is_held;
        if is_offline {
            state.tunnel = None;
            state.online_since = None;
        }
        drop(state);
        if is_offline {
            self.registry.report_offline(&self.slot.label);
        }
        self.registry.metrics.sessions.dec();
    }
}

#[cfg(test)]
mod races;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::io::DuplexStream;
    use tunnel_ops::config_file::TomlFile;
    use tunnel_proto::session::{Driver, SessionEvents, SessionSettings, Side};

    use tunnel_proto::handshake::InstanceSecret;

    use super::*;
    use crate::runtimes::Runtimes;

    /// A session that is open as long as its driver exists.
    pub(super) fn live_session() -> (Session, SessionEvents, Driver<DuplexStream>) {
        let (io, _) = tokio::io::duplex(64);
        let settings = SessionSettings::default();
        Session::new(io, Bytes::new(), Side::Server, settings)
    }

    fn session() -> Session {
        let (session, _, driver) = live_session();
        std::mem::forget(driver);
        session
    }

    pub(super) fn request<'a>(
        runtime: &'a Arc<RuntimeEntry>,
        instance: &'a InstanceId,
        session: &'a Session,
        on_conflict: OnConflict,
    ) -> JoinRequest<'a> {
        let peer = Peer {
            address: std::net::SocketAddr::from(([127, 0, 0, 1], 1)).into(),
            version: "0".into(),
            number: 1,
            since: SystemTime::UNIX_EPOCH,
            credential: parking_lot::Mutex::default(),
            routes: parking_lot::Mutex::default(),
        };
        JoinRequest {
            runtime,
            instance,
            session,
            peer,
            allow_from: None,
            on_conflict,
        }
    }

    pub(super) fn instance(number: u8) -> InstanceId {
        let secret = InstanceSecret::from_random([number; 16]);
        secret.id().clone()
    }

    pub(super) fn entry() -> Arc<RuntimeEntry> {
        let text = "[[runtime]]\naccount = \"acme\"\nname = \"prod\"\n";
        let domain = "tunnels.localhost".parse().unwrap();
        let runtimes = Runtimes::parse(&TomlFile::from_text("r.toml", text), &domain).unwrap();
        runtimes.iter().next().unwrap().clone()
    }

    pub(super) fn registry() -> (Arc<Registry>, Arc<Slot>) {
        let registry = unlisted_registry();
        let slot = registry.list(&entry());
        (registry, slot)
    }

    /// A registry for which no file lists anything.
    pub(super) fn unlisted_registry() -> Arc<Registry> {
        Registry::new(Metrics::new().unwrap(), Events::new("t"))
    }

    pub(super) async fn join(registry: &Arc<Registry>, number: u8) -> Membership {
        join_by(registry, number, OnConflict::Supersede)
            .await
            .unwrap()
    }

    async fn join_by(
        registry: &Arc<Registry>,
        number: u8,
        on_conflict: OnConflict,
    ) -> Result<Membership, JoinRefusal> {
        join_with(registry, &entry(), number, on_conflict).await
    }

    pub(super) async fn join_as(
        registry: &Arc<Registry>,
        runtime: &Arc<RuntimeEntry>,
        number: u8,
    ) -> Result<Membership, JoinRefusal> {
        join_with(registry, runtime, number, OnConflict::Supersede).await
    }

    async fn join_with(
        registry: &Arc<Registry>,
        runtime: &Arc<RuntimeEntry>,
        number: u8,
        on_conflict: OnConflict,
    ) -> Result<Membership, JoinRefusal> {
        let (instance, session) = (instance(number), session());
        let request = request(runtime, &instance, &session, on_conflict);
        registry.join(request).await
    }

    async fn is_online_within(slot: &Slot, wait: Duration) -> bool {
        slot.online_within(wait, None, || 0)
            .await
            .unwrap()
            .is_some()
    }

    #[tokio::test]
    async fn a_late_leave_does_not_remove_the_successor() {
        let (registry, slot) = registry();
        let older = join(&registry, 1).await;
        let newer = join(&registry, 2).await;
        let by = instance(2);
        assert_eq!(older.directive(0).await, Directive::Superseded { by });
        drop(older);
        assert_eq!(slot.online().unwrap().0.claim(), newer.tunnel().claim());
        drop(newer);
        assert!(slot.online().is_none());
        assert!(registry.directory.is_empty());
    }

    #[tokio::test]
    async fn a_superseded_instance_does_not_come_back() {
        let (registry, slot) = registry();
        let older = join(&registry, 1).await;
        let newer = join(&registry, 2).await;
        let refused = join_by(&registry, 1, OnConflict::Supersede)
            .await
            .err()
            .unwrap();
        assert!(matches!(
            refused,
            JoinRefusal::Claim(ClaimRefusal::Superseded { .. })
        ));
        assert_eq!(slot.online().unwrap().0.claim(), newer.tunnel().claim());
        drop(older);
    }

    #[tokio::test]
    async fn the_older_instance_may_be_kept() {
        let (registry, slot) = registry();
        let older = join(&registry, 1).await;
        assert!(join_by(&registry, 2, OnConflict::Reject).await.is_err());
        assert_eq!(slot.online().unwrap().0.claim(), older.tunnel().claim());
        drop(older);
        assert!(join_by(&registry, 2, OnConflict::Reject).await.is_ok());
    }

    #[tokio::test]
    async fn sessions_of_one_instance_make_one_tunnel() {
        let (registry, slot) = registry();
        let first = join(&registry, 1).await;
        let second = join(&registry, 1).await;
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
        let (is_online, _membership) = tokio::join!(is_online_within(&slot, wait), async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            join(&registry, 1).await
        });
        assert!(is_online);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_long_lived_runtime_whose_session_is_leaving() {
        let (registry, slot) = registry();
        let leaving = join(&registry, 1).await;
        tokio::time::sleep(RETURN_WINDOW * 2).await;
        leaving.member.session.start_drain();
        let wait = Duration::from_secs(5);
        let (is_online, _membership) = tokio::join!(is_online_within(&slot, wait), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            join(&registry, 1).await
        });
        assert!(is_online);
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_waits_for_a_runtime_that_is_long_gone() {
        let (_registry, slot) = registry();
        let wait = Duration::from_secs(5);
        let start = Instant::now();
        assert!(!is_online_within(&slot, wait).await);
        assert_eq!(start.elapsed(), wait);
        tokio::time::sleep(RETURN_WINDOW).await;
        let start = Instant::now();
        assert!(!is_online_within(&slot, wait).await);
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unlisted_runtime_is_removed_after_its_last_session() {
        let registry = unlisted_registry();
        let membership = join(&registry, 1).await;
        tokio::time::sleep(RETURN_WINDOW * 2).await;
        registry.sweep();
        assert!(registry.slot("acme-prod").is_some(), "online");
        drop(membership);
        registry.sweep();
        assert!(registry.slot("acme-prod").is_some(), "just coming back");
        tokio::time::sleep(RETURN_WINDOW * 2).await;
        registry.sweep();
        assert!(registry.slot("acme-prod").is_none());
        let slot = registry.list(&entry());
        let forwarded = slot.forwarded_series(&registry.metrics);
        tokio::time::sleep(RETURN_WINDOW * 2).await;
        registry.sweep();
        assert!(registry.slot("acme-prod").is_some(), "listed");
        assert_eq!(Arc::strong_count(&forwarded), 2, "its series stay, too");
        tokio::time::sleep(nodes::FORWARDED_SERIES).await;
        registry.sweep();
        assert_eq!(Arc::strong_count(&forwarded), 1);
        registry.keep_listed(|_| false);
        registry.sweep();
        assert!(registry.slots().is_empty());
    }
}
