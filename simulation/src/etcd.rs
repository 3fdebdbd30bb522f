//! A model of an etcd cluster, as its clients see it.
//!
//! In: calls that reach a member, and faults. Out: what the member answers, or that it does not. The caller moves time on and
//! delays calls and answers; the model keeps members, leases and watches.
//!
//! It has what the directory of the server nodes rests on: revisions, transactions with conditions, leases, linearizable and
//! serializable reads, watches that continue from a revision. And it has the faults of real clusters: members that are down,
//! cut off or frozen, elections, compaction, a full database, refused users, a restored snapshot, an emptied cluster.

mod shown;
mod store;
mod watch;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use testkit::random::Random;
use tunnel_directory::shared::{Call, EtcdAnswer};
use tunnel_etcd::EtcdError;

pub use self::{
    shown::{shown_answer, shown_call},
    watch::WatchId,
};
use self::{store::Store, watch::Watches};

/// The prefix of the keys of the directory.
pub(crate) const PREFIX: &str = "/tunnel/v1/";

/// Time without a leader until a member is elected: from this on, and up to half as long again. etcd's default time-out of
/// followers.
const ELECTION: Duration = Duration::from_secs(1);

/// What becomes of a call at a member.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It is answered.
    Answered(Result<EtcdAnswer, EtcdError>),
    /// Nothing comes, and the call has no effect.
    Silent,
    /// The processes are paused: the call is to be given again when they go on.
    Frozen,
}

/// How a member stands to its clients and to the other members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberState {
    /// It runs, and reaches the others.
    #[default]
    Up,
    /// It does not run: connections are refused.
    Down,
    /// It runs, and reaches no other member.
    CutOff,
}

/// What of the cluster's state hinders writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// Nothing.
    #[default]
    Allowed,
    /// The database is full (`NOSPACE`): renewals of leases are answered, writes are refused.
    Full,
    /// Users are refused.
    Denied,
}

/// The cluster.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    leader: Option<usize>,
    /// When the next leader is there, while there is none.
    elected_at: Option<Instant>,
    /// All processes are paused, as by SIGSTOP.
    is_frozen: bool,
    writes: Writes,
    store: Store,
    leases: BTreeMap<i64, Lease>,
    last_lease: i64,
    watches: Watches,
    random: Random,
}

/// The state of a cluster that a restore goes back to.
#[derive(Clone, Debug)]
pub struct Snapshot {
    store: Store,
    leases: BTreeMap<i64, Lease>,
}

#[derive(Clone, Debug, Default)]
struct Member {
    state: MemberState,
    /// The revision up to which the member has applied writes: what serializable reads and watches show.
    applied: i64,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    ttl: Duration,
    ends: Instant,
}

impl Etcd {
    /// A cluster of so many members, without keys.
    #[must_use]
    pub fn new(members: usize, seed: u64) -> Self {
        Self {
            members: vec![Member::default(); members],
            leader: Some(0),
            elected_at: None,
            is_frozen: false,
            writes: Writes::default(),
            store: Store::default(),
            leases: BTreeMap::new(),
            last_lease: 0,
            watches: Watches::default(),
            random: Random::new(seed),
        }
    }

