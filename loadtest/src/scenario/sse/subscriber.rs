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
    client::{Dialer, body::Outgoing, template::Template},
    load::Worker,
    measure::{
        Recorder, Window,
        errors::{Failure, Kind},
    },
    scenario::connection::{Connection, PAUSE, dial_within, within},
};

/// The kind of events that never came.
pub(super) const MISSED: &str = "missed_event";

/// A source that is silent for so many of its periods is taken for dead, unless the time limit is
/// longer.
const SILENT_PERIODS: f64 = 3.0;

/// What all subscribers have in common.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) dialer: Dialer,
    pub(super) http2: bool,
    pub(super) template: Template,
    /// Events a second, where that is known.
    pub(super) rate: Option<f64>,
}

/// What is counted for each subscriber, or beside the load's own figures.
#[derive(Debug)]
pub(super) struct Counts {
    events: Vec<AtomicU64>,
    disconnects: AtomicU64,
    untimed: AtomicU64,
}

impl Counts {
    pub(super) fn new(subscribers: usize) -> Self {
        Self {
            events: (0..subscribers).map(|_| AtomicU64::new(0)).collect(),
            disconnects: AtomicU64::new(0),
            untimed: AtomicU64::new(0),
        }
    }

    /// How often a subscription ended before the window did.
    pub(super) fn disconnects(&self) -> u64 {
        self.disconnects.load(Relaxed)
    }

    /// Events that did not say when they were sent.
    pub(super) fn untimed(&self) -> u64 {
        self.untimed.load(Relaxed)
    }

    /// Events a second of each subscriber, from the fewest to the most.
    pub(super) fn sorted_rates(&self, seconds: f64) -> Vec<f64> {
        let rate = |events: &AtomicU64| events.load(Relaxed) as f64 / seconds;
        let mut rates: Vec<f64> = self.events.iter().map(rate).collect();
        rates.sort_by(f64::total_cmp);
        rates
    }
}

