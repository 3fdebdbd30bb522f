//! How an instance gets a runtime: by the rules, the table and the writer; while etcd is away, without a record.

use std::time::Instant;

use tunnel_proto::handshake::InstanceId;

use super::{ClaimId, ClaimProgress, ClaimResult, GrantedClaim, Now, Output, SharedDirectory};
use crate::{
    claim::{Claim, ClaimRefusal, OnConflict, WithoutDirectory},
    holds::Hold,
    names::{AccountName, RuntimeLabel, RuntimeName},
    owner::{Claimant, Right},
    table::ClaimStep,
};

/// How often a claim is decided because another one was faster.
pub(super) const ROUNDS: u32 = 5;

/// A claim that a session waits for.
#[derive(Debug)]
pub(super) struct PendingClaim {
    pub(super) id: ClaimId,
    pub(super) label: RuntimeLabel,
    pub(super) account: AccountName,
    pub(super) name: RuntimeName,
    is_listed: bool,
    pub(super) instance: InstanceId,
    on_conflict: OnConflict,
    pub(super) step: ClaimStep,
    /// How often it may be decided again.
    rounds_left: u32,
    /// The session has ended.
    pub(super) is_abandoned: bool,
}

/// What the rules say of a claim.
enum Attempt {
    Granted(GrantedClaim),
    Write(ClaimStep),
}

impl PendingClaim {
    fn claimant(&self) -> Claimant<'_> {
        Claimant {
            label: &self.label,
            account: &self.account,
            name: &self.name,
            is_listed: self.is_listed,
            instance: &self.instance,
            on_conflict: self.on_conflict,
        }
    }
}

impl SharedDirectory {
    /// Checks whether a claim would be granted now.
    ///
    /// # Errors
    /// When it would not.
    pub fn precheck(&self, claimant: Claimant<'_>, now: Instant) -> Result<(), ClaimRefusal> {
        let (label, instance) = (claimant.label, claimant.instance);
        let right = self.right(claimant)?;
        let hold = self.current_hold(label);
        if right != Right::Overruling && hold.is_some_and(|hold| hold.claim.instance == *instance) {
            return Ok(());
        }
        let step = self.table.decide(label.as_str(), instance, right, now)?;
        let is_takeover = matches!(step, ClaimStep::Claim(_));
        match is_takeover && self.is_away() && self.is_held(label, |_| true) {
            true => Err(ClaimRefusal::Unavailable),
            false => Ok(()),
        }
    }

    /// Claims a runtime for a session. One more session of what this node holds is answered at once, as is a refusal.
    pub fn claim(&mut self, id: ClaimId, claimant: Claimant<'_>, now: Now) -> ClaimProgress {
        let progress = match self.attempt(claimant, now.instant) {
            Err(refusal) => ClaimProgress::Answered(Err(refusal)),
            Ok(Attempt::Granted(granted)) => ClaimProgress::Answered(Ok(granted)),
            Ok(Attempt::Write(step)) => {
                self.enqueue(PendingClaim {
                    id,
                    label: claimant.label.clone(),
                    account: claimant.account.clone(),
                    name: claimant.name.clone(),
                    is_listed: claimant.is_listed,
                    instance: claimant.instance.clone(),
                    on_conflict: claimant.on_conflict,
                    step,
                    rounds_left: ROUNDS - 1,
                    is_abandoned: false,
                });
                ClaimProgress::Pending
            }
        };
        self.write_next(now);
        progress
    }

    /// The session that waits for a claim has ended.
    pub fn on_claim_abandoned(&mut self, id: ClaimId) {
        self.writer.abandon(id);
    }

    /// The instance leaves this node.
    pub fn on_leave(&mut self, label: &RuntimeLabel, serial: u64, now: Now) {
        if self.holds.leave(label, serial) {
            self.write(label);
            self.write_next(now);
        }
    }

    /// A session has ended.
    pub fn on_release(&mut self, label: &RuntimeLabel, serial: u64, now: Now) {
        if self.holds.release(label, serial) {
            self.write(label);
            self.write_next(now);
        }
    }

    /// Adds a session to what this node holds for the instance already, or decides how the instance gets the runtime.
    fn attempt(&mut self, claimant: Claimant<'_>, now: Instant) -> Result<Attempt, ClaimRefusal> {
        let (label, instance) = (claimant.label, claimant.instance);
        let right = self.right(claimant)?;
        let is_here = self.current_hold(label).is_some();
        let owner = claimant.owner();
        if is_here && let Some(added) = self.holds.add_session(label, owner, instance) {
            if added.is_record_changed {
                self.write(label);
            }
            return Ok(Attempt::Granted(GrantedClaim {
                label: label.clone(),
                claim: added.claim,
                serial: added.serial,
            }));
        }
        match self.table.decide(label.as_str(), instance, right, now)? {
            // It has the claim: only the record of this node is missing, and follows.
            ClaimStep::Hold(_) if self.is_away() => {
                self.claim_provisionally(claimant).map(Attempt::Granted)
            }
            step => Ok(Attempt::Write(step)),
        }
    }

