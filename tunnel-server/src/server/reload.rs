//! Reloads the configuration of a running server when its files change.
//!
//! In: the flags, and the events that a file has changed, or SIGHUP was received. Out: the server's
//! parts with the new configuration, or with the last valid one and a log line for each fault. Only sessions whose
//! credential is no longer valid are closed. Files are read, checked and applied on a blocking thread: the thread of the
//! control tasks answers health checks meanwhile.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tunnel_ops::admin::BearerFileError;
use tunnel_ops::task::Owned;
use tunnel_ops::telemetry::{AccessLogError, Telemetry};
use tunnel_ops::tls_files::{ClientAuth, ClientCheck, RevocationLists, TlsFilesError};
use tunnel_ops::watch::{Change, FileWatch, WatchError};

use super::parts::{Parts, admin_guard, connection_limit, unknown_each};
use crate::{
    auth::{AuthSetupError, PreparedCredentials, revocation::Revocations},
    config::{
        Config, ConfigError, Given,
        effective::{Difference, differences},
    },
    events::{Event, EventKind},
    public::answer::Cors,
    runtimes::HostError,
};

/// How long a list has to be unchanged before an entry that is no more in it is lifted: a program that writes the file in
/// place has written half of it for a moment.
const LIFTED_AFTER: Duration = Duration::from_secs(2);

/// Watches the files and reloads them.
pub(crate) struct Reloader {
    given: Given,
    watch: FileWatch,
}

/// Why a reload failed. The last valid configuration stays in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// A file cannot be read or is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The access log's file cannot be opened.
    #[error(transparent)]
    AccessLog(#[from] AccessLogError),
    /// The configuration cannot be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The blocking task failed.
    #[error("the reload was interrupted: {0}")]
    Interrupted(#[from] JoinError),
}

/// Why a configuration cannot be applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// Certificates or revocation lists.
    #[error(transparent)]
    Tls(#[from] TlsFilesError),
    /// Credentials.
    #[error(transparent)]
    Auth(#[from] AuthSetupError),
    /// A runtime's host.
    #[error(transparent)]
    Name(#[from] HostError),
    /// The operator's token.
    #[error(transparent)]
    AdminToken(#[from] BearerFileError),
    /// A file that had entries has none.
    #[error(
        "{}: {}: the file has no entries any more, as while it is being written: to apply it anyway, send SIGHUP",
        .0.setting, .0.file.display()
    )]
    Emptied(EmptyList),
}

/// A runtimes file or revocation list without entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EmptyList {
    /// The setting that names it.
    setting: String,
    file: PathBuf,
}

/// What to do about a file that has lost entries.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shrunk {
    /// A runtimes file or revocation list without entries is refused. A revocation list that has lost some lifts none, unless
    /// it has this fingerprint.
    Doubt(Option<String>),
    /// It is applied, because the operator has requested it.
    Apply,
}

/// What a reload has done.
struct Applied {
    differences: Vec<Difference>,
    /// The fingerprint of the revocation list, if it has lost entries that stay in force until it was unchanged for
    /// [`LIFTED_AFTER`].
    unlifted: Option<String>,
}

impl Reloader {
    /// Begins to watch. Must be called before the files are read for the first time, so that no change is missed.
    pub(crate) fn new(given: Given) -> Result<Self, WatchError> {
        let paths = given.watched();
        Ok(Self {
            watch: FileWatch::new(paths)?,
            given,
        })
    }

    /// Reloads the files when they change, until the result is dropped.
    pub(crate) fn start(mut self, parts: Arc<Parts>, telemetry: Arc<Telemetry>) -> Owned<()> {
        Owned::spawn("reload", async move {
            let mut unlifted = None;
            loop {
                let (change, confirmed) = self.next_change(unlifted).await;
                // Before they are read, as at the start, so that no change of a new file is missed.
                let given = self.given.clone();
                self.watch.set_paths(move || given.watched()).await;
                unlifted = self.reload(&parts, &telemetry, change, confirmed).await;
            }
        })
    }

    /// The next change, or, if nothing has changed for [`LIFTED_AFTER`], none and the fingerprint of the revocation list that
    /// has entries to lift.
    async fn next_change(&mut self, unlifted: Option<String>) -> (Change, Option<String>) {
        if unlifted.is_none() {
            return (self.watch.changed().await, None);
        }
        match timeout(LIFTED_AFTER, self.watch.changed()).await {
            Ok(change) => (change, None),
            Err(_) => (Change::default(), unlifted),
        }
    }

