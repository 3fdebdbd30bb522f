//! Follows the changes after a listing, member after member, until all has to be listed again.
//!
//! ```text
//!   checking: was etcd restored meanwhile? ─▶ following at a member ── lost ──▶ pausing ─▶ checking, with the next member
//! ```
//!
//! The member is asked for progress again and again: a member without quorum, or one that is cut off, keeps a watch open
//! and says nothing.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tunnel_etcd::{EtcdError, Event, RangeRequest, RequestOp, WatchReport};

use super::{
    super::{
        Call, CallId, Caller, EtcdAnswer, LogLine, Now, Output, SharedDirectory, WatchId,
        presence::writes,
    },
    PAUSE, Stage,
};

/// Interval of progress requests to the watched member.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(400);

/// Progress requests in a row without an answer after which another member is watched: in about the time of an election,
/// after which no takeover is to wait any longer. Counted, so that a node that was paused asks again.
const MAX_UNANSWERED: u32 = 3;

/// Those at the beginning of a watch: more, since the way to etcd may be slow.
const MAX_UNANSWERED_FIRST: u32 = 12;

/// Interval of comparisons of the table's size with etcd's: events have been lost by old versions.
const AUDIT_INTERVAL: Duration = Duration::from_secs(600);

/// Events that are applied in one step.
const STEP: usize = 50;

/// The kinds of keys that are compared, in the order in which the table counts them.
const AUDITED: [&str; 3] = ["node/", "claim/", "held/"];

#[derive(Debug)]
pub(super) struct Watching {
    stage: WatchStage,
    /// The number of the member, counted from the one that the listing was read from. Not that one at first: both share one
    /// connection there.
    member: usize,
    /// What the watch has reported and is not applied yet: events, and the revision up to which they are complete.
    reported: VecDeque<(VecDeque<Event>, Option<i64>)>,
    /// Asks whether etcd was restored.
    check: Option<CallId>,
    audit: Option<Audit>,
    next_audit: Instant,
    /// When a step is due, if something is reported.
    due: Instant,
}

#[derive(Debug)]
enum WatchStage {
    Checking(CallId),
    Pausing(Instant),
    Following {
        id: WatchId,
        next_request: Instant,
        /// Progress requests that may still go without an answer.
        requests_left: u32,
    },
}

/// A comparison of the numbers of records.
#[derive(Debug)]
struct Audit {
    call: CallId,
    kind: usize,
    /// Those of the table when it was complete up to the revision.
    own: [usize; 3],
    revision: i64,
}

impl Watching {
    pub(super) fn deadline(&self) -> Instant {
        let stage = match &self.stage {
            WatchStage::Checking(_) => self.next_audit,
            WatchStage::Pausing(at) => *at,
            WatchStage::Following { next_request, .. } => *next_request,
        };
        let deadline = stage.min(self.next_audit);
        match self.reported.is_empty() {
            true => deadline,
            false => deadline.min(self.due),
        }
    }
}

impl SharedDirectory {
    fn watching(&mut self) -> Option<&mut Watching> {
        match &mut self.feed.stage {
            Stage::Watching(watching) => Some(watching),
            _ => None,
        }
    }

    /// Watches from after the position on, unless etcd was restored while it was not watched.
    pub(super) fn begin_watching(&mut self, now: Now) {
        let check = self.check_restored();
        self.feed.stage = Stage::Watching(Box::new(Watching {
            stage: WatchStage::Checking(check),
            member: 1,
            reported: VecDeque::new(),
            check: None,
            audit: None,
            next_audit: now.instant + AUDIT_INTERVAL,
            due: now.instant,
        }));
    }

    /// Asks whether etcd is at an earlier revision, or is another cluster, by a read that no member answers from an old state.
    fn check_restored(&mut self) -> CallId {
        let read = writes(RequestOp::get(self.keys.cluster()));
        self.call(Caller::Feed, Call::Txn(read))
    }

