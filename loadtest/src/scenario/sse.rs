//! Server-Sent Events to many subscribers: how late each event arrives, and whether all do.
//!
//! An event's data begins with the time of its sending, nanoseconds since the Unix epoch, so source
//! and receiver must share a clock. Events with an `id:` that counts tell of gaps; the sample
//! upstream's rate is known, so that silence at either end of the window is told too.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytesize::ByteSize;
use http::{HeaderValue, Method, header};
use hyper::body::Incoming;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    client::{
        connection::Connection,
        template::{PAUSE, Template},
    },
    load::{Load, LoadArgs, Worker},
    measure::{
        Window,
        errors::{Failure, FailureKind},
        nanoseconds, since_epoch,
    },
    progress::Progress,
    report::{
        Report, Run, Table,
        format::{cell, count, per_second},
    },
    scenario::{open, parse_rate, rounds::Spread},
    stack::Plan,
    target::TargetArgs,
};

/// The longest line; a source of longer ones does not send events.
const LONGEST: usize = 1024 * 1024;

/// The kind of events that never came, and of those that did not say when they were sent.
const MISSED: &str = "missed_event";
const UNTIMED: &str = "no_send_time";

/// A source that is silent for so many of its periods is taken for dead, unless the time limit is
/// longer.
const SILENT_PERIODS: f64 = 3.0;

/// Flags of `loadtest sse`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// The target.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Subscribers, each over a connection of its own
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    pub subscribers: usize,
    /// Events a second that the sample upstream sends to each subscriber
    #[arg(long, short = 'r', value_name = "PER_SECOND", default_value = "10", value_parser = parse_rate)]
    pub rate: f64,
    /// Size of each event that the sample upstream sends
    #[arg(long, value_name = "SIZE", default_value = "64B")]
    pub event_size: ByteSize,
}

/// Measures.
///
/// # Errors
/// The target cannot be opened, or the load cannot be run.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let title = ("sse", "Server-Sent Events from");
    let (target, mut report) = open(progress, title, &args.target, Plan::default()).await?;
    let size = args.event_size.as_u64();
    let sample = format!("/events?rate={}&size={size}", args.rate);
    let mut template = target.sample_template(Method::GET, &sample)?;
    let wanted = HeaderValue::from_static("text/event-stream");
    template.headers.insert(header::ACCEPT, wanted);
    let subscription = Arc::new(Subscription {
        template,
        rate: target.is_sample().then_some(args.rate),
        events: (0..args.subscribers).map(|_| AtomicU64::new(0)).collect(),
        disconnects: AtomicU64::new(0),
    });
    let mut load = Load::new(args.load);
    let (subscribers, shared) = (args.subscribers, subscription.clone());
    load.group(&target.name, subscribers, None, shared, work);
    report.add(load.run(progress, &target.roles).await?);

    let table = report.runs.first().map(|run| subscription.table(run));
    report.tables.extend(table);
    if report
        .runs
        .iter()
        .any(|run| run.errors.contains_key(UNTIMED))
    {
        report.warn(
            "events came whose data does not begin with the time of sending (nanoseconds since \
             the Unix epoch): they are counted as no_send_time",
        );
    }
    report.note("a delay is from the time of sending in the event to its arrival here");
    report.add_standard_charts();
    Ok(report)
}

/// What all subscribers ask for, and what is counted beside the load's own figures.
struct Subscription {
    template: Template,
    /// That of the source, where it is known.
    rate: Option<f64>,
    /// Events of each subscriber within the window.
    events: Vec<AtomicU64>,
    /// How often a subscription ended before the window did.
    disconnects: AtomicU64,
}

