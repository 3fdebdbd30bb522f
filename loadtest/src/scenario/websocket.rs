//! WebSocket messages that come back: how many a second, and how long the round trip takes.
//!
//! Without a rate each connection sends the next message when the last has come back. With a rate
//! each connection sends at even intervals, whatever the target does; see `paced`.

mod paced;
mod socket;

use std::sync::Arc;

use bytesize::ByteSize;
use http::Method;

use crate::{
    load::{Client, Load, LoadArgs, Moved, Pace},
    measure::errors::Failure,
    report::Report,
    scenario::{
        Context,
        connection::{parse_rate, path},
    },
    target::TargetArgs,
};
pub(crate) use socket::Maker;
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
    /// Open loop: each connection sends so many messages a second at even intervals, whether the
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
/// The target cannot be opened.
pub async fn run(args: Args, context: &Context) -> anyhow::Result<Report> {
    context.progress.message("starting");
    let target = args.target.open().await?;
    let title = format!("WebSocket echoes from {}", target.name);
    let mut report = Report::new("websocket", title);
    report.setting("url", target.uri());
    report.setting("connections", args.connections);
    if let Some(rate) = args.rate {
        report.setting("rate", rate);
    }
    report.setting("message-size", args.message_size);
    report.load_settings(&args.load);

    let maker = Arc::new(Maker {
        dialer: target.dialer.clone(),
        http2: target.http2,
        template: target.template(Method::GET, path(&target, "/echo"))?,
        size: usize::try_from(args.message_size.as_u64())?,
    });
    let mut load = Load::new(args.load.stretch(), args.load.threads.into());
    match args.rate {
        None => load.requests(
            &target.name,
            args.connections,
            Pace::Closed,
            Arc::new(Echo(maker)),
        ),
        Some(rate) => {
            // Not all at the same instant: that would be a burst, not a rate.
            let beat = paced::Beat::new(rate, args.connections);
            load.group(&target.name, args.connections, move |worker| {
                paced::work(maker.clone(), beat, worker)
            });
        }
    }
    let outcome = load.run(&context.progress, &target.roles).await?;
    report.add(outcome);
    report.add_standard_charts();
    Ok(report)
}

/// Sends the next message when the last has come back.
#[derive(Debug)]
pub(crate) struct Echo(pub(crate) Arc<Maker>);

impl Client for Echo {
    type Connection = Socket;

    async fn connect(&self, _worker: usize) -> Result<Socket, Failure> {
        self.0.connect().await
    }

    async fn exchange(&self, socket: &mut Socket) -> Result<Moved, Failure> {
        let size = self.0.size as u64;
        socket.sender.send().await?;
        socket.receiver.receive().await?;
        Ok(Moved {
            up: size,
            down: size,
        })
    }
}
