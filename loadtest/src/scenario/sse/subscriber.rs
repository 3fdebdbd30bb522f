//! One subscriber: takes events until the window is over, and subscribes anew when it is cut off.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hyper::body::Incoming;
use tokio::time::{Instant, sleep, timeout};

use super::parse::{Event, Parser};
use crate::{
    client::{Dialer, body::Outgoing},
    load::Worker,
    measure::{
        Recorder, Window,
        errors::{Failure, Kind},
    },
    scenario::connection::{Connection, PAUSE, dial_within, within},
    target::Template,
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
                    seen: Seen::default(),
                };
                let Err(failure) = listener.listen(source).await else {
                    return;
                };
                if window.contains(Instant::now()) {
                    counts.disconnects.fetch_add(1, Relaxed);
                }
                (Instant::now(), failure)
            }
            Err(failure) => (begun, failure),
        };
        worker.recorder.failed(since, failure.kind);
        sleep(PAUSE).await;
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

/// What one subscription has brought within the window.
#[derive(Debug, Default)]
struct Seen {
    last_id: Option<u64>,
    first_ns: u64,
    last_ns: u64,
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
    seen: Seen,
}

impl Listener<'_> {
    /// Ends well with the first event that was sent after the window.
    async fn listen(&mut self, mut source: Source) -> Result<(), Failure> {
        let heard = self.hear(&mut source).await;
        self.count_missing();
        heard
    }

    async fn hear(&mut self, source: &mut Source) -> Result<(), Failure> {
        let period = self.plan.rate.map_or(0.0, |rate| SILENT_PERIODS / rate);
        let limit = self.limit.max(Duration::from_secs_f64(period));
        let mut parser = Parser::default();
        loop {
            let next = source.connection.frame(&mut source.content);
            let data = match timeout(limit, next).await {
                Ok(data) => data?,
                Err(_) => return Err(Failure::fatal(Kind::Timeout)),
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
        if self.window.contains(begun) {
            self.recorder.completed(begun, 0, event.bytes);
            if let Some(events) = self.events {
                events.fetch_add(1, Relaxed);
            }
            if self.seen.events == 0 {
                self.seen.first_ns = sent;
            }
            self.seen.last_ns = sent;
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

    /// Where events have no numbers but a known rate, as many must have come as fit between the
    /// first and the last.
    fn count_missing(&self) {
        let Some(rate) = self.plan.rate.filter(|_| self.seen.last_id.is_none()) else {
            return;
        };
        let missed = missing(&self.seen, rate);
        // The last instant of the window that counts.
        let when = Instant::now().min(self.window.end - Duration::from_nanos(1));
        self.recorder
            .failed_times(when, Kind::Other(MISSED), missed);
    }
}

fn missing(seen: &Seen, rate: f64) -> u64 {
    if seen.events == 0 {
        return 0;
    }
    let seconds = seen.last_ns.saturating_sub(seen.first_ns) as f64 / 1e9;
    let expected = (seconds * rate).round() as u64 + 1;
    expected.saturating_sub(seen.events)
}

/// Nanoseconds since the Unix epoch.
fn since_epoch() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_events_are_those_that_the_rate_tells_of() {
        let seen = |seconds: f64, events| Seen {
            last_id: None,
            first_ns: 1_000,
            last_ns: 1_000 + (seconds * 1e9) as u64,
            events,
        };
        assert_eq!(missing(&seen(1.0, 11), 10.0), 0);
        // The last came a little late.
        assert_eq!(missing(&seen(1.04, 11), 10.0), 0);
        assert_eq!(missing(&seen(1.0, 8), 10.0), 3);
        assert_eq!(missing(&seen(0.0, 1), 10.0), 0);
        assert_eq!(missing(&Seen::default(), 10.0), 0);
    }
}
