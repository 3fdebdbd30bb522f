//! Which event is sent to the platform next. Without clock, tasks and sockets.
//!
//! ```text
//!   push ──▶ the waiting events of a runtime ──its turn──▶ next ──▶ (an attempt) ──▶ on_taken
//!                          ▲                                              │
//!                          └── to be sent again later ◀── on_failure ─────┘
//!                                                             └──▶ given up
//! ```
//!
//! In: events, the results of attempts, and the time. Out: the events to send, in turns of the runtimes; the events of one
//! runtime are sent in their order, one at a time. So an event that the platform does not take delays those of its own
//! runtime alone, until it is given up, and a runtime with many events delays another one by one event.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::events::{EventKind, EventView, missed};

/// Most waiting events of one runtime: the changes of a bad minute.
const OF_ONE: usize = 32;

/// Most waiting events: the last states of as many runtimes while the platform takes nothing, in about 6 MB.
const ALL: usize = 20_000;

/// Attempts after which an event is given up if the platform has taken others since the first.
const ATTEMPTS: u32 = 10;

/// Time after which an event is given up, whatever became of others.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// Time to the second attempt; doubled after each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest time between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Time between attempts, whatever their events, while several have failed in a row.
const FAILING_PAUSE: Duration = Duration::from_secs(1);

/// Least time between two events `missed`.
const MISSED_EACH: Duration = Duration::from_secs(60);

/// The runtime that an event is about, by its label; `None` for the server.
type Source = Option<String>;

/// The events that wait to be sent.
#[derive(Default)]
pub(super) struct EventQueue {
    /// Of each source in `ready` or `later`, or with an event that is being sent.
    waiting: HashMap<Source, VecDeque<QueuedEvent>>,
    /// The sources with an event to send, the next first.
    ready: VecDeque<Source>,
    /// The sources whose event is to be sent again, by the time.
    later: BTreeSet<(Instant, Source)>,
    /// The number of waiting events.
    count: usize,
    /// The number of events that the platform has taken.
    taken: u64,
    /// Attempts that have failed in a row.
    failures: u32,
    paused_until: Option<Instant>,
    /// When an event `missed` is due.
    missed_at: Option<Instant>,
    last_missed: Option<Instant>,
}

/// An event, and what became of it up to now.
pub(super) struct QueuedEvent {
    pub(super) view: EventView,
    /// Attempts that have failed.
    pub(super) attempts: u32,
    /// The time of the first attempt, and how many events the platform had taken then.
    first: Option<(Instant, u64)>,
}

/// What becomes of an event whose attempt has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterFailure {
    /// It is sent again.
    Again,
    /// It is not, and counts as missed.
    GivenUp,
}

impl EventQueue {
    /// Adds an event. Of the waiting events `online` and `offline` of a runtime only the last one stays. Returns the number
    /// of events that are left out because there are too many.
    pub(super) fn push(&mut self, view: EventView, now: Instant) -> usize {
        if view.kind == EventKind::Missed {
            self.on_missed(now);
            return 0;
        }
        let source = view.label.clone();
        let waiting = self.waiting.get_mut(&source);
        if let Some(waiting) = waiting.filter(|_| is_state(view.kind)) {
            let before = waiting.len();
            waiting.retain(|event| !is_state(event.view.kind));
            self.count -= before - waiting.len();
        }
        let left_out = self.make_room(&source, now);
        if left_out.is_none_or(|is_older| is_older) {
            self.add(source, QueuedEvent::new(view));
        }
        usize::from(left_out.is_some())
    }

    /// Removes the oldest event of a source that has too many. Returns whether one is left out: `true` for an older one,
    /// `false` for the new one.
    fn make_room(&mut self, source: &Source, now: Instant) -> Option<bool> {
        let waiting = self.waiting.get_mut(source);
        let own = waiting.as_ref().map_or(0, |waiting| waiting.len());
        if own < OF_ONE && self.count < ALL {
            return None;
        }
        let is_older = waiting.and_then(VecDeque::pop_front).is_some();
        self.count -= usize::from(is_older);
        self.on_missed(now);
        Some(is_older)
    }

    fn add(&mut self, source: Source, event: QueuedEvent) {
        self.count += 1;
        match self.waiting.get_mut(&source) {
            Some(waiting) => waiting.push_back(event),
            None => {
                self.waiting.insert(source.clone(), [event].into());
                match source {
                    // What concerns the whole server is rare, and comes first.
                    None => self.ready.push_front(source),
                    Some(_) => self.ready.push_back(source),
                }
            }
        }
    }

