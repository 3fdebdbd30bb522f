//! What nodes report to each other on their links, beside the requests that they forward.
//!
//! ```text
//!   each half second: whether etcd answers the sender, and up to which revision it knows the records
//!   while etcd is away: what the sender holds without a record        (forgotten with the link)
//!   to a node that lags behind: the claims by which runtimes were taken from it
//! ```
//!
//! The node that has dialled a link sends reports, the other one receives them. A reported claim is applied as if the watch
//! had reported it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tunnel_proto::{control::millis, handshake::InstanceId};

use super::{
    LogLine, Now, Output, SharedDirectory,
    presence::TTL,
    unrecorded::{HoldChanges, SentHolds},
};
use crate::{
    claim::{Claim, Epoch},
    names::RuntimeLabel,
    node::{Incarnation, NodeName, NodeRun},
    outage::{EtcdState, PeerReport},
    peer_reports::{HoldDifference, UnrecordedHold},
    record::{ClaimRecord, is_zero},
    table::{Change, ClaimPosition, TakenClaim},
};

/// Time between two reports, and between two judgements of the state.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// How long the report of a node counts: several reports.
const FRESH: Duration = Duration::from_secs(3);

/// Most runtimes, and most claims, in one report: their texts fit into a control message.
const HOLDS_IN_ONE: usize = 32;
const CLAIMS_IN_ONE: usize = 8;

/// Most reports at once: fewer than may wait in a session.
const AT_ONCE: usize = 16;

/// What other nodes have reported of themselves, and this node's own past.
#[derive(Debug)]
pub(super) struct Reports {
    last: BTreeMap<NodeName, LastReport>,
    /// The positions at the last ticks; the first one, of a second ago, is what all nodes should have reached.
    positions: [i64; 3],
    next_tick: Instant,
}

/// The last report of a node.
#[derive(Debug)]
struct LastReport {
    incarnation: Incarnation,
    /// The links on which the node sends reports.
    links: usize,
    received: Instant,
    report: PeerReport,
    revision: i64,
    /// The node has not seen what this node knew a second ago.
    lags: bool,
}

/// What was sent on one link.
#[derive(Debug, Default)]
pub struct SentReports {
    holds: SentHolds,
    /// The last claim.
    claims_up_to: Option<ClaimPosition>,
}

/// A report that has not been sent yet.
#[derive(Debug)]
pub struct PendingReport {
    /// Its text.
    pub text: String,
    holds: HoldChanges,
    claims_up_to: Option<ClaimPosition>,
}

/// The link on which a node sends reports.
#[derive(Debug)]
pub struct ReportingLink {
    node: NodeName,
    /// The process of the node, after its first report.
    incarnation: Option<Incarnation>,
}

/// A report.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    incarnation: String,
    generation: u16,
    /// The revision up to which the sender knows the records.
    revision: i64,
    /// Time since etcd has answered it.
    answered_ms: u64,
    /// It knows the key of the receiver.
    sees_you: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    held: Vec<ReportedHold>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    released: Vec<String>,
    /// The revision from which on the sender's records of `released` say what it holds; 0 if it does not say.
    #[serde(default, skip_serializing_if = "is_zero")]
    released_at: i64,
    /// Runtimes that the sender does not hold, though its records say so; in `released`, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    void: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    claims: Vec<ReportedClaim>,
    /// Further runtimes of which the sender's records are not right follow in the next reports.
    #[serde(default, skip_serializing_if = "is_zero")]
    more: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct ReportedHold {
    label: String,
    account: String,
    runtime: String,
    instance: InstanceId,
    epoch: u64,
    leaving: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct ReportedClaim {
    label: String,
    revision: i64,
    record: ClaimRecord,
}

impl Reports {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last: BTreeMap::new(),
            positions: [0; 3],
            next_tick: now,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.next_tick
    }

    /// What the positions were says nothing any more.
    pub(super) fn forget_positions(&mut self) {
        self.positions = [0; 3];
    }
}

impl SentReports {
    /// A report was sent.
    pub fn on_sent(&mut self, report: PendingReport) {
        self.holds.on_sent(report.holds);
        self.claims_up_to = report.claims_up_to;
    }
}

