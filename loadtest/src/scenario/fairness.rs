//! Small requests beside large ones: whether a tunnel keeps its neighbours, and its own small
//! requests, alive while bytes flow.
//!
//! ```text
//!   phase                      small requests     beside them
//!   unloaded                   tunnel             nothing
//!   paced                      tunnel             downloads of a steady rate, same tunnel
//!   unloaded, neighbour        other tunnel       nothing
//!   paced, neighbour           other tunnel       the same downloads
//!   unthrottled                tunnel             downloads as fast as they come, same tunnel
//!   slow readers               tunnel             downloads that hardly anybody reads, same tunnel
//! ```
//!
//! With `--limits` the phases are others: a neighbour's small requests beside a tunnel that wants twice
//! what it may, in one way after another.
//!
//! Small requests are open loop, so that a stall shows in all that it delays. What runs beside them
//! has threads of its own here, so that reading it does not delay the small ones. The phases are
//! interleaved in rounds; ratios are within a round.

use std::{sync::Arc, time::Duration};

use bytesize::ByteSize;
use http::{HeaderValue, Method, Uri};
use tokio::join;

use crate::{
    load::{Load, LoadArgs},
    measure::errors::FailureKind,
    progress::Progress,
    report::{
        Report,
        format::count,
        latency_chart,
        tables::{MAX, P50, P99, THROUGHPUT, UPSTREAM},
    },
    scenario::{
        http::Requests,
        rounds::{self, Rounds},
        transfer::{self, Flow, Transfer},
        websocket::Echo,
    },
    stack::{Plan, RUNTIME, Stack},
    target::{Target, TargetArgs},
};

/// The small requests' connections are made while the downloads run already.
const CONNECTING: Duration = Duration::from_millis(250);

/// The runtime beside that of a plain stack.
const NEIGHBOUR: &str = "neighbour";

/// Flags of `loadtest fairness`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("duration", |flag| flag.default_value("5s")))]
#[command(mut_arg("warm_up", |flag| flag.default_value("1s")))]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// The target.
    #[command(flatten)]
    pub target: TargetArgs,
    /// What beside it.
    #[command(flatten)]
    pub places: PlaceArgs,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Small requests a second, due at even intervals
    #[arg(long, short = 'r', value_name = "PER_SECOND", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Connections of the small requests
    #[arg(long, short = 'c', value_name = "N", default_value_t = 8)]
    pub connections: usize,
    /// Downloads beside them
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub bulk_streams: usize,
    /// Bytes a second of each paced download
    #[arg(long, value_name = "SIZE", default_value = "8MiB")]
    pub bulk_rate: ByteSize,
    /// Connections that ask for much and read little
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub slow_readers: usize,
    /// Bytes a second that each of them reads
    #[arg(long, value_name = "SIZE", default_value = "1KiB")]
    pub slow_rate: ByteSize,
    /// Path of a large download; what the sample upstream has by default
    #[arg(long, value_name = "PATH", default_value = "/bytes/1099511627776")]
    pub bulk_path: String,
    /// Path of a download that the upstream paces; {rate} becomes the bytes a second
    #[arg(long, value_name = "PATH", default_value = "/pace?rate={rate}")]
    pub paced_path: String,
    /// Rounds: in each, every phase comes once
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
}

/// Flags of where else is measured.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Target")]
pub struct PlaceArgs {
    /// URL of a neighbour's tunnel on the same server; a self-contained run starts one itself
    #[arg(long, value_name = "URL", conflicts_with = "self_contained")]
    pub neighbour: Option<Uri>,
    /// Measure the same phases at the upstream itself too: what the machine alone makes of them
    #[arg(long, requires = "self_contained")]
    pub direct: bool,
    /// Measure a neighbour beside a tunnel at its limits, one after another, instead of the usual phases
    #[arg(long, requires = "self_contained", conflicts_with = "direct")]
    pub limits: bool,
}

