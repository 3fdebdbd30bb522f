//! Cost against load: the runs of all levels and rounds, and the table and charts made of them.

use std::collections::BTreeSet;

use crate::{
    measure::usage::{self, is_target},
    report::Axis as ChartAxis,
    report::{Chart, Level as Grade, Note, Report, Run, Scale, Series, Table, Unit, format},
    scenario::{rounds, scale::axis::Axis},
};

/// A figure of a run: its head, how it is written, its value, and whether it is drawn.
struct Figure {
    title: &'static str,
    unit: Unit,
    of: fn(&Run) -> Option<f64>,
    is_drawn: bool,
}

const fn figure(
    title: &'static str,
    unit: Unit,
    is_drawn: bool,
    of: fn(&Run) -> Option<f64>,
) -> Figure {
    Figure {
        title,
        unit,
        of,
        is_drawn,
    }
}

/// The first is the cost, beside which its ratio to the first level stands.
const FIGURES: [Figure; 6] = [
    figure("CPU/request", Unit::Seconds, true, |run| {
        Some(run.cpu_us_per_request? / 1e6)
    }),
    figure("rate", Unit::PerSecond, true, |run| Some(run.rate)),
    figure("p50", Unit::Seconds, true, |run| {
        Some(run.latency.as_ref()?.p50)
    }),
    figure("p99", Unit::Seconds, true, |run| {
        Some(run.latency.as_ref()?.p99)
    }),
    figure("throughput", Unit::BytesPerSecond, false, |run| {
        Some((run.bytes_up + run.bytes_down) as f64 / run.seconds)
    }),
    figure("peak memory", Unit::Bytes, false, memory),
];

