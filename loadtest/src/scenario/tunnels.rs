//! Many tunnels that do nothing: what each costs, and how fast all of them connect.
//!
//! ```text
//!   TLS alone, half of them ─▶ tunnels connect ─▶ settle ─▶ idle ─▶ (real client) ─▶ (load spread
//!   over all, over one, ...) ─▶ TLS alone, the other half ─▶ report
//! ```
//!
//! The two halves of TLS alone stand before and after, so that a machine which gets slower meanwhile
//! is not mistaken for a slow server.

pub mod spread;

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use tokio::time::sleep;

use crate::{
    fleet::{
        status::{Status, clock},
        watch::{Crowd, FleetArgs, FleetWatch, kinds, peak_rate, thinned},
    },
    measure::usage::{Meter, resident},
    progress::Progress,
    report::{
        Axis, Chart, Report, Run, Scale, Series, Table, Unit, Usage,
        format::{NONE, bytes, cell, count, per_second, seconds},
        latency_chart,
        tables::{FLEET, TUNNEL_SERVER},
    },
    scenario::tunnels::spread::SpreadArgs,
    stack::{self, Running, Server},
};

/// After a server's start its memory is that of its tables; what starting left goes first.
const AFTER_START: Duration = Duration::from_millis(500);

/// How long a real client rests before its memory is read.
const CLIENT_REST: Duration = Duration::from_secs(3);

/// A session lasts that long before its client counts it as stable, as a real one.
const STABLE: Duration = Duration::from_secs(60);

/// The role of the process that only does handshakes.
const ALONE: &str = "TLS alone";

/// Before memory is read, so that what handshakes needed is given back.
const SETTLE: Duration = Duration::from_secs(1);

/// Names of the runs.
const NAMES: [&str; 3] = [
    "tunnels connect",
    "TLS alone, first half",
    "TLS alone, second half",
];

/// Flags of `loadtest tunnels`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// Tunnels, each with a runtime of its own
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=25_000))]
    pub tunnels: u64,
    /// How long to wait after the last has connected, before memory is read
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    pub settle: Duration,
    /// How long to measure what they cost at rest
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = humantime::parse_duration)]
    pub idle: Duration,
    /// Measure too what the TLS library alone reaches; =false to leave it out
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set,
        default_value_t = true, default_missing_value = "true")]
    pub tls_baseline: bool,
    /// Measure too the memory of one real tunnel client at rest
    #[arg(long)]
    pub real_client: bool,
    /// Requests over all tunnels.
    #[command(flatten)]
    pub spread: SpreadArgs,
    /// The fleet and the programs.
    #[command(flatten)]
    pub crowd: FleetArgs,
}

/// What was measured of a server's tunnels.
#[derive(Debug)]
struct TunnelsMeasurement {
    connected: Connected,
    /// Length of the time at rest, and what the programs used in it.
    idle_seconds: f64,
    idle: BTreeMap<String, Usage>,
    /// Sessions that ended by themselves.
    lost: u64,
    /// Resident memory of a real client at rest.
    real_client: Option<u64>,
}

/// What the connecting of one fleet to one server showed.
#[derive(Debug)]
struct Connected {
    run: Run,
    /// Processor time of the fleet, as a share of its threads' time.
    fleet_share: f64,
    /// Resident memory of the server before the first client.
    before: u64,
    /// The highest meanwhile.
    peak: u64,
    /// And once all was quiet again.
    settled: u64,
    all: bool,
    over_time: Vec<(f64, f64)>,
    /// Resident memory that came with the clients, over their number.
    memory: Vec<(f64, f64)>,
}

/// Measures.
///
/// # Errors
/// The programs cannot be started, or no client could connect.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let crowd = Crowd::create(&args.crowd, args.tunnels, progress)?;
    let title = format!("{} idle tunnels", count(args.tunnels as f64));
    let mut report = Report::new("tunnels", title);

    let mut alone = Vec::new();
    let half = args.tunnels / 2;
    alone.extend(baseline(&args, &crowd, half).await?);
    let measured = measure(&args, &crowd, &mut report).await?;
    alone.extend(baseline(&args, &crowd, args.tunnels - half).await?);
    show(&mut report, &measured, &alone);
    Ok(report)
}

