//! The directory of several nodes, in etcd, as one of them sees it.
//!
//! ```text
//!   claim ─▶ rules (table) ─▶ writer: batches of transactions ─▶ etcd ─▶ feed: listing, then watch ─▶ table
//!                                 ▲                                                                      │
//!                                 └── to be written ◀── settling: superseded, adopted ◀──────────────────┘
//!   presence: the lease and the key of this node       report, unrecorded: what nodes tell each other on their links
//!   sweep: removes what nobody needs                   pause: what happened while this node did not run
//! ```
//!
//! All nodes hold the whole table, so that no lookup leaves the process. The rules are those of the directory in memory;
//! what decides is the transaction, which compares the revision of the claim that the rules have seen.
//!
//! A value without I/O: inputs change it and leave outputs, which [`SharedDirectory::poll_output`] returns in their order,
//! and [`SharedDirectory::next_deadline`] says when [`SharedDirectory::on_time`] is due. No input takes long, whatever the
//! number of runtimes: what goes through all of them does so in steps.

mod availability;
mod claiming;
mod departure;
mod feed;
mod io;
mod links;
mod pause;
mod presence;
mod report;
mod settling;
mod sweep;
mod unrecorded;
mod writer;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use tunnel_etcd::EtcdError;

use self::{
    availability::Availability, departure::Departure, feed::Feed, io::Caller, links::Links,
    pause::Pause, presence::Presence, report::Reports, settling::Settling, sweep::Sweep,
    unrecorded::Unrecorded, writer::Writer,
};
pub use self::{
    io::{
        Call, CallId, ClaimId, ClaimProgress, ClaimResult, EtcdAnswer, GrantedClaim, LogLine, Now,
        Output, WatchId,
    },
    pause::was_paused,
    report::{PendingReport, REPORT_INTERVAL, Report, ReportingLink, SentReports},
};
use crate::{
    claim::{Claim, Epoch, WithoutDirectory},
    error::DirectoryError,
    holds::Holds,
    names::{AccountName, RuntimeLabel, RuntimeName},
    node::{Incarnation, NodeName, NodeRun},
    outage::EtcdState,
    owner::Owner,
    rebalance::NodeStanding,
    record::{Keys, NodeRecord, NodeState},
    table::{Holder, Table},
};

/// What a node that shares a directory says of itself.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Its name.
    pub name: NodeName,
    /// Where other nodes connect, if they can.
    pub peer: Option<String>,
    /// The zone that it lies in.
    pub zone: Option<Arc<str>>,
    /// What becomes of a new instance of a runtime that nobody holds while etcd cannot be reached.
    pub without_directory: WithoutDirectory,
}

/// The directory of several nodes, as one of them sees it.
#[derive(Debug)]
pub struct SharedDirectory {
    settings: NodeSettings,
    keys: Keys,
    run: NodeRun,
    table: Table,
    holds: Holds,
    writer: Writer,
    presence: Presence,
    feed: Feed,
    reports: Reports,
    unrecorded: Unrecorded,
    pause: Pause,
    sweep: Sweep,
    settling: Settling,
    departure: Departure,
    availability: Availability,
    links: Links,
    state: EtcdState,
    /// The revision up to which the table is complete.
    position: i64,
    is_ready_known: bool,
    outbox: VecDeque<Output>,
    /// Calls that are not answered yet.
    calls: BTreeMap<CallId, Caller>,
    last_call: u64,
    last_watch: u64,
    last_nonce: u64,
}

