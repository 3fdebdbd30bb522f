//! gRPC without knowing any service: the messages come back as they are.
//!
//! A message with its prefix of five bytes is echoed byte for byte as it comes, so one way of
//! answering fits calls of all four kinds.

use http::{HeaderMap, HeaderValue, Response, header};
use http_body_util::{BodyExt as _, Either};
use hyper::body::Incoming;

use crate::upstream::response::Content;

/// Whether a message with this head belongs to a call.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Answers with what comes, and a good status.
pub(super) fn echo(content: Incoming) -> Response<Content> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let echo = content.with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(Either::Right(echo.boxed_unsync()));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
