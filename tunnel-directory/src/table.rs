//! What this node knows of all runtimes and nodes, fed by a listing and a watch. A plain value: each change is a
//! function of the state, the record and the time.
//!
//! A record is applied only if its revision is greater than that of its key, so that events may come twice, late, or
//! after this node has applied its own write. A listing replaces what it has not got by merging: nothing disappears while
//! it is read.

mod claims;
mod entries;
mod epochs;
mod holders;
mod index;
mod runtimes;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
    time::{Duration, Instant},
};

use tunnel_etcd::KeyValue;
use tunnel_proto::handshake::InstanceId;

pub use self::holders::Holder;
pub(crate) use self::{
    claims::{ClaimStep, NextClaim},
    holders::TakenClaim,
    index::ClaimPosition,
};
use self::{
    entries::{ClaimEntry, HeldEntry, RuntimeRecords},
    index::{Index, Indexed},
    runtimes::{PARTS, Runtimes},
};
use crate::{
    claim::Epoch,
    names::RuntimeLabel,
    node::{Incarnation, NodeName, NodeRun},
    peer_reports::PeerReports,
    record::{ClaimRecord, ClusterRecord, HeldRecord, HeldState, Key, Keys, NodeRecord, decode},
};

/// All records.
#[derive(Debug)]
pub(crate) struct Table {
    keys: Keys,
    generation: u16,
    /// The value of the cluster's record, and its revision; empty before it is known.
    cluster: Vec<u8>,
    cluster_revision: i64,
    nodes: BTreeMap<NodeName, NodeEntry>,
    runtimes: Runtimes,
    index: Index,
    /// For each part of the runtimes, when this node first saw of one that no node holds it.
    free_since: BTreeMap<usize, BTreeMap<RuntimeLabel, Instant>>,
    /// The process of the last record that was applied, which many have in common.
    last_run: Option<Arc<NodeRun>>,
    /// What other nodes have reported beside the records.
    pub(crate) peer_reports: PeerReports,
    /// This process, and the runtimes that it has released while its record of them is there.
    own: NodeRun,
    released: BTreeSet<RuntimeLabel>,
    /// The number of the listing that is being read, or was last.
    listing: u32,
    /// The first listing since etcd was restored: revisions of records that only earlier ones have had say nothing any more.
    first_listing: u32,
}

#[derive(Debug)]
struct NodeEntry {
    revision: i64,
    listing: u32,
    incarnation: Incarnation,
    record: NodeRecord,
}

/// What a change was about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// The claim of a runtime, or who holds it.
    Runtime(RuntimeLabel),
    /// The record of a node.
    Node(NodeName),
    /// A question whether a node lives.
    Challenge(NodeName),
    /// The record of the cluster is not the one that was listed: etcd was restored or emptied, and all has to be listed
    /// again.
    Cluster,
}

/// The revisions of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Revisions {
    /// The revision of the last change of the key.
    changed: i64,
    /// The revision of the change that made the key.
    created: i64,
}

/// How this node has got a record.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    /// By the watch, as its own write, or by another node: it has just been written.
    Write,
    /// By a read of etcd.
    Read {
        /// The revision of which all was read.
        revision: i64,
        /// The wall clock, by which a record has an age; that counts for the wait after takeovers only.
        wall_ms: u64,
    },
}

impl From<i64> for Revisions {
    /// Those of a key whose value is taken as it is, because a node that compares owners has written or passed it on.
    fn from(changed: i64) -> Self {
        Self {
            changed,
            created: changed,
        }
    }
}

impl From<&KeyValue> for Revisions {
    fn from(kv: &KeyValue) -> Self {
        Self {
            changed: kv.mod_revision,
            created: kv.create_revision,
        }
    }
}

impl Source {
    fn is_read(self) -> bool {
        matches!(self, Self::Read { .. })
    }

    /// Whether etcd was restored, to a snapshot but with greater revisions than ever, between a write that this node knows
    /// of and this record: it stood at a later revision, and was read in an older state.
    fn undoes(self, known: i64, changed: i64) -> bool {
        match self {
            Self::Write => false,
            Self::Read { revision, .. } => known > changed && known <= revision,
        }
    }

    /// How long ago a record was written.
    fn age(self, written_ms: u64) -> Duration {
        match self {
            Self::Write => Duration::ZERO,
            Self::Read { wall_ms, .. } => Duration::from_millis(wall_ms.saturating_sub(written_ms)),
        }
    }
}

