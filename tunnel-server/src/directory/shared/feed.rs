//! Keeps the table current: a listing by pages, then a watch that is resumed where it was lost.
//!
//! The table is never emptied: a listing after a compaction is merged into it, so that lookups go on meanwhile.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tunnel_directory::{
    record::{ClusterRecord, FORMAT, decode, encode},
    table::{Change, Source},
};
use tunnel_etcd::{
    Compare, EtcdError, Event, KeyValue, RangeRequest, RequestOp, TxnRequest, Watch, WatchReport,
};

use super::{super::now, DirectoryError, Shared, read_at, writer::nonce};

/// Keys in a page of the listing: some 4 MB.
const PAGE: i64 = 20_000;

/// The kinds of keys, in the order in which they are listed.
const KINDS: [&str; 4] = ["cluster", "node/", "claim/", "held/"];

/// Time between two signs of life that are asked of the member that is watched.
const SIGN_EACH: Duration = Duration::from_millis(400);

/// Signs in a row without an answer after which another member is watched: in about the time of an election, after which no
/// takeover is to wait any longer. Counted, so that a node that was paused asks again.
const SIGNS: u32 = 3;

/// Those at the beginning of a watch: more, since the way to etcd may be slow.
const FIRST_SIGNS: u32 = 12;

/// Time until the next member is tried after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// Time between log lines that say that etcd cannot be reached.
const LINE_EACH: Duration = Duration::from_secs(10);

/// Time between two comparisons of the table's size with etcd's: events have been lost by old versions.
const AUDIT_EACH: Duration = Duration::from_secs(600);

/// Why a watch is over.
enum Ended {
    /// It goes on at another member.
    Lost(EtcdError),
    /// What it wants is no more, or the table is not what etcd has: list again.
    Stale,
}

