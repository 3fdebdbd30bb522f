//! From a connection of the listener to its requests, and to its last byte.
//!
//! ```text
//!   socket ─▶ TLS? ─▶ HTTP/1: guard ─▶ hyper ─▶ request
//!               └───▶ HTTP/2: ─────────▶ hyper ─▶ request
//! ```
//!
//! Each wait has its limit. A refusal that the guard has made is written here, after hyper has given the
//! socket back.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tunnel_ops::detect::{self, Protocol};
use tunnel_ops::http1::framing::HeadLimits;
use tunnel_ops::http1::{Guard, GuardConfig, GuardHandle, Refusal};
use tunnel_ops::prefixed::Prefixed;
use tunnel_ops::task::Tasks;
use tunnel_proto::front::{self, Origin, http1_message};
use tunnel_proto::problem::{Hop, Problem};

use super::Front;
use super::request;
use super::upgraded::{self, Granted};

/// How long an exchange outlives the end of its platform client's input, so that one who has sent
/// all its requests still gets the quick answers.
const HANG_UP_GRACE: Duration = Duration::from_millis(500);
/// Field lines in one request head over HTTP/1: what hyper takes without allocating.
const MAX_FIELDS: usize = 100;
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// What may be sent ahead on one HTTP/2 stream, in bytes: as much as a stream of the tunnel takes.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// The same for a whole connection, so that uploads which nobody reads do not stop the others.
const CONNECTION_WINDOW_BYTES: u32 = 16 * STREAM_WINDOW_BYTES;
/// Time between HTTP/2 pings, and for each answer: finds peers that are gone.
const HTTP2_PING: Duration = Duration::from_secs(20);
/// How long a peer may take to read the last that it is told.
const FAREWELL: Duration = Duration::from_secs(2);

/// What all requests of one connection share, and what they can do to it.
pub(super) struct Connection {
    pub(super) front: Arc<Front>,
    pub(super) origin: Origin,
    /// `None` over HTTP/2.
    pub(super) guard: Option<GuardHandle>,
    /// The upgrade that an HTTP/1 connection is turned into.
    pub(super) granted: Mutex<Option<Granted>>,
    /// Upgraded streams of an HTTP/2 connection, and hyper's own tasks for it.
    pub(super) tasks: Tasks,
    requests: AtomicUsize,
}

impl Connection {
    fn new(front: &Arc<Front>, origin: Origin, guard: Option<GuardHandle>) -> Arc<Self> {
        Arc::new(Self {
            front: Arc::clone(front),
            origin,
            guard,
            granted: Mutex::default(),
            tasks: Tasks::default(),
            requests: AtomicUsize::new(0),
        })
    }

    pub(super) fn is_http2(&self) -> bool {
        self.guard.is_none()
    }

    /// Takes note of a request that is refused before there is an exchange.
    pub(super) fn on_refused(&self, head: Option<&Parts>, problem: &Problem) {
        let exchanges = &self.front.exchanges;
        exchanges.on_refused(head, self.origin.address, problem);
    }

    /// Whether no request has come since there were `requests`, and none is open.
    fn is_idle_since(&self, requests: usize) -> bool {
        self.requests.load(Ordering::Relaxed) == requests && self.tasks.is_empty()
    }
}

/// Serves one connection until it is gone.
pub(super) async fn run(
    front: Arc<Front>,
    socket: TcpStream,
    peer: IpAddr,
    tls: Option<TlsAcceptor>,
) {
    let origin = Origin::new(peer, front.is_trusted(peer), tls.is_some());
    let limit = front.listen.request_head_timeout;
    let Some(tls) = tls else {
        return plain(&front, origin, socket).await;
    };
    // Boxed, since what TLS needs is large, and a connection without it would carry it along.
    let handshake = Box::pin(timeout(limit, tls.accept(socket)));
    match patiently(&front, handshake).await {
        Some(Ok(Ok(stream))) => Box::pin(encrypted(&front, origin, stream)).await,
        Some(Ok(Err(error))) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
        Some(Err(_)) => tracing::debug!(%peer, "a TLS handshake took too long"),
        None => {}
    }
}

/// Awaits what a connection has to do before its first request; `None` when the client stops first.
async fn patiently<T>(front: &Front, step: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = step => Some(done),
        () = front.stopping.asked() => None,
    }
}

async fn encrypted(front: &Arc<Front>, origin: Origin, mut stream: TlsStream<TcpStream>) {
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return http1(front, origin, Bytes::new(), stream).await;
    }
    // hyper has no limit for one who agrees on HTTP/2 and then says nothing.
    let detecting = detect::detect(&mut stream, front.listen.keep_alive_timeout);
    if let Some(Ok((_, first))) = patiently(front, detecting).await {
        http2(front, origin, Prefixed::new(first, stream)).await;
    }
}

async fn plain(front: &Arc<Front>, origin: Origin, mut socket: TcpStream) {
    // Ingress controllers connect ahead of need: who says nothing is like one between two requests.
    let detecting = detect::detect(&mut socket, front.listen.keep_alive_timeout);
    match patiently(front, detecting).await {
        Some(Ok((Protocol::Http1, first))) => http1(front, origin, first, socket).await,
        Some(Ok((Protocol::Http2, first))) => {
            http2(front, origin, Prefixed::new(first, socket)).await;
        }
        Some(Err(_)) | None => {}
    }
}

