//! The figures of all rounds, and the tables and charts that are made of them.

use crate::{
    measure::{Recording, Slice, usage},
    report::{
        Axis, Chart, Report, Run, Scale, Series, Table, Unit,
        build::latency_chart,
        format::{self, count},
    },
    scenario::{
        compare::sample::{Figure, Level, Sample},
        rounds,
    },
};

/// All figures: one [`Cell`] for each level of load and target.
pub(super) struct Results {
    levels: Vec<Level>,
    names: Vec<String>,
    cells: Vec<Vec<Cell>>,
}

/// One level over one target.
#[derive(Default)]
struct Cell {
    rounds: Vec<Sample>,
    /// What was counted in all of them.
    all: Slice,
}

impl Cell {
    fn figure(&self, figure: Figure) -> Vec<Option<f64>> {
        self.rounds
            .iter()
            .map(|sample| sample.figures.get(&figure).copied())
            .collect()
    }

    /// All rounds as one run, if there are any.
    fn run(&self, level: Level, name: &str) -> Option<Run> {
        if self.rounds.is_empty() {
            return None;
        }
        let mut total = Slice::default();
        total.merge(&self.all);
        let seconds: f64 = self.rounds.iter().map(|sample| sample.seconds).sum();
        let recording = Recording {
            name: name.to_owned(),
            // A target that takes no connection for a transfer takes no time either.
            seconds: seconds.max(1e-3),
            total,
            timeline: Vec::new(),
        };
        let mut run = recording.into_run(name);
        for sample in &self.rounds {
            usage::add(&mut run.usage, &sample.usage);
            run.generator_bound |= sample.generator_bound;
        }
        if matches!(level, Level::Http(_)) {
            run.cpu_us_per_request = usage::cpu_us_per_request(&run.usage, run.completed);
        }
        Some(run)
    }
}

impl Results {
    /// Without figures yet.
    pub(super) fn new(levels: Vec<Level>, names: Vec<String>) -> Self {
        let row = || names.iter().map(|_| Cell::default()).collect();
        Self {
            cells: levels.iter().map(|_| row()).collect(),
            levels,
            names,
        }
    }

    /// The levels of load.
    pub(super) fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// Adds the next round of a level and a target, by their numbers.
    pub(super) fn add(&mut self, level: usize, target: usize, mut sample: Sample) {
        let cell = self
            .cells
            .get_mut(level)
            .and_then(|cells| cells.get_mut(target));
        let Some(cell) = cell else { return };
        if let Some(slice) = sample.slice.take() {
            cell.all.merge(&slice);
        }
        cell.rounds.push(sample);
    }

    /// Whether anything was completed.
    pub(super) fn has_any(&self) -> bool {
        self.cells
            .iter()
            .flatten()
            .any(|cell| cell.all.completed > 0)
    }

    /// Runs, tables, charts and warnings.
    pub(super) fn fill(&self, base: &str, report: &mut Report) {
        let of_base = self.names.iter().position(|name| name == base);
        for (level, cells) in self.levels.iter().zip(&self.cells) {
            report.tables.push(self.table(*level, cells, of_base));
        }
        report.charts.extend(self.over_connections());
        for (level, cells) in self.levels.iter().zip(&self.cells) {
            let named = self.names.iter().zip(cells);
            let mut runs: Vec<_> = named
                .filter_map(|(name, cell)| cell.run(*level, name))
                .collect();
            let curves = latency_chart(&runs).map(|chart| Chart {
                title: format!("{level}: latency by percentile"),
                ..chart
            });
            report.charts.extend(curves);
            report.charts.extend(self.over_rounds(*level, cells));
            for run in &mut runs {
                run.name = format!("{level}, {}", run.name);
            }
            report.runs.extend(runs);
        }
        for (level, cells) in self.levels.iter().zip(&self.cells) {
            for (name, cell) in self.names.iter().zip(cells) {
                warn(*level, name, cell, report);
            }
        }
    }

