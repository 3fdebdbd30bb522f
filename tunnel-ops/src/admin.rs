//! The admin listener: metrics, health, readiness, and a program's own API, for the operator's own
//! tools.
//!
//! In come plain HTTP/1.1 requests from the operator's network; out go `/metrics` (Prometheus
//! text), `/healthz` (the process answers), `/readyz` (it can do its work), the program's page, and
//! whatever else its router answers. It never shares a port with traffic. It stands on networks where
//! browsers are, too: so it answers only to its own names, and no web page but its own can change
//! anything. Who may change something is the router's decision, with a [`BearerGuard`] to help it.

mod address;
mod bearer;
mod client;
mod event_parser;
mod event_stream;
mod host;
mod page;
mod permits;
mod refusal;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::{Registry, TextEncoder};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_service::Service;

pub use self::address::{AdminUrl, NotAnAdminUrl};
pub use self::bearer::{BearerFileError, BearerGuard, BearerRefusal};
pub use self::client::{AdminClient, AdminRequestError, AdminTarget, AdminTokenError};
pub use self::event_parser::{EventParser, EventTooLarge, MAX_EVENT_BYTES, ReceivedEvent};
pub use self::event_stream::{Event, HEARTBEAT, REPLACED, event_stream};
pub use self::host::AdminHost;
pub use self::page::PageFile;
use self::permits::{ConnectionPermit, ConnectionPermits};
pub use self::refusal::AdminProblem;
use self::refusal::Refusal;
use crate::socket::{listen_advice, set_user_timeout};

/// The prefix of the paths of a program's own API.
pub const API_ROOT: &str = "/api/v1";

/// Streams served at once beside them: for people who watch. More are refused for now.
const MAX_STREAMS: usize = 32;

/// A connection's whole life, since each carries one request: a peer that stalls returns its permit by
/// then. Only a stream lives longer.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(10);

/// How long a request's head may take to arrive. It is one packet: a peer that takes longer is not here to ask.
const HEAD_DEADLINE: Duration = Duration::from_secs(2);

/// How long content may take to arrive: half of the whole, so that there is time to say so.
const CONTENT_DEADLINE: Duration = Duration::from_secs(5);

/// How long a stream's peer may take nothing: a watcher that is gone or asleep returns its permit by
/// then.
const STALL_DEADLINE: Duration = Duration::from_secs(30);

/// Bytes of a request's head: far more than a scraper sends.
const MAX_HEAD: usize = 16 * 1024;

/// Bytes of a request's content: far more than a command needs.
const MAX_CONTENT: usize = 64 * 1024;

/// Pause after a failed accept, so that a full descriptor table does not spin the core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Whether the program can do its work now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It can.
    Ready,
    /// It cannot, for this reason.
    NotReady(String),
}

/// What the operator decides about the listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdminSettings {
    /// Host names of the listener, besides `localhost` and any IP address: the name of a service, for example.
    pub allowed_hosts: Vec<AdminHost>,
}

/// What the listener answers with.
#[derive(Debug, Clone)]
pub struct AdminRoutes {
    router: Router,
    settings: Arc<AdminSettings>,
}

/// Marks a response, as an extension, whose body has no end of its own, such as a stream of events. It gets one of the
/// listener's few permits for streams, and the limit on a connection's time does not apply. Only sending shows that a
/// peer is gone, so the body has to send something at intervals.
#[derive(Debug, Clone, Copy)]
pub struct Streaming;

/// The address that a request of the listener comes from, as an extension of the request.
#[derive(Debug, Clone, Copy)]
pub struct AdminPeer(pub IpAddr);

impl AdminPeer {
    /// Whether it is this machine, or a port forwarded to it. The other loopback addresses are not: sidecars take
    /// connections of other machines and pass them on from there.
    pub fn is_this_machine(self) -> bool {
        self.0 == Ipv4Addr::LOCALHOST || self.0 == Ipv6Addr::LOCALHOST
    }
}

/// A bound listener that nothing is served on yet.
#[derive(Debug)]
pub struct AdminListener {
    listener: TcpListener,
    address: SocketAddr,
}

