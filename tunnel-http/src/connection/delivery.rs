//! The content of an answer over HTTP/2, on its way to h2.
//!
//! ```text
//!   content ─▶ Delivery: joined while there is no room ─▶ h2: pieces that wait for window and socket ─▶ peer
//!                 └─ gives no more, or no end ◀── notified of each piece that left ──┘
//! ```
//!
//! The task of a stream hands a piece to h2 when the window has room for one byte of it, and polls for the next. Four
//! rules bound what waits in h2:
//!
//! - While h2 holds [`UNSENT_BYTES`](crate::http2::unsent::UNSENT_BYTES) of an answer, no further piece of it is given. What
//!   the content yields meanwhile is joined into one piece. With room, a piece goes on in the poll that brought it.
//! - The end of an answer goes out with its last piece as long as the connection has room for finished answers, and the
//!   request is whole. Otherwise it waits until the last piece has left h2: the task of the stream lives until then, and
//!   with it what the exchange holds, and the limit on how long a peer may take nothing. h2 resets a stream that is over
//!   behind its answer when nobody reads the rest of the request, and forgets to count that stream as closed if the peer
//!   resets it while the answer waits.
//! - A head, or trailers, are given while the connection has room for heads that its socket has not taken. Beyond that
//!   few are held back, and the streams of more are reset.
//! - A short piece that follows others is copied, so that it does not keep the read buffer alive of which it is a slice.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::unread::{give_up, set_contents_turn, set_peers_turn};
use crate::http2::ContentEnd;
use crate::http2::unsent::{
    AnswerBytes, HeldBack, PIECE_BYTES, PIECE_COST, Piece, Unsent, fields_cost,
};

/// Pieces shorter than this are copied when h2 still holds others of their answer.
const SHORT_BYTES: usize = 4 * 1024;

/// Joined bytes from which on the content is not polled: with one more piece they are less than two.
const JOINED_BYTES: usize = PIECE_BYTES - SHORT_BYTES;

/// Content that h2 has no room for, in order.
#[derive(Default)]
struct Joined {
    /// As it came, while it is one piece.
    piece: Bytes,
    /// Copies, when there are more.
    copies: BytesMut,
}

impl Joined {
    fn len(&self) -> usize {
        self.piece.len() + self.copies.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_full(&self) -> bool {
        self.len() >= JOINED_BYTES
    }

    fn push(&mut self, bytes: Bytes) {
        if self.is_empty() {
            self.piece = bytes;
            return;
        }
        self.copies
            .extend_from_slice(&std::mem::take(&mut self.piece));
        self.copies.extend_from_slice(&bytes);
    }

    /// The length of the next piece.
    fn next_length(&self) -> usize {
        self.len().min(PIECE_BYTES)
    }

    /// The next piece. With `is_copied`, a short one keeps no more memory than it has bytes.
    fn take(&mut self, is_copied: bool) -> Bytes {
        let length = self.next_length();
        let piece = match self.copies.is_empty() {
            true => self.piece.split_to(length),
            false => self.copies.split_to(length).freeze(),
        };
        if self.is_empty() {
            // Even an empty slice would keep the memory of the whole.
            *self = Self::default();
        }
        match is_copied && length < SHORT_BYTES {
            true => Bytes::copy_from_slice(&piece),
            false => piece,
        }
    }
}

/// A wait for the socket to take heads that come first. 16 KiB are progress, whichever they are of.
#[derive(Default)]
struct HeadsWait {
    /// What the socket had taken when the peer's time began.
    since: Option<u64>,
    held_back: Option<HeldBack>,
}

impl HeadsWait {
    /// Counts a head or trailer section that waits. The stream is reset if there are too many.
    fn hold_back(&mut self, connection: &Arc<Unsent>, bytes: usize) {
        if self.held_back.is_none() {
            self.held_back = HeldBack::new(connection, bytes);
        }
        if self.held_back.is_none() {
            give_up();
        }
    }

