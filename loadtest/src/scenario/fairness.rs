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

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use bytesize::ByteSize;
use http::{HeaderValue, Method, Uri};
use tokio::join;

use crate::{
    load::{Load, LoadArgs, LoadModel, Outcome},
    measure::errors::FailureKind,
    progress::Progress,
    report::{
        Report,
        build::latency_chart,
        format::count,
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

/// Flags of `loadtest fairness`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("duration", |flag| flag.default_value("5s")))]
#[command(mut_arg("warm_up", |flag| flag.default_value("1s")))]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// The target.
    #[command(flatten)]
    pub target: TargetArgs,
    /// URL of a neighbour's tunnel on the same server; a self-contained run starts one itself
    #[arg(
        long,
        value_name = "URL",
        conflicts_with = "self_contained",
        help_heading = "Target"
    )]
    pub neighbour: Option<Uri>,
    /// Measure the same phases at the upstream itself too: what the machine alone makes of them
    #[arg(long, requires = "self_contained", help_heading = "Target")]
    pub direct: bool,
    /// Measure a neighbour beside a tunnel at its limits, one after another, instead of the usual phases
    #[arg(
        long,
        requires = "self_contained",
        conflicts_with = "direct",
        help_heading = "Target"
    )]
    pub limits: bool,
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
    let phases = if args.limits {
        at_limits()
    } else {
        all(environment.has_neighbour(), args.direct)
    };
    let is_neighbour = |phase: &Phase| phase.destination == Destination::Neighbour;
    if !phases.iter().any(is_neighbour) {
        report.warn("no neighbour was measured: name its URL with --neighbour");
    }
    let mut results = Results::new(phases);
    let names = results.phases.iter().map(|result| result.phase.to_string());
    let names: Vec<_> = names.collect();
    let one = async |number: usize| match results.phases.get_mut(number) {
        Some(result) => Box::pin(measure(&args, &environment, result, progress)).await,
        None => Ok(()),
    };
    rounds::interleave(args.rounds, &names, progress, one).await?;
    results.fill(args.rounds.into(), &mut report);
    Ok(report)
}

