//! Invented reports for the tests of this folder, and for looking at the page.
//!
//! Nothing in them was measured. The same call gives the same report.

use std::collections::BTreeMap;

use crate::report::{
    Axis, Chart, Interval, Latency, Level, Machine, Note, Report, Run, Scale, Series, Setting,
    Table, Unit, Usage,
};

/// A report in which nothing was measured.
pub(super) fn empty() -> Report {
    Report {
        scenario: "http".to_owned(),
        title: "GET over nothing".to_owned(),
        started: "2026-10-03T18:29:05Z".to_owned(),
        version: "0.1.0".to_owned(),
        machine: Machine {
            cores: 2,
            processor: "Example Processor 8000 @ 2.60 GHz".to_owned(),
            system: "Linux 6.12.8".to_owned(),
        },
        settings: Vec::new(),
        runs: Vec::new(),
        tables: Vec::new(),
        charts: Vec::new(),
        notes: Vec::new(),
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
    Run {
        name: name.to_owned(),
        seconds: 10.0,
        completed: 1_000,
        rate: 100.0,
        bytes_up: 64_000,
        bytes_down: 1_024_000,
        latency: Some(latency(0.001, 2.0)),
        errors: BTreeMap::new(),
        usage: BTreeMap::from([
            ("load generator".to_owned(), usage(4.2, 18_000_000)),
            ("tunnel client".to_owned(), usage(5.1, 9_800_000)),
            ("tunnel server".to_owned(), usage(6.0, 14_100_000)),
            ("upstream".to_owned(), usage(3.3, 12_500_000)),
        ]),
        cpu_us_per_request: Some(38.0),
        timeline: Vec::new(),
        generator_bound: false,
    }
}

/// An axis of a chart: label, unit and scale.
pub(super) type Named = (&'static str, Unit, Scale);

/// A chart of those lines.
pub(super) fn chart(title: &str, x: Named, y: Named, series: Vec<Series>) -> Chart {
    let axis = |(label, unit, scale): Named| Axis {
        label: label.to_owned(),
        unit,
        scale,
    };
    Chart {
        title: title.to_owned(),
        x: axis(x),
        y: axis(y),
        series,
    }
}

/// Nines across.
const PERCENTILE: Named = ("percentile", Unit::Quantile, Scale::Tail);
/// Latencies, fast and slow ones alike.
const LATENCY: Named = ("latency", Unit::Seconds, Scale::Log);
/// Time across.
const TIME: Named = ("time since the run began", Unit::Seconds, Scale::Linear);
/// What was completed.
const RATE: Named = ("requests", Unit::PerSecond, Scale::Linear);

/// Four targets at two levels of load.
pub(super) fn comparison() -> Report {
    let targets = [
        ("ours", 21_400.0, 0.38),
        ("nginx pair", 9_800.0, 0.95),
        ("other <tunnel> & co", 1_650.0, 5.8),
        ("upstream direct", 43_000.0, 0.18),
    ];
    let mut report = Report {
        scenario: "compare".to_owned(),
        title: "Small GET over four ways to one upstream, interleaved in 5 rounds".to_owned(),
        tables: vec![ratios()],
        notes: notes(),
        ..empty()
    };
    let settings = [
        ("connections", "64,256"),
        ("duration", "10s"),
        ("warm-up", "2s"),
        ("rounds", "5"),
        ("body", "128 B"),
        (
            "target",
            "other <tunnel> & co=http://127.0.0.1:7005/,4711,4712",
        ),
    ];
    report.settings = settings
        .map(|(name, value)| Setting {
            name: name.to_owned(),
            value: value.to_owned(),
        })
        .into();
    for (index, (target, rate, median)) in targets.into_iter().enumerate() {
        for connections in [64.0, 256.0] {
            let run = compared(target, index, connections, rate, median);
            report.runs.push(run);
        }
    }
    report.charts = charts(&report.runs, &targets);
    report
}

/// One run alone, as most people will have it.
pub(super) fn single() -> Report {
    let mut run = compared("http://127.0.0.1:8080/", 0, 64.0, 18_342.0, 2.9);
    run.errors = BTreeMap::from([("status 503".to_owned(), 211), ("time-out".to_owned(), 3)]);
    let curve = run
        .latency
        .as_ref()
        .map(|latency| latency.curve.clone())
        .unwrap_or_default();
    let rates = vec![series("rate", over_time(&run, |interval| interval.rate))];
    let latencies = vec![
        series("p50", over_time(&run, |interval| interval.p50)),
        series("p99", over_time(&run, |interval| interval.p99)),
    ];
    Report {
        title: "GET http://127.0.0.1:8080/ over 64 connections".to_owned(),
        charts: vec![
            chart(
                "Latency by percentile",
                PERCENTILE,
                LATENCY,
                vec![series("latency", curve)],
            ),
            chart("Requests over time", TIME, RATE, rates),
            chart("Latency over time", TIME, LATENCY, latencies),
        ],
        runs: vec![run],
        ..empty()
    }
}

fn compared(target: &str, index: usize, connections: f64, rate: f64, median: f64) -> Run {
    let rate = rate * if connections > 100.0 { 1.04 } else { 1.0 };
    let steps = 60;
    let timeline = (1..=steps).map(|step| {
        let at = f64::from(step) / 6.0;
        // A sum of waves that looks like noise.
        let noise = (at * 7.3 + index as f64).sin() * 0.03 + (at * 31.7 + connections).sin() * 0.02;
        let dip = if step == 37 && index == 2 { 0.4 } else { 1.0 };
        Interval {
            at,
            rate: rate * (1.0 + noise) * dip,
            error_rate: 0.0,
            bytes_per_second: rate * 128.0 * (1.0 + noise) * dip,
            p50: connections / rate * (1.0 - noise),
            p99: connections / rate * (2.6 - 8.0 * noise),
        }
    });
    let cost = [38.2, 88.9, 610.0, 0.0][index] * if connections > 100.0 { 0.93 } else { 1.0 };
    let mut run = Run {
        completed: (rate * 10.0) as u64,
        rate,
        bytes_up: 0,
        bytes_down: (rate * 1_280.0) as u64,
        latency: Some(latency(connections / rate, median.max(0.3) * 2.0)),
        cpu_us_per_request: (cost > 0.0).then_some(cost),
        timeline: timeline.collect(),
        generator_bound: target == "upstream direct",
        ..run(&format!("{target}, {connections} connections"))
    };
    if index == 2 {
        run.errors = BTreeMap::from([
            ("connection reset".to_owned(), 12),
            ("status 502".to_owned(), 148),
        ]);
    }
    run
}

/// Latencies around a median; the bigger the tail, the worse the last percents.
fn latency(median: f64, tail: f64) -> Latency {
    let at = |quantile: f64| {
        median * (1.0 + tail * 0.35 * (-(1.0 - quantile).max(1e-6).log10()).powf(1.4))
    };
    let curve = (0..=75).map(|step| {
        let quantile = 1.0 - 10_f64.powf(-0.3 - f64::from(step) / 16.0);
        (quantile, at(quantile))
    });
    Latency {
        count: 100_000,
        min: median / 3.0,
        mean: median * 1.1,
        deviation: median / 2.0,
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max: at(1.0),
        curve: curve.chain([(1.0, at(1.0))]).collect(),
    }
}

fn charts(runs: &[Run], targets: &[(&str, f64, f64)]) -> Vec<Chart> {
    let curves = runs.iter().filter(|run| run.name.contains(", 64"));
    let curves =
        curves.filter_map(|run| Some(series(&run.name, run.latency.as_ref()?.curve.clone())));
    let rates = runs
        .iter()
        .map(|run| series(&run.name, over_time(run, |interval| interval.rate)));
    let levels = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0];
    let costs = targets[..3]
        .iter()
        .enumerate()
        .map(|(index, (name, _, _))| {
            let base = [34.0, 81.0, 140.0][index] * 1e-6;
            let points = levels
                .iter()
                .map(|level: &f64| (*level, base * (1.0 + 0.9 / level.sqrt() + level / 4e3)));
            series(name, points.collect())
        });
    let connections = ("connections", Unit::Count, Scale::Log);
    let cost = (
        "CPU of all programs of the target, per request",
        Unit::Seconds,
        Scale::Linear,
    );
    vec![
        chart(
            "Latency by percentile, 64 connections",
            PERCENTILE,
            LATENCY,
            curves.collect(),
        ),
        chart("Requests over time", TIME, RATE, rates.collect()),
        chart(
            "CPU per request by load",
            connections,
            cost,
            costs.collect(),
        ),
    ]
}

fn over_time(run: &Run, value: fn(&Interval) -> f64) -> Vec<(f64, f64)> {
    run.timeline
        .iter()
        .map(|interval| (interval.at, value(interval)))
        .collect()
}

fn series(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        points,
    }
}

