//! The admin listener: metrics, health, readiness, and a program's own API, for the operator's own
//! tools.
//!
//! In come plain HTTP/1.1 requests from the operator's network; out go `/metrics` (Prometheus
//! text), `/healthz` (the process answers), `/readyz` (it can do its work), and whatever else the
//! program's handler answers. It never shares a port with traffic. It stands on networks where browsers
//! are, too: so it answers only to its own names, and a web page can change nothing. Who may change
//! something is the handler's decision, with a [`BearerGuard`] to help it.

mod bearer;
mod body;
mod host;
mod places;
mod refusal;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::{Registry, TextEncoder};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use self::bearer::{BearerFileError, BearerGuard, BearerRefusal};
pub use self::body::AdminBody;
pub use self::host::AdminHost;
use self::places::{Place, Places};
use self::refusal::Refusal;

/// Streams served at once beside them: people who watch. More are told to come back.
const MAX_STREAMS: usize = 32;

/// A connection's whole life, since each carries one request: a peer that stalls frees its place by
/// this. Only a stream lives longer.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(10);

/// How long a request's head may take to arrive. It is one packet: who takes longer is not here to ask.
const HEAD_DEADLINE: Duration = Duration::from_secs(2);

/// How long content may take to arrive: half of the whole, so that there is time to say so.
const CONTENT_DEADLINE: Duration = Duration::from_secs(5);

/// How long a stream's peer may take nothing: a watcher that is gone or asleep frees its place by
/// this.
const STALL_DEADLINE: Duration = Duration::from_secs(30);

/// Bytes of a request's head: far more than a scraper sends.
const MAX_HEAD: usize = 16 * 1024;

/// Bytes of a request's content: far more than a command needs.
const MAX_CONTENT: usize = 64 * 1024;

/// Pause after a failed accept, so that a full descriptor table does not spin the core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

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
    /// Names by which it may be asked, beside `localhost` and any IP address: the name of a service, say.
    pub allowed_hosts: Vec<AdminHost>,
}

/// What the listener answers with.
#[derive(Clone)]
pub struct AdminRoutes {
    registry: Registry,
    ready: Arc<dyn Fn() -> Readiness + Send + Sync>,
    settings: Arc<AdminSettings>,
    api: Option<Arc<Api>>,
}

type Api = dyn Fn(Request<Bytes>) -> Pin<Box<dyn Future<Output = Response<AdminBody>> + Send>>
    + Send
    + Sync;

/// A bound listener that nothing is served on yet.
#[derive(Debug)]
pub struct AdminListener {
    listener: TcpListener,
    address: SocketAddr,
}

/// The listener cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for the operator: {source}")]
pub struct AdminBindError {
    address: SocketAddr,
    source: io::Error,
}

impl AdminRoutes {
    /// Answers with this registry's metrics, and with what `ready` says at each request.
    pub fn new(registry: Registry, ready: impl Fn() -> Readiness + Send + Sync + 'static) -> Self {
        Self {
            registry,
            ready: Arc::new(ready),
            settings: Arc::default(),
            api: None,
        }
    }

    /// The same, as the operator wants it.
    #[must_use]
    pub fn with_settings(mut self, settings: AdminSettings) -> Self {
        self.settings = Arc::new(settings);
        self
    }

    /// Hands every other path to `handler`, with the whole content (64 KiB at most) in memory. Its answer
    /// has to be complete within seconds, or be an [`AdminBody::stream`], which may go on.
    ///
    /// Requests under a foreign host name, and those of a web page that are not GET or HEAD, never get there;
    /// no web page gets a stream. Nobody is authenticated. What is refused below `/api` is told as JSON: `{"reason": "…", "detail": "…"}`.
    #[must_use]
    pub fn with_api<F, A>(mut self, handler: F) -> Self
    where
        F: Fn(Request<Bytes>) -> A + Send + Sync + 'static,
        A: Future<Output = Response<AdminBody>> + Send + 'static,
    {
        self.api = Some(Arc::new(move |request| Box::pin(handler(request))));
        self
    }

    async fn answer(&self, request: Request<Incoming>, place: &Place) -> Response<AdminBody> {
        let path = request.uri().path();
        if !host::is_ours(&request, &self.settings.allowed_hosts) {
            return Refusal::HOST.at(path);
        }
        let is_reading = [Method::GET, Method::HEAD].contains(request.method());
        // A browser names the page that it acts for. No page has any business here.
        if !is_reading && request.headers().contains_key(ORIGIN) {
            return Refusal::ORIGIN.at(path);
        }
        let known: fn(&Self) -> Response<AdminBody> = match (path, &self.api) {
            ("/metrics", _) => Self::metrics,
            ("/healthz", _) => |_| plain(StatusCode::OK, "ok\n"),
            ("/readyz", _) => Self::readiness,
            (_, Some(api)) => {
                let path = path.to_owned();
                return match with_content(request).await {
                    Ok(request) => {
                        place.asked();
                        api(request).await
                    }
                    Err(refusal) => refusal.at(&path),
                };
            }
            (_, None) => {
                return plain(
                    StatusCode::NOT_FOUND,
                    "not found: try /metrics, /healthz or /readyz\n",
                );
            }
        };
        if is_reading {
            return known(self);
        }
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        refusal
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        refusal
    }

