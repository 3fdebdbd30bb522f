//! Takes over what has changed in the files that a running server was started from.
//!
//! In: the flags as given, and word that a file changed, a minute passed, or SIGHUP came. Out: the node
//! with the new configuration, or with the last good one and a log line for each fault. No connection,
//! session or stream is dropped by it, save those that have no right to go on.

use std::sync::Arc;

use tunnel_ops::task::Owned;
use tunnel_ops::telemetry::Telemetry;
use tunnel_ops::watch::{Change, FileWatch, WatchError};

use super::effective::Difference;
use super::{Config, ConfigError, Given};
use crate::node::{ApplyError, Emptied, Node};

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
    pub(crate) fn start(mut self, node: Arc<Node>, telemetry: Arc<Telemetry>) -> Owned<()> {
        Owned::spawn("reload", async move {
            loop {
                let change = self.watch.changed().await;
                // Before they are read, as at the start: files that are new among them change from here on.
                self.watch.set_paths(self.given.watched());
                self.reload(&node, &telemetry, &change);
            }
        })
    }

    fn reload(&self, node: &Node, telemetry: &Telemetry, change: &Change) {
        let files = &change.files;
        tracing::info!(
            ?files,
            asked = change.is_requested,
            "reading the configuration again"
        );
        let result = self.take_over(node, telemetry, change.is_requested);
        node.on_reload(result.is_ok());
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
        node: &Node,
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
        let differences = node.apply(config, emptied)?;
        telemetry.set_filter(&log_level);
        Ok(differences)
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
