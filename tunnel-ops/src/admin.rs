//! The admin listener: metrics, health, readiness, for the operator's own tools.
//!
//! In come plain HTTP/1.1 requests from the operator's network; out go `/metrics` (Prometheus
//! text), `/healthz` (the process answers) and `/readyz` (it can do its work). It changes nothing,
//! and never shares a port with traffic.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::{Registry, TextEncoder};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Connections served at once: a few scrapers and probes. More wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;

/// A connection's whole life, since each carries one request: a peer that stalls frees its place by
/// this.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(10);

/// Bytes of a request's head: far more than a scraper sends.
const MAX_HEAD: usize = 16 * 1024;

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

/// What the listener answers with.
#[derive(Clone)]
pub struct AdminRoutes {
    registry: Registry,
    ready: Arc<dyn Fn() -> Readiness + Send + Sync>,
}

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
        }
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let known: fn(&Self) -> Response<Full<Bytes>> = match path {
            "/metrics" => Self::metrics,
            "/healthz" => |_| plain(StatusCode::OK, "ok\n"),
            "/readyz" => Self::readiness,
            _ => {
                return plain(
                    StatusCode::NOT_FOUND,
                    "not found: try /metrics, /healthz or /readyz\n",
                );
            }
        };
        if *method == Method::GET || *method == Method::HEAD {
            return known(self);
        }
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        refusal
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        refusal
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
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

    fn readiness(&self) -> Response<Full<Bytes>> {
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

    /// Serves until `shutdown` returns, then ends the connections that are left. Accept errors do
    /// not end it.
    pub async fn serve(self, routes: AdminRoutes, shutdown: impl Future<Output = ()>) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        let accept_all = async {
            loop {
                // The semaphore is never closed; waiting for a place leaves newcomers in the
                // kernel's queue.
                let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                    return;
                };
                match self.listener.accept().await {
                    Ok((stream, _)) => {
                        let routes = routes.clone();
                        connections.spawn(async move {
                            let _place = place;
                            serve_connection(stream, routes).await;
                        });
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

async fn serve_connection(stream: TcpStream, routes: AdminRoutes) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = routes.answer(request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    });
    // One request a connection: so one deadline bounds all a peer can hold.
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_DEADLINE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_DEADLINE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "admin connection ended early"),
        Err(_) => tracing::debug!("admin connection took too long"),
    }
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use prometheus::IntCounter;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::signals::{Shutdown, Trigger};
    use crate::task::Owned;

    struct Running {
        address: SocketAddr,
        ready: Arc<AtomicBool>,
        trigger: Trigger,
        serving: Owned<()>,
    }

    async fn start() -> Running {
        let registry = Registry::new();
        let counter = IntCounter::new("tunnel_test_total", "counts").unwrap();
        registry.register(Box::new(counter)).unwrap();
        let ready = Arc::new(AtomicBool::new(false));
        let said = Arc::clone(&ready);
        let routes = AdminRoutes::new(registry, move || match said.load(Ordering::Relaxed) {
            true => Readiness::Ready,
            false => Readiness::NotReady("not yet".to_owned()),
        });
        let listener = AdminListener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.local_addr();
        let (trigger, shutdown) = Shutdown::manual();
        let serving = Owned::spawn("admin", async move {
            listener.serve(routes, shutdown.asked()).await
        });
        Running {
            address,
            ready,
            trigger,
            serving,
        }
    }

    async fn ask(running: &Running, head: &str) -> String {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream
            .write_all(format!("{head} HTTP/1.1\r\nHost: admin\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[track_caller]
    fn check(answer: &str, status: &str, body: &str) {
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        let given = answer.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(given, body);
    }

    #[tokio::test]
    async fn each_path_has_its_answer() {
        let running = start().await;
        let metrics = ask(&running, "GET /metrics").await;
        assert!(metrics.contains("\ntunnel_test_total 0\n"), "{metrics}");
        assert!(
            metrics.contains("content-type: text/plain; version=0.0.4"),
            "{metrics}"
        );
        check(&ask(&running, "GET /healthz").await, "200", "ok\n");
        check(&ask(&running, "HEAD /healthz").await, "200", "");
        check(
            &ask(&running, "GET /readyz?verbose").await,
            "503",
            "not yet\n",
        );
        running.ready.store(true, Ordering::Relaxed);
        check(&ask(&running, "GET /readyz").await, "200", "ready\n");
        assert!(ask(&running, "GET /").await.starts_with("HTTP/1.1 404 "));
        let refused = ask(&running, "POST /metrics").await;
        assert!(
            refused.starts_with("HTTP/1.1 405 ") && refused.contains("allow: GET, HEAD"),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn it_ends_when_asked_and_its_connections_with_it() {
        let running = start().await;
        let mut idle = TcpStream::connect(running.address).await.unwrap();
        check(&ask(&running, "GET /healthz").await, "200", "ok\n");
        running.trigger.ask();
        running.serving.await.unwrap();
        assert!(
            matches!(idle.read(&mut [0]).await, Ok(0) | Err(_)),
            "the idle connection is closed"
        );
        assert!(
            TcpStream::connect(running.address).await.is_err(),
            "the port is free"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_sends_nothing_is_cut_off() {
        let running = start().await;
        let mut idle = TcpStream::connect(running.address).await.unwrap();
        idle.write_all(b"GET /hea").await.unwrap();
        let mut answer = String::new();
        let _ = idle.read_to_string(&mut answer).await;
        assert!(!answer.contains("200 OK"), "{answer}");
    }

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let running = start().await;
        let error = AdminListener::bind(running.address)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("cannot listen on {}", running.address)),
            "{error}"
        );
    }
}
