//! What the rounds of all phases say: a table of phases, and a run for each.

use super::phase::{Beside, Phase};
use crate::{
    load::Outcome,
    measure::{Slice, errors::Kind, usage},
    report::{Level, Report, Table, Unit, build::latency_chart, format, format::count},
    scenario::rounds::{self, Figure, Rounds, Sample},
};

/// A share of the time for which the thread of the small requests waited for a processor that is told.
const WAITED: f64 = 0.1;

/// The columns of a sample. Columns 0 to 2 are quantiles of the small requests' latency; column 3 is what the load
/// beside them received in a second, 4 what failed, and 5 the share of time for which the generator of the small
/// requests waited for a processor.
const MEDIAN: (usize, f64) = (0, 0.5);
const TAIL: (usize, f64) = (1, 0.99);
const LONGEST: (usize, f64) = (2, 1.0);
const BESIDE: usize = 3;
const FAILED: usize = 4;
const WAITING: usize = 5;

/// The sample of one phase in one round.
pub(super) fn sample(small: Outcome, beside: Option<Outcome>, seconds: f64) -> Sample {
    let mut counts = Slice::default();
    for group in &small.recordings {
        counts.merge(&group.total);
    }
    let waited = small.threads.iter().map(|thread| thread.waited);
    let waited = waited.fold(0.0, f64::max);
    let latency = |(_, quantile): (usize, f64)| {
        (counts.completed > 0).then(|| counts.latencies.quantile(quantile))
    };
    let groups = || beside.iter().flat_map(|beside| &beside.recordings);
    let moved = groups().map(|group| group.total.bytes_down as f64 / group.seconds);
    let failed: u64 = groups().map(|group| group.total.errors.total()).sum();
    let notes = beside.iter().flat_map(Outcome::notes).chain(small.notes());
    Sample {
        figures: vec![
            latency(MEDIAN),
            latency(TAIL),
            latency(LONGEST),
            beside.is_some().then(|| moved.sum()),
            Some(failed as f64),
            Some(waited),
        ],
        seconds,
        notes: notes.filter(|note| note.level == Level::Warning).collect(),
        generator_bound: small.generator_bound(),
        usage: small.usage,
        counts,
    }
}

/// The rounds of each phase.
pub(super) struct Results {
    phases: Vec<(Phase, Rounds)>,
}

impl Results {
    pub(super) fn new(phases: Vec<Phase>) -> Self {
        let phases = phases.into_iter().map(|phase| (phase, Rounds::default()));
        Self {
            phases: phases.collect(),
        }
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        self.phases.iter().map(|(phase, _)| *phase).collect()
    }

    pub(super) fn add(&mut self, phase: usize, sample: Sample) {
        if let Some((_, rounds)) = self.phases.get_mut(phase) {
            rounds.add(sample);
        }
    }

    /// Writes everything into the report.
    pub(super) fn fill(&self, rounds: usize, report: &mut Report) {
        report.tables.push(self.table());
        for (phase, measured) in &self.phases {
            let mut run = measured.run(phase.to_string());
            if phase.beside == Beside::Nothing {
                run.cpu_us_per_request = usage::cpu_us_per_request(&run.usage, run.completed);
            }
            report.runs.push(run);
            warn(*phase, measured, report);
        }
        report.charts.extend(latency_chart(&report.runs));
        report.note(rounds::meaning(rounds));
        report.note(
            "ratios are to the unloaded phase of the same place (tunnel, neighbour, upstream); \
             what programs used is for small and large requests together; starved requests got no \
             answer within --timeout; those not sent were still waiting for a free connection at \
             the end",
        );
    }

    fn table(&self) -> Table {
        let heads = [
            "phase",
            "p50",
            "× unloaded",
            "p99",
            "× unloaded",
            "max",
            "answered",
            "starved",
            "not sent",
            "other errors",
            "beside",
        ];
        let row = |(phase, measured): &(Phase, Rounds)| {
            let mut row = vec![phase.to_string()];
            for (index, _) in [MEDIAN, TAIL] {
                let rounds = measured.figure(index);
                let ratio = rounds::ratios(&rounds, &self.unloaded(*phase, index));
                row.push(Figure::new("", Unit::Seconds).cell(&rounds));
                row.push(rounds::cell(ratio, |ratio| ratio.ratio()));
            }
            let longest = measured.figure(LONGEST.0).into_iter().flatten();
            row.push(rounds::cell(longest.reduce(f64::max), format::seconds));
            let errors = measured.total.errors.by_name();
            let of = |kind: Kind| errors.get(kind.name().as_ref()).copied().unwrap_or(0);
            let (starved, unsent) = (of(Kind::Timeout), of(Kind::NotSent));
            let others = (errors.values().sum::<u64>()).saturating_sub(starved + unsent);
            let counts = [measured.total.completed, starved, unsent, others];
            row.extend(counts.map(|times| count(times as f64)));
            row.push(Figure::new("", Unit::BytesPerSecond).cell(&measured.figure(BESIDE)));
            row
        };
        let rows = self.phases.iter().map(row).collect();
        Table::new("small requests beside large ones", &heads, rows)
    }

