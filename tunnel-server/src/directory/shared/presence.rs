//! The lease and the key of this node, by which the others know that it lives.
//!
//! The node's key alone is on the lease. When the lease is lost, one write puts the key back, and all records of the node
//! are valid again: nothing that a client feels hangs on it.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use tunnel_directory::{
    record::{NodeRecord, decode, encode},
    table::{Source, Table},
};
use tunnel_etcd::{EtcdError, RequestOp, TxnRequest};

use super::{super::now, DirectoryError, Shared, Unanswered};

/// Life of the lease without renewal. Long, since routing does not depend on it, and an election takes 1.5 s.
pub(super) const TTL: Duration = Duration::from_secs(20);

/// Time between renewals.
const RENEWAL: Duration = Duration::from_secs(4);

/// Renewals in a row without an answer after which etcd is away: one may fall into an election.
const AWAY_AFTER: u32 = 2;

/// Time until something is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// Time in which a living node answers the question whether it lives.
const ANSWER: Duration = Duration::from_secs(2);

/// Time between two writes of the number of runtimes, which changes by more than a twentieth then.
const SHOWN_EACH: Duration = Duration::from_secs(10);

/// Time in which a node that ends removes its records.
const DEPARTURE: Duration = Duration::from_secs(3);

/// Records that are removed in one transaction; etcd allows 128 operations.
const BATCH: usize = 100;

/// What a node finds where its own key should be.
enum Found {
    /// Its own key, or none.
    Free,
    /// The key of another incarnation.
    Other(NodeRecord, i64),
}

/// Keeps the node known until it is dropped.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut has_name = false;
    while !shared.has_departed.load(Ordering::Relaxed) {
        match live(&shared, &mut has_name).await {
            _ if shared.has_departed.load(Ordering::Relaxed) => return,
            // The lease has ended: the next one at once.
            Ok(()) | Err(EtcdError::LeaseEnded) => {
                tracing::warn!("the lease of this node has ended, taking another one");
            }
            Err(error) => {
                shared.fail_if_denied(&error);
                tracing::debug!(%error, "cannot keep the lease of this node");
                shared.on_unanswered(Unanswered::Renewals, &error);
                sleep(PAUSE).await;
            }
        }
    }
}

/// One lease: granted, shown by the node's key, and renewed until it has ended.
async fn live(shared: &Shared, has_name: &mut bool) -> Result<(), EtcdError> {
    let lease = shared.client.grant(TTL).await?.id;
    if !*has_name {
        if let Found::Other(record, revision) = find(shared).await?
            && is_alive(shared, &record, revision, lease).await?
        {
            let _ = shared.client.revoke(lease).await;
            shared.fail(DirectoryError::NameTaken(shared.node.name.clone()));
            return std::future::pending().await;
        }
        *has_name = true;
    }
    // Stored before the look, and read after the store there: one of both sees the other.
    shared.lease.store(lease, Ordering::SeqCst);
    if shared.has_departed.load(Ordering::SeqCst) {
        return shared.client.revoke(lease).await;
    }
    put(shared, lease).await?;
    shared.on_answered(Unanswered::Renewals);
    shared.is_present.send_replace(true);
    renew(shared, lease).await
}

/// Renews the lease, and writes the key again whenever that is needed.
async fn renew(shared: &Shared, lease: i64) -> Result<(), EtcdError> {
    let mut leaving = shared.is_leaving.subscribe();
    let mut renewed = Instant::now();
    let mut failed = 0;
    let mut shown = Shown::new(shared);
    loop {
        tokio::select! {
            () = sleep(RENEWAL) => {}
            () = shared.is_challenged.notified() => {
                if has_lost_name(shared, lease).await? {
                    shared.fail(DirectoryError::NameTaken(shared.node.name.clone()));
                    return std::future::pending().await;
                }
                put(shared, lease).await?;
                continue;
            }
            Ok(()) = leaving.changed() => {
                put(shared, lease).await?;
                continue;
            }
        }
        // The lease counts from when its renewal was sent.
        let sent = Instant::now();
        match shared.client.keep_alive(lease).await {
            Ok(_) => {
                (renewed, failed) = (sent, 0);
                shared.on_answered(Unanswered::Renewals);
                if shown.is_outdated(shared) {
                    put(shared, lease).await?;
                    shown = Shown::new(shared);
                }
            }
            Err(EtcdError::LeaseEnded) => return Err(EtcdError::LeaseEnded),
            // Whatever else it is, the lease may live.
            Err(error) => {
                tracing::debug!(%error, "a renewal was not answered");
                failed += 1;
                if failed >= AWAY_AFTER {
                    shared.on_unanswered(Unanswered::Renewals, &error);
                }
            }
        }
        let left = TTL.saturating_sub(renewed.elapsed());
        shared.metrics.set_lease_left(left);
    }
}

/// The number of runtimes that the node's key shows.
struct Shown {
    runtimes: usize,
    at: Instant,
}

