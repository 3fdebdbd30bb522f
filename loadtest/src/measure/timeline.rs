//! A run in slices of time: rate, errors, bytes and latency of each interval.

use std::time::Duration;

use crate::{measure::Slice, report::Interval};

/// The most intervals of a run: more points than a chart of 1,000 pixels can show are no use.
const MOST: u32 = 40;

/// The shortest interval, so that counting does not cost what is counted.
const SHORTEST: Duration = Duration::from_millis(100);

/// The longest interval, so that the live line lives.
const LONGEST: Duration = Duration::from_secs(2);

/// Of the last interval at least this share must lie within the window: rates over less are noise.
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
