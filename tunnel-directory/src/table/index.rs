//! What would otherwise be found by going through all runtimes: the number of records, and which claims have taken a
//! runtime from which node.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use smallvec::SmallVec;

use super::entries::RuntimeRecords;
use crate::{names::RuntimeLabel, node::NodeRun};

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) claims: usize,
    pub(super) held: usize,
    /// For each process, the claims by which runtimes were taken from it that it still has records of: the revisions, and
    /// the labels of each. One transaction may write many claims.
    taken: BTreeMap<Arc<NodeRun>, BTreeMap<i64, BTreeSet<RuntimeLabel>>>,
}

/// What the index has of one runtime.
#[derive(Debug)]
pub(super) struct Indexed {
    claims: usize,
    held: usize,
    claim_revision: i64,
    losers: SmallVec<[Arc<NodeRun>; 1]>,
}

/// A claim in the order of revisions; without a label, after all claims of its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimPosition {
    /// The revision of the claim.
    pub(crate) revision: i64,
    /// The label of the runtime.
    pub(crate) label: Option<RuntimeLabel>,
}

impl ClaimPosition {
    /// After all claims of this revision.
    pub(crate) fn after(revision: i64) -> Self {
        Self {
            revision,
            label: None,
        }
    }

    /// The later one of both.
    pub(crate) fn max(self, other: Self) -> Self {
        // `None` is after all labels.
        let key = |position: &Self| (position.revision, position.label.is_none());
        let is_later = match key(&self) == key(&other) {
            true => other.label > self.label,
            false => key(&other) > key(&self),
        };
        match is_later {
            true => other,
            false => self,
        }
    }
}

impl Indexed {
    pub(super) fn of(records: &RuntimeRecords) -> Self {
        let claim = records.claim.as_ref();
        let revision = claim.map_or(0, |claim| claim.revision());
        let counts = claim.is_some_and(|claim| !claim.is_void);
        let held = records.held.iter();
        let losers = held.filter(|held| counts && held.epoch != revision);
        Self {
            claims: usize::from(claim.is_some()),
            held: records.held.len(),
            claim_revision: revision,
            losers: losers.map(|held| held.run.clone()).collect(),
        }
    }
}

impl Index {
    /// The records of a runtime have changed.
    pub(super) fn on_change(
        &mut self,
        label: &RuntimeLabel,
        before: &Indexed,
        records: &RuntimeRecords,
    ) {
        let after = Indexed::of(records);
        self.claims = self.claims + after.claims - before.claims;
        self.held = self.held + after.held - before.held;
        for run in &before.losers {
            self.remove(run, before.claim_revision, label);
        }
        for run in after.losers {
            let revisions = self.taken.entry(run).or_default();
            let labels = revisions.entry(after.claim_revision).or_default();
            labels.insert(label.clone());
        }
    }

    fn remove(&mut self, run: &Arc<NodeRun>, revision: i64, label: &RuntimeLabel) {
        let Some(revisions) = self.taken.get_mut(run) else {
            return;
        };
        if let Some(labels) = revisions.get_mut(&revision) {
            labels.remove(label);
            if labels.is_empty() {
                revisions.remove(&revision);
            }
        }
        if revisions.is_empty() {
            self.taken.remove(run);
        }
    }

    /// The claims after this position by which runtimes were taken from a process, in their order.
    pub(super) fn taken_from(
        &self,
        run: &NodeRun,
        after: &ClaimPosition,
    ) -> impl Iterator<Item = (i64, &RuntimeLabel)> {
        let revisions = self.taken.get(run);
        let of_revision = after.label.as_ref().and_then(|last| {
            let labels = revisions?.get(&after.revision)?;
            Some(labels.range::<RuntimeLabel, _>((Bound::Excluded(last), Bound::Unbounded)))
        });
        let of_revision = of_revision.into_iter().flatten();
        let later = revisions.into_iter().flat_map(|revisions| {
            revisions.range((Bound::Excluded(after.revision), Bound::Unbounded))
        });
        of_revision.map(|label| (after.revision, label)).chain(
            later.flat_map(|(revision, labels)| labels.iter().map(|label| (*revision, label))),
        )
    }
}