/// Measures.
///
/// # Errors
/// The target cannot be opened.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    progress.message("starting");
    let environment = Box::pin(Environment::open(&args)).await?;
    let name = &environment.at(Destination::Tunnel).name;
    let title = format!("small requests beside large ones, {name}");
    let mut report = Report::new("fairness", title);
    let mut phases = match args.places.limits {
        true => phases_at_limits(),
        false => args.phases(environment.neighbour.is_some()),
    };
    let is_neighbour = |phase: &Phase| phase.destination == Destination::Neighbour;
    if !phases.iter().any(is_neighbour) {
        report.warn("no neighbour was measured: name its URL with --neighbour");
    }
    let names: Vec<_> = phases.iter().map(Phase::name).collect();
    let one = async |number: usize| match phases.get_mut(number) {
        Some(phase) => Box::pin(measure(&args, &environment, phase, progress)).await,
        None => Ok(()),
    };
    rounds::interleave(args.rounds, &names, progress, one).await?;
    show(&phases, args.rounds.into(), &mut report);
    Ok(report)
}

/// One phase once.
async fn measure(
    args: &Args,
    environment: &Environment,
    phase: &mut Phase,
    progress: &Progress,
) -> anyhow::Result<()> {
    let asked = environment.at(phase.destination);
    let loaded = match phase.destination {
        // The large requests go to the tunnel while the small ones go to its neighbour.
        Destination::Neighbour => environment.at(Destination::Tunnel),
        Destination::Tunnel | Destination::Direct => asked,
    };
    let small = small(args, asked)?.run(progress, &asked.roles);
    let Some(beside) = beside(args, loaded, &phase.beside)? else {
        let (run, notes) = Box::pin(small).await?.into_run();
        phase.small.add(run, notes);
        return Ok(());
    };
    let mut opened = beside.opened();
    let small = async {
        drop(opened.wait_for(Option::is_some).await);
        small.await
    };
    let quiet = Progress::none();
    let beside = beside.run(&quiet, &loaded.roles);
    let (small, beside) = join!(Box::pin(small), Box::pin(beside));
    let (mut run, mut notes) = small?.into_run();
    // What programs used was for both.
    run.cpu_us_per_request = None;
    let (run_beside, notes_beside) = beside?.into_run();
    notes.extend(notes_beside);
    phase.small.add(run, notes);
    phase.run_beside.add(run_beside, Vec::new());
    Ok(())
}

fn small(args: &Args, target: &Target) -> anyhow::Result<Load> {
    let client = Requests::new(target.sample_template(Method::GET, "/")?, 0)?;
    let mut load = Load::new(LoadArgs {
        threads: 1,
        ..args.load
    });
    let pace = Some(args.rate.into());
    load.requests("small requests", args.connections, pace, Arc::new(client));
    Ok(load)
}

/// What runs beside the small requests; none for the unloaded phase.
fn beside(args: &Args, target: &Target, beside: &Beside) -> anyhow::Result<Option<Load>> {
    let mut load = Load::new(args.load_beside());
    match *beside {
        Beside::Nothing => return Ok(None),
        Beside::Limit(limit) => beyond(&mut load, target, limit)?,
        Beside::Downloads(count, ref path, pace) => {
            let transfer = Transfer {
                pace,
                ..Transfer::new(target.template(Method::GET, Some(path))?, false, None)
            };
            let flow = Arc::new(Flow::new(transfer, count));
            load.group("downloads", count, None, flow, transfer::work);
        }
    }
    Ok(Some(load))
}

/// Adds a load that goes beyond a limit.
fn beyond(load: &mut Load, target: &Target, limit: &Limit) -> anyhow::Result<()> {
    let (_, path, field, connections, rate) = *limit;
    let name = "beyond the limit";
    let (method, upload) = match path {
        UPLOAD => (Method::POST, UPLOAD_SIZE),
        _ => (Method::GET, 0),
    };
    let mut template = target.template(method, Some(path))?;
    if path == ECHO {
        let echo = Arc::new(Echo { template, size: 64 });
        load.requests(name, connections, rate, echo);
        return Ok(());
    }
    if field > 0 {
        let large = HeaderValue::from_str(&"x".repeat(field))?;
        template.headers.insert("x-large", large);
    }
    let client = Arc::new(Requests::new(template, upload)?);
    load.requests(name, connections, rate, client);
    Ok(())
}

