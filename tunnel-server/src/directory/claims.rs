//! The table of claims, as a plain value: each change is a function of the state and the time.
//!
//! A claim exists while it has a holder, and is removed with its last one. A late release has an older epoch and changes
//! nothing. A claim that was handed over by another process has no holder yet: its instance is expected for a while.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{
    Claim, ClaimRefusal, Claimant, Epoch,
    owner::{Owner, Right},
    standing::Standing,
};
use crate::runtimes::RuntimeLabel;

/// How long the holder of a claim that was handed over is expected: a client that lost its path meanwhile needs this long.
pub(crate) const EXPECTED: Duration = Duration::from_secs(30);

/// Owners of labels that are kept at least. When there are more, and twice as many as held runtimes, those of labels that
/// nobody holds are forgotten.
const MANY_OWNERS: usize = 100_000;

/// The claim of each runtime that is held.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: HashMap<RuntimeLabel, Entry>,
    /// The runtime that each label belongs to: until the server stops, so that no other one receives the requests of one that
    /// is offline. Of a listed one only while it is held: the list says whose label it is.
    owners: HashMap<RuntimeLabel, KnownOwner>,
    last_epoch: u64,
}

#[derive(Debug)]
struct Entry {
    standing: Standing,
    /// The number of guards of the claim: the sessions of its instance.
    holders: usize,
    /// Until when the instance may still come, if it has no session yet.
    expected_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct KnownOwner {
    owner: Owner,
    is_listed: bool,
}

impl Entry {
    /// Whether the claim counts: a session holds it, or its instance may still come.
    fn counts(&self, now: Instant) -> bool {
        self.holders > 0 || self.expected_until.is_some_and(|until| now < until)
    }
}

impl Claims {
    pub(super) fn precheck(
        &self,
        claimant: Claimant<'_>,
        now: Instant,
    ) -> Result<(), ClaimRefusal> {
        self.check(claimant, now).map(|_| ())
    }

    fn check(&self, claimant: Claimant<'_>, now: Instant) -> Result<Right, ClaimRefusal> {
        let label = &claimant.runtime.label;
        let right = claimant.right(self.owners.get(label).map(|known| known.owner))?;
        if let Some(entry) = self.held.get(label).filter(|entry| entry.counts(now)) {
            let on_conflict = right.on_conflict();
            entry
                .standing
                .precheck(claimant.instance, on_conflict, now)?;
        }
        Ok(right)
    }

    /// The owner of each label, and what stands of it if it is held. Of listed runtimes only those that are held.
    pub(super) fn handed(&self) -> Vec<(RuntimeLabel, Owner, Option<Standing>)> {
        let owners = self.owners.iter();
        owners
            .map(|(label, known)| {
                let standing = self.held.get(label).map(|entry| entry.standing.clone());
                (label.clone(), known.owner, standing)
            })
            .collect()
    }

    /// Takes over the owner of a label and what stood of it in another process, whose sessions are about to come. Later epochs
    /// are larger.
    pub(super) fn expect(
        &mut self,
        runtime: RuntimeLabel,
        owner: Owner,
        standing: Option<Standing>,
        now: Instant,
    ) {
        let known = KnownOwner {
            owner,
            is_listed: false,
        };
        self.owners.entry(runtime.clone()).or_insert(known);
        let Some(standing) = standing else { return };
        self.last_epoch = self.last_epoch.max(standing.claim.epoch.0);
        let entry = Entry {
            standing,
            holders: 0,
            expected_until: Some(now + EXPECTED),
        };
        self.held.entry(runtime).or_insert(entry);
    }

    /// Forgets instances that have not come.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.held.retain(|_, entry| entry.counts(now));
    }

    pub(super) fn claim(
        &mut self,
        claimant: Claimant<'_>,
        now: Instant,
    ) -> Result<Claim, ClaimRefusal> {
        let right = self.check(claimant, now)?;
        let (runtime, instance) = (&claimant.runtime.label, claimant.instance);
        self.own(claimant);
        if self
            .held
            .get(runtime)
            .is_some_and(|entry| !entry.counts(now))
        {
            self.held.remove(runtime);
        }
        if let Some(entry) = self.held.get_mut(runtime)
            && entry.standing.claim.instance == *instance
            && right != Right::Overruling
        {
            entry.holders += 1;
            entry.expected_until = None;
            entry.standing.is_leaving = false;
            return Ok(entry.standing.claim.clone());
        }
        self.last_epoch += 1;
        let claim = Claim {
            instance: instance.clone(),
            epoch: Epoch(self.last_epoch),
        };
        let standing = match self.held.get(runtime) {
            Some(entry) => entry.standing.succeeded_by(claim.clone(), now),
            None => Standing::new(claim.clone()),
        };
        let entry = Entry {
            standing,
            holders: 1,
            expected_until: None,
        };
        self.held.insert(runtime.clone(), entry);
        Ok(claim)
    }

    /// Records that the holder is leaving. Does nothing if there is a newer claim.
    pub(super) fn leave(&mut self, runtime: &RuntimeLabel, epoch: Epoch) {
        if let Some(entry) = self.held.get_mut(runtime)
            && entry.standing.claim.epoch == epoch
        {
            entry.standing.is_leaving = true;
        }
    }

