//! What the rounds of all phases say: a table of phases, and a run for each.

use std::collections::BTreeMap;

use super::phase::{BackgroundLoad, Phase};
use crate::{
    load::Outcome,
    measure::errors::FailureKind,
    report::{
        Report,
        build::latency_chart,
        format::count,
        tables::{MAX, P50, P99, THROUGHPUT},
    },
    scenario::rounds::{self, Rounds},
};

/// The rounds of one phase.
pub(super) struct PhaseRounds {
    pub(super) phase: Phase,
    small: Rounds,
    /// What ran beside the small requests.
    beside: Rounds,
}

impl PhaseRounds {
    /// Adds a round.
    pub(super) fn add(&mut self, small: Outcome, beside: Option<Outcome>) {
        let (mut run, mut notes) = small.into_run();
        if let Some(beside) = beside {
            // What programs used was for both.
            run.cpu_us_per_request = None;
            let (run, of_beside) = beside.into_run();
            self.beside.add(run, Vec::new());
            notes.extend(of_beside);
        }
        self.small.add(run, notes);
    }
}

/// The rounds of all phases.
pub(super) struct Results {
    pub(super) phases: Vec<PhaseRounds>,
}

impl Results {
    pub(super) fn new(phases: Vec<Phase>) -> Self {
        let phases = phases.into_iter().map(|phase| PhaseRounds {
            phase,
            small: Rounds::default(),
            beside: Rounds::default(),
        });
        Self {
            phases: phases.collect(),
        }
    }

    /// Writes everything into the report.
    pub(super) fn fill(&self, rounds: usize, report: &mut Report) {
        self.add_table(report);
        for PhaseRounds {
            phase,
            small,
            beside,
        } in &self.phases
        {
            report.runs.push(small.run(phase.to_string()));
            let failed: u64 = beside.errors().values().sum();
            if matches!(phase.beside, BackgroundLoad::Limit(_)) {
                report.note(format!(
                    "{phase}: beside it {failed} were refused, or given up after a while"
                ));
            } else if failed > 0 {
                report.warn(format!(
                    "{phase}: {failed} downloads beside the small requests failed"
                ));
            }
            report.notes.extend(small.notes(&phase.to_string()));
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

    fn add_table<'a>(&'a self, report: &mut Report) {
        let row = |result: &'a PhaseRounds| {
            let base = self.unloaded(result.phase);
            (result.phase.to_string(), &result.small, base)
        };
        let rows: Vec<_> = self.phases.iter().map(row).collect();
        let title = "small requests beside large ones".to_owned();
        let ratios = (2, "× unloaded");
        let mut table = rounds::table(title, "phase", &[P50, P99], ratios, &rows);
        let more = "max,answered,starved,not sent,other errors,beside";
        table.columns.extend(more.split(',').map(str::to_owned));
        for (cells, result) in table.rows.iter_mut().zip(&self.phases) {
            cells.extend(more_cells(result));
        }
        report.tables.push(table);
    }

    /// The unloaded phase of the same destination.
    fn unloaded(&self, phase: Phase) -> Option<&Rounds> {
        let base = Phase {
            beside: BackgroundLoad::Nothing,
            ..phase
        };
        let found = self.phases.iter().find(|result| result.phase == base);
        found.map(|result| &result.small)
    }
}

fn more_cells(PhaseRounds { small, beside, .. }: &PhaseRounds) -> [String; 6] {
    let longest = small.figure(&MAX).into_iter().flatten();
    let errors: BTreeMap<String, u64> = small.errors();
    let of = |kind: FailureKind| errors.get(kind.name().as_ref()).copied().unwrap_or(0);
    let (starved, unsent) = (of(FailureKind::Timeout), of(FailureKind::NotSent));
    let others = errors.values().sum::<u64>() - starved - unsent;
    let times = |times: u64| count(times as f64);
    [
        MAX.cell(longest.reduce(f64::max)),
        times(small.completed()),
        times(starved),
        times(unsent),
        times(others),
        THROUGHPUT.cell(beside.median(&THROUGHPUT)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::{Run, latency::Latencies},
        scenario::fairness::phase::Destination,
    };

    fn run(milliseconds: u64, timeouts: u64) -> Run {
        let mut latencies = Latencies::new();
        latencies.record(std::time::Duration::from_millis(milliseconds));
        let errors = [("timeout", timeouts), ("status_503", 1)];
        let errors = errors.map(|(kind, times)| (kind.to_owned(), times));
        Run {
            completed: 100,
            seconds: 1.0,
            bytes_down: 8 << 20,
            latency: latencies.summary(),
            errors: errors.into(),
            ..Run::default()
        }
    }

    #[test]
    fn phases_are_told_against_the_unloaded_one_of_their_round() {
        let phase = |destination, beside| Phase {
            destination,
            beside,
        };
        let mut results = Results::new(vec![
            phase(Destination::Tunnel, BackgroundLoad::Nothing),
            phase(Destination::Neighbour, BackgroundLoad::Nothing),
            phase(Destination::Neighbour, BackgroundLoad::Paced),
            phase(Destination::Direct, BackgroundLoad::Paced),
        ]);
        for (unloaded, loaded) in [(1, 2), (2, 6), (1, 2)] {
            // What the tunnel itself does unloaded is not the neighbour's measure.
            let rounds = [
                run(unloaded * 5, 0),
                run(unloaded, 0),
                run(loaded, 3),
                run(loaded, 0),
            ];
            for (result, run) in results.phases.iter_mut().zip(rounds) {
                result.small.add(run, Vec::new());
            }
            results.phases[2].beside.add(run(1, 1), Vec::new());
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
        assert!(told("6 downloads beside"), "{:?}", report.notes);
    }
}
