//! All tunnels lose their server at once, and come back: how long until all are served.
//!
//! ```text
//!   connect ─▶ settle ─▶ SIGKILL ─▶ outage ─▶ same port again ─▶ all are back ─▶ each is asked once
//! ```
//!
//! The clients know nothing of each other: nothing bounds how many dial at once but their own
//! waits, which are those of real clients whose sessions were stable.

mod show;

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use tokio::time::sleep;

use crate::{
    fleet::{
        flags::FleetArgs,
        runtimes::Runtimes,
        status::{Status, clock},
        watch::{FleetWatch, FleetWork, Samples, kinds},
    },
    measure::{errors::FailureCounts, usage::Meter},
    progress::Progress,
    report::{Report, Usage, format::count, usage::TUNNEL_SERVER},
    scenario::http::Requests,
    stack::{self, files::Files},
};

/// Connections over which each runtime gets one request at the end.
const ASKING: usize = 32;

/// Flags of `loadtest storm`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// Tunnels, each with a runtime of its own
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=25_000))]
    pub tunnels: u64,
    /// How long to wait after the last has connected, before the server is killed
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    pub settle: Duration,
    /// How long the server is away
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    pub outage: Duration,
    /// The fleet and the programs.
    #[command(flatten)]
    pub crowd: FleetArgs,
}

/// What was seen from the kill on.
#[derive(Debug)]
struct StormMeasurement {
    tunnels: u64,
    fleet_threads: u16,
    /// When the server was killed, and when its successor listened, by the fleet's clock.
    killed: f64,
    listening: f64,
    /// The fleet just before the kill.
    before: Status,
    /// Whether all came back within the limit.
    all: bool,
    samples: Samples,
    usage: BTreeMap<String, Usage>,
    /// Resident memory of the first server with all tunnels connected.
    rss_before: u64,
    /// Runtimes that answered in the end, and what the others did.
    answered: u64,
    unanswered: FailureCounts,
}

/// Measures.
///
/// # Errors
/// The programs cannot be started, or not all tunnels were connected in the first place.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    progress.message("making runtimes and tokens");
    let files = Files::new(&args.crowd.programs)?;
    let runtimes = Runtimes::create(&files, args.tunnels)?;
    let title = format!("{} tunnels lose their server", count(args.tunnels as f64));
    let mut report = Report::new("storm", title);
    let measured = measure(&args, &files, &runtimes, progress).await?;
    show::show(&mut report, &measured);
    Ok(report)
}

async fn measure(
    args: &Args,
    files: &Files,
    runtimes: &Runtimes,
    progress: &Progress,
) -> anyhow::Result<StormMeasurement> {
    let stack = &args.crowd.programs;
    progress.message("starting the tunnel server");
    let mut server = stack::start_server(stack, files, None).await?;
    let (address, work) = (server.tunnel, FleetWork::Clients(runtimes.tokens()));
    // All sessions count as stable, as they are in a server that has run for a while.
    let stable = Duration::ZERO;
    let mut watch = FleetWatch::start(&args.crowd, address, server.child.id(), work, stable)?;
    let (limit, shown) = (args.crowd.limit, (TUNNEL_SERVER, progress));
    if !watch.until_up(args.tunnels, limit, shown).await? {
        let status = watch.next().await?;
        let (up, all) = (count(status.up as f64), count(args.tunnels as f64));
        let failures = kinds(&status.failures);
        bail!("only {up} of {all} connected within the limit: {failures}");
    }
    watch.meanwhile(sleep(args.settle)).await?;
    let rss_before = watch.server_rss();
    drop(watch.take());
    let before = watch.next().await?.clone();

    progress.message("killing the tunnel server");
    let killed = clock();
    server.child.kill();
    watch.meanwhile(sleep(args.outage)).await?;
    let starting = stack::start_server(stack, files, Some(address));
    let server = watch.meanwhile(Box::pin(starting)).await??;
    let listening = clock();
    watch.server_is(server.child.id());
    let meter = Meter::start(watch.roles(TUNNEL_SERVER));
    let is_back =
        |status: &Status| status.lost - before.lost >= args.tunnels && status.up >= args.tunnels;
    let tell = |status: &Status| {
        let (up, all) = (count(status.up as f64), count(args.tunnels as f64));
        progress.message(format_args!("{up} of {all} are back"));
    };
    let all = watch.until(args.crowd.limit, is_back, tell).await?;
    let usage = meter.finish();
    let samples = watch.take();

    progress.message("asking each runtime once");
    let requests = Requests::in_turn(server.public, &runtimes.hosts()?).await?;
    let asking = requests.once_each(ASKING);
    let (answered, unanswered) = watch.meanwhile(Box::pin(asking)).await?;
    Ok(StormMeasurement {
        tunnels: args.tunnels,
        fleet_threads: args.crowd.fleet_threads,
        killed,
        listening,
        before,
        all,
        samples,
        usage,
        rss_before,
        answered,
        unanswered,
    })
}
