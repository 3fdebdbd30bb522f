//! Dials sessions for all slots: one at a time, after a wait that all of them share, each time at the server that is next.
//!
//! In: a slot that needs a session. Out: a session that the server has welcomed, or why the whole tunnel has to end.
//! Slots queue for each attempt, so that a slot whose attempt failed lets the others try before it tries again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as Queue, Notify, watch};
use tokio::time::{Instant, sleep};
use tunnel_ops::timestamp::Timestamp;
use tunnel_proto::close::{AfterClose, CloseReason};
use tunnel_proto::control::millis;
use tunnel_proto::handshake::{Greeting, InstanceSecret, Refusal};
use tunnel_proto::redial::{
    LocationId, NextDial, NoSession, Redial, RedialSettings, Search, Servers, SessionLocation,
};
use tunnel_proto::refusal::{Finality, RefusalReason};

use super::locations::{LocationGuard, SessionLocations, goes_on_after};
use super::path;
use super::refusals::{PENDING_LIMIT, Refusals};
use super::starting::StartingSession;
use super::{EndReason, random};
use crate::admin::Welcomed;
use crate::credential::{Credential, Credentials};
use crate::dial::{DialError, Dialler};
use crate::session::{NotWelcome, Session, SessionEnded, SessionParts};
use crate::status::{SessionInfo, WaitReason};

/// The parts that dialling needs.
pub(crate) struct DiallingParts {
    /// Each dials one of the servers, in the order of the configuration; at least one.
    pub(crate) diallers: Vec<Dialler>,
    /// The credentials of the client.
    pub(crate) credentials: Arc<Credentials>,
    /// The secret of this instance.
    pub(crate) instance: InstanceSecret,
    /// Networks that the runtime may be reached from, in the format of the wire.
    pub(crate) allow_from: Option<String>,
    /// The parts that all sessions share.
    pub(crate) sessions: SessionParts,
    /// Longest wait after a refusal of the credential, and after the runtime was lost to another instance.
    pub(crate) refusal_wait: Duration,
    /// Whether a final refusal ends the client when no session is left.
    pub(crate) exits_on_refusal: bool,
    /// When to dial again.
    pub(crate) redial: RedialSettings,
}

/// Dials for all slots.
pub(super) struct Dialling {
    parts: DiallingParts,
    state: Queue<DialState>,
    servers: Mutex<Servers>,
    /// The next dial may be due earlier than the slot that waits for it has read.
    is_due_earlier: Notify,
    locations: Arc<SessionLocations>,
    refusals: Mutex<Refusals>,
    /// Since when this client holds the runtime: the first welcome since the slots began.
    held_since: Mutex<Option<Instant>>,
    /// Another instance has taken the runtime over, and no server has welcomed this one since.
    stands_by: AtomicBool,
    /// Whether the hint at `check` was logged.
    has_hinted: AtomicBool,
}

/// The state of dialling, locked by the slot that dials.
#[derive(Default)]
struct DialState {
    /// Number of the last session that was dialled.
    number: u32,
    /// The address at which the server was last reached.
    peer: Option<SocketAddr>,
}

/// A refused credential, and the time before it is sent again.
struct RefusedCredential<'a> {
    credential: &'a Arc<Credential>,
    wait: Duration,
}

/// Why there is no session after a dial.
enum DialFailure {
    Dial(DialError),
    /// The session did not begin; with the credential that was sent.
    NotWelcome(NotWelcome, Arc<Credential>),
}

impl Dialling {
    /// The last welcome of a server.
    pub(super) fn welcomed(&self) -> watch::Receiver<Option<Welcomed>> {
        self.parts.sessions.live.welcomed()
    }

    /// No session is dialled yet.
    pub(super) fn new(parts: DiallingParts) -> Self {
        Self {
            state: Queue::default(),
            servers: Mutex::new(Servers::new(parts.diallers.len(), &parts.redial, random())),
            is_due_earlier: Notify::new(),
            locations: Arc::default(),
            refusals: Mutex::new(Refusals::new(parts.refusal_wait)),
            held_since: Mutex::default(),
            stands_by: AtomicBool::new(false),
            has_hinted: AtomicBool::new(false),
            parts,
        }
    }

    /// The parts.
    pub(super) fn parts(&self) -> &DiallingParts {
        &self.parts
    }

