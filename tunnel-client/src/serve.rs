//! `serve`: the client's routes behind a listener, without a tunnel.
//!
//! ```text
//!   ingress controller ─▶ listener ─▶ connection ─▶ request ─▶ Exchanges ─▶ routes ─▶ upstream
//!                                     (guard, hyper)   └── checked as the tunnel server would
//! ```
//!
//! In: requests of an ingress controller, over HTTP/1.1 or HTTP/2 (prior knowledge, or TLS). Out: the response of the
//! routes, or a problem in the format of the tunnel server. An exchange is handled as if it came through a session.

mod answer;
mod request;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_rustls::TlsAcceptor;
use tunnel_http::answer::{ProblemAnswers, ProblemPage};
use tunnel_http::connection::Bounds;
use tunnel_http::gateway::{self, Gateway};
use tunnel_http::http1::InFlight;
use tunnel_http::listener::{accept, listen, set_options};
use tunnel_http::outgoing::{ForwardedClient, ViaName};
use tunnel_http::permits::{Permit, Permits};
use tunnel_http::prefixed::Prefixed;
use tunnel_http::received::ReceivedBody;
use tunnel_http::upgraded::{self, UpgradeBounds};
use tunnel_ops::admin::Readiness;
use tunnel_ops::inherited::Inherited;
use tunnel_ops::signals::{Shutdown, Trigger};
use tunnel_ops::socket::listen_advice;
use tunnel_ops::task::Owned;
use tunnel_ops::telemetry::RequestId;
use tunnel_ops::tls_files::{Identity, LiveServerConfig, TlsFilesError};
use tunnel_ops::watch::{FileWatch, WatchError};
use tunnel_proto::problem::{Hop, Problem};

use self::answer::{GrantedUpgrade, ResponseBody};
use crate::config::{CertificateFiles, Settings};
use crate::exchange::Exchanges;
use crate::metrics::Metrics;

/// Most of the grace period that is kept to end long streams in order.
const ENDING: Duration = Duration::from_secs(4);

/// The window of one HTTP/2 stream. Enough for the short round trip to an ingress controller; each open exchange may hold
/// this much memory.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;

/// A listener that is bound and does not accept yet.
pub(crate) struct FrontListener {
    socket: std::net::TcpListener,
    address: SocketAddr,
    tls: Option<ListenerTls>,
    front: Arc<FrontState>,
    stop: Trigger,
    end: Trigger,
}

/// A connection of the listener.
type Connection = gateway::Connection<FrontState>;

/// The times of a shutdown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving {
    /// Time for which the listener still accepts; at most half of the grace period.
    pub(crate) delay: Duration,
    /// The time of the whole shutdown.
    pub(crate) grace: Duration,
}

/// The listener's certificate, and its files.
struct ListenerTls {
    live: Arc<LiveServerConfig>,
    files: CertificateFiles,
    watch: FileWatch,
}

/// What all connections share.
struct FrontState {
    exchanges: Exchanges,
    metrics: Arc<Metrics>,
    settings: Settings,
    problem_page: ProblemPage,
    via: ViaName,
    /// Permits for connections.
    connections: Arc<Permits>,
    /// Permits for exchanges.
    exchange_permits: Arc<Permits>,
    /// Connections end with their open requests.
    stopping: Shutdown,
    /// Long streams end as their protocol allows.
    ending: Shutdown,
}

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address.
    #[error("cannot listen on {address} (--listen): {source}{}", listen_advice(.source))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The certificate.
    #[error(transparent)]
    ListenerTls(#[from] TlsFilesError),
    /// Its files.
    #[error(transparent)]
    Watch(#[from] WatchError),
}

impl FrontState {
    /// Whether the forwarding fields of this peer are trusted.
    fn is_trusted(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let mut networks = self.settings.trusted_proxies.iter();
        networks.any(|network| network.contains(&address))
    }

    /// How problems are answered.
    fn problem_answers(&self) -> ProblemAnswers<'_> {
        ProblemAnswers {
            detail: self.settings.problem_detail,
            page: &self.problem_page,
        }
    }
}

impl Gateway for FrontState {
    type Peer = ();
    type Upgrade = GrantedUpgrade;
    type Body = ResponseBody;

