//! The records of a load: latencies, errors by kind, bytes, and the processor time and memory of programs.
//!
//! Workers on a load thread share one [`Recorder`] for each group: no atomics, no locks, one
//! histogram. At the end of each interval the thread hands over a [`Slice`]; the control thread
//! merges slices into a [`Collector`]. Requests count if they began within the [`Window`],
//! also if they end after it; the warm-up does not count.

pub mod errors;
pub mod usage;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use crate::{
    measure::errors::{FailureCounts, FailureKind},
    report::{Interval, Note, Run, latency::Latencies},
};

/// Nanoseconds since the Unix epoch, as senders and receivers of events on one machine tell them.
pub fn since_epoch() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    nanoseconds(since.unwrap_or_default())
}

/// A span in nanoseconds.
pub fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The measured time; the warm-up is before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// When the warm-up began and workers may start.
    pub start: Instant,
    /// When measuring begins.
    pub begin: Instant,
    /// When measuring ends; nothing new starts from here on.
    pub end: Instant,
}

impl Window {
    /// The window that starts now.
    pub fn from_now(warm_up: Duration, duration: Duration) -> Self {
        let start = Instant::now();
        let begin = start + warm_up;
        Self {
            start,
            begin,
            end: begin + duration,
        }
    }

    /// Whether something that began at `instant` counts.
    pub fn contains(&self, instant: Instant) -> bool {
        self.begin <= instant && instant < self.end
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }
}

/// What happened in one interval, on one thread, in one group.
#[derive(Debug, Default)]
pub struct Slice {
    /// Requests that ended well.
    pub completed: u64,
    /// Body bytes sent.
    pub bytes_up: u64,
    /// Body bytes received.
    pub bytes_down: u64,
    /// How long they took.
    pub latencies: Latencies,
    /// What failed.
    pub errors: FailureCounts,
    /// Requests that this program sent late although a connection was free (open loop).
    pub late: u64,
}

impl Slice {
    /// Adds the records of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.completed += other.completed;
        self.bytes_up += other.bytes_up;
        self.bytes_down += other.bytes_down;
        self.latencies.merge(&other.latencies);
        self.errors.merge(&other.errors);
        self.late += other.late;
    }
}

/// Where the workers of one group on one thread write to. Cheap to clone.
#[derive(Clone, Default)]
pub struct Recorder {
    window: Rc<Cell<Option<Window>>>,
    slice: Rc<RefCell<Slice>>,
}

impl Recorder {
    /// Sets the window: only requests that begin in it count.
    pub fn open(&self, window: Window) {
        self.window.set(Some(window));
    }

    /// Records the success of a request (message, call), with its latency from `begun` to now.
    pub fn completed(&self, begun: Instant, bytes_up: u64, bytes_down: u64) {
        if self.counts(begun) {
            let latency = begun.elapsed();
            let mut slice = self.slice.borrow_mut();
            slice.completed += 1;
            slice.bytes_up += bytes_up;
            slice.bytes_down += bytes_down;
            slice.latencies.record(latency);
        }
    }

    /// Records body bytes of a request that has not ended yet.
    pub fn bytes(&self, up: u64, down: u64) {
        if self.counts(Instant::now()) {
            let mut slice = self.slice.borrow_mut();
            slice.bytes_up += up;
            slice.bytes_down += down;
        }
    }

    /// Records the failure of a request that began (or was due) at `begun`.
    pub fn failed(&self, begun: Instant, kind: FailureKind) {
        self.failed_times(begun, kind, 1);
    }

    /// Records `times` failures of one kind, of requests that were due at `begun`.
    pub fn failed_times(&self, begun: Instant, kind: FailureKind, times: u64) {
        if self.counts(begun) {
            self.slice.borrow_mut().errors.add(kind, times);
        }
    }

    /// Records that a request was sent later than `due` although a connection was free.
    pub fn late(&self, due: Instant) {
        if self.counts(due) {
            self.slice.borrow_mut().late += 1;
        }
    }

    /// Returns the records since the last call.
    pub fn take(&self) -> Slice {
        self.slice.take()
    }

