//! The bytes of answers that h2 holds, counted by what they cost.
//!
//! h2 keeps each piece as a frame of its own until window and socket have taken it, and limits their bytes but not
//! their number. So a piece counts as its length and [`PIECE_COST`], and an answer of which [`UNSENT_BYTES`] have not
//! left gives no more.
//!
//! hyper considers an answer done when h2 has its end. From then on nothing watches the stream, and nothing can reset
//! it: its bytes stay with h2 for as long as the peer gives no window, or its socket takes nothing. So one connection
//! may have [`FINISHED_BYTES`] of such answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;

use super::unread::PIECE_BYTES;

/// Most bytes on one connection of answers that are over and have not left h2, each piece with
/// [`PIECE_COST`]. As many as there may be streams fit with a small answer each, so that those which are
/// answered at once need no second flight.
pub(super) const FINISHED_BYTES: usize = 384 * 1024;

/// What is counted for a piece beside its length: about what h2 keeps for it and its stream.
pub(super) const PIECE_COST: usize = 512;

/// Most bytes of one answer that have not left h2, each piece with [`PIECE_COST`]: three whole pieces, so that two can
/// wait while one is written. About 90 pieces of a few bytes.
pub(super) const UNSENT_BYTES: usize = 3 * (PIECE_BYTES + PIECE_COST);

/// The last bit of an [`AnswerBytes`]'s count: the answer is over, so that its pieces count for the connection.
const IS_FINISHED: usize = 1 << (usize::BITS - 1);

/// The finished responses of one connection that have not left h2.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    bytes: AtomicIsize,
    /// The number of pieces of such responses that have left.
    left: AtomicUsize,
}

impl Unsent {
    /// Counts bytes of a response that ends now; `false` if there is no room for them.
    pub(super) fn finish(&self, bytes: usize) -> bool {
        let bytes = bytes.cast_signed();
        let has_room = self.bytes.load(Ordering::Relaxed) + bytes <= FINISHED_BYTES.cast_signed();
        if has_room {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        has_room
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes.cast_signed(), Ordering::Relaxed);
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of pieces that have left; `None` while no finished answer waits in h2.
    pub(super) fn progress(&self) -> Option<usize> {
        let has_any = self.bytes.load(Ordering::Relaxed) > 0;
        has_any.then(|| self.left.load(Ordering::Relaxed))
    }
}

/// The bytes of one answer that h2 holds. An answer that is one piece and ends with it has no such count.
#[derive(Debug)]
pub(super) struct AnswerBytes {
    connection: Arc<Unsent>,
    /// Bytes that have not left, and [`IS_FINISHED`].
    bytes: AtomicUsize,
    /// Woken when a piece has left.
    waiting: Mutex<Option<Waker>>,
}

impl AnswerBytes {
    pub(super) fn new(connection: &Arc<Unsent>) -> Arc<Self> {
        Arc::new(Self {
            connection: connection.clone(),
            bytes: AtomicUsize::new(0),
            waiting: Mutex::default(),
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire) & !IS_FINISHED
    }

    /// Whether a piece of this length may be given to h2. One piece always may.
    pub(super) fn has_room(&self, length: usize) -> bool {
        let unsent = self.bytes();
        unsent == 0 || unsent + length + PIECE_COST <= UNSENT_BYTES
    }

    /// Ready when a piece of this length may be given to h2.
    pub(super) fn poll_room(&self, cx: &Context<'_>, length: usize) -> Poll<()> {
        if !self.has_room(length) {
            *self.waiting.lock() = Some(cx.waker().clone());
            // A piece may have left before the waker was registered.
            if !self.has_room(length) {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Ready when the response may end: all of it has left, or the connection has room for the rest.
    pub(super) fn poll_end(&self, cx: &Context<'_>) -> Poll<()> {
        let unsent = self.bytes();
        if unsent > 0 && !self.connection.finish(unsent) {
            *self.waiting.lock() = Some(cx.waker().clone());
            // The last piece may have left before the waker was registered.
            return match self.bytes() {
                0 => Poll::Ready(()),
                _ => Poll::Pending,
            };
        }
        self.finish(unsent);
        Poll::Ready(())
    }

    /// Transfers the count of the pieces to the connection, which has already counted the `unsent` bytes.
    pub(super) fn finish(&self, unsent: usize) {
        let unsent_now = self.bytes.fetch_or(IS_FINISHED, Ordering::AcqRel);
        if unsent_now < unsent {
            self.connection.release(unsent - unsent_now);
        }
    }

    fn release(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before & IS_FINISHED != 0 {
            self.connection.release(bytes);
        } else if let Some(waiting) = self.waiting.lock().take() {
            waiting.wake();
        }
    }
}

/// Bytes of a response in h2, which drops them when they have left.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    counted: usize,
    part_of: PieceCount,
}

impl Piece {
    /// The last piece of an answer, which `connection` has already counted with [`PIECE_COST`].
    pub(super) fn finished(bytes: Bytes, connection: &Arc<Unsent>) -> Self {
        Self {
            counted: bytes.len() + PIECE_COST,
            bytes,
            part_of: PieceCount::Connection(connection.clone()),
        }
    }

    /// A piece of an answer, which is counted now.
    pub(super) fn new(bytes: Bytes, answer: &Arc<AnswerBytes>) -> Self {
        let counted = bytes.len() + PIECE_COST;
        answer.bytes.fetch_add(counted, Ordering::AcqRel);
        Self {
            bytes,
            counted,
            part_of: PieceCount::Answer(answer.clone()),
        }
    }
}

/// The count that the bytes of a piece are part of.
#[derive(Debug)]
enum PieceCount {
    /// That of the connection's finished answers.
    Connection(Arc<Unsent>),
    /// That of an unfinished response.
    Answer(Arc<AnswerBytes>),
}

impl Drop for Piece {
    fn drop(&mut self) {
        match &self.part_of {
            PieceCount::Connection(connection) => connection.release(self.counted),
            PieceCount::Answer(answer) => answer.release(self.counted),
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
