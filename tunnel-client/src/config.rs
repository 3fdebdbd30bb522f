//! The checked configuration: what every part of the client may rely on.
//!
//! In comes a [`Source`], what flags, environment and file said; out comes a [`Config`] that cannot
//! be wrong, with its certificates read, or every fault at once. Tests and programs that hold a
//! client start from [`Config::new`] and set what differs.

mod credential;
mod dns_server;
mod listen;
mod login;
mod no_proxy;
mod proxy;
mod reach;
pub(crate) mod reload;
pub(crate) mod routes;
mod source;
mod trust;
mod url;

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use tunnel_ops::admin::AdminHost;
use tunnel_ops::config_file::ConfigFileError;
use tunnel_ops::config_place::Place;
use tunnel_ops::telemetry::{LogFilter, LogFormat};
use tunnel_ops::tls_files::{Roots, TlsFilesError};

pub use self::credential::CertificateFiles;
pub use self::dns_server::DnsServer;
pub use self::listen::{ListenConfig, ServeConfig};
pub use self::login::LoginError;
pub(crate) use self::login::read as read_login;
pub use self::no_proxy::NoProxy;
pub(crate) use self::proxy::ProxyWay;
pub use self::proxy::{
    LoginSource, PassedOver, PassedOverBy, ProxyChoice, ProxyLogin, ProxyScheme, ProxySettings,
    ProxyUrl,
};
pub use self::reach::{ConnectTo, HostField, TlsName};
use self::routes::Defaults;
pub use self::routes::{
    DEFAULT_ROUTE, EjectionOptions, HealthOptions, RawRoute, RouteAction, RouteConfig, RouteList,
    SegmentValues, TlsOptions, UpstreamMember, UpstreamOptions, UpstreamsConfig,
};
pub use self::source::{Given, Source};
pub use self::trust::Trust;
pub use self::url::{ServerUrl, UpstreamScheme, UpstreamUrl};
use crate::token_file::TokenFileError;

/// First and longest wait before a new dial, where nothing else is set: quick after a hiccup,
/// gentle in a storm.
const REDIAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Shortest time between pings: a session that is silent for two of them is dead.
const PING_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Shortest time after which sessions are replaced by their age: each time costs a dial.
const SESSION_AGE_MIN: Duration = Duration::from_secs(60);
/// Time to connect to an upstream, where nothing else is set.
const UPSTREAM_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for the head of an upstream's response, where nothing else is set: what webhooks, reports and
/// queries need, and more than any idle limit on the way.
const UPSTREAM_HEAD_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Networks that the list of those that the runtime may be reached from can have: the longest fit into
/// the 4096 bytes that a server reads.
const NETWORKS_MAX: usize = 90;

/// Name servers that can be named; more than two or three are never asked in time.
const DNS_SERVERS_MAX: usize = 8;

