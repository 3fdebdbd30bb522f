//! The claims of a server that stands alone, as a plain value: each change is a function of the state and the time.
//!
//! A claim exists while it has a holder, and is removed with its last one. A late release has an older epoch and changes
//! nothing. A claim that another process has handed over has no holder yet: its instance is awaited for a while.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{
    claim::{Claim, ClaimRefusal, Epoch},
    handed::HandedClaim,
    names::{AccountName, RuntimeLabel, RuntimeName},
    owner::{Claimant, Owner, Right},
    takeover::HeldClaim,
};

/// How long the holder of a claim that was handed over is awaited: a client that lost its path meanwhile needs this long.
pub const HANDOVER_GRACE: Duration = Duration::from_secs(30);

/// Owners of labels that are kept at least. When there are more, and twice as many as held runtimes, those of labels that
/// nobody holds are forgotten.
const MIN_OWNERS_KEPT: usize = 100_000;

/// The claim of each runtime that is held.
#[derive(Debug, Default)]
pub struct MemoryClaims {
    held: BTreeMap<RuntimeLabel, Entry>,
    /// The runtime that each label belongs to: until the server stops, so that no other one receives the requests of one that
    /// is offline. Of a listed one only while it is held: the list says whose label it is.
    owners: BTreeMap<RuntimeLabel, KnownOwner>,
    last_epoch: u64,
}

#[derive(Debug)]
struct Entry {
    held: HeldClaim,
    /// The number of guards of the claim: the sessions of its instance.
    sessions: usize,
    /// Until when the instance may still come, if it has no session yet.
    awaited_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct KnownOwner {
    owner: Owner,
    is_listed: bool,
}

impl Entry {
    /// Whether the claim is in force: a session holds it, or its instance may still come.
    fn is_in_force(&self, now: Instant) -> bool {
        self.sessions > 0 || self.awaited_until.is_some_and(|until| now < until)
    }
}

impl MemoryClaims {
    /// Checks whether a claim would be granted now.
    ///
    /// # Errors
    /// When it would not.
    pub fn precheck(&self, claimant: Claimant<'_>, now: Instant) -> Result<(), ClaimRefusal> {
        self.check(claimant, now).map(|_| ())
    }

    fn check(&self, claimant: Claimant<'_>, now: Instant) -> Result<Right, ClaimRefusal> {
        let right = claimant.right(self.owners.get(claimant.label).map(|known| known.owner))?;
        let entry = self.held.get(claimant.label);
        if let Some(entry) = entry.filter(|entry| entry.is_in_force(now)) {
            let on_conflict = right.on_conflict();
            entry.held.precheck(claimant.instance, on_conflict, now)?;
        }
        Ok(right)
    }

    /// The runtimes whose labels are known, with the claims of those that are held, for a process that takes the listeners
    /// over. Of listed runtimes only those that are held.
    #[must_use]
    pub fn handed(&self, now: Instant) -> Vec<(AccountName, RuntimeName, Option<HandedClaim>)> {
        let handed = self.owners.iter().filter_map(|(label, known)| {
            let (account, name) = known.owner.names(label)?;
            let entry = self.held.get(label);
            let claim = entry.map(|entry| HandedClaim::of(entry.held.clone(), now));
            Some((account, name, claim))
        });
        handed.collect()
    }

    /// Takes over a label of another process, and the claim if it is held there, whose sessions are about to come. The label
    /// belongs to the runtime of this account. Later epochs are larger.
    pub fn take_over(
        &mut self,
        label: RuntimeLabel,
        account: &AccountName,
        claim: Option<HandedClaim>,
        now: Instant,
    ) {
        let known = KnownOwner {
            owner: Owner::of(account),
            is_listed: false,
        };
        self.owners.entry(label.clone()).or_insert(known);
        let Some(claim) = claim else { return };
        let held = claim.into_held(now);
        self.last_epoch = self.last_epoch.max(held.claim.epoch.number());
        let entry = Entry {
            held,
            sessions: 0,
            awaited_until: Some(now + HANDOVER_GRACE),
        };
        self.held.entry(label).or_insert(entry);
    }

    /// Forgets claims whose instances have not come in time.
    pub fn sweep(&mut self, now: Instant) {
        self.held.retain(|_, entry| entry.is_in_force(now));
    }

