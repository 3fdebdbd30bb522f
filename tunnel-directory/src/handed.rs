//! Claims in the form in which one process hands them to the next.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tunnel_proto::{control::millis, handshake::InstanceId};

use crate::{
    claim::{Claim, Epoch},
    contention::Contention,
    takeover::HeldClaim,
};

/// The claim of one runtime.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandedClaim {
    instance: InstanceId,
    epoch: u64,
    #[serde(default)]
    is_leaving: bool,
    /// Takeovers in a row, and the time since the last one.
    #[serde(default)]
    takeovers: u32,
    #[serde(default)]
    last_takeover_ms: u64,
    /// Instances that have lost the runtime since it was last free.
    #[serde(default)]
    superseded: VecDeque<InstanceId>,
}

impl HandedClaim {
    /// The claim as it is handed over at this time.
    pub(crate) fn of(held: HeldClaim, now: Instant) -> Self {
        let (takeovers, since) = held.contention.parts(now);
        Self {
            instance: held.claim.instance,
            epoch: held.claim.epoch.number(),
            is_leaving: held.is_leaving,
            takeovers,
            last_takeover_ms: millis(since),
            superseded: held.superseded,
        }
    }

    /// The claim as it is taken over at this time.
    pub(crate) fn into_held(self, now: Instant) -> HeldClaim {
        let since = Duration::from_millis(self.last_takeover_ms);
        let last = now.checked_sub(since).unwrap_or(now);
        HeldClaim {
            claim: Claim {
                instance: self.instance,
                epoch: Epoch::from_number(self.epoch),
            },
            contention: Contention::of(self.takeovers, last),
            is_leaving: self.is_leaving,
            superseded: self.superseded,
        }
    }
}