impl Shown {
    fn new(shared: &Shared) -> Self {
        Self {
            runtimes: shared.len().0,
            at: Instant::now(),
        }
    }

    /// Whether it is worth a write that the number has changed.
    fn is_outdated(&self, shared: &Shared) -> bool {
        let changed = shared.len().0.abs_diff(self.runtimes);
        self.at.elapsed() >= SHOWN_EACH && changed > self.runtimes / 20
    }
}

/// Whether another living node has taken over the name, since this one did not answer in time: both cannot go on. A record of
/// an earlier incarnation, as a restored etcd has it, does not count.
async fn has_lost_name(shared: &Shared, lease: i64) -> Result<bool, EtcdError> {
    let known = shared.node_record(&shared.node.name);
    if known.is_none_or(|(incarnation, _)| incarnation == shared.run.incarnation) {
        return Ok(false);
    }
    match find(shared).await? {
        Found::Other(record, revision) => is_alive(shared, &record, revision, lease).await,
        Found::Free => Ok(false),
    }
}

/// Removes the records of this node in batches, and ends its lease last: no write that is under way brings its key back.
/// What is left when etcd does not answer, or when the time is over, is void once the key is gone.
pub(super) async fn depart(shared: &Shared) {
    let _ = timeout(DEPARTURE, remove_held(shared)).await;
    let held = shared.keys.held_by(&shared.run);
    let removed = TxnRequest {
        success: vec![RequestOp::delete_range(held)],
        ..TxnRequest::default()
    };
    shared.has_departed.store(true, Ordering::SeqCst);
    let lease = shared.lease.load(Ordering::SeqCst);
    if let Err(error) = shared.client.txn(removed).await {
        tracing::debug!(%error, "cannot remove the records of this node");
    }
    if let Err(error) = shared.client.revoke(lease).await {
        tracing::debug!(%error, "cannot end the lease of this node");
    }
}

/// Removes the records that this node is known to have, so many at once that no other write waits for long.
async fn remove_held(shared: &Shared) {
    let own = BTreeSet::from([shared.run.clone()]);
    let held: Vec<_> = {
        let table = shared.table.read();
        let parts = (0..Table::PARTS).flat_map(|part| table.records_of(part, &own));
        parts.map(|(label, _)| label.clone()).collect()
    };
    for batch in held.chunks(BATCH) {
        let removals = batch.iter();
        let removals =
            removals.map(|label| RequestOp::delete(shared.keys.held(&shared.run, label)));
        let removed = TxnRequest {
            success: removals.collect(),
            ..TxnRequest::default()
        };
        if let Err(error) = shared.client.txn(removed).await {
            tracing::debug!(%error, "cannot remove records of this node");
            return;
        }
    }
}

/// Writes the node's key.
async fn put(shared: &Shared, lease: i64) -> Result<(), EtcdError> {
    let sessions = u64::try_from(shared.len().0).unwrap_or(u64::MAX);
    let (key, value) = (
        shared.keys.node(&shared.node.name),
        encode(&shared.record(sessions)),
    );
    let txn = TxnRequest {
        success: vec![RequestOp::put(key.clone(), value.clone(), lease)],
        ..TxnRequest::default()
    };
    let revision = shared.client.txn(txn).await?.revision();
    shared
        .table
        .write()
        .put(key.as_bytes(), &value, revision, Source::Write, now());
    Ok(())
}

async fn find(shared: &Shared) -> Result<Found, EtcdError> {
    let txn = TxnRequest {
        success: vec![RequestOp::get(shared.keys.node(&shared.node.name))],
        ..TxnRequest::default()
    };
    let answer = shared.client.txn(txn).await?;
    let Some(read) = answer.first_read() else {
        return Ok(Found::Free);
    };
    let record: Option<NodeRecord> = decode(&read.value);
    Ok(match record {
        Some(record) if record.incarnation != shared.run.incarnation.to_string() => {
            Found::Other(record, read.mod_revision)
        }
        _ => Found::Free,
    })
}

/// Asks whether the node of this record lives: it then writes its key again.
async fn is_alive(
    shared: &Shared,
    record: &NodeRecord,
    revision: i64,
    lease: i64,
) -> Result<bool, EtcdError> {
    let question = shared.keys.challenge(&shared.node.name);
    let asked = TxnRequest {
        success: vec![RequestOp::put(
            question.clone(),
            shared.run.incarnation.to_string(),
            lease,
        )],
        ..TxnRequest::default()
    };
    shared.client.txn(asked).await?;
    let answered = async {
        loop {
            if let Ok(Found::Other(now, changed)) = find(shared).await
                && now.incarnation == record.incarnation
                && changed > revision
            {
                return;
            }
            sleep(PAUSE).await;
        }
    };
    let is_alive = timeout(ANSWER, answered).await.is_ok();
    let removed = TxnRequest {
        success: vec![RequestOp::delete(question)],
        ..TxnRequest::default()
    };
    // Its lease would remove it, too.
    let _ = shared.client.txn(removed).await;
    Ok(is_alive)
}
