//! The content of a request that hyper has received. All bodies of hyper are read through this module.
//!
//! hyper reports an ordinary end of an HTTP/2 body also when the stream was reset with `NO_ERROR`, and when hyper closes the
//! connection because pings were not answered. Here only `END_STREAM` is an end; any other end is an error. Over HTTP/1
//! hyper distinguishes both.
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
use http::{Request, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;

use self::unread::AnswerStage;
pub(crate) use self::unread::UnreadContent;
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
    /// Its connection or stream failed, or it broke HTTP.
    #[error(transparent)]
    Failed(#[from] hyper::Error),
    /// Its stream was reset without an error, or its connection given up.
    #[error("the stream was reset before its end")]
    Reset,
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
pub struct ReceivedBody(BodyState);

#[derive(Debug)]
enum BodyState {
    /// With what the connection knows of it.
    Http1(Incoming, Arc<UnreadContent>),
    /// With the tasks of the connection.
    Http2(Incoming, Tasks),
    Ended,
    Failed,
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
            let request = Request::from_parts(parts, Self(BodyState::Ended));
            return (request, None);
        }
        let expects_continue = parts.headers.contains_key(header::EXPECT);
        let unread = UnreadContent::new(&incoming, expects_continue, tasks);
        let body = Self(BodyState::Http1(incoming, Arc::clone(&unread)));
        (Request::from_parts(parts, body), Some(unread))
    }

    /// The content of a request over HTTP/2. `tasks` are those of its connection.
    pub(crate) fn http2_request(incoming: Incoming, tasks: &Tasks) -> Self {
        Self(if incoming.is_end_stream() {
            BodyState::Ended
        } else {
            BodyState::Http2(incoming, tasks.clone())
        })
    }

    /// Ready when content may be read that waits for a 100 which will not be sent: over HTTP/1, when hyper has the answer's
    /// head, since it would send a 100 before that.
    pub(crate) fn poll_answer_begun(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            BodyState::Http1(_, unread) => unread.poll_answer(AnswerStage::Begun, cx),
            BodyState::Http2(..) | BodyState::Ended | BodyState::Failed => Poll::Ready(()),
        }
    }

    /// Ready when the exchange is to end, since neither content nor answer comes, see [`UnreadContent::poll_given_up`].
    pub(crate) fn poll_given_up(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.0 {
            BodyState::Http1(_, unread) => unread.poll_given_up(cx),
            BodyState::Http2(..) | BodyState::Ended | BodyState::Failed => Poll::Pending,
        }
    }

    /// Lets the content go. What the peer still sends of a request is read and dropped for a moment,
    /// outside of its exchange and without any of its permits: it takes a stream of the connection, and
    /// no memory. A reset right behind the answer would make some clients lose the answer.
    fn let_go(&mut self) {
        let (mut incoming, tasks) = match std::mem::replace(&mut self.0, BodyState::Ended) {
            BodyState::Http1(incoming, unread) => return unread.discard(incoming),
            BodyState::Http2(incoming, tasks) => (incoming, tasks),
            BodyState::Ended | BodyState::Failed => return,
        };
        let mut noop = Context::from_waker(Waker::noop());
        let first = match Pin::new(&mut incoming).poll_frame(&mut noop) {
            Poll::Ready(Some(Ok(frame))) => length(&frame),
            // The whole exchange is over.
            Poll::Ready(_) => return,
            Poll::Pending => 0,
        };
        // A program that ends drops what it has outside of its runtime.
        if Handle::try_current().is_ok() {
            tasks.spawn(async move {
                let _ = timeout(DISCARD_TIME, discard(incoming, first)).await;
            });
        }
    }
}

/// Reads and drops content to its end, or to the bound. `first` bytes of it were read before.
async fn discard(mut incoming: Incoming, first: usize) {
    let mut discarded = first;
    while discarded < DISCARD_BYTES
        && let Some(Ok(frame)) = incoming.frame().await
    {
        discarded += length(&frame);
    }
}

fn length(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Bytes::len)
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
        let (frame, is_end) = match &mut self.0 {
            BodyState::Http1(incoming, unread) => {
                let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
                match &frame {
                    Some(Ok(frame)) if frame.is_data() => unread.on_piece(incoming),
                    Some(Ok(_)) | None => unread.on_end(),
                    Some(Err(_)) => unread.on_failed(),
                }
                (frame, true)
            }
            BodyState::Http2(incoming, _) => {
                let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
                // Stays true when a reset follows the end.
                (frame, incoming.is_end_stream())
            }
            BodyState::Ended => return Poll::Ready(None),
            BodyState::Failed => return Poll::Ready(Some(Err(ReceiveError::Reset))),
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(Ok(frame)),
            Some(Err(error)) => {
                self.0 = BodyState::Failed;
                Some(Err(error.into()))
            }
            None if is_end => {
                self.0 = BodyState::Ended;
                None
            }
            None => {
                self.0 = BodyState::Failed;
                Some(Err(ReceiveError::Reset))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyState::Http1(incoming, _) | BodyState::Http2(incoming, _) => {
                incoming.is_end_stream()
            }
            BodyState::Ended => true,
            BodyState::Failed => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyState::Http1(incoming, _) | BodyState::Http2(incoming, _) => incoming.size_hint(),
            BodyState::Ended => SizeHint::with_exact(0),
            BodyState::Failed => SizeHint::default(),
        }
    }
}
