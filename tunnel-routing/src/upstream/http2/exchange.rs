//! One exchange over a stream of HTTP/2.
//!
//! ```text
//!   request ─▶ Http2Exchange: sends head and content ─▶ upstream
//!   response head ◀─┘      ╲ content that is not sent yet: a task
//!   response content ◀─ Http2Content
//! ```

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame};
use tunnel_http::http2::StreamContent;
use tunnel_ops::task::Owned;

use super::connection::Lease;
use super::piece::{Piece, UnsentContent};
use crate::upstream::outgoing_body::OutgoingBody;

/// An exchange up to the head of its response.
pub(in crate::upstream) struct Http2Exchange {
    response: ResponseFuture,
    upload: Upload,
    /// Dropped last: a stream that is given up is reset before its place is given back.
    lease: Lease,
}

/// Why an exchange has no response.
pub(in crate::upstream) struct Http2Failure {
    /// Its place on the connection.
    pub(in crate::upstream) lease: Lease,
    /// The error; `None` if the content of the request failed.
    pub(in crate::upstream) error: Option<h2::Error>,
    /// The content of the request, of which some may have been taken.
    pub(in crate::upstream) content: OutgoingBody,
    /// Whether nothing of the request was sent.
    pub(in crate::upstream) is_unsent: bool,
}

/// A request's content that is being sent.
struct Upload {
    /// `None` if the request has no content. Kept after the last piece, see [`Http2Content::on_end`].
    stream: Option<SendStream<Piece>>,
    /// Whether all was handed to `h2`, or the upstream wants no more.
    has_ended: bool,
    content: OutgoingBody,
    /// Data of it for which the upstream has given no window yet. It is taken before there is any, since an end and trailers
    /// need none.
    piece: Bytes,
    /// The bytes that `h2` holds.
    unsent: Arc<UnsentContent>,
    /// Whether a piece was handed to `h2`.
    has_begun: bool,
    /// Whether trailers may be sent.
    has_trailers: bool,
    /// Whether nothing is sent yet, since the upstream has not agreed to an upgrade.
    is_held: bool,
}

impl Http2Exchange {
    /// Sends the head of a request, and then its content while the exchange is polled. `has_trailers` says whether trailers
    /// may follow it; others are dropped.
    ///
    /// # Errors
    /// When the connection takes no request.
    pub(in crate::upstream) fn begin(
        mut lease: Lease,
        request: Request<()>,
        content: OutgoingBody,
        has_trailers: bool,
    ) -> Result<Self, Box<Http2Failure>> {
        let is_upgrade = request.extensions().get::<h2::ext::Protocol>().is_some();
        let is_whole = content.is_end_stream() && !is_upgrade;
        match lease.requests().send_request(request, is_whole) {
            Ok((response, stream)) => {
                lease.on_begin();
                Ok(Self {
                    lease,
                    response,
                    upload: Upload {
                        stream: (!is_whole).then_some(stream),
                        has_ended: is_whole,
                        content,
                        piece: Bytes::new(),
                        unsent: Arc::default(),
                        has_begun: false,
                        has_trailers,
                        is_held: is_upgrade,
                    },
                })
            }
            Err(error) => Err(Box::new(Http2Failure {
                lease,
                error: Some(error),
                content,
                is_unsent: true,
            })),
        }
    }

    /// Polls for the head of the response while the request is sent. `on_informational` gets the heads before it.
    pub(in crate::upstream) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        mut on_informational: impl FnMut(StatusCode, HeaderMap),
    ) -> Poll<Result<Response<RecvStream>, Option<h2::Error>>> {
        if !self.upload.is_held
            && let Poll::Ready(Err(ContentFailed)) = self.upload.poll(cx)
        {
            return Poll::Ready(Err(None));
        }
        while let Poll::Ready(Some(Ok(head))) = self.response.poll_informational(cx) {
            let head = head.into_parts().0;
            on_informational(head.status, head.headers);
        }
        let response = ready!(Pin::new(&mut self.response).poll(cx));
        Poll::Ready(response.map_err(Some))
    }

    /// Gives up; the content comes back.
    pub(in crate::upstream) fn fail(self, error: Option<h2::Error>) -> Http2Failure {
        Http2Failure {
            lease: self.lease,
            error,
            content: self.upload.content,
            is_unsent: false,
        }
    }

    /// The response has begun with this content. What is not sent of the request goes on in a task, so that neither
    /// direction holds up the other.
    pub(in crate::upstream) fn content(self, stream: RecvStream) -> Http2Content {
        let Self {
            lease, mut upload, ..
        } = self;
        upload.content.release_kept();
        let content = lease.contents().content(stream);
        let mut sent = None;
        let mut sending = None;
        if upload.has_ended {
            sent = upload.stream;
        } else {
            sending = Some(Owned::spawn("upstream request", async move {
                poll_fn(|cx| upload.poll(cx)).await.map(|()| upload.stream)
            }));
        }
        let mut content = Http2Content {
            content,
            sending,
            sent,
            has_ended: false,
            lease,
        };
        if content.is_end_stream() {
            content.on_end();
        }
        content
    }

    /// The upstream has agreed to an upgrade: `content` of the request is sent from now on, by a task. Content of the response
    /// is received beside it.
    pub(in crate::upstream) fn switch(
        self,
        stream: RecvStream,
        content: OutgoingBody,
    ) -> (StreamContent, Owned<()>, Lease) {
        let Self {
            lease, mut upload, ..
        } = self;
        upload.content = content;
        let received = lease.contents().content(stream);
        let sending = Owned::spawn("upgrade", async move {
            // An error is one of the connection or of the exchange, which the other direction reports.
            let _ = poll_fn(|cx| upload.poll(cx)).await;
        });
        (received, sending, lease)
    }
}

