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
    load::{Client, Load, LoadArgs, Moved, Pace},
    measure::errors::Failure,
    scenario::{TargetScenario, parse_rate},
    target::{Target, TargetArgs},
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
    /// Open loop: so many messages a second for each connection, due at even intervals, whether the
    /// last has come back or not
    #[arg(long, short = 'r', value_name = "PER_SECOND", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// Size of each message
    #[arg(long, value_name = "SIZE", default_value = "64B")]
    pub message_size: ByteSize,
}

impl TargetScenario for Args {
    const NAME: &str = "websocket";
    const TITLE: &str = "WebSocket echoes from";
    type Counts = ();

    fn target(&self) -> TargetArgs {
        self.target.clone()
    }

    fn load(&self) -> &LoadArgs {
        &self.load
    }

    fn add_groups(&self, target: &Target, load: &mut Load) -> anyhow::Result<()> {
        let echo = Arc::new(Echo {
            template: target.sample_template(Method::GET, "/echo")?,
            size: usize::try_from(self.message_size.as_u64())?,
        });
        match self.rate {
            None => load.requests(&target.name, self.connections, Pace::Closed, echo),
            Some(rate) => {
                let pace = Pace::Open(rate * self.connections as f64);
                load.group(&target.name, self.connections, pace, move |worker| {
                    paced::work(echo.clone(), worker)
                });
            }
        }
        Ok(())
    }
}

impl Client for Echo {
    type Connection = Socket;

    async fn connect(&self, _worker: usize) -> Result<Socket, Failure> {
        self.connect().await
    }

    async fn exchange(&self, socket: &mut Socket) -> Result<Moved, Failure> {
        let size = self.size as u64;
        socket.sender.send().await?;
        socket.receiver.receive().await?;
        Ok(Moved {
            up: size,
            down: size,
        })
    }
}
