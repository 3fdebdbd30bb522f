//! Configuration as given: flags, environment variables and a TOML file, which all mean the same.
//!
//! One struct is filled by clap (flags, then the environment) and once more by serde (the file);
//! what the first does not say the second does. Values are understood here, each with the same
//! words wherever it stands; whether they fit together is for [`super::Config`].

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use tunnel_ops::config_file::{self, ConfigFileError};
use tunnel_ops::config_value::{
    self, BoundedSize, Count, DurationText, ListenAddress, PositiveDuration, ValueError,
};
use tunnel_ops::telemetry::{LogFilter, LogFormat};

use super::origin::Origin;
use crate::runtimes::HostName;

/// A network, or one address: `10.0.0.0/8`, `192.0.2.7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network(IpNet);

/// The file to read, and everything that can also stand in it.
#[derive(Debug, Clone, Default, Args)]
pub struct Given {
    /// Read what the flags and the environment do not say from this TOML file
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_CONFIG")]
    pub config: Option<PathBuf>,

    /// The rest.
    #[command(flatten)]
    pub source: Source,
}

/// Every setting, each as a flag, an environment variable and a key of the file. Defaults are
/// [`super::Config`]'s.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Source {
    /// Where tunnel clients connect, over TLS [default: 127.0.0.1:8443]
    #[arg(long, value_name = "ADDRESS", env = "TUNNEL_SERVER_TUNNEL_LISTEN")]
    pub tunnel_listen: Option<ListenAddress>,

    /// Certificate chain of the tunnel listener, PEM (required)
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,

    /// Key of the tunnel listener, PEM (required)
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// Where platform clients connect [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS", env = "TUNNEL_SERVER_PUBLIC_LISTEN")]
    pub public_listen: Option<ListenAddress>,

    /// Certificate chain of the public listener, PEM; without it the listener is plain
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_PUBLIC_TLS_CERT")]
    pub public_tls_cert: Option<PathBuf>,

    /// Key of the public listener, PEM
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_PUBLIC_TLS_KEY")]
    pub public_tls_key: Option<PathBuf>,

    /// Where metrics, health and readiness are told [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS", env = "TUNNEL_SERVER_ADMIN_LISTEN")]
    pub admin_listen: Option<ListenAddress>,

    /// Each runtime is reached at ACCOUNT-RUNTIME under this domain [default:
    /// tunnels.localhost]
    #[arg(long, value_name = "DOMAIN", env = "TUNNEL_SERVER_DOMAIN")]
    pub domain: Option<HostName>,

    /// The runtimes and their tokens, TOML (required)
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_RUNTIMES")]
    pub runtimes: Option<PathBuf>,

    /// Networks whose X-Forwarded-*, Forwarded and PROXY headers are believed
    #[arg(
        long,
        value_name = "CIDR",
        value_delimiter = ',',
        env = "TUNNEL_SERVER_TRUSTED_PROXIES"
    )]
    pub trusted_proxies: Option<Vec<Network>>,

    /// Expect a PROXY header, version 1 or 2, from the trusted proxies [default: false]
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        env = "TUNNEL_SERVER_PROXY_PROTOCOL"
    )]
    pub proxy_protocol: Option<bool>,

    /// Origins whose pages may read the answers that the tunnel itself gives
    #[arg(
        long,
        value_name = "ORIGIN",
        value_delimiter = ',',
        env = "TUNNEL_SERVER_CORS_ORIGIN"
    )]
    pub cors_origin: Option<Vec<Origin>>,

    /// Time for the first byte of a connection [default: 10s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_FIRST_BYTE_TIMEOUT")]
    pub first_byte_timeout: Option<PositiveDuration>,

    /// Time for a TLS handshake [default: 10s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_TLS_HANDSHAKE_TIMEOUT")]
    pub tls_handshake_timeout: Option<PositiveDuration>,

    /// Time for a request's head, from its first byte [default: 30s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_REQUEST_HEAD_TIMEOUT")]
    pub request_head_timeout: Option<PositiveDuration>,

    /// Longest silence within a request's body [default: 1m]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_BODY_IDLE_TIMEOUT")]
    pub body_idle_timeout: Option<PositiveDuration>,

    /// Longest silence between requests on one connection [default: 75s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_KEEP_ALIVE_TIMEOUT")]
    pub keep_alive_timeout: Option<PositiveDuration>,

    /// How long a request with "Expect: 100-continue" waits for the upstream's word [default: 1s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_EXPECT_WAIT")]
    pub expect_wait: Option<DurationText>,

    /// Public connections open at once [default: 50000]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_MAX_CONNECTIONS")]
    pub max_connections: Option<Count<1, 10_000_000>>,

    /// Public connections open at once from one address [default: 1000]
    #[arg(
        long,
        value_name = "NUMBER",
        env = "TUNNEL_SERVER_MAX_CONNECTIONS_PER_ADDRESS"
    )]
    pub max_connections_per_address: Option<Count<1, 10_000_000>>,

    // With the fields that the server adds, the largest must fit into the wire's own limit.
    /// Largest head of a request, 8KiB to 128KiB [default: 128KiB]
    #[arg(long, value_name = "SIZE", env = "TUNNEL_SERVER_MAX_HEAD_SIZE")]
    pub max_head_size: Option<BoundedSize<8, 128>>,

    /// How long a request waits for a runtime's client to come back [default: 5s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_OFFLINE_WAIT")]
    pub offline_wait: Option<DurationText>,

    /// Time between pings on a session [default: 15s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_PING_INTERVAL")]
    pub ping_interval: Option<PositiveDuration>,

    /// How long the server goes on accepting after it was asked to stop [default: 0s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_DRAIN_DELAY")]
    pub drain_delay: Option<DurationText>,

    /// How long exchanges may take to end when the server stops [default: 25s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_GRACE_PERIOD")]
    pub grace_period: Option<DurationText>,

    /// Exchanges open at once on one session, 1 to 4096 [default: 1024]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_MAX_EXCHANGES")]
    pub max_exchanges: Option<Count<1, 4096>>,

    /// Threads that carry traffic; 0 means one for each core [default: 0]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_SHARDS")]
    pub shards: Option<Count<0, 1024>>,

    /// Log a line for each exchange [default: true]
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        env = "TUNNEL_SERVER_ACCESS_LOG"
    )]
    pub access_log: Option<bool>,

    /// Log lines as text or json [default: text]
    #[arg(long, value_name = "FORMAT", env = "TUNNEL_SERVER_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,

    /// What is logged: off, error, warn, info, debug or trace, or by part: info,tunnel_server=debug
    /// [default: info]
    #[arg(long, value_name = "LEVEL", env = "TUNNEL_SERVER_LOG_LEVEL")]
    pub log_level: Option<LogFilter>,
}