    /// Dials until a server welcomes a session, the successor of `own` if there is one. If this is dropped, `starting`
    /// keeps a session that has begun.
    ///
    /// # Errors
    /// When the tunnel has to end.
    pub(super) async fn session(
        &self,
        starting: &StartingSession,
        own: Option<LocationId>,
    ) -> Result<(Session, LocationGuard), EndReason> {
        let mut search = Search::default();
        loop {
            // Fair: a slot that has failed waits behind the others.
            let mut state = self.state.lock().await;
            let server = self.wait(state.peer, own, &search).await;
            match self.dial(&mut state, starting, server, own, &search).await {
                Ok((mut session, location)) => {
                    self.on_welcome(&session, server, state.number);
                    self.show(&mut session, &location, state.number);
                    return Ok((session, self.locations.add(location)));
                }
                Err(DialFailure::Dial(error)) if goes_on_after(&mut search, server, &error) => {
                    self.parts.sessions.metrics.on_dial("elsewhere");
                    tracing::debug!(%error, "another server node is to have the session, dialling again at once");
                }
                Err(failure) => {
                    search = Search::default();
                    if let Some(refused) = self.after_failure(server, &failure)? {
                        // With the lock, since the other slots would be refused as well.
                        self.wait_after_refusal(refused).await;
                    }
                }
            }
        }
    }

    /// The slots begin; the runtime is not held.
    pub(super) fn begin(&self) {
        *self.held_since.lock() = None;
    }

    /// Another instance has taken the runtime over: dials take it back from nobody. Returns for how long it was held since
    /// [`Self::begin`]; `None` if it was not.
    pub(super) fn on_superseded(&self) -> Option<Duration> {
        self.stands_by.store(true, Ordering::Relaxed);
        self.held_since.lock().map(|since| since.elapsed())
    }

    /// Notes a refusal of the credential. Returns the time before it may be sent again.
    pub(super) fn after_refusal(&self) -> Duration {
        let mut refusals = self.refusals.lock();
        refusals.on_refusal(Instant::now(), random())
    }

    /// An internal error has ended all slots.
    pub(super) fn after_fault(&self) {
        let mut servers = self.servers.lock();
        for redial in servers.all() {
            redial.after_fault(Instant::now(), random());
        }
    }

    /// A session of a server with this credential has ended.
    ///
    /// # Errors
    /// When that ends the whole tunnel.
    pub(super) fn after_session(
        &self,
        server: usize,
        ended: &SessionEnded,
        by: &Credential,
    ) -> Result<(), EndReason> {
        let has_another_chance = ended.reason == CloseReason::Revoked && self.has_other_than(by);
        if ended.reason.after() == AfterClose::Stop && !has_another_chance {
            return Err(match ended.reason {
                CloseReason::Superseded => EndReason::Superseded,
                _ => EndReason::Refused("the credential is no longer valid: make a new one".into()),
            });
        }
        let now = Instant::now();
        self.parts
            .sessions
            .status
            .on_session_end(ended.reason.name(), ended.detail.clone());
        let mut servers = self.servers.lock();
        let redial = servers.of(server);
        redial.after_session(ended.reason, ended.lived, now, random());
        let wait = servers.next(now, |_| 0, &[]).1.after(now);
        drop(servers);
        self.is_due_earlier.notify_one();
        self.show_wait(WaitReason::Failure, wait);
        let (reason, why) = (ended.reason.name(), &ended.detail);
        match ended.reason.is_planned() {
            true => tracing::info!(
                reason,
                why,
                wait_ms = millis(wait),
                "a session has ended as planned, dialling again"
            ),
            false => tracing::warn!(
                reason,
                why,
                wait_ms = millis(wait),
                "a session has ended, dialling again"
            ),
        }
        Ok(())
    }

    /// A server drains a session.
    pub(super) fn after_drain(&self, server: usize, session: &Session) {
        let lived = session.lived();
        let mut servers = self.servers.lock();
        (servers.of(server)).after_drain(lived, Instant::now(), random());
        self.is_due_earlier.notify_one();
    }

    /// The client replaces a session by its own choice.
    pub(super) fn on_renewal(&self, server: usize, session: &Session) {
        self.servers.lock().of(server).on_lived(session.lived());
    }

    /// Ends all waits, except for the `Retry-After` of a server.
    fn retry_now(&self) {
        self.servers.lock().all().for_each(Redial::retry_now);
    }

    /// Time has jumped: ends every wait.
    pub(super) fn after_jump(&self) {
        self.servers.lock().all().for_each(Redial::after_jump);
    }