/// Everything that a client needs to know.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The server that is dialled.
    pub server: ServerUrl,
    /// Whom the server's certificate may come from.
    pub server_trust: Trust,
    /// The name that is sent in TLS and that the server's certificate has to be for, if it is not the
    /// URL's. Default none.
    pub server_name: Option<TlsName>,
    /// What the `Host` of the request for a session says, if not what the URL does. Default none.
    pub host_header: Option<HostField>,
    /// What is dialled, or asked of the proxy, in place of the URL's host. Default none.
    pub connect_to: Option<ConnectTo>,
    /// The proxy on the way to the server; upstreams have none. Default none.
    pub proxy: Option<ProxySettings>,
    /// One that is named somewhere and not used for this server, for whoever wonders. Default none.
    pub proxy_passed_over: Option<PassedOver>,
    /// The file that holds the token, to be read at each dial and when it changes; none only beside a
    /// certificate.
    pub token_file: Option<PathBuf>,
    /// The certificate that is shown to the server, to be read likewise. Default none.
    pub client_certificate: Option<CertificateFiles>,
    /// The local service that answers what no route takes; none only beside routes.
    pub upstream: Option<UpstreamUrl>,
    /// Whom an `https` upstream's certificate may come from; none for other schemes.
    pub upstream_roots: Option<Roots>,
    /// The routes of the file, which come before that upstream. Default none.
    pub routes: RouteList,
    /// Name servers that upstreams' names are looked up at; none means the system's. Default none.
    pub dns_servers: Vec<SocketAddr>,
    /// Sessions kept with the server at once, 1 to 8. Default 2.
    pub sessions: usize,
    /// Longest time that a session is used before another one replaces it; none means for as long as it
    /// lasts. Default none: one that is well gains nothing by being replaced.
    pub max_session_age: Option<Duration>,
    /// Networks that the runtime may be reached from, within what the server allows; none means any.
    /// Default none.
    pub allow_from: Vec<IpNet>,
    /// Where the operator asks for metrics and health; none means nowhere. Default 127.0.0.1:9091.
    pub admin_listen: Option<SocketAddr>,
    /// Names that the admin listener may be asked by, beside localhost and addresses. Default none.
    pub admin_hosts: Vec<AdminHost>,
    /// Time for each step of the dial. Default 10 s.
    pub dial_timeout: Duration,
    /// Longest wait before the first new dial; doubles with each failure. Default 1 s.
    pub redial_base: Duration,
    /// Longest wait before any new dial, not less than `redial_base`. Default 30 s.
    pub redial_cap: Duration,
    /// How long a session must last for the waits to start over. Default 60 s.
    pub redial_stable: Duration,
    /// What to do when the server refuses for good. Default exit.
    pub on_refusal: OnRefusal,
    /// What the server is told of the routes. Default names.
    pub tell_routes: TellRoutes,
    /// How long to wait after such a refusal before the next dial, if there is one; each time longer
    /// for as long as another instance takes over. Default 5 min.
    pub refusal_wait: Duration,
    /// Time to connect to the upstream. Default 5 s.
    pub upstream_connect_timeout: Duration,
    /// Time for the head of the upstream's response. Default 5 min.
    pub upstream_head_timeout: Duration,
    /// Idle connections to the upstream that are kept. Default 64.
    pub upstream_idle_pool: usize,
    /// Memory for what was received and not sent on yet, in bytes. Default 64 MiB.
    pub max_buffered_bytes: u64,
    /// Time between pings on a session. Default 15 s.
    pub ping_interval: Duration,
    /// How long exchanges may take to end when the client stops. Default 25 s: 5 s less than
    /// Kubernetes' 30 s.
    pub grace_period: Duration,
    /// Whether each exchange is logged. Default true.
    pub access_log: bool,
    /// How log lines look. Default text.
    pub log_format: LogFormat,
    /// What is logged. Default `info`.
    pub log_level: LogFilter,
}

/// What to do when the server refuses what a person has to mend: the credential is revoked, or has been refused for
/// minutes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnRefusal {
    /// End, so that a supervisor sees it.
    #[default]
    Exit,
    /// Dial again after growing waits.
    Retry,
}

/// What the tunnel server is told of the client's routes, for its operator to look at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TellRoutes {
    /// Name, conditions, state, and the upstreams' URLs.
    Full,
    /// Name, conditions and state: nothing of the network behind the client.
    #[default]
    Names,
    /// Nothing.
    None,
}

/// One thing that is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFault {
    /// Something without a default is not given.
    #[error(
        "--{flag} is missing: {purpose} (or TUNNEL_CLIENT_{}, or `{}` in the configuration file)",
        flag.to_uppercase().replace('-', "_"), flag.replace('-', "_")
    )]
    Missing {
        /// The flag.
        flag: &'static str,
        /// What it is for.
        purpose: &'static str,
    },
    /// A value that is not possible beside another.
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
    /// The token file.
    #[error(transparent)]
    Token(#[from] TokenFileError),
    /// A CA file.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// The file with the proxy's login.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// A variable that all programs share.
    #[error("the environment variable {name}: {problem}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
}

/// Everything that is wrong with the configuration, one fault a line.
#[derive(Debug)]
pub struct ConfigError(Vec<ConfigFault>);

