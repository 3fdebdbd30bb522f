//! Keeps the table current: a listing by pages, then a watch that is resumed where it was lost.
//!
//! ```text
//!   pausing ─▶ the cluster's record ─▶ (etcd was restored: raising the generation) ─▶ listing ─▶ ending the listing
//!      ▲ failed                                                                                          │
//!      └──────── etcd was restored, or has other records ◀── watching (`feed/watching.rs`) ◀──────────────────┘
//! ```
//!
//! The table is never emptied: a listing after a compaction is merged into it, so that lookups go on meanwhile.

mod watching;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tunnel_etcd::{Compare, EtcdError, Event, KeyValue, RangeRequest, RequestOp, TxnRequest};

use self::watching::Watching;
use super::{
    Call, CallId, Caller, EtcdAnswer, LogLine, Now, Output, SharedDirectory, presence::writes,
};
use crate::{
    error::DirectoryError,
    record::{ClusterRecord, FORMAT, decode, encode},
    table::{Change, Source, Table},
};

/// Keys in a page of the listing: some 4 MB.
const PAGE: i64 = 20_000;

/// Records that are applied in one step.
const STEP: usize = 50;

/// Parts of the table in which the listing is ended in one step.
const PARTS_AT_ONCE: usize = 4;

/// The kinds of keys, in the order in which they are listed.
const KINDS: [&str; 4] = ["cluster", "node/", "claim/", "held/"];

/// Time until etcd is asked again after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// Time between log lines that say that etcd cannot be reached.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Feed {
    stage: Stage,
    /// How often all records were read.
    listings: u64,
    /// When the log has said last that the directory cannot be read.
    logged: Option<Instant>,
    /// The newest revision that the watched member has shown.
    reached: i64,
}

#[derive(Debug)]
enum Stage {
    /// A listing begins then.
    Pausing(Instant),
    /// Makes the record of the cluster if this is its first node.
    Ensuring(CallId, Bytes),
    /// Raises the generation to this one: reads the cluster's record, and writes it.
    ReadingGeneration(CallId, u16),
    RaisingGeneration(CallId, u16),
    /// Reads the keys of one kind.
    Reading(CallId, Listing),
    /// Applies a page.
    Applying(Listing, VecDeque<KeyValue>, Instant),
    /// Ends the listing of this revision in the parts of the table from this one on.
    Ending(i64, usize, Instant),
    Watching(Box<Watching>),
    /// The node does not take part any more.
    Ended,
}

/// How far a listing has got.
#[derive(Debug)]
struct Listing {
    /// The revision of which all is read; 0 before the first page.
    revision: i64,
    /// The kind of keys that is read.
    kind: usize,
    /// The first key of the next page, and the end of the keys; `None` if there is no further page.
    next: Option<(Bytes, Bytes)>,
}

impl Feed {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            stage: Stage::Pausing(now),
            listings: 0,
            logged: None,
            reached: 0,
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Pausing(at) | Stage::Applying(_, _, at) | Stage::Ending(_, _, at) => Some(*at),
            Stage::Watching(watching) => Some(watching.deadline()),
            _ => None,
        }
    }

    /// Whether all records have been read.
    pub(super) fn is_listed(&self) -> bool {
        self.listings > 0
    }
}

impl SharedDirectory {
    /// The newest revision that the watched member has shown.
    pub(super) fn reached(&self) -> i64 {
        self.feed.reached
    }

    /// Reads and watches nothing any more.
    pub(super) fn end_feed(&mut self) {
        self.end_watch();
        self.feed.stage = Stage::Ended;
    }

    /// An answer or an event has shown that etcd was restored: all has to be listed again.
    pub(super) fn on_restored(&mut self) {
        // What happens during a listing is found out after it.
        if let Stage::Watching(_) = &self.feed.stage {
            self.list_again();
        }
    }

    /// Lists all again, since the table is not what etcd has.
    pub(super) fn list_again(&mut self) {
        self.end_watch();
        self.output(Output::Relisted);
        self.log(LogLine::ListedAgain);
        self.begin_feed();
    }

    fn begin_feed(&mut self) {
        let record = encode(&ClusterRecord {
            id: self.nonce(),
            format: FORMAT,
            generation: 0,
        });
        let key = self.keys.cluster();
        let txn = TxnRequest {
            compare: vec![Compare::mod_revision(key.clone(), 0)],
            success: vec![RequestOp::put(key.clone(), record.clone(), 0)],
            failure: vec![RequestOp::get(key)],
        };
        let id = self.call(Caller::Feed, Call::Txn(txn));
        self.feed.stage = Stage::Ensuring(id, record);
    }

