//! Why a call failed. Except after [`EtcdError::Refused`], a write may have been done nevertheless.

use tonic::{Code, Status};

/// Why a call of one member failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No connection to the member, or it was lost.
    #[error("{member}: {reason}")]
    Unreachable {
        /// The member's URL.
        member: String,
        /// What happened.
        reason: String,
    },
    /// The member did not answer in time.
    #[error("{member}: no answer in time")]
    TimedOut {
        /// The member's URL.
        member: String,
    },
    /// The member has answered with an error that another try does not change.
    #[error("{member}: {message}")]
    Refused {
        /// The member's URL.
        member: String,
        /// etcd's words.
        message: String,
    },
    /// The lease has ended, or never was.
    #[error("the lease has ended")]
    LeaseEnded,
    /// The revision that a watch or a read wants is compacted away.
    #[error("the revision is compacted; the oldest is {oldest}")]
    Compacted {
        /// The oldest revision that there is; 0 if etcd does not say.
        oldest: i64,
    },
    /// User and password are not accepted, or have no right to the keys.
    #[error("{member}: {message}")]
    Denied {
        /// The member's URL.
        member: String,
        /// etcd's words.
        message: String,
    },
}

impl EtcdError {
    pub(crate) fn of_status(member: &str, status: &Status) -> Self {
        let member = member.to_owned();
        let message = status.message().to_owned();
        match status.code() {
            _ if Self::is_stale_token(status) => Self::Unreachable {
                member,
                reason: message,
            },
            Code::NotFound if message.contains("lease not found") => Self::LeaseEnded,
            Code::OutOfRange if message.contains("compacted") => Self::Compacted { oldest: 0 },
            Code::PermissionDenied => Self::Denied { member, message },
            Code::InvalidArgument if message.contains("authentication") => {
                Self::Denied { member, message }
            }
            // Also what etcd says of a full database.
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::FailedPrecondition
            | Code::Unimplemented
            | Code::ResourceExhausted => Self::Refused { member, message },
            // All others, also "no leader" and what is new: unknown, and another member may know better.
            _ => Self::Unreachable {
                member,
                reason: message,
            },
        }
    }

    /// Whether etcd has refused the token of a login that was good: it has expired, its member was started again, or roles
    /// have changed. Nothing was done, and the next call logs in again.
    pub(crate) fn is_stale_token(status: &Status) -> bool {
        status.code() == Code::Unauthenticated
            || status.message().contains("revision of auth store is old")
    }

    /// Whether another member may answer.
    #[must_use]
    pub fn is_of_member(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TimedOut { .. })
    }
}
