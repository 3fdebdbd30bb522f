//! HTTP/2 connections to one upstream.
//!
//! ```text
//!   exchange ─▶ lease ─▶ shared connection ── left, worn out ──▶ ends with its last exchange
//!            ╲
//!             ▶ lease ─▶ exclusive connection: one exchange at a time
//! ```
//!
//! In: exchanges. Out: a [`Lease`] of a connection for each. Exchanges share one connection until the upstream allows no more
//! streams on it; then another is made, and closed when it is unused. One that the upstream might end for what it brings
//! gets a connection to itself. The driver of a connection ends with it.

mod connection;
mod exchange;
mod piece;
mod places;

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use tunnel_proto::problem::{Hop, Problem, Reason};

use self::connection::Http2Connection;
pub(super) use self::connection::{Lease, Sharing};
pub(super) use self::exchange::{Http2Content, Http2Exchange, Http2Failure};
use super::socket::Socket;

/// Most connections for one exchange at a time. Further exchanges that need one wait.
const EXCLUSIVE: usize = 32;
/// Most connections that are worn out and whose reset streams still keep their places, in which an upstream may still work on
/// them. As long as there are so many no other is dialled.
const WORN_OUT: usize = 8;

/// The connections of one upstream.
pub(super) struct Http2 {
    connections: Mutex<Connections>,
    exclusive: Arc<Semaphore>,
}

#[derive(Default)]
struct Connections {
    shared: Vec<Arc<Http2Connection>>,
    exclusive: Vec<Arc<Http2Connection>>,
    /// When the resets of connections that were left are over.
    worn_out: Vec<Instant>,
    /// Set by [`Http2::close`].
    is_closed: bool,
}

impl Connections {
    fn of(&mut self, sharing: Sharing) -> &mut Vec<Arc<Http2Connection>> {
        match sharing {
            Sharing::Shared => &mut self.shared,
            Sharing::Exclusive => &mut self.exclusive,
        }
    }

    /// All connections.
    fn all(&mut self) -> [&mut Vec<Arc<Http2Connection>>; 2] {
        [&mut self.shared, &mut self.exclusive]
    }
}

impl Default for Http2 {
    fn default() -> Self {
        Self {
            connections: Mutex::default(),
            exclusive: Arc::new(Semaphore::new(EXCLUSIVE)),
        }
    }
}

impl Http2 {
    /// A shared connection with room for one more exchange.
    pub(super) fn take(&self) -> Option<Lease> {
        let mut connections = self.connections.lock();
        connections
            .shared
            .retain(|connection| !connection.is_left());
        (connections.shared.iter()).find_map(Http2Connection::lease)
    }

    /// The right to an exclusive connection. Waits while as many as there may be are in use.
    pub(super) async fn exclusive_permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.exclusive).acquire_owned().await.ok()
    }

    /// An unused exclusive connection.
    pub(super) fn take_exclusive(&self) -> Option<Lease> {
        let mut connections = self.connections.lock();
        let exclusive = &mut connections.exclusive;
        exclusive.retain(|connection| !connection.is_left() && !connection.is_worn_out());
        let mut unused = exclusive.iter().filter(|connection| connection.is_unused());
        unused.find_map(Http2Connection::lease)
    }

    /// Starts HTTP/2 on a socket and keeps the connection. `peer` is the address of the upstream's name if it has one;
    /// `name` is for the log.
    pub(super) async fn add(
        &self,
        socket: Socket,
        peer: Option<IpAddr>,
        sharing: Sharing,
        name: String,
    ) -> Result<Lease, Problem> {
        let connection = Http2Connection::start(socket, peer, name).await;
        let connection = Arc::new(connection.map_err(|error| {
            let detail = format!("the upstream does not speak HTTP/2: {error}");
            Problem::new(Hop::Client, Reason::ResponseInvalid, detail)
        })?);
        let lease = connection.leased();
        let mut connections = self.connections.lock();
        if !connections.is_closed {
            connections.of(sharing).push(connection);
        }
        Ok(lease)
    }

    /// No longer shares connections that are worn out. Waits while there are too many of them, for at most
    /// the time in which a reset stream keeps its place, since a dial follows.
    pub(super) async fn leave_worn_out(&self) {
        while let Some(until) = self.worn_out_until() {
            sleep_until(until).await;
        }
    }

    /// Leaves connections that are worn out; until when there are too many of them.
    fn worn_out_until(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut connections = self.connections.lock();
        let Connections {
            shared, worn_out, ..
        } = &mut *connections;
        shared.retain(|connection| {
            let is_worn_out = connection.is_worn_out();
            if is_worn_out {
                worn_out.extend(connection.resets_over());
            }
            !is_worn_out
        });
        worn_out.retain(|until| *until > now);
        (worn_out.len() >= WORN_OUT)
            .then(|| worn_out.iter().min().copied())
            .flatten()
    }

    /// No longer gives out the connection of this lease, which was lost.
    pub(super) fn on_lost(&self, lost: &Lease) {
        self.remove(lost.connection());
    }

    fn remove(&self, connection: &Arc<Http2Connection>) {
        for connections in self.connections.lock().all() {
            connections.retain(|other| !Arc::ptr_eq(other, connection));
        }
    }

    /// Whether there is no connection.
    pub(super) fn is_empty(&self) -> bool {
        let mut connections = self.connections.lock();
        connections.all().iter().all(|some| some.is_empty())
    }

    /// No longer gives out connections to other addresses than these. Open exchanges go on.
    pub(super) fn retain_addresses(&self, addresses: &[IpAddr]) {
        for connections in self.connections.lock().all() {
            connections.retain(|connection| {
                connection
                    .peer()
                    .is_none_or(|peer| addresses.contains(&peer))
            });
        }
    }

    /// No longer gives out any connection. Unused ones are closed, the others end with their last exchange.
    pub(super) fn close(&self) {
        let mut connections = self.connections.lock();
        let all = std::mem::take(&mut *connections);
        connections.is_closed = true;
        drop(connections);
        drop(all);
    }

    /// Closes unused connections, all but one of each kind.
    pub(super) fn sweep(&self) {
        for connections in self.connections.lock().all() {
            let mut has_spare = false;
            connections.retain(|connection| {
                !connection.is_left()
                    && (!connection.is_unused() || !std::mem::replace(&mut has_spare, true))
            });
        }
    }
}

#[cfg(test)]
mod tests;
