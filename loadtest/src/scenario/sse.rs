//! Server-Sent Events to many subscribers: how late each event arrives, and whether all do.
//!
//! An event's data begins with the time of its sending, nanoseconds since the Unix epoch, so source
//! and receiver must share a clock. Events with an `id:` that counts tell of gaps; the sample
//! upstream's rate is known, so that silence at either end of the window is told too.

mod parse;
mod subscriber;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytesize::ByteSize;
use http::{HeaderValue, Method, header};

use crate::{
    load::{Load, LoadArgs, LoadModel},
    progress::Progress,
    report::{
        Report, Run, Table,
        format::{cell, count, per_second},
    },
    scenario::{open, parse_rate, rounds::Spread},
    stack::Plan,
    target::TargetArgs,
};
use subscriber::SubscriberCounts;

/// Flags of `loadtest sse`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// The target.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Subscribers, each over a connection of its own
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    pub subscribers: usize,
    /// Events a second that the sample upstream sends to each subscriber
    #[arg(long, short = 'r', value_name = "PER_SECOND", default_value = "10", value_parser = parse_rate)]
    pub rate: f64,
    /// Size of each event that the sample upstream sends
    #[arg(long, value_name = "SIZE", default_value = "64B")]
    pub event_size: ByteSize,
}

/// Measures.
///
/// # Errors
/// The target cannot be opened, or the load cannot be run.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let title = ("sse", "Server-Sent Events from");
    let (target, mut report) = open(progress, title, &args.target, Plan::default()).await?;
    let size = args.event_size.as_u64();
    let sample = format!("/events?rate={}&size={size}", args.rate);
    let mut template = target.sample_template(Method::GET, &sample)?;
    let wanted = HeaderValue::from_static("text/event-stream");
    template.headers.insert(header::ACCEPT, wanted);
    let rate = target.is_sample().then_some(args.rate);
    let (template, counts) = (
        Arc::new(template),
        Arc::new(SubscriberCounts::new(args.subscribers)),
    );
    let mut load = Load::new(args.load);
    let counted = counts.clone();
    load.group(
        &target.name,
        args.subscribers,
        LoadModel::Closed,
        move |worker| subscriber::work(template.clone(), counted.clone(), rate, worker),
    );
    report.add(load.run(progress, &target.roles).await?);

    let table = report.runs.first().map(|run| table(run, &counts, rate));
    report.tables.extend(table);
    if counts.untimed.load(Relaxed) > 0 {
        report.warn(
            "events came whose data does not begin with the time of sending (nanoseconds since \
             the Unix epoch): they are counted as no_send_time",
        );
    }
    report.note("a delay is from the time of sending in the event to its arrival here");
    report.add_standard_charts();
    Ok(report)
}

/// What each subscriber got, and what was missed.
fn table(run: &Run, counts: &SubscriberCounts, rate: Option<f64>) -> Table {
    let rates = counts.events.iter();
    let rates = rates.map(|events| events.load(Relaxed) as f64 / run.seconds);
    let spread = Spread::of_all(rates);
    let each = |pick: fn(Spread) -> f64| cell(spread.map(pick), per_second);
    let missed = run.errors.get(subscriber::MISSED).copied().unwrap_or(0);
    let subscribers = counts.events.len() as f64;
    let due = rate.map(|rate| (rate * run.seconds * subscribers).round());
    let columns = [
        "subscribers",
        "slowest",
        "median",
        "fastest",
        "events",
        "due",
        "missed",
        "disconnects",
    ];
    let row = vec![
        count(subscribers),
        each(|spread| spread.low),
        each(|spread| spread.median),
        each(|spread| spread.high),
        count(run.completed as f64),
        cell(due, count),
        count(missed as f64),
        count(counts.disconnects.load(Relaxed) as f64),
    ];
    Table::new("Events of each subscriber", &columns, vec![row])
}
