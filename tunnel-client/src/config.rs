//! The checked configuration of a client.
//!
//! In: a [`Source`] with the values of flags, environment and file. Out: a valid [`Config`] with its certificates read, or
//! all faults at once. Tests and programs that embed a client start from [`Config::new`] and set what differs.

mod credential;
mod dns_server;
mod listen;
mod login;
mod no_proxy;
mod proxy;
mod reach;
pub(crate) mod reload;
mod settings;
mod traces;
mod trust;
mod url;

use std::ffi::OsString;
use std::path::PathBuf;

use tunnel_ops::config_file::ConfigFileError;
use tunnel_ops::faults::{Faults, FaultyFile};
use tunnel_ops::settings::SettingOrigin;
use tunnel_ops::settings::{GivenSettings, OneOrMore, Setting};
use tunnel_ops::telemetry::tracer::{TracerFault, TracerSettings};
use tunnel_ops::tls_files::{Roots, TlsFilesError};
use tunnel_routing::config::{RouteDefaults, RouteList};
pub use tunnel_routing::url::{UpstreamScheme, UpstreamUrl};

pub use self::credential::CertificateFiles;
pub use self::dns_server::DnsServer;
pub use self::listen::ServeConfig;
pub(crate) use self::login::read as read_login;
pub use self::login::{LoginError, ProxyLogin};
pub use self::no_proxy::NoProxy;
pub(crate) use self::proxy::ProxyDecision;
pub use self::proxy::{
    LoginSource, PassedOver, PassedOverBy, ProxyChoice, ProxyScheme, ProxySettings, ProxyUrl,
};
pub use self::reach::{ConnectTo, HostField, TlsName};
pub use self::settings::{Given, Settings, Source, setting};
pub use self::trust::Trust;
pub use self::url::ServerUrl;
use crate::token_file::TokenFileError;

/// Most networks that the runtime may be reached from: the longest fit into the 4096 bytes that a server reads.
const NETWORKS_MAX: usize = 90;

/// Most servers: as many as a client has sessions.
const SERVERS_MAX: usize = 8;

/// Most name servers; more than two or three are never queried in time.
const DNS_SERVERS_MAX: usize = 8;

/// The configuration of a client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The value of each setting. Those that only `serve` needs are unused. There is a token file or a certificate, and an
    /// upstream or routes.
    pub settings: Settings,
    /// The servers that are dialled, at least one.
    pub servers: Vec<ServerPath>,
    /// The roots for the servers' certificates.
    pub server_trust: Trust,
    /// The client's certificate, read like the token at each dial and when it changes. Default none.
    pub client_certificate: Option<CertificateFiles>,
    /// The roots for the certificate of an `https` upstream; `None` for other schemes.
    pub upstream_roots: Option<Roots>,
    /// The routes of the file, which have precedence over the upstream. Default none.
    pub routes: RouteList,
    /// How exchanges are traced; `None` if they are not. Default none.
    pub tracer: Option<TracerSettings>,
}

/// A server, and how it is reached.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerPath {
    /// Its URL.
    pub url: ServerUrl,
    /// The proxy for it; upstreams are dialled without one. Default none.
    pub proxy: Option<ProxySettings>,
    /// A proxy that is configured and not used for this server. Default none.
    pub proxy_passed_over: Option<PassedOver>,
}

impl From<ServerUrl> for ServerPath {
    fn from(url: ServerUrl) -> Self {
        Self {
            url,
            proxy: None,
            proxy_passed_over: None,
        }
    }
}

/// What to do after a final refusal: the credential is revoked, or has been refused for minutes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnRefusal {
    /// Exit, so that a supervisor can act.
    #[default]
    Exit,
    /// Dial again after growing waits.
    Retry,
}

/// Which part of the routes is reported to the server, for its operator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TellRoutes {
    /// Name, conditions, state, and the upstreams' URLs.
    Full,
    /// Name, conditions and state, without addresses of the network behind the client.
    #[default]
    Names,
    /// Nothing.
    None,
}

tunnel_ops::word_value!(OnRefusal {
    "exit" => Self::Exit,
    "retry" => Self::Retry,
});

