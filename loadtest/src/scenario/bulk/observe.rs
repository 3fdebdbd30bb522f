//! Counts bytes while they move: the streams' workers add, the control thread reads.
//!
//! The control thread needs the totals at its own instants (for throughput over time, and for a
//! fair share of the same stretch of time), so the counters are atomics, touched once for each
//! large piece.

use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, interval, sleep_until},
};

use super::Direction;
use crate::{
    load::Outcome,
    measure::{Window, latency::Latencies},
    progress::Progress,
    report::{
        Latency,
        format::{bytes, bytes_per_second},
    },
};

/// Between two looks at the counters.
const TICK: Duration = Duration::from_millis(50);

/// Every so many looks the live line is written.
const SLOW: usize = 10;

/// One stream's counters.
#[derive(Debug, Default)]
pub(super) struct Stream {
    moved: AtomicU64,
    ended_ns: AtomicU64,
    is_good: AtomicBool,
}

impl Stream {
    /// Bytes moved.
    pub(super) fn add(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Relaxed);
    }

    /// The only transfer ended, so long after the start.
    pub(super) fn end(&self, after: Duration, is_good: bool) {
        let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        self.is_good.store(is_good, Relaxed);
        self.ended_ns.store(after.max(1), Relaxed);
    }

    fn moved(&self) -> u64 {
        self.moved.load(Relaxed)
    }

    /// Seconds from the start to the end of the only transfer, if it went well.
    pub(super) fn good_end(&self) -> Option<f64> {
        let ended = self.ended_ns.load(Relaxed);
        (ended > 0 && self.is_good.load(Relaxed)).then(|| seconds(ended))
    }
}

/// The streams of one direction.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) direction: Direction,
    pub(super) streams: Vec<Stream>,
    first_bytes: Mutex<Latencies>,
}

impl Flow {
    pub(super) fn new(direction: Direction, streams: usize) -> Self {
        Self {
            direction,
            streams: (0..streams).map(|_| Stream::default()).collect(),
            first_bytes: Mutex::new(Latencies::new()),
        }
    }

    /// The first byte of a transfer came so late after its request.
    pub(super) fn first_byte(&self, delay: Duration) {
        self.first_bytes.lock().record(delay);
    }

    pub(super) fn first_bytes(&self) -> Option<Latency> {
        self.first_bytes.lock().summary()
    }

    fn moved(&self) -> u64 {
        self.streams.iter().map(Stream::moved).sum()
    }
}

/// What workers and the control thread share.
#[derive(Debug)]
pub(super) struct Shared {
    started: watch::Sender<Option<Window>>,
    pub(super) flows: Vec<Flow>,
}

impl Shared {
    pub(super) fn new(flows: Vec<Flow>) -> Self {
        Self {
            started: watch::Sender::new(None),
            flows,
        }
    }

    /// Tells the control thread of the window; the first worker to do so is heard.
    pub(super) fn begin(&self, window: Window) {
        self.started.send_if_modified(|started| {
            let is_first = started.is_none();
            *started = started.or(Some(window));
            is_first
        });
    }

    /// A stream and its flow, by their numbers.
    pub(super) fn stream(&self, flow: usize, stream: usize) -> Option<(&Flow, &Stream)> {
        let flow = self.flows.get(flow)?;
        Some((flow, flow.streams.get(stream)?))
    }

    fn sample(&self, start: Instant) -> Sample {
        Sample {
            at: start.elapsed().as_secs_f64(),
            moved: self.flows.iter().map(Flow::moved).collect(),
        }
    }

    fn moved_by_stream(&self) -> Vec<Vec<u64>> {
        let flow = |flow: &Flow| flow.streams.iter().map(Stream::moved).collect();
        self.flows.iter().map(flow).collect()
    }
}

/// The totals of all flows at one instant.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// Seconds since the streams began.
    pub(super) at: f64,
    /// Bytes by flow.
    pub(super) moved: Vec<u64>,
}

/// What was seen.
#[derive(Debug)]
pub(super) struct Observed {
    /// From the streams' start to the measured stretch, seconds.
    pub(super) begin: f64,
    /// Length of the measured stretch.
    pub(super) seconds: f64,
    /// Bytes of each stream in the measured stretch, by flow.
    pub(super) moved: Vec<Vec<u64>>,
    /// From the streams' start on.
    pub(super) samples: Vec<Sample>,
}