/// Memory of all roles that belong to the target.
fn memory(run: &Run) -> Option<f64> {
    let target: Vec<_> = run
        .usage
        .iter()
        .filter(|(role, _)| is_target(role))
        .collect();
    let sum: u64 = target.iter().map(|(_, usage)| usage.peak_rss).sum();
    (!target.is_empty()).then_some(sum as f64)
}

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
        let name = self
            .axis
            .levels()
            .get(level)
            .map_or("", |level| level.text.as_str());
        for note in measured.notes {
            let text = format!("{} {name}: {}", self.axis.flag, note.text);
            let is_new = self.told.insert(note.text.clone());
            // What is a warning at one level may be none at another; what only informs is not.
            let is_new_here = self.told.insert(text.clone());
            if is_new || (note.level == Grade::Warning && is_new_here) {
                report.notes.push(Note {
                    level: note.level,
                    text,
                });
            }
        }
        if let Some(rounds) = self.levels.get_mut(level) {
            rounds.push(measured.runs);
        }
    }

    /// Whether nothing can be shown.
    pub(super) fn is_empty(&self) -> bool {
        self.names().is_empty()
    }

    /// A table and the runs of all levels for each run of the scenario, and a chart for each figure.
    pub(super) fn fill(&self, report: &mut Report) {
        let names = self.names();
        for (number, name) in names.iter().enumerate() {
            report.tables.push(self.table(number, name));
            let levels = 0..self.levels.len();
            let runs = levels.filter_map(|level| self.run(level, number, name));
            report.runs.extend(runs);
        }
        for figure in FIGURES.iter().filter(|figure| figure.is_drawn) {
            report.charts.extend(self.chart(figure, &names));
        }
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
        let others = || self.levels.iter().flatten();
        let named = runs.iter().enumerate().map(|(number, run)| {
            let is_same =
                |runs: &Vec<Run>| runs.get(number).is_none_or(|other| other.name == run.name);
            if others().all(is_same) {
                run.name.clone()
            } else {
                run.name.replace(&level.text, "N")
            }
        });
        named.collect()
    }

    /// The median of a figure at one level, of the run with this number.
    fn median(&self, level: usize, number: usize, figure: &Figure) -> Option<f64> {
        rounds::median(&self.values(level, number, figure))
    }

    /// The same in each round.
    fn values(&self, level: usize, number: usize, figure: &Figure) -> Vec<Option<f64>> {
        let rounds = self.levels.get(level).into_iter().flatten();
        let values = rounds.map(|runs| runs.get(number).and_then(figure.of));
        values.collect()
    }

    /// All rounds of one level as one run, if there are any.
    fn run(&self, level: usize, number: usize, name: &str) -> Option<Run> {
        let rounds = self.levels.get(level)?;
        let mut rounds: Vec<_> = rounds.iter().filter_map(|runs| runs.get(number)).collect();
        let costs = rounds.iter().map(|run| run.cpu_us_per_request);
        let cost = rounds::median(&costs.collect::<Vec<_>>());
        let p50 = |run: &Run| run.latency.as_ref().map_or(0.0, |latency| latency.p50);
        rounds.sort_by(|one, other| p50(one).total_cmp(&p50(other)));
        let mut sum = Run::clone(rounds.get(rounds.len() / 2)?);
        let middle = rounds.len() / 2;
        for (_, other) in rounds
            .iter()
            .enumerate()
            .filter(|(place, _)| *place != middle)
        {
            sum.seconds += other.seconds;
            sum.completed += other.completed;
            sum.bytes_up += other.bytes_up;
            sum.bytes_down += other.bytes_down;
            sum.generator_bound |= other.generator_bound;
            for (kind, times) in &other.errors {
                *sum.errors.entry(kind.clone()).or_default() += times;
            }
            usage::add(&mut sum.usage, &other.usage);
        }
        sum.rate = sum.completed as f64 / sum.seconds;
        sum.cpu_us_per_request = cost;
        let text = &self.axis.levels().get(level)?.text;
        sum.name = format!("{} {text}, {name}", self.axis.flag);
        Some(sum)
    }

    fn table(&self, number: usize, name: &str) -> Table {
        let mut columns = vec![self.axis.flag.clone()];
        for (place, figure) in FIGURES.iter().enumerate() {
            columns.push(figure.title.to_owned());
            if place == 0 {
                columns.push("× first".to_owned());
            }
        }
        columns.push("errors".to_owned());
        let row = |(place, level): (usize, &super::axis::Level)| {
            let mut row = vec![level.text.clone()];
            for (column, figure) in FIGURES.iter().enumerate() {
                let value = self.median(place, number, figure);
                row.push(rounds::cell(value, |value| {
                    format::value(figure.unit, value)
                }));
                if column == 0 {
                    let (values, first) = (
                        self.values(place, number, figure),
                        self.values(0, number, figure),
                    );
                    let ratio = rounds::ratios(&values, &first);
                    row.push(rounds::cell(ratio, |ratio| match values.len() {
                        1 => format!("{:.2}", ratio.median),
                        _ => ratio.ratio(),
                    }));
                }
            }
            row.push(format::count(self.errors(place, number) as f64));
            row
        };
        Table {
            title: format!("{name} by {}", self.axis.flag),
            columns,
            rows: self.axis.levels().iter().enumerate().map(row).collect(),
        }
    }

    fn errors(&self, level: usize, number: usize) -> u64 {
        let rounds = self.levels.get(level).into_iter().flatten();
        let runs = rounds.filter_map(|runs| runs.get(number));
        runs.flat_map(|run| run.errors.values()).sum()
    }

    fn chart(&self, figure: &Figure, names: &[String]) -> Option<Chart> {
        let x = self.axis.of_chart();
        let has_place = |value: f64| x.scale != Scale::Log || value > 0.0;
        let lines = names.iter().enumerate().map(|(number, name)| {
            let levels = self.axis.levels().iter().enumerate();
            let mut points: Vec<_> = levels
                .filter(|(_, level)| has_place(level.value))
                .filter_map(|(place, level)| {
                    Some((level.value, self.median(place, number, figure)?))
                })
                .collect();
            points.sort_by(|(left, _), (right, _)| left.total_cmp(right));
            Series::new(name, points)
        });
        let y = ChartAxis::new(figure.title, figure.unit, Scale::Linear);
        let title = format!("{} by {}", figure.title, self.axis.flag);
        Chart::new(title, x.clone(), y, lines).if_any()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Recording, Slice};

    fn report(name: &str, cost: f64, completed: u64) -> Report {
        let recording = Recording {
            name: "a".to_owned(),
            seconds: 2.0,
            total: Slice {
                completed,
                ..Slice::default()
            },
            timeline: Vec::new(),
        };
        let mut run = recording.into_run(name);
        run.cpu_us_per_request = Some(cost);
        run.errors.insert("timeout".to_owned(), 1);
        let mut report = Report::new("http", "test");
        report.runs.push(run);
        report.note("always the same");
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
        let run = &whole.runs[1];
        assert_eq!(
            (run.name.as_str(), run.completed),
            ("connections 100, a", 180)
        );
        assert_eq!((run.rate, run.errors["timeout"]), (30.0, 3));
        assert_eq!(
            (
                rows[0].last().unwrap().as_str(),
                rows[1].last().unwrap().as_str()
            ),
            ("3", "3")
        );
        assert_eq!(
            whole.charts[0].series[0].points,
            [(1.0, 10e-6), (100.0, 6e-6)]
        );
        assert_eq!(whole.charts.len(), 2, "there are no latencies");
        let notes: Vec<_> = whole.notes.iter().map(|note| note.text.as_str()).collect();
        let expected = [
            "connections 1: always the same",
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
        assert_eq!(results.names(), ["over N tunnels"]);
        results.fill(&mut whole);
        assert_eq!(whole.tables[0].title, "over N tunnels by tunnels");
    }
}