    const HOP: Hop = Hop::Client;

    fn bounds(&self, client: &ForwardedClient) -> Bounds {
        let keep_alive_timeout = match client.is_trusted {
            true => self.settings.trusted_keep_alive_timeout,
            false => self.settings.keep_alive_timeout,
        };
        Bounds {
            max_head_bytes: self.settings.max_head_size,
            stream_window_bytes: STREAM_WINDOW_BYTES,
            tls_handshake_timeout: self.settings.request_head_timeout,
            // Ingress controllers connect in advance, so a new connection may be idle like one between two requests.
            first_byte_timeout: keep_alive_timeout,
            request_head_timeout: self.settings.request_head_timeout,
            keep_alive_timeout,
            body_idle_timeout: self.settings.body_idle_timeout,
        }
    }

    fn stopping(&self) -> &Shutdown {
        &self.stopping
    }

    fn ending(&self) -> &Shutdown {
        &self.ending
    }

    async fn silence_ended(&self) {
        self.stopping.requested().await;
    }

    fn answer(
        connection: &Arc<Connection>,
        request: Request<ReceivedBody>,
        in_flight: Option<InFlight>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + use<> {
        request::serve(connection, request, in_flight)
    }

    async fn join<IO>(
        self: &Arc<Self>,
        io: IO,
        upgrade: GrantedUpgrade,
        write_timeout: Option<Duration>,
    ) where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let bounds = UpgradeBounds {
            stage: &self.ending,
            linger: self.settings.body_idle_timeout,
            write_timeout,
        };
        upgraded::join(io, upgrade, bounds, |bytes| bytes).await;
    }

    fn on_unread(&self, peer: IpAddr, problem: &Problem) {
        self.exchanges.on_refused(None, peer, problem);
    }
}

/// Serves one connection until it ends.
async fn run(
    front: Arc<FrontState>,
    socket: TcpStream,
    peer: IpAddr,
    tls: Option<TlsAcceptor>,
    _permit: Permit,
) {
    let client = ForwardedClient::new(peer, front.is_trusted(peer), tls.is_some());
    let socket = Prefixed::new(Bytes::new(), socket);
    if let Err(cause) = gateway::serve(&front, client, (), socket, tls).await {
        tracing::debug!(%peer, %cause, "a connection ended before a request");
    }
}

impl FrontListener {
    /// Binds the listener. No connection is accepted before it runs.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub(crate) fn bind(
        settings: Settings,
        certificate: Option<CertificateFiles>,
        problem_page: ProblemPage,
        exchanges: Exchanges,
        metrics: Arc<Metrics>,
        inherited: &mut Inherited,
    ) -> Result<Self, ListenError> {
        let address = settings.listen;
        let failed = |source| ListenError::Bind { address, source };
        let bound = listen("front", address, 1, inherited).map_err(failed)?;
        let mut sockets = bound.shards.into_iter().flatten();
        let (Some(socket), None) = (sockets.next(), sockets.next()) else {
            let several = "several sockets were inherited for this address";
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, several)));
        };
        let tls = certificate.map(ListenerTls::load).transpose()?;
        let (stop, stopping) = Shutdown::manual();
        let (end, ending) = Shutdown::manual();
        let (connections, exchange_permits) = (
            Permits::new(settings.max_connections as usize, usize::MAX),
            Permits::new(settings.max_exchanges as usize, usize::MAX),
        );
        Ok(Self {
            socket,
            address: bound.address,
            tls,
            front: Arc::new(FrontState {
                exchanges,
                metrics,
                settings,
                problem_page,
                via: ViaName::new(RequestId::new().as_str()),
                connections,
                exchange_permits,
                stopping,
                ending,
            }),
            stop,
            end,
        })
    }

    /// The address bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections until shutdown; then finishes open requests within the times of `leaving`.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub(crate) async fn run(self, shutdown: &Shutdown, leaving: Leaving) -> io::Result<()> {
        let Self {
            socket,
            address,
            tls,
            front,
            stop,
            end,
        } = self;
        let listener = TcpListener::from_std(socket)?;
        let acceptor = tls.as_ref().map(|tls| Arc::clone(&tls.live));
        let _following = tls.map(|tls| Owned::spawn("listener certificate", tls.follow()));
        front.metrics.listening.set(1);
        tracing::info!(listener = "front", %address, tls = acceptor.is_some(), "listening");
        let mut connections = JoinSet::new();
        let requested = async {
            shutdown.requested().await;
            let at = Instant::now();
            front.metrics.listening.set(0);
            // Until the listener closes, an ingress controller has time to notice "not ready".
            sleep(leaving.delay.min(leaving.grace / 2)).await;
            at
        };
        let requested_at = tokio::select! {
            never = accept_all(&listener, &front, acceptor.as_deref(), &mut connections) => match never {},
            at = requested => at,
            () = shutdown.forced() => return Ok(()),
        };
        // Closes the socket, so that new connections are refused instead of waiting in the backlog.
        drop(listener);
        stop.request();
        tracing::info!(
            connections = connections.len(),
            "shutting down: connections close after their open requests"
        );
        tokio::select! {
            () = finish(connections, &end, requested_at + leaving.grace, leaving.grace) => {}
            () = shutdown.forced() => {}
        }
        Ok(())
    }
}