/// All that needs the tunnel server; it is gone when this is over.
async fn measure(
    args: &Args,
    crowd: &Crowd<'_>,
    report: &mut Report,
) -> anyhow::Result<TunnelsMeasurement> {
    let progress = crowd.progress;
    progress.message("starting the tunnel server");
    let server = crowd.start_server(None).await?;
    sleep(AFTER_START).await;
    let before = resident(server.child.id()).unwrap_or(0);
    let mut watch = crowd.dial(&[&server], STABLE)?;
    let mut connected = connect(&mut watch, (crowd.count, before), crowd).await?;
    progress.message("connected; settling");
    watch.meanwhile(sleep(args.settle)).await?;
    connected.settled = watch.server_rss();

    let (meter, began) = (Meter::start(watch.roles()), clock());
    let on_status = |status: &Status| {
        let left = args.idle.as_secs_f64() - (status.at - began);
        let (up, left) = (count(status.up as f64), seconds(left.max(0.0).ceil()));
        progress.message(format_args!("{up} at rest, {left} left"));
    };
    watch.until(args.idle, |_| false, on_status).await?;
    let (idle_seconds, idle) = (clock() - began, meter.finish());

    let mut real_client = None;
    if args.real_client {
        progress.message("starting a real tunnel client");
        let resting = rest_real_client(crowd, &server);
        real_client = Some(watch.meanwhile(Box::pin(resting)).await??);
    }
    if args.spread.spread_load {
        let (spread, roles) = (&args.spread, watch.roles());
        let load = spread::measure(spread, crowd, server.public, &roles, report);
        watch.meanwhile(Box::pin(load)).await??;
    }
    Ok(TunnelsMeasurement {
        connected,
        idle_seconds,
        idle,
        // No session may have ended meanwhile.
        lost: watch.next().await?.lost,
        real_client,
    })
}

async fn rest_real_client(crowd: &Crowd<'_>, server: &Server) -> anyhow::Result<u64> {
    // It gets no requests, so its upstream need not exist.
    let (programs, upstream) = (&crowd.args.programs, "http://127.0.0.1:9");
    let (files, token) = (&crowd.files, &crowd.single_token);
    let client = stack::start_client(programs, files, &[server.tunnel], token, upstream).await?;
    let Running { child, address } = client;
    child.wait_ready(address, stack::START_LIMIT).await?;
    sleep(CLIENT_REST).await;
    Ok(resident(child.id()).unwrap_or(0))
}

/// Waits until as many as wanted are connected, or the limit is over. `before` is the memory of the server.
///
/// # Errors
/// The fleet ended, or no client was connected.
async fn connect(
    watch: &mut FleetWatch,
    (wanted, before): (u64, u64),
    crowd: &Crowd<'_>,
) -> anyhow::Result<Connected> {
    let limit = crowd.args.limit;
    let meter = Meter::start(watch.roles());
    let start = watch.next().await?.at;
    let all = watch.until_up(wanted, limit, crowd.progress).await?;
    let usage = meter.finish();
    let samples = watch.take();
    let (run, fleet_share) = samples.run(&Status::default(), start, start, usage);
    if run.completed == 0 {
        let (role, failures) = (run.name, kinds(&run.errors));
        bail!("no connection to the {role} within {limit:?}: {failures}");
    }
    let memory = samples.memory_by_up().into_iter();
    let memory = memory.map(|(up, rss)| (up, (rss - before as f64).max(0.0)));
    Ok(Connected {
        run,
        fleet_share,
        before,
        peak: samples.peak_rss(),
        settled: 0,
        all,
        over_time: samples.over_time(start, |status| status.connected),
        memory: thinned(&memory.collect::<Vec<_>>()),
    })
}

