//! The table of claims, as a plain value: each change is a function of the state and the time.
//!
//! A claim exists while it has a holder, and is removed with its last one. A late release has an older epoch and changes
//! nothing. A claim that was handed over by another process has no holder yet: its instance is expected for a while.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use tunnel_proto::handshake::InstanceId;

use super::{Claim, ClaimRefusal, Epoch, OnConflict, standing::Standing};
use crate::runtimes::RuntimeLabel;

/// How long the holder of a claim that was handed over is expected: a client that lost its path meanwhile needs this long.
pub(crate) const EXPECTED: Duration = Duration::from_secs(30);

/// The claim of each runtime that is held.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: HashMap<RuntimeLabel, Entry>,
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

impl Entry {
    /// Whether the claim counts: a session holds it, or its instance may still come.
    fn counts(&self, now: Instant) -> bool {
        self.holders > 0 || self.expected_until.is_some_and(|until| now < until)
    }
}

impl Claims {
    pub(super) fn precheck(
        &self,
        runtime: &RuntimeLabel,
        instance: &InstanceId,
        on_conflict: OnConflict,
        now: Instant,
    ) -> Result<(), ClaimRefusal> {
        match self.held.get(runtime).filter(|entry| entry.counts(now)) {
            Some(entry) => entry.standing.precheck(instance, on_conflict, now),
            None => Ok(()),
        }
    }

    /// What stands of each runtime.
    pub(super) fn standings(&self) -> Vec<(RuntimeLabel, Standing)> {
        let held = self.held.iter();
        held.map(|(label, entry)| (label.clone(), entry.standing.clone()))
            .collect()
    }

    /// Takes over what stood in another process, whose sessions are about to come. Later epochs are larger.
    pub(super) fn expect(&mut self, runtime: RuntimeLabel, standing: Standing, now: Instant) {
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
        runtime: &RuntimeLabel,
        instance: &InstanceId,
        on_conflict: OnConflict,
        now: Instant,
    ) -> Result<Claim, ClaimRefusal> {
        self.precheck(runtime, instance, on_conflict, now)?;
        if self
            .held
            .get(runtime)
            .is_some_and(|entry| !entry.counts(now))
        {
            self.held.remove(runtime);
        }
        if let Some(entry) = self.held.get_mut(runtime)
            && entry.standing.claim.instance == *instance
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
            }
        }
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
    use std::time::Duration;

    use OnConflict::{Reject, Supersede};

    use tunnel_proto::handshake::InstanceSecret;

    use super::*;

    fn label(name: &str) -> RuntimeLabel {
        RuntimeLabel::new(&"acme".parse().unwrap(), &name.parse().unwrap()).unwrap()
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
        claims.claim(&label("a"), &instance(number), on_conflict, Instant::now())
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
        let handed = || {
            let (mut claims, now) = (Claims::default(), Instant::now());
            for (label, standing) in before.standings() {
                claims.expect(label, standing, now);
            }
            claims
        };
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
        let a = claims
            .claim(&label("a"), &instance(1), Reject, now)
            .unwrap();
        let b = claims
            .claim(&label("b"), &instance(2), Reject, now)
            .unwrap();
        claims.release(&label("a"), b.epoch);
        assert_eq!(claims.len(), 2);
        assert_eq!(
            claims
                .claim(&label("a"), &instance(1), Reject, now)
                .unwrap(),
            a
        );
    }
}