    fn table(&self, level: Level, cells: &[Cell], base: Option<usize>) -> Table {
        let base_name = base
            .and_then(|base| self.names.get(base))
            .map_or("base", String::as_str);
        let mut columns = vec!["target".to_owned()];
        for figure in level.figures() {
            columns.extend([figure.title().to_owned(), format!("× {base_name}")]);
        }
        columns.push("errors".to_owned());
        let base = base.and_then(|base| cells.get(base));
        let row = |(name, cell): (&String, &Cell)| {
            let mut row = vec![name.clone()];
            for figure in level.figures() {
                let rounds = cell.figure(*figure);
                let value = |value| format::value(figure.unit(), value);
                row.push(rounds::cell(rounds::median(&rounds), value));
                let base = base.map(|base| base.figure(*figure)).unwrap_or_default();
                let ratio = rounds::ratios(&rounds, &base);
                row.push(rounds::cell(ratio, |ratio| ratio.ratio()));
            }
            row.push(if cell.rounds.is_empty() {
                "not measured".to_owned()
            } else {
                count(cell.all.errors.total() as f64)
            });
            row
        };
        Table {
            title: level.to_string(),
            columns,
            rows: self.names.iter().zip(cells).map(row).collect(),
        }
    }

    /// Cost, rate and latencies against the number of connections.
    fn over_connections(&self) -> Vec<Chart> {
        let mut levels: Vec<_> = self.levels.iter().zip(&self.cells).collect();
        levels.retain(|(level, _)| matches!(level, Level::Http(_)));
        if levels.len() < 2 {
            return Vec::new();
        }
        levels.sort_by_key(|(level, _)| match level {
            Level::Http(connections) => *connections,
            Level::Download(_) | Level::Upload(_) => 0,
        });
        let chart = |figure: &Figure| {
            let lines = self.names.iter().enumerate().map(|(target, name)| Series {
                name: name.clone(),
                points: levels
                    .iter()
                    .filter_map(|(level, cells)| {
                        let Level::Http(connections) = level else {
                            return None;
                        };
                        let median = rounds::median(&cells.get(target)?.figure(*figure))?;
                        Some((*connections as f64, median))
                    })
                    .collect(),
            });
            let x = Axis::new("connections", Unit::Count, Scale::Log);
            chart(
                &format!("{} by connections", figure.title()),
                x,
                *figure,
                lines,
            )
        };
        Level::Http(0).figures().iter().filter_map(chart).collect()
    }

    /// The first figure of a level, round by round: shows drift, and bad rounds.
    fn over_rounds(&self, level: Level, cells: &[Cell]) -> Option<Chart> {
        let figure = *level.figures().first()?;
        let lines = self.names.iter().zip(cells).map(|(name, cell)| Series {
            name: name.clone(),
            points: cell
                .figure(figure)
                .into_iter()
                .enumerate()
                .filter_map(|(round, value)| Some((round as f64 + 1.0, value?)))
                .collect(),
        });
        let x = Axis::new("round", Unit::Count, Scale::Linear);
        chart(
            &format!("{}: {} by round", level, figure.title()),
            x,
            figure,
            lines,
        )
    }
}

/// None when there is nothing to draw.
fn chart(
    title: &str,
    x: Axis,
    figure: Figure,
    lines: impl Iterator<Item = Series>,
) -> Option<Chart> {
    let series: Vec<_> = lines.filter(|line| !line.points.is_empty()).collect();
    (!series.is_empty()).then(|| Chart {
        title: title.to_owned(),
        x,
        y: Axis::new(figure.title(), figure.unit(), Scale::Linear),
        series,
    })
}