/// One phase once.
async fn measure(
    args: &Args,
    environment: &Environment,
    result: &mut PhaseRounds,
    progress: &Progress,
) -> anyhow::Result<()> {
    let destination = result.phase.destination;
    let asked = environment.at(destination);
    let loaded = environment.at(destination.beside());
    let small = small(args, asked)?.run(progress, &asked.roles);
    let Some(beside) = load(args, loaded, result.phase.beside)? else {
        result.add(Box::pin(small).await?, None);
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
    result.add(small?, Some(beside?));
    Ok(())
}

fn small(args: &Args, target: &Target) -> anyhow::Result<Load> {
    let client = Requests::new(target.sample_template(Method::GET, "/")?, 0)?;
    let mut load = Load::new(LoadArgs {
        threads: 1,
        ..args.load
    });
    let pace = LoadModel::Open(args.rate.into());
    load.requests("small requests", args.connections, pace, Arc::new(client));
    Ok(load)
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

impl Destination {
    /// Where the large requests go while the small ones go here.
    fn beside(self) -> Self {
        match self {
            Self::Tunnel | Self::Neighbour => Self::Tunnel,
            Self::Direct => Self::Direct,
        }
    }
}

/// What runs beside small requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BackgroundLoad {
    Nothing,
    /// Downloads of a steady rate.
    Paced,
    /// Downloads as fast as they come.
    Unthrottled,
    /// Downloads that are hardly read.
    SlowReaders,
    /// A load that goes beyond one limit of the tunnel.
    Limit(&'static Limit),
}

/// A load of twice what a tunnel at its limits may, in one respect.
#[derive(Debug, PartialEq)]
struct Limit {
    name: &'static str,
    method: Method,
    path: &'static str,
    upload: u64,
    /// Size of a large field.
    field: usize,
    is_websocket: bool,
    connections: usize,
    pace: LoadModel,
}

/// Limits of the server: bytes a second each way, exchanges begun in a second, exchanges open at once (no more
/// than it lets one address have however few are left), WebSockets open at once, bytes of a head.
const BYTES: u64 = 16 << 20;
const RATE: u32 = 500;
const EXCHANGES: usize = 16;
const WEBSOCKETS: usize = 16;
const HEAD: usize = 8 << 10;

/// Connections of a load whose number is not the limit.
const CONNECTIONS: usize = 16;

const GET: Limit = Limit {
    name: "",
    method: Method::GET,
    path: "/",
    upload: 0,
    field: 0,
    is_websocket: false,
    connections: CONNECTIONS,
    pace: LoadModel::Open(RATE as f64),
};

const LIMITS: &[Limit] = &[
    Limit {
        name: "downloads above its rate",
        path: "/bytes/1048576",
        pace: LoadModel::Closed,
        ..GET
    },
    Limit {
        name: "uploads above its rate",
        method: Method::POST,
        path: "/upload",
        // Half a second of what is allowed, shared by all connections.
        upload: BYTES / (2 * CONNECTIONS as u64),
        pace: LoadModel::Closed,
        ..GET
    },
    Limit {
        name: "requests above its rate",
        pace: LoadModel::Open(2.0 * RATE as f64),
        ..GET
    },
    Limit {
        name: "open exchanges above its number",
        // Goes on for as long as the phase does.
        path: "/pace?rate=1",
        connections: 2 * EXCHANGES,
        ..GET
    },
    Limit {
        name: "WebSockets above their number",
        path: "/echo",
        is_websocket: true,
        connections: 2 * WEBSOCKETS,
        ..GET
    },
    Limit {
        name: "heads above their size",
        field: 2 * HEAD,
        ..GET
    },
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

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Phase {
    /// Where the small requests go.
    destination: Destination,
    beside: BackgroundLoad,
}

impl fmt::Display for Phase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.beside {
            BackgroundLoad::Nothing => "unloaded",
            BackgroundLoad::Paced => "paced downloads",
            BackgroundLoad::Unthrottled => "unthrottled downloads",
            BackgroundLoad::SlowReaders => "slow readers",
            BackgroundLoad::Limit(limit) => limit.name,
        })?;
        formatter.write_str(match self.destination {
            Destination::Tunnel => "",
            Destination::Neighbour => ", neighbour",
            Destination::Direct => ", direct",
        })
    }
}

/// A neighbour beside a tunnel at its limits, in each way; the first is the unloaded one.
fn at_limits() -> Vec<Phase> {
    let limits = LIMITS.iter().map(BackgroundLoad::Limit);
    let beside = std::iter::once(BackgroundLoad::Nothing).chain(limits);
    let phase = |beside| Phase {
        destination: Destination::Neighbour,
        beside,
    };
    beside.map(phase).collect()
}

/// All phases that can be measured; the first of each destination is the unloaded one.
fn all(has_neighbour: bool, direct: bool) -> Vec<Phase> {
    use BackgroundLoad::{Nothing, Paced, SlowReaders, Unthrottled};
    let at = |destination, kinds: &[BackgroundLoad]| {
        let kinds = kinds.iter().map(|beside| Phase {
            destination,
            beside: *beside,
        });
        kinds.collect::<Vec<_>>()
    };
    let mut phases = at(Destination::Tunnel, &[Nothing, Paced]);
    if has_neighbour {
        phases.extend(at(Destination::Neighbour, &[Nothing, Paced]));
    }
    phases.extend(at(Destination::Tunnel, &[Unthrottled, SlowReaders]));
    if direct {
        phases.extend(at(
            Destination::Direct,
            &[Nothing, Paced, Unthrottled, SlowReaders],
        ));
    }
    phases
}

/// The runtime beside that of a plain stack.
const NEIGHBOUR: &str = "neighbour";

/// Open targets. Dropping it ends the programs that were started for them.
#[derive(Debug)]
struct Environment {
    tunnel: Target,
    neighbour: Option<Target>,
    direct: Option<Target>,
    _stack: Option<Stack>,
}

