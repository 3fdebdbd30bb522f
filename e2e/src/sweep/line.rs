//! The line that hostile peers share.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// What all hostile peers of a cell send on: a line of their own, as long as it is slow.
#[derive(Default)]
pub struct Line {
    is_slow: AtomicBool,
    /// When what was sent has left.
    free: Mutex<Option<Instant>>,
    /// Notified when it is slow no longer.
    unlimited: Notify,
    sent: AtomicU64,
}

impl Line {
    /// Bytes in a second: 10 Mbit/s. Slow enough that peers, programs and upstreams together do not take all processors of
    /// a small machine: neighbours then wait for nothing but what hostile peers hold.
    const BYTES: u64 = 1_250_000;

    /// What each piece costs beside its bytes, so that there are at most 5,000 in a second.
    const PIECE: u64 = Self::BYTES / 5_000;

    /// Says whether the line is slow, or without limits.
    pub fn set_slow(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::Relaxed);
        *self.free.lock() = None;
        if !is_slow {
            self.unlimited.notify_waiters();
        }
    }

    /// Counts bytes that platform clients have sent.
    pub(super) fn count(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes that platform clients have sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until so many pieces with so many bytes may be sent.
    pub async fn take(&self, pieces: usize, bytes: usize) {
        let unlimited = self.unlimited.notified();
        if !self.is_slow.load(Ordering::Relaxed) {
            return;
        }
        let cost = bytes as u64 + pieces as u64 * Self::PIECE;
        let time = Duration::from_nanos(cost * 1_000_000_000 / Self::BYTES);
        let start = {
            let mut free = self.free.lock();
            let now = Instant::now();
            let start = free.map_or(now, |free| free.max(now));
            *free = Some(start + time);
            start
        };
        tokio::select! {
            () = sleep_until(start) => {}
            () = unlimited => {}
        }
    }
}
