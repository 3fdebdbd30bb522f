//! Which nodes hold a runtime, by the records and by what nodes have reported.

use std::{sync::Arc, time::Instant};

use tunnel_proto::handshake::InstanceId;

use super::{
    Table,
    entries::{ClaimEntry, HeldEntry, RuntimeRecords},
    index::ClaimPosition,
};
use crate::{
    claim::Epoch,
    names::RuntimeLabel,
    node::{Incarnation, NodeName, NodeRun},
    peer_reports::UnrecordedHold,
    record::{ClaimRecord, HeldState, NodeRecord, NodeState},
};

/// A node that has sessions of the instance that holds a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The node.
    pub node: NodeName,
    /// Its process.
    pub incarnation: Incarnation,
    /// The revision of its record; 0 if it has none.
    pub revision: i64,
    /// The zone that it lies in.
    pub zone: Option<Arc<str>>,
    /// None of its sessions takes new exchanges, or the node itself leaves.
    pub is_leaving: bool,
}

/// A claim by which a runtime was taken from a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TakenClaim {
    /// The label of the runtime.
    pub(crate) label: RuntimeLabel,
    /// The revision of the claim.
    pub(crate) revision: i64,
    /// Its record.
    pub(crate) record: ClaimRecord,
}

impl Table {
    /// The nodes that hold a runtime, and the epoch of the claim by which they do: of the last claim by which any node holds
    /// it, since a claim takes effect only then.
    pub(crate) fn holders(&self, label: &str) -> Option<(Epoch, Vec<Holder>)> {
        let records = self.runtimes.get(label);
        let effective = records.and_then(|records| self.effective(label, records));
        let held = records.into_iter().flat_map(|records| &records.held);
        let of_claim = held.filter(|held| Some(held.epoch) == effective);
        let holder = |held: &HeldEntry| {
            let instance = records.and_then(|records| Self::instance_at(records, held.epoch));
            let node = self.live_node(label, held, instance)?;
            Some(Holder {
                node: held.run.node.clone(),
                incarnation: held.run.incarnation,
                revision: held.revision,
                zone: node.zone.clone(),
                is_leaving: held.state == HeldState::Leaving || node.state == NodeState::Leaving,
            })
        };
        let mut holders: Vec<Holder> = of_claim.filter_map(holder).collect();
        let mut epoch = effective.zip(records).map(|(revision, records)| {
            let claim = records.claim.as_ref();
            self.epoch_of(claim, revision)
        });
        for (run, hold) in self.unrecorded_holds(label) {
            let is_new = holders.iter().all(|holder| holder.node != run.node);
            if is_new && let Some(node) = self.node_of(run) {
                epoch.get_or_insert(hold.claim.epoch);
                holders.push(Holder {
                    node: run.node.clone(),
                    incarnation: run.incarnation,
                    revision: 0,
                    zone: node.zone.clone(),
                    is_leaving: hold.is_leaving || node.state == NodeState::Leaving,
                });
            }
        }
        Some((epoch?, holders))
    }

    /// Whether a node other than this one may hold the runtime, as far as can be known without etcd: by the records, and by
    /// which nodes send reports. A node that sends none is dead, unless no node sends any, or it has no link.
    pub(crate) fn is_held_elsewhere(&self, label: &str, own: Incarnation) -> bool {
        let holders = self.holders(label).map(|(_, holders)| holders);
        let mut others = holders
            .iter()
            .flatten()
            .filter(|holder| holder.incarnation != own);
        others.any(|holder| self.may_live(&holder.node, holder.incarnation))
    }

    /// Whether any node, this one included, holds the runtime by the claim of its record.
    pub(crate) fn is_claim_held(&self, label: &str) -> bool {
        self.claim_holders(label).next().is_some()
    }

    /// Whether a node other than this one holds the runtime by the claim of its record.
    pub(crate) fn is_claim_held_by_other(&self, label: &str, own: Incarnation) -> bool {
        self.claim_holders(label).any(|run| run.incarnation != own)
    }

    /// Whether a node other than this one holds the runtime by the claim of its record, and has reported to this one which of
    /// its records are void. The record of one that has not may be void, or be of a node that is dead.
    pub(crate) fn is_claim_reported(&self, label: &str, own: Incarnation) -> bool {
        let reports = &self.peer_reports;
        let mut holders = self.claim_holders(label);
        holders.any(|run| {
            run.incarnation != own && reports.has_reported_all(&run.node, run.incarnation)
        })
    }

