//! The live line: what is going on, for a person who waits.
//!
//! On a terminal one line that changes; elsewhere a plain line on standard error every few
//! seconds. It reads what was collected and never touches the load.

use std::{
    cell::Cell,
    fmt,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use crate::{
    measure::{Collector, Window},
    report::format::{per_second, seconds},
};

/// How often a plain line is written where no line can change.
const PLAIN: Duration = Duration::from_secs(5);

/// How often the spinner moves: it shows that the program lives, no more.
const SPIN: Duration = Duration::from_millis(500);

/// The live line of the whole program.
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    said: Cell<Option<Instant>>,
    label: std::cell::RefCell<String>,
}

impl fmt::Debug for Progress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Progress")
    }
}

impl Progress {
    /// On standard error.
    pub fn new(quiet: bool) -> Self {
        let bar = (!quiet && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(SPIN);
            bar
        });
        Self {
            bar,
            quiet,
            said: Cell::new(None),
            label: std::cell::RefCell::default(),
        }
    }

    /// Shows nothing, for tests.
    pub fn none() -> Self {
        Self {
            bar: None,
            quiet: true,
            said: Cell::new(None),
            label: std::cell::RefCell::default(),
        }
    }

    /// Says what the next loads are, such as `round 2 of 5, nginx`; stands before what they show.
    pub fn label(&self, label: impl Into<String>) {
        *self.label.borrow_mut() = label.into();
    }

    /// Says what is going on.
    pub fn message(&self, message: impl fmt::Display) {
        self.show(&message.to_string());
    }

    /// Shows how the load goes.
    pub fn update(&self, live: &Live) {
        self.show(&live.to_string());
    }

    /// Takes the line away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn show(&self, text: &str) {
        let label = self.label.borrow();
        let line = if label.is_empty() {
            text.to_owned()
        } else {
            format!("{label}: {text}")
        };
        if let Some(bar) = &self.bar {
            bar.set_message(line);
        } else if !self.quiet {
            let now = Instant::now();
            let due = |said: Instant| now - said >= PLAIN;
            if self.said.get().is_none_or(due) {
                self.said.set(Some(now));
                // Nothing can be done when standard error is closed.
                drop(writeln!(io::stderr().lock(), "{line}"));
            }
        }
    }
}

/// How a load goes, right now.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// None while it warms up.
    pub figures: Option<Figures>,
    /// Until the window's end; zero while the last answers are awaited.
    pub remaining: Duration,
}

/// Of the last interval; errors are of the whole window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Completed for each second, all groups together.
    pub rate: f64,
    /// Median of the first group, seconds.
    pub p50: f64,
    /// 99th percentile of the first group, seconds.
    pub p99: f64,
    /// Failed so far.
    pub errors: u64,
}

impl Live {
    /// What the collectors know now.
    pub fn of(collectors: &[Collector], window: &Window) -> Self {
        let now = Instant::now();
        let last = || collectors.iter().filter_map(Collector::last);
        let figures = last().next().map(|first| Figures {
            rate: last().map(|interval| interval.rate).sum(),
            p50: first.p50,
            p99: first.p99,
            errors: collectors
                .iter()
                .map(|collector| collector.total().errors.total())
                .sum(),
        });
        Self {
            figures: figures.filter(|_| now >= window.begin),
            remaining: window.end.saturating_duration_since(now),
        }
    }
}

impl fmt::Display for Live {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.remaining.as_secs_f64().ceil();
        match self.figures {
            None => write!(formatter, "warming up, {left:.0} s left"),
            Some(figures) => {
                let (p50, p99) = (seconds(figures.p50), seconds(figures.p99));
                let (rate, errors) = (per_second(figures.rate), figures.errors);
                write!(formatter, "{rate}  p50 {p50}  p99 {p99}  errors {errors}")?;
                if self.remaining.is_zero() {
                    formatter.write_str("  waiting for the last answers")
                } else {
                    write!(formatter, "  {left:.0} s left")
                }
            }
        }
    }
}
