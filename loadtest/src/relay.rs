//! A link between two programs: bytes through it are late by a set time, and no faster than a set
//! rate, in each direction. It understands nothing of what it carries.
//!
//! ```text
//!   client ══▶ read ─▶ [ buffer: waits for the link, then travels ] ─▶ write ══▶ server
//!   client ◀══ write ◀─ [ likewise, with a rate of its own         ] ◀─ read ◀══ server
//! ```
//!
//! All connections share the link: its rate and its buffer are theirs together. When the buffer is
//! full nothing more is read, so the sender is held back as by a real link, but nothing is lost.

mod direction;
mod rate;

use std::{future::Future, net::SocketAddr, pin::Pin, rc::Rc, time::Duration};

use tokio::net::TcpStream;

use crate::serve::{self, FREE_PORT};
use direction::Direction;

pub use rate::BitRate;

/// What kind of link it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// How late each byte is, one way.
    pub delay: Duration,
    /// How much passes in each direction; none: as much as comes.
    pub rate: Option<BitRate>,
}

/// Flags of `loadtest relay`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where to carry the connections to
    #[arg(long, value_name = "IP:PORT")]
    pub to: SocketAddr,
    /// How late each byte is, one way
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = humantime::parse_duration)]
    pub delay: Duration,
    /// How much passes in each direction, such as 200Mbit
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
}

/// Relays until the process ends. Says where it listens in one line on standard output.
///
/// # Errors
/// It cannot listen there.
pub fn run(args: Args) -> anyhow::Result<()> {
    let link = Link {
        delay: args.delay,
        rate: args.rate,
    };
    serve::run(FREE_PORT, connections(args.to, link))
}

/// Carries each connection over one link to `to`.
fn connections(
    to: SocketAddr,
    link: Link,
) -> impl Fn(TcpStream) -> Pin<Box<dyn Future<Output = ()>>> {
    let up = Rc::new(Direction::new(link));
    let down = Rc::new(Direction::new(link));
    move |stream| Box::pin(carry(stream, to, up.clone(), down.clone()))
}

/// One connection, until both directions have ended. Where the server cannot be reached, the
/// client sees its connection closed.
async fn carry(client: TcpStream, to: SocketAddr, up: Rc<Direction>, down: Rc<Direction>) {
    let Ok(server) = TcpStream::connect(to).await else {
        return;
    };
    for stream in [&client, &server] {
        // It fails only on a socket that is already dead, which the first read tells.
        drop(stream.set_nodelay(true));
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        up.carry(from_client, to_server),
        down.carry(from_server, to_client)
    );
}
