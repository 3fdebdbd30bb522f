//! A slot for one session: dials it, serves its exchanges, and replaces it in time.
//!
//! ```text
//!                 ┌───────────── dial (dialling.rs) ◀──────────────┐
//!                 ▼                                                │
//!   none ─▶ dial ─▶ serve ── lost ─────────────────────────────────┤
//!                     ├───── drain, put off by a part of the spread┤  what serves goes on serving
//!                     ├───── renewal: clock, certificate, age ─────┤  until the next is welcome
//!                     └───── silent, until it is heard again ──────┘
//! ```
//!
//! Whatever it is at, it hears what the server says of the session that it has. It ends with the
//! tunnel, for whatever reason: then its sessions leave (leaving.rs), and a dial under way is dropped, but
//! not a session that it has begun (starting.rs).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::age::Turn;
use super::clock::Renewal;
use super::leaving::{EndedBy, Leaving};
use super::redial::fraction;
use super::starting::Starting;
use super::{Ending, Shared, random};
use crate::credential::Credential;
use crate::session::{Event, Session};

/// Longest time over which a server can have its clients spread their redials.
const SPREAD_MAX: Duration = Duration::from_secs(60);

/// A slot for one session; for two while one replaces the other.
pub(super) struct Slot {
    shared: Arc<Shared>,
    current: Option<Session>,
    /// The server wants the current session to be replaced, and ends it itself.
    is_drained: bool,
    /// When the current session is to be replaced for its age.
    due: Option<Instant>,
    /// Held while that is done.
    aged: Option<Turn>,
    /// The session that is to replace it, once it has begun.
    starting: Arc<Starting>,
    /// Sessions that were replaced.
    leaving: Leaving,
    renewals: watch::Receiver<Option<Renewal>>,
    credentials: watch::Receiver<Option<Arc<Credential>>>,
}

/// Why a slot needs another session.
enum Need {
    /// The server wants the one that is there to leave, and clients to come within this time.
    Drained(Duration),
    /// There is none any more.
    Lost,
    /// The session is silent although it was probed. It may yet be heard again.
    Silent,
    /// What was silent is heard again.
    HeardAgain,
    /// What is there may be dead, or shows what is out of date.
    Renewal(Renewal),
}

