//! The body of a received message, with its trailers.
//!
//! Yields the chunks as they were received, without copying. A message that ends early or does not have its
//! declared length yields an error, never an end.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Weak,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::task::noop_waker_ref;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{DETAIL, ExchangeStream, PROBLEM, ReadError, SharedStream};
use crate::{
    bhttp::{DecodeError, Event, Fields},
    close::CloseReason,
    fields,
    problem::{Hop, Problem, Reason},
};

/// Why a body ended before it was complete.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The other end reset the exchange or, with a reason, the session has ended.
    #[error("{}", cut(*.0))]
    Cut(Option<CloseReason>),
    /// This end has reset the exchange because too many received bytes were unread.
    #[error("too many bytes were unread because the reader is slow")]
    Memory,
    /// The other end's message cannot be read.
    #[error("an unreadable message: {0}")]
    Malformed(#[source] DecodeError),
    /// More or less content than `Content-Length` declares.
    #[error("content that is not as long as declared")]
    Length,
    /// The tunnel client ended the message with this problem, or the request's own body failed.
    #[error("{0}")]
    Aborted(Problem),
}

impl BodyError {
    /// The problem to report, as met by `hop`.
    #[must_use]
    pub fn problem(&self, hop: Hop) -> Problem {
        match self {
            Self::Cut(_) => Problem::new(hop, Reason::SessionLost, self.to_string()),
            Self::Memory => Problem::new(hop, Reason::MemoryLimit, self.to_string()),
            Self::Malformed(_) | Self::Length => {
                Problem::new(hop, Reason::WireMalformed, self.to_string())
            }
            Self::Aborted(problem) => problem.clone(),
        }
    }

    /// Why the session ended, if that is what cut the body.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        match self {
            Self::Cut(reason) => *reason,
            Self::Memory | Self::Malformed(_) | Self::Length | Self::Aborted(_) => None,
        }
    }
}

/// The text of [`BodyError::Cut`].
fn cut(reason: Option<CloseReason>) -> String {
    reason.map_or_else(
        || "the exchange was cut".to_owned(),
        |reason| {
            format!(
                "the exchange was cut: its session ended ({})",
                reason.name()
            )
        },
    )
}

impl From<ReadError> for BodyError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Cut(reason) => Self::Cut(reason),
            ReadError::MemoryLimit => Self::Memory,
            ReadError::NotAccepted => Self::Cut(None),
            ReadError::Malformed(error) => Self::Malformed(error),
            ReadError::Failed(problem) => Self::Aborted(*problem),
        }
    }
}

/// The body of a received request or response.
pub struct RecvBody {
    /// `None` once the message is over.
    stream: Option<Reading>,
    /// The next event, if it was read ahead.
    peeked: Option<Peeked>,
    /// The last piece of a declared length, which is held back until the message's end has arrived: a
    /// reader that counts bytes stops there, and the stream could not be reused.
    last: Option<Bytes>,
    /// Content still to come, if the length was declared.
    remaining: Option<u64>,
    /// Sends the rest of the request while this response is read, and is cancelled with it.
    sending: Option<Sending>,
}

/// The next event of a message. Trailers are boxed to keep it small: bodies are moved often and rarely have
/// trailers.
enum Peeked {
    Content(Bytes),
    End(Box<Fields>),
    /// An event that cannot occur in a body.
    Other,
}

impl From<Event> for Peeked {
    fn from(event: Event) -> Self {
        match event {
            Event::Content(content) => Self::Content(content),
            Event::End(fields) => Self::End(Box::new(fields)),
            _ => Self::Other,
        }
    }
}

/// The stream, marked as having a reader for as long as this exists.
struct Reading(SharedStream);

