//! What nodes report to each other on their links, beside the requests that they forward.
//!
//! ```text
//!   each half second: whether etcd answers the sender, and up to which revision it knows the records
//!   while etcd is away: what the sender holds without a record        (forgotten with the link)
//!   to a node that lags behind: the claims by which runtimes were taken from it
//! ```
//!
//! The node that has dialled a link sends reports, the other one receives them. A reported claim is applied as if the watch had
//! reported it.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tunnel_directory::{
    Claim, Epoch, EtcdState, Incarnation, NodeName, NodeRun, PeerReport, RuntimeLabel,
    peer_reports::UnrecordedHold,
    record::{ClaimRecord, HeldState},
    table::{Change, ClaimPosition},
};
use tunnel_proto::handshake::InstanceId;

use super::{super::now, Shared, presence::TTL};

/// Time between two reports, and between two ticks at the state.
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// How long the report of a node counts: several reports.
const FRESH: Duration = Duration::from_secs(3);

/// Most runtimes, and most claims, in one report: their texts fit into a control message.
const HOLDS_IN_ONE: usize = 32;
const CLAIMS_IN_ONE: usize = 8;

/// Most reports at once: fewer than may wait in a session.
const AT_ONCE: usize = 16;

/// What this node holds without a record.
pub(super) type Unrecorded = BTreeMap<RuntimeLabel, UnrecordedHold>;

/// The last report of each node.
pub(super) type LastReports = BTreeMap<NodeName, LastReport>;

