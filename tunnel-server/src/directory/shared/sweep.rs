//! Removes what nobody needs any more: records of nodes that have died, and claims that have long been free.
//!
//! One node does it for all: the first by name of those that live. A record that is removed although its node lives, as
//! after an hour without etcd, is written again by that node.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use tunnel_etcd::{Compare, RequestOp, TxnRequest};

use super::{
    super::node::{Incarnation, NodeName},
    Shared,
};

/// Time between two looks. What is dead at two of them is removed.
const LOOK_EACH: Duration = Duration::from_secs(60);

/// How long a claim stays that nobody holds: its instance gets the runtime by it again, and hosts of the runtime are
/// known meanwhile.
const FREE: Duration = Duration::from_secs(24 * 60 * 60);

/// Most keys that are removed in one transaction, and in one look.
const BATCH: usize = 100;
const LOOK: usize = 5_000;

/// Runs of nodes that have died.
type Dead = HashSet<(NodeName, Incarnation)>;

/// Sweeps until it is dropped.
pub(super) async fn sweep(shared: Arc<Shared>) {
    let mut look = interval(LOOK_EACH);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen_dead = Dead::new();
    loop {
        look.tick().await;
        let dead = shared.table.read().dead_nodes();
        if shared.is_ready() && shared.is_first() {
            let confirmed = dead.intersection(&seen_dead).cloned().collect();
            remove(&shared, &confirmed).await;
        }
        seen_dead = dead;
    }
}

async fn remove(shared: &Shared, dead: &Dead) {
    let records = shared.table.read().records_of(dead, LOOK);
    let free = shared.table.write().long_free(FREE, LOOK);
    let keys = records
        .iter()
        .map(|(label, (node, incarnation))| TxnRequest {
            success: vec![RequestOp::delete(shared.keys.held(
                node,
                *incarnation,
                label,
            ))],
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
        // The next look tries again.
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
