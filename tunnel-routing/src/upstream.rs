//! An upstream: its connections, and the requests over them.
//!
//! ```text
//!   request ─▶ forward ─▶ connection: idle, shared, or new ─▶ outgoing ─▶ local service
//!           ◀─── body ◀── response (checked) ◀────────────────────────────────┘
//! ```
//!
//! In: a checked request that a route sends here. Out: a response of which everything may be forwarded, or a
//! [`Problem`]. An HTTP/1.1 connection is polled by the exchange that uses it and idles in between; HTTP/2 connections
//! have tasks of their own and are shared. No request decides where a connection goes.

mod ask;
mod balance;
mod body;
mod cache;
mod closing;
mod destination;
mod dial;
mod failure;
mod forward;
mod health;
mod http1;
mod http2;
mod idle;
mod outgoing;
mod outgoing_body;
mod pool;
mod progress;
mod resolve;
mod response;
mod routed_request;
mod set;
mod settings;
mod socket;
mod tls;
mod upgrade;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use http::Version;
use http::request::Parts;
use tokio::sync::Notify;
use tokio::time::{Instant, interval, sleep_until, timeout};
use tunnel_proto::problem::{Hop, Problem, Reason};

pub use self::ask::FirstAnswer;
pub use self::body::UpstreamBody;
pub(crate) use self::cache::UpstreamCache;
use self::closing::{Closing, UpstreamSocket};
use self::destination::Destination;
pub use self::dial::TryDialError;
use self::dial::{Dialled, UpstreamDialler};
pub use self::failure::UpstreamBodyError;
use self::http1::Connection;
use self::http2::{Http2, Lease, Sharing};
use self::outgoing::Streaming;
use self::pool::Pool;
pub use self::progress::Progress;
pub use self::routed_request::RoutedRequest;
pub(crate) use self::set::{UpstreamCondition, UpstreamSet, UpstreamState};
pub use self::settings::{
    EjectionOptions, HealthOptions, TlsOptions, UpstreamError, UpstreamHttp, UpstreamMember,
    UpstreamOptions, UpstreamShared, UpstreamsConfig,
};
use self::socket::Socket;
use self::tls::{Offer, TlsOffers};
use crate::url::{UpstreamScheme, UpstreamUrl};

/// How long a name is looked up again after its last connection has gone, and how soon after a failed look-up.
const FOLLOW: Duration = Duration::from_secs(60);
const FOLLOW_RETRY: Duration = Duration::from_secs(5);

/// One upstream with its connections.
pub struct Upstream {
    destination: Destination,
    dialler: UpstreamDialler,
    head_timeout: Duration,
    idle_timeout: Option<Duration>,
    max_body: Option<u64>,
    pool: Arc<Pool>,
    http2: Http2,
    closing: Arc<Closing>,
    shared: Arc<UpstreamShared>,
    http: UpstreamHttp,
    /// Whether the last dial that offered HTTP/1.1 alone was refused for that, so that all requests go over HTTP/2.
    refuses_http1: AtomicBool,
    /// Whether the last dial that offered both has led to HTTP/1.1.
    refuses_http2: AtomicBool,
    /// Held while a connection is dialled that others may share.
    dialling: tokio::sync::Mutex<LastFailure>,
    /// The result of the last dial, as a [`LastDial`].
    last_dial: AtomicU8,
    /// Whether any dial has succeeded.
    was_reached: AtomicBool,
    /// Notified of each new connection to a name.
    has_dialled: Notify,
}

/// The result of the last dial of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastDial {
    /// There was none yet.
    None,
    Succeeded,
    Failed,
}

/// When the last shared dial failed, and why.
type LastFailure = Option<(Instant, Problem)>;

/// Why there is no connection for a request.
struct LinkError {
    problem: Problem,
    /// Whether another request dialled, which reports the problem.
    is_shared: bool,
}

