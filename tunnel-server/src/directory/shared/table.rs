//! What this node knows of all runtimes and nodes, fed by a listing and a watch. A plain value: each change is a
//! function of the state, the record and the time.
//!
//! A record is applied only if its revision is greater than that of its key, so that events may come twice, late, or
//! after this node has applied its own write. A listing replaces what it has not got by merging: nothing disappears while
//! it is read.

mod claims;
mod entries;
mod holders;
mod runtimes;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tunnel_etcd::KeyValue;
use tunnel_proto::handshake::InstanceId;

use self::{
    entries::{ClaimEntry, HeldEntry, NodeRun},
    runtimes::Runtimes,
};
use super::super::{
    Epoch,
    node::{Incarnation, NodeName},
};
use super::peer_reports::PeerReports;
use super::record::{
    ClaimRecord, ClusterRecord, HeldRecord, HeldState, Key, Keys, NodeRecord, decode,
};
use crate::runtimes::RuntimeLabel;

/// How far the generation stands above the revision in an epoch. etcd would need 8,900 years at 1,000 revisions a second
/// to get there.
const GENERATION_SHIFT: u32 = 48;

/// All records.
#[derive(Debug)]
pub(super) struct Table {
    keys: Keys,
    generation: u16,
    /// The value of the cluster's record, and its revision; empty before it is known.
    cluster: Vec<u8>,
    cluster_revision: i64,
    nodes: HashMap<NodeName, NodeEntry>,
    runtimes: Runtimes,
    /// When it was first seen of a runtime that no node holds it.
    free_since: HashMap<RuntimeLabel, Instant>,
    /// The run of the last record that was applied, which many have in common.
    last_run: Option<Arc<NodeRun>>,
    /// What other nodes have reported beside the records.
    pub(super) peer_reports: PeerReports,
    /// The number of the listing that is being read, or was last.
    round: u32,
    /// The first listing since etcd was restored: revisions of records that were seen before say nothing any more.
    restored_in: u32,
}

#[derive(Debug)]
struct NodeEntry {
    revision: i64,
    round: u32,
    incarnation: Incarnation,
    record: NodeRecord,
}

/// A node that has sessions of the instance that holds a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The node.
    pub(crate) node: NodeName,
    /// Its life.
    pub(crate) incarnation: Incarnation,
    /// The revision of its record.
    pub(crate) revision: i64,
    /// The zone that it lies in.
    pub(crate) zone: Option<Arc<str>>,
    /// None of its sessions takes new exchanges, or the node itself leaves.
    pub(crate) is_leaving: bool,
}

/// What a change was about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Effect {
    Runtime(RuntimeLabel),
    Node(NodeName),
    Challenge(NodeName),
    /// The record of the cluster is another one than was listed: all has to be listed again.
    Restored,
}

/// How an instance gets a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// It has the claim of this revision already.
    Hold(i64),
    /// By a claim after the one that was seen.
    Claim(NextClaim),
}

/// The next claim of a runtime, apart from who makes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NextClaim {
    /// The revision of the claim that is replaced; 0 if there is none.
    pub(super) seen: i64,
    pub(super) row: u32,
    pub(super) row_age: Duration,
    pub(super) superseded: VecDeque<InstanceId>,
    /// The label has been taken from another runtime since it was free.
    pub(super) overrules: bool,
}

/// The revisions of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Revisions {
    /// The revision of the last change of the key.
    changed: i64,
    /// The revision of the change that made the key.
    created: i64,
}

/// When a record is applied, and how this node has got it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Instant,
    /// Where it was read; an event, and an own write, has just happened.
    pub(super) read: Option<Read>,
}

/// A read of etcd.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    /// The revision of which all was read.
    pub(super) revision: i64,
    /// The wall clock, by which a record has an age; that counts for the wait after takeovers only.
    pub(super) at_ms: u64,
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

impl Moment {
    pub(super) fn of_event(now: Instant) -> Self {
        Self { now, read: None }
    }