/// Feeds the table until it is dropped.
pub(super) async fn feed(shared: Arc<Shared>) {
    let mut said: Option<Instant> = None;
    loop {
        match list(&shared).await {
            Ok(revision) => {
                said = None;
                shared.listings.send_modify(|listings| *listings += 1);
                watch(&shared, revision).await;
            }
            Err(error) => {
                shared.fail_if_denied(&error);
                if said.is_none_or(|said| said.elapsed() >= LINE_EACH) {
                    said = Some(Instant::now());
                    tracing::warn!(%error, "cannot read the directory from etcd, trying again");
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Reads all keys at one revision, which is returned.
async fn list(shared: &Shared) -> Result<i64, EtcdError> {
    let (now, cluster) = ensure_cluster(shared).await?;
    if let Some(error) = unusable(shared, &cluster) {
        shared.fail(error);
        return std::future::pending().await;
    }
    let is_restored = has_gone_back(shared, now, &cluster);
    if is_restored {
        tracing::warn!("etcd has been restored or emptied: epochs have a greater generation now");
        raise_generation(shared).await?;
    }
    begin(shared, is_restored);
    let mut revision = 0;
    // Apart, since etcd counts all keys of a range for each page.
    for kind in KINDS {
        list_kind(shared, kind, &mut revision).await?;
    }
    end(shared, revision);
    Ok(revision)
}

/// Whether etcd, which is at this revision, was at a later one, or is another cluster by this record.
pub(super) fn has_gone_back(shared: &Shared, revision: i64, cluster: &[u8]) -> bool {
    revision < shared.position.load(Ordering::Relaxed) || !shared.is_cluster(Some(cluster))
}

/// Why this version cannot use a directory with this record of the cluster.
pub(super) fn unusable(shared: &Shared, cluster: &[u8]) -> Option<DirectoryError> {
    let known = FORMAT;
    match decode(cluster) {
        None => Some(DirectoryError::Foreign(shared.keys.cluster())),
        Some(ClusterRecord { format: found, .. }) if found > known => {
            Some(DirectoryError::Format { found, known })
        }
        Some(_) => None,
    }
}

/// Reads the keys of one kind, at this revision; at the newest one, which is then the revision, if that is 0.
async fn list_kind(shared: &Shared, kind: &str, revision: &mut i64) -> Result<(), EtcdError> {
    let (mut key, range_end) = shared.keys.of_kind(kind);
    loop {
        let request = RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            limit: PAGE,
            revision: *revision,
            // The first page decides the revision, and so has to be the newest.
            serializable: *revision > 0,
            count_only: false,
        };
        let page = shared.client.range(request).await?;
        if *revision == 0 {
            *revision = page.header.map_or(0, |header| header.revision);
        }
        let last = page.kvs.last().map(|kv| kv.key.clone());
        let changes = apply_page(shared, &page.kvs, *revision);
        shared.on_changes(changes);
        match last {
            Some(last) if page.more => key = Bytes::from([&last[..], b"\0"].concat()),
            _ => return Ok(()),
        }
    }
}

/// Begins a listing.
pub(super) fn begin(shared: &Shared, is_restored: bool) {
    let mut table = shared.table.write();
    table.begin_listing();
    if is_restored {
        table.on_restored();
        // What it was says nothing any more, also if this listing fails.
        shared.position.store(0, Ordering::Relaxed);
        shared.past_position.store(0, Ordering::Relaxed);
    }
}

/// Ends a listing of this revision.
pub(super) fn end(shared: &Shared, revision: i64) {
    let gone = shared.table.write().end_listing(revision);
    shared.on_changes(gone);
    shared.settle_all();
    shared.set_position(revision);
}

/// Applies records that were read at this revision.
pub(super) fn apply_page(shared: &Shared, page: &[KeyValue], revision: i64) -> Vec<Change> {
    let (source, now) = (read_at(revision), now());
    let mut table = shared.table.write();
    let changes = page
        .iter()
        .filter_map(|kv| table.put(&kv.key, &kv.value, kv, source, now));
    changes.collect()
}

/// Raises the generation above the one that this node knows, so that new claims have a greater epoch than those that it has
/// seen although their revisions are smaller. Of several nodes that do so, one does.
async fn raise_generation(shared: &Shared) -> Result<(), EtcdError> {
    let generation = shared.table.read().generation().saturating_add(1);
    let key = shared.keys.cluster();
    loop {
        let read = TxnRequest {
            success: vec![RequestOp::get(key.clone())],
            ..TxnRequest::default()
        };
        let answer = shared.client.txn(read).await?;
        let stands = answer.first_read();
        let record: Option<ClusterRecord> = stands.and_then(|kv| decode(&kv.value));
        if record
            .as_ref()
            .is_some_and(|record| record.generation >= generation)
        {
            return Ok(());
        }
        let raised = ClusterRecord {
            id: nonce(),
            format: record.map_or(FORMAT, |record| record.format),
            generation,
        };
        let seen = stands.map_or(0, |kv| kv.mod_revision);
        let raise = TxnRequest {
            compare: vec![Compare::mod_revision(key.clone(), seen)],
            success: vec![RequestOp::put(key.clone(), encode(&raised), 0)],
            failure: Vec::new(),
        };
        if shared.client.txn(raise).await?.succeeded {
            return Ok(());
        }
    }
}

/// Whether etcd's revision is before this one, or it is another cluster, by a read that no member answers from an old state.
async fn is_restored(shared: &Shared, position: i64) -> Result<bool, EtcdError> {
    let read = TxnRequest {
        success: vec![RequestOp::get(shared.keys.cluster())],
        ..TxnRequest::default()
    };
    let answer = shared.client.txn(read).await?;
    let cluster = answer.first_read().map(|kv| &kv.value[..]);
    Ok(answer.revision() < position || !shared.is_cluster(cluster))
}

/// Makes the record of the cluster if this is its first node. Returns the revision of etcd, and the record's value.
async fn ensure_cluster(shared: &Shared) -> Result<(i64, Bytes), EtcdError> {
    let key = shared.keys.cluster();
    let first = encode(&ClusterRecord {
        id: nonce(),
        format: FORMAT,
        generation: 0,
    });
    let txn = TxnRequest {
        compare: vec![Compare::mod_revision(key.clone(), 0)],
        success: vec![RequestOp::put(key.clone(), first.clone(), 0)],
        failure: vec![RequestOp::get(key)],
    };
    let answer = shared.client.txn(txn).await?;
    let found = answer.first_read().map(|kv| kv.value.clone());
    Ok((answer.revision(), found.unwrap_or(first)))
}

/// Follows the changes after this revision, member after member, until they have to be listed again.
async fn watch(shared: &Shared, mut position: i64) {
    // Not the member that the listing was read from: both share one connection there.
    let mut member = shared.client.preferred() + 1;
    let mut audit = interval(AUDIT_EACH);
    audit.set_missed_tick_behavior(MissedTickBehavior::Delay);
    audit.tick().await;
    loop {
        let begun = begin_watch(shared, member, position).await;
        let ended = match begun {
            Ok(watch) => {
                tokio::select! {
                    ended = follow(shared, watch, &mut position) => ended,
                    _ = audit.tick() => match is_complete(shared, position).await {
                        true => continue,
                        false => Ended::Stale,
                    },
                }
            }
            Err(ended) => ended,
        };
        match ended {
            Ended::Stale | Ended::Lost(EtcdError::Compacted { .. }) => {
                shared.metrics.on_relisted();
                tracing::info!("the directory is listed again");
                return;
            }
            Ended::Lost(error) => {
                tracing::debug!(%error, "the watch of the directory was lost");
                member += 1;
                sleep(PAUSE).await;
            }
        }
    }
}

/// Watches at a member, unless etcd was restored while it was not watched.
async fn begin_watch(shared: &Shared, member: usize, position: i64) -> Result<Watch, Ended> {
    if is_restored(shared, position).await.map_err(Ended::Lost)? {
        return Err(Ended::Stale);
    }
    let all = shared.keys.all();
    let begun = shared.client.watch(member, all, position + 1).await;
    begun.map_err(Ended::Lost)
}

/// Applies what the watch reports. `position` is the revision up to which everything was applied.
async fn follow(shared: &Shared, mut watch: Watch, position: &mut i64) -> Ended {
    let mut sign = interval(SIGN_EACH);
    sign.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut signs_left = FIRST_SIGNS;
    loop {
        tokio::select! {
            report = watch.next() => {
                signs_left = SIGNS;
                match report {
                    Ok(WatchReport::Events { events, up_to }) => {
                        let changes = apply_events(shared, &events);
                        shared.on_changes(changes);
                        *position = up_to.unwrap_or(*position).max(*position);
                        shared.set_position(*position);
                    }
                    Ok(WatchReport::Progress { up_to }) => {
                        *position = up_to.max(*position);
                        shared.set_position(*position);
                    }
                    Ok(WatchReport::Alive { revision }) => {
                        shared.reached.send_replace(revision);
                        // The member may only be behind.
                        if revision < *position
                            && let Ok(true) = is_restored(shared, *position).await
                        {
                            return Ended::Stale;
                        }
                    }
                    Err(error) => return Ended::Lost(error),
                }
            }
            () = shared.is_restored.notified() => return Ended::Stale,
            () = shared.wants_progress.notified() => watch.request_progress(),
            _ = sign.tick() => {
                if signs_left == 0 {
                    let member = "the member that is watched".to_owned();
                    return Ended::Lost(EtcdError::TimedOut { member });
                }
                signs_left -= 1;
                watch.request_progress();
            }
        }
    }
}

pub(super) fn apply_events(shared: &Shared, events: &[Event]) -> Vec<Change> {
    let mut table = shared.table.write();
    let now = now();
    let changes = events.iter().filter_map(|event| {
        let kv = event.kv.as_ref()?;
        match event.is_delete() {
            true => table.delete(&kv.key, kv.mod_revision),
            false => table.put(&kv.key, &kv.value, kv, Source::Write, now),
        }
    });
    changes.collect()
}

/// Whether the table has as many records as etcd had at this revision. True if that cannot be found out.
async fn is_complete(shared: &Shared, position: i64) -> bool {
    let own = shared.table.read().counts();
    let kinds = ["node/", "claim/", "held/"];
    for (kind, own) in kinds.iter().zip(own) {
        let (key, range_end) = shared.keys.of_kind(kind);
        let request = RangeRequest {
            key,
            range_end,
            revision: position,
            serializable: true,
            count_only: true,
            limit: 0,
        };
        let Ok(answer) = shared.client.range(request).await else {
            return true;
        };
        if usize::try_from(answer.count) != Ok(own) {
            tracing::warn!(
                kind,
                own,
                etcd = answer.count,
                "the directory has other records than etcd"
            );
            return false;
        }
    }
    true
}

impl Shared {
    /// Whether this is the record of the cluster that the table has, if it has one.
    fn is_cluster(&self, found: Option<&[u8]>) -> bool {
        let table = self.table.read();
        table.cluster().is_empty() || found == Some(table.cluster())
    }

    /// Shows the revision up to which the table is complete.
    fn set_position(&self, revision: i64) {
        self.position.store(revision, Ordering::Relaxed);
        self.reached.send_replace(revision);
        let revision = u64::try_from(revision).unwrap_or(0);
        self.metrics.set_revision(revision);
    }
}
