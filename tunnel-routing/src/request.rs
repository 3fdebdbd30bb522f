//! Which way a request came in: through a session, or at a listener of the client's own.
//!
//! Both bring the same head, content and way back for the heads ahead of the response, so that routes
//! and upstreams never ask which it was.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tunnel_proto::exchange::{self, BodyError, RecvBody};

use tunnel_http::listener_body::{ListenerBody, ListenerInformational};

/// The content of a request that came in. One that breaks off fails with why.
pub enum IncomingBody {
    /// Through a session.
    Session(RecvBody),
    /// At a listener.
    Listener(ListenerBody),
}

/// Takes the heads that go ahead of the final one.
pub enum Informational {
    /// Through a session.
    Session(exchange::Informational),
    /// At a listener. Boxed, so that what comes through sessions has no room for it.
    Listener(Box<ListenerInformational>),
}

impl Informational {
    /// Sends one ahead; false when there were too many, or the status is none that can be sent on.
    #[must_use]
    pub fn push(&self, status: StatusCode, headers: HeaderMap) -> bool {
        match self {
            Self::Session(session) => session.push(status, headers),
            Self::Listener(listener) => listener.push(status, &headers),
        }
    }
}

/// Takes them for nobody: of a request of the client's own.
impl Default for Informational {
    fn default() -> Self {
        Self::Session(exchange::Informational::default())
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Session(body) => Pin::new(body).poll_frame(cx),
            Self::Listener(body) => Pin::new(body).poll_frame(cx),
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
