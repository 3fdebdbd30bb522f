//! What other nodes report to this one on their links, beside the records: that they live, and what they hold while etcd
//! cannot be written. A plain value.
//!
//! The reports of a node are forgotten when its links have ended. Where etcd has a record too, the record decides.

use std::collections::BTreeMap;

use crate::{
    claim::Claim,
    names::{AccountName, RuntimeLabel, RuntimeName},
    node::{Incarnation, NodeName, NodeRun},
    record::NodeRecord,
};

/// What is reported, by the nodes that send reports.
#[derive(Debug, Default)]
pub(crate) struct PeerReports {
    reporters: BTreeMap<NodeName, Reporter>,
}

#[derive(Debug)]
struct Reporter {
    run: NodeRun,
    /// The last value of the node's key, if that is gone: its lease has ended, and it lives.
    keyless: Option<NodeRecord>,
    holds: BTreeMap<RuntimeLabel, UnrecordedHold>,
}

/// A runtime that a node holds, and has no record of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnrecordedHold {
    /// The claim that it holds the runtime by.
    pub(crate) claim: Claim,
    /// The account of the runtime.
    pub(crate) account: AccountName,
    /// The runtime's name.
    pub(crate) name: RuntimeName,
    /// Whether the instance leaves the node.
    pub(crate) is_leaving: bool,
}

impl PeerReports {
    /// A process of a node has sent a report. Returns the runtimes that an earlier one has reported.
    pub(crate) fn on_report(&mut self, run: &NodeRun) -> Vec<RuntimeLabel> {
        if self.is_reporting(&run.node, run.incarnation) {
            return Vec::new();
        }
        let earlier = self.forget(&run.node);
        let reporter = Reporter {
            run: run.clone(),
            keyless: None,
            holds: BTreeMap::new(),
        };
        self.reporters.insert(run.node.clone(), reporter);
        earlier
    }

    /// A node sends no more reports. Returns the runtimes that it has reported.
    pub(crate) fn forget(&mut self, node: &NodeName) -> Vec<RuntimeLabel> {
        let reporter = self.reporters.remove(node);
        let holds = reporter.map(|reporter| reporter.holds).unwrap_or_default();
        holds.into_keys().collect()
    }

    /// Whether this process of a node sends reports.
    pub(crate) fn is_reporting(&self, node: &NodeName, incarnation: Incarnation) -> bool {
        let reporter = self.reporters.get(node);
        reporter.is_some_and(|reporter| reporter.run.incarnation == incarnation)
    }

    /// The key of a node is gone.
    pub(crate) fn on_key_gone(
        &mut self,
        node: &NodeName,
        incarnation: Incarnation,
        record: NodeRecord,
    ) {
        let reporter = self.reporters.get_mut(node);
        if let Some(reporter) = reporter.filter(|known| known.run.incarnation == incarnation) {
            reporter.keyless = Some(record);
        }
    }

    /// A node has a key.
    pub(crate) fn on_key(&mut self, node: &NodeName) {
        if let Some(reporter) = self.reporters.get_mut(node) {
            reporter.keyless = None;
        }
    }

    /// The last value of the key of a process that lives without one.
    pub(crate) fn keyless(&self, run: &NodeRun) -> Option<&NodeRecord> {
        let reporter = self.reporters.get(&run.node)?;
        let record = reporter.keyless.as_ref()?;
        (reporter.run == *run).then_some(record)
    }

    /// A node has reported that it holds a runtime.
    pub(crate) fn hold(&mut self, node: &NodeName, label: RuntimeLabel, hold: UnrecordedHold) {
        if let Some(reporter) = self.reporters.get_mut(node) {
            reporter.holds.insert(label, hold);
        }
    }

    /// A node holds a runtime no more, or has a record of it.
    pub(crate) fn release(&mut self, label: &RuntimeLabel, node: &NodeName) {
        if let Some(reporter) = self.reporters.get_mut(node) {
            reporter.holds.remove(label);
        }
    }

    /// Who holds a runtime without a record, by the newest claim that is reported.
    pub(crate) fn holds(&self, label: &str) -> impl Iterator<Item = (&NodeRun, &UnrecordedHold)> {
        let newest = self.all(label).map(|(_, hold)| hold.claim.epoch).max();
        let all = self.all(label);
        all.filter(move |(_, hold)| Some(hold.claim.epoch) == newest)
    }

    /// Reports of a runtime, in the order of the nodes' names.
    fn all(&self, label: &str) -> impl Iterator<Item = (&NodeRun, &UnrecordedHold)> {
        let reporters = self.reporters.values();
        reporters.filter_map(move |reporter| Some((&reporter.run, reporter.holds.get(label)?)))
    }

    /// The label and the names of a runtime that is reported.
    pub(crate) fn runtime(&self, label: &str) -> Option<(RuntimeLabel, AccountName, RuntimeName)> {
        let mut reporters = self.reporters.values();
        let found = reporters.find_map(|reporter| reporter.holds.get_key_value(label));
        let (label, hold) = found?;
        Some((label.clone(), hold.account.clone(), hold.name.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{claim::Epoch, fixtures::instance};

    fn hold(epoch: u64) -> UnrecordedHold {
        UnrecordedHold {
            claim: Claim {
                instance: instance(1),
                epoch: Epoch::from_number(epoch),
            },
            account: "acme".parse().unwrap(),
            name: "prod".parse().unwrap(),
            is_leaving: false,
        }
    }

    fn run(node: &NodeName, number: u64) -> NodeRun {
        NodeRun {
            node: node.clone(),
            incarnation: Incarnation::new(number),
        }
    }

    #[test]
    fn reports_of_a_node_end_with_it_and_the_newest_claim_counts() {
        let (n1, n2): (NodeName, NodeName) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let label = RuntimeLabel::parse("acme-prod").unwrap();
        let mut reports = PeerReports::default();
        reports.on_report(&run(&n1, 1));
        reports.on_report(&run(&n2, 2));
        reports.hold(&n1, label.clone(), hold(5));
        reports.hold(&n2, label.clone(), hold(6));
        let nodes = |reports: &PeerReports| -> Vec<String> {
            let holds = reports.holds("acme-prod");
            holds.map(|(run, _)| run.node.to_string()).collect()
        };
        assert_eq!(nodes(&reports), ["n2"]);
        // A node that starts again has reported nothing.
        let earlier = reports.on_report(&run(&n2, 3));
        assert_eq!(earlier, std::slice::from_ref(&label));
        assert_eq!(nodes(&reports), ["n1"]);
        reports.release(&label, &n1);
        assert!(reports.runtime("acme-prod").is_none());
    }
}
