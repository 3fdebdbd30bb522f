//! Invented reports for the tests of this folder. Nothing in them was measured.

use std::collections::BTreeMap;

use crate::report::{
    Axis, Chart, Latency, Machine, Report, Run, Scale, Series, Table, Unit, Usage,
};

/// A report in which nothing was measured.
pub(super) fn empty() -> Report {
    Report {
        started: "2026-10-03T18:29:05Z".to_owned(),
        version: "0.1.0".to_owned(),
        machine: Machine {
            cores: 2,
            processor: "Example Processor 8000 @ 2.60 GHz".to_owned(),
            system: "Linux 6.12.8".to_owned(),
        },
        ..Report::new("http", "GET over nothing")
    }
}

/// A run with every figure and no error.
pub(super) fn run(name: &str) -> Run {
    let usage = |cpu_seconds, peak_rss| Usage {
        processes: 1,
        cpu_seconds,
        peak_rss,
        rss: peak_rss - 99_000,
    };
    let roles = [
        ("load generator", 4.2, 18_000_000),
        ("tunnel server", 6.0, 14_100_000),
        ("upstream", 3.3, 12_500_000),
    ];
    let roles = roles.map(|(role, seconds, rss)| (role.to_owned(), usage(seconds, rss)));
    Run {
        name: name.to_owned(),
        seconds: 10.0,
        completed: 1_000,
        rate: 100.0,
        bytes_up: 64_000,
        bytes_down: 1_024_000,
        latency: Some(latency()),
        usage: BTreeMap::from(roles),
        cpu_us_per_request: Some(38.0),
        ..Run::default()
    }
}

/// Two runs with a table and a chart.
pub(super) fn comparison() -> Report {
    let runs = vec![run("ours, 64 connections"), run("nginx, 64 connections")];
    let curve = |run: &Run| Series::new(&run.name, latency().curve);
    let x = Axis::new("percentile", Unit::Quantile, Scale::Tail);
    let y = Axis::new("latency", Unit::Seconds, Scale::Log);
    let cells = ["ours", "0.47 (0.44–0.51)"].map(str::to_owned).to_vec();
    Report {
        charts: vec![Chart::new(
            "Latency by percentile",
            x,
            y,
            runs.iter().map(curve),
        )],
        tables: vec![Table::new("Ratios", &["target", "× nginx"], vec![cells])],
        runs,
        ..empty()
    }
}

fn latency() -> Latency {
    Latency {
        count: 100_000,
        min: 0.000_3,
        mean: 0.001_1,
        deviation: 0.000_5,
        p50: 0.001,
        p90: 0.002,
        p99: 0.003,
        p999: 0.004,
        max: 0.005,
        curve: vec![(0.0, 0.000_3), (0.5, 0.001), (0.99, 0.003), (1.0, 0.005)],
    }
}
