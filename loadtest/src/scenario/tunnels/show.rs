//! From what was measured to runs, tables, charts and notes.

use std::collections::BTreeMap;

use super::connect::{ALONE, Connected, ConnectedSum};
use crate::{
    fleet::watch::kinds,
    report::{
        Axis, Chart, Report, Scale, Series, Table, Unit, Usage, build,
        format::{NONE, bytes, count, per_second, seconds},
        usage::{FLEET, TUNNEL_SERVER},
    },
};

/// What was measured of a server's tunnels.
#[derive(Debug)]
pub(super) struct TunnelsMeasurement {
    pub(super) connected: Connected,
    /// Length of the time at rest, and what the programs used in it.
    pub(super) idle_seconds: f64,
    pub(super) idle: BTreeMap<String, Usage>,
    /// Sessions that ended by themselves.
    pub(super) lost: u64,
    /// Resident memory of a real client at rest.
    pub(super) real_client: Option<u64>,
}

const HALVES: [&str; 2] = ["TLS alone, first half", "TLS alone, second half"];

/// Writes into the report, before what is there of requests over the tunnels. `alone` is TLS alone, in halves.
pub(super) fn show(report: &mut Report, measured: TunnelsMeasurement, alone: &[Connected]) {
    let own = ConnectedSum::of(std::slice::from_ref(&measured.connected));
    let library = ConnectedSum::of(alone);
    let mut tables = vec![connecting(own, library), memory(&measured, own, library)];
    tables.extend(at_rest(&measured, own));
    report.tables.splice(0..0, tables);
    let all = || std::iter::once(&measured.connected).chain(alone);
    let mut runs: Vec<_> = all().map(|part| part.run.clone()).collect();
    for (run, name) in runs
        .iter_mut()
        .zip(["tunnels connect"].into_iter().chain(HALVES))
    {
        name.clone_into(&mut run.name);
    }
    let mut charts = charts(&measured, alone).to_vec();
    let curve = build::latency_chart(&runs);
    charts.extend(curve.map(|chart| chart.titled("Time to connect one")));
    report.charts.splice(0..0, charts);
    report.runs.splice(0..0, runs);
    notes(report, &measured, alone, own);
}

type Row = (&'static str, String, String);

fn table(title: &str, rows: Vec<Row>) -> Table {
    let cells = rows
        .into_iter()
        .map(|(name, own, library)| vec![name.to_owned(), own, library]);
    Table::new(title, &["", TUNNEL_SERVER, ALONE], cells.collect())
}

fn connecting(own: Option<ConnectedSum>, library: Option<ConnectedSum>) -> Table {
    let none = || NONE.to_owned();
    let row = |name, figure: fn(&ConnectedSum) -> String| {
        let [own, library] = [own, library].map(|sum| sum.as_ref().map_or_else(none, figure));
        (name, own, library)
    };
    let ratio = |name, figure: fn(&ConnectedSum) -> f64| {
        let both = own.zip(library);
        let ratio = both.map(|(own, library)| count(figure(&own) / figure(&library)));
        (name, ratio.unwrap_or_else(none), none())
    };
    let rows = vec![
        row("connected", |sum| count(sum.connected as f64)),
        row("time to connect all", |sum| seconds(sum.seconds)),
        row("handshakes", |sum| per_second(sum.rate())),
        ratio("handshakes, ratio to TLS alone", ConnectedSum::rate),
        row("most within one second", |sum| count(sum.peak_rate.round())),
        row("server CPU for each", |sum| seconds(sum.cpu_each())),
        ratio("server CPU, ratio to TLS alone", ConnectedSum::cpu_each),
        row("fleet CPU, share of its threads", |sum| {
            percent(sum.fleet_share)
        }),
    ];
    table("Connecting", rows)
}

fn memory(
    measured: &TunnelsMeasurement,
    own: Option<ConnectedSum>,
    library: Option<ConnectedSum>,
) -> Table {
    let none = || NONE.to_owned();
    let connected = &measured.connected;
    let [own, library] =
        [own, library].map(|sum| sum.map_or_else(none, |sum| bytes(sum.memory_each())));
    let after_idle = measured.idle.get(TUNNEL_SERVER);
    let after_idle = after_idle.map_or(connected.settled, |usage| usage.rss);
    let grown = after_idle.saturating_sub(connected.before) as f64;
    let grown = grown / connected.run.completed.max(1) as f64;
    let one = |name, size: f64| (name, bytes(size), none());
    let mut rows = vec![
        one("resident before any", connected.before as f64),
        one("resident at most while connecting", connected.peak as f64),
        one("resident when settled", connected.settled as f64),
        ("for each, when settled", own, library),
        one("for each, after the time at rest", grown),
    ];
    let real = measured.real_client.map(|resident| resident as f64);
    rows.extend(real.map(|resident| one("one real tunnel client at rest", resident)));
    table("Memory", rows)
}

fn at_rest(measured: &TunnelsMeasurement, own: Option<ConnectedSum>) -> Option<Table> {
    let connected = own?.connected as f64;
    let used = |role: &str| {
        let usage = measured.idle.get(role)?;
        Some(usage.cpu_seconds / measured.idle_seconds)
    };
    let server = used(TUNNEL_SERVER)?;
    let rows = [
        ("share of a core, all together", percent(server)),
        ("for each and second", seconds(server / connected)),
        (
            "share of a core, fleet",
            percent(used(FLEET).unwrap_or(0.0)),
        ),
    ];
    let title = format!("CPU at rest, over {}", seconds(measured.idle_seconds));
    Some(Table::of_values(title, TUNNEL_SERVER, rows))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn notes(
    report: &mut Report,
    measured: &TunnelsMeasurement,
    alone: &[Connected],
    own: Option<ConnectedSum>,
) {
    let connected = &measured.connected;
    let failures = kinds(&connected.run.errors);
    if !connected.all {
        let up = count(own.map_or(0, |own| own.connected) as f64);
        report.warn(format!(
            "only {up} were connected within the limit: {failures}"
        ));
    } else if !connected.run.errors.is_empty() {
        report.warn(format!("dials that failed on the way: {failures}"));
    }
    if alone
        .iter()
        .any(|part| !part.all || !part.run.errors.is_empty())
    {
        report.warn("not all handshakes with TLS alone went well: its figures are too low");
    }
    if measured.lost > 0 {
        let lost = count(measured.lost as f64);
        report.warn(format!("{lost} sessions ended unexpectedly"));
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

fn charts(measured: &TunnelsMeasurement, alone: &[Connected]) -> [Chart; 2] {
    let tunnels = Series::new("tunnels", measured.connected.over_time.clone());
    let halves = alone.iter().zip(HALVES);
    let halves = halves.map(|(part, name)| Series::new(name, part.over_time.clone()));
    let server = Series::new(TUNNEL_SERVER, measured.connected.memory.clone());
    let library = alone
        .first()
        .map(|part| Series::new(ALONE, part.memory.clone()));
    let axis = |label, unit| Axis::new(label, unit, Scale::Linear);
    [
        Chart::new(
            "Connected over time",
            axis("time", Unit::Seconds),
            axis("connected", Unit::Count),
            std::iter::once(tunnels).chain(halves),
        ),
        Chart::new(
            "Memory of the server that comes with them",
            axis("connected", Unit::Count),
            axis("resident", Unit::Bytes),
            std::iter::once(server).chain(library),
        ),
    ]
}