    /// Removes one holder. Does nothing if there is a newer claim.
    pub(super) fn release(&mut self, runtime: &RuntimeLabel, epoch: Epoch) {
        if let Some(entry) = self.held.get_mut(runtime)
            && entry.standing.claim.epoch == epoch
        {
            entry.holders -= 1;
            if entry.holders == 0 {
                self.held.remove(runtime);
                self.disown_listed(runtime);
            }
        }
    }

    /// Records whose label it is.
    fn own(&mut self, claimant: Claimant<'_>) {
        let label = &claimant.runtime.label;
        let held = &self.held;
        if self.owners.len() >= MANY_OWNERS.max(2 * held.len()) && !self.owners.contains_key(label)
        {
            self.owners.retain(|label, _| held.contains_key(label));
        }
        let known = KnownOwner {
            owner: claimant.owner(),
            is_listed: claimant.is_listed,
        };
        self.owners.insert(label.clone(), known);
    }

    fn disown_listed(&mut self, label: &RuntimeLabel) {
        if self.owners.get(label).is_some_and(|known| known.is_listed) {
            self.owners.remove(label);
        }
    }

    pub(super) fn owned_labels(&self) -> usize {
        self.owners.len()
    }

    #[cfg(test)]
    pub(super) fn current(&self, runtime: &RuntimeLabel) -> Option<&Claim> {
        self.held.get(runtime).map(|entry| &entry.standing.claim)
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use OnConflict::{Reject, Supersede};

    use proptest::prelude::*;
    use tunnel_proto::handshake::{InstanceId, InstanceSecret};

    use super::{
        super::{OnConflict, owner::tests::unlisted},
        *,
    };
    use crate::runtimes::RuntimeEntry;

    fn label(name: &str) -> RuntimeLabel {
        unlisted("acme", name).label.clone()
    }

    fn instance(number: u8) -> InstanceId {
        let secret = InstanceSecret::from_random([number; 16]);
        secret.id().clone()
    }

    fn claim(
        claims: &mut Claims,
        number: u8,
        on_conflict: OnConflict,
    ) -> Result<Claim, ClaimRefusal> {
        claim_for(
            claims,
            &unlisted("acme", "a"),
            number,
            on_conflict,
            Instant::now(),
        )
    }

    fn claim_for(
        claims: &mut Claims,
        runtime: &Arc<RuntimeEntry>,
        number: u8,
        on_conflict: OnConflict,
        now: Instant,
    ) -> Result<Claim, ClaimRefusal> {
        let instance = instance(number);
        let claimant = Claimant {
            runtime,
            is_listed: false,
            instance: &instance,
            on_conflict,
        };
        claims.claim(claimant, now)
    }

    /// Hands all over to another process.
    fn handed_over(before: &Claims) -> Claims {
        let (mut claims, now) = (Claims::default(), Instant::now());
        for (label, owner, standing) in before.handed() {
            claims.expect(label, owner, standing, now);
        }
        claims
    }

    #[tokio::test]
    async fn the_newest_instance_wins_and_a_late_release_does_not_affect_it() {
        let mut claims = Claims::default();
        let first = claim(&mut claims, 1, Supersede).unwrap();
        let second = claim(&mut claims, 2, Supersede).unwrap();
        assert!(second.epoch > first.epoch);
        claims.release(&label("a"), first.epoch);
        assert_eq!(claim(&mut claims, 2, Supersede).unwrap(), second);
        claims.release(&label("a"), second.epoch);
        claims.release(&label("a"), second.epoch);
        assert_eq!(claims.len(), 0);
        assert!(claim(&mut claims, 2, Supersede).unwrap().epoch > second.epoch);
    }

    #[tokio::test]
    async fn a_claim_is_kept_until_its_last_holder_releases_it() {
        let mut claims = Claims::default();
        let held = claim(&mut claims, 1, Reject).unwrap();
        assert_eq!(claim(&mut claims, 1, Reject).unwrap(), held);
        claims.release(&label("a"), held.epoch);
        let refused = claim(&mut claims, 2, Reject).unwrap_err();
        assert_eq!(
            refused,
            ClaimRefusal::Held {
                holder: instance(1)
            }
        );
        claims.release(&label("a"), held.epoch);
        assert!(claim(&mut claims, 2, Reject).is_ok());
    }

    #[tokio::test]
    async fn a_superseded_instance_does_not_take_the_runtime_back() {
        let mut claims = Claims::default();
        claim(&mut claims, 1, Supersede).unwrap();
        let newer = claim(&mut claims, 2, Supersede).unwrap();
        let refused = claim(&mut claims, 1, Supersede).unwrap_err();
        assert_eq!(refused, ClaimRefusal::Superseded { by: instance(2) });
        claims.release(&label("a"), newer.epoch);
        assert!(claim(&mut claims, 1, Supersede).is_ok(), "it is free again");
    }

    #[tokio::test]
    async fn a_leaving_holder_does_not_block_the_next_instance() {
        let mut claims = Claims::default();
        let leaving = claim(&mut claims, 1, Reject).unwrap();
        claims.leave(&label("a"), leaving.epoch);
        let next = claim(&mut claims, 2, Reject).unwrap();
        claims.leave(&label("a"), leaving.epoch);
        assert!(claim(&mut claims, 3, Reject).is_err(), "the next one stays");
        claims.leave(&label("a"), next.epoch);
        claim(&mut claims, 2, Reject).unwrap();
        assert!(
            claim(&mut claims, 3, Reject).is_err(),
            "it holds the runtime again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn instances_that_fight_are_slowed_and_the_holder_keeps_the_runtime() {
        let mut claims = Claims::default();
        for number in 1..=4 {
            claim(&mut claims, number, Supersede).unwrap();
        }
        let refused = claim(&mut claims, 5, Supersede).unwrap_err();
        let expected = ClaimRefusal::Contested {
            holder: instance(4),
            takeovers: 3,
            retry_after: Duration::from_secs(2),
        };
        assert_eq!(refused, expected);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(claim(&mut claims, 5, Supersede).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_was_handed_over_waits_for_its_instance() {
        let mut before = Claims::default();
        claim(&mut before, 1, Supersede).unwrap();
        let held = claim(&mut before, 2, Supersede).unwrap();
        let handed = || handed_over(&before);
        // The holder comes, and holds it as before.
        let mut claims = handed();
        assert!(claim(&mut claims, 3, Reject).is_err());
        assert_eq!(claim(&mut claims, 2, Reject).unwrap(), held);
        tokio::time::advance(2 * EXPECTED).await;
        assert!(claim(&mut claims, 3, Reject).is_err(), "it has come");
        // A newer instance comes first: the one that held it, and the one before, do not get it back.
        let mut claims = handed();
        let newer = claim(&mut claims, 3, Supersede).unwrap();
        assert!(newer.epoch > held.epoch);
        assert!(claim(&mut claims, 2, Supersede).is_err());
        assert!(claim(&mut claims, 1, Supersede).is_err());
        // It does not come.
        let mut claims = handed();
        tokio::time::advance(EXPECTED).await;
        assert!(claim(&mut claims, 3, Reject).is_ok());
        let mut claims = handed();
        tokio::time::advance(EXPECTED).await;
        claims.sweep(Instant::now());
        assert_eq!(claims.len(), 0);
    }

    #[tokio::test]
    async fn claims_of_different_runtimes_are_independent() {
        let (mut claims, now) = (Claims::default(), Instant::now());
        let (one, other) = (unlisted("acme", "a"), unlisted("acme", "b"));
        let a = claim_for(&mut claims, &one, 1, Reject, now).unwrap();
        let b = claim_for(&mut claims, &other, 2, Reject, now).unwrap();
        claims.release(&label("a"), b.epoch);
        assert_eq!(claims.len(), 2);
        assert_eq!(claim_for(&mut claims, &one, 1, Reject, now).unwrap(), a);
    }

    #[tokio::test(start_paused = true)]
    async fn a_label_stays_with_its_owner() {
        let (first, second) = (unlisted("a-b", "c"), unlisted("a", "b-c"));
        let (mut claims, now) = (Claims::default(), Instant::now());
        let taken = Err(ClaimRefusal::LabelTaken(first.label.clone()));
        let held = claim_for(&mut claims, &first, 1, Supersede, now).unwrap();
        assert_eq!(claim_for(&mut claims, &second, 2, Supersede, now), taken);
        let mut next = handed_over(&claims);
        tokio::time::advance(2 * EXPECTED).await;
        let later = Instant::now();
        next.sweep(later);
        for (claims, case) in [
            (&mut claims, "its instance is there"),
            (&mut next, "it has not come after an upgrade"),
        ] {
            assert_eq!(
                claim_for(claims, &second, 2, Supersede, later),
                taken,
                "{case}"
            );
        }
        claims.leave(&first.label, held.epoch);
        claims.release(&first.label, held.epoch);
        assert_eq!(claim_for(&mut claims, &second, 2, Supersede, later), taken);
        assert!(claim_for(&mut claims, &first, 3, Supersede, later).is_ok());
    }

    #[tokio::test]
    async fn a_listed_runtime_takes_its_label_and_keeps_it_while_it_holds_it() {
        let (first, second) = (unlisted("a-b", "c"), unlisted("a", "b-c"));
        let (mut claims, now) = (Claims::default(), Instant::now());
        let older = claim_for(&mut claims, &first, 1, Supersede, now).unwrap();
        let id = instance(2);
        let listed = Claimant {
            runtime: &second,
            is_listed: true,
            instance: &id,
            on_conflict: Reject,
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
            let runtimes = [unlisted("a-b", "c"), unlisted("a", "b-c")];
            let label = runtimes[0].label.clone();
            let (mut claims, mut now) = (Claims::default(), Instant::now());
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
                        claims = handed_over(&claims);
                        held.clear();
                    }
                    Happening::Wait(seconds) => now += Duration::from_secs(seconds),
                    Happening::Release(_) => {}
                }
            }
        }
    }
}
