//! Where tunnel clients dial in: at the tunnel listener, or at the public one by the names of `--tunnel-host`.
//!
//! Each connection is one TLS handshake, one `GET /connect` that is checked and authenticated before it is upgraded
//! ([`request`]), and then one session ([`session`]). Everything before the session has a deadline. Handshakes run
//! concurrently, so that a silent peer does not delay others.

pub(crate) mod checks;
pub(crate) mod gate;
mod refused;
pub(crate) mod request;
mod session;

use std::{
    convert::Infallible,
    future::pending,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::service_fn,
    upgrade::{self, OnUpgrade},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{
    LazyConfigAcceptor,
    rustls::{HandshakeKind, ServerConnection, server::Acceptor},
};
use tunnel_http::{
    connection::Transport,
    permits::{Permit, Permits},
};
use tunnel_ops::read_ahead::ReadAhead;
use tunnel_ops::socket::{set_unsent_limit, set_user_timeout};
use tunnel_ops::tls_files::LiveServerConfig;
use tunnel_proto::handshake;

use self::{
    checks::Checks,
    gate::{Gate, Rejection},
    request::{Admitted, Dial, GateOutcome, Outcome, respond},
    session::LiveSession,
};
use crate::{
    allowance::Allowance,
    arrival::{Arrival, NotArrived, arrive, exhausted_cause},
    auth::Authenticator,
    config::live::LiveConfig,
    events::Events,
    lifecycle::Lifecycle,
    metrics::{Metrics, OpenConnection},
    registry::Registry,
    runtimes::HostName,
};

/// Largest head of a request for a session, in bytes.
const HEAD_BYTES: usize = 16 * 1024;

/// How long sent bytes may stay unacknowledged before the kernel closes a connection. Ends a session whose peer has
/// disappeared while data is being sent; pings alone would not detect it sooner.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for TLS, and time for the request's head, of a client that has a pass, since other clients wait for the pass.
const GATED_TIMEOUT: Duration = Duration::from_secs(5);

/// The parts of the server that the connections of tunnel clients use.
pub(crate) struct TunnelListener {
    pub(crate) config: Arc<LiveConfig>,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    pub(crate) lifecycle: Arc<Lifecycle>,
    pub(crate) permits: Arc<Permits>,
    /// `None` if tunnel clients come in plain HTTP, through trusted proxies.
    pub(crate) tls: Option<Arc<LiveServerConfig>>,
    /// The names by which the public listener takes tunnel clients, too.
    pub(crate) hosts: Vec<HostName>,
    /// Limits concurrent handshakes.
    pub(crate) gate: Arc<Gate>,
    /// Limits the sessions that only check the path.
    pub(crate) checks: Arc<Checks>,
    /// The port of the public listener.
    pub(crate) public_port: u16,
    /// Limits the log lines about tunnel clients that are refused.
    pub(crate) refusal_lines: Allowance,
}

/// The places that a session takes: of a connection, and in the metrics.
pub(crate) struct SessionPlace {
    permit: Mutex<Permit>,
    _open: OpenConnection,
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
            accepted = shared.lifecycle.accepting_tunnels.accept(&listener) => accepted,
            () = shared.lifecycle.draining() => break,
        };
        while connections.try_join_next().is_some() {}
        // A trusted proxy connects for many clients: its connections count only in all, until it names one.
        let is_trusted = shared.config.is_trusted(peer.ip());
        if let Some(place) = shared.place((!is_trusted).then_some(peer.ip())) {
            connections.spawn(serve_connection(shared.clone(), socket, peer, place));
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
    place: SessionPlace,
) {
    let expects_header = shared.config.load().settings.tunnel_proxy_protocol;
    let arrived = arrive(
        &shared.config,
        &shared.lifecycle,
        socket,
        peer,
        expects_header,
    );
    let arrival = match Box::pin(arrived).await {
        Ok(arrival) => arrival,
        Err(NotArrived::Proxy) => {
            return count_refused(&shared.metrics, "proxy_protocol");
        }
        Err(NotArrived::Stopping) => return,
    };
    if !arrival.is_trusted
        && let Err(exhausted) = place.permit.lock().count_for(arrival.client.ip())
    {
        return count_refused(&shared.metrics, exhausted_cause(exhausted));
    }
    serve(shared, arrival, place, false).await;
}

/// Serves a tunnel client from its first byte, after a PROXY header, to the end of its session. Its request has to name a
/// host of `--tunnel-host` if it has come `by_host`.
pub(crate) async fn serve(
    shared: Arc<TunnelListener>,
    arrival: Arrival,
    place: SessionPlace,
    by_host: bool,
) {
    prepare_socket(&arrival.socket);
    // Boxed, so that its space is freed before the session, which lives for days.
    let session = Box::pin(begin_session(&shared, arrival, &place, by_host)).await;
    if let Some(session) = session {
        session.run(&shared).await;
    }
}

/// Runs the session of a tunnel client that the public listener has let in, on the connection of its request.
pub(crate) async fn run_session<IO>(shared: &TunnelListener, admitted: Admitted, mut io: IO)
where
    IO: AsyncRead + AsyncWrite + Transport + Unpin + Send + 'static,
{
    prepare_socket(io.socket());
    io.set_tls_buffer_limit(tunnel_proto::limits::TLS_BYTES);
    let session = LiveSession::begin(&shared.config.load(), admitted, io, Bytes::new());
    Box::new(session).run(shared).await;
}

/// Serves a connection from the first byte until its session begins; `None` if the tunnel client is refused.
async fn begin_session(
    shared: &TunnelListener,
    arrival: Arrival,
    place: &SessionPlace,
    by_host: bool,
) -> Option<Box<LiveSession>> {
    let dial = Dial::new(&arrival, shared.tls.is_some(), &place.permit, by_host);
    let accepted = async {
        match shared.tls.as_deref() {
            Some(tls) => accept_tls(shared, tls, arrival, dial).await,
            None => serve_request(shared, arrival.into_io(), &dial).await,
        }
    };
    tokio::select! {
        session = accepted => session,
        () = shared.lifecycle.silent_grace_over() => None,
    }
}

/// Serves a TLS connection from the first byte to the response; returns the session if the tunnel client was accepted.
async fn accept_tls(
    shared: &TunnelListener,
    tls: &LiveServerConfig,
    arrival: Arrival,
    dial: Dial<'_>,
) -> Option<Box<LiveSession>> {
    let limit = shared.config.load().settings.tls_handshake_timeout;
    // Before the gate, so that connections that never send a ClientHello hold no handshake permit.
    let io = ReadAhead::new(arrival.into_io());
    let Ok(Ok(start)) = timeout(limit, LazyConfigAcceptor::new(Acceptor::default(), io)).await
    else {
        return refuse_connection(&shared.metrics, "tls");
    };
    let gate = match dial.is_trusted {
        // A trusted proxy is not held up for its clients: each of them enters the gate with its request.
        true => None,
        false => Some(match shared.enter(dial.client.ip).await {
            Ok(entered) => entered,
            Err(rejection) if rejection.permit.is_some() => GateOutcome::rejected(rejection),
            Err(Rejection { retry_after, .. }) => {
                refuse_before_tls(start.io, retry_after).await;
                return refuse_connection(&shared.metrics, "max_handshakes");
            }
        }),
    };
    let limit = match gate {
        Some(_) => limit.min(GATED_TIMEOUT),
        None => limit,
    };
    let handshake = start.into_stream(tls.acceptor().config().clone());
    let accepted = async {
        let Ok(Ok(mut stream)) = timeout(limit, handshake).await else {
            return refuse_connection(&shared.metrics, "tls");
        };
        let tls = stream.get_mut().1;
        tls.set_buffer_limit(Some(tunnel_proto::limits::TLS_BYTES));
        shared.metrics.on_tls_handshake(is_resumed(tls));
        let certificates = tls.peer_certificates().unwrap_or_default().to_vec();
        let dial = Dial {
            certificates: &certificates,
            gate: gate.as_ref(),
            ..dial
        };
        serve_request(shared, stream, &dial).await
    };
    let displaced = async {
        match &gate {
            Some(gate) => gate.displaced().await,
            None => pending().await,
        }
    };
    tokio::select! {
        session = accepted => session,
        () = displaced => refuse_connection(&shared.metrics, "silent"),
    }
}

/// Tells a client that has sent its ClientHello when there is room for it. The response is small: it finds room in the socket,
/// or the client is gone.
async fn refuse_before_tls<IO: AsyncWrite + Unpin>(mut io: IO, retry_after: Duration) {
    let response = handshake::crowded_response(retry_after);
    let written = async {
        io.write_all(response.as_bytes()).await?;
        io.shutdown().await
    };
    if let Ok(Err(error)) = timeout(GATED_TIMEOUT, written).await {
        tracing::debug!(%error, "a rejected tunnel client has not waited for the response");
    }
}

/// Whether the client has resumed an earlier TLS session.
fn is_resumed(tls: &ServerConnection) -> bool {
    tls.handshake_kind() == Some(HandshakeKind::Resumed)
}

fn refuse_connection<T>(metrics: &Metrics, cause: &str) -> Option<T> {
    count_refused(metrics, cause);
    None
}

fn count_refused(metrics: &Metrics, cause: &str) {
    let refused = &metrics.connections_refused;
    refused.with_label_values(&["tunnel", cause]).inc();
}

/// Sets the options of a tunnel client's connection.
fn prepare_socket(socket: &TcpStream) {
    if let Err(error) = set_options(socket) {
        tracing::debug!(%error, "cannot set the options of a tunnel connection");
    }
}

fn set_options(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    set_unsent_limit(socket, tunnel_proto::limits::UNSENT_BYTES)?;
    set_user_timeout(socket, Some(USER_TIMEOUT))?;
    SockRef::from(socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(USER_TIMEOUT))
}

/// Answers the one request of a connection; returns its session if the request was accepted.
async fn serve_request<IO>(
    shared: &TunnelListener,
    io: IO,
    dial: &Dial<'_>,
) -> Option<Box<LiveSession>>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let request_outcome = Mutex::new(None);
    let service = service_fn(|mut request: Request<Incoming>| {
        let request_outcome = &request_outcome;
        async move {
            let on_upgrade = upgrade::on(&mut request);
            let (response, outcome) = respond(shared, &request, dial).await;
            *request_outcome.lock() = Some((outcome, on_upgrade));
            Ok::<_, Infallible>(response)
        }
    });
    let head_timeout = shared.config.load().settings.request_head_timeout;
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(match dial.gate {
            Some(_) => head_timeout.min(GATED_TIMEOUT),
            None => head_timeout,
        })
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    let settings = &shared.config.load_full().settings;
    // The head has its own limit; this one also bounds the gate, the authentication and the response.
    let limit =
        settings.tls_handshake_timeout + head_timeout + GATED_TIMEOUT + 3 * settings.auth_timeout;
    let served = timeout(limit, serving).await;
    let (outcome, on_upgrade): (Outcome, OnUpgrade) = request_outcome.into_inner()?;
    let admitted = match outcome {
        Outcome::Admitted(admitted) => admitted,
        // After the response, so that the time it takes discloses nothing.
        Outcome::Refused(refused, client) => {
            refused.report(shared, client, dial.certificates);
            return None;
        }
    };
    served.ok()?.ok()?;
    let parts = on_upgrade.await.ok()?.downcast::<TokioIo<IO>>().ok()?;
    // Boxed, because each future that it is moved through would reserve space for it.
    let (config, io) = (shared.config.load(), parts.io.into_inner());
    Some(Box::new(LiveSession::begin(
        &config,
        *admitted,
        io,
        parts.read_buf,
    )))
}

