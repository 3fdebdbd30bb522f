//! What goes in and out of a shared directory: calls of etcd, answers to claims, changes.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tunnel_etcd::{EtcdError, KeyValue, RangeRequest, RangeResponse, TxnRequest, TxnResponse};

use crate::{
    claim::{Claim, ClaimRefusal},
    error::DirectoryError,
    names::RuntimeLabel,
    outage::EtcdState,
};

/// The number of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub(super) u64);

/// The time of an input.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// By the clock that only goes forward.
    pub instant: Instant,
    /// The wall clock in milliseconds, for records.
    pub wall_ms: u64,
}

/// The number of a call of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(super) u64);

/// A call of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// A transaction.
    Txn(TxnRequest),
    /// A read of many keys.
    Range(RangeRequest),
    /// A lease of this length.
    Grant(Duration),
    /// Renews this lease.
    KeepAlive(i64),
    /// Ends this lease.
    Revoke(i64),
}

/// The answer to a call of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EtcdAnswer {
    /// Of a transaction.
    Txn(TxnResponse),
    /// Of a read.
    Range(RangeResponse),
    /// This lease was granted.
    Granted(i64),
    /// It is done.
    Done,
}

impl EtcdAnswer {
    /// The revision of a transaction; 0 of other calls.
    pub(super) fn revision(&self) -> i64 {
        match self {
            Self::Txn(answer) => answer.revision(),
            _ => 0,
        }
    }

    /// The key that the first operation of a transaction has read.
    pub(super) fn first_read(&self) -> Option<&KeyValue> {
        match self {
            Self::Txn(answer) => answer.first_read(),
            _ => None,
        }
    }
}

/// Who gets the answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caller {
    Writer,
    Presence,
    Departure,
    Pause,
    Sweep,
    Feed,
    /// Nothing depends on the answer.
    Nobody,
}

/// The number of a claim that a session waits for. The caller chooses it, and never twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId(pub u64);

/// One session's part of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedClaim {
    /// The label of the runtime.
    pub label: RuntimeLabel,
    /// The claim.
    pub claim: Claim,
    /// Names what this node holds of the runtime.
    pub serial: u64,
}

/// How far a claim has got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimProgress {
    /// It is answered.
    Answered(Result<GrantedClaim, ClaimRefusal>),
    /// The answer follows as an output.
    Pending,
}

/// The result of a claim in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimResult {
    /// It was written.
    Won,
    /// Another claim was faster.
    Lost,
    /// etcd did not answer.
    Failed,
    /// It was given while etcd was away.
    Provisional,
}

impl ClaimResult {
    /// All results.
    pub const ALL: [Self; 4] = [Self::Won, Self::Lost, Self::Failed, Self::Provisional];

    /// The name in the metric.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::Provisional => "provisional",
        }
    }
}

/// What is to be done outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Call etcd, and report the answer.
    Call(CallId, Call),
    /// Watch all keys after this revision, and report what comes, in place of any earlier watch: at the member that is so
    /// many after the one that the listing was read from.
    Watch {
        /// The number of the watch.
        id: WatchId,
        /// The number of the member, counted from that one.
        member: usize,
        /// The keys.
        keys: (Bytes, Bytes),
        /// The first revision.
        start: i64,
    },
    /// End this watch.
    EndWatch(WatchId),
    /// Ask the member that is watched which revision it has reached.
    RequestProgress(WatchId),
    /// Answer a claim that a session waits for. If the session has ended meanwhile, what it was granted has to be released.
    ClaimAnswer(ClaimId, Result<GrantedClaim, ClaimRefusal>),
    /// There is a claim that is newer than the one that this node holds the runtime by: of another instance, which
    /// supersedes, or of the instance that is here, which goes on by it.
    NewerClaim(RuntimeLabel, Claim),
    /// Something of the runtime has changed: other nodes may hold it now.
    RuntimeChanged(RuntimeLabel),
    /// The node takes part: the table is complete, and other nodes see this one.
    Ready,
    /// The node cannot take part any more.
    Failed(DirectoryError),
    /// The node has removed what it has written.
    Departed,
    /// The node knows what has happened while it was paused, or cannot learn it in time.
    CaughtUp,
    /// Whether etcd answers this node and others has changed.
    State(EtcdState),
    /// Whether no other node can be reached, although others reach each other, has changed.
    Isolated(bool),
    /// How long the lease lives without another renewal.
    LeaseLeft(Duration),
    /// The revision up to which the table is complete.
    Position(i64),
    /// All is listed once more.
    Relisted,
    /// Count a claim.
    ClaimResult(ClaimResult),
    /// Whether etcd does not take what this node writes, or does not answer at all.
    Unavailable(bool),
    /// Write this line to the log.
    Log(LogLine),
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogLine {
    /// etcd does not answer, or refuses.
    Unanswered(EtcdError),
    /// etcd answers again.
    AnsweredAgain,
    /// A write was not taken; it is tried again.
    WriteFailed(EtcdError),
    /// The lease of this node has ended, and it takes another one.
    LeaseEnded,
    /// No lease was got, or the key was not written.
    LeaseFailed(EtcdError),
    /// A renewal of the lease was not answered.
    RenewalUnanswered(EtcdError),
    /// Records of this node, or its lease, were not removed at its end.
    DepartureFailed(EtcdError),
    /// Records that nobody needs were not removed; the next sweep tries again.
    SweepFailed(EtcdError),
    /// etcd has not said in time what has happened during a pause.
    NotCaughtUp,
    /// The state has changed.
    State(EtcdState),
    /// No other node can be reached, although others reach each other; or one can be again.
    Isolated(bool),
    /// The directory cannot be read; it is tried again.
    ListingFailed(EtcdError),
    /// etcd has been restored or emptied.
    EtcdRestored,
    /// All is listed again.
    ListedAgain,
    /// The watch was lost; it goes on at another member.
    WatchLost(EtcdError),
    /// The table has other records of a kind than etcd.
    Incomplete {
        /// The kind of keys.
        kind: &'static str,
        /// The number of records in the table.
        own: usize,
        /// The number of records in etcd.
        etcd: i64,
    },
}
