//! The tunnel listener: where tunnel clients dial in.
//!
//! Each connection is one TLS handshake, one `GET /connect` that is checked and authenticated before
//! anything is upgraded, and then one session ([`session`]). Everything before the session has a
//! deadline; handshakes run beside each other, so that a silent peer never holds up a good one.

pub(crate) mod checks;
pub(crate) mod gate;
mod session;

use std::{convert::Infallible, future::pending, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use ipnet::IpNet;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{
    LazyConfigAcceptor, StartHandshake, TlsAcceptor,
    rustls::{HandshakeKind, server::Acceptor},
    server::TlsStream,
};
use tunnel_http::{
    listener::accept,
    permits::{Permit, Permits},
};
use tunnel_ops::socket::{set_unsent_limit, set_user_timeout};
use tunnel_ops::tls_files::LiveServerConfig;
use tunnel_proto::{
    handshake::{self, Greeting, NotASession},
    refusal::RefusalReason,
};

use self::{
    checks::{CheckPermit, Checks},
    gate::{Gate, Pass, Rejection},
    session::LiveSession,
};
use crate::{
    allowance::Allowance,
    auth::{AuthRefusal, Authenticator, Grant, Presented, bearer},
    budget::sources,
    config::live::LiveConfig,
    directory::ClaimRefusal,
    events::{Event, EventKind, Events},
    lifecycle::Lifecycle,
    metrics::{Metrics, OpenConnection},
    public::exhausted_cause,
    registry::Registry,
};

/// Largest head of a request for a session, in bytes.
const HEAD_BYTES: usize = 16 * 1024;

/// How long sent bytes may stay unacknowledged before the kernel gives a connection up. Ends a
/// session whose peer is gone while there is something to send, which pings alone do not see sooner.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// What a client may take for TLS, and for its request, once it is its turn: it holds a place that
/// others wait for.
const GATED: Duration = Duration::from_secs(5);

/// When an instance that finds its runtime held by another is to come back.
const HELD_RETRY: Duration = Duration::from_secs(10);

/// When a check that finds no place is to come back.
const CHECK_RETRY: Duration = Duration::from_secs(30);

/// The parts of the server that the connections of the tunnel listener use.
pub(crate) struct TunnelListener {
    pub(crate) config: Arc<LiveConfig>,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) tls: Arc<LiveServerConfig>,
    /// Limits the handshakes at once.
    pub(crate) gate: Arc<Gate>,
    /// Limits the sessions that only check the way.
    pub(crate) checks: Arc<Checks>,
    /// Limits the log lines about tunnel clients that are refused.
    pub(crate) refusal_lines: Allowance,
}

/// Why a request is not let in, and when to come back where that is known.
struct Refusal {
    reason: RefusalReason,
    detail: String,
    retry_after: Option<Duration>,
}

/// A request that was let in.
struct Admitted {
    grant: Grant,
    /// Tells of changes after which the grant may be none any more.
    changed: watch::Receiver<u64>,
    greeting: Greeting,
    /// Where the instance itself lets its runtime be reached from.
    allow_from: Option<Vec<IpNet>>,
    upgrade: OnUpgrade,
    /// Of a session that only checks the way.
    check: Option<CheckPermit>,
}

/// Accepts tunnel clients until the server drains, then waits for their sessions to end.
pub(crate) async fn serve_all(shared: Arc<TunnelListener>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = shared.lifecycle.draining() => break,
        };
        while connections.try_join_next().is_some() {}
        match shared.permits.acquire(Some(peer.ip().to_canonical())) {
            Ok(permit) => {
                connections.spawn(one(shared.clone(), socket, peer, permit));
            }
            Err(exhausted) => {
                let labels = ["tunnel", exhausted_cause(exhausted)];
                let refused = &shared.metrics.connections_refused;
                refused.with_label_values(&labels).inc();
            }
        }
    }
    // Clients that dial now are refused at once, and so dial another server.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn one(shared: Arc<TunnelListener>, socket: TcpStream, peer: SocketAddr, _permit: Permit) {
    let _open = shared.metrics.connection("tunnel");
    if let Err(error) = set_options(&socket) {
        tracing::debug!(%peer, %error, "cannot set the options of a tunnel connection");
    }
    // In a box of its own, so that the session, which lives for days, does not hold its space.
    let begun = Box::pin(begin(&shared, socket, peer)).await;
    if let Some(session) = begun {
        session.run(&shared).await;
    }
}

