//! What is told of the streams: throughput, fair shares, first bytes, and the cost of a gibibyte.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Args, link,
    observe::{Flow, Observed, Shared, throughput},
};
use crate::{
    load::{BUSY, Outcome},
    measure::{timeline, usage::GENERATOR},
    report::{
        Axis, Chart, Interval, Latency, Report, Run, Scale, Series, Table, Unit, Usage,
        format::{NONE, bytes, bytes_per_second, count, seconds},
    },
};

/// A gibibyte.
const GIB: f64 = 1_073_741_824.0;

/// Adds everything to the report.
pub(super) fn add(
    report: &mut Report,
    args: &Args,
    shared: &Shared,
    outcome: Outcome,
    observed: &Observed,
) {
    let usage = outcome.usage.clone();
    let (mut runs, notes) = outcome.into_runs();
    report.notes.extend(notes);
    let total = observed.begin + observed.seconds;
    let step = timeline::interval(Duration::from_secs_f64(total.max(0.0))).as_secs_f64();
    let is_bound = is_bound(&usage, observed.seconds, args.load.threads);
    let mut lines = Vec::new();
    let mut shares = Vec::new();
    for (number, flow) in shared.flows.iter().enumerate() {
        let moved = observed.moved.get(number).map_or(&[][..], Vec::as_slice);
        let points = throughput(&observed.samples, number, step);
        if let Some(run) = runs.get_mut(number) {
            fill(run, observed, flow, moved.iter().sum());
            run.generator_bound |= is_bound;
            run.timeline = intervals(&points, observed.begin);
        }
        shares.push(share_row(args, flow, moved, observed.seconds));
        lines.push(Series::new(flow.direction.name(), points));
    }
    report.runs.extend(runs);
    report.tables.push(share_table(shares));
    let moved = observed.moved.iter().flatten().sum::<u64>() as f64;
    if moved > 0.0 {
        report
            .tables
            .push(cost_table(&usage, observed.seconds, moved / GIB));
    }
    let x = Axis::new("time since the streams began", Unit::Seconds, Scale::Linear);
    let y = Axis::new("throughput", Unit::BytesPerSecond, Scale::Linear);
    let mut chart = Chart::new("Throughput over time", x, y, lines);
    if let Some(link) = args.link() {
        link::add(report, shared, link, observed, &mut chart);
    }
    report.charts.extend(chart.if_any());
    tell(report, args, shared, is_bound);
}

/// The load knows of transfers; the bytes and the stretch of time are the observer's.
fn fill(run: &mut Run, observed: &Observed, flow: &Flow, moved: u64) {
    if observed.seconds > 0.0 {
        run.seconds = observed.seconds;
    }
    run.rate = per(run.completed as f64, run.seconds);
    let is_upload = flow.direction == super::Direction::Up;
    (run.bytes_up, run.bytes_down) = if is_upload { (moved, 0) } else { (0, moved) };
    // A transfer is as large as one likes: what counts is the cost of a gibibyte.
    run.cpu_us_per_request = None;
}

fn intervals(points: &[(f64, f64)], begin: f64) -> Vec<Interval> {
    let measured = points.iter().filter(|(at, _)| *at > begin);
    let interval = |(at, throughput): &(f64, f64)| Interval {
        at: at - begin,
        bytes_per_second: *throughput,
        ..Interval::default()
    };
    measured.map(interval).collect()
}

/// Throughput of each stream that counts: over the stretch, or over its own transfer.
fn rates(args: &Args, flow: &Flow, moved: &[u64], seconds: f64) -> Vec<f64> {
    let streams = flow.streams.iter().zip(moved);
    let rate = |(stream, moved): (&super::observe::Stream, &u64)| {
        let seconds = if args.size.is_some() {
            stream.good_end()?
        } else {
            seconds
        };
        Some(per(*moved as f64, seconds))
    };
    let mut rates: Vec<f64> = streams.filter_map(rate).collect();
    rates.sort_by(f64::total_cmp);
    rates
}

/// Jain's index: 1 when all have the same, 1/n when one has all.
fn fairness(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

fn share_row(args: &Args, flow: &Flow, moved: &[u64], seconds: f64) -> Vec<String> {
    let rates = rates(args, flow, moved, seconds);
    let first_bytes = flow.first_bytes();
    let first_byte = |pick: fn(&Latency) -> f64| {
        first_bytes
            .as_ref()
            .map_or_else(|| NONE.to_owned(), |delays| self::seconds(pick(delays)))
    };
    vec![
        flow.direction.name().to_owned(),
        count(flow.streams.len() as f64),
        rate_or_none(rates.first().copied()),
        rate_or_none(rates.get(rates.len() / 2).copied()),
        rate_or_none(rates.last().copied()),
        fairness(&rates).map_or_else(|| NONE.to_owned(), |index| format!("{index:.3}")),
        first_byte(|delays| delays.p50),
        first_byte(|delays| delays.max),
    ]
}

fn share_table(rows: Vec<Vec<String>>) -> Table {
    let columns = [
        "streams",
        "number",
        "slowest",
        "median",
        "fastest",
        "fairness",
        "first byte p50",
        "first byte max",
    ];
    let title = "Each stream's throughput; fairness is 1 when all have the same";
    Table::new(title, &columns, rows)
}

fn cost_table(usage: &BTreeMap<String, Usage>, seconds: f64, gibibytes: f64) -> Table {
    let row = |(role, used): (&String, &Usage)| {
        vec![
            role.clone(),
            format!("{:.3} s", used.cpu_seconds / gibibytes),
            format!("{:.1} %", per(used.cpu_seconds, seconds) * 100.0),
            bytes(used.peak_rss as f64),
        ]
    };
    let columns = ["role", "processor time per GiB", "of a core", "most memory"];
    let rows = usage.iter().map(row).collect();
    Table::new("What a gibibyte costs", &columns, rows)
}

fn tell(report: &mut Report, args: &Args, shared: &Shared, is_bound: bool) {
    if args.size.is_some() {
        let streams = || shared.flows.iter().flat_map(|flow| &flow.streams);
        let failed = streams()
            .filter(|stream| stream.good_end().is_none())
            .count();
        if failed > 0 {
            let all = streams().count();
            report.warn(format!(
                "{failed} of {all} streams failed: their bytes are part of the throughput, but \
                 not of the streams' shares"
            ));
        }
        // With a duration the load says so itself.
        if is_bound {
            report.warn(
                "the load generator was the limit: the target may be faster than this; give it \
                 more --threads on a machine with more cores",
            );
        }
    }
    if shared
        .flows
        .iter()
        .any(|flow| flow.direction == super::Direction::Up)
    {
        report.note("uploaded bytes count when the connection takes them");
    }
}

fn is_bound(usage: &BTreeMap<String, Usage>, seconds: f64, threads: u16) -> bool {
    let used = usage.get(GENERATOR).map_or(0.0, |usage| usage.cpu_seconds);
    per(used, seconds) >= BUSY * f64::from(threads)
}

fn per(value: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { value / seconds } else { 0.0 }
}

/// A throughput for a table, or a dash.
pub(super) fn rate_or_none(rate: Option<f64>) -> String {
    rate.map_or_else(|| NONE.to_owned(), bytes_per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_when_all_have_the_same() {
        assert_eq!(fairness(&[5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(fairness(&[0.0, 0.0, 0.0, 8.0]), Some(0.25));
        assert_eq!(fairness(&[]), None);
    }
}
