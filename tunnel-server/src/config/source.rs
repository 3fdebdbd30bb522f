//! Configuration as given: flags, environment variables and a TOML file, which all mean the same.
//!
//! One struct is filled by clap (flags, then the environment) and once more by serde (the file);
//! what the first does not say the second does. Values are understood here, each with the same
//! words wherever it stands; whether they fit together is for [`super::Config`].

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use tunnel_ops::config_file::{ConfigFileError, TomlFile};
use tunnel_ops::config_place::{Place, Places};
use tunnel_ops::config_value::{
    BoundedSize, Count, DurationText, ListenAddress, Network, PositiveDuration, SizeText,
};
use tunnel_ops::telemetry::{LogFilter, LogFormat};

use super::ConfigFault;
use super::credentials::{HttpUrl, JwksSource};
use super::origin::Origin;
use crate::directory::OnConflict;
use crate::runtimes::HostName;

/// What the environment variables of the settings begin with.
const VARIABLES: &str = "TUNNEL_SERVER_";

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
    // First, so that it sees all the others.
    /// Which settings flags and the environment gave, for telling where a fault is.
    #[command(flatten)]
    #[serde(skip)]
    pub places: Places,

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

    /// Where metrics, health, readiness and the admin API are [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS", env = "TUNNEL_SERVER_ADMIN_LISTEN")]
    pub admin_listen: Option<ListenAddress>,

    /// File with the bearer token that changes by the admin listener need; without it nothing can be changed there
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_ADMIN_TOKEN_FILE")]
    pub admin_token_file: Option<PathBuf>,

    /// Name that the admin listener may be asked by, beside localhost and IP addresses
    #[arg(
        long,
        value_name = "HOST",
        value_delimiter = ',',
        env = "TUNNEL_SERVER_ADMIN_HOST"
    )]
    pub admin_host: Option<Vec<HostName>>,

    /// Each runtime is reached at ACCOUNT-RUNTIME under this domain [default:
    /// tunnels.localhost]
    #[arg(long, value_name = "DOMAIN", env = "TUNNEL_SERVER_DOMAIN")]
    pub domain: Option<HostName>,

    /// The runtimes and their tokens, TOML; required unless --jwks, --auth-url or --client-ca is given
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_RUNTIMES")]
    pub runtimes: Option<PathBuf>,

    /// Credentials that are no longer good, TOML; they let nobody in, and cut whoever is in
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_REVOCATIONS")]
    pub revocations: Option<PathBuf>,

    /// Keys that JSON Web Tokens are signed with: a file, or an https URL (JWK set, RFC 7517)
    #[arg(long, value_name = "FILE|URL", env = "TUNNEL_SERVER_JWKS")]
    pub jwks: Option<JwksSource>,

    /// Issuer (`iss`) that a JSON Web Token must name; required with --jwks
    #[arg(long, value_name = "TEXT", env = "TUNNEL_SERVER_JWT_ISSUER")]
    pub jwt_issuer: Option<String>,

    /// Audience (`aud`) that a JSON Web Token must name; required with --jwks
    #[arg(long, value_name = "TEXT", env = "TUNNEL_SERVER_JWT_AUDIENCE")]
    pub jwt_audience: Option<String>,

    /// Claim of a JSON Web Token that holds the account [default: account]
    #[arg(long, value_name = "NAME", env = "TUNNEL_SERVER_JWT_ACCOUNT_CLAIM")]
    pub jwt_account_claim: Option<String>,

    /// Claim of a JSON Web Token that holds the runtime [default: runtime]
    #[arg(long, value_name = "NAME", env = "TUNNEL_SERVER_JWT_RUNTIME_CLAIM")]
    pub jwt_runtime_claim: Option<String>,

    /// How far the clocks of issuer and server may be apart [default: 30s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_JWT_LEEWAY")]
    pub jwt_leeway: Option<DurationText>,

    /// Ask the platform who a token is: a URL that is sent one POST for each
    #[arg(long, value_name = "URL", env = "TUNNEL_SERVER_AUTH_URL")]
    pub auth_url: Option<HttpUrl>,

    /// File with the bearer token by which the platform knows this server
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_AUTH_TOKEN_FILE")]
    pub auth_token_file: Option<PathBuf>,

    /// CA certificates, PEM, beside the system's, for --auth-url and a --jwks URL
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_AUTH_CA_FILE")]
    pub auth_ca_file: Option<PathBuf>,

    /// Time for an answer of the platform, or of a --jwks URL [default: 5s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_AUTH_TIMEOUT")]
    pub auth_timeout: Option<PositiveDuration>,

    /// Questions to the platform at once [default: 64]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_AUTH_CONCURRENCY")]
    pub auth_concurrency: Option<Count<1, 10_000>>,

    /// How long an answer of the platform is used again without asking [default: 10s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_AUTH_CACHE")]
    pub auth_cache: Option<DurationText>,

    /// How long known good tokens go on while the platform is away [default: 1h]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_AUTH_OUTAGE")]
    pub auth_outage: Option<DurationText>,

    /// CA certificates, PEM: a client certificate of theirs lets in the runtime that it names
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_CLIENT_CA")]
    pub client_ca: Option<PathBuf>,

    /// Certificate revocation lists of --client-ca, PEM
    #[arg(long, value_name = "FILE", env = "TUNNEL_SERVER_CLIENT_CRL")]
    pub client_crl: Option<PathBuf>,

    /// How long a session goes on after its credential has run out [default: 30s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_EXPIRY_GRACE")]
    pub expiry_grace: Option<DurationText>,

    /// What happens when a second instance comes for a runtime: supersede the older, or reject the newer [default:
    /// supersede]
    #[arg(long, value_name = "POLICY", env = "TUNNEL_SERVER_ON_CONFLICT")]
    pub on_conflict: Option<OnConflict>,

    /// TLS handshakes and authentications of tunnel clients at once [default: 64]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_MAX_HANDSHAKES")]
    pub max_handshakes: Option<Count<1, 100_000>>,

    /// Tunnel clients that wait for their handshake; more are sent away [default: 512]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_HANDSHAKE_QUEUE")]
    pub handshake_queue: Option<Count<0, 1_000_000>>,

    /// Connections of tunnel clients open at once from one address [default: 1000]
    #[arg(
        long,
        value_name = "NUMBER",
        env = "TUNNEL_SERVER_MAX_TUNNEL_CONNECTIONS_PER_ADDRESS"
    )]
    pub max_tunnel_connections_per_address: Option<Count<1, 10_000_000>>,

    /// Networks whose X-Forwarded-*, X-Real-IP, Forwarded and PROXY headers are believed
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

    /// Add Via to requests; nginx as an upstream compresses nothing for those that have it [default: false]
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        env = "TUNNEL_SERVER_VIA"
    )]
    pub via: Option<bool>,

    /// Origins whose pages may read the answers that the tunnel itself gives
    #[arg(
        long,
        value_name = "ORIGIN",
        value_delimiter = ',',
        env = "TUNNEL_SERVER_CORS_ORIGIN"
    )]
    pub cors_origin: Option<Vec<Origin>>,

    /// Let upstreams set cookies for --domain and its parents, which browsers send to all runtimes [default: false]
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        env = "TUNNEL_SERVER_ALLOW_SHARED_COOKIES"
    )]
    pub allow_shared_cookies: Option<bool>,

    /// Time for the first byte of a connection [default: 10s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_FIRST_BYTE_TIMEOUT")]
    pub first_byte_timeout: Option<PositiveDuration>,

    /// Time for a TLS handshake [default: 10s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_TLS_HANDSHAKE_TIMEOUT")]
    pub tls_handshake_timeout: Option<PositiveDuration>,

    /// Time for a request's head, from its first byte [default: 30s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_REQUEST_HEAD_TIMEOUT")]
    pub request_head_timeout: Option<PositiveDuration>,

    /// Longest silence within a request's body, and time to take something of an answer [default: 1m]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_BODY_IDLE_TIMEOUT")]
    pub body_idle_timeout: Option<PositiveDuration>,

    /// Longest silence between requests on one connection [default: 75s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_KEEP_ALIVE_TIMEOUT")]
    pub keep_alive_timeout: Option<PositiveDuration>,

    /// How long a request with "Expect: 100-continue" waits for the upstream's word [default: 1s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_EXPECT_WAIT")]
    pub expect_wait: Option<DurationText>,

    /// Connections open at once, on the public and on the tunnel listener each [default: 50000]
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

    /// Requests that wait at once for clients to come back, on the whole server [default: 10000]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_MAX_WAITING")]
    pub max_waiting: Option<Count<0, 1_000_000>>,

    /// Memory that those may hold together [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "TUNNEL_SERVER_MAX_WAITING_SIZE")]
    pub max_waiting_size: Option<SizeText>,

    /// Memory for received bytes of answers that platform clients have not taken yet; one runtime may fill a quarter of it [default: 1GiB]
    #[arg(long, value_name = "SIZE", env = "TUNNEL_SERVER_MAX_BUFFERED_SIZE")]
    pub max_buffered_size: Option<SizeText>,

    /// Time between pings on a session [default: 15s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_PING_INTERVAL")]
    pub ping_interval: Option<PositiveDuration>,

    /// How long the server goes on accepting after it was asked to stop [default: 0s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_DRAIN_DELAY")]
    pub drain_delay: Option<DurationText>,

    /// Longest time over which clients are spread when they are told to leave [default: 5s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_DRAIN_SPREAD")]
    pub drain_spread: Option<DurationText>,

    /// How long exchanges may take to end when the server stops [default: 25s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_SERVER_GRACE_PERIOD")]
    pub grace_period: Option<DurationText>,

    /// Exchanges open at once on one session, 1 to 4096 [default: 1024]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_MAX_EXCHANGES")]
    pub max_exchanges: Option<Count<1, 4096>>,

    /// Exchanges open at once on the whole server [default: 100000]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_MAX_OPEN_EXCHANGES")]
    pub max_open_exchanges: Option<Count<1, 10_000_000>>,

    /// Exchanges begun in a second on the whole server; no limit unless set
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_MAX_EXCHANGE_RATE")]
    pub max_exchange_rate: Option<Count<1, 10_000_000>>,

    /// Upgraded connections open at once on the whole server [default: 50000]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_MAX_OPEN_WEBSOCKETS")]
    pub max_open_websockets: Option<Count<0, 10_000_000>>,

    /// Exchanges open at once for a runtime whose own limits do not say [default: 2048]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_LIMIT_EXCHANGES")]
    pub limit_exchanges: Option<Count<1, 1_000_000>>,

    /// Exchanges begun in a second for a runtime whose own limits do not say; none unless set
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_LIMIT_EXCHANGE_RATE")]
    pub limit_exchange_rate: Option<Count<1, 1_000_000>>,

    /// Bytes in a second to a runtime whose own limits do not say; none unless set
    #[arg(long, value_name = "SIZE", env = "TUNNEL_SERVER_LIMIT_UPLOAD_RATE")]
    pub limit_upload_rate: Option<SizeText>,

    /// Bytes in a second from a runtime whose own limits do not say; none unless set
    #[arg(long, value_name = "SIZE", env = "TUNNEL_SERVER_LIMIT_DOWNLOAD_RATE")]
    pub limit_download_rate: Option<SizeText>,

    /// Upgraded connections open at once for a runtime whose own limits do not say [default: 1024]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_LIMIT_WEBSOCKETS")]
    pub limit_websockets: Option<Count<0, 1_000_000>>,

    /// Largest request head for a runtime whose own limits do not say, 1KiB to 128KiB; --max-head-size unless set
    #[arg(long, value_name = "SIZE", env = "TUNNEL_SERVER_LIMIT_HEAD_SIZE")]
    pub limit_head_size: Option<BoundedSize<1, 128>>,

    /// Requests that wait at once for the client of a runtime whose own limits do not say [default: 256]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_SERVER_LIMIT_WAITING")]
    pub limit_waiting: Option<Count<0, 100_000>>,

    /// Memory that those may hold together [default: 64MiB]
    #[arg(long, value_name = "SIZE", env = "TUNNEL_SERVER_LIMIT_WAITING_SIZE")]
    pub limit_waiting_size: Option<SizeText>,

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

    /// The file, for telling where in it a fault is.
    #[arg(skip)]
    #[serde(skip)]
    pub file: Option<TomlFile>,
}

