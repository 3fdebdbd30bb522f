//! The tunnel listener: where tunnel clients dial in.
//!
//! Each connection is one TLS handshake, one `GET /connect` that is checked and authenticated before it is upgraded,
//! and then one session ([`session`]). Everything before the session has a deadline. Handshakes run concurrently, so
//! that a silent peer does not delay others.

pub(crate) mod checks;
pub(crate) mod gate;
mod refused;
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
use tunnel_ops::read_ahead::ReadAhead;
use tunnel_ops::socket::{set_unsent_limit, set_user_timeout};
use tunnel_ops::tls_files::LiveServerConfig;
use tunnel_proto::{
    handshake::{self, Greeting},
    refusal::RefusalReason,
};

use self::{
    checks::{CheckPermit, Checks},
    gate::{Gate, HandshakePermit, Rejection},
    refused::{Refusal, RefusedClient},
    session::LiveSession,
};
use crate::{
    allowance::Allowance,
    auth::{Authenticator, Grant, Presented, bearer},
    budget::sources,
    config::live::LiveConfig,
    directory::ClaimRefusal,
    events::{Event, EventKind, Events},
    lifecycle::Lifecycle,
    metrics::{Metrics, OpenConnection},
    public::exhausted_cause,
    registry::Registry,
};

/// A connection under TLS.
type TunnelStream = TlsStream<ReadAhead<TcpStream>>;

/// Largest head of a request for a session, in bytes.
const HEAD_BYTES: usize = 16 * 1024;

/// How long sent bytes may stay unacknowledged before the kernel closes a connection. Ends a session whose peer has
/// disappeared while data is being sent; pings alone would not detect it sooner.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for TLS, and time for the request's head, of a client that has a pass, since other clients wait for the pass.
const GATED_TIMEOUT: Duration = Duration::from_secs(5);

/// `Retry-After` of a check for which there is no permit.
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
    /// Limits concurrent handshakes.
    pub(crate) gate: Arc<Gate>,
    /// Limits the sessions that only check the path.
    pub(crate) checks: Arc<Checks>,
    /// The port of the public listener.
    pub(crate) public_port: u16,
    /// Limits the log lines about tunnel clients that are refused.
    pub(crate) refusal_lines: Allowance,
}

/// A request that was accepted.
struct Admitted {
    grant: Grant,
    /// Changes after which the grant must be checked again.
    changed: watch::Receiver<u64>,
    greeting: Greeting,
    /// The source networks that the instance itself allows for its runtime.
    allow_from: Option<Vec<IpNet>>,
    upgrade: OnUpgrade,
    /// The permit of a session that only checks the path.
    check: Option<CheckPermit>,
}

/// What has become of the request of a connection.
enum Outcome {
    Admitted(Admitted),
    Refused(RefusedClient),
}

/// Accepts tunnel clients from when the server serves them until it drains, then waits for their sessions to end.
pub(crate) async fn serve_all(shared: Arc<TunnelListener>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    tokio::select! {
        () = shared.lifecycle.serving_tunnels() => {}
        () = shared.lifecycle.draining() => {}
    }
    loop {
        let (socket, peer) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = shared.lifecycle.draining() => break,
        };
        while connections.try_join_next().is_some() {}
        match shared.permits.acquire(Some(peer.ip().to_canonical())) {
            Ok(permit) => {
                connections.spawn(serve_connection(shared.clone(), socket, peer, permit));
            }
            Err(exhausted) => {
                let labels = ["tunnel", exhausted_cause(exhausted)];
                let refused = &shared.metrics.connections_refused;
                refused.with_label_values(&labels).inc();
            }
        }
    }
    // Clients that dial now are refused immediately and dial another server, unless another process has the socket too.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve_connection(
    shared: Arc<TunnelListener>,
    socket: TcpStream,
    peer: SocketAddr,
    _permit: Permit,
) {
    let _open = shared.metrics.connection("tunnel");
    if let Err(error) = set_options(&socket) {
        tracing::debug!(%peer, %error, "cannot set the options of a tunnel connection");
    }
    // Boxed, so that its space is freed before the session, which lives for days.
    let session = Box::pin(begin_session(&shared, socket, peer)).await;
    if let Some(session) = session {
        session.run(&shared).await;
    }
}

/// Serves a connection from the first byte until its session begins; `None` if the tunnel client is refused.
async fn begin_session(
    shared: &TunnelListener,
    socket: TcpStream,
    peer: SocketAddr,
) -> Option<Box<LiveSession>> {
    let (admitted, io, leftover) = tokio::select! {
        admitted = accept_client(shared, socket, peer) => admitted?,
        () = shared.lifecycle.silent_grace_over() => return None,
    };
    // Boxed, because each future that it is moved through would reserve space for it.
    let session = LiveSession::begin(&shared.config.load(), admitted, io, leftover, peer);
    Some(Box::new(session))
}

