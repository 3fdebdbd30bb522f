//! The claims of the records: which runtime and which instance has a label, and how another instance gets it.

use tokio::time::Instant;
use tunnel_proto::handshake::InstanceId;

use super::{
    super::super::{
        Claim, ClaimRefusal,
        owner::{Owner, Right},
        standing::Standing,
    },
    super::record::HeldState,
    NextClaim, Step, Table,
    entries::ClaimEntry,
};
use crate::runtimes::{AccountName, RuntimeLabel, RuntimeName};

impl Table {
    fn entry(&self, label: &str) -> Option<&ClaimEntry> {
        self.runtimes.get(label)?.claim.as_ref()
    }

    /// The claim of a runtime, held or not.
    pub(in super::super) fn claim(&self, label: &str) -> Option<Claim> {
        let claim = self.entry(label).filter(|claim| !claim.is_usurped)?;
        Some(Claim {
            instance: claim.instance.clone(),
            epoch: self.epoch(claim.revision),
        })
    }

    /// The claim of a label, as far as it counts where the label is held for this runtime.
    pub(in super::super) fn claim_for(&self, label: &str, owner: Owner) -> Option<Claim> {
        self.claim(label).filter(|_| !self.is_rival(label, owner))
    }

    /// Whether the record of the claim is another runtime's, and does not take the label from this one: by a node of a version
    /// that does not compare them, or because the record was missing for a moment, as after a restore of etcd.
    pub(in super::super) fn is_rival(&self, label: &str, owner: Owner) -> bool {
        self.entry(label).is_some_and(|claim| {
            let is_other = claim.owner.is_some_and(|other| other != owner);
            claim.is_usurped || is_other && !claim.overrules
        })
    }

    /// The revision of the claim's record; 0 if there is none.
    pub(in super::super) fn claim_revision(&self, label: &str) -> i64 {
        self.entry(label).map_or(0, |claim| claim.revision)
    }

    /// The runtime that a label belongs to, by its record, or by what another node holds without one.
    pub(in super::super) fn owner(&self, label: &RuntimeLabel) -> Option<Owner> {
        let recorded = self.entry(label.as_str()).and_then(|claim| claim.owner);
        let reported = || {
            let (_, account, _) = self.peer_reports.runtime(label.as_str())?;
            Some(Owner::of(&account))
        };
        recorded.or_else(reported)
    }

    /// The label of a runtime that has a claim, with its account and name.
    pub(in super::super) fn runtime(
        &self,
        label: &str,
    ) -> Option<(RuntimeLabel, AccountName, RuntimeName)> {
        let claimed = || {
            let (label, records) = self.runtimes.get_key_value(label)?;
            let (account, name) = records.claim.as_ref()?.runtime(label)?;
            Some((label.clone(), account, name))
        };
        claimed().or_else(|| self.peer_reports.runtime(label))
    }

    /// What decides about the next claim; `None` while no node holds the runtime.
    pub(in super::super) fn standing(&self, label: &str) -> Option<Standing> {
        let records = self.runtimes.get(label)?;
        let entry = records.claim.as_ref()?;
        let mut is_held = false;
        let mut is_leaving = true;
        for (held, _) in self.live(records) {
            is_held = true;
            is_leaving &= held.state == HeldState::Leaving;
        }
        is_held.then(|| Standing {
            claim: Claim {
                instance: entry.instance.clone(),
                epoch: self.epoch(entry.revision),
            },
            contention: entry.contention(),
            is_leaving,
            superseded: entry.superseded(),
        })
    }

    /// Whether and how an instance gets a runtime now. A claim that a restore of etcd has outlived is made again, since nodes
    /// may have seen a greater epoch.
    pub(in super::super) fn decide(
        &self,
        label: &str,
        instance: &InstanceId,
        right: Right,
        now: Instant,
    ) -> Result<Step, ClaimRefusal> {
        let entry = self.entry(label);
        let seen = self.claim_revision(label);
        let is_taken = right == Right::Overruling || entry.is_some_and(|claim| claim.is_usurped);
        let overrules = is_taken || entry.is_some_and(|claim| claim.overrules);
        let Some(standing) = self.standing(label) else {
            // A free runtime has no history: the instance that had it last gets it by its old claim only if that has none.
            let is_own = |claim: &&ClaimEntry| {
                claim.instance == *instance
                    && !is_taken
                    && !self.is_outlived(claim.revision)
                    && !claim.has_takeovers()
            };
            return Ok(match entry.filter(is_own) {
                Some(claim) => Step::Hold(claim.revision),
                None => Step::Claim(NextClaim {
                    seen,
                    overrules,
                    ..NextClaim::default()
                }),
            });
        };
        standing.precheck(instance, right.on_conflict(), now)?;
        let next = match standing.claim.instance == *instance && !is_taken {
            true if !self.is_outlived(seen) => return Ok(Step::Hold(seen)),
            true => standing,
            false => {
                let next = Claim {
                    instance: instance.clone(),
                    epoch: standing.claim.epoch,
                };
                standing.succeeded_by(next, now)
            }
        };
        let (row, row_age) = next.contention.parts(now);
        Ok(Step::Claim(NextClaim {
            seen,
            row,
            row_age,
            superseded: next.superseded,
            overrules,
        }))
    }
}
