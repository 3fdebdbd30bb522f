//! Idle HTTP/1.1 connections of one upstream.
//!
//! Idle connections are not polled. The one that was used last is taken first, so that a pool larger than needed
//! shrinks. Each is checked when it is taken, since the upstream may have closed it. A connection to an address that
//! the upstream's name no longer has is not kept.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::http1::Connection;

/// How long a connection may be idle, unless the upstream announces a shorter time in `Keep-Alive`. Most upstreams
/// wait longer; where one closes before, the check on taking and the one safe retry suffice.
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Sweeps in that time. Age is counted in sweeps, since reading the clock for each exchange costs time.
pub(super) const SWEEPS: u32 = 2;

/// The idle connections of one upstream.
pub(super) struct Pool {
    idle: Mutex<IdleConnections>,
    /// Most connections that are kept.
    limit: usize,
}

#[derive(Default)]
struct IdleConnections {
    /// In the order in which they became idle, each with the sweep count at that time.
    connections: Vec<(Box<Connection>, u32)>,
    sweeps: u32,
    /// Set by [`Pool::close`].
    is_closed: bool,
    /// The current addresses of the upstream's name; `None` if it has no name or was not looked up yet.
    addresses: Option<Arc<[IpAddr]>>,
}

impl Pool {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            idle: Mutex::default(),
            limit,
        }
    }

    /// Takes a connection that is alive.
    pub(super) fn take(&self) -> Option<Box<Connection>> {
        loop {
            let (mut connection, _) = self.idle.lock().connections.pop()?;
            if connection.is_alive() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection, if it is idle and there is room.
    pub(super) fn put(&self, mut connection: Box<Connection>) {
        if !connection.is_idle() {
            return;
        }
        connection.on_idle();
        let mut idle = self.idle.lock();
        let has_room = !idle.is_closed && idle.connections.len() < self.limit;
        if has_room && idle.is_current(&connection) {
            let sweeps = idle.sweeps;
            idle.connections.push((connection, sweeps));
        }
    }

    /// Closes all connections; later ones are not kept.
    pub(super) fn close(&self) {
        let mut idle = self.idle.lock();
        idle.is_closed = true;
        let all = std::mem::take(&mut idle.connections);
        drop(idle);
        drop(all);
    }

    /// Whether the pool is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.idle.lock().connections.is_empty()
    }

    /// From now on keeps only connections to these addresses.
    pub(super) fn retain_addresses(&self, addresses: &Arc<[IpAddr]>) {
        let mut idle = self.idle.lock();
        let known = idle.addresses.as_ref();
        if known.is_some_and(|known| Arc::ptr_eq(known, addresses)) {
            return;
        }
        idle.addresses = Some(Arc::clone(addresses));
        let all = std::mem::take(&mut idle.connections);
        let (current, lost) =
            (all.into_iter()).partition::<Vec<_>, _>(|(connection, _)| idle.is_current(connection));
        idle.connections = current;
        drop(idle);
        drop(lost);
    }

    /// Closes connections that were idle for too long. To be called [`SWEEPS`] times in [`IDLE_LIMIT`].
    pub(super) fn sweep(&self) {
        let mut idle = self.idle.lock();
        idle.sweeps = idle.sweeps.wrapping_add(1);
        let now = idle.sweeps;
        let is_old = |since: u32| now.wrapping_sub(since) > SWEEPS;
        let young = idle
            .connections
            .partition_point(|(_, since)| is_old(*since));
        let old: Vec<_> = idle.connections.drain(..young).collect();
        drop(idle);
        // Outside of the lock: closing is a system call each.
        drop(old);
    }
}

impl IdleConnections {
    /// Whether the upstream's name still has the address of a connection.
    fn is_current(&self, connection: &Connection) -> bool {
        match (&self.addresses, connection.peer()) {
            (Some(addresses), Some(peer)) => addresses.contains(&peer),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;
    use tokio::time::advance;

    use super::super::closing::UpstreamSocket;
    use super::super::socket::Socket;
    use super::*;

    /// A connection whose upstream has just answered with this field.
    async fn answered(field: &str) -> (Box<Connection>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{field}\r\n\r\n");
        theirs.write_all(head.as_bytes()).await.unwrap();
        let memory = tunnel_proto::memory::MemoryAccount::new(usize::MAX);
        let socket = UpstreamSocket::new(Socket::Unix(ours), &Arc::default());
        let mut connection = Box::new(Connection::new(socket, None, &memory));
        poll_fn(|cx| connection.poll_head(cx, |_, _| {}))
            .await
            .unwrap();
        (connection, theirs)
    }

    #[tokio::test]
    async fn connections_that_a_burst_needed_are_closed_after_it() {
        let pool = Pool::new(8);
        let mut upstreams = Vec::new();
        for _ in 0..6 {
            let (connection, theirs) = answered("x-other: 1").await;
            pool.put(connection);
            upstreams.push(theirs);
        }
        for sweep in 0..=SWEEPS {
            assert_eq!(pool.idle.lock().connections.len(), 6, "{sweep}");
            let connection = pool.take().unwrap();
            pool.put(connection);
            pool.sweep();
        }
        assert_eq!(pool.idle.lock().connections.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_not_used_near_the_end_of_what_the_upstream_announces() {
        let second = Duration::from_secs(1);
        for (field, used, unused) in [
            ("Keep-Alive: timeout=5", 3900, 4100),
            ("keep-alive: max=100, Timeout = 5", 3900, 4100),
            ("Keep-Alive: timeout=1", 400, 600),
        ] {
            let pool = Pool::new(8);
            let (connection, _theirs) = answered(field).await;
            pool.put(connection);
            advance(Duration::from_millis(used)).await;
            let connection = pool.take().expect(field);
            pool.put(connection);
            advance(Duration::from_millis(unused)).await;
            assert!(pool.take().is_none(), "{field}");
        }
        for field in ["Keep-Alive: max=5", "Keep-Alive: timeout=x", "x-other: 1"] {
            let pool = Pool::new(8);
            let (connection, _theirs) = answered(field).await;
            pool.put(connection);
            advance(20 * second).await;
            assert!(pool.take().is_some(), "{field}");
        }
    }
}
