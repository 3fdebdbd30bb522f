//! Which nodes hold a runtime, by the records and by what nodes have reported.

use std::{sync::Arc, time::Instant};

use super::{
    Table,
    entries::{HeldEntry, RuntimeRecords},
    index::ClaimPosition,
};
use crate::{
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
    /// The nodes that hold the runtime by its current claim.
    pub(crate) fn holders(&self, label: &str) -> Vec<Holder> {
        let records = self.runtimes.get(label);
        let holders = records.into_iter().flat_map(|records| self.live(records));
        let holder = |(held, node): (&HeldEntry, &NodeRecord)| Holder {
            node: held.run.node.clone(),
            incarnation: held.run.incarnation,
            revision: held.revision,
            zone: node.zone.clone(),
            is_leaving: held.state == HeldState::Leaving || node.state == NodeState::Leaving,
        };
        let mut holders: Vec<Holder> = holders.map(holder).collect();
        for (run, hold) in self.unrecorded_holds(label) {
            let is_new = holders.iter().all(|holder| holder.node != run.node);
            if is_new && let Some(node) = self.node_of(run) {
                holders.push(Holder {
                    node: run.node.clone(),
                    incarnation: run.incarnation,
                    revision: 0,
                    zone: node.zone.clone(),
                    is_leaving: hold.is_leaving || node.state == NodeState::Leaving,
                });
            }
        }
        holders
    }

    /// Whether a node other than this one may hold the runtime, as far as can be known without etcd: by the records, and by
    /// which nodes send reports. A node that sends none is dead, unless no node sends any, or it has no link.
    pub(crate) fn is_held_elsewhere(&self, label: &str, own: Incarnation) -> bool {
        let mut holders = self.holders(label);
        holders.retain(|holder| holder.incarnation != own);
        let reports = &self.peer_reports;
        let has_link = |name: &NodeName| {
            let node = self.node(name);
            node.is_none_or(|(_, record)| record.peer.is_some())
        };
        let is_isolated = !self
            .nodes()
            .any(|(name, incarnation, _)| reports.is_reporting(name, incarnation));
        let mut holders = holders.iter();
        holders.any(|holder| {
            is_isolated
                || !has_link(&holder.node)
                || reports.is_reporting(&holder.node, holder.incarnation)
        })
    }

    /// Holds that other nodes report without a record in etcd, unless a record contradicts them: those of the instance that
    /// has the claim, or of any other while nobody holds the runtime by the claim.
    pub(crate) fn unrecorded_holds(
        &self,
        label: &str,
    ) -> impl Iterator<Item = (&NodeRun, &UnrecordedHold)> {
        let records = self.runtimes.get(label);
        let is_held = records.is_some_and(|records| self.live(records).next().is_some());
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

    pub(super) fn live<'a>(
        &'a self,
        records: &'a RuntimeRecords,
    ) -> impl Iterator<Item = (&'a HeldEntry, &'a NodeRecord)> {
        let claim = records.claim.as_ref().filter(|claim| !claim.is_void);
        let revision = claim.map(|claim| claim.revision);
        let of_claim = move |held: &&HeldEntry| Some(held.epoch) == revision;
        let held = records.held.iter().filter(of_claim);
        held.filter_map(|held| Some((held, self.node_of(&held.run)?)))
    }
}