    /// Claims a runtime for one more session of an instance. If the instance holds it already, it gets the existing claim.
    ///
    /// # Errors
    /// When the instance does not get the runtime.
    pub fn claim(&mut self, claimant: Claimant<'_>, now: Instant) -> Result<Claim, ClaimRefusal> {
        let right = self.check(claimant, now)?;
        let (label, instance) = (claimant.label, claimant.instance);
        self.set_owner(claimant);
        let known = self.held.get(label);
        if known.is_some_and(|entry| !entry.is_in_force(now)) {
            self.held.remove(label);
        }
        if let Some(entry) = self.held.get_mut(label)
            && entry.held.claim.instance == *instance
            && right != Right::Overruling
        {
            entry.sessions += 1;
            entry.awaited_until = None;
            entry.held.is_leaving = false;
            return Ok(entry.held.claim.clone());
        }
        self.last_epoch += 1;
        let claim = Claim {
            instance: instance.clone(),
            epoch: Epoch::from_number(self.last_epoch),
        };
        let held = match self.held.get(label) {
            Some(entry) => entry.held.succeeded_by(claim.clone(), now),
            None => HeldClaim::new(claim.clone()),
        };
        let entry = Entry {
            held,
            sessions: 1,
            awaited_until: None,
        };
        self.held.insert(label.clone(), entry);
        Ok(claim)
    }

    /// Records that the holder is leaving. Does nothing if there is a newer claim.
    pub fn leave(&mut self, label: &RuntimeLabel, epoch: Epoch) {
        if let Some(entry) = self.held.get_mut(label)
            && entry.held.claim.epoch == epoch
        {
            entry.held.is_leaving = true;
        }
    }

    /// Removes one session. Does nothing if there is a newer claim.
    pub fn release(&mut self, label: &RuntimeLabel, epoch: Epoch) {
        if let Some(entry) = self.held.get_mut(label)
            && entry.held.claim.epoch == epoch
        {
            entry.sessions = entry.sessions.saturating_sub(1);
            if entry.sessions == 0 {
                self.held.remove(label);
                self.forget_listed_owner(label);
            }
        }
    }

    /// Records whose label it is.
    fn set_owner(&mut self, claimant: Claimant<'_>) {
        let held = &self.held;
        if self.owners.len() >= MIN_OWNERS_KEPT.max(2 * held.len())
            && !self.owners.contains_key(claimant.label)
        {
            self.owners.retain(|label, _| held.contains_key(label));
        }
        let known = KnownOwner {
            owner: claimant.owner(),
            is_listed: claimant.is_listed,
        };
        self.owners.insert(claimant.label.clone(), known);
    }

    fn forget_listed_owner(&mut self, label: &RuntimeLabel) {
        if self.owners.get(label).is_some_and(|known| known.is_listed) {
            self.owners.remove(label);
        }
    }

    /// The number of labels whose owners are known.
    #[must_use]
    pub fn owned_labels(&self) -> usize {
        self.owners.len()
    }

    /// The claim of a runtime that is held.
    #[must_use]
    pub fn current(&self, label: &RuntimeLabel) -> Option<&Claim> {
        self.held.get(label).map(|entry| &entry.held.claim)
    }

    /// The number of runtimes that are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no runtime is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        claim::OnConflict::{self, Reject, Supersede},
        fixtures::{Runtime, instance, start},
    };

    fn label(name: &str) -> RuntimeLabel {
        Runtime::new("acme", name).label
    }

    fn claim(
        claims: &mut MemoryClaims,
        number: u8,
        on_conflict: OnConflict,
        now: Instant,
    ) -> Result<Claim, ClaimRefusal> {
        claim_for(claims, &Runtime::new("acme", "a"), number, on_conflict, now)
    }

    fn claim_for(
        claims: &mut MemoryClaims,
        runtime: &Runtime,
        number: u8,
        on_conflict: OnConflict,
        now: Instant,
    ) -> Result<Claim, ClaimRefusal> {
        claims.claim(runtime.claimant(&instance(number), on_conflict), now)
    }

    /// The claims of a process that takes over from this one.
    fn handed_over(before: &MemoryClaims, now: Instant) -> MemoryClaims {
        let mut claims = MemoryClaims::default();
        for (account, name, claim) in before.handed(now) {
            let label = RuntimeLabel::new(&account, &name).unwrap();
            claims.take_over(label, &account, claim, now);
        }
        claims
    }

    #[test]
    fn the_newest_instance_wins_and_a_late_release_does_not_affect_it() {
        let (mut claims, now) = (MemoryClaims::default(), start());
        let first = claim(&mut claims, 1, Supersede, now).unwrap();
        let second = claim(&mut claims, 2, Supersede, now).unwrap();
        assert!(second.epoch > first.epoch);
        claims.release(&label("a"), first.epoch);
        assert_eq!(claim(&mut claims, 2, Supersede, now).unwrap(), second);
        claims.release(&label("a"), second.epoch);
        claims.release(&label("a"), second.epoch);
        assert_eq!(claims.len(), 0);
        assert!(claim(&mut claims, 2, Supersede, now).unwrap().epoch > second.epoch);
    }

