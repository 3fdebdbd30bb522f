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
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use bytes::Bytes;
use http::Request;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::TlsAcceptor;
use tunnel_http::answer;
use tunnel_http::{answer::http1_message, outgoing::Origin};
use tunnel_http::{
    connection::{self, Bounds, Http1, Reset, close, say_last},
    detect::{self, Protocol},
    http1::{GuardHandle, InFlight, Refusal},
    prefixed::Prefixed,
    received::ReceivedBody,
};
use tunnel_proto::problem::Hop;

use super::{
    connection::{Caller, Connection},
    places::{Full, Place},
    proxy_protocol,
    serve::serve,
    upgraded::join,
};
use crate::node::Node;

/// What a platform client may send ahead on one HTTP/2 stream: as much as the session's own streams take.
pub(super) const STREAM_WINDOW_BYTES: u32 = 256 * 1024;

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
    if node.config().settings.proxy_protocol && is_trusted {
        let deadline = Instant::now() + node.config().settings.first_byte_timeout;
        let (header, rest) = patiently(node, proxy_protocol::read(&mut socket, deadline))
            .await?
            .map_err(|_| NoRequest::Proxy)?;
        is_trusted = match header {
            proxy_protocol::Header::Local => true,
            // What the proxy has told counts, what its client tells does not.
            proxy_protocol::Header::Proxied { source, .. } => {
                peer = source.ip();
                node.is_trusted(peer)
            }
            proxy_protocol::Header::Unknown => false,
        };
        if !is_trusted {
            let counted = place.count_for(peer.to_canonical());
            counted.map_err(NoRequest::Full)?;
        }
        front = rest;
    }
    let caller = (Origin::new(peer, is_trusted, tls.is_some()), place.usage());
    let socket = Prefixed::new(front, socket);
    match tls {
        // Boxed, since what TLS needs is large, and a connection without it would carry it along.
        Some(tls) => Box::pin(encrypted(node, caller, socket, tls)).await,
        None => request(node, caller, socket, None).await,
    }
}

async fn encrypted(
    node: &Arc<Node>,
    caller: Caller,
    socket: Prefixed<TcpStream>,
    tls: TlsAcceptor,
) -> Result<(), NoRequest> {
    let handshake = timeout(
        node.config().settings.tls_handshake_timeout,
        tls.accept(socket),
    );
    let stream = patiently(node, handshake)
        .await?
        .map_err(|_| NoRequest::Tls)?
        .map_err(|_| NoRequest::Tls)?;
    let agreed = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        _ => Protocol::Http1,
    };
    request(node, caller, stream, Some(agreed)).await
}

/// Waits for the first request, and goes on with what the platform client speaks: what was agreed on, or
/// what its first bytes tell.
async fn request<IO>(
    node: &Arc<Node>,
    caller: Caller,
    mut io: IO,
    agreed: Option<Protocol>,
) -> Result<(), NoRequest>
where
    IO: AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static,
{
    // Of what was agreed on, too: hyper has no limit for one who says nothing, and the guard's is for heads.
    let detecting = detect::detect(&mut io, node.config().settings.first_byte_timeout);
    let (detected, first) = patiently(node, detecting)
        .await?
        .map_err(|_| NoRequest::FirstByte)?;
    match agreed.unwrap_or(detected) {
        Protocol::Http1 => http1(node, caller, first, io).await,
        Protocol::Http2 => http2(node, caller, Prefixed::new(first, io)).await,
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

async fn http1<IO>(node: &Arc<Node>, caller: Caller, first: Bytes, io: IO)
where
    IO: AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static,
{
    let http1 = Http1::new(io, first, bounds(node));
    let connection = Connection::new(node, caller, Some(http1.guard().clone()));
    let answer = {
        let connection = connection.clone();
        move |request: Request<ReceivedBody>, in_flight: InFlight| {
            serve(&connection, request, Some(in_flight))
        }
    };
    if let Some(io) = http1.serve(node.stopping_stage(), answer).await {
        // Boxed, since it is larger than all that was before, and comes once.
        Box::pin(finish(&connection, io)).await;
    }
}

/// What a connection may take, and how long.
fn bounds(node: &Node) -> Bounds {
    let config = node.config();
    Bounds {
        max_head_bytes: config.settings.max_head_size,
        stream_window_bytes: STREAM_WINDOW_BYTES,
        request_head_timeout: config.settings.request_head_timeout,
        keep_alive_timeout: config.settings.keep_alive_timeout,
        body_idle_timeout: config.settings.body_idle_timeout,
    }
}

/// Goes on with a socket that hyper is done with: as an upgraded connection, or to its end.
async fn finish<IO>(connection: &Connection, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let granted = connection.granted.lock().take();
    if let Some(granted) = granted {
        join(io, granted, &connection.node, None).await;
    } else if let Some(refusal) = connection.guard.as_ref().and_then(GuardHandle::violation) {
        refuse(connection, refusal, io).await;
    } else {
        close(io).await;
    }
}

async fn http2<IO>(node: &Arc<Node>, caller: Caller, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Connection::new(node, caller, None);
    let answer = |request: Request<ReceivedBody>| serve(&connection, request, None);
    let (stage, tasks) = (node.stopping_stage(), &connection.tasks);
    connection::http2(io, bounds(node), tasks, stage, answer).await;
}

/// Writes the answer to a request that nobody but the guard has seen.
async fn refuse<IO: AsyncWrite + AsyncRead + Unpin>(
    connection: &Connection,
    refusal: Refusal,
    io: IO,
) {
    let problem = answer::refusal(Hop::Server, refusal.status(), refusal.reason());
    connection.node.metrics.count_problem(&problem);
    connection.log_refused(None, &problem);
    let date = httpdate::fmt_http_date(SystemTime::now());
    say_last(io, &http1_message(&answer::problem(&problem, true), &date)).await;
}