    pub(super) fn feed_on_time(&mut self, now: Now) {
        if self.feed.deadline().is_none_or(|at| now.instant < at) {
            return;
        }
        match std::mem::replace(&mut self.feed.stage, Stage::Ended) {
            Stage::Pausing(_) => self.begin_feed(),
            Stage::Applying(listing, page, _) => self.apply_page(listing, page, now),
            Stage::Ending(revision, part, _) => self.end_listing(revision, part, now),
            Stage::Watching(watching) => {
                self.feed.stage = Stage::Watching(watching);
                self.watching_on_time(now);
            }
            stage => self.feed.stage = stage,
        }
    }

    pub(super) fn on_feed_answer(
        &mut self,
        id: CallId,
        answer: Result<EtcdAnswer, EtcdError>,
        now: Now,
    ) {
        let stage = std::mem::replace(&mut self.feed.stage, Stage::Ended);
        let (stage, answer) = match (stage, answer) {
            (Stage::Watching(watching), answer) => {
                self.feed.stage = Stage::Watching(watching);
                return self.on_watching_answer(id, answer, now);
            }
            (stage, Ok(answer)) => (stage, answer),
            (stage, Err(error)) => match stage.awaits(id) {
                true => return self.on_listing_failed(error, now),
                false => {
                    self.feed.stage = stage;
                    return;
                }
            },
        };
        match (stage, answer) {
            (Stage::Ensuring(sent, record), answer) if sent == id => {
                let found = answer.first_read().map(|kv| kv.value.clone());
                let cluster = found.unwrap_or(record);
                self.on_cluster(&cluster, answer.revision());
            }
            (Stage::ReadingGeneration(sent, generation), answer) if sent == id => {
                self.raise_generation(generation, &answer);
            }
            (Stage::RaisingGeneration(sent, generation), EtcdAnswer::Txn(answer)) if sent == id => {
                match answer.succeeded {
                    true => self.begin_listing(true),
                    false => self.read_generation(generation),
                }
            }
            (Stage::Reading(sent, mut listing), EtcdAnswer::Range(page)) if sent == id => {
                if listing.revision == 0 {
                    listing.revision = page.header.map_or(0, |header| header.revision);
                }
                let next = page.kvs.last().filter(|_| page.more);
                let next = next.map(|last| Bytes::from([&last.key[..], b"\0"].concat()));
                listing.next = next.zip(listing.next.map(|(_, end)| end));
                self.apply_page(listing, page.kvs.into(), now);
            }
            (stage, _) => self.feed.stage = stage,
        }
    }

    fn on_listing_failed(&mut self, error: EtcdError, now: Now) {
        self.feed.stage = Stage::Pausing(now.instant + PAUSE);
        self.fail_if_denied(&error);
        let is_due =
            |logged: Instant| now.instant.saturating_duration_since(logged) >= LOG_INTERVAL;
        if self.feed.logged.is_none_or(is_due) {
            self.feed.logged = Some(now.instant);
            self.log(LogLine::ListingFailed(error));
        }
    }

    /// etcd, which is at this revision, has this record of the cluster.
    fn on_cluster(&mut self, cluster: &[u8], revision: i64) {
        if let Some(error) = self.unusable(cluster) {
            return self.fail(error);
        }
        match self.has_gone_back(revision, cluster) {
            true => {
                self.log(LogLine::EtcdRestored);
                let generation = self.table.generation().saturating_add(1);
                self.read_generation(generation);
            }
            false => self.begin_listing(false),
        }
    }

    /// Whether etcd, which is at this revision, was at a later one, or is another cluster by this record.
    pub(super) fn has_gone_back(&self, revision: i64, cluster: &[u8]) -> bool {
        revision < self.position || !self.is_cluster(Some(cluster))
    }

    /// Why this version cannot use a directory with this record of the cluster.
    pub(super) fn unusable(&self, cluster: &[u8]) -> Option<DirectoryError> {
        let known = FORMAT;
        match decode(cluster) {
            None => Some(DirectoryError::Foreign(self.keys.cluster())),
            Some(ClusterRecord { format: found, .. }) if found > known => {
                Some(DirectoryError::Format { found, known })
            }
            Some(_) => None,
        }
    }

    /// Whether this is the record of the cluster that the table has, if it has one.
    pub(super) fn is_cluster(&self, found: Option<&[u8]>) -> bool {
        self.table.cluster().is_empty() || found == Some(self.table.cluster())
    }

    fn read_generation(&mut self, generation: u16) {
        let read = writes(RequestOp::get(self.keys.cluster()));
        let id = self.call(Caller::Feed, Call::Txn(read));
        self.feed.stage = Stage::ReadingGeneration(id, generation);
    }

