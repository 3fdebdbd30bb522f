//! An upstream of the usual kind: HTTP/1.1, h2c or TLS with ALPN, with an answer for every need.
//!
//! | path | answer |
//! |---|---|
//! | `/upload` | JSON: how many bytes came, and their SHA-256 |
//! | `/webhook` | 200 if `x-signature` is the HMAC of the raw body, else 401 |
//! | `/download?bytes=N` | `N` bytes of [`crate::payload::Payload`], with their length; `&chunked` without |
//! | `/duplex` | the content and trailers of the request, as they come |
//! | `/events?every_ms=N&count=N` | Server-Sent Events that carry the time they were sent |
//! | `/hold` | none |
//! | `/status/NNN` | that status, with a short text where it may have one |
//! | `/cookies` | three `Set-Cookie` fields whose order matters |
//! | `/fields?count=N&bytes=N` | `count` fields of `bytes` bytes each |
//! | `/trailers` | a text and two trailer fields |
//! | `/early` | 413 before any content was read |
//! | `/truncate` | half of what `Content-Length` promised, then the connection's end |
//! | `/websocket` | echoes messages (RFC 6455 or RFC 8441); `?close=CODE` closes with it after the first |
//! | `/e2e.Echo/*` | the gRPC service of [`crate::grpc`] |
//! | anything else | [`Echo`]: the received request |
//!
//! Every request, content and hang-up goes into the record. What must be exact to the byte, or
//! break the rules, is a [`crate::scripted::ScriptedUpstream`]'s.

mod answers;
mod response;
mod streams;
mod websocket;

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    ca::Certificate,
    deadline::{SOON, eventually},
    entry::Entry,
    grpc::GrpcService,
    http1::{self, Fields},
    record::Record,
    upstream::answers::answer,
};

pub use answers::sign;

/// Room for 128 KiB of fields in one request, with some to spare.
const HEAD_BYTES: u32 = 256 * 1024;

/// The content of every answer here.
type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A running upstream.
pub struct Upstream {
    address: SocketAddr,
    tls: bool,
    shared: Arc<Shared>,
    accepting: JoinSet<()>,
}

/// What the connections of an upstream have in common.
struct Shared {
    record: Arc<Record<Event>>,
    /// Tasks that outlive the request that started them: streams and upgraded connections.
    tasks: Mutex<JoinSet<()>>,
    grpc: GrpcService,
    /// The prefix of the answered paths, see [`Upstream::mount`].
    prefix: Mutex<String>,
}

/// What happened at an upstream.
#[derive(Clone, Debug)]
pub enum Event {
    /// A TCP connection came.
    Connection,
    /// A request's head came.
    Request(ReceivedRequest),
    /// A request's content came to its end.
    Content(Received),
    /// The other side went away before the answer at this target had ended.
    HungUp(String),
}

/// A request's head.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ReceivedRequest {
    /// The method.
    pub method: String,
    /// Path and query, byte for byte.
    pub target: String,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub version: String,
    /// The fields; those of one name are in order.
    pub fields: Fields,
    /// `Host` or `:authority`.
    pub authority: String,
}

/// A request's content.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Received {
    /// Where it was sent.
    pub target: String,
    /// How many bytes came.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: String,
    /// The trailer section.
    pub trailers: Fields,
    /// Whether the content ended as it should; `false` when it was cut.
    pub complete: bool,
}

/// The answer to a request at no special path: what was seen of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Echo {
    /// The head.
    pub head: ReceivedRequest,
    /// The content.
    pub content: Received,
}

impl Upstream {
    /// Starts an upstream that speaks HTTP/1.1 and h2c.
    pub async fn start() -> Self {
        Self::start_at(IpAddr::from([127, 0, 0, 1])).await
    }

    /// Starts an upstream that speaks HTTP/1.1 and h2c, on a free port of this address.
    pub async fn start_at(address: IpAddr) -> Self {
        Self::start_on((address, 0).into()).await
    }