impl Subscription {
    /// What each subscriber got, and what was missed.
    fn table(&self, run: &Run) -> Table {
        let rates = self.events.iter();
        let rates = rates.map(|events| events.load(Relaxed) as f64 / run.seconds);
        let spread = Spread::of_all(rates);
        let each = |pick: fn(Spread) -> f64| cell(spread.map(pick), per_second);
        let missed = run.errors.get(MISSED).copied().unwrap_or(0);
        let subscribers = self.events.len() as f64;
        let due = self
            .rate
            .map(|rate| (rate * run.seconds * subscribers).round());
        let heads = "subscribers,slowest,median,fastest,events,due,missed,disconnects";
        let row = vec![
            count(subscribers),
            each(|spread| spread.low),
            each(|spread| spread.median),
            each(|spread| spread.high),
            count(run.completed as f64),
            cell(due, count),
            count(missed as f64),
            count(self.disconnects.load(Relaxed) as f64),
        ];
        Table::new("Events of each subscriber", heads, vec![row])
    }
}

/// One subscriber: takes events until the window is over, and subscribes anew when it is cut off.
async fn work(subscription: Arc<Subscription>, mut worker: Worker) {
    let (template, limit) = (&subscription.template, worker.timeout);
    // What fails here fails again within the window, and is counted there.
    let mut source = template.open(limit).await.ok();
    let window = worker.ready().await;
    // The last instant that counts: what breaks or is missing after the window was due within it.
    let last = window.end - Duration::from_nanos(1);
    let mut listener = Listener {
        subscription: &subscription,
        worker: &worker,
        window,
        received: Received::default(),
    };
    while !window.is_over() {
        let mut since = Instant::now();
        let subscribed = match source.take() {
            Some(source) => Ok(source),
            None => template.open(limit).await,
        };
        let failure = match subscribed {
            Ok(source) => {
                let Err(failure) = listener.listen(source).await else {
                    break;
                };
                since = Instant::now();
                if window.contains(since) {
                    subscription.disconnects.fetch_add(1, Relaxed);
                }
                failure
            }
            Err(failure) => failure,
        };
        worker.recorder.failed(since.min(last), failure.kind);
        sleep(PAUSE).await;
    }
    if let Some(rate) = subscription.rate {
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
    subscription: &'a Subscription,
    worker: &'a Worker,
    window: Window,
    received: Received,
}

impl Listener<'_> {
    /// Ends well with the first event that was sent after the window.
    async fn listen(
        &mut self,
        (mut connection, mut content): (Connection, Incoming),
    ) -> Result<(), Failure> {
        let rate = self.subscription.rate;
        if rate.is_none() {
            // Only the sample upstream is known to number its events across subscriptions.
            self.received.last_id = None;
        }
        let period = rate.map_or(0.0, |rate| SILENT_PERIODS / rate);
        let limit = self.worker.timeout.max(Duration::from_secs_f64(period));
        // What was sent within the window is awaited for the time limit, no longer.
        let latest = self.window.end + self.worker.timeout;
        let mut parser = Parser::default();
        loop {
            let silent = Instant::now() + limit;
            let next = connection.frame(&mut content);
            let data = match timeout_at(silent.min(latest), next).await {
                Ok(data) => data?,
                Err(_) if silent <= latest => return Err(FailureKind::Timeout.into()),
                // It was silent, but not for longer than its rate allows.
                Err(_) => return Ok(()),
            };
            let Some(data) = data else {
                return Err(FailureKind::Other("stream_ended").into());
            };
            let (now, clock) = (Instant::now(), since_epoch());
            let mut is_over = false;
            for event in parser.push(&data)? {
                is_over |= self.take(&event, now, clock);
            }
            if is_over {
                return Ok(());
            }
        }
    }

    /// Counts an event that came `now`; whether it was sent after the window.
    fn take(&mut self, event: &Event, now: Instant, clock: u64) -> bool {
        let Worker {
            index, recorder, ..
        } = self.worker;
        let Some(sent) = event.sent_ns else {
            recorder.failed(now, FailureKind::Other(UNTIMED));
            return now >= self.window.end;
        };
        // A clock that is a little behind the source's must not make the future.
        let delay = Duration::from_nanos(clock.saturating_sub(sent));
        let begun = now.checked_sub(delay).unwrap_or(now);
        if begun >= self.window.end {
            return true;
        }
        if let Some(id) = event.id
            && let Some(last) = self.received.last_id.replace(id)
        {
            let missed = id.saturating_sub(last.saturating_add(1));
            recorder.failed_times(begun, FailureKind::Other(MISSED), missed);
            let repeated = u64::from(id <= last);
            recorder.failed_times(begun, FailureKind::Other("repeated_event"), repeated);
        }
        let first = self.received.span.map_or(sent, |(first, _)| first);
        self.received.span = Some((first, sent));
        if self.window.contains(begun) {
            recorder.completed(begun, 0, event.bytes);
            if let Some(events) = self.subscription.events.get(*index) {
                events.fetch_add(1, Relaxed);
            }
            self.received.events += 1;
        }
        false
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

/// An event, as far as this program cares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Event {
    /// Its `id:` when that is a number.
    id: Option<u64>,
    /// The number at the beginning of its first `data:` line.
    sent_ns: Option<u64>,
    /// Bytes of its lines.
    bytes: u64,
}

/// Events out of bytes as they come, in pieces of any size: what was read of one that is not over yet.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    after_return: bool,
}

