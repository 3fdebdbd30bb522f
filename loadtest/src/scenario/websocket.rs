//! WebSocket messages that come back: how many a second, and how long the round trip takes.
//!
//! Without a rate each connection sends the next message when the last has come back. With a rate
//! messages are due at even intervals, and the connections take turns, whatever the target does; see `paced`.

mod paced;
mod socket;

use std::sync::Arc;

use bytesize::ByteSize;
use http::Method;

use crate::{
    load::{BodyBytes, Client, Load, LoadArgs, LoadModel},
    measure::errors::Failure,
    progress::Progress,
    report::Report,
    scenario::{open, parse_rate},
    stack::Plan,
    target::TargetArgs,
};
pub(crate) use socket::Echo;
use socket::Socket;

/// Flags of `loadtest websocket`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct Args {
    /// The target.
    #[command(flatten)]
    pub target: TargetArgs,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// WebSockets, each over a connection of its own
    #[arg(long, short = 'c', value_name = "N", default_value_t = 64)]
    pub connections: usize,
    /// Open loop: messages per second for each connection, due at even intervals, whether the
    /// last has come back or not
    #[arg(long, short = 'r', value_name = "PER_SECOND", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// Size of each message
    #[arg(long, value_name = "SIZE", default_value = "64B")]
    pub message_size: ByteSize,
}

/// Measures.
///
/// # Errors
/// The target cannot be opened, or the load cannot be run.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let title = ("websocket", "WebSocket echoes from");
    let (target, mut report) = open(progress, title, &args.target, Plan::default()).await?;
    let echo = Arc::new(Echo {
        template: target.sample_template(Method::GET, "/echo")?,
        size: usize::try_from(args.message_size.as_u64())?,
    });
    let mut load = Load::new(args.load);
    match args.rate {
        None => load.requests(&target.name, args.connections, LoadModel::Closed, echo),
        Some(rate) => {
            let pace = LoadModel::Open(rate * args.connections as f64);
            load.group(&target.name, args.connections, pace, move |worker| {
                paced::work(echo.clone(), worker)
            });
        }
    }
    report.add(load.run(progress, &target.roles).await?);
    report.add_standard_charts();
    Ok(report)
}

impl Client for Echo {
    type Connection = Socket;

    async fn connect(&self, _worker: usize) -> Result<Socket, Failure> {
        self.connect().await
    }

    async fn exchange(&self, socket: &mut Socket) -> Result<BodyBytes, Failure> {
        let size = self.size as u64;
        socket.sender.send().await?;
        socket.receiver.receive().await?;
        Ok(BodyBytes {
            up: size,
            down: size,
        })
    }
}
