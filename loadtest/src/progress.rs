//! The live line: what is going on, for a person who waits.
//!
//! On a terminal one line that changes; elsewhere a plain line on standard error every few
//! seconds. It reads what was collected and never touches the load.

use std::{
    cell::{Cell, RefCell},
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

/// Shows how far a scenario is: in one line on a terminal, else in a line now and then.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    written: Cell<Option<Instant>>,
    label: RefCell<String>,
}

impl Progress {
    /// On standard error, unless `quiet`.
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
            written: Cell::default(),
            label: RefCell::default(),
        }
    }

    /// Shows nothing.
    pub fn none() -> Self {
        Self::new(true)
    }

    /// What stands before all that follows, such as the round.
    pub fn label(&self, label: impl Into<String>) {
        self.label.replace(label.into());
    }

    /// Shows where a scenario stands.
    pub fn message(&self, message: impl fmt::Display) {
        let label = self.label.borrow();
        let line = match label.is_empty() {
            true => message.to_string(),
            false => format!("{label}: {message}"),
        };
        if let Some(bar) = &self.bar {
            bar.set_message(line);
        } else if !self.quiet {
            let now = Instant::now();
            let is_due = |written: Instant| now - written >= PLAIN;
            if self.written.get().is_none_or(is_due) {
                self.written.set(Some(now));
                // Nobody can be told that nobody can be told.
                drop(writeln!(io::stderr().lock(), "{line}"));
            }
        }
    }

    /// Shows the figures of the last interval of a load.
    pub fn update(&self, collectors: &[Collector], window: &Window) {
        let now = Instant::now();
        let remaining = window.end.saturating_duration_since(now);
        let left = remaining.as_secs_f64().ceil();
        let last = || collectors.iter().filter_map(Collector::last);
        let Some(first) = last().next().filter(|_| now >= window.begin) else {
            return self.message(format_args!("warming up, {left:.0} s left"));
        };
        let rate = per_second(last().map(|interval| interval.rate).sum());
        let (p50, p99) = (seconds(first.p50), seconds(first.p99));
        let errors = collectors.iter().map(|group| group.total().errors.total());
        let errors: u64 = errors.sum();
        let rest = match remaining.is_zero() {
            true => "waiting for the last answers".to_owned(),
            false => format!("{left:.0} s left"),
        };
        self.message(format_args!(
            "{rate}  p50 {p50}  p99 {p99}  errors {errors}  {rest}"
        ));
    }

    /// Removes the line.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