    /// Waits until the next dial is due, or a change of the network path or the credential ends the wait. Returns the
    /// server that is dialled.
    async fn wait(
        &self,
        peer: Option<SocketAddr>,
        own: Option<LocationId>,
        search: &Search,
    ) -> usize {
        loop {
            let now = Instant::now();
            let load = |server| self.locations.read(|locations| locations.load(server, own));
            let (server, due) = self.servers.lock().next(now, load, search.servers());
            let (NextDial::At(at) | NextDial::NotBefore(at)) = due else {
                return server;
            };
            // Also before the end of a `Retry-After`: then another server may be due.
            let mut credential = self.parts.credentials.subscribe();
            let has_changed = tokio::select! {
                has_changed = path::wait(at - now, || path::current(peer)) => has_changed,
                Ok(()) = credential.changed() => true,
                () = self.is_due_earlier.notified() => false,
            };
            if has_changed {
                self.retry_now();
            }
        }
    }

    /// Whether the files hold another credential now.
    fn has_other_than(&self, credential: &Credential) -> bool {
        let latest = self.parts.credentials.read();
        latest.is_ok_and(|latest| !latest.is_same(credential))
    }

    /// Waits after a refusal of the credential. A new credential, SIGHUP, or the loss of the last session ends the wait.
    async fn wait_after_refusal(
        &self,
        RefusedCredential { credential, wait }: RefusedCredential<'_>,
    ) {
        let live = &self.parts.sessions.live;
        let had_sessions = live.any();
        tokio::select! {
            () = sleep(wait) => return,
            () = self.parts.credentials.other_than(credential) => {
                tracing::info!("the credential has changed, or SIGHUP was received: dialling now");
            }
            () = live.none_left(), if had_sessions => {}
        }
        self.refusals.lock().start_over();
    }

    async fn dial(
        &self,
        state: &mut DialState,
        starting: &StartingSession,
        server: usize,
        own: Option<LocationId>,
        search: &Search,
    ) -> Result<(Session, SessionLocation), DialFailure> {
        state.number = state.number.saturating_add(1);
        let greeting = Greeting {
            instance: self.parts.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            session_number: state.number,
            allow_from: self.parts.allow_from.clone(),
            is_check: false,
            stands_by: self.stands_by.load(Ordering::Relaxed),
            placement: Some(
                self.locations
                    .read(|locations| locations.placement(own, search)),
            ),
        };
        self.servers.lock().on_dial(server);
        let last = (self.locations).read(|locations| locations.addresses(own, search));
        let dialled = self.dialler(server).dial(&greeting, &last).await;
        let connected = dialled.map_err(DialFailure::Dial)?;
        let peer = connected.peer;
        state.peer = Some(peer);
        let credential = Arc::clone(&connected.credential);
        let session = starting
            .start(connected, self.parts.sessions.clone())
            .await
            .map_err(|error| DialFailure::NotWelcome(error, credential))?;
        let node = session.welcome().node.clone();
        Ok((session, SessionLocation { server, peer, node }))
    }

    fn dialler(&self, server: usize) -> &Dialler {
        &self.parts.diallers[server]
    }

    fn on_welcome(&self, session: &Session, server: usize, number: u32) {
        self.parts.sessions.metrics.on_dial("accepted");
        self.refusals.lock().start_over();
        self.stands_by.store(false, Ordering::Relaxed);
        self.has_hinted.store(false, Ordering::Relaxed);
        self.held_since.lock().get_or_insert_with(Instant::now);
        let welcome = session.welcome();
        tracing::info!(
            server = %self.dialler(server).server(),
            node = welcome.node,
            runtime = welcome.runtime,
            session = welcome.session,
            number,
            server_version = welcome.version,
            url = welcome.url,
            "the tunnel is up"
        );
        self.parts.sessions.live.on_welcome(Welcomed {
            runtime: welcome.runtime.clone(),
            url: welcome.url.clone(),
        });
    }

    /// Shows a new session in the status.
    fn show(&self, session: &mut Session, location: &SessionLocation, number: u32) {
        let welcome = session.welcome();
        let info = SessionInfo {
            id: welcome.session.clone(),
            number,
            server: self.dialler(location.server).server().to_string(),
            node: location.node.clone(),
            peer: location.peer.to_string(),
            server_version: welcome.version.clone(),
            since: Timestamp::now(),
        };
        session.show(&self.parts.sessions.status, info);
    }