    #[test]
    fn a_claim_is_kept_until_its_last_holder_releases_it() {
        let (mut claims, now) = (MemoryClaims::default(), start());
        let held = claim(&mut claims, 1, Reject, now).unwrap();
        assert_eq!(claim(&mut claims, 1, Reject, now).unwrap(), held);
        claims.release(&label("a"), held.epoch);
        let refused = claim(&mut claims, 2, Reject, now).unwrap_err();
        assert_eq!(
            refused,
            ClaimRefusal::Held {
                holder: instance(1)
            }
        );
        claims.release(&label("a"), held.epoch);
        assert!(claim(&mut claims, 2, Reject, now).is_ok());
    }

    #[test]
    fn a_superseded_instance_does_not_take_the_runtime_back() {
        let (mut claims, now) = (MemoryClaims::default(), start());
        claim(&mut claims, 1, Supersede, now).unwrap();
        let newer = claim(&mut claims, 2, Supersede, now).unwrap();
        let refused = claim(&mut claims, 1, Supersede, now).unwrap_err();
        assert_eq!(refused, ClaimRefusal::Superseded { by: instance(2) });
        claims.release(&label("a"), newer.epoch);
        assert!(
            claim(&mut claims, 1, Supersede, now).is_ok(),
            "it is free again"
        );
    }

    #[test]
    fn a_leaving_holder_does_not_block_the_next_instance() {
        let (mut claims, now) = (MemoryClaims::default(), start());
        let leaving = claim(&mut claims, 1, Reject, now).unwrap();
        claims.leave(&label("a"), leaving.epoch);
        let next = claim(&mut claims, 2, Reject, now).unwrap();
        claims.leave(&label("a"), leaving.epoch);
        assert!(
            claim(&mut claims, 3, Reject, now).is_err(),
            "the next one stays"
        );
        claims.leave(&label("a"), next.epoch);
        claim(&mut claims, 2, Reject, now).unwrap();
        assert!(
            claim(&mut claims, 3, Reject, now).is_err(),
            "it holds the runtime again"
        );
    }

    #[test]
    fn instances_that_fight_are_slowed_and_the_holder_keeps_the_runtime() {
        let (mut claims, mut now) = (MemoryClaims::default(), start());
        for number in 1..=4 {
            claim(&mut claims, number, Supersede, now).unwrap();
        }
        let refused = claim(&mut claims, 5, Supersede, now).unwrap_err();
        let expected = ClaimRefusal::Contested {
            holder: instance(4),
            takeovers: 3,
            retry_after: Duration::from_secs(2),
        };
        assert_eq!(refused, expected);
        now += Duration::from_secs(2);
        assert!(claim(&mut claims, 5, Supersede, now).is_ok());
    }

    #[test]
    fn a_claim_that_was_handed_over_waits_for_its_instance() {
        let (mut before, mut now) = (MemoryClaims::default(), start());
        claim(&mut before, 1, Supersede, now).unwrap();
        let held = claim(&mut before, 2, Supersede, now).unwrap();
        let handed = |now| handed_over(&before, now);
        // The holder comes, and holds it as before.
        let mut claims = handed(now);
        assert!(claim(&mut claims, 3, Reject, now).is_err());
        assert_eq!(claim(&mut claims, 2, Reject, now).unwrap(), held);
        now += 2 * HANDOVER_GRACE;
        assert!(claim(&mut claims, 3, Reject, now).is_err(), "it has come");
        // A newer instance comes first: the one that held it, and the one before, do not get it back.
        let mut claims = handed(now);
        let newer = claim(&mut claims, 3, Supersede, now).unwrap();
        assert!(newer.epoch > held.epoch);
        assert!(claim(&mut claims, 2, Supersede, now).is_err());
        assert!(claim(&mut claims, 1, Supersede, now).is_err());
        // It does not come.
        let mut claims = handed(now);
        now += HANDOVER_GRACE;
        assert!(claim(&mut claims, 3, Reject, now).is_ok());
        let mut claims = handed(now);
        now += HANDOVER_GRACE;
        claims.sweep(now);
        assert_eq!(claims.len(), 0);
    }

