//! From what was seen of a storm to a run, tables, charts and notes.

use super::Found;
use crate::{
    fleet::watch::{failures_since, kinds, peak_rate, raise_peak, thinned, when_reached},
    load::BUSY,
    measure::usage::{FLEET, TUNNEL_SERVER},
    report::{
        Axis, Chart, Report, Run, Scale, Series, Table, Unit, build,
        format::{NONE, bytes, count, seconds},
    },
};

/// Lines over the time since the kill.
struct Lines {
    served: Vec<(f64, f64)>,
    handshakes: Vec<(f64, f64)>,
    cpu: Vec<(f64, f64)>,
}

pub(super) fn show(report: &mut Report, found: &Found) {
    let samples = &found.samples;
    // What was up before all had noticed is none of those that came back.
    let fallen = |line: Vec<(f64, f64)>| -> Vec<(f64, f64)> {
        let lowest = line
            .iter()
            .map(|point| point.1)
            .fold(f64::INFINITY, f64::min);
        let from = line.iter().position(|point| point.1 <= lowest).unwrap_or(0);
        line.into_iter().skip(from).collect()
    };
    let lines = Lines {
        served: fallen(samples.over_time(found.killed, |status| status.up)),
        handshakes: samples.over_time(found.killed, |status| status.handshakes),
        cpu: samples.server_cpu(found.killed),
    };
    let run = run(found);
    report.tables.push(times(found, &lines));
    report.tables.push(load(found, &lines));
    report.tables.extend(refusals(&run));
    notes(report, found, &run);
    report.runs.push(run);
    report.charts.extend(charts(&lines));
    report
        .charts
        .extend(build::latency_chart(&report.runs).map(|chart| Chart {
            title: "Time without a session".to_owned(),
            ..chart
        }));
}

fn run(found: &Found) -> Run {
    let samples = &found.samples;
    let last = samples.last().unwrap_or(&found.before);
    let completed = last.connected - found.before.connected;
    let end = if completed > 0 {
        last.connected_at
    } else {
        last.at
    };
    let seconds = (end - found.killed).max(1e-3);
    let mut usage = found.usage.clone();
    raise_peak(&mut usage, TUNNEL_SERVER, samples.peak_rss());
    let server_cpu = usage.get(TUNNEL_SERVER).map(|usage| usage.cpu_seconds);
    let fleet_cpu = usage.get(FLEET).map_or(0.0, |usage| usage.cpu_seconds);
    let fleet_share = fleet_cpu / (last.at - found.listening).max(1e-3) / found.fleet_threads;
    Run {
        name: "coming back".to_owned(),
        seconds,
        completed,
        rate: completed as f64 / seconds,
        bytes_up: 0,
        bytes_down: 0,
        latency: samples.took().summary(),
        errors: failures_since(&found.before, last),
        cpu_us_per_request: server_cpu
            .filter(|_| completed > 0)
            .map(|cpu| cpu * 1e6 / completed as f64),
        usage,
        timeline: samples.timeline(found.killed),
        generator_bound: fleet_share >= BUSY,
    }
}

fn times(found: &Found, lines: &Lines) -> Table {
    let since_listening = found.listening - found.killed;
    let last = found.samples.last().filter(|_| found.all);
    let share = |share: f64| {
        let level = share * found.tunnels as f64;
        when_reached(&lines.served, level)
    };
    let rows = [
        ("half", share(0.5)),
        ("90 %", share(0.9)),
        ("99 %", share(0.99)),
        ("all", last.map(|last| last.connected_at - found.killed)),
    ];
    let cell = |at: Option<f64>| at.map_or_else(|| NONE.to_owned(), |at| seconds(at.max(0.0)));
    let row = |(name, at): (&str, Option<f64>)| {
        let since = at.map(|at| at - since_listening);
        vec![name.to_owned(), cell(at), cell(since)]
    };
    let columns = [
        "served again",
        "since the kill",
        "since the server listened again",
    ];
    Table {
        title: "Time until tunnels are served again".to_owned(),
        columns: columns.map(ToOwned::to_owned).to_vec(),
        rows: rows.map(row).to_vec(),
    }
}

fn load(found: &Found, lines: &Lines) -> Table {
    let percent = |share: f64| format!("{:.0} % of a core", share * 100.0);
    let most = |line: &[(f64, f64)]| count(peak_rate(line, 1.0).round());
    let answered = count(found.answered as f64);
    let rows = [
        (
            "handshakes, most within one second",
            most(&lines.handshakes),
        ),
        ("served again, most within one second", most(&lines.served)),
        (
            "server CPU, most within one second",
            percent(peak_rate(&lines.cpu, 1.0)),
        ),
        (
            "server memory, most",
            bytes(found.samples.peak_rss() as f64),
        ),
        (
            "server memory before the kill",
            bytes(found.rss_before as f64),
        ),
        ("runtimes that answered afterwards", answered),
    ];
    Table {
        title: "The storm".to_owned(),
        columns: vec![String::new(), "value".to_owned()],
        rows: rows
            .map(|(name, value)| vec![name.to_owned(), value])
            .to_vec(),
    }
}

/// Dials that came to nothing; none when there were none.
fn refusals(run: &Run) -> Option<Table> {
    let rows: Vec<_> = run
        .errors
        .iter()
        .map(|(kind, times)| vec![kind.clone(), count(*times as f64)])
        .collect();
    (!rows.is_empty()).then(|| Table {
        title: "Dials that came to nothing; a status is a refusal of the server".to_owned(),
        columns: ["kind", "dials"].map(ToOwned::to_owned).to_vec(),
        rows,
    })
}

fn notes(report: &mut Report, found: &Found, run: &Run) {
    if !found.all {
        let up = found.samples.last().map_or(0, |status| status.up);
        let (up, all) = (count(up as f64), count(found.tunnels as f64));
        report.warn(format!("only {up} of {all} came back within the limit"));
    }
    if found.unanswered.total() > 0 {
        let kinds = kinds(&found.unanswered.by_name());
        report.warn(format!("runtimes that did not answer afterwards: {kinds}"));
    }
    if run.generator_bound {
        report.warn("the fleet was the limit: real clients would have come back faster");
    }
    report.note(
        "failed dials within the outage are those that found nobody listening; each makes its \
         client wait longer, at random up to 1 s, 2 s, 4 s and so on to 30 s, as real clients do",
    );
}

fn charts(lines: &Lines) -> [Chart; 2] {
    let chart = |title: &str, y: Axis, line: Vec<(f64, f64)>| Chart {
        title: title.to_owned(),
        x: Axis::new("since the kill", Unit::Seconds, Scale::Linear),
        series: vec![Series {
            name: y.label.clone(),
            points: line,
        }],
        y,
    };
    let rates = lines.handshakes.windows(2).filter_map(|pair| {
        let [from, to] = pair else { return None };
        (to.0 > from.0).then(|| (to.0, (to.1 - from.1) / (to.0 - from.0)))
    });
    [
        chart(
            "Served again",
            Axis::new("tunnels", Unit::Count, Scale::Linear),
            thinned(&lines.served),
        ),
        chart(
            "Handshakes",
            Axis::new("handshakes", Unit::PerSecond, Scale::Linear),
            thinned(&rates.collect::<Vec<_>>()),
        ),
    ]
}
