//! A slot for one session: dials it, serves its exchanges, and replaces it in time.
//!
//! ```text
//!                 ┌───────────── dial (dialling.rs) ◀──────────────┐
//!                 ▼                                                │
//!   none ─▶ dial ─▶ serve ── lost ─────────────────────────────────┤
//!                     ├───── drain, after a random part of spread ─┤  the current session serves
//!                     ├───── renewal: clock, certificate, age ─────┤  until the next is welcomed
//!                     └───── silent, until it is heard again ──────┘
//! ```
//!
//! In each state it handles the events of its session. It ends with the tunnel: then its sessions leave (leaving.rs), and
//! a dial under way is dropped, but not a session that has begun (starting.rs).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tunnel_proto::redial::fraction;

use super::age::AgePermit;
use super::clock::Renewal;
use super::leaving::{ClosedBy, Leaving};
use super::locations::LocationGuard;
use super::starting::StartingSession;
use super::{EndReason, Shared, random};
use crate::credential::Credential;
use crate::session::{Event, Session};

/// Longest time over which a server can have its clients spread their redials.
const SPREAD_MAX: Duration = Duration::from_secs(60);

/// A slot for one session, or for two while one replaces the other.
pub(super) struct Slot {
    shared: Arc<Shared>,
    current: Option<Session>,
    /// Where the current session is.
    location: Option<LocationGuard>,
    /// Whether the server drains the current session. The server closes it then.
    is_drained: bool,
    /// When the current session is to be replaced for its age (`--max-session-age`).
    due: Option<Instant>,
    /// Held while a session is replaced for its age.
    aged: Option<AgePermit>,
    /// The next session, once it has begun.
    starting: Arc<StartingSession>,
    /// Replaced sessions.
    leaving: Leaving,
    renewals: watch::Receiver<Option<Renewal>>,
    credentials: watch::Receiver<Option<Arc<Credential>>>,
}

/// Why a slot needs another session, or no longer does.
enum SlotEvent {
    /// The server drains the current session; its clients are to dial within this time.
    Drained(Duration),
    /// The session has ended.
    Lost,
    /// The session is silent although it was pinged. It may be heard again.
    Silent,
    /// The silent session is heard again.
    HeardAgain,
    /// The session may be dead, has reached its age, or its certificate is out of date.
    Renewal(Renewal),
}

impl Slot {
    /// An empty slot.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            current: None,
            location: None,
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

    /// Keeps a session until the tunnel ends, and then leaves without loss.
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

    /// Keeps a session, and returns why the tunnel has to end. All state is in `self`, so that this can be dropped.
    async fn keep(&mut self) -> EndReason {
        // Whether silence is the only reason for the next dial.
        let mut is_only_silent = false;
        loop {
            match self.next_session(is_only_silent).await {
                Ok(Some((session, location))) => self.replace(session, location),
                Ok(None) => {}
                Err(ending) => return ending,
            }
            match self.serve().await {
                Ok(event) => is_only_silent = matches!(event, SlotEvent::Silent),
                Err(ending) => return ending,
            }
        }
    }

    /// Dials while the current session continues. Returns `None` if the only reason was the silence of the current session,
    /// and it is heard again first.
    async fn next_session(
        &mut self,
        mut is_only_silent: bool,
    ) -> Result<Option<(Session, LocationGuard)>, EndReason> {
        let (shared, starting) = (Arc::clone(&self.shared), Arc::clone(&self.starting));
        let own = self.location.as_ref().map(LocationGuard::id);
        // Boxed, since its state is large, and a dial is rare.
        let dial = || {
            let dialling = shared.dialling.session(&starting, own);
            (Instant::now(), Box::pin(dialling))
        };
        let (mut began, mut dialling) = dial();
        loop {
            tokio::select! {
                session = &mut dialling => return session.map(Some),
                event = self.next_slot_event() => match event? {
                    SlotEvent::Silent => {}
                    SlotEvent::HeardAgain if is_only_silent => {
                        drop(dialling);
                        self.abandon(&starting);
                        return Ok(None);
                    }
                    SlotEvent::HeardAgain => {}
                    SlotEvent::Drained(_) | SlotEvent::Lost => is_only_silent = false,
                    SlotEvent::Renewal(Renewal { keeps_dials_after }) => {
                        is_only_silent = false;
                        if keeps_dials_after.is_none_or(|jump| began < jump) {
                            // The jump affects this dial like the session that it replaces.
                            (began, dialling) = dial();
                            self.abandon(&starting);
                        }
                    }
                },
            }
        }
    }