/// Errors by kind, and the notes of all rounds.
fn warn(level: Level, name: &str, cell: &Cell, report: &mut Report) {
    let errors = &cell.all.errors;
    if errors.total() > 0 {
        let all = count((cell.all.completed + errors.total()) as f64);
        let kinds = errors.by_name().into_iter();
        let kinds =
            kinds.map(|(kind, times)| format!("{} failed with {kind}", count(times as f64)));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        report.warn(format!("{level}, {name}: of {all}, {kinds}"));
    }
    let samples = cell.rounds.iter();
    let notes: Vec<_> = samples.map(|sample| sample.notes.as_slice()).collect();
    let notes = rounds::notes(&format!("{level}, {name}"), &notes);
    report.notes.extend(notes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        measure::errors::Kind,
        report::{Note, Usage},
    };

    fn sample(cost: f64, p50: f64) -> Sample {
        let mut sample = Sample {
            slice: Some(Slice {
                completed: 100,
                ..Slice::default()
            }),
            seconds: 2.0,
            ..Sample::default()
        };
        let used = Usage {
            processes: 1,
            cpu_seconds: cost * 100.0,
            peak_rss: 5,
            rss: 4,
        };
        sample.usage.insert("gateway".to_owned(), used);
        sample.set(Figure::Cost, Some(cost));
        sample.set(Figure::P50, Some(p50));
        sample
    }

    #[test]
    fn known_rounds_give_known_ratios() {
        let names = ["ours", "base", "dead"].map(str::to_owned).to_vec();
        let mut results = Results::new(vec![Level::Http(64)], names);
        for (ours, base) in [(10e-6, 20e-6), (30e-6, 40e-6), (12e-6, 20e-6)] {
            results.add(0, 0, sample(ours, ours * 100.0));
            results.add(0, 1, sample(base, base * 50.0));
        }
        let mut report = Report::new("compare", "ratios");
        results.fill("base", &mut report);
        let table = &report.tables[0];
        assert_eq!(table.title, "small GET, 64 connections");
        assert_eq!(table.columns[..3], ["target", "CPU/request", "× base"]);
        assert_eq!(table.rows[0][..3], ["ours", "12.0 µs", "0.60 (0.50–0.75)"]);
        assert_eq!(table.rows[0][5..7], ["1.20 ms", "1.20 (1.00–1.50)"]);
        assert_eq!(table.rows[1][..3], ["base", "20.0 µs", "1.00 (1.00–1.00)"]);
        // What could not be measured has its row all the same.
        assert_eq!(table.rows[2][..3], ["dead", "–", "–"]);
        assert_eq!(table.rows[2].last().unwrap(), "not measured");
        assert!(
            table
                .rows
                .iter()
                .all(|row| row.len() == table.columns.len())
        );
        assert!(results.has_any());
        // The rounds together are a run; what was not measured is none.
        let [run, _] = &report.runs[..] else {
            panic!("{:?}", report.runs)
        };
        assert_eq!(run.name, "small GET, 64 connections, ours");
        assert_eq!((run.completed, run.seconds, run.rate), (300, 6.0, 50.0));
        let cost = run.cpu_us_per_request.unwrap();
        assert!((cost - 52.0 / 3.0).abs() < 1e-6, "{cost}");
    }

    #[test]
    fn errors_and_limits_are_told() {
        let mut results = Results::new(vec![Level::Upload(1 << 30)], vec!["a".to_owned()]);
        for seconds in [1.0, 2.0] {
            let mut slice = Slice::default();
            slice.errors.add(Kind::Timeout, 1);
            let bad = Sample {
                slice: Some(slice),
                seconds,
                notes: vec![Note::warning(format!("busy for {seconds} s"))],
                ..Sample::default()
            };
            results.add(0, 0, bad);
        }
        let mut report = Report::new("compare", "errors");
        results.fill("b", &mut report);
        let notes: Vec<_> = report.notes.iter().map(|note| note.text.as_str()).collect();
        assert_eq!(
            notes[0],
            "upload of 1.00 GiB, a: of 2, 2 failed with timeout"
        );
        assert_eq!(
            notes[1],
            "upload of 1.00 GiB, a: busy for 1 s (in 2 of 2 rounds)"
        );
        assert_eq!(report.runs[0].errors["timeout"], 2);
        assert!(!results.has_any());
        assert_eq!(report.tables[0].rows[0][1], "–");
    }

    #[test]
    fn cost_is_drawn_against_connections_in_their_order() {
        let levels = vec![Level::Http(64), Level::Http(1), Level::Download(5)];
        let mut results = Results::new(levels, vec!["a".to_owned()]);
        results.add(0, 0, sample(2.0, 1.0));
        results.add(1, 0, sample(1.0, 1.0));
        let charts = results.over_connections();
        assert_eq!(charts[0].series[0].points, [(1.0, 1.0), (64.0, 2.0)]);
        assert_eq!(charts.len(), 2, "nothing is known of rate and p99");
    }
}
