//! What other nodes have told this one by their links, beside the records: that they live, and what they hold while etcd
//! cannot be written. A plain value.
//!
//! What a node has told is forgotten when it is not heard any more. A record in etcd that says more counts
//! first.

use std::collections::HashMap;

use super::super::{
    Claim,
    node::{Incarnation, NodeName},
};
use super::record::NodeRecord;
use crate::runtimes::{AccountName, RuntimeLabel, RuntimeName};

/// What is told.
#[derive(Debug, Default)]
pub(super) struct PeerReports {
    /// Nodes that are heard.
    heard: HashMap<NodeName, Incarnation>,
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
    /// This run of a node is heard. Returns the runtimes of an earlier one.
    pub(super) fn hear(&mut self, node: &NodeName, incarnation: Incarnation) -> Vec<RuntimeLabel> {
        if self.heard.get(node) == Some(&incarnation) {
            return Vec::new();
        }
        let earlier = self.forget(node);
        self.heard.insert(node.clone(), incarnation);
        earlier
    }

    /// A node is not heard any more. Returns the runtimes that it has told of.
    pub(super) fn forget(&mut self, node: &NodeName) -> Vec<RuntimeLabel> {
        self.heard.remove(node);
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

    /// Whether this run of a node is heard.
    pub(super) fn is_heard(&self, node: &NodeName, incarnation: Incarnation) -> bool {
        self.heard.get(node) == Some(&incarnation)
    }

    /// The key of a node is gone.
    pub(super) fn on_key_gone(
        &mut self,
        node: &NodeName,
        incarnation: Incarnation,
        record: NodeRecord,
    ) {
        if self.is_heard(node, incarnation) {
            self.keyless.insert(node.clone(), record);
        }
    }

    /// A node has a key.
    pub(super) fn on_key(&mut self, node: &NodeName) {
        self.keyless.remove(node);
    }

    /// What the key of a node has said that lives without one.
    pub(super) fn keyless(&self, node: &NodeName, incarnation: Incarnation) -> Option<&NodeRecord> {
        let record = self.keyless.get(node)?;
        self.is_heard(node, incarnation).then_some(record)
    }

    /// A node that is heard holds a runtime.
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

    /// Who holds a runtime without a record, by the newest claim that is told.
    pub(super) fn holds(
        &self,
        label: &str,
    ) -> impl Iterator<Item = (&NodeName, Incarnation, &UnrecordedHold)> {
        let holds = self.holds.get(label).map_or(&[][..], Vec::as_slice);
        let newest = holds.iter().map(|(_, hold)| hold.claim.epoch).max();
        let of_newest = holds
            .iter()
            .filter(move |(_, hold)| Some(hold.claim.epoch) == newest);
        of_newest.filter_map(|(node, hold)| Some((node, *self.heard.get(node)?, hold)))
    }

    /// The label and the names of a runtime that is told of.
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
    fn what_a_node_has_told_dies_with_it_and_the_newest_claim_counts() {
        let (n1, n2): (NodeName, NodeName) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let label = RuntimeLabel::parse("acme-prod").unwrap();
        let mut told = PeerReports::default();
        told.hear(&n1, Incarnation::new(1));
        told.hear(&n2, Incarnation::new(2));
        told.hold(&n1, label.clone(), hold(5));
        told.hold(&n2, label.clone(), hold(6));
        let nodes = |told: &PeerReports| -> Vec<String> {
            let holds = told.holds("acme-prod");
            holds.map(|(node, ..)| node.to_string()).collect()
        };
        assert_eq!(nodes(&told), ["n2"]);
        // A node that starts again has told nothing.
        let earlier = told.hear(&n2, Incarnation::new(3));
        assert_eq!(earlier, std::slice::from_ref(&label));
        assert_eq!(nodes(&told), ["n1"]);
        told.release(&label, &n1);
        assert!(told.runtime("acme-prod").is_none());
    }
}
