//! Puts managed runtimes in force, at the start and when they change, as a reload of the runtimes file does.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tunnel_ops::{signals::Shutdown, task::Owned};

use super::{RunError, parts::Parts};
use crate::managed::Managed;

/// The pause after a change of what is in force, as a multiple of the time that the change took, since each one goes through
/// all runtimes: it has a quarter of a processor's time. Changes that come meanwhile become one.
const PAUSE: u32 = 3;

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The tasks that follow managed runtimes; `None` if a shutdown was requested before they were read.
pub(super) async fn start(
    parts: &Arc<Parts>,
    shutdown: &Shutdown,
) -> Result<Option<Vec<Owned<()>>>, RunError> {
    let Some(managed) = parts.managed.clone() else {
        return Ok(Some(Vec::new()));
    };
    // The thread of the control tasks answers health checks meanwhile.
    let loaded = managed.clone();
    let load = spawn_blocking(move || loaded.load()).await;
    load.unwrap_or_else(|error| Err(error.into()))?;
    let followed = managed.clone();
    let tasks = vec![
        Owned::spawn("managed-follow", async move { followed.follow().await }),
        Owned::spawn("managed", keep(parts.clone(), managed.clone())),
    ];
    tracing::info!("waiting for the managed runtimes");
    tokio::select! {
        () = managed.ready() => Ok(Some(tasks)),
        () = shutdown.requested() => Ok(None),
        () = parts.lifecycle.shutdown_requested() => Ok(None),
    }
}

/// Reads the folder again, and puts what has changed in force.
pub(super) async fn read_again(parts: &Arc<Parts>) {
    let Some(managed) = parts.managed.clone() else {
        return;
    };
    let parts = parts.clone();
    let read = spawn_blocking(move || managed.load().map(|()| parts.apply_managed())).await;
    if let Err(error) = read.unwrap_or_else(|error| Err(error.into())) {
        tracing::error!(%error, "managed runtimes were not read again: what was changed during the upgrade counts after a restart");
    }
}

async fn keep(parts: Arc<Parts>, managed: Arc<Managed>) {
    let mut version = 0;
    loop {
        version = managed.newer_than(version).await;
        let began = Instant::now();
        let applied = parts.clone();
        if let Err(error) = spawn_blocking(move || applied.apply_managed()).await {
            tracing::error!(%error, "managed runtimes were not applied");
        }
        sleep((began.elapsed() * PAUSE).min(LONGEST_PAUSE)).await;
    }
}

impl Parts {
    /// Puts what is known of managed runtimes in force, beside the runtimes of the configuration. Sessions whose credential is
    /// gone are closed.
    fn apply_managed(&self) {
        let _applying = self.applying.lock();
        let Some(managed) = &self.managed else {
            return;
        };
        let config = self.config.load_full();
        let merged = managed.merge(&config.runtimes);
        match self.router.prepare(&merged.runtimes) {
            Ok(hosts) => self.router.commit(hosts),
            // Each document was read under this domain, and its host is good.
            Err(error) => {
                tracing::error!(%error, "managed runtimes cannot be applied");
                return;
            }
        }
        self.registry.set_limits(&config);
        // Last, since it makes the sessions check their grants.
        self.authenticator.replace_runtimes(merged.runtimes.clone());
        managed.commit(merged);
    }
}