    /// Another claim was made, or etcd was restored: the table has it now.
    pub(super) fn on_claim_outdated(&mut self, mut pending: PendingClaim, now: Instant) {
        if pending.is_abandoned {
            return;
        }
        let attempt = match pending.rounds_left.checked_sub(1) {
            None => Err(ClaimRefusal::Unavailable),
            Some(left) => {
                pending.rounds_left = left;
                self.attempt(pending.claimant(), now)
            }
        };
        match attempt {
            Err(refusal) => self.output(Output::ClaimAnswer(pending.id, Err(refusal))),
            Ok(Attempt::Granted(granted)) => {
                self.output(Output::ClaimAnswer(pending.id, Ok(granted)));
            }
            Ok(Attempt::Write(step)) => {
                pending.step = step;
                self.enqueue(pending);
            }
        }
    }

    /// etcd has not answered the claim.
    pub(super) fn on_claim_unanswered(&mut self, pending: &PendingClaim) {
        if pending.is_abandoned {
            return;
        }
        let answer = self.claim_provisionally(pending.claimant());
        self.output(Output::ClaimAnswer(pending.id, answer));
    }

    /// Gives an instance a runtime while etcd is away: one more session of the instance that has it, or a runtime that
    /// nobody holds. The claim follows, and gives way to any other that was made meanwhile.
    pub(super) fn claim_provisionally(
        &mut self,
        claimant: Claimant<'_>,
    ) -> Result<GrantedClaim, ClaimRefusal> {
        let (label, instance) = (claimant.label, claimant.instance);
        let right = self.right(claimant)?;
        let table = &self.table;
        let reported = table.unrecorded_holds(label.as_str()).next();
        let reported = reported.map(|(_, hold)| hold.claim.clone());
        let recorded = table.claim(label.as_str());
        let is_of = |claim: &Option<Claim>| {
            let claim = claim.as_ref().filter(|_| right != Right::Overruling);
            claim.is_some_and(|claim| claim.instance == *instance)
        };
        let is_recorded = is_of(&recorded);
        let current = reported.or(recorded);
        let is_own = is_of(&current);
        let is_held = self.is_held(label, |hold| hold.claim.instance != *instance);
        let is_refused = is_held
            || self.settings.without_directory == WithoutDirectory::Refuse
            || self.state.is_behind();
        if is_refused && !is_own {
            return Err(ClaimRefusal::Unavailable);
        }
        let claim = Claim {
            instance: instance.clone(),
            epoch: current.map_or_else(|| table.first_epoch(), |claim| claim.epoch),
        };
        let names = (claimant.account.clone(), claimant.name.clone());
        let serial = self.holds.insert(label, claim.clone(), names, !is_recorded);
        if !is_own {
            self.output(Output::ClaimResult(ClaimResult::Provisional));
        }
        self.write(label);
        Ok(GrantedClaim {
            label: label.clone(),
            claim,
            serial,
        })
    }

    /// Whether this node holds the runtime in this way, or another one may hold it.
    fn is_held(&self, label: &RuntimeLabel, here: impl FnOnce(&Hold) -> bool) -> bool {
        self.holds.get(label).is_some_and(here)
            || self
                .table
                .is_held_elsewhere(label.as_str(), self.run.incarnation)
            || self.table.unrecorded_holds(label.as_str()).next().is_some()
    }

    /// What this node holds of a label, if it is not replaced by another instance's claim.
    fn current_hold(&self, label: &RuntimeLabel) -> Option<&Hold> {
        self.holds.get(label).filter(|hold| {
            let (current, held) = (hold.current(&self.table, label), &hold.claim);
            current.is_none_or(|claim| claim.instance == held.instance || claim.epoch <= held.epoch)
        })
    }

    /// The right of a session to its label, by what this node holds, by the record, and by what other nodes hold without one.
    fn right(&self, claimant: Claimant<'_>) -> Result<Right, ClaimRefusal> {
        let held = self.current_hold(claimant.label).map(Hold::owner);
        claimant.right(held.or_else(|| self.table.owner(claimant.label)))
    }
}
