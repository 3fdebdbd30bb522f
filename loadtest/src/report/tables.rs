//! The figures of runs as tables: results, errors by kind, and what programs used.

use std::collections::BTreeMap;

use crate::report::{Latency, Run, Table, Unit, Usage, format};
use Unit::{Bytes, BytesPerSecond, Count, PerSecond, Seconds};

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

pub(crate) const RATE: Figure = Figure::new("rate", PerSecond, |run| {
    (run.completed > 0).then_some(run.rate)
});
pub(crate) const P50: Figure = Figure::new("p50", Seconds, |run| Some(latency(run)?.p50));
pub(crate) const P99: Figure = Figure::new("p99", Seconds, |run| Some(latency(run)?.p99));
pub(crate) const MAX: Figure = Figure::new("max", Seconds, |run| Some(latency(run)?.max));
pub(crate) const CPU_PER_REQUEST: Figure = Figure::new("CPU/request", Seconds, |run| {
    Some(run.cpu_us_per_request? / 1e6)
});
pub(crate) const THROUGHPUT: Figure = Figure::new("throughput", BytesPerSecond, |run| {
    Some(above_zero(run.bytes_up + run.bytes_down)? / run.seconds)
});
/// Processor time of the target for each gibibyte that moved.
pub(crate) const CPU_PER_GIB: Figure = Figure::new("CPU/GiB", Seconds, |run| {
    let gibibytes = above_zero(run.bytes_up + run.bytes_down)? / f64::from(1 << 30);
    Some(cpu_us_per_request(&run.usage, 1)? / 1e6 / gibibytes)
});
/// Memory of all roles that belong to the target.
pub(crate) const PEAK_MEMORY: Figure = Figure::new("peak memory", Bytes, |run| {
    let target = run.usage.iter().filter(|(role, _)| is_target(role));
    let sizes: Vec<_> = target.map(|(_, usage)| usage.peak_rss).collect();
    (!sizes.is_empty()).then(|| sizes.iter().sum::<u64>() as f64)
});

/// The figures of the table of results, in its order.
const RESULTS: [Figure; 17] = [
    RATE,
    Figure::new("up", BytesPerSecond, |run| {
        Some(above_zero(run.bytes_up)? / run.seconds)
    }),
    Figure::new("down", BytesPerSecond, |run| {
        Some(above_zero(run.bytes_down)? / run.seconds)
    }),
    P50,
    Figure::new("p90", Seconds, |run| Some(latency(run)?.p90)),
    P99,
    Figure::new("p99.9", Seconds, |run| Some(latency(run)?.p999)),
    MAX,
    Figure::new("errors", Count, |run| {
        Some(run.errors.values().sum::<u64>() as f64)
    }),
    CPU_PER_REQUEST,
    Figure::new("completed", Count, |run| Some(run.completed as f64)),
    Figure::new("measured for", Seconds, |run| Some(run.seconds)),
    Figure::new("sent", Bytes, |run| above_zero(run.bytes_up)),
    Figure::new("received", Bytes, |run| above_zero(run.bytes_down)),
    Figure::new("min", Seconds, |run| Some(latency(run)?.min)),
    Figure::new("mean", Seconds, |run| Some(latency(run)?.mean)),
    Figure::new("deviation", Seconds, |run| Some(latency(run)?.deviation)),
];

fn latency(run: &Run) -> Option<&Latency> {
    run.latency.as_ref()
}

fn above_zero(bytes: u64) -> Option<f64> {
    (bytes > 0).then_some(bytes as f64)
}

/// A row for each run, a column for each figure that at least one run has.
pub(crate) fn results(runs: &[Run]) -> Table {
    let has_any = |figure: &&Figure| runs.iter().any(|run| (figure.of)(run).is_some());
    let figures: Vec<_> = RESULTS.iter().filter(has_any).collect();
    let heads = figures.iter().map(|figure| figure.title);
    let heads: Vec<_> = std::iter::once("run").chain(heads).collect();
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
    Table::new("Results", &heads.join(","), runs.iter().map(row).collect())
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
        "run,kind,count,share",
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
    let heads = "run,role,cores busy,CPU time,peak RSS,RSS at end,processes";
    Table::new("What the programs used", heads, rows.collect())
}

/// The role of this program itself.
pub const GENERATOR: &str = "load generator";

/// The role of the sample upstream.
pub const UPSTREAM: &str = "upstream";

/// The role of the tunnel server that this program started.
pub const TUNNEL_SERVER: &str = "tunnel server";

/// The role of the tunnel client that this program started.
pub const TUNNEL_CLIENT: &str = "tunnel client";

/// The name of our tunnel among the targets of a comparison.
pub(crate) const OURS: &str = "ours";

/// The role of many simulated tunnel clients.
pub const FLEET: &str = "fleet";

/// The role of a slow link between two programs.
pub const RELAY: &str = "relay";

/// Whether this role's processor time belongs to what is measured.
pub fn is_target(role: &str) -> bool {
    ![GENERATOR, UPSTREAM, FLEET, RELAY].contains(&role)
}

/// Adds what roles used at another time: processor time adds up, and of memory the most
/// and the latest count.
pub fn add(sum: &mut BTreeMap<String, Usage>, more: &BTreeMap<String, Usage>) {
    for (role, used) in more {
        match sum.get_mut(role) {
            None => {
                sum.insert(role.clone(), used.clone());
            }
            Some(sum) => {
                sum.processes = used.processes;
                sum.cpu_seconds += used.cpu_seconds;
                sum.peak_rss = sum.peak_rss.max(used.peak_rss);
                sum.rss = used.rss;
            }
        }
    }
}

/// Processor time of the target's roles for each completed request, microseconds.
pub fn cpu_us_per_request(usage: &BTreeMap<String, Usage>, completed: u64) -> Option<f64> {
    let target = || usage.iter().filter(|(role, _)| is_target(role));
    if completed == 0 || target().next().is_none() {
        return None;
    }
    let seconds: f64 = target().map(|(_, usage)| usage.cpu_seconds).sum();
    Some(seconds * 1e6 / completed as f64)
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

    #[test]
    fn the_cost_of_a_request_is_that_of_the_target() {
        let used = |cpu_seconds| Usage {
            processes: 1,
            cpu_seconds,
            peak_rss: 0,
            rss: 0,
        };
        let mut usage = BTreeMap::from([
            (GENERATOR.to_owned(), used(5.0)),
            (UPSTREAM.to_owned(), used(3.0)),
            (FLEET.to_owned(), used(2.0)),
            (RELAY.to_owned(), used(1.0)),
        ]);
        assert_eq!(cpu_us_per_request(&usage, 1000), None);
        usage.insert(TUNNEL_SERVER.to_owned(), used(0.02));
        usage.insert(TUNNEL_CLIENT.to_owned(), used(0.01));
        let cost = cpu_us_per_request(&usage, 1000).unwrap();
        assert!((cost - 30.0).abs() < 1e-6, "{cost}");
    }
}
