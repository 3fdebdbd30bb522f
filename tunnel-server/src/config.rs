//! The checked configuration: what every part of the server may rely on.
//!
//! In comes a [`Source`], what flags, environment and file said; out comes a [`Config`] that cannot
//! be wrong, with its certificates, keys and runtimes read, or every fault at once. Tests and
//! programs that hold a server start from [`Config::new`] and set what differs.

mod at_start;
mod credentials;
pub mod effective;
mod origin;
pub(crate) mod reload;
mod source;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use tunnel_ops::admin::{BearerFileError, BearerGuard};
use tunnel_ops::config_file::ConfigFileError;
use tunnel_ops::config_place::Place;
use tunnel_ops::config_value::{Network, listeners_overlap};
use tunnel_ops::telemetry::{LogFilter, LogFormat};
use tunnel_ops::tls_files::{Identity, TlsFilesError};

pub use self::credentials::{
    CertificateSettings, Credentials, HttpUrl, JwksSource, JwtSettings, PlatformSettings,
};
pub use self::origin::Origin;
pub use self::source::{Given, Source};
use crate::budget::NodeLimits;
use crate::directory::OnConflict;
use crate::runtimes::{HostName, NameError, RuntimeLimits, Runtimes, RuntimesError};

/// The domain when none is given: browsers and curl resolve all names below `localhost` to this
/// machine.
pub const DEFAULT_DOMAIN: &str = "tunnels.localhost";

const TUNNEL_LISTEN: SocketAddr = local(8443);
const PUBLIC_LISTEN: SocketAddr = local(8080);
const ADMIN_LISTEN: SocketAddr = local(9090);

/// Shortest time between pings: a session that is silent for two of them is dead.
const PING_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// 5 s less than Kubernetes gives.
const GRACE_PERIOD: Duration = Duration::from_secs(25);

