//! Takes over what has changed in the files that a running server was started from.
//!
//! In: the flags as given, and word that a file changed, a minute passed, or SIGHUP came. Out: the server's parts
//! with the new configuration, or with the last good one and a log line for each fault. No connection,
//! session or stream is dropped by it, except those without a right to go on.

use std::sync::Arc;

use tunnel_ops::admin::BearerFileError;
use tunnel_ops::task::Owned;
use tunnel_ops::telemetry::Telemetry;
use tunnel_ops::tls_files::TlsFilesError;
use tunnel_ops::watch::{Change, FileWatch, WatchError};

use super::parts::{Parts, admin_guard, connection_limit};
use crate::{
    auth::{AuthSetupError, PreparedCredentials},
    config::{
        Config, ConfigError, Given,
        effective::{Difference, differences},
    },
    events::{Event, EventKind},
    public::answer::Cors,
    runtimes::NameError,
};

/// Follows the files.
pub(crate) struct Reloader {
    given: Given,
    watch: FileWatch,
}

/// Why the last good configuration stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// A file, or what is in it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What the files name cannot be used.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// Why a configuration cannot be taken over.
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
    Name(#[from] NameError),
    /// The operator's token.
    #[error(transparent)]
    AdminToken(#[from] BearerFileError),
    /// A file that held entries holds none.
    #[error(
        "{0}: the file holds no entries any more, as while it is being written: send SIGHUP to take it as it is"
    )]
    Emptied(&'static str),
}

/// What becomes of a runtimes file or revocation list that held entries and holds none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Emptied {
    /// It is not taken over.
    Refuse,
    /// It is taken over, since a person has asked for it.
    Take,
}

impl Reloader {
    /// Begins to watch; made before the files are read for the first time, so that no edit in between is
    /// missed.
    pub(crate) fn new(given: Given) -> Result<Self, WatchError> {
        let paths = given.watched();
        Ok(Self {
            watch: FileWatch::new(paths)?,
            given,
        })
    }

    /// Follows the files for as long as the result is held.
    pub(crate) fn start(mut self, parts: Arc<Parts>, telemetry: Arc<Telemetry>) -> Owned<()> {
        Owned::spawn("reload", async move {
            loop {
                let change = self.watch.changed().await;
                // Before they are read, as at the start: files that are new among them change from here on.
                self.watch.set_paths(self.given.watched());
                self.reload(&parts, &telemetry, &change);
            }
        })
    }

    fn reload(&self, parts: &Parts, telemetry: &Telemetry, change: &Change) {
        let files = &change.files;
        tracing::info!(
            ?files,
            asked = change.is_requested,
            "reading the configuration again"
        );
        let result = self.take_over(parts, telemetry, change.is_requested);
        parts.on_reload(result.is_ok());
        match result {
            Ok(differences) => tell(&differences),
            Err(error) => {
                for fault in error.to_string().lines() {
                    tracing::error!(
                        fault,
                        "the configuration is not good, the last good one stays"
                    );
                }
            }
        }
    }

    fn take_over(
        &self,
        parts: &Parts,
        telemetry: &Telemetry,
        is_requested: bool,
    ) -> Result<Vec<Difference>, ReloadError> {
        let source = self.given.clone().merge().map_err(ConfigError::from)?;
        let config = Config::check(&source)?;
        let log_level = config.settings.log_level.clone();
        let emptied = match is_requested {
            true => Emptied::Take,
            false => Emptied::Refuse,
        };
        let differences = parts.apply(config, emptied)?;
        telemetry.set_filter(&log_level);
        Ok(differences)
    }
}

impl Parts {
    /// Takes over another configuration, wholly or not at all, and returns what differs. It applies from now on,
    /// to what is open too where that has a meaning; sessions without a right to their runtime end.
    ///
    /// # Errors
    /// When a file that it names cannot be used. Everything stays as it was then.
    fn apply(&self, mut config: Config, emptied: Emptied) -> Result<Vec<Difference>, ApplyError> {
        // All that can fail.
        let credentials = PreparedCredentials::read(&config)?;
        if emptied == Emptied::Refuse {
            self.check_not_emptied(&config, &credentials)?;
        }
        let next = config.effective(&credentials.contents());
        let differences = differences(&self.effective(), &next);
        config.keep_started(&self.config.load());
        let tls = self.tls.prepare(&config, credentials.client_auth())?;
        let hosts = self.router.prepare(&config.runtimes)?;
        let admin_guard = admin_guard(&config)?;
        // From here on it is in force.
        self.tls.commit(tls);
        self.tls.show(&self.metrics);
        self.router.commit(hosts);
        self.registry.set_limits(&config);
        let (all, settings) = (connection_limit(&config), &config.settings);
        let public_each = settings.max_connections_per_address as usize;
        self.public_permits.set(all, public_each);
        let tunnel_each = settings.max_tunnel_connections_per_address as usize;
        self.tunnel_permits.set(all, tunnel_each);
        self.cors.store(Arc::new(Cors::of(&settings.cors_origin)));
        self.admin_guard.store(admin_guard.map(Arc::new));
        self.config.replace(config);
        // Last, since it makes the sessions check their grants.
        self.authenticator.replace(credentials);
        Ok(differences)
    }

    /// Refuses files that held entries and hold none: a program that writes a file in place empties it first, which
    /// would disconnect every client, or lift all revocations, for the gap.
    fn check_not_emptied(
        &self,
        config: &Config,
        next: &PreparedCredentials,
    ) -> Result<(), ApplyError> {
        let had_runtimes = self.config.load().runtimes.iter().next().is_some();
        if had_runtimes && config.runtimes.iter().next().is_none() {
            return Err(ApplyError::Emptied("runtimes"));
        }
        let is_list_named = config.settings.revocations.is_some();
        if is_list_named && self.authenticator.has_revocation_list() && !next.has_revocations() {
            return Err(ApplyError::Emptied("revocations"));
        }
        Ok(())
    }

    fn on_reload(&self, is_good: bool) {
        self.metrics.on_reload(is_good);
        self.config.on_reload(is_good);
        let reloaded = Event::new(EventKind::Reloaded);
        self.events.report(match is_good {
            true => reloaded,
            false => reloaded.reason("not_good"),
        });
    }
}

fn tell(differences: &[Difference]) {
    if differences.is_empty() {
        tracing::info!("the configuration is good and says what it said before");
    }
    for difference in differences {
        if difference.needs_restart() {
            tracing::warn!(%difference, "a setting counts only when the server is started anew");
        } else {
            tracing::info!(%difference, "a setting has changed");
        }
    }
}