    fn has_progressed(&mut self, connection: &Unsent) -> bool {
        let written = connection.written();
        let has_progressed = self
            .since
            .is_none_or(|since| written - since >= PIECE_BYTES as u64);
        if has_progressed {
            self.since = Some(written);
        }
        has_progressed
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

/// What follows the last byte of an answer.
enum LastFrame {
    Content,
    Trailers(Box<HeaderMap>),
    /// The content failed.
    Failure(BoxError),
}

pin_project! {
    /// The content of a response, as the task of its stream polls it.
    pub(super) struct Delivery<B> {
        #[pin]
        body: B,
        connection: Arc<Unsent>,
        // Whether the request's content has come whole, without which an answer ends behind its last byte.
        end: ContentEnd,
        answer: Option<Arc<AnswerBytes>>,
        joined: Joined,
        // The end, while it waits for the bytes before it.
        last: Option<LastFrame>,
        // The bytes of the answer in h2 at the last poll that had to wait for them.
        awaited: Option<usize>,
        heads: HeadsWait,
    }
}

impl<B> Delivery<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    pub(super) fn new(body: B, connection: Arc<Unsent>, end: ContentEnd) -> Self {
        Self {
            body,
            connection,
            end,
            answer: None,
            joined: Joined::default(),
            last: None,
            awaited: None,
            heads: HeadsWait::default(),
        }
    }

    /// The next piece, if there is one and room for it.
    fn next_piece(self: Pin<&mut Self>) -> Option<Piece> {
        let this = self.project();
        let length = this.joined.next_length();
        let has_room = |answer: &Arc<AnswerBytes>| answer.has_room(length);
        if length == 0 || !this.answer.as_ref().is_none_or(has_room) {
            return None;
        }
        *this.awaited = None;
        set_peers_turn(true);
        let earlier = this.answer.as_deref().map_or(0, AnswerBytes::bytes);
        let bytes = this.joined.take(earlier > 0);
        if this.joined.is_empty() && this.last.is_none() && this.body.is_end_stream() {
            if this.end.has_come() && this.connection.finish(bytes.len() + PIECE_COST + earlier) {
                this.answer
                    .as_deref()
                    .inspect(|answer| answer.finish(earlier));
                return Some(Piece::finished(bytes, this.connection));
            }
            *this.last = Some(LastFrame::Content);
        }
        let answer = this
            .answer
            .get_or_insert_with(|| AnswerBytes::new(this.connection));
        Some(Piece::new(bytes, answer))
    }

    /// Polls the content once. Pending when it has nothing, or nothing more is to be read of it.
    fn poll_content(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.last.is_some() || this.joined.is_full() {
            return Poll::Pending;
        }
        *this.last = match ready!(this.body.poll_frame(cx)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => {
                    this.joined.push(bytes);
                    None
                }
                Err(frame) => Some(LastFrame::Trailers(
                    frame
                        .into_trailers()
                        .map_or_else(|_| Box::default(), Box::new),
                )),
            },
            Some(Err(error)) => Some(LastFrame::Failure(error.into())),
            None => Some(LastFrame::Content),
        };
        Poll::Ready(())
    }

    /// Waits for pieces of the answer to leave h2. The peer has the whole time-out for each of them, which begins here.
    fn wait(self: Pin<&mut Self>) {
        let this = self.project();
        let unsent = this.answer.as_deref().map_or(0, AnswerBytes::bytes);
        let has_progressed = match unsent {
            // Trailers that wait for the socket.
            0 => this.heads.has_progressed(this.connection),
            _ => this.awaited.is_none_or(|awaited| unsent < awaited),
        };
        set_peers_turn(has_progressed);
        *this.awaited = Some(unsent);
    }

