//! The tunnel listener: where tunnel clients dial in.
//!
//! Each connection is one TLS handshake, one `GET /connect` that is checked and authenticated before
//! anything is upgraded, and then one session ([`session`]). Everything before the session has a
//! deadline; handshakes run beside each other, so that a silent peer never holds up a good one.

mod session;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tunnel_proto::handshake::{self, Greeting, Refusal};

use self::session::LiveSession;
use crate::public::places::Place;
use crate::{auth::authenticate, listener::accept, node::Node, runtimes::RuntimeEntry};

/// Largest head of a request for a session, in bytes.
const HEAD_BYTES: usize = 16 * 1024;

/// How long sent bytes may stay unacknowledged before the kernel gives a connection up. Ends a
/// session whose peer is gone while there is something to send, which pings alone do not see sooner.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// A request that was let in.
struct Admitted {
    runtime: Arc<RuntimeEntry>,
    greeting: Greeting,
    upgrade: OnUpgrade,
}

/// Accepts tunnel clients until the node stops, then waits for their sessions to end.
pub(crate) async fn serve_all(node: Arc<Node>, listener: TcpListener, tls: TlsAcceptor) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = node.stopping() => break,
        };
        while connections.try_join_next().is_some() {}
        match node.tunnel_places.enter(None) {
            Ok(place) => {
                connections.spawn(one(node.clone(), socket, peer, tls.clone(), place));
            }
            Err(full) => {
                let labels = ["tunnel", full.name()];
                let refused = &node.metrics.connections_refused;
                refused.with_label_values(&labels).inc();
            }
        }
    }
    // Whoever dials now is to be refused at once, and so to dial another server.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn one(
    node: Arc<Node>,
    socket: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
    _place: Place,
) {
    let _open = node.metrics.connection("tunnel");
    if let Err(error) = set_options(&socket) {
        tracing::debug!(%peer, %error, "cannot set the options of a tunnel connection");
    }
    // In a box of its own, so that the session, which lives for days, does not hold its space.
    let begun = Box::pin(begin(&node, socket, peer, tls)).await;
    if let Some(session) = begun {
        session.run(&node).await;
    }
}

/// From the first byte to a session that has begun, unless the tunnel client is refused.
async fn begin(
    node: &Arc<Node>,
    socket: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
) -> Option<LiveSession> {
    let (admitted, io, leftover) = tokio::select! {
        admitted = greet(node, socket, peer, tls) => admitted?,
        () = node.patience_ended() => return None,
    };
    Some(LiveSession::begin(node, admitted, io, leftover, peer))
}

/// From the first byte to the answer; the session's stream if the tunnel client was let in.
async fn greet(
    node: &Arc<Node>,
    socket: TcpStream,
    peer: SocketAddr,
    tls: TlsAcceptor,
) -> Option<(Admitted, TlsStream<TcpStream>, Bytes)> {
    let handshake = timeout(node.config.tls_handshake_timeout, tls.accept(socket));
    if let Ok(Ok(stream)) = handshake.await {
        return admit(node, stream, peer).await;
    }
    node.metrics
        .connections_refused
        .with_label_values(&["tunnel", "tls"])
        .inc();
    None
}

fn set_options(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(USER_TIMEOUT))
}

/// Answers the one request of a connection; the session's stream if it was let in.
async fn admit(
    node: &Arc<Node>,
    stream: TlsStream<TcpStream>,
    peer: SocketAddr,
) -> Option<(Admitted, TlsStream<TcpStream>, Bytes)> {
    let admitted = Arc::new(Mutex::new(None));
    let service = service_fn(|request| {
        let response = answer(node, request, peer, &admitted);
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(node.config.request_head_timeout)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // The head has its own limit; this one bounds the writing of the answer too.
    let limit = node.config.request_head_timeout + node.config.tls_handshake_timeout;
    timeout(limit, serving).await.ok()?.ok()?;
    let mut admitted: Admitted = admitted.lock().take()?;
    let upgraded = (&mut admitted.upgrade).await.ok()?;
    let parts = upgraded.downcast::<TokioIo<TlsStream<TcpStream>>>().ok()?;
    Some((admitted, parts.io.into_inner(), parts.read_buf))
}

/// The answer to one request: 101, or a refusal that says what to do.
fn answer(
    node: &Node,
    mut request: Request<Incoming>,
    peer: SocketAddr,
    admitted: &Mutex<Option<Admitted>>,
) -> Response<Full<Bytes>> {
    let greeting = match handshake::check_request(&request) {
        Ok(greeting) => greeting,
        Err(error) => {
            tracing::debug!(%peer, %error, "a request that is not for a session");
            return refuse(node, error.status(), &error.refusal());
        }
    };
    if node.is_stopping() {
        let refusal = Refusal {
            reason: "server_draining".into(),
            detail: "this server is going away: dial again".into(),
            fatal: false,
        };
        let mut answer = refuse(node, StatusCode::SERVICE_UNAVAILABLE, &refusal);
        answer
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        return answer;
    }
    let runtime = match authenticate(&node.config.runtimes, request.headers()) {
        Ok(runtime) => runtime,
        Err(error) => {
            let instance = greeting.instance.as_str();
            tracing::warn!(%peer, instance, %error, "a tunnel client was refused");
            return refuse(node, error.status(), &error.refusal());
        }
    };
    node.metrics
        .handshakes
        .with_label_values(&["accepted"])
        .inc();
    let response = switch(&request);
    let upgrade = hyper::upgrade::on(&mut request);
    *admitted.lock() = Some(Admitted {
        runtime,
        greeting,
        upgrade,
    });
    response
}

fn switch(request: &Request<Incoming>) -> Response<Full<Bytes>> {
    // The key's presence was checked with the rest of the handshake.
    let key = request
        .headers()
        .get(header::SEC_WEBSOCKET_KEY)
        .map(HeaderValue::as_bytes);
    let accept = handshake::accept_key(key.unwrap_or_default());
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    let protocol = HeaderValue::from_static(handshake::SUBPROTOCOL);
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    // Base64 is always a valid field value.
    if let Ok(accept) = HeaderValue::from_str(&accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

fn refuse(node: &Node, status: StatusCode, refusal: &Refusal) -> Response<Full<Bytes>> {
    node.metrics
        .handshakes
        .with_label_values(&[&refusal.reason])
        .inc();
    // Serialising strings into memory has no way to fail.
    let body = serde_json::to_vec(refusal).unwrap_or_default();
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    match status {
        StatusCode::UNAUTHORIZED => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        StatusCode::UPGRADE_REQUIRED => {
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        }
        _ => {}
    }
    response
}
