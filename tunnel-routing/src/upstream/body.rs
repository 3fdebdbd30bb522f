//! The content of an upstream's response on its way into the tunnel.
//!
//! ```text
//!             request sent ──▶ Http1: this body polls the connection, and rests it at the end
//!   head ──┤
//!             still sending ─▶ Split: a task sends, since neither direction may hold up the other
//! ```
//!
//! A connection goes back to its pool only at the clean end of both messages. Dropped before, the
//! connection is closed, or the stream reset, which tells the upstream that nobody listens.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

use tunnel_http::received::ReceivedBody;

use super::failure::UpstreamBodyError;
use super::http1::{Connection, Split};
use super::http2::Lease;
use super::idle::Idle;
use super::pool::Pool;
use super::progress::Progress;
use super::upgrade::Switched;

/// A response's content.
pub struct UpstreamBody {
    kind: Kind,
    /// Where the route has a limit.
    idle: Option<Box<Idle>>,
}

enum Kind {
    Ended,
    Http1(Box<Connection>, Arc<Pool>),
    Split(Box<Split>),
    Http2 {
        incoming: ReceivedBody,
        _lease: Lease,
        /// That of the request, which may fail meanwhile.
        progress: Arc<Progress>,
    },
    Upgraded(Switched),
}

type NextFrame = Option<Result<Frame<Bytes>, UpstreamBodyError>>;

impl UpstreamBody {
    /// The content that comes over an HTTP/1.1 connection.
    pub(super) fn http1(connection: Box<Connection>, pool: &Arc<Pool>) -> Self {
        Self::new(match (connection.is_sent(), connection.has_ended()) {
            (true, true) => {
                pool.put(connection);
                Kind::Ended
            }
            (true, false) => Kind::Http1(connection, Arc::clone(pool)),
            // The rest of the request is of no use to anybody.
            (false, true) => Kind::Ended,
            (false, false) => Kind::Split(Box::new(connection.split())),
        })
    }

    /// The content that comes over a stream of HTTP/2.
    pub(super) fn http2(incoming: ReceivedBody, lease: Lease, progress: &Arc<Progress>) -> Self {
        Self::new(Kind::Http2 {
            incoming,
            _lease: lease,
            progress: Arc::clone(progress),
        })
    }

    /// The bytes that come over an upgraded connection.
    pub(super) fn upgraded(switched: Switched) -> Self {
        Self::new(Kind::Upgraded(switched))
    }

    fn new(kind: Kind) -> Self {
        Self { kind, idle: None }
    }

    /// The same, ended when nothing moves for too long.
    pub(super) fn watched(mut self, idle: Option<Box<Idle>>) -> Self {
        self.idle = idle.filter(|_| !self.is_end_stream());
        self
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let Poll::Ready((frame, has_ended)) = self.kind.poll_frame(cx) else {
            return self.poll_idle(cx);
        };
        if let Some(idle) = &mut self.idle {
            idle.on_input();
        }
        match &frame {
            Some(Err(_)) => self.kind = Kind::Ended,
            Some(Ok(frame)) if !has_ended && !frame.is_trailers() => {}
            _ => self.end(),
        }
        Poll::Ready(frame)
    }

    /// Nothing came.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let Some(idle) = &mut self.idle else {
            return Poll::Pending;
        };
        let problem = ready!(idle.poll(cx));
        self.kind = Kind::Ended;
        Poll::Ready(Some(Err(problem.into())))
    }

    /// The content is whole.
    fn end(&mut self) {
        match std::mem::replace(&mut self.kind, Kind::Ended) {
            Kind::Http1(connection, pool) => pool.put(connection),
            Kind::Upgraded(switched) => switched.end(),
            Kind::Split(_) | Kind::Http2 { .. } | Kind::Ended => {}
        }
    }
}

impl Kind {
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
            Self::Http2 {
                incoming, progress, ..
            } => {
                let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
                let failed = |error| match progress.failure() {
                    // The stream was reset by us.
                    Some(failure) => failure.clone().into(),
                    None => UpstreamBodyError::from(error),
                };
                let frame = frame.map(|frame| frame.map_err(failed));
                (frame, incoming.is_end_stream())
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
        matches!(self.kind, Kind::Ended)
    }
}
