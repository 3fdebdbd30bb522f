//! The sweep as a table of Markdown.

use std::{fmt, time::Duration};

use super::{Place, Protocol, cell::Outcome, neighbour::p99, stand::Grown};

const MIB: u64 = 1024 * 1024;

/// The most that one runtime costs the server, by `docs/reference/limits.md`.
pub const SERVER: u64 = 488 * MIB;

/// The most that a client holds, by the same page.
pub const CLIENT: u64 = 240 * MIB;

/// The most that `serve` holds, by the same page.
pub const SERVE: u64 = 464 * MIB;

/// What came of a shape over a protocol at a place.
pub struct Row {
    /// The name of the shape.
    pub shape: &'static str,
    /// Where the hostile peer is.
    pub place: Place,
    /// What it speaks.
    pub protocol: Protocol,
    /// What came of it; `None` where the shape is nothing there.
    pub outcome: Option<Outcome>,
}

/// The larger of both programs' growth, as a share of what is documented.
pub fn share_of_bound(grown: Grown, place: Place) -> f64 {
    let client = if place == Place::Serve { SERVE } else { CLIENT };
    let share = |grown: Option<u64>, bound: u64| grown.unwrap_or(0) as f64 / bound as f64;
    share(grown.server, SERVER).max(share(grown.client, client))
}

impl Outcome {
    /// How often the upstream received a byte for each one that was sent, where both are counted.
    pub fn amplification(&self) -> Option<f64> {
        (self.sent > 0 && self.received > 0).then(|| self.received as f64 / self.sent as f64)
    }

    /// The neighbours' p99 beside the hostile peer, against that without.
    pub fn slowing(&self) -> Option<f64> {
        let quiet = p99(&self.seen.quiet)?;
        Some(p99(&self.seen.beside)?.as_secs_f64() / quiet.as_secs_f64())
    }
}

/// The columns' names.
pub const HEAD: &str = "\
| shape | place | protocol | server +MiB | client +MiB | of the bound | out / in | errors | p99 ms, quiet | p99 ms, beside | × |
|---|---|---|---|---|---|---|---|---|---|---|
";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, protocol) = (self.place.name(), self.protocol.name());
        write!(f, "| {} | {place} | {protocol} |", self.shape)?;
        let Some(outcome) = &self.outcome else {
            return write!(f, " - | - | - | - | - | - | - | - |");
        };
        let mib = |bytes: Option<u64>| match bytes {
            Some(bytes) => format!("{:.0}", bytes as f64 / MIB as f64),
            None => "-".to_owned(),
        };
        let number = |number: Option<f64>, digits: usize| match number {
            Some(number) => format!("{number:.digits$}"),
            None => "-".to_owned(),
        };
        let milliseconds = |times: &[Duration]| {
            let time = p99(times).map(|time| time.as_secs_f64() * 1_000.0);
            number(time, 1)
        };
        let (server, client) = (mib(outcome.grown.server), mib(outcome.grown.client));
        let share = share_of_bound(outcome.grown, self.place);
        let amplification = number(outcome.amplification(), 1);
        let errors = outcome.seen.errors.len();
        let (quiet, beside) = (
            milliseconds(&outcome.seen.quiet),
            milliseconds(&outcome.seen.beside),
        );
        let slowing = number(outcome.slowing(), 1);
        write!(
            f,
            " {server} | {client} | {share:.2} | {amplification} | {errors} | {quiet} | {beside} | {slowing} |"
        )
    }
}
