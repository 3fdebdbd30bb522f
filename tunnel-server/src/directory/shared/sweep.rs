//! Removes what nobody needs any more: records of nodes that have died, and claims that have long been free.
//!
//! One node does it for all: the first by name of those that live. A record that is removed although its node lives, as
//! after an hour without etcd, is written again by that node.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use tunnel_directory::{NodeRun, table::Table};
use tunnel_etcd::{Compare, RequestOp, TxnRequest};

use super::{super::now, Shared};

/// Interval of the sweep. What is dead at two sweeps in a row is removed.
const INTERVAL: Duration = Duration::from_secs(60);

/// How long a claim stays that nobody holds: its instance gets the runtime by it again, and hosts of the runtime are
/// known meanwhile.
const FREE: Duration = Duration::from_secs(24 * 60 * 60);

/// Most keys that are removed in one transaction, and of each kind in one sweep.
const BATCH: usize = 100;
const MAX_REMOVED: usize = 5_000;

/// Processes of nodes that have died.
type Dead = BTreeSet<NodeRun>;

/// Sweeps until it is dropped.
pub(super) async fn sweep(shared: Arc<Shared>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen_dead = Dead::new();
    loop {
        ticks.tick().await;
        let dead: Dead = {
            let table = shared.table.read();
            let parts = (0..Table::PARTS).flat_map(|part| table.dead_runs(part));
            parts.cloned().collect()
        };
        if shared.is_ready() && shared.is_first() {
            let confirmed = dead.intersection(&seen_dead).cloned().collect();
            remove(&shared, &confirmed).await;
        }
        seen_dead = dead;
    }
}

async fn remove(shared: &Shared, dead: &Dead) {
    let records: Vec<String> = {
        let table = shared.table.read();
        let parts = (0..Table::PARTS).flat_map(|part| table.records_of(part, dead));
        let keys = parts.map(|(label, run)| shared.keys.held(run, label));
        keys.take(MAX_REMOVED).collect()
    };
    let mut free = Vec::new();
    for part in 0..Table::PARTS {
        free.extend(shared.table.write().long_free(part, FREE, now()));
    }
    free.truncate(MAX_REMOVED);
    let keys = records.into_iter().map(|key| TxnRequest {
        success: vec![RequestOp::delete(key)],
        ..TxnRequest::default()
    });
    let claims = free.iter().map(|(label, revision)| {
        let key = shared.keys.claim(label);
        TxnRequest {
            compare: vec![Compare::mod_revision(key.clone(), *revision)],
            success: vec![RequestOp::delete(key)],
            failure: Vec::new(),
        }
    });
    let removals: Vec<RequestOp> = keys.chain(claims).map(RequestOp::from).collect();
    for batch in removals.chunks(BATCH / 2) {
        let txn = TxnRequest {
            success: batch.to_vec(),
            ..TxnRequest::default()
        };
        // The next sweep tries again.
        if let Err(error) = shared.client.txn(txn).await {
            tracing::debug!(%error, "cannot remove records that nobody needs");
            return;
        }
    }
}

impl Shared {
    /// Whether this is the first node by name.
    fn is_first(&self) -> bool {
        let table = self.table.read();
        table.nodes().all(|(name, _, _)| *name >= self.node.name)
    }
}
