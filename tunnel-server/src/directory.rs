//! Who holds a runtime: one claim for each, fenced by an epoch.
//!
//! The registry asks the directory, and nobody else does. It lives in memory, which is all that a
//! single server node needs; the seam is here so that several nodes can share one.

use std::collections::HashMap;

use parking_lot::Mutex;
use tunnel_proto::handshake::InstanceId;

use crate::runtimes::RuntimeLabel;

/// Grows with every claim, so that what belongs to an older one is known as such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

/// The record that an instance holds a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The holder.
    pub instance: InstanceId,
    /// Which claim this is.
    pub epoch: Epoch,
}

/// All claims.
#[derive(Debug, Default)]
pub struct Directory {
    claims: Mutex<Claims>,
}

#[derive(Debug, Default)]
struct Claims {
    held: HashMap<RuntimeLabel, Claim>,
    last_epoch: u64,
}

impl Directory {
    /// Claims a runtime for an instance. The newest claim wins at once; an instance that holds the
    /// runtime already keeps its claim.
    pub fn claim(&self, runtime: &RuntimeLabel, instance: &InstanceId) -> Claim {
        let mut claims = self.claims.lock();
        if let Some(held) = claims
            .held
            .get(runtime)
            .filter(|held| held.instance == *instance)
        {
            return held.clone();
        }
        claims.last_epoch += 1;
        let claim = Claim {
            instance: instance.clone(),
            epoch: Epoch(claims.last_epoch),
        };
        claims.held.insert(runtime.clone(), claim.clone());
        claim
    }

    /// Gives a claim up. Does nothing when a newer one stands in its place.
    pub fn release(&self, runtime: &RuntimeLabel, epoch: Epoch) {
        let mut claims = self.claims.lock();
        if claims
            .held
            .get(runtime)
            .is_some_and(|held| held.epoch == epoch)
        {
            claims.held.remove(runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(name: &str) -> RuntimeLabel {
        RuntimeLabel::new(&"acme".parse().unwrap(), &name.parse().unwrap()).unwrap()
    }

    fn instance(number: u8) -> InstanceId {
        InstanceId::from_random([number; 16])
    }

    #[test]
    fn the_newest_instance_wins_and_a_late_release_cannot_hurt_it() {
        let directory = Directory::default();
        let first = directory.claim(&label("a"), &instance(1));
        let second = directory.claim(&label("a"), &instance(2));
        assert!(second.epoch > first.epoch);
        directory.release(&label("a"), first.epoch);
        assert_eq!(directory.claim(&label("a"), &instance(2)), second);
        directory.release(&label("a"), second.epoch);
        assert!(directory.claim(&label("a"), &instance(2)).epoch > second.epoch);
    }

    #[test]
    fn runtimes_do_not_touch_each_other() {
        let directory = Directory::default();
        let a = directory.claim(&label("a"), &instance(1));
        let b = directory.claim(&label("b"), &instance(1));
        directory.release(&label("a"), b.epoch);
        assert_eq!(directory.claim(&label("a"), &instance(1)), a);
    }
}
