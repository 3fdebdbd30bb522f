//! Which slot dials, and when: one at a time, after the wait that all of them share.
//!
//! In: a slot that wants a session. Out: a session that the server has welcomed, or why the whole
//! tunnel has to end. Each attempt is one turn, so that a slot whose attempt failed lets the others
//! try before it tries again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Mutex as Queue;
use tokio::time::{Instant, sleep, sleep_until};
use tunnel_proto::close::{AfterClose, CloseReason};
use tunnel_proto::handshake::{Greeting, InstanceSecret};
use tunnel_proto::refusal::Finality;

use super::path;
use super::redial::{Due, PENDING_LIMIT, Redial, RedialSettings, Refusals};
use super::starting::Starting;
use super::{Ending, random};
use crate::credential::{Credential, Credentials};
use crate::dial::{DialError, Dialler};
use crate::session::{Ended, NotWelcome, Session, SessionParts};

/// What dialling takes.
pub(crate) struct DiallingParts {
    /// Reaches the server.
    pub(crate) dialler: Dialler,
    /// What it shows.
    pub(crate) credentials: Arc<Credentials>,
    /// Of this client, drawn once.
    pub(crate) instance: InstanceSecret,
    /// Networks that the runtime may be reached from, as the wire has them.
    pub(crate) allow_from: Option<String>,
    /// What all sessions have.
    pub(crate) sessions: SessionParts,
    /// Longest wait after a refusal of the credential, and after the runtime was lost to another instance.
    pub(crate) refusal_wait: Duration,
    /// Whether a refusal that a person has to mend ends the client once no session is left.
    pub(crate) exits_on_refusal: bool,
    /// When to dial again.
    pub(crate) redial: RedialSettings,
}

/// Dials for all slots.
pub(super) struct Dialling {
    parts: DiallingParts,
    turn: Queue<Turn>,
    redial: Mutex<Redial>,
    refusals: Mutex<Refusals>,
    /// When the runtime was taken: the first welcome since the slots began.
    held_since: Mutex<Option<Instant>>,
    /// Whether it was said what finds out more about a dial that failed on the way.
    has_hinted: AtomicBool,
}

/// What the slot that dials holds meanwhile.
#[derive(Default)]
struct Turn {
    /// Number of the last session that was dialled.
    number: u32,
    /// Where the server was last reached.
    peer: Option<SocketAddr>,
}

/// A refusal of the credential that is waited out.
struct Refused<'a> {
    shown: &'a Arc<Credential>,
    wait: Duration,
}

/// Why there is no session after a dial.
enum Failure {
    Dial(DialError),
    /// After this was shown.
    NotWelcome(NotWelcome, Arc<Credential>),
}

impl Dialling {
    /// Nobody has dialled yet.
    pub(super) fn new(parts: DiallingParts) -> Self {
        Self {
            turn: Queue::default(),
            redial: Mutex::new(Redial::new(parts.redial.clone())),
            refusals: Mutex::new(Refusals::new(parts.refusal_wait)),
            held_since: Mutex::default(),
            has_hinted: AtomicBool::new(false),
            parts,
        }
    }

    /// What it dials with.
    pub(super) fn parts(&self) -> &DiallingParts {
        &self.parts
    }

    /// Dials until the server says welcome. When this is dropped, a session that has begun is with
    /// `starting`.
    ///
    /// # Errors
    /// When the server refuses, no session is left, and that is to end the client.
    pub(super) async fn session(&self, starting: &Starting) -> Result<Session, Ending> {
        loop {
            // A second request waits behind those that wait already.
            let mut turn = self.turn.lock().await;
            self.wait(turn.peer).await;
            match self.dial(&mut turn, starting).await {
                Ok(session) => {
                    self.on_welcome(&session, turn.number);
                    return Ok(session);
                }
                Err(failure) => {
                    if let Some(refused) = self.after_failure(&failure)? {
                        // In turn, since the others would be refused as well.
                        self.sit_out(refused).await;
                    }
                }
            }
        }
    }