impl Config {
    /// Where the operator asks, where nothing else is set.
    pub(crate) const ADMIN_LISTEN: SocketAddr =
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9091);
    /// Memory for what was received and not sent on yet, where nothing else is set: a quarter of what
    /// `deploy/kubernetes/sidecar.yaml` gives the client.
    pub(crate) const BUFFERED_BYTES: u64 = 64 * 1024 * 1024;
    /// How long exchanges may take to end, where nothing else is set.
    pub(crate) const GRACE_PERIOD: Duration = Duration::from_secs(25);

    /// A configuration with all defaults. An `https` upstream needs `upstream_roots` as well.
    pub fn new(
        server: ServerUrl,
        server_trust: impl Into<Trust>,
        token_file: PathBuf,
        upstream: UpstreamUrl,
    ) -> Self {
        Self {
            token_file: Some(token_file),
            upstream: Some(upstream),
            ..Self::without_upstream(server, server_trust.into())
        }
    }

    fn without_upstream(server: ServerUrl, server_trust: Trust) -> Self {
        let (redial_base, redial_cap) = REDIAL;
        Self {
            server,
            server_trust,
            server_name: None,
            host_header: None,
            connect_to: None,
            proxy: None,
            proxy_passed_over: None,
            token_file: None,
            client_certificate: None,
            upstream: None,
            upstream_roots: None,
            routes: RouteList::default(),
            dns_servers: Vec::new(),
            sessions: 2,
            max_session_age: None,
            allow_from: Vec::new(),
            admin_listen: Some(Self::ADMIN_LISTEN),
            admin_hosts: Vec::new(),
            dial_timeout: Duration::from_secs(10),
            redial_base,
            redial_cap,
            redial_stable: Duration::from_secs(60),
            on_refusal: OnRefusal::Exit,
            tell_routes: TellRoutes::Names,
            refusal_wait: Duration::from_secs(5 * 60),
            upstream_connect_timeout: UPSTREAM_CONNECT_TIMEOUT,
            upstream_head_timeout: UPSTREAM_HEAD_TIMEOUT,
            upstream_idle_pool: 64,
            max_buffered_bytes: Self::BUFFERED_BYTES,
            ping_interval: Duration::from_secs(15),
            grace_period: Self::GRACE_PERIOD,
            access_log: true,
            log_format: LogFormat::Text,
            log_level: LogFilter::default(),
        }
    }

    /// Checks everything that was given, reading the files it names, and the environment for a proxy.
    pub fn check(source: Source) -> Result<Self, ConfigError> {
        Self::check_within(source, |name| std::env::var_os(name))
    }

    /// The same, and of what is good but for the credential a configuration without one: the way to the server can
    /// be looked at all the same.
    pub(crate) fn check_all(source: Source) -> (Option<Self>, Result<(), ConfigError>) {
        let (config, faults) = Self::checked(source, |name| std::env::var_os(name));
        let result = match faults.is_empty() {
            true => Ok(()),
            false => Err(ConfigError(faults)),
        };
        (config, result)
    }

    /// The same with these variables of the environment.
    fn check_within(
        source: Source,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        match Self::checked(source, variable) {
            (Some(config), faults) if faults.is_empty() => Ok(config),
            (_, faults) => Err(ConfigError(faults)),
        }
    }

    /// A configuration where nothing but the credential is wrong, and all that is wrong.
    fn checked(
        source: Source,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> (Option<Self>, Vec<ConfigFault>) {
        let mut faults = Vec::new();
        let server = required(
            &mut faults,
            source.server.clone(),
            "server",
            "the server to dial",
        );
        let before = faults.len();
        let credential = credential::check(&source, &mut faults);
        let of_credential = faults.len() - before;
        let server_trust = server_trust(&source, &mut faults);
        let proxy = server
            .as_ref()
            .map(|server| proxy::check(&source, server, variable, &mut faults))
            .unwrap_or_default();
        check_upstream(&source, &mut faults);
        let upstream_roots = upstream_roots(&source, &mut faults);
        let routes = routes::check(&source, true, &mut faults);
        check_redial(&source, &mut faults);
        check_session_age(&source, &mut faults);
        check_ping_interval(&source, &mut faults);
        check_allow_from(&source, &mut faults);
        check_dns_servers(&source, &mut faults);
        let is_good = faults.len() == of_credential;
        let config = match (server, server_trust, routes) {
            (Some(server), Some(trust), Some(routes)) if is_good => {
                let mut config = Self::without_upstream(server, trust);
                config.proxy = proxy.settings;
                config.proxy_passed_over = proxy.passed_over;
                (config.token_file, config.client_certificate) = credential.unwrap_or_default();
                config.upstream = source.upstream.clone();
                config.upstream_roots = upstream_roots;
                config.routes = routes;
                config.apply(source);
                Some(config)
            }
            _ => None,
        };
        (config, faults)
    }

    /// Whether the server that is named is reached by a proxy, whatever else is wrong.
    pub(crate) fn proxy_way(source: &Source) -> ProxyWay {
        let variable = |name: &str| std::env::var_os(name);
        let way = |server| proxy::check(source, server, variable, &mut Vec::new());
        source.server.as_ref().map(way).unwrap_or_default()
    }

    /// All routes that are good, whatever else is wrong; none if one of them is not. An upstream whose CA file is
    /// not good has no roots.
    pub(crate) fn routes_at_any_rate(source: &Source) -> Option<RouteList> {
        let mut faults = Vec::new();
        let roots = upstream_roots(source, &mut faults);
        let routes = routes::check(source, true, &mut faults)?;
        Some(Defaults::of(source).add_to(&routes, roots))
    }

    /// Checks the routes alone, for whoever does not dial; the files that they name are not read.
    pub(crate) fn check_routes(source: &Source) -> Result<RouteList, ConfigError> {
        let mut faults = Vec::new();
        check_upstream(source, &mut faults);
        match routes::check(source, false, &mut faults) {
            Some(routes) if faults.is_empty() => Ok(Defaults::of(source).add_to(&routes, None)),
            _ => Err(ConfigError(faults)),
        }
    }

    /// The routes of the file, and behind them the one to `upstream`.
    pub fn all_routes(&self) -> RouteList {
        let Some(upstream) = &self.upstream else {
            return self.routes.clone();
        };
        let (connect, head) = (self.upstream_connect_timeout, self.upstream_head_timeout);
        let options = UpstreamOptions::new(connect, head, self.upstream_roots.clone());
        self.routes.with_default(upstream.clone(), options)
    }

    /// Replaces defaults by what was given.
    fn apply(&mut self, source: Source) {
        self.server_name = source.server_name;
        self.host_header = source.host_header;
        self.connect_to = source.connect_to;
        set(&mut self.sessions, source.sessions);
        self.max_session_age = source.max_session_age.map(Duration::from);
        let allow_from = source.allow_from.into_iter().flatten();
        self.allow_from = allow_from.map(IpNet::from).collect();
        let dns_servers = source.dns_server.into_iter().flatten();
        self.dns_servers = dns_servers.map(SocketAddr::from).collect();
        set(&mut self.admin_listen, source.admin_listen);
        set(&mut self.admin_hosts, source.admin_host);
        set(&mut self.dial_timeout, source.dial_timeout);
        set(&mut self.redial_base, source.redial_base);
        set(&mut self.redial_cap, source.redial_cap);
        set(&mut self.redial_stable, source.redial_stable);
        set(&mut self.on_refusal, source.on_refusal);
        set(&mut self.tell_routes, source.tell_routes);
        set(&mut self.refusal_wait, source.refusal_wait);
        let connect = source.upstream_connect_timeout;
        set(&mut self.upstream_connect_timeout, connect);
        set(
            &mut self.upstream_head_timeout,
            source.upstream_head_timeout,
        );
        set(&mut self.upstream_idle_pool, source.upstream_idle_pool);
        set(&mut self.max_buffered_bytes, source.max_buffered_size);
        set(&mut self.ping_interval, source.ping_interval);
        set(&mut self.grace_period, source.grace_period);
        set(&mut self.access_log, source.access_log);
        set(&mut self.log_format, source.log_format);
        set(&mut self.log_level, source.log_level);
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

/// The host and port that are dialled, or asked of a proxy.
pub(crate) fn dialled<'a>(server: &'a ServerUrl, instead: Option<&'a ConnectTo>) -> (&'a str, u16) {
    match instead {
        Some(place) => (place.host(), place.port().unwrap_or_else(|| server.port())),
        None => (server.host(), server.port()),
    }
}

fn server_trust(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Trust> {
    let (files, folders) = (source.ca_file.as_ref(), source.ca_dir.as_ref());
    let system = (source.system_roots, source.place("system-roots"));
    trust::check(system, files, folders, faults)
}

fn check_upstream(source: &Source, faults: &mut Vec<ConfigFault>) {
    if source.route.is_empty() {
        let purpose = "the local service that answers, unless the file has [[route]]";
        required(faults, source.upstream.clone(), "upstream", purpose);
    }
}

fn upstream_roots(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Roots> {
    let upstream = source.upstream.as_ref()?;
    let ca_file = source.upstream_ca_file.as_deref();
    if upstream.scheme() == UpstreamScheme::Https {
        return or_fault(faults, Roots::load(ca_file));
    }
    // It is also for the upstreams of routes.
    if ca_file.is_some() && source.route.is_empty() {
        let named = source.place("upstream").mention();
        let problem = format!(
            "{upstream} ({named}) is spoken to without TLS: use https:// or leave this out"
        );
        faults.push(source.fault("upstream-ca-file", problem));
    }
    None
}

fn check_redial(source: &Source, faults: &mut Vec<ConfigFault>) {
    let base = source.redial_base.map_or(REDIAL.0, Duration::from);
    let cap = source.redial_cap.map_or(REDIAL.1, Duration::from);
    if cap >= base {
        return;
    }
    let (first, longest) = (source.place("redial-base"), source.place("redial-cap"));
    // At what was given: nobody can mend a default.
    let (place, problem) = match longest.is_given() {
        true => (
            longest,
            format!(
                "{cap:?} is less than the first wait, {base:?} ({})",
                first.mention_or_default()
            ),
        ),
        false => (
            first,
            format!(
                "{base:?} is more than the longest wait, {cap:?} ({})",
                longest.mention_or_default()
            ),
        ),
    };
    faults.push(ConfigFault::Value { place, problem });
}

fn check_session_age(source: &Source, faults: &mut Vec<ConfigFault>) {
    let age = source.max_session_age.map(Duration::from);
    if let Some(age) = age.filter(|age| *age < SESSION_AGE_MIN) {
        let problem = format!("{age:?} is too short, each time costs a dial: at least 1m");
        faults.push(source.fault("max-session-age", problem));
    }
}

fn check_ping_interval(source: &Source, faults: &mut Vec<ConfigFault>) {
    let interval = source.ping_interval.map(Duration::from);
    if let Some(interval) = interval.filter(|interval| *interval < PING_INTERVAL_MIN) {
        let problem = format!("{interval:?} is shorter than many ways take: at least 100ms");
        faults.push(source.fault("ping-interval", problem));
    }
}

fn check_allow_from(source: &Source, faults: &mut Vec<ConfigFault>) {
    let Some(networks) = &source.allow_from else {
        return;
    };
    let problem = match networks.len() {
        // Whoever means "nobody" should not run a client, and a list left empty must not mean "any".
        0 => "no network is named: leave it out to set no bound".to_owned(),
        1..=NETWORKS_MAX => return,
        more => format!("{more} networks are named, at most {NETWORKS_MAX} are sent to the server"),
    };
    faults.push(source.fault("allow-from", problem));
}

fn check_dns_servers(source: &Source, faults: &mut Vec<ConfigFault>) {
    let problem = match source.dns_server.as_ref().map(Vec::len) {
        None | Some(1..=DNS_SERVERS_MAX) => return,
        Some(0) => "no name server is named: leave it out to ask the system's".to_owned(),
        Some(more) => format!("{more} name servers are named, at most {DNS_SERVERS_MAX} can be"),
    };
    faults.push(source.fault("dns-server", problem));
}

fn required<T>(
    faults: &mut Vec<ConfigFault>,
    given: Option<T>,
    flag: &'static str,
    purpose: &'static str,
) -> Option<T> {
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

#[cfg(test)]
mod tests;
