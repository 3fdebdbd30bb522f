//! What the table keeps of one runtime. There may be a million, so that each is kept small: what its label says is not
//! kept again, and what few have is apart.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;
use tunnel_proto::{control::millis, handshake::InstanceId};

use crate::{
    contention::Contention,
    names::{AccountName, RuntimeLabel, RuntimeName},
    node::{NodeName, NodeRun},
    owner::Owner,
    record::{ClaimRecord, HeldState},
};

/// The records of one runtime.
#[derive(Debug, Default)]
pub(super) struct RuntimeRecords {
    pub(super) claim: Option<ClaimEntry>,
    /// Nearly all runtimes have one.
    pub(super) held: SmallVec<[HeldEntry; 1]>,
}

/// The claim of a runtime.
#[derive(Debug)]
pub(super) struct ClaimEntry {
    number: ClaimNumber,
    /// The listing that has had the record last.
    pub(super) listing: u32,
    pub(super) instance: InstanceId,
    /// The runtime that the label belongs to; `None` if no record has named it.
    pub(super) owner: Option<Owner>,
    /// The record is for another runtime, and was written over the owner's by a node of a version that does not compare them:
    /// nothing of it counts but its revision.
    pub(super) is_void: bool,
    /// Whether the record says that the label was taken from another runtime on purpose.
    pub(super) overrules: bool,
    /// `None` if nobody has lost the runtime since it was free.
    takeovers: Option<Box<Takeovers>>,
}

/// The revision of a claim and its generation, if that is known, in one word.
#[derive(Debug, Clone, Copy)]
struct ClaimNumber(u64);

impl ClaimNumber {
    /// The bits of the revision; etcd would need 8,900 years at 1,000 revisions a second to fill them.
    const REVISION_BITS: u32 = 48;

    fn new(generation: Option<u16>, revision: i64) -> Self {
        let generation = generation.map_or(0, |generation| u64::from(generation.saturating_add(1)));
        let revision = u64::try_from(revision).unwrap_or(0);
        Self(generation << Self::REVISION_BITS | revision)
    }

    fn revision(self) -> i64 {
        let revision = self.0 & ((1 << Self::REVISION_BITS) - 1);
        i64::try_from(revision).unwrap_or(i64::MAX)
    }

    fn generation(self) -> Option<u16> {
        let generation = u16::try_from(self.0 >> Self::REVISION_BITS).unwrap_or(u16::MAX);
        generation.checked_sub(1)
    }
}

/// The takeovers since a runtime was free.
#[derive(Debug)]
struct Takeovers {
    in_a_row: u32,
    /// When the last one of the row was, by this node's clock.
    last: Instant,
    superseded: VecDeque<InstanceId>,
}

/// The record that a node has sessions of a runtime.
#[derive(Debug)]
pub(super) struct HeldEntry {
    pub(super) run: Arc<NodeRun>,
    pub(super) revision: i64,
    /// The revision of the claim.
    pub(super) epoch: i64,
    /// The listing that has had the record last.
    pub(super) listing: u32,
    pub(super) state: HeldState,
}

impl RuntimeRecords {
    pub(super) fn is_empty(&self) -> bool {
        self.claim.is_none() && self.held.is_empty()
    }
}

impl ClaimEntry {
    /// The claim of a record. `owner` is the runtime whose record was there before, `age` how long ago this one was written.
    pub(super) fn new(
        label: &RuntimeLabel,
        record: ClaimRecord,
        owner: Option<Owner>,
        (revision, listing): (i64, u32),
        age: Duration,
        now: Instant,
    ) -> Self {
        let named = Owner::named(label, &record.account, &record.runtime);
        let owner = owner.filter(|_| !record.overrules).or(named);
        let is_first = record.takeovers == 0 && record.superseded.is_empty();
        let age = age.saturating_add(Duration::from_millis(record.last_takeover_ms));
        let takeovers = (!is_first).then(|| {
            Box::new(Takeovers {
                in_a_row: record.takeovers,
                last: now.checked_sub(age).unwrap_or(now),
                superseded: record.superseded,
            })
        });
        Self {
            number: ClaimNumber::new(record.generation, revision),
            listing,
            instance: record.instance,
            owner,
            is_void: named.is_some() && named != owner,
            overrules: record.overrules,
            takeovers,
        }
    }

    /// The revision of the record.
    pub(super) fn revision(&self) -> i64 {
        self.number.revision()
    }

    /// The generation of the claim, if the record says it.
    pub(super) fn generation(&self) -> Option<u16> {
        self.number.generation()
    }

    /// The account and the name of the runtime, whose label this is.
    pub(super) fn runtime(&self, label: &RuntimeLabel) -> Option<(AccountName, RuntimeName)> {
        self.owner?.names(label)
    }

    pub(super) fn has_takeovers(&self) -> bool {
        self.takeovers.is_some()
    }

    pub(super) fn contention(&self) -> Contention {
        let takeovers = self.takeovers.as_ref();
        takeovers.map_or_else(Contention::default, |takeovers| {
            Contention::of(takeovers.in_a_row, takeovers.last)
        })
    }

    pub(super) fn superseded(&self) -> VecDeque<InstanceId> {
        let takeovers = self.takeovers.as_ref();
        takeovers.map_or_else(VecDeque::new, |takeovers| takeovers.superseded.clone())
    }

    /// The record again, without what only its writer needs; `node` has written it.
    pub(super) fn to_record(
        &self,
        label: &RuntimeLabel,
        node: Option<&NodeName>,
        now: Instant,
    ) -> ClaimRecord {
        let (account, runtime) = self.runtime(label).map_or_else(Default::default, |names| {
            (names.0.to_string(), names.1.to_string())
        });
        let (takeovers, since) = self.contention().parts(now);
        ClaimRecord {
            instance: self.instance.clone(),
            nonce: String::new(),
            account,
            runtime,
            generation: self.generation(),
            overrules: self.overrules,
            node: node.map(ToString::to_string).unwrap_or_default(),
            at_ms: 0,
            takeovers,
            last_takeover_ms: millis(since),
            superseded: self.superseded(),
        }
    }
}
