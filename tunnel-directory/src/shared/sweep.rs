//! Removes what nobody needs any more: records of nodes that have died, and claims that have long been free.
//!
//! One node does it for all: the first by name of those that live. A record that is removed although its node lives, as
//! after an hour without etcd, is written again by that node.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use tunnel_etcd::{Compare, EtcdError, RequestOp, TxnRequest};

use super::{Call, CallId, Caller, EtcdAnswer, LogLine, Now, SharedDirectory};
use crate::{node::NodeRun, table::Table};

/// Interval of the sweep. What is dead at two sweeps in a row is removed.
const INTERVAL: Duration = Duration::from_secs(60);

/// How long a claim stays that nobody holds: its instance gets the runtime by it again, and hosts of the runtime are
/// known meanwhile.
const FREE: Duration = Duration::from_secs(24 * 60 * 60);

/// Most keys that are removed in one transaction, and of each kind in one sweep.
const BATCH: usize = 50;
const MAX_REMOVED: usize = 5_000;

/// Parts of the table that are searched in one step.
const PARTS_AT_ONCE: usize = 8;

#[derive(Debug)]
pub(super) struct Sweep {
    stage: Stage,
    next: Instant,
    /// Processes that were dead at the last sweep.
    dead: BTreeSet<NodeRun>,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Searching(Box<Search>),
    Removing(CallId, VecDeque<RequestOp>),
}

/// One sweep through the table.
#[derive(Debug)]
struct Search {
    /// The next part.
    part: usize,
    due: Instant,
    /// Whether this node removes what is found.
    removes: bool,
    dead: BTreeSet<NodeRun>,
    records: Vec<RequestOp>,
    claims: Vec<RequestOp>,
}

impl Sweep {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            stage: Stage::Waiting,
            next: now + INTERVAL,
            dead: BTreeSet::new(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Waiting => Some(self.next),
            Stage::Searching(search) => Some(search.due),
            Stage::Removing(..) => None,
        }
    }
}

impl SharedDirectory {
    pub(super) fn sweep_on_time(&mut self, now: Now) {
        if self.sweep.deadline().is_none_or(|at| now.instant < at) {
            return;
        }
        match std::mem::replace(&mut self.sweep.stage, Stage::Waiting) {
            Stage::Searching(search) => self.sweep_search(search, now),
            Stage::Waiting | Stage::Removing(..) => {
                self.sweep.next = now.instant + INTERVAL;
                self.sweep.stage = Stage::Searching(Box::new(Search {
                    part: 0,
                    due: now.instant,
                    removes: self.is_ready() && self.is_first_node(),
                    dead: BTreeSet::new(),
                    records: Vec::new(),
                    claims: Vec::new(),
                }));
            }
        }
    }

    fn sweep_search(&mut self, mut search: Box<Search>, now: Now) {
        let end = (search.part + PARTS_AT_ONCE).min(Table::PARTS);
        for part in search.part..end {
            search.dead.extend(self.table.dead_runs(part).cloned());
            let confirmed = &self.sweep.dead;
            let records = self.table.records_of(part, confirmed);
            let dead = records.filter(|(_, run)| search.dead.contains(*run));
            let dead = dead.map(|(label, run)| removal(self.keys.held(run, label), None));
            search.records.extend(dead);
            let free = self.table.long_free(part, FREE, now.instant).into_iter();
            let free = free.map(|(label, seen)| removal(self.keys.claim(&label), Some(seen)));
            search.claims.extend(free);
        }
        search.records.truncate(MAX_REMOVED);
        search.claims.truncate(MAX_REMOVED);
        search.part = end;
        search.due = now.instant;
        if end < Table::PARTS {
            self.sweep.stage = Stage::Searching(search);
            return;
        }
        self.sweep.dead = search.dead;
        if search.removes {
            let removals = search.records.into_iter().chain(search.claims);
            self.sweep_remove(removals.collect());
        }
    }

    fn sweep_remove(&mut self, mut removals: VecDeque<RequestOp>) {
        if removals.is_empty() {
            return;
        }
        let next = removals.drain(..removals.len().min(BATCH));
        let txn = TxnRequest {
            success: next.collect(),
            ..TxnRequest::default()
        };
        let id = self.call(Caller::Sweep, Call::Txn(txn));
        self.sweep.stage = Stage::Removing(id, removals);
    }

    pub(super) fn on_sweep_answer(&mut self, id: CallId, answer: Result<EtcdAnswer, EtcdError>) {
        match std::mem::replace(&mut self.sweep.stage, Stage::Waiting) {
            Stage::Removing(sent, rest) if sent == id => match answer {
                Ok(_) => self.sweep_remove(rest),
                Err(error) => self.log(LogLine::SweepFailed(error)),
            },
            stage => self.sweep.stage = stage,
        }
    }

    /// Whether this is the first node by name.
    fn is_first_node(&self) -> bool {
        let mut nodes = self.table.nodes();
        nodes.all(|(name, _, _)| *name >= self.run.node)
    }
}

/// The removal of a key, if that has still this revision where one is given.
fn removal(key: String, seen: Option<i64>) -> RequestOp {
    let compare = seen.map(|seen| Compare::mod_revision(key.clone(), seen));
    let removal = TxnRequest {
        compare: compare.into_iter().collect(),
        success: vec![RequestOp::delete(key)],
        failure: Vec::new(),
    };
    removal.into()
}
