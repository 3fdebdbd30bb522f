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

mod beside;
mod environment;
mod phase;
mod results;

use std::{sync::Arc, time::Duration};

use bytesize::ByteSize;
use http::{Method, Uri};
use tokio::join;

use crate::{
    load::{Load, LoadArgs, LoadModel},
    progress::Progress,
    report::Report,
    scenario::{http::Requests, rounds},
    target::{Target, TargetArgs},
};
use environment::Environment;
use phase::{Destination, Phase};
use results::{PhaseRounds, Results};

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
        phase::at_limits()
    } else {
        phase::all(environment.has_neighbour(), args.direct)
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
    let Some(beside) = beside::load(args, loaded, result.phase.beside)? else {
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
