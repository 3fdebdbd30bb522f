//! The content of a request, as hyper or h2 has received it. A cut is never an end.
//!
//! A request's content that is dropped before its end is read and discarded for a moment: over HTTP/2 so that the platform
//! client can read the response before the stream is reset, over HTTP/1 (`unread`) so that the connection can be kept.

#[cfg(test)]
mod tests;
mod unread;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;

use self::unread::AnswerStage;
pub(crate) use self::unread::UnreadContent;
use crate::http2::{OnUpgrade, Reply, StreamContent};
use crate::tasks::Tasks;

/// How much of an unwanted content is discarded at most: four windows of a stream. The peer gets
/// the next window only by reading what is written to it, and so has read its answer by then.
const DISCARD_BYTES: usize = 1024 * 1024;

/// How long such content is discarded at most: what a closing connection of HTTP/1 has as well. Longer
/// than a round trip, so that the peer has read its answer and stopped by then.
const DISCARD_TIME: Duration = Duration::from_secs(2);

/// Why received content ended before it was whole.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// Its connection failed, or it broke HTTP/1.
    #[error(transparent)]
    Failed(#[from] hyper::Error),
    /// Its stream of HTTP/2 was reset, or the connection of that failed.
    #[error(transparent)]
    Reset(#[from] h2::Error),
    /// It has failed before.
    #[error("the content has failed")]
    Over,
}

impl ReceiveError {
    /// Whether nothing came for too long: over HTTP/1 the connection's guard keeps the time, and says so
    /// by the kind of its error.
    #[must_use]
    pub fn is_timed_out(&self) -> bool {
        let Self::Failed(error) = self else {
            return false;
        };
        let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
        cause.is_some_and(|cause: &io::Error| cause.kind() == io::ErrorKind::TimedOut)
    }
}

/// The content of a request, of which nothing but its real end is an end.
#[derive(Debug)]
pub struct ReceivedBody {
    state: BodyState,
    /// Sends informational responses to the request, over HTTP/2.
    reply: Option<Reply>,
    /// Of an extended CONNECT.
    on_upgrade: Option<OnUpgrade>,
}

#[derive(Debug)]
enum BodyState {
    /// With what the connection knows of it.
    Http1(Incoming, Arc<UnreadContent>),
    Http2(Http2Content),
    Ended,
    Failed,
}

#[derive(Debug)]
struct Http2Content {
    stream: StreamContent,
    /// How many bytes are missing; `None` if that is not known.
    missing: Option<u64>,
    /// The tasks of the connection.
    tasks: Tasks,
}

impl ReceivedBody {
    /// A request over HTTP/1, and what its connection has to know of its content; `None` if there is no content.
    /// `tasks` are those of the connection.
    pub(crate) fn http1_request(
        request: Request<Incoming>,
        tasks: &Tasks,
    ) -> (Request<Self>, Option<Arc<UnreadContent>>) {
        let (parts, incoming) = request.into_parts();
        if incoming.is_end_stream() {
            let request = Request::from_parts(parts, BodyState::Ended.into());
            return (request, None);
        }
        let expects_continue = parts.headers.contains_key(header::EXPECT);
        let unread = UnreadContent::new(&incoming, expects_continue, tasks);
        let body = BodyState::Http1(incoming, Arc::clone(&unread));
        (Request::from_parts(parts, body.into()), Some(unread))
    }

    /// A CONNECT over HTTP/2, whose content is that of the upgraded stream.
    pub(crate) fn upgrade(on_upgrade: OnUpgrade, reply: Reply) -> Self {
        let mut body = Self::from(BodyState::Ended);
        body.reply = Some(reply);
        body.on_upgrade = Some(on_upgrade);
        body
    }

    /// The content of another request over HTTP/2. `tasks` are those of its connection.
    pub(crate) fn http2_request(
        head: &Parts,
        stream: StreamContent,
        reply: Reply,
        tasks: &Tasks,
    ) -> Self {
        let mut body = Self::from(BodyState::Ended);
        body.reply = Some(reply);
        if !stream.is_end_stream() {
            // h2 ends a stream whose content has another length.
            let length = head.headers.get(header::CONTENT_LENGTH);
            let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
            body.state = BodyState::Http2(Http2Content {
                stream,
                missing: length,
                tasks: tasks.clone(),
            });
        }
        body
    }

    /// Content that nobody wants.
    pub(crate) fn unwanted(stream: StreamContent, tasks: &Tasks) -> Self {
        Self::from(BodyState::Http2(Http2Content {
            stream,
            missing: None,
            tasks: tasks.clone(),
        }))
    }

    /// Sends informational responses to the request; `None` over HTTP/1, whose guard does so.
    #[must_use]
    pub fn reply(&self) -> Option<Reply> {
        self.reply.clone()
    }

    /// The future that resolves when the upgrade of a stream is granted; `None` if the request is no CONNECT over HTTP/2.
    pub fn on_upgrade(&mut self) -> Option<OnUpgrade> {
        self.on_upgrade.take()
    }

    /// Asks for content that waits for that (RFC 9110 section 10.1.1). Over HTTP/1 hyper does so when it is read.
    pub(crate) fn send_continue(&self) {
        if let Some(reply) = &self.reply {
            reply.send_informational(StatusCode::CONTINUE, HeaderMap::new());
        }
    }

    /// Ready when content may be read that waits for a 100 which will not be sent: over HTTP/1, when hyper has the answer's
    /// head, since it would send a 100 before that.
    pub(crate) fn poll_answer_begun(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.state {
            BodyState::Http1(_, unread) => unread.poll_answer(AnswerStage::Begun, cx),
            BodyState::Http2(_) | BodyState::Ended | BodyState::Failed => Poll::Ready(()),
        }
    }

    /// Ready when the exchange is to end, since neither content nor answer comes, see [`UnreadContent::poll_given_up`].
    pub(crate) fn poll_given_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.state {
            BodyState::Http1(_, unread) => unread.poll_given_up(cx),
            BodyState::Http2(_) | BodyState::Ended | BodyState::Failed => Poll::Pending,
        }
    }

    /// Lets the content go. What the peer still sends of a request is read and dropped for a moment,
    /// outside of its exchange and without any of its permits: it takes a stream of the connection, and
    /// no memory. A reset right behind the answer would make some clients lose the answer.
    fn let_go(&mut self) {
        let content = match std::mem::replace(&mut self.state, BodyState::Ended) {
            BodyState::Http1(incoming, unread) => return unread.discard(incoming),
            BodyState::Http2(content) => content,
            BodyState::Ended | BodyState::Failed => return,
        };
        let Http2Content {
            mut stream, tasks, ..
        } = content;
        let mut noop = Context::from_waker(Waker::noop());
        let first = match Pin::new(&mut stream).poll_frame(&mut noop) {
            Poll::Ready(Some(Ok(frame))) => length(&frame),
            // The whole exchange is over.
            Poll::Ready(_) => return,
            Poll::Pending => 0,
        };
        // A program that ends drops what it has outside of its runtime.
        if Handle::try_current().is_ok() {
            tasks.spawn(async move {
                let _ = timeout(DISCARD_TIME, discard(stream, first)).await;
            });
        }
    }
}

