//! Which instance holds a runtime: one claim for each, fenced by an epoch. The rules, without I/O.
//!
//! ```text
//!   memory   the claims of a server that stands alone      shared   those of several nodes, as one of them sees them
//!      │                                                     │ ├─▶ table ◀─ record         what nodes have written to etcd
//!      │                                                     │ │     └──── peer_reports   what they report to each other
//!      ▼                                                     ▼ └─▶ holds   what this node holds, and has to write
//!   takeover, contention, owner: one set of rules: which instance gets a runtime, and whose label it is
//! ```
//!
//! Nothing here runs, waits, locks, reads a clock or draws random numbers: times, wall clock and random numbers are
//! arguments, and whatever goes through many entries does so in an order that repeats. `tunnel-server/src/directory`
//! calls etcd, keeps the time and delivers what is decided here.

mod claim;
mod contention;
mod error;
#[cfg(test)]
mod fixtures;
mod handed;
mod holds;
pub mod managed;
mod memory;
mod names;
mod node;
mod outage;
mod owner;
mod peer_reports;
mod rebalance;
mod record;
pub mod shared;
mod table;
mod takeover;
mod unreached;

pub use self::{
    claim::{Claim, ClaimRefusal, Epoch, OnConflict, WithoutDirectory},
    error::DirectoryError,
    handed::HandedClaim,
    memory::{HANDOVER_GRACE, MemoryClaims},
    names::{AccountName, NameError, RuntimeLabel, RuntimeName},
    node::{BadNodeName, Incarnation, NodeName, NodeRun},
    outage::EtcdState,
    owner::Claimant,
    rebalance::{MoveOrder, MoveReason, NodeStanding, REBALANCE_INTERVAL, Rebalance, Spread},
    record::{NodeRecord, NodeState},
    table::Holder,
    unreached::{RETURN_WINDOW, UnreachedRuntime},
};
