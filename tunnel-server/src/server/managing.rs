//! Puts managed runtimes in force, at the start and when they change, as a reload of the runtimes file does, and revocations by
//! the admin API.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tunnel_ops::{signals::Shutdown, task::Owned};

use super::{RunError, parts::Parts};
use crate::{
    managed::{Managed, ManagedStoreError},
    replica::Deliver,
};

/// The pause after a change of what is in force, as a multiple of the time that the change took, since each one goes through
/// all runtimes: it has a quarter of a processor's time. Changes that come meanwhile become one.
const PAUSE: u32 = 3;

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The tasks that follow managed runtimes and revocations; `None` if a shutdown was requested before they were read.
pub(super) async fn start(
    parts: &Arc<Parts>,
    shutdown: &Shutdown,
) -> Result<Option<Vec<Owned<()>>>, RunError> {
    let mut tasks = Vec::new();
    let revocations = parts.revocations.clone();
    let load = spawn_blocking(move || revocations.load()).await;
    load.map_err(ManagedStoreError::from)??;
    if let Some(managed) = parts.managed.clone() {
        // The thread of the control tasks answers health checks meanwhile.
        let loaded = managed.clone();
        let load = spawn_blocking(move || loaded.load()).await;
        load.unwrap_or_else(|error| Err(error.into()))?;
        tasks.push(Owned::spawn("managed", keep(parts.clone(), managed)));
    }
    if let Some(replica) = parts.replica.clone() {
        let delivered = parts.clone();
        let deliver: Deliver = Arc::new(move |changes, is_listing| {
            if let Some(managed) = &delivered.managed {
                managed.take_over(changes.documents, is_listing);
            }
            if let Some(replica) = &delivered.replica {
                let revoked = replica.revoked(&changes.revoked);
                delivered.revocations.take_over(&revoked);
            }
        });
        tasks.push(Owned::spawn("replica", replica.run(deliver)));
    }
    tracing::info!("waiting for managed runtimes and revocations");
    let ready = async {
        if let Some(replica) = &parts.replica {
            replica.ready().await;
        }
        if let Some(managed) = &parts.managed {
            managed.ready().await;
        }
    };
    tokio::select! {
        () = ready => Ok(Some(tasks)),
        () = shutdown.requested() => Ok(None),
        () = parts.lifecycle.shutdown_requested() => Ok(None),
    }
}

/// Reads the folder and the file of revocations again, and puts what has changed in force.
pub(super) async fn read_again(parts: &Arc<Parts>) {
    let revocations = parts.revocations.clone();
    let read = spawn_blocking(move || revocations.load()).await;
    match read {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "revocations were not read again"),
        Err(error) => tracing::error!(%error, "revocations were not read again"),
    }
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
