//! One tunnel: the live sessions of the instance that holds a runtime.
//!
//! In: sessions that are ready, and directives to all of them. Out: the session that takes the next exchange, and for each
//! session the directives that were given after it joined. `connect/session/leave.rs` decides what a directive means for
//! open exchanges.

mod move_pauses;

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tunnel_directory::{Claim, Epoch, Spread};
use tunnel_proto::{control::RoutesSummary, handshake::InstanceId, limits, session::Session};

use self::move_pauses::MovePauses;
use crate::{
    auth::Grant, client_address::ClientAddress, lock::Mutex as OrderedMutex,
    metrics::RuntimeMetrics,
};

/// The sessions of one instance, and which of them takes the next exchange.
pub struct Tunnel {
    claim: ArcSwap<Claim>,
    members: OrderedMutex<Members>,
    /// Notified of each directive, and of each session that joins or recovers.
    changed: Notify,
    /// Where the instance itself lets its runtime be reached from; `None` means from anywhere.
    allow_from: Option<Vec<IpNet>>,
    /// The runtime's metrics.
    pub metrics: Arc<RuntimeMetrics>,
}

#[derive(Default)]
struct Members {
    sessions: Vec<Member>,
    /// The number of directives and of sessions that have joined.
    events: u64,
    /// The latest directive of each level, the weakest first, each with its value of `events`.
    directives: [Option<(u64, Directive)>; Directive::LEVELS],
    /// When one session is given away because all are here.
    spread: Spread,
    /// When they may be told to move.
    moves: MovePauses,
}

/// A session of a tunnel.
#[derive(Clone)]
pub struct Member {
    /// The session.
    pub session: Session,
    /// The tunnel client at its other end.
    pub peer: Arc<Peer>,
    /// The value of [`Members::events`] when it joined.
    joined: u64,
    /// Its client has another session, which it prefers.
    has_moved: Arc<AtomicBool>,
    /// It alone is directed to move.
    is_to_move: Arc<AtomicBool>,
}

/// The tunnel client at the other end of a session.
#[derive(Debug)]
pub struct Peer {
    /// The address that the connection comes from.
    pub address: ClientAddress,
    /// Version of the client program.
    pub version: String,
    /// Number of the session within its instance.
    pub number: u32,
    /// When the session began.
    pub since: SystemTime,
    /// The credential that authenticates it.
    pub credential: Mutex<SessionCredential>,
    /// What it has reported of its routes, for the operator.
    pub routes: Mutex<Option<RoutesSummary>>,
}

/// The public data of the credential that authenticates a session. It may change while the session is open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionCredential {
    /// The kind of credential.
    pub kind: &'static str,
    /// Its public id.
    pub id: String,
    /// When it expires.
    pub expires: Option<SystemTime>,
}

impl From<&Grant> for SessionCredential {
    fn from(grant: &Grant) -> Self {
        Self {
            kind: grant.credential.kind().name(),
            id: grant.credential.id().to_owned(),
            expires: grant.expires,
        }
    }
}

/// A directive to all sessions of a tunnel, the weakest first: a stronger one overrides a weaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directive {
    /// Be replaced by other sessions, and end when the open exchanges are done.
    Drain,
    /// Be replaced by a session at another node if there is one, however long that takes, and end then.
    Move,
    /// Be replaced by a session at a new process, and take exchanges until this one ends, or has taken its clients back.
    HandOver,
    /// A newer instance holds the runtime: finish the open exchanges, and end.
    Superseded {
        /// The newer holder.
        by: InstanceId,
    },
    /// End at once.
    Disconnect,
}

impl Directive {
    const LEVELS: usize = 3;

    /// Its drain level, from 0: a higher one overrides a lower.
    #[must_use]
    pub fn level(&self) -> usize {
        match self {
            Self::Drain | Self::Move | Self::HandOver => 0,
            Self::Superseded { .. } => 1,
            Self::Disconnect => 2,
        }
    }
}

