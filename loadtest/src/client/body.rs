//! The content of requests: bytes that are there, or a stream of them.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream::LocalBoxStream};
use http_body::Frame;
use http_body_util::{Either, Full, StreamBody};

/// The size of the chunks of large content: large enough that its cost per byte is the kernel's.
pub const CHUNK: usize = 256 * 1024;

/// A request's content.
pub type Outgoing =
    Either<Full<Bytes>, StreamBody<LocalBoxStream<'static, Result<Frame<Bytes>, Infallible>>>>;

/// No content.
pub fn empty() -> Outgoing {
    full(Bytes::new())
}

/// These bytes.
pub fn full(bytes: Bytes) -> Outgoing {
    Either::Left(Full::new(bytes))
}

/// The pieces of a stream, until it ends. The length is announced only by a field of the head.
pub fn stream(pieces: impl Stream<Item = Bytes> + 'static) -> Outgoing {
    Either::Right(StreamBody::new(frames(pieces).boxed_local()))
}

/// The pieces of a stream as frames of content that cannot fail.
pub fn frames(
    pieces: impl Stream<Item = Bytes>,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    pieces.map(|piece| Ok(Frame::data(piece)))
}
