//! The latencies of small requests in all phases and rounds, and the table that is made of them.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    load::Outcome,
    measure::{Recording, Slice, errors::Kind, usage},
    report::{
        Level, Note, Report, Table, Usage,
        build::latency_chart,
        format::{bytes_per_second, count, seconds},
    },
    scenario::{
        fairness::phase::{Beside, Phase},
        rounds,
    },
};

/// A load thread that waited for a processor for this share of the time sent late.
const WAITED: f64 = 0.1;

/// One phase in one round.
#[derive(Debug, Default)]
pub(super) struct Sample {
    small: Slice,
    /// What programs used, what runs beside included.
    usage: BTreeMap<String, Usage>,
    /// What takes worth from the figures.
    warnings: Vec<Note>,
    generator_bound: bool,
    /// Bytes a second that came beside.
    beside: Option<f64>,
    /// Downloads beside that failed.
    failed: u64,
    /// The share of time in which the small requests' own thread waited for a processor.
    waited: f64,
}

/// All rounds of a phase.
#[derive(Default)]
struct Rounds {
    samples: Vec<Sample>,
}

impl Sample {
    /// Of the small requests, and of what ran beside them.
    pub(super) fn new(small: Outcome, beside: Option<Outcome>) -> Self {
        let waited = small
            .threads
            .iter()
            .map(|thread| thread.waited)
            .fold(0.0, f64::max);
        let mut merged = Slice::default();
        small
            .recordings
            .iter()
            .for_each(|group| merged.merge(&group.total));
        let notes = beside.iter().flat_map(Outcome::notes).chain(small.notes());
        let warnings = notes.filter(|note| note.level == Level::Warning).collect();
        let recordings = beside.as_ref().map(|beside| &beside.recordings);
        let groups = || recordings.into_iter().flatten();
        Self {
            generator_bound: small.generator_bound(),
            usage: small.usage,
            warnings,
            small: merged,
            beside: recordings.map(|_| {
                groups()
                    .map(|group| group.total.bytes_down as f64 / group.seconds)
                    .sum()
            }),
            failed: groups().map(|group| group.total.errors.total()).sum(),
            waited,
        }
    }

    /// A latency, if there is any.
    fn quantile(&self, quantile: f64) -> Option<f64> {
        (self.small.completed > 0).then(|| self.small.latencies.quantile(quantile))
    }

    /// How many failed in this way.
    fn errors(&self, kind: Kind) -> u64 {
        let errors = self.small.errors.by_name();
        errors.get(kind.name().as_ref()).copied().unwrap_or(0)
    }
}

impl Rounds {
    fn quantile(&self, quantile: f64) -> Vec<Option<f64>> {
        self.samples
            .iter()
            .map(|sample| sample.quantile(quantile))
            .collect()
    }

    fn merged(&self) -> Slice {
        let mut merged = Slice::default();
        self.samples
            .iter()
            .for_each(|sample| merged.merge(&sample.small));
        merged
    }

    fn sum(&self, of: impl Fn(&Sample) -> u64) -> u64 {
        self.samples.iter().map(of).sum()
    }
}

/// All phases.
pub(super) struct Results {
    phases: Vec<Phase>,
    rounds: Vec<Rounds>,
}

impl Results {
    /// Without figures yet.
    pub(super) fn new(phases: Vec<Phase>) -> Self {
        Self {
            rounds: phases.iter().map(|_| Rounds::default()).collect(),
            phases,
        }
    }

    /// The phases, in the order of the table.
    pub(super) fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// Adds the next round of the phase with this number.
    pub(super) fn add(&mut self, phase: usize, sample: Sample) {
        if let Some(rounds) = self.rounds.get_mut(phase) {
            rounds.samples.push(sample);
        }
    }

