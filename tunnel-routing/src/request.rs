//! Where a request comes from: a session of the tunnel, or a listener.
//!
//! Both bring a head, content and a sender for informational heads, so that routes and upstreams need not know
//! which it was.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tunnel_http::listener_body::{ListenerBody, ListenerInformational, ReceivedContent};
use tunnel_proto::exchange::{self, BodyError, RecvBody};

/// The content of a request. One that breaks off fails with the reason.
pub enum RequestBody {
    /// Through a session.
    Session(RecvBody),
    /// At a listener. The content is boxed, so that other requests have no room for it.
    Listener(ListenerBody<Box<ReceivedContent>>),
}

/// Takes informational heads (1xx) for the platform client.
pub enum Informational {
    /// Through a session.
    Session(exchange::Informational),
    /// At a listener. Boxed, so that requests through sessions have no room for it.
    Listener(Box<Mutex<ListenerInformational>>),
}

impl Informational {
    /// Sends an informational head; `false` when there were too many, or the status cannot be forwarded.
    #[must_use]
    pub fn push(&self, status: StatusCode, headers: HeaderMap) -> bool {
        match self {
            Self::Session(session) => session.push(status, headers),
            Self::Listener(listener) => listener.lock().push(status, &headers),
        }
    }
}

/// Drops informational heads: for a request of the client itself.
impl Default for Informational {
    fn default() -> Self {
        Self::Session(exchange::Informational::default())
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Session(body) => Pin::new(body).poll_frame(cx),
            Self::Listener(body) => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Aborted)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Session(body) => body.is_end_stream(),
            Self::Listener(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Session(body) => body.size_hint(),
            Self::Listener(body) => body.size_hint(),
        }
    }
}
