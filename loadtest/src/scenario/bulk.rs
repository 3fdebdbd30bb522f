//! Streams of bytes: how many a second, how evenly shared, how soon, and what they cost.
//!
//! Each stream is one transfer at a time over a connection of its own. With `--size` each does one
//! transfer and the figures are of exactly those bytes; without it they go on for `--duration`.

mod link;
mod observe;
mod summary;
mod transfer;

use std::{sync::Arc, time::Duration};

use bytesize::ByteSize;
use http::{HeaderValue, Method, header};

use crate::{
    load::{Load, LoadArgs, Stretch},
    progress::Progress,
    relay::{BitRate, Link},
    report::Report,
    scenario::{
        Context,
        connection::{has_own_path, path},
    },
    stack,
    target::{Target, TargetArgs},
};
use observe::{Flow, Shared};
use transfer::Plan;

/// A run that ends with its transfers has no end of its own. A transfer that stalls ends by
/// `--timeout`, so this is only a number that no transfer reaches.
const NO_END: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a transfer without end asks the sample upstream for: a pebibyte.
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
    /// Each stream moves so much, such as 1GiB, and ends; without it, streams run for --duration.
    /// A URL with a path of its own must answer with as much
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<ByteSize>,
    /// Each stream moves so much a second and no more, such as 8MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub rate_per_stream: Option<ByteSize>,
    /// Look at each byte of the sample upstream's answers, not at their length only
    #[arg(long)]
    pub verify: bool,
    /// Put a link between tunnel client and tunnel server that is so late, one way
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "self_contained", help_heading = "Self-contained")]
    pub link_delay: Option<Duration>,
    /// Put a link between tunnel client and tunnel server that carries so much each way, such as
    /// 200Mbit
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
    /// So many streams each way at once.
    Both,
}

impl Args {
    fn link(&self) -> Option<Link> {
        let is_wanted = self.link_delay.is_some() || self.link_rate.is_some();
        is_wanted.then(|| Link {
            delay: self.link_delay.unwrap_or_default(),
            rate: self.link_rate,
        })
    }

    fn flows(&self) -> &'static [Direction] {
        match self.direction {
            Direction::Down => &[Direction::Down],
            Direction::Up => &[Direction::Up],
            Direction::Both => &[Direction::Down, Direction::Up],
        }
    }

    fn stretch(&self) -> Stretch {
        match self.size {
            Some(_) => Stretch {
                warm_up: Duration::ZERO,
                duration: NO_END,
                timeout: self.load.timeout,
            },
            None => self.load.stretch(),
        }
    }
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
            Self::Both => "both",
        }
    }
}

/// Measures.
///
/// # Errors
/// The target cannot be opened.
pub async fn run(args: Args, context: &Context) -> anyhow::Result<Report> {
    context.progress.message("starting");
    let programs = stack::Plan {
        link: args.link(),
        ..stack::Plan::default()
    };
    let target = &Box::pin(args.target.open_with(programs)).await?;
    let mut report = Report::new("bulk", format!("bulk streams through {}", target.name));
    settings(&mut report, &args, target);

    let flow = |direction: &Direction| Flow::new(*direction, args.streams as usize);
    let shared = Arc::new(Shared::new(args.flows().iter().map(flow).collect()));
    let mut load = Load::new(args.stretch(), args.load.threads.into());
    for (number, direction) in args.flows().iter().enumerate() {
        let plan = Arc::new(plan(&args, target, *direction)?);
        let shared = shared.clone();
        load.group(direction.name(), args.streams as usize, move |worker| {
            transfer::work(plan.clone(), shared.clone(), number, worker)
        });
    }
    // What the load itself would show are transfers, not bytes.
    let silent = Progress::none();
    let load = load.run(&silent, &target.roles);
    let ends_itself = args.size.is_some();
    let watch = observe::watch(&shared, load, ends_itself, &context.progress);
    let (outcome, observed) = Box::pin(watch).await?;
    summary::add(&mut report, &args, &shared, outcome, &observed);
    Ok(report)
}

fn settings(report: &mut Report, args: &Args, target: &Target) {
    report.setting("url", target.uri());
    report.setting("streams", args.streams);
    report.setting("direction", args.direction.name());
    if let Some(rate) = args.rate_per_stream {
        report.setting("rate-per-stream", rate);
    }
    if let Some(delay) = args.link_delay {
        report.setting("link-delay", humantime::format_duration(delay));
    }
    if let Some(rate) = args.link_rate {
        report.setting("link-rate", rate);
    }
    match args.size {
        Some(size) => {
            report.setting("size", size);
            report.setting("timeout", humantime::format_duration(args.load.timeout));
            report.setting("threads", args.load.threads);
        }
        None => report.load_settings(&args.load),
    }
}

/// How one stream of this direction is asked for.
fn plan(args: &Args, target: &Target, direction: Direction) -> anyhow::Result<Plan> {
    let size = args.size.map(|size| size.as_u64());
    let rate = args.rate_per_stream.map(|rate| rate.as_u64());
    let is_sample = !has_own_path(target);
    let is_upload = direction == Direction::Up;
    let (method, sample) = match (is_upload, rate, size) {
        (true, ..) => (Method::POST, "/upload".to_owned()),
        (false, Some(rate), Some(size)) => (Method::GET, format!("/pace?rate={rate}&bytes={size}")),
        (false, Some(rate), None) => (Method::GET, format!("/pace?rate={rate}")),
        (false, None, size) => (Method::GET, format!("/bytes/{}", size.unwrap_or(ENDLESS))),
    };
    let mut template = target.template(method, path(target, &sample))?;
    if let (true, Some(size)) = (is_upload, size) {
        // The content comes piece by piece, but its length is known, and some services want it.
        template
            .headers
            .insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    Ok(Plan {
        dialer: target.dialer.clone(),
        http2: target.http2,
        template,
        is_upload,
        size,
        is_sample,
        // The sample upstream paces its answers itself, as a source of that rate does.
        pace: rate.filter(|_| is_upload || !is_sample),
        verify: args.verify && is_sample,
    })
}

fn parse_size(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>() {
        Ok(size) if size.as_u64() > 0 => Ok(size),
        Ok(_) => Err("a size of at least one byte".to_owned()),
        Err(error) => Err(error),
    }
}
