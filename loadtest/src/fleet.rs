//! The fleet: many tunnel clients in one process, each with a runtime of its own.
//!
//! ```text
//!   control (parent)                 fleet (child: `loadtest fleet`)
//!   FleetWatch::start ── flags ─────────▶ threads ── tunnels ══ TCP, TLS, WebSocket ══▶ tunnel server
//!   FleetWatch::next  ◀── Status lines ── counters
//! ```
//!
//! A simulated client does all that a server sees of a real one: it dials with a token, holds a
//! session with its pings, answers each exchange, and dials again when it lost its server. It has
//! no routes and no upstreams: every answer is two bytes. It is a child process so that
//! what it costs is never mixed with what the scenario's own load costs.

pub mod status;
mod tunnel;
pub mod watch;

use std::{
    cell::Cell,
    fs,
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use rustls::client::Resumption;
use rustls_pki_types::ServerName;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    client::Dialer,
    fleet::{status::Counters, tunnel::FleetThread},
    serve::on_this_thread,
    target::{self, Trust},
};

/// The name that is asked for. Any certificate is accepted.
const HOST_NAME: &str = "localhost";

/// Time between two status lines.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

/// Flags of `loadtest fleet`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Tunnel listeners, with commas between, to which the dials go in turn; any certificate is accepted
    #[arg(long, value_name = "IP:PORT", value_delimiter = ',', required = true)]
    pub server: Vec<SocketAddr>,
    /// File with a token in each line; each makes one simulated client
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "handshakes",
        conflicts_with = "handshakes"
    )]
    pub tokens: Option<PathBuf>,
    /// Make so many TLS connections instead, and send nothing through them
    #[arg(long, value_name = "N")]
    pub handshakes: Option<usize>,
    /// Clients that make their first dial at the same time; later dials are not limited, as clients know nothing of
    /// each other
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub concurrency: usize,
    /// Threads that the clients are spread over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// Longest time for each step of a dial
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// How long a session has to last for the waits between dials to start over
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    pub stable: Duration,
}

/// Runs the clients until the process is ended, or its output is closed.
///
/// # Errors
/// The tokens cannot be read, or a thread has ended.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let clients = clients(args)?;
    let threads = usize::from(args.threads);
    let counters = Arc::new(Counters::default());
    let dialers = dialers(&args.server)?;
    // The line before the first dial says when that was.
    write_status(&counters)?;
    let mut running = Vec::new();
    for number in 0..threads {
        let share: Vec<_> = (clients.iter().skip(number).step_by(threads).cloned()).collect();
        let fleet = FleetThread {
            dialers: dialers.clone(),
            dialled: Cell::new(number),
            limit: args.timeout,
            counters: counters.clone(),
            stable: args.stable,
            first: Semaphore::new(args.concurrency.div_ceil(threads).max(1)),
        };
        let thread = thread::Builder::new().name("fleet".to_owned());
        let thread = thread.spawn(move || work(fleet, share));
        running.push(thread.context("cannot start a thread")?);
    }
    loop {
        thread::sleep(STATUS_INTERVAL);
        if let Some(ended) = running.iter().position(thread::JoinHandle::is_finished) {
            match running.swap_remove(ended).join() {
                Ok(result) => result?,
                Err(_) => bail!("a thread of the fleet panicked"),
            }
        }
        // A closed output ends this process: its parent is gone.
        write_status(&counters)?;
    }
}

fn write_status(counters: &Counters) -> anyhow::Result<()> {
    let line = serde_json::to_string(&counters.next())?;
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("cannot write how the fleet stands")
}

/// The token of each client; none for those that only make a TLS connection.
fn clients(args: &Args) -> anyhow::Result<Vec<Option<Box<str>>>> {
    let Some(file) = &args.tokens else {
        return Ok(vec![None; args.handshakes.unwrap_or(0)]);
    };
    let text = fs::read_to_string(file).with_context(|| format!("--tokens {}", file.display()))?;
    let tokens = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let clients: Vec<_> = tokens.map(|token| Some(token.into())).collect();
    if clients.is_empty() {
        bail!("--tokens {}: holds no token", file.display());
    }
    Ok(clients)
}

/// One for each server.
fn dialers(servers: &[SocketAddr]) -> anyhow::Result<Vec<Dialer>> {
    let mut config = (*target::tls_config(Trust::Anybody, false)?).clone();
    // These are many clients that meet the server for the first time, not one that comes back.
    config.resumption = Resumption::disabled();
    let name = ServerName::try_from(HOST_NAME)?;
    let tls = (Arc::new(config), name);
    let dialer = |server: &SocketAddr| Dialer::new(vec![*server], Some(tls.clone()));
    Ok(servers.iter().map(dialer).collect())
}

/// One thread's clients, on a runtime of their own.
fn work(fleet: FleetThread, clients: Vec<Option<Box<str>>>) -> anyhow::Result<()> {
    on_this_thread(async {
        let fleet = Rc::new(fleet);
        let mut tunnels = JoinSet::new();
        for token in clients {
            tunnels.spawn_local(tunnel::run(fleet.clone(), token));
        }
        while let Some(ended) = tunnels.join_next().await {
            ensure!(ended.is_ok(), "a simulated client panicked");
        }
        // All clients were told to stay away; the status lines report that, too.
        std::future::pending().await
    })
}
