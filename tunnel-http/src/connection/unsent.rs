//! Answers over HTTP/2 that hyper considers done while h2 still holds bytes of them.
//!
//! ```text
//!   content ─▶ Delivery ─▶ hyper ─▶ h2: pieces that wait for window and socket ─▶ peer
//!                 └─ holds back the end ◀── notified of each piece that left ──┘
//! ```
//!
//! hyper hands a whole piece to h2 when the window has room for one byte of it, and considers the answer
//! done when h2 has its end. From then on nothing watches the stream, and nothing can reset it: its
//! bytes stay with h2 for as long as the peer gives no window, or its socket takes nothing.
//!
//! So one connection may have [`FINISHED_BYTES`] of such answers. Up to that the end of an answer goes out with
//! its last piece, in one flight. Beyond it, the end waits until the last piece has left h2: the task of the
//! stream lives until then, and with it what the exchange holds, and the limit on how long a peer may take
//! nothing.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;

use super::unread::is_peers_turn;

/// Most bytes on one connection of answers that are over and have not left h2, each piece with
/// [`PIECE_COST`]. As many as there may be streams fit with a small answer each, so that those which are
/// answered at once need no second flight.
pub(super) const FINISHED_BYTES: usize = 384 * 1024;

/// What is counted for a piece beside its length: about what h2 keeps for it and its stream.
const PIECE_COST: usize = 512;

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
struct AnswerBytes {
    connection: Arc<Unsent>,
    /// Bytes that have not left, and [`IS_FINISHED`].
    bytes: AtomicUsize,
    /// Woken when a piece has left.
    waiting: Mutex<Option<Waker>>,
}

impl AnswerBytes {
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Acquire) & !IS_FINISHED
    }

    /// Ready when the response may end: all of it has left, or the connection has room for the rest.
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
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
    fn finish(&self, unsent: usize) {
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

/// The last frame of an answer.
enum LastFrame {
    Content,
    Trailers(Box<HeaderMap>),
}

pin_project! {
    /// The content of a response, as hyper polls it.
    pub(super) struct Delivery<B> {
        #[pin]
        body: B,
        connection: Arc<Unsent>,
        answer: Option<Arc<AnswerBytes>>,
        // The end, while it waits for the bytes before it.
        last: Option<LastFrame>,
        // The bytes that the end waited for at the last poll.
        awaited: usize,
    }
}

impl<B: Body<Data = Bytes>> Delivery<B> {
    pub(super) fn new(body: B, connection: Arc<Unsent>) -> Self {
        Self {
            body,
            connection,
            answer: None,
            last: None,
            awaited: 0,
        }
    }

    fn on_data(self: Pin<&mut Self>, bytes: Bytes) -> Piece {
        let this = self.project();
        let counted = bytes.len() + PIECE_COST;
        if this.body.is_end_stream() {
            let answer = this.answer.as_deref();
            let earlier = answer.map_or(0, AnswerBytes::bytes);
            if this.connection.finish(counted + earlier) {
                answer.inspect(|answer| answer.finish(earlier));
                let part_of = PieceCount::Connection(this.connection.clone());
                return Piece {
                    bytes,
                    counted,
                    part_of,
                };
            }
            *this.last = Some(LastFrame::Content);
        }
        let answer = this.answer.get_or_insert_with(|| {
            Arc::new(AnswerBytes {
                connection: this.connection.clone(),
                bytes: AtomicUsize::new(0),
                waiting: Mutex::default(),
            })
        });
        answer.bytes.fetch_add(counted, Ordering::AcqRel);
        let part_of = PieceCount::Answer(answer.clone());
        Piece {
            bytes,
            counted,
            part_of,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for Delivery<B> {
    type Data = Piece;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, B::Error>>> {
        let held_back = self.as_mut().project().last.take();
        let is_held_back = held_back.is_some();
        let last = match held_back {
            Some(last) => last,
            None => match ready!(self.as_mut().project().body.poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => {
                        let piece = self.on_data(bytes);
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                    Err(frame) => LastFrame::Trailers(
                        frame
                            .into_trailers()
                            .map_or_else(|_| Box::default(), Box::new),
                    ),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => LastFrame::Content,
            },
        };
        let this = self.project();
        if let Some(answer) = this.answer
            && answer.poll_end(cx).is_pending()
        {
            *this.last = Some(last);
            let unsent = answer.bytes();
            // The peer has the whole time-out for each piece, which begins here if the content was pending before its end.
            if !is_held_back || unsent < *this.awaited {
                is_peers_turn();
            }
            *this.awaited = unsent;
            return Poll::Pending;
        }
        Poll::Ready(match last {
            LastFrame::Content => None,
            LastFrame::Trailers(trailers) => Some(Ok(Frame::trailers(*trailers))),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.last.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pin_project! {
    /// The answering of one request, whose content goes to hyper as a [`Delivery`]. No `async` block, which
    /// would have room for the future twice.
    pub(super) struct Answering<F> {
        #[pin]
        future: F,
        // Passed to the response's content.
        connection: Option<Arc<Unsent>>,
    }
}

impl<F> Answering<F> {
    pub(super) fn new(future: F, connection: &Arc<Unsent>) -> Self {
        Self {
            future,
            connection: Some(connection.clone()),
        }
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes>,
{
    type Output = Result<Response<Delivery<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answered = ready!(this.future.poll(cx));
        let connection = this.connection.take().unwrap_or_default();
        let deliver = |body| Delivery::new(body, connection);
        Poll::Ready(answered.map(|response| response.map(deliver)))
    }
}