impl Given {
    /// What the flags and the environment say, and for the rest what the file says.
    pub fn merge(self) -> Result<Source, ConfigFileError> {
        let Some(path) = self.config else {
            return Ok(self.source);
        };
        let file = TomlFile::read(&path)?;
        let mut source: Source = file.parse()?;
        source.resolve_paths(path.parent().unwrap_or_else(|| Path::new("")));
        source.file = Some(file);
        Ok(self.source.or(source))
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
            &mut self.revocations,
            &mut self.auth_token_file,
            &mut self.auth_ca_file,
            &mut self.client_ca,
            &mut self.client_crl,
            &mut self.admin_token_file,
        ];
        for path in paths.into_iter().flatten() {
            *path = folder.join(&*path);
        }
        if let Some(JwksSource::File(path)) = &mut self.jwks {
            *path = folder.join(&*path);
        }
    }

    /// Where a setting was given, by its flag without dashes before it.
    pub(super) fn place(&self, flag: &str) -> Place {
        self.places.place(VARIABLES, flag, self.file.as_ref())
    }

    /// Something is wrong with a setting, or with it beside others.
    pub(super) fn fault(&self, flag: &str, problem: impl Into<String>) -> ConfigFault {
        ConfigFault::Value {
            place: self.place(flag),
            problem: problem.into(),
        }
    }

    fn or(self, other: Self) -> Self {
        macro_rules! first_given {
            ($($setting:ident)*) => {
                Self {
                    $($setting: self.$setting.or(other.$setting),)*
                    places: self.places,
                    file: other.file,
                }
            };
        }
        first_given! {
            tunnel_listen tls_cert tls_key public_listen public_tls_cert public_tls_key
            admin_listen admin_token_file admin_host domain runtimes revocations jwks jwt_issuer
            jwt_audience jwt_account_claim jwt_runtime_claim jwt_leeway auth_url auth_token_file
            auth_ca_file auth_timeout auth_concurrency auth_cache auth_outage client_ca client_crl
            expiry_grace on_conflict max_handshakes handshake_queue
            max_tunnel_connections_per_address trusted_proxies proxy_protocol via
            cors_origin allow_shared_cookies
            first_byte_timeout tls_handshake_timeout request_head_timeout body_idle_timeout
            keep_alive_timeout expect_wait max_connections max_connections_per_address
            max_head_size offline_wait max_waiting max_waiting_size max_buffered_size ping_interval drain_delay
            drain_spread grace_period max_exchanges max_open_exchanges max_exchange_rate
            max_open_websockets limit_exchanges limit_exchange_rate limit_upload_rate
            limit_download_rate limit_websockets limit_head_size limit_waiting limit_waiting_size
            shards access_log log_format log_level
        }
    }
}