/// Connects clients to a process that does handshakes and nothing else, with as many threads as the server has.
/// None when there is no client to connect, or it is not wanted.
///
/// # Errors
/// Either does not start, or no client could connect.
async fn baseline(
    args: &Args,
    crowd: &Crowd<'_>,
    wanted: u64,
) -> anyhow::Result<Option<Connected>> {
    if wanted == 0 || !args.tls_baseline {
        return Ok(None);
    }
    let flags = [
        "tls-sink".to_owned(),
        format!("--threads={}", args.crowd.programs.shards.max(1)),
        format!("--cert={}", crowd.files.path("server.pem").display()),
        format!("--key={}", crowd.files.path("server.key").display()),
    ];
    let Running { child, address } = Running::start_own(ALONE, flags).await?;
    let (role, clients) = ((ALONE, child.id()), format!("--handshakes={wanted}"));
    let mut watch = FleetWatch::start(&args.crowd, role, &[address], clients, Duration::ZERO)?;
    let wanted = (wanted, watch.server_rss());
    let mut connected = connect(&mut watch, wanted, crowd).await?;
    watch.meanwhile(sleep(SETTLE)).await?;
    connected.settled = watch.server_rss();
    Ok(Some(connected))
}

/// Writes into the report, before what is there of requests over the tunnels. `alone` is TLS alone, in halves.
fn show(report: &mut Report, measured: &TunnelsMeasurement, alone: &[Connected]) {
    let own = ConnectedSum::of(std::slice::from_ref(&measured.connected));
    let both = [own, ConnectedSum::of(alone)];
    let mut tables = vec![connecting(both), memory(measured, both)];
    tables.extend(at_rest(measured, own));
    report.tables.splice(0..0, tables);
    let parts = std::iter::once(&measured.connected).chain(alone);
    let mut runs: Vec<_> = parts.map(|part| part.run.clone()).collect();
    for (run, name) in runs.iter_mut().zip(NAMES) {
        name.clone_into(&mut run.name);
    }
    let mut charts = charts(measured, alone).to_vec();
    charts.extend(latency_chart("Time to connect one", &runs));
    report.charts.splice(0..0, charts);
    report.runs.splice(0..0, runs);
    notes(report, measured, alone);
}

/// Several that connected together, as if they were one.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectedSum {
    connected: f64,
    seconds: f64,
    /// Most connected within one second.
    peak_rate: f64,
    fleet_share: f64,
    server_cpu: f64,
    memory: f64,
}

impl ConnectedSum {
    /// The sum of all parts; none if nothing was connected.
    fn of(parts: &[Connected]) -> Option<Self> {
        let mut sum = Self::default();
        for part in parts {
            sum.connected += part.run.completed as f64;
            sum.seconds += part.run.seconds;
            let server = part.run.usage.get(&part.run.name);
            sum.server_cpu += server.map_or(0.0, |server| server.cpu_seconds);
            sum.peak_rate = sum.peak_rate.max(peak_rate(&part.over_time, 1.0));
            sum.fleet_share += part.fleet_share / parts.len() as f64;
            sum.memory += part.settled.saturating_sub(part.before) as f64;
        }
        (sum.connected > 0.0).then_some(sum)
    }

    fn rate(&self) -> f64 {
        self.connected / self.seconds
    }

    fn cpu_each(&self) -> f64 {
        self.server_cpu / self.connected
    }
}

/// The server's, and that of TLS alone.
type Both = [Option<ConnectedSum>; 2];

fn table(title: &str, rows: Vec<Vec<String>>) -> Table {
    Table::new(title, &format!(",{TUNNEL_SERVER},{ALONE}"), rows)
}

/// A row with a figure of both.
fn row(name: &str, both: Both, figure: impl Fn(&ConnectedSum) -> String) -> Vec<String> {
    let [own, library] = both.map(|sum| cell(sum.as_ref(), &figure));
    vec![name.to_owned(), own, library]
}

