//! The sweep as a table of Markdown: a row for each shape at each place, a column for each protocol.

use std::{fmt, time::Duration};

use super::{Place, Protocol, cell::Outcome, neighbour::p99, stand::Grown};

const MIB: u64 = 1024 * 1024;

/// The most that one runtime costs the server, by `docs/reference/limits.md`.
pub const SERVER: u64 = 488 * MIB;

/// The most that a client holds, by the same page.
pub const CLIENT: u64 = 240 * MIB;

/// The most that `serve` holds, by the same page.
pub const SERVE: u64 = 464 * MIB;

/// Amplification that is worth a word.
const AMPLIFIED: f64 = 1.5;

/// Per cent of a processor that are worth a word.
const BUSY: f64 = 10.0;

/// The larger of both programs' growth, as a share of what is documented.
pub fn share_of_bound(grown: Grown, place: Place) -> f64 {
    let client = if place == Place::Serve { SERVE } else { CLIENT };
    let share = |grown: Option<u64>, bound: u64| grown.unwrap_or(0) as f64 / bound as f64;
    share(grown.server, SERVER).max(share(grown.client, client))
}

impl Outcome {
    /// How many bytes the upstream received for each one that platform clients sent, where both are counted.
    pub fn amplification(&self) -> Option<f64> {
        (self.sent > 0 && self.received > 0).then(|| self.received as f64 / self.sent as f64)
    }

    /// The neighbours' p99 beside the hostile peer, against that without.
    pub fn slowing(&self) -> Option<f64> {
        let quiet = p99(&self.seen.quiet)?;
        Some(p99(&self.seen.beside)?.as_secs_f64() / quiet.as_secs_f64())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        match (self.grown.server, self.grown.client) {
            (Some(server), Some(client)) => {
                write!(f, "{:.0} + {:.0} MiB", mib(server), mib(client))?;
            }
            (one, other) => {
                let only = one.or(other).unwrap_or_default();
                write!(f, "{:.0} MiB", mib(only))?;
            }
        }
        let milliseconds =
            |times: &[Duration]| p99(times).map_or(f64::NAN, |time| time.as_secs_f64() * 1_000.0);
        let (quiet, beside) = (
            milliseconds(&self.seen.quiet),
            milliseconds(&self.seen.beside),
        );
        write!(f, ", {quiet:.1} → {beside:.1} ms")?;
        let share = self.processors * 100.0;
        if share >= BUSY {
            write!(f, ", {share:.0} % CPU")?;
        }
        if let Some(amplification) = self.amplification().filter(|more| *more >= AMPLIFIED) {
            write!(f, ", {amplification:.1} out")?;
        }
        match self.seen.errors.len() {
            0 => Ok(()),
            errors => write!(f, ", **{errors} errors**"),
        }
    }
}

/// The rows that are there.
#[derive(Default)]
pub struct Table {
    rows: Vec<(&'static str, Place, [Option<Outcome>; 4])>,
}

impl Table {
    /// Adds what came of a shape at a place, for each of [`Protocol::ALL`].
    pub fn add(&mut self, shape: &'static str, place: Place, outcomes: [Option<Outcome>; 4]) {
        self.rows.push((shape, place, outcomes));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Protocol::ALL.map(Protocol::name).join(" | ");
        writeln!(f, "| shape | place | {names} |\n|---|---|---|---|---|---|")?;
        for (shape, place, outcomes) in &self.rows {
            write!(f, "| {shape} | {} |", place.name())?;
            for outcome in outcomes {
                match outcome {
                    Some(outcome) => write!(f, " {outcome} |")?,
                    None => write!(f, " - |")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
