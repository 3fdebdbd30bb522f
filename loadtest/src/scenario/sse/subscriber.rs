//! One subscriber: takes events until the window is over, and subscribes anew when it is cut off.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hyper::body::Incoming;
use tokio::time::{Instant, sleep, timeout_at};

use super::parse::{Event, Parser};
use crate::{
    client::{
        connection::Connection,
        template::{PAUSE, Template},
    },
    load::Worker,
    measure::{
        Recorder, Window,
        errors::{Failure, FailureKind},
    },
};

/// The kind of events that never came.
pub(super) const MISSED: &str = "missed_event";

/// A source that is silent for so many of its periods is taken for dead, unless the time limit is
/// longer.
const SILENT_PERIODS: f64 = 3.0;

/// What is counted for each subscriber, or beside the load's own figures.
#[derive(Debug)]
pub(crate) struct SubscriberCounts {
    /// Events within the window.
    pub(super) events: Vec<AtomicU64>,
    /// How often a subscription ended before the window did.
    pub(super) disconnects: AtomicU64,
    /// Events that did not say when they were sent.
    pub(super) untimed: AtomicU64,
}

impl SubscriberCounts {
    pub(super) fn new(subscribers: usize) -> Self {
        Self {
            events: (0..subscribers).map(|_| AtomicU64::new(0)).collect(),
            disconnects: AtomicU64::new(0),
            untimed: AtomicU64::new(0),
        }
    }
}

type Source = (Connection, Incoming);

/// Takes events until the window is over. `rate` is that of the source, where it is known.
pub(super) async fn work(
    template: Arc<Template>,
    counts: Arc<SubscriberCounts>,
    rate: Option<f64>,
    mut worker: Worker,
) {
    let limit = worker.timeout;
    // What fails here fails again within the window, and is counted there.
    let mut source = template.open(limit).await.ok();
    let window = worker.ready().await;
    // The last instant that counts: what breaks or is missing after the window was due within it.
    let last = window.end - Duration::from_nanos(1);
    let mut listener = Listener {
        counts: &counts,
        events: counts.events.get(worker.index),
        recorder: &worker.recorder,
        rate,
        window,
        limit,
        received: Received::default(),
    };
    while !window.is_over() {
        let begun = Instant::now();
        let subscribed = match source.take() {
            Some(source) => Ok(source),
            None => template.open(limit).await,
        };
        let (since, failure) = match subscribed {
            Ok(source) => {
                let Err(failure) = listener.listen(source).await else {
                    break;
                };
                if window.contains(Instant::now()) {
                    counts.disconnects.fetch_add(1, Relaxed);
                }
                (Instant::now(), failure)
            }
            Err(failure) => (begun, failure),
        };
        worker.recorder.failed(since.min(last), failure.kind);
        sleep(PAUSE).await;
    }
    if let Some(rate) = rate {
        let begin = at_clock(window.begin);
        let end = begin + nanoseconds(window.end - window.begin);
        let missed = missing(&listener.received, rate, begin, end);
        let kind = FailureKind::Other(MISSED);
        worker.recorder.failed_times(last, kind, missed);
    }
}

/// What a subscriber was sent before the window's end.
#[derive(Debug, Default)]
struct Received {
    last_id: Option<u64>,
    /// When the first and the last event were sent.
    span: Option<(u64, u64)>,
    /// Events within the window.
    events: u64,
}

/// Takes the events of a subscriber, one subscription after another.
struct Listener<'a> {
    counts: &'a SubscriberCounts,
    events: Option<&'a AtomicU64>,
    recorder: &'a Recorder,
    rate: Option<f64>,
    window: Window,
    limit: Duration,
    received: Received,
}