    /// The slots begin, and hold nothing yet.
    pub(super) fn begin(&self) {
        *self.held_since.lock() = None;
    }

    /// For how long the runtime was held since then, if it was.
    pub(super) fn held_for(&self) -> Option<Duration> {
        self.held_since.lock().map(|since| since.elapsed())
    }

    /// The credential was refused: how long to wait before it is shown again.
    pub(super) fn after_refusal(&self) -> Duration {
        let mut refusals = self.refusals.lock();
        refusals.on_refusal(Instant::now(), random())
    }

    /// A fault of this program has ended all slots.
    pub(super) fn after_fault(&self) {
        let mut redial = self.redial.lock();
        redial.after_fault(Instant::now(), random());
    }

    /// A session has ended that went by this credential.
    ///
    /// # Errors
    /// When that ends the whole tunnel.
    pub(super) fn after_session(&self, ended: &Ended, by: &Credential) -> Result<(), Ending> {
        let has_another_chance = ended.reason == CloseReason::Revoked && self.has_other_than(by);
        if ended.reason.after() == AfterClose::Stop && !has_another_chance {
            return Err(match ended.reason {
                CloseReason::Superseded => Ending::Superseded,
                _ => Ending::Refused("the credential is no longer valid: make a new one".into()),
            });
        }
        let now = Instant::now();
        let mut redial = self.redial.lock();
        redial.after_session(ended.reason, ended.lived, now, random());
        let wait = redial.due(now).after(now);
        drop(redial);
        tracing::warn!(
            why = ended.detail,
            ?wait,
            "a session has ended, dialling again"
        );
        Ok(())
    }

    /// The server wants a session to leave.
    pub(super) fn after_drain(&self, session: &Session) {
        let lived = session.lived();
        let mut redial = self.redial.lock();
        redial.after_drain(lived, Instant::now(), random());
    }

    /// A session is replaced by the client's own choice.
    pub(super) fn on_renewal(&self, session: &Session) {
        self.redial.lock().on_lived(session.lived());
    }

    /// Something may have changed: only a time that the server named is waited for.
    fn hurry(&self) {
        self.redial.lock().hurry();
    }

    /// Time has jumped: nothing is waited for.
    pub(super) fn after_jump(&self) {
        self.redial.lock().after_jump();
    }

    /// Lets the time pass that is to pass before the next dial.
    async fn wait(&self, peer: Option<SocketAddr>) {
        loop {
            let now = Instant::now();
            let due = self.redial.lock().due(now);
            match due {
                Due::Now => return,
                Due::NotBefore(at) => sleep_until(at).await,
                Due::At(at) => {
                    let mut credential = self.parts.credentials.subscribe();
                    let has_changed = tokio::select! {
                        has_changed = path::wait(at - now, || path::current(peer)) => has_changed,
                        Ok(()) = credential.changed() => true,
                    };
                    if has_changed {
                        self.hurry();
                    }
                }
            }
        }
    }

    /// Whether the credential's files hold another one now.
    fn has_other_than(&self, credential: &Credential) -> bool {
        let latest = self.parts.credentials.read();
        latest.is_ok_and(|latest| !latest.is_same(credential))
    }

    /// Waits after a refusal that concerns the credential, unless another one is there to be shown, SIGHUP asks
    /// for it, or the last session is lost meanwhile.
    async fn sit_out(&self, Refused { shown, wait }: Refused<'_>) {
        let live = &self.parts.sessions.live;
        let had_sessions = live.any();
        tokio::select! {
            () = sleep(wait) => return,
            () = self.parts.credentials.other_than(shown) => {
                tracing::info!("the credential has changed, or SIGHUP came: dialling now");
            }
            () = live.none_left(), if had_sessions => {}
        }
        self.refusals.lock().start_over();
    }

