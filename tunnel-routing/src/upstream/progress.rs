//! The progress of a request, shared by its sender and by those that wait for the response.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use prometheus::IntCounter;
use tunnel_proto::problem::Problem;

/// The progress of a request, written by its sender.
#[derive(Debug)]
pub struct Progress {
    /// Counts the bytes of all exchanges; `None` for a request of the client itself.
    all_bytes: Option<IntCounter>,
    bytes: AtomicU64,
    has_ended: AtomicBool,
    /// The upstream would take more content than has arrived.
    is_starved: AtomicBool,
    /// Informational responses.
    informational: AtomicU32,
    is_flooded: AtomicBool,
    /// Why the content failed. Rare, and so boxed.
    failure: OnceLock<Box<Problem>>,
}

/// What has mark of a request so far; two that are equal mean that nothing did in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProgressMark {
    bytes: u64,
    informational: u32,
}

impl Progress {
    /// Nothing sent yet. Sent bytes count in `all_bytes` as well.
    pub fn new(all_bytes: IntCounter) -> Self {
        Self {
            all_bytes: Some(all_bytes),
            ..Self::uncounted()
        }
    }

    /// Nothing sent yet, and bytes are not counted.
    pub(super) fn uncounted() -> Self {
        Self {
            all_bytes: None,
            bytes: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            is_starved: AtomicBool::new(false),
            informational: AtomicU32::new(0),
            is_flooded: AtomicBool::new(false),
            failure: OnceLock::new(),
        }
    }

    /// Bytes of content handed to the connection.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the whole request was handed to the connection, or no more of it will be.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Whether the upstream would take more content than has arrived.
    pub(super) fn is_starved(&self) -> bool {
        self.is_starved.load(Ordering::Relaxed) && !self.has_ended()
    }

    pub(super) fn on_content(&self, is_there: bool) {
        self.is_starved.store(!is_there, Ordering::Relaxed);
    }

    /// Whether an informational response has come.
    pub(super) fn has_informational(&self) -> bool {
        self.informational.load(Ordering::Relaxed) > 0
    }

    /// What has mark so far.
    pub(super) fn mark(&self) -> ProgressMark {
        ProgressMark {
            bytes: self.bytes(),
            informational: self.informational.load(Ordering::Relaxed),
        }
    }

    /// Whether more informational responses came than may be forwarded.
    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded.load(Ordering::Relaxed)
    }

    /// Why the content failed, if it did; that is never the fault of the upstream.
    pub(super) fn failure(&self) -> Option<&Problem> {
        self.failure.get().map(|problem| &**problem)
    }

    /// Records why the content failed. The first failure counts.
    pub(super) fn on_failed(&self, problem: Problem) {
        let _ = self.failure.set(Box::new(problem));
    }

    pub(super) fn on_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(all_bytes) = &self.all_bytes {
            all_bytes.inc_by(bytes as u64);
        }
    }

    /// The request is sent once more, from its beginning.
    pub(super) fn on_rewind(&self) {
        self.has_ended.store(false, Ordering::Relaxed);
    }

    pub(super) fn on_end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn on_informational(&self, was_taken: bool) {
        self.informational.fetch_add(1, Ordering::Relaxed);
        if !was_taken {
            self.is_flooded.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
impl Progress {
    /// A progress with a counter of its own.
    pub(crate) fn of_test() -> std::sync::Arc<Self> {
        let bytes = IntCounter::new("bytes", "bytes");
        std::sync::Arc::new(Self::new(bytes.unwrap()))
    }
}
