//! Server-Sent Events to many subscribers: how late each event arrives, and whether all do.
//!
//! An event's data begins with the time of its sending, nanoseconds since the Unix epoch, so source
//! and receiver must share a clock. Events with an `id:` that counts tell of gaps; the sample
//! upstream's rate is known, so that silence at either end of the window is told too.

mod parse;
mod subscriber;

use std::sync::Arc;

use bytesize::ByteSize;
use http::{HeaderValue, Method, header};

use crate::{
    load::{Load, LoadArgs},
    report::{
        Report, Run, Table,
        format::{NONE, count, per_second},
    },
    scenario::{
        Context,
        connection::{has_own_path, parse_rate, path},
    },
    target::TargetArgs,
};
use subscriber::{Counts, Plan};

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
/// The target cannot be opened.
pub async fn run(args: Args, context: &Context) -> anyhow::Result<Report> {
    context.progress.message("starting");
    let target = args.target.open().await?;
    let mut report = Report::new("sse", format!("Server-Sent Events from {}", target.name));
    let is_sample = !has_own_path(&target);
    report.setting("url", target.uri());
    report.setting("subscribers", args.subscribers);
    if is_sample {
        report.setting("rate", args.rate);
        report.setting("event-size", args.event_size);
    }
    report.load_settings(&args.load);

    let sample = format!(
        "/events?rate={}&size={}",
        args.rate,
        args.event_size.as_u64()
    );
    let mut template = target.template(Method::GET, path(&target, &sample))?;
    let wanted = HeaderValue::from_static("text/event-stream");
    template.headers.insert(header::ACCEPT, wanted);
    let plan = Arc::new(Plan {
        dialer: target.dialer.clone(),
        http2: target.http2,
        template,
        rate: is_sample.then_some(args.rate),
    });
    let counts = Arc::new(Counts::new(args.subscribers));
    let mut load = Load::new(args.load.stretch(), args.load.threads.into());
    let shared = counts.clone();
    load.group(&target.name, args.subscribers, move |worker| {
        subscriber::work(plan.clone(), shared.clone(), worker)
    });
    let outcome = load.run(&context.progress, &target.roles).await?;
    report.add(outcome);
    if let Some(run) = report.runs.first() {
        let table = table(run, &counts, is_sample.then_some(args.rate));
        report.tables.push(table);
    }
    if counts.untimed() > 0 {
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
fn table(run: &Run, counts: &Counts, rate: Option<f64>) -> Table {
    let rates = counts.sorted_rates(run.seconds);
    let of = |place: Option<&f64>| place.map_or_else(|| NONE.to_owned(), |rate| per_second(*rate));
    let failed = |kind: &str| count(run.errors.get(kind).copied().unwrap_or(0) as f64);
    let due = rate.map(|rate| rate * run.seconds * rates.len() as f64);
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
        count(rates.len() as f64),
        of(rates.first()),
        of(rates.get(rates.len() / 2)),
        of(rates.last()),
        count(run.completed as f64),
        due.map_or_else(|| NONE.to_owned(), |due| count(due.round())),
        failed(subscriber::MISSED),
        count(counts.disconnects() as f64),
    ];
    Table::new("Events of each subscriber", &columns, vec![row])
}