impl Table {
    /// An empty table of the process `own`. The seed is random, and decides in what order it goes through the runtimes.
    pub(crate) fn new(keys: Keys, own: NodeRun, seed: u64) -> Self {
        Self {
            keys,
            own,
            released: BTreeSet::new(),
            generation: 0,
            cluster: Vec::new(),
            cluster_revision: 0,
            nodes: BTreeMap::new(),
            runtimes: Runtimes::new(seed),
            index: Index::default(),
            free_since: BTreeMap::new(),
            last_run: None,
            peer_reports: PeerReports::default(),
            listing: 0,
            first_listing: 0,
        }
    }

    /// Applies a write. Returns what it was about, if it changes anything.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        revisions: impl Into<Revisions>,
        source: Source,
        now: Instant,
    ) -> Option<Change> {
        let revisions = revisions.into();
        let revision = revisions.changed;
        match self.keys.parse(key)? {
            Key::Cluster => self.put_cluster(value, revision, source),
            Key::Node(name) => self.put_node(name, decode(value)?, revision, source),
            Key::Challenge(name) => (!source.is_read()).then_some(Change::Challenge(name)),
            Key::Claim(label) => self.put_claim(label, decode(value)?, revisions, source, now),
            Key::Held(run, label) => {
                let record: HeldRecord = decode(value)?;
                let held = HeldEntry {
                    run: self.interned(run),
                    revision,
                    listing: self.listing,
                    epoch: match record.epoch {
                        0 => revision,
                        epoch => epoch,
                    },
                    state: record.state,
                };
                self.put_held(label, held, source)
            }
        }
    }

    /// A change means that etcd was restored or emptied; the next listing applies it together with all other records.
    fn put_cluster(&mut self, value: &[u8], revision: i64, source: Source) -> Option<Change> {
        let record: ClusterRecord = decode(value)?;
        if self.cluster == value {
            return None;
        }
        if !source.is_read() || !self.cluster.is_empty() {
            return Some(Change::Cluster);
        }
        self.cluster = value.to_vec();
        self.cluster_revision = revision;
        self.generation = record.generation;
        None
    }

    fn put_node(
        &mut self,
        name: NodeName,
        record: NodeRecord,
        revision: i64,
        source: Source,
    ) -> Option<Change> {
        if let Some(known) = self.nodes.get_mut(&name)
            && known.revision >= revision
            && known.listing >= self.first_listing
            && !source.undoes(known.revision, revision)
        {
            known.listing = self.listing;
            return None;
        }
        let entry = NodeEntry {
            revision,
            listing: self.listing,
            incarnation: record.incarnation.parse().ok()?,
            record,
        };
        self.peer_reports.on_key(&name);
        self.nodes.insert(name.clone(), entry);
        Some(Change::Node(name))
    }

    fn put_claim(
        &mut self,
        label: RuntimeLabel,
        record: ClaimRecord,
        revisions: Revisions,
        source: Source,
        now: Instant,
    ) -> Option<Change> {
        let (listing, first_listing) = (self.listing, self.first_listing);
        let revision = revisions.changed;
        let is_changed = self.update(&label, |records| {
            let known = records.claim.as_mut().filter(|known| {
                known.listing >= first_listing && !source.undoes(known.revision(), revision)
            });
            let mut owner = None;
            if let Some(known) = known {
                if known.revision() >= revision {
                    known.listing = listing;
                    return false;
                }
                // The label was not free in between.
                owner = known
                    .owner
                    .filter(|_| revisions.created <= known.revision());
            }
            let age = source.age(record.at_ms);
            let claim = ClaimEntry::new(&label, record, owner, (revision, listing), age, now);
            records.claim = Some(claim);
            true
        });
        is_changed.then_some(Change::Runtime(label))
    }

    /// Applies a claim that another node has reported: the node that wrote it holds the runtime, since its record is written
    /// together with the claim.
    pub(crate) fn put_reported_claim(
        &mut self,
        label: RuntimeLabel,
        record: ClaimRecord,
        revision: i64,
        now: Instant,
    ) -> Option<Change> {
        let writer = record.node.parse::<NodeName>().ok();
        let change = self.put_claim(label.clone(), record, revision.into(), Source::Write, now)?;
        let writer = writer.and_then(|node| Some((self.node(&node)?.0, node)));
        if let Some((incarnation, node)) = writer {
            let held = HeldEntry {
                run: self.interned(NodeRun { node, incarnation }),
                revision,
                listing: self.listing,
                epoch: revision,
                state: HeldState::Open,
            };
            self.put_held(label, held, Source::Write);
        }
        Some(change)
    }

    fn put_held(&mut self, label: RuntimeLabel, held: HeldEntry, source: Source) -> Option<Change> {
        let first_listing = self.first_listing;
        let is_changed = self.update(&label, |records| {
            match records.held.iter_mut().find(|known| known.run == held.run) {
                Some(known)
                    if known.revision >= held.revision
                        && known.listing >= first_listing
                        && !source.undoes(known.revision, held.revision) =>
                {
                    known.listing = held.listing;
                    return false;
                }
                Some(known) => *known = held,
                None => records.held.push(held),
            }
            true
        });
        is_changed.then_some(Change::Runtime(label))
    }

    /// Changes the records of a runtime, and what is known of them beside.
    fn update<R>(
        &mut self,
        label: &RuntimeLabel,
        update: impl FnOnce(&mut RuntimeRecords) -> R,
    ) -> R {
        let records = self.runtimes.get_or_insert(label);
        let before = Indexed::of(records);
        let result = update(records);
        self.index.on_change(label, &before, records);
        if records.is_empty() {
            self.runtimes.forget_empty(label.as_str());
        }
        result
    }

    /// The process of a node, of which the table has one copy for records that follow each other.
    fn interned(&mut self, run: NodeRun) -> Arc<NodeRun> {
        match &self.last_run {
            Some(last) if **last == run => last.clone(),
            _ => self.last_run.insert(Arc::new(run)).clone(),
        }
    }

    /// Applies a removal. Returns what it was about, if it changes anything.
    pub(crate) fn delete(&mut self, key: &[u8], revision: i64) -> Option<Change> {
        match self.keys.parse(key)? {
            Key::Node(name) => {
                let known = self.nodes.get(&name)?;
                if known.revision >= revision {
                    return None;
                }
                if let Some(gone) = self.nodes.remove(&name) {
                    let reports = &mut self.peer_reports;
                    reports.on_key_gone(&name, gone.incarnation, gone.record);
                }
                Some(Change::Node(name))
            }
            Key::Claim(label) => {
                self.runtimes.get(label.as_str())?;
                let gone = self.update(&label, |records| {
                    records.claim.take_if(|claim| claim.revision() < revision)
                });
                gone.map(|_| Change::Runtime(label))
            }
            Key::Held(run, label) => {
                self.runtimes.get(label.as_str())?;
                let is_changed = self.update(&label, |records| {
                    let count = records.held.len();
                    let stays =
                        |held: &mut HeldEntry| *held.run != run || held.revision >= revision;
                    records.held.retain(stays);
                    records.held.len() < count
                });
                is_changed.then_some(Change::Runtime(label))
            }
            Key::Cluster => Some(Change::Cluster),
            Key::Challenge(_) => None,
        }
    }

    /// Begins a listing.
    pub(crate) fn begin_listing(&mut self) {
        self.listing = self.listing.wrapping_add(1);
    }

    /// The listing that has begun is the first one since etcd was restored from a snapshot, or was emptied.
    pub(crate) fn on_restored(&mut self) {
        self.first_listing = self.listing;
        self.cluster.clear();
    }

    /// The number of parts into which the runtimes are divided, so that all are gone through in short steps.
    pub(crate) const PARTS: usize = PARTS;

    /// Whether what was seen last in a listing, and has changed last at a revision, stays when the listing of `revision` ends.
    fn stays(&self, revision: i64) -> impl Fn(u32, i64) -> bool + use<> {
        let (listing, first_listing) = (self.listing, self.first_listing);
        move |seen_in, changed| seen_in == listing || changed > revision && seen_in >= first_listing
    }

    /// Ends a listing of this revision as far as nodes go: what it had not got and is not younger is gone.
    pub(crate) fn end_listing_of_nodes(&mut self, revision: i64) -> Vec<Change> {
        let stays = self.stays(revision);
        let mut changes = Vec::new();
        let reports = &mut self.peer_reports;
        self.nodes.retain(|name, node| {
            let stays = stays(node.listing, node.revision);
            if !stays {
                reports.on_key_gone(name, node.incarnation, node.record.clone());
                changes.push(Change::Node(name.clone()));
            }
            stays
        });
        changes
    }

    /// Ends a listing of this revision as far as the runtimes of a part go. Returns those of which something is gone.
    pub(crate) fn end_listing_of_part(&mut self, part: usize, revision: i64) -> Vec<RuntimeLabel> {
        let stays = self.stays(revision);
        let mut changed = Vec::new();
        let index = &mut self.index;
        self.runtimes.update_part(part, |label, records| {
            let has_gone = |records: &RuntimeRecords| {
                let mut held = records.held.iter();
                let claim = records.claim.as_ref();
                claim.is_some_and(|claim| !stays(claim.listing, claim.revision()))
                    || held.any(|held| !stays(held.listing, held.revision))
            };
            if !has_gone(records) {
                return;
            }
            let before = Indexed::of(records);
            records
                .held
                .retain(|held| stays(held.listing, held.revision));
            let claim = &mut records.claim;
            claim.take_if(|claim| !stays(claim.listing, claim.revision()));
            index.on_change(label, &before, records);
            changed.push(label.clone());
        });
        changed
    }

    /// The processes that have records in a part and are no more.
    pub(crate) fn dead_runs(&self, part: usize) -> impl Iterator<Item = &NodeRun> {
        let records = self.runtimes.part(part);
        let held = records.flat_map(|(_, records)| &records.held);
        let dead = held.filter(|held| self.node_of(&held.run).is_none());
        dead.map(|held| &*held.run)
    }

    /// The records in a part of these processes.
    pub(crate) fn records_of<'a>(
        &'a self,
        part: usize,
        runs: &'a BTreeSet<NodeRun>,
    ) -> impl Iterator<Item = (&'a RuntimeLabel, &'a NodeRun)> {
        let records = self.runtimes.part(part).flat_map(|(label, records)| {
            let held = records.held.iter();
            held.map(move |held| (label, &*held.run))
        });
        records.filter(|(_, run)| runs.contains(*run))
    }

    /// The claims in a part, with their revisions, of runtimes that have been free for so long.
    pub(crate) fn long_free(
        &mut self,
        part: usize,
        long: Duration,
        now: Instant,
    ) -> Vec<(RuntimeLabel, i64)> {
        let known = self.free_since.remove(&part).unwrap_or_default();
        let records = self.runtimes.part(part);
        let free =
            records.filter(|(label, records)| self.live(label.as_str(), records).next().is_none());
        let (mut free_since, mut long_free) = (BTreeMap::new(), Vec::new());
        for (label, records) in free {
            let since = known.get(label).copied().unwrap_or(now);
            free_since.insert(label.clone(), since);
            if let Some(claim) = &records.claim
                && now.saturating_duration_since(since) >= long
            {
                long_free.push((label.clone(), claim.revision()));
            }
        }
        if !free_since.is_empty() {
            self.free_since.insert(part, free_since);
        }
        long_free
    }

    /// The number of nodes, of claims and of held records.
    pub(crate) fn counts(&self) -> [usize; 3] {
        [self.nodes.len(), self.index.claims, self.index.held]
    }

    /// The number of runtimes with a record.
    pub(crate) fn len(&self) -> usize {
        self.runtimes.len()
    }

    /// The value of the cluster's record; empty before it is known.
    pub(crate) fn cluster(&self) -> &[u8] {
        &self.cluster
    }

    /// The upper bits of epochs.
    pub(crate) fn generation(&self) -> u16 {
        self.generation
    }

    /// The record that a process has of a runtime: the epoch and the state.
    pub(crate) fn held_by(
        &self,
        label: &RuntimeLabel,
        run: &NodeRun,
    ) -> Option<(Epoch, HeldState)> {
        let mut held = self.runtimes.get(label.as_str())?.held.iter();
        let own = held.find(|held| *held.run == *run)?;
        Some((self.epoch_at(label, own.epoch), own.state))
    }

    /// The revision of the record that a process has of a runtime; 0 if there is none.
    pub(crate) fn held_revision(&self, label: &RuntimeLabel, run: &NodeRun) -> i64 {
        let records = self.runtimes.get(label.as_str());
        let mut held = records.into_iter().flat_map(|records| &records.held);
        let own = held.find(|held| *held.run == *run);
        own.map_or(0, |held| held.revision)
    }

    /// Notes whether this process has released a runtime while its record of it is there, or holds it for an instance without
    /// a record: the record is void until it is removed or written.
    pub(crate) fn set_released(&mut self, label: &RuntimeLabel, is_released: bool) {
        match is_released {
            true => self.released.insert(label.clone()),
            false => self.released.remove(label),
        };
    }

    /// The runtimes after this one that this process has released and has a record of.
    pub(crate) fn released_after(
        &self,
        label: Option<&RuntimeLabel>,
    ) -> impl Iterator<Item = &RuntimeLabel> {
        let from = label.map_or(Bound::Unbounded, Bound::Excluded);
        self.released
            .range::<RuntimeLabel, _>((from, Bound::Unbounded))
    }

    /// Whether a process does not hold a runtime for this instance, whatever its record says.
    fn has_released(&self, label: &str, run: &NodeRun, instance: Option<&InstanceId>) -> bool {
        match *run == self.own {
            true => self.released.contains(label),
            false => self.peer_reports.has_released(label, run, instance),
        }
    }

    /// The node of this name.
    pub(crate) fn node(&self, name: &NodeName) -> Option<(Incarnation, &NodeRecord)> {
        let node = self.nodes.get(name)?;
        Some((node.incarnation, &node.record))
    }

    /// All nodes, in the order of their names.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&NodeName, Incarnation, &NodeRecord)> {
        let nodes = self.nodes.iter();
        nodes.map(|(name, node)| (name, node.incarnation, &node.record))
    }
}
