//! Names of what is in the world, and of what happens to it.

use tunnel_directory::ClaimRefusal;

/// One process of a node. Events for an earlier one are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) node: usize,
    pub(crate) run: u64,
}

/// Names a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionId(pub(super) u64);

/// One link: from the node that sends reports to the one that receives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(super) number: u64,
}

/// Names a dial, and the session that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DialId {
    pub(super) client: usize,
    pub(super) slot: usize,
    pub(super) number: u64,
}

/// What comes of a dial.
#[derive(Debug)]
pub(crate) enum DialResult {
    /// Nothing answers.
    Unreachable,
    /// Another node is to have the session.
    Elsewhere,
    Refused(ClaimRefusal),
    Superseded,
    Welcome(Address, SessionId),
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    Lost,
    Drained,
    Superseded,
}

/// What ends a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heal {
    StartNode(usize),
    /// A node that leaves has moved its sessions.
    Depart(Address),
    ResumeNode(usize),
    ReachEtcd(usize),
    JoinLink(usize, usize),
    JoinLinks(usize),
    StartMember(usize),
    StartEtcd,
    ThawEtcd,
    AllowWrites,
    SpeedUpEtcd,
    StartClient(usize),
    StopSecond(usize),
    /// Nothing is left of the fault but what it has done.
    Over,
}