    /// Runs, table, chart and notes.
    pub(super) fn fill(&self, duration: Duration, rounds: usize, report: &mut Report) {
        report.tables.push(self.table());
        for (phase, measured) in self.phases.iter().zip(&self.rounds) {
            let recording = Recording {
                name: phase.to_string(),
                seconds: duration.as_secs_f64() * measured.samples.len() as f64,
                total: measured.merged(),
                timeline: Vec::new(),
            };
            let mut run = recording.into_run(phase.to_string());
            for sample in &measured.samples {
                usage::add(&mut run.usage, &sample.usage);
                run.generator_bound |= sample.generator_bound;
            }
            if phase.beside == Beside::Nothing {
                // Else most of the cost is that of the large requests.
                run.cpu_us_per_request = usage::cpu_us_per_request(&run.usage, run.completed);
            }
            report.runs.push(run);
            self.warn(*phase, measured, report);
        }
        report.charts.extend(latency_chart(&report.runs));
        report.note(rounds::meaning(rounds));
        report.note(
            "ratios are to the unloaded phase of the same place (tunnel, neighbour, upstream); \
             what programs used is for small and large requests together; starved requests got no answer within --timeout; those not sent were \
             still waiting for a free connection at the end",
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
        let rows = self
            .phases
            .iter()
            .zip(&self.rounds)
            .map(|(phase, measured)| {
                let mut row = vec![phase.to_string()];
                for quantile in [0.5, 0.99] {
                    let latencies = measured.quantile(quantile);
                    row.push(rounds::cell(rounds::median(&latencies), seconds));
                    let ratio = rounds::ratios(&latencies, &self.unloaded(*phase, quantile));
                    row.push(rounds::cell(ratio, |ratio| ratio.ratio()));
                }
                let longest = measured
                    .quantile(1.0)
                    .into_iter()
                    .flatten()
                    .reduce(f64::max);
                row.push(rounds::cell(longest, seconds));
                let starved = measured.sum(|sample| sample.errors(Kind::Timeout));
                let unsent = measured.sum(|sample| sample.errors(Kind::NotSent));
                let failed = measured.sum(|sample| sample.small.errors.total());
                let others = failed.saturating_sub(starved + unsent);
                let answered = measured.sum(|sample| sample.small.completed);
                row.extend([answered, starved, unsent, others].map(|times| count(times as f64)));
                let beside: Vec<_> = measured
                    .samples
                    .iter()
                    .map(|sample| sample.beside)
                    .collect();
                row.push(rounds::cell(rounds::median(&beside), bytes_per_second));
                row
            });
        Table {
            title: "small requests beside large ones".to_owned(),
            columns: heads.map(str::to_owned).to_vec(),
            rows: rows.collect(),
        }
    }

    /// The same figure at the same place without anything beside.
    fn unloaded(&self, phase: Phase, quantile: f64) -> Vec<Option<f64>> {
        let base = Phase {
            spot: phase.spot,
            beside: Beside::Nothing,
        };
        let mut all = self.phases.iter().zip(&self.rounds);
        let found = all.find(|(phase, _)| **phase == base);
        found
            .map(|(_, rounds)| rounds.quantile(quantile))
            .unwrap_or_default()
    }

    fn warn(&self, phase: Phase, measured: &Rounds, report: &mut Report) {
        let failed = measured.sum(|sample| sample.failed);
        if matches!(phase.beside, Beside::Limit(_)) {
            report.note(format!(
                "{phase}: beside it {failed} were refused, or given up after a while"
            ));
        } else if failed > 0 {
            report.warn(format!(
                "{phase}: {failed} downloads beside the small requests failed"
            ));
        }
        let samples = measured.samples.iter();
        let warnings: Vec<_> = samples.map(|sample| sample.warnings.as_slice()).collect();
        report
            .notes
            .extend(rounds::notes(&phase.to_string(), &warnings));
        let count = measured.samples.len().max(1) as f64;
        let waited = measured
            .samples
            .iter()
            .map(|sample| sample.waited)
            .sum::<f64>()
            / count;
        if waited >= WAITED {
            report.note(format!(
                "{phase}: all processors were busy: the thread of the small requests waited for \
                 one {:.0} % of the time, which is part of the latencies",
                waited * 100.0
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::fairness::phase::Spot;

    fn sample(milliseconds: u64, timeouts: u64) -> Sample {
        let mut small = Slice::default();
        for _ in 0..100 {
            small.latencies.record(Duration::from_millis(milliseconds));
        }
        small.completed = 100;
        small.errors.add(Kind::Timeout, timeouts);
        small.errors.add(Kind::Status(503), 1);
        Sample {
            small,
            beside: Some(8_388_608.0),
            failed: 2,
            waited: 0.2,
            ..Sample::default()
        }
    }

    #[test]
    fn phases_are_told_against_the_unloaded_one_of_their_round() {
        let phase = |spot, beside| Phase { spot, beside };
        let phases = vec![
            phase(Spot::Tunnel, Beside::Nothing),
            phase(Spot::Neighbour, Beside::Nothing),
            phase(Spot::Neighbour, Beside::Paced),
            phase(Spot::Direct, Beside::Paced),
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
        results.fill(Duration::from_secs(1), 3, &mut report);
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
