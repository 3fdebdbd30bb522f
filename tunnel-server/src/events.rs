//! What happens to runtimes and to the server, for operators that watch.
//!
//! ```text
//!   registry, connect, reload ──report─▶ ring of the last 1,024 ◀──each at its own pace── readers
//! ```
//!
//! [`Events::report`] takes a lock for as long as one push takes, and never waits for a reader: a
//! reader that the ring has overtaken gets [`TooSlow`]. Nothing here decides anything, and nothing depends on
//! an event having been read.

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{runtimes::RuntimeLabel, timestamp::Timestamp};

/// Events that are kept, for readers that are behind or come again: a few seconds of thousands of
/// clients that all dial again, or days of a quiet server; about 200 KiB.
pub const RING: usize = 1_024;

/// Events handed to a reader at once, so that none of their texts grows large.
const BATCH: usize = 64;

/// What kind of thing has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EventKind {
    /// A runtime has its first session.
    Online,
    /// A runtime has lost its last session.
    Offline,
    /// A session is ready.
    SessionBegan,
    /// A session has ended; the reason says why.
    SessionEnded,
    /// A newer instance has taken a runtime over.
    Superseded,
    /// Instances fight for a runtime, and are slowed.
    Contested,
    /// A credential is no longer valid.
    Revoked,
    /// A session's credential has run out.
    Expired,
    /// Changed files were read; the reason says when they are not good.
    Reloaded,
    /// The server was asked to stop.
    Draining,
    /// Reported by no part: a reader was away for so long that events are lost to it.
    Missed,
}

/// One thing that has happened.
#[derive(Debug, Clone)]
pub struct Event {
    kind: EventKind,
    label: Option<RuntimeLabel>,
    session: Option<String>,
    reason: Option<&'static str>,
    detail: Option<String>,
}

/// An event as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Which event of which run of the server this is; `Last-Event-ID` takes it. None of `missed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When.
    pub time: Timestamp,
    /// What.
    pub kind: EventKind,
    /// The runtime, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The session, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Why, as a stable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The rest, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The last events, and a signal for readers of the next.
pub struct Events {
    /// Tells this run's events from another's, since each counts from 1.
    run: String,
    ring: Mutex<Ring>,
    reported: watch::Sender<()>,
}

struct Ring {
    kept: VecDeque<Arc<NumberedEvent>>,
    /// The number of the next event.
    next: u64,
}

struct NumberedEvent {
    number: u64,
    time: Timestamp,
    event: Event,
}

/// A reader's position in the events.
pub struct Reader {
    events: Arc<Events>,
    /// The number of the event that is read next.
    next: u64,
    has_missed: bool,
    reported: watch::Receiver<()>,
}

/// A reader is so far behind that events are lost to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("read too slowly, more than {RING} events behind")]
pub struct TooSlow;

impl EventKind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::Online,
        Self::Offline,
        Self::SessionBegan,
        Self::SessionEnded,
        Self::Superseded,
        Self::Contested,
        Self::Revoked,
        Self::Expired,
        Self::Reloaded,
        Self::Draining,
        Self::Missed,
    ];

    /// The kind's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Offline => "offline",
            Self::SessionBegan => "session-began",
            Self::SessionEnded => "session-ended",
            Self::Superseded => "superseded",
            Self::Contested => "contested",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::Reloaded => "reloaded",
            Self::Draining => "draining",
            Self::Missed => "missed",
        }
    }
}

impl Event {
    /// An event of the whole server.
    #[must_use]
    pub fn new(kind: EventKind) -> Self {
        Self {
            kind,
            label: None,
            session: None,
            reason: None,
            detail: None,
        }
    }

    /// An event of a runtime.
    #[must_use]
    pub fn of(kind: EventKind, label: &RuntimeLabel) -> Self {
        Self {
            label: Some(label.clone()),
            ..Self::new(kind)
        }
    }

    /// With the session that it is about.
    #[must_use]
    pub fn session(self, id: impl Into<String>) -> Self {
        Self {
            session: Some(id.into()),
            ..self
        }
    }

