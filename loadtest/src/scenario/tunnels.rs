//! Many tunnels that do nothing: what each costs, and how fast all of them connect.
//!
//! ```text
//!   TLS alone, half of them ─▶ tunnels connect ─▶ settle ─▶ idle ─▶ (real client) ─▶ (load spread
//!   over all, over one, ...) ─▶ TLS alone, the other half ─▶ report
//! ```
//!
//! The two halves of TLS alone stand before and after, so that a machine which gets slower meanwhile
//! is not mistaken for a slow server.

mod connect;
mod show;
pub mod spread;

use std::{collections::BTreeMap, time::Duration};

use tokio::time::sleep;

use crate::{
    fleet::{
        flags::FleetArgs,
        runtimes::Runtimes,
        status::{Status, clock},
        watch::{FleetWatch, FleetWork},
    },
    measure::usage::{Meter, resident},
    progress::Progress,
    report::{
        Report, Usage,
        format::{count, seconds},
        usage::TUNNEL_SERVER,
    },
    scenario::tunnels::{
        show::TunnelsMeasurement,
        spread::{SpreadArgs, SpreadLoad},
    },
    stack::{self, ProgramArgs, Server, files::Files},
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
        alone.extend(connect::baseline(&args.crowd, &files, halves[0], progress).await?);
    }
    let measured = measure(&args, &files, &runtimes, progress, &mut report).await?;
    if args.tls_baseline {
        alone.extend(connect::baseline(&args.crowd, &files, halves[1], progress).await?);
    }
    show::show(&mut report, measured, &alone);
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
    let connecting = connect::connect(&mut watch, TUNNEL_SERVER, wanted, &args.crowd, progress);
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