/// Everything that a server needs to know. Times of zero mean "at once", where they are allowed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where tunnel clients connect. Default 127.0.0.1:8443.
    pub tunnel_listen: SocketAddr,
    /// Certificate and key of the tunnel listener.
    pub tunnel_tls: Identity,
    /// Where platform clients connect. Default 127.0.0.1:8080.
    pub public_listen: SocketAddr,
    /// Certificate and key of the public listener; none means plain. Default none.
    pub public_tls: Option<Identity>,
    /// Where the operator asks for metrics and health. Default 127.0.0.1:9090.
    pub admin_listen: SocketAddr,
    /// The file with the token that changes by the admin listener need. Default none.
    pub admin_token_file: Option<PathBuf>,
    /// Names that the admin listener may be asked by, beside localhost and addresses. Default none.
    pub admin_hosts: Vec<HostName>,
    /// Each runtime is reached at `<label>.<domain>`. Default `tunnels.localhost`.
    pub domain: HostName,
    /// Who may connect, and at which hosts each is reached.
    pub runtimes: Runtimes,
    /// The file that they were read from. Default none.
    pub runtimes_file: Option<PathBuf>,
    /// Which credentials let a client in, beside the tokens of the runtimes file.
    pub credentials: Credentials,
    /// What happens when a second instance comes for a runtime. Default supersede.
    pub on_conflict: OnConflict,
    /// TLS handshakes and authentications of tunnel clients at once. Default 64.
    pub max_handshakes: usize,
    /// Tunnel clients that wait for their handshake. Default 512.
    pub handshake_queue: usize,
    /// Connections of tunnel clients open at once from one address. Default 1,000.
    pub max_tunnel_connections_per_address: usize,
    /// Peers whose forwarding fields and PROXY headers are believed. Default none.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether trusted proxies send a PROXY header. Default false.
    pub proxy_protocol: bool,
    /// Whether requests get a `Via`. Default no.
    pub via: bool,
    /// Origins whose pages may read the tunnel's own answers. Default none.
    pub cors_origins: Vec<Origin>,
    /// Whether upstreams may set cookies for the domain of all runtimes and its parents. Default false.
    pub allow_shared_cookies: bool,
    /// Time for a connection's first byte. Default 10 s.
    pub first_byte_timeout: Duration,
    /// Time for a TLS handshake, on both listeners. Default 10 s.
    pub tls_handshake_timeout: Duration,
    /// Time for a request's head, from its first byte. Default 30 s.
    pub request_head_timeout: Duration,
    /// Longest silence within a request's body, and how long a platform client may take nothing of an
    /// answer. Default 60 s.
    pub body_idle_timeout: Duration,
    /// Longest silence between requests of one connection. Default 75 s, more than common load
    /// balancers' 60 s, so that it is they who close.
    pub keep_alive_timeout: Duration,
    /// How long `Expect: 100-continue` waits for the upstream's word before the body is asked for.
    /// Default 1 s.
    pub expect_wait: Duration,
    /// Connections open at once, on the public and on the tunnel listener each. Default 50,000.
    pub max_connections: usize,
    /// Public connections open at once from one address. Default 1,000.
    pub max_connections_per_address: usize,
    /// Largest head of a request, in bytes, 8 KiB to 128 KiB. Default 128 KiB.
    pub max_head_bytes: usize,
    /// How long a request waits for a runtime's client to come back. Default 5 s.
    pub offline_wait: Duration,
    /// What all runtimes may use together. Default 100,000 exchanges, 50,000 upgraded connections, and
    /// 10,000 requests that wait with 256 MiB.
    pub node_limits: NodeLimits,
    /// Time between pings on a session. Default 15 s.
    pub ping_interval: Duration,
    /// How long the server goes on accepting after it was asked to stop. Default 0 s.
    pub drain_delay: Duration,
    /// Longest time over which clients are spread when they are told to leave. Default 5 s.
    pub drain_spread: Duration,
    /// Sessions that are told to leave in one second. Default 500, about the handshakes that another server
    /// makes in it without strain; no flag sets it.
    pub leaving_per_second: u32,
    /// How long exchanges may take to end when the server stops. Default 25 s: 5 s less than
    /// Kubernetes' 30 s.
    pub grace_period: Duration,
    /// Exchanges open at once on one session, 1 to 4096. Default 1024.
    pub max_exchanges: u32,
    /// What a runtime may use whose own limits do not say. Default 2048 exchanges and 1024 upgraded
    /// connections open at once, 256 requests that wait with 64 MiB, nothing else.
    pub limits: RuntimeLimits,
    /// Threads that carry traffic; 0 means one for each core. Default 0.
    pub shards: usize,
    /// Whether each exchange is logged. Default true.
    pub access_log: bool,
    /// How log lines look. Default text.
    pub log_format: LogFormat,
    /// What is logged. Default `info`.
    pub log_level: LogFilter,
}

