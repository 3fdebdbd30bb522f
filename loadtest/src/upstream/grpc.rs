//! gRPC without knowing any service: the messages come back as they are.
//!
//! A message with its prefix of five bytes is echoed byte for byte as it comes, so one way of
//! answering fits calls of all four kinds.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Either};
use hyper::body::Incoming;

use crate::upstream::answer::Content;

/// Whether this is a call.
pub(super) fn is_grpc(request: &Request<Incoming>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Answers with what comes.
pub(super) fn echo(content: Incoming) -> Response<Content> {
    let echo = Echo {
        content,
        ended: false,
    };
    let mut response = Response::new(Either::Right(echo.boxed_unsync()));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

struct Echo {
    content: Incoming,
    ended: bool,
}

impl Body for Echo {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match ready!(Pin::new(&mut self.content).poll_frame(context)) {
            // Trailers of a request mean nothing in gRPC.
            Some(Ok(frame)) if frame.is_data() => Poll::Ready(Some(Ok(frame))),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            _ => {
                self.ended = true;
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
        }
    }
}
