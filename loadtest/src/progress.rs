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

use tokio::time::Instant;

use crate::{
    measure::{Collector, Window},
    report::format::{bytes_per_second, per_second, seconds},
};

/// How often a plain line is written where no line can change.
const PLAIN: Duration = Duration::from_secs(5);

/// A window of more seconds has no end of its own.
const DAY: u64 = 24 * 3600;

/// Begins the line anew and removes what stands in it (ECMA-48).
const CLEAR: &str = "\r\x1b[2K";

/// Between these a terminal cuts what is too long for its line, instead of beginning another.
const NO_WRAP: (&str, &str) = ("\x1b[?7l", "\x1b[?7h");

/// Shows how far a scenario is: in one line on a terminal, else in a line now and then.
#[derive(Debug)]
pub struct Progress {
    is_terminal: bool,
    quiet: bool,
    written: Cell<Option<Instant>>,
    label: RefCell<String>,
}

impl Progress {
    /// On standard error, unless `quiet`.
    pub fn new(quiet: bool) -> Self {
        Self {
            is_terminal: io::stderr().is_terminal(),
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
        let now = Instant::now();
        let is_due = |written: Instant| now - written >= PLAIN;
        if self.quiet || !self.is_terminal && !self.written.get().is_none_or(is_due) {
            return;
        }
        self.written.set(Some(now));
        let label = self.label.borrow();
        let line = match label.is_empty() {
            true => message.to_string(),
            false => format!("{label}: {message}"),
        };
        self.write(match self.is_terminal {
            true => format!("{CLEAR}{}{line}{}", NO_WRAP.0, NO_WRAP.1),
            false => line + "\n",
        });
    }

    fn write(&self, text: String) {
        let mut out = io::stderr().lock();
        // There is no other place to report that it cannot be written.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Shows the figures of the last interval of a load.
    pub fn update(&self, collectors: &[Collector], window: &Window) {
        let now = Instant::now();
        let remaining = window.end.saturating_duration_since(now);
        let left = remaining.as_secs_f64().ceil();
        let last = || collectors.iter().filter_map(Collector::last);
        let Some(first) = last().next().filter(|_| now >= window.begin) else {
            return match remaining.as_secs() {
                DAY.. => self.message("warming up"),
                _ => self.message(format_args!("warming up, {left:.0} s left")),
            };
        };
        let rate = per_second(last().map(|interval| interval.rate).sum());
        let moved = bytes_per_second(last().map(|interval| interval.bytes_per_second).sum());
        let (p50, p99) = (seconds(first.p50), seconds(first.p99));
        let errors = collectors.iter().map(|group| group.total().errors.total());
        let errors: u64 = errors.sum();
        let rest = match remaining.as_secs() {
            _ if remaining.is_zero() => "waiting for the last answers".to_owned(),
            DAY.. => "until all is done".to_owned(),
            _ => format!("{left:.0} s left"),
        };
        self.message(format_args!(
            "{rate}  {moved}  p50 {p50}  p99 {p99}  errors {errors}  {rest}"
        ));
    }

    /// Removes the line.
    pub fn finish(&self) {
        if self.is_terminal && !self.quiet {
            self.write(CLEAR.to_owned());
        }
    }
}