    /// The processes that hold a runtime by the claim of its record, by their records or by what they report.
    fn claim_holders(&self, label: &str) -> impl Iterator<Item = &NodeRun> {
        let records = self.runtimes.get(label);
        let recorded = records
            .into_iter()
            .flat_map(move |records| self.live(label, records));
        let claim = records.and_then(|records| records.claim.as_ref());
        let reported = self.peer_reports.holds(label).filter(move |(_, hold)| {
            claim.is_some_and(|claim| claim.instance == hold.claim.instance)
        });
        let recorded = recorded.map(|(held, _)| &*held.run);
        recorded.chain(reported.map(|(run, _)| run))
    }

    /// Whether a process of another node may live: it reports, or cannot.
    fn may_live(&self, node: &NodeName, incarnation: Incarnation) -> bool {
        let reports = &self.peer_reports;
        let known = self.node(node);
        let has_link = known.is_none_or(|(_, record)| record.peer.is_some());
        let is_isolated = || {
            !self
                .nodes()
                .any(|(name, run, _)| reports.is_reporting(name, run))
        };
        reports.is_reporting(node, incarnation) || !has_link || is_isolated()
    }

    /// Holds that other nodes report without a record in etcd, unless a record contradicts them: those of the instance that
    /// has the claim, or of any other while nobody holds the runtime by the claim.
    pub(crate) fn unrecorded_holds(
        &self,
        label: &str,
    ) -> impl Iterator<Item = (&NodeRun, &UnrecordedHold)> {
        let records = self.runtimes.get(label);
        let is_held = records.is_some_and(|records| self.live(label, records).next().is_some());
        let claim = records.and_then(|records| records.claim.as_ref());
        let claim = claim.filter(|claim| !claim.is_void);
        self.peer_reports.holds(label).filter(move |(_, hold)| {
            claim.is_none_or(|claim| claim.instance == hold.claim.instance) || !is_held
        })
    }

    /// The record of this process of a node; its key may be gone while the node reports.
    pub(super) fn node_of(&self, run: &NodeRun) -> Option<&NodeRecord> {
        let node = self.nodes.get(&run.node);
        let node = node.filter(|node| node.incarnation == run.incarnation);
        node.map(|node| &node.record)
            .or_else(|| self.peer_reports.keyless(run))
    }

    /// The claims after this position by which runtimes were taken from a process, the oldest first, at most so many.
    pub(crate) fn taken_from(
        &self,
        run: &NodeRun,
        after: &ClaimPosition,
        most: usize,
        now: Instant,
    ) -> Vec<TakenClaim> {
        let taken = self.index.taken_from(run, after).take(most);
        let taken = taken.filter_map(|(revision, label)| {
            let records = self.runtimes.get(label.as_str())?;
            let mut held = records.held.iter();
            let writer = held.find(|held| held.epoch == revision);
            let writer = writer.map(|held| &held.run.node);
            Some(TakenClaim {
                label: label.clone(),
                revision,
                record: records.claim.as_ref()?.to_record(label, writer, now),
            })
        });
        taken.collect()
    }

    /// The records of nodes that hold a runtime by its claim.
    pub(super) fn live<'a>(
        &'a self,
        label: &str,
        records: &'a RuntimeRecords,
    ) -> impl Iterator<Item = (&'a HeldEntry, &'a NodeRecord)> {
        let claim = records.claim.as_ref().filter(|claim| !claim.is_void);
        let revision = claim.map(ClaimEntry::revision);
        let instance = claim.map(|claim| &claim.instance);
        let of_claim = move |held: &&HeldEntry| Some(held.epoch) == revision;
        let held = records.held.iter().filter(of_claim);
        held.filter_map(move |held| Some((held, self.live_node(label, held, instance)?)))
    }

    /// The node of a record for this instance, if it lives and has not released the runtime.
    fn live_node(
        &self,
        label: &str,
        held: &HeldEntry,
        instance: Option<&InstanceId>,
    ) -> Option<&NodeRecord> {
        let node = self.node_of(&held.run)?;
        let is_void = self.has_released(label, &held.run, instance);
        (!is_void).then_some(node)
    }

    /// The instance of a record of this epoch, as far as it is known: that of the claim, but not that of an earlier one.
    fn instance_at(records: &RuntimeRecords, epoch: i64) -> Option<&InstanceId> {
        let claim = records.claim.as_ref();
        let claim = claim.filter(|claim| claim.revision() == epoch);
        claim.map(|claim| &claim.instance)
    }

    /// The revision of the last claim by which a node holds a runtime.
    fn effective(&self, label: &str, records: &RuntimeRecords) -> Option<i64> {
        let claim = records.claim.as_ref().filter(|claim| !claim.is_void)?;
        let held = records
            .held
            .iter()
            .filter(|held| held.epoch <= claim.revision());
        let live = held.filter(|held| {
            let instance = Self::instance_at(records, held.epoch);
            self.live_node(label, held, instance).is_some()
        });
        live.map(|held| held.epoch).max()
    }
}
