//! From what was found to tables, charts and notes.

use std::collections::BTreeMap;

use crate::{
    fleet::watch::kinds,
    measure::usage::{FLEET, TUNNEL_SERVER},
    report::{
        Axis, Chart, Report, Scale, Series, Table, Unit, Usage, build,
        format::{NONE, bytes, count, per_second, seconds},
    },
    scenario::tunnels::{
        baseline::ALONE,
        connect::{Connected, Sum},
    },
};

/// Everything but the requests and what TLS alone came to.
#[derive(Debug)]
pub(super) struct Found {
    /// How they connected.
    pub(super) connected: Connected,
    /// Resident memory of the server when it had settled.
    pub(super) settled: u64,
    /// How long was measured at rest, seconds.
    pub(super) idle_seconds: f64,
    /// What everybody used meanwhile.
    pub(super) idle: BTreeMap<String, Usage>,
    /// Sessions that ended though nobody asked for it.
    pub(super) lost: u64,
    /// Resident memory of a real client at rest.
    pub(super) real_client: Option<u64>,
}

impl Found {
    /// Before anything was measured at rest.
    pub(super) fn new(connected: Connected, settled: u64) -> Self {
        Self {
            connected,
            settled,
            idle_seconds: 0.0,
            idle: BTreeMap::new(),
            lost: 0,
            real_client: None,
        }
    }
}

/// Puts it into the report, before what the requests have put there. `alone` are the parts of what
/// TLS alone came to, each with the memory that it settled at.
pub(super) fn show(report: &mut Report, found: &Found, alone: &[(Connected, u64)]) {
    let own = Sum::of([(&found.connected, found.settled)]);
    let library = Sum::of(alone.iter().map(|(part, settled)| (part, *settled)));
    let mut tables = vec![connecting(own, library), memory(found, own, library)];
    tables.extend(at_rest(found, own));
    tables.append(&mut report.tables);
    report.tables = tables;

    let mut runs = vec![found.connected.run.clone()];
    runs.extend(alone.iter().map(|(part, _)| part.run.clone()));
    let names = [
        "tunnels connect",
        "TLS alone, first half",
        "TLS alone, second half",
    ];
    for (run, name) in runs.iter_mut().zip(names) {
        name.clone_into(&mut run.name);
    }
    let mut charts = charts(found, alone);
    charts.extend(build::latency_chart(&runs).map(|chart| Chart {
        title: "Time to connect one".to_owned(),
        ..chart
    }));
    charts.append(&mut report.charts);
    report.charts = charts;
    runs.append(&mut report.runs);
    report.runs = runs;
    notes(report, found, alone, own);
}

/// A table of figures with a column for the tunnels, and one for TLS alone.
fn table(title: &str, rows: &[(&str, String, String)]) -> Table {
    let columns = ["", TUNNEL_SERVER, ALONE].map(ToOwned::to_owned);
    let cells = |(name, own, library): &(&str, String, String)| {
        vec![(*name).to_owned(), own.clone(), library.clone()]
    };
    Table {
        title: title.to_owned(),
        columns: columns.to_vec(),
        rows: rows.iter().map(cells).collect(),
    }
}

fn connecting(own: Option<Sum>, library: Option<Sum>) -> Table {
    let show = |sum: Option<Sum>, figure: &dyn Fn(&Sum) -> String| {
        sum.as_ref().map_or_else(|| NONE.to_owned(), figure)
    };
    let row =
        |name, figure: &dyn Fn(&Sum) -> String| (name, show(own, figure), show(library, figure));
    let ratio = |figure: &dyn Fn(&Sum) -> f64| match (&own, &library) {
        (Some(own), Some(library)) => count(figure(own) / figure(library)),
        _ => NONE.to_owned(),
    };
    let rows = [
        row("connected", &|sum| count(sum.connected as f64)),
        row("time to connect all", &|sum| seconds(sum.seconds)),
        row("handshakes", &|sum| per_second(sum.rate())),
        (
            "handshakes, ratio to TLS alone",
            ratio(&Sum::rate),
            NONE.to_owned(),
        ),
        row("most within one second", &|sum| {
            count(sum.peak_rate.round())
        }),
        row("server CPU for each", &|sum| seconds(sum.cpu_each())),
        (
            "server CPU, ratio to TLS alone",
            ratio(&Sum::cpu_each),
            NONE.to_owned(),
        ),
        row("fleet CPU, share of its threads", &|sum| {
            percent(sum.fleet_share)
        }),
    ];
    table("Connecting", &rows)
}