/// Serves a connection from the first byte to the response; returns the session's stream if the tunnel client was
/// accepted.
async fn accept_client(
    shared: &TunnelListener,
    socket: TcpStream,
    peer: SocketAddr,
) -> Option<(Admitted, TunnelStream, Bytes)> {
    let limit = shared.config.load().settings.tls_handshake_timeout;
    // Before the gate, so that connections that never send a ClientHello hold no handshake permit.
    let hello = LazyConfigAcceptor::new(Acceptor::default(), ReadAhead::new(socket));
    let Ok(Ok(start)) = timeout(limit, hello).await else {
        return refuse_connection(&shared.metrics, "tls");
    };
    let address = peer.ip().to_canonical();
    let entered = timeout(limit, shared.gate.enter(address)).await;
    let entered = entered.unwrap_or_else(|_| Err(shared.gate.reject(address)));
    let outcome = match entered {
        Ok(permit) => GateOutcome {
            retry_after: None,
            handshake: Some((shared.metrics.handshake(), permit)),
            _refusal: None,
        },
        Err(Rejection::Answer(permit, after)) => GateOutcome {
            retry_after: Some(after),
            handshake: None,
            _refusal: Some(permit),
        },
        Err(Rejection::Close) => return refuse_connection(&shared.metrics, "max_handshakes"),
    };
    let admitted = async {
        let handshake = tls_handshake(start, shared.tls.acceptor());
        match timeout(limit.min(GATED_TIMEOUT), handshake).await {
            Ok(Ok(mut stream)) => {
                let limit = tunnel_proto::limits::TLS_BYTES;
                stream.get_mut().1.set_buffer_limit(Some(limit));
                shared.metrics.on_tls_handshake(is_resumed(&stream));
                serve_request(shared, stream, peer, &outcome).await
            }
            _ => refuse_connection(&shared.metrics, "tls"),
        }
    };
    tokio::select! {
        admitted = admitted => admitted,
        () = outcome.displaced() => refuse_connection(&shared.metrics, "silent"),
    }
}

/// The gate's decision about a client; held until the client has its response.
struct GateOutcome {
    /// When the client may try again, if there is no handshake permit for it now.
    retry_after: Option<Duration>,
    // The count is dropped first, so that it never exceeds the number of permits.
    handshake: Option<(OpenConnection, HandshakePermit)>,
    _refusal: Option<Permit>,
}

impl GateOutcome {
    /// The client's request has been received.
    fn on_request(&self) {
        if let Some((_, permit)) = &self.handshake {
            permit.on_request();
        }
    }

    /// Resolves when the permit was given to another client, because this one was silent for too long.
    async fn displaced(&self) {
        match &self.handshake {
            Some((_, permit)) => permit.displaced().await,
            None => pending().await,
        }
    }
}

async fn tls_handshake(
    start: StartHandshake<ReadAhead<TcpStream>>,
    tls: TlsAcceptor,
) -> io::Result<TunnelStream> {
    start.into_stream(tls.config().clone()).await
}