    fn counts(&self, begun: Instant) -> bool {
        self.window
            .get()
            .is_some_and(|window| window.contains(begun))
    }
}

/// Merges the slices of all threads of one group.
#[derive(Debug)]
pub struct Collector {
    name: String,
    total: Slice,
    timeline: Timeline,
}

impl Collector {
    /// An empty one, for intervals of this length.
    pub fn new(name: String, interval: Duration, threads: usize) -> Self {
        Self {
            name,
            total: Slice::default(),
            timeline: Timeline::new(interval, threads),
        }
    }

    /// Adds the records of one thread in the interval with this number.
    pub fn add(&mut self, interval: usize, slice: &Slice) {
        self.total.merge(slice);
        self.timeline.add(interval, slice);
    }

    /// The records of all threads up to now.
    pub fn total(&self) -> &Slice {
        &self.total
    }

    /// The last interval that all threads have reported.
    pub fn last(&self) -> Option<&Interval> {
        self.timeline.last()
    }

    /// The result of this group over a window of `seconds`, with notes for the reader. The usage of programs is not in it
    /// yet.
    pub fn finish(self, seconds: f64) -> (Run, Vec<Note>) {
        let notes = self.notes();
        let total = self.total;
        let run = Run {
            name: self.name,
            seconds,
            completed: total.completed,
            rate: total.completed as f64 / seconds,
            bytes_up: total.bytes_up,
            bytes_down: total.bytes_down,
            latency: total.latencies.summary(),
            errors: total.errors.by_name(),
            timeline: self.timeline.finish(seconds),
            histogram: Some(total.latencies),
            ..Run::default()
        };
        (run, notes)
    }

    fn notes(&self) -> Vec<Note> {
        let (name, total) = (&self.name, &self.total);
        let mut notes = Vec::new();
        let all = total.completed + total.errors.total();
        if total.late * 100 > all {
            let share = total.late as f64 * 100.0 / all as f64;
            notes.push(Note::warning(format!(
                "{name}: {share:.1} % of the requests were sent more than 1 ms later than planned \
                 because the processors were busy, which is part of their latency"
            )));
        }
        let beyond = total.latencies.beyond();
        if beyond > 0 {
            notes.push(Note::warning(format!(
                "{name}: {beyond} latencies were longer than two minutes and count as two minutes"
            )));
        }
        notes
    }
}

/// The most intervals of a run: more points than a chart of 1,000 pixels can show are no use.
const MOST: u32 = 40;

/// The shortest interval, so that counting does not cost what is counted.
const SHORTEST: Duration = Duration::from_millis(100);

/// The longest interval: the progress line shows each interval when it ends, so this is how often it changes at least.
const LONGEST: Duration = Duration::from_secs(2);

/// Smallest share of the last interval that has to be within the window. A shorter rest is left out, since its rates are
/// noise.
const LEAST_SHARE: f64 = 0.1;

/// How long the intervals of a run of this length are.
pub fn interval(duration: Duration) -> Duration {
    (duration / MOST).clamp(SHORTEST, LONGEST)
}

/// Builds the intervals of one group.
#[derive(Debug)]
pub struct Timeline {
    length: Duration,
    threads: usize,
    pending: Vec<(usize, Slice)>,
    done: Vec<Interval>,
}

