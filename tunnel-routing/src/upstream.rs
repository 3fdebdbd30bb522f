//! One upstream: its connections, and what is asked of it.
//!
//! ```text
//!   exchange ─▶ ask ─▶ connection at rest, shared, or new ─▶ outgoing ─▶ upstream
//!            ◀─ body ◀─ answer (checked) ◀───────────────────────────────┘
//! ```
//!
//! In: a request, checked by the tunnel server, that a route sends here. Out: a response of which
//! everything may be sent on, or a [`Problem`]. An HTTP/1.1 connection is used by the exchange's own
//! task and rests in between; HTTP/2 connections have tasks of their own and are shared. No request
//! ever decides where a connection goes.

mod answer;
mod ask;
mod balance;
mod body;
mod cache;
mod destination;
mod dial;
mod failure;
mod health;
mod http1;
mod http2;
mod idle;
mod outgoing;
mod pool;
mod progress;
mod resolve;
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

use tokio::sync::Notify;
use tokio::time::{Instant, interval, sleep_until};
use tunnel_proto::limits;
use tunnel_proto::problem::Problem;

pub use self::ask::Asked;
pub use self::body::UpstreamBody;
pub(crate) use self::cache::UpstreamCache;
use self::destination::Destination;
pub use self::dial::NotReached;
use self::dial::{Dialled, UpstreamDialler};
pub use self::failure::UpstreamBodyError;
pub(crate) use self::health::HealthSettings;
use self::http1::Connection;
use self::http2::{Http2, Lease};
use self::pool::Pool;
pub use self::progress::Progress;
pub(crate) use self::set::{EjectionSettings, KnownUpstream, UpstreamCondition, UpstreamSet};
pub use self::settings::{UpstreamError, UpstreamShared};
pub(crate) use self::settings::{UpstreamOptions, UpstreamTls};
use self::socket::Socket;
use self::tls::{Offer, TlsOffers};
use crate::url::{UpstreamScheme, UpstreamUrl};

/// Largest head of a response, in bytes. The tunnel's form of it is no larger, but for a few lengths
/// that take up to four bytes.
const HEAD_BYTES: usize = limits::HEAD_BYTES - 64;

/// How long a name is followed after the last connection to it was there, and how soon it is looked
/// up again after a failure.
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
    shared: Arc<UpstreamShared>,
    /// The last new connection spoke HTTP/1.1, so that each exchange needs one of its own.
    speaks_http1: AtomicBool,
    /// Held by the one who dials a connection that others may be able to share.
    dialling: tokio::sync::Mutex<LastFailure>,
    /// How the last dial ended, as a [`Reach`].
    reach: AtomicU8,
    /// A dial has succeeded at some time.
    was_reached: AtomicBool,
    /// Told of each new connection by way of a name.
    has_dialled: Notify,
}

/// How the last dial of an upstream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// There was none.
    Unknown,
    Reached,
    Failed,
}

/// When and how a dial for all failed the last time.
type LastFailure = Option<(Instant, Problem)>;

/// Why there is no connection.
struct NoLink {
    problem: Problem,
    /// It was somebody else who dialled.
    is_known: bool,
}

/// A connection for one exchange.
struct Link {
    /// It was used before, and the upstream may be about to close it.
    is_used: bool,
    connection: LinkKind,
}

enum LinkKind {
    Http1(Box<Connection>),
    Http2(Lease),
}

impl From<Problem> for NoLink {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            is_known: false,
        }
    }
}

/// Retires an upstream when it is dropped.
struct Retiring<'a>(&'a Upstream);

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        self.0.pool.close();
        self.0.http2.close();
    }
}

impl Upstream {
    /// An upstream that the configuration names, and that nothing was asked of yet.
    ///
    /// # Errors
    /// When TLS cannot be as it was asked for.
    pub(crate) fn new(
        url: UpstreamUrl,
        options: &UpstreamOptions,
        shared: &Arc<UpstreamShared>,
    ) -> Result<Self, UpstreamError> {
        let tls = tls_for(url.scheme(), &url, options)?;
        Ok(Self::with_tls(Destination::new(url), tls, options, shared))
    }

    /// The same, with TLS that others share.
    fn with_tls(
        destination: Destination,
        tls: Option<TlsOffers>,
        options: &UpstreamOptions,
        shared: &Arc<UpstreamShared>,
    ) -> Self {
        let limit = options.connect_timeout;
        Self {
            speaks_http1: AtomicBool::new(destination.scheme() == UpstreamScheme::Http),
            dialler: UpstreamDialler::new(destination.clone(), tls, limit, shared),
            destination,
            head_timeout: options.head_timeout,
            idle_timeout: options.idle_timeout,
            max_body: options.max_body,
            pool: Arc::new(Pool::new(options.idle_pool)),
            http2: Http2::default(),
            shared: Arc::clone(shared),
            dialling: tokio::sync::Mutex::default(),
            reach: AtomicU8::new(Reach::Unknown as u8),
            was_reached: AtomicBool::new(false),
            has_dialled: Notify::new(),
        }
    }

    /// Makes a connection and lets it go, for whoever wants to know whether that is possible.
    ///
    /// # Errors
    /// See [`NotReached`].
    pub async fn try_reach(&self) -> Result<(), NotReached> {
        self.dialler.try_dial().await
    }

    /// Asks once how it is, by this path, under this name if not its own, and within this time.
    ///
    /// # Errors
    /// With what a person should know, when it does not say that it is well.
    pub async fn try_health(
        &self,
        path: &http::uri::PathAndQuery,
        host: Option<&http::HeaderValue>,
        timeout: Duration,
    ) -> Result<(), String> {
        health::check(self, path, host, timeout).await
    }

