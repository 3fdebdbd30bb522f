//! Which nodes hold a runtime, by the records and by what nodes have reported.

use super::{
    super::{
        super::node::{Incarnation, NodeName},
        peer_reports::UnrecordedHold,
        record::{ClaimRecord, HeldState, NodeRecord, NodeState},
    },
    Holder, Table,
    entries::{HeldEntry, NodeRun, RuntimeRecords},
};
use tokio::time::Instant;

use crate::runtimes::RuntimeLabel;

impl Table {
    /// The nodes that hold the runtime by its current claim.
    pub(in super::super) fn holders(&self, label: &str) -> Vec<Holder> {
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
        for (name, incarnation, hold) in self.peer_holds(label) {
            let is_new = holders.iter().all(|holder| holder.node != *name);
            let run = NodeRun {
                node: name.clone(),
                incarnation,
            };
            if is_new && let Some(node) = self.node_of(&run) {
                holders.push(Holder {
                    node: name.clone(),
                    incarnation,
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
    pub(in super::super) fn is_held_elsewhere(&self, label: &str, own: Incarnation) -> bool {
        let mut holders = self.holders(label);
        holders.retain(|holder| holder.incarnation != own);
        let reports = &self.peer_reports;
        let has_link = |name: &NodeName| {
            let node = self.node(name);
            node.is_none_or(|(_, record)| record.peer.is_some())
        };
        let is_isolated = !self
            .nodes()
            .any(|(name, run, _)| reports.is_reporting(name, run));
        let mut holders = holders.iter();
        holders.any(|holder| {
            is_isolated
                || !has_link(&holder.node)
                || reports.is_reporting(&holder.node, holder.incarnation)
        })
    }

    /// What other nodes hold without a record, as far as no record says otherwise: of the instance that has the claim, or of
    /// any other while nobody holds the runtime by the claim.
    pub(in super::super) fn peer_holds(
        &self,
        label: &str,
    ) -> impl Iterator<Item = (&NodeName, Incarnation, &UnrecordedHold)> {
        let records = self.runtimes.get(label);
        let is_held = records.is_some_and(|records| self.live(records).next().is_some());
        let claim = records.and_then(|records| records.claim.as_ref());
        let claim = claim.filter(|claim| !claim.is_usurped);
        self.peer_reports.holds(label).filter(move |(_, _, hold)| {
            claim.is_none_or(|claim| claim.instance == hold.claim.instance) || !is_held
        })
    }

    /// What this run of a node says of itself; its key may be gone while the node reports.
    pub(super) fn node_of(&self, run: &NodeRun) -> Option<&NodeRecord> {
        let node = self.nodes.get(&run.node);
        let node = node.filter(|node| node.incarnation == run.incarnation);
        let keyless = || self.peer_reports.keyless(&run.node, run.incarnation);
        node.map(|node| &node.record).or_else(keyless)
    }

    /// The claims after this revision by which runtimes were taken from this node, the oldest first, at most so many.
    pub(in super::super) fn superseded_at(
        &self,
        node: &NodeName,
        incarnation: Incarnation,
        after: i64,
        most: usize,
    ) -> Vec<(RuntimeLabel, i64, ClaimRecord)> {
        let runtimes = self.runtimes.iter();
        let mut taken: Vec<_> = runtimes
            .filter_map(|(label, records)| {
                let claim = records.claim.as_ref()?;
                let is_older = |held: &HeldEntry| {
                    held.run.node == *node
                        && held.run.incarnation == incarnation
                        && held.epoch != claim.revision
                };
                let is_taken = claim.revision > after
                    && !claim.is_usurped
                    && records.held.iter().any(is_older);
                is_taken.then_some((label, claim, &records.held))
            })
            .collect();
        taken.sort_unstable_by_key(|(_, claim, _)| claim.revision);
        let now = Instant::now();
        let taken = taken.into_iter().take(most).map(|(label, claim, held)| {
            let mut held = held.iter();
            let writer = held.find(|held| held.epoch == claim.revision);
            let record = claim.to_record(label, writer.map(|held| &held.run.node), now);
            (label.clone(), claim.revision, record)
        });
        taken.collect()
    }

    pub(super) fn live<'a>(
        &'a self,
        records: &'a RuntimeRecords,
    ) -> impl Iterator<Item = (&'a HeldEntry, &'a NodeRecord)> {
        let claim = records.claim.as_ref().filter(|claim| !claim.is_usurped);
        let epoch = claim.map(|claim| claim.revision);
        let of_claim = move |held: &&HeldEntry| Some(held.epoch) == epoch;
        records
            .held
            .iter()
            .filter(of_claim)
            .filter_map(|held| Some((held, self.node_of(&held.run)?)))
    }
}
