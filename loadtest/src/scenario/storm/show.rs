//! From what was seen of a storm to a run, tables, charts and notes.

use super::StormMeasurement;
use crate::{
    fleet::watch::{ConnectPhase, kinds, peak_rate, thinned, when_reached},
    report::{
        Axis, Chart, Report, Run, Scale, Series, Table, Unit, build,
        format::{NONE, bytes, count, seconds},
        usage::TUNNEL_SERVER,
    },
};

type Line = Vec<(f64, f64)>;

pub(super) fn show(report: &mut Report, measured: &StormMeasurement) {
    let samples = &measured.samples;
    let served = fallen(samples.over_time(measured.killed, |status| status.up));
    let handshakes = samples.over_time(measured.killed, |status| status.handshakes);
    let phase = ConnectPhase {
        role: TUNNEL_SERVER,
        before: &measured.before,
        since: measured.killed,
        metered_since: measured.listening,
        fleet_threads: measured.fleet_threads,
    };
    let (mut run, _) = samples.run(phase, measured.usage.clone());
    "coming back".clone_into(&mut run.name);
    report.tables.push(times(measured, &served));
    report.tables.push(load(measured, &served, &handshakes));
    notes(report, measured, &run);
    report.runs.push(run);
    report.charts.extend(charts(&served, &handshakes));
    let curve = build::latency_chart(&report.runs);
    let curve = curve.map(|chart| chart.titled("Time without a session"));
    report.charts.extend(curve);
}

/// The line from where it is lowest: what was up before all had noticed is none of those that came back.
fn fallen(line: Line) -> Line {
    let heights = line.iter().map(|point| point.1);
    let lowest = heights.fold(f64::INFINITY, f64::min);
    let from = line.iter().position(|point| point.1 <= lowest).unwrap_or(0);
    line.into_iter().skip(from).collect()
}

fn times(measured: &StormMeasurement, served: &Line) -> Table {
    let since_listening = measured.listening - measured.killed;
    let last = measured.samples.last().filter(|_| measured.all);
    let share = |share: f64| when_reached(served, share * measured.tunnels as f64);
    let rows = [
        ("half", share(0.5)),
        ("90 %", share(0.9)),
        ("99 %", share(0.99)),
        ("all", last.map(|last| last.connected_at - measured.killed)),
    ];
    let cell = |at: Option<f64>| at.map_or_else(|| NONE.to_owned(), |at| seconds(at.max(0.0)));
    let row = |(name, at): (&str, Option<f64>)| {
        let since = at.map(|at| at - since_listening);
        vec![name.to_owned(), cell(at), cell(since)]
    };
    let heads = [
        "served again",
        "since the kill",
        "since the server listened again",
    ];
    Table::new(
        "Time until tunnels are served again",
        &heads,
        rows.map(row).to_vec(),
    )
}

fn load(measured: &StormMeasurement, served: &Line, handshakes: &Line) -> Table {
    let most = |line: &Line| count(peak_rate(line, 1.0).round());
    let cpu = peak_rate(&measured.samples.server_cpu(measured.killed), 1.0);
    let rows = [
        ("handshakes, most within one second", most(handshakes)),
        ("served again, most within one second", most(served)),
        (
            "server CPU, most within one second",
            format!("{:.0} % of a core", cpu * 100.0),
        ),
        (
            "server memory, most",
            bytes(measured.samples.peak_rss() as f64),
        ),
        (
            "server memory before the kill",
            bytes(measured.rss_before as f64),
        ),
        (
            "runtimes that answered afterwards",
            count(measured.answered as f64),
        ),
    ];
    Table::of_values("The storm", "value", rows)
}

fn notes(report: &mut Report, measured: &StormMeasurement, run: &Run) {
    if !measured.all {
        let up = measured.samples.last().map_or(0, |status| status.up);
        let (up, all) = (count(up as f64), count(measured.tunnels as f64));
        report.warn(format!("only {up} of {all} came back within the limit"));
    }
    if measured.unanswered.total() > 0 {
        let kinds = kinds(&measured.unanswered.by_name());
        report.warn(format!("runtimes that did not answer afterwards: {kinds}"));
    }
    if run.generator_bound {
        report.warn("the fleet was the limit: real clients would have come back faster");
    }
    report.note(
        "of failed dials, a status is a refusal of the server, and those within the outage found no listener; each makes its \
         client wait longer, at random up to 1 s, 2 s, 4 s and so on to 30 s, as real clients do",
    );
}

fn charts(served: &Line, handshakes: &Line) -> [Chart; 2] {
    let rates = handshakes.windows(2).filter_map(|pair| {
        let [from, to] = pair else { return None };
        (to.0 > from.0).then(|| (to.0, (to.1 - from.1) / (to.0 - from.0)))
    });
    let rates: Line = rates.collect();
    let chart = |title: &str, label: &str, unit: Unit, line: &Line| {
        let x = Axis::new("since the kill", Unit::Seconds, Scale::Linear);
        let y = Axis::new(label, unit, Scale::Linear);
        Chart::new(title, x, y, [Series::new(label, thinned(line))])
    };
    [
        chart("Served again", "tunnels", Unit::Count, served),
        chart("Handshakes", "handshakes", Unit::PerSecond, &rates),
    ]
}
