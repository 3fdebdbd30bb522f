//! What else happened on the machine while targets were measured. It is reported, never corrected for.

use std::fs;

use crate::{
    measure::usage::{Meter, Roles},
    report::Report,
};

/// A share of the machine above which others were too loud.
const LOUD: f64 = 0.05;

/// Processor time of the whole machine since it started, in ticks: busy, stolen, and all.
type Ticks = [u64; 3];

/// The time from the first round to the last.
pub(super) struct Noise {
    before: Option<Ticks>,
    /// What is measured and measures, which is no noise.
    known: Meter,
}

impl Noise {
    /// Begins now. What these roles use is no noise.
    pub(super) fn start(known: Roles) -> Self {
        Self {
            before: ticks(),
            known: Meter::start(known),
        }
    }

    /// Ends, and adds to the report what others used. Where not all processes that were measured are known
    /// (`is_partial`), theirs look like others', which is no reason to warn.
    pub(super) fn report(self, is_partial: bool, report: &mut Report) {
        let usage = self.known.finish();
        let ours = usage.values().map(|usage| usage.cpu_seconds).sum();
        let each = rustix::param::clock_ticks_per_second().max(1) as f64;
        if let (Some(before), Some(after)) = (self.before, ticks())
            && let Some((others, stolen)) = shares(before, after, ours, each)
        {
            report_shares(others, stolen, is_partial, report);
        }
    }
}

/// The shares of the machine that others used and that its host took; none if no time has passed.
fn shares(before: Ticks, after: Ticks, ours: f64, each: f64) -> Option<(f64, f64)> {
    let passed = |of: usize| after[of].saturating_sub(before[of]) as f64 / each;
    let (busy, stolen, all) = (passed(0), passed(1), passed(2));
    (all > 0.0).then(|| ((busy - ours).max(0.0) / all, stolen / all))
}

fn report_shares(others: f64, stolen: f64, is_partial: bool, report: &mut Report) {
    let known = if is_partial {
        ", among them targets and upstreams whose processes are not known,"
    } else {
        ""
    };
    let text = format!(
        "while measuring, other programs{known} and the kernel's own work took {:.1} % of the \
         machine, and {:.1} % was stolen by its host",
        others * 100.0,
        stolen * 100.0
    );
    if others > LOUD && !is_partial || stolen > LOUD {
        report.warn(text);
    } else {
        report.note(text);
    }
}

fn ticks() -> Option<Ticks> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

/// The first line: user, nice, system, idle, waiting, interrupts (two kinds), stolen. What follows
/// is contained in the first two.
fn parse(text: &str) -> Option<Ticks> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields = line.split_ascii_whitespace();
    let fields = fields.map_while(|field| field.parse().ok()).take(8);
    let fields: Vec<u64> = fields.collect();
    let [user, nice, system, idle, waiting, hard, soft, stolen] = fields.try_into().ok()?;
    let busy = user + nice + system + hard + soft;
    Some([busy, stolen, busy + idle + waiting + stolen])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::NoteLevel;

    #[test]
    fn the_kernels_line_is_understood() {
        let text = "cpu  10 20 30 400 50 6 7 8 5 5\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(parse(text), Some([73, 8, 531]));
        assert_eq!(parse("cpu  1 2 3\n"), None);
        assert!(ticks().is_some());
    }

    #[test]
    fn what_is_ours_is_no_noise() {
        let after = [300, 20, 1000];
        let (others, stolen) = shares([0; 3], after, 2.5, 100.0).unwrap();
        assert!((others - 0.05).abs() < 1e-9 && (stolen - 0.02).abs() < 1e-9);
        assert_eq!(shares(after, after, 0.0, 100.0), None);
    }

    #[test]
    fn what_an_unknown_target_uses_is_no_reason_to_warn() {
        let mut report = Report::new("compare", "noise");
        report_shares(0.3, 0.0, true, &mut report);
        report_shares(0.3, 0.0, false, &mut report);
        report_shares(0.0, 0.3, true, &mut report);
        let levels: Vec<_> = report.notes.iter().map(|note| note.level).collect();
        assert_eq!(
            levels,
            [NoteLevel::Info, NoteLevel::Warning, NoteLevel::Warning]
        );
    }
}