    fn metrics(&self) -> Response<AdminBody> {
        match TextEncoder::new().encode_to_string(&self.registry.gather()) {
            Ok(text) => {
                let mut response = plain(StatusCode::OK, text);
                let exposition =
                    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
                response.headers_mut().insert(CONTENT_TYPE, exposition);
                response
            }
            Err(error) => {
                tracing::error!(%error, "metrics cannot be written");
                plain(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "metrics cannot be written, see the log\n",
                )
            }
        }
    }

    fn readiness(&self) -> Response<AdminBody> {
        match (self.ready)() {
            Readiness::Ready => plain(StatusCode::OK, "ready\n"),
            Readiness::NotReady(reason) => {
                plain(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
            }
        }
    }
}

impl fmt::Debug for AdminRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminRoutes").finish_non_exhaustive()
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

    /// The address bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` returns, then ends the connections that are left, streams included.
    /// Accept errors do not end it.
    pub async fn serve(self, routes: AdminRoutes, shutdown: impl Future<Output = ()>) {
        let places = Arc::<Places>::default();
        let streams = Arc::new(Semaphore::new(MAX_STREAMS));
        let mut connections = JoinSet::new();
        let accept_all = async {
            loop {
                match self.listener.accept().await {
                    // Waiting for a place leaves newcomers in the kernel's queue; without one for this
                    // peer, his connection ends here.
                    Ok((stream, peer)) => {
                        if let Some(place) = places.take(peer).await {
                            let (routes, streams) = (routes.clone(), Arc::clone(&streams));
                            connections.spawn(serve_connection(stream, routes, place, streams));
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
            () = shutdown => {}
            () = accept_all => {}
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    routes: AdminRoutes,
    place: Place,
    streams: Arc<Semaphore>,
) {
    let streaming = Notify::new();
    let service = service_fn(async |request: Request<Incoming>| {
        let path = request.uri().path().to_owned();
        let is_from_page = is_from_page(request.headers());
        let response = routes.answer(request, &place).await;
        place.asked();
        let response = match response.body().is_stream() && is_from_page {
            true => Err(Refusal::ORIGIN),
            false => take_stream_place(response, &streams, &streaming),
        };
        Ok::<_, Infallible>(response.unwrap_or_else(|refusal| refusal.at(&path)))
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
            // It has a place among the streams now, and all the time it wants.
            place.leave();
            connection.await
        }
        () = place.evicted() => {
            tracing::debug!("an admin connection that asked nothing makes room for another");
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

/// Whether a browser asks for a web page that is not this listener's: it names the page's origin where the
/// page is to read the answer, and says in any case how far the page is from here, unless a person has typed
/// the address in.
fn is_from_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    headers.contains_key(ORIGIN) || site.is_some_and(|site| site != b"none")
}

/// A stream's answer holds its place until it ends.
fn take_stream_place(
    response: Response<AdminBody>,
    streams: &Arc<Semaphore>,
    streaming: &Notify,
) -> Result<Response<AdminBody>, Refusal> {
    if !response.body().is_stream() {
        return Ok(response);
    }
    let place = Arc::clone(streams).try_acquire_owned();
    let place = place.map_err(|_| Refusal::STREAMS)?;
    streaming.notify_one();
    Ok(response.map(|body| body.holding(place)))
}

/// The request with all of its content, unless that is too much or too slow.
async fn with_content(request: Request<Incoming>) -> Result<Request<Bytes>, Refusal> {
    let (parts, content) = request.into_parts();
    if content.size_hint().lower() > MAX_CONTENT as u64 {
        return Err(Refusal::TOO_LARGE);
    }
    let content = Limited::new(content, MAX_CONTENT).collect();
    match timeout(CONTENT_DEADLINE, content).await {
        Ok(Ok(whole)) => Ok(Request::from_parts(parts, whole.to_bytes())),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Refusal::TOO_LARGE),
        Ok(Err(_)) => Err(Refusal::CUT),
        Err(_) => Err(Refusal::TOO_SLOW),
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    // An event is there to be seen at once.
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_user_timeout(Some(STALL_DEADLINE))
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<AdminBody> {
    let mut response = Response::new(AdminBody::whole(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
