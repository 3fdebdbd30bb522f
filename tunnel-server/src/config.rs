//! The checked configuration.
//!
//! In: a [`Source`], the settings that flags, environment and file give. Out: a valid [`Config`], with its certificates,
//! keys and runtimes read, or all faults at once. Tests and programs that embed a server start from [`Config::new`] and
//! set what differs.

mod acme;
mod credentials;
pub mod effective;
mod listeners;
pub(crate) mod live;
mod managed;
mod nodes;
mod origin;
mod settings;
mod traces;
mod webhook;

use std::path::PathBuf;

use tunnel_directory::RuntimeLabel;
use tunnel_http::answer::ProblemPage;
use tunnel_ops::admin::{BearerFileError, BearerGuard};
use tunnel_ops::config_file::ConfigFileError;
use tunnel_ops::faults::{Faults, FaultyFile};
use tunnel_ops::settings::SettingOrigin;
use tunnel_ops::settings::{GivenSettings, Setting};
use tunnel_ops::telemetry::tracer::{TracerFault, TracerSettings};
use tunnel_ops::tls_files::{Identity, TlsFilesError};

pub use self::acme::{
    AcmeChallenge, AcmeContact, AcmeDirectory, AcmeName, AcmeSettings, ExternalAccount,
};
pub use self::credentials::{
    CertificateSettings, Credentials, HttpUrl, JwksSource, JwtSettings, PlatformSettings,
};
pub use self::managed::ManagedPlace;
pub use self::nodes::{BadKeyPrefix, EtcdUrl, KeyPrefix, PeerLinks, SharedDirectory};
pub use self::origin::Origin;
pub use self::settings::{Given, Settings, Source, setting};
pub use self::webhook::{WebhookSecret, WebhookSecretError};
use crate::budget::NodeLimits;
use crate::peer_tls::PeerIdentityError;
use crate::runtimes::{HostName, RuntimeLimits, Runtimes, RuntimesError};

/// About the number of handshakes per second that another server can serve easily.
const LEAVING_PER_SECOND: u32 = 500;

/// The configuration of a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The value of each setting.
    pub settings: Settings,
    /// Certificate and key of tunnel clients' TLS; `None` with those of `acme`, or with plain HTTP from trusted proxies.
    pub tunnel_tls: Option<Identity>,
    /// Certificate and key of the public listener; `None` means plain HTTP, or those of `acme`. Default `None`.
    pub public_tls: Option<Identity>,
    /// The page that browsers get for a problem. Default: the built-in one.
    pub problem_page: ProblemPage,
    /// How certificates are got for listeners that have none; `None` if they are not. Default `None`.
    pub acme: Option<AcmeSettings>,
    /// The runtimes of the runtimes file. Managed ones are in force beside them.
    pub runtimes: Runtimes,
    /// The secret that events for the platform are signed with. Default `None`.
    pub webhook_secret: Option<WebhookSecret>,
    /// The directory that this server shares with other nodes; `None` if it stands alone. Default `None`.
    pub shared_directory: Option<SharedDirectory>,
    /// How exchanges are traced; `None` if they are not. Default `None`.
    pub tracer: Option<TracerSettings>,
    /// How many sessions are sent a drain message per second when the server stops. No flag sets it.
    pub leaving_per_second: u32,
}