/// The content of the request failed; why is in its progress.
#[derive(Debug)]
struct ContentFailed;

impl Upload {
    /// Sends as much as the upstream takes. Ready when all was sent, or the upstream wants no more of it.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ContentFailed>> {
        while !self.has_ended {
            let Some(stream) = &mut self.stream else {
                break;
            };
            // A reset comes also while the content is awaited.
            if stream.poll_reset(cx).is_ready() {
                self.end();
                break;
            }
            let sent = if self.piece.is_empty() {
                match ready!(Pin::new(&mut self.content).poll_frame(cx)) {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => {
                            self.piece = data;
                            continue;
                        }
                        Err(frame) if self.has_trailers => {
                            stream.send_trailers(frame.into_trailers().unwrap_or_default())
                        }
                        Err(_) => stream.send_data(Piece::empty(), true),
                    },
                    None => stream.send_data(Piece::empty(), true),
                    Some(Err(_)) => {
                        stream.send_reset(Reason::CANCEL);
                        self.has_ended = true;
                        return Poll::Ready(Err(ContentFailed));
                    }
                }
                .map(|()| true)
            } else {
                // `h2` gives no window before it has sent the head. So the first piece is handed to it at once, and goes
                // with the head if the window allows.
                if self.has_begun && ready!(poll_window(stream, cx)).is_err() {
                    self.end();
                    break;
                }
                ready!(self.unsent.poll_room(cx, self.piece.len()));
                let is_last = self.content.is_end_stream();
                let piece = Piece::new(std::mem::take(&mut self.piece), &self.unsent);
                self.has_begun = true;
                stream.send_data(piece, is_last).map(|()| is_last)
            };
            // An error means that the stream is over; the response says why.
            if sent.unwrap_or(true) {
                self.end();
            }
        }
        Poll::Ready(Ok(()))
    }

    fn end(&mut self) {
        self.has_ended = true;
        self.content.on_sent();
    }
}

/// The stream is over; its response says why.
struct StreamOver;

/// Ready when there is room for some data.
fn poll_window(
    stream: &mut SendStream<Piece>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), StreamOver>> {
    stream.reserve_capacity(1);
    while stream.capacity() == 0 {
        match ready!(stream.poll_capacity(cx)) {
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return Poll::Ready(Err(StreamOver)),
        }
    }
    Poll::Ready(Ok(()))
}

/// The content of a response, and the sending of the request behind it.
pub(in crate::upstream) struct Http2Content {
    content: StreamContent,
    /// Sends what is left of the request, and then gives its stream.
    sending: Option<Owned<Result<Option<SendStream<Piece>>, ContentFailed>>>,
    /// The stream of a request whose content was handed to `h2`.
    sent: Option<SendStream<Piece>>,
    /// Whether all of the response was taken.
    has_ended: bool,
    lease: Lease,
}

impl Http2Content {
    /// The next frame. An error is `None` if the content of the request failed.
    pub(in crate::upstream) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Option<h2::Error>>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(Err(ContentFailed)) = self.poll_sending(cx) {
            return Poll::Ready(Some(Err(None)));
        }
        let frame = ready!(Pin::new(&mut self.content).poll_frame(cx));
        if self.is_end_stream() || frame.is_none() {
            self.on_end();
        } else if let Some(Err(error)) = &frame
            && error.is_remote()
            && error.is_reset()
        {
            // The upstream has ended the stream itself.
            self.lease.on_whole();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Some)))
    }

    /// Ready when the rest of the request was sent, or there is none.
    fn poll_sending(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ContentFailed>> {
        let Some(sending) = &mut self.sending else {
            return Poll::Ready(Ok(()));
        };
        let sent = ready!(Pin::new(sending).poll(cx));
        self.sending = None;
        // A task that does not end by itself has failed.
        self.sent = sent.unwrap_or(Err(ContentFailed))?;
        Poll::Ready(Ok(()))
    }

    /// The response is whole. What the upstream has not taken of the request goes no further: `h2` would keep it, and count
    /// the stream, for as long as the upstream gives no window.
    fn on_end(&mut self) {
        self.has_ended = true;
        let mut noop = Context::from_waker(Waker::noop());
        if self.poll_sending(&mut noop).is_ready() {
            self.lease.on_whole();
        }
        if let Some(sent) = &mut self.sent {
            // Does nothing if all of it was written.
            sent.send_reset(Reason::NO_ERROR);
        }
    }

    /// Whether all of the content was taken.
    pub(in crate::upstream) fn is_end_stream(&self) -> bool {
        self.has_ended || self.content.is_end_stream()
    }
}