/// Watches a load until it ends. The measured stretch is the load's window; or, when it
/// `ends_itself`, from its start to the end of its last stream.
pub(super) async fn watch(
    shared: &Shared,
    load: impl Future<Output = anyhow::Result<Outcome>>,
    ends_itself: bool,
    progress: &Progress,
) -> anyhow::Result<(Outcome, Observed)> {
    let mut load = pin!(load);
    let mut started = shared.started.subscribe();
    progress.message("connecting");
    let window = tokio::select! {
        window = started.wait_for(Option::is_some) => window.ok().and_then(|window| *window),
        outcome = &mut load => return Ok((outcome?, nothing(shared))),
    };
    let window = window.unwrap_or_else(|| Window::from_now(Duration::ZERO, Duration::ZERO));
    let snapshot = || Snapshot {
        at: window.start.elapsed().as_secs_f64(),
        moved: shared.moved_by_stream(),
    };
    let mut first: Option<Snapshot> = None;
    let mut last: Option<Snapshot> = None;
    let mut samples = Vec::new();
    let mut begin = pin!(sleep_until(window.begin));
    let mut end = pin!(sleep_until(window.end));
    let mut tick = interval(TICK);
    let outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut load => break outcome?,
            () = &mut begin, if first.is_none() => first = Some(snapshot()),
            () = &mut end, if !ends_itself && last.is_none() => {
                samples.push(shared.sample(window.start));
                last = Some(snapshot());
            }
            _ = tick.tick(), if last.is_none() => {
                samples.push(shared.sample(window.start));
                show(&samples, progress);
            }
        }
    };
    if last.is_none() {
        samples.push(shared.sample(window.start));
    }
    // Without a warm-up the stretch begins with the streams, not with the first look at them.
    let first = first.filter(|first| first.at > 2.0 * TICK.as_secs_f64());
    let mut observed = observed(first, last.unwrap_or_else(snapshot), samples);
    if ends_itself {
        // Ending the threads is no part of it.
        let streams = shared.flows.iter().flat_map(|flow| &flow.streams);
        let last = streams.map(|stream| stream.ended_ns.load(Relaxed)).max();
        observed.seconds = last
            .filter(|last| *last > 0)
            .map_or(observed.seconds, seconds);
    }
    Ok((outcome, observed))
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// When no stream ever began.
fn nothing(shared: &Shared) -> Observed {
    Observed {
        begin: 0.0,
        seconds: 0.0,
        moved: shared.moved_by_stream(),
        samples: Vec::new(),
    }
}

/// The bytes of each stream, by flow, so many seconds after the streams began.
struct Snapshot {
    at: f64,
    moved: Vec<Vec<u64>>,
}

/// What lies between two snapshots; the first is that of the beginning if there is none.
fn observed(first: Option<Snapshot>, last: Snapshot, samples: Vec<Sample>) -> Observed {
    let begin = first.as_ref().map_or(0.0, |first| first.at);
    let mut moved = last.moved;
    let before = first.into_iter().flat_map(|first| first.moved);
    for (after, before) in moved.iter_mut().zip(before) {
        for (after, before) in after.iter_mut().zip(before) {
            *after -= before;
        }
    }
    Observed {
        begin,
        seconds: last.at - begin,
        moved,
        samples,
    }
}

/// Shows the throughput of the last samples now and then.
fn show(samples: &[Sample], progress: &Progress) {
    if !samples.len().is_multiple_of(SLOW) {
        return;
    }
    let mut recent = samples.iter().rev().step_by(SLOW - 1);
    if let (Some(last), Some(earlier)) = (recent.next(), recent.next()) {
        let total = |sample: &Sample| sample.moved.iter().sum::<u64>() as f64;
        let rate = (total(last) - total(earlier)) / (last.at - earlier.at);
        let moved = bytes(total(last));
        progress.message(format_args!("{}  {moved} moved", bytes_per_second(rate)));
    }
}

/// Throughput of one flow over time: points at least `step` seconds apart.
pub(super) fn throughput(samples: &[Sample], flow: usize, step: f64) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut last = (0.0, 0);
    for sample in samples {
        let moved = sample.moved.get(flow).copied().unwrap_or(0);
        let seconds = sample.at - last.0;
        // Looks are not exactly evenly spaced.
        if seconds >= step * 0.9 && seconds > 0.0 {
            points.push((sample.at, (moved - last.1) as f64 / seconds));
            last = (sample.at, moved);
        }
    }
    points
}

/// Mean throughput of one flow between two instants; none when there are no two looks in between.
pub(super) fn mean(samples: &[Sample], flow: usize, from: f64, to: f64) -> Option<f64> {
    let inside = || {
        samples
            .iter()
            .filter(|sample| sample.at >= from && sample.at <= to)
    };
    let (first, last) = (inside().next()?, inside().next_back()?);
    let moved = last.moved.get(flow)? - first.moved.get(flow)?;
    (last.at > first.at).then(|| moved as f64 / (last.at - first.at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Sample> {
        // Ten bytes a second for a second, then a hundred.
        let moved = |tick: u64| {
            if tick <= 10 {
                tick
            } else {
                10 + (tick - 10) * 10
            }
        };
        let sample = |tick| Sample {
            at: tick as f64 / 10.0,
            moved: vec![moved(tick)],
        };
        (0..=30).map(sample).collect()
    }

    #[test]
    fn throughput_is_that_of_each_step() {
        let points = throughput(&samples(), 0, 0.5);
        assert_eq!(points.len(), 6);
        for (number, (at, rate)) in points.iter().enumerate() {
            let expected = if number < 2 { 10.0 } else { 100.0 };
            assert!((rate - expected).abs() < 1e-6, "{rate} at {at}");
        }
    }

    #[test]
    fn the_mean_is_of_the_looks_in_between() {
        let mean = |from, to| mean(&samples(), 0, from, to);
        assert!((mean(0.0, 1.0).unwrap() - 10.0).abs() < 1e-6);
        assert!((mean(1.0, 9.0).unwrap() - 100.0).abs() < 1e-6);
        assert_eq!(mean(2.99, 9.0), None);
    }
}