/// Takes events until the window is over.
pub(super) async fn work(plan: Arc<Plan>, counts: Arc<Counts>, mut worker: Worker) {
    let limit = worker.timeout;
    // What fails here fails again within the window, and is counted there.
    let mut source = subscribe(&plan, limit).await.ok();
    let window = worker.ready().await;
    // The last instant that counts: what breaks or is missing after the window was due within it.
    let last = window.end - Duration::from_nanos(1);
    let mut seen = Seen::default();
    while !window.is_over() {
        let begun = Instant::now();
        let subscribed = match source.take() {
            Some(source) => Ok(source),
            None => subscribe(&plan, limit).await,
        };
        let (since, failure) = match subscribed {
            Ok(source) => {
                let mut listener = Listener {
                    plan: &plan,
                    counts: &counts,
                    events: counts.events.get(worker.index),
                    recorder: &worker.recorder,
                    window,
                    limit,
                    seen: &mut seen,
                };
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
    if let Some(rate) = plan.rate {
        let begin = at_clock(window.begin);
        let end = begin + nanoseconds(window.end - window.begin);
        let missed = missing(&seen, rate, begin, end);
        worker
            .recorder
            .failed_times(last, Kind::Other(MISSED), missed);
    }
}

/// A subscription.
struct Source {
    connection: Connection,
    content: Incoming,
}

async fn subscribe(plan: &Plan, limit: Duration) -> Result<Source, Failure> {
    let mut connection = dial_within(limit, &plan.dialer, plan.http2).await?;
    let request = plan.template.request(Outgoing::Empty);
    let answer = within(limit, connection.send(request)).await?;
    if !answer.status().is_success() {
        return Err(Failure::fatal(Kind::Status(answer.status().as_u16())));
    }
    Ok(Source {
        connection,
        content: answer.into_body(),
    })
}

/// What a subscriber was sent before the window's end.
#[derive(Debug, Default)]
struct Seen {
    last_id: Option<u64>,
    /// When the first and the last event were sent.
    span: Option<(u64, u64)>,
    /// Events within the window.
    events: u64,
}

/// Takes the events of one subscription.
struct Listener<'a> {
    plan: &'a Plan,
    counts: &'a Counts,
    events: Option<&'a AtomicU64>,
    recorder: &'a Recorder,
    window: Window,
    limit: Duration,
    seen: &'a mut Seen,
}

impl Listener<'_> {
    /// Ends well with the first event that was sent after the window.
    async fn listen(&mut self, mut source: Source) -> Result<(), Failure> {
        if self.plan.rate.is_none() {
            // Only the sample upstream is known to number its events across subscriptions.
            self.seen.last_id = None;
        }
        let period = self.plan.rate.map_or(0.0, |rate| SILENT_PERIODS / rate);
        let limit = self.limit.max(Duration::from_secs_f64(period));
        // Longer than the time limit nobody waits for what was sent within the window.
        let latest = self.window.end + self.limit;
        let mut parser = Parser::default();
        loop {
            let silent = Instant::now() + limit;
            let next = source.connection.frame(&mut source.content);
            let data = match timeout_at(silent.min(latest), next).await {
                Ok(data) => data?,
                Err(_) if silent <= latest => return Err(Failure::fatal(Kind::Timeout)),
                // It was silent, but not for longer than its rate allows.
                Err(_) => return Ok(()),
            };
            let Some(data) = data else {
                return Err(Failure::fatal(Kind::Other("stream_ended")));
            };
            let mut is_over = false;
            let now = Instant::now();
            let clock = since_epoch();
            let parsed = parser.push(&data, |event| is_over |= self.take(&event, now, clock));
            parsed.map_err(|_| Failure::fatal(Kind::Protocol))?;
            if is_over {
                return Ok(());
            }
        }
    }

    /// Counts an event that came `now`; whether it was sent after the window.
    fn take(&mut self, event: &Event, now: Instant, clock: u64) -> bool {
        let Some(sent) = event.sent_ns else {
            self.counts.untimed.fetch_add(1, Relaxed);
            self.recorder.failed(now, Kind::Other("no_send_time"));
            return now >= self.window.end;
        };
        // A clock that is a little behind the source's must not make the future.
        let delay = Duration::from_nanos(clock.saturating_sub(sent));
        let begun = now.checked_sub(delay).unwrap_or(now);
        if begun >= self.window.end {
            return true;
        }
        self.check_order(event, begun);
        let first = self.seen.span.map_or(sent, |(first, _)| first);
        self.seen.span = Some((first, sent));
        if self.window.contains(begun) {
            self.recorder.completed(begun, 0, event.bytes);
            if let Some(events) = self.events {
                events.fetch_add(1, Relaxed);
            }
            self.seen.events += 1;
        }
        false
    }

    fn check_order(&mut self, event: &Event, begun: Instant) {
        let Some(id) = event.id else { return };
        if let Some(last) = self.seen.last_id.replace(id) {
            let missed = id.saturating_sub(last.saturating_add(1));
            self.recorder
                .failed_times(begun, Kind::Other(MISSED), missed);
            if id <= last {
                self.recorder.failed(begun, Kind::Other("repeated_event"));
            }
        }
    }
}

/// Events that a source of this rate owes between the two instants and that never came. Numbered
/// ones tell of gaps between them, so only what lies before the first and after the last is open.
fn missing(seen: &Seen, rate: f64, begin: u64, end: u64) -> u64 {
    // Where in its period an instant lies is not known, so one less may be due.
    let due = |from: u64, to: u64| {
        let seconds = to.saturating_sub(from.max(begin)) as f64 / 1e9;
        ((seconds * rate) as u64).saturating_sub(1)
    };
    match seen.span {
        None => due(begin, end),
        Some((first, last)) if seen.last_id.is_some() => due(begin, first) + due(last, end),
        Some(_) => due(begin, end).saturating_sub(seen.events),
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
        let seen = |last_id, first: f64, last: f64, events| Seen {
            last_id,
            span: Some(((first * 1e9) as u64, (last * 1e9) as u64)),
            events,
        };
        let missing = |seen: Seen| missing(&seen, 10.0, begin, end);
        // Nothing at all: all that was due, but for one at an edge.
        assert_eq!(missing(Seen::default()), 9);
        assert_eq!(missing(seen(Some(7), 5.05, 5.95, 10)), 0);
        // Gaps between numbers are counted where they are seen.
        assert_eq!(missing(seen(Some(7), 5.05, 5.95, 4)), 0);
        // The tail is silent, and so is the head.
        assert_eq!(missing(seen(Some(7), 4.0, 5.55, 6)), 3);
        assert_eq!(missing(seen(Some(7), 5.55, 5.95, 5)), 4);
        assert_eq!(missing(seen(Some(7), 4.0, 4.5, 0)), 9);
        // Without numbers only the count can tell.
        assert_eq!(missing(seen(None, 5.05, 5.95, 10)), 0);
        assert_eq!(missing(seen(None, 5.05, 5.95, 6)), 3);
    }
}
