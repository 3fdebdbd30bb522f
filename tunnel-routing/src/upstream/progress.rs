//! What becomes known of an exchange's request while it is sent, shared by those who send it and
//! those who wait for the response.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use prometheus::IntCounter;
use tunnel_proto::problem::Problem;

/// How far a request has come. Written by the one who sends it.
#[derive(Debug)]
pub struct Progress {
    /// Those of all exchanges; none when they are not counted.
    all_bytes: Option<IntCounter>,
    bytes: AtomicU64,
    has_ended: AtomicBool,
    /// The platform client's content was asked for, and there was none.
    is_starved: AtomicBool,
    /// Informational responses.
    heard: AtomicU32,
    is_flooded: AtomicBool,
    /// Why the content was ended before it was whole. Rare, and so boxed.
    failure: OnceLock<Box<Problem>>,
}

/// What has moved of a request so far; two that are equal mean that nothing did in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    bytes: u64,
    heard: u32,
}

impl Progress {
    /// Nothing is sent yet. What will be counts in `all_bytes` as well.
    pub fn new(all_bytes: IntCounter) -> Self {
        Self {
            all_bytes: Some(all_bytes),
            ..Self::uncounted()
        }
    }

    /// The same for what is no exchange.
    pub(super) fn uncounted() -> Self {
        Self {
            all_bytes: None,
            bytes: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            is_starved: AtomicBool::new(false),
            heard: AtomicU32::new(0),
            is_flooded: AtomicBool::new(false),
            failure: OnceLock::new(),
        }
    }

    /// Bytes of content that were handed to the upstream's connection.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether all of the request was handed to the upstream's connection, or no more of it will be.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Whether the upstream would take more of the content than the platform client has sent.
    pub(super) fn is_starved(&self) -> bool {
        self.is_starved.load(Ordering::Relaxed) && !self.has_ended()
    }

    pub(super) fn on_content(&self, is_there: bool) {
        self.is_starved.store(!is_there, Ordering::Relaxed);
    }

    /// Whether an informational response came.
    pub(super) fn was_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed) > 0
    }

    /// What has moved so far.
    pub(super) fn moved(&self) -> Moved {
        Moved {
            bytes: self.bytes(),
            heard: self.heard.load(Ordering::Relaxed),
        }
    }

    /// Whether more informational responses came than are sent on.
    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded.load(Ordering::Relaxed)
    }

    /// Why the content was ended before it was whole, if it was: that is never the upstream's fault,
    /// whatever it does then.
    pub(super) fn failure(&self) -> Option<&Problem> {
        self.failure.get().map(|problem| &**problem)
    }

    /// The first counts.
    pub(super) fn on_failed(&self, problem: Problem) {
        let _ = self.failure.set(Box::new(problem));
    }

    pub(super) fn on_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(all_bytes) = &self.all_bytes {
            all_bytes.inc_by(bytes as u64);
        }
    }

    pub(super) fn on_end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn on_informational(&self, was_taken: bool) {
        self.heard.fetch_add(1, Ordering::Relaxed);
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