impl SessionPlace {
    /// The permit, which can still be counted by an address.
    pub(crate) fn permit(&self) -> &Mutex<Permit> {
        &self.permit
    }
}

impl TunnelListener {
    /// A place for a connection, counted by `address` if there is one; the refusal is counted.
    pub(crate) fn place(&self, address: Option<IpAddr>) -> Option<SessionPlace> {
        match self.permits.acquire(address) {
            Ok(permit) => Some(SessionPlace {
                permit: Mutex::new(permit),
                _open: self.metrics.connection("tunnel"),
            }),
            Err(exhausted) => refuse_connection(&self.metrics, exhausted_cause(exhausted)),
        }
    }

    /// Whether this is a name by which the public listener takes tunnel clients.
    pub(crate) fn is_tunnel_host(&self, host: &str) -> bool {
        let mut hosts = self.hosts.iter();
        hosts.any(|known| known.as_str().eq_ignore_ascii_case(host))
    }

    /// Whether a request of HTTP/1 at the public listener is a tunnel client's: it is for a host of `--tunnel-host`, and
    /// asks for a session where a runtime has that host, too.
    pub(crate) fn takes<B>(&self, request: &Request<B>, is_runtime: impl Fn(&str) -> bool) -> bool {
        let host = request::host(request);
        self.is_tunnel_host(host)
            && (!is_runtime(&host.to_ascii_lowercase()) || handshake::asks_for_session(request))
    }

    /// Waits for a handshake permit.
    async fn enter(&self, address: IpAddr) -> Result<GateOutcome, Rejection> {
        let limit = self.config.load().settings.tls_handshake_timeout;
        let entered = self.gate.enter(address, limit).await;
        entered.map(|permit| GateOutcome::entered((self.metrics.handshake(), permit)))
    }
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
