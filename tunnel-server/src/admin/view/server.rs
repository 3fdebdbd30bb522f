//! Views of the server as a whole: its state, its certificates, its configuration.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    acme::{Acme, NameState},
    admin::{
        nodes::{self, NodeView},
        usage::{self, ProcessView, UsedLimitView},
    },
    auth::Authenticator,
    config::{effective::Effective, live::LiveConfig},
    lifecycle::Lifecycle,
    metrics::Metrics,
    registry::Registry,
    timestamp::Timestamp,
    upgrades::UpgradeView,
};

/// The server as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerView {
    /// Version of the program.
    pub version: String,
    /// Its process id.
    #[serde(default)]
    pub pid: u32,
    /// When it was started.
    pub started: Timestamp,
    /// Seconds since then.
    pub uptime_seconds: u64,
    /// Whether it is draining.
    pub state: ServerState,
    /// The number of known runtimes.
    pub runtimes: usize,
    /// The number of runtimes that are online.
    pub runtimes_online: usize,
    /// Live sessions of all runtimes.
    pub sessions: usize,
    /// Open exchanges of all runtimes.
    pub open_exchanges: usize,
    /// Exchanges that have ended since the start.
    #[serde(default)]
    pub requests: u64,
    /// The problems that requests were answered with since the start, by reason.
    #[serde(default)]
    pub problems: BTreeMap<String, u64>,
    /// What the process uses; absent where the system does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessView>,
    /// The limits of the whole server, and how much of each is used.
    #[serde(default)]
    pub limits: BTreeMap<String, UsedLimitView>,
    /// Counts the configurations since the start, from 1.
    pub config_version: u64,
    /// Whether the last reload succeeded; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reload_ok: Option<bool>,
    /// When the last reload was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reload: Option<Timestamp>,
    /// The upgrade that is under way or has failed; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<UpgradeView>,
    /// The first fault for which the last reload failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reload_fault: Option<String>,
    /// The changed settings that take effect only after a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for_restart: Vec<String>,
    /// The server nodes that share a directory, this one included; absent for a server that stands alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeView>,
    /// The listeners' certificates in files, and those that the server gets by ACME; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<CertificateView>,
}

/// The certificate of a listener, or of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateView {
    /// Where it comes from.
    pub source: CertificateSource,
    /// By ACME the name: a host, or a wildcard. Of a file the listener: `public` or `tunnel`.
    pub name: String,
    /// When it ends; absent if there is none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// Why the last order failed; absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Reads the listeners' certificates in files.
pub(crate) type ReadCertificates = Arc<dyn Fn() -> Vec<CertificateView> + Send + Sync>;

/// Where a certificate comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CertificateSource {
    /// A file.
    File,
    /// An authority, by ACME.
    Acme,
}

/// The configuration that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigView {
    /// Counts the configurations since the start, from 1.
    pub version: u64,
    /// The value of each setting, and a description of each runtime.
    pub settings: Effective,
}

/// The state of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerState {
    /// It accepts connections and requests.
    Running,
    /// It is stopping, and lets open exchanges finish.
    Draining,
}

/// The server as it is now.
pub(in crate::admin) fn server_view(
    registry: &Registry,
    metrics: &Metrics,
    config: &LiveConfig,
    lifecycle: &Lifecycle,
    certificates: Vec<CertificateView>,
    limits: BTreeMap<String, UsedLimitView>,
) -> ServerView {
    let slots = registry.slots();
    let tunnels: Vec<_> = slots.iter().filter_map(|slot| slot.tunnel()).collect();
    let members = tunnels.iter().flat_map(|tunnel| tunnel.members());
    let last_reload = config.last_reload();
    let started = lifecycle.started();
    ServerView {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        started: started.into(),
        uptime_seconds: started.elapsed().unwrap_or_default().as_secs(),
        state: match lifecycle.is_leaving() {
            true => ServerState::Draining,
            false => ServerState::Running,
        },
        runtimes: slots.len(),
        runtimes_online: tunnels.len(),
        sessions: usize::try_from(metrics.sessions.get()).unwrap_or_default(),
        open_exchanges: members.map(|member| member.session.outstanding()).sum(),
        requests: metrics.ended_exchanges(),
        problems: metrics.problems_by_reason(),
        process: usage::process(),
        certificates,
        limits,
        config_version: metrics.config_version(),
        last_reload_ok: last_reload.as_ref().map(|reload| reload.fault.is_none()),
        last_reload: last_reload.as_ref().map(|reload| reload.at.into()),
        last_reload_fault: (last_reload.as_ref()).and_then(|reload| reload.fault.clone()),
        waiting_for_restart: last_reload.map_or_else(Vec::new, |reload| reload.waiting),
        upgrade: lifecycle.upgrades.view(),
        nodes: nodes::views(registry.directory()),
    }
}

/// The certificates by ACME.
pub(in crate::admin) fn certificates(acme: &Acme) -> Vec<CertificateView> {
    let view = |state: NameState| CertificateView {
        source: CertificateSource::Acme,
        name: state.name.to_string(),
        not_after: state.not_after.map(Timestamp::from),
        problem: state.problem,
    };
    acme.states().into_iter().map(view).collect()
}

/// The configuration that is in force.
pub(in crate::admin) fn config_view(
    config: &LiveConfig,
    authenticator: &Authenticator,
    metrics: &Metrics,
) -> ConfigView {
    ConfigView {
        version: metrics.config_version(),
        settings: config.load().effective(&authenticator.contents()),
    }
}