    /// Shows in the status when the next dial is due.
    pub(super) fn show_wait(&self, reason: WaitReason, wait: Duration) {
        self.parts.sessions.status.on_wait(reason, wait);
    }

    /// Shows in the status why a dial gave no session.
    fn show_failure(&self, server: usize, failure: &DialFailure) {
        let (reason, detail) = match failure {
            DialFailure::Dial(error) => {
                let refusal = match error {
                    DialError::Refused { response, .. } => response.refusal.as_ref(),
                    _ => None,
                };
                let reason = refusal.and_then(Refusal::known);
                let reason = reason.map_or_else(|| error.name(), RefusalReason::name);
                (reason, error.to_string())
            }
            DialFailure::NotWelcome(error, _) => ("unwelcome", error.to_string()),
        };
        let server = self.dialler(server).server().to_string();
        self.parts
            .sessions
            .status
            .on_failure(server, reason, detail);
    }

    /// Sets the delay after a failed dial of a server. Returns a refused credential, which needs a longer wait.
    ///
    /// # Errors
    /// When the tunnel has to end.
    fn after_failure<'a>(
        &self,
        server: usize,
        failure: &'a DialFailure,
    ) -> Result<Option<RefusedCredential<'a>>, EndReason> {
        let metrics = &self.parts.sessions.metrics;
        self.show_failure(server, failure);
        let (why, no_session) = match failure {
            DialFailure::Dial(error) => {
                metrics.on_dial(error.name());
                if let DialError::Refused { credential, .. } = error
                    && error.finality() != Finality::Passing
                {
                    let wait = self.after_lasting_refusal(error)?;
                    return Ok(Some(RefusedCredential { credential, wait }));
                }
                (error.to_string(), error.no_session())
            }
            DialFailure::NotWelcome(NotWelcome::Ended(ended), credential) => {
                metrics.on_dial("unwelcome");
                self.after_session(server, ended, credential)?;
                return Ok(None);
            }
            DialFailure::NotWelcome(error @ NotWelcome::Late(_), _) => {
                metrics.on_dial("unwelcome");
                (error.to_string(), NoSession::Refused(None))
            }
        };
        let now = Instant::now();
        let mut servers = self.servers.lock();
        let redial = servers.of(server);
        redial.after_failure(no_session, now, random());
        let wait = servers.next(now, |_| 0, &[]).1.after(now);
        drop(servers);
        self.show_wait(WaitReason::Failure, wait);
        tracing::warn!(why, wait_ms = millis(wait), "no session, dialling again");
        self.hint(failure);
        Ok(None)
    }

    /// Returns how long to wait after a refusal that is final or pending.
    ///
    /// # Errors
    /// When the refusal ends the client: at once if it is final, after [`PENDING_LIMIT`] if it is pending.
    fn after_lasting_refusal(&self, error: &DialError) -> Result<Duration, EndReason> {
        let wait = self.after_refusal();
        let is_final = error.finality() == Finality::Final;
        let is_over = is_final || self.refusals.lock().lasted(Instant::now()) >= PENDING_LIMIT;
        let files = &self.parts.credentials;
        let why = match error.is_of_credential() {
            true => format!("{error}; the credential is that in `{files}`"),
            false => error.to_string(),
        };
        if is_over && self.parts.exits_on_refusal && !self.parts.sessions.live.any() {
            return Err(EndReason::Refused(why));
        }
        self.show_wait(WaitReason::Refusal, wait);
        if is_final {
            tracing::error!(
                why,
                wait_ms = millis(wait),
                "refused until the cause is corrected, dialling again later"
            );
        } else {
            tracing::error!(
                why,
                wait_ms = millis(wait),
                "the credential is refused, dialling again: a server that has not read its list yet will accept it; \
                 if not, put a valid one into its file, or have the runtimes file of the server corrected"
            );
        }
        Ok(wait)
    }

    /// Logs, once until the next welcome, that `check` finds out more about a failure on the path.
    fn hint(&self, failure: &DialFailure) {
        let DialFailure::Dial(error) = failure else {
            return;
        };
        // Beside another session, a failed dial is mostly a server that restarts.
        let is_news = !self.parts.sessions.live.any() && error.is_on_path();
        if is_news && !self.has_hinted.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "run `tunnel-client check` with the same flags, variables and file: it tests this path step by step, and \
                 says what is wrong and what to do about it"
            );
        }
    }
}