    /// Whether etcd was restored, to a snapshot but with greater revisions than ever, between a write that this node knows
    /// of and this record: it stood at a later revision, and was read in an older state.
    fn undoes(&self, known: i64, revision: i64) -> bool {
        known > revision && self.read.is_some_and(|read| known <= read.revision)
    }
}

impl Table {
    pub(super) fn new(keys: Keys) -> Self {
        Self {
            keys,
            generation: 0,
            cluster: Vec::new(),
            cluster_revision: 0,
            nodes: HashMap::new(),
            runtimes: Runtimes::default(),
            free_since: HashMap::new(),
            last_run: None,
            peer_reports: PeerReports::default(),
            round: 0,
            restored_in: 0,
        }
    }

    /// Applies a write. Returns what it was about, if it changes anything.
    pub(super) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        revisions: impl Into<Revisions>,
        moment: Moment,
    ) -> Option<Effect> {
        let revisions = revisions.into();
        let revision = revisions.changed;
        match self.keys.parse(key)? {
            Key::Cluster => self.put_cluster(value, revision, moment),
            Key::Node(name) => self.put_node(name, decode(value)?, revision, moment),
            Key::Challenge(name) => moment.read.is_none().then_some(Effect::Challenge(name)),
            Key::Claim(label) => self.put_claim(label, decode(value)?, revisions, moment),
            Key::Held(node, incarnation, label) => {
                let record: HeldRecord = decode(value)?;
                let held = HeldEntry {
                    run: self.run(node, incarnation),
                    revision,
                    round: self.round,
                    epoch: match record.epoch {
                        0 => revision,
                        epoch => epoch,
                    },
                    state: record.state,
                };
                self.put_held(label, held, moment)
            }
        }
    }

    /// A change of it is read by the listing that takes etcd as restored, with all records that go with it.
    fn put_cluster(&mut self, value: &[u8], revision: i64, moment: Moment) -> Option<Effect> {
        let record: ClusterRecord = decode(value)?;
        if self.cluster == value {
            return None;
        }
        if moment.read.is_none() || !self.cluster.is_empty() {
            return Some(Effect::Restored);
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
        moment: Moment,
    ) -> Option<Effect> {
        if let Some(known) = self.nodes.get_mut(&name)
            && known.revision >= revision
            && known.round >= self.restored_in
            && !moment.undoes(known.revision, revision)
        {
            known.round = self.round;
            return None;
        }
        let entry = NodeEntry {
            revision,
            round: self.round,
            incarnation: record.incarnation.parse().ok()?,
            record,
        };
        self.peer_reports.on_key(&name);
        self.nodes.insert(name.clone(), entry);
        Some(Effect::Node(name))
    }

    fn put_claim(
        &mut self,
        label: RuntimeLabel,
        record: ClaimRecord,
        revisions: Revisions,
        moment: Moment,
    ) -> Option<Effect> {
        let (round, restored_in) = (self.round, self.restored_in);
        let revision = revisions.changed;
        let records = self.runtimes.get_or_insert(&label);
        let known = records
            .claim
            .as_mut()
            .filter(|known| known.round >= restored_in && !moment.undoes(known.revision, revision));
        let mut owner = None;
        if let Some(known) = known {
            if known.revision >= revision {
                known.round = round;
                return None;
            }
            // The label was not free in between.
            owner = known.owner.filter(|_| revisions.created <= known.revision);
        }
        let read = moment.read;
        let age_ms = read.map_or(0, |read| read.at_ms.saturating_sub(record.at_ms));
        let age = Duration::from_millis(age_ms);
        let claim = ClaimEntry::new(&label, record, owner, (revision, round), age, moment.now);
        records.claim = Some(claim);
        Some(Effect::Runtime(label))
    }

    /// Notes that the writer of a claim holds the runtime: its record is written together with the claim.
    pub(super) fn put_claimant(
        &mut self,
        label: RuntimeLabel,
        claim: &ClaimRecord,
        revision: i64,
        moment: Moment,
    ) {
        let Ok(node) = claim.node.parse() else { return };
        let Some((incarnation, _)) = self.node(&node) else {
            return;
        };
        let held = HeldEntry {
            run: self.run(node, incarnation),
            revision,
            round: self.round,
            epoch: revision,
            state: HeldState::Open,
        };
        self.put_held(label, held, moment);
    }

    fn put_held(&mut self, label: RuntimeLabel, held: HeldEntry, moment: Moment) -> Option<Effect> {
        let restored_in = self.restored_in;
        let records = self.runtimes.get_or_insert(&label);
        match records.held.iter_mut().find(|known| known.run == held.run) {
            Some(known)
                if known.revision >= held.revision
                    && known.round >= restored_in
                    && !moment.undoes(known.revision, held.revision) =>
            {
                known.round = held.round;
                return None;
            }
            Some(known) => *known = held,
            None => records.held.push(held),
        }
        Some(Effect::Runtime(label))
    }

    /// A run of a node, which its records have in common.
    fn run(&mut self, node: NodeName, incarnation: Incarnation) -> Arc<NodeRun> {
        let run = NodeRun { node, incarnation };
        match &self.last_run {
            Some(last) if **last == run => last.clone(),
            _ => self.last_run.insert(Arc::new(run)).clone(),
        }
    }

    /// Applies a removal. Returns what it was about, if it changes anything.
    pub(super) fn delete(&mut self, key: &[u8], revision: i64) -> Option<Effect> {
        match self.keys.parse(key)? {
            Key::Node(name) => {
                let known = self.nodes.get(&name)?;
                if known.revision >= revision {
                    return None;
                }
                if let Some(gone) = self.nodes.remove(&name) {
                    self.peer_reports
                        .on_key_gone(&name, gone.incarnation, gone.record);
                }
                Some(Effect::Node(name))
            }
            Key::Claim(label) => {
                let records = self.runtimes.get_mut(label.as_str())?;
                records.claim.take_if(|claim| claim.revision < revision)?;
                self.runtimes.forget_empty(label.as_str());
                Some(Effect::Runtime(label))
            }
            Key::Held(node, incarnation, label) => {
                let records = self.runtimes.get_mut(label.as_str())?;
                let (count, run) = (records.held.len(), NodeRun { node, incarnation });
                records
                    .held
                    .retain(|held| *held.run != run || held.revision >= revision);
                let is_changed = records.held.len() < count;
                self.runtimes.forget_empty(label.as_str());
                is_changed.then_some(Effect::Runtime(label))
            }
            Key::Cluster => Some(Effect::Restored),
            Key::Challenge(_) => None,
        }
    }

    /// Begins a listing.
    pub(super) fn begin_listing(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// The listing that has begun is the first one since etcd was restored from a snapshot, or was emptied.
    pub(super) fn on_restored(&mut self) {
        self.restored_in = self.round;
        self.cluster.clear();
    }

    /// Ends a listing of this revision: what it had not got and is not younger is gone.
    pub(super) fn end_listing(&mut self, revision: i64) -> Vec<Effect> {
        let round = self.round;
        let restored_in = self.restored_in;
        let stays = |seen_in: u32, changed: i64| {
            seen_in == round || changed > revision && seen_in >= restored_in
        };
        let mut effects = Vec::new();
        let reports = &mut self.peer_reports;
        self.nodes.retain(|name, node| {
            let stays = stays(node.round, node.revision);
            if !stays {
                reports.on_key_gone(name, node.incarnation, node.record.clone());
                effects.push(Effect::Node(name.clone()));
            }
            stays
        });
        self.runtimes.update_all(|label, records| {
            let count = records.held.len();
            records.held.retain(|held| stays(held.round, held.revision));
            let claim = records
                .claim
                .take_if(|claim| !stays(claim.round, claim.revision));
            if claim.is_some() || records.held.len() < count {
                effects.push(Effect::Runtime(label.clone()));
            }
        });
        effects
    }

    /// The runs of nodes that have records and are no more.
    pub(super) fn dead_nodes(&self) -> HashSet<(NodeName, Incarnation)> {
        let held = self.runtimes.values().flat_map(|records| &records.held);
        let dead = held.filter(|held| self.node_of(&held.run).is_none());
        dead.map(|held| (held.run.node.clone(), held.run.incarnation))
            .collect()
    }

    /// The records of such nodes, at most so many.
    pub(super) fn records_of(
        &self,
        dead: &HashSet<(NodeName, Incarnation)>,
        most: usize,
    ) -> Vec<(RuntimeLabel, (NodeName, Incarnation))> {
        let records = self.runtimes.iter().flat_map(|(label, records)| {
            let held = records.held.iter();
            held.map(move |held| {
                let run = (held.run.node.clone(), held.run.incarnation);
                (label.clone(), run)
            })
        });
        records
            .filter(|(_, node)| dead.contains(node))
            .take(most)
            .collect()
    }

    /// The claims, with their revisions, of runtimes that have been free for so long, at most so many.
    pub(super) fn long_free(&mut self, long: Duration, most: usize) -> Vec<(RuntimeLabel, i64)> {
        let now = Instant::now();
        let runtimes = self.runtimes.iter();
        let free = runtimes.filter(|(_, records)| self.live(records).next().is_none());
        let mut long_free = Vec::new();
        let mut free_since = HashMap::new();
        for (label, records) in free {
            let since = self.free_since.get(label).copied().unwrap_or(now);
            free_since.insert(label.clone(), since);
            if let Some(claim) = &records.claim
                && now.saturating_duration_since(since) >= long
                && long_free.len() < most
            {
                long_free.push((label.clone(), claim.revision));
            }
        }
        self.free_since = free_since;
        long_free
    }

    /// The number of nodes, of claims and of held records.
    pub(super) fn counts(&self) -> [usize; 3] {
        let records = self.runtimes.values();
        let (claims, held) = records.fold((0, 0), |(claims, held), records| {
            let claim = usize::from(records.claim.is_some());
            (claims + claim, held + records.held.len())
        });
        [self.nodes.len(), claims, held]
    }

    /// The number of runtimes with a record.
    pub(super) fn len(&self) -> usize {
        self.runtimes.len()
    }

    /// The epoch of a claim of this revision. One from before the last raise of the generation is of the generation before:
    /// it may be what a snapshot has brought back, and supersedes nothing.
    pub(super) fn epoch(&self, revision: i64) -> Epoch {
        let generation = match self.is_outlived(revision) {
            true => self.generation.saturating_sub(1),
            false => self.generation,
        };
        let generation = u64::from(generation) << GENERATION_SHIFT;
        Epoch(generation | u64::try_from(revision).unwrap_or(0))
    }

    /// Whether a claim of this revision is from before the last raise of the generation.
    fn is_outlived(&self, revision: i64) -> bool {
        revision < self.cluster_revision
    }

    /// The value of the cluster's record; empty before it is known.
    pub(super) fn cluster(&self) -> &[u8] {
        &self.cluster
    }

    /// The upper bits of epochs.
    pub(super) fn generation(&self) -> u16 {
        self.generation
    }

    /// The record that a node has of a runtime: the epoch and the state.
    pub(super) fn held_by(
        &self,
        label: &RuntimeLabel,
        node: &NodeName,
        incarnation: Incarnation,
    ) -> Option<(Epoch, HeldState)> {
        let held = self.runtimes.get(label.as_str())?.held.iter();
        let mut own =
            held.filter(|held| held.run.node == *node && held.run.incarnation == incarnation);
        own.next().map(|held| (self.epoch(held.epoch), held.state))
    }

    /// The node of this name.
    pub(super) fn node(&self, name: &NodeName) -> Option<(Incarnation, &NodeRecord)> {
        let node = self.nodes.get(name)?;
        Some((node.incarnation, &node.record))
    }

    /// All nodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&NodeName, Incarnation, &NodeRecord)> {
        let nodes = self.nodes.iter();
        nodes.map(|(name, node)| (name, node.incarnation, &node.record))
    }
}