    async fn dial(&self, turn: &mut Turn, starting: &Starting) -> Result<Session, Failure> {
        turn.number = turn.number.saturating_add(1);
        let greeting = Greeting {
            instance: self.parts.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            session_number: turn.number,
            allow_from: self.parts.allow_from.clone(),
            is_check: false,
        };
        let dialled = self.parts.dialler.dial(&greeting).await;
        let connected = dialled.map_err(Failure::Dial)?;
        turn.peer = Some(connected.peer);
        let credential = Arc::clone(&connected.credential);
        starting
            .start(connected, self.parts.sessions.clone())
            .await
            .map_err(|error| Failure::NotWelcome(error, credential))
    }

    fn on_welcome(&self, session: &Session, number: u32) {
        self.parts.sessions.metrics.on_dial("accepted");
        self.refusals.lock().start_over();
        self.held_since.lock().get_or_insert_with(Instant::now);
        let welcome = session.welcome();
        tracing::info!(
            server = %self.parts.dialler.server(),
            runtime = welcome.runtime,
            session = welcome.session,
            number,
            server_version = welcome.version,
            "the tunnel is up"
        );
    }

    /// What follows a dial that gave no session: the growing delay, a longer wait, or the end.
    fn after_failure<'a>(&self, failure: &'a Failure) -> Result<Option<Refused<'a>>, Ending> {
        let metrics = &self.parts.sessions.metrics;
        let (why, retry_after) = match failure {
            Failure::Dial(error) => {
                metrics.on_dial(error.name());
                if let DialError::Refused { shown, .. } = error
                    && error.finality() != Finality::Passing
                {
                    let wait = self.after_lasting_refusal(error)?;
                    return Ok(Some(Refused { shown, wait }));
                }
                (error.to_string(), error.retry_after())
            }
            Failure::NotWelcome(NotWelcome::Ended(ended), credential) => {
                metrics.on_dial("unwelcome");
                self.after_session(ended, credential)?;
                return Ok(None);
            }
            Failure::NotWelcome(error @ NotWelcome::Late(_), _) => {
                metrics.on_dial("unwelcome");
                (error.to_string(), None)
            }
        };
        let now = Instant::now();
        let mut redial = self.redial.lock();
        redial.after_failure(retry_after, now, random());
        let wait = redial.due(now).after(now);
        drop(redial);
        tracing::warn!(why, ?wait, "no session, dialling again");
        self.hint(failure);
        Ok(None)
    }

    /// After a refusal that does not pass by itself within seconds: how long to wait.
    ///
    /// # Errors
    /// When it ends the client: at once where a person has to change something, and after some minutes where the
    /// server could have taken it back by itself.
    fn after_lasting_refusal(&self, error: &DialError) -> Result<Duration, Ending> {
        let wait = self.after_refusal();
        let is_final = error.finality() == Finality::Final;
        let is_over = is_final || self.refusals.lock().lasted(Instant::now()) >= PENDING_LIMIT;
        let why = error.to_string();
        if is_over && self.parts.exits_on_refusal && !self.parts.sessions.live.any() {
            return Err(Ending::Refused(why));
        }
        if is_final {
            tracing::error!(
                why,
                ?wait,
                "refused until a person changes something, dialling again later"
            );
        } else {
            tracing::error!(
                why,
                ?wait,
                "the credential is refused, dialling again: if the server knows it a moment later, all is well; \
                 if not, put a good one into its file, or have the server's list corrected"
            );
        }
        Ok(wait)
    }

    /// Says once what tells more about a network that does not let through, which no single dial can.
    fn hint(&self, failure: &Failure) {
        let Failure::Dial(error) = failure else {
            return;
        };
        if error.is_on_the_way() && !self.has_hinted.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "`tunnel-client check` with the same flags, variables and file walks this way step by step, and says \
                 what is wrong and what to do about it"
            );
        }
    }
}