tunnel_ops::word_value!(TellRoutes {
    "full" => Self::Full,
    "names" => Self::Names,
    "none" => Self::None,
});

/// One fault of the configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFault {
    /// A setting without a default is missing.
    #[error("{}", .setting.missing(.purpose))]
    Missing {
        /// The setting.
        setting: &'static Setting,
        /// Its purpose.
        purpose: &'static str,
    },
    /// A value that is not possible with another one.
    #[error("{place}: {problem}")]
    Value {
        /// Where the setting was given.
        place: SettingOrigin,
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
    /// A variable or a file of the tracer.
    #[error(transparent)]
    Tracer(#[from] TracerFault),
    /// A variable that all programs share.
    #[error("the environment variable {name}: {problem}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
}

impl ConfigFault {
    /// The file at fault, if it is one that a setting names and its text names no setting.
    fn file(&self) -> Option<FaultyFile<'_>> {
        match self {
            Self::Tls(error) => error.file(),
            Self::Token(error) => error.path().map(FaultyFile::from),
            Self::Login(error) => Some(error.file().into()),
            Self::Tracer(error) => error.file(),
            Self::Missing { .. } | Self::Value { .. } | Self::File(_) | Self::Variable { .. } => {
                None
            }
        }
    }
}

/// All faults of the configuration.
pub type ConfigError = Faults<ConfigFault>;

impl Config {
    /// A configuration with all defaults. An `https` upstream needs `upstream_roots` as well.
    pub fn new(
        server: ServerUrl,
        server_trust: impl Into<Trust>,
        token_file: PathBuf,
        upstream: UpstreamUrl,
    ) -> Self {
        Self {
            settings: Settings {
                token_file: Some(token_file),
                upstream: Some(upstream),
                ..Settings::default()
            },
            servers: vec![server.into()],
            server_trust: server_trust.into(),
            client_certificate: None,
            upstream_roots: None,
            routes: RouteList::default(),
            tracer: None,
        }
    }

    /// Checks the configuration. Reads the files that it names, and the environment for a proxy.
    pub fn check(source: &Source) -> Result<Self, ConfigError> {
        match Self::checked(source, |name| std::env::var_os(name)) {
            (Some(config), faults) if faults.is_empty() => Ok(config),
            (_, faults) => Err(source.faults(faults)),
        }
    }

    /// Checks the configuration, but tolerates a missing or unreadable credential, so that `check` can still test the network
    /// path.
    pub(crate) fn check_all(source: &Source) -> (Option<Self>, Result<(), ConfigError>) {
        let (config, faults) = Self::checked(source, |name| std::env::var_os(name));
        let result = match faults.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::new(faults)),
        };
        (config, result)
    }

    /// The configuration, if only the credential has faults, and all faults.
    fn checked(
        source: &Source,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> (Option<Self>, Vec<ConfigFault>) {
        let mut faults = Vec::new();
        let settings = source.settings();
        check_servers(source, &mut faults);
        let before = faults.len();
        let client_certificate = credential::check(source, &mut faults);
        let of_credential = faults.len() - before;
        let server_trust = server_trust(source, &settings, &mut faults);
        let servers = servers(source, &variable, &mut faults);
        let tracer = traces::check(source, &settings, &variable, &mut faults);
        check_upstream(source, &mut faults);
        let upstream_roots = upstream_roots(source, &mut faults);
        let routes = check_routes(source, true, &mut faults);
        check_redial(source, &settings, &mut faults);
        check_allow_from(source, &mut faults);
        check_dns_servers(source, &mut faults);
        let is_good = faults.len() == of_credential;
        let config = match (server_trust, routes) {
            (Some(server_trust), Some(routes)) if is_good => Some(Self {
                settings,
                servers,
                server_trust,
                client_certificate: client_certificate.flatten(),
                upstream_roots,
                routes,
                tracer,
            }),
            _ => None,
        };
        (config, faults)
    }

    /// Whether a server is dialled through a proxy; other faults are ignored.
    pub(crate) fn proxy_way(source: &Source, server: &ServerUrl) -> ProxyDecision {
        let variable = |name: &str| std::env::var_os(name);
        proxy::check(source, server, variable, &mut Vec::new())
    }

    /// All routes, or none if one of them has a fault; other faults are ignored. An upstream whose CA file cannot be used has
    /// no roots.
    pub(crate) fn routes_at_any_rate(source: &Source) -> Option<RouteList> {
        let mut faults = Vec::new();
        let roots = upstream_roots(source, &mut faults);
        let routes = check_routes(source, true, &mut faults)?;
        Some(routes.with_upstream(&defaults(&source.settings()), roots))
    }

    /// Checks only the routes, without the files that they name.
    pub(crate) fn check_routes(source: &Source) -> Result<RouteList, ConfigError> {
        let mut faults = Vec::new();
        check_upstream(source, &mut faults);
        match check_routes(source, false, &mut faults) {
            Some(routes) if faults.is_empty() => {
                Ok(routes.with_upstream(&defaults(&source.settings()), None))
            }
            _ => Err(ConfigError::new(faults)),
        }
    }

    /// The routes of the file, followed by the one to `upstream`.
    pub fn all_routes(&self) -> RouteList {
        let roots = self.upstream_roots.clone();
        self.routes.with_upstream(&defaults(&self.settings), roots)
    }
}