impl Reading {
    fn new(stream: &SharedStream) -> Self {
        stream.lock().has_reader = true;
        Self(stream.clone())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut stream = self.0.lock();
        stream.has_reader = false;
        let waker = stream.no_reader_waker.take();
        drop(stream);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct Sending {
    task: JoinSet<()>,
    stream: Weak<Mutex<ExchangeStream>>,
}

impl RecvBody {
    /// The body that follows a head with `declared` as its `Content-Length`.
    ///
    /// # Errors
    /// When the received content already differs from the declared length, or the message is malformed.
    pub(super) fn new(stream: &SharedStream, declared: Option<u64>) -> Result<Self, BodyError> {
        let is_over = stream.lock().received;
        let mut body = Self {
            stream: (!is_over).then(|| Reading::new(stream)),
            peeked: None,
            last: None,
            remaining: declared,
            sending: None,
        };
        body.peek()?;
        Ok(body)
    }

    /// Keeps the task that sends the rest of the request for as long as this body exists.
    pub(super) fn sending(
        mut self,
        task: JoinSet<()>,
        stream: Weak<Mutex<ExchangeStream>>,
    ) -> Self {
        self.sending = Some(Sending { task, stream });
        self
    }

    /// Resolves when this end's message is completely sent, or can no longer be.
    ///
    /// To be awaited once this body has been read to its end, if the other direction of an upgraded
    /// connection may still be open: dropping this body cancels it.
    pub async fn sent(&mut self) {
        let Some(Sending { task, stream }) = &mut self.sending else {
            return;
        };
        poll_fn(|cx| {
            if task.poll_join_next(cx).is_ready() {
                return Poll::Ready(());
            }
            stream
                .upgrade()
                .map_or(Poll::Ready(()), |stream| stream.lock().poll_cancelled(cx))
        })
        .await;
    }

    /// Reads the next event if it was received already, so that the end is known together with the last
    /// data.
    fn peek(&mut self) -> Result<(), BodyError> {
        let Some(stream) = &self.stream else {
            // The message ended with its head.
            return self.finish();
        };
        let mut cx = Context::from_waker(noop_waker_ref());
        let next = stream.0.lock().poll_event(&mut cx);
        match next {
            Poll::Ready(Ok(Event::End(fields))) if fields.is_empty() => return self.finish(),
            Poll::Ready(Ok(other)) => self.peeked = Some(other.into()),
            // An error is reported again, after the data that precedes it.
            Poll::Ready(Err(_)) | Poll::Pending => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), BodyError> {
        self.stream = None;
        if self.remaining.is_some_and(|remaining| remaining > 0) {
            return Err(BodyError::Length);
        }
        Ok(())
    }

    /// Counts content against the declared length; `None` if it is held back until the end.
    fn on_content(&mut self, content: Bytes) -> Result<Option<Bytes>, BodyError> {
        if let Some(remaining) = &mut self.remaining {
            *remaining = remaining
                .checked_sub(content.len() as u64)
                .ok_or(BodyError::Length)?;
        }
        self.peek()?;
        let is_last = self.remaining == Some(0) && self.stream.is_some() && self.peeked.is_none();
        if is_last {
            self.last = Some(content);
            return Ok(None);
        }
        Ok(Some(content))
    }

    fn on_end(&mut self, end: Fields) -> Result<Option<Frame<Bytes>>, BodyError> {
        if let Some(reason) = end.pseudo(PROBLEM) {
            self.stream = None;
            let problem = Problem::from_wire(reason, end.pseudo(DETAIL).map(AsRef::as_ref));
            return Err(BodyError::Aborted(problem));
        }
        self.finish()?;
        let trailers = fields::clean_trailers(end.map);
        Ok((!trailers.is_empty()).then(|| Frame::trailers(trailers)))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, BodyError>> {
        loop {
            let Some(stream) = &self.stream else {
                return Poll::Ready(Ok(None));
            };
            let event = match self.peeked.take() {
                Some(event) => event,
                None => ready!(stream.0.lock().poll_event(cx))?.into(),
            };
            match (event, self.last.take()) {
                (Peeked::Content(content), None) => {
                    if let Some(content) = self.on_content(content)? {
                        return Poll::Ready(Ok(Some(Frame::data(content))));
                    }
                }
                (Peeked::End(fields), None) => return Poll::Ready(self.on_end(*fields)),
                (Peeked::End(fields), Some(last)) => {
                    if fields.is_empty() {
                        self.finish()?;
                    } else {
                        self.peeked = Some(Peeked::End(fields));
                    }
                    return Poll::Ready(Ok(Some(Frame::data(last))));
                }
                // More content than declared, or a head within a body.
                _ => return Poll::Ready(Err(BodyError::Length)),
            }
        }
    }
}

impl Body for RecvBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let next = self.poll_next(cx);
        if matches!(next, Poll::Ready(Err(_))) {
            self.stream = None;
        }
        next.map(Result::transpose)
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.remaining {
            Some(remaining) => SizeHint::with_exact(remaining),
            None if self.stream.is_none() => SizeHint::with_exact(0),
            None => SizeHint::default(),
        }
    }
}

impl std::fmt::Debug for RecvBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvBody")
            .field("remaining", &self.remaining)
            .finish_non_exhaustive()
    }
}