/// Waits for the connections during the grace period, which ends at `last`. Near its end, long streams are ended as their
/// protocol allows.
async fn finish(mut connections: JoinSet<()>, end: &Trigger, last: Instant, grace: Duration) {
    let ending = last - ENDING.min(grace / 4);
    tokio::select! {
        () = all_ended(&mut connections) => return,
        () = sleep_until(ending) => {}
    }
    end.request();
    tracing::info!("shutting down: ending open streams as their protocol allows");
    if timeout_at(last, all_ended(&mut connections)).await.is_err() {
        let left = connections.len();
        tracing::warn!(
            connections = left,
            "the grace period is over, cutting open connections"
        );
    }
}

async fn all_ended(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// Accepts connections. Never returns: errors of `accept` do not end the listener.
async fn accept_all(
    listener: &TcpListener,
    front: &Arc<FrontState>,
    tls: Option<&LiveServerConfig>,
    connections: &mut JoinSet<()>,
) -> Infallible {
    loop {
        let (socket, peer) = tokio::select! {
            accepted = accept(listener) => accepted,
            // A connection's task has ended, perhaps by a panic.
            Some(ended) = connections.join_next() => {
                if ended.is_err_and(|error| error.is_panic()) {
                    tracing::error!("a connection's task panicked");
                }
                continue;
            }
        };
        let Ok(permit) = front.connections.acquire(None) else {
            front.metrics.connections_refused.inc();
            continue;
        };
        if let Err(error) = set_options(&socket, front.settings.body_idle_timeout) {
            tracing::debug!(%peer, %error, "cannot set the options of a connection");
        }
        let acceptor = tls.map(LiveServerConfig::acceptor);
        let address = peer.ip();
        connections.spawn(run(Arc::clone(front), socket, address, acceptor, permit));
    }
}

impl ListenerTls {
    fn load(files: CertificateFiles) -> Result<Self, ListenError> {
        // Watch before reading, so that no change is missed.
        let watch = FileWatch::new([files.cert.clone(), files.key.clone()])?;
        let identity = Identity::load(&files.cert, &files.key)?;
        let live = LiveServerConfig::new(identity, &[b"h2", b"http/1.1", b"http/1.0"], None)?;
        Ok(Self {
            live: Arc::new(live),
            files,
            watch,
        })
    }

    /// Uses a new certificate when the files have one.
    async fn follow(mut self) {
        loop {
            self.watch.changed().await;
            let replaced = Identity::load(&self.files.cert, &self.files.key)
                .and_then(|identity| self.live.replace(identity, None));
            match replaced {
                Ok(true) => tracing::info!("the listener uses a new certificate"),
                Ok(false) => {}
                // Often temporary: two files are rarely replaced at once.
                Err(error) => tracing::warn!(
                    %error,
                    "the listener's certificate cannot be used, the previous one stays in use"
                ),
            }
        }
    }
}

/// Whether the listener accepts requests.
pub(crate) fn readiness(metrics: &Metrics) -> Readiness {
    match metrics.listening.get() {
        0 => Readiness::NotReady("not listening: starting, or stopping".to_owned()),
        _ => Readiness::Ready,
    }
}
