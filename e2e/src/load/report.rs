//! The report of a load: counts by kind, and the failures with their times, between the marks of the test.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::{End, ExchangeKind, WorkerNumber};

/// How many failures a report shows.
const SHOWN: usize = 30;

/// What happened with one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Exchanges that were begun.
    pub begun: u64,
    /// Complete answers, and messages of streams.
    pub ticks: u64,
    /// Exchanges that ended completely; streams because the load ended.
    pub whole: u64,
    /// Streams that were ended in the way of their protocol.
    pub by_protocol: u64,
    /// Requests that found their kept connection closed before anything of them was sent, and went by
    /// another. One that was lost on its way has failed.
    pub again: u64,
    /// Everything else.
    pub failed: u64,
    /// The longest time without an answer or message.
    pub longest: Duration,
}

impl Counts {
    fn and(self, other: &Self) -> Self {
        Self {
            begun: self.begun + other.begun,
            ticks: self.ticks + other.ticks,
            whole: self.whole + other.whole,
            by_protocol: self.by_protocol + other.by_protocol,
            again: self.again + other.again,
            failed: self.failed + other.failed,
            longest: self.longest.max(other.longest),
        }
    }
}

/// A failure.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What it was.
    pub kind: ExchangeKind,
    /// When it failed, from the start of the load.
    pub at: Duration,
    /// Status and body, or the error.
    pub what: String,
}

/// Counts, failures and events.
#[derive(Clone, Debug)]
pub struct Report {
    workers: Vec<(ExchangeKind, Counts)>,
    /// In the order in which they happened.
    pub failures: Vec<Failure>,
    marks: Vec<(Duration, String)>,
}

/// A report that still grows.
#[derive(Debug)]
pub(super) struct Tally {
    began: Instant,
    report: Report,
}

impl Tally {
    /// Of workers of these kinds, in the order of their numbers.
    pub(super) fn new(workers: &[ExchangeKind]) -> Self {
        Self {
            began: Instant::now(),
            report: Report {
                workers: workers
                    .iter()
                    .map(|kind| (*kind, Counts::default()))
                    .collect(),
                failures: Vec::new(),
                marks: Vec::new(),
            },
        }
    }

    pub(super) fn mark(&mut self, what: &str) {
        let at = self.began.elapsed();
        self.report.marks.push((at, what.to_owned()));
    }

    pub(super) fn begin(&mut self, worker: WorkerNumber) {
        self.of(worker).begun += 1;
    }

    pub(super) fn tick(&mut self, worker: WorkerNumber, waited: Duration) {
        let counts = self.of(worker);
        counts.ticks += 1;
        counts.longest = counts.longest.max(waited);
    }

    pub(super) fn again(&mut self, worker: WorkerNumber) {
        self.of(worker).again += 1;
    }

    pub(super) fn end(&mut self, worker: WorkerNumber, end: End) {
        match end {
            End::Whole => self.of(worker).whole += 1,
            End::ByProtocol => self.of(worker).by_protocol += 1,
            End::Failed(what) => {
                self.of(worker).failed += 1;
                let (kind, at) = (self.report.workers[worker].0, self.began.elapsed());
                self.report.failures.push(Failure { kind, at, what });
            }
        }
    }

    pub(super) fn counts(&self, kind: ExchangeKind) -> Counts {
        self.report.counts(kind)
    }

    pub(super) fn counts_of(&self, worker: WorkerNumber) -> Counts {
        *self.report.worker(worker)
    }

    pub(super) fn report(&self) -> Report {
        self.report.clone()
    }

    fn of(&mut self, worker: WorkerNumber) -> &mut Counts {
        &mut self.report.workers[worker].1
    }
}

impl Report {
    /// What happened with this kind.
    pub fn counts(&self, kind: ExchangeKind) -> Counts {
        let of_kind = self.workers.iter().filter(|(its, _)| *its == kind);
        of_kind.fold(Counts::default(), |sum, (_, counts)| sum.and(counts))
    }

