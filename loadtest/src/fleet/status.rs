//! What a fleet tells its parent: one line of JSON every tenth of a second.

use std::collections::BTreeMap;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

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
    /// Clients that were told to stay away, and do.
    pub stopped: u64,
    /// Exchanges answered.
    pub exchanges: u64,
    /// Dials that came to nothing, by kind.
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

/// Seconds of a clock that never jumps and is the same in all processes of a machine.
pub fn clock() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

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
