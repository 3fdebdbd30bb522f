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
mod body;
mod destination;
mod dial;
mod failure;
mod http1;
mod http2;
mod outgoing;
mod pool;
mod progress;
mod socket;
mod upgrade;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, interval};
use tunnel_ops::tls_files::{Roots, TlsFilesError};
use tunnel_proto::limits;
use tunnel_proto::problem::Problem;

pub(crate) use self::ask::Asked;
pub(crate) use self::body::UpstreamBody;
use self::destination::Destination;
use self::dial::{Offer, UpstreamDialler};
use self::http1::Connection;
use self::http2::{Http2, Lease};
use self::pool::Pool;
pub(crate) use self::progress::Progress;
use self::upgrade::HalfClosed;
use crate::config::{UpstreamScheme, UpstreamUrl};

/// Largest head of a response, in bytes. The tunnel's form of it is no larger, but for a few lengths
/// that take up to four bytes.
const HEAD_BYTES: usize = limits::HEAD_BYTES - 64;

/// How an upstream is reached.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamSettings {
    /// Where it is.
    pub(crate) url: UpstreamUrl,
    /// Whom its certificate may come from; needed for `https`.
    pub(crate) roots: Option<Roots>,
    /// For each step of a dial.
    pub(crate) connect_timeout: Duration,
    /// For the head of a response, from the end of the request.
    pub(crate) head_timeout: Duration,
    /// HTTP/1.1 connections kept at rest.
    pub(crate) idle_pool: usize,
}

/// One upstream with its connections.
pub(crate) struct Upstream {
    destination: Destination,
    dialler: UpstreamDialler,
    head_timeout: Duration,
    pool: Arc<Pool>,
    http2: Http2,
    half_closed: Arc<HalfClosed>,
    /// The last new connection spoke HTTP/1.1, so that each exchange needs one of its own.
    speaks_http1: AtomicBool,
    /// Held by the one who dials a connection that others may be able to share.
    dialling: tokio::sync::Mutex<LastFailure>,
}

/// When and how a dial for all failed the last time.
type LastFailure = Option<(Instant, Problem)>;

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

impl Upstream {
    /// An upstream that nothing was asked of yet.
    pub(crate) fn new(settings: UpstreamSettings) -> Result<Self, TlsFilesError> {
        let destination = Destination::new(settings.url);
        let (roots, limit) = (settings.roots.as_ref(), settings.connect_timeout);
        Ok(Self {
            speaks_http1: AtomicBool::new(destination.scheme() == UpstreamScheme::Http),
            dialler: UpstreamDialler::new(destination.clone(), roots, limit)?,
            destination,
            head_timeout: settings.head_timeout,
            pool: Arc::new(Pool::new(settings.idle_pool)),
            http2: Http2::default(),
            half_closed: Arc::default(),
            dialling: tokio::sync::Mutex::default(),
        })
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &UpstreamUrl {
        self.destination.url()
    }

    /// Closes connections that nobody needs, for as long as it is polled.
    pub(crate) async fn sweep(&self) {
        let mut ticks = interval(pool::REST / pool::SWEEPS);
        loop {
            ticks.tick().await;
            self.pool.sweep();
            self.http2.sweep();
        }
    }

    /// A connection when none is there: a new one, perhaps made by and for others as well.
    async fn dialled_link(&self) -> Result<Link, Problem> {
        if self.speaks_http1() {
            return self.new_link().await;
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
            return self.new_link().await;
        }
        if let Some((at, problem)) = &*last_failure
            && *at >= asked
        {
            return Err(problem.clone());
        }
        let dialled = self.new_link().await;
        *last_failure = dialled
            .as_ref()
            .err()
            .map(|problem| (Instant::now(), problem.clone()));
        dialled
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

    async fn new_link(&self) -> Result<Link, Problem> {
        let socket = self.dialler.dial(Offer::Any).await?;
        let is_http2 = self.destination.scheme() == UpstreamScheme::H2c || socket.is_http2();
        self.speaks_http1.store(!is_http2, Ordering::Relaxed);
        let connection = if is_http2 {
            LinkKind::Http2(self.http2.add(socket).await?)
        } else {
            LinkKind::Http1(Box::new(Connection::new(socket)))
        };
        Ok(Link {
            is_used: false,
            connection,
        })
    }
}
