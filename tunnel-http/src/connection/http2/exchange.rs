//! One exchange on a stream of HTTP/2, up to the end of its answer.
//!
//! ```text
//!   Answering: the program's future ─▶ head ─▶ Sending: pieces, trailers ─▶ END_STREAM
//!        └─ Reply: 100 and 103            └─▶ an upgraded stream
//! ```
//!
//! It ends as soon as the peer resets the stream. A cut of the answer resets it behind the bytes before the cut.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use bytes::{Buf, Bytes};
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::Body;
use parking_lot::Mutex;
use pin_project_lite::pin_project;

use super::super::delivery::{Answering, Delivery};
use super::super::unsent::{Piece, Unsent, fields_cost};
use super::upgraded::Connect;
use crate::answer::keep_end_to_end;

/// The sender of the heads of one stream's answer.
#[derive(Clone)]
pub struct Reply {
    response: Arc<Mutex<SendResponse<Piece>>>,
    connection: Arc<Unsent>,
}

impl Reply {
    pub(super) fn new(response: SendResponse<Piece>, connection: &Arc<Unsent>) -> Self {
        Self {
            response: Arc::new(Mutex::new(response)),
            connection: Arc::clone(connection),
        }
    }

    /// Sends an informational head, unless the answer has begun, or the connection has no room for heads that its socket has
    /// not taken.
    pub(crate) fn send_informational(&self, status: StatusCode, headers: &HeaderMap) {
        let mut head = Response::new(());
        *head.status_mut() = status;
        head.headers_mut().clone_from(headers);
        keep_end_to_end(head.headers_mut());
        head.headers_mut().remove(header::CONTENT_LENGTH);
        if self.connection.count_head(fields_cost(head.headers())) {
            // Without effect when the answer has begun.
            let _ = self.response.lock().send_informational(head);
        }
    }

    /// Ready when the peer has reset the stream, or the connection is over.
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.response.lock().poll_reset(cx).map(drop)
    }

    /// Sends the head of the answer; `None` if the stream is over.
    fn send(&self, head: Response<()>, is_whole: bool) -> Option<SendStream<Piece>> {
        let sent = self.response.lock().send_response(head, is_whole);
        sent.inspect_err(|error| tracing::debug!(%error, "an answer was not sent"))
            .ok()
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}

pin_project! {
    /// The task of a stream. No `async` block, which would have room for the answer twice.
    pub(super) struct Exchange<F, B> {
        reply: Reply,
        // Of an extended CONNECT that is not answered yet.
        connect: Option<Box<Connect>>,
        #[pin]
        stage: Stage<F, B>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<F, B> {
        Answering { #[pin] answering: Answering<F, B> },
        Sending { #[pin] content: Delivery<B>, sending: Sending },
    }
}

impl<F, B> Exchange<F, B> {
    pub(super) fn new(answered: F, reply: Reply, connect: Option<Box<Connect>>) -> Self {
        let answering = Answering::new(answered, &reply.connection);
        Self {
            reply,
            connect,
            stage: Stage::Answering { answering },
        }
    }
}

impl<F, B> Future for Exchange<F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        loop {
            let answer = match this.stage.as_mut().project() {
                StageProjection::Answering { answering } => match answering.poll(cx) {
                    Poll::Ready(Ok(answer)) => answer,
                    Poll::Pending => return this.reply.poll_reset(cx),
                },
                StageProjection::Sending { content, sending } => return sending.poll(content, cx),
            };
            let (head, content) = answer.into_parts();
            let mut head = Response::from_parts(head, ());
            let now = || HeaderValue::try_from(httpdate::fmt_http_date(SystemTime::now()));
            if !head.headers().contains_key(header::DATE)
                && let Ok(now) = now()
            {
                head.headers_mut().insert(header::DATE, now);
            }
            if let Some(connect) = this.connect.take() {
                if head.status().is_success() {
                    if let Some(stream) = this.reply.send(head, false) {
                        connect.grant(stream, &this.reply.connection);
                    }
                    return Poll::Ready(());
                }
                connect.refuse();
            }
            let is_whole = content.is_end_stream();
            if !is_whole
                && let Some(length) = content.size_hint().exact()
                && !head.headers().contains_key(header::CONTENT_LENGTH)
            {
                head.headers_mut()
                    .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            }
            let Some(stream) = this.reply.send(head, is_whole) else {
                return Poll::Ready(());
            };
            if is_whole {
                return Poll::Ready(());
            }
            let sending = Sending { stream, next: None };
            this.stage.set(Stage::Sending { content, sending });
        }
    }
}

/// The sending of an answer's content.
struct Sending {
    stream: SendStream<Piece>,
    /// A piece that waits for the window of the stream, and whether it is the last.
    next: Option<(Piece, bool)>,
}

impl Sending {
    /// Ready when h2 has everything, or the stream is over.
    fn poll<B>(&mut self, mut content: Pin<&mut Delivery<B>>, cx: &mut Context<'_>) -> Poll<()>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        loop {
            if let Some(next) = self.next.take() {
                match self.poll_piece(next, cx) {
                    Poll::Ready(Sent::Piece) => {}
                    Poll::Ready(Sent::Last) => return Poll::Ready(()),
                    Poll::Pending => return self.poll_reset(cx),
                }
            }
            let Poll::Ready(frame) = content.as_mut().poll_frame(cx) else {
                return self.poll_reset(cx);
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    tracing::debug!(error = %error, "an answer was cut");
                    self.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(());
                }
                None => {
                    let _ = self.stream.send_data(Piece::empty(), true);
                    return Poll::Ready(());
                }
            };
            match frame.into_data() {
                Ok(piece) => self.next = Some((piece, content.is_end_stream())),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let _ = self.stream.send_trailers(trailers);
                    return Poll::Ready(());
                }
            }
        }
    }

    /// Gives a piece to h2 once the window has room for a part of it. The window of the connection is claimed for pieces
    /// that exist alone, and for one byte: a claim takes it from the other streams.
    fn poll_piece(&mut self, (piece, is_last): (Piece, bool), cx: &mut Context<'_>) -> Poll<Sent> {
        if piece.has_remaining() {
            match poll_window(&mut self.stream, cx) {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Poll::Ready(Sent::Last),
                Poll::Pending => {
                    self.next = Some((piece, is_last));
                    return Poll::Pending;
                }
            }
        }
        let sent = self.stream.send_data(piece, is_last);
        Poll::Ready(match sent.is_ok() && !is_last {
            true => Sent::Piece,
            false => Sent::Last,
        })
    }

    /// Ready when the peer has reset the stream.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_reset(cx).map(drop)
    }
}

/// Whether more of an answer follows.
enum Sent {
    Piece,
    Last,
}

/// Ready with `true` when the window of a stream has room for one byte, and with `false` when the stream is over.
pub(super) fn poll_window(stream: &mut SendStream<Piece>, cx: &mut Context<'_>) -> Poll<bool> {
    stream.reserve_capacity(1);
    while stream.capacity() == 0 {
        if !matches!(ready!(stream.poll_capacity(cx)), Some(Ok(_))) {
            return Poll::Ready(false);
        }
    }
    Poll::Ready(true)
}