/// From the first byte to a session that has begun, unless the tunnel client is refused.
async fn begin(
    shared: &TunnelListener,
    socket: TcpStream,
    peer: SocketAddr,
) -> Option<Box<LiveSession>> {
    let (admitted, io, leftover) = tokio::select! {
        admitted = greet(shared, socket, peer) => admitted?,
        () = shared.lifecycle.silent_grace_over() => return None,
    };
    // Boxed, since it is handed on: each place it passes would hold space for it as long as it lives.
    let session = LiveSession::begin(&shared.config.load(), admitted, io, leftover, peer);
    Some(Box::new(session))
}

/// From the first byte to the answer; the session's stream if the tunnel client was let in.
async fn greet(
    shared: &TunnelListener,
    socket: TcpStream,
    peer: SocketAddr,
) -> Option<(Admitted, TlsStream<TcpStream>, Bytes)> {
    let limit = shared.config.load().settings.tls_handshake_timeout;
    // Before the gate, so that connections that never send a ClientHello hold no pass.
    let hello = LazyConfigAcceptor::new(Acceptor::default(), socket);
    let Ok(Ok(start)) = timeout(limit, hello).await else {
        return refuse_connection(&shared.metrics, "tls");
    };
    let address = peer.ip().to_canonical();
    let entered = timeout(limit, shared.gate.enter(address)).await;
    let entered = entered.unwrap_or_else(|_| Err(shared.gate.send_away(address)));
    let entrance = match entered {
        Ok(pass) => Entrance {
            away: None,
            pass: Some((shared.metrics.handshake(), pass)),
            _permit: None,
        },
        Err(Rejection::Answer(permit, after)) => Entrance {
            away: Some(after),
            pass: None,
            _permit: Some(permit),
        },
        Err(Rejection::Close) => return refuse_connection(&shared.metrics, "max_handshakes"),
    };
    let admitted = async {
        let handshake = handshake(start, shared.tls.acceptor());
        match timeout(limit.min(GATED), handshake).await {
            Ok(Ok(stream)) => {
                shared.metrics.on_tls_handshake(is_resumed(&stream));
                admit(shared, stream, peer, &entrance).await
            }
            _ => refuse_connection(&shared.metrics, "tls"),
        }
    };
    tokio::select! {
        admitted = admitted => admitted,
        () = entrance.taken_back() => refuse_connection(&shared.metrics, "silent"),
    }
}

/// What the gate has said; held until the client has its answer.
struct Entrance {
    /// When the client is to come back, if there is no room for it now.
    away: Option<Duration>,
    // The count goes first, so that it is never above the gate.
    pass: Option<(OpenConnection, Pass)>,
    _permit: Option<Permit>,
}

impl Entrance {
    /// The client's request is there.
    fn spoke(&self) {
        if let Some((_, pass)) = &self.pass {
            pass.spoke();
        }
    }

    /// Resolves when the client's pass was given to another, because it was silent for too long.
    async fn taken_back(&self) {
        match &self.pass {
            Some((_, pass)) => pass.taken_back().await,
            None => pending().await,
        }
    }
}

async fn handshake(
    start: StartHandshake<TcpStream>,
    tls: TlsAcceptor,
) -> io::Result<TlsStream<TcpStream>> {
    start.into_stream(tls.config().clone()).await
}

/// Whether the client has come by a session of TLS that it had before.
fn is_resumed(stream: &TlsStream<TcpStream>) -> bool {
    let kind = stream.get_ref().1.handshake_kind();
    kind == Some(HandshakeKind::Resumed)
}

fn refuse_connection<T>(metrics: &Metrics, cause: &str) -> Option<T> {
    metrics
        .connections_refused
        .with_label_values(&["tunnel", cause])
        .inc();
    None
}

