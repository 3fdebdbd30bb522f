//! The status of a fleet: counted by its threads, reported to its parent in one line of JSON every tenth of a second.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::measure::errors::FailureKind;

/// How a fleet stands. Counts are since it began, unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Number of the line, from zero. The first one is written before the first dial.
    pub seq: u64,
    /// When, by [`clock`].
    pub at: f64,
    /// Clients that have a session which the server has welcomed, now.
    pub up: u64,
    /// TLS handshakes done.
    pub handshakes: u64,
    /// Sessions that were welcomed.
    pub connected: u64,
    /// When the last of them was, by [`clock`]; zero before the first.
    pub connected_at: f64,
    /// Welcomed sessions that ended.
    pub lost: u64,
    /// Clients that a final refusal has stopped.
    pub stopped: u64,
    /// Failed dials, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Since the last line: for each session that was welcomed, the microseconds since its client
    /// began to dial for the first time, or lost its last session.
    pub took_us: Vec<u32>,
}

impl Status {
    /// How the line with this number begins, so that it is found without reading all others.
    pub(super) fn beginning(seq: u64) -> String {
        format!("{{\"seq\":{seq},")
    }
}

/// The status that all simulated clients of a fleet write to.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<Status>);

impl Counters {
    /// Counts something that is no session.
    pub(super) fn count(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.0.lock());
    }

    /// Counts a failed dial.
    pub(super) fn on_failure(&self, kind: FailureKind) {
        self.count(|status| *status.failures.entry(kind.to_string()).or_default() += 1);
    }

    /// Counts a session that was welcomed, so long after its client was without one.
    pub(super) fn on_connected(&self, took: Duration) {
        self.count(|status| {
            status.up += 1;
            status.connected += 1;
            status.connected_at = clock();
            let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
            status.took_us.push(took);
        });
    }

    /// Counts a session that was welcomed and has ended.
    pub(super) fn on_lost(&self) {
        self.count(|status| {
            status.up -= 1;
            status.lost += 1;
        });
    }

    /// The next line.
    pub(super) fn next(&self) -> Status {
        let mut status = self.0.lock();
        status.at = clock();
        let next = status.clone();
        status.seq += 1;
        status.took_us.clear();
        next
    }
}

/// Seconds of a clock that never jumps and is one for all processes of a machine.
pub fn clock() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_counts_until_it_is_lost() {
        let counters = Counters::default();
        counters.on_connected(Duration::from_millis(2));
        counters.on_connected(Duration::from_millis(3));
        counters.on_lost();
        counters.on_failure(FailureKind::Status(503));
        let status = counters.next();
        assert_eq!(
            (status.seq, status.up, status.connected, status.lost),
            (0, 1, 2, 1)
        );
        assert_eq!(status.took_us, [2000, 3000]);
        assert_eq!(status.failures["status_503"], 1);
        assert!(status.connected_at > 0.0 && status.at >= status.connected_at);
        counters.on_lost();
        // A value is reported once.
        let status = counters.next();
        assert_eq!((status.seq, status.up, status.lost), (1, 0, 2));
        assert!(status.took_us.is_empty());
    }

    #[test]
    fn a_line_is_found_by_its_beginning() {
        let status = Status {
            seq: 12,
            took_us: vec![7],
            ..Status::default()
        };
        let line = serde_json::to_string(&status).unwrap();
        assert!(line.starts_with(&Status::beginning(12)), "{line}");
        assert!(!line.starts_with(&Status::beginning(1)), "{line}");
        assert_eq!(serde_json::from_str::<Status>(&line).unwrap(), status);
    }
}
