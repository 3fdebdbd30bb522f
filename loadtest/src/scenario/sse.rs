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
    time::{Duration, SystemTime, UNIX_EPOCH},
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
    load::{Load, LoadArgs, LoadModel, Worker},
    measure::{
        Recorder, Window,
        errors::{Failure, FailureKind},
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
    let rate = target.is_sample().then_some(args.rate);
    let (template, counts) = (
        Arc::new(template),
        Arc::new(SubscriberCounts::new(args.subscribers)),
    );
    let mut load = Load::new(args.load);
    let counted = counts.clone();
    load.group(
        &target.name,
        args.subscribers,
        LoadModel::Closed,
        move |worker| work(template.clone(), counted.clone(), rate, worker),
    );
    report.add(load.run(progress, &target.roles).await?);

    let table = report.runs.first().map(|run| table(run, &counts, rate));
    report.tables.extend(table);
    if counts.untimed.load(Relaxed) > 0 {
        report.warn(
            "events came whose data does not begin with the time of sending (nanoseconds since \
             the Unix epoch): they are counted as no_send_time",
        );
    }
    report.note("a delay is from the time of sending in the event to its arrival here");
    report.add_standard_charts();
    Ok(report)
}

/// What each subscriber got, and what was missed.
fn table(run: &Run, counts: &SubscriberCounts, rate: Option<f64>) -> Table {
    let rates = counts.events.iter();
    let rates = rates.map(|events| events.load(Relaxed) as f64 / run.seconds);
    let spread = Spread::of_all(rates);
    let each = |pick: fn(Spread) -> f64| cell(spread.map(pick), per_second);
    let missed = run.errors.get(MISSED).copied().unwrap_or(0);
    let subscribers = counts.events.len() as f64;
    let due = rate.map(|rate| (rate * run.seconds * subscribers).round());
    let heads = "subscribers,slowest,median,fastest,events,due,missed,disconnects";
    let row = vec![
        count(subscribers),
        each(|spread| spread.low),
        each(|spread| spread.median),
        each(|spread| spread.high),
        count(run.completed as f64),
        cell(due, count),
        count(missed as f64),
        count(counts.disconnects.load(Relaxed) as f64),
    ];
    Table::new("Events of each subscriber", heads, vec![row])
}

/// The longest line; a source of longer ones does not send events.
const LONGEST: usize = 1024 * 1024;

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

/// What was read of an event that is not over yet.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    after_return: bool,
}

/// A line is longer than any event's.
#[derive(Debug, PartialEq, Eq)]
struct TooLong;

impl Parser {
    /// Takes a piece, and hands each event that it completes to `found`.
    fn push(&mut self, piece: &[u8], mut found: impl FnMut(Event)) -> Result<(), TooLong> {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (before, after) = rest.split_at(end);
            // A line feed right after a carriage return belongs to its line end.
            let is_second = self.after_return && before.is_empty() && after.first() == Some(&b'\n');
            self.after_return = after.first() == Some(&b'\r');
            self.event.bytes += before.len() as u64 + 1;
            if !is_second {
                self.extend(before)?;
                self.end_line(&mut found);
            }
            rest = &after[1..];
        }
        self.after_return &= rest.is_empty();
        self.event.bytes += rest.len() as u64;
        self.extend(rest)
    }

    fn extend(&mut self, part: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + part.len() > LONGEST {
            return Err(TooLong);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn end_line(&mut self, found: &mut impl FnMut(Event)) {
        if self.line.is_empty() {
            // An event without data is none, such as a comment that keeps the connection alive.
            let event = std::mem::take(&mut self.event);
            if std::mem::take(&mut self.has_data) {
                found(event);
            }
            return;
        }
        let line = std::mem::take(&mut self.line);
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
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
        // The memory serves the next line.
        self.line = line;
        self.line.clear();
    }
}

/// The digits that a value begins with, when a blank or nothing follows them.
fn number(value: &[u8]) -> Option<u64> {
    let end = value
        .iter()
        .position(|byte| *byte == b' ')
        .unwrap_or(value.len());
    str::from_utf8(&value[..end]).ok()?.parse().ok()
}

/// The kind of events that never came.
const MISSED: &str = "missed_event";

/// A source that is silent for so many of its periods is taken for dead, unless the time limit is
/// longer.
const SILENT_PERIODS: f64 = 3.0;

/// What is counted for each subscriber, or beside the load's own figures.
#[derive(Debug)]
pub(crate) struct SubscriberCounts {
    /// Events within the window.
    events: Vec<AtomicU64>,
    /// How often a subscription ended before the window did.
    disconnects: AtomicU64,
    /// Events that did not say when they were sent.
    untimed: AtomicU64,
}

impl SubscriberCounts {
    fn new(subscribers: usize) -> Self {
        Self {
            events: (0..subscribers).map(|_| AtomicU64::new(0)).collect(),
            disconnects: AtomicU64::new(0),
            untimed: AtomicU64::new(0),
        }
    }
}

type Source = (Connection, Incoming);

/// Takes events until the window is over. `rate` is that of the source, where it is known.
async fn work(
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

    fn parse(pieces: &[&[u8]]) -> Vec<(Option<u64>, Option<u64>)> {
        let mut parser = Parser::default();
        let mut found = Vec::new();
        for piece in pieces {
            parser
                .push(piece, |event| found.push((event.id, event.sent_ns)))
                .unwrap();
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
        let mut bytes = 0;
        parser.push(b"data: 1\n", |_| panic!("no end yet")).unwrap();
        parser.push(b"\n", |event| bytes = event.bytes).unwrap();
        assert_eq!(bytes, "data: 1\n\n".len() as u64);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; LONGEST];
        assert_eq!(parser.push(&piece, |_| {}), Ok(()));
        assert_eq!(parser.push(b"x", |_| {}), Err(TooLong));
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
