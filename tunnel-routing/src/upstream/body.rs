//! The content of an upstream's response.
//!
//! ```text
//!             request sent ──▶ Http1: the body polls the connection, and returns it to the pool at the end
//!   head ──┤
//!             still sending ─▶ Split: a task sends, so that neither direction holds up the other
//! ```
//!
//! A connection returns to its pool only after the clean end of both messages. When the body is dropped before, the
//! connection is closed or the stream reset, so that the upstream stops.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::failure::UpstreamBodyError;
use super::http1::{Connection, Split};
use super::http2::Http2Content;
use super::idle::Idle;
use super::pool::Pool;
use super::progress::Progress;
use super::upgrade::UpgradedConnection;

/// A response's content.
pub struct UpstreamBody {
    source: BodySource,
    /// Where the route has a limit.
    idle: Option<Box<Idle>>,
}

enum BodySource {
    Ended,
    Http1(Box<Connection>, Arc<Pool>),
    Split(Box<Split>),
    Http2 {
        /// Boxed, so that other responses have no room for it.
        content: Box<Http2Content>,
        /// Progress of the request, whose content may fail meanwhile.
        progress: Arc<Progress>,
    },
    Upgraded(UpgradedConnection),
}

type NextFrame = Option<Result<Frame<Bytes>, UpstreamBodyError>>;

impl UpstreamBody {
    /// The content that comes over an HTTP/1.1 connection.
    pub(super) fn http1(connection: Box<Connection>, pool: &Arc<Pool>) -> Self {
        Self::new(match (connection.is_sent(), connection.has_ended()) {
            (true, true) => {
                pool.put(connection);
                BodySource::Ended
            }
            (true, false) => BodySource::Http1(connection, Arc::clone(pool)),
            // The response is complete; the rest of the request is dropped.
            (false, true) => BodySource::Ended,
            (false, false) => BodySource::Split(Box::new(connection.split())),
        })
    }

    /// The content that comes over a stream of HTTP/2.
    pub(super) fn http2(content: Http2Content, progress: &Arc<Progress>) -> Self {
        if content.is_end_stream() {
            // The response is complete; the rest of the request is dropped.
            return Self::new(BodySource::Ended);
        }
        Self::new(BodySource::Http2 {
            content: Box::new(content),
            progress: Arc::clone(progress),
        })
    }

    /// The bytes that come over an upgraded connection.
    pub(super) fn upgraded(switched: UpgradedConnection) -> Self {
        Self::new(BodySource::Upgraded(switched))
    }

    fn new(source: BodySource) -> Self {
        Self { source, idle: None }
    }

    /// Ends the content with a problem when nothing moves for too long.
    pub(super) fn watched(mut self, idle: Option<Box<Idle>>) -> Self {
        self.idle = idle.filter(|_| !self.is_end_stream());
        self
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let Poll::Ready((frame, has_ended)) = self.source.poll_frame(cx) else {
            return self.poll_idle(cx);
        };
        if let Some(idle) = &mut self.idle {
            idle.on_input();
        }
        match &frame {
            Some(Err(_)) => self.source = BodySource::Ended,
            Some(Ok(frame)) if !has_ended && !frame.is_trailers() => {}
            _ => self.end(),
        }
        Poll::Ready(frame)
    }

    /// Polls the idle timer after nothing came.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let Some(idle) = &mut self.idle else {
            return Poll::Pending;
        };
        let problem = ready!(idle.poll(cx));
        self.source = BodySource::Ended;
        Poll::Ready(Some(Err(problem.into())))
    }

    /// The content is whole.
    fn end(&mut self) {
        match std::mem::replace(&mut self.source, BodySource::Ended) {
            BodySource::Http1(connection, pool) => pool.put(connection),
            BodySource::Upgraded(switched) => switched.end(),
            BodySource::Split(_) | BodySource::Http2 { .. } | BodySource::Ended => {}
        }
    }
}

impl BodySource {
    /// The next frame, and whether all of the content was taken with it.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<(NextFrame, bool)> {
        Poll::Ready(match self {
            Self::Ended => (None, true),
            Self::Http1(connection, _) => {
                let frame = ready!(connection.poll_frame(cx));
                (frame.map(with_problem), connection.has_ended())
            }
            Self::Split(split) => {
                let frame = ready!(split.poll_frame(cx));
                (frame.map(with_problem), split.has_ended())
            }
            Self::Http2 { content, progress } => {
                let frame = ready!(content.poll_frame(cx));
                let failed = |error: Option<h2::Error>| match (progress.failure(), error) {
                    // This side reset the stream.
                    (Some(failure), _) => failure.clone().into(),
                    (None, Some(error)) => UpstreamBodyError::from(error),
                    (None, None) => UpstreamBodyError::from(h2::Error::from(h2::Reason::CANCEL)),
                };
                let frame = frame.map(|frame| frame.map_err(failed));
                (frame, content.is_end_stream())
            }
            Self::Upgraded(switched) => (ready!(switched.poll_frame(cx)).map(with_problem), false),
        })
    }
}

fn with_problem<E>(frame: Result<Frame<Bytes>, E>) -> Result<Frame<Bytes>, UpstreamBodyError>
where
    UpstreamBodyError: From<E>,
{
    frame.map_err(UpstreamBodyError::from)
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = UpstreamBodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<NextFrame> {
        self.poll_next(cx)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.source, BodySource::Ended)
    }
}
