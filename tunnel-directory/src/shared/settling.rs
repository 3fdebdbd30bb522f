//! Compares what this node holds with the records, after a change of one runtime or of all.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use super::{Now, Output, SharedDirectory};
use crate::{holds::HoldAction, names::RuntimeLabel, table::Change};

/// How long the record of who holds a runtime by a new claim is awaited, before the instance that holds it here claims it back:
/// longer than the claim's writer tries to write it.
pub(super) const HOLDER_TIMEOUT: Duration = Duration::from_secs(5);

/// Runtimes that are settled in one step.
const STEP: usize = 50;

/// What is done to all that this node holds, in steps.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// All are settled: those after this label are left.
    all: Option<Rest>,
    /// It is found out which have no record: of those after this label.
    unrecorded: Option<Rest>,
    /// Further runtimes that are settled, since then.
    further: Option<(VecDeque<RuntimeLabel>, Instant)>,
    /// Runtimes that are held here, and that another instance has claimed without holding them: when they are claimed back.
    unconfirmed: BTreeMap<RuntimeLabel, Instant>,
}

/// What is left, and since when a step is due.
#[derive(Debug)]
struct Rest {
    after: Option<RuntimeLabel>,
    due: Instant,
}

impl Settling {
    pub(super) fn deadline(&self) -> Option<Instant> {
        let due = |rest: &Option<Rest>| rest.as_ref().map(|rest| rest.due);
        let further = self.further.as_ref().map(|(_, due)| *due);
        let step = due(&self.all).or_else(|| due(&self.unrecorded)).or(further);
        let unconfirmed = self.unconfirmed.values().min().copied();
        [step, unconfirmed].into_iter().flatten().min()
    }
}

impl SharedDirectory {
    /// Acts on changes of the table.
    pub(super) fn on_changes(&mut self, changes: impl IntoIterator<Item = Change>, now: Now) {
        for change in changes {
            match change {
                Change::Runtime(label) => self.settle(&label, now),
                Change::Node(name) if name == self.run.node && !self.has_own_key() => {
                    self.on_challenged();
                }
                Change::Challenge(name) if name == self.run.node => self.on_challenged(),
                Change::Cluster => self.on_restored(),
                Change::Node(_) => self.settle_unconfirmed(now),
                Change::Challenge(_) => {}
            }
        }
        self.write_next(now);
        self.presence_next(now);
    }

    /// Settles one runtime.
    pub(super) fn settle(&mut self, label: &RuntimeLabel, now: Now) {
        let action = self.holds.settle(label, &self.table, &self.run);
        if action != HoldAction::AwaitHolder {
            self.settling.unconfirmed.remove(label);
        }
        match action {
            HoldAction::None => {}
            HoldAction::AwaitHolder => {
                let due = now.instant + HOLDER_TIMEOUT;
                let unconfirmed = &mut self.settling.unconfirmed;
                unconfirmed.entry(label.clone()).or_insert(due);
            }
            HoldAction::Write => self.write(label),
            HoldAction::Adopt(claim) => {
                self.write(label);
                self.output(Output::NewerClaim(label.clone(), claim));
            }
            HoldAction::Supersede(claim) => {
                // Its record goes at once: it would count again when nobody holds the runtime by the newer claim any more.
                self.write(label);
                self.output(Output::NewerClaim(label.clone(), claim));
            }
        }
        self.update_unrecorded(label);
        self.output(Output::RuntimeChanged(label.clone()));
    }

    /// Settles all that this node holds, in steps from now on.
    pub(super) fn settle_all(&mut self, now: Now) {
        self.settling.all = Some(Rest {
            after: None,
            due: now.instant,
        });
    }

    /// Settles these runtimes: in steps, if they are many.
    pub(super) fn settle_many(&mut self, labels: Vec<RuntimeLabel>, now: Now) {
        let further = self.settling.further.take();
        let mut further = further.map(|(labels, _)| labels).unwrap_or_default();
        further.extend(labels);
        self.settling.further = Some((further, now.instant));
        self.settle_further(now);
    }

    fn settle_further(&mut self, now: Now) {
        let Some((mut labels, _)) = self.settling.further.take() else {
            return;
        };
        for label in labels.drain(..labels.len().min(STEP)) {
            self.settle(&label, now);
        }
        self.settling.further = (!labels.is_empty()).then_some((labels, now.instant));
        self.write_next(now);
    }

    /// Finds out which runtimes this node holds without a record, in steps from now on.
    pub(super) fn find_unrecorded(&mut self, now: Now) {
        self.settling.unrecorded = Some(Rest {
            after: None,
            due: now.instant,
        });
    }

    /// Settles what other instances have claimed without holding it: a node whose record counts only now may hold it.
    fn settle_unconfirmed(&mut self, now: Now) {
        let labels = self.settling.unconfirmed.keys().cloned();
        for label in labels.collect::<Vec<_>>() {
            self.settle(&label, now);
        }
    }

    /// Whether a runtime that is held here, and that another instance has claimed, may be claimed back: no node holds it by that
    /// claim, and the time for it is over.
    pub(super) fn may_claim_back(&self, label: &RuntimeLabel) -> bool {
        let own = self.run.incarnation;
        !self.settling.unconfirmed.contains_key(label)
            && !self.table.is_claim_held_by_other(label.as_str(), own)
    }

    /// Claims back what another instance has claimed and does not hold.
    fn claim_back(&mut self, now: Now) {
        let unconfirmed = self.settling.unconfirmed.iter();
        let due = unconfirmed.filter(|(_, due)| now.instant >= **due);
        let due: Vec<RuntimeLabel> = due.map(|(label, _)| label.clone()).collect();
        for label in &due {
            self.settle(label, now);
            if self.settling.unconfirmed.remove(label).is_some() {
                self.write(label);
            }
        }
        if !due.is_empty() {
            self.write_next(now);
        }
    }

    /// Does the next step.
    pub(super) fn settle_next(&mut self, now: Now) {
        self.claim_back(now);
        if let Some(rest) = self.settling.all.take() {
            let labels = self.next_held(&rest);
            for label in &labels {
                self.settle(label, now);
            }
            self.settling.all = rest_after(labels, now);
            self.write_next(now);
        } else if let Some(rest) = self.settling.unrecorded.take() {
            let labels = self.next_held_or_recorded(&rest);
            for label in &labels {
                self.update_unrecorded(label);
            }
            self.settling.unrecorded = rest_after(labels, now);
        } else {
            self.settle_further(now);
        }
    }

    fn next_held(&self, rest: &Rest) -> Vec<RuntimeLabel> {
        let labels = self.holds.labels_after(rest.after.as_ref());
        labels.take(STEP).cloned().collect()
    }

    /// The next runtimes that this node holds, or has released and has a record of.
    fn next_held_or_recorded(&self, rest: &Rest) -> Vec<RuntimeLabel> {
        let held = self.next_held(rest);
        let released = self.table.released_after(rest.after.as_ref()).take(STEP);
        let next: BTreeSet<RuntimeLabel> = released.cloned().chain(held).collect();
        next.into_iter().take(STEP).collect()
    }
}

fn rest_after(labels: Vec<RuntimeLabel>, now: Now) -> Option<Rest> {
    (labels.len() == STEP).then(|| Rest {
        after: labels.into_iter().last(),
        due: now.instant,
    })
}