/// Whether the client has resumed an earlier TLS session.
fn is_resumed(stream: &TunnelStream) -> bool {
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

/// Answers the one request of a connection; returns the session's stream if the request was accepted.
async fn serve_request(
    shared: &TunnelListener,
    stream: TunnelStream,
    peer: SocketAddr,
    outcome: &GateOutcome,
) -> Option<(Admitted, TunnelStream, Bytes)> {
    let certificates = stream.get_ref().1.peer_certificates();
    let certificates = certificates.unwrap_or_default().to_vec();
    let request_outcome = Mutex::new(None);
    let client = (outcome, &*certificates);
    let service = service_fn(|request| {
        let response = respond(shared, request, peer, client, &request_outcome);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(
            shared
                .config
                .load()
                .settings
                .request_head_timeout
                .min(GATED_TIMEOUT),
        )
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // The head has its own limit; this one also bounds the authentication and the response.
    let limit = 2 * GATED_TIMEOUT + 3 * shared.config.load().settings.auth_timeout;
    let served = timeout(limit, serving).await;
    let mut admitted = match request_outcome.into_inner()? {
        Outcome::Admitted(admitted) => admitted,
        // After the response, so that the time it takes discloses nothing.
        Outcome::Refused(refused) => {
            refused.report(shared, peer, &certificates);
            return None;
        }
    };
    served.ok()?.ok()?;
    let upgraded = (&mut admitted.upgrade).await.ok()?;
    let parts = upgraded.downcast::<TokioIo<TunnelStream>>().ok()?;
    Some((admitted, parts.io.into_inner(), parts.read_buf))
}

/// The response to one request: 101, or a refusal with its reason.
async fn respond(
    shared: &TunnelListener,
    mut request: Request<Incoming>,
    peer: SocketAddr,
    client: (&GateOutcome, &[CertificateDer<'static>]),
    outcome: &Mutex<Option<Outcome>>,
) -> Response<Full<Bytes>> {
    let (response, of_request) = match admit(shared, &mut request, peer, client).await {
        Ok((response, admitted)) => (response, Outcome::Admitted(admitted)),
        Err(refusal) => {
            let refused = RefusedClient::new(refusal, &request);
            (refused.response(&shared.metrics), Outcome::Refused(refused))
        }
    };
    *outcome.lock() = Some(of_request);
    response
}

/// Checks and authenticates a request. If it is accepted, returns the 101.
async fn admit(
    shared: &TunnelListener,
    request: &mut Request<Incoming>,
    peer: SocketAddr,
    (outcome, certificates): (&GateOutcome, &[CertificateDer<'static>]),
) -> Result<(Response<Full<Bytes>>, Admitted), Refusal> {
    outcome.on_request();
    let greeting = handshake::check_request(request)?;
    if let Some(after) = outcome.retry_after {
        let detail = "this server has too many handshakes in progress: dial again later";
        return Err(Refusal::for_now(
            RefusalReason::HandshakeQueue,
            detail,
            after,
        ));
    }
    if shared.lifecycle.is_draining() {
        go_elsewhere(shared, &greeting)?;
        let (reason, after) = (RefusalReason::ServerDraining, Duration::from_secs(1));
        return Err(Refusal::for_now(
            reason,
            "this server is shutting down: dial again",
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
    let grant = shared.authenticator.authenticate(&presented).await?;
    let check = may_begin(shared, &grant, &greeting).await;
    let check = check.map_err(|refusal| refusal.of(&grant))?;
    let result = match check {
        Some(_) => "checked",
        None => "accepted",
    };
    shared.metrics.handshakes.with_label_values(&[result]).inc();
    let response = switching_protocols(request, greeting.subprotocol());
    let admitted = Admitted {
        changed,
        grant,
        greeting,
        allow_from,
        upgrade: hyper::upgrade::on(request),
        check,
    };
    Ok((response, admitted))
}

/// Whether an authenticated session can begin: a check if there is a permit for it, which is returned; any other if its
/// instance would get the runtime.
async fn may_begin(
    shared: &TunnelListener,
    grant: &Grant,
    greeting: &Greeting,
) -> Result<Option<CheckPermit>, Refusal> {
    let runtime = &grant.runtime;
    if greeting.is_check {
        let permit = shared.checks.enter(&runtime.account, &runtime.label);
        let detail = "too many checks are in progress: check again later";
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
        shared.on_conflict(greeting),
    );
    let Err(refusal) = precheck.await else {
        go_elsewhere(shared, greeting)?;
        return Ok(None);
    };
    if let ClaimRefusal::Contested { takeovers, .. } = &refusal {
        let contested = Event::of(EventKind::Contested, &runtime.label);
        shared
            .events
            .report(contested.detail(format!("{takeovers} takeovers in a row")));
    }
    Err(refusal.into())
}

/// Refuses with `elsewhere` if another node should take this session, unless the client does not know that refusal or
/// was refused for it often enough.
fn go_elsewhere(shared: &TunnelListener, greeting: &Greeting) -> Result<(), Refusal> {
    let placement = greeting.placement.as_ref();
    let Some(placement) = placement.filter(|placement| placement.may_go_elsewhere()) else {
        return Ok(());
    };
    let is_leaving = shared.lifecycle.is_leaving();
    let directory = shared.registry.directory();
    match directory.is_better_elsewhere(&placement.avoid, is_leaving) {
        true => Err(Refusal::for_now(
            RefusalReason::Elsewhere,
            "another server node should take this session: dial again",
            Duration::ZERO,
        )),
        false => Ok(()),
    }
}

/// The source networks that the instance itself allows for its runtime.
fn allow_from(greeting: &Greeting) -> Result<Option<Vec<IpNet>>, Refusal> {
    let list = greeting.allow_from.as_deref().map(sources::parse);
    list.transpose().map_err(|error| {
        let detail = format!("the tunnel client's source addresses: {error}");
        Refusal::new(RefusalReason::AllowFromMalformed, detail)
    })
}

/// The 101 that accepts the WebSocket handshake.
fn switching_protocols(
    request: &Request<Incoming>,
    subprotocol: &'static str,
) -> Response<Full<Bytes>> {
    // `handshake::check_request` has checked that the key is present.
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_buffers_few_unsent_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await;
        let socket = socket.unwrap();
        set_options(&socket).unwrap();
        let unsent = SockRef::from(&socket).tcp_notsent_lowat().unwrap();
        assert_eq!(unsent, tunnel_proto::limits::UNSENT_BYTES);
    }
}