    /// Starts an upstream that speaks HTTP/1.1 and h2c at this address.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub async fn start_on(address: SocketAddr) -> Self {
        Self::listen(address, None).await
    }

    /// Starts an upstream that speaks TLS with this certificate, h2 or HTTP/1.1 by ALPN.
    pub async fn start_tls(certificate: &Certificate) -> Self {
        Self::start_tls_on(([127, 0, 0, 1], 0).into(), certificate).await
    }

    /// Starts an upstream that speaks TLS with this certificate at this address.
    ///
    /// # Panics
    /// When the address cannot be bound.
    pub async fn start_tls_on(address: SocketAddr, certificate: &Certificate) -> Self {
        let config = certificate.server_config(&["h2", "http/1.1"]);
        Self::listen(address, Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn listen(address: SocketAddr, tls: Option<TlsAcceptor>) -> Self {
        // The listener of an earlier test may have it for a moment longer than that test has its address.
        let what = format!("{address} to be free");
        let bound = eventually(SOON, &what, async || {
            match TcpListener::bind(address).await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
                bound => Some(bound),
            }
        });
        let listener = bound.await;
        let listener = listener.unwrap_or_else(|error| panic!("{address}: {error}"));
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            record: Arc::default(),
            tasks: Mutex::default(),
            grpc: GrpcService::default(),
            prefix: Mutex::default(),
        });
        let mut accepting = JoinSet::new();
        let is_tls = tls.is_some();
        let accept = accept(listener, tls, shared.clone());
        accepting.spawn(accept);
        Self {
            address,
            tls: is_tls,
            shared,
            accepting,
        }
    }

    /// Listens at a Unix socket of this path too, with the same record.
    ///
    /// # Panics
    /// When something is there already.
    pub fn open_socket(&mut self, path: &Path) {
        let listener = UnixListener::bind(path);
        let listener = listener.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let shared = self.shared.clone();
        self.accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                shared.record.push(Event::Connection);
                connections.spawn(serve(socket, shared.clone()));
            }
        });
    }

    /// Answers at the same paths with this before them too, as a service does that knows where it
    /// is mounted.
    pub fn mount(&self, prefix: &str) {
        prefix.clone_into(&mut self.shared.prefix.lock());
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as a tunnel client's `--upstream` wants it, HTTP/1.1 or by ALPN.
    pub fn url(&self) -> String {
        if self.tls {
            format!("https://localhost:{}", self.address.port())
        } else {
            format!("http://{}", self.address)
        }
    }

    /// The address as a tunnel client's `--upstream` wants it for HTTP/2 without TLS.
    pub fn h2c_url(&self) -> String {
        format!("h2c://{}", self.address)
    }

    /// This upstream, without a tunnel before it.
    pub fn entry(&self) -> Entry {
        Entry::direct(self.address)
    }

    /// What happened here.
    pub fn record(&self) -> &Record<Event> {
        &self.shared.record
    }

    /// Waits until the request at this target was given up by the other side.
    pub async fn wait_hang_up(&self, target: &str, limit: Duration) {
        let what = format!("the upstream to see that the request at {target} was given up");
        let hung_up = |event: &Event| match event {
            Event::HungUp(at) => (at == target).then_some(()),
            _ => None,
        };
        self.record().wait_for(&what, limit, hung_up).await;
    }

    /// Waits for a request at this target.
    pub async fn wait_request(&self, target: &str) -> ReceivedRequest {
        let what = format!("a request for {target} at the upstream");
        let request = |event: &Event| match event {
            Event::Request(seen) => (seen.target == target).then(|| seen.clone()),
            _ => None,
        };
        self.record().wait_for(&what, SOON, request).await
    }

    /// Waits for the end of a request's content at this target.
    pub async fn wait_content(&self, target: &str) -> Received {
        let what = format!("the end of a content for {target} at the upstream");
        let content = |event: &Event| match event {
            Event::Content(received) => (received.target == target).then(|| received.clone()),
            _ => None,
        };
        self.record().wait_for(&what, SOON, content).await
    }

    /// Every request that came up to now.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        let request = |event: Event| match event {
            Event::Request(seen) => Some(seen),
            _ => None,
        };
        self.record()
            .all()
            .into_iter()
            .filter_map(request)
            .collect()
    }

    /// How many connections came up to now.
    pub fn connections(&self) -> usize {
        self.record()
            .all()
            .iter()
            .filter(|event| matches!(event, Event::Connection))
            .count()
    }
}

impl ReceivedRequest {
    /// All values of a field, in order; `name` in lower case.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let fields = self.fields.iter().filter(|(field, _)| field == name);
        fields.map(|(_, value)| value.as_str()).collect()
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        shared.record.push(Event::Connection);
        connections.spawn(shake_hands(socket, tls.clone(), shared.clone()));
    }
}

async fn shake_hands(socket: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    socket.set_nodelay(true).unwrap();
    match tls {
        None => serve(socket, shared).await,
        Some(tls) => {
            if let Ok(stream) = tls.accept(socket).await {
                serve(stream, shared).await;
            }
        }
    }
}

async fn serve<S>(stream: S, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().max_headers(2_000);
    builder
        .http2()
        .max_header_list_size(HEAD_BYTES)
        .enable_connect_protocol()
        .max_concurrent_streams(1_000);
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = shared.clone();
        async move {
            shared.record.push(Event::Request(received_head(&request)));
            Ok::<Response<Body>, Infallible>(answer(request, &shared).await)
        }
    });
    // A broken connection is no fault of the upstream; hang-ups that matter are in the record.
    drop(
        builder
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .await,
    );
}

/// What the record keeps of a request's head.
fn received_head(request: &Request<Incoming>) -> ReceivedRequest {
    let uri = request.uri();
    let host = request
        .headers()
        .get("host")
        .and_then(|host| host.to_str().ok());
    let authority = uri.authority().map(|authority| authority.as_str()).or(host);
    ReceivedRequest {
        method: request.method().to_string(),
        target: target(request),
        version: format!("{:?}", request.version()),
        fields: http1::fields(request.headers()),
        authority: authority.unwrap_or_default().to_owned(),
    }
}

/// Path and query of a request.
fn target(request: &Request<Incoming>) -> String {
    request
        .uri()
        .path_and_query()
        .map_or_else(|| "*".to_owned(), ToString::to_string)
}

/// The number that `name` has in a query.
fn number(query: &str, name: &str) -> Option<u64> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.parse().unwrap())
}
