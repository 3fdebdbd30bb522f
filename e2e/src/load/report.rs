//! The account of a load: counts by kind, and what failed when, between the events of the test.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::{End, Kind};

/// How many failures a report shows.
const SHOWN: usize = 30;

/// What happened with one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Things that were begun.
    pub begun: u64,
    /// Answers, and messages of streams, that came whole.
    pub ticks: u64,
    /// Things that came whole to their end; streams because the load ended.
    pub whole: u64,
    /// Streams that were ended in the way of their protocol.
    pub by_protocol: u64,
    /// Requests sent again since a kept connection was closed between two of them.
    pub again: u64,
    /// Everything else.
    pub failed: u64,
    /// The longest time without an answer or message.
    pub longest: Duration,
}

/// Something that did not go well.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What it was.
    pub kind: Kind,
    /// When it failed, from the start of the load.
    pub at: Duration,
    /// What was seen: status and body, or the error.
    pub what: String,
}

/// Counts, failures and events.
#[derive(Clone, Debug)]
pub struct Report {
    counts: [Counts; Kind::ALL.len()],
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
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            report: Report {
                counts: [Counts::default(); Kind::ALL.len()],
                failures: Vec::new(),
                marks: Vec::new(),
            },
        }
    }

    pub(super) fn mark(&mut self, what: &str) {
        let at = self.began.elapsed();
        self.report.marks.push((at, what.to_owned()));
    }

    pub(super) fn begin(&mut self, kind: Kind) {
        self.of(kind).begun += 1;
    }

    pub(super) fn tick(&mut self, kind: Kind, waited: Duration) {
        let counts = self.of(kind);
        counts.ticks += 1;
        counts.longest = counts.longest.max(waited);
    }

    pub(super) fn again(&mut self, kind: Kind) {
        self.of(kind).again += 1;
    }

    pub(super) fn end(&mut self, kind: Kind, end: End) {
        match end {
            End::Whole => self.of(kind).whole += 1,
            End::ByProtocol => self.of(kind).by_protocol += 1,
            End::Failed(what) => {
                self.of(kind).failed += 1;
                let at = self.began.elapsed();
                self.report.failures.push(Failure { kind, at, what });
            }
        }
    }

    pub(super) fn counts(&self, kind: Kind) -> Counts {
        self.report.counts(kind)
    }

    pub(super) fn report(&self) -> Report {
        self.report.clone()
    }

    fn of(&mut self, kind: Kind) -> &mut Counts {
        &mut self.report.counts[kind.index()]
    }
}

impl Report {
    /// What happened with this kind.
    pub fn counts(&self, kind: Kind) -> Counts {
        self.counts[kind.index()]
    }

    /// # Panics
    /// When anything failed; the message is the report.
    pub fn assert_none_failed(&self) {
        assert!(self.failures.is_empty(), "{self}");
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
        for kind in Kind::ALL {
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