/// The listener cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (--admin-listen): {source}{}", listen_advice(.source))]
pub struct AdminBindError {
    address: SocketAddr,
    source: io::Error,
}

impl AdminRoutes {
    /// Answers with this registry's metrics, and with what `ready` returns at each request.
    pub fn new(
        registry: Registry,
        ready: impl Fn() -> Readiness + Clone + Send + Sync + 'static,
        settings: AdminSettings,
    ) -> Self {
        let alive = async || "ok\n";
        let is_ready = async move || readiness(ready());
        let router = Router::new()
            .route("/metrics", get(async move || metrics(&registry)))
            // HAProxy's `option httpchk` asks with OPTIONS.
            .route("/healthz", get(alive).options(alive))
            .route("/readyz", get(is_ready.clone()).options(is_ready))
            .method_not_allowed_fallback(only_reading)
            .fallback(async || {
                let paths = "not found: try /metrics, /healthz or /readyz\n";
                (StatusCode::NOT_FOUND, paths)
            });
        Self {
            router,
            settings: Arc::new(settings),
        }
    }

    /// Serves a page of these files, and those that all pages share, to whoever may ask at all.
    #[must_use]
    pub fn with_page(mut self, files: &'static [PageFile]) -> Self {
        let router = page::add(self.router, files);
        self.router = router.method_not_allowed_fallback(only_reading);
        self
    }

    /// Hands requests for `path` to `methods`, with the whole content (64 KiB at most) in memory. The response
    /// has to be complete within seconds, or be marked as [`Streaming`].
    ///
    /// Requests under a foreign host name, and those of another web page that are not GET or HEAD, never get
    /// there; no other web page gets a stream. Each request has its sender's address as an [`AdminPeer`]. Nobody is
    /// authenticated. The listener's own refusals below `/api` are JSON: `{"reason": "…", "detail": "…"}`.
    #[must_use]
    pub fn with_path(mut self, path: &str, methods: MethodRouter) -> Self {
        self.router = self.router.route(path, methods);
        self
    }

    /// Hands every other path to `api`, as [`Self::with_path`] does with one path.
    #[must_use]
    pub fn with_api(mut self, api: Router) -> Self {
        self.router = self.router.fallback_service(api);
        self
    }
}

