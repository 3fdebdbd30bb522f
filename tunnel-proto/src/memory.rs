//! Accounts of bytes that a program has received and not yet processed.
//!
//! ```text
//!   session ─┐
//!   session ─┴─▶ account of a runtime ─┐
//!   session ───▶ account of a runtime ─┴─▶ account of the node
//! ```
//!
//! In: the bytes that each session holds, reported in steps of `STEP_BYTES`, and a limit for each account.
//! Out: whether receive windows may grow ([`MemoryAccount::is_scarce`]). Above its limit an account resets
//! single streams, the largest in the session that holds the most, until it is within the limit again. One
//! runtime never causes the reset of another's stream as long as the sum of the runtimes' limits is below
//! the node's.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicIsize, AtomicUsize, Ordering},
};

use parking_lot::Mutex;

/// Change that a session does not report yet, so that small exchanges touch no account.
pub(crate) const STEP_BYTES: usize = 32 * 1024;

/// Most streams reset at once: more than the bytes of one read can make necessary.
const SHED_AT_ONCE: usize = 64;

/// A count of held bytes, with a limit.
#[derive(Debug)]
pub struct MemoryAccount {
    /// Below zero for a moment when one thread releases bytes before another has counted them.
    held: AtomicIsize,
    limit: AtomicUsize,
    parent: Option<Arc<Self>>,
    parts: Mutex<Vec<Weak<dyn AccountPart>>>,
}

/// A part of an account: a session, or an account within it.
pub(crate) trait AccountPart: Send + Sync {
    /// Received bytes that it holds.
    fn held(&self) -> usize;

    /// Resets the stream that holds the most bytes; `false` if there is none to reset.
    fn shed(&self) -> bool;
}

impl MemoryAccount {
    /// An account of `limit` bytes without a parent.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self::with(limit, None))
    }

    /// An account of `limit` bytes whose bytes count for `parent` as well.
    #[must_use]
    pub fn within(parent: &Arc<Self>, limit: usize) -> Arc<Self> {
        let account = Arc::new(Self::with(limit, Some(parent.clone())));
        let part: Weak<Self> = Arc::downgrade(&account);
        parent.enter(part);
        account
    }

    fn with(limit: usize, parent: Option<Arc<Self>>) -> Self {
        Self {
            held: AtomicIsize::new(0),
            limit: AtomicUsize::new(limit),
            parent,
            parts: Mutex::default(),
        }
    }

    /// Changes the limit. A lower one takes effect when the next bytes are received.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The limit.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes held now.
    #[must_use]
    pub fn held(&self) -> usize {
        let held = self.held.load(Ordering::Relaxed);
        usize::try_from(held).unwrap_or(0)
    }

    /// Whether more than half of this account's limit, or of a parent's, is held. Receive windows then do
    /// not grow, and those that have grown shrink.
    #[must_use]
    pub fn is_scarce(&self) -> bool {
        self.held() > self.limit() / 2
            || self
                .parent
                .as_ref()
                .is_some_and(|parent| parent.is_scarce())
    }

    /// Counts bytes that are held.
    pub fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes.cast_signed(), Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.hold(bytes);
        }
    }

    /// Counts bytes that are no longer held.
    pub fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes.cast_signed(), Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.release(bytes);
        }
    }

    /// Resets streams until this account and its parents are within their limits, or none can be reset. To
    /// be called without a session's lock.
    pub(crate) fn keep_limit(&self) {
        for _ in 0..SHED_AT_ONCE {
            if !self.is_over() || !self.shed() {
                break;
            }
        }
        if let Some(parent) = &self.parent {
            parent.keep_limit();
        }
    }

    /// Makes a session, or another account, a part of this one, so that its streams can be reset.
    pub(crate) fn enter(&self, part: Weak<dyn AccountPart>) {
        let mut parts = self.parts.lock();
        // Only before the list would grow, so that the cost is amortised.
        if parts.len() == parts.capacity() {
            parts.retain(|part| part.strong_count() > 0);
        }
        parts.push(part);
    }

    fn is_over(&self) -> bool {
        self.held() > self.limit()
    }
}

impl AccountPart for MemoryAccount {
    fn held(&self) -> usize {
        self.held()
    }

    fn shed(&self) -> bool {
        let parts = self.parts.lock();
        // Upgraded first and used without the lock: dropping the last reference to a session may lock its
        // account's parts.
        let live: Vec<_> = parts.iter().filter_map(Weak::upgrade).collect();
        drop(parts);
        let largest = live.iter().max_by_key(|part| part.held());
        largest.is_some_and(|part| part.shed())
    }
}
