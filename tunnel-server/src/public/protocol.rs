//! From a platform client's socket to its requests, and to its last byte.
//!
//! ```text
//!   socket ─▶ PROXY header? ─▶ TLS? ─▶ HTTP/1: guard ─▶ hyper ─▶ serve
//!                                └───▶ HTTP/2: ─────────▶ hyper ─▶ serve
//! ```
//!
//! Ends by itself: each wait has its limit, and a refusal that the guard has made is written here,
//! after hyper has given the socket back.

use std::{
    future::{Future, poll_fn},
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tunnel_ops::{
    detect::{self, Protocol},
    http1::{Guard, GuardConfig, GuardHandle, Refusal, framing::HeadLimits},
    prefixed::Prefixed,
};
use tunnel_proto::{
    front::{self, Origin, http1_message},
    problem::Hop,
};

use super::{
    connection::Connection,
    places::{Full, Place},
    proxy_protocol,
    serve::serve,
    upgraded::join,
};
use crate::node::Node;

/// How long an exchange outlives the end of its platform client's input, so that one who has sent
/// all its requests still gets the quick answers. Less than the second within which an upstream is to
/// see a hang-up.
const HANG_UP_GRACE: Duration = Duration::from_millis(500);

/// Field lines in one request head: what hyper takes without allocating.
const MAX_FIELDS: usize = 100;

/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;

/// What a platform client may send ahead on one HTTP/2 stream, in bytes: as much as the session's own
/// streams take.
pub(super) const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

/// The same for a whole connection: many times that of a stream, so that uploads which nobody reads
/// do not stop the others.
const CONNECTION_WINDOW_BYTES: u32 = 16 * STREAM_WINDOW_BYTES;

/// Time between HTTP/2 pings, and for each answer: finds platform clients that are gone.
const HTTP2_PING: Duration = Duration::from_secs(20);

/// How long a refused platform client may take to read its refusal.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves a platform client until it is gone.
pub(super) async fn run(
    node: Arc<Node>,
    socket: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    mut place: Place,
) {
    if let Err(cause) = begin(&node, socket, peer.ip(), tls, &mut place).await {
        node.metrics
            .connections_refused
            .with_label_values(&["public", cause.name()])
            .inc();
        tracing::debug!(%peer, cause = cause.name(), "a public connection ended before a request");
    }
}

/// Why a connection ended before its first request.
enum NoRequest {
    Proxy,
    Tls,
    FirstByte,
    Full(Full),
    Stopping,
}

impl NoRequest {
    fn name(&self) -> &'static str {
        match self {
            Self::Proxy => "proxy_protocol",
            Self::Tls => "tls",
            Self::FirstByte => "first_byte",
            Self::Full(full) => full.name(),
            Self::Stopping => "stopping",
        }
    }
}

async fn begin(
    node: &Arc<Node>,
    mut socket: TcpStream,
    mut peer: IpAddr,
    tls: Option<TlsAcceptor>,
    place: &mut Place,
) -> Result<(), NoRequest> {
    let mut is_trusted = node.is_trusted(peer);
    let mut front = Bytes::new();
    if node.config().proxy_protocol && is_trusted {
        let deadline = Instant::now() + node.config().first_byte_timeout;
        let (header, rest) = patiently(node, proxy_protocol::read(&mut socket, deadline))
            .await?
            .map_err(|_| NoRequest::Proxy)?;
        if let proxy_protocol::Header::Proxied { source, .. } = header {
            peer = source.ip();
            // What the proxy has told counts, what its client tells does not.
            is_trusted = node.is_trusted(peer);
            if !is_trusted {
                let counted = place.count_for(peer.to_canonical());
                counted.map_err(NoRequest::Full)?;
            }
        }
        front = rest;
    }
    let origin = Origin::new(peer, is_trusted, tls.is_some());
    let socket = Prefixed::new(front, socket);
    match tls {
        // Boxed, since what TLS needs is large, and a connection without it would carry it along.
        Some(tls) => Box::pin(encrypted(node, origin, socket, tls)).await,
        None => plain(node, origin, socket).await,
    }
}

async fn encrypted(
    node: &Arc<Node>,
    origin: Origin,
    socket: Prefixed<TcpStream>,
    tls: TlsAcceptor,
) -> Result<(), NoRequest> {
    let handshake = timeout(node.config().tls_handshake_timeout, tls.accept(socket));
    let mut stream = patiently(node, handshake)
        .await?
        .map_err(|_| NoRequest::Tls)?
        .map_err(|_| NoRequest::Tls)?;
    if is_http2(&stream) {
        // hyper has no limit for one who agrees on HTTP/2 and then says nothing.
        let detecting = detect::detect(&mut stream, node.config().first_byte_timeout);
        let detected = patiently(node, detecting).await?;
        let (_, first) = detected.map_err(|_| NoRequest::FirstByte)?;
        http2(node, origin, Prefixed::new(first, stream)).await;
    } else {
        http1(node, origin, Bytes::new(), stream).await;
    }
    Ok(())
}