impl Args {
    /// What runs beside is measured from within the small requests' warm-up until after them.
    fn load_beside(&self) -> LoadArgs {
        LoadArgs {
            warm_up: self.load.warm_up / 2,
            duration: self.load.duration + self.load.warm_up + CONNECTING,
            // Its answers have no end that is worth waiting for.
            timeout: self.load.timeout.min(Duration::from_secs(2)),
            ..self.load
        }
    }

    /// All phases that can be measured; the first of each destination is the unloaded one.
    fn phases(&self, has_neighbour: bool) -> Vec<Phase> {
        let rate = self.bulk_rate.as_u64().to_string();
        let paced = self.paced_path.replace("{rate}", &rate);
        let bulk = &self.bulk_path;
        let slow = Some(self.slow_rate.as_u64().max(1));
        let kinds = [
            ("unloaded", Beside::Nothing),
            (
                "paced downloads",
                Beside::Downloads(self.bulk_streams, paced, None),
            ),
            (
                "unthrottled downloads",
                Beside::Downloads(self.bulk_streams, bulk.clone(), None),
            ),
            (
                "slow readers",
                Beside::Downloads(self.slow_readers, bulk.clone(), slow),
            ),
        ];
        let at = |destination, kinds: &[(&'static str, Beside)]| {
            let kinds = kinds.iter().cloned();
            let kinds = kinds.map(|(kind, beside)| Phase::new(destination, kind, beside));
            kinds.collect::<Vec<_>>()
        };
        let mut phases = at(Destination::Tunnel, &kinds[..2]);
        if has_neighbour {
            phases.extend(at(Destination::Neighbour, &kinds[..2]));
        }
        phases.extend(at(Destination::Tunnel, &kinds[2..]));
        if self.places.direct {
            phases.extend(at(Destination::Direct, &kinds));
        }
        phases
    }
}

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    /// The tunnel that is measured.
    Tunnel,
    /// Another tunnel of the same server.
    Neighbour,
    /// The upstream itself.
    Direct,
}

/// What runs beside small requests.
#[derive(Clone, Debug, PartialEq)]
enum Beside {
    Nothing,
    /// So many downloads of this path, each of which reads so many bytes a second.
    Downloads(usize, String, Option<u64>),
    /// A load that goes beyond one limit of the tunnel.
    Limit(&'static Limit),
}

/// A load of twice what a tunnel at its limits may, in one respect: its name, path, size of a large field, connections,
/// and rate, unless it is as fast as can be.
type Limit = (&'static str, &'static str, usize, usize, Option<f64>);

/// Limits of the server: bytes a second each way, exchanges begun in a second, exchanges open at once (no more
/// than it lets one address have however few are left), WebSockets open at once, bytes of a head.
const BYTES: u64 = 16 << 20;
const RATE: f64 = 500.0;
const EXCHANGES: usize = 16;
const WEBSOCKETS: usize = 16;
const HEAD: usize = 8 << 10;

/// Connections of a load whose number is not the limit.
const SOME: usize = 16;

/// Paths that are asked in a way of their own.
const UPLOAD: &str = "/upload";
const ECHO: &str = "/echo";

/// Half a second of what is allowed, shared by all connections.
const UPLOAD_SIZE: u64 = BYTES / (2 * SOME as u64);

const LIMITS: [Limit; 6] = [
    ("downloads above its rate", "/bytes/1048576", 0, SOME, None),
    ("uploads above its rate", UPLOAD, 0, SOME, None),
    ("requests above its rate", "/", 0, SOME, Some(2.0 * RATE)),
    // Each goes on for as long as the phase does.
    (
        "open exchanges above its number",
        "/pace?rate=1",
        0,
        2 * EXCHANGES,
        Some(RATE),
    ),
    (
        "WebSockets above their number",
        ECHO,
        0,
        2 * WEBSOCKETS,
        Some(RATE),
    ),
    ("heads above their size", "/", 2 * HEAD, SOME, Some(RATE)),
];

/// The server's flags that set the limits.
fn limit_flags() -> [String; 6] {
    [
        format!("--limit-download-rate={BYTES}B"),
        format!("--limit-upload-rate={BYTES}B"),
        format!("--limit-exchange-rate={RATE}"),
        format!("--limit-exchanges={EXCHANGES}"),
        format!("--limit-websockets={WEBSOCKETS}"),
        format!("--limit-head-size={HEAD}B"),
    ]
}

/// A neighbour beside a tunnel at its limits, in each way; the first is the unloaded one.
fn phases_at_limits() -> Vec<Phase> {
    let limits = LIMITS.iter().map(|limit| (limit.0, Beside::Limit(limit)));
    let kinds = std::iter::once(("unloaded", Beside::Nothing)).chain(limits);
    let phases = kinds.map(|(kind, beside)| Phase::new(Destination::Neighbour, kind, beside));
    phases.collect()
}

/// One row of the table, and its rounds.
#[derive(Debug)]
struct Phase {
    /// Where the small requests go.
    destination: Destination,
    kind: &'static str,
    beside: Beside,
    small: Rounds,
    run_beside: Rounds,
}

impl Phase {
    fn new(destination: Destination, kind: &'static str, beside: Beside) -> Self {
        Self {
            destination,
            kind,
            beside,
            small: Rounds::default(),
            run_beside: Rounds::default(),
        }
    }

