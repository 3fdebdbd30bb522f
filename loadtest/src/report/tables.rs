//! The figures of runs as tables: results, errors by kind, and what programs used.

use crate::report::{Run, Table, Unit, Usage, format, usage};

/// A figure of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    /// Its name in tables and charts.
    pub(crate) title: &'static str,
    /// How it is written.
    pub(crate) unit: Unit,
    /// Its value, where the run has it.
    pub(crate) of: fn(&Run) -> Option<f64>,
}

impl Figure {
    const fn new(title: &'static str, unit: Unit, of: fn(&Run) -> Option<f64>) -> Self {
        Self { title, unit, of }
    }

    /// A value in words, or a dash.
    pub(crate) fn cell(&self, value: Option<f64>) -> String {
        format::cell(value, |value| format::value(self.unit, value))
    }
}

pub(crate) const RATE: Figure = Figure::new("rate", Unit::PerSecond, |run| {
    (run.completed > 0).then_some(run.rate)
});
pub(crate) const P50: Figure =
    Figure::new("p50", Unit::Seconds, |run| Some(run.latency.as_ref()?.p50));
pub(crate) const P99: Figure =
    Figure::new("p99", Unit::Seconds, |run| Some(run.latency.as_ref()?.p99));
pub(crate) const MAX: Figure =
    Figure::new("max", Unit::Seconds, |run| Some(run.latency.as_ref()?.max));
pub(crate) const CPU_PER_REQUEST: Figure = Figure::new("CPU/request", Unit::Seconds, |run| {
    Some(run.cpu_us_per_request? / 1e6)
});
pub(crate) const THROUGHPUT: Figure = Figure::new("throughput", Unit::BytesPerSecond, |run| {
    Some(above_zero(run.bytes_up + run.bytes_down)? / run.seconds)
});
/// Processor time of the target for each gibibyte that moved.
pub(crate) const CPU_PER_GIB: Figure = Figure::new("CPU/GiB", Unit::Seconds, |run| {
    let gibibytes = above_zero(run.bytes_up + run.bytes_down)? / f64::from(1 << 30);
    Some(usage::cpu_us_per_request(&run.usage, 1)? / 1e6 / gibibytes)
});
/// Memory of all roles that belong to the target.
pub(crate) const PEAK_MEMORY: Figure = Figure::new("peak memory", Unit::Bytes, |run| {
    let target = run.usage.iter().filter(|(role, _)| usage::is_target(role));
    let sizes: Vec<_> = target.map(|(_, usage)| usage.peak_rss).collect();
    (!sizes.is_empty()).then(|| sizes.iter().sum::<u64>() as f64)
});

/// The figures of the table of results, in its order.
const RESULTS: [Figure; 17] = [
    RATE,
    Figure::new("up", Unit::BytesPerSecond, |run| {
        Some(above_zero(run.bytes_up)? / run.seconds)
    }),
    Figure::new("down", Unit::BytesPerSecond, |run| {
        Some(above_zero(run.bytes_down)? / run.seconds)
    }),
    P50,
    Figure::new("p90", Unit::Seconds, |run| Some(run.latency.as_ref()?.p90)),
    P99,
    Figure::new("p99.9", Unit::Seconds, |run| {
        Some(run.latency.as_ref()?.p999)
    }),
    MAX,
    Figure::new("errors", Unit::Count, |run| {
        Some(run.errors.values().sum::<u64>() as f64)
    }),
    CPU_PER_REQUEST,
    Figure::new("completed", Unit::Count, |run| Some(run.completed as f64)),
    Figure::new("measured for", Unit::Seconds, |run| Some(run.seconds)),
    Figure::new("sent", Unit::Bytes, |run| above_zero(run.bytes_up)),
    Figure::new("received", Unit::Bytes, |run| above_zero(run.bytes_down)),
    Figure::new("min", Unit::Seconds, |run| Some(run.latency.as_ref()?.min)),
    Figure::new("mean", Unit::Seconds, |run| {
        Some(run.latency.as_ref()?.mean)
    }),
    Figure::new("deviation", Unit::Seconds, |run| {
        Some(run.latency.as_ref()?.deviation)
    }),
];

fn above_zero(bytes: u64) -> Option<f64> {
    (bytes > 0).then_some(bytes as f64)
}

/// A row for each run, a column for each figure that at least one run has.
pub(crate) fn results(runs: &[Run]) -> Table {
    let has_any = |figure: &&Figure| runs.iter().any(|run| (figure.of)(run).is_some());
    let figures: Vec<_> = RESULTS.iter().filter(has_any).collect();
    let heads = figures.iter().map(|figure| figure.title);
    let columns: Vec<_> = std::iter::once("run").chain(heads).collect();
    let row = |run: &Run| {
        let cell = |figure: &&Figure| figure.cell((figure.of)(run));
        let bound = if run.generator_bound {
            " (generator-bound)"
        } else {
            ""
        };
        let name = format!("{}{bound}", run.name);
        std::iter::once(name)
            .chain(figures.iter().map(cell))
            .collect()
    };
    Table::new("Results", &columns, runs.iter().map(row).collect())
}

/// A row for each kind of error of each run.
pub(crate) fn errors(runs: &[Run]) -> Table {
    let rows = runs.iter().flat_map(|run| {
        run.errors.iter().map(|(kind, times)| {
            let (times, share) = (format::count(*times as f64), share(run, *times));
            vec![run.name.clone(), kind.clone(), times, share]
        })
    });
    Table::new(
        "FailureCounts by kind",
        &["run", "kind", "count", "share"],
        rows.collect(),
    )
}

/// The share of everything that was tried.
fn share(run: &Run, times: u64) -> String {
    let all = run.completed + run.errors.values().sum::<u64>();
    format!("{:.2} %", times as f64 * 100.0 / all.max(1) as f64)
}

/// A row for each role of each run.
pub(crate) fn used(runs: &[Run]) -> Table {
    let columns = [
        "run",
        "role",
        "cores busy",
        "CPU time",
        "peak RSS",
        "RSS at end",
        "processes",
    ];
    let row = |run: &Run, role: &String, usage: &Usage| {
        vec![
            run.name.clone(),
            role.clone(),
            format::count(usage.cpu_seconds / run.seconds),
            format::seconds(usage.cpu_seconds),
            format::bytes(usage.peak_rss as f64),
            format::bytes(usage.rss as f64),
            format::count(usage.processes as f64),
        ]
    };
    let rows = runs.iter().flat_map(|run| {
        let roles = run.usage.iter();
        roles.map(move |(role, usage)| row(run, role, usage))
    });
    Table::new("What the programs used", &columns, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_no_run_has_takes_no_room() {
        let mut runs = [Run::default(), Run::default()];
        let columns = |runs: &[Run]| results(runs).columns.join(" ");
        assert_eq!(columns(&runs), "run errors completed measured for");
        (runs[1].completed, runs[1].rate) = (10, 5.0);
        assert_eq!(columns(&runs), "run rate errors completed measured for");
        assert_eq!(results(&runs).rows[0][1], format::NONE);
        // A run of no length has no throughput, and no cores that were busy.
        runs[0].bytes_up = 5;
        assert_eq!(results(&runs).rows[0][2], format::NONE);
    }

    #[test]
    fn errors_are_told_by_kind_with_their_share() {
        let mut run = Run {
            name: "a".to_owned(),
            completed: 75,
            ..Run::default()
        };
        assert!(errors(&[run.clone()]).rows.is_empty());
        run.errors.insert("timeout".to_owned(), 25);
        assert_eq!(errors(&[run]).rows, [["a", "timeout", "25", "25.00 %"]]);
    }
}
