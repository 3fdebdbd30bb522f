//! What the rounds of a comparison say: a table and charts for each level, and a run for each target at it.

use super::sample::Level;
use crate::{
    measure::usage,
    report::{
        Axis, Chart, Report, Run, Scale, Series, Table, Unit, build::latency_chart, format::count,
    },
    scenario::rounds::{self, Figure, Rounds, Sample},
};

/// The rounds of each target at each level.
pub(super) struct Results {
    levels: Vec<Level>,
    names: Vec<String>,
    cells: Vec<Vec<Rounds>>,
}

impl Results {
    pub(super) fn new(levels: Vec<Level>, names: Vec<String>) -> Self {
        let row = || names.iter().map(|_| Rounds::default()).collect();
        Self {
            cells: levels.iter().map(|_| row()).collect(),
            levels,
            names,
        }
    }

    pub(super) fn levels(&self) -> &[Level] {
        &self.levels
    }

    pub(super) fn add(&mut self, level: usize, target: usize, sample: Sample) {
        let cells = self.cells.get_mut(level);
        if let Some(cell) = cells.and_then(|cells| cells.get_mut(target)) {
            cell.add(sample);
        }
    }

    /// Whether anything at all was completed.
    pub(super) fn has_any(&self) -> bool {
        let mut cells = self.cells.iter().flatten();
        cells.any(|cell| cell.total.completed > 0)
    }

    /// Writes everything into the report, with ratios to the target `base`.
    pub(super) fn fill(&self, base: &str, report: &mut Report) {
        let levels = || self.levels.iter().copied().zip(&self.cells);
        let named = |cells| self.names.iter().zip::<&Vec<Rounds>>(cells);
        for (level, cells) in levels() {
            report.tables.push(self.table(level, cells, base));
        }
        report.charts.extend(self.over_connections());
        for (level, cells) in levels() {
            let measured = named(cells).filter(|(_, cell)| !cell.is_empty());
            let mut runs: Vec<_> = measured
                .map(|(name, cell)| run(level, name, cell))
                .collect();
            let curves = latency_chart(&runs);
            let title = format!("{level}: latency by percentile");
            report
                .charts
                .extend(curves.map(|chart| chart.titled(title)));
            report.charts.extend(self.over_rounds(level, cells));
            for run in &mut runs {
                run.name = format!("{level}, {}", run.name);
            }
            report.runs.append(&mut runs);
        }
        for (level, cells) in levels() {
            for (name, cell) in named(cells) {
                warn(&format!("{level}, {name}"), cell, report);
            }
        }
    }

    fn table(&self, level: Level, cells: &[Rounds], base: &str) -> Table {
        let mut columns = vec!["target".to_owned()];
        for figure in level.figures() {
            columns.extend([figure.title.to_owned(), format!("× {base}")]);
        }
        columns.push("errors".to_owned());
        let of_base = self.names.iter().position(|name| name == base);
        let of_base = of_base.and_then(|base| cells.get(base));
        let row = |(name, cell): (&String, &Rounds)| {
            let mut row = vec![name.clone()];
            for (index, figure) in level.figures().iter().enumerate() {
                let rounds = cell.figure(index);
                let base = of_base.map_or_else(Vec::new, |base| base.figure(index));
                let ratio = rounds::ratios(&rounds, &base);
                row.push(figure.cell(&rounds));
                row.push(rounds::cell(ratio, |ratio| ratio.ratio()));
            }
            row.push(match cell.is_empty() {
                true => "not measured".to_owned(),
                false => count(cell.total.errors.total() as f64),
            });
            row
        };
        Table {
            title: level.to_string(),
            columns,
            rows: self.names.iter().zip(cells).map(row).collect(),
        }
    }

    /// Each figure of small requests against the number of connections, if there are several numbers.
    fn over_connections(&self) -> Vec<Chart> {
        let levels = self.levels.iter().zip(&self.cells);
        let mut levels: Vec<_> = levels
            .filter_map(|(level, cells)| match level {
                Level::Http(connections) => Some((*connections, cells)),
                Level::Download(_) | Level::Upload(_) => None,
            })
            .collect();
        if levels.len() < 2 {
            return Vec::new();
        }
        levels.sort_by_key(|(connections, _)| *connections);
        let chart = |(index, figure): (usize, &Figure)| {
            let lines = self.names.iter().enumerate().map(|(target, name)| {
                let points = levels.iter().filter_map(|(connections, cells)| {
                    let median = rounds::median(&cells.get(target)?.figure(index))?;
                    Some((*connections as f64, median))
                });
                Series::new(name, points.collect())
            });
            let x = Axis::new("connections", Unit::Count, Scale::Log);
            figure.chart(format!("{} by connections", figure.title), x, lines)
        };
        let figures = Level::Http(0).figures().iter().enumerate();
        figures.filter_map(chart).collect()
    }

    fn over_rounds(&self, level: Level, cells: &[Rounds]) -> Option<Chart> {
        let figure = level.figures().first()?;
        let lines = self.names.iter().zip(cells).map(|(name, cell)| {
            let rounds = (1..).zip(cell.figure(0));
            let points = rounds.filter_map(|(round, value)| Some((f64::from(round), value?)));
            Series::new(name, points.collect())
        });
        let x = Axis::new("round", Unit::Count, Scale::Linear);
        figure.chart(format!("{level}: {} by round", figure.title), x, lines)
    }
}

fn run(level: Level, name: &str, cell: &Rounds) -> Run {
    let mut run = cell.run(name.to_owned());
    if matches!(level, Level::Http(_)) {
        run.cpu_us_per_request = usage::cpu_us_per_request(&run.usage, run.completed);
    }
    run
}

fn warn(name: &str, cell: &Rounds, report: &mut Report) {
    let errors = &cell.total.errors;
    if errors.total() > 0 {
        let all = count((cell.total.completed + errors.total()) as f64);
        let kinds = errors.by_name().into_iter();
        let kinds =
            kinds.map(|(kind, times)| format!("{} failed with {kind}", count(times as f64)));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        report.warn(format!("{name}: of {all}, {kinds}"));
    }
    report.notes.extend(cell.notes(name));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        measure::{Slice, errors::Kind},
        report::{Note, Usage},
    };

    fn sample(cost: f64, p50: f64) -> Sample {
        let used = Usage {
            processes: 1,
            cpu_seconds: cost * 100.0,
            peak_rss: 5,
            rss: 4,
        };
        Sample {
            figures: vec![Some(cost), None, Some(p50), None],
            counts: Slice {
                completed: 100,
                ..Slice::default()
            },
            seconds: 2.0,
            usage: [("gateway".to_owned(), used)].into(),
            ..Sample::default()
        }
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
            let mut counts = Slice::default();
            counts.errors.add(Kind::Timeout, 1);
            let bad = Sample {
                counts,
                seconds,
                notes: vec![Note::warning(format!("busy for {seconds} s"))],
                ..Sample::default()
            };
            results.add(0, 0, bad);
        }
        let mut report = Report::new("compare", "errors");
        results.fill("b", &mut report);
        let notes: Vec<_> = report.notes.iter().map(|note| note.text.as_str()).collect();
        let busy = "upload of 1.00 GiB, a: busy for 1 s (in 2 of 2 rounds)";
        assert_eq!(
            notes,
            ["upload of 1.00 GiB, a: of 2, 2 failed with timeout", busy]
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
