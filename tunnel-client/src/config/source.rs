//! Configuration as given: flags, environment variables and a TOML file, which all mean the same.
//!
//! One struct is filled by clap (flags, then the environment) and once more by serde (the file);
//! what the first does not say the second does. Values are understood here, each with the same
//! words wherever it stands; whether they fit together is for [`super::Config`].

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde::{Deserialize, Deserializer};
use tunnel_ops::admin::AdminHost;
use tunnel_ops::config_file::{ConfigFileError, TomlFile};
use tunnel_ops::config_place::{Place, Places};
use tunnel_ops::config_value::{
    self, BoundedSize, Count, DurationText, ListenAddress, Network, OptionalListenAddress,
    PositiveDuration, SizeText, ValueError,
};
use tunnel_ops::telemetry::{LogFilter, LogFormat};

use super::dns_server::DnsServer;
use super::no_proxy::NoProxy;
use super::proxy::ProxyChoice;
use super::reach::{ConnectTo, HostField, ProxyParser, TlsName, one_or_more};
use super::routes::RawRoute;
use super::url::{ServerUrl, UpstreamUrl};
use super::{ConfigFault, OnRefusal, TellRoutes};

/// What the environment variables of the settings begin with.
const VARIABLES: &str = "TUNNEL_CLIENT_";

/// Hands the names of all settings to another macro.
macro_rules! every_setting {
    ($with:ident) => {
        $with! {
            server token_file client_cert client_key upstream upstream_ca_file dns_server ca_file ca_dir
            system_roots server_name host_header connect_to proxy proxy_auth_file no_proxy
            proxy_ca_file proxy_ca_dir proxy_system_roots sessions max_session_age allow_from
            tell_routes
            admin_listen admin_host dial_timeout redial_base redial_cap redial_stable on_refusal
            refusal_wait upstream_connect_timeout upstream_head_timeout upstream_idle_pool
            max_buffered_size ping_interval grace_period listen listen_cert listen_key trusted_proxies via max_connections
            max_exchanges max_head_size request_head_timeout keep_alive_timeout body_idle_timeout
            drain_delay access_log log_format log_level
        }
    };
}

/// The file to read, and everything that can also stand in it.
#[derive(Debug, Clone, Default, Args)]
pub struct Given {
    /// Read what the flags and the environment do not say from this TOML file
    #[arg(long, value_name = "FILE", env = "TUNNEL_CLIENT_CONFIG")]
    pub config: Option<PathBuf>,

    /// The rest.
    #[command(flatten)]
    pub source: Source,
}

