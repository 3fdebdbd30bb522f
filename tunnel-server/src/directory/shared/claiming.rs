//! How an instance gets a runtime: by the rules, the table and the writer; while etcd is away, without a record.

use std::sync::Arc;

use tokio::sync::oneshot;
use tunnel_directory::{
    Claim, ClaimRefusal, Claimant, Right, RuntimeLabel, WithoutDirectory,
    holds::{Hold, Holds},
    table::{ClaimStep, Table},
};

use super::{
    super::{ClaimGuard, metrics::PROVISIONAL, now},
    Shared,
    writer::{ClaimAnswer, ClaimRequest},
};

/// How often a claim is decided again because another one was faster.
pub(super) const ROUNDS: u32 = 5;

impl Shared {
    pub(crate) fn precheck(&self, claimant: Claimant<'_>) -> Result<(), ClaimRefusal> {
        let (label, instance) = (claimant.label, claimant.instance);
        let holds = self.holds.lock();
        let table = self.table.read();
        let right = right(&holds, &table, claimant)?;
        let hold = current(&holds, &table, label);
        if right != Right::Overruling && hold.is_some_and(|hold| hold.claim.instance == *instance) {
            return Ok(());
        }
        let step = table.decide(label.as_str(), instance, right, now())?;
        let is_takeover = matches!(step, ClaimStep::Claim(_));
        let is_held = || {
            let is_own = holds.get(label).is_some();
            is_own
                || table.is_held_elsewhere(label.as_str(), self.run.incarnation)
                || table.unrecorded_holds(label.as_str()).next().is_some()
        };
        match is_takeover && self.is_away() && is_held() {
            true => Err(ClaimRefusal::Unavailable),
            false => Ok(()),
        }
    }

    pub(crate) async fn claim(
        self: &Arc<Self>,
        claimant: Claimant<'_>,
    ) -> Result<ClaimGuard, ClaimRefusal> {
        for _ in 0..ROUNDS {
            let step = match self.enter(claimant)? {
                Entered::Joined(guard) => return Ok(guard),
                // It has the claim: only the record of this node is missing, and follows.
                Entered::Next(ClaimStep::Hold(_)) if self.is_away() => {
                    return self.claim_alone(claimant);
                }
                Entered::Next(step) => step,
            };
            let (answer, answered) = oneshot::channel();
            let request = ClaimRequest {
                label: claimant.label.clone(),
                account: claimant.account.clone(),
                name: claimant.name.clone(),
                instance: claimant.instance.clone(),
                step,
                answer,
            };
            if self.claims.send(request).await.is_err() {
                return Err(ClaimRefusal::Unavailable);
            }
            match answered.await {
                Ok(ClaimAnswer::Claimed(guard)) => return Ok(guard),
                Ok(ClaimAnswer::Outdated) => {}
                Ok(ClaimAnswer::Away) => return self.claim_alone(claimant),
                Err(_) => return Err(ClaimRefusal::Unavailable),
            }
        }
        Err(ClaimRefusal::Unavailable)
    }

    /// Joins what this node holds for the instance already, or decides how it gets the runtime.
    pub(super) fn enter(self: &Arc<Self>, claimant: Claimant<'_>) -> Result<Entered, ClaimRefusal> {
        let (label, instance) = (claimant.label, claimant.instance);
        let mut holds = self.holds.lock();
        let table = self.table.read();
        let right = right(&holds, &table, claimant)?;
        let is_here = current(&holds, &table, label).is_some();
        if is_here && let Some(added) = holds.add_session(label, claimant.owner(), instance) {
            drop((table, holds));
            if added.is_record_changed {
                self.write(label);
            }
            return Ok(Entered::Joined(self.guard(
                label,
                added.claim,
                added.serial,
            )));
        }
        let step = table.decide(label.as_str(), instance, right, now())?;
        Ok(Entered::Next(step))
    }

    /// Gives an instance a runtime while etcd is away: one more session of the instance that has it, or a runtime that
    /// nobody holds. The claim follows, and gives way to any other that was made meanwhile.
    pub(super) fn claim_alone(
        self: &Arc<Self>,
        claimant: Claimant<'_>,
    ) -> Result<ClaimGuard, ClaimRefusal> {
        let (label, instance) = (claimant.label, claimant.instance);
        let mut holds = self.holds.lock();
        let table = self.table.read();
        let right = right(&holds, &table, claimant)?;
        let reported = table.unrecorded_holds(label.as_str()).next();
        let reported = reported.map(|(_, hold)| hold.claim.clone());
        let current = reported.or_else(|| table.claim(label.as_str()));
        let is_own = right != Right::Overruling
            && current
                .as_ref()
                .is_some_and(|claim| claim.instance == *instance);
        let is_held = holds
            .get(label)
            .is_some_and(|hold| hold.claim.instance != *instance)
            || table.is_held_elsewhere(label.as_str(), self.run.incarnation)
            || table.unrecorded_holds(label.as_str()).next().is_some();
        let is_refused = is_held
            || self.node.without_directory == WithoutDirectory::Refuse
            || self.state().is_behind();
        if is_refused && !is_own {
            return Err(ClaimRefusal::Unavailable);
        }
        let claim = Claim {
            instance: instance.clone(),
            epoch: current.map_or_else(|| table.epoch(0), |claim| claim.epoch),
        };
        drop(table);
        let names = (claimant.account.clone(), claimant.name.clone());
        let serial = holds.insert(label, claim.clone(), names, !is_own);
        drop(holds);
        if !is_own {
            self.metrics.claims(PROVISIONAL).inc();
        }
        self.write(label);
        Ok(self.guard(label, claim, serial))
    }
}

/// How a claim goes on.
pub(super) enum Entered {
    Joined(ClaimGuard),
    Next(ClaimStep),
}

/// What this node holds of a label, if it is not replaced by another instance's claim.
fn current<'a>(holds: &'a Holds, table: &Table, label: &RuntimeLabel) -> Option<&'a Hold> {
    holds.get(label).filter(|hold| {
        let (current, held) = (hold.current(table, label), &hold.claim);
        current.is_none_or(|claim| claim.instance == held.instance || claim.epoch <= held.epoch)
    })
}

/// The right of a session to its label, by what this node holds, by the record, and by what other nodes hold without one.
fn right(holds: &Holds, table: &Table, claimant: Claimant<'_>) -> Result<Right, ClaimRefusal> {
    let label = claimant.label;
    let held = current(holds, table, label).map(Hold::owner);
    claimant.right(held.or_else(|| table.owner(label)))
}