    /// The number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.store.revision
    }

    /// The keys that begin with `prefix`, with their values.
    pub fn keys<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.store.keys(prefix)
    }

    /// When the cluster changes by itself: the next election or end of a lease.
    #[must_use]
    pub fn next_change(&self) -> Option<Instant> {
        if self.is_frozen {
            return None;
        }
        let lease = self.leases.values().map(|lease| lease.ends).min();
        let lease = lease.filter(|_| self.leader.is_some());
        [self.elected_at, lease].into_iter().flatten().min()
    }

    /// Elects a leader and ends leases whose time has come.
    pub fn on_time(&mut self, now: Instant) {
        if self.is_frozen {
            return;
        }
        if self.elected_at.is_some_and(|at| at <= now) {
            self.elect(now);
        }
        if self.leader.is_none() {
            return;
        }
        let ended = self.leases.iter().filter(|(_, lease)| lease.ends <= now);
        let ended: Vec<i64> = ended.map(|(id, _)| *id).collect();
        for id in ended {
            self.end_lease(id);
        }
    }

    /// A call reaches a member.
    pub fn call(&mut self, member: usize, call: &Call, now: Instant) -> Outcome {
        if self.is_frozen {
            return Outcome::Frozen;
        }
        if self.members[member].state == MemberState::Down {
            return Outcome::Answered(Err(unreachable(member)));
        }
        if self.writes == Writes::Denied {
            return Outcome::Answered(Err(EtcdError::Denied {
                member: name(member),
                message: "etcdserver: permission denied".to_owned(),
            }));
        }
        match call {
            Call::Range(read) if read.serializable => {
                let applied = self.members[member].applied;
                Outcome::Answered(self.store.range_at(read, applied).map(EtcdAnswer::Range))
            }
            _ if !self.has_leader(member) => Outcome::Silent,
            _ => Outcome::Answered(self.commit(member, call, now)),
        }
    }

    /// Sets the state of a member. A leader that is lost is replaced after an election, if the others are a majority.
    pub fn set_member(&mut self, member: usize, state: MemberState, now: Instant) {
        self.members[member].state = state;
        if state != MemberState::Up {
            self.watches.end_at(member);
        }
        if !self.has_majority() || self.leader == Some(member) && state != MemberState::Up {
            self.leader = None;
        }
        self.elected_at = match self.leader.is_none() && self.has_majority() {
            true => self.elected_at.or_else(|| {
                let more = u32::try_from(self.random.below(500)).unwrap_or(0);
                Some(now + ELECTION + Duration::from_millis(more.into()))
            }),
            false => None,
        };
        self.catch_up();
    }

    /// The state of a member.
    #[must_use]
    pub fn member(&self, member: usize) -> MemberState {
        self.members[member].state
    }

    /// Pauses all processes, or lets them go on.
    pub fn set_frozen(&mut self, is_frozen: bool) {
        self.is_frozen = is_frozen;
    }

    /// Whether all processes are paused.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Sets what hinders writes.
    pub fn set_writes(&mut self, writes: Writes) {
        self.writes = writes;
    }

    /// Removes the history before the newest revision.
    pub fn compact(&mut self) {
        self.store.compact();
    }

    /// The state, for a later [`Etcd::restore`].
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            store: self.store.clone(),
            leases: self.leases.clone(),
        }
    }

    /// Goes back to a snapshot, as a new cluster of the same members: watches end, and leases live for their whole time.
    pub fn restore(&mut self, snapshot: &Snapshot, now: Instant) {
        self.store = snapshot.store.clone();
        self.store.begin_history();
        self.leases.clone_from(&snapshot.leases);
        self.begin_cluster(now);
    }

    /// Removes everything, as a new cluster of the same members.
    pub fn empty(&mut self, now: Instant) {
        self.store = Store::default();
        self.leases.clear();
        self.begin_cluster(now);
    }

    fn begin_cluster(&mut self, now: Instant) {
        for member in 0..self.members.len() {
            self.watches.end_at(member);
            self.members[member].applied = self.store.revision;
        }
        self.elect(now);
    }

    fn elect(&mut self, now: Instant) {
        self.elected_at = None;
        let up = |member: &Member| member.state == MemberState::Up;
        let up: Vec<usize> = (0..self.members.len())
            .filter(|at| up(&self.members[*at]))
            .collect();
        if !self.has_majority() {
            self.leader = None;
            return;
        }
        self.leader = Some(self.random.pick(&up));
        // A new leader gives leases their whole time.
        for lease in self.leases.values_mut() {
            lease.ends = now + lease.ttl;
        }
        self.catch_up();
    }

    fn has_majority(&self) -> bool {
        let up = self
            .members
            .iter()
            .filter(|member| member.state == MemberState::Up);
        up.count() * 2 > self.members.len()
    }

    fn has_leader(&self, member: usize) -> bool {
        self.leader.is_some() && self.members[member].state == MemberState::Up
    }

    /// Members that reach the leader have what it has.
    fn catch_up(&mut self) {
        if self.leader.is_none() {
            return;
        }
        for member in &mut self.members {
            if member.state == MemberState::Up {
                member.applied = self.store.revision;
            }
        }
    }

    fn commit(
        &mut self,
        member: usize,
        call: &Call,
        now: Instant,
    ) -> Result<EtcdAnswer, EtcdError> {
        let is_write = !matches!(call, Call::Range(_) | Call::KeepAlive(_) | Call::Revoke(_));
        if is_write && self.writes == Writes::Full {
            return Err(EtcdError::Refused {
                member: name(member),
                message: "etcdserver: mvcc: database space exceeded".to_owned(),
            });
        }
        let reply = match call {
            Call::Txn(txn) => {
                let leases = &self.leases;
                let txn = self.store.txn(txn, |lease| leases.contains_key(&lease))?;
                EtcdAnswer::Txn(txn)
            }
            Call::Range(read) => EtcdAnswer::Range(self.store.range(read)?),
            Call::Grant(ttl) => {
                self.last_lease += 1;
                let lease = Lease {
                    ttl: *ttl,
                    ends: now + *ttl,
                };
                self.leases.insert(self.last_lease, lease);
                EtcdAnswer::Granted(self.last_lease)
            }
            Call::KeepAlive(id) => {
                let lease = self.leases.get_mut(id).ok_or(EtcdError::LeaseEnded)?;
                lease.ends = now + lease.ttl;
                EtcdAnswer::Done
            }
            Call::Revoke(id) => {
                if !self.leases.contains_key(id) {
                    return Err(EtcdError::LeaseEnded);
                }
                self.end_lease(*id);
                EtcdAnswer::Done
            }
        };
        self.catch_up();
        Ok(reply)
    }

    fn end_lease(&mut self, id: i64) {
        self.leases.remove(&id);
        self.store.delete_of_lease(id);
        self.catch_up();
    }
}

fn name(member: usize) -> String {
    format!("http://etcd-{member}")
}

fn unreachable(member: usize) -> EtcdError {
    EtcdError::Unreachable {
        member: name(member),
        reason: "connection refused".to_owned(),
    }
}
