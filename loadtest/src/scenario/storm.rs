//! All tunnels lose their server at once, and come back: how long until all are served.
//!
//! ```text
//!   connect ─▶ settle ─▶ SIGKILL ─▶ outage ─▶ same port again ─▶ all are back ─▶ each is asked once
//! ```
//!
//! The clients know nothing of each other: nothing bounds how many dial at once but their own
//! waits, which are those of real clients whose sessions were stable.

use std::{collections::BTreeMap, time::Duration};

use anyhow::bail;
use tokio::time::sleep;

use crate::{
    fleet::{
        status::{Status, clock},
        watch::{Crowd, FleetArgs, Samples, kinds, peak_rate, thinned, when_reached},
    },
    measure::{errors::FailureCounts, usage::Meter},
    progress::Progress,
    report::{
        Axis, Chart, Report, Scale, Series, Table, Unit, Usage,
        format::{bytes, cell, count, seconds},
        latency_chart,
    },
    scenario::http::Requests,
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
    let crowd = Crowd::create(&args.crowd, args.tunnels, progress)?;
    let title = format!("{} tunnels lose their server", count(args.tunnels as f64));
    let mut report = Report::new("storm", title);
    measure(&args, &crowd).await?.show(&mut report);
    Ok(report)
}

async fn measure(args: &Args, crowd: &Crowd<'_>) -> anyhow::Result<StormMeasurement> {
    let (tunnels, progress) = (args.tunnels, crowd.progress);
    progress.message("starting the tunnel server");
    let mut server = crowd.start_server(None).await?;
    // All sessions count as stable, as they are in a server that has run for a while.
    let mut watch = crowd.dial(&[&server], Duration::ZERO)?;
    let is_up = watch.until_up(tunnels, crowd.args.limit, progress).await?;
    if !is_up {
        let status = watch.next().await?;
        let (up, all) = (count(status.up as f64), count(tunnels as f64));
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
    let starting = crowd.start_server(Some(server.tunnel));
    let server = watch.meanwhile(Box::pin(starting)).await??;
    let listening = clock();
    watch.server_is(server.child.id());
    let meter = Meter::start(watch.roles());
    let is_back = |status: &Status| status.lost - before.lost >= tunnels && status.up >= tunnels;
    let on_status = |status: &Status| {
        let (up, all) = (count(status.up as f64), count(tunnels as f64));
        progress.message(format_args!("{up} of {all} are back"));
    };
    let all = watch.until(args.crowd.limit, is_back, on_status).await?;
    let usage = meter.finish();
    let samples = watch.take();

    progress.message("asking each runtime once");
    let requests = Requests::in_turn(server.public, &crowd.hosts()?).await?;
    let asking = requests.once_each(ASKING);
    let (answered, unanswered) = watch.meanwhile(Box::pin(asking)).await?;
    Ok(StormMeasurement {
        tunnels,
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

type Line = Vec<(f64, f64)>;

impl StormMeasurement {
    fn show(self, report: &mut Report) {
        let over_time = |of: fn(&Status) -> u64| self.samples.over_time(self.killed, of);
        let (served, handshakes) = (
            fallen(over_time(|status| status.up)),
            over_time(|status| status.handshakes),
        );
        report.tables.push(self.times(&served));
        report.tables.push(self.load(&served, &handshakes));
        self.notes(report);
        let usage = self.usage;
        let (mut run, _) = (self.samples).run(&self.before, self.killed, self.listening, usage);
        "coming back".clone_into(&mut run.name);
        if run.generator_bound {
            report.warn("the fleet was the limit: real clients would have come back faster");
        }
        report.note(
            "of failed dials, a status is a refusal of the server, and those within the outage found no listener; each \
             makes its client wait as real clients do",
        );
        report.runs.push(run);
        report.charts.extend(charts(&served, &handshakes));
        let curve = latency_chart("Time without a session", &report.runs);
        report.charts.extend(curve);
    }

    fn times(&self, served: &Line) -> Table {
        let since_listening = self.listening - self.killed;
        let last = self.samples.last().filter(|_| self.all);
        let share = |share: f64| when_reached(served, share * self.tunnels as f64);
        let rows = [
            ("half", share(0.5)),
            ("90 %", share(0.9)),
            ("99 %", share(0.99)),
            ("all", last.map(|last| last.connected_at - self.killed)),
        ];
        let time = |at: Option<f64>| cell(at, |at| seconds(at.max(0.0)));
        let row = |(name, at): (&str, Option<f64>)| {
            let since = at.map(|at| at - since_listening);
            vec![name.to_owned(), time(at), time(since)]
        };
        let heads = "served again,since the kill,since the server listened again";
        Table::new(
            "Time until tunnels are served again",
            heads,
            rows.map(row).to_vec(),
        )
    }

    fn load(&self, served: &Line, handshakes: &Line) -> Table {
        let most = |line: &Line| count(peak_rate(line, 1.0).round());
        let cpu = peak_rate(&self.samples.server_cpu(self.killed), 1.0) * 100.0;
        let rows = [
            ("handshakes, most within one second", most(handshakes)),
            ("served again, most within one second", most(served)),
            (
                "server CPU, most within one second",
                format!("{cpu:.0} % of a core"),
            ),
            ("server memory, most", bytes(self.samples.peak_rss() as f64)),
            (
                "server memory before the kill",
                bytes(self.rss_before as f64),
            ),
            (
                "runtimes that answered afterwards",
                count(self.answered as f64),
            ),
        ];
        Table::of_values("The storm", "value", rows)
    }

    fn notes(&self, report: &mut Report) {
        if !self.all {
            let up = self.samples.last().map_or(0, |status| status.up);
            let (up, all) = (count(up as f64), count(self.tunnels as f64));
            report.warn(format!("only {up} of {all} came back within the limit"));
        }
        if self.unanswered.total() > 0 {
            let kinds = kinds(&self.unanswered.by_name());
            report.warn(format!("runtimes that did not answer afterwards: {kinds}"));
        }
    }
}

/// The line from where it is lowest: what was up before all had noticed is none of those that came back.
fn fallen(line: Line) -> Line {
    let heights = line.iter().map(|point| point.1);
    let lowest = heights.fold(f64::INFINITY, f64::min);
    let from = line.iter().position(|point| point.1 <= lowest).unwrap_or(0);
    line.into_iter().skip(from).collect()
}

fn charts(served: &Line, handshakes: &Line) -> [Chart; 2] {
    let rates = handshakes.windows(2).filter_map(|pair| {
        let [from, to] = pair else { return None };
        (to.0 > from.0).then(|| (to.0, (to.1 - from.1) / (to.0 - from.0)))
    });
    let rates: Line = rates.collect();
    let chart = |title: &str, label: &str, unit: Unit, line: &Line| {
        let x = Axis::new("since the kill", Unit::Seconds, Scale::Linear);
        let y = Axis::new(label, unit, Scale::Linear);
        Chart::new(title, x, y, [Series::new(label, thinned(line))])
    };
    [
        chart("Served again", "tunnels", Unit::Count, served),
        chart("Handshakes", "handshakes", Unit::PerSecond, &rates),
    ]
}
