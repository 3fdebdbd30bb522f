//! Claims in the form in which one process hands them to the next.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tunnel_proto::{control::millis, handshake::InstanceId};

use super::{Claim, Epoch, contention::Contention, standing::Standing};

/// The claim of one runtime.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandedClaim {
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
    pub(super) fn of(standing: Standing, now: Instant) -> Self {
        let (takeovers, since) = standing.contention.parts(now);
        Self {
            instance: standing.claim.instance,
            epoch: standing.claim.epoch.number(),
            is_leaving: standing.is_leaving,
            takeovers,
            last_takeover_ms: millis(since),
            superseded: standing.superseded,
        }
    }

    pub(super) fn standing(self, now: Instant) -> Standing {
        let since = Duration::from_millis(self.last_takeover_ms);
        let last = now.checked_sub(since).unwrap_or(now);
        Standing {
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
