//! What the small servers of this program have in common: a thread, a line that says where they
//! listen, and connections until the process ends. What they serve is theirs.

use std::{
    future::Future,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::{Builder, LocalOptions},
    task::JoinSet,
    time::sleep,
};

/// Accepting goes on after a failure, such as too many open files, but not in a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Any free port of the loopback.
pub const FREE_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// As many waiting connections as the system allows.
const BACKLOG: u32 = 65_535;

/// Serves each connection by a task on this thread until the process ends. Says where it listens
/// in one line on standard output.
///
/// # Errors
/// It cannot listen there.
pub fn run<F: Future<Output = ()> + 'static>(
    address: SocketAddr,
    connection: impl Fn(TcpStream) -> F,
) -> anyhow::Result<()> {
    on_this_thread(async {
        let listener = listen(address).with_context(|| format!("cannot listen on {address}"))?;
        announce(listener.local_addr()?)?;
        each(listener, connection).await;
        Ok(())
    })
}

/// Says in one line on standard output where a server listens.
///
/// # Errors
/// It cannot be written.
pub fn announce(address: SocketAddr) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "listening on http://{address}")
        .and_then(|()| out.flush())
        .context("cannot write where it listens")
}

/// Runs this alone, with tasks that stay on the thread.
///
/// # Errors
/// There is no runtime for it, or its own.
pub fn on_this_thread<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .context("cannot start a runtime")?;
    runtime.block_on(work)
}

/// Listens with room for thousands that connect at once.
///
/// # Errors
/// The address is taken or not ours.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts for ever, on a local runtime, and runs a task for each connection.
pub async fn each<F: Future<Output = ()> + 'static>(
    listener: TcpListener,
    connection: impl Fn(TcpStream) -> F,
) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // It fails only on a socket that is already dead, which the first write tells.
                drop(stream.set_nodelay(true));
                connections.spawn_local(connection(stream));
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}
