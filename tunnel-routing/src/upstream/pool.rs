//! HTTP/1.1 connections at rest between two exchanges.
//!
//! Nobody polls them there. The one that rested the shortest is taken first, so that a pool which
//! is larger than it needs to be shrinks; each is looked at when it is taken, since an upstream may
//! have closed it meanwhile. One to an address that the upstream's name has lost is not kept.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Connection;

/// How long a connection may rest, unless the upstream announces a shorter time in `Keep-Alive`. Most
/// upstreams wait longer; where one closes before, the look at the connection when it is taken and the
/// one safe retry do the rest.
pub(super) const REST: Duration = Duration::from_secs(30);

/// Sweeps in that time. Age is counted in them: a look at the clock for each exchange is not free.
pub(super) const SWEEPS: u32 = 2;

/// The connections of one upstream.
pub(super) struct Pool {
    resting: Mutex<AtRest>,
    /// Most that are kept.
    limit: usize,
}

#[derive(Default)]
struct AtRest {
    /// In the order in which they came to rest, each with the number of sweeps before.
    connections: Vec<(Box<Connection>, u32)>,
    sweeps: u32,
    /// Nothing is kept any more.
    is_closed: bool,
    /// The addresses of the upstream's name; none when it has no name, or was not asked for.
    addresses: Option<Arc<[IpAddr]>>,
}

impl Pool {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            resting: Mutex::default(),
            limit,
        }
    }

    /// A connection that can be used at once.
    pub(super) fn take(&self) -> Option<Box<Connection>> {
        loop {
            let (mut connection, _) = self.resting.lock().connections.pop()?;
            if connection.is_alive() {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for the next exchange, if it is at rest and there is room.
    pub(super) fn put(&self, mut connection: Box<Connection>) {
        if !connection.is_at_rest() {
            return;
        }
        connection.rest();
        let mut resting = self.resting.lock();
        let has_room = !resting.is_closed && resting.connections.len() < self.limit;
        if has_room && resting.is_current(&connection) {
            let sweeps = resting.sweeps;
            resting.connections.push((connection, sweeps));
        }
    }

    /// Closes all, and keeps none from here on.
    pub(super) fn close(&self) {
        let mut resting = self.resting.lock();
        resting.is_closed = true;
        let all = std::mem::take(&mut resting.connections);
        drop(resting);
        drop(all);
    }

    /// Whether none is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.resting.lock().connections.is_empty()
    }

    /// Keeps connections to these addresses only from here on.
    pub(super) fn keep_to(&self, addresses: &Arc<[IpAddr]>) {
        let mut resting = self.resting.lock();
        let known = resting.addresses.as_ref();
        if known.is_some_and(|known| Arc::ptr_eq(known, addresses)) {
            return;
        }
        resting.addresses = Some(Arc::clone(addresses));
        let all = std::mem::take(&mut resting.connections);
        let (current, lost) = (all.into_iter())
            .partition::<Vec<_>, _>(|(connection, _)| resting.is_current(connection));
        resting.connections = current;
        drop(resting);
        drop(lost);
    }

    /// Closes those that have rested for too long. To be called [`SWEEPS`] times in [`REST`].
    pub(super) fn sweep(&self) {
        let mut resting = self.resting.lock();
        resting.sweeps = resting.sweeps.wrapping_add(1);
        let now = resting.sweeps;
        let is_old = |since: u32| now.wrapping_sub(since) > SWEEPS;
        let young = resting
            .connections
            .partition_point(|(_, since)| is_old(*since));
        let old: Vec<_> = resting.connections.drain(..young).collect();
        drop(resting);
        // Closing them is a system call each, for which nobody should have to wait.
        drop(old);
    }
}

impl AtRest {
    /// Whether the upstream's name still leads to where a connection does.
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

    use super::super::socket::Socket;
    use super::*;

    /// A connection whose upstream has just answered with this field.
    async fn answered(field: &str) -> (Box<Connection>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{field}\r\n\r\n");
        theirs.write_all(head.as_bytes()).await.unwrap();
        let memory = tunnel_proto::memory::MemoryAccount::new(usize::MAX);
        let mut connection = Box::new(Connection::new(Socket::Unix(ours), None, &memory));
        poll_fn(|cx| connection.poll_head(cx, |_, _| {}))
            .await
            .unwrap();
        (connection, theirs)
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
