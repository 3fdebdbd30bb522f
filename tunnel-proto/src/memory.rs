//! Accounts of bytes that a program has received and not yet processed.
//!
//! ```text
//!   session ─┐
//!   session ─┴─▶ account of a runtime ─┐
//!   session ───▶ account of a runtime ─┴─▶ account of the node
//! ```
//!
//! In: the bytes that each session holds, reported in steps of `STEP_BYTES`, the long heads of open requests, and a limit
//! for each account.
//! Out: whether receive windows may grow ([`MemoryAccount::is_scarce`]). Above its limit an account resets
//! single streams, the largest in the session that holds the most, until it is within the limit again, by a margin that
//! grows with the number of its parts: so the search among them is paid for by what may be received until the next. One
//! runtime never causes the reset of another's stream as long as the sum of the runtimes' limits is below
//! the node's.

use std::{
    collections::BinaryHeap,
    sync::{
        Arc, Weak,
        atomic::{AtomicIsize, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

/// Change that a session does not report yet, so that small exchanges touch no account.
pub(crate) const STEP_BYTES: usize = 32 * 1024;

/// Most streams reset at once: more than the bytes of one read can make necessary.
const SHED_AT_ONCE: usize = 64;

/// How far below its limit an account comes by resetting streams: so much for each of its parts, but no more than this
/// fraction of the limit. An account of 10,000 runtimes then walks its list once for some MiB received.
const MARGIN_BYTES: usize = 16 * 1024;
const MARGIN_FRACTION: usize = 64;

/// Heads of requests up to this length are not counted: the limits on exchanges bound them.
pub const UNCOUNTED_HEAD_BYTES: usize = 4 * 1024;

/// The heads of open requests hold as much of an account as they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the heads of open requests hold as much memory as they may")]
pub struct HeadsFull;

/// The count of the head of an open request, which ends when this is dropped.
#[derive(Debug)]
pub struct HeldHead {
    account: Arc<MemoryAccount>,
    bytes: usize,
}

impl Drop for HeldHead {
    fn drop(&mut self) {
        self.account.heads.fetch_sub(self.bytes, Ordering::Relaxed);
        self.account.release(self.bytes);
    }
}

/// A count of held bytes, with a limit.
#[derive(Debug)]
pub struct MemoryAccount {
    /// Below zero for a moment when one thread releases bytes before another has counted them.
    held: AtomicIsize,
    limit: AtomicUsize,
    /// The part of `held` that are heads of requests.
    heads: AtomicUsize,
    parent: Option<Arc<Self>>,
    parts: Mutex<Vec<Weak<dyn AccountPart>>>,
    /// The held bytes from which on streams are searched for again, after a search that found none. 0 otherwise.
    search_from: AtomicUsize,
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
            heads: AtomicUsize::new(0),
            parent,
            parts: Mutex::default(),
            search_from: AtomicUsize::new(0),
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

    /// Counts the head of an open request, unless it is short. No stream can be reset for it, so all heads may hold no
    /// more than `most`.
    ///
    /// # Errors
    /// When they would. Nothing is counted then.
    pub fn hold_head(
        self: &Arc<Self>,
        bytes: usize,
        most: usize,
    ) -> Result<Option<HeldHead>, HeadsFull> {
        if bytes <= UNCOUNTED_HEAD_BYTES {
            return Ok(None);
        }
        let add = |heads: usize| heads.checked_add(bytes).filter(|heads| *heads <= most);
        let added = self
            .heads
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map_err(|_| HeadsFull)?;
        self.hold(bytes);
        Ok(Some(HeldHead {
            account: self.clone(),
            bytes,
        }))
    }

    /// Bytes held by heads of open requests.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.heads.load(Ordering::Relaxed)
    }

    /// Resets streams until this account and its parents are within their limits, or none can be reset. To
    /// be called without a session's lock.
    pub(crate) fn keep_limit(&self) {
        if !self.is_over() {
            self.search_from.store(0, Ordering::Relaxed);
        } else if self.held() >= self.search_from.load(Ordering::Relaxed) {
            self.relieve();
        }
        if let Some(parent) = &self.parent {
            parent.keep_limit();
        }
    }

    /// Resets streams, each time one of the part that holds the most.
    fn relieve(&self) {
        let parts = self.live_parts();
        let limit = self.limit();
        let margin = (parts.len() * MARGIN_BYTES).min(limit / MARGIN_FRACTION);
        let numbered = parts.iter().enumerate();
        let mut by_held: BinaryHeap<_> = numbered.map(|(at, part)| (part.held(), at)).collect();
        let mut shed = 0;
        while shed < SHED_AT_ONCE && self.held() > limit - margin {
            let Some((_, at)) = by_held.pop() else {
                // No part has a stream to reset. What is held may go, and more may come.
                self.search_from
                    .store(self.held() + margin, Ordering::Relaxed);
                return;
            };
            if parts[at].shed() {
                shed += 1;
                by_held.push((parts[at].held(), at));
            }
        }
    }

    /// The parts that exist. Used without the lock: dropping the last reference to a session may lock its account's
    /// parts.
    fn live_parts(&self) -> Vec<Arc<dyn AccountPart>> {
        self.parts.lock().iter().filter_map(Weak::upgrade).collect()
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
        let parts = self.live_parts();
        let largest = parts.iter().max_by_key(|part| part.held());
        largest.is_some_and(|part| part.shed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that counts how often it is looked at.
    struct Part {
        account: Arc<MemoryAccount>,
        held: AtomicUsize,
        stream_bytes: usize,
        looks: AtomicUsize,
    }

    impl Part {
        fn new(account: &Arc<MemoryAccount>, stream_bytes: usize) -> Arc<Self> {
            let part = Arc::new(Self {
                account: account.clone(),
                held: AtomicUsize::new(0),
                stream_bytes,
                looks: AtomicUsize::new(0),
            });
            let entered: Weak<Self> = Arc::downgrade(&part);
            account.enter(entered);
            part
        }

        fn receive(&self, bytes: usize) {
            self.held.fetch_add(bytes, Ordering::Relaxed);
            self.account.hold(bytes);
            self.account.keep_limit();
        }
    }

    impl AccountPart for Part {
        fn held(&self) -> usize {
            self.looks.fetch_add(1, Ordering::Relaxed);
            self.held.load(Ordering::Relaxed)
        }

        fn shed(&self) -> bool {
            let can_shed = self.stream_bytes > 0 && self.held() >= self.stream_bytes;
            if can_shed {
                self.held.fetch_sub(self.stream_bytes, Ordering::Relaxed);
                self.account.release(self.stream_bytes);
            }
            can_shed
        }
    }

    #[test]
    fn many_parts_of_a_full_account_are_not_all_looked_at_for_each_read() {
        const READ_BYTES: usize = 16 * 1024;
        for stream_bytes in [READ_BYTES, 0] {
            let node = MemoryAccount::new(64 * 1024 * 1024);
            let parts: Vec<_> = (0..1_000).map(|_| Part::new(&node, stream_bytes)).collect();
            let reads = 20_000;
            for read in 0..reads {
                parts[read % parts.len()].receive(READ_BYTES);
                assert!(stream_bytes == 0 || node.held() <= node.limit());
            }
            let looks = |part: &Arc<Part>| part.looks.load(Ordering::Relaxed);
            let looks: usize = parts.iter().map(looks).sum();
            assert!(looks < 50 * reads, "{looks}");
        }
    }

    #[test]
    fn long_heads_are_counted_while_they_are_held_and_bounded() {
        let node = MemoryAccount::new(1_000_000);
        let runtime = MemoryAccount::within(&node, 500_000);
        let hold = |bytes| runtime.hold_head(bytes, 100_000);
        assert!(hold(UNCOUNTED_HEAD_BYTES).unwrap().is_none());
        let held = [hold(60_000).unwrap(), hold(40_000).unwrap()];
        assert_eq!(hold(5_000).unwrap_err(), HeadsFull);
        assert!(hold(1_000).unwrap().is_none());
        let counts = || (runtime.heads(), runtime.held(), node.held());
        assert_eq!(counts(), (100_000, 100_000, 100_000));
        drop(held);
        assert_eq!(counts(), (0, 0, 0));
    }

    #[test]
    fn the_part_that_holds_the_most_is_relieved_and_others_when_it_has_no_stream() {
        let node = MemoryAccount::new(1_000_000);
        let part = |stream_bytes| {
            let runtime = MemoryAccount::within(&node, usize::MAX);
            Part::new(&runtime, stream_bytes)
        };
        let all = [part(100_000), part(100_000), part(0)];
        all[2].receive(500_000);
        all[0].receive(300_000);
        all[1].receive(210_000);
        let held = |at: usize| all[at].held.load(Ordering::Relaxed);
        assert_eq!((held(0), held(1), held(2)), (200_000, 210_000, 500_000));
        assert_eq!(node.held(), 910_000);
    }
}