    /// What happened with each worker.
    pub(super) fn workers(&self) -> impl Iterator<Item = (WorkerNumber, ExchangeKind, &Counts)> {
        let workers = self.workers.iter().enumerate();
        workers.map(|(number, (kind, counts))| (number, *kind, counts))
    }

    /// What happened with one of them.
    pub(super) fn worker(&self, number: WorkerNumber) -> &Counts {
        &self.workers[number].1
    }

    /// A kind that since then has had fewer answers or messages than `ticks`, or a worker with none.
    pub(super) fn lacks_since(&self, before: &Self, ticks: u64) -> Option<ExchangeKind> {
        let has_too_few = |(number, kind, counts): &(WorkerNumber, ExchangeKind, &Counts)| {
            counts.ticks == before.worker(*number).ticks
                || self.counts(*kind).ticks < before.counts(*kind).ticks + ticks
        };
        self.workers().find(has_too_few).map(|(_, kind, _)| kind)
    }

    /// # Panics
    /// When anything failed, or a worker found its connection closed more than once, which tells of a
    /// server that closes them for no reason; the message is the report.
    pub fn assert_none_failed(&self) {
        assert!(self.failures.is_empty(), "{self}");
        let is_good = self.workers.iter().all(|(_, counts)| counts.again <= 1);
        assert!(is_good, "{self}");
    }

    /// The number of failures.
    pub fn failures(&self) -> usize {
        self.failures.len()
    }

    /// # Panics
    /// When a worker had more failures than this; the message is the report.
    pub fn assert_at_most_failed(&self, each: u64) {
        let is_good = self.workers.iter().all(|(_, counts)| counts.failed <= each);
        assert!(is_good, "{self}");
    }

    /// The failures that `is_excused` does not excuse.
    ///
    /// # Panics
    /// When there are any; the message is the report.
    pub fn assert_none_failed_but(&self, is_excused: impl Fn(&Failure) -> bool) {
        let is_good = self.failures.iter().all(is_excused);
        assert!(is_good, "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in ExchangeKind::ALL {
            let counts = self.counts(kind);
            if counts.begun > 0 {
                writeln!(f, "{kind}: {counts:?}")?;
            }
        }
        let marks = self.marks.iter().map(|(at, what)| (*at, what.clone()));
        let failures = (self.failures.iter().take(SHOWN))
            .map(|failure| (failure.at, format!("  {} {}", failure.kind, failure.what)));
        let mut lines: Vec<_> = marks.chain(failures).collect();
        lines.sort_by_key(|(at, _)| *at);
        for (at, line) in lines {
            writeln!(f, "{:>8.3} s {line}", at.as_secs_f64())?;
        }
        let hidden = self.failures.len().saturating_sub(SHOWN);
        if hidden > 0 {
            writeln!(f, "and {hidden} failures more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_that_of_each_worker_and_a_sum_for_each_kind() {
        let mut tally = Tally::new(&[ExchangeKind::Get, ExchangeKind::Get, ExchangeKind::Post]);
        let before = tally.report();
        for _ in 0..3 {
            tally.tick(0, Duration::ZERO);
        }
        tally.tick(2, Duration::ZERO);
        assert_eq!(
            tally.report().lacks_since(&before, 1),
            Some(ExchangeKind::Get),
            "the second has none"
        );
        tally.tick(1, Duration::ZERO);
        assert_eq!(tally.report().lacks_since(&before, 1), None);
        assert_eq!(
            tally.report().lacks_since(&before, 2),
            Some(ExchangeKind::Post)
        );
        assert_eq!(tally.counts(ExchangeKind::Get).ticks, 4);
    }

    #[test]
    #[should_panic(expected = "again: 2")]
    fn connections_that_are_closed_time_and_again_are_no_good_sign() {
        let mut tally = Tally::new(&[ExchangeKind::Get]);
        for _ in 0..2 {
            tally.begin(0);
            tally.again(0);
        }
        tally.report().assert_none_failed();
    }
}