// There is no flag for the token itself: other users of the machine can see a program's flags.
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

    /// The server to dial, such as wss://tunnel.example.com (required)
    #[arg(long, value_name = "URL", env = "TUNNEL_CLIENT_SERVER")]
    pub server: Option<ServerUrl>,

    /// The file that holds the token; read again when it changes (required unless --client-cert is given)
    #[arg(long, value_name = "FILE", env = "TUNNEL_CLIENT_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,

    /// Certificate chain that is shown to the server, PEM; read again when it changes
    #[arg(long, value_name = "FILE", env = "TUNNEL_CLIENT_CLIENT_CERT")]
    pub client_cert: Option<PathBuf>,

    /// Key of the client's certificate, PEM
    #[arg(long, value_name = "FILE", env = "TUNNEL_CLIENT_CLIENT_KEY")]
    pub client_key: Option<PathBuf>,

    /// The local service that answers what no route takes: http://, https:// or h2c:// with host and
    /// port, or unix:/path (required unless the file has routes)
    #[arg(long, value_name = "URL", env = "TUNNEL_CLIENT_UPSTREAM")]
    pub upstream: Option<UpstreamUrl>,

    /// CA certificates that an https upstream may be signed by, beside the system's, PEM
    #[arg(long, value_name = "FILE", env = "TUNNEL_CLIENT_UPSTREAM_CA_FILE")]
    pub upstream_ca_file: Option<PathBuf>,

    /// Name servers that upstreams' names are looked up at, address and port, instead of the system's
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        env = "TUNNEL_CLIENT_DNS_SERVER"
    )]
    pub dns_server: Option<Vec<DnsServer>>,

    /// CA certificates that the server may be signed by, PEM; read again at each dial
    #[arg(
        long,
        value_name = "FILE",
        value_delimiter = ',',
        env = "TUNNEL_CLIENT_CA_FILE"
    )]
    #[serde(deserialize_with = "one_or_more")]
    pub ca_file: Option<Vec<PathBuf>>,

    /// Folder with CA certificates that the server may be signed by, PEM; read again at each dial
    #[arg(
        long,
        value_name = "FOLDER",
        value_delimiter = ',',
        env = "TUNNEL_CLIENT_CA_DIR"
    )]
    #[serde(deserialize_with = "one_or_more")]
    pub ca_dir: Option<Vec<PathBuf>>,

    /// Trust the system's CA certificates as well [default: true]
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        env = "TUNNEL_CLIENT_SYSTEM_ROOTS"
    )]
    pub system_roots: Option<bool>,

    /// Name that is sent in TLS and checked in the server's certificate, instead of the URL's
    #[arg(long, value_name = "NAME", env = "TUNNEL_CLIENT_SERVER_NAME")]
    pub server_name: Option<TlsName>,

    /// Host that is named in the request for a session, instead of the URL's
    #[arg(long, value_name = "HOST", env = "TUNNEL_CLIENT_HOST_HEADER")]
    pub host_header: Option<HostField>,

    /// Dial this host instead of the URL's: HOST or HOST:PORT
    #[arg(long, value_name = "HOST", env = "TUNNEL_CLIENT_CONNECT_TO")]
    pub connect_to: Option<ConnectTo>,

    /// Proxy by which the server is reached: http://, https://, socks5:// or socks5h://, or none
    /// (without it: HTTPS_PROXY, ALL_PROXY)
    #[arg(long, value_name = "URL", env = "TUNNEL_CLIENT_PROXY", value_parser = ProxyParser, hide_env_values = true)]
    pub proxy: Option<ProxyChoice>,

    /// File that holds user:password for the proxy; read again at each dial
    #[arg(long, value_name = "FILE", env = "TUNNEL_CLIENT_PROXY_AUTH_FILE")]
    pub proxy_auth_file: Option<PathBuf>,

    /// Servers that are reached without a proxy: names, domains, addresses, networks, or *
    /// (without it: NO_PROXY)
    #[arg(
        long,
        value_name = "HOST",
        value_delimiter = ',',
        env = "TUNNEL_CLIENT_NO_PROXY"
    )]
    pub no_proxy: Option<Vec<NoProxy>>,

    /// CA certificates that an https proxy may be signed by, PEM; read again at each dial
    #[arg(
        long,
        value_name = "FILE",
        value_delimiter = ',',
        env = "TUNNEL_CLIENT_PROXY_CA_FILE"
    )]
    #[serde(deserialize_with = "one_or_more")]
    pub proxy_ca_file: Option<Vec<PathBuf>>,

    /// Folder with CA certificates that an https proxy may be signed by, PEM; read again at each dial
    #[arg(
        long,
        value_name = "FOLDER",
        value_delimiter = ',',
        env = "TUNNEL_CLIENT_PROXY_CA_DIR"
    )]
    #[serde(deserialize_with = "one_or_more")]
    pub proxy_ca_dir: Option<Vec<PathBuf>>,

    /// Trust the system's CA certificates for an https proxy as well [default: true]
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        env = "TUNNEL_CLIENT_PROXY_SYSTEM_ROOTS"
    )]
    pub proxy_system_roots: Option<bool>,

    /// Sessions kept with the server at once, 1 to 8 [default: 2]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_CLIENT_SESSIONS")]
    pub sessions: Option<Count<1, 8>>,

    /// Longest time that a session is used before another one replaces it, at least 1m
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_MAX_SESSION_AGE")]
    pub max_session_age: Option<PositiveDuration>,

    /// Networks that the runtime may be reached from, within what the server allows
    #[arg(
        long,
        value_name = "CIDR",
        value_delimiter = ',',
        env = "TUNNEL_CLIENT_ALLOW_FROM"
    )]
    pub allow_from: Option<Vec<Network>>,

    /// Where metrics, health and readiness are told, or "off" [default: 127.0.0.1:9091]
    #[arg(long, value_name = "ADDRESS", env = "TUNNEL_CLIENT_ADMIN_LISTEN")]
    pub admin_listen: Option<OptionalListenAddress>,

    /// Name that the admin listener may be asked by, beside localhost and IP addresses
    #[arg(
        long,
        value_name = "HOST",
        value_delimiter = ',',
        env = "TUNNEL_CLIENT_ADMIN_HOST"
    )]
    pub admin_host: Option<Vec<AdminHost>>,

    /// Time for each step of the dial: name, connection, proxy, TLS, upgrade [default: 10s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_DIAL_TIMEOUT")]
    pub dial_timeout: Option<PositiveDuration>,

    /// Longest wait before the first new dial; it doubles with each failure [default: 1s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_REDIAL_BASE")]
    pub redial_base: Option<PositiveDuration>,

    /// Longest wait before any new dial [default: 30s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_REDIAL_CAP")]
    pub redial_cap: Option<PositiveDuration>,

    /// How long a session must last for the waits to start over [default: 1m]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_REDIAL_STABLE")]
    pub redial_stable: Option<DurationText>,

    /// What the server is told of the routes: full, names (without upstreams) or none [default: names]
    #[arg(long, value_name = "WHAT", env = "TUNNEL_CLIENT_TELL_ROUTES")]
    pub tell_routes: Option<TellRoutes>,

    /// What to do when a person has to mend what the server refuses: exit or retry [default: exit]
    #[arg(long, value_name = "ACTION", env = "TUNNEL_CLIENT_ON_REFUSAL")]
    pub on_refusal: Option<OnRefusal>,

    /// Longest wait after a refusal, or after another instance took over [default: 5m]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_REFUSAL_WAIT")]
    pub refusal_wait: Option<PositiveDuration>,

    /// Time to connect to the upstream [default: 5s]
    #[arg(
        long,
        value_name = "TIME",
        env = "TUNNEL_CLIENT_UPSTREAM_CONNECT_TIMEOUT"
    )]
    pub upstream_connect_timeout: Option<PositiveDuration>,

    /// Time for the head of the upstream's response [default: 5m]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_UPSTREAM_HEAD_TIMEOUT")]
    pub upstream_head_timeout: Option<PositiveDuration>,

    /// Idle connections to the upstream that are kept, 0 to 4096 [default: 64]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_CLIENT_UPSTREAM_IDLE_POOL")]
    pub upstream_idle_pool: Option<Count<0, 4096>>,

    /// Memory for what was received and not sent on yet, of requests and responses [default: 64MiB]
    #[arg(long, value_name = "SIZE", env = "TUNNEL_CLIENT_MAX_BUFFERED_SIZE")]
    pub max_buffered_size: Option<SizeText>,

    /// Time between pings on a session [default: 15s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_PING_INTERVAL")]
    pub ping_interval: Option<PositiveDuration>,

    /// How long exchanges may take to end when the client stops [default: 25s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_GRACE_PERIOD")]
    pub grace_period: Option<DurationText>,

    /// Of serve: where it listens [default: 0.0.0.0:8080]
    #[arg(long, value_name = "ADDRESS", env = "TUNNEL_CLIENT_LISTEN")]
    pub listen: Option<ListenAddress>,

    /// Of serve: certificate chain for TLS, PEM; read again when it changes [default: plain HTTP]
    #[arg(long, value_name = "FILE", env = "TUNNEL_CLIENT_LISTEN_CERT")]
    pub listen_cert: Option<PathBuf>,

    /// Of serve: key of that certificate, PEM
    #[arg(long, value_name = "FILE", env = "TUNNEL_CLIENT_LISTEN_KEY")]
    pub listen_key: Option<PathBuf>,

    /// Of serve: networks of ingress controllers, whose X-Forwarded-*, X-Real-IP and Forwarded are believed
    #[arg(
        long,
        value_name = "CIDR",
        value_delimiter = ',',
        env = "TUNNEL_CLIENT_TRUSTED_PROXIES"
    )]
    pub trusted_proxies: Option<Vec<Network>>,

    /// Of serve: add Via to requests; nginx compresses nothing for those that have it [default: false]
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        env = "TUNNEL_CLIENT_VIA"
    )]
    pub via: Option<bool>,

    /// Of serve: connections at once, 1 to 65536 [default: 1024]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_CLIENT_MAX_CONNECTIONS")]
    pub max_connections: Option<Count<1, 65536>>,

    /// Of serve: exchanges at once, 1 to 65536 [default: 1024]
    #[arg(long, value_name = "NUMBER", env = "TUNNEL_CLIENT_MAX_EXCHANGES")]
    pub max_exchanges: Option<Count<1, 65536>>,

    /// Of serve: largest head of a request, 8KiB to 128KiB [default: 64KiB]
    #[arg(long, value_name = "SIZE", env = "TUNNEL_CLIENT_MAX_HEAD_SIZE")]
    pub max_head_size: Option<BoundedSize<8, 128>>,

    /// Of serve: time for a request's head, from its first byte [default: 30s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_REQUEST_HEAD_TIMEOUT")]
    pub request_head_timeout: Option<PositiveDuration>,

    /// Of serve: longest silence before a request on a connection [default: 3m]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_KEEP_ALIVE_TIMEOUT")]
    pub keep_alive_timeout: Option<PositiveDuration>,

    /// Of serve: longest silence within a request's body, and time to take something of an answer
    /// [default: 1m]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_BODY_IDLE_TIMEOUT")]
    pub body_idle_timeout: Option<PositiveDuration>,

    /// Of serve: how long it goes on accepting after it was asked to stop [default: 0s]
    #[arg(long, value_name = "TIME", env = "TUNNEL_CLIENT_DRAIN_DELAY")]
    pub drain_delay: Option<DurationText>,

    /// Log a line for each exchange [default: true]
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        env = "TUNNEL_CLIENT_ACCESS_LOG"
    )]
    pub access_log: Option<bool>,

    /// Log lines as text or json [default: text]
    #[arg(long, value_name = "FORMAT", env = "TUNNEL_CLIENT_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,

    /// What is logged: off, error, warn, info, debug or trace, or by part: info,tunnel_client=debug
    /// [default: info]
    #[arg(long, value_name = "LEVEL", env = "TUNNEL_CLIENT_LOG_LEVEL")]
    pub log_level: Option<LogFilter>,

    // No flag could hold them.
    /// The routes, which only a file has.
    #[arg(skip)]
    pub route: Vec<RawRoute>,

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
        let file = Source::from_file(TomlFile::read(&path)?)?;
        Ok(self.source.or(file))
    }
}