impl Given {
    /// What the flags and the environment say, and for the rest what the file says.
    pub fn merge(self) -> Result<Source, ConfigFileError> {
        let Some(path) = self.config else {
            return Ok(self.source);
        };
        let mut file: Source = config_file::load(&path)?;
        file.resolve_paths(path.parent().unwrap_or_else(|| Path::new("")));
        Ok(self.source.or(file))
    }
}

impl Source {
    /// Paths in a file are relative to the file, so that it means the same wherever the program is
    /// started.
    fn resolve_paths(&mut self, folder: &Path) {
        let paths = [
            &mut self.tls_cert,
            &mut self.tls_key,
            &mut self.public_tls_cert,
            &mut self.public_tls_key,
            &mut self.runtimes,
        ];
        for path in paths.into_iter().flatten() {
            *path = folder.join(&*path);
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            tunnel_listen: self.tunnel_listen.or(other.tunnel_listen),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            public_listen: self.public_listen.or(other.public_listen),
            public_tls_cert: self.public_tls_cert.or(other.public_tls_cert),
            public_tls_key: self.public_tls_key.or(other.public_tls_key),
            admin_listen: self.admin_listen.or(other.admin_listen),
            domain: self.domain.or(other.domain),
            runtimes: self.runtimes.or(other.runtimes),
            trusted_proxies: self.trusted_proxies.or(other.trusted_proxies),
            proxy_protocol: self.proxy_protocol.or(other.proxy_protocol),
            cors_origin: self.cors_origin.or(other.cors_origin),
            first_byte_timeout: self.first_byte_timeout.or(other.first_byte_timeout),
            tls_handshake_timeout: self.tls_handshake_timeout.or(other.tls_handshake_timeout),
            request_head_timeout: self.request_head_timeout.or(other.request_head_timeout),
            body_idle_timeout: self.body_idle_timeout.or(other.body_idle_timeout),
            keep_alive_timeout: self.keep_alive_timeout.or(other.keep_alive_timeout),
            expect_wait: self.expect_wait.or(other.expect_wait),
            max_connections: self.max_connections.or(other.max_connections),
            max_connections_per_address: self
                .max_connections_per_address
                .or(other.max_connections_per_address),
            max_head_size: self.max_head_size.or(other.max_head_size),
            offline_wait: self.offline_wait.or(other.offline_wait),
            ping_interval: self.ping_interval.or(other.ping_interval),
            drain_delay: self.drain_delay.or(other.drain_delay),
            grace_period: self.grace_period.or(other.grace_period),
            max_exchanges: self.max_exchanges.or(other.max_exchanges),
            shards: self.shards.or(other.shards),
            access_log: self.access_log.or(other.access_log),
            log_format: self.log_format.or(other.log_format),
            log_level: self.log_level.or(other.log_level),
        }
    }
}

impl FromStr for Network {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let network = text
            .parse::<IpNet>()
            .ok()
            .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network.map(|network| Self(network.trunc())).ok_or_else(|| {
            ValueError::new("expected a network such as `10.0.0.0/8`, or an address")
        })
    }
}

impl From<Network> for IpNet {
    fn from(Network(network): Network) -> Self {
        network
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        config_value::from_text(deserializer)
    }
}