impl Environment {
    /// Opens what the flags name: URLs, or one server with two tunnels to one upstream.
    async fn open(args: &Args) -> anyhow::Result<Self> {
        if args.target.self_contained {
            return Self::self_contained(args).await;
        }
        let neighbour = match &args.neighbour {
            Some(url) => Some(args.target.at(url, args.target.connect_to).await?),
            None => None,
        };
        Ok(Self {
            tunnel: args.target.open().await?,
            neighbour,
            direct: None,
            _stack: None,
        })
    }

    async fn self_contained(args: &Args) -> anyhow::Result<Self> {
        let plan = Plan {
            runtimes: &[RUNTIME, NEIGHBOUR],
            ..Plan::default()
        };
        let mut programs = args.target.stack.clone();
        if args.limits {
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
        Ok(Self {
            tunnel: args.target.in_stack(&stack, RUNTIME).await?,
            neighbour: Some(args.target.in_stack(&stack, NEIGHBOUR).await?),
            direct,
            _stack: Some(stack),
        })
    }

    fn has_neighbour(&self) -> bool {
        self.neighbour.is_some()
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

/// The load of a phase; none for the unloaded one.
fn load(args: &Args, target: &Target, beside: BackgroundLoad) -> anyhow::Result<Option<Load>> {
    let mut load = Load::new(args.load_beside());
    let rate = args.bulk_rate.as_u64().to_string();
    let paced = args.paced_path.replace("{rate}", &rate);
    let slow = args.slow_rate.as_u64().max(1);
    let (count, path, pace) = match beside {
        BackgroundLoad::Nothing => return Ok(None),
        BackgroundLoad::Paced => (args.bulk_streams, &paced, None),
        BackgroundLoad::Unthrottled => (args.bulk_streams, &args.bulk_path, None),
        BackgroundLoad::SlowReaders => (args.slow_readers, &args.bulk_path, Some(slow)),
        BackgroundLoad::Limit(limit) => {
            beyond(&mut load, target, limit)?;
            return Ok(Some(load));
        }
    };
    let template = target.template(Method::GET, Some(path))?;
    let transfer = Transfer {
        pace,
        ..Transfer::new(template, false, None)
    };
    let flow = Arc::new(Flow::new(transfer, count));
    load.group("downloads", count, LoadModel::Closed, move |worker| {
        transfer::work(flow.clone(), worker)
    });
    Ok(Some(load))
}

/// Adds a load that goes beyond a limit.
fn beyond(load: &mut Load, target: &Target, limit: &Limit) -> anyhow::Result<()> {
    let name = "beyond the limit";
    let mut template = target.template(limit.method.clone(), Some(limit.path))?;
    if limit.is_websocket {
        let echo = Arc::new(Echo { template, size: 64 });
        load.requests(name, limit.connections, limit.pace, echo);
        return Ok(());
    }
    if limit.field > 0 {
        let large = HeaderValue::from_str(&"x".repeat(limit.field))?;
        template.headers.insert("x-large", large);
    }
    let client = Arc::new(Requests::new(template, limit.upload)?);
    load.requests(name, limit.connections, limit.pace, client);
    Ok(())
}

/// The rounds of one phase.
struct PhaseRounds {
    phase: Phase,
    small: Rounds,
    /// What ran beside the small requests.
    beside: Rounds,
}

impl PhaseRounds {
    /// Adds a round.
    fn add(&mut self, small: Outcome, beside: Option<Outcome>) {
        let (mut run, mut notes) = small.into_run();
        if let Some(beside) = beside {
            // What programs used was for both.
            run.cpu_us_per_request = None;
            let (run, of_beside) = beside.into_run();
            self.beside.add(run, Vec::new());
            notes.extend(of_beside);
        }
        self.small.add(run, notes);
    }
}

/// The rounds of all phases.
struct Results {
    phases: Vec<PhaseRounds>,
}

impl Results {
    fn new(phases: Vec<Phase>) -> Self {
        let phases = phases.into_iter().map(|phase| PhaseRounds {
            phase,
            small: Rounds::default(),
            beside: Rounds::default(),
        });
        Self {
            phases: phases.collect(),
        }
    }

    /// Writes everything into the report.
    fn fill(&self, rounds: usize, report: &mut Report) {
        self.add_table(report);
        for PhaseRounds {
            phase,
            small,
            beside,
        } in &self.phases
        {
            report.runs.push(small.run(phase.to_string()));
            let failed: u64 = beside.errors().values().sum();
            if matches!(phase.beside, BackgroundLoad::Limit(_)) {
                report.note(format!(
                    "{phase}: beside it {failed} were refused, or given up after a while"
                ));
            } else if failed > 0 {
                report.warn(format!(
                    "{phase}: {failed} downloads beside the small requests failed"
                ));
            }
            report.notes.extend(small.notes(&phase.to_string()));
        }
        report.charts.extend(latency_chart(&report.runs));
        report.note(rounds::meaning(rounds));
        report.note(
            "ratios are to the unloaded phase of the same place (tunnel, neighbour, upstream); \
             what programs used is for small and large requests together; starved requests got no \
             answer within --timeout; those not sent were still waiting for a free connection at \
             the end",
        );
    }

    fn add_table<'a>(&'a self, report: &mut Report) {
        let row = |result: &'a PhaseRounds| {
            let base = self.unloaded(result.phase);
            (result.phase.to_string(), &result.small, base)
        };
        let rows: Vec<_> = self.phases.iter().map(row).collect();
        let title = "small requests beside large ones".to_owned();
        let ratios = (2, "× unloaded");
        let mut table = rounds::table(title, "phase", &[P50, P99], ratios, &rows);
        let more = "max,answered,starved,not sent,other errors,beside";
        table.columns.extend(more.split(',').map(str::to_owned));
        for (cells, result) in table.rows.iter_mut().zip(&self.phases) {
            cells.extend(more_cells(result));
        }
        report.tables.push(table);
    }

    /// The unloaded phase of the same destination.
    fn unloaded(&self, phase: Phase) -> Option<&Rounds> {
        let base = Phase {
            beside: BackgroundLoad::Nothing,
            ..phase
        };
        let found = self.phases.iter().find(|result| result.phase == base);
        found.map(|result| &result.small)
    }
}

fn more_cells(PhaseRounds { small, beside, .. }: &PhaseRounds) -> [String; 6] {
    let longest = small.figure(&MAX).into_iter().flatten();
    let errors: BTreeMap<String, u64> = small.errors();
    let of = |kind: FailureKind| errors.get(kind.name().as_ref()).copied().unwrap_or(0);
    let (starved, unsent) = (of(FailureKind::Timeout), of(FailureKind::NotSent));
    let others = errors.values().sum::<u64>() - starved - unsent;
    let times = |times: u64| count(times as f64);
    [
        MAX.cell(longest.reduce(f64::max)),
        times(small.completed()),
        times(starved),
        times(unsent),
        times(others),
        THROUGHPUT.cell(beside.median(&THROUGHPUT)),
    ]
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
        let phase = |destination, beside| Phase {
            destination,
            beside,
        };
        let mut results = Results::new(vec![
            phase(Destination::Tunnel, BackgroundLoad::Nothing),
            phase(Destination::Neighbour, BackgroundLoad::Nothing),
            phase(Destination::Neighbour, BackgroundLoad::Paced),
            phase(Destination::Direct, BackgroundLoad::Paced),
        ]);
        for (unloaded, loaded) in [(1, 2), (2, 6), (1, 2)] {
            // What the tunnel itself does unloaded is not the neighbour's measure.
            let rounds = [
                run(unloaded * 5, 0),
                run(unloaded, 0),
                run(loaded, 3),
                run(loaded, 0),
            ];
            for (result, run) in results.phases.iter_mut().zip(rounds) {
                result.small.add(run, Vec::new());
            }
            results.phases[2].beside.add(run(1, 1), Vec::new());
        }
        let mut report = Report::new("fairness", "test");
        results.fill(3, &mut report);
        let rows = &report.tables[0].rows;
        assert_eq!(rows[0][4], "1.00 (1.00–1.00)");
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
