//! The bytes of answers that h2 holds, counted by what they cost.
//!
//! h2 keeps each piece as a frame of its own until window and socket have taken it, and limits their bytes but not
//! their number. So a piece counts as its length and [`PIECE_COST`], and an answer of which [`UNSENT_BYTES`] have not
//! left gives no more.
//!
//! An exchange is over when h2 has the end of its answer. From then on nothing watches the stream, and nothing can reset
//! it: its bytes stay with h2 for as long as the peer gives no window, or its socket takes nothing. So one connection
//! may have [`FINISHED_BYTES`] of such answers. Heads and trailers wait for the socket alone; those that it has not taken
//! are [`HEADS_BYTES`] at most, and further ones are not given.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;

/// How much is given to h2 at once: what one frame takes by default, so that it costs nothing.
pub(crate) const PIECE_BYTES: usize = 16 * 1024;

/// Most bytes on one connection of answers that are over and have not left h2, each piece with
/// [`PIECE_COST`]. As many as there may be streams fit with a small answer each, so that those which are
/// answered at once need no second flight.
pub(crate) const FINISHED_BYTES: usize = 384 * 1024;

/// What is counted for a piece beside its length: about what h2 keeps for it and its stream.
pub(crate) const PIECE_COST: usize = 512;

/// Most bytes of one answer that have not left h2, each piece with [`PIECE_COST`]: three whole pieces, so that two can
/// wait while one is written. About 90 pieces of a few bytes.
pub(crate) const UNSENT_BYTES: usize = 3 * (PIECE_BYTES + PIECE_COST);

/// Most bytes of heads and trailer sections on one connection that its socket has not taken, by [`fields_cost`]. One
/// always has room. As many small heads as there may be streams have it, several times.
pub(crate) const HEADS_BYTES: usize = 1024 * 1024;

/// Most bytes of heads and trailer sections on one connection that are held back because there is no room for them. The
/// streams of further ones are reset.
pub(crate) const HELD_BACK_BYTES: usize = 2 * 1024 * 1024;

/// What is counted for a field line beside its name and value: about what a header map keeps for it.
const FIELD_COST: usize = 100;

/// What h2 holds for a head or a trailer section, until the socket takes it.
pub(crate) fn fields_cost(fields: &HeaderMap) -> usize {
    let cost =
        |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + FIELD_COST;
    PIECE_COST + fields.iter().map(cost).sum::<usize>()
}

/// The last bit of an [`AnswerBytes`]'s count: the answer is over, so that its pieces count for the connection.
const IS_FINISHED: usize = 1 << (usize::BITS - 1);

/// The finished responses of one connection that have not left h2, and the heads of all.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    /// Bytes of finished responses that wait for window and socket.
    bytes: AtomicIsize,
    /// The number of pieces of such responses that have left.
    left: AtomicUsize,
    heads: Mutex<Heads>,
    /// Bytes that the socket has taken.
    written: AtomicU64,
    /// Whether the socket's last operation was a complete flush.
    is_flushed: AtomicBool,
    /// Whether the last write has found the socket full, and the last flush. One says nothing of the other: TLS has room
    /// for a write while its socket is full.
    is_write_pending: AtomicBool,
    is_flush_pending: AtomicBool,
    /// How often a write or a flush went on that had found the socket full: the peer has read.
    resumptions: AtomicU64,
}

/// Heads and trailer sections that wait for the socket alone.
#[derive(Debug, Default)]
struct Heads {
    /// Their bytes, by [`fields_cost`].
    queued: usize,
    /// How many of these h2 had before the current poll of the connection.
    before_poll: usize,
    /// Tasks that wait for room.
    waiting: Vec<Waker>,
    /// The bytes of what these hold back.
    held_back: usize,
    /// Whether the socket has left something at the last poll of the connection.
    is_blocked: bool,
}

impl Heads {
    fn count(&mut self, bytes: usize) -> bool {
        let has_room = self.queued == 0 || self.queued + bytes <= HEADS_BYTES;
        if has_room {
            self.queued += bytes;
        }
        has_room
    }
}

/// The count of a head or trailer section that is held back, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct HeldBack {
    connection: Arc<Unsent>,
    bytes: usize,
}

impl HeldBack {
    /// `None` if the socket takes too little, and so much is held back that its stream is to be reset. One always may be.
    pub(crate) fn new(connection: &Arc<Unsent>, bytes: usize) -> Option<Self> {
        let mut heads = connection.heads.lock();
        let is_full = heads.held_back > 0 && heads.held_back + bytes > HELD_BACK_BYTES;
        if is_full && heads.is_blocked {
            return None;
        }
        heads.held_back += bytes;
        Some(Self {
            connection: connection.clone(),
            bytes,
        })
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.connection.heads.lock().held_back -= self.bytes;
    }
}

