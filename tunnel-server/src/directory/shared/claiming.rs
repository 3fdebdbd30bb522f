//! How an instance gets a runtime: by the rules, the table and the writer; while etcd is away, without a record.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

use super::{
    super::{
        Claim, ClaimGuard, ClaimRefusal, Claimant, WithoutDirectory, metrics::PROVISIONAL,
        owner::Right,
    },
    Shared,
    holds::{Hold, Holds},
    table::{Step, Table},
    writer::{ClaimAnswer, ClaimRequest},
};
use crate::runtimes::RuntimeLabel;

/// How often a claim is decided again because another one was faster.
pub(super) const ROUNDS: u32 = 5;

impl Shared {
    pub(crate) fn precheck(&self, claimant: Claimant<'_>) -> Result<(), ClaimRefusal> {
        let (label, instance) = (&claimant.runtime.label, claimant.instance);
        let holds = self.holds.lock();
        let table = self.table.read();
        let right = right(&holds, &table, claimant)?;
        let hold = current(&holds, &table, label);
        if right != Right::Overruling && hold.is_some_and(|hold| hold.claim.instance == *instance) {
            return Ok(());
        }
        let step = table.decide(label.as_str(), instance, right, Instant::now())?;
        let is_takeover = matches!(step, Step::Claim(_));
        let is_held = || {
            let is_own = holds.get(label).is_some();
            is_own
                || table.is_held_elsewhere(label.as_str(), self.incarnation)
                || table.peer_holds(label.as_str()).next().is_some()
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
                Entered::Next(Step::Hold(_)) if self.is_away() => {
                    return self.claim_alone(claimant);
                }
                Entered::Next(step) => step,
            };
            let (answer, answered) = oneshot::channel();
            let request = ClaimRequest {
                runtime: claimant.runtime.clone(),
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
        let (label, instance) = (&claimant.runtime.label, claimant.instance);
        let mut holds = self.holds.lock();
        let table = self.table.read();
        let right = right(&holds, &table, claimant)?;
        let is_here = current(&holds, &table, label).is_some();
        if is_here
            && let Some((serial, claim, is_changed)) =
                holds.enter(label, claimant.owner(), instance)
        {
            drop((table, holds));
            if is_changed {
                self.write(label);
            }
            return Ok(Entered::Joined(self.guard(label, claim, serial)));
        }
        let step = table.decide(label.as_str(), instance, right, Instant::now())?;
        Ok(Entered::Next(step))
    }

    /// Gives an instance a runtime while etcd is away: one more session of the instance that has it, or a runtime that
    /// nobody holds. The claim follows, and gives way to any other that was made meanwhile.
    pub(super) fn claim_alone(
        self: &Arc<Self>,
        claimant: Claimant<'_>,
    ) -> Result<ClaimGuard, ClaimRefusal> {
        let (runtime, instance) = (claimant.runtime, claimant.instance);
        let label = &runtime.label;
        let mut holds = self.holds.lock();
        let table = self.table.read();
        let right = right(&holds, &table, claimant)?;
        let reported = table.peer_holds(label.as_str()).next();
        let reported = reported.map(|(_, _, hold)| hold.claim.clone());
        let current = reported.or_else(|| table.claim(label.as_str()));
        let is_own = right != Right::Overruling
            && current
                .as_ref()
                .is_some_and(|claim| claim.instance == *instance);
        let is_held = holds
            .get(label)
            .is_some_and(|hold| hold.claim.instance != *instance)
            || table.is_held_elsewhere(label.as_str(), self.incarnation)
            || table.peer_holds(label.as_str()).next().is_some();
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
        let names = (runtime.account.clone(), runtime.name.clone());
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
    Next(Step),
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
    let label = &claimant.runtime.label;
    let held = current(holds, table, label).map(Hold::owner);
    claimant.right(held.or_else(|| table.owner(label)))
}