    /// A figure of the unloaded phase of the same place.
    fn unloaded(&self, phase: Phase, figure: usize) -> Vec<Option<f64>> {
        let base = Phase {
            beside: Beside::Nothing,
            ..phase
        };
        let found = self.phases.iter().find(|(phase, _)| *phase == base);
        found.map_or_else(Vec::new, |(_, rounds)| rounds.figure(figure))
    }
}

fn warn(phase: Phase, measured: &Rounds, report: &mut Report) {
    let sum = |figure| measured.figure(figure).into_iter().flatten().sum::<f64>();
    let failed = sum(FAILED);
    if matches!(phase.beside, Beside::Limit(_)) {
        report.note(format!(
            "{phase}: beside it {failed} were refused, or given up after a while"
        ));
    } else if failed > 0.0 {
        report.warn(format!(
            "{phase}: {failed} downloads beside the small requests failed"
        ));
    }
    report.notes.extend(measured.notes(&phase.to_string()));
    let waited = sum(WAITING) / measured.figure(WAITING).len().max(1) as f64;
    if waited >= WAITED {
        report.note(format!(
            "{phase}: all processors were busy: the thread of the small requests waited for one \
             {:.0} % of the time, which is part of the latencies",
            waited * 100.0
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::scenario::fairness::phase::Destination;

    fn sample(milliseconds: u64, timeouts: u64) -> Sample {
        let mut counts = Slice::default();
        for _ in 0..100 {
            counts.latencies.record(Duration::from_millis(milliseconds));
        }
        counts.completed = 100;
        counts.errors.add(Kind::Timeout, timeouts);
        counts.errors.add(Kind::Status(503), 1);
        let quantile = |at| Some(counts.latencies.quantile(at));
        let figures = [
            quantile(0.5),
            quantile(0.99),
            quantile(1.0),
            Some(8_388_608.0),
            Some(2.0),
            Some(0.2),
        ];
        Sample {
            figures: figures.to_vec(),
            counts,
            seconds: 1.0,
            ..Sample::default()
        }
    }

    #[test]
    fn phases_are_told_against_the_unloaded_one_of_their_round() {
        let phase = |destination, beside| Phase {
            destination,
            beside,
        };
        let phases = vec![
            phase(Destination::Tunnel, Beside::Nothing),
            phase(Destination::Neighbour, Beside::Nothing),
            phase(Destination::Neighbour, Beside::Paced),
            phase(Destination::Direct, Beside::Paced),
        ];
        let mut results = Results::new(phases);
        for (unloaded, loaded) in [(1, 2), (2, 6), (1, 2)] {
            // What the tunnel itself does unloaded is not the neighbour's measure.
            results.add(0, sample(unloaded * 5, 0));
            results.add(1, sample(unloaded, 0));
            results.add(2, sample(loaded, 3));
            results.add(3, sample(loaded, 0));
        }
        let mut report = Report::new("fairness", "test");
        results.fill(3, &mut report);
        let rows = &report.tables[0].rows;
        assert_eq!(rows[0][4], "1.00 (1.00–1.00)");
        assert_eq!(rows[2][0], "paced downloads, neighbour");
        assert_eq!(rows[2][4], "2.00 (2.00–3.00)");
        assert_eq!(rows[2][6..], ["300", "9", "0", "3", "8.00 MiB/s"]);
        // Nothing is known of the unloaded upstream.
        assert_eq!(rows[3][4], "–");
        assert_eq!(report.runs[2].completed, 300);
        let told = |text: &str| report.notes.iter().any(|note| note.text.contains(text));
        assert!(
            told("6 downloads beside") && told("20 %"),
            "{:?}",
            report.notes
        );
    }
}