/// The host and port that are dialled, or that a proxy is to connect to.
pub(crate) fn dialled<'a>(server: &'a ServerUrl, instead: Option<&'a ConnectTo>) -> (&'a str, u16) {
    match instead {
        Some(place) => (place.host(), place.port().unwrap_or_else(|| server.port())),
        None => (server.host(), server.port()),
    }
}

impl Source {
    /// The servers, if any were given.
    pub(crate) fn servers(&self) -> &[ServerUrl] {
        self.server.as_ref().map_or(&[], OneOrMore::as_slice)
    }

    /// These faults, those of files with the settings that name the files.
    fn faults(&self, faults: Vec<ConfigFault>) -> ConfigError {
        let faults = faults.into_iter().map(|fault| {
            match fault.file().and_then(|file| self.origin_of_file(file)) {
                Some(place) => ConfigFault::Value {
                    place,
                    problem: fault.to_string(),
                },
                None => fault,
            }
        });
        ConfigError::new(faults.collect())
    }

    /// A fault of a setting, or of a combination of settings.
    fn fault(&self, setting: &Setting, problem: impl Into<String>) -> ConfigFault {
        ConfigFault::Value {
            place: self.origin(setting),
            problem: problem.into(),
        }
    }
}

fn check_servers(source: &Source, faults: &mut Vec<ConfigFault>) {
    let purpose = "the server to dial";
    let given = source.server.as_ref();
    let Some(servers) = required(faults, given, &setting::server, purpose) else {
        return;
    };
    let servers = servers.as_slice();
    let is_twice = |(position, server)| servers[..position].contains(server);
    let problem = match servers.len() {
        0 => "no server is named: name at least one".to_owned(),
        2.. if source.connect_to.is_some() => {
            "several servers are named, and --connect-to leads to one: leave it out".to_owned()
        }
        1..=SERVERS_MAX if !servers.iter().enumerate().any(is_twice) => return,
        1..=SERVERS_MAX => "a server is named twice: leave one out".to_owned(),
        more => format!("{more} servers are named, at most {SERVERS_MAX} can be"),
    };
    faults.push(source.fault(&setting::server, problem));
}

/// How each server is reached. A fault of the proxy is the same for all of them, and is reported once.
fn servers(
    source: &Source,
    variable: impl Fn(&str) -> Option<OsString>,
    faults: &mut Vec<ConfigFault>,
) -> Vec<ServerPath> {
    let mut of_proxy: Vec<ConfigFault> = Vec::new();
    let paths = source.servers().iter().map(|url| {
        let mut found = Vec::new();
        let proxy = proxy::check(source, url, &variable, &mut found);
        if of_proxy.is_empty() {
            of_proxy = found;
        }
        ServerPath {
            url: url.clone(),
            proxy: proxy.settings,
            proxy_passed_over: proxy.passed_over,
        }
    });
    let paths = paths.collect();
    faults.append(&mut of_proxy);
    paths
}