impl Tunnel {
    pub(crate) fn new(
        claim: Claim,
        allow_from: Option<Vec<IpNet>>,
        metrics: Arc<RuntimeMetrics>,
    ) -> Self {
        Self {
            claim: ArcSwap::from_pointee(claim),
            members: OrderedMutex::default(),
            changed: Notify::new(),
            allow_from,
            metrics,
        }
    }

    /// The claim by which the instance holds the runtime.
    #[must_use]
    pub fn claim(&self) -> Arc<Claim> {
        self.claim.load_full()
    }

    /// The instance holds the runtime by a claim of this epoch from now on.
    pub(crate) fn adopt(&self, epoch: Epoch) {
        let claim = self.claim();
        if claim.epoch < epoch {
            let instance = claim.instance.clone();
            self.claim.store(Arc::new(Claim { instance, epoch }));
        }
    }

    /// Where the instance itself lets its runtime be reached from; `None` means from anywhere.
    #[must_use]
    pub fn allow_from(&self) -> Option<&[IpNet]> {
        self.allow_from.as_deref()
    }

    /// The session for the next exchange: of those that take exchanges and are not silent, the one with the fewest open
    /// exchanges, and among equals the one with the shortest round trip.
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        self.pick(|session| !session.is_silent())
    }

    /// The session for an exchange that has waited for a better one without success: it may be silent.
    #[must_use]
    pub fn last_resort(&self) -> Option<Session> {
        self.pick(|_| true)
    }

    fn pick(&self, is_eligible: impl Fn(&Session) -> bool) -> Option<Session> {
        let members = self.members.lock();
        let open = members
            .sessions
            .iter()
            .map(|member| &member.session)
            .filter(|session| session.is_open() && is_eligible(session));
        let rank = |session: &&Session| {
            let unknown = Duration::MAX;
            (
                session.outstanding(),
                session.round_trip().unwrap_or(unknown),
            )
        };
        open.min_by_key(rank).cloned()
    }

    /// Resolves when this session is silent, and another one is not and takes exchanges.
    pub async fn better_than(&self, session: &Session) {
        session.silence_changed(false).await;
        let is_better = |other: &Member| {
            let other = &other.session;
            !other.is_same(session) && other.is_open() && !other.is_silent()
        };
        self.until(|members| members.sessions.iter().any(is_better).then_some(()))
            .await;
    }

    /// A session of this tunnel has recovered.
    pub(crate) fn on_recovery(&self) {
        self.changed.notify_waiters();
    }

    /// All sessions, including those that only finish their exchanges.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.members.lock().sessions.clone()
    }

    /// The number of sessions.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.members.lock().sessions.len()
    }

    /// Adds a session; `None` if there are [`limits::SESSIONS`] already.
    pub(crate) fn add(&self, session: Session, peer: Peer) -> Option<Member> {
        let mut members = self.members.lock();
        if members.sessions.len() >= limits::SESSIONS {
            return None;
        }
        members.events += 1;
        let member = Member {
            session,
            peer: Arc::new(peer),
            joined: members.events,
            has_moved: Arc::default(),
            is_to_move: Arc::default(),
        };
        members.sessions.push(member.clone());
        drop(members);
        self.changed.notify_waiters();
        Some(member)
    }

    /// The client of this member has another session, which it prefers.
    pub(crate) fn on_moved(&self, member: &Member) {
        member.has_moved.store(true, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Resolves when the client of this member has another session, which it prefers.
    pub(crate) async fn moved(&self, member: &Member) {
        self.until(|_| member.has_moved.load(Ordering::Relaxed).then_some(()))
            .await;
    }

    /// Whether its sessions may be directed to move now: those of a client that has come back stay for a while.
    pub(crate) fn may_move(&self, now: Instant) -> bool {
        self.members.lock().moves.may_move(now)
    }

    /// Directs its sessions to move.
    pub(crate) fn move_away(&self, now: Instant) {
        self.members.lock().moves.on_move(now);
        self.direct(Directive::Move);
    }

    /// Whether all sessions are directed to move.
    pub(crate) fn is_moving(&self) -> bool {
        let members = self.members.lock();
        let Some((at, Directive::Move)) = &members.directives[Directive::Move.level()] else {
            return false;
        };
        members.sessions.iter().all(|member| member.joined < *at)
    }

    /// Directs one session to move if all sessions of the runtime are at this node, and that is due: the one with the fewest
    /// open exchanges, and of equals the youngest. Returns whether it does.
    pub(crate) fn spread(&self, is_held_elsewhere: bool, now: Instant) -> bool {
        let mut members = self.members.lock();
        let Members {
            sessions, spread, ..
        } = &mut *members;
        let is_to_move = |member: &&Member| member.is_to_move.load(Ordering::Relaxed);
        let is_on_its_way = sessions.iter().any(|member| is_to_move(&member));
        let open = || sessions.iter().filter(|member| member.session.is_open());
        if is_on_its_way || !spread.is_due(open().count(), is_held_elsewhere, now) {
            return false;
        }
        let rank = |member: &&Member| (member.session.outstanding(), Reverse(member.joined));
        let Some(member) = open().min_by_key(rank) else {
            return false;
        };
        member.is_to_move.store(true, Ordering::Relaxed);
        drop(members);
        self.changed.notify_waiters();
        true
    }

    /// Removes a session; returns whether none is left.
    pub(crate) fn remove(&self, session: &Session) -> bool {
        let mut members = self.members.lock();
        members
            .sessions
            .retain(|member| !member.session.is_same(session));
        members.sessions.is_empty()
    }

    /// Pings every session at once.
    pub fn ping_now(&self) {
        for member in &self.members.lock().sessions {
            member.session.ping_now();
        }
    }

    /// Gives a directive to all current sessions. Returns their number.
    pub fn direct(&self, directive: Directive) -> usize {
        let mut members = self.members.lock();
        if matches!(directive, Directive::Superseded { .. }) {
            // At once, before the sessions' tasks have received the directive.
            for member in &members.sessions {
                member.session.start_drain();
            }
        }
        members.events += 1;
        let at = members.events;
        let level = directive.level();
        members.directives[level] = Some((at, directive));
        let count = members.sessions.len();
        drop(members);
        self.changed.notify_waiters();
        count
    }

    /// Whether its sessions were told that a newer instance holds the runtime.
    pub(crate) fn is_superseded(&self) -> bool {
        let members = self.members.lock();
        let mut given = members.directives.iter().flatten();
        given.any(|(_, directive)| matches!(directive, Directive::Superseded { .. }))
    }

    /// Resolves with the strongest directive to this member of at least this level.
    pub(crate) async fn directive(&self, member: &Member, level: usize) -> Directive {
        self.until(|members| {
            let directives = members.directives.iter().skip(level).rev().flatten();
            let mut mine = directives.filter(|(at, _)| *at > member.joined);
            let given = mine.next().map(|(_, directive)| directive.clone());
            let moves = level == 0 && member.is_to_move.load(Ordering::Relaxed);
            given.or_else(|| moves.then_some(Directive::Move))
        })
        .await
    }

    /// Whether the instance is leaving: it has sessions, and none takes exchanges.
    pub(crate) fn is_leaving(&self) -> bool {
        let members = self.members.lock();
        let mut sessions = members.sessions.iter();
        !members.sessions.is_empty() && sessions.all(|member| !member.session.is_open())
    }

    /// Resolves when a newer session than this one takes exchanges.
    pub(crate) async fn replaced(&self, member: &Member) {
        self.until(|members| {
            let is_newer =
                |other: &&Member| other.joined > member.joined && other.session.is_open();
            members.sessions.iter().find(is_newer).map(drop)
        })
        .await;
    }

    async fn until<T>(&self, find: impl Fn(&Members) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = find(&self.members.lock()) {
                return found;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
    use tokio::task::JoinSet;
    use tokio::time::sleep;
    use tunnel_proto::exchange::open;
    use tunnel_proto::session::{SessionSettings, Side};

    use tunnel_directory::RuntimeLabel;
    use tunnel_proto::handshake::InstanceSecret;

    use super::*;
    use crate::metrics::Metrics;

    fn session() -> Session {
        let (io, _) = duplex(64);
        let settings = SessionSettings::default();
        let (session, _, driver) = Session::new(io, Bytes::new(), Side::Server, settings);
        // A driver that is dropped ends its session; here it has to look alive.
        std::mem::forget(driver);
        session
    }

    fn peer(number: u32) -> Peer {
        Peer {
            address: std::net::SocketAddr::from(([127, 0, 0, 1], 1)).into(),
            version: "0".into(),
            number,
            since: SystemTime::UNIX_EPOCH,
            credential: Mutex::default(),
            routes: Mutex::default(),
        }
    }

    async fn tunnel() -> Tunnel {
        let label = RuntimeLabel::new(&"acme".parse().unwrap(), &"prod".parse().unwrap()).unwrap();
        let secret = InstanceSecret::from_random([1; 16]);
        let claim = Claim {
            instance: secret.id().clone(),
            epoch: Epoch::from_number(1),
        };
        let metrics = Metrics::new().unwrap().runtime(&label, &Arc::default());
        Tunnel::new(claim, None, metrics)
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn a_directive_is_for_current_sessions_only() {
        let tunnel = tunnel().await;
        let older = tunnel.add(session(), peer(1)).unwrap();
        assert_eq!(now(tunnel.directive(&older, 0)), None);
        assert_eq!(tunnel.direct(Directive::Drain), 1);
        let younger = tunnel.add(session(), peer(2)).unwrap();
        assert_eq!(now(tunnel.directive(&older, 0)), Some(Directive::Drain));
        assert_eq!(now(tunnel.directive(&older, 1)), None);
        assert_eq!(now(tunnel.directive(&younger, 0)), None);
        tunnel.direct(Directive::Disconnect);
        assert_eq!(
            now(tunnel.directive(&older, 1)),
            Some(Directive::Disconnect)
        );
        tunnel.direct(Directive::Drain);
        assert_eq!(
            now(tunnel.directive(&older, 0)),
            Some(Directive::Disconnect)
        );
        assert_eq!(now(tunnel.replaced(&older)), Some(()));
        assert_eq!(now(tunnel.replaced(&younger)), None);
    }

    /// A session over a path that takes so long each way; both its ends are carried until this is dropped.
    struct Carried {
        server: Session,
        is_held: Arc<AtomicBool>,
        _tasks: JoinSet<()>,
    }

    impl Carried {
        fn over(delay: Duration) -> Self {
            let ((near, near_end), (far_end, far)) = (duplex(65_536), duplex(65_536));
            let mut tasks = JoinSet::new();
            let is_held = Arc::new(AtomicBool::new(false));
            let (from_near, to_near) = split(near_end);
            let (from_far, to_far) = split(far_end);
            for (mut from, mut to) in [(from_near, to_far), (from_far, to_near)] {
                let is_held = is_held.clone();
                tasks.spawn(async move {
                    let mut bytes = [0; 1_024];
                    while let Ok(length @ 1..) = from.read(&mut bytes).await {
                        sleep(delay).await;
                        while is_held.load(Ordering::SeqCst) {
                            sleep(Duration::from_millis(10)).await;
                        }
                        if to.write_all(&bytes[..length]).await.is_err() {
                            return;
                        }
                    }
                });
            }
            let settings = SessionSettings::default();
            let (server, _, driver) = Session::new(near, Bytes::new(), Side::Server, settings);
            tasks.spawn(async move { drop(driver.await) });
            let (client, events, driver) =
                Session::new(far, Bytes::new(), Side::Client, SessionSettings::default());
            tasks.spawn(async move {
                let _held = (client, events);
                drop(driver.await);
            });
            Self {
                server,
                is_held,
                _tasks: tasks,
            }
        }

        /// Waits until pings have shown how long the path takes.
        async fn measured(&self) -> Duration {
            loop {
                if let Some(time) = self.server.round_trip() {
                    return time;
                }
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_equally_loaded_sessions_the_one_with_the_shortest_round_trip_is_chosen() {
        let far = Carried::over(Duration::from_millis(80));
        let near = Carried::over(Duration::from_millis(5));
        let middle = Carried::over(Duration::from_millis(30));
        assert!(near.measured().await < middle.measured().await);
        assert!(middle.measured().await < far.measured().await);
        let tunnel = tunnel().await;
        // One of which nothing is known counts as the farthest.
        let unknown = session();
        tunnel.add(unknown.clone(), peer(1)).unwrap();
        let expected = [&far.server, &middle.server, &near.server];
        for (number, session) in expected.into_iter().enumerate() {
            assert_eq!(session.outstanding(), 0);
            tunnel
                .add(session.clone(), peer(number as u32 + 2))
                .unwrap();
            assert!(tunnel.session().unwrap().is_same(session), "{number}");
        }
        // What is to be done counts first.
        let _opened = open(&near.server).await.unwrap();
        assert_eq!(near.server.outstanding(), 1);
        assert!(tunnel.session().unwrap().is_same(&middle.server));
        tunnel.remove(&middle.server);
        tunnel.remove(&far.server);
        assert!(tunnel.session().unwrap().is_same(&unknown));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_session_takes_an_exchange_only_if_there_is_no_other() {
        let silent = Carried::over(Duration::from_millis(5));
        let other = Carried::over(Duration::from_millis(80));
        silent.measured().await;
        other.measured().await;
        let tunnel = tunnel().await;
        tunnel.add(silent.server.clone(), peer(1)).unwrap();
        assert!(now(tunnel.better_than(&silent.server)).is_none());
        silent.is_held.store(true, Ordering::SeqCst);
        silent.server.ping_now();
        assert!(silent.server.silence_changed(false).await);
        assert!(tunnel.session().is_none());
        assert!(tunnel.last_resort().unwrap().is_same(&silent.server));
        {
            let mut better = pin!(tunnel.better_than(&silent.server));
            assert!(now(better.as_mut()).is_none(), "there is no other");
            tunnel.add(other.server.clone(), peer(2)).unwrap();
            assert!(now(better).is_some());
        }
        let _opened = open(&other.server).await.unwrap();
        assert!(tunnel.session().unwrap().is_same(&other.server));
        silent.is_held.store(false, Ordering::SeqCst);
        assert!(!silent.server.silence_changed(true).await);
        assert!(tunnel.session().unwrap().is_same(&silent.server));
    }

    #[tokio::test]
    async fn a_tunnel_moves_until_its_client_has_other_sessions() {
        let tunnel = tunnel().await;
        let first = tunnel.add(session(), peer(1)).unwrap();
        assert!(!tunnel.is_moving());
        tunnel.direct(Directive::Move);
        assert!(tunnel.is_moving());
        assert_eq!(now(tunnel.directive(&first, 0)), Some(Directive::Move));
        assert_eq!(now(tunnel.moved(&first)), None);
        tunnel.on_moved(&first);
        assert_eq!(now(tunnel.moved(&first)), Some(()));
        // The next session came here, too.
        tunnel.add(session(), peer(2)).unwrap();
        assert!(!tunnel.is_moving());
    }

    #[tokio::test]
    async fn a_superseded_tunnel_takes_no_exchange() {
        let tunnel = tunnel().await;
        tunnel.add(session(), peer(1)).unwrap();
        assert!(tunnel.session().is_some());
        let by = InstanceSecret::from_random([2; 16]).id().clone();
        tunnel.direct(Directive::Superseded { by });
        assert!(tunnel.session().is_none());
    }

    #[tokio::test]
    async fn the_sessions_of_one_tunnel_are_bounded() {
        let tunnel = tunnel().await;
        for number in 1..=limits::SESSIONS {
            assert!(tunnel.add(session(), peer(number as u32)).is_some());
        }
        assert!(tunnel.add(session(), peer(99)).is_none());
        let first = tunnel.members()[0].clone();
        tunnel.remove(&first.session);
        assert!(tunnel.add(session(), peer(99)).is_some());
    }
}
