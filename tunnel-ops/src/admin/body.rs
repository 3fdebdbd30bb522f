//! What an answer of the admin listener consists of: bytes that are all there, or a stream.
//!
//! A stream holds its place among the listener's streams until it is dropped, however it ends.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

/// The content of an answer.
pub struct AdminBody(Content);

enum Content {
    Whole(Full<Bytes>),
    Stream {
        body: UnsyncBoxBody<Bytes, Infallible>,
        _place: Option<OwnedSemaphorePermit>,
    },
}

impl AdminBody {
    /// All of it is here.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self(Content::Whole(Full::new(bytes.into())))
    }

    /// It comes bit by bit, and may go on for as long as the peer listens: events, say. A peer that is gone
    /// is noticed by what is sent to it, so send something now and then.
    pub fn stream(body: impl Body<Data = Bytes, Error = Infallible> + Send + 'static) -> Self {
        Self(Content::Stream {
            body: body.boxed_unsync(),
            _place: None,
        })
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self.0, Content::Stream { .. })
    }

    pub(super) fn holding(self, place: OwnedSemaphorePermit) -> Self {
        Self(match self.0 {
            Content::Stream { body, .. } => Content::Stream {
                body,
                _place: Some(place),
            },
            whole @ Content::Whole(_) => whole,
        })
    }
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Content::Whole(body) => Pin::new(body).poll_frame(cx),
            Content::Stream { body, .. } => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Whole(body) => body.is_end_stream(),
            Content::Stream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(body) => body.size_hint(),
            Content::Stream { body, .. } => body.size_hint(),
        }
    }
}

impl fmt::Debug for AdminBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminBody")
            .field("is_stream", &self.is_stream())
            .finish_non_exhaustive()
    }
}
