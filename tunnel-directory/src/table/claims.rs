//! The claims of the records: which runtime and which instance has a label, and how another instance gets it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tunnel_proto::handshake::InstanceId;

use super::{Table, entries::ClaimEntry};
use crate::{
    claim::{Claim, ClaimRefusal},
    names::{AccountName, RuntimeLabel, RuntimeName},
    owner::{Owner, Right},
    record::HeldState,
    takeover::HeldClaim,
};

/// How an instance gets a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClaimStep {
    /// It has the claim of this revision already.
    Hold(i64),
    /// By a claim after the one that was seen.
    Claim(NextClaim),
}

/// The next claim of a runtime, apart from who makes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NextClaim {
    /// The revision of the claim that is replaced; 0 if there is none.
    pub(crate) seen: i64,
    /// Takeovers in a row.
    pub(crate) takeovers: u32,
    /// The time since the last one.
    pub(crate) since_takeover: Duration,
    /// Instances that have lost the runtime since it was free.
    pub(crate) superseded: VecDeque<InstanceId>,
    /// The label has been taken from another runtime since it was free.
    pub(crate) overrules: bool,
}

impl Table {
    fn entry(&self, label: &str) -> Option<&ClaimEntry> {
        self.runtimes.get(label)?.claim.as_ref()
    }

    /// The claim of a runtime, held or not.
    pub(crate) fn claim(&self, label: &str) -> Option<Claim> {
        let claim = self.entry(label).filter(|claim| !claim.is_void)?;
        Some(Claim {
            instance: claim.instance.clone(),
            epoch: self.epoch(claim),
        })
    }

    /// The claim of a label, as far as it counts where the label is held for this runtime.
    pub(crate) fn claim_for(&self, label: &str, owner: Owner) -> Option<Claim> {
        self.claim(label).filter(|_| !self.is_rival(label, owner))
    }

    /// Whether the record of the claim is another runtime's, and does not take the label from this one: by a node of a version
    /// that does not compare them, or because the record was missing for a moment, as after a restore of etcd.
    pub(crate) fn is_rival(&self, label: &str, owner: Owner) -> bool {
        self.entry(label).is_some_and(|claim| {
            let is_other = claim.owner.is_some_and(|other| other != owner);
            claim.is_void || is_other && !claim.overrules
        })
    }

    /// The revision of the claim's record; 0 if there is none.
    pub(crate) fn claim_revision(&self, label: &str) -> i64 {
        self.entry(label).map_or(0, |claim| claim.revision())
    }

    /// The runtime that a label belongs to, by its record, or by what another node holds without one.
    pub(crate) fn owner(&self, label: &RuntimeLabel) -> Option<Owner> {
        let recorded = self.entry(label.as_str()).and_then(|claim| claim.owner);
        let reported = || {
            let (_, account, _) = self.peer_reports.runtime(label.as_str())?;
            Some(Owner::of(&account))
        };
        recorded.or_else(reported)
    }

    /// The label of a runtime that has a claim, with its account and name.
    pub(crate) fn runtime(&self, label: &str) -> Option<(RuntimeLabel, AccountName, RuntimeName)> {
        let claimed = || {
            let (label, records) = self.runtimes.get_key_value(label)?;
            let (account, name) = records.claim.as_ref()?.runtime(label)?;
            Some((label.clone(), account, name))
        };
        claimed().or_else(|| self.peer_reports.runtime(label))
    }

    /// The claim by which nodes hold a runtime; `None` while no node does.
    pub(crate) fn held_claim(&self, label: &str) -> Option<HeldClaim> {
        let records = self.runtimes.get(label)?;
        let entry = records.claim.as_ref()?;
        let mut is_held = false;
        let mut is_leaving = true;
        for (held, _) in self.live(label, records) {
            is_held = true;
            is_leaving &= held.state == HeldState::Leaving;
        }
        is_held.then(|| HeldClaim {
            claim: Claim {
                instance: entry.instance.clone(),
                epoch: self.epoch(entry),
            },
            contention: entry.contention(),
            is_leaving,
            superseded: entry.superseded(),
        })
    }

    /// Decides whether and how an instance gets a runtime now. A claim that a restore of etcd has outlived is made again,
    /// since nodes may have seen a greater epoch.
    ///
    /// # Errors
    /// When the instance does not get the runtime.
    pub(crate) fn decide(
        &self,
        label: &str,
        instance: &InstanceId,
        right: Right,
        now: Instant,
    ) -> Result<ClaimStep, ClaimRefusal> {
        let entry = self.entry(label);
        let seen = self.claim_revision(label);
        let is_taken = right == Right::Overruling || entry.is_some_and(|claim| claim.is_void);
        let overrules = is_taken || entry.is_some_and(|claim| claim.overrules);
        let Some(held) = self.held_claim(label) else {
            // A free runtime has no history: the instance that had it last gets it by its old claim only if that has none.
            let is_own = |claim: &&ClaimEntry| {
                claim.instance == *instance
                    && !is_taken
                    && !self.is_outlived(claim)
                    && !claim.has_takeovers()
            };
            return Ok(match entry.filter(is_own) {
                Some(claim) => ClaimStep::Hold(claim.revision()),
                None => ClaimStep::Claim(NextClaim {
                    seen,
                    overrules,
                    ..NextClaim::default()
                }),
            });
        };
        held.precheck(instance, right.on_conflict(), now)?;
        let next = match held.claim.instance == *instance && !is_taken {
            true if !entry.is_some_and(|claim| self.is_outlived(claim)) => {
                return Ok(ClaimStep::Hold(seen));
            }
            true => held,
            false => {
                let next = Claim {
                    instance: instance.clone(),
                    epoch: held.claim.epoch,
                };
                held.succeeded_by(next, now)
            }
        };
        let (takeovers, since_takeover) = next.contention.parts(now);
        Ok(ClaimStep::Claim(NextClaim {
            seen,
            takeovers,
            since_takeover,
            superseded: next.superseded,
            overrules,
        }))
    }
}