    /// Gives the end of the answer, once nothing before it is left.
    fn poll_last(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        last: LastFrame,
    ) -> Poll<Option<Result<Frame<Piece>, BoxError>>> {
        let this = self.as_mut().project();
        let trailers = match &last {
            LastFrame::Trailers(trailers) => fields_cost(trailers),
            _ => 0,
        };
        let ended = match this.answer {
            // A reset drops what h2 still has of the stream.
            Some(answer) if matches!(last, LastFrame::Failure(_)) => answer.poll_left(cx),
            Some(answer) => answer.poll_end(cx, trailers, this.end.has_come()),
            None if trailers > 0 => this.connection.poll_head(cx, trailers),
            None => Poll::Ready(()),
        };
        if ended.is_pending() {
            if trailers > 0 {
                this.heads.hold_back(this.connection, trailers);
            }
            *this.last = Some(last);
            self.wait();
            return Poll::Pending;
        }
        this.heads.held_back = None;
        Poll::Ready(match last {
            LastFrame::Trailers(trailers) => Some(Ok(Frame::trailers(*trailers))),
            LastFrame::Failure(error) => Some(Err(error)),
            LastFrame::Content => None,
        })
    }
}

impl<B> Body for Delivery<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Piece;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BoxError>>> {
        loop {
            if let Some(piece) = self.as_mut().next_piece() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let this = self.as_mut().project();
            let is_empty = this.joined.is_empty();
            if is_empty && let Some(last) = this.last.take() {
                return self.poll_last(cx, last);
            }
            if self.as_mut().poll_content(cx).is_ready() {
                continue;
            }
            if is_empty {
                set_contents_turn();
                return Poll::Pending;
            }
            let this = self.as_mut().project();
            let length = this.joined.next_length();
            let has_room = this
                .answer
                .as_deref()
                .is_none_or(|answer| answer.poll_room(cx, length).is_ready());
            if !has_room {
                self.wait();
                return Poll::Pending;
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.joined.is_empty() && self.last.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // It is asked for before the first poll.
        self.body.size_hint()
    }
}

pin_project! {
    /// The answering of one request, whose content becomes a [`Delivery`]. No `async` block, which
    /// would have room for the future twice.
    pub(super) struct Answering<F, B> {
        #[pin]
        future: F,
        // Both are passed to the response's content.
        connection: Arc<Unsent>,
        end: ContentEnd,
        // A response whose head has no room, and the wait for it.
        waiting: Option<Box<(Response<B>, HeadsWait)>>,
    }
}

impl<F, B> Answering<F, B> {
    pub(super) fn new(future: F, connection: &Arc<Unsent>, end: ContentEnd) -> Self {
        Self {
            future,
            connection: connection.clone(),
            end,
            waiting: None,
        }
    }
}

impl<F, B> Future for Answering<F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<Delivery<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (response, mut wait) = match this.waiting.take() {
            Some(waiting) => *waiting,
            None => (ready!(this.future.poll(cx))?, HeadsWait::default()),
        };
        let head = fields_cost(response.headers());
        if this.connection.poll_head(cx, head).is_pending() {
            wait.hold_back(this.connection, head);
            set_peers_turn(wait.has_progressed(this.connection));
            *this.waiting = Some(Box::new((response, wait)));
            return Poll::Pending;
        }
        let deliver = |body| Delivery::new(body, this.connection.clone(), this.end.clone());
        Poll::Ready(Ok(response.map(deliver)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Wake, Waker};

    use bytes::Buf;
    use proptest::prelude::*;

    use super::*;
    use crate::http2::unsent::UNSENT_BYTES;

    /// What content does at one poll.
    #[derive(Debug, Clone)]
    enum Step {
        Data(usize),
        /// Nothing is there until [`Content::paused`] is cleared.
        Pause,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum End {
        /// With the last data.
        Known,
        Later,
        Trailers,
        Failure,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the content failed")]
    struct Failed;

    struct Content {
        steps: VecDeque<Step>,
        end: End,
        next: u8,
        is_paused: bool,
    }

    impl Content {
        fn poll_step(&mut self) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
            match self.steps.pop_front() {
                Some(Step::Data(length)) => {
                    let byte = || {
                        self.next = self.next.wrapping_add(1);
                        self.next
                    };
                    let bytes: Bytes = std::iter::repeat_with(byte).take(length).collect();
                    Poll::Ready(Some(Ok(Frame::data(bytes))))
                }
                Some(Step::Pause) => {
                    self.is_paused = true;
                    Poll::Pending
                }
                None => Poll::Ready(match std::mem::replace(&mut self.end, End::Later) {
                    End::Known | End::Later => None,
                    End::Trailers => Some(Ok(Frame::trailers(HeaderMap::new()))),
                    End::Failure => Some(Err(Failed)),
                }),
            }
        }
    }

    impl Body for Content {
        type Data = Bytes;
        type Error = Failed;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
            if self.is_paused {
                return Poll::Pending;
            }
            self.poll_step()
        }

        fn is_end_stream(&self) -> bool {
            self.end == End::Known && self.steps.is_empty()
        }
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// The part of the exchange and of h2: takes what is given, and lets the pieces leave in order.
    struct Peer {
        delivery: Pin<Box<Delivery<Content>>>,
        connection: Arc<Unsent>,
        woken: Arc<Woken>,
        queued: VecDeque<Piece>,
        received: Vec<u8>,
        end: Option<End>,
    }

    impl Peer {
        fn new(steps: Vec<Step>, end: End) -> Self {
            let content = Content {
                steps: steps.into(),
                end,
                next: 0,
                is_paused: false,
            };
            let connection = Arc::new(Unsent::default());
            Self {
                delivery: Box::pin(Delivery::new(
                    content,
                    connection.clone(),
                    ContentEnd::new(true),
                )),
                connection,
                woken: Arc::new(Woken(true.into())),
                queued: VecDeque::new(),
                received: Vec::new(),
                end: None,
            }
        }

        /// Polls as long as something was woken.
        fn run(&mut self) {
            let waker = Waker::from(self.woken.clone());
            let mut cx = Context::from_waker(&waker);
            while self.end.is_none() && self.woken.0.swap(false, Ordering::Relaxed) {
                while let Poll::Ready(frame) = self.delivery.as_mut().poll_frame(&mut cx) {
                    let end = match frame {
                        Some(Ok(frame)) => match frame.into_data() {
                            Ok(piece) => {
                                self.take(piece);
                                self.delivery.is_end_stream().then_some(End::Known)
                            }
                            Err(_) => Some(End::Trailers),
                        },
                        Some(Err(_)) => Some(End::Failure),
                        None => Some(End::Later),
                    };
                    if end.is_some() {
                        self.end = end;
                        return;
                    }
                }
            }
        }

        fn take(&mut self, piece: Piece) {
            assert!((1..=PIECE_BYTES).contains(&piece.remaining()));
            self.received.extend_from_slice(piece.chunk());
            self.queued.push_back(piece);
            let cost = |piece: &Piece| piece.remaining() + PIECE_COST;
            let unsent: usize = self.queued.iter().map(cost).sum();
            assert!(self.queued.len() == 1 || unsent <= UNSENT_BYTES);
        }

        fn resume(&mut self) {
            let paused = self.delivery.as_mut().project().body;
            if std::mem::take(&mut paused.get_mut().is_paused) {
                self.woken.0.store(true, Ordering::Relaxed);
            }
        }

        fn joined(&self) -> usize {
            self.delivery.joined.len()
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (1_usize..40).prop_map(Step::Data),
            2 => (1_usize..5_000).prop_map(Step::Data),
            1 => (1..=PIECE_BYTES).prop_map(Step::Data),
            1 => Just(Step::Data(0)),
            2 => Just(Step::Pause),
        ];
        let many = prop_oneof![Just(1_usize), Just(40), Just(20_000)];
        let steps = proptest::collection::vec((step, many), 0..40);
        steps.prop_map(|steps| {
            let repeated = |(step, many): (Step, usize)| {
                let is_short = matches!(step, Step::Data(..40));
                std::iter::repeat_n(step, if is_short { many } else { 1 })
            };
            steps.into_iter().flat_map(repeated).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever the content yields, and however the peer takes it, h2 holds no more than the bound, all bytes come in
        /// order, then the end, and nothing waits although there is room.
        #[test]
        fn all_of_an_answer_comes_in_order_and_little_of_it_waits(
            steps in steps(),
            end in prop_oneof![Just(End::Known), Just(End::Later), Just(End::Trailers), Just(End::Failure)],
            taken in proptest::collection::vec(1_usize..200, 1..20),
        ) {
            let length = |step: &Step| match step { Step::Data(length) => *length, Step::Pause => 0 };
            let total: usize = steps.iter().map(length).sum();
            let mut peer = Peer::new(steps, end);
            let mut rounds = taken.into_iter().cycle();
            while peer.end.is_none() {
                peer.run();
                prop_assert!(peer.joined() < 2 * PIECE_BYTES);
                let has_all = peer.queued.is_empty() && peer.joined() == 0;
                let is_paused = peer.delivery.body.is_paused;
                prop_assert!(peer.end.is_some() || is_paused || !has_all, "it waits for nothing");
                peer.resume();
                let taken = rounds.next().unwrap_or(1).min(peer.queued.len());
                peer.queued.drain(..taken);
            }
            let expected: Vec<u8> = (1..=total).map(|at| at as u8).collect();
            prop_assert!(peer.received == expected);
            // The end is known too late where an empty frame came last, or the connection has no room.
            let is_expected = peer.end == Some(end) || (end, peer.end) == (End::Known, Some(End::Later));
            prop_assert!(is_expected);
            peer.queued.clear();
            prop_assert!(peer.connection.has_no_pieces());
        }
    }

    #[test]
    fn short_pieces_go_on_at_once_while_there_is_room_and_are_joined_beyond_it() {
        let mut peer = Peer::new(vec![Step::Data(20); 2_000], End::Later);
        peer.run();
        assert_eq!(peer.queued.len(), UNSENT_BYTES / (20 + PIECE_COST));
        assert!(peer.queued.iter().all(|piece| piece.remaining() == 20));
        assert!((JOINED_BYTES..JOINED_BYTES + 20).contains(&peer.joined()));
        peer.queued.clear();
        peer.run();
        assert!(peer.queued[0].remaining() >= JOINED_BYTES);
    }

    #[test]
    fn a_short_piece_that_follows_others_keeps_no_buffer_alive() {
        let mut joined = Joined::default();
        let buffer = Bytes::from(vec![7; PIECE_BYTES]);
        for is_copied in [false, true] {
            joined.push(buffer.slice(..20));
            let piece = joined.take(is_copied);
            assert_eq!(piece.as_ptr() != buffer.as_ptr(), is_copied);
        }
        assert!(buffer.is_unique());
    }
}