impl Timeline {
    /// An empty one.
    pub fn new(length: Duration, threads: usize) -> Self {
        Self {
            length,
            threads,
            pending: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Takes one thread's slice of the interval with this number. Threads tell their intervals in
    /// order, so an interval is complete when each has reported it.
    pub fn add(&mut self, interval: usize, slice: &Slice) {
        let Some(place) = interval.checked_sub(self.done.len()) else {
            return;
        };
        if self.pending.len() <= place {
            self.pending.resize_with(place + 1, Default::default);
        }
        let (reported, sum) = &mut self.pending[place];
        *reported += 1;
        sum.merge(slice);
        let threads = self.threads;
        let is_complete = |(reported, _): &(usize, Slice)| *reported >= threads;
        while self.pending.first().is_some_and(is_complete) {
            self.close_first();
        }
    }

    fn close_first(&mut self) {
        let (_, sum) = self.pending.remove(0);
        let at = self.length.as_secs_f64() * (self.done.len() + 1) as f64;
        self.done.push(summary(at, self.length.as_secs_f64(), &sum));
    }

    /// The last interval that is over.
    pub fn last(&self) -> Option<&Interval> {
        self.done.last()
    }

    /// The intervals that lie within the window; the last may be shorter. What ended after it is
    /// part of the totals only.
    pub fn finish(mut self, seconds: f64) -> Vec<Interval> {
        while !self.pending.is_empty() {
            self.close_first();
        }
        let length = self.length.as_secs_f64();
        let begin = |interval: &Interval| interval.at - length;
        let rest = |interval: &Interval| seconds - begin(interval);
        self.done
            .retain(|interval| rest(interval) > length * LEAST_SHARE);
        if let Some(last) = self.done.last_mut()
            && rest(last) < length
        {
            let factor = length / rest(last);
            last.at = seconds;
            last.rate *= factor;
            last.error_rate *= factor;
            last.bytes_per_second *= factor;
        }
        self.done
    }
}

fn summary(at: f64, seconds: f64, slice: &Slice) -> Interval {
    Interval {
        at,
        rate: slice.completed as f64 / seconds,
        error_rate: slice.errors.total() as f64 / seconds,
        bytes_per_second: (slice.bytes_up + slice.bytes_down) as f64 / seconds,
        p50: slice.latencies.quantile(0.5),
        p99: slice.latencies.quantile(0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn only_what_began_within_the_window_counts() {
        let recorder = Recorder::default();
        let begun = Instant::now();
        recorder.completed(begun, 1, 1);
        let window = Window::from_now(SECOND, SECOND);
        recorder.open(window);
        let half = SECOND / 2;
        for (begins, counts) in [(half, 0), (half * 3, 1), (half * 5, 0)] {
            let begun = window.start + begins;
            tokio::time::sleep_until(begun + SECOND).await;
            recorder.completed(begun, 10, 20);
            recorder.failed(begun, FailureKind::Timeout);
            let slice = recorder.take();
            assert_eq!(slice.completed, counts, "begun after {begins:?}");
            assert_eq!(slice.errors.total(), counts);
            assert_eq!(
                (slice.bytes_up, slice.bytes_down),
                (10 * counts, 20 * counts)
            );
            if counts > 0 {
                let latency = slice.latencies.quantile(0.5);
                assert!((latency - 1.0).abs() < 0.002, "{latency}");
            }
        }
    }

    #[test]
    fn an_interval_is_over_when_all_threads_have_told_it() {
        let slice = |completed| Slice {
            completed,
            ..Slice::default()
        };
        let mut timeline = Timeline::new(Duration::from_millis(500), 2);
        timeline.add(0, &slice(3));
        timeline.add(1, &slice(5));
        assert!(timeline.last().is_none());
        timeline.add(0, &slice(4));
        assert_eq!(timeline.last().unwrap().rate, 14.0);
        timeline.add(1, &slice(5));
        // What ends after the window is part of no interval.
        timeline.add(2, &slice(9));
        let intervals = timeline.finish(1.0);
        let reported: Vec<_> = intervals.iter().map(|one| (one.at, one.rate)).collect();
        assert_eq!(reported, [(0.5, 14.0), (1.0, 20.0)]);
    }

    #[test]
    fn the_last_interval_may_be_shorter() {
        let mut timeline = Timeline::new(Duration::from_millis(500), 1);
        for interval in 0..3 {
            let slice = Slice {
                completed: 2,
                ..Slice::default()
            };
            timeline.add(interval, &slice);
        }
        let intervals = timeline.finish(0.75);
        let reported: Vec<_> = intervals.iter().map(|one| (one.at, one.rate)).collect();
        assert_eq!(reported, [(0.5, 4.0), (0.75, 8.0)]);
    }
}