/// The last report of a node.
#[derive(Debug)]
pub(super) struct LastReport {
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
pub(crate) struct SentReports {
    held: BTreeMap<RuntimeLabel, UnrecordedHold>,
    /// The last claim.
    claims_up_to: Option<ClaimPosition>,
}

/// What was received on one link; forgotten when it is dropped.
pub(crate) struct ReceivedReports {
    shared: Arc<Shared>,
    node: NodeName,
    incarnation: Option<Incarnation>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Report {
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    claims: Vec<ReportedClaim>,
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

/// Judges how this node stands to etcd, until it is dropped.
pub(super) async fn judge(shared: Arc<Shared>) {
    let mut ticks = interval(REPORT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut past = [0; 2];
    loop {
        ticks.tick().await;
        shared.on_tick().await;
        shared.past_position.store(past[0], Ordering::Relaxed);
        past = [past[1], shared.position.load(Ordering::Relaxed)];
        shared.update_unrecorded();
        shared.update_state();
    }
}

impl Shared {
    /// How this node stands to etcd.
    pub(crate) fn state(&self) -> EtcdState {
        *self.state.borrow()
    }

    fn update_state(&self) {
        let answered = self.answered.lock().elapsed();
        let has_others = self.node.peer.is_some() && {
            let table = self.table.read();
            table.nodes().any(|(name, ..)| *name != self.node.name)
        };
        let reports = self.last_reports.lock();
        let fresh = reports
            .values()
            .filter(|last| last.received.elapsed() <= FRESH);
        let aged = fresh.map(|last| PeerReport {
            answered: last.report.answered + last.received.elapsed(),
            ..last.report
        });
        let now = EtcdState::of(answered, TTL, has_others, aged);
        drop(reports);
        for each in EtcdState::ALL {
            self.metrics.set_state(each.name(), each == now);
        }
        if self.state.send_replace(now) == now {
            return;
        }
        let state = now.name();
        match now {
            EtcdState::Ok => tracing::info!(state, "this node and etcd are connected again"),
            EtcdState::Outage => tracing::warn!(
                state,
                "etcd answers no node: what is known is served on, takeovers wait"
            ),
            EtcdState::CutOff | EtcdState::Alone => tracing::error!(
                state,
                "etcd does not answer this node: it is not ready, and its clients are to go to other nodes"
            ),
        }
    }

    /// Finds what this node holds without a record, while etcd is away.
    pub(super) fn update_unrecorded(&self) {
        let mut unrecorded = Unrecorded::new();
        if self.is_away() {
            let holds = self.holds.lock();
            let table = self.table.read();
            for (label, hold) in holds.iter() {
                let record = table.held_by(label, &self.run);
                if record != Some((hold.epoch(), hold.state())) {
                    let held = UnrecordedHold {
                        claim: hold.claim.clone(),
                        account: hold.account.clone(),
                        name: hold.name.clone(),
                        is_leaving: hold.state() == HeldState::Leaving,
                    };
                    unrecorded.insert(label.clone(), held);
                }
            }
        }
        *self.unrecorded.lock() = Arc::new(unrecorded);
    }

    /// Sends another node the reports that it needs now. `send` returns whether a report was sent; what was not is in a later
    /// one.
    pub(crate) fn report_to(
        &self,
        node: &NodeName,
        incarnation: Incarnation,
        sent: &mut SentReports,
        mut send: impl FnMut(String) -> bool,
    ) {
        let unrecorded = self.unrecorded.lock().clone();
        for number in 0..AT_ONCE {
            let mut report = self.report(node);
            let held: Vec<(RuntimeLabel, UnrecordedHold)> = unrecorded
                .iter()
                .filter(|(label, hold)| sent.held.get(*label) != Some(hold))
                .take(HOLDS_IN_ONE)
                .map(|(label, hold)| (label.clone(), hold.clone()))
                .collect();
            let gone = sent.held.keys();
            let gone = gone.filter(|label| !unrecorded.contains_key(*label));
            let released: Vec<RuntimeLabel> = gone.take(HOLDS_IN_ONE).cloned().collect();
            let claims = self.claims_for(node, incarnation, sent.claims_up_to.as_ref());
            let last = claims.last().map(ReportedClaim::position);
            report.held = held.iter().map(ReportedHold::of).collect();
            report.released = released.iter().map(ToString::to_string).collect();
            report.claims = claims;
            let is_empty = held.is_empty() && released.is_empty() && last.is_none();
            if is_empty && number > 0 {
                return;
            }
            // Serialising these types cannot fail.
            let text = serde_json::to_string(&report).unwrap_or_default();
            if !send(text) {
                return;
            }
            sent.held.extend(held);
            for label in released {
                sent.held.remove(&label);
            }
            sent.claims_up_to = last.or(sent.claims_up_to.take());
        }
    }

    fn report(&self, node: &NodeName) -> Report {
        let table = self.table.read();
        let answered = self.answered.lock().elapsed();
        Report {
            incarnation: self.run.incarnation.to_string(),
            generation: table.generation(),
            revision: self.position.load(Ordering::Relaxed),
            answered_ms: u64::try_from(answered.as_millis()).unwrap_or(u64::MAX),
            sees_you: table.node(node).is_some(),
            held: Vec::new(),
            released: Vec::new(),
            claims: Vec::new(),
        }
    }

    /// The next claims to report to a node that lags behind: those after the revision `sent`.
    fn claims_for(
        &self,
        node: &NodeName,
        incarnation: Incarnation,
        sent: Option<&ClaimPosition>,
    ) -> Vec<ReportedClaim> {
        let reports = self.last_reports.lock();
        let Some(revision) = reports
            .get(node)
            .filter(|last| last.lags && last.incarnation == incarnation)
            .map(|last| last.revision)
        else {
            return Vec::new();
        };
        drop(reports);
        let known = ClaimPosition::after(revision);
        let after = match sent {
            Some(sent) => known.max(sent.clone()),
            None => known,
        };
        let run = NodeRun {
            node: node.clone(),
            incarnation,
        };
        let table = self.table.read();
        let taken = table.taken_from(&run, &after, CLAIMS_IN_ONE, now());
        let claims = taken.into_iter().map(|taken| ReportedClaim {
            label: taken.label.to_string(),
            revision: taken.revision,
            record: taken.record,
        });
        claims.collect()
    }

    /// Applies a report of a node.
    fn apply(&self, node: &NodeName, incarnation: Incarnation, report: Report) {
        let mut table = self.table.write();
        let is_new = !table.peer_reports.is_reporting(node, incarnation);
        let run = NodeRun {
            node: node.clone(),
            incarnation,
        };
        let mut changed = table.peer_reports.on_report(&run);
        for held in report.held {
            if let Some((label, hold)) = held.read() {
                table.peer_reports.hold(node, label.clone(), hold);
                changed.push(label);
            }
        }
        for label in report.released {
            if let Ok(label) = RuntimeLabel::parse(&label) {
                table.peer_reports.release(&label, node);
                changed.push(label);
            }
        }
        let mut changes: Vec<Change> = changed.into_iter().map(Change::Runtime).collect();
        if report.generation == table.generation() {
            for claim in report.claims {
                if let Ok(label) = RuntimeLabel::parse(&claim.label) {
                    let (record, revision) = (claim.record, claim.revision);
                    changes.extend(table.put_reported_claim(label, record, revision, now()));
                }
            }
        }
        drop(table);
        self.on_changes(changes);
        if is_new {
            // What it holds by its records counts again.
            self.settle_all();
        }
    }
}

impl ReportedClaim {
    fn position(&self) -> ClaimPosition {
        ClaimPosition {
            revision: self.revision,
            label: RuntimeLabel::parse(&self.label).ok(),
        }
    }
}

impl ReportedHold {
    fn of((label, hold): &(RuntimeLabel, UnrecordedHold)) -> Self {
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

impl ReceivedReports {
    /// Nothing was received from a node yet.
    pub(crate) fn new(shared: Arc<Shared>, node: NodeName) -> Self {
        Self {
            shared,
            node,
            incarnation: None,
        }
    }

    /// The node has sent a report. One that this version cannot read is ignored.
    pub(crate) fn on_report(&mut self, text: &str) {
        let Ok(report) = serde_json::from_str::<Report>(text) else {
            return;
        };
        let Ok(incarnation) = report.incarnation.parse() else {
            return;
        };
        let is_first = self.incarnation != Some(incarnation);
        self.incarnation = Some(incarnation);
        let lags = report.revision < self.shared.past_position.load(Ordering::Relaxed);
        let latest = PeerReport {
            answered: Duration::from_millis(report.answered_ms),
            sees_own: report.sees_you,
        };
        let mut reports = self.shared.last_reports.lock();
        let known = reports.get(&self.node);
        let known = known.filter(|known| known.incarnation == incarnation);
        let links = known.map_or(0, |known| known.links) + usize::from(is_first);
        let last = LastReport {
            incarnation,
            links,
            received: Instant::now(),
            report: latest,
            revision: report.revision,
            lags,
        };
        reports.insert(self.node.clone(), last);
        drop(reports);
        self.shared.apply(&self.node, incarnation, report);
    }
}

impl Drop for ReceivedReports {
    fn drop(&mut self) {
        let mut reports = self.shared.last_reports.lock();
        let Some(last) = reports
            .get_mut(&self.node)
            .filter(|last| Some(last.incarnation) == self.incarnation)
        else {
            return;
        };
        last.links = last.links.saturating_sub(1);
        if last.links > 0 {
            return;
        }
        reports.remove(&self.node);
        drop(reports);
        let forgotten = self.shared.table.write().peer_reports.forget(&self.node);
        self.shared
            .on_changes(forgotten.into_iter().map(Change::Runtime));
    }
}
