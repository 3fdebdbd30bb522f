//! From an accepted socket to its requests, and to its last byte: the path of every connection of a platform client.
//!
//! ```text
//!   socket ─▶ TLS? ─▶ HTTP/1: guard ─▶ hyper ─▶ Gateway::answer
//!               └───▶ HTTP/2: ─────────▶ h2 ────▶ Gateway::answer
//! ```
//!
//! Each wait has a time-out. A refusal of the guard is written here, after hyper has returned the socket.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tunnel_ops::signals::Shutdown;
use tunnel_proto::problem::{Hop, Problem};

use crate::answer::{ProblemAnswers, http1_message};
use crate::connection::{self, Bounds, Http1, Transport, close, send_last};
use crate::detect::{self, DetectError, Protocol};
use crate::http1::{GuardHandle, InFlight, Refusal};
use crate::http2::OnUpgrade;
use crate::outgoing::ForwardedClient;
use crate::prefixed::Prefixed;
use crate::received::ReceivedBody;
use crate::tasks::Tasks;

/// Time for a peer to close its end once the program stops: longer than a round trip, so that it has its last response.
const CLOSE_STOPPING: Duration = Duration::from_millis(500);

/// How long an idle HTTP/1 connection stays for one more request when the program stops; `is_long` for a trusted proxy. It
/// uses each of its connections often, and its clients lose the request that is on its way when one closes. Other clients
/// get the time that a request is on its way.
#[must_use]
pub const fn idle_grace(is_long: bool) -> Duration {
    Duration::from_secs(if is_long { 5 } else { 1 })
}

/// A program that answers requests of platform clients and forwards them (RFC 9110, section 3.7).
pub trait Gateway: Sized + Send + Sync + 'static {
    /// What is kept of a peer for each of its connections.
    type Peer: Send + Sync + 'static;
    /// An upgrade that a request was granted.
    type Upgrade: Send + 'static;
    /// The content of answers.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;

    /// The program's name in problems.
    const HOP: Hop;

    /// The limits and time-outs of a connection of `client`.
    fn bounds(&self, client: &ForwardedClient) -> Bounds;

    /// Triggered when connections have to end with their next answer.
    fn stopping(&self) -> &Shutdown;

    /// Triggered when no time is left for requests that may still come.
    fn ending(&self) -> &Shutdown;

    /// How long idle connections of `client` stay for one more request when the program stops.
    fn idle_grace(&self, client: &ForwardedClient) -> Duration {
        idle_grace(client.is_trusted)
    }

    /// Ready when connections without a request have to close.
    fn silence_ended(&self) -> impl Future<Output = ()> + Send;

    /// Answers a request. `in_flight` is given over HTTP/1 and held until the answer is written.
    fn answer(
        connection: &Arc<Connection<Self>>,
        request: Request<ReceivedBody>,
        in_flight: Option<InFlight>,
    ) -> impl Future<Output = Result<Response<Self::Body>, Infallible>> + Send + use<Self>;

    /// Moves the bytes of an upgraded connection until it ends. An HTTP/2 stream whose peer reads nothing for
    /// `write_timeout` is reset.
    fn join<IO>(
        self: &Arc<Self>,
        io: IO,
        upgrade: Self::Upgrade,
        write_timeout: Option<Duration>,
    ) -> impl Future<Output = ()> + Send
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Moves the bytes of an upgraded connection of HTTP/1, all of which it is from now on.
    fn join_connection<IO>(
        self: &Arc<Self>,
        io: IO,
        upgrade: Self::Upgrade,
    ) -> impl Future<Output = ()> + Send
    where
        IO: AsyncRead + AsyncWrite + Transport + Unpin + Send + 'static,
    {
        self.join(io, upgrade, None)
    }

    /// Counts and logs a request that the guard has refused before hyper read it.
    fn on_unread(&self, peer: IpAddr, problem: &Problem);
}

/// The state that all requests of one connection share.
pub struct Connection<G: Gateway> {
    /// The program.
    pub gateway: Arc<G>,
    /// The client, as the forwarded requests name it.
    pub client: ForwardedClient,
    /// The state of the peer.
    pub peer: G::Peer,
    /// The chain of the client's certificate, which TLS has verified; empty without one.
    pub certificates: Vec<CertificateDer<'static>>,
    /// `None` over HTTP/2.
    guard: Option<GuardHandle>,
    /// The upgrade that an HTTP/1 connection is turned into.
    granted: Mutex<Option<G::Upgrade>>,
    /// The streams of an HTTP/2 connection, and what discards content.
    tasks: Tasks,
}

