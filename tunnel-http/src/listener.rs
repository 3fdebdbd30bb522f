//! Listening sockets: one for each shard, with an accept that never fails.

use std::{io, net::SocketAddr, time::Duration};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tunnel_ops::socket::set_user_timeout;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 4_096;

/// Pause after an accept error such as "too many open files": retrying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One address, bound as often as there are shards.
#[derive(Debug)]
pub struct Bound {
    /// The address; with the port that the kernel chose, if it was 0.
    pub address: SocketAddr,
    /// A socket for each shard.
    pub sockets: Vec<std::net::TcpListener>,
}

/// Binds an address, with one socket for each of `count` shards; port 0 takes a free port.
///
/// # Errors
/// When it cannot be bound, because another program listens there for example.
pub fn listen(address: SocketAddr, count: usize) -> io::Result<Bound> {
    // With SO_REUSEPORT a second server would silently take half of the connections. So the address is bound without it
    // first, which fails if it is in use; a port that the kernel chose is in use by no other program.
    if count == 1 || address.port() != 0 {
        let alone = bind(address, false)?;
        if count == 1 {
            let address = alone.local_addr()?;
            return Ok(Bound {
                address,
                sockets: vec![alone],
            });
        }
    }
    let mut sockets = vec![bind(address, true)?];
    let address = sockets[0].local_addr()?;
    while sockets.len() < count {
        sockets.push(bind(address, true)?);
    }
    Ok(Bound { address, sockets })
}

fn bind(address: SocketAddr, is_shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts the next connection. Never fails: errors of one connection, or too many open files, are retried.
pub async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection, trying again");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

/// Sets the options of an accepted connection. `idle` bounds how long a peer may read nothing of its response: the kernel
/// counts the time in which sent bytes stay unacknowledged or the peer's window is closed.
///
/// # Errors
/// When the kernel refuses one.
pub fn set_options(socket: &TcpStream, idle: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    set_user_timeout(socket, Some(idle))?;
    SockRef::from(socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(idle))
}
