//! Listening sockets: some for each shard, with an accept that never fails.

use std::{io, net::SocketAddr, time::Duration};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};
use tunnel_ops::{inherited::Inherited, socket::set_user_timeout};

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 4_096;

/// Pause after an accept error such as "too many open files": retrying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One address, with what each shard accepts from.
#[derive(Debug)]
pub struct Bound {
    /// The address; with the port that the kernel chose, if it was 0.
    pub address: SocketAddr,
    /// Sockets for each shard, at least one.
    pub shards: Vec<Vec<std::net::TcpListener>>,
    /// All sockets once more, to hand them to another process. Connections are refused only when these are closed as well.
    pub kept: Vec<std::net::TcpListener>,
}

/// The sockets of the listener with this name at an address, for each of `count` shards: those that are inherited, else
/// new ones; port 0 takes a free port.
///
/// # Errors
/// When it cannot be bound, because another program listens there for example.
pub fn listen(
    name: &str,
    address: SocketAddr,
    count: usize,
    inherited: &mut Inherited,
) -> io::Result<Bound> {
    let taken = inherited.take(name, address);
    let sockets = match taken.is_empty() {
        true => bind_all(address, count)?,
        false => taken,
    };
    let kept: io::Result<_> = sockets.iter().map(|socket| socket.try_clone()).collect();
    Ok(Bound {
        address: sockets[0].local_addr()?,
        shards: deal(sockets, count)?,
        kept: kept?,
    })
}

/// Deals sockets out to `count` shards. Of fewer than that, several shards have the same one; of more, each is accepted from
/// by one shard, since the kernel gives each socket its part of the connections.
fn deal(
    sockets: Vec<std::net::TcpListener>,
    count: usize,
) -> io::Result<Vec<Vec<std::net::TcpListener>>> {
    let mut shards: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for shard in sockets.len()..count {
        shards[shard].push(sockets[shard % sockets.len()].try_clone()?);
    }
    for (number, socket) in sockets.into_iter().enumerate() {
        shards[number % count].push(socket);
    }
    Ok(shards)
}

/// Binds an address with `count` sockets.
fn bind_all(address: SocketAddr, count: usize) -> io::Result<Vec<std::net::TcpListener>> {
    // With SO_REUSEPORT a second server would silently take half of the connections. So the address is bound without it
    // first, which fails if it is in use; a port that the kernel chose is in use by no other program.
    if count == 1 || address.port() != 0 {
        let alone = bind(address, false)?;
        if count == 1 {
            return Ok(vec![alone]);
        }
    }
    let mut sockets = vec![bind(address, true)?];
    let address = sockets[0].local_addr()?;
    while sockets.len() < count {
        sockets.push(bind(address, true)?);
    }
    Ok(sockets)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shards_of(inherited: usize, count: usize) -> Vec<usize> {
        let sockets = bind_all("127.0.0.1:0".parse().unwrap(), inherited).unwrap();
        let shards = deal(sockets, count).unwrap();
        shards.iter().map(Vec::len).collect()
    }

    #[test]
    fn each_shard_has_a_socket_and_each_socket_a_shard() {
        assert_eq!(shards_of(1, 3), [1, 1, 1]);
        assert_eq!(shards_of(2, 2), [1, 1]);
        assert_eq!(shards_of(5, 2), [3, 2]);
    }
}