/// The client of a connection, the state of the peer, and its certificates.
type ConnectedClient<G> = (
    ForwardedClient,
    <G as Gateway>::Peer,
    Vec<CertificateDer<'static>>,
);

/// Why a connection ended before its first request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoRequest {
    /// The TLS handshake failed, or took too long.
    #[error("the TLS handshake failed: {0}")]
    Tls(#[source] io::Error),
    /// Nothing was received in time, or the connection ended.
    #[error("no request came: {0}")]
    FirstByte(#[from] DetectError),
    /// The program stops.
    #[error("the program stops")]
    Stopping,
}

/// Serves a connection until it ends. `first` has the bytes that were already read from it.
///
/// # Errors
/// When it ends before a request.
pub async fn serve<G: Gateway>(
    gateway: &Arc<G>,
    client: ForwardedClient,
    peer: G::Peer,
    socket: Prefixed<TcpStream>,
    tls: Option<TlsAcceptor>,
) -> Result<(), NoRequest> {
    match tls {
        // Boxed, so that a connection without TLS does not hold the memory for it.
        Some(tls) => Box::pin(encrypted(gateway, client, peer, socket, tls)).await,
        None => requests(gateway, (client, peer, Vec::new()), socket, None).await,
    }
}

async fn encrypted<G: Gateway>(
    gateway: &Arc<G>,
    client: ForwardedClient,
    peer: G::Peer,
    socket: Prefixed<TcpStream>,
    tls: TlsAcceptor,
) -> Result<(), NoRequest> {
    let limit = gateway.bounds(&client).tls_handshake_timeout;
    let stream = unless_stopping(gateway, timeout(limit, tls.accept(socket)))
        .await?
        .unwrap_or_else(|elapsed| Err(elapsed.into()))
        .map_err(NoRequest::Tls)?;
    let tls = stream.get_ref().1;
    let agreed = match tls.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        _ => Protocol::Http1,
    };
    let certificates = tls.peer_certificates().unwrap_or_default().to_vec();
    let client = (client, peer, certificates);
    requests(gateway, client, stream, Some(agreed)).await
}

/// Waits for the first request, and continues with the peer's protocol: that of ALPN, or of its first bytes.
async fn requests<G: Gateway, IO>(
    gateway: &Arc<G>,
    client: ConnectedClient<G>,
    mut io: IO,
    agreed: Option<Protocol>,
) -> Result<(), NoRequest>
where
    IO: AsyncRead + AsyncWrite + Transport + Unpin + Send + 'static,
{
    // Also with ALPN: the time-outs of HTTP/2 and of the guard begin with a byte.
    let limit = gateway.bounds(&client.0).first_byte_timeout;
    let detecting = detect::detect(&mut io, limit);
    let (detected, first) = unless_stopping(gateway, detecting).await??;
    match agreed.unwrap_or(detected) {
        Protocol::Http1 => http1(gateway, client, first, io).await,
        Protocol::Http2 => http2(gateway, client, Prefixed::new(first, io)).await,
    }
    Ok(())
}

/// Awaits a step before the first request. Fails when connections without a request have to close.
async fn unless_stopping<G: Gateway, T>(
    gateway: &Arc<G>,
    step: impl Future<Output = T>,
) -> Result<T, NoRequest> {
    tokio::select! {
        done = step => Ok(done),
        () = gateway.silence_ended() => Err(NoRequest::Stopping),
    }
}

async fn http1<G: Gateway, IO>(gateway: &Arc<G>, client: ConnectedClient<G>, first: Bytes, io: IO)
where
    IO: AsyncRead + AsyncWrite + Transport + Unpin + Send + 'static,
{
    let http1 = Http1::new(io, first, gateway.bounds(&client.0));
    let connection = Connection::new(gateway, client, Some(http1.guard().clone()));
    let answer = {
        let connection = Arc::clone(&connection);
        move |request: Request<ReceivedBody>, in_flight: InFlight| {
            G::answer(&connection, request, Some(in_flight))
        }
    };
    let idle_over = || connection.idle_over();
    let served = http1.serve(gateway.stopping(), idle_over, &connection.tasks, answer);
    if let Some(io) = served.await {
        // Boxed, since it is large and occurs once in a connection.
        Box::pin(connection.finish(io)).await;
    }
}

