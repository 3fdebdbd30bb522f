//! What answers are made of: their content, and short ones that say something.

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Either, Full, StreamBody, combinators::UnsyncBoxBody};

use crate::client::body;

/// The content of an answer: small ones without a box, since they are what is measured most.
pub(super) type Content = Either<Full<Bytes>, UnsyncBoxBody<Bytes, hyper::Error>>;

/// A short answer that says something.
pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Content> {
    let mut response = Response::new(Either::Left(Full::new(text.into())));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Content in pieces.
pub(super) fn streamed(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Content {
    let content = StreamBody::new(body::frames(pieces));
    Either::Right(content.map_err(|error| match error {}).boxed_unsync())
}
