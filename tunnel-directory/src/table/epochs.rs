//! Epochs of claims: the generation, which is raised when etcd was restored, and the revision.

use super::{Table, entries::ClaimEntry};
use crate::{claim::Epoch, names::RuntimeLabel};

/// How far the generation stands above the revision in an epoch. etcd would need 8,900 years at 1,000 revisions a second
/// to get there.
const GENERATION_SHIFT: u32 = 48;

/// The epoch of a claim of this generation and revision.
fn epoch(generation: u16, revision: i64) -> Epoch {
    let generation = u64::from(generation) << GENERATION_SHIFT;
    Epoch::from_number(generation | u64::try_from(revision).unwrap_or(0))
}

impl Table {
    /// The epoch of a claim. One from before the last raise of the generation may be what a snapshot has brought back, and
    /// supersedes no later one, however great its revision is.
    pub(super) fn epoch(&self, claim: &ClaimEntry) -> Epoch {
        let known = claim.generation();
        let generation = known.unwrap_or_else(|| self.generation_at(claim.revision()));
        epoch(generation, claim.revision())
    }

    /// The epoch of the claim that a label has or had at this revision.
    pub(crate) fn epoch_at(&self, label: &RuntimeLabel, revision: i64) -> Epoch {
        let records = self.runtimes.get(label.as_str());
        self.epoch_of(records.and_then(|records| records.claim.as_ref()), revision)
    }

    /// The epoch of the claim at this revision, where the runtime's claim is `claim` now.
    pub(super) fn epoch_of(&self, claim: Option<&ClaimEntry>, revision: i64) -> Epoch {
        match claim.filter(|claim| claim.revision() == revision) {
            Some(claim) => self.epoch(claim),
            None => epoch(self.generation_at(revision), revision),
        }
    }

    /// The epoch before all claims of the generation.
    pub(crate) fn first_epoch(&self) -> Epoch {
        epoch(self.generation_at(0), 0)
    }

    /// The generation of a claim of this revision whose record does not say it: the last one, or the one before.
    fn generation_at(&self, revision: i64) -> u16 {
        match revision < self.cluster_revision {
            true => self.generation.saturating_sub(1),
            false => self.generation,
        }
    }

    /// Whether a claim is from before the last raise of the generation.
    pub(super) fn is_outlived(&self, claim: &ClaimEntry) -> bool {
        match claim.generation() {
            Some(generation) => generation < self.generation,
            None => claim.revision() < self.cluster_revision,
        }
    }
}
