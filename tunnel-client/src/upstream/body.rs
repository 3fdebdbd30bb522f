//! The content of an upstream's response on its way into the tunnel.
//!
//! ```text
//!             request sent ──▶ Here: this body polls the connection, and rests it at the end
//!   head ──┤
//!             still sending ─▶ Apart: a task does, since neither direction may hold up the other
//! ```
//!
//! A connection goes back to its pool only at the clean end of both messages. Dropped before, the
//! connection is closed, or the stream reset, which tells the upstream that nobody listens.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tunnel_ops::task::Owned;

use super::Connection;
use super::failure::UpstreamBodyError;
use super::http2::Lease;
use super::pool::Pool;
use super::progress::Progress;
use super::upgrade::Switched;

/// A response's content.
pub(crate) struct UpstreamBody(Kind);

enum Kind {
    Ended,
    Http1 {
        incoming: Incoming,
        driving: Driving,
    },
    Http2 {
        incoming: Incoming,
        _lease: Lease,
    },
    Upgraded(Switched),
}

/// Who polls the connection while the content comes.
enum Driving {
    Here(Box<Connection>, Arc<Pool>),
    Apart(#[expect(dead_code, reason = "the task ends with this body")] Owned<()>),
}

type NextFrame = Option<Result<Frame<Bytes>, UpstreamBodyError>>;

impl UpstreamBody {
    /// The content that comes over an HTTP/1.1 connection.
    pub(super) fn http1(
        incoming: Incoming,
        connection: Box<Connection>,
        pool: &Arc<Pool>,
        progress: &Progress,
    ) -> Self {
        let driving = if progress.has_ended() {
            if incoming.is_end_stream() {
                pool.put(connection);
                return Self(Kind::Ended);
            }
            Driving::Here(connection, Arc::clone(pool))
        } else if incoming.is_end_stream() {
            // The rest of the request is of no use to anybody.
            return Self(Kind::Ended);
        } else {
            Driving::Apart(Owned::spawn("upstream connection", drive(connection)))
        };
        Self(Kind::Http1 { incoming, driving })
    }

    /// The content that comes over a stream of HTTP/2.
    pub(super) fn http2(incoming: Incoming, lease: Lease) -> Self {
        Self(Kind::Http2 {
            incoming,
            _lease: lease,
        })
    }

    /// The bytes that come over an upgraded connection.
    pub(super) fn upgraded(switched: Switched) -> Self {
        Self(Kind::Upgraded(switched))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<NextFrame> {
        let (frame, has_ended) = match &mut self.0 {
            Kind::Ended => return Poll::Ready(None),
            Kind::Http1 { incoming, driving } => {
                let frame = match driving {
                    Driving::Here(connection, _) => connection.poll_frame(incoming, cx),
                    Driving::Apart(_) => Pin::new(&mut *incoming).poll_frame(cx),
                };
                (ready!(frame).map(with_problem), incoming.is_end_stream())
            }
            Kind::Http2 { incoming, .. } => {
                let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
                (frame.map(with_problem), incoming.is_end_stream())
            }
            Kind::Upgraded(switched) => (ready!(switched.poll_frame(cx)).map(with_problem), false),
        };
        match &frame {
            Some(Err(_)) => self.0 = Kind::Ended,
            Some(Ok(frame)) if !has_ended && !frame.is_trailers() => {}
            _ => self.end(),
        }
        Poll::Ready(frame)
    }

    /// The content is whole.
    fn end(&mut self) {
        match std::mem::replace(&mut self.0, Kind::Ended) {
            Kind::Http1 {
                driving: Driving::Here(connection, pool),
                ..
            } => pool.put(connection),
            Kind::Upgraded(switched) => switched.end(),
            Kind::Http1 { .. } | Kind::Http2 { .. } | Kind::Ended => {}
        }
    }
}

/// Polls a connection until it ends, or is not needed any more.
async fn drive(mut connection: Box<Connection>) {
    poll_fn(|cx| {
        connection.poll(cx);
        if connection.has_ended() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
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
        matches!(self.0, Kind::Ended)
    }
}