impl Parser {
    /// Takes a piece, and returns the events that it completes. A line that is too long is an error.
    fn push(&mut self, piece: &[u8]) -> Result<Vec<Event>, Failure> {
        let mut events = Vec::new();
        for &byte in piece {
            self.event.bytes += 1;
            // A line feed right after a carriage return belongs to its line end.
            let is_second = self.after_return && byte == b'\n';
            self.after_return = byte == b'\r';
            match byte {
                b'\n' if is_second => {}
                // An event without data is none, such as a comment that keeps the connection alive.
                b'\n' | b'\r' if self.line.is_empty() => {
                    let event = std::mem::take(&mut self.event);
                    events.extend(std::mem::take(&mut self.has_data).then_some(event));
                }
                b'\n' | b'\r' => self.end_line(),
                _ if self.line.len() == LONGEST => {
                    return Err(FailureKind::Protocol.into());
                }
                _ => self.line.push(byte),
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) {
        let colon = self.line.iter().position(|byte| *byte == b':');
        let (name, value) = self.line.split_at(colon.unwrap_or(self.line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" if !self.has_data => {
                self.has_data = true;
                self.event.sent_ns = number(value);
            }
            b"id" => self.event.id = number(value),
            _ => {}
        }
        self.line.clear();
    }
}

/// The digits that a value begins with, when a blank or nothing follows them.
fn number(value: &[u8]) -> Option<u64> {
    let digits = value.split(|byte| *byte == b' ').next()?;
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pieces: &[&[u8]]) -> Vec<(Option<u64>, Option<u64>)> {
        let mut parser = Parser::default();
        let mut found = Vec::new();
        for piece in pieces {
            let events = parser.push(piece).unwrap().into_iter();
            found.extend(events.map(|event| (event.id, event.sent_ns)));
        }
        found
    }

    const STREAM: &[u8] =
        b": hello\n\nid: 7\ndata: 123 xxx\n\nretry: 5\n\ndata:456\r\nid:8\r\n\r\n\
    event: other\rdata: no number\rdata: 9\r\rdata: 10\n";

    #[test]
    fn events_end_with_an_empty_line() {
        let expected = [(Some(7), Some(123)), (Some(8), Some(456)), (None, None)];
        // The last has no end yet.
        assert_eq!(parse(&[STREAM]), expected);
    }

    #[test]
    fn pieces_may_be_cut_anywhere() {
        let whole = parse(&[STREAM]);
        for cut in 0..STREAM.len() {
            let (first, second) = STREAM.split_at(cut);
            assert_eq!(parse(&[first, second]), whole, "cut at {cut}");
        }
        let bytes: Vec<_> = STREAM.chunks(1).collect();
        assert_eq!(parse(&bytes), whole);
    }

    #[test]
    fn bytes_of_an_event_are_all_of_its_lines() {
        let mut parser = Parser::default();
        assert_eq!(parser.push(b"data: 1\n"), Ok(Vec::new()));
        let events = parser.push(b"\n").unwrap();
        assert_eq!(events[0].bytes, "data: 1\n\n".len() as u64);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; LONGEST];
        assert_eq!(parser.push(&piece), Ok(Vec::new()));
        let failure = Failure::fatal(FailureKind::Protocol);
        assert_eq!(parser.push(b"x"), Err(failure));
    }

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
