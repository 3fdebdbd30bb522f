//! Bulk streams: throughput, fairness between streams, time to the first byte, and cost.
//!
//! Each stream has a connection of its own and one transfer at a time. With `--size` each stream does one transfer, and the
//! figures are of exactly those bytes; without it streams run for `--duration`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytesize::ByteSize;
use http::Method;

use crate::{
    load::{Load, LoadArgs},
    progress::Progress,
    relay::{BitRate, Link},
    report::{
        Axis, Chart, Interval, Latency, Report, Run, Scale, Series, Table, Unit, Usage,
        format::{bytes, bytes_per_second, cell, count, seconds},
        over_time,
    },
    scenario::{
        open,
        rounds::Spread,
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
    /// A slow link.
    #[command(flatten)]
    pub link: LinkArgs,
}

/// Flags of a simulated link.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Self-contained")]
pub struct LinkArgs {
    /// Delay of a simulated link between tunnel client and tunnel server, one way
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "self_contained")]
    pub link_delay: Option<Duration>,
    /// Rate of a simulated link between tunnel client and tunnel server, each way, such as 200Mbit
    #[arg(long, value_name = "RATE", requires = "self_contained")]
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
        link: args.link.link(),
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
        load.group(name, streams, None, flow, transfer::work);
    }
    report.add(load.run(progress, &target.roles).await?);
    show(&mut report, &args, &flows);
    Ok(report)
}

impl LinkArgs {
    fn link(&self) -> Option<Link> {
        let is_wanted = self.link_delay.is_some() || self.link_rate.is_some();
        is_wanted.then(|| Link {
            delay: self.link_delay.unwrap_or_default(),
            rate: self.link_rate,
        })
    }
}