fn server_trust(
    source: &Source,
    settings: &Settings,
    faults: &mut Vec<ConfigFault>,
) -> Option<Trust> {
    let (files, folders) = (source.ca_file.as_ref(), source.ca_dir.as_ref());
    let system = (settings.system_roots, source.origin(&setting::system_roots));
    trust::check(system, files, folders, faults)
}

/// The defaults of routes, from the settings.
fn defaults(settings: &Settings) -> RouteDefaults {
    RouteDefaults {
        upstream: settings.upstream.clone(),
        ca_file: settings.upstream_ca_file.clone(),
        connect_timeout: settings.upstream_connect_timeout,
        head_timeout: settings.upstream_head_timeout,
        http: settings.upstream_http,
    }
}

/// Checks the routes of the file, and reads the files that they name if `reads_files`; `None` if a route has a fault.
fn check_routes(
    source: &Source,
    reads_files: bool,
    faults: &mut Vec<ConfigFault>,
) -> Option<RouteList> {
    let (Some(file), false) = (source.origins.file(), source.route.is_empty()) else {
        return Some(RouteList::default());
    };
    let defaults = defaults(&source.settings());
    let mut of_routes = Vec::new();
    let list = RouteList::check(&source.route, file, &defaults, reads_files, &mut of_routes);
    faults.extend(of_routes.into_iter().map(ConfigFault::File));
    list
}

fn check_upstream(source: &Source, faults: &mut Vec<ConfigFault>) {
    if source.route.is_empty() {
        let purpose = "the local service that answers, unless the file has [[route]]";
        required(
            faults,
            source.upstream.as_ref(),
            &setting::upstream,
            purpose,
        );
    }
}

fn upstream_roots(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Roots> {
    let upstream = source.upstream.as_ref()?;
    let ca_file = source.upstream_ca_file.as_deref();
    if upstream.scheme() == UpstreamScheme::Https {
        return or_fault(faults, Roots::load(ca_file));
    }
    // The CA file is also used for the upstreams of routes.
    if ca_file.is_some() && source.route.is_empty() {
        let named = source.origin(&setting::upstream).mention();
        let problem =
            format!("{upstream} ({named}) is used without TLS: write https:// or leave this out");
        faults.push(source.fault(&setting::upstream_ca_file, problem));
    }
    None
}

fn check_redial(source: &Source, settings: &Settings, faults: &mut Vec<ConfigFault>) {
    let (base, cap) = (settings.redial_base, settings.redial_cap);
    if cap >= base {
        return;
    }
    let (first, longest) = (
        source.origin(&setting::redial_base),
        source.origin(&setting::redial_cap),
    );
    // Reported at the setting that was given, since a default is not in the configuration.
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

fn check_allow_from(source: &Source, faults: &mut Vec<ConfigFault>) {
    let Some(networks) = &source.allow_from else {
        return;
    };
    let problem = match networks.len() {
        // An empty list would admit no client or all of them: neither is intended.
        0 => "the list is empty: omit it to set no bound".to_owned(),
        1..=NETWORKS_MAX => return,
        more => format!("{more} networks are named, at most {NETWORKS_MAX} are sent to the server"),
    };
    faults.push(source.fault(&setting::allow_from, problem));
}

fn check_dns_servers(source: &Source, faults: &mut Vec<ConfigFault>) {
    let problem = match source.dns_server.as_ref().map(Vec::len) {
        None | Some(1..=DNS_SERVERS_MAX) => return,
        Some(0) => "the list is empty: omit it to use the system's name servers".to_owned(),
        Some(more) => format!("{more} name servers are named, at most {DNS_SERVERS_MAX} can be"),
    };
    faults.push(source.fault(&setting::dns_server, problem));
}

fn required<T>(
    faults: &mut Vec<ConfigFault>,
    given: Option<T>,
    setting: &'static Setting,
    purpose: &'static str,
) -> Option<T> {
    if given.is_none() {
        faults.push(ConfigFault::Missing { setting, purpose });
    }
    given
}

fn or_fault<T, E: Into<ConfigFault>>(
    faults: &mut Vec<ConfigFault>,
    result: Result<T, E>,
) -> Option<T> {
    result.map_err(|error| faults.push(error.into())).ok()
}

#[cfg(test)]
mod tests;
