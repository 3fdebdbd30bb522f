//! Bulk streams: throughput, fairness between streams, time to the first byte, and cost.
//!
//! Each stream has a connection of its own and one transfer at a time. With `--size` each stream does one transfer, and the
//! figures are of exactly those bytes; without it streams run for `--duration`.

mod summary;

use std::{sync::Arc, time::Duration};

use bytesize::ByteSize;
use http::Method;

use crate::{
    load::{Load, LoadArgs, LoadModel},
    progress::Progress,
    relay::{BitRate, Link},
    report::Report,
    scenario::{
        open,
        transfer::{self, Flow, Transfer},
    },
    stack::Plan,
    target::{Target, TargetArgs},
};

/// The size that an endless transfer requests from the sample upstream: a pebibyte.
const ENDLESS: u64 = 1 << 50;

/// Flags of `loadtest bulk`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// The target.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Streams at once in each direction, each over a connection of its own
    #[arg(long, short = 's', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub streams: u32,
    /// Which way the bytes go
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Direction::Down)]
    pub direction: Direction,
    /// Size of each stream's only transfer, such as 1GiB; without it, streams run for --duration.
    /// A URL with a path of its own must answer with this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<ByteSize>,
    /// Limit of each stream's bytes per second, such as 8MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate_per_stream: Option<ByteSize>,
    /// Check each byte of the sample upstream's answers, not only their length
    #[arg(long)]
    pub verify: bool,
    /// Delay of a simulated link between tunnel client and tunnel server, one way
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "self_contained", help_heading = "Self-contained")]
    pub link_delay: Option<Duration>,
    /// Rate of a simulated link between tunnel client and tunnel server, each way, such as 200Mbit
    #[arg(
        long,
        value_name = "RATE",
        requires = "self_contained",
        help_heading = "Self-contained"
    )]
    pub link_rate: Option<BitRate>,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// From the target.
    Down,
    /// To the target.
    Up,
    /// In both directions at once, `--streams` in each.
    Both,
}

/// Runs the streams and reports.
///
/// # Errors
/// The target cannot be opened, or the load cannot be run.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let title = ("bulk", "bulk streams through");
    let plan = Plan {
        link: args.link(),
        ..Plan::default()
    };
    let (target, mut report) = open(progress, title, &args.target, plan).await?;
    let mut load = match args.size {
        Some(_) => Load::until_done(args.load),
        None => Load::new(args.load),
    };
    let directions = [
        ("down", false, Direction::Up),
        ("up", true, Direction::Down),
    ];
    let mut flows = Vec::new();
    for (name, is_upload, other) in directions {
        if args.direction == other {
            continue;
        }
        let streams = args.streams as usize;
        let flow = Arc::new(Flow::new(args.transfer(&target, is_upload)?, streams));
        flows.push(flow.clone());
        load.group(name, streams, LoadModel::Closed, move |worker| {
            transfer::work(flow.clone(), worker)
        });
    }
    report.add(load.run(progress, &target.roles).await?);
    summary::show(&mut report, &args, &flows);
    Ok(report)
}

impl Args {
    fn link(&self) -> Option<Link> {
        let is_wanted = self.link_delay.is_some() || self.link_rate.is_some();
        is_wanted.then(|| Link {
            delay: self.link_delay.unwrap_or_default(),
            rate: self.link_rate,
        })
    }

    /// The request of one stream in this direction.
    fn transfer(&self, target: &Target, is_upload: bool) -> anyhow::Result<Transfer> {
        let size = self.size.map(|size| size.as_u64());
        let rate = self.rate_per_stream.map(|rate| rate.as_u64());
        let is_sample = target.is_sample();
        let (method, sample) = match (is_upload, rate, size) {
            (true, ..) => (Method::POST, "/upload".to_owned()),
            (false, Some(rate), Some(size)) => {
                (Method::GET, format!("/pace?rate={rate}&bytes={size}"))
            }
            (false, Some(rate), None) => (Method::GET, format!("/pace?rate={rate}")),
            (false, None, size) => (Method::GET, format!("/bytes/{}", size.unwrap_or(ENDLESS))),
        };
        let template = target.sample_template(method, &sample)?;
        Ok(Transfer {
            is_sample,
            // The sample upstream paces its answers itself.
            pace: rate.filter(|_| is_upload || !is_sample),
            verify: self.verify && is_sample,
            ..Transfer::new(template, is_upload, size)
        })
    }
}

fn parse_size(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>() {
        Ok(size) if size.as_u64() > 0 => Ok(size),
        Ok(_) => Err("a size of at least one byte".to_owned()),
        Err(error) => Err(error),
    }
}