async fn only_reading() -> (StatusCode, &'static str) {
    (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n")
}

fn metrics(registry: &Registry) -> Response<Body> {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => {
            let exposition = "text/plain; version=0.0.4; charset=utf-8";
            ([(CONTENT_TYPE, exposition)], text).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            let text = "metrics cannot be written, see the log\n";
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

fn readiness(readiness: Readiness) -> (StatusCode, String) {
    match readiness {
        Readiness::Ready => (StatusCode::OK, "ready\n".to_owned()),
        Readiness::NotReady(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

impl AdminListener {
    /// Binds the address; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, AdminBindError> {
        let failed = |source| AdminBindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Listens on a socket that is bound already.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn on(socket: std::net::TcpListener) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let listener = TcpListener::from_std(socket)?;
        Ok(Self { listener, address })
    }

    /// The socket once more, to hand it to another process. Connections are refused only when it is closed as well.
    ///
    /// # Errors
    /// When the process has too many files open.
    pub fn socket(&self) -> io::Result<std::net::TcpListener> {
        let socket = self.listener.as_fd().try_clone_to_owned()?;
        Ok(socket.into())
    }

    /// The address bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections until `closing` returns, then serves those that are left; streams go on for as long as this is
    /// not dropped. Accept errors do not end it.
    pub async fn serve(self, routes: AdminRoutes, closing: impl Future<Output = ()>) {
        let permits = ConnectionPermits::default();
        let streams = Arc::new(Semaphore::new(MAX_STREAMS));
        let mut connections = JoinSet::new();
        let accept_all = async {
            loop {
                match self.listener.accept().await {
                    // Waiting for a permit leaves newcomers in the kernel's queue; without one for its
                    // address, a connection is closed.
                    Ok((stream, peer)) => {
                        if let Some(permit) = permits.enter(peer).await {
                            let (routes, streams) = (routes.clone(), Arc::clone(&streams));
                            let peer = AdminPeer(peer.ip().to_canonical());
                            connections
                                .spawn(serve_connection(stream, peer, routes, permit, streams));
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "admin listener cannot accept, trying again");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
                while connections.try_join_next().is_some() {}
            }
        };
        tokio::select! {
            biased;
            () = closing => {}
            () = accept_all => {}
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }
}

async fn serve_connection(
    stream: TcpStream,
    peer: AdminPeer,
    routes: AdminRoutes,
    permit: ConnectionPermit,
    streams: Arc<Semaphore>,
) {
    let streaming = Notify::new();
    let service = service_fn(async |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let path = request.uri().path().to_owned();
        let response = answer(request, &routes, &permit, &streams).await;
        // Not evicted while it is answered, refused requests included.
        permit.secure();
        let mut response = response.unwrap_or_else(|refusal| refusal.at(&path));
        if response.extensions().get::<Streaming>().is_some() {
            streaming.notify_one();
        }
        let no_store = HeaderValue::from_static("no-store");
        response.headers_mut().insert(CACHE_CONTROL, no_store);
        Ok::<_, Infallible>(response)
    });
    if let Err(error) = set_options(&stream) {
        tracing::debug!(%error, "cannot set the options of an admin connection");
    }
    // One request a connection: so one deadline bounds all a peer can hold.
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = streaming.notified() => {
            // It has a permit for streams now, and no limit of time.
            permit.release();
            connection.await
        }
        () = permit.evicted() => {
            tracing::debug!("closing an idle admin connection for a new one");
            return;
        }
        () = sleep(CONNECTION_DEADLINE) => {
            tracing::debug!("admin connection took too long");
            return;
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "admin connection ended early");
    }
}

async fn answer(
    request: Request<Incoming>,
    routes: &AdminRoutes,
    permit: &ConnectionPermit,
    streams: &Arc<Semaphore>,
) -> Result<Response<Body>, Refusal> {
    if !host::is_ours(&request, &routes.settings.allowed_hosts) {
        return Err(Refusal::HOST);
    }
    let is_reading = [Method::GET, Method::HEAD].contains(request.method());
    let is_foreign = host::is_of_foreign_page(request.headers());
    if is_foreign && !is_reading {
        return Err(Refusal::ORIGIN);
    }
    let request = with_content(request).await?;
    permit.secure();
    let Ok(response) = routes.router.clone().call(request).await;
    if response.extensions().get::<Streaming>().is_none() {
        return Ok(response);
    }
    if is_foreign {
        return Err(Refusal::ORIGIN);
    }
    let stream_permit = Arc::clone(streams).try_acquire_owned();
    let stream_permit = stream_permit.map_err(|_| Refusal::STREAMS)?;
    // Held until the body is dropped, however it ends.
    let holding = move |frame| {
        let _ = &stream_permit;
        frame
    };
    Ok(response.map(|body| Body::new(body.map_frame(holding))))
}

/// The request with all of its content, unless that is too much or too slow.
async fn with_content(request: Request<Incoming>) -> Result<Request<Body>, Refusal> {
    let (parts, content) = request.into_parts();
    if content.size_hint().lower() > MAX_CONTENT as u64 {
        return Err(Refusal::TOO_LARGE);
    }
    let content = Limited::new(content, MAX_CONTENT).collect();
    match timeout(CONTENT_DEADLINE, content).await {
        Ok(Ok(whole)) => Ok(Request::from_parts(parts, Body::from(whole.to_bytes()))),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Refusal::TOO_LARGE),
        Ok(Err(_)) => Err(Refusal::CUT),
        Err(_) => Err(Refusal::TOO_SLOW),
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    // An event is there to be seen at once.
    stream.set_nodelay(true)?;
    set_user_timeout(stream, Some(STALL_DEADLINE))
}

#[cfg(test)]
mod tests;
