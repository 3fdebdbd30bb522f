//! Which answer belongs to which path.
//!
//! | path | answer |
//! |---|---|
//! | `/bytes/N` | `N` bytes, as fast as they are taken |
//! | `/upload` | takes all content and answers how many bytes came |
//! | `/pace?rate=N` | bytes without end, `N` a second; `&bytes=N` ends it |
//! | `/events?rate=N` | Server-Sent Events that carry the time of sending; see [`super::events`] |
//! | `/echo` | a WebSocket that echoes, over HTTP/1.1 and HTTP/2 |
//! | any, with a gRPC content type | the messages that came, and the trailer `grpc-status: 0` |
//! | anything else | the plain answer, with its delay and its share of errors |

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt as _, Either, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    client::body::{self, CHUNK},
    upstream::{
        UpstreamArgs,
        content::{paced, repeated},
        events, grpc,
        plain::Written,
        websocket,
    },
};

/// The content of an answer: small ones without a box, since they are what is measured most.
pub(super) type Content = Either<Full<Bytes>, UnsyncBoxBody<Bytes, hyper::Error>>;

/// Whether a path is one of those in the table above.
pub(super) fn is_special(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    path.starts_with("/bytes/") || ["/upload", "/pace", "/events", "/echo"].contains(&path)
}

/// What all connections share.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) delay: Duration,
    pub(super) errors: Errors,
    /// The plain answer in one piece, for HTTP/1.1.
    pub(super) written: Written,
    content: Bytes,
    chunk: Bytes,
    sockets: Rc<RefCell<JoinSet<()>>>,
}

impl Service {
    pub(super) fn new(args: &UpstreamArgs) -> Self {
        let length = usize::try_from(args.answer_size.as_u64()).unwrap_or(0);
        let content = Bytes::from(vec![b'x'; length]);
        Self {
            delay: args.delay,
            errors: Errors::new(args.error_rate),
            written: Written::new(&content),
            content,
            chunk: Bytes::from(vec![b'x'; CHUNK]),
            sockets: Rc::default(),
        }
    }

    pub(super) async fn answer(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Content>, Infallible> {
        let path = request.uri().path();
        Ok(if let Some(length) = path.strip_prefix("/bytes/") {
            self.bytes(length)
        } else if path == "/upload" {
            upload(request.into_body()).await
        } else if path == "/pace" {
            let rate = query(&request, "rate").unwrap_or(1024.0 * 1024.0);
            let content = paced(self.chunk, rate, query(&request, "bytes"));
            Response::new(streamed(content))
        } else if path == "/events" {
            event_stream(&request)
        } else if path == "/echo" {
            websocket::accept(request, &mut self.sockets.borrow_mut())
        } else if grpc::is_grpc(&request) {
            grpc::echo(request.into_body())
        } else {
            self.plain(request.into_body()).await
        })
    }

    async fn plain(self, content: Incoming) -> Response<Content> {
        // A connection whose content was not taken cannot carry the next request.
        if !content.is_end_stream() {
            let _ = length(content).await;
        }
        if !self.delay.is_zero() {
            sleep(self.delay).await;
        }
        let mut response = text(StatusCode::OK, self.content);
        if self.errors.is_due() {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    }

    fn bytes(self, length: &str) -> Response<Content> {
        let Ok(length) = length.parse::<u64>() else {
            let text = "/bytes/N: N is a number of bytes\n";
            return self::text(StatusCode::BAD_REQUEST, text);
        };
        let mut response = Response::new(streamed(repeated(self.chunk, length)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        response
    }
}

async fn upload(content: Incoming) -> Response<Content> {
    match length(content).await {
        Ok(length) => text(StatusCode::OK, length.to_string()),
        // The peer that could read it is gone.
        Err(_) => text(StatusCode::BAD_REQUEST, "the content was cut\n"),
    }
}

/// Takes all content.
async fn length(mut content: Incoming) -> Result<usize, hyper::Error> {
    let mut length = 0;
    while let Some(frame) = content.frame().await {
        length += frame?.data_ref().map_or(0, Bytes::len);
    }
    Ok(length)
}

fn event_stream(request: &Request<Incoming>) -> Response<Content> {
    let rate = query(request, "rate").unwrap_or(1.0);
    let size = query(request, "size").unwrap_or(0);
    let mut response = Response::new(streamed(events::events(
        rate,
        query(request, "count"),
        size,
    )));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    let never = HeaderValue::from_static("no-store");
    headers.insert(header::CACHE_CONTROL, never);
    response
}

/// A short answer that says something.
pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Content> {
    let mut response = Response::new(Either::Left(Full::new(text.into())));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Content in pieces.
fn streamed(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Content {
    let content = StreamBody::new(body::frames(pieces));
    Either::Right(content.map_err(|error| match error {}).boxed_unsync())
}

/// A value of the query, if it is there and can be read.
fn query<T: std::str::FromStr>(request: &Request<Incoming>, name: &str) -> Option<T> {
    let pairs = request.uri().query()?.split('&');
    let mut values = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    values.next()?.parse().ok()
}

/// Which answers are errors: evenly every tenth with a share of 0.1, so that they can be counted.
#[derive(Clone, Debug)]
pub(super) struct Errors {
    share: f64,
    due: Rc<Cell<f64>>,
}

impl Errors {
    fn new(share: f64) -> Self {
        Self {
            share,
            due: Rc::default(),
        }
    }

    pub(super) fn is_due(&self) -> bool {
        // Rounding must neither lose an error nor add one within any real run.
        let due = self.due.get() + self.share;
        let is_due = due >= 1.0 - 1e-9;
        self.due.set(if is_due { due - 1.0 } else { due });
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_exactly_their_share() {
        for (share, expected) in [(0.0, 0), (0.1, 1_000), (0.25, 2_500), (1.0, 10_000)] {
            let errors = Errors::new(share);
            let found = (0..10_000).filter(|_| errors.is_due()).count();
            assert_eq!(found, expected, "of 10,000 with a share of {share}");
        }
    }
}
