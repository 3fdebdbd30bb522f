//! What other nodes report to this one on their links, beside the records: that they live, and what they hold while etcd
//! cannot be written. A plain value.
//!
//! The reports of a node are forgotten when its links have ended. Where etcd has a record too, the record decides.

use std::collections::HashMap;

use super::super::{
    Claim,
    node::{Incarnation, NodeName},
};
use super::record::NodeRecord;
use crate::runtimes::{AccountName, RuntimeLabel, RuntimeName};

/// What is reported.
#[derive(Debug, Default)]
pub(super) struct PeerReports {
    /// Nodes that send reports.
    reporting: HashMap<NodeName, Incarnation>,
    /// Those of them whose key is gone: their lease has ended, and they live.
    keyless: HashMap<NodeName, NodeRecord>,
    holds: HashMap<RuntimeLabel, Vec<(NodeName, UnrecordedHold)>>,
}

/// A runtime that a node holds, and has no record of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnrecordedHold {
    pub(super) claim: Claim,
    pub(super) account: AccountName,
    pub(super) name: RuntimeName,
    pub(super) is_leaving: bool,
}

impl PeerReports {
    /// This run of a node has sent a report. Returns the runtimes that an earlier run has reported.
    pub(super) fn on_report(
        &mut self,
        node: &NodeName,
        incarnation: Incarnation,
    ) -> Vec<RuntimeLabel> {
        if self.reporting.get(node) == Some(&incarnation) {
            return Vec::new();
        }
        let earlier = self.forget(node);
        self.reporting.insert(node.clone(), incarnation);
        earlier
    }

    /// A node sends no more reports. Returns the runtimes that it has reported.
    pub(super) fn forget(&mut self, node: &NodeName) -> Vec<RuntimeLabel> {
        self.reporting.remove(node);
        self.keyless.remove(node);
        let mut changed = Vec::new();
        self.holds.retain(|label, holds| {
            let count = holds.len();
            holds.retain(|(holder, _)| holder != node);
            if holds.len() < count {
                changed.push(label.clone());
            }
            !holds.is_empty()
        });
        changed
    }

    /// Whether this run of a node sends reports.
    pub(super) fn is_reporting(&self, node: &NodeName, incarnation: Incarnation) -> bool {
        self.reporting.get(node) == Some(&incarnation)
    }

    /// The key of a node is gone.
    pub(super) fn on_key_gone(
        &mut self,
        node: &NodeName,
        incarnation: Incarnation,
        record: NodeRecord,
    ) {
        if self.is_reporting(node, incarnation) {
            self.keyless.insert(node.clone(), record);
        }
    }

    /// A node has a key.
    pub(super) fn on_key(&mut self, node: &NodeName) {
        self.keyless.remove(node);
    }

    /// The last value of the key of a node that lives without one.
    pub(super) fn keyless(&self, node: &NodeName, incarnation: Incarnation) -> Option<&NodeRecord> {
        let record = self.keyless.get(node)?;
        self.is_reporting(node, incarnation).then_some(record)
    }

    /// A node has reported that it holds a runtime.
    pub(super) fn hold(&mut self, node: &NodeName, label: RuntimeLabel, hold: UnrecordedHold) {
        let holds = self.holds.entry(label).or_default();
        holds.retain(|(holder, _)| holder != node);
        holds.push((node.clone(), hold));
    }

    /// A node holds a runtime no more, or has a record of it.
    pub(super) fn release(&mut self, label: &RuntimeLabel, node: &NodeName) {
        if let Some(holds) = self.holds.get_mut(label) {
            holds.retain(|(holder, _)| holder != node);
            if holds.is_empty() {
                self.holds.remove(label);
            }
        }
    }

    /// Who holds a runtime without a record, by the newest claim that is reported.
    pub(super) fn holds(
        &self,
        label: &str,
    ) -> impl Iterator<Item = (&NodeName, Incarnation, &UnrecordedHold)> {
        let holds = self.holds.get(label).map_or(&[][..], Vec::as_slice);
        let newest = holds.iter().map(|(_, hold)| hold.claim.epoch).max();
        let of_newest = holds
            .iter()
            .filter(move |(_, hold)| Some(hold.claim.epoch) == newest);
        of_newest.filter_map(|(node, hold)| Some((node, *self.reporting.get(node)?, hold)))
    }

    /// The label and the names of a runtime that is reported.
    pub(super) fn runtime(&self, label: &str) -> Option<(RuntimeLabel, AccountName, RuntimeName)> {
        let (label, holds) = self.holds.get_key_value(label)?;
        let (_, hold) = holds.first()?;
        Some((label.clone(), hold.account.clone(), hold.name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use tunnel_proto::handshake::InstanceSecret;

    use super::{super::super::Epoch, *};

    fn hold(epoch: u64) -> UnrecordedHold {
        UnrecordedHold {
            claim: Claim {
                instance: InstanceSecret::from_random([1; 16]).id().clone(),
                epoch: Epoch::from_number(epoch),
            },
            account: "acme".parse().unwrap(),
            name: "prod".parse().unwrap(),
            is_leaving: false,
        }
    }

    #[test]
    fn reports_of_a_node_end_with_it_and_the_newest_claim_counts() {
        let (n1, n2): (NodeName, NodeName) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let label = RuntimeLabel::parse("acme-prod").unwrap();
        let mut reports = PeerReports::default();
        reports.on_report(&n1, Incarnation::new(1));
        reports.on_report(&n2, Incarnation::new(2));
        reports.hold(&n1, label.clone(), hold(5));
        reports.hold(&n2, label.clone(), hold(6));
        let nodes = |reports: &PeerReports| -> Vec<String> {
            let holds = reports.holds("acme-prod");
            holds.map(|(node, ..)| node.to_string()).collect()
        };
        assert_eq!(nodes(&reports), ["n2"]);
        // A node that starts again has reported nothing.
        let earlier = reports.on_report(&n2, Incarnation::new(3));
        assert_eq!(earlier, std::slice::from_ref(&label));
        assert_eq!(nodes(&reports), ["n1"]);
        reports.release(&label, &n1);
        assert!(reports.runtime("acme-prod").is_none());
    }
}
