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
        flags::FleetArgs,
        runtimes::Runtimes,
        status::{Status, clock},
        watch::{ConnectPhase, FleetWatch, FleetWork, kinds, peak_rate, thinned},
    },
    measure::usage::{Meter, resident},
    progress::Progress,
    report::{
        Axis, Chart, Report, Run, Scale, Series, Table, Unit, Usage, build,
        format::{NONE, bytes, count, per_second, seconds},
        tables::{FLEET, TUNNEL_SERVER},
    },
    scenario::tunnels::spread::{SpreadArgs, SpreadLoad},
    stack::{self, ProgramArgs, Running, Server, files::Files},
};

/// After a server's start its memory is that of its tables; what starting left goes first.
const AFTER_START: Duration = Duration::from_millis(500);

/// How long a real client rests before its memory is read.
const CLIENT_REST: Duration = Duration::from_secs(3);

/// A session lasts that long before its client counts it as stable, as a real one.
const STABLE: Duration = Duration::from_secs(60);

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

/// Measures.
///
/// # Errors
/// The programs cannot be started, or no client could connect.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    progress.message("making runtimes and tokens");
    let files = Files::new(&args.crowd.programs)?;
    let runtimes = Runtimes::create(&files, args.tunnels)?;
    let title = format!("{} idle tunnels", count(args.tunnels as f64));
    let mut report = Report::new("tunnels", title);

    let mut alone = Vec::new();
    let halves = [args.tunnels / 2, args.tunnels - args.tunnels / 2];
    if args.tls_baseline {
        alone.extend(baseline(&args.crowd, &files, halves[0], progress).await?);
    }
    let measured = measure(&args, &files, &runtimes, progress, &mut report).await?;
    if args.tls_baseline {
        alone.extend(baseline(&args.crowd, &files, halves[1], progress).await?);
    }
    show(&mut report, measured, &alone);
    Ok(report)
}

/// All that needs the tunnel server; it is gone when this is over.
async fn measure(
    args: &Args,
    files: &Files,
    runtimes: &Runtimes,
    progress: &Progress,
    report: &mut Report,
) -> anyhow::Result<TunnelsMeasurement> {
    let stack = &args.crowd.programs;
    progress.message("starting the tunnel server");
    let server = stack::start_server(stack, files, None).await?;
    sleep(AFTER_START).await;
    let before = resident(server.child.id()).unwrap_or(0);
    let (address, work) = (server.tunnel, FleetWork::Clients(runtimes.tokens()));
    let mut watch = FleetWatch::start(&args.crowd, address, server.child.id(), work, STABLE)?;
    let wanted = (args.tunnels, before);
    let connecting = connect(&mut watch, TUNNEL_SERVER, wanted, &args.crowd, progress);
    let mut connected = Box::pin(connecting).await?;
    progress.message("connected; settling");
    watch.meanwhile(sleep(args.settle)).await?;
    connected.settled = watch.server_rss();
    let (idle_seconds, idle) = rest(args.idle, &mut watch, progress).await?;
    let mut measured = TunnelsMeasurement {
        connected,
        idle_seconds,
        idle,
        lost: 0,
        real_client: None,
    };
    if args.real_client {
        progress.message("starting a real tunnel client");
        let resting = real_client(stack, files, &server, runtimes);
        measured.real_client = Some(watch.meanwhile(Box::pin(resting)).await??);
    }
    if args.spread.spread_load {
        let spread = SpreadLoad {
            args: &args.spread,
            fleet_threads: args.crowd.fleet_threads.into(),
            public: server.public,
            roles: watch.roles(TUNNEL_SERVER),
        };
        let load = spread.measure(runtimes, progress, report);
        watch.meanwhile(Box::pin(load)).await??;
    }
    // No session may have ended meanwhile.
    let end = watch.next().await?;
    measured.lost = end.lost;
    Ok(measured)
}

/// Watches the tunnels at rest; gives how long that was, and what the programs used.
async fn rest(
    idle: Duration,
    watch: &mut FleetWatch,
    progress: &Progress,
) -> anyhow::Result<(f64, BTreeMap<String, Usage>)> {
    let meter = Meter::start(watch.roles(TUNNEL_SERVER));
    let began = clock();
    let tell = |status: &Status| {
        let left = seconds((idle.as_secs_f64() - (status.at - began)).max(0.0).ceil());
        let up = count(status.up as f64);
        progress.message(format_args!("{up} at rest, {left} left"));
    };
    watch.until(idle, |_| false, tell).await?;
    Ok((clock() - began, meter.finish()))
}

