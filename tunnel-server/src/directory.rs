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
//! Releasing a claim ([`ClaimGuard::leave`], dropping [`ClaimGuard`]) is not async, since it is done in `Drop`. A shared
//! directory passes it to a task, which informs the other nodes and retries; the claims of a node that has failed end
//! with a lease that the task renews. A late release is harmless: it names the claim's epoch and does not affect a later
//! claim.

mod claims;
mod contention;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tunnel_proto::{handshake::InstanceId, refusal::RefusalReason};

use self::claims::Claims;
use crate::{lock::Mutex, runtimes::RuntimeLabel};

/// What happens when an instance claims a runtime that another one holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The newer instance takes the runtime over at once.
    #[default]
    Supersede,
    /// The older instance keeps it as long as it is connected.
    Reject,
}

/// A number that grows with every claim, so that releases of older claims are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

/// The record that an instance holds a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The holder.
    pub instance: InstanceId,
    /// The number of the claim.
    pub epoch: Epoch,
}

/// Why an instance does not get a runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimRefusal {
    /// Another instance holds it, and keeps it.
    #[error("the runtime is held by the instance {holder}, which keeps it while it is connected")]
    Held {
        /// The instance that holds it.
        holder: InstanceId,
    },
    /// This instance held it, and a newer one took it over.
    #[error("the newer instance {by} holds the runtime: a runtime has one tunnel client")]
    Superseded {
        /// The instance that holds it now.
        by: InstanceId,
    },
    /// Instances repeatedly take the runtime from each other.
    #[error(
        "instances take this runtime from each other, {takeovers} times in a row: a runtime has one \
         tunnel client, stop the others"
    )]
    Contested {
        /// The instance that keeps it for now.
        holder: InstanceId,
        /// The number of takeovers in a row.
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

/// Holds a claim until it is dropped. Several sessions of one instance hold one claim together.
#[derive(Debug)]
pub struct ClaimGuard {
    claims: Arc<Mutex<Claims>>,
    runtime: RuntimeLabel,
    claim: Claim,
}

impl Directory {
    /// Checks whether a claim would be granted now, without a change.
    ///
    /// # Errors
    /// When it would not.
    pub async fn precheck(
        &self,
        runtime: &RuntimeLabel,
        instance: &InstanceId,
        on_conflict: OnConflict,
    ) -> Result<(), ClaimRefusal> {
        let claims = self.claims.lock();
        claims.precheck(runtime, instance, on_conflict, Instant::now())
    }

    /// Claims a runtime for an instance. If it holds the runtime already, it gets the existing claim.
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

    /// The number of held runtimes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.claims.lock().len()
    }

    /// The current claim of a runtime.
    #[cfg(test)]
    pub(crate) fn current(&self, runtime: &RuntimeLabel) -> Option<Claim> {
        self.claims.lock().current(runtime).cloned()
    }

    /// Whether no runtime is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ClaimGuard {
    /// Records that the holder is leaving, so that the next instance does not supersede it.
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
    /// The reason in the response and in the metric.
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
