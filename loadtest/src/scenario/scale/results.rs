//! Cost against load: the runs of all levels and rounds, and the table and charts made of them.

use std::collections::BTreeSet;

use crate::{
    report::{
        Note, NoteLevel, Report, Run, Scale,
        tables::{CPU_PER_REQUEST, Figure, P50, P99, PEAK_MEMORY, RATE, THROUGHPUT},
    },
    scenario::{
        rounds::{self, Rounds},
        scale::axis::Axis,
    },
};

/// The first is the cost, beside which its ratio to the first level stands.
const FIGURES: [Figure; 6] = [CPU_PER_REQUEST, RATE, P50, P99, THROUGHPUT, PEAK_MEMORY];

/// How many of the figures are drawn.
const DRAWN: usize = 4;

/// The runs of all levels.
pub(super) struct Results {
    axis: Axis,
    /// By level, then by round: all runs of one report.
    levels: Vec<Vec<Vec<Run>>>,
    told: BTreeSet<String>,
}

impl Results {
    /// Without runs yet.
    pub(super) fn new(axis: Axis) -> Self {
        Self {
            levels: axis.levels().iter().map(|_| Vec::new()).collect(),
            axis,
            told: BTreeSet::new(),
        }
    }

    /// Adds the next round of a level, by its number. Its notes go to the report, each once.
    pub(super) fn add(&mut self, level: usize, measured: Report, report: &mut Report) {
        let Some(rounds) = self.levels.get_mut(level) else {
            return;
        };
        rounds.push(measured.runs);
        let name = &self.axis.levels()[level].text;
        for Note { level, text } in measured.notes {
            let text_here = format!("{} {name}: {text}", self.axis.flag);
            let is_new = self.told.insert(text);
            // What is a warning at one level may be none at another; what only informs is not.
            let is_new_here = self.told.insert(text_here.clone());
            if is_new || (level == NoteLevel::Warning && is_new_here) {
                let text = text_here;
                report.notes.push(Note { level, text });
            }
        }
    }

    /// Whether nothing can be shown.
    pub(super) fn is_empty(&self) -> bool {
        self.names().is_empty()
    }

    /// A table and the runs of all levels for each run of the scenario, and a chart for each figure.
    pub(super) fn fill(self, report: &mut Report) {
        let names = self.names();
        let flag = &self.axis.flag;
        let mut by_name = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let levels: Vec<_> = self
                .levels
                .iter()
                .map(|rounds| of_run(rounds, number))
                .collect();
            let rows = self.axis.levels().iter().zip(&levels);
            let rows = rows.map(|(level, rounds)| (level.text.clone(), rounds, levels.first()));
            let rows: Vec<_> = rows.collect();
            let title = format!("{name} by {flag}");
            let table = rounds::table(title, flag, &FIGURES, (1, "× first"), &rows);
            report.tables.push(table.with_errors(&rows));
            let measured = rows.iter().filter(|(_, rounds, _)| !rounds.is_empty());
            let runs =
                measured.map(|(level, rounds, _)| rounds.run(format!("{flag} {level}, {name}")));
            report.runs.extend(runs);
            by_name.push((name, levels));
        }
        let x = self.axis.of_chart();
        let charts = FIGURES.iter().take(DRAWN).filter_map(|figure| {
            let lines = by_name.iter().map(|(name, levels)| {
                let levels = self.axis.levels().iter().zip(levels);
                // Zero has no place on a logarithmic axis.
                let levels = levels.filter(|(level, _)| x.scale != Scale::Log || level.value > 0.0);
                let points = levels.map(|(level, rounds)| (level.value, rounds.median(figure)));
                (*name, points.collect())
            });
            rounds::chart(
                format!("{} by {flag}", figure.title),
                figure,
                x.clone(),
                lines,
            )
        });
        report.charts.extend(charts);
    }

    /// Names of the runs: those of the report with most of them. A name that holds the level, and so
    /// is another at each level, gets an `N` in its place.
    fn names(&self) -> Vec<String> {
        let levels = self.axis.levels().iter().zip(&self.levels);
        let reports =
            levels.flat_map(|(level, rounds)| rounds.iter().map(move |runs| (level, runs)));
        let Some((level, runs)) = reports.max_by_key(|(_, runs)| runs.len()) else {
            return Vec::new();
        };
        let named = runs.iter().enumerate().map(|(number, run)| {
            let mut others = self
                .levels
                .iter()
                .flatten()
                .filter_map(|runs| runs.get(number));
            match others.all(|other| other.name == run.name) {
                true => run.name.clone(),
                false => run.name.replace(&level.text, "N"),
            }
        });
        named.collect()
    }
}

/// The rounds of one level, of the run with this number.
fn of_run(rounds: &[Vec<Run>], number: usize) -> Rounds {
    let mut all = Rounds::default();
    for run in rounds.iter().filter_map(|runs| runs.get(number)) {
        all.add(run.clone(), Vec::new());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, cost: f64, completed: u64) -> Report {
        let mut run = Run {
            name: name.to_owned(),
            seconds: 2.0,
            completed,
            rate: completed as f64 / 2.0,
            cpu_us_per_request: Some(cost),
            ..Run::default()
        };
        run.errors.insert("timeout".to_owned(), 1);
        let mut report = Report::new("http", "test");
        report.runs.push(run);
        report.note("always so");
        report.warn("bad");
        report
    }

    #[test]
    fn cost_is_told_by_level_and_against_the_first() {
        let mut results = Results::new("connections=1,100".parse().unwrap());
        let mut whole = Report::new("scale", "test");
        assert!(results.is_empty());
        for (level, cost, completed) in [
            (0, 10.0, 20),
            (1, 5.0, 40),
            (0, 20.0, 20),
            (1, 12.0, 60),
            (0, 10.0, 20),
            (1, 6.0, 80),
        ] {
            results.add(level, report("a", cost, completed), &mut whole);
        }
        results.fill(&mut whole);
        let rows = &whole.tables[0].rows;
        assert_eq!(rows[0][..4], ["1", "10.0 µs", "1.00 (1.00–1.00)", "10/s"]);
        // Within the rounds: the second was slow for both levels.
        assert_eq!(rows[1][..4], ["100", "6.00 µs", "0.60 (0.50–0.60)", "30/s"]);
        assert_eq!(whole.runs[1].name, "connections 100, a");
        assert_eq!(rows[0].last().unwrap(), "3");
        let points = &whole.charts[0].series[0].points;
        assert_eq!(points[..], [(1.0, 10e-6), (100.0, 6e-6)]);
        assert_eq!(whole.charts.len(), 2, "there are no latencies");
        let notes: Vec<_> = whole.notes.iter().map(|note| note.text.as_str()).collect();
        let expected = [
            "connections 1: always so",
            "connections 1: bad",
            "connections 100: bad",
        ];
        assert_eq!(notes, expected);
    }

    #[test]
    fn names_that_hold_the_level_become_one() {
        let mut results = Results::new("tunnels=1,100".parse().unwrap());
        let mut whole = Report::new("scale", "test");
        for (level, name) in [(0, "over 1 tunnels"), (1, "over 100 tunnels")] {
            results.add(level, report(name, 1.0, 1), &mut whole);
        }
        results.fill(&mut whole);
        assert_eq!(whole.tables[0].title, "over N tunnels by tunnels");
    }
}