    /// With the reason, as a stable name.
    #[must_use]
    pub fn reason(self, reason: &'static str) -> Self {
        Self {
            reason: Some(reason),
            ..self
        }
    }

    /// With what a person wants to know. Never a secret.
    #[must_use]
    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self {
            detail: Some(detail.into()),
            ..self
        }
    }
}

impl Events {
    /// How many read along now.
    pub(crate) fn readers(&self) -> usize {
        self.reported.receiver_count()
    }

    /// No events yet. `run` distinguishes this run of the server from every other.
    #[must_use]
    pub fn new(run: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            run: run.into(),
            ring: Mutex::new(Ring {
                kept: VecDeque::with_capacity(RING),
                next: 1,
            }),
            reported: watch::Sender::new(()),
        })
    }

    /// Adds an event and wakes the readers. Cheap, and does not wait.
    pub fn report(&self, event: Event) {
        let time = Timestamp::now();
        let mut ring = self.ring.lock();
        let number = ring.next;
        ring.next += 1;
        let oldest = (ring.kept.len() == RING).then(|| ring.kept.pop_front());
        ring.kept.push_back(Arc::new(NumberedEvent {
            number,
            time,
            event,
        }));
        drop(ring);
        drop(oldest);
        self.reported.send_replace(());
    }

    /// A reader of what comes from now on.
    #[must_use]
    pub fn read(self: &Arc<Self>) -> Reader {
        let next = self.ring.lock().next;
        self.reader(next, false)
    }

    /// A reader of what came after the event with this id, as far as it is still there.
    #[must_use]
    pub fn read_after(self: &Arc<Self>, id: &str) -> Reader {
        let ring = self.ring.lock();
        let oldest = ring.next - ring.kept.len() as u64;
        let wanted = self
            .number_of(id)
            .and_then(|last| last.checked_add(1))
            .filter(|wanted| (oldest..=ring.next).contains(wanted));
        drop(ring);
        // An id of another run, or one that was never given: all that is kept is new to that reader.
        self.reader(wanted.unwrap_or(oldest), wanted.is_none())
    }

    fn reader(self: &Arc<Self>, next: u64, has_missed: bool) -> Reader {
        Reader {
            events: self.clone(),
            next,
            has_missed,
            reported: self.reported.subscribe(),
        }
    }

    fn number_of(&self, id: &str) -> Option<u64> {
        let (run, number) = id.rsplit_once('-')?;
        (run == self.run).then(|| number.parse().ok())?
    }

    fn view(&self, numbered: &NumberedEvent) -> EventView {
        let event = &numbered.event;
        EventView {
            id: Some(format!("{}-{}", self.run, numbered.number)),
            time: numbered.time,
            kind: event.kind,
            label: event.label.as_ref().map(ToString::to_string),
            session: event.session.clone(),
            reason: event.reason.map(ToOwned::to_owned),
            detail: event.detail.clone(),
        }
    }
}

impl Reader {
    /// The next events, at least one, as soon as there are any. Nothing is lost when this is dropped
    /// before it is done.
    ///
    /// # Errors
    /// When events came faster than they were read, and some are gone. There is nothing more to be
    /// read then.
    pub async fn next(&mut self) -> Result<Vec<EventView>, TooSlow> {
        if std::mem::take(&mut self.has_missed) {
            return Ok(vec![missed()]);
        }
        loop {
            self.reported.borrow_and_update();
            let batch = self.batch()?;
            if !batch.is_empty() {
                return Ok(batch.iter().map(|event| self.events.view(event)).collect());
            }
            // Fails only without a sender, which `events` holds.
            let _ = self.reported.changed().await;
        }
    }

    fn batch(&mut self) -> Result<Vec<Arc<NumberedEvent>>, TooSlow> {
        let ring = self.events.ring.lock();
        let oldest = ring.next - ring.kept.len() as u64;
        let read = self.next.checked_sub(oldest).ok_or(TooSlow)?;
        let read = usize::try_from(read).map_err(|_| TooSlow)?;
        let batch: Vec<_> = ring.kept.iter().skip(read).take(BATCH).cloned().collect();
        self.next += batch.len() as u64;
        Ok(batch)
    }
}

