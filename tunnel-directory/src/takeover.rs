//! The rules of a takeover, as a pure function of what is known of the current claim.
//!
//! Both directories use them: the one in memory, and the shared one, whose records have the same content.

use std::{collections::VecDeque, time::Instant};

use tunnel_proto::handshake::InstanceId;

use crate::{
    claim::{Claim, ClaimRefusal, OnConflict},
    contention::Contention,
};

/// How many superseded instances are stored per runtime: more than are connected at once in any rollout.
const MAX_SUPERSEDED: usize = 16;

/// The claim of a runtime that is held, and what decides about the next one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HeldClaim {
    /// The claim.
    pub(crate) claim: Claim,
    /// The takeovers that led to it.
    pub(crate) contention: Contention,
    /// Whether the holder is leaving: the next instance does not supersede it.
    pub(crate) is_leaving: bool,
    /// Instances that lost the runtime since it was last free, the latest last. They do not get it back before it is free
    /// again, since one of their dials may have been on its way when they lost it.
    pub(crate) superseded: VecDeque<InstanceId>,
}

impl HeldClaim {
    /// A claim of a runtime that was free.
    pub(crate) fn new(claim: Claim) -> Self {
        Self {
            claim,
            contention: Contention::default(),
            is_leaving: false,
            superseded: VecDeque::new(),
        }
    }

    /// Whether an instance gets the runtime now.
    pub(crate) fn precheck(
        &self,
        instance: &InstanceId,
        on_conflict: OnConflict,
        now: Instant,
    ) -> Result<(), ClaimRefusal> {
        let holder = &self.claim.instance;
        if holder == instance {
            return Ok(());
        }
        if self.superseded.contains(instance) {
            return Err(ClaimRefusal::Superseded { by: holder.clone() });
        }
        if self.is_leaving {
            return Ok(());
        }
        if on_conflict == OnConflict::Reject {
            return Err(ClaimRefusal::Held {
                holder: holder.clone(),
            });
        }
        let retry_after = self.contention.wait(now);
        if retry_after.is_zero() {
            return Ok(());
        }
        Err(ClaimRefusal::Contested {
            holder: holder.clone(),
            takeovers: self.contention.takeovers(now),
            retry_after,
        })
    }

    /// The claim after another instance has taken the runtime over.
    pub(crate) fn succeeded_by(&self, claim: Claim, now: Instant) -> Self {
        let mut next = self.clone();
        let older = std::mem::replace(&mut next.claim, claim);
        if next.superseded.len() >= MAX_SUPERSEDED {
            next.superseded.pop_front();
        }
        next.superseded.push_back(older.instance);
        if !std::mem::take(&mut next.is_leaving) {
            next.contention.on_takeover(now);
        }
        next
    }
}