    /// Returns the fingerprint of a revocation list that has entries to lift.
    async fn reload(
        &self,
        parts: &Arc<Parts>,
        telemetry: &Arc<Telemetry>,
        change: Change,
        confirmed: Option<String>,
    ) -> Option<String> {
        let Change {
            files,
            is_requested,
        } = change;
        tracing::info!(
            ?files,
            sighup = is_requested,
            "reading the configuration again"
        );
        let shrunk = match is_requested {
            true => Shrunk::Apply,
            false => Shrunk::Doubt(confirmed),
        };
        let (given, telemetry) = (self.given.clone(), Arc::clone(telemetry));
        let applied = Arc::clone(parts);
        let read = spawn_blocking(move || {
            let result = read_and_apply(given, &applied, &telemetry, shrunk);
            if result.is_err() {
                applied.apply_revocations();
            }
            result
        });
        let result = read.await.unwrap_or_else(|error| Err(error.into()));
        parts.on_reload(&result);
        match result {
            Ok(applied) => {
                log_differences(&applied.differences);
                if applied.unlifted.is_some() {
                    tracing::info!(after = ?LIFTED_AFTER, "the revocation list has lost entries: they are lifted when it stays so");
                }
                applied.unlifted
            }
            Err(error) => {
                for fault in error.to_string().lines() {
                    tracing::error!(
                        fault,
                        "the configuration is not valid: the last valid one stays in force"
                    );
                }
                None
            }
        }
    }
}

/// Blocks.
fn read_and_apply(
    given: Given,
    parts: &Parts,
    telemetry: &Telemetry,
    shrunk: Shrunk,
) -> Result<Applied, ReloadError> {
    let source = given.merge().map_err(ConfigError::from)?;
    let config = Config::check(&source)?;
    let log_level = config.settings.log_level.clone();
    let access_log = telemetry.open_access_log(&config.settings.access_log)?;
    let applied = parts.apply(config, &shrunk)?;
    telemetry.set_filter(&log_level);
    telemetry.set_access_log(access_log);
    Ok(applied)
}

impl Parts {
    /// Applies another configuration as a whole, and returns the differences. It applies to open connections too, where
    /// that is possible; sessions whose credential is no longer valid are closed.
    ///
    /// # Errors
    /// When a file that it names cannot be used. Nothing changes then.
    fn apply(&self, mut config: Config, shrunk: &Shrunk) -> Result<Applied, ApplyError> {
        let _applying = self.applying.lock();
        // Everything that can fail comes first.
        let merged = self.managed.as_ref().map(|it| it.merge(&config.runtimes));
        let runtimes = match &merged {
            Some(merged) => merged.runtimes.clone(),
            None => Arc::new(config.runtimes.clone()),
        };
        let mut credentials = PreparedCredentials::read(&config, runtimes.clone())?;
        let mut unlifted = None;
        if let Shrunk::Doubt(confirmed) = shrunk {
            self.check_not_emptied(empty_lists(&config, credentials.has_revocations()))?;
            if confirmed.as_deref() != Some(credentials.revocations_fingerprint()) {
                unlifted = credentials.keep_revocations(&self.authenticator);
            }
        }
        let next = config.effective(&credentials.contents());
        let differences = differences(&self.effective(), &next);
        let shared = config.shared_directory.as_ref();
        let etcd = shared.map(|shared| (shared.etcd.tls.clone(), shared.etcd.user.clone()));
        let etcd = self.registry.directory().shared().zip(etcd);
        config.keep_started(&self.config.load());
        let tls = self.tls.prepare(&config, credentials.client_auth())?;
        let hosts = self.router.prepare(&runtimes)?;
        let admin_guard = admin_guard(&config)?;
        // Nothing fails from here on.
        self.tls.commit(tls);
        if let Some((directory, (tls, user))) = etcd {
            directory.set_etcd_credentials(tls, user);
        }
        self.tls.show(&self.metrics);
        if let (Some(acme), Some(settings)) = (&self.acme, &config.acme) {
            acme.set(settings);
        }
        self.router.commit(hosts);
        self.registry.set_limits(&config);
        let (all, settings) = (connection_limit(&config), &config.settings);
        let public_each = settings.max_connections_per_address as usize;
        self.public_permits.set(all, public_each);
        let tunnel_each = settings.max_tunnel_connections_per_address as usize;
        self.tunnel_permits.set(all, tunnel_each);
        self.unknown_permits.set(all, unknown_each(settings));
        self.cors.store(Arc::new(Cors::of(&settings.cors_origin)));
        self.admin_guard.store(admin_guard.map(Arc::new));
        if let Some((webhook, secret)) = self.webhook.as_ref().zip(config.webhook_secret.clone()) {
            webhook.set_secret(secret);
        }
        self.config.replace(config);
        // Last, since it makes the sessions check their grants.
        self.authenticator.replace(credentials);
        if let Some((managed, merged)) = self.managed.as_ref().zip(merged) {
            managed.commit(merged);
        }
        Ok(Applied {
            differences,
            unlifted,
        })
    }

