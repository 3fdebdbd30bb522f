//! What the configuration says of upstreams, and what all upstreams of a client share.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::PathAndQuery;
use tunnel_ops::tls_files::{Identity, Roots, TlsFilesError};
use tunnel_proto::memory::MemoryAccount;

use super::resolve::Resolver;
use super::upgrade::HalfClosed;
use crate::url::{UpstreamScheme, UpstreamUrl};

/// Largest weight: with the most upstreams that a route may have, sums stay far from overflow.
pub(crate) const WEIGHT_MAX: u32 = 1000;

/// The upstreams of a route.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamsConfig {
    /// At least one.
    pub members: Vec<UpstreamMember>,
    /// Options of connections and requests, for each.
    pub options: UpstreamOptions,
    /// Active health checks; `None` for none.
    pub health: Option<HealthOptions>,
    /// Ejection of upstreams that fail requests; `None` for none.
    pub ejection: Option<EjectionOptions>,
}

/// One of a route's upstreams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamMember {
    /// Its URL.
    pub url: UpstreamUrl,
    /// Its share of the requests relative to those of the other members, from 1 to 1,000.
    pub weight: u32,
}

/// Options of connections to an upstream, and of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamOptions {
    /// Limit of each step of a dial.
    pub connect_timeout: Duration,
    /// Limit from the end of a request to the head of its response.
    pub head_timeout: Duration,
    /// How long an exchange may go on without a byte in either direction; `None` for no limit. Time in which the
    /// platform client takes nothing does not count.
    pub idle_timeout: Option<Duration>,
    /// Largest content of a request, in bytes; `None` for no limit. Upgraded connections have none.
    pub max_body: Option<u64>,
    /// TLS settings; `None` where no upstream of the route is an `https` one.
    pub tls: Option<TlsOptions>,
    /// The version of HTTP for `https` upstreams.
    pub http: UpstreamHttp,
}

/// The version of HTTP that an `https` upstream is spoken to in. An `http` one and a Unix socket always get HTTP/1.1, an
/// `h2c` one HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpstreamHttp {
    /// HTTP/1.1, where an exchange has its connection to itself, and HTTP/2 for what needs it: gRPC, Connect's streams, and
    /// all requests where the upstream refuses HTTP/1.1.
    #[default]
    Auto,
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2 alone, but for upgrades, which many servers accept over HTTP/1.1 only.
    Http2,
}

impl UpstreamHttp {
    /// What an upstream with this scheme gets of this setting, which is for `https`.
    #[must_use]
    pub fn for_scheme(self, scheme: UpstreamScheme) -> Self {
        match scheme {
            UpstreamScheme::Http => Self::Http1,
            UpstreamScheme::H2c => Self::Http2,
            UpstreamScheme::Https => self,
        }
    }
}

tunnel_ops::word_value!(UpstreamHttp {
    "auto" => UpstreamHttp::Auto,
    "1.1" => UpstreamHttp::Http1,
    "2" => UpstreamHttp::Http2,
});

/// How TLS is spoken to an upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The trusted CA certificates. Needed to connect unless `insecure`; `None` where the files were not to be read.
    pub roots: Option<Roots>,
    /// The name in SNI and in the upstream's certificate; `None` for the URL's host.
    pub server_name: Option<Box<str>>,
    /// The client certificate for upstreams that ask for one.
    pub identity: Option<Identity>,
    /// Whether any certificate is accepted.
    pub insecure: bool,
}

/// Active health checks of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthOptions {
    /// The path that a check requests, perhaps with a query. A status from 200 to 399 is a success.
    pub path: PathAndQuery,
    /// The `Host` of a check, where the route's `host_header` is a name; `None` for the upstream's own.
    pub host: Option<HeaderValue>,
    /// Time between two checks.
    pub interval: Duration,
    /// Limit of one check.
    pub timeout: Duration,
    /// Consecutive failures that make the upstream unhealthy. At least 1.
    pub unhealthy_after: u32,
    /// Consecutive successes that make it healthy again. At least 1.
    pub healthy_after: u32,
}

/// When an upstream that fails requests is ejected: passed over for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EjectionOptions {
    /// Consecutive failures, to connect or to respond, that eject it. At least 1.
    pub after: u32,
    /// Duration of the first ejection; each further one in a row is longer by it, up to ten times.
    pub duration: Duration,
}

/// Why upstreams cannot be made as configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The TLS configuration.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// A `server_name` that is neither a DNS name nor an IP address.
    #[error("`{0}` is not a DNS name or IP address")]
    ServerName(String),
    /// A set without members.
    #[error("no upstream is named")]
    NoUpstream,
    /// A weight out of range.
    #[error("an upstream's weight must be a number from 1 to {max}", max = WEIGHT_MAX)]
    Weight,
}

/// What all upstreams of a client share, and what outlives a table of routes: known names, half-closed upgraded
/// connections, the memory account.
pub struct UpstreamShared {
    pub(super) resolver: Resolver,
    pub(super) half_closed: Arc<HalfClosed>,
    /// The account for bytes read from upstreams.
    pub(super) memory: Arc<MemoryAccount>,
    /// Idle HTTP/1.1 connections kept for each upstream.
    pub(super) idle_pool: usize,
}

impl UpstreamShared {
    /// Names are looked up at `dns_servers`, or at the system's name servers if there are none. Bytes read from
    /// upstreams count in `memory`; each upstream keeps up to `idle_pool` idle HTTP/1.1 connections.
    pub fn new(
        dns_servers: &[std::net::SocketAddr],
        memory: Arc<MemoryAccount>,
        idle_pool: usize,
    ) -> Self {
        Self {
            memory,
            resolver: Resolver::new(dns_servers),
            half_closed: Arc::default(),
            idle_pool,
        }
    }
}