/// Reads and drops content to its end, or to the bound. `first` bytes of it were read before.
async fn discard(mut stream: StreamContent, first: usize) {
    let mut discarded = first;
    while discarded < DISCARD_BYTES
        && let Some(Ok(frame)) = stream.frame().await
    {
        discarded += length(&frame);
    }
}

fn length(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len)
}

impl From<BodyState> for ReceivedBody {
    fn from(state: BodyState) -> Self {
        Self {
            state,
            reply: None,
            on_upgrade: None,
        }
    }
}

impl Drop for ReceivedBody {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = ReceiveError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ReceiveError>>> {
        let frame = match &mut self.state {
            BodyState::Http1(incoming, unread) => {
                let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
                match &frame {
                    Some(Ok(frame)) if frame.is_data() => unread.on_piece(incoming),
                    Some(Ok(_)) | None => unread.on_end(),
                    Some(Err(_)) => unread.on_failed(),
                }
                frame.map(|frame| frame.map_err(ReceiveError::from))
            }
            BodyState::Http2(content) => {
                let frame = ready!(Pin::new(&mut content.stream).poll_frame(cx));
                if let (Some(missing), Some(Ok(frame))) = (&mut content.missing, &frame) {
                    *missing = missing.saturating_sub(length(frame) as u64);
                }
                frame.map(|frame| frame.map_err(ReceiveError::from))
            }
            BodyState::Ended => return Poll::Ready(None),
            BodyState::Failed => return Poll::Ready(Some(Err(ReceiveError::Over))),
        };
        match &frame {
            Some(Ok(_)) => {}
            Some(Err(_)) => self.state = BodyState::Failed,
            None => self.state = BodyState::Ended,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            BodyState::Http1(incoming, _) => incoming.is_end_stream(),
            BodyState::Http2(content) => content.stream.is_end_stream(),
            BodyState::Ended => true,
            BodyState::Failed => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            BodyState::Http1(incoming, _) => incoming.size_hint(),
            BodyState::Http2(content) => content
                .missing
                .map_or_else(SizeHint::default, SizeHint::with_exact),
            BodyState::Ended => SizeHint::with_exact(0),
            BodyState::Failed => SizeHint::default(),
        }
    }
}
