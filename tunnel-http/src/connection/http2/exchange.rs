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
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::SystemTime;

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};
use http::{HeaderValue, Response, header};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::sync::oneshot;

use super::super::delivery::{Answering, Delivery};
use crate::http2::unsent::Piece;
use crate::http2::{ContentEnd, OnUpgrade, Reply, StreamContent, UpgradedStream, poll_window};
use crate::received::ReceivedBody;
use crate::tasks::Tasks;

/// An upgrade that is not answered yet.
pub(super) struct Connect {
    content: StreamContent,
    tasks: Tasks,
    granted: oneshot::Sender<UpgradedStream>,
}

impl Connect {
    /// The upgrade of a stream with this content, and its future.
    pub(super) fn new(content: StreamContent, tasks: &Tasks) -> (Box<Self>, OnUpgrade) {
        let (granted, on_upgrade) = oneshot::channel();
        let connect = Self {
            content,
            tasks: tasks.clone(),
            granted,
        };
        (Box::new(connect), on_upgrade)
    }

    /// The answer has granted the upgrade.
    fn grant(self, stream: SendStream<Piece>, reply: &Reply) {
        // If nobody awaits it, dropping it resets the stream.
        let _ = self.granted.send(reply.upgraded(self.content, stream));
    }

    /// Content that comes nevertheless is that of any refused request.
    fn refuse(self) {
        drop(ReceivedBody::unwanted(self.content, &self.tasks));
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

    impl<F, B> PinnedDrop for Exchange<F, B> {
        fn drop(this: Pin<&mut Self>) {
            this.reply.end();
        }
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
    /// `end` is that of the request's content.
    pub(super) fn new(
        answered: F,
        reply: Reply,
        connect: Option<Box<Connect>>,
        end: ContentEnd,
    ) -> Self {
        let answering = Answering::new(answered, reply.connection(), end);
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
                        connect.grant(stream, this.reply);
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
