//! What a scenario is: flags, and a function that measures and gives a [`Report`].
//!
//! To add one that is one load over one target: a file in `scenario/` with its flags, which implement `TargetScenario`,
//! a line in [`Scenario`] and a line in [`Scenario::run`]. Any other has a function `run` of its own.

pub mod bulk;
pub mod compare;
pub mod fairness;
pub mod grpc;
pub mod http;
pub mod rounds;
pub mod scale;
pub mod sse;
pub mod storm;
pub mod tunnels;
pub mod websocket;

use crate::{
    load::{Load, LoadArgs},
    progress::Progress,
    report::Report,
    stack::Plan,
    target::{Target, TargetArgs},
};

/// What every scenario is given.
#[derive(Debug)]
pub struct Context {
    /// The live line.
    pub progress: Progress,
}

/// The subcommands that measure.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Scenario {
    /// Requests and answers: closed loop over connections, or open loop with --rate
    Http(http::Args),
    /// Streams of bytes, down, up or both: throughput, fair shares, cost; over a slow link if wished
    Bulk(bulk::Args),
    /// Messages that come back over WebSockets: rate and round trip
    Websocket(websocket::Args),
    /// Server-Sent Events to many subscribers: how late they are, and whether all come
    Sse(sse::Args),
    /// gRPC calls, unary or streaming
    Grpc(grpc::Args),
    /// Small requests beside large ones and slow readers, on the same tunnel and a neighbour's
    Fairness(fairness::Args),
    /// Many idle tunnels: memory and CPU of each, and how fast all connect
    Tunnels(tunnels::Args),
    /// All tunnels lose the server and come back: how long until all are served
    Storm(storm::Args),
    /// One scenario over a list of levels: how cost grows
    Scale(scale::Args),
    /// The same load over several targets, interleaved in rounds: a table of ratios
    Compare(compare::Args),
}

impl Scenario {
    /// Measures.
    ///
    /// # Errors
    /// It could not be run at all; what failed while it ran is part of the report.
    pub async fn run(self, context: &Context) -> anyhow::Result<Report> {
        match self {
            Self::Http(args) => measure(args, context).await,
            Self::Bulk(args) => measure(args, context).await,
            Self::Websocket(args) => measure(args, context).await,
            Self::Sse(args) => measure(args, context).await,
            Self::Grpc(args) => measure(args, context).await,
            Self::Fairness(args) => fairness::run(args, context).await,
            Self::Tunnels(args) => Box::pin(tunnels::run(args, context)).await,
            Self::Storm(args) => Box::pin(storm::run(args, context)).await,
            Self::Scale(args) => scale::run(args, context).await,
            Self::Compare(args) => compare::run(args, context).await,
        }
    }
}

/// A scenario that is one load over one target.
pub(crate) trait TargetScenario {
    /// Its subcommand, and what stands before the target's name in the report's title.
    const NAME: &'static str;
    const TITLE: &'static str;

    /// What its workers count beside what every load records.
    type Counts;

    /// The flags of the target.
    fn target(&self) -> TargetArgs;

    /// The flags of the load.
    fn load(&self) -> &LoadArgs;

    /// The programs of a self-contained run.
    fn programs(&self) -> Plan<'static> {
        Plan::default()
    }

    /// A load without groups.
    fn empty_load(&self) -> Load {
        Load::new(self.load().stretch(), self.load().threads.into())
    }

    /// Adds the groups of workers.
    fn add_groups(&self, target: &Target, load: &mut Load) -> anyhow::Result<Self::Counts>;

    /// Adds to the report what the runs in it do not say by themselves.
    fn show(&self, counts: Self::Counts, report: &mut Report) {
        let _ = counts;
        report.add_standard_charts();
    }
}

/// Opens the target, runs the load and reports it.
async fn measure<S: TargetScenario>(scenario: S, context: &Context) -> anyhow::Result<Report> {
    context.progress.message("starting");
    let target = Box::pin(scenario.target().open_with(scenario.programs())).await?;
    let mut report = Report::new(S::NAME, format!("{} {}", S::TITLE, target.name));
    let mut load = scenario.empty_load();
    let counts = scenario.add_groups(&target, &mut load)?;
    report.add(load.run(&context.progress, &target.roles).await?);
    scenario.show(counts, &mut report);
    Ok(report)
}

/// A rate as a flag.
fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("a rate is a number above zero".to_owned()),
    }
}