/// How much has left h2 of what waits in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// The number of pieces of finished responses that have left; `None` if none is there.
    pieces: Option<usize>,
    /// Bytes that the socket has taken; `None` if no head is there.
    written: Option<u64>,
}

impl Progress {
    /// Whether something waits in h2, and as good as nothing of it has left since `before`.
    pub(crate) fn is_stuck_since(&self, before: &Self) -> bool {
        let [pieces, heads] = self.left_since(before);
        pieces == Some(false) || heads == Some(false)
    }

    /// Whether something waits in h2 of which some has left since `before`.
    pub(crate) fn gets_on_since(&self, before: &Self) -> bool {
        self.left_since(before).contains(&Some(true))
    }

    /// Whether more than a little has left since `before` of the pieces, and of the heads; `None` where nothing has waited
    /// all the time.
    fn left_since(&self, before: &Self) -> [Option<bool>; 2] {
        let pieces = self.pieces.zip(before.pieces);
        let heads = self.written.zip(before.written);
        [
            pieces.map(|(now, before)| now != before),
            heads.map(|(now, before)| now - before >= PIECE_BYTES as u64),
        ]
    }
}

impl Unsent {
    /// Counts bytes of a response that ends now; `false` if there is no room for them.
    pub(crate) fn finish(&self, bytes: usize) -> bool {
        let bytes = bytes.cast_signed();
        let held = self.bytes.load(Ordering::Relaxed);
        let has_room = held <= 0 || held + bytes <= FINISHED_BYTES.cast_signed();
        if has_room {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        has_room
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes.cast_signed(), Ordering::Relaxed);
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a head that h2 gets next, if there is room for it. Returns whether there is.
    pub(crate) fn count_head(&self, bytes: usize) -> bool {
        self.heads.lock().count(bytes)
    }

    /// Counts a head or trailer section that h2 gets next; pending while there is no room for it.
    pub(crate) fn poll_head(&self, cx: &Context<'_>, bytes: usize) -> Poll<()> {
        let mut heads = self.heads.lock();
        if !heads.count(bytes) {
            if !heads
                .waiting
                .iter()
                .any(|waker| waker.will_wake(cx.waker()))
            {
                heads.waiting.push(cx.waker().clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Polls the connection to its end. Heads that h2 had before a poll have left after it if its last operation on the
    /// socket was a complete flush.
    pub(crate) async fn observe<C: Future + Unpin>(&self, mut connection: C) {
        poll_fn(|cx| {
            self.is_flushed.store(false, Ordering::Relaxed);
            let mut heads = self.heads.lock();
            heads.before_poll = heads.queued;
            drop(heads);
            let ended = Pin::new(&mut connection).poll(cx);
            match self.is_flushed.load(Ordering::Relaxed) {
                true => self.on_heads_left(),
                false => self.heads.lock().is_blocked = true,
            }
            ended.map(drop)
        })
        .await;
    }

    fn on_heads_left(&self) {
        let mut heads = self.heads.lock();
        heads.queued -= std::mem::take(&mut heads.before_poll);
        heads.is_blocked = false;
        let waiting = std::mem::take(&mut heads.waiting);
        drop(heads);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Notes a write of the socket.
    pub(crate) fn on_write(&self, written: &Poll<io::Result<usize>>) {
        self.is_flushed.store(false, Ordering::Relaxed);
        self.note_pending(&self.is_write_pending, written.is_pending());
        if let Poll::Ready(Ok(bytes)) = written {
            self.written.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
    }

    /// Notes a flush of the socket.
    pub(crate) fn on_flush(&self, is_complete: bool) {
        self.is_flushed.store(is_complete, Ordering::Relaxed);
        self.note_pending(&self.is_flush_pending, !is_complete);
    }

    fn note_pending(&self, noted: &AtomicBool, is_pending: bool) {
        if noted.swap(is_pending, Ordering::Relaxed) && !is_pending {
            self.resumptions.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A number that grows whenever the socket has room again after it was full.
    pub(crate) fn resumptions(&self) -> u64 {
        self.resumptions.load(Ordering::Relaxed)
    }

    /// Bytes that the socket has taken.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn has_no_pieces(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0
    }

    /// How much has left so far.
    pub(crate) fn progress(&self) -> Progress {
        let has_pieces = self.bytes.load(Ordering::Relaxed) > 0;
        let has_heads = self.heads.lock().queued > 0;
        Progress {
            pieces: has_pieces.then(|| self.left.load(Ordering::Relaxed)),
            written: has_heads.then(|| self.written()),
        }
    }
}

/// The bytes of one answer that h2 holds. An answer that is one piece and ends with it has no such count.
#[derive(Debug)]
pub(crate) struct AnswerBytes {
    connection: Arc<Unsent>,
    /// Bytes that have not left, and [`IS_FINISHED`].
    bytes: AtomicUsize,
    /// Bytes of the trailer section that h2 has behind these.
    trailers: AtomicUsize,
    /// Woken when a piece has left.
    waiting: Mutex<Option<Waker>>,
}

impl AnswerBytes {
    pub(crate) fn new(connection: &Arc<Unsent>) -> Arc<Self> {
        Arc::new(Self {
            connection: connection.clone(),
            bytes: AtomicUsize::new(0),
            trailers: AtomicUsize::new(0),
            waiting: Mutex::default(),
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire) & !IS_FINISHED
    }

    /// Whether a piece of this length may be given to h2. One piece always may.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        let unsent = self.bytes();
        unsent == 0 || unsent + length + PIECE_COST <= UNSENT_BYTES
    }

    /// Ready when a piece of this length may be given to h2.
    pub(crate) fn poll_room(&self, cx: &Context<'_>, length: usize) -> Poll<()> {
        if !self.has_room(length) {
            *self.waiting.lock() = Some(cx.waker().clone());
            // A piece may have left before the waker was registered.
            if !self.has_room(length) {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Ready when all pieces have left h2.
    pub(crate) fn poll_left(&self, cx: &Context<'_>) -> Poll<()> {
        if self.bytes() > 0 {
            *self.waiting.lock() = Some(cx.waker().clone());
            // The last piece may have left before the waker was registered.
            if self.bytes() > 0 {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Ready when the response may end, with `trailers` bytes of trailers: all of it has left, and there is room for
    /// them, or the request `is_whole` and the connection has room for the rest.
    pub(crate) fn poll_end(&self, cx: &Context<'_>, trailers: usize, is_whole: bool) -> Poll<()> {
        let unsent = self.bytes();
        if unsent > 0 && !(is_whole && self.connection.finish(unsent + trailers)) {
            ready!(self.poll_left(cx));
        } else if unsent > 0 {
            self.trailers.store(trailers, Ordering::Release);
            self.finish(unsent);
            return Poll::Ready(());
        }
        match trailers {
            0 => Poll::Ready(()),
            _ => self.connection.poll_head(cx, trailers),
        }
    }

    /// Transfers the count of the pieces to the connection, which has already counted the `unsent` bytes.
    pub(crate) fn finish(&self, unsent: usize) {
        let unsent_now = self.bytes.fetch_or(IS_FINISHED, Ordering::AcqRel);
        if unsent_now < unsent {
            self.connection.release(unsent - unsent_now);
        }
        if unsent_now == 0 {
            self.on_all_left();
        }
    }

    fn release(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        if before & IS_FINISHED != 0 {
            self.connection.release(bytes);
            if before & !IS_FINISHED == bytes {
                self.on_all_left();
            }
        } else if let Some(waiting) = self.waiting.lock().take() {
            waiting.wake();
        }
    }

    /// The trailer section now waits for the socket alone.
    fn on_all_left(&self) {
        let trailers = self.trailers.swap(0, Ordering::AcqRel);
        if trailers > 0 {
            self.connection.heads.lock().queued += trailers;
            self.connection.release(trailers);
        }
    }
}

/// Bytes of a response in h2, which drops them when they have left.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    counted: usize,
    part_of: PieceCount,
}

impl Piece {
    /// The last piece of an answer, which `connection` has already counted with [`PIECE_COST`].
    pub(crate) fn finished(bytes: Bytes, connection: &Arc<Unsent>) -> Self {
        Self {
            counted: bytes.len() + PIECE_COST,
            bytes,
            part_of: PieceCount::Connection(connection.clone()),
        }
    }

    /// No bytes, for the end of an answer.
    pub(crate) fn empty() -> Self {
        Self {
            bytes: Bytes::new(),
            counted: 0,
            part_of: PieceCount::Nothing,
        }
    }

    /// A piece of an answer, which is counted now.
    pub(crate) fn new(bytes: Bytes, answer: &Arc<AnswerBytes>) -> Self {
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
    /// There are no bytes.
    Nothing,
}

impl Drop for Piece {
    fn drop(&mut self) {
        match &self.part_of {
            PieceCount::Connection(connection) => connection.release(self.counted),
            PieceCount::Answer(answer) => answer.release(self.counted),
            PieceCount::Nothing => {}
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
