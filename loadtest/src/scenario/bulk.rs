//! Streams of bytes: how many a second, how evenly shared, how soon, and what they cost.
//!
//! Each stream is one transfer at a time over a connection of its own. With `--size` each does one
//! transfer and the figures are of exactly those bytes; without it they go on for `--duration`.

mod summary;
mod transfer;

use std::{
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::Duration,
};

use bytesize::ByteSize;
use http::{HeaderValue, Method, header};
use parking_lot::Mutex;

use crate::{
    load::{Load, LoadArgs, Pace},
    relay::{BitRate, Link},
    report::{Report, latency::Latencies},
    scenario::TargetScenario,
    stack,
    target::{Target, TargetArgs},
};
use transfer::Plan;

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

/// The streams of one direction, and what is counted for each of them.
#[derive(Debug)]
pub(crate) struct Flow {
    direction: Direction,
    /// Bytes of each stream within the window.
    moved: Vec<AtomicU64>,
    /// For how long each stream's only transfer took that ended well, seconds.
    took: Vec<OnceLock<f64>>,
    /// From each request to the first byte of its answer.
    first_bytes: Mutex<Latencies>,
}

impl TargetScenario for Args {
    const NAME: &str = "bulk";
    const TITLE: &str = "bulk streams through";
    type Counts = Vec<Arc<Flow>>;

    fn target(&self) -> TargetArgs {
        self.target.clone()
    }

    fn load(&self) -> &LoadArgs {
        &self.load
    }

    fn programs(&self) -> stack::Plan<'static> {
        stack::Plan {
            link: self.link(),
            ..stack::Plan::default()
        }
    }

    fn empty_load(&self) -> Load {
        let LoadArgs {
            duration, timeout, ..
        } = self.load;
        let threads = self.load.threads.into();
        match self.size {
            Some(_) => Load::until_done(duration, timeout, threads),
            None => Load::new(self.load.stretch(), threads),
        }
    }

    fn add_groups(&self, target: &Target, load: &mut Load) -> anyhow::Result<Self::Counts> {
        let mut flows = Vec::new();
        for &direction in self.directions() {
            let streams = self.streams as usize;
            let flow = Arc::new(Flow {
                direction,
                moved: (0..streams).map(|_| AtomicU64::new(0)).collect(),
                took: vec![OnceLock::new(); streams],
                first_bytes: Mutex::default(),
            });
            let shared = (Arc::new(self.plan(target, direction)?), flow.clone());
            load.group(direction.name(), streams, Pace::Closed, move |worker| {
                let (plan, flow) = shared.clone();
                transfer::work(plan, flow, worker)
            });
            flows.push(flow);
        }
        Ok(flows)
    }

    fn show(&self, flows: Self::Counts, report: &mut Report) {
        summary::show(report, self, &flows);
    }
}

impl Args {
    fn link(&self) -> Option<Link> {
        let is_wanted = self.link_delay.is_some() || self.link_rate.is_some();
        is_wanted.then(|| Link {
            delay: self.link_delay.unwrap_or_default(),
            rate: self.link_rate,
        })
    }

    fn directions(&self) -> &'static [Direction] {
        match self.direction {
            Direction::Down => &[Direction::Down],
            Direction::Up => &[Direction::Up],
            Direction::Both => &[Direction::Down, Direction::Up],
        }
    }

    /// How one stream of this direction is asked for.
    fn plan(&self, target: &Target, direction: Direction) -> anyhow::Result<Plan> {
        let size = self.size.map(|size| size.as_u64());
        let rate = self.rate_per_stream.map(|rate| rate.as_u64());
        let is_sample = target.is_sample();
        let is_upload = direction == Direction::Up;
        let (method, sample) = match (is_upload, rate, size) {
            (true, ..) => (Method::POST, "/upload".to_owned()),
            (false, Some(rate), Some(size)) => {
                (Method::GET, format!("/pace?rate={rate}&bytes={size}"))
            }
            (false, Some(rate), None) => (Method::GET, format!("/pace?rate={rate}")),
            (false, None, size) => (Method::GET, format!("/bytes/{}", size.unwrap_or(ENDLESS))),
        };
        let mut template = target.sample_template(method, &sample)?;
        if let (true, Some(size)) = (is_upload, size) {
            // The content comes piece by piece, but its length is known, and some services want it.
            let length = HeaderValue::from(size);
            template.headers.insert(header::CONTENT_LENGTH, length);
        }
        Ok(Plan {
            template,
            is_upload,
            size,
            is_sample,
            // The sample upstream paces its answers itself, as a source of that rate does.
            pace: rate.filter(|_| is_upload || !is_sample),
            verify: self.verify && is_sample,
        })
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

fn parse_size(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>() {
        Ok(size) if size.as_u64() > 0 => Ok(size),
        Ok(_) => Err("a size of at least one byte".to_owned()),
        Err(error) => Err(error),
    }
}