fn connecting(both: Both) -> Table {
    let ratio = |name: &str, figure: fn(&ConnectedSum) -> f64| {
        let [own, library] = both.map(|sum| sum.as_ref().map(figure));
        let ratio = own.zip(library).map(|(own, library)| own / library);
        vec![name.to_owned(), cell(ratio, count), NONE.to_owned()]
    };
    let rows = vec![
        row("connected", both, |sum| count(sum.connected)),
        row("time to connect all", both, |sum| seconds(sum.seconds)),
        row("handshakes", both, |sum| per_second(sum.rate())),
        ratio("handshakes, ratio to TLS alone", ConnectedSum::rate),
        row("most within one second", both, |sum| {
            count(sum.peak_rate.round())
        }),
        row("server CPU for each", both, |sum| seconds(sum.cpu_each())),
        ratio("server CPU, ratio to TLS alone", ConnectedSum::cpu_each),
        row("fleet CPU, share of its threads", both, |sum| {
            percent(sum.fleet_share)
        }),
    ];
    table("Connecting", rows)
}

fn memory(measured: &TunnelsMeasurement, both: Both) -> Table {
    let connected = &measured.connected;
    let after_idle = measured.idle.get(TUNNEL_SERVER);
    let after_idle = after_idle.map_or(connected.settled, |usage| usage.rss);
    let grown = after_idle.saturating_sub(connected.before) / connected.run.completed.max(1);
    let one = |name: &str, size: u64| vec![name.to_owned(), bytes(size as f64), NONE.to_owned()];
    let mut rows = vec![
        one("resident before any", connected.before),
        one("resident at most while connecting", connected.peak),
        one("resident when settled", connected.settled),
        row("for each, when settled", both, |sum| {
            bytes(sum.memory / sum.connected)
        }),
        one("for each, after the time at rest", grown),
    ];
    let real = measured.real_client;
    rows.extend(real.map(|resident| one("one real tunnel client at rest", resident)));
    table("Memory", rows)
}

fn at_rest(measured: &TunnelsMeasurement, own: Option<ConnectedSum>) -> Option<Table> {
    let used = |role: &str| {
        let usage = measured.idle.get(role)?;
        Some(usage.cpu_seconds / measured.idle_seconds)
    };
    let (server, fleet) = (used(TUNNEL_SERVER)?, used(FLEET).unwrap_or(0.0));
    let rows = [
        ("share of a core, all together", percent(server)),
        ("for each and second", seconds(server / own?.connected)),
        ("share of a core, fleet", percent(fleet)),
    ];
    let title = format!("CPU at rest, over {}", seconds(measured.idle_seconds));
    Some(Table::of_values(title, TUNNEL_SERVER, rows))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn notes(report: &mut Report, measured: &TunnelsMeasurement, alone: &[Connected]) {
    let Connected { run, all, .. } = &measured.connected;
    let failures = kinds(&run.errors);
    if !all {
        let up = count(run.completed as f64);
        report.warn(format!(
            "only {up} were connected within the limit: {failures}"
        ));
    } else if !run.errors.is_empty() {
        report.warn(format!("dials that failed on the way: {failures}"));
    }
    let went_well = |part: &Connected| part.all && part.run.errors.is_empty();
    if !alone.iter().all(went_well) {
        report.warn("not all handshakes with TLS alone went well: its figures are too low");
    }
    if measured.lost > 0 {
        let lost = count(measured.lost as f64);
        report.warn(format!("{lost} sessions ended unexpectedly"));
    }
    if run.generator_bound {
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
    let connected = &measured.connected;
    let names = ["tunnels"].into_iter().chain(NAMES.into_iter().skip(1));
    let parts = std::iter::once(connected).chain(alone);
    let over_time = names.zip(parts);
    let over_time = over_time.map(|(name, part)| Series::new(name, thinned(&part.over_time)));
    let memory = [(TUNNEL_SERVER, Some(connected)), (ALONE, alone.first())].into_iter();
    let memory = memory.filter_map(|(name, part)| Some(Series::new(name, part?.memory.clone())));
    let axis = |label, unit| Axis::new(label, unit, Scale::Linear);
    let up = || axis("connected", Unit::Count);
    let time = axis("time", Unit::Seconds);
    [
        Chart::new("Connected over time", time, up(), over_time),
        Chart::new(
            "Memory of the server that comes with them",
            up(),
            axis("resident", Unit::Bytes),
            memory,
        ),
    ]
}