impl ReportingLink {
    /// A link of this node, on which it has sent nothing yet.
    #[must_use]
    pub fn new(node: NodeName) -> Self {
        Self {
            node,
            incarnation: None,
        }
    }
}

impl Report {
    /// Reads a report; `None` if this version cannot read it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl SharedDirectory {
    /// Judges how this node stands to etcd, each half second.
    pub(super) fn tick(&mut self, now: Now) {
        if now.instant < self.reports.next_tick {
            return;
        }
        self.reports.next_tick = now.instant + REPORT_INTERVAL;
        self.notice_pause(now);
        let [_, one, two] = self.reports.positions;
        self.reports.positions = [one, two, self.position];
        self.unrecorded.tick(now.instant);
        self.judge(now.instant);
        self.judge_links(now);
    }

    /// The revision that all nodes should have reached by now.
    fn past_position(&self) -> i64 {
        self.reports.positions[0]
    }

    fn judge(&mut self, now: Instant) {
        let has_others = self.settings.peer.is_some() && {
            let mut names = self.table.nodes().map(|(name, ..)| name);
            names.any(|name| *name != self.run.node)
        };
        let age = |last: &LastReport| now.saturating_duration_since(last.received);
        let reports = self.reports.last.values();
        let fresh = reports.filter(|last| age(last) <= FRESH);
        let aged = fresh.map(|last| PeerReport {
            answered: last.report.answered + age(last),
            ..last.report
        });
        let state = EtcdState::of(self.since_answered(now), TTL, has_others, aged);
        if std::mem::replace(&mut self.state, state) != state {
            self.output(Output::State(state));
            self.log(LogLine::State(state));
        }
    }

    /// The next report to a process of another node; `None` if it needs none now. The first one is always due, and further
    /// ones, of which `number` counts those before, if not all went into it. What was not sent is in a later one.
    #[must_use]
    pub fn next_report(
        &self,
        to: &NodeRun,
        sent: &SentReports,
        number: usize,
        now: Instant,
    ) -> Option<PendingReport> {
        if number >= AT_ONCE {
            return None;
        }
        let holds = self.unrecorded.next(&sent.holds, HOLDS_IN_ONE);
        let claims = self.claims_for(to, sent.claims_up_to.as_ref(), now);
        if number > 0 && holds.changed.is_empty() && claims.is_empty() {
            return None;
        }
        let last = claims.last().map(|claim| ClaimPosition {
            revision: claim.revision,
            label: Some(claim.label.clone()),
        });
        let (mut held, mut released, mut void) = (Vec::new(), Vec::new(), Vec::new());
        let mut released_at = 0;
        for (label, difference) in &holds.changed {
            match difference {
                Some(HoldDifference::Held(hold)) => held.push(ReportedHold::of(label, hold)),
                Some(HoldDifference::Released) => {
                    released.push(label.to_string());
                    void.push(label.to_string());
                }
                None => {
                    released.push(label.to_string());
                    let recorded = self.table.held_revision(label, &self.run);
                    released_at = released_at.max(recorded).max(self.position);
                }
            }
        }
        let report = Report {
            incarnation: self.run.incarnation.to_string(),
            generation: self.table.generation(),
            revision: self.position,
            answered_ms: millis(self.since_answered(now)),
            sees_you: self.table.node(&to.node).is_some(),
            held,
            released,
            released_at,
            void,
            claims: claims.into_iter().map(ReportedClaim::of).collect(),
            more: holds.has_more,
        };
        Some(PendingReport {
            // Serialising these types cannot fail.
            text: serde_json::to_string(&report).unwrap_or_default(),
            holds,
            claims_up_to: last.or_else(|| sent.claims_up_to.clone()),
        })
    }

    /// The next claims to report to a node that lags behind: those after the last one that was sent.
    fn claims_for(
        &self,
        to: &NodeRun,
        sent: Option<&ClaimPosition>,
        now: Instant,
    ) -> Vec<TakenClaim> {
        let last = self.reports.last.get(&to.node);
        let last = last.filter(|last| last.lags && last.incarnation == to.incarnation);
        let Some(last) = last else {
            return Vec::new();
        };
        let known = ClaimPosition::after(last.revision);
        let after = match sent {
            Some(sent) => known.max(sent.clone()),
            None => known,
        };
        self.table.taken_from(to, &after, CLAIMS_IN_ONE, now)
    }

