//! The content of a request that `h2` holds, counted by what it costs.
//!
//! `h2` keeps each piece as a frame of its own until window and socket have taken it, and limits their bytes but not their
//! number: in a window of 1 MiB there may be a million pieces of one byte. So a piece counts as its length and
//! [`PIECE_COST`], and a request of which [`UNSENT_BYTES`] have not left gives no more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;

/// What is counted for a piece beside its length: about what `h2` keeps for it.
const PIECE_COST: usize = 512;

/// Most bytes of one request that have not left `h2`, each piece with [`PIECE_COST`]: as many as may be on their way to an
/// HTTP/1.1 upstream, in four whole frames, or about 130 pieces of a few bytes.
const UNSENT_BYTES: usize = 4 * (16 * 1024 + PIECE_COST);

/// The bytes of one request that `h2` holds.
#[derive(Debug, Default)]
pub(super) struct UnsentContent {
    bytes: AtomicUsize,
    /// Woken when a piece has left.
    waiting: AtomicWaker,
}

impl UnsentContent {
    /// Ready when a piece of this length may be given to `h2`. One piece always may.
    pub(super) fn poll_room(&self, cx: &Context<'_>, length: usize) -> Poll<()> {
        if !self.has_room(length) {
            self.waiting.register(cx.waker());
            // A piece may have left before the waker was registered.
            if !self.has_room(length) {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    fn has_room(&self, length: usize) -> bool {
        let unsent = self.bytes.load(Ordering::Acquire);
        unsent == 0 || unsent + length + PIECE_COST <= UNSENT_BYTES
    }
}

/// Bytes of a request in `h2`, which drops them when they have left.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    counted: usize,
    /// `None` if there are no bytes.
    part_of: Option<Arc<UnsentContent>>,
}

impl Piece {
    /// A piece of a request, which is counted now.
    pub(super) fn new(bytes: Bytes, part_of: &Arc<UnsentContent>) -> Self {
        let counted = bytes.len() + PIECE_COST;
        part_of.bytes.fetch_add(counted, Ordering::AcqRel);
        Self {
            bytes,
            counted,
            part_of: Some(Arc::clone(part_of)),
        }
    }

    /// No bytes, for the end of a request.
    pub(super) fn empty() -> Self {
        Self {
            bytes: Bytes::new(),
            counted: 0,
            part_of: None,
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(request) = &self.part_of {
            request.bytes.fetch_sub(self.counted, Ordering::AcqRel);
            request.waiting.wake();
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Gives pieces of this length while there is room.
    fn fill(request: &Arc<UnsentContent>, length: usize) -> Vec<Piece> {
        let cx = Context::from_waker(Waker::noop());
        let piece = || {
            let has_room = request.poll_room(&cx, length).is_ready();
            has_room.then(|| Piece::new(vec![0; length].into(), request))
        };
        std::iter::from_fn(piece).collect()
    }

    #[test]
    fn few_small_pieces_and_some_large_ones_are_unsent_at_once() {
        for (length, most) in [(1, 131), (16 * 1024, 4), (1024 * 1024, 1)] {
            let request = Arc::default();
            let mut pieces = fill(&request, length);
            assert_eq!(pieces.len(), most);
            assert_eq!(fill(&request, length).len(), 0);
            // Each one that has left makes room for another.
            pieces.pop();
            assert_eq!(fill(&request, length).len(), 1);
        }
    }
}