impl SharedDirectory {
    /// The directory before anything was read, below this prefix of keys. `random` tells this process of the node from others.
    #[must_use]
    pub fn new(settings: NodeSettings, prefix: &str, random: u64, now: Instant) -> Self {
        let keys = Keys::new(prefix);
        let run = NodeRun {
            node: settings.name.clone(),
            incarnation: Incarnation::new(random),
        };
        Self {
            table: Table::new(keys.clone(), run.clone(), random),
            keys,
            run,
            settings,
            holds: Holds::default(),
            writer: Writer::default(),
            presence: Presence::new(now),
            feed: Feed::new(now),
            reports: Reports::new(now),
            unrecorded: Unrecorded::new(now),
            pause: Pause::new(now),
            sweep: Sweep::new(now),
            settling: Settling::default(),
            departure: Departure::default(),
            availability: Availability::new(now),
            links: Links::default(),
            state: EtcdState::default(),
            position: 0,
            is_ready_known: false,
            outbox: VecDeque::new(),
            calls: BTreeMap::new(),
            last_call: 0,
            last_watch: 0,
            last_nonce: 0,
        }
    }

    /// The next output, in the order in which they were decided.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop_front()
    }

    /// When [`SharedDirectory::on_time`] is due, unless another input comes first.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let deadlines = [
            self.settling.deadline(),
            self.writer.deadline(),
            self.presence.deadline(),
            self.feed.deadline(),
            self.pause.deadline(),
            self.sweep.deadline(),
            self.departure.deadline(),
        ];
        let ticks = self.reports.deadline();
        deadlines.into_iter().flatten().fold(ticks, Instant::min)
    }

    /// Does what is due.
    pub fn on_time(&mut self, now: Now) {
        self.tick(now);
        self.settle_next(now);
        self.feed_on_time(now);
        self.pause_on_time(now);
        self.writer_on_time(now);
        self.presence_on_time(now);
        self.departure_on_time(now);
        self.sweep_on_time(now);
    }

    /// etcd has answered a call, or the call has failed.
    pub fn on_answer(&mut self, id: CallId, answer: Result<EtcdAnswer, EtcdError>, now: Now) {
        match self.calls.remove(&id) {
            Some(Caller::Writer) => self.on_writer_answer(id, answer, now),
            Some(Caller::Presence) => self.on_presence_answer(id, answer, now),
            Some(Caller::Departure) => self.on_departure_answer(id, answer, now),
            Some(Caller::Pause) => self.on_pause_answer(id, &answer, now),
            Some(Caller::Sweep) => self.on_sweep_answer(id, answer),
            Some(Caller::Feed) => self.on_feed_answer(id, answer, now),
            Some(Caller::Nobody) | None => {}
        }
    }

    /// Sets the port of the peer listener, where the one to be announced was 0. Before the node takes part.
    pub fn set_peer_port(&mut self, port: u16) {
        if let Some(peer) = &mut self.settings.peer
            && let Some(host) = peer.strip_suffix(":0")
        {
            *peer = format!("{host}:{port}");
        }
    }

    /// Whether the table is complete and other nodes see this one.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.feed.is_listed() && self.presence.is_present
    }

    fn output_if_ready(&mut self) {
        if self.is_ready() && !std::mem::replace(&mut self.is_ready_known, true) {
            self.output(Output::Ready);
        }
    }

    /// The node cannot take part any more.
    fn fail(&mut self, error: DirectoryError) {
        self.end_presence();
        self.end_feed();
        self.output(Output::Failed(error));
    }

    /// The number of runtimes that this node holds, and of those with a record.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        (self.holds.len(), self.table.len())
    }

    /// The name and the incarnation of this node.
    #[must_use]
    pub fn run(&self) -> &NodeRun {
        &self.run
    }

    /// What the node says of itself.
    #[must_use]
    pub fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    /// Whether etcd answers this node and others.
    #[must_use]
    pub fn state(&self) -> EtcdState {
        self.state
    }

    /// How this node stands to etcd and to the other nodes.
    #[must_use]
    pub fn standing(&self) -> NodeStanding {
        NodeStanding {
            etcd: self.state,
            is_isolated: self.is_isolated(),
        }
    }

    /// The claim of another instance that is newer than this one of a runtime, if there is one by which a node holds it.
    #[must_use]
    pub fn newer(
        &self,
        label: &RuntimeLabel,
        account: &AccountName,
        than: &Claim,
    ) -> Option<Claim> {
        let claim = self.table.claim_for(label.as_str(), Owner::of(account))?;
        let is_newer = claim.instance != than.instance && claim.epoch > than.epoch;
        (is_newer && self.table.is_claim_held(label.as_str())).then_some(claim)
    }

    /// The claim of a runtime.
    #[must_use]
    pub fn current(&self, label: &str) -> Option<Claim> {
        self.table.claim(label)
    }

    /// Whether this node may be about to hold a runtime by this claim or a later one: others may know of its claim before
    /// it does, and it knows of that before the session that waits for the claim has joined.
    #[must_use]
    pub fn is_joining(&self, label: &RuntimeLabel, epoch: Epoch) -> bool {
        let Some(claim) = self.table.claim(label.as_str()) else {
            return true;
        };
        let own = self.table.held_by(label, &self.run);
        claim.epoch < epoch || own.is_some_and(|(held, _)| held == claim.epoch)
    }

    /// The names of a runtime that any node has held.
    #[must_use]
    pub fn runtime(&self, label: &str) -> Option<(RuntimeLabel, AccountName, RuntimeName)> {
        self.table.runtime(label)
    }

    /// The other nodes that hold a runtime, and the epoch of the claim by which they do.
    #[must_use]
    pub fn holders(&self, label: &str) -> Option<(Epoch, Vec<Holder>)> {
        let (epoch, mut holders) = self.table.holders(label)?;
        holders.retain(|holder| holder.incarnation != self.run.incarnation);
        (!holders.is_empty()).then_some((epoch, holders))
    }

    /// Whether etcd has this node's key, written by this process.
    fn has_own_key(&self) -> bool {
        let known = self.table.node(&self.run.node);
        known.is_some_and(|(incarnation, _)| incarnation == self.run.incarnation)
    }

    /// Whether any node besides this one and the avoided ones takes sessions.
    fn has_other_serving(&self, is_avoided: impl Fn(&NodeName) -> bool) -> bool {
        let mut nodes = self.table.nodes();
        nodes.any(|(name, incarnation, record)| {
            incarnation != self.run.incarnation
                && record.state == NodeState::Serving
                && !is_avoided(name)
        })
    }

    /// Whether a session had better be at another node: this one leaves or does not know what the others do, or the instance
    /// avoids it, and there is a node that takes sessions and is not avoided.
    #[must_use]
    pub fn is_better_elsewhere(
        &self,
        is_leaving: bool,
        is_avoided: impl Fn(&NodeName) -> bool,
    ) -> bool {
        let is_bad = is_leaving || self.standing().reason_to_leave().is_some();
        (is_bad || is_avoided(&self.run.node)) && self.has_other_serving(is_avoided)
    }

    /// All nodes, this one included.
    #[must_use]
    pub fn nodes(&self) -> Vec<(NodeName, Incarnation, NodeRecord)> {
        let nodes = self.table.nodes();
        nodes
            .map(|(name, incarnation, record)| (name.clone(), incarnation, record.clone()))
            .collect()
    }

    /// Whether a node has a record.
    #[must_use]
    pub fn has_node(&self, name: &NodeName) -> bool {
        self.table.node(name).is_some()
    }

    /// A text that no other process and no other claim has.
    fn nonce(&mut self) -> String {
        self.last_nonce += 1;
        format!("{}-{:x}", self.run.incarnation, self.last_nonce)
    }

    fn call(&mut self, caller: Caller, call: Call) -> CallId {
        self.last_call += 1;
        let id = CallId(self.last_call);
        self.calls.insert(id, caller);
        self.output(Output::Call(id, call));
        id
    }

    fn output(&mut self, output: Output) {
        self.outbox.push_back(output);
    }

    fn log(&mut self, line: LogLine) {
        self.output(Output::Log(line));
    }
}