    /// Raises the generation above the one that this node knew, so that new claims have a greater epoch than those that it has
    /// seen although their revisions are smaller. Of several nodes that do so, one does.
    fn raise_generation(&mut self, generation: u16, found: &EtcdAnswer) {
        let found = found.first_read();
        let record: Option<ClusterRecord> = found.and_then(|kv| decode(&kv.value));
        let known = record.as_ref().map(|record| record.generation);
        if known.is_some_and(|known| known >= generation) {
            return self.begin_listing(true);
        }
        let raised = ClusterRecord {
            id: self.nonce(),
            format: record.map_or(FORMAT, |record| record.format),
            generation,
        };
        let seen = found.map_or(0, |kv| kv.mod_revision);
        let key = self.keys.cluster();
        let raise = TxnRequest {
            compare: vec![Compare::mod_revision(key.clone(), seen)],
            success: vec![RequestOp::put(key, encode(&raised), 0)],
            failure: Vec::new(),
        };
        let id = self.call(Caller::Feed, Call::Txn(raise));
        self.feed.stage = Stage::RaisingGeneration(id, generation);
    }

    pub(super) fn begin_listing(&mut self, is_restored: bool) {
        self.table.begin_listing();
        if is_restored {
            self.table.on_restored();
            // What it was says nothing any more, also if this listing fails.
            self.position = 0;
            self.reports.forget_positions();
            // Revisions of before are not reached any more. All that is held is settled after the listing.
            self.table.peer_reports.on_position(i64::MAX);
        }
        self.list_kind(0, 0);
    }

    /// Lists the keys of one kind. Apart, since etcd counts all keys of a range for each page.
    fn list_kind(&mut self, kind: usize, revision: i64) {
        let range = self.keys.of_kind(KINDS[kind]);
        self.read_page(Listing {
            revision,
            kind,
            next: Some(range),
        });
    }

    fn read_page(&mut self, listing: Listing) {
        let (key, range_end) = listing.next.clone().unwrap_or_default();
        let request = RangeRequest {
            key,
            range_end,
            limit: PAGE,
            revision: listing.revision,
            // The first page decides the revision, and so has to be the newest.
            serializable: listing.revision > 0,
            count_only: false,
        };
        let id = self.call(Caller::Feed, Call::Range(request));
        self.feed.stage = Stage::Reading(id, listing);
    }

    /// Applies the next records of a page, and goes on when it has no more.
    fn apply_page(&mut self, listing: Listing, mut page: VecDeque<KeyValue>, now: Now) {
        let source = Source::Read {
            revision: listing.revision,
            wall_ms: now.wall_ms,
        };
        let records = page.drain(..page.len().min(STEP));
        let table = &mut self.table;
        let changes =
            records.filter_map(|kv| table.put(&kv.key, &kv.value, &kv, source, now.instant));
        let changes: Vec<Change> = changes.collect();
        if !page.is_empty() {
            self.feed.stage = Stage::Applying(listing, page, now.instant);
        } else if listing.next.is_some() {
            self.read_page(listing);
        } else if listing.kind + 1 < KINDS.len() {
            self.list_kind(listing.kind + 1, listing.revision);
        } else {
            self.feed.stage = Stage::Ending(listing.revision, 0, now.instant);
        }
        self.on_changes(changes, now);
    }

    /// Ends a listing in the next parts of the table: what it had not got is gone.
    fn end_listing(&mut self, revision: i64, part: usize, now: Now) {
        if part == 0 {
            let changes = self.table.end_listing_of_nodes(revision);
            self.on_changes(changes, now);
        }
        let end = (part + PARTS_AT_ONCE).min(Table::PARTS);
        let parts = part..end;
        let gone = parts.flat_map(|part| self.table.end_listing_of_part(part, revision));
        let gone = gone.collect();
        self.settle_many(gone, now);
        if end < Table::PARTS {
            self.feed.stage = Stage::Ending(revision, end, now.instant);
            return;
        }
        self.feed.logged = None;
        self.feed.listings += 1;
        self.settle_all(now);
        self.set_position(revision, now);
        self.begin_watching(now);
        self.writer_on_listed(now);
        if self.feed.listings == 1 {
            self.output_if_ready();
        }
    }

    /// Applies what the watch has reported.
    pub(super) fn apply_events(&mut self, events: impl Iterator<Item = Event>, now: Now) {
        let table = &mut self.table;
        let changes = events.filter_map(|event| {
            let kv = event.kv.as_ref()?;
            match event.is_delete() {
                true => table.delete(&kv.key, kv.mod_revision),
                false => table.put(&kv.key, &kv.value, kv, Source::Write, now.instant),
            }
        });
        let changes: Vec<Change> = changes.collect();
        self.on_changes(changes, now);
    }

    /// Notes the revision up to which the table is complete.
    pub(super) fn set_position(&mut self, revision: i64, now: Now) {
        self.position = revision;
        self.feed.reached = revision;
        self.output(Output::Position(revision));
        self.pause_on_reached(now);
        let over = self.table.peer_reports.on_position(revision);
        if !over.is_empty() {
            self.settle_many(over, now);
        }
    }
}

impl Stage {
    fn awaits(&self, id: CallId) -> bool {
        match self {
            Self::Ensuring(sent, _)
            | Self::ReadingGeneration(sent, _)
            | Self::RaisingGeneration(sent, _)
            | Self::Reading(sent, _) => *sent == id,
            _ => false,
        }
    }
}
