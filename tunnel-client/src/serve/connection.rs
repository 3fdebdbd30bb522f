//! From a connection of the listener to its requests, and to its last byte.
//!
//! ```text
//!   socket ─▶ TLS? ─▶ HTTP/1: guard ─▶ hyper ─▶ request
//!               └───▶ HTTP/2: ─────────▶ hyper ─▶ request
//! ```
//!
//! Each wait has its limit. A refusal that the guard has made is written here, after hyper has given the
//! socket back.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tunnel_http::answer;
use tunnel_http::connection::Tasks;
use tunnel_http::connection::{self, Http1, Reset, close, say_last};
use tunnel_http::detect::{self, Protocol};
use tunnel_http::http1::{GuardHandle, InFlight, Refusal};
use tunnel_http::prefixed::Prefixed;
use tunnel_http::received::ReceivedBody;
use tunnel_http::{answer::http1_message, outgoing::Origin};
use tunnel_proto::problem::{Hop, Problem};

use super::Front;
use super::request;
use super::upgraded::{self, Granted};

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
}

impl Connection {
    fn new(front: &Arc<Front>, origin: Origin, guard: Option<GuardHandle>) -> Arc<Self> {
        Arc::new(Self {
            front: Arc::clone(front),
            origin,
            guard,
            granted: Mutex::default(),
            tasks: Tasks::default(),
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
}

/// Serves one connection until it is gone.
pub(super) async fn run(
    front: Arc<Front>,
    socket: TcpStream,
    peer: IpAddr,
    tls: Option<TlsAcceptor>,
) {
    let origin = Origin::new(peer, front.is_trusted(peer), tls.is_some());
    let limit = front.settings.request_head_timeout;
    let Some(tls) = tls else {
        return begin(&front, origin, socket, None).await;
    };
    // Boxed, since what TLS needs is large, and a connection without it would carry it along.
    let handshake = Box::pin(timeout(limit, tls.accept(socket)));
    match patiently(&front, handshake).await {
        Some(Ok(Ok(stream))) => {
            let agreed = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => Protocol::Http2,
                _ => Protocol::Http1,
            };
            Box::pin(begin(&front, origin, stream, Some(agreed))).await;
        }
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

/// Goes on with what the peer speaks: what was agreed on, or what its first bytes tell.
async fn begin<IO>(front: &Arc<Front>, origin: Origin, mut io: IO, agreed: Option<Protocol>)
where
    IO: AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static,
{
    // Ingress controllers connect ahead of need: who says nothing is like one between two requests.
    let detecting = detect::detect(&mut io, front.settings.keep_alive_timeout);
    let Some(Ok((detected, first))) = patiently(front, detecting).await else {
        return;
    };
    match agreed.unwrap_or(detected) {
        Protocol::Http1 => http1(front, origin, first, io).await,
        Protocol::Http2 => http2(front, origin, Prefixed::new(first, io)).await,
    }
}

async fn http1<IO>(front: &Arc<Front>, origin: Origin, first: Bytes, io: IO)
where
    IO: AsyncRead + AsyncWrite + Reset + Unpin + Send + 'static,
{
    let http1 = Http1::new(io, first, front.bounds());
    let connection = Connection::new(front, origin, Some(http1.guard().clone()));
    let answer = {
        let connection = Arc::clone(&connection);
        move |request: Request<ReceivedBody>, in_flight: InFlight| {
            request::serve(&connection, request, Some(in_flight))
        }
    };
    if let Some(io) = http1.serve(&front.stopping, answer).await {
        // Boxed, since it is larger than all that was before, and comes once.
        Box::pin(finish(&connection, io)).await;
    }
}

/// Goes on with a socket that hyper is done with: as an upgraded connection, or to its end.
async fn finish<IO>(connection: &Connection, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let granted = connection.granted.lock().take();
    if let Some(granted) = granted {
        let bounds = connection.front.upgraded_bounds(false);
        upgraded::join(io, granted, &bounds).await;
    } else if let Some(refusal) = connection.guard.as_ref().and_then(GuardHandle::violation) {
        refuse(connection, refusal, io).await;
    } else {
        close(io).await;
    }
}

async fn http2<IO>(front: &Arc<Front>, origin: Origin, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Connection::new(front, origin, None);
    let answer = |request: Request<ReceivedBody>| request::serve(&connection, request, None);
    let (bounds, tasks) = (front.bounds(), &connection.tasks);
    connection::http2(io, bounds, tasks, &front.stopping, answer).await;
}

/// Writes the answer to a request that nobody but the guard has seen.
async fn refuse<IO: AsyncWrite + AsyncRead + Unpin>(
    connection: &Connection,
    refusal: Refusal,
    io: IO,
) {
    let problem = answer::refusal(Hop::Client, refusal.status(), refusal.reason());
    connection.on_refused(None, &problem);
    let date = httpdate::fmt_http_date(SystemTime::now());
    say_last(io, &http1_message(&answer::problem(&problem, true), &date)).await;
}
