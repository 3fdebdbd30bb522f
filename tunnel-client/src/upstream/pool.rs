//! HTTP/1.1 connections at rest between two exchanges.
//!
//! Nobody polls them there. The one that rested the shortest is taken first, so that a pool which
//! is larger than it needs to be shrinks; each is looked at when it is taken, since an upstream may
//! have closed it meanwhile.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Connection;

/// How long a connection may rest. Many upstreams wait longer; where one does not (Node.js waits for
/// 5 s), the look at the connection when it is taken and the one safe retry do the rest.
pub(super) const REST: Duration = Duration::from_secs(30);

/// The connections of one upstream.
pub(super) struct Pool {
    /// In the order in which they came to rest.
    resting: Mutex<Vec<Resting>>,
    /// Most that are kept.
    limit: usize,
}

struct Resting {
    connection: Box<Connection>,
    since: Instant,
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
            let mut resting = self.resting.lock().pop()?;
            if resting.since.elapsed() < REST && resting.connection.is_alive() {
                return Some(resting.connection);
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
        if resting.len() < self.limit {
            resting.push(Resting {
                connection,
                since: Instant::now(),
            });
        }
    }

    /// Closes those that have rested for too long.
    pub(super) fn sweep(&self) {
        let mut resting = self.resting.lock();
        let young = resting.partition_point(|resting| resting.since.elapsed() >= REST);
        let old: Vec<_> = resting.drain(..young).collect();
        drop(resting);
        // Closing them is a system call each, for which nobody should have to wait.
        drop(old);
    }
}