fn ratios() -> Table {
    let words = |cells: &[&str]| {
        cells
            .iter()
            .map(|cell| (*cell).to_owned())
            .collect::<Vec<_>>()
    };
    Table {
        title: "Ratios to the nginx pair, median of 5 rounds and spread".to_owned(),
        columns: words(&[
            "target",
            "connections",
            "rate",
            "p50",
            "p99",
            "CPU per request",
            "verdict",
        ]),
        rows: vec![
            words(&[
                "ours",
                "64",
                "2.18 ± 0.04",
                "0.46 ± 0.02",
                "0.39 ± 0.05",
                "0.43 ± 0.01",
                "goal met",
            ]),
            words(&[
                "ours",
                "256",
                "2.21 ± 0.06",
                "0.45 ± 0.02",
                "0.41 ± 0.07",
                "0.40 ± 0.01",
                "goal met",
            ]),
            words(&[
                "other <tunnel> & co",
                "64",
                "0.17 ± 0.01",
                "5.94 ± 0.20",
                "7.10 ± 0.88",
                "6.86 ± 0.11",
                "",
            ]),
            words(&[
                "upstream direct",
                "64",
                "4.39 ± 0.10",
                "0.23 ± 0.01",
                "0.19 ± 0.02",
                "–",
                "",
            ]),
        ],
    }
}

fn notes() -> Vec<Note> {
    let note = |level, text: &str| Note {
        level,
        text: text.to_owned(),
    };
    vec![
        note(
            Level::Info,
            "Ratios are medians over the rounds; ± is half of the range between the quartiles.",
        ),
        note(
            Level::Warning,
            "The load generator used 98 % of a core in the runs over `upstream direct`: their rates are its own limit, not the target's.",
        ),
    ]
}
