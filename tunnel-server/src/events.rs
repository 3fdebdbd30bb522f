//! Events of runtimes and of the server, for operators.
//!
//! ```text
//!   registry, connect, reload ──report─▶ ring of the last 1,024 ◀──each at its own pace── readers
//! ```
//!
//! [`Events::report`] holds a lock for one push only, and never waits for a reader: a reader that the ring has overtaken
//! gets [`TooSlow`]. No behaviour of the server depends on events or on their readers.

use std::{collections::VecDeque, fmt, sync::Arc};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tunnel_directory::RuntimeLabel;

use crate::timestamp::Timestamp;

/// Number of events that are kept for readers that are behind or connect again: a few seconds in which thousands of
/// clients dial again, or days of an idle server; about 200 KiB.
pub const RING: usize = 1_024;

/// Most events that are returned to a reader at once, which bounds the size of the text.
const BATCH: usize = 64;

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
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
    /// A tunnel client of a runtime was refused; the reason says why. Reported once while it is refused again and again,
    /// and at most once in 10 s, with the number of refusals in between.
    Refused,
    /// A newer instance has taken a runtime over.
    Superseded,
    /// Instances repeatedly take a runtime from each other, and takeovers are delayed.
    Contested,
    /// A credential is no longer valid.
    Revoked,
    /// A session's credential has expired.
    Expired,
    /// The configuration was reloaded; there is a reason if it is not valid.
    Reloaded,
    /// A certificate was obtained by ACME; there is a reason if an order has failed.
    Certificate,
    /// The server has begun to stop.
    Draining,
    /// No new process could take over; this one continues.
    UpgradeFailed,
    /// Made for a reader that may have missed events: it was away for too long, or its last event is of another process.
    Missed,
}

/// One event.
#[derive(Debug, Clone)]
pub struct Event {
    kind: EventKind,
    label: Option<RuntimeLabel>,
    session: Option<String>,
    reason: Option<&'static str>,
    detail: Option<String>,
}

/// An event as readers get it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// The event's id, unique across runs of the server, for `Last-Event-ID`; absent for `missed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When it occurred.
    pub time: Timestamp,
    /// Its kind.
    pub kind: EventKind,
    /// The runtime, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The session, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The reason, as a stable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Details, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The last events, and a signal for readers of the next.
pub struct Events {
    /// Distinguishes the events of this run from those of others, since each run counts from 1.
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

/// A reader is so far behind that it has missed events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("read too slowly, more than {RING} events behind")]
pub struct TooSlow;

impl EventKind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::Online,
        Self::Offline,
        Self::SessionBegan,
        Self::SessionEnded,
        Self::Refused,
        Self::Superseded,
        Self::Contested,
        Self::Revoked,
        Self::Expired,
        Self::Reloaded,
        Self::Certificate,
        Self::Draining,
        Self::UpgradeFailed,
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
            Self::Refused => "refused",
            Self::Superseded => "superseded",
            Self::Contested => "contested",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::Reloaded => "reloaded",
            Self::Certificate => "certificate",
            Self::Draining => "draining",
            Self::UpgradeFailed => "upgrade-failed",
            Self::Missed => "missed",
        }
    }
}

tunnel_ops::word_value!(EventKind {
    "online" => EventKind::Online,
    "offline" => EventKind::Offline,
    "session-began" => EventKind::SessionBegan,
    "session-ended" => EventKind::SessionEnded,
    "refused" => EventKind::Refused,
    "superseded" => EventKind::Superseded,
    "contested" => EventKind::Contested,
    "revoked" => EventKind::Revoked,
    "expired" => EventKind::Expired,
    "reloaded" => EventKind::Reloaded,
    "certificate" => EventKind::Certificate,
    "draining" => EventKind::Draining,
    "upgrade-failed" => EventKind::UpgradeFailed,
    "missed" => EventKind::Missed,
});

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

    /// Adds the session that it is about.
    #[must_use]
    pub fn session(self, id: impl Into<String>) -> Self {
        Self {
            session: Some(id.into()),
            ..self
        }
    }

    /// Adds the reason, as a stable name.
    #[must_use]
    pub fn reason(self, reason: &'static str) -> Self {
        Self {
            reason: Some(reason),
            ..self
        }
    }

    /// Adds details for people. They must not contain a secret.
    #[must_use]
    pub fn detail(self, detail: impl Into<String>) -> Self {
        Self {
            detail: Some(detail.into()),
            ..self
        }
    }
}

impl Events {
    /// The number of readers.
    pub(crate) fn readers(&self) -> usize {
        self.reported.receiver_count()
    }

    /// Makes an empty ring. `run` distinguishes this run of the server from all others.
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

    /// A reader of the events from now on.
    #[must_use]
    pub fn read(self: &Arc<Self>) -> Reader {
        let next = self.ring.lock().next;
        self.reader(next, false)
    }

    /// A reader of the events after the one with this id, as far as they are still kept.
    #[must_use]
    pub fn read_after(self: &Arc<Self>, id: &str) -> Reader {
        let ring = self.ring.lock();
        let oldest = ring.next - ring.kept.len() as u64;
        let next = self
            .number_of(id)
            .and_then(|last| last.checked_add(1))
            .filter(|next| (oldest..=ring.next).contains(next));
        drop(ring);
        // An id of another run, or one that was never issued: all kept events are new to that reader.
        self.reader(next.unwrap_or(oldest), next.is_none())
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
        if id == beginning_of(std::process::id()) {
            return Some(0);
        }
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
    /// Waits for the next events and returns at least one. Cancel-safe.
    ///
    /// # Errors
    /// When the reader is too slow and has missed events. It must not be used any more then.
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

/// The id that stands for the beginning of a process: after it come all of its events.
#[must_use]
pub fn beginning_of(process: u32) -> String {
    format!("beginning-{process}")
}

/// The event for a reader whose last event is of another process, or not kept any more.
pub(crate) fn missed() -> EventView {
    EventView {
        id: None,
        time: Timestamp::now(),
        kind: EventKind::Missed,
        label: None,
        session: None,
        reason: None,
        detail: Some(format!(
            "events may be missing here: another process answers now, or more than {RING} came meanwhile; read the \
                 runtimes again (tunnel-server runtimes list)"
        )),
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

    fn report_many(events: &Events, count: usize) {
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
    async fn a_reader_gets_the_events_after_it_was_made() {
        let events = Events::new("run");
        report_many(&events, 1);
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
    async fn a_waiting_reader_is_woken() {
        let events = Events::new("run");
        let mut reader = events.read();
        let (read, ()) = tokio::join!(reader.next(), async {
            tokio::task::yield_now().await;
            report_many(&events, 1);
        });
        assert_eq!(read.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_reader_that_connects_again_continues_after_its_last_event() {
        let events = Events::new("run");
        report_many(&events, 3);
        let mut reader = events.read_after("run-1");
        assert_eq!(ids(&mut reader, 2).await, ["run-2", "run-3"]);
        let mut current = events.read_after("run-3");
        assert!(current.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_reader_that_missed_events_gets_a_missed_event() {
        let events = Events::new("run");
        report_many(&events, RING + 10);
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
    async fn a_slow_reader_gets_an_error_and_delays_no_other() {
        let events = Events::new("run");
        let (mut slow, mut quick) = (events.read(), events.read());
        report_many(&events, RING);
        assert_eq!(ids(&mut quick, RING).await.len(), RING);
        report_many(&events, 1);
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
