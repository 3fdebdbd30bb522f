//! What becomes known of an exchange's request while it is sent, shared by those who send it and
//! those who wait for the response.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use prometheus::IntCounter;

/// How far a request has come. Written by the one who sends it.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Those of all exchanges.
    all_bytes: IntCounter,
    bytes: AtomicU64,
    has_ended: AtomicBool,
    was_heard: AtomicBool,
    is_flooded: AtomicBool,
}

impl Progress {
    /// Nothing is sent yet. What will be counts in `all_bytes` as well.
    pub(crate) fn new(all_bytes: IntCounter) -> Self {
        Self {
            all_bytes,
            bytes: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            was_heard: AtomicBool::new(false),
            is_flooded: AtomicBool::new(false),
        }
    }

    /// Bytes of content that were handed to the upstream's connection.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether all of the request was handed to the upstream's connection, or no more of it will be.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Whether an informational response came.
    pub(super) fn was_heard(&self) -> bool {
        self.was_heard.load(Ordering::Relaxed)
    }

    /// Whether more informational responses came than are sent on.
    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded.load(Ordering::Relaxed)
    }

    pub(super) fn on_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.all_bytes.inc_by(bytes as u64);
    }

    pub(super) fn on_end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn on_informational(&self, was_taken: bool) {
        self.was_heard.store(true, Ordering::Relaxed);
        if !was_taken {
            self.is_flooded.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
impl Progress {
    /// One that counts for itself.
    pub(crate) fn of_test() -> std::sync::Arc<Self> {
        let bytes = IntCounter::new("bytes", "bytes");
        std::sync::Arc::new(Self::new(bytes.unwrap()))
    }
}
