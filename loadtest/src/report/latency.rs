//! Latencies in a histogram with three significant digits, from a microsecond to two minutes.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::report::Latency;

/// The unit of the histogram, nanoseconds: smaller differences are lost.
const LOWEST: u64 = 1_000;

/// The longest latency that is recorded as it is: twice the longest usual time limit of a request.
const HIGHEST: u64 = 120_000_000_000;

/// Three significant digits: at most 0.1 % off, at 150 KB for each histogram.
const DIGITS: u8 = 3;

/// Points of a curve for each halving of the distance to its end.
const CURVE_POINTS: u32 = 5;

/// A histogram of latencies.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    beyond: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// An empty one.
    ///
    /// # Panics
    /// Never: the bounds are constants, and a test makes one.
    #[expect(clippy::expect_used, reason = "constant bounds, checked by a test")]
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(LOWEST, HIGHEST, DIGITS);
        Self {
            histogram: histogram.expect("bounds are valid"),
            beyond: 0,
        }
    }

    /// Records one. Longer than the histogram reaches counts as the longest.
    pub fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        if nanoseconds > HIGHEST {
            self.beyond += 1;
        }
        self.histogram.saturating_record(nanoseconds);
    }

    /// Adds what `other` holds.
    pub fn merge(&mut self, other: &Self) {
        // All histograms have these bounds, so it cannot fail.
        let _ = self.histogram.add(&other.histogram);
        self.beyond += other.beyond;
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// How many were longer than the histogram reaches.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The latency that this share (0 to 1) did not exceed, seconds; zero when empty.
    pub fn quantile(&self, quantile: f64) -> f64 {
        seconds(self.histogram.value_at_quantile(quantile))
    }

    /// The summary for a report; none when nothing was recorded.
    pub fn summary(&self) -> Option<Latency> {
        if self.histogram.is_empty() {
            return None;
        }
        let curve = self.histogram.iter_quantiles(CURVE_POINTS);
        Some(Latency {
            count: self.count(),
            min: seconds(self.histogram.min()),
            mean: self.histogram.mean() / 1e9,
            deviation: self.histogram.stdev() / 1e9,
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            max: seconds(self.histogram.max()),
            curve: curve
                .map(|point| {
                    (
                        point.quantile_iterated_to(),
                        seconds(point.value_iterated_to()),
                    )
                })
                .collect(),
        })
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_three_digits() {
        let mut latencies = Latencies::new();
        for milliseconds in 1..=1000 {
            latencies.record(Duration::from_millis(milliseconds));
        }
        let summary = latencies.summary().unwrap();
        assert_eq!(summary.count, 1000);
        for (value, expected) in [(summary.p50, 0.5), (summary.p99, 0.99), (summary.max, 1.0)] {
            assert!((value - expected).abs() <= expected * 0.002, "{value}");
        }
        assert_eq!(latencies.beyond(), 0);
    }

    #[test]
    fn what_is_too_long_is_counted_and_told() {
        let mut latencies = Latencies::new();
        latencies.record(Duration::from_secs(600));
        assert_eq!((latencies.count(), latencies.beyond()), (1, 1));
        assert!(latencies.quantile(1.0) >= 120.0);
    }
}