fn memory(found: &Found, own: Option<Sum>, library: Option<Sum>) -> Table {
    let none = || NONE.to_owned();
    let each = |sum: Option<Sum>| sum.map_or_else(none, |sum| bytes(sum.memory_each()));
    let size = |bytes_: u64| bytes(bytes_ as f64);
    let after_idle = found
        .idle
        .get(TUNNEL_SERVER)
        .map_or(found.settled, |usage| usage.rss);
    let connected = found.connected.run.completed.max(1) as f64;
    let grown = after_idle.saturating_sub(found.connected.before) as f64;
    let mut rows = vec![
        ("resident before any", size(found.connected.before), none()),
        (
            "resident at most while connecting",
            size(found.connected.peak),
            none(),
        ),
        ("resident when settled", size(found.settled), none()),
        ("for each, when settled", each(own), each(library)),
        (
            "for each, after the time at rest",
            bytes(grown / connected),
            none(),
        ),
    ];
    if let Some(resident) = found.real_client {
        rows.push(("one real tunnel client at rest", size(resident), none()));
    }
    table("Memory", &rows)
}

fn at_rest(found: &Found, own: Option<Sum>) -> Option<Table> {
    let connected = own?.connected as f64;
    let used = |role: &str| found.idle.get(role).map(|usage| usage.cpu_seconds);
    let server = used(TUNNEL_SERVER)?;
    let rows = [
        (
            "share of a core, all together",
            percent(server / found.idle_seconds),
        ),
        (
            "for each and second",
            seconds(server / found.idle_seconds / connected),
        ),
        (
            "share of a core, fleet",
            percent(used(FLEET).unwrap_or(0.0) / found.idle_seconds),
        ),
    ];
    Some(Table {
        title: format!("CPU at rest, over {}", seconds(found.idle_seconds)),
        columns: ["", TUNNEL_SERVER].map(ToOwned::to_owned).to_vec(),
        rows: rows
            .map(|(name, value)| vec![name.to_owned(), value])
            .to_vec(),
    })
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn notes(report: &mut Report, found: &Found, alone: &[(Connected, u64)], own: Option<Sum>) {
    let connected = &found.connected;
    if !connected.all {
        let up = own.map_or(0, |own| own.connected);
        report.warn(format!(
            "only {} were connected within the limit: {}",
            count(up as f64),
            kinds(&connected.run.errors)
        ));
    } else if !connected.run.errors.is_empty() {
        report.warn(format!(
            "dials that failed on the way: {}",
            kinds(&connected.run.errors)
        ));
    }
    if alone
        .iter()
        .any(|(part, _)| !part.all || !part.run.errors.is_empty())
    {
        report.warn("not all handshakes with TLS alone went well: its figures are too low");
    }
    if found.lost > 0 {
        report.warn(format!(
            "{} sessions ended though nobody asked",
            count(found.lost as f64)
        ));
    }
    if connected.run.generator_bound {
        report.warn(
            "the fleet was the limit while tunnels connected: a dialler verifies, which costs more \
             than to sign; compare the server CPU for each, or give it more --fleet-threads",
        );
    }
    if !alone.is_empty() {
        report.note(
            "TLS alone is the same library with the same certificate that accepts, does the TLS \
             1.3 handshake and keeps the connection; half of it is measured before the tunnels, \
             half after",
        );
    }
}

fn charts(found: &Found, alone: &[(Connected, u64)]) -> Vec<Chart> {
    let named = |name: &str, points: &[(f64, f64)]| Series {
        name: name.to_owned(),
        points: points.to_vec(),
    };
    let mut over_time = vec![named("tunnels", &found.connected.over_time)];
    for ((part, _), name) in alone
        .iter()
        .zip(["TLS alone, first half", "TLS alone, second half"])
    {
        over_time.push(named(name, &part.over_time));
    }
    let mut by_count = vec![named(TUNNEL_SERVER, &found.connected.memory)];
    by_count.extend(alone.first().map(|(part, _)| named(ALONE, &part.memory)));
    vec![
        Chart {
            title: "Connected over time".to_owned(),
            x: Axis::new("time", Unit::Seconds, Scale::Linear),
            y: Axis::new("connected", Unit::Count, Scale::Linear),
            series: over_time,
        },
        Chart {
            title: "Memory of the server that comes with them".to_owned(),
            x: Axis::new("connected", Unit::Count, Scale::Linear),
            y: Axis::new("resident", Unit::Bytes, Scale::Linear),
            series: by_count,
        },
    ]
}
