//! Claims: which instance holds a runtime, by which epoch, and why another one does not get it.

use std::time::Duration;

use tunnel_proto::{handshake::InstanceId, refusal::RefusalReason};

use crate::names::RuntimeLabel;

/// What happens when an instance claims a runtime that another one holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The newer instance takes the runtime over at once.
    #[default]
    Supersede,
    /// The older instance keeps it as long as it is connected.
    Reject,
}

/// What happens to a new instance of a runtime that nobody holds, while the shared directory cannot be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WithoutDirectory {
    /// It gets the runtime; the claim follows, and gives way to any that was made meanwhile.
    #[default]
    Accept,
    /// It is refused until the directory is back.
    Refuse,
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
    /// The label belongs to another runtime.
    #[error(
        "the label `{0}` belongs to another runtime: the two names must differ by more than where the hyphen is"
    )]
    LabelTaken(RuntimeLabel),
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
    /// The shared directory cannot be written, and another instance holds the runtime.
    #[error("the directory of the server nodes cannot be reached, and takeovers wait for it")]
    Unavailable,
}

impl ClaimRefusal {
    /// The reason in the response and in the metric.
    #[must_use]
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::LabelTaken(_) => RefusalReason::RuntimeLabelTaken,
            Self::Held { .. } => RefusalReason::RuntimeHeld,
            Self::Superseded { .. } => RefusalReason::Superseded,
            Self::Contested { .. } => RefusalReason::RuntimeContested,
            Self::Unavailable => RefusalReason::DirectoryUnavailable,
        }
    }
}

impl Epoch {
    /// The number, for people and for other nodes.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The epoch of this number, as another node or process has sent it.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

tunnel_ops::word_value!(WithoutDirectory {
    "accept" => Self::Accept,
    "refuse" => Self::Refuse,
});

tunnel_ops::word_value!(OnConflict {
    "supersede" => Self::Supersede,
    "reject" => Self::Reject,
});
