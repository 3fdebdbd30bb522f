//! Which instance holds a runtime: one claim for each, fenced by an epoch.
//!
//! ```text
//!   connect ── precheck ─▶ may this instance have the runtime?   before the 101
//!   connect ── claim ────▶ ClaimGuard: the claim, while it lives  when the session is ready
//!                           └─▶ registry: of two claims the later epoch counts, in whatever order they join
//! ```
//!
//! The directory alone decides which instance holds a runtime. The claims live in memory, which is all that a single
//! server node needs; the functions are async, so that several nodes can share one directory.
//!
//! Releasing a claim ([`ClaimGuard::leave`], dropping [`ClaimGuard`]) awaits nothing, since it happens where nothing can be
//! awaited. A directory that is shared hands it to a task of its own, which informs the others and tries
//! again until they know; for a node that is gone the claim ends by a lease that the task renews.
//! Late is harmless: both name the claim's epoch, and touch no later one.

mod claims;
mod contention;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tunnel_proto::{handshake::InstanceId, refusal::RefusalReason};

use self::claims::Claims;
use crate::{lock::Mutex, runtimes::RuntimeLabel};

/// What happens when a second instance comes for a runtime that one holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The newer instance takes the runtime over at once.
    #[default]
    Supersede,
    /// The older instance keeps it for as long as it is there.
    Reject,
}

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

/// Why an instance does not get a runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimRefusal {
    /// Another instance has it, and keeps it.
    #[error("the runtime is held by the instance {holder}, which keeps it while it is connected")]
    Held {
        /// The instance that holds it.
        holder: InstanceId,
    },
    /// This instance had it, and a newer one took it over.
    #[error("the newer instance {by} holds the runtime: a runtime has one tunnel client")]
    Superseded {
        /// The instance that holds it now.
        by: InstanceId,
    },
    /// Instances take the runtime from each other all the time.
    #[error(
        "instances take this runtime from each other, {takeovers} times in a row: a runtime has one \
         tunnel client, stop the others"
    )]
    Contested {
        /// The instance that keeps it for now.
        holder: InstanceId,
        /// How often it changed hands.
        takeovers: u32,
        /// When the next takeover is possible.
        retry_after: Duration,
    },
}

/// All claims.
#[derive(Debug, Default)]
pub struct Directory {
    claims: Arc<Mutex<Claims>>,
}

/// A claim that stands for as long as this lives. Several sessions of one instance hold one claim
/// together.
#[derive(Debug)]
pub struct ClaimGuard {
    claims: Arc<Mutex<Claims>>,
    runtime: RuntimeLabel,
    claim: Claim,
}

impl Directory {
    /// Whether a claim would be granted now; nothing changes.
    ///
    /// # Errors
    /// With the reason why not.
    pub async fn precheck(
        &self,
        runtime: &RuntimeLabel,
        instance: &InstanceId,
        on_conflict: OnConflict,
    ) -> Result<(), ClaimRefusal> {
        let claims = self.claims.lock();
        claims.precheck(runtime, instance, on_conflict, Instant::now())
    }

    /// Claims a runtime for an instance. One that holds the runtime already gets the claim that
    /// stands.
    ///
    /// # Errors
    /// As [`Directory::precheck`].
    pub async fn claim(
        &self,
        runtime: &RuntimeLabel,
        instance: &InstanceId,
        on_conflict: OnConflict,
    ) -> Result<ClaimGuard, ClaimRefusal> {
        let mut claims = self.claims.lock();
        let claim = claims.claim(runtime, instance, on_conflict, Instant::now())?;
        Ok(ClaimGuard {
            claims: self.claims.clone(),
            runtime: runtime.clone(),
            claim,
        })
    }

    /// How many runtimes are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.claims.lock().len()
    }

    /// The claim that stands.
    #[cfg(test)]
    pub(crate) fn standing(&self, runtime: &RuntimeLabel) -> Option<Claim> {
        self.claims.lock().standing(runtime).cloned()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ClaimGuard {
    /// The holder leaves by its own will: the next instance takes nothing away from it.
    pub fn leave(&self) {
        let mut claims = self.claims.lock();
        claims.leave(&self.runtime, self.claim.epoch);
    }

    /// The claim.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        let mut claims = self.claims.lock();
        claims.release(&self.runtime, self.claim.epoch);
    }
}

impl ClaimRefusal {
    /// The reason in the answer and in the metric.
    #[must_use]
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::Held { .. } => RefusalReason::RuntimeHeld,
            Self::Superseded { .. } => RefusalReason::Superseded,
            Self::Contested { .. } => RefusalReason::RuntimeContested,
        }
    }
}

impl Epoch {
    /// The number, for people.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

tunnel_ops::word_value!(OnConflict {
    "supersede" => Self::Supersede,
    "reject" => Self::Reject,
});