impl Listener<'_> {
    /// Ends well with the first event that was sent after the window.
    async fn listen(&mut self, (mut connection, mut content): Source) -> Result<(), Failure> {
        if self.rate.is_none() {
            // Only the sample upstream is known to number its events across subscriptions.
            self.received.last_id = None;
        }
        let period = self.rate.map_or(0.0, |rate| SILENT_PERIODS / rate);
        let limit = self.limit.max(Duration::from_secs_f64(period));
        // What was sent within the window is awaited for the time limit, no longer.
        let latest = self.window.end + self.limit;
        let mut parser = Parser::default();
        loop {
            let silent = Instant::now() + limit;
            let next = connection.frame(&mut content);
            let data = match timeout_at(silent.min(latest), next).await {
                Ok(data) => data?,
                Err(_) if silent <= latest => return Err(Failure::fatal(FailureKind::Timeout)),
                // It was silent, but not for longer than its rate allows.
                Err(_) => return Ok(()),
            };
            let Some(data) = data else {
                return Err(Failure::fatal(FailureKind::Other("stream_ended")));
            };
            let mut is_over = false;
            let now = Instant::now();
            let clock = since_epoch();
            let parsed = parser.push(&data, |event| is_over |= self.take(&event, now, clock));
            parsed.map_err(|_| Failure::fatal(FailureKind::Protocol))?;
            if is_over {
                return Ok(());
            }
        }
    }

    /// Counts an event that came `now`; whether it was sent after the window.
    fn take(&mut self, event: &Event, now: Instant, clock: u64) -> bool {
        let Some(sent) = event.sent_ns else {
            self.counts.untimed.fetch_add(1, Relaxed);
            self.recorder
                .failed(now, FailureKind::Other("no_send_time"));
            return now >= self.window.end;
        };
        // A clock that is a little behind the source's must not make the future.
        let delay = Duration::from_nanos(clock.saturating_sub(sent));
        let begun = now.checked_sub(delay).unwrap_or(now);
        if begun >= self.window.end {
            return true;
        }
        self.check_order(event, begun);
        let first = self.received.span.map_or(sent, |(first, _)| first);
        self.received.span = Some((first, sent));
        if self.window.contains(begun) {
            self.recorder.completed(begun, 0, event.bytes);
            if let Some(events) = self.events {
                events.fetch_add(1, Relaxed);
            }
            self.received.events += 1;
        }
        false
    }

    fn check_order(&mut self, event: &Event, begun: Instant) {
        let Some(id) = event.id else { return };
        if let Some(last) = self.received.last_id.replace(id) {
            let missed = id.saturating_sub(last.saturating_add(1));
            self.recorder
                .failed_times(begun, FailureKind::Other(MISSED), missed);
            if id <= last {
                self.recorder
                    .failed(begun, FailureKind::Other("repeated_event"));
            }
        }
    }
}

/// Events that a source of this rate owes between the two instants and that never came. Numbered
/// ones tell of gaps between them, so only what lies before the first and after the last is open.
fn missing(received: &Received, rate: f64, begin: u64, end: u64) -> u64 {
    // Where in its period an instant lies is not known, so one less may be due.
    let due = |from: u64, to: u64| {
        let seconds = to.saturating_sub(from.max(begin)) as f64 / 1e9;
        ((seconds * rate) as u64).saturating_sub(1)
    };
    match received.span {
        None => due(begin, end),
        Some((first, last)) if received.last_id.is_some() => due(begin, first) + due(last, end),
        Some(_) => due(begin, end).saturating_sub(received.events),
    }
}

/// What the clock said, or will say, at this instant: nanoseconds since the Unix epoch.
fn at_clock(instant: Instant) -> u64 {
    let (now, clock) = (Instant::now(), since_epoch());
    let before = nanoseconds(now.saturating_duration_since(instant));
    let after = nanoseconds(instant.saturating_duration_since(now));
    clock.saturating_sub(before).saturating_add(after)
}

/// Nanoseconds since the Unix epoch.
fn since_epoch() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    nanoseconds(since)
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_events_are_those_that_the_rate_tells_of() {
        const SECOND: u64 = 1_000_000_000;
        let (begin, end) = (5 * SECOND, 6 * SECOND);
        let received = |last_id, first: f64, last: f64, events| Received {
            last_id,
            span: Some(((first * 1e9) as u64, (last * 1e9) as u64)),
            events,
        };
        let missing = |received: Received| missing(&received, 10.0, begin, end);
        // Nothing at all: all that was due, but for one at an edge.
        assert_eq!(missing(Received::default()), 9);
        assert_eq!(missing(received(Some(7), 5.05, 5.95, 10)), 0);
        // Gaps between numbers are counted where they are seen.
        assert_eq!(missing(received(Some(7), 5.05, 5.95, 4)), 0);
        // The tail is silent, and so is the head.
        assert_eq!(missing(received(Some(7), 4.0, 5.55, 6)), 3);
        assert_eq!(missing(received(Some(7), 5.55, 5.95, 5)), 4);
        assert_eq!(missing(received(Some(7), 4.0, 4.5, 0)), 9);
        // Without numbers only the count can tell.
        assert_eq!(missing(received(None, 5.05, 5.95, 10)), 0);
        assert_eq!(missing(received(None, 5.05, 5.95, 6)), 3);
    }
}