    #[test]
    fn claims_of_different_runtimes_are_independent() {
        let (mut claims, now) = (MemoryClaims::default(), start());
        let (one, other) = (Runtime::new("acme", "a"), Runtime::new("acme", "b"));
        let a = claim_for(&mut claims, &one, 1, Reject, now).unwrap();
        let b = claim_for(&mut claims, &other, 2, Reject, now).unwrap();
        claims.release(&label("a"), b.epoch);
        assert_eq!(claims.len(), 2);
        assert_eq!(claim_for(&mut claims, &one, 1, Reject, now).unwrap(), a);
    }

    #[test]
    fn a_label_stays_with_its_owner() {
        let (first, second) = (Runtime::new("a-b", "c"), Runtime::new("a", "b-c"));
        let (mut claims, mut now) = (MemoryClaims::default(), start());
        let taken = Err(ClaimRefusal::LabelTaken(first.label.clone()));
        let held = claim_for(&mut claims, &first, 1, Supersede, now).unwrap();
        assert_eq!(claim_for(&mut claims, &second, 2, Supersede, now), taken);
        let mut next = handed_over(&claims, now);
        now += 2 * HANDOVER_GRACE;
        next.sweep(now);
        for (claims, case) in [
            (&mut claims, "its instance is there"),
            (&mut next, "it has not come after an upgrade"),
        ] {
            assert_eq!(
                claim_for(claims, &second, 2, Supersede, now),
                taken,
                "{case}"
            );
        }
        claims.leave(&first.label, held.epoch);
        claims.release(&first.label, held.epoch);
        assert_eq!(claim_for(&mut claims, &second, 2, Supersede, now), taken);
        assert!(claim_for(&mut claims, &first, 3, Supersede, now).is_ok());
    }

    #[test]
    fn a_listed_runtime_takes_its_label_and_keeps_it_while_it_holds_it() {
        let (first, second) = (Runtime::new("a-b", "c"), Runtime::new("a", "b-c"));
        let (mut claims, now) = (MemoryClaims::default(), start());
        let older = claim_for(&mut claims, &first, 1, Supersede, now).unwrap();
        let id = instance(2);
        let listed = Claimant {
            is_listed: true,
            ..second.claimant(&id, Reject)
        };
        let newer = claims.claim(listed, now).unwrap();
        assert!(newer.epoch > older.epoch);
        claims.release(&first.label, older.epoch);
        assert!(claim_for(&mut claims, &first, 3, Supersede, now).is_err());
        claims.release(&first.label, newer.epoch);
        assert!(
            claim_for(&mut claims, &first, 3, Supersede, now).is_ok(),
            "nobody lists it, nor holds it"
        );
    }

    #[derive(Debug, Clone)]
    enum Happening {
        Claim(bool, u8),
        Release(usize),
        HandOver,
        Wait(u64),
    }

    fn happenings() -> impl Strategy<Value = Vec<Happening>> {
        let happening = prop_oneof![
            4 => (any::<bool>(), 0..3_u8).prop_map(|(runtime, number)| Happening::Claim(runtime, number)),
            2 => (0..8_usize).prop_map(Happening::Release),
            1 => Just(Happening::HandOver),
            1 => (0..60_u64).prop_map(Happening::Wait),
        ];
        proptest::collection::vec(happening, 1..80)
    }

    proptest! {
        /// Whatever two runtimes of one label do, the one that has come first has it.
        #[test]
        fn a_label_has_one_owner(happenings in happenings()) {
            let runtimes = [Runtime::new("a-b", "c"), Runtime::new("a", "b-c")];
            let label = runtimes[0].label.clone();
            let (mut claims, mut now) = (MemoryClaims::default(), start());
            let mut owner = None;
            let mut held = Vec::new();
            for happening in happenings {
                match happening {
                    Happening::Claim(runtime, number) => {
                        let runtime = usize::from(runtime);
                        let number = number + 10 * u8::from(runtime > 0);
                        match claim_for(&mut claims, &runtimes[runtime], number, Supersede, now) {
                            Ok(claim) => {
                                prop_assert_eq!(*owner.get_or_insert(runtime), runtime);
                                held.push(claim);
                            }
                            Err(ClaimRefusal::LabelTaken(_)) => prop_assert_eq!(owner, Some(1 - runtime)),
                            Err(_) => prop_assert_eq!(owner, Some(runtime)),
                        }
                    }
                    Happening::Release(which) if !held.is_empty() => {
                        let claim: Claim = held.swap_remove(which % held.len());
                        claims.release(&label, claim.epoch);
                    }
                    Happening::HandOver => {
                        claims = handed_over(&claims, now);
                        held.clear();
                    }
                    Happening::Wait(seconds) => now += Duration::from_secs(seconds),
                    Happening::Release(_) => {}
                }
            }
        }
    }
}