    /// The event to send now, if there is one. Each one is followed by [`Self::on_taken`] or [`Self::on_failure`].
    pub(super) fn next(&mut self, now: Instant) -> Option<QueuedEvent> {
        if self.missed_at.is_some_and(|at| at <= now) {
            self.missed_at = None;
            self.last_missed = Some(now);
            self.add(None, QueuedEvent::new(missed()));
        }
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            let due = self.later.pop_first();
            self.ready.extend(due.map(|(_, source)| source));
        }
        if self.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        let source = self.ready.pop_front()?;
        let mut event = self.waiting.get_mut(&source)?.pop_front()?;
        self.count -= 1;
        event.first.get_or_insert((now, self.taken));
        Some(event)
    }

    /// When [`Self::next`] may return an event that it does not return now; `None` if not before another call.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let again = self.later.first().map(|(at, _)| *at);
        let due = [again, self.missed_at].into_iter().flatten().min();
        match self.paused_until {
            Some(until) if !self.ready.is_empty() => Some(until),
            Some(until) => due.map(|due| due.max(until)),
            None => due,
        }
    }

    /// Whether an event may be sent without a wait for a later time.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The platform has taken an event, or rejected it for good.
    pub(super) fn on_taken(&mut self, event: QueuedEvent) {
        self.taken += 1;
        self.failures = 0;
        self.paused_until = None;
        self.go_on(event.view.label);
    }

    /// The platform has not taken an event.
    pub(super) fn on_failure(&mut self, mut event: QueuedEvent, now: Instant) -> AfterFailure {
        self.failures += 1;
        if self.failures > 1 {
            self.paused_until = Some(now + FAILING_PAUSE);
        }
        event.attempts += 1;
        let source = event.view.label.clone();
        if self.is_hopeless(&event, now) {
            self.on_missed(now);
            self.go_on(source);
            return AfterFailure::GivenUp;
        }
        let doubled = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(event.attempts - 1));
        self.later
            .insert((now + doubled.min(LONGEST_PAUSE), source.clone()));
        // A newer state has come meanwhile.
        let waiting = self.waiting.entry(source).or_default();
        let is_outdated =
            is_state(event.view.kind) && (waiting.iter()).any(|newer| is_state(newer.view.kind));
        if !is_outdated {
            waiting.push_front(event);
            self.count += 1;
        }
        AfterFailure::Again
    }

    fn is_hopeless(&self, event: &QueuedEvent, now: Instant) -> bool {
        let (first, taken) = event.first.unwrap_or((now, self.taken));
        (event.attempts >= ATTEMPTS && self.taken > taken) || now - first >= LONGEST
    }

    /// The source's next event has its turn after those of the others.
    fn go_on(&mut self, source: Source) {
        match self.waiting.get(&source).is_none_or(VecDeque::is_empty) {
            true => {
                self.waiting.remove(&source);
            }
            false => self.ready.push_back(source),
        }
    }

    /// Events are missing, of which the platform is told.
    fn on_missed(&mut self, now: Instant) {
        let earliest = self.last_missed.map(|last| last + MISSED_EACH);
        let at = earliest.map_or(now, |earliest| earliest.max(now));
        self.missed_at.get_or_insert(at);
    }
}

impl QueuedEvent {
    fn new(view: EventView) -> Self {
        Self {
            view,
            attempts: 0,
            first: None,
        }
    }
}