    /// Where it is.
    pub fn url(&self) -> &UpstreamUrl {
        self.destination.url()
    }

    /// Closes connections that nobody needs, and follows the upstream's name, for as long as it is
    /// polled. Dropped, it closes all that are at rest and has no others kept: exchanges that are under
    /// way end, but no request is to come any more.
    pub(crate) fn tend(&self) -> impl Future<Output = ()> + Send {
        let retiring = Retiring(self);
        async move {
            let Retiring(upstream) = &retiring;
            upstream.supervise().await;
        }
    }

    async fn supervise(&self) {
        let mut ticks = interval(pool::REST / pool::SWEEPS);
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

    /// Waits until the name's answer has run out, and looks it up again. Connections to an address
    /// that it has lost take no new exchange.
    async fn follow_name(&self) {
        let until = match self.dialler.look_up().await {
            None => return std::future::pending().await,
            Some(Ok(answer)) => {
                self.keep_to(&answer.addresses);
                answer.until
            }
            Some(Err(error)) => {
                if error.kind() == std::io::ErrorKind::NotFound {
                    self.keep_to(&Arc::default());
                }
                Instant::now() + FOLLOW_RETRY
            }
        };
        sleep_until(until).await;
    }

    fn keep_to(&self, addresses: &Arc<[IpAddr]>) {
        self.pool.keep_to(addresses);
        self.http2.keep_to(addresses);
    }

    /// How the last dial ended.
    fn reach(&self) -> Reach {
        match self.reach.load(Ordering::Relaxed) {
            reach if reach == Reach::Reached as u8 => Reach::Reached,
            reach if reach == Reach::Failed as u8 => Reach::Failed,
            _ => Reach::Unknown,
        }
    }

    /// What was known of how it is reached, before anything is known here.
    fn learn(&self, reach: Reach) {
        self.reach.store(reach as u8, Ordering::Relaxed);
    }

    /// Whether a connection to it was ever made.
    fn was_reached(&self) -> bool {
        self.was_reached.load(Ordering::Relaxed)
    }

    /// A connection when none is there: a new one, perhaps made by and for others as well.
    async fn dialled_link(&self) -> Result<Link, NoLink> {
        if self.speaks_http1() {
            return Ok(self.new_link().await?);
        }
        // The first of many that find none dials for all of them, and fails for all of them: else
        // each would wait for those before it, and then for itself.
        let asked = Instant::now();
        let mut last_failure = self.dialling.lock().await;
        if let Some(link) = self.used_link() {
            return Ok(link);
        }
        if self.speaks_http1() {
            // As the first has found out, each needs its own.
            drop(last_failure);
            return Ok(self.new_link().await?);
        }
        if let Some((at, problem)) = &*last_failure
            && *at >= asked
        {
            return Err(NoLink {
                problem: problem.clone(),
                is_known: true,
            });
        }
        let dialled = self.new_link().await;
        *last_failure = dialled
            .as_ref()
            .err()
            .map(|problem| (Instant::now(), problem.clone()));
        Ok(dialled?)
    }

    fn speaks_http1(&self) -> bool {
        self.speaks_http1.load(Ordering::Relaxed)
    }

    /// A connection that is there.
    fn used_link(&self) -> Option<Link> {
        let http2 = || self.http2.take().map(LinkKind::Http2);
        let connection = match self.destination.scheme() {
            UpstreamScheme::Http => self.pool.take().map(LinkKind::Http1),
            UpstreamScheme::H2c => http2(),
            UpstreamScheme::Https => http2().or_else(|| self.pool.take().map(LinkKind::Http1)),
        };
        connection.map(|connection| Link {
            is_used: true,
            connection,
        })
    }

    /// A new connection below whatever is spoken on it, and where its name led to.
    async fn dial(&self, offer: Offer) -> Result<(Socket, Option<IpAddr>), Problem> {
        let dialled = self.dialler.dial(offer).await;
        let reach = match &dialled {
            Ok(_) => Reach::Reached,
            Err(_) => Reach::Failed,
        };
        self.reach.store(reach as u8, Ordering::Relaxed);
        let Dialled { socket, named } = dialled?;
        self.was_reached.store(true, Ordering::Relaxed);
        let peer = named.map(|(peer, addresses)| {
            self.keep_to(&addresses);
            self.has_dialled.notify_one();
            peer
        });
        Ok((socket, peer))
    }

    /// A connection that nobody has used.
    async fn new_link(&self) -> Result<Link, Problem> {
        let (socket, peer) = self.dial(Offer::Any).await?;
        let is_http2 = self.destination.scheme() == UpstreamScheme::H2c || socket.is_http2();
        self.speaks_http1.store(!is_http2, Ordering::Relaxed);
        let connection = if is_http2 {
            LinkKind::Http2(self.http2.add(socket, peer).await?)
        } else {
            let memory = self.dialler.memory();
            LinkKind::Http1(Box::new(Connection::new(socket, peer, memory)))
        };
        Ok(Link {
            is_used: false,
            connection,
        })
    }
}

/// What is offered to upstreams of this scheme, called so in the log; none without TLS.
fn tls_for(
    scheme: UpstreamScheme,
    name: &dyn fmt::Display,
    options: &UpstreamOptions,
) -> Result<Option<TlsOffers>, UpstreamError> {
    if scheme != UpstreamScheme::Https {
        return Ok(None);
    }
    if options.tls.insecure {
        tracing::warn!(
            upstream = %name,
            "an upstream's certificate is not checked, as `insecure` says: whoever stands between \
             can read and change all that is sent to it"
        );
    }
    TlsOffers::new(&options.tls).map(Some)
}

#[cfg(test)]
mod tests;
