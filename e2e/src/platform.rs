//! A platform client of the usual kind: one connection, HTTP/1.1 or HTTP/2, well-behaved.
//!
//! Badly behaved ones are [`crate::raw::RawClient`]s; those that others wrote are in
//! [`crate::peers`].

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
    ext::on_informational,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
};

use crate::{
    deadline::{SOON, within},
    entry::Entry,
    http1::{Fields, fields},
    payload::{Payload, hex},
};

/// The content of a request.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// One connection to an entry.
#[derive(Debug)]
pub struct PlatformClient {
    entry: Entry,
    time_limit: Duration,
    sender: Sender,
    _driver: JoinSet<()>,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

/// A response, read to its end.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The fields.
    pub headers: HeaderMap,
    /// The content.
    pub body: Bytes,
    /// The trailer section.
    pub trailers: Fields,
}

impl PlatformClient {
    /// Connects with HTTP/1.1.
    ///
    /// # Panics
    /// When nobody answers at the entry.
    pub async fn http1(entry: &Entry) -> Self {
        let mut driver = JoinSet::new();
        let io = TokioIo::new(connect(entry, "http/1.1").await);
        let handshake = http1::Builder::new().max_headers(2_000).handshake(io);
        let (sender, connection) = handshake.await.unwrap();
        driver.spawn(async move { drop(connection.with_upgrades().await) });
        Self {
            entry: entry.clone(),
            time_limit: SOON,
            sender: Sender::Http1(sender),
            _driver: driver,
        }
    }

    /// Connects with HTTP/2: by ALPN if the entry speaks TLS, else with prior knowledge.
    ///
    /// # Panics
    /// When nobody answers at the entry.
    pub async fn http2(entry: &Entry) -> Self {
        let mut driver = JoinSet::new();
        let io = TokioIo::new(connect(entry, "h2").await);
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let handshake = builder.max_header_list_size(256 * 1024).handshake(io);
        let (sender, connection) = handshake.await.unwrap();
        driver.spawn(async move { drop(connection.await) });
        Self {
            entry: entry.clone(),
            time_limit: SOON,
            sender: Sender::Http2(sender),
            _driver: driver,
        }
    }

    /// Sets the time-out of a response and of its end, for long transfers.
    #[must_use]
    pub fn with_time_limit(self, time_limit: Duration) -> Self {
        Self { time_limit, ..self }
    }

    /// Sends a request, whose URI is a path, and returns the head of its response.
    ///
    /// # Errors
    /// Those of hyper.
    ///
    /// # Panics
    /// When there is no answer for long.
    pub async fn send(&mut self, mut request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        let authority = self.entry.authority();
        match &mut self.sender {
            Sender::Http1(sender) => {
                let host = HeaderValue::from_str(authority).unwrap();
                request.headers_mut().entry(header::HOST).or_insert(host);
                within(SOON, "room for a request", sender.ready()).await?;
                within(self.time_limit, "a response", sender.send_request(request)).await
            }
            Sender::Http2(sender) => {
                let uri: Uri = self.entry.url(&request.uri().to_string()).parse().unwrap();
                *request.uri_mut() = uri;
                within(SOON, "room for a request", sender.ready()).await?;
                within(self.time_limit, "a response", sender.send_request(request)).await
            }
        }
    }

    /// As [`PlatformClient::send`], with the status and fields of each informational response.
    ///
    /// # Errors
    /// Those of hyper.
    pub async fn send_observing(
        &mut self,
        mut request: Request<Body>,
    ) -> hyper::Result<(Vec<(u16, Fields)>, Response<Incoming>)> {
        let observed = Arc::new(Mutex::new(Vec::new()));
        let writer = observed.clone();
        on_informational(&mut request, move |response| {
            writer
                .lock()
                .push((response.status().as_u16(), fields(response.headers())));
        });
        let response = self.send(request).await?;
        let observed = observed.lock().clone();
        Ok((observed, response))
    }

    /// Sends a GET for `path` and reads the whole response.
    ///
    /// # Panics
    /// Without a whole answer.
    pub async fn get(&mut self, path: &str) -> Answer {
        self.ask(Request::get(path).body(empty()).unwrap()).await
    }

    /// Sends `content` to `path` and reads the whole answer.
    ///
    /// # Panics
    /// Without a whole answer.
    pub async fn post(&mut self, path: &str, content: impl Into<Bytes>) -> Answer {
        let body = Full::new(content.into()).boxed_unsync();
        self.ask(Request::post(path).body(body).unwrap()).await
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Panics
    /// Without a whole answer.
    pub async fn ask(&mut self, request: Request<Body>) -> Answer {
        let what = format!("{} {}", request.method(), request.uri());
        let response = self.send(request).await;
        let response = response.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        let (head, body) = response.into_parts();
        let body = within(self.time_limit, "the end of a response", body.collect()).await;
        let body = body.unwrap_or_else(|error| panic!("{what}: the response is cut: {error:?}"));
        Answer {
            status: head.status,
            headers: head.headers,
            trailers: body.trailers().map(fields).unwrap_or_default(),
            body: body.to_bytes(),
        }
    }
}

impl Answer {
    /// The content as text.
    ///
    /// # Panics
    /// When it is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The content as JSON.
    ///
    /// # Panics
    /// When it is not JSON, or not of this type.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {} {:?}", self.status, self.body))
    }

    /// All values of a field, in order.
    pub fn values(&self, name: &str) -> Vec<&str> {
        self.headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect()
    }
}

/// A request without content.
pub fn empty() -> Body {
    http_body_util::Empty::new().boxed_unsync()
}

/// A content without a declared length.
pub fn streamed(payload: Payload) -> Body {
    let frames = payload.map(|piece| Ok(Frame::data(piece)));
    StreamBody::new(tokio_stream::iter(frames)).boxed_unsync()
}

/// A content, then a trailer section.
pub fn with_trailers(content: impl Into<Bytes>, trailers: HeaderMap) -> Body {
    let frames = [
        Ok(Frame::data(content.into())),
        Ok(Frame::trailers(trailers)),
    ];
    StreamBody::new(tokio_stream::iter(frames)).boxed_unsync()
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

async fn connect(entry: &Entry, alpn: &str) -> Box<dyn Duplex> {
    match entry.secure(entry.connect().await, alpn).await {
        Ok(secure) => Box::new(secure),
        Err(plain) => Box::new(plain),
    }
}

/// Reads a content of any length, and gives that length and its SHA-256.
///
/// # Panics
/// When it is cut.
pub async fn digest(mut content: Incoming) -> (u64, String) {
    let (mut bytes, mut digest) = (0, Sha256::new());
    while let Some(frame) = within(SOON, "more of a content", content.frame()).await {
        if let Some(data) = frame.unwrap().data_ref() {
            bytes += data.len() as u64;
            digest.update(data);
        }
    }
    (bytes, hex(&digest.finalize()))
}
