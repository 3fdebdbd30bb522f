//! What the threads of a fleet count, and the one who tells of it reads.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    fleet::status::{Status, clock},
    measure::errors::{Errors, Kind},
};

/// Shared by all simulated clients. Exchanges are counted without a lock; all else is rare.
#[derive(Debug, Default)]
pub(super) struct Counters {
    exchanges: AtomicU64,
    rest: Mutex<Rest>,
}

#[derive(Debug, Default)]
struct Rest {
    status: Status,
    failures: Errors,
}

/// A session that the server has welcomed; counts itself out when dropped.
#[derive(Debug)]
pub(super) struct Up<'a>(&'a Counters);

impl Counters {
    /// A TLS handshake is done.
    pub(super) fn on_handshake(&self) {
        self.rest.lock().status.handshakes += 1;
    }

    /// A dial came to nothing.
    pub(super) fn on_failure(&self, kind: Kind) {
        self.rest.lock().failures.add(kind, 1);
    }

    /// A session was welcomed, this long after its client was without one.
    pub(super) fn on_connected(&self, took: Duration) -> Up<'_> {
        let mut rest = self.rest.lock();
        rest.status.up += 1;
        rest.status.connected += 1;
        rest.status.connected_at = clock();
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        rest.status.took_us.push(took);
        Up(self)
    }

    /// A client was told to stay away.
    pub(super) fn on_stopped(&self) {
        self.rest.lock().status.stopped += 1;
    }

    /// An exchange was answered.
    pub(super) fn on_exchange(&self) {
        self.exchanges.fetch_add(1, Relaxed);
    }

    /// How it stands; each call has the next number.
    pub(super) fn tell(&self) -> Status {
        let mut rest = self.rest.lock();
        let mut told = rest.status.clone();
        rest.status.seq += 1;
        rest.status.took_us.clear();
        told.failures = rest.failures.by_name();
        told.at = clock();
        told.exchanges = self.exchanges.load(Relaxed);
        told
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        let mut rest = self.0.rest.lock();
        rest.status.up -= 1;
        rest.status.lost += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_counts_while_it_lives() {
        let counters = Counters::default();
        let first = counters.on_connected(Duration::from_millis(2));
        let second = counters.on_connected(Duration::from_millis(3));
        drop(first);
        counters.on_failure(Kind::Status(503));
        let told = counters.tell();
        assert_eq!((told.seq, told.up, told.connected, told.lost), (0, 1, 2, 1));
        assert_eq!(told.took_us, [2000, 3000]);
        assert_eq!(told.failures["status_503"], 1);
        assert!(told.connected_at > 0.0 && told.at >= told.connected_at);
        drop(second);
        // What was told is not told again.
        let told = counters.tell();
        assert_eq!((told.seq, told.up, told.lost), (1, 0, 2));
        assert!(told.took_us.is_empty());
    }
}