/// Awaits something that a connection has to do before its first request.
async fn patiently<T>(node: &Node, step: impl Future<Output = T>) -> Result<T, NoRequest> {
    tokio::select! {
        done = step => Ok(done),
        () = node.patience_ended() => Err(NoRequest::Stopping),
    }
}

fn is_http2(stream: &TlsStream<Prefixed<TcpStream>>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

async fn plain(
    node: &Arc<Node>,
    origin: Origin,
    mut socket: Prefixed<TcpStream>,
) -> Result<(), NoRequest> {
    let detecting = detect::detect(&mut socket, node.config().first_byte_timeout);
    let (protocol, first) = patiently(node, detecting)
        .await?
        .map_err(|_| NoRequest::FirstByte)?;
    match protocol {
        Protocol::Http1 => http1(node, origin, first, socket).await,
        Protocol::Http2 => http2(node, origin, Prefixed::new(first, socket)).await,
    }
    Ok(())
}

async fn http1<IO>(node: &Arc<Node>, origin: Origin, first: Bytes, io: IO)
where
    IO: AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static,
{
    let config = GuardConfig {
        limits: HeadLimits {
            bytes: node.config().max_head_bytes,
            fields: MAX_FIELDS,
        },
        head_timeout: node.config().request_head_timeout,
        keep_alive_timeout: node.config().keep_alive_timeout,
        body_idle_timeout: node.config().body_idle_timeout,
        hang_up_grace: HANG_UP_GRACE,
    };
    let (guarded, guard) = Guard::new(io, first, config);
    let connection = Connection::new(node, origin, Some(guard.clone()));
    let service = {
        let connection = connection.clone();
        service_fn(move |request: Request<Incoming>| {
            let in_flight = guard.begin_exchange();
            // Boxed, because hyper gives a socket back only when the future can be moved.
            Box::pin(serve(&connection, request, Some(in_flight)))
        })
    };
    let mut serving = http1::Builder::new()
        .half_close(false)
        // The guard bounds the head; this only has to hold it.
        .max_buf_size(node.config().max_head_bytes + 64 * 1024)
        .serve_connection(TokioIo::new(guarded), service);
    let mut stopping = pin!(node.stopping());
    // Whom the end of the server wakes; asking again at each poll would cost more than the answer.
    let mut told: Option<Waker> = None;
    let mut is_ending = false;
    let served = poll_fn(|cx| {
        let is_told = told.as_ref().is_some_and(|told| told.will_wake(cx.waker()));
        if !is_ending && (!is_told || node.is_stopping()) {
            is_ending = stopping.as_mut().poll(cx).is_ready();
            told = Some(cx.waker().clone());
            if is_ending {
                // The request in progress is answered, and the connection ends with it.
                Pin::new(&mut serving).graceful_shutdown();
            }
        }
        serving.poll_without_shutdown(cx)
    });
    let served = served.await;
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
async fn finish<IO>(connection: &Connection, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let granted = connection.granted.lock().take();
    if let Some(granted) = granted {
        join(io, granted, &connection.node).await;
    } else if let Some(refusal) = connection.guard.as_ref().and_then(GuardHandle::violation) {
        refuse(connection, refusal, io).await;
    } else {
        close(io).await;
    }
}

async fn http2<IO>(node: &Arc<Node>, origin: Origin, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Connection::new(node, origin, None);
    let service = {
        let connection = connection.clone();
        service_fn(move |request| {
            connection.requests.fetch_add(1, Ordering::Relaxed);
            serve(&connection, request, None)
        })
    };
    let head_bytes = u32::try_from(node.config().max_head_bytes).unwrap_or(u32::MAX);
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
            () = sleep(node.config().keep_alive_timeout) => {
                if connection.is_idle_since(requests) {
                    serving.as_mut().graceful_shutdown();
                }
            }
            () = node.stopping() => {
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
    let problem = front::refusal(Hop::Server, refusal.status(), refusal.reason());
    connection.node.metrics.count_problem(&problem);
    let date = httpdate::fmt_http_date(std::time::SystemTime::now());
    let answer = http1_message(&front::problem(&problem, true), &date);
    let _ = timeout(FAREWELL, async {
        io.write_all(&answer).await?;
        io.shutdown().await
    })
    .await;
    drain(io).await;
}

/// Reads on for a moment after the last answer: closing a socket with unread bytes resets it, and
/// the platform client would lose the answer (RFC 9112 section 9.6).
pub(super) async fn drain<IO: AsyncRead + Unpin>(mut io: IO) {
    let mut sink = tokio::io::sink();
    let _ = timeout(FAREWELL, tokio::io::copy(&mut io, &mut sink)).await;
}

/// A socket that can be closed so that nobody takes it for an orderly end.
trait Reset {
    /// Has the socket reset when it is dropped.
    fn reset(&self);
}

impl Reset for Prefixed<TcpStream> {
    fn reset(&self) {
        let _ = self.get_ref().set_zero_linger();
    }
}

impl Reset for TlsStream<Prefixed<TcpStream>> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }
}

async fn close<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) {
    if let Ok(Ok(())) = timeout(FAREWELL, io.shutdown()).await {
        drain(io).await;
    }
}
