//! A link between two programs: bytes through it are late by a set time, and no faster than a set
//! rate, in each direction. It understands nothing of what it carries.
//!
//! ```text
//!   client ══▶ read ─▶ [ buffer: waits for the link, then travels ] ─▶ write ══▶ server
//!   client ◀══ write ◀─ [ the same, with a rate of its own         ] ◀─ read ◀══ server
//! ```
//!
//! All connections share the link: its rate and its buffer are theirs together. When the buffer is
//! full nothing more is read, so the sender is held back as by a real link, but nothing is lost.

mod lane;
mod rate;

use std::{
    env,
    io::{self, Write as _},
    net::SocketAddr,
    process::Command,
    rc::Rc,
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, LocalOptions},
    task::JoinSet,
    time::sleep,
};

use crate::stack::{Running, child::Child};
use lane::Lane;

pub use rate::BitRate;

/// What a relay is to the measurement.
pub const ROLE: &str = "relay";

/// Accepting goes on after a failure, but not in a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A relay that has not said where it listens by then never will.
const START_LIMIT: Duration = Duration::from_secs(20);

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
    /// Where to listen
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
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
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .context("cannot start")?;
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", args.listen))?;
        let address = listener.local_addr()?;
        let mut out = io::stdout().lock();
        writeln!(out, "listening on {address}")?;
        out.flush()?;
        drop(out);
        let link = Link {
            delay: args.delay,
            rate: args.rate,
        };
        serve(listener, args.to, link).await;
        Ok(())
    })
}

/// Relays for ever, on a local runtime.
pub async fn serve(listener: TcpListener, to: SocketAddr, link: Link) {
    let up = Rc::new(Lane::new(link));
    let down = Rc::new(Lane::new(link));
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn_local(carry(stream, to, up.clone(), down.clone()));
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// One connection, until both directions have ended. Where the server cannot be reached, the
/// client sees its connection closed.
async fn carry(client: TcpStream, to: SocketAddr, up: Rc<Lane>, down: Rc<Lane>) {
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

/// Starts a relay to `to`, which is this program again.
///
/// # Errors
/// It does not start.
pub async fn start(to: SocketAddr, link: Link) -> anyhow::Result<Running> {
    let program = env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args(["relay", "--to", &to.to_string()]);
    command.arg(format!(
        "--delay={}",
        humantime::format_duration(link.delay)
    ));
    if let Some(rate) = link.rate {
        command.arg(format!("--rate={}bit", rate.bits()));
    }
    let child = Child::start(ROLE, command)?;
    let find = |line: &str| line.strip_prefix("listening on ")?.parse().ok();
    let address = child
        .wait_line("where it listens", START_LIMIT, find)
        .await?;
    Ok(Running { child, address })
}
