//! The checked configuration of `serve`: a listener and what answers behind it, and no tunnel.
//!
//! In comes the same [`Source`] as for a tunnel, so that one file does for both; what only a tunnel needs is
//! not looked at.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use tunnel_ops::admin::AdminHost;
use tunnel_ops::telemetry::{LogFilter, LogFormat};
use tunnel_ops::tls_files::Identity;

use super::{
    CertificateFiles, Config, ConfigError, ConfigFault, RouteList, Source,
    UPSTREAM_CONNECT_TIMEOUT, UPSTREAM_HEAD_TIMEOUT, UpstreamOptions, UpstreamUrl,
    check_dns_servers, or_fault, reload, set,
};

/// Everything that `serve` needs to know. What stands in [`Config`] too means the same.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServeConfig {
    /// Where it listens, and within which bounds.
    pub listen: ListenConfig,
    /// All routes, that to the upstream for all the rest among them.
    pub routes: RouteList,
    /// See [`Config::dns_servers`].
    pub dns_servers: Vec<SocketAddr>,
    /// See [`Config::upstream_idle_pool`].
    pub upstream_idle_pool: usize,
    /// See [`Config::max_buffered_bytes`].
    pub max_buffered_bytes: u64,
    /// See [`Config::admin_listen`].
    pub admin_listen: Option<SocketAddr>,
    /// See [`Config::admin_hosts`].
    pub admin_hosts: Vec<AdminHost>,
    /// See [`Config::grace_period`].
    pub grace_period: Duration,
    /// How long it goes on accepting after it was asked to stop, a part of the grace period: whoever sends
    /// requests sees meanwhile that it is not ready. Default none.
    pub drain_delay: Duration,
    /// See [`Config::access_log`].
    pub access_log: bool,
    /// See [`Config::log_format`].
    pub log_format: LogFormat,
    /// See [`Config::log_level`].
    pub log_level: LogFilter,
}

impl ServeConfig {
    /// A configuration with all defaults, and one route for everything.
    #[must_use]
    pub fn new(listen: ListenConfig, upstream: UpstreamUrl) -> Self {
        let (connect, head) = (UPSTREAM_CONNECT_TIMEOUT, UPSTREAM_HEAD_TIMEOUT);
        let options = UpstreamOptions::new(connect, head, None);
        let routes = RouteList::default().with_default(upstream, options);
        Self::with_routes(listen, routes)
    }

    fn with_routes(listen: ListenConfig, routes: RouteList) -> Self {
        Self {
            listen,
            routes,
            dns_servers: Vec::new(),
            upstream_idle_pool: 64,
            max_buffered_bytes: Config::BUFFERED_BYTES,
            admin_listen: Some(Config::ADMIN_LISTEN),
            admin_hosts: Vec::new(),
            grace_period: Config::GRACE_PERIOD,
            drain_delay: Duration::ZERO,
            access_log: true,
            log_format: LogFormat::Text,
            log_level: LogFilter::default(),
        }
    }

    /// Checks everything that was given and that `serve` needs, reading the files it names.
    ///
    /// # Errors
    /// With every fault at once.
    pub fn check(source: Source) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        let listen = ListenConfig::check(&source, &mut faults);
        check_dns_servers(&source, &mut faults);
        match reload::check(&source) {
            Ok(routes) if faults.is_empty() => {
                let mut config = Self::with_routes(listen, routes);
                config.apply(source);
                Ok(config)
            }
            Ok(_) => Err(ConfigError(faults)),
            Err(ConfigError(more)) => {
                faults.extend(more);
                Err(ConfigError(faults))
            }
        }
    }

    /// Replaces defaults by what was given.
    fn apply(&mut self, source: Source) {
        let dns_servers = source.dns_server.into_iter().flatten();
        self.dns_servers = dns_servers.map(SocketAddr::from).collect();
        set(&mut self.upstream_idle_pool, source.upstream_idle_pool);
        set(&mut self.max_buffered_bytes, source.max_buffered_size);
        set(&mut self.admin_listen, source.admin_listen);
        set(&mut self.admin_hosts, source.admin_host);
        set(&mut self.grace_period, source.grace_period);
        set(&mut self.drain_delay, source.drain_delay);
        set(&mut self.access_log, source.access_log);
        set(&mut self.log_format, source.log_format);
        set(&mut self.log_level, source.log_level);
    }
}

/// Where `serve` listens. One instance has one listener.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ListenConfig {
    /// The address. Default 0.0.0.0:8080.
    pub address: SocketAddr,
    /// The certificate that it shows, read again when it changes; none for plain HTTP. Default none.
    pub certificate: Option<CertificateFiles>,
    /// Networks of the ingress controllers, which may say who asked before them. Default none.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether requests get a `Via`. Default no.
    pub via: bool,
    /// Connections at once. Default 1024.
    pub max_connections: usize,
    /// Exchanges at once, upgraded connections among them. Default 1024.
    pub max_exchanges: usize,
    /// Largest head of a request, in bytes. Default 64 KiB: with as many connections as may be, which all
    /// stop short of its end, that is 64 MiB for as long as a head may take.
    pub max_head_bytes: usize,
    /// Time for a request's head, from its first byte, and for a TLS handshake. Default 30 s.
    pub request_head_timeout: Duration,
    /// Longest silence before a request. Default 3 min: longer than an ingress controller keeps a
    /// connection, so that it is the one that closes it.
    pub keep_alive_timeout: Duration,
    /// Longest silence within a request's content, and how long a peer may take nothing of an answer.
    /// Default 60 s.
    pub body_idle_timeout: Duration,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080),
            certificate: None,
            trusted_proxies: Vec::new(),
            via: false,
            max_connections: 1_024,
            max_exchanges: 1_024,
            max_head_bytes: 64 * 1024,
            request_head_timeout: Duration::from_secs(30),
            keep_alive_timeout: Duration::from_secs(3 * 60),
            body_idle_timeout: Duration::from_secs(60),
        }
    }
}

impl ListenConfig {
    /// All defaults, and what was given instead.
    pub(super) fn check(source: &Source, faults: &mut Vec<ConfigFault>) -> Self {
        let mut listen = Self {
            certificate: certificate(source, faults),
            ..Self::default()
        };
        set(&mut listen.address, source.listen);
        let trusted = source.trusted_proxies.iter().flatten();
        listen.trusted_proxies = trusted.copied().map(IpNet::from).collect();
        set(&mut listen.via, source.via);
        set(&mut listen.max_connections, source.max_connections);
        set(&mut listen.max_exchanges, source.max_exchanges);
        set(&mut listen.max_head_bytes, source.max_head_size);
        let head = source.request_head_timeout;
        set(&mut listen.request_head_timeout, head);
        set(&mut listen.keep_alive_timeout, source.keep_alive_timeout);
        set(&mut listen.body_idle_timeout, source.body_idle_timeout);
        listen
    }
}

fn certificate(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<CertificateFiles> {
    let (flag, problem) = match (&source.listen_cert, &source.listen_key) {
        (None, None) => return None,
        (Some(cert), Some(key)) => {
            or_fault(faults, Identity::load(cert, key))?;
            let (cert, key) = (cert.clone(), key.clone());
            return Some(CertificateFiles { cert, key });
        }
        (Some(_), None) => (
            "listen-cert",
            "its key is missing: give --listen-key as well",
        ),
        (None, Some(_)) => (
            "listen-key",
            "its certificate is missing: give --listen-cert as well",
        ),
    };
    faults.push(source.fault(flag, problem));
    None
}