impl Source {
    /// What a file says.
    pub(crate) fn from_file(file: TomlFile) -> Result<Self, ConfigFileError> {
        let mut source: Self = file.parse()?;
        source.resolve_paths(file.path().parent().unwrap_or_else(|| Path::new("")));
        source.file = Some(file);
        Ok(source)
    }

    /// Paths in a file are relative to the file, so that it means the same wherever the program is
    /// started.
    fn resolve_paths(&mut self, folder: &Path) {
        let paths = [
            &mut self.token_file,
            &mut self.client_cert,
            &mut self.client_key,
            &mut self.upstream_ca_file,
            &mut self.proxy_auth_file,
            &mut self.listen_cert,
            &mut self.listen_key,
        ];
        let lists = [
            &mut self.ca_file,
            &mut self.ca_dir,
            &mut self.proxy_ca_file,
            &mut self.proxy_ca_dir,
        ];
        let listed = lists.into_iter().flatten().flatten();
        for path in paths.into_iter().flatten().chain(listed) {
            *path = folder.join(&*path);
        }
        for route in &mut self.route {
            route.resolve_paths(folder);
        }
    }

    /// Where a setting was given, by its flag without dashes before it.
    pub(crate) fn place(&self, flag: &str) -> Place {
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
                    route: other.route,
                    file: other.file,
                }
            };
        }
        every_setting!(first_given)
    }

    /// The keys of the settings that two do not have alike, routes left out.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let mut keys = Vec::new();
        macro_rules! compare {
            ($($setting:ident)*) => {
                $(if format!("{:?}", self.$setting) != format!("{:?}", other.$setting) {
                    keys.push(stringify!($setting));
                })*
            };
        }
        every_setting!(compare);
        // No text shows its login.
        if self.proxy != other.proxy && !keys.contains(&"proxy") {
            keys.push("proxy");
        }
        keys
    }
}

impl FromStr for OnRefusal {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "exit" => Ok(Self::Exit),
            "retry" => Ok(Self::Retry),
            _ => Err(ValueError::new("expected `exit` or `retry`")),
        }
    }
}

impl<'de> Deserialize<'de> for OnRefusal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        config_value::from_text(deserializer)
    }
}

impl FromStr for TellRoutes {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "full" => Ok(Self::Full),
            "names" => Ok(Self::Names),
            "none" => Ok(Self::None),
            _ => Err(ValueError::new("expected `full`, `names` or `none`")),
        }
    }
}

impl<'de> Deserialize<'de> for TellRoutes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        config_value::from_text(deserializer)
    }
}