    fn name(&self) -> String {
        let place = match self.destination {
            Destination::Tunnel => "",
            Destination::Neighbour => ", neighbour",
            Destination::Direct => ", direct",
        };
        format!("{}{place}", self.kind)
    }

    /// The cells behind those of latencies: max, answered, starved, not sent, other errors, beside.
    fn more_cells(&self) -> [String; 6] {
        let longest = self.small.figure(&MAX).into_iter().flatten();
        let errors = self.small.errors();
        let of = |kind: FailureKind| errors.get(kind.name().as_ref()).copied().unwrap_or(0);
        let (starved, unsent) = (of(FailureKind::Timeout), of(FailureKind::NotSent));
        let others = errors.values().sum::<u64>() - starved - unsent;
        let times = |times: u64| count(times as f64);
        [
            MAX.cell(longest.reduce(f64::max)),
            times(self.small.completed()),
            times(starved),
            times(unsent),
            times(others),
            THROUGHPUT.cell(self.run_beside.median(&THROUGHPUT)),
        ]
    }
}

/// Open targets. Dropping it ends the programs that were started for them.
#[derive(Debug)]
struct Environment {
    tunnel: Target,
    neighbour: Option<Target>,
    direct: Option<Target>,
}

impl Environment {
    /// Opens what the flags name: URLs, or one server with two tunnels to one upstream.
    async fn open(args: &Args) -> anyhow::Result<Self> {
        if args.target.self_contained {
            return Self::self_contained(args).await;
        }
        let neighbour = match &args.places.neighbour {
            Some(url) => Some(args.target.at(url, args.target.connect_to).await?),
            None => None,
        };
        Ok(Self {
            tunnel: args.target.open(Plan::default()).await?,
            neighbour,
            direct: None,
        })
    }

    async fn self_contained(args: &Args) -> anyhow::Result<Self> {
        let plan = Plan {
            runtimes: &[RUNTIME, NEIGHBOUR],
            ..Plan::default()
        };
        let mut programs = args.target.stack.clone();
        if args.places.limits {
            programs.programs.server_flags.splice(0..0, limit_flags());
        }
        let stack = Box::pin(Stack::start(&programs, plan)).await?;
        let mut direct = None;
        if let Some(upstream) = &stack.upstream {
            let url = format!("http://{}/", upstream.address).parse()?;
            let mut target = args.target.at(&url, Some(upstream.address)).await?;
            target.roles.add(UPSTREAM, upstream.child.id());
            direct = Some(target);
        }
        let neighbour = Some(args.target.in_stack(&stack, NEIGHBOUR).await?);
        let mut tunnel = args.target.in_stack(&stack, RUNTIME).await?;
        tunnel.started = Some(Box::new(stack));
        Ok(Self {
            tunnel,
            neighbour,
            direct,
        })
    }