/// The event for a reader that connects again too late.
fn missed() -> EventView {
    EventView {
        id: None,
        time: Timestamp::now(),
        kind: EventKind::Missed,
        label: None,
        session: None,
        reason: None,
        detail: Some(
            "events are lost since the one named in Last-Event-ID: ask for the runtimes anew"
                .to_owned(),
        ),
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn label(name: &str) -> RuntimeLabel {
        RuntimeLabel::new(&"acme".parse().unwrap(), &name.parse().unwrap()).unwrap()
    }

    fn tell(events: &Events, count: usize) {
        for _ in 0..count {
            events.report(Event::new(EventKind::Reloaded));
        }
    }

    async fn ids(reader: &mut Reader, count: usize) -> Vec<String> {
        let mut ids = Vec::new();
        while ids.len() < count {
            let views = reader.next().await.unwrap();
            ids.extend(views.into_iter().map(|view| view.id.unwrap()));
        }
        ids
    }

    #[tokio::test]
    async fn a_reader_gets_what_comes_after_it_came() {
        let events = Events::new("run");
        tell(&events, 1);
        let mut reader = events.read();
        assert!(reader.next().now_or_never().is_none());
        let began = Event::of(EventKind::SessionEnded, &label("prod"));
        events.report(began.session("i/1").reason("left").detail("of its own"));
        let view = reader.next().await.unwrap().remove(0);
        assert_eq!(view.id.as_deref(), Some("run-2"));
        assert_eq!(view.kind, EventKind::SessionEnded);
        assert_eq!(view.label.as_deref(), Some("acme-prod"));
        assert_eq!(view.session.as_deref(), Some("i/1"));
        assert_eq!(view.reason.as_deref(), Some("left"));
        assert_eq!(view.detail.as_deref(), Some("of its own"));
        assert!(reader.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let events = Events::new("run");
        let mut reader = events.read();
        let (read, ()) = tokio::join!(reader.next(), async {
            tokio::task::yield_now().await;
            tell(&events, 1);
        });
        assert_eq!(read.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn who_comes_again_goes_on_where_he_was() {
        let events = Events::new("run");
        tell(&events, 3);
        let mut reader = events.read_after("run-1");
        assert_eq!(ids(&mut reader, 2).await, ["run-2", "run-3"]);
        let mut current = events.read_after("run-3");
        assert!(current.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn who_comes_again_too_late_or_from_another_run_is_told() {
        let events = Events::new("run");
        tell(&events, RING + 10);
        for id in ["run-3", "other-1030", "run-1035", "run-x", "run-", ""] {
            let mut reader = events.read_after(id);
            let first = reader.next().await.unwrap().remove(0);
            assert_eq!((first.kind, first.id), (EventKind::Missed, None), "{id}");
            assert_eq!(ids(&mut reader, 1).await[0], "run-11", "{id}");
        }
        let last = format!("run-{}", u64::MAX);
        let first = events.read_after(&last).next().await.unwrap().remove(0);
        assert_eq!(first.kind, EventKind::Missed);
    }

    #[tokio::test]
    async fn who_is_too_slow_loses_his_place_and_holds_nobody_up() {
        let events = Events::new("run");
        let (mut slow, mut quick) = (events.read(), events.read());
        tell(&events, RING);
        assert_eq!(ids(&mut quick, RING).await.len(), RING);
        tell(&events, 1);
        assert_eq!(ids(&mut quick, 1).await, [format!("run-{}", RING + 1)]);
        assert_eq!(slow.next().await, Err(TooSlow));
        assert_eq!(events.ring.lock().kept.len(), RING);
    }

    #[test]
    fn a_kind_is_shown_by_its_name() {
        for kind in EventKind::ALL {
            let shown = serde_json::to_value(kind).unwrap();
            assert_eq!(shown, kind.name());
        }
    }
}
