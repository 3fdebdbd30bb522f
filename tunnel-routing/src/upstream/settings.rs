//! What a route, or the whole client, says of how its upstreams are reached.

use std::sync::Arc;
use std::time::Duration;

use tunnel_ops::tls_files::{Identity, Roots, TlsFilesError};
use tunnel_proto::memory::MemoryAccount;

use super::resolve::Resolver;
use super::upgrade::HalfClosed;

/// How upstreams are reached and asked, wherever they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UpstreamOptions {
    /// For those that are spoken to over TLS.
    pub(crate) tls: UpstreamTls,
    /// For each step of a dial.
    pub(crate) connect_timeout: Duration,
    /// For the head of a response, from the end of the request.
    pub(crate) head_timeout: Duration,
    /// How long an exchange may go on without a byte either way; none for as long as it likes. What
    /// the platform client does not take does not count.
    pub(crate) idle_timeout: Option<Duration>,
    /// Largest content of a request, in bytes. Upgraded connections have none.
    pub(crate) max_body: Option<u64>,
    /// HTTP/1.1 connections kept at rest, for each upstream.
    pub(crate) idle_pool: usize,
}

/// How TLS is spoken with upstreams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UpstreamTls {
    /// Whom their certificates may come from; needed for `https`, unless `insecure`.
    pub(crate) roots: Option<Roots>,
    /// The name that they are asked by, and that their certificates have to be for, if it is not the
    /// URL's host.
    pub(crate) server_name: Option<String>,
    /// What is shown to those that ask for a certificate.
    pub(crate) identity: Option<Identity>,
    /// Any certificate is taken, from anybody.
    pub(crate) insecure: bool,
}

/// Why upstreams cannot be as they were asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// A name that no certificate can be for.
    #[error(
        "`{0}` is no name that a certificate can be checked for: give a DNS name or an IP address"
    )]
    ServerName(String),
    /// A route without an upstream.
    #[error("no upstream is named")]
    NoUpstream,
    /// A weight that is no share.
    #[error("an upstream's weight must be a number from 1 to {max}", max = super::balance::WEIGHT_MAX)]
    Weight,
}

/// What all upstreams of a client share, whatever becomes of its routes: what is known of names, and
/// upgraded connections that are half over.
pub struct UpstreamShared {
    pub(super) resolver: Resolver,
    pub(super) half_closed: Arc<HalfClosed>,
    /// Where what is read from upstreams counts.
    pub(super) memory: Arc<MemoryAccount>,
}

impl UpstreamShared {
    /// Names are looked up at these name servers, or at the system's if there are none. What is read from
    /// upstreams counts in `memory`.
    pub fn new(dns_servers: &[std::net::SocketAddr], memory: Arc<MemoryAccount>) -> Self {
        Self {
            memory,
            resolver: Resolver::new(dns_servers),
            half_closed: Arc::default(),
        }
    }
}
