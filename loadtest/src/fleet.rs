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

pub mod flags;
pub mod runtimes;
pub mod status;
mod tunnel;
pub mod watch;

use std::{
    fs,
    io::{self, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustls::client::Resumption;
use rustls_pki_types::ServerName;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    client::Dialer,
    fleet::{
        status::Counters,
        tunnel::{FleetThread, SimulatedClient},
    },
    serve::on_this_thread,
    target::tls::{self, Trust},
};

/// The name that is asked for. Any certificate is accepted.
const HOST_NAME: &str = "localhost";

/// Between two lines that tell how it stands.
const TELL: Duration = Duration::from_millis(100);

/// Flags of `loadtest fleet`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Tunnel listener to dial; any certificate is accepted
    #[arg(long, value_name = "IP:PORT")]
    pub server: SocketAddr,
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
    /// First dials at once; later ones are not bounded, as clients know nothing of each other
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
    let mut shares: Vec<Vec<SimulatedClient>> = (0..args.threads).map(|_| Vec::new()).collect();
    let threads = shares.len();
    for (index, worker) in all(args)?.into_iter().enumerate() {
        shares[index % threads].push(worker);
    }
    let counters = Arc::new(Counters::default());
    let dialer = dialer(args.server)?;
    // The line before the first dial says when that was.
    write_status(&counters)?;
    let mut running = Vec::new();
    for share in shares {
        let (dialer, counters) = (dialer.clone(), counters.clone());
        let (limit, stable) = (args.timeout, args.stable);
        let concurrency = args.concurrency.div_ceil(threads).max(1);
        let workers = move || FleetThread {
            dialer,
            limit,
            counters,
            stable,
            first: Semaphore::new(concurrency),
        };
        let thread = thread::Builder::new().name("fleet".to_owned());
        let thread = thread.spawn(move || work(workers(), share));
        running.push(thread.context("cannot start a thread")?);
    }
    loop {
        thread::sleep(TELL);
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

fn all(args: &Args) -> anyhow::Result<Vec<SimulatedClient>> {
    match (&args.tokens, args.handshakes) {
        (Some(file), _) => read_tokens(file),
        (None, Some(count)) => Ok((0..count).map(|_| SimulatedClient::Handshake).collect()),
        (None, None) => bail!("give --tokens or --handshakes"),
    }
}

fn read_tokens(file: &Path) -> anyhow::Result<Vec<SimulatedClient>> {
    let text = fs::read_to_string(file).with_context(|| format!("--tokens {}", file.display()))?;
    let tokens = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let all: Vec<_> = tokens
        .map(|token| SimulatedClient::Client(token.into()))
        .collect();
    if all.is_empty() {
        bail!("--tokens {}: holds no token", file.display());
    }
    Ok(all)
}

fn dialer(server: SocketAddr) -> anyhow::Result<Dialer> {
    let mut config = (*tls::client(Trust::Anybody, false)?).clone();
    // These are many clients that meet the server for the first time, not one that comes back.
    config.resumption = Resumption::disabled();
    let name = ServerName::try_from(HOST_NAME)?;
    Ok(Dialer::new(vec![server], Some((Arc::new(config), name))))
}

/// One thread's clients, on a runtime of their own.
fn work(workers: FleetThread, all: Vec<SimulatedClient>) -> anyhow::Result<()> {
    on_this_thread(async {
        let workers = Rc::new(workers);
        let mut tunnels = JoinSet::new();
        for worker in all {
            tunnels.spawn_local(tunnel::run(workers.clone(), worker));
        }
        while let Some(ended) = tunnels.join_next().await {
            if ended.is_err() {
                bail!("a simulated client panicked");
            }
        }
        // All of them were told to stay away; that is told like everything else.
        std::future::pending().await
    })
}
