//! What a scenario is: flags, and a function that measures and returns a [`Report`].
//!
//! To add one: a file in `scenario/` with its flags and its function `run`, a line in [`Scenario`] and a line in
//! [`Scenario::run`].

pub mod bulk;
pub mod cluster;
pub mod compare;
pub mod fairness;
pub mod grpc;
pub mod http;
pub mod rounds;
pub mod scale;
pub mod sse;
pub mod storm;
pub(crate) mod transfer;
pub mod tunnels;
pub mod websocket;

use crate::{
    progress::Progress,
    report::Report,
    stack::Plan,
    target::{Target, TargetArgs},
};

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
    /// Several server nodes over etcd: cost of forwarded requests, and what a fault of a node does
    Cluster(cluster::Args),
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
    pub async fn run(self, progress: &Progress) -> anyhow::Result<Report> {
        match self {
            Self::Http(args) => http::run(args, progress).await,
            Self::Bulk(args) => bulk::run(args, progress).await,
            Self::Websocket(args) => websocket::run(args, progress).await,
            Self::Sse(args) => sse::run(args, progress).await,
            Self::Grpc(args) => grpc::run(args, progress).await,
            Self::Fairness(args) => fairness::run(args, progress).await,
            Self::Tunnels(args) => Box::pin(tunnels::run(args, progress)).await,
            Self::Storm(args) => Box::pin(storm::run(args, progress)).await,
            Self::Cluster(args) => Box::pin(cluster::run(args, progress)).await,
            Self::Scale(args) => scale::run(args, progress).await,
            Self::Compare(args) => compare::run(args, progress).await,
        }
    }
}

/// Opens a target, and begins a report on it whose title begins with `title`.
async fn open(
    progress: &Progress,
    (scenario, title): (&str, &str),
    target: &TargetArgs,
    plan: Plan<'_>,
) -> anyhow::Result<(Target, Report)> {
    progress.message("starting");
    let target = Box::pin(target.open(plan)).await?;
    let report = Report::new(scenario, format!("{title} {}", target.name));
    Ok((target, report))
}

/// A rate as a flag.
fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("a rate is a number above zero".to_owned()),
    }
}
