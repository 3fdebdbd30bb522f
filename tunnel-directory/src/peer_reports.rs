//! What other nodes report to this one on their links, beside the records: that they live, and where what they hold differs
//! from their records while etcd cannot be written. A plain value.
//!
//! The reports of a node are forgotten when its links have ended. Where etcd has a record too, the record decides.

use std::collections::BTreeMap;

use tunnel_proto::handshake::InstanceId;

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
    differences: BTreeMap<RuntimeLabel, HoldDifference>,
    /// All differences that there were when it began have been reported.
    is_complete: bool,
    /// Differences that are over: the revisions up to which this node has to know the records before it believes that.
    ending: BTreeMap<RuntimeLabel, i64>,
}

/// How what a node holds of a runtime differs from its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HoldDifference {
    /// It holds the runtime, and has no record that says so.
    Held(UnrecordedHold),
    /// It has a record, and holds nothing.
    Released,
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
            differences: BTreeMap::new(),
            is_complete: false,
            ending: BTreeMap::new(),
        };
        self.reporters.insert(run.node.clone(), reporter);
        earlier
    }

    /// A node sends no more reports. Returns the runtimes that it has reported.
    pub(crate) fn forget(&mut self, node: &NodeName) -> Vec<RuntimeLabel> {
        let reporter = self.reporters.remove(node);
        let differences = reporter.map(|reporter| reporter.differences);
        differences.unwrap_or_default().into_keys().collect()
    }

    /// Whether this process of a node sends reports.
    pub(crate) fn is_reporting(&self, node: &NodeName, incarnation: Incarnation) -> bool {
        let reporter = self.reporters.get(node);
        reporter.is_some_and(|reporter| reporter.run.incarnation == incarnation)
    }

    /// A node has reported all differences that there are.
    pub(crate) fn on_all_reported(&mut self, node: &NodeName) {
        if let Some(reporter) = self.reporters.get_mut(node) {
            reporter.is_complete = true;
        }
    }

    /// Whether this process of a node sends reports, and those so far say which of its records are void.
    pub(crate) fn has_reported_all(&self, node: &NodeName, incarnation: Incarnation) -> bool {
        let reporter = self.reporters.get(node);
        reporter.is_some_and(|it| it.run.incarnation == incarnation && it.is_complete)
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

    /// A node has reported how what it holds of a runtime differs from its record; `None` if it does not any more.
    pub(crate) fn set_difference(
        &mut self,
        node: &NodeName,
        label: RuntimeLabel,
        difference: Option<HoldDifference>,
    ) {
        let Some(reporter) = self.reporters.get_mut(node) else {
            return;
        };
        reporter.ending.remove(&label);
        match difference {
            Some(difference) => reporter.differences.insert(label, difference),
            None => reporter.differences.remove(&label),
        };
    }

    /// A node has reported that its record of a runtime says what it holds, as of this revision, which is not known here yet.
    pub(crate) fn end_difference(&mut self, node: &NodeName, label: &RuntimeLabel, revision: i64) {
        if let Some(reporter) = self.reporters.get_mut(node)
            && reporter.differences.contains_key(label)
        {
            reporter.ending.insert(label.clone(), revision);
        }
    }

    /// The records are known up to this revision. Returns the runtimes of which differences are over.
    pub(crate) fn on_position(&mut self, position: i64) -> Vec<RuntimeLabel> {
        let mut over = Vec::new();
        for reporter in self.reporters.values_mut() {
            let differences = &mut reporter.differences;
            reporter.ending.retain(|label, revision| {
                let is_over = *revision <= position;
                if is_over {
                    differences.remove(label);
                    over.push(label.clone());
                }
                !is_over
            });
        }
        over
    }

    /// Whether a process has reported that it does not hold a runtime for this instance, whatever its record says.
    pub(crate) fn has_released(
        &self,
        label: &str,
        run: &NodeRun,
        instance: Option<&InstanceId>,
    ) -> bool {
        let reporter = self.reporters.get(&run.node);
        let reporter = reporter.filter(|reporter| reporter.run == *run);
        let difference = reporter.and_then(|reporter| reporter.differences.get(label));
        difference.is_some_and(|difference| match difference {
            HoldDifference::Held(hold) => Some(&hold.claim.instance) != instance,
            HoldDifference::Released => true,
        })
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
        reporters.filter_map(move |reporter| match reporter.differences.get(label)? {
            HoldDifference::Held(hold) => Some((&reporter.run, hold)),
            HoldDifference::Released => None,
        })
    }

    /// The label and the names of a runtime that is reported.
    pub(crate) fn runtime(&self, label: &str) -> Option<(RuntimeLabel, AccountName, RuntimeName)> {
        let mut reporters = self.reporters.values();
        reporters.find_map(
            |reporter| match reporter.differences.get_key_value(label)? {
                (label, HoldDifference::Held(hold)) => {
                    Some((label.clone(), hold.account.clone(), hold.name.clone()))
                }
                (_, HoldDifference::Released) => None,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{claim::Epoch, fixtures::instance};

    fn hold(epoch: u64) -> Option<HoldDifference> {
        Some(HoldDifference::Held(UnrecordedHold {
            claim: Claim {
                instance: instance(1),
                epoch: Epoch::from_number(epoch),
            },
            account: "acme".parse().unwrap(),
            name: "prod".parse().unwrap(),
            is_leaving: false,
        }))
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
        reports.set_difference(&n1, label.clone(), hold(5));
        reports.set_difference(&n2, label.clone(), hold(6));
        let nodes = |reports: &PeerReports| -> Vec<String> {
            let holds = reports.holds("acme-prod");
            holds.map(|(run, _)| run.node.to_string()).collect()
        };
        assert_eq!(nodes(&reports), ["n2"]);
        // A node that starts again has reported nothing.
        let earlier = reports.on_report(&run(&n2, 3));
        assert_eq!(earlier, std::slice::from_ref(&label));
        assert_eq!(nodes(&reports), ["n1"]);
        reports.set_difference(&n1, label, Some(HoldDifference::Released));
        assert!(reports.runtime("acme-prod").is_none());
        let has_released = |number| reports.has_released("acme-prod", &run(&n1, number), None);
        assert!(has_released(1) && !has_released(4));
    }
}