/// Whether an event of this kind says what is so from now on, whatever was before.
fn is_state(kind: EventKind) -> bool {
    matches!(kind, EventKind::Online | EventKind::Offline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timestamp::Timestamp;

    fn event(label: &str, kind: EventKind, id: u32) -> EventView {
        EventView {
            id: Some(id.to_string()),
            time: Timestamp::now(),
            kind,
            label: (!label.is_empty()).then(|| label.to_owned()),
            session: None,
            reason: None,
            detail: None,
        }
    }

    /// The ids of all events that may be sent now, each of which is taken.
    fn take_all(queue: &mut EventQueue, now: Instant) -> Vec<String> {
        let next = std::iter::from_fn(|| {
            let event = queue.next(now)?;
            let id = event.view.id.clone().unwrap_or_else(|| "missed".into());
            queue.on_taken(event);
            Some(id)
        });
        next.collect()
    }

    #[test]
    fn runtimes_take_turns_and_each_keeps_its_order() {
        let (mut queue, now) = (EventQueue::default(), Instant::now());
        for id in 1..=3 {
            queue.push(event("a", EventKind::Refused, id), now);
        }
        queue.push(event("b", EventKind::Refused, 4), now);
        queue.push(event("b", EventKind::Revoked, 5), now);
        queue.push(event("", EventKind::Reloaded, 6), now);
        assert_eq!(take_all(&mut queue, now), ["6", "1", "4", "2", "5", "3"]);
        assert!(queue.waiting.is_empty() && !queue.is_ready());
        assert_eq!((queue.next_at(), queue.count), (None, 0));
    }

    #[test]
    fn only_the_last_state_of_a_runtime_waits() {
        let (mut queue, now) = (EventQueue::default(), Instant::now());
        queue.push(event("a", EventKind::Online, 1), now);
        let first = queue.next(now).unwrap();
        for id in 2..1_000 {
            let kind = [EventKind::Offline, EventKind::Online][id as usize % 2];
            queue.push(event("a", kind, id), now);
        }
        queue.push(event("a", EventKind::Refused, 1_000), now);
        assert_eq!(queue.on_failure(first, now), AfterFailure::Again);
        assert!(queue.next(now).is_none(), "one at a time");
        let later = queue.next_at().unwrap();
        assert_eq!(take_all(&mut queue, later), ["999", "1000"]);
    }

    #[test]
    fn a_flood_of_one_runtime_loses_its_own_events_only() {
        let (mut queue, now) = (EventQueue::default(), Instant::now());
        queue.push(event("b", EventKind::Offline, 1), now);
        let flood = 100_000;
        let left_out = (0..flood).map(|id| queue.push(event("a", EventKind::Refused, id + 2), now));
        assert_eq!(left_out.sum::<usize>(), flood as usize - OF_ONE);
        let all = take_all(&mut queue, now);
        assert_eq!((&*all[0], &*all[1]), ("missed", "1"));
        assert_eq!(all.len(), 2 + OF_ONE);
        // Nobody reads the same news each second.
        queue.push(missed(), now);
        assert!(queue.next(now).is_none());
        assert_eq!(queue.next_at(), Some(now + MISSED_EACH));
        assert_eq!(take_all(&mut queue, now + MISSED_EACH), ["missed"]);
    }

    #[test]
    fn waiting_events_are_bounded() {
        let (mut queue, now) = (EventQueue::default(), Instant::now());
        for number in 0..ALL as u32 {
            queue.push(event(&number.to_string(), EventKind::Online, number), now);
        }
        assert_eq!(queue.push(event("new", EventKind::Online, 1), now), 1);
        assert_eq!(queue.push(event("7", EventKind::Refused, 1), now), 1);
        assert_eq!(queue.push(event("8", EventKind::Offline, 1), now), 0);
        assert_eq!((queue.count, queue.waiting.len()), (ALL, ALL));
    }

    #[test]
    fn an_event_that_is_never_taken_is_given_up_while_others_are_taken() {
        let (mut queue, mut now) = (EventQueue::default(), Instant::now());
        queue.push(event("a", EventKind::Refused, 1), now);
        queue.push(event("a", EventKind::Refused, 2), now);
        for attempt in 1..=ATTEMPTS {
            let bad = queue.next(now).unwrap();
            assert_eq!(bad.view.label.as_deref(), Some("a"));
            queue.push(event("b", EventKind::Offline, 10 + attempt), now);
            let other = queue.next(now).unwrap();
            queue.on_taken(other);
            let after = queue.on_failure(bad, now);
            assert_eq!(after == AfterFailure::GivenUp, attempt == ATTEMPTS);
            now = queue.next_at().unwrap_or(now);
        }
        assert_eq!(take_all(&mut queue, now), ["missed", "2"]);
    }

    #[test]
    fn a_platform_that_takes_nothing_loses_nothing_for_an_hour_and_is_tried_once_a_second() {
        let (mut queue, began) = (EventQueue::default(), Instant::now());
        for (id, label) in [(1, "a"), (2, "b"), (3, "c")] {
            queue.push(event(label, EventKind::Online, id), began);
        }
        let (mut now, mut attempts) = (began, 0);
        while now - began < LONGEST {
            let next = queue.next(now).unwrap();
            attempts += 1;
            assert_eq!(queue.on_failure(next, now), AfterFailure::Again);
            let at = queue.next_at().unwrap();
            assert!(attempts < 2 || at - now >= FAILING_PAUSE, "{attempts}");
            now = at;
        }
        let next = queue.next(now).unwrap();
        assert_eq!(queue.on_failure(next, now), AfterFailure::GivenUp);
    }
}