/// A connection for one exchange.
struct Link {
    /// Whether it was used before, so that the upstream may be about to close it.
    is_used: bool,
    connection: LinkKind,
}

enum LinkKind {
    Http1(Box<Connection>),
    Http2(Box<Lease>),
}

impl Link {
    /// Whether the connection may have this request: one that is shared has none for which the upstream might end it.
    fn may_bring(&self, head: &Parts) -> bool {
        match &self.connection {
            LinkKind::Http1(_) => true,
            LinkKind::Http2(lease) => {
                !outgoing::is_hazardous(head, lease.settings().max_header_list_size)
            }
        }
    }
}

impl From<Problem> for LinkError {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            is_shared: false,
        }
    }
}

/// Closes the connections of an upstream when dropped.
struct Retiring<'a>(&'a Upstream);

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        self.0.pool.close();
        self.0.http2.close();
    }
}

impl Upstream {
    /// An upstream that the configuration names, not connected yet.
    ///
    /// # Errors
    /// When its TLS cannot be set up.
    pub fn new(
        url: UpstreamUrl,
        options: &UpstreamOptions,
        shared: &Arc<UpstreamShared>,
    ) -> Result<Self, UpstreamError> {
        let tls = tls_for(url.scheme(), &url, options)?;
        Ok(Self::with_tls(Destination::new(url), tls, options, shared))
    }

    /// An upstream with a TLS setup that others share.
    fn with_tls(
        destination: Destination,
        tls: Option<TlsOffers>,
        options: &UpstreamOptions,
        shared: &Arc<UpstreamShared>,
    ) -> Self {
        let limit = options.connect_timeout;
        Self {
            http: options.http.for_scheme(destination.scheme()),
            refuses_http1: AtomicBool::new(false),
            refuses_http2: AtomicBool::new(false),
            dialler: UpstreamDialler::new(destination.clone(), tls, limit, shared),
            destination,
            head_timeout: options.head_timeout,
            idle_timeout: options.idle_timeout,
            max_body: options.max_body,
            pool: Arc::new(Pool::new(shared.idle_pool)),
            http2: Http2::default(),
            closing: Arc::default(),
            shared: Arc::clone(shared),
            dialling: tokio::sync::Mutex::default(),
            last_dial: AtomicU8::new(LastDial::None as u8),
            was_reached: AtomicBool::new(false),
            has_dialled: Notify::new(),
        }
    }

    /// Connects and closes the connection.
    ///
    /// # Errors
    /// See [`TryDialError`].
    pub async fn try_dial(&self) -> Result<(), TryDialError> {
        self.try_socket(self.any_offer()).await.map(drop)
    }

    /// Connects, and asks whether the upstream speaks the HTTP of its scheme: the version that was spoken, and what came
    /// back. The request is for `host`, else for the upstream's own.
    ///
    /// # Errors
    /// As [`Upstream::try_dial`].
    pub async fn ask(
        &self,
        host: Option<&http::HeaderValue>,
    ) -> Result<(Version, FirstAnswer), TryDialError> {
        let (socket, is_http2) = self.try_socket(self.any_offer()).await?;
        let version = match is_http2 {
            true => Version::HTTP_2,
            false => Version::HTTP_11,
        };
        let host = host.and_then(|host| host.to_str().ok());
        let host = host.unwrap_or_else(|| self.url().authority());
        Ok((version, ask::ask(socket, is_http2, host).await))
    }