impl Args {
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

/// A gibibyte.
const GIB: f64 = 1_073_741_824.0;

/// Windows of TCP and of the multiplexer must have grown by then: the share of a link is measured
/// from here.
const GROWN: f64 = 2.0;

/// Adds tables, the chart and notes for the runs in the report, of which there is one for each flow.
fn show(report: &mut Report, args: &Args, flows: &[Arc<Flow>]) {
    for run in &mut report.runs {
        // A transfer is as large as one likes: what counts is the cost of a gibibyte.
        run.cpu_us_per_request = None;
    }
    let shares = report.runs.iter().zip(flows);
    let shares = shares.map(|(run, flow)| share_row(args, run, flow));
    let title = "Each stream's throughput; fairness is 1 when all have as much";
    let heads = "streams,number,slowest,median,fastest,fairness,first byte p50,first byte max";
    report
        .tables
        .push(Table::new(title, heads, shares.collect()));
    report.tables.extend(cost_table(&report.runs));
    let y = Axis::new("throughput", Unit::BytesPerSecond, Scale::Linear);
    let title = "Throughput over time";
    let mut chart = over_time(title, y, &report.runs, |interval| interval.bytes_per_second);
    if let Some(link) = args.link.link() {
        add_link(report, args, link, chart.as_mut());
    }
    report.charts.extend(chart);
    warn(report, args, flows);
}

/// Throughput of each stream that counts: over the window, or over its own transfer.
fn rates(args: &Args, run: &Run, flow: &Flow) -> Vec<f64> {
    let rate = |(moved, took): (&AtomicU64, &OnceLock<f64>)| {
        let seconds = match args.size {
            Some(_) => *took.get()?,
            None => run.seconds,
        };
        Some(moved.load(Relaxed) as f64 / seconds.max(1e-9))
    };
    flow.moved.iter().zip(&flow.took).filter_map(rate).collect()
}

/// Jain's index: 1 when all have as much, 1/n when one has all.
fn fairness(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

fn share_row(args: &Args, run: &Run, flow: &Flow) -> Vec<String> {
    let rates = rates(args, run, flow);
    let spread = Spread::of_all(rates.iter().copied());
    let rate = |pick: fn(Spread) -> f64| cell(spread.map(pick), bytes_per_second);
    let first_bytes = flow.first_bytes.lock().summary();
    let first_byte = |pick: fn(&Latency) -> f64| cell(first_bytes.as_ref().map(pick), seconds);
    vec![
        run.name.clone(),
        count(flow.moved.len() as f64),
        rate(|spread| spread.low),
        rate(|spread| spread.median),
        rate(|spread| spread.high),
        cell(fairness(&rates), |index| format!("{index:.3}")),
        first_byte(|delays| delays.p50),
        first_byte(|delays| delays.max),
    ]
}

/// What programs used is known for all flows together.
fn cost_table(runs: &[Run]) -> Option<Table> {
    let none = BTreeMap::new();
    let (usage, span) = runs
        .first()
        .map_or((&none, 0.0), |run| (&run.usage, run.seconds));
    let moved = runs.iter().map(|run| run.bytes_up + run.bytes_down);
    let moved = moved.sum::<u64>() as f64 / GIB;
    let row = |(role, used): (&String, &Usage)| {
        vec![
            role.clone(),
            format!("{:.3} s", used.cpu_seconds / moved),
            format!("{:.1} %", used.cpu_seconds / span * 100.0),
            bytes(used.peak_rss as f64),
        ]
    };
    let heads = "role,processor time per GiB,of a core,most memory";
    let rows = usage.iter().map(row).collect();
    (moved > 0.0).then(|| Table::new("What a gibibyte costs", heads, rows))
}

/// Adds the table about the link, and the link's rate to the chart of throughput.
fn add_link(report: &mut Report, args: &Args, link: Link, chart: Option<&mut Chart>) {
    let full = link.rate.map(|rate| rate.bytes());
    let warm_up = match args.size {
        Some(_) => 0.0,
        None => args.load.warm_up.as_secs_f64(),
    };
    let row = |run: &Run| {
        let grown = |interval: &&Interval| interval.at + warm_up > GROWN;
        let grown = mean(run.timeline.iter().filter(grown));
        let early = |interval: &&Interval| interval.at + warm_up <= GROWN;
        let early = mean(run.timeline.iter().filter(early));
        let share = grown.zip(full).map(|(grown, full)| grown / full * 100.0);
        vec![
            run.name.clone(),
            seconds(2.0 * link.delay.as_secs_f64()),
            cell(full, bytes_per_second),
            cell(early, bytes_per_second),
            cell(grown, bytes_per_second),
            cell(share, |share| format!("{share:.1} %")),
        ]
    };
    let heads = "link,round trip,rate,first 2 s,after 2 s,share of the link after 2 s";
    let rows: Vec<_> = report.runs.iter().map(row).collect();
    let title = "What the streams reached of the link between tunnel client and tunnel server";
    report.tables.push(Table::new(title, heads, rows));
    let longest = report
        .runs
        .iter()
        .map(|run| run.seconds)
        .fold(0.0, f64::max);
    if longest + warm_up <= GROWN {
        report
            .warn("the streams ended within two seconds, before the link could be full: move more");
    }
    if let (Some(full), Some(chart)) = (full, chart) {
        let line = vec![(0.0, full), (longest, full)];
        chart.series.push(Series::new("the link", line));
    }
}

fn mean<'a>(intervals: impl Iterator<Item = &'a Interval>) -> Option<f64> {
    let rates: Vec<f64> = intervals
        .map(|interval| interval.bytes_per_second)
        .collect();
    (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
}

fn warn(report: &mut Report, args: &Args, flows: &[Arc<Flow>]) {
    let streams = || flows.iter().flat_map(|flow| &flow.took);
    let failed = streams().filter(|took| took.get().is_none()).count();
    if args.size.is_some() && failed > 0 {
        let all = streams().count();
        report.warn(format!(
            "{failed} of {all} streams failed: their bytes are part of the throughput, but not of \
             the streams' shares"
        ));
    }
    if flows.iter().any(|flow| flow.transfer.is_upload) {
        report.note("uploaded bytes count when the connection takes them");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_when_all_have_as_much() {
        assert_eq!(fairness(&[5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(fairness(&[0.0, 0.0, 0.0, 8.0]), Some(0.25));
        assert_eq!(fairness(&[]), None);
    }
}