    /// Puts the revocations of the files in force that the last valid configuration names, although another file is at fault:
    /// they only take away. A list that is at fault itself changes nothing, and its fault is logged.
    fn apply_revocations(&self) {
        let _applying = self.applying.lock();
        let config = self.config.load_full();
        let settings = &config.settings;
        let list = settings.revocations.as_deref().map(Revocations::load);
        let added = list.map(|list| list.map(|list| self.authenticator.add_revocations(list)));
        match added {
            Some(Ok(true)) => {
                tracing::info!(
                    "new entries of the revocation list are in force, although another file is faulty"
                );
            }
            Some(Err(error)) => {
                tracing::error!(fault = %error, "the revocation list is faulty, too: its changes are not in force");
            }
            Some(Ok(false)) | None => {}
        }
        let lists = settings.client_crl.as_deref().map(RevocationLists::load);
        let in_force = self.authenticator.client_auth();
        if let (Some(Ok(lists)), Some(in_force)) = (lists, in_force) {
            let before = in_force.revocation_lists.as_ref();
            // Any other list is part of a change that the rest of the configuration belongs to.
            if before.is_some_and(|before| *before == lists || !lists.includes(before)) {
                return;
            }
            let next = ClientAuth {
                revocation_lists: Some(lists),
                ..in_force
            };
            match self.apply_client_auth(&config, next) {
                Ok(()) => tracing::info!("the list of --client-crl is in force nevertheless"),
                Err(error) => tracing::error!(%error, "the list of --client-crl is not in force"),
            }
        }
    }

    fn apply_client_auth(&self, config: &Config, next: ClientAuth) -> Result<(), TlsFilesError> {
        let clients = ClientCheck::new(next.clone())?;
        self.tls.commit(self.tls.prepare(config, Some(next))?);
        self.authenticator.replace_clients(clients);
        Ok(())
    }

    /// The lists without entries.
    pub(super) fn empty_lists(&self) -> Vec<EmptyList> {
        let has_revocations = self.authenticator.has_revocation_list();
        empty_lists(&self.config.load(), has_revocations)
    }

    /// Refuses lists without entries that have some here: a program that writes a file in place empties it first, which would
    /// disconnect every client, or lift all revocations, until it is written.
    ///
    /// # Errors
    /// For the first such list.
    pub(super) fn check_not_emptied(&self, empty: Vec<EmptyList>) -> Result<(), ApplyError> {
        let has_entries = |list: &EmptyList| match list.setting.as_str() {
            "runtimes" => self.config.load().runtimes.iter().next().is_some(),
            _ => self.authenticator.has_revocation_list(),
        };
        let emptied = empty.into_iter().find(has_entries);
        emptied.map_or(Ok(()), |list| Err(ApplyError::Emptied(list)))
    }

    fn on_reload(&self, result: &Result<Applied, ReloadError>) {
        self.metrics.on_reload(result.is_ok());
        let reloaded = Event::new(EventKind::Reloaded);
        let (result, event) = match result {
            Ok(applied) => {
                let differences = applied.differences.iter();
                let waiting = differences.filter(|one| one.needs_restart());
                let waiting: Vec<String> = waiting.map(|one| one.name.clone()).collect();
                let event = match waiting.is_empty() {
                    true => reloaded,
                    false => {
                        reloaded.detail(format!("only after a restart: {}", waiting.join(", ")))
                    }
                };
                (Ok(waiting), event)
            }
            Err(error) => {
                let text = error.to_string();
                let fault = text.lines().next().unwrap_or_default().to_owned();
                let event = reloaded.reason("not_good").detail(fault.clone());
                (Err(fault), event)
            }
        };
        self.config.on_reload(result);
        self.events.report(event);
    }
}

/// The lists without entries of this configuration.
fn empty_lists(config: &Config, has_revocations: bool) -> Vec<EmptyList> {
    let has_runtimes = config.runtimes.iter().next().is_some();
    let settings = &config.settings;
    [
        ("runtimes", &settings.runtimes, has_runtimes),
        ("revocations", &settings.revocations, has_revocations),
    ]
    .into_iter()
    .filter(|(.., has_entries)| !has_entries)
    .filter_map(|(setting, file, _)| {
        let (setting, file) = (setting.to_owned(), file.clone()?);
        Some(EmptyList { setting, file })
    })
    .collect()
}

fn log_differences(differences: &[Difference]) {
    if differences.is_empty() {
        tracing::info!("the configuration is valid and unchanged");
    }
    for difference in differences {
        if difference.needs_restart() {
            tracing::warn!(%difference, "a changed setting takes effect only after a restart");
        } else {
            tracing::info!(%difference, "a setting has changed");
        }
    }
}