    pub(super) fn watching_on_time(&mut self, now: Now) {
        self.apply_reported(now);
        let Some(watching) = self.watching() else {
            return;
        };
        match &mut watching.stage {
            WatchStage::Pausing(at) if now.instant >= *at => {
                let check = self.check_restored();
                if let Some(watching) = self.watching() {
                    watching.stage = WatchStage::Checking(check);
                }
            }
            WatchStage::Following {
                requests_left: 0,
                next_request,
                ..
            } if now.instant >= *next_request => {
                let member = "the member that is watched".to_owned();
                self.on_watch_lost(EtcdError::TimedOut { member }, now);
            }
            WatchStage::Following {
                id,
                next_request,
                requests_left,
            } if now.instant >= *next_request => {
                *requests_left -= 1;
                *next_request = now.instant + PROGRESS_INTERVAL;
                let id = *id;
                self.output(Output::RequestProgress(id));
            }
            _ => {}
        }
        if self
            .watching()
            .is_some_and(|watching| now.instant >= watching.next_audit)
        {
            self.begin_audit(now);
        }
    }

    /// Ends the watch, if there is one.
    pub(super) fn end_watch(&mut self) {
        if let Some(watching) = self.watching()
            && let WatchStage::Following { id, .. } = &watching.stage
        {
            let id = *id;
            self.output(Output::EndWatch(id));
        }
    }

    /// Asks the member that is watched which revision it has reached.
    pub(in super::super) fn request_progress(&mut self) {
        if let Some(watching) = self.watching()
            && let WatchStage::Following { id, .. } = &watching.stage
        {
            let id = *id;
            self.output(Output::RequestProgress(id));
        }
    }

    pub(super) fn on_watching_answer(
        &mut self,
        id: CallId,
        answer: Result<EtcdAnswer, EtcdError>,
        now: Now,
    ) {
        let Some(watching) = self.watching() else {
            return;
        };
        if watching
            .audit
            .as_ref()
            .is_some_and(|audit| audit.call == id)
        {
            return self.on_audit_answer(answer);
        }
        let is_begin = matches!(&watching.stage, WatchStage::Checking(sent) if *sent == id);
        if !is_begin && watching.check != Some(id) {
            return;
        }
        watching.check = None;
        match answer {
            Ok(answer) => {
                let cluster = answer.first_read().map(|kv| &kv.value[..]);
                if answer.revision() < self.position || !self.is_cluster(cluster) {
                    self.list_again();
                } else if is_begin {
                    self.follow(now);
                }
            }
            Err(error) if is_begin => self.on_watch_lost(error, now),
            Err(_) => {}
        }
    }

    fn follow(&mut self, now: Now) {
        self.last_watch += 1;
        let id = WatchId(self.last_watch);
        let start = self.watched_up_to() + 1;
        let Some(watching) = self.watching() else {
            return;
        };
        let member = watching.member;
        watching.stage = WatchStage::Following {
            id,
            next_request: now.instant + PROGRESS_INTERVAL,
            requests_left: MAX_UNANSWERED_FIRST,
        };
        let keys = self.keys.all();
        self.output(Output::Watch {
            id,
            member,
            keys,
            start,
        });
    }

    /// The revision up to which everything was reported, applied or not.
    fn watched_up_to(&mut self) -> i64 {
        let position = self.position;
        let Some(watching) = self.watching() else {
            return position;
        };
        let reported = watching.reported.iter();
        let reported = reported.filter_map(|(_, up_to)| *up_to).max();
        reported.unwrap_or(position).max(position)
    }