/// One thing that is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFault {
    /// Something without a default is not given.
    #[error(
        "--{flag} is missing: {purpose} (or TUNNEL_SERVER_{}, or `{}` in the configuration file)",
        flag.to_uppercase().replace('-', "_"), flag.replace('-', "_")
    )]
    Missing {
        /// The flag.
        flag: &'static str,
        /// What it is for.
        purpose: &'static str,
    },
    /// A value that is not possible, alone or beside another.
    #[error("{place}: {problem}")]
    Value {
        /// Where the setting was given.
        place: Place,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The configuration file.
    #[error(transparent)]
    File(#[from] ConfigFileError),
    /// A name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The runtimes file.
    #[error(transparent)]
    Runtimes(#[from] RuntimesError),
    /// A certificate or key file.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// The file of the admin token.
    #[error(transparent)]
    AdminToken(#[from] BearerFileError),
}

/// Everything that is wrong with the configuration, one fault a line.
#[derive(Debug)]
pub struct ConfigError(Vec<ConfigFault>);

impl Config {
    /// A configuration with all defaults.
    pub fn new(tunnel_tls: Identity, runtimes: Runtimes, domain: HostName) -> Self {
        Self {
            tunnel_listen: TUNNEL_LISTEN,
            tunnel_tls,
            public_listen: PUBLIC_LISTEN,
            public_tls: None,
            admin_listen: ADMIN_LISTEN,
            admin_token_file: None,
            admin_hosts: Vec::new(),
            domain,
            runtimes,
            runtimes_file: None,
            credentials: Credentials::default(),
            on_conflict: OnConflict::default(),
            max_handshakes: 64,
            handshake_queue: 512,
            max_tunnel_connections_per_address: 1_000,
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
            via: false,
            cors_origins: Vec::new(),
            allow_shared_cookies: false,
            first_byte_timeout: Duration::from_secs(10),
            tls_handshake_timeout: Duration::from_secs(10),
            request_head_timeout: Duration::from_secs(30),
            body_idle_timeout: Duration::from_secs(60),
            keep_alive_timeout: Duration::from_secs(75),
            expect_wait: Duration::from_secs(1),
            max_connections: 50_000,
            max_connections_per_address: 1_000,
            max_head_bytes: 128 * 1024,
            offline_wait: Duration::from_secs(5),
            ping_interval: Duration::from_secs(15),
            drain_delay: Duration::ZERO,
            drain_spread: Duration::from_secs(5),
            leaving_per_second: 500,
            grace_period: GRACE_PERIOD,
            max_exchanges: 1_024,
            node_limits: NodeLimits {
                exchanges: Some(100_000),
                exchange_rate: None,
                websockets: Some(50_000),
                waiting: Some(10_000),
                waiting_bytes: Some(256 * 1024 * 1024),
                buffered_bytes: Some(1024 * 1024 * 1024),
            },
            limits: RuntimeLimits {
                exchanges: Some(2_048),
                websockets: Some(1_024),
                waiting: Some(256),
                waiting_bytes: Some(64 * 1024 * 1024),
                ..RuntimeLimits::default()
            },
            shards: 0,
            access_log: true,
            log_format: LogFormat::Text,
            log_level: LogFilter::default(),
        }
    }

    /// Checks everything that was given, reading the files it names.
    pub fn check(source: Source) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        let domain = source
            .domain
            .clone()
            .map_or_else(|| DEFAULT_DOMAIN.parse(), Ok);
        let domain = or_fault(&mut faults, domain);
        let tunnel_tls = tunnel_identity(&source, &mut faults);
        let public_tls = public_identity(&source, &mut faults);
        let credentials = Credentials::check(&source, &mut faults);
        let runtimes = runtimes(&source, &credentials, domain.as_ref(), &mut faults);
        if let Some(path) = &source.admin_token_file {
            or_fault(&mut faults, BearerGuard::load(path));
        }
        check_listeners(&source, &mut faults);
        check_proxies(&source, &mut faults);
        check_grace(&source, &mut faults);
        check_ping_interval(&source, &mut faults);
        match (domain, tunnel_tls, runtimes) {
            (Some(domain), Some(tunnel_tls), Some(runtimes)) if faults.is_empty() => {
                let mut config = Self::new(tunnel_tls, runtimes, domain);
                config.public_tls = public_tls;
                config.credentials = credentials;
                config.apply(source);
                Ok(config)
            }
            _ => Err(ConfigError(faults)),
        }
    }

    /// Replaces defaults by what was given.
    fn apply(&mut self, source: Source) {
        self.apply_to_clients(&source);
        self.apply_limits(&source);
        set(&mut self.tunnel_listen, source.tunnel_listen);
        set(&mut self.public_listen, source.public_listen);
        set(&mut self.admin_listen, source.admin_listen);
        set(&mut self.trusted_proxies, source.trusted_proxies.map(plain));
        set(&mut self.proxy_protocol, source.proxy_protocol);
        set(&mut self.via, source.via);
        set(&mut self.allow_shared_cookies, source.allow_shared_cookies);
        set(&mut self.cors_origins, source.cors_origin);
        set(&mut self.first_byte_timeout, source.first_byte_timeout);
        set(
            &mut self.tls_handshake_timeout,
            source.tls_handshake_timeout,
        );
        set(&mut self.request_head_timeout, source.request_head_timeout);
        set(&mut self.body_idle_timeout, source.body_idle_timeout);
        set(&mut self.keep_alive_timeout, source.keep_alive_timeout);
        set(&mut self.expect_wait, source.expect_wait);
        set(&mut self.max_connections, source.max_connections);
        let per_address = source.max_connections_per_address;
        set(&mut self.max_connections_per_address, per_address);
        set(&mut self.max_head_bytes, source.max_head_size);
        set(&mut self.offline_wait, source.offline_wait);
        set(&mut self.ping_interval, source.ping_interval);
        set(&mut self.drain_delay, source.drain_delay);
        set(&mut self.drain_spread, source.drain_spread);
        set(&mut self.grace_period, source.grace_period);
        set(&mut self.max_exchanges, source.max_exchanges);
        set(&mut self.shards, source.shards);
        set(&mut self.access_log, source.access_log);
        set(&mut self.log_format, source.log_format);
        set(&mut self.log_level, source.log_level);
    }

    /// The same for what concerns tunnel clients, and the operator.
    fn apply_to_clients(&mut self, source: &Source) {
        self.runtimes_file.clone_from(&source.runtimes);
        self.admin_token_file.clone_from(&source.admin_token_file);
        set(&mut self.admin_hosts, source.admin_host.clone());
        set(&mut self.on_conflict, source.on_conflict);
        set(&mut self.max_handshakes, source.max_handshakes);
        set(&mut self.handshake_queue, source.handshake_queue);
        let per_address = source.max_tunnel_connections_per_address;
        set(&mut self.max_tunnel_connections_per_address, per_address);
    }

    /// The same for what a runtime may use, and all of them together.
    fn apply_limits(&mut self, source: &Source) {
        let all = &mut self.node_limits;
        *all = NodeLimits {
            exchanges: source.max_open_exchanges.map(u32::from).or(all.exchanges),
            exchange_rate: source
                .max_exchange_rate
                .map(u32::from)
                .or(all.exchange_rate),
            websockets: source.max_open_websockets.map(u32::from).or(all.websockets),
            waiting: source.max_waiting.map(u32::from).or(all.waiting),
            waiting_bytes: source.max_waiting_size.map(u64::from).or(all.waiting_bytes),
            buffered_bytes: source
                .max_buffered_size
                .map(u64::from)
                .or(all.buffered_bytes),
        };
        let given = RuntimeLimits {
            exchanges: source.limit_exchanges.map(u32::from),
            exchange_rate: source.limit_exchange_rate.map(u32::from),
            upload_rate: source.limit_upload_rate.map(u64::from),
            download_rate: source.limit_download_rate.map(u64::from),
            websockets: source.limit_websockets.map(u32::from),
            head_bytes: source.limit_head_size.map(usize::from),
            waiting: source.limit_waiting.map(u32::from),
            waiting_bytes: source.limit_waiting_size.map(u64::from),
        };
        self.limits = given.or(self.limits);
    }
}

impl ConfigError {
    /// The faults.
    pub fn faults(&self) -> &[ConfigFault] {
        &self.0
    }
}

impl From<ConfigFileError> for ConfigError {
    fn from(error: ConfigFileError) -> Self {
        Self(vec![error.into()])
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Without a configuration only this machine is listened to.
const fn local(port: u16) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

fn tunnel_identity(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Identity> {
    let cert = required(
        faults,
        source.tls_cert.as_ref(),
        "tls-cert",
        "the tunnel listener's certificate chain",
    );
    let key = required(
        faults,
        source.tls_key.as_ref(),
        "tls-key",
        "the key of the tunnel listener's certificate",
    );
    identity(cert?, key?, faults)
}

fn public_identity(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Identity> {
    match (&source.public_tls_cert, &source.public_tls_key) {
        (Some(cert), Some(key)) => identity(cert, key, faults),
        (None, None) => None,
        (Some(_), None) => {
            let problem = "its key is missing: give --public-tls-key as well";
            faults.push(source.fault("public-tls-cert", problem));
            None
        }
        (None, Some(_)) => {
            let problem = "its certificate is missing: give --public-tls-cert as well";
            faults.push(source.fault("public-tls-key", problem));
            None
        }
    }
}

fn identity(cert: &Path, key: &Path, faults: &mut Vec<ConfigFault>) -> Option<Identity> {
    or_fault(faults, Identity::load(cert, key))
}

fn runtimes(
    source: &Source,
    credentials: &Credentials,
    domain: Option<&HostName>,
    faults: &mut Vec<ConfigFault>,
) -> Option<Runtimes> {
    if source.runtimes.is_none() && credentials.is_any() {
        return Some(Runtimes::default());
    }
    let purpose = "without a runtimes file, --jwks, --auth-url or --client-ca nobody could be let in; \
                   `tunnel-server token create` makes one";
    let path = required(faults, source.runtimes.as_ref(), "runtimes", purpose)?;
    or_fault(faults, Runtimes::load(path, domain?))
}

/// Two listeners on one port would each get some of the other's connections, or the second could
/// not be bound.
fn check_listeners(source: &Source, faults: &mut Vec<ConfigFault>) {
    let listeners = [
        (
            "tunnel-listen",
            source.tunnel_listen.map_or(TUNNEL_LISTEN, Into::into),
        ),
        (
            "public-listen",
            source.public_listen.map_or(PUBLIC_LISTEN, Into::into),
        ),
        (
            "admin-listen",
            source.admin_listen.map_or(ADMIN_LISTEN, Into::into),
        ),
    ];
    for (index, (flag, address)) in listeners.iter().enumerate() {
        for (other_flag, other) in listeners.iter().skip(index + 1) {
            if listeners_overlap(*address, *other) {
                faults.push(overlap(source, (flag, *address), (other_flag, *other)));
            }
        }
    }
}

/// Told at what was given: nobody can mend a default.
fn overlap(
    source: &Source,
    (flag, address): (&str, SocketAddr),
    (other_flag, other): (&str, SocketAddr),
) -> ConfigFault {
    let (place, other_place) = (source.place(flag), source.place(other_flag));
    let (place, own, beside, theirs) = match other_place.is_given() {
        true => (other_place, other, place, address),
        false => (place, address, other_place, other),
    };
    let beside = beside.mention_or_default();
    let problem = format!("{own} meets {theirs} of {beside}: give each listener its own port");
    ConfigFault::Value { place, problem }
}

fn check_proxies(source: &Source, faults: &mut Vec<ConfigFault>) {
    let nobody = source.trusted_proxies.as_ref().is_none_or(Vec::is_empty);
    if source.proxy_protocol == Some(true) && nobody {
        let problem = "nobody may send a PROXY header: name the proxies in --trusted-proxies";
        faults.push(source.fault("proxy-protocol", problem));
    }
}

/// The delay is a part of the grace period, and the least of what has to happen in it.
fn check_grace(source: &Source, faults: &mut Vec<ConfigFault>) {
    let delay = source.drain_delay.map_or(Duration::ZERO, Into::into);
    let grace = source.grace_period.map_or(GRACE_PERIOD, Into::into);
    if delay >= grace && !delay.is_zero() {
        let named = source.place("grace-period").mention_or_default();
        let problem = format!(
            "{delay:?} leaves nothing of the grace period, {grace:?} ({named}), which counts from the signal on"
        );
        faults.push(source.fault("drain-delay", problem));
    }
}

fn check_ping_interval(source: &Source, faults: &mut Vec<ConfigFault>) {
    let interval = source.ping_interval.map(Duration::from);
    if let Some(interval) = interval.filter(|interval| *interval < PING_INTERVAL_MIN) {
        let problem = format!("{interval:?} is shorter than many ways take: at least 100ms");
        faults.push(source.fault("ping-interval", problem));
    }
}

fn required<'a>(
    faults: &mut Vec<ConfigFault>,
    given: Option<&'a PathBuf>,
    flag: &'static str,
    purpose: &'static str,
) -> Option<&'a PathBuf> {
    if given.is_none() {
        faults.push(ConfigFault::Missing { flag, purpose });
    }
    given
}

fn or_fault<T, E: Into<ConfigFault>>(
    faults: &mut Vec<ConfigFault>,
    result: Result<T, E>,
) -> Option<T> {
    result.map_err(|error| faults.push(error.into())).ok()
}

fn set<T>(setting: &mut T, given: Option<impl Into<T>>) {
    if let Some(given) = given {
        *setting = given.into();
    }
}

/// The networks as such.
pub(crate) fn plain(networks: Vec<Network>) -> Vec<IpNet> {
    networks.into_iter().map(IpNet::from).collect()
}

#[cfg(test)]
mod tests;