    /// A node has sent a report.
    pub fn on_report(&mut self, link: &mut ReportingLink, report: Report, now: Now) {
        let Ok(incarnation) = report.incarnation.parse() else {
            return;
        };
        let is_first = link.incarnation != Some(incarnation);
        link.incarnation = Some(incarnation);
        let known = self.reports.last.get(&link.node);
        let known = known.filter(|known| known.incarnation == incarnation);
        let links = known.map_or(0, |known| known.links) + usize::from(is_first);
        let last = LastReport {
            incarnation,
            links,
            received: now.instant,
            report: PeerReport {
                answered: Duration::from_millis(report.answered_ms),
                sees_own: report.sees_you,
            },
            revision: report.revision,
            lags: report.revision < self.past_position(),
        };
        self.reports.last.insert(link.node.clone(), last);
        let run = NodeRun {
            node: link.node.clone(),
            incarnation,
        };
        self.apply_report(&run, report, now);
    }

    fn apply_report(&mut self, run: &NodeRun, report: Report, now: Now) {
        let node = &run.node;
        let peers = &mut self.table.peer_reports;
        let was_complete = peers.has_reported_all(node, run.incarnation);
        let mut changed = peers.on_report(run);
        for held in report.held {
            if let Some((label, hold)) = held.read() {
                let hold = Some(HoldDifference::Held(hold));
                peers.set_difference(node, label.clone(), hold);
                changed.push(label);
            }
        }
        let released = report.released.iter().map(|label| (label, None));
        let void = report
            .void
            .iter()
            .map(|label| (label, Some(HoldDifference::Released)));
        for (label, difference) in released.chain(void) {
            let Ok(label) = RuntimeLabel::parse(label) else {
                continue;
            };
            if difference.is_none() && report.released_at > self.position {
                peers.end_difference(node, &label, report.released_at);
            } else {
                peers.set_difference(node, label.clone(), difference);
                changed.push(label);
            }
        }
        let mut changes: Vec<Change> = Vec::new();
        if report.generation == self.table.generation() {
            for claim in report.claims {
                if let Ok(label) = RuntimeLabel::parse(&claim.label) {
                    let (record, revision) = (claim.record, claim.revision);
                    let table = &mut self.table;
                    changes.extend(table.put_reported_claim(label, record, revision, now.instant));
                }
            }
        }
        self.on_changes(changes, now);
        self.settle_many(changed, now);
        if !report.more {
            self.table.peer_reports.on_all_reported(node);
        }
        if !was_complete && !report.more {
            // What it holds by its records counts again.
            self.settle_all(now);
        }
    }

    /// A link on which a node sent reports has ended.
    pub fn on_link_down(&mut self, link: &ReportingLink, now: Now) {
        let last = self.reports.last.get_mut(&link.node);
        let Some(last) = last.filter(|last| Some(last.incarnation) == link.incarnation) else {
            return;
        };
        last.links = last.links.saturating_sub(1);
        if last.links > 0 {
            return;
        }
        self.reports.last.remove(&link.node);
        let forgotten = self.table.peer_reports.forget(&link.node);
        self.settle_many(forgotten, now);
    }
}

impl ReportedHold {
    fn of(label: &RuntimeLabel, hold: &UnrecordedHold) -> Self {
        Self {
            label: label.to_string(),
            account: hold.account.to_string(),
            runtime: hold.name.to_string(),
            instance: hold.claim.instance.clone(),
            epoch: hold.claim.epoch.number(),
            leaving: hold.is_leaving,
        }
    }

    /// The hold, if it can be read.
    fn read(self) -> Option<(RuntimeLabel, UnrecordedHold)> {
        let label = RuntimeLabel::parse(&self.label).ok()?;
        let hold = UnrecordedHold {
            claim: Claim {
                instance: self.instance,
                epoch: Epoch::from_number(self.epoch),
            },
            account: self.account.parse().ok()?,
            name: self.runtime.parse().ok()?,
            is_leaving: self.leaving,
        };
        Some((label, hold))
    }
}

impl ReportedClaim {
    fn of(taken: TakenClaim) -> Self {
        Self {
            label: taken.label.to_string(),
            revision: taken.revision,
            record: taken.record,
        }
    }
}