async fn http2<G: Gateway, IO>(gateway: &Arc<G>, client: ConnectedClient<G>, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Connection::new(gateway, client, None);
    let answer = |request: Request<ReceivedBody>| G::answer(&connection, request, None);
    let (bounds, tasks) = (gateway.bounds(&connection.client), &connection.tasks);
    connection::http2(io, bounds, tasks, gateway.stopping(), answer).await;
}

impl<G: Gateway> Connection<G> {
    fn new(
        gateway: &Arc<G>,
        (client, peer, certificates): ConnectedClient<G>,
        guard: Option<GuardHandle>,
    ) -> Arc<Self> {
        Arc::new(Self {
            gateway: Arc::clone(gateway),
            client,
            peer,
            certificates,
            guard,
            granted: Mutex::new(None),
            tasks: Tasks::default(),
        })
    }

    /// Whether it speaks HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        self.guard.is_none()
    }

    /// The guard of HTTP/1.
    #[must_use]
    pub fn guard(&self) -> Option<&GuardHandle> {
        self.guard.as_ref()
    }

    /// Continues with requests: the requested upgrade is not granted.
    pub fn not_upgraded(&self) {
        if let Some(guard) = &self.guard {
            guard.not_upgraded();
        }
    }

    /// Grants an upgrade: to an HTTP/1 connection as a whole, of HTTP/2 to the one stream.
    pub fn upgrade(&self, granted: G::Upgrade, on_upgrade: Option<OnUpgrade>) {
        match (&self.guard, on_upgrade) {
            (Some(guard), _) => {
                *self.granted.lock() = Some(granted);
                guard.upgraded();
            }
            (None, Some(on_upgrade)) => {
                let gateway = Arc::clone(&self.gateway);
                let write_timeout = gateway.bounds(&self.client).body_idle_timeout;
                self.tasks.spawn(async move {
                    if let Ok(upgraded) = on_upgrade.await {
                        let write_timeout = Some(write_timeout);
                        gateway.join(upgraded, granted, write_timeout).await;
                    }
                });
            }
            (None, None) => {}
        }
    }

    /// Continues with the socket after hyper has ended: as an upgraded connection, or by closing it.
    async fn finish<IO>(&self, io: IO)
    where
        IO: AsyncRead + AsyncWrite + Transport + Unpin + Send + 'static,
    {
        let granted = self.granted.lock().take();
        if let Some(granted) = granted {
            self.gateway.join_connection(io, granted).await;
            return;
        }
        let closed = async {
            let refused = self.guard.as_ref();
            match refused.and_then(|guard| Some((guard.refusal()?, guard.refuses_head_request()))) {
                Some((refusal, is_head)) => self.refuse(refusal, is_head, io).await,
                None => close(io).await,
            }
        };
        tokio::select! {
            () = closed => {}
            () = self.stopping_for(CLOSE_STOPPING) => {}
        }
    }

    /// Ready when the connection is to be closed if it is idle, since the program stops.
    async fn idle_over(&self) {
        tokio::select! {
            () = sleep(self.gateway.idle_grace(&self.client)) => {}
            () = self.gateway.ending().requested() => {}
        }
    }

    async fn stopping_for(&self, time: Duration) {
        self.gateway.stopping().requested().await;
        sleep(time).await;
    }

    /// Writes the answer to a request that the guard has refused, without its content to a HEAD request.
    async fn refuse<IO: AsyncWrite + AsyncRead + Unpin>(
        &self,
        refusal: Refusal,
        is_head: bool,
        io: IO,
    ) {
        let refused = Problem::new(G::HOP, refusal.reason(), refusal.detail());
        self.gateway.on_unread(self.client.address, &refused);
        let date = httpdate::fmt_http_date(SystemTime::now());
        let answer = ProblemAnswers::unread(&refused);
        send_last(io, &http1_message(&answer, is_head, &date)).await;
    }
}