    fn at(&self, destination: Destination) -> &Target {
        let other = match destination {
            Destination::Tunnel => None,
            Destination::Neighbour => self.neighbour.as_ref(),
            Destination::Direct => self.direct.as_ref(),
        };
        other.unwrap_or(&self.tunnel)
    }
}

/// Writes the rounds of all phases into the report.
fn show(phases: &[Phase], rounds: usize, report: &mut Report) {
    let rows = phases.iter().map(|phase| {
        let is_here = |other: &&Phase| other.destination == phase.destination;
        let mut here = phases.iter().filter(is_here);
        let base = here.find(|other| other.beside == Beside::Nothing);
        (phase.name(), &phase.small, base.map(|base| &base.small))
    });
    let rows: Vec<_> = rows.collect();
    let title = "small requests beside large ones".to_owned();
    let mut table = rounds::table(title, "phase", &[P50, P99], (2, "× unloaded"), &rows);
    let more = "max,answered,starved,not sent,other errors,beside";
    table.columns.extend(more.split(',').map(str::to_owned));
    for (cells, phase) in table.rows.iter_mut().zip(phases) {
        cells.extend(phase.more_cells());
    }
    report.tables.push(table);
    for phase in phases {
        let name = phase.name();
        let failed: u64 = phase.run_beside.errors().values().sum();
        if matches!(phase.beside, Beside::Limit(_)) {
            report.note(format!(
                "{name}: beside it {failed} were refused, or given up after a while"
            ));
        } else if failed > 0 {
            report.warn(format!(
                "{name}: {failed} downloads beside the small requests failed"
            ));
        }
        report.notes.extend(phase.small.notes(&name));
        report.runs.push(phase.small.run(name));
    }
    let title = "Latency by percentile";
    report.charts.extend(latency_chart(title, &report.runs));
    report.note(rounds::meaning(rounds));
    report.note(
        "ratios are to the unloaded phase of the same place (tunnel, neighbour, upstream); \
         what programs used is for small and large requests together; starved requests got no \
         answer within --timeout; those not sent were still waiting for a free connection at \
         the end",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Run, latency::Latencies};

    fn run(milliseconds: u64, timeouts: u64) -> Run {
        let mut latencies = Latencies::new();
        latencies.record(Duration::from_millis(milliseconds));
        let errors = [("timeout", timeouts), ("status_503", 1)];
        let errors = errors.map(|(kind, times)| (kind.to_owned(), times));
        Run {
            completed: 100,
            seconds: 1.0,
            bytes_down: 8 << 20,
            latency: latencies.summary(),
            errors: errors.into(),
            ..Run::default()
        }
    }

    #[test]
    fn phases_are_told_against_the_unloaded_one_of_their_round() {
        let downloads = || Beside::Downloads(1, "/".to_owned(), None);
        let mut phases = [
            Phase::new(Destination::Tunnel, "unloaded", Beside::Nothing),
            Phase::new(Destination::Neighbour, "unloaded", Beside::Nothing),
            Phase::new(Destination::Neighbour, "paced downloads", downloads()),
            Phase::new(Destination::Direct, "paced downloads", downloads()),
        ];
        for (unloaded, loaded) in [(1, 2), (2, 6), (1, 2)] {
            // What the tunnel itself does unloaded is not the neighbour's measure.
            let rounds = [
                run(unloaded * 5, 0),
                run(unloaded, 0),
                run(loaded, 3),
                run(loaded, 0),
            ];
            for (phase, run) in phases.iter_mut().zip(rounds) {
                phase.small.add(run, Vec::new());
            }
            phases[2].run_beside.add(run(1, 1), Vec::new());
        }
        let mut report = Report::new("fairness", "test");
        show(&phases, 3, &mut report);
        let rows = &report.tables[0].rows;
        assert_eq!(rows[0][4], "1.00");
        assert_eq!(rows[2][0], "paced downloads, neighbour");
        assert_eq!(rows[2][4], "2.00 (2.00–3.00)");
        assert_eq!(rows[2][6..], ["300", "9", "0", "3", "8.00 MiB/s"]);
        // Nothing is known of the unloaded upstream.
        assert_eq!(rows[3][4], "–");
        assert_eq!(report.runs[2].completed, 300);
        let told = |text: &str| report.notes.iter().any(|note| note.text.contains(text));
        assert!(told("6 downloads beside"), "{:?}", report.notes);
    }
}