    /// Whether gRPC calls get HTTP/2. Connects only where the upstream is asked for it by TLS, for such calls alone.
    ///
    /// # Errors
    /// As [`Upstream::try_dial`].
    pub async fn try_grpc(&self) -> Result<bool, TryDialError> {
        let dialled = match self.http {
            UpstreamHttp::Http1 => return Ok(false),
            UpstreamHttp::Http2 => return Ok(true),
            UpstreamHttp::Auto => self.try_socket(Offer::Http2).await,
        };
        match dialled {
            Ok(_) => Ok(true),
            Err(error) if error.problem.reason() == Reason::ProtocolRefused => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The versions of HTTP that some request gets.
    fn any_offer(&self) -> Offer {
        match self.http {
            UpstreamHttp::Auto => Offer::Any,
            UpstreamHttp::Http1 => Offer::Http1,
            UpstreamHttp::Http2 => Offer::Http2,
        }
    }

    /// A connection, and whether HTTP/2 is to be spoken on it.
    async fn try_socket(&self, offer: Offer) -> Result<(Socket, bool), TryDialError> {
        let socket = self.dialler.try_dial(offer).await?.socket;
        let is_http2 = self.is_http2(&socket);
        match self.check_version(offer, is_http2) {
            Ok(()) => Ok((socket, is_http2)),
            Err(problem) => Err(TryDialError {
                problem,
                certificate: None,
            }),
        }
    }

    fn is_http2(&self, socket: &Socket) -> bool {
        self.destination.scheme() == UpstreamScheme::H2c || socket.is_http2()
    }

    /// Refuses an upstream that has agreed to TLS, but not to HTTP/2, where only that was offered.
    fn check_version(&self, offer: Offer, is_http2: bool) -> Result<(), Problem> {
        let is_tls = self.destination.scheme() == UpstreamScheme::Https;
        if is_tls && offer == Offer::Http2 && !is_http2 {
            let detail = format!("{} does not speak HTTP/2 over TLS", self.destination);
            return Err(Problem::new(Hop::Client, Reason::ProtocolRefused, detail));
        }
        Ok(())
    }

    /// Makes one health check: requests `path`, with `host` if it is given, within `timeout`.
    ///
    /// # Errors
    /// Why it failed, for a person.
    pub async fn check_health(
        &self,
        path: &http::uri::PathAndQuery,
        host: Option<&http::HeaderValue>,
        timeout: Duration,
    ) -> Result<(), String> {
        health::check(self, path, host, timeout).await
    }

    /// Its URL.
    pub fn url(&self) -> &UpstreamUrl {
        self.destination.url()
    }

    /// Closes connections that are idle for too long, and follows the upstream's name, for as long as the result is
    /// polled. Dropping it closes all idle connections and keeps no new ones: open exchanges end, and no more are to
    /// come.
    pub(crate) fn supervise(&self) -> impl Future<Output = ()> + Send {
        let retiring = Retiring(self);
        async move {
            let Retiring(upstream) = &retiring;
            upstream.supervise_connections().await;
        }
    }

    async fn supervise_connections(&self) {
        let mut ticks = interval(pool::IDLE_LIMIT / pool::SWEEPS);
        let mut follow = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    self.pool.sweep();
                    self.http2.sweep();
                }
                () = self.has_dialled.notified() => follow = Some(Instant::now() + FOLLOW),
                () = self.follow_name(), if follow.is_some() => {}
            }
            let now = Instant::now();
            follow = if self.pool.is_empty() && self.http2.is_empty() {
                follow.filter(|until| now < *until)
            } else {
                Some(now + FOLLOW)
            };
        }
    }

    /// Looks the name up again when its DNS answer has expired. Connections to an address that it has lost get no new
    /// exchange.
    async fn follow_name(&self) {
        let until = match self.dialler.look_up().await {
            None => return std::future::pending().await,
            Some(Ok(answer)) => {
                self.retain_addresses(&answer.addresses);
                answer.until
            }
            Some(Err(error)) => {
                if error.kind() == std::io::ErrorKind::NotFound {
                    self.retain_addresses(&Arc::default());
                }
                Instant::now() + FOLLOW_RETRY
            }
        };
        sleep_until(until).await;
    }

    fn retain_addresses(&self, addresses: &Arc<[IpAddr]>) {
        self.pool.retain_addresses(addresses);
        self.http2.retain_addresses(addresses);
    }

    /// The result of the last dial.
    fn last_dial(&self) -> LastDial {
        match self.last_dial.load(Ordering::Relaxed) {
            last if last == LastDial::Succeeded as u8 => LastDial::Succeeded,
            last if last == LastDial::Failed as u8 => LastDial::Failed,
            _ => LastDial::None,
        }
    }

    /// Takes over the result of the last dial of the upstream before it.
    fn restore(&self, last_dial: LastDial) {
        self.last_dial.store(last_dial as u8, Ordering::Relaxed);
    }

    /// Whether any dial has succeeded.
    fn was_reached(&self) -> bool {
        self.was_reached.load(Ordering::Relaxed)
    }

    /// The versions of HTTP that the connection of a request may have.
    fn offer(&self, head: &Parts) -> Offer {
        match self.http {
            UpstreamHttp::Http1 => Offer::Http1,
            UpstreamHttp::Http2 => Offer::Http2,
            UpstreamHttp::Auto => match outgoing::streaming(head) {
                Some(Streaming::Grpc) => Offer::Http2,
                Some(Streaming::Connect) => Offer::Any,
                None if self.refuses_http1.load(Ordering::Relaxed) => Offer::Http2,
                None => Offer::Http1,
            },
        }
    }

    /// A connection when none is open: a new one, possibly shared with other requests.
    async fn dialled_link(&self, offer: Offer) -> Result<Link, LinkError> {
        if offer != Offer::Http1 {
            return self.shared_link(offer).await;
        }
        match self.new_link(offer, Sharing::Shared).await {
            Err(problem) if self.may_try_http2(&problem) => {
                self.refuses_http1.store(true, Ordering::Relaxed);
                self.shared_link(Offer::Http2).await
            }
            dialled => Ok(dialled?),
        }
    }

    /// Whether HTTP/2 may be tried after a dial for HTTP/1.1 has failed.
    fn may_try_http2(&self, problem: &Problem) -> bool {
        problem.reason() == Reason::ProtocolRefused && self.http == UpstreamHttp::Auto
    }

    /// A connection that others may share.
    async fn shared_link(&self, offer: Offer) -> Result<Link, LinkError> {
        // The first of many requests without a connection dials for all of them, and fails for all of them; else each
        // would wait for the dials before its own.
        let started = Instant::now();
        self.http2.leave_worn_out().await;
        let mut last_failure = self.dialling.lock().await;
        if let Some(link) = self.used_link(offer) {
            return Ok(link);
        }
        if offer == Offer::Any && self.refuses_http2.load(Ordering::Relaxed) {
            // Each exchange needs a connection of its own.
            drop(last_failure);
            return Ok(self.new_link(offer, Sharing::Shared).await?);
        }
        if let Some((at, problem)) = &*last_failure
            && *at >= started
        {
            return Err(LinkError {
                problem: problem.clone(),
                is_shared: true,
            });
        }
        let dialled = self.new_link(offer, Sharing::Shared).await;
        if let Ok(Link {
            connection: LinkKind::Http2(lease),
            ..
        }) = &dialled
        {
            // Those who wait know then how many streams it has.
            lease.wait_for_settings().await;
        }
        *last_failure = dialled
            .as_ref()
            .err()
            .map(|problem| (Instant::now(), problem.clone()));
        Ok(dialled?)
    }

    /// A connection that no other exchange shares.
    async fn exclusive_link(&self, offer: Offer) -> Result<Link, Problem> {
        let Ok(permit) = timeout(self.head_timeout, self.http2.exclusive_permit()).await else {
            let detail =
                "too many requests that need a connection to themselves wait for the upstream";
            return Err(Problem::new(Hop::Client, Reason::ResponseTimeout, detail));
        };
        let mut link = match self.http2.take_exclusive() {
            Some(lease) => Link {
                is_used: true,
                connection: LinkKind::Http2(Box::new(lease)),
            },
            None => self.new_link(offer, Sharing::Exclusive).await?,
        };
        if let LinkKind::Http2(lease) = &mut link.connection {
            lease.hold(permit);
        }
        Ok(link)
    }

    /// An open connection.
    fn used_link(&self, offer: Offer) -> Option<Link> {
        let http1 = || self.pool.take().map(LinkKind::Http1);
        let http2 = || self.http2.take().map(Box::new).map(LinkKind::Http2);
        let connection = match offer {
            Offer::Http1 => http1(),
            Offer::Http2 => http2(),
            Offer::Any => http2().or_else(|| {
                let refuses_http2 = self.refuses_http2.load(Ordering::Relaxed);
                refuses_http2.then(http1).flatten()
            }),
        };
        connection.map(|connection| Link {
            is_used: true,
            connection,
        })
    }

    /// A new connection without HTTP, and the address if it has a name.
    async fn dial(&self, offer: Offer) -> Result<(Socket, Option<IpAddr>), Problem> {
        let dialled = self.dialler.dial(offer).await;
        let last_dial = match &dialled {
            Ok(_) => LastDial::Succeeded,
            Err(_) => LastDial::Failed,
        };
        self.last_dial.store(last_dial as u8, Ordering::Relaxed);
        let Dialled { socket, named } = dialled?;
        self.was_reached.store(true, Ordering::Relaxed);
        let peer = named.map(|(peer, addresses)| {
            // The dial may have taken longer than the answer that it began with was in force.
            self.retain_addresses(&self.dialler.last_answer().unwrap_or(addresses));
            self.has_dialled.notify_one();
            peer
        });
        Ok((socket, peer))
    }

    /// As [`Upstream::dial`], and whether HTTP/2 is to be spoken.
    async fn dial_version(&self, offer: Offer) -> Result<(Socket, Option<IpAddr>, bool), Problem> {
        let (socket, peer) = self.dial(offer).await?;
        let is_http2 = self.is_http2(&socket);
        self.check_version(offer, is_http2)?;
        Ok((socket, peer, is_http2))
    }

    fn http1_connection(&self, socket: Socket, peer: Option<IpAddr>) -> Box<Connection> {
        let socket = UpstreamSocket::new(socket, &self.closing);
        Box::new(Connection::new(socket, peer, self.dialler.memory()))
    }

    /// A new connection.
    async fn new_link(&self, offer: Offer, sharing: Sharing) -> Result<Link, Problem> {
        let (socket, peer, is_http2) = self.dial_version(offer).await.inspect_err(|problem| {
            if offer == Offer::Http2 && problem.reason() == Reason::ProtocolRefused {
                // It may have been replaced by one that speaks HTTP/1.1.
                self.refuses_http1.store(false, Ordering::Relaxed);
            }
        })?;
        if offer == Offer::Any {
            self.refuses_http2.store(!is_http2, Ordering::Relaxed);
        }
        let connection = if is_http2 {
            let name = self.destination.to_string();
            let lease = self.http2.add(socket, peer, sharing, name).await?;
            LinkKind::Http2(Box::new(lease))
        } else {
            LinkKind::Http1(self.http1_connection(socket, peer))
        };
        Ok(Link {
            is_used: false,
            connection,
        })
    }
}

/// The TLS setup for upstreams of this scheme, which the log calls `name`; `None` without TLS.
fn tls_for(
    scheme: UpstreamScheme,
    name: &dyn fmt::Display,
    options: &UpstreamOptions,
) -> Result<Option<TlsOffers>, UpstreamError> {
    if scheme != UpstreamScheme::Https {
        return Ok(None);
    }
    let tls = options.tls.clone().unwrap_or_default();
    if tls.insecure {
        tracing::warn!(
            upstream = %name,
            "an upstream's certificate is not checked, as `insecure` says: whoever stands between \
             can read and change all that is sent to it"
        );
    }
    TlsOffers::new(&tls).map(Some)
}

#[cfg(test)]
mod tests;
