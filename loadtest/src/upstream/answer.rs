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

use std::{cell::RefCell, convert::Infallible, rc::Rc};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::task::JoinSet;

use crate::{
    client::body::CHUNK,
    upstream::{
        UpstreamArgs,
        content::{paced, repeated},
        events, grpc,
        plain::PlainAnswer,
        response::{Content, streamed, text},
        websocket,
    },
};

/// What all connections share.
#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) plain: PlainAnswer,
    chunk: Bytes,
    sockets: Rc<RefCell<JoinSet<()>>>,
}

impl Service {
    pub(super) fn new(args: &UpstreamArgs) -> Self {
        Self {
            plain: PlainAnswer::new(args),
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
        } else if grpc::is_grpc(request.headers()) {
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
        let status = self.plain.next().await;
        text(status, self.plain.content)
    }

    fn bytes(self, length: &str) -> Response<Content> {
        let Ok(length) = length.parse::<u64>() else {
            let wrong = "/bytes/N: N is a number of bytes\n";
            return text(StatusCode::BAD_REQUEST, wrong);
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

/// A value of the query, if it is there and can be read.
fn query<T: std::str::FromStr>(request: &Request<Incoming>, name: &str) -> Option<T> {
    let pairs = request.uri().query()?.split('&');
    let mut values = pairs.filter_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    values.next()?.parse().ok()
}