async fn http1<IO>(front: &Arc<Front>, origin: Origin, first: Bytes, io: IO)
where
    IO: AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static,
{
    let listen = &front.listen;
    let config = GuardConfig {
        limits: HeadLimits {
            bytes: listen.max_head_bytes,
            fields: MAX_FIELDS,
        },
        head_timeout: listen.request_head_timeout,
        keep_alive_timeout: listen.keep_alive_timeout,
        body_idle_timeout: listen.body_idle_timeout,
        hang_up_grace: HANG_UP_GRACE,
    };
    let (guarded, guard) = Guard::new(io, first, config);
    let connection = Connection::new(front, origin, Some(guard.clone()));
    let service = {
        let connection = Arc::clone(&connection);
        service_fn(move |request: Request<Incoming>| {
            let in_flight = guard.begin_exchange();
            // Boxed, because hyper gives a socket back only when the future can be moved.
            Box::pin(request::serve(&connection, request, Some(in_flight)))
        })
    };
    let mut serving = http1::Builder::new()
        .half_close(false)
        // The guard bounds the head; this only has to hold it.
        .max_buf_size(listen.max_head_bytes + 64 * 1024)
        .serve_connection(TokioIo::new(guarded), service);
    let served = {
        let mut stopping = pin!(front.stopping.asked());
        let mut is_stopping = false;
        // Whom the stop wakes; asking again at each poll would cost more than the answer.
        let mut told: Option<Waker> = None;
        poll_fn(|cx| {
            let is_told = told.as_ref().is_some_and(|told| told.will_wake(cx.waker()));
            if !is_stopping && (!is_told || front.stopping.is_asked()) {
                is_stopping = stopping.as_mut().poll(cx).is_ready();
                told = Some(cx.waker().clone());
                if is_stopping {
                    // The request in progress is answered, and the connection ends with it.
                    Pin::new(&mut serving).graceful_shutdown();
                }
            }
            serving.poll_without_shutdown(cx)
        })
        .await
    };
    let parts = serving.into_parts();
    let (io, unread) = parts.io.into_inner().into_inner();
    if served.is_err_and(|error| error.is_user()) {
        // A response was cut. To an HTTP/1.0 client an orderly end would look like its own.
        io.reset();
        return;
    }
    // hyper has read on a little after the last request.
    let io = Prefixed::new(parts.read_buf, Prefixed::new(unread, io));
    // Boxed, since it is larger than all that was before, and comes once.
    Box::pin(finish(&connection, io)).await;
}

/// Goes on with a socket that hyper is done with: as an upgraded connection, or to its end.
async fn finish<IO>(connection: &Connection, mut io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let granted = connection.granted.lock().take();
    if let Some(granted) = granted {
        upgraded::join(io, granted, &connection.front.bounds()).await;
    } else if let Some(refusal) = connection.guard.as_ref().and_then(GuardHandle::violation) {
        refuse(connection, refusal, io).await;
    } else if let Ok(Ok(())) = timeout(FAREWELL, io.shutdown()).await {
        drain(io).await;
    }
}

async fn http2<IO>(front: &Arc<Front>, origin: Origin, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Connection::new(front, origin, None);
    let service = {
        let connection = Arc::clone(&connection);
        service_fn(move |request| {
            connection.requests.fetch_add(1, Ordering::Relaxed);
            request::serve(&connection, request, None)
        })
    };
    let head_bytes = u32::try_from(front.listen.max_head_bytes).unwrap_or(u32::MAX);
    let serving = http2::Builder::new(connection.tasks.clone())
        .timer(TokioTimer::new())
        .enable_connect_protocol()
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(head_bytes)
        .keep_alive_interval(Some(HTTP2_PING))
        .keep_alive_timeout(HTTP2_PING)
        .serve_connection(TokioIo::new(io), service);
    let mut serving = pin!(serving);
    loop {
        let requests = connection.requests.load(Ordering::Relaxed);
        tokio::select! {
            _ = &mut serving => break,
            () = sleep(front.listen.keep_alive_timeout) => {
                if connection.is_idle_since(requests) {
                    serving.as_mut().graceful_shutdown();
                }
            }
            () = front.stopping.asked() => {
                serving.as_mut().graceful_shutdown();
                let _ = serving.await;
                break;
            }
        }
    }
    connection.tasks.finish().await;
}

/// Writes the answer to a request that nobody but the guard has seen.
async fn refuse<IO: AsyncWrite + AsyncRead + Unpin>(
    connection: &Connection,
    refusal: Refusal,
    mut io: IO,
) {
    let problem = front::refusal(Hop::Client, refusal.status(), refusal.reason());
    connection.on_refused(None, &problem);
    let date = httpdate::fmt_http_date(SystemTime::now());
    let answer = http1_message(&front::problem(&problem, true), &date);
    let _ = timeout(FAREWELL, async {
        io.write_all(&answer).await?;
        io.shutdown().await
    })
    .await;
    drain(io).await;
}

/// Reads on for a moment after the last answer: closing a socket with unread bytes resets it, and
/// the peer would lose the answer (RFC 9112 section 9.6).
pub(super) async fn drain<IO: AsyncRead + Unpin>(mut io: IO) {
    let mut sink = tokio::io::sink();
    let _ = timeout(FAREWELL, tokio::io::copy(&mut io, &mut sink)).await;
}

/// A socket that can be closed so that nobody takes it for an orderly end.
trait Reset {
    /// Has the socket reset when it is dropped.
    fn reset(&self);
}

impl Reset for TcpStream {
    fn reset(&self) {
        let _ = self.set_zero_linger();
    }
}

impl Reset for TlsStream<TcpStream> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }
}