    /// The watch has reported something.
    pub fn on_watch_report(&mut self, id: WatchId, report: WatchReport, now: Now) {
        let Some(watching) = self.watching() else {
            return;
        };
        match &mut watching.stage {
            WatchStage::Following {
                id: current,
                requests_left,
                ..
            } if *current == id => *requests_left = MAX_UNANSWERED,
            _ => return,
        }
        match report {
            WatchReport::Events { events, up_to } => {
                watching.reported.push_back((events.into(), up_to));
            }
            WatchReport::Progress { up_to } => {
                watching.reported.push_back((VecDeque::new(), Some(up_to)));
            }
            WatchReport::Alive { revision } => {
                let is_checking = watching.check.is_some();
                self.feed.reached = revision;
                self.pause_on_reached(now);
                // The member may only be behind.
                if revision < self.position && !is_checking {
                    let check = self.check_restored();
                    if let Some(watching) = self.watching() {
                        watching.check = Some(check);
                    }
                }
            }
        }
        self.apply_reported(now);
    }

    /// The watch could not begin, or has ended.
    pub fn on_watch_ended(&mut self, id: WatchId, error: EtcdError, now: Now) {
        if let Some(watching) = self.watching()
            && matches!(&watching.stage, WatchStage::Following { id: current, .. } if *current == id)
        {
            self.on_watch_lost(error, now);
        }
    }

    fn on_watch_lost(&mut self, error: EtcdError, now: Now) {
        if let EtcdError::Compacted { .. } = error {
            return self.list_again();
        }
        self.end_watch();
        if let Some(watching) = self.watching() {
            watching.member += 1;
            watching.stage = WatchStage::Pausing(now.instant + PAUSE);
            // Events of a revision that has not come completely come again.
            while watching
                .reported
                .back()
                .is_some_and(|(_, up_to)| up_to.is_none())
            {
                watching.reported.pop_back();
            }
        }
        self.log(LogLine::WatchLost(error));
    }

    /// Applies the next events.
    fn apply_reported(&mut self, now: Now) {
        let mut left = STEP;
        while left > 0 {
            let Some(watching) = self.watching() else {
                return;
            };
            watching.due = now.instant;
            let Some((events, up_to)) = watching.reported.front_mut() else {
                return;
            };
            let count = events.len().min(left);
            let next: Vec<Event> = events.drain(..count).collect();
            let complete = match events.is_empty() {
                true => {
                    let up_to = *up_to;
                    watching.reported.pop_front();
                    up_to
                }
                false => None,
            };
            left -= count.max(1).min(left);
            self.apply_events(next.into_iter(), now);
            if let Some(up_to) = complete
                && self.watching().is_some()
            {
                self.set_position(up_to.max(self.position), now);
            }
        }
    }

    fn begin_audit(&mut self, now: Now) {
        let (own, revision) = (self.table.counts(), self.position);
        let call = self.count(0, revision);
        if let Some(watching) = self.watching() {
            watching.next_audit = now.instant + AUDIT_INTERVAL;
            watching.audit = Some(Audit {
                call,
                kind: 0,
                own,
                revision,
            });
        }
    }

    /// Asks how many records of a kind etcd had at a revision.
    fn count(&mut self, kind: usize, revision: i64) -> CallId {
        let (key, range_end) = self.keys.of_kind(AUDITED[kind]);
        let request = RangeRequest {
            key,
            range_end,
            revision,
            serializable: true,
            count_only: true,
            limit: 0,
        };
        self.call(Caller::Feed, Call::Range(request))
    }

    /// Lists all again if the table has other records than etcd had. What cannot be found out is taken for equal.
    fn on_audit_answer(&mut self, answer: Result<EtcdAnswer, EtcdError>) {
        let Some(audit) = self.watching().and_then(|watching| watching.audit.take()) else {
            return;
        };
        let Ok(EtcdAnswer::Range(answer)) = answer else {
            return;
        };
        let (kind, own) = (audit.kind, audit.own[audit.kind]);
        if usize::try_from(answer.count) != Ok(own) {
            self.log(LogLine::Incomplete {
                kind: AUDITED[kind],
                own,
                etcd: answer.count,
            });
            return self.list_again();
        }
        if kind + 1 < AUDITED.len() {
            let call = self.count(kind + 1, audit.revision);
            if let Some(watching) = self.watching() {
                watching.audit = Some(Audit {
                    call,
                    kind: kind + 1,
                    ..audit
                });
            }
        }
    }
}
