//! When the routes are reported to the server: once after the welcome, and again when they have changed.
//!
//! In: the routes and the time. Out: whether to report them. Routes that change often are reported with growing pauses,
//! and so many times in a row at most, since a server that does not know this kind of message ends a session after a number
//! of unknown ones.

use std::time::Duration;

use tokio::time::Instant;
use tunnel_proto::control::RoutesSummary;

/// How often the routes are compared with those of the last report.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// Longest time between two reports; the shortest is [`INTERVAL`].
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);
/// Most reports in a row: fewer than the unknown messages that end a session.
const REPORTS: u32 = 200;
/// How soon one more report may follow: sessions last for months.
const REFILL: Duration = Duration::from_secs(15 * 60);

/// Decides on the reports of one session.
pub(super) struct RouteReporter {
    reported: Option<RoutesSummary>,
    /// When the next report may be sent.
    next_at: Instant,
    pause: Duration,
    left: u32,
    /// When one of the reports was last given back.
    refilled: Instant,
}

impl RouteReporter {
    /// Nothing is reported yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            reported: None,
            next_at: now,
            pause: INTERVAL,
            left: REPORTS,
            refilled: now,
        }
    }

    /// Whether a report may be sent now, so that the routes have to be compared.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        while now >= self.refilled + REFILL {
            self.refilled += REFILL;
            self.left = (self.left + 1).min(REPORTS);
        }
        self.left > 0 && now >= self.next_at
    }

    /// The report to send if these are the routes now, if they have changed.
    pub(super) fn next(&mut self, routes: RoutesSummary, now: Instant) -> Option<RoutesSummary> {
        if self.reported.as_ref() == Some(&routes) {
            if now >= self.next_at + LONGEST_PAUSE {
                self.pause = INTERVAL;
            }
            return None;
        }
        self.left -= 1;
        self.next_at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.reported = Some(routes.clone());
        Some(routes)
    }
}

#[cfg(test)]
mod tests {
    use tunnel_proto::control::{RouteState, RouteSummary};

    use super::*;

    fn routes(state: RouteState) -> RoutesSummary {
        RoutesSummary::new(vec![RouteSummary {
            name: "a".to_owned(),
            matches: String::new(),
            to: String::new(),
            state,
        }])
    }

    #[test]
    fn what_changes_at_every_look_is_told_ever_less_often() {
        let start = Instant::now();
        let mut reporter = RouteReporter::new(start);
        let mut sent = Vec::new();
        for tick in 0..100_000_u32 {
            let now = start + INTERVAL * tick;
            // Another state than that of the last report.
            let state = [RouteState::Up, RouteState::Down][sent.len() % 2];
            if reporter.is_due(now) && reporter.next(routes(state), now).is_some() {
                sent.push(tick);
            }
        }
        assert_eq!(sent[..4], [0, 1, 3, 7]);
        assert!(sent[100] - sent[99] >= 60, "five minutes");
        let last = sent[sent.len() - 1] - sent[sent.len() - 2];
        assert_eq!(INTERVAL * last, REFILL);
    }

    #[test]
    fn what_does_not_change_is_told_once_and_a_late_change_at_once() {
        let start = Instant::now();
        let mut reporter = RouteReporter::new(start);
        assert!(reporter.next(routes(RouteState::Up), start).is_some());
        for tick in 1..200 {
            let now = start + INTERVAL * tick;
            assert!(reporter.is_due(now));
            assert_eq!(reporter.next(routes(RouteState::Up), now), None);
        }
        let late = start + INTERVAL * 200;
        assert!(reporter.next(routes(RouteState::Down), late).is_some());
        assert!(reporter.is_due(late + INTERVAL), "the pause has begun anew");
    }
}