async fn real_client(
    stack: &ProgramArgs,
    files: &Files,
    server: &Server,
    runtimes: &Runtimes,
) -> anyhow::Result<u64> {
    // It gets no requests, so its upstream need not exist.
    let (token, upstream) = (runtimes.single_token(), "http://127.0.0.1:9");
    let client = stack::start_client(stack, files, server.tunnel, token, upstream).await?;
    client
        .child
        .wait_ready(client.address, stack::START_LIMIT)
        .await?;
    sleep(CLIENT_REST).await;
    Ok(resident(client.child.id()).unwrap_or(0))
}

/// The role of the process that only does handshakes.
const ALONE: &str = "TLS alone";

/// Before memory is read, so that what handshakes needed is given back.
const SETTLE: Duration = Duration::from_secs(1);

/// What the connecting of one fleet to one server showed.
#[derive(Debug)]
struct Connected {
    run: Run,
    /// Most connected within one second.
    peak_rate: f64,
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

/// Several of them together, as if they were one.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectedSum {
    connected: u64,
    seconds: f64,
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
            sum.connected += part.run.completed;
            sum.seconds += part.run.seconds;
            let server = part.run.usage.get(&part.run.name);
            sum.server_cpu += server.map_or(0.0, |server| server.cpu_seconds);
            sum.peak_rate = sum.peak_rate.max(part.peak_rate);
            sum.fleet_share += part.fleet_share / parts.len() as f64;
            sum.memory += part.settled.saturating_sub(part.before) as f64;
        }
        (sum.connected > 0).then_some(sum)
    }

    fn rate(&self) -> f64 {
        self.connected as f64 / self.seconds
    }

    fn cpu_each(&self) -> f64 {
        self.server_cpu / self.connected as f64
    }

    fn memory_each(&self) -> f64 {
        self.memory / self.connected as f64
    }
}

/// Waits until as many as wanted are connected, or the limit is over. `before` is the memory of the server.
///
/// # Errors
/// The fleet ended, or no client was connected.
async fn connect(
    watch: &mut FleetWatch,
    role: &str,
    (wanted, before): (u64, u64),
    args: &FleetArgs,
    progress: &Progress,
) -> anyhow::Result<Connected> {
    let meter = Meter::start(watch.roles(role));
    let start = watch.next().await?.at;
    let shown = (role, progress);
    let all = watch.until_up(wanted, args.limit, shown).await?;
    let usage = meter.finish();
    let samples = watch.take();
    let last = samples.last();
    if last.is_none_or(|status| status.connected == 0) {
        let failures = last.map_or_else(String::new, |status| kinds(&status.failures));
        let limit = args.limit;
        bail!("no connection to the {role} within {limit:?}: {failures}");
    }
    let phase = ConnectPhase {
        role,
        before: &Status::default(),
        since: start,
        metered_since: start,
        fleet_threads: args.fleet_threads,
    };
    let (run, fleet_share) = samples.run(phase, usage);
    let over_time = samples.over_time(start, |status| status.connected);
    let memory = samples.memory_by_up().into_iter();
    let memory = memory.map(|(up, rss)| (up, (rss - before as f64).max(0.0)));
    Ok(Connected {
        peak_rate: peak_rate(&over_time, 1.0),
        fleet_share,
        before,
        peak: samples.peak_rss(),
        settled: 0,
        all,
        over_time: thinned(&over_time),
        memory: thinned(&memory.collect::<Vec<_>>()),
        run,
    })
}

/// Connects clients to a process that does handshakes and nothing else, with as many threads as the server has.
/// None when there is no client to connect.
///
/// # Errors
/// Either does not start, or no client could connect.
async fn baseline(
    args: &FleetArgs,
    files: &Files,
    wanted: u64,
    progress: &Progress,
) -> anyhow::Result<Option<Connected>> {
    if wanted == 0 {
        return Ok(None);
    }
    let flags = [
        "tls-sink".to_owned(),
        format!("--threads={}", args.programs.shards.max(1)),
        format!("--cert={}", files.certificate().display()),
        format!("--key={}", files.key().display()),
    ];
    let Running { child, address } = Running::start_own(ALONE, flags).await?;
    let work = FleetWork::Handshakes(wanted);
    let mut watch = FleetWatch::start(args, address, child.id(), work, Duration::ZERO)?;
    let wanted = (wanted, watch.server_rss());
    let mut connected = Box::pin(connect(&mut watch, ALONE, wanted, args, progress)).await?;
    watch.meanwhile(sleep(SETTLE)).await?;
    connected.settled = watch.server_rss();
    Ok(Some(connected))
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

const HALVES: [&str; 2] = ["TLS alone, first half", "TLS alone, second half"];

/// Writes into the report, before what is there of requests over the tunnels. `alone` is TLS alone, in halves.
fn show(report: &mut Report, measured: TunnelsMeasurement, alone: &[Connected]) {
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