fn set_options(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    set_unsent_limit(socket, tunnel_proto::limits::UNSENT_BYTES)?;
    set_user_timeout(socket, Some(USER_TIMEOUT))?;
    SockRef::from(socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(USER_TIMEOUT))
}

/// Answers the one request of a connection; the session's stream if it was let in.
async fn admit(
    shared: &TunnelListener,
    stream: TlsStream<TcpStream>,
    peer: SocketAddr,
    entrance: &Entrance,
) -> Option<(Admitted, TlsStream<TcpStream>, Bytes)> {
    let certificates = stream.get_ref().1.peer_certificates();
    let certificates = certificates.unwrap_or_default().to_vec();
    let admitted = Arc::new(Mutex::new(None));
    let shown = (entrance, &*certificates);
    let service = service_fn(|request| {
        let answer = answer(shared, request, peer, shown, &admitted);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(
            shared
                .config
                .load()
                .settings
                .request_head_timeout
                .min(GATED),
        )
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // The head has its own limit; this one bounds asking for the credential, and the answer, too.
    let limit = 2 * GATED + 3 * shared.config.load().settings.auth_timeout;
    timeout(limit, serving).await.ok()?.ok()?;
    let mut admitted: Admitted = admitted.lock().take()?;
    let upgraded = (&mut admitted.upgrade).await.ok()?;
    let parts = upgraded.downcast::<TokioIo<TlsStream<TcpStream>>>().ok()?;
    Some((admitted, parts.io.into_inner(), parts.read_buf))
}

/// The answer to one request: 101, or a refusal that says what to do.
async fn answer(
    shared: &TunnelListener,
    request: Request<Incoming>,
    peer: SocketAddr,
    entry: (&Entrance, &[CertificateDer<'static>]),
    admitted: &Mutex<Option<Admitted>>,
) -> Response<Full<Bytes>> {
    match let_in(shared, request, peer, entry, admitted).await {
        Ok(response) => response,
        Err(refusal) => refuse(&shared.metrics, &refusal),
    }
}

/// The 101 to a request that is let in, which is left in `admitted`.
async fn let_in(
    shared: &TunnelListener,
    mut request: Request<Incoming>,
    peer: SocketAddr,
    (entrance, certificates): (&Entrance, &[CertificateDer<'static>]),
    admitted: &Mutex<Option<Admitted>>,
) -> Result<Response<Full<Bytes>>, Refusal> {
    entrance.spoke();
    let greeting = handshake::check_request(&request).inspect_err(
        |error| tracing::debug!(%peer, %error, "a request that is not for a session"),
    )?;
    if let Some(after) = entrance.away {
        let detail = "this server has too many handshakes to do: dial again later";
        return Err(Refusal::for_now(
            RefusalReason::HandshakeQueue,
            detail,
            after,
        ));
    }
    if shared.lifecycle.is_draining() {
        let (reason, after) = (RefusalReason::ServerDraining, Duration::from_secs(1));
        return Err(Refusal::for_now(
            reason,
            "this server is going away: dial again",
            after,
        ));
    }
    let allow_from = allow_from(&greeting)?;
    let presented = Presented {
        bearer: bearer(request.headers()),
        certificates,
        greeting: &greeting,
        peer,
    };
    let changed = shared.authenticator.changed();
    let grant = shared.authenticator.authenticate(&presented).await;
    let grant = grant.inspect_err(|error| {
        let (instance, reason) = (greeting.instance.id().as_str(), error.name());
        if let Some(left_out) = shared.refusal_lines.take() {
            tracing::warn!(%peer, instance, reason, %error, left_out, "a tunnel client was refused");
        }
    })?;
    let check = may_begin(shared, &grant, &greeting, peer).await?;
    let result = match check {
        Some(_) => "checked",
        None => "accepted",
    };
    shared.metrics.handshakes.with_label_values(&[result]).inc();
    let response = switch(&request, greeting.subprotocol());
    let upgrade = hyper::upgrade::on(&mut request);
    *admitted.lock() = Some(Admitted {
        changed,
        grant,
        greeting,
        allow_from,
        upgrade,
        check,
    });
    Ok(response)
}

/// Whether a session can begin now that its credential is good: for a check, when there is a place for it; for
/// any other, when its instance would get the runtime.
async fn may_begin(
    shared: &TunnelListener,
    grant: &Grant,
    greeting: &Greeting,
    peer: SocketAddr,
) -> Result<Option<CheckPermit>, Refusal> {
    let runtime = &grant.runtime;
    if greeting.is_check {
        let permit = shared.checks.enter(&runtime.account, &runtime.label);
        let detail = "too many checks are under way: check again later";
        return match permit {
            Some(permit) => Ok(Some(permit)),
            None => Err(Refusal::for_now(
                RefusalReason::CheckLimit,
                detail,
                CHECK_RETRY,
            )),
        };
    }
    let precheck = shared.registry.precheck(
        &runtime.label,
        greeting.instance.id(),
        shared.config.load().settings.on_conflict,
    );
    let Err(refusal) = precheck.await else {
        return Ok(None);
    };
    let (label, instance) = (runtime.label.as_str(), greeting.instance.id().as_str());
    if let Some(left_out) = shared.refusal_lines.take() {
        tracing::warn!(runtime = label, instance, %peer, %refusal, left_out, "a tunnel client was refused");
    }
    if let ClaimRefusal::Contested { takeovers, .. } = &refusal {
        let contested = Event::of(EventKind::Contested, &runtime.label);
        shared
            .events
            .report(contested.detail(format!("{takeovers} takeovers in a row")));
    }
    Err(refusal.into())
}

/// Where the instance itself lets its runtime be reached from.
fn allow_from(greeting: &Greeting) -> Result<Option<Vec<IpNet>>, Refusal> {
    let list = greeting.allow_from.as_deref().map(sources::parse);
    list.transpose().map_err(|error| Refusal {
        reason: RefusalReason::AllowFromMalformed,
        detail: format!("the tunnel client's source addresses: {error}"),
        retry_after: None,
    })
}

fn switch(request: &Request<Incoming>, subprotocol: &'static str) -> Response<Full<Bytes>> {
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
    let protocol = HeaderValue::from_static(subprotocol);
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    // Base64 is always a valid field value.
    if let Ok(accept) = HeaderValue::from_str(&accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

fn refuse(metrics: &Metrics, refusal: &Refusal) -> Response<Full<Bytes>> {
    let (reason, status) = (refusal.reason, refusal.reason.status());
    let refused = metrics.handshakes.with_label_values(&[reason.name()]);
    refused.inc();
    // Serialising strings into memory has no way to fail.
    let body = handshake::Refusal::new(reason, refusal.detail.as_str());
    let body = serde_json::to_vec(&body).unwrap_or_default();
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
    if let Some(after) = refusal.retry_after {
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

impl Refusal {
    /// A refusal that time heals.
    fn for_now(reason: RefusalReason, detail: &str, after: Duration) -> Self {
        Self {
            reason,
            detail: detail.to_owned(),
            retry_after: Some(after),
        }
    }
}

impl From<NotASession> for Refusal {
    fn from(error: NotASession) -> Self {
        Self {
            reason: error.reason(),
            detail: error.to_string(),
            retry_after: None,
        }
    }
}

impl From<AuthRefusal> for Refusal {
    fn from(refusal: AuthRefusal) -> Self {
        Self {
            reason: refusal.reason(),
            detail: refusal.to_string(),
            retry_after: refusal.retry_after(),
        }
    }
}

/// The runtime is another instance's.
impl From<ClaimRefusal> for Refusal {
    fn from(refusal: ClaimRefusal) -> Self {
        let retry_after = match refusal {
            ClaimRefusal::Superseded { .. } | ClaimRefusal::Held { .. } => HELD_RETRY,
            ClaimRefusal::Contested { retry_after, .. } => retry_after,
        };
        Self {
            reason: refusal.reason(),
            detail: refusal.to_string(),
            retry_after: Some(retry_after),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_holds_little_that_it_has_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await;
        let socket = socket.unwrap();
        set_options(&socket).unwrap();
        let unsent = SockRef::from(&socket).tcp_notsent_lowat().unwrap();
        assert_eq!(unsent, tunnel_proto::limits::UNSENT_BYTES);
    }
}
