//! The last problems of requests, for people: what the counters of the metrics do not say.

use std::collections::VecDeque;

use parking_lot::Mutex;
use serde::Serialize;
use tunnel_ops::timestamp::Timestamp;
use tunnel_proto::problem::Problem;

/// Number of problems that are kept.
const KEPT: usize = 20;

/// The last problems, each with the number of times that it came in a row.
#[derive(Debug, Default)]
pub(crate) struct RecentProblems(Mutex<VecDeque<ProblemView>>);

/// One problem, or several like it in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ProblemView {
    /// When it last occurred.
    at: Timestamp,
    /// Its stable name.
    reason: &'static str,
    /// What happened, for people.
    detail: String,
    /// How often it came in a row.
    count: u64,
}

impl RecentProblems {
    /// A problem occurs now.
    pub(crate) fn add(&self, problem: &Problem) {
        let (reason, detail) = (problem.reason().name(), problem.detail());
        let at = Timestamp::now();
        let mut kept = self.0.lock();
        // While an upstream is down there is one line of it, not twenty.
        if let Some(last) = kept.front_mut()
            && last.reason == reason
            && last.detail == detail
        {
            last.at = at;
            last.count += 1;
            return;
        }
        kept.truncate(KEPT - 1);
        kept.push_front(ProblemView {
            at,
            reason,
            detail: detail.to_owned(),
            count: 1,
        });
    }

    /// The last problems, the latest first.
    pub(crate) fn views(&self) -> Vec<ProblemView> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use tunnel_proto::problem::{Hop, Reason};

    use super::*;

    #[test]
    fn the_latest_come_first_and_repetitions_are_counted() {
        let recent = RecentProblems::default();
        let add = |detail: &str| {
            recent.add(&Problem::new(
                Hop::Client,
                Reason::DnsError,
                detail.to_owned(),
            ))
        };
        for number in 0..KEPT + 5 {
            add(&number.to_string());
        }
        add("again");
        add("again");
        let views = recent.views();
        assert_eq!(views.len(), KEPT);
        assert_eq!((&*views[0].detail, views[0].count), ("again", 2));
        assert_eq!((&*views[1].detail, views[1].count), ("24", 1));
    }
}