    /// Drains a session that a dropped dial has begun.
    fn abandon(&mut self, starting: &StartingSession) {
        if let Some(start) = starting.abandon() {
            self.leaving.abandoned(start);
        }
    }

    /// Serves the current session until another one is to be dialled, and returns the reason.
    async fn serve(&mut self) -> Result<SlotEvent, EndReason> {
        let (shared, due) = (Arc::clone(&self.shared), self.due);
        let event = loop {
            let event = tokio::select! {
                event = self.next_slot_event() => event?,
                permit = shared.ages.reached(due) => {
                    tracing::info!("a session has reached its age, dialling another");
                    self.aged = Some(permit);
                    self.renewal(Renewal::default())
                }
            };
            if !matches!(event, SlotEvent::HeardAgain) {
                break event;
            }
        };
        let SlotEvent::Drained(spread) = event else {
            return Ok(event);
        };
        // Other events of the session change nothing: it is replaced in any case.
        tokio::select! {
            () = sleep(fraction(spread.min(SPREAD_MAX), random())) => {}
            event = self.next_slot_event() => {
                event?;
            }
        }
        Ok(event)
    }

    /// Waits until another session is needed, or a silent session is heard again.
    async fn next_slot_event(&mut self) -> Result<SlotEvent, EndReason> {
        loop {
            let event = tokio::select! {
                event = next_event(&mut self.current) => event,
                Ok(()) = self.renewals.changed() => {
                    let renewal = self.renewals.borrow_and_update().unwrap_or_default();
                    // Pings the session, so that a dead one is detected soon.
                    self.current.iter().for_each(Session::ping_now);
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
                    tracing::info!("the server drains a session, dialling another");
                    self.is_drained = true;
                    if let (Some(session), Some(location)) = (&self.current, &self.location) {
                        location.set_left(true);
                        self.shared.dialling.after_drain(location.server(), session);
                    }
                    return Ok(SlotEvent::Drained(spread));
                }
                Event::Expiring { within } => {
                    if let Some(session) = &mut self.current
                        && !self.shared.on_expiring(session, within)
                    {
                        return Ok(self.renewal(Renewal::default()));
                    }
                }
                Event::Superseded => return Err(EndReason::Superseded),
                Event::Silent => {
                    tracing::warn!("a session is silent, dialling another beside it");
                    self.set_left(true);
                    return Ok(SlotEvent::Silent);
                }
                Event::HeardAgain => {
                    tracing::info!("a session that was silent is heard again");
                    self.set_left(self.is_drained);
                    return Ok(SlotEvent::HeardAgain);
                }
                Event::Ended(ended) => {
                    self.is_drained = false;
                    let server = self.location.take().map_or(0, |location| location.server());
                    if let Some(session) = self.current.take() {
                        let by = session.credential();
                        self.shared.dialling.after_session(server, &ended, by)?;
                    }
                    return Ok(SlotEvent::Lost);
                }
            }
        }
    }

    /// Gives the session the current credential. Returns false if only a new session can use it, since a certificate is
    /// sent only in the TLS handshake.
    fn use_credential(&mut self) -> bool {
        let latest = self.credentials.borrow_and_update().clone();
        let (Some(session), Some(latest)) = (&mut self.current, latest) else {
            return true;
        };
        let goes_on = session.use_credential(latest);
        if !goes_on {
            tracing::info!("the credential has changed, dialling another session");
        }
        goes_on
    }

    fn renewal(&self, renewal: Renewal) -> SlotEvent {
        if let (Some(session), Some(location)) = (&self.current, &self.location) {
            self.shared.dialling.on_renewal(location.server(), session);
        }
        SlotEvent::Renewal(renewal)
    }

    /// Whether the next session is to be at another location than the current one.
    fn set_left(&self, is_left: bool) {
        if let Some(location) = &self.location {
            location.set_left(is_left);
        }
    }

    /// Makes this session the current one; the previous one leaves without loss.
    fn replace(&mut self, session: Session, location: LocationGuard) {
        self.location = Some(location);
        // The session's credential may have been read before a newer one was announced.
        self.credentials.mark_changed();
        self.due = self.shared.ages.due(Instant::now(), random());
        self.aged = None;
        let by = match std::mem::take(&mut self.is_drained) {
            true => ClosedBy::Server,
            false => ClosedBy::Client,
        };
        if let Some(old) = self.current.replace(session) {
            self.leaving.replaced(old, by);
        }
    }
}

/// The next event of the session; pending without one.
async fn next_event(session: &mut Option<Session>) -> Event {
    match session {
        Some(session) => session.next().await,
        None => std::future::pending().await,
    }
}
