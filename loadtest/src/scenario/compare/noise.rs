//! What else happened on the machine while targets were measured. It is told, never corrected for.

use std::fs;

use crate::{
    measure::usage::{Meter, Roles},
    report::{Report, format},
};

/// A share of the machine above which others were too loud.
const LOUD: f64 = 0.05;

/// A load average above this, for each core, says that others use the machine.
const LOADED: f64 = 0.5;

/// Processor time of the whole machine since it started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    stolen: u64,
    all: u64,
}

/// One stretch of time that is watched.
pub(super) struct Watch {
    before: Option<Ticks>,
    meter: Meter,
}

impl Watch {
    /// From now on. What the roles use is no noise.
    pub(super) fn start(roles: &Roles) -> Self {
        Self {
            before: ticks(),
            meter: Meter::start(roles.clone()),
        }
    }
}

/// Sums over all watched stretches, in seconds of processor time.
#[derive(Debug, Default)]
pub(super) struct Noise {
    others: f64,
    stolen: f64,
    all: f64,
}

impl Noise {
    /// Ends a stretch.
    pub(super) fn add(&mut self, watch: Watch) {
        let ours: f64 = watch
            .meter
            .finish()
            .values()
            .map(|usage| usage.cpu_seconds)
            .sum();
        if let (Some(before), Some(after)) = (watch.before, ticks()) {
            let each = rustix::param::clock_ticks_per_second().max(1) as f64;
            self.count(before, after, ours, each);
        }
    }

    fn count(&mut self, before: Ticks, after: Ticks, ours: f64, each: f64) {
        let passed = |of: fn(&Ticks) -> u64| of(&after).saturating_sub(of(&before)) as f64 / each;
        self.others += (passed(|ticks| ticks.busy) - ours).max(0.0);
        self.stolen += passed(|ticks| ticks.stolen);
        self.all += passed(|ticks| ticks.all);
    }

    /// Notes for the report. Where not all processes that were measured are known (`is_partial`),
    /// theirs look like others', which is no reason to warn.
    pub(super) fn tell(&self, load_average: Option<f64>, is_partial: bool, report: &mut Report) {
        if let Some(average) = load_average {
            let cores = report.machine.cores;
            let text = format!(
                "load average at the start: {} on {cores} cores",
                format::count(average)
            );
            if average > cores as f64 * LOADED {
                report.warn(format!("{text}; other programs were using the machine"));
            } else {
                report.note(text);
            }
        }
        if self.all <= 0.0 {
            return;
        }
        let (others, stolen) = (self.others / self.all, self.stolen / self.all);
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
}

/// How many programs ran or wanted to, over the last minute.
pub(super) fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

fn ticks() -> Option<Ticks> {
    parse(&fs::read_to_string("/proc/stat").ok()?)
}

/// The first line: user, nice, system, idle, waiting, interrupts (two kinds), stolen. What follows
/// is contained in the first two.
fn parse(text: &str) -> Option<Ticks> {
    let fields = text
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace();
    let fields: Vec<u64> = fields
        .map_while(|field| field.parse().ok())
        .take(8)
        .collect();
    let [user, nice, system, idle, waiting, hard, soft, stolen] = fields.try_into().ok()?;
    let busy = user + nice + system + hard + soft;
    Some(Ticks {
        busy,
        stolen,
        all: busy + idle + waiting + stolen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Level;

    #[test]
    fn the_kernels_line_is_understood() {
        let text = "cpu  10 20 30 400 50 6 7 8 5 5\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let expected = Ticks {
            busy: 73,
            stolen: 8,
            all: 531,
        };
        assert_eq!(parse(text), Some(expected));
        assert_eq!(parse("cpu  1 2 3\n"), None);
        assert!(ticks().is_some() && load_average().is_some());
    }

    #[test]
    fn what_is_ours_is_no_noise() {
        let mut noise = Noise::default();
        let after = Ticks {
            busy: 300,
            stolen: 20,
            all: 1000,
        };
        noise.count(Ticks::default(), after, 2.5, 100.0);
        assert!((noise.others - 0.5).abs() < 1e-9 && (noise.stolen - 0.2).abs() < 1e-9);
        let mut report = Report::new("compare", "noise");
        noise.tell(None, false, &mut report);
        assert!(report.notes[0].text.contains("5.0 %"), "{:?}", report.notes);
        // What an unknown target uses is no reason to warn.
        noise.others = 3.0;
        noise.tell(None, true, &mut report);
        noise.tell(None, false, &mut report);
        let levels = report.notes.iter().map(|note| note.level);
        assert_eq!(
            levels.collect::<Vec<_>>(),
            [Level::Info, Level::Info, Level::Warning]
        );
    }
}