/// One fault of the configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFault {
    /// A required setting is not given.
    #[error("{}", .setting.missing(.purpose))]
    Missing {
        /// The setting.
        setting: &'static Setting,
        /// What the setting is for.
        purpose: &'static str,
    },
    /// A value that conflicts with another setting.
    #[error("{origin}: {problem}")]
    Value {
        /// Where the setting was given.
        origin: SettingOrigin,
        /// The fault, and what to do.
        problem: String,
    },
    /// The configuration file.
    #[error(transparent)]
    File(#[from] ConfigFileError),
    /// The runtimes file.
    #[error(transparent)]
    Runtimes(#[from] RuntimesError),
    /// A certificate or key file.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// The certificates of server nodes.
    #[error(transparent)]
    Peer(#[from] PeerIdentityError),
    /// The secret of --webhook-url.
    #[error(transparent)]
    Webhook(#[from] WebhookSecretError),
    /// The file of the admin token.
    #[error(transparent)]
    AdminToken(#[from] BearerFileError),
    /// A variable or a file of the tracer.
    #[error(transparent)]
    Tracer(#[from] TracerFault),
}

impl ConfigFault {
    /// The file at fault, if it is one that a setting names.
    fn file(&self) -> Option<FaultyFile<'_>> {
        match self {
            Self::Runtimes(error) => error.file().map(FaultyFile::from),
            Self::Tls(error) => error.file(),
            Self::Peer(error) => error.file(),
            Self::Webhook(error) => Some(error.file().into()),
            Self::AdminToken(error) => Some(error.file().into()),
            Self::Tracer(error) => error.file(),
            Self::Missing { .. } | Self::Value { .. } | Self::File(_) => None,
        }
    }
}

/// All faults of the configuration, one per line.
pub type ConfigError = Faults<ConfigFault>;

impl Config {
    /// Makes a configuration with all defaults.
    pub fn new(
        tunnel_tls: impl Into<Option<Identity>>,
        runtimes: Runtimes,
        domain: HostName,
    ) -> Self {
        Self {
            settings: Settings {
                domain,
                ..Settings::default()
            },
            tunnel_tls: tunnel_tls.into(),
            public_tls: None,
            problem_page: ProblemPage::default(),
            acme: None,
            runtimes,
            webhook_secret: None,
            shared_directory: None,
            tracer: None,
            leaving_per_second: LEAVING_PER_SECOND,
        }
    }

    /// Where platform clients reach a runtime, as far as this server knows, whose public listener has this port: a trusted
    /// proxy in front of it is taken to serve HTTPS at the usual port.
    #[must_use]
    pub fn public_url(&self, runtime: &RuntimeLabel, port: u16) -> Option<String> {
        let settings = &self.settings;
        let host = HostName::of_runtime(runtime, &settings.domain).ok()?;
        if !settings.trusted_proxies.is_empty() {
            return Some(format!("https://{host}"));
        }
        let (scheme, usual) = match self.public_tls.is_some() || self.acme.is_some() {
            true => ("https", 443),
            false => ("http", 80),
        };
        Some(match port == usual {
            true => format!("{scheme}://{host}"),
            false => format!("{scheme}://{host}:{port}"),
        })
    }

    /// Whether tunnel clients connect to the public listener alone.
    #[must_use]
    pub fn is_one_listener(&self) -> bool {
        listeners::is_one(&self.settings)
    }

    /// Checks the given settings and reads the files that they name.
    pub fn check(source: &Source) -> Result<Self, ConfigError> {
        let mut faults = Vec::new();
        let settings = source.settings();
        let acme = acme::check(source, &settings, &mut faults);
        let tunnel_tls = match (&source.tls_cert, &source.tls_key, &acme) {
            _ if !settings.tunnel_tls => None,
            (None, None, Some(_)) => None,
            _ => tunnel_identity(source, &mut faults),
        };
        let mut public_tls = public_identity(source, &mut faults);
        if public_tls.is_none() && acme.is_none() && !settings.tunnel_host.is_empty() {
            public_tls.clone_from(&tunnel_tls);
        }
        credentials::check(source, &mut faults);
        managed::check(source, &settings, &mut faults);
        let runtimes = runtimes(&settings, &mut faults);
        if let Some(path) = &settings.admin_token_file {
            or_fault(&mut faults, BearerGuard::load(path));
        }
        let webhook_secret = webhook::check(source, &mut faults);
        let shared_directory = nodes::check(source, &settings, &mut faults);
        let problem_page = problem_page(source, &settings, &mut faults);
        let tracer = traces::check(
            source,
            &settings,
            |name| std::env::var_os(name),
            &mut faults,
        );
        listeners::check(source, &settings, &mut faults);
        check_grace(source, &settings, &mut faults);
        match (runtimes, problem_page) {
            (Some(runtimes), Some(problem_page)) if faults.is_empty() => Ok(Self {
                tunnel_tls,
                public_tls,
                problem_page,
                acme,
                runtimes,
                webhook_secret,
                shared_directory,
                tracer,
                settings,
                leaving_per_second: LEAVING_PER_SECOND,
            }),
            _ => {
                let faults = faults.into_iter().map(|fault| source.with_setting(fault));
                Err(ConfigError::new(faults.collect()))
            }
        }
    }

    /// Replaces the settings that a reload does not change by those in force, so that the effective configuration shows
    /// what is in force.
    pub(crate) fn keep_started(&mut self, started: &Self) {
        self.settings.keep_started(&started.settings);
        for (next, started) in [
            (&mut self.tunnel_tls, &started.tunnel_tls),
            (&mut self.public_tls, &started.public_tls),
        ] {
            if next.is_some() != started.is_some() {
                next.clone_from(started);
            }
        }
        match (&mut self.acme, &started.acme) {
            (Some(next), Some(started)) => next.keep_started(started),
            (next, started) => next.clone_from(started),
        }
    }

    /// The accepted credentials, apart from the tokens of the runtimes file.
    pub fn credentials(&self) -> Credentials {
        Credentials::of(&self.settings)
    }

    /// The limits of all runtimes together.
    pub fn node_limits(&self) -> NodeLimits {
        let settings = &self.settings;
        NodeLimits {
            exchanges: Some(settings.max_open_exchanges),
            exchange_rate: settings.max_exchange_rate,
            websockets: Some(settings.max_open_websockets),
            waiting: Some(settings.max_waiting),
            waiting_bytes: Some(settings.max_waiting_size),
            buffered_bytes: Some(settings.max_buffered_size),
        }
    }

    /// The default limits of a runtime.
    pub fn limits(&self) -> RuntimeLimits {
        let settings = &self.settings;
        RuntimeLimits {
            exchanges: Some(settings.limit_exchanges),
            exchange_rate: settings.limit_exchange_rate,
            upload_rate: settings.limit_upload_rate,
            download_rate: settings.limit_download_rate,
            websockets: Some(settings.limit_websockets),
            head_bytes: settings.limit_head_size,
            waiting: Some(settings.limit_waiting),
            waiting_bytes: Some(settings.limit_waiting_size),
        }
    }
}

impl Source {
    /// The fault of a file, with the setting that names the file.
    fn with_setting(&self, fault: ConfigFault) -> ConfigFault {
        match fault.file().and_then(|file| self.origin_of_file(file)) {
            Some(origin) => ConfigFault::Value {
                origin,
                problem: fault.to_string(),
            },
            None => fault,
        }
    }

    /// A fault of a setting, or of its combination with others.
    fn fault(&self, setting: &Setting, problem: impl Into<String>) -> ConfigFault {
        ConfigFault::Value {
            origin: self.origin(setting),
            problem: problem.into(),
        }
    }
}

fn tunnel_identity(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Identity> {
    let cert = required(
        faults,
        source.tls_cert.as_ref(),
        &setting::tls_cert,
        "the tunnel listener's certificate chain",
    );
    let key = required(
        faults,
        source.tls_key.as_ref(),
        &setting::tls_key,
        "the key of the tunnel listener's certificate",
    );
    Identity::load_or_fault(cert?, key?, faults)
}

fn public_identity(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Identity> {
    let (given, problem) = match (&source.public_tls_cert, &source.public_tls_key) {
        (Some(cert), Some(key)) => return Identity::load_or_fault(cert, key, faults),
        (None, None) => return None,
        (Some(_), None) => (
            &setting::public_tls_cert,
            "its key is missing: give --public-tls-key as well",
        ),
        (None, Some(_)) => (
            &setting::public_tls_key,
            "its certificate is missing: give --public-tls-cert as well",
        ),
    };
    faults.push(source.fault(given, problem));
    None
}

fn problem_page(
    source: &Source,
    settings: &Settings,
    faults: &mut Vec<ConfigFault>,
) -> Option<ProblemPage> {
    let Some(path) = &settings.problem_page else {
        return Some(ProblemPage::default());
    };
    let page = ProblemPage::load(path);
    page.map_err(|error| faults.push(source.fault(&setting::problem_page, error.to_string())))
        .ok()
}

fn runtimes(settings: &Settings, faults: &mut Vec<ConfigFault>) -> Option<Runtimes> {
    let path = settings.runtimes.as_ref();
    let is_managed = settings.managed_runtimes.is_some();
    if path.is_none() && (is_managed || Credentials::of(settings).is_any()) {
        return Some(Runtimes::default());
    }
    let purpose = "without a runtimes file, --managed-runtimes, --jwks, --auth-url or --client-ca no tunnel client can connect; \
                   `tunnel-server token create` makes one";
    let path = required(faults, path, &setting::runtimes, purpose)?;
    or_fault(faults, Runtimes::load(path, &settings.domain))
}

/// Rejects a drain delay that is not shorter than the grace period, of which it is a part.
fn check_grace(source: &Source, settings: &Settings, faults: &mut Vec<ConfigFault>) {
    let (delay, grace) = (settings.drain_delay, settings.grace_period);
    if delay >= grace && !delay.is_zero() {
        let named = source.origin(&setting::grace_period).mention_or_default();
        let problem = format!(
            "{delay:?} leaves nothing of the grace period, {grace:?} ({named}), which begins with the signal"
        );
        faults.push(source.fault(&setting::drain_delay, problem));
    }
}

fn required<'a>(
    faults: &mut Vec<ConfigFault>,
    given: Option<&'a PathBuf>,
    setting: &'static Setting,
    purpose: &'static str,
) -> Option<&'a PathBuf> {
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