impl Slot {
    /// An empty slot.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            current: None,
            is_drained: false,
            due: None,
            aged: None,
            starting: Arc::default(),
            leaving: Leaving::new(Arc::clone(&shared)),
            renewals: shared.renewals.subscribe(),
            credentials: shared.credentials.subscribe(),
            shared,
        }
    }

    /// Keeps a session here until the tunnel ends, and then leaves without loss.
    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            biased;
            _ = shared.ended() => {}
            ending = self.keep() => {
                shared.end(ending);
            }
        }
        let start = self.starting.abandon();
        self.leaving.end(self.current, start).await;
    }

    /// Keeps a session, whatever happens to it. All state is in `self`, so that this can be dropped.
    async fn keep(&mut self) -> Ending {
        let mut is_only_silent = false;
        loop {
            match self.next_session(is_only_silent).await {
                Ok(Some(session)) => self.replace(session),
                Ok(None) => {}
                Err(ending) => return ending,
            }
            match self.serve().await {
                Ok(need) => is_only_silent = matches!(need, Need::Silent),
                Err(ending) => return ending,
            }
        }
    }

    /// Dials, while what is there goes on. `None` if nothing but the silence of the current session called for
    /// another one, and it is heard again first.
    async fn next_session(&mut self, mut is_only_silent: bool) -> Result<Option<Session>, Ending> {
        let (shared, starting) = (Arc::clone(&self.shared), Arc::clone(&self.starting));
        // Boxed, since its state is large, and a dial is rare.
        let dial = || (Instant::now(), Box::pin(shared.dialling.session(&starting)));
        let (mut began, mut dialling) = dial();
        loop {
            tokio::select! {
                session = &mut dialling => return session.map(Some),
                need = self.need() => match need? {
                    Need::Silent => {}
                    Need::HeardAgain if is_only_silent => {
                        drop(dialling);
                        self.abandon(&starting);
                        return Ok(None);
                    }
                    Need::HeardAgain => {}
                    Need::Drained(_) | Need::Lost => is_only_silent = false,
                    Need::Renewal(Renewal { spares }) => {
                        is_only_silent = false;
                        if spares.is_none_or(|jump| began < jump) {
                            // What this dial has reached so far is as old as the session that it replaces.
                            (began, dialling) = dial();
                            self.abandon(&starting);
                        }
                    }
                },
            }
        }
    }

    /// Sees to the end of a session that a dropped dial has begun.
    fn abandon(&mut self, starting: &Starting) {
        if let Some(start) = starting.abandon() {
            self.leaving.abandoned(start);
        }
    }

    /// Serves by the session that is there until another is to be dialled; why it is.
    async fn serve(&mut self) -> Result<Need, Ending> {
        let (shared, due) = (Arc::clone(&self.shared), self.due);
        let need = loop {
            let need = tokio::select! {
                need = self.need() => need?,
                turn = shared.ages.turn(due) => {
                    tracing::info!("this session has reached its age, another one is dialled");
                    self.aged = Some(turn);
                    self.renewal(Renewal::default())
                }
            };
            if !matches!(need, Need::HeardAgain) {
                break need;
            }
        };
        let Need::Drained(spread) = need else {
            return Ok(need);
        };
        // Whatever else happens to the session meanwhile, the server wants it to be replaced.
        tokio::select! {
            () = sleep(fraction(spread.min(SPREAD_MAX), random())) => {}
            need = self.need() => {
                need?;
            }
        }
        Ok(need)
    }

    /// Returns when another session is needed.
    async fn need(&mut self) -> Result<Need, Ending> {
        loop {
            let event = tokio::select! {
                event = next_event(&mut self.current) => event,
                Ok(()) = self.renewals.changed() => {
                    let renewal = self.renewals.borrow_and_update().unwrap_or_default();
                    // If it is dead, that is to be found soon.
                    self.current.iter().for_each(Session::suspect);
                    return Ok(self.renewal(renewal));
                }
                Ok(()) = self.credentials.changed() => {
                    if self.use_credential() {
                        continue;
                    }
                    return Ok(self.renewal(Renewal::default()));
                }
            };
            match event {
                Event::Drain { spread } => {
                    tracing::info!("the server drains this session, another one is dialled");
                    self.is_drained = true;
                    if let Some(session) = &self.current {
                        self.shared.dialling.after_drain(session);
                    }
                    return Ok(Need::Drained(spread));
                }
                Event::Expiring { within } => {
                    if let Some(session) = &mut self.current
                        && !self.shared.on_expiring(session, within)
                    {
                        return Ok(self.renewal(Renewal::default()));
                    }
                }
                Event::Superseded => return Err(Ending::Superseded),
                Event::Silent => {
                    tracing::warn!("a session is silent, another one is dialled beside it");
                    return Ok(Need::Silent);
                }
                Event::HeardAgain => {
                    tracing::info!("a session that was silent is heard again");
                    return Ok(Need::HeardAgain);
                }
                Event::Ended(ended) => {
                    self.is_drained = false;
                    if let Some(session) = self.current.take() {
                        let by = session.went_by();
                        self.shared.dialling.after_session(&ended, by)?;
                    }
                    return Ok(Need::Lost);
                }
            }
        }
    }

    /// Has the session go on by the credential as it is now. False if it cannot: a certificate is shown
    /// only at the beginning.
    fn use_credential(&mut self) -> bool {
        let latest = self.credentials.borrow_and_update().clone();
        let (Some(session), Some(latest)) = (&mut self.current, latest) else {
            return true;
        };
        let goes_on = session.use_credential(latest);
        if !goes_on {
            tracing::info!("the credential has changed, another session is dialled");
        }
        goes_on
    }

    fn renewal(&self, renewal: Renewal) -> Need {
        if let Some(session) = &self.current {
            self.shared.dialling.on_renewal(session);
        }
        Need::Renewal(renewal)
    }

    /// Serves by another session from here on; the one before leaves without loss.
    fn replace(&mut self, session: Session) {
        // It may have been read before another slot heard of a newer one.
        self.credentials.mark_changed();
        self.due = self.shared.ages.due(Instant::now(), random());
        self.aged = None;
        let by = match std::mem::take(&mut self.is_drained) {
            true => EndedBy::Server,
            false => EndedBy::Client,
        };
        if let Some(old) = self.current.replace(session) {
            self.leaving.replaced(old, by);
        }
    }
}

/// What comes of the session, if there is one.
async fn next_event(session: &mut Option<Session>) -> Event {
    match session {
        Some(session) => session.next().await,
        None => std::future::pending().await,
    }
}
