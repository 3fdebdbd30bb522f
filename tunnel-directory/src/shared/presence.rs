//! The lease and the key of this node, by which the others know that it lives.
//!
//! ```text
//!   granting ─▶ finding: who has the name? ─▶ asking, listening, withdrawing: does that process live? ─▶ it ends
//!                    └────────────────────────────────────── no ─┐
//!                                                                ▼
//!               the lease has ended, or etcd fails ◀── renewing ◀─▶ putting the key
//! ```
//!
//! The node's key alone is on the lease. When the lease is lost, one write puts the key back, and all records of the node
//! are valid again: clients do not notice it.

use std::time::{Duration, Instant};

use tunnel_etcd::{EtcdError, RequestOp, TxnRequest};

use super::{
    Call, CallId, Caller, EtcdAnswer, LogLine, Now, Output, SharedDirectory,
    availability::EtcdService,
};
use crate::{
    error::DirectoryError,
    record::{NodeRecord, NodeState, decode, encode},
    table::Source,
};

/// Life of the lease without renewal. Long, since routing does not depend on it, and an election takes 1.5 s.
pub(super) const TTL: Duration = Duration::from_secs(20);

/// Time between renewals.
const RENEWAL: Duration = Duration::from_secs(4);

/// Renewals in a row without an answer after which etcd is away: one may fall into an election.
const AWAY_AFTER: u32 = 2;

/// Time until something is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// Time in which a living process answers the question whether it lives.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two writes of the number of runtimes, which has to change by more than a twentieth.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Presence {
    stage: Stage,
    lease: i64,
    /// No other living process had the name when this one began.
    has_name: bool,
    /// The key has been written.
    pub(super) is_present: bool,
    /// Other nodes are to prefer other holders.
    is_leaving: bool,
    /// The key is lost, or another process asks whether this one lives.
    is_challenged: bool,
    /// The key is to be written, because its value changes.
    is_outdated: bool,
    /// When the last renewal that was answered was sent, from which the lease counts.
    renewed: Instant,
    next_renewal: Instant,
    /// Renewals in a row without an answer.
    failed: u32,
    /// The number of runtimes that the key shows, and since when.
    shown: (usize, Instant),
}

#[derive(Debug)]
enum Stage {
    /// The next lease is asked for then.
    Pausing(Instant),
    Granting(CallId),
    Finding(CallId),
    /// Writes the question whether a process lives.
    Asking(CallId, Rival),
    /// Reads that process's key, or does so then, until it has been written again.
    Listening(Result<CallId, Instant>, Rival, Instant),
    /// Removes the question.
    Withdrawing(CallId, bool),
    Putting(CallId, bytes::Bytes),
    Renewing,
    KeepingAlive(CallId, Instant),
    /// The node takes part no more.
    Ended,
}

/// Another process under the name of this node.
#[derive(Debug, Clone)]
struct Rival {
    incarnation: String,
    /// The revision of its key.
    revision: i64,
}

impl Presence {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            stage: Stage::Pausing(now),
            lease: 0,
            has_name: false,
            is_present: false,
            is_leaving: false,
            is_challenged: false,
            is_outdated: false,
            renewed: now,
            next_renewal: now,
            failed: 0,
            shown: (0, now),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Pausing(at) | Stage::Listening(Err(at), ..) => Some(*at),
            // What the stage waits for may be due already.
            Stage::Renewing => Some(self.next_renewal),
            Stage::Listening(Ok(_), _, until) => Some(*until),
            _ => None,
        }
    }

    #[cfg(test)]
    pub(super) fn is_challenged(&self) -> bool {
        self.is_challenged
    }

    /// The lease that the key is on; 0 while there is none.
    pub(super) fn lease(&self) -> i64 {
        self.lease
    }
}

impl SharedDirectory {
    /// Other nodes prefer other holders from now on.
    pub fn leave(&mut self, now: Now) {
        self.presence.is_leaving = true;
        self.presence.is_outdated = true;
        self.presence_next(now);
    }

    /// The key says something that is not so any more.
    pub(super) fn on_key_outdated(&mut self, now: Now) {
        self.presence.is_outdated = true;
        self.presence_next(now);
    }

    /// The key of this node is lost, or another node asks whether this one lives.
    pub(super) fn on_challenged(&mut self) {
        self.presence.is_challenged = true;
    }

    /// Ends the node if etcd refuses its user, password or role before it takes part. Later that is an outage like any
    /// other: no session ends because of etcd.
    pub(super) fn fail_if_denied(&mut self, error: &EtcdError) {
        if matches!(error, EtcdError::Denied { .. }) && !self.is_ready() {
            self.fail(DirectoryError::Denied(error.to_string()));
        }
    }

    /// Writes no key any more.
    pub(super) fn end_presence(&mut self) {
        self.presence.stage = Stage::Ended;
    }

    pub(super) fn presence_on_time(&mut self, now: Now) {
        match &self.presence.stage {
            Stage::Pausing(at) if now.instant >= *at => {
                let id = self.call(Caller::Presence, Call::Grant(TTL));
                self.presence.stage = Stage::Granting(id);
            }
            Stage::Listening(_, _, until) if now.instant >= *until => self.withdraw(false),
            Stage::Listening(Err(at), rival, until) if now.instant >= *at => {
                let (rival, until) = (rival.clone(), *until);
                let id = self.find();
                self.presence.stage = Stage::Listening(Ok(id), rival, until);
            }
            Stage::Renewing => self.presence_next(now),
            _ => {}
        }
    }

    /// Does what is due while the lease is kept.
    pub(super) fn presence_next(&mut self, now: Now) {
        if !matches!(self.presence.stage, Stage::Renewing) {
            return;
        }
        if std::mem::take(&mut self.presence.is_challenged) {
            // A record of an earlier process, as a restored etcd has it, does not count.
            let known = self.table.node(&self.run.node);
            match known.is_some_and(|(incarnation, _)| incarnation != self.run.incarnation) {
                true => {
                    let id = self.find();
                    self.presence.stage = Stage::Finding(id);
                }
                false => self.put_key(now),
            }
        } else if std::mem::take(&mut self.presence.is_outdated) {
            self.put_key(now);
        } else if now.instant >= self.presence.next_renewal {
            let id = self.call(Caller::Presence, Call::KeepAlive(self.presence.lease));
            self.presence.stage = Stage::KeepingAlive(id, now.instant);
        }
    }

    pub(super) fn on_presence_answer(
        &mut self,
        id: CallId,
        answer: Result<EtcdAnswer, EtcdError>,
        now: Now,
    ) {
        let stage = std::mem::replace(&mut self.presence.stage, Stage::Ended);
        match stage {
            Stage::Granting(sent) if sent == id => match answer {
                Ok(EtcdAnswer::Granted(lease)) => self.on_lease(lease, now),
                answer => self.on_presence_failed(answer.err(), now),
            },
            Stage::Finding(sent) if sent == id => match answer {
                Ok(answer) => self.on_found(self.rival(&answer), now),
                Err(error) => self.on_presence_failed(Some(error), now),
            },
            Stage::Asking(sent, rival) if sent == id => match answer {
                Ok(_) => {
                    let id = self.find();
                    let until = now.instant + ANSWER_TIMEOUT;
                    self.presence.stage = Stage::Listening(Ok(id), rival, until);
                }
                Err(error) => self.on_presence_failed(Some(error), now),
            },
            Stage::Listening(Ok(sent), rival, until) if sent == id => {
                let found = answer.ok().and_then(|answer| self.rival(&answer));
                let is_alive = found.is_some_and(|found| {
                    found.incarnation == rival.incarnation && found.revision > rival.revision
                });
                match is_alive {
                    true => self.withdraw(true),
                    false => {
                        let next = now.instant + PAUSE;
                        self.presence.stage = Stage::Listening(Err(next), rival, until);
                    }
                }
            }
            Stage::Withdrawing(sent, true) if sent == id => {
                let lease = self.presence.lease;
                self.call(Caller::Nobody, Call::Revoke(lease));
                self.fail(DirectoryError::NameTaken(self.run.node.clone()));
            }
            Stage::Withdrawing(sent, false) if sent == id => match answer {
                Ok(_) => self.put_key(now),
                // The end of the lease that the question is on removes it.
                Err(error) => self.on_presence_failed(Some(error), now),
            },
            Stage::Putting(sent, value) if sent == id => match answer {
                Ok(answer) => self.on_key_put(&value, answer.revision(), now),
                Err(error) => self.on_presence_failed(Some(error), now),
            },
            Stage::KeepingAlive(sent, at) if sent == id => self.on_renewal(answer.err(), at, now),
            // Of a stage that is over.
            stage => {
                self.presence.stage = stage;
                if let (Stage::Ended, Ok(EtcdAnswer::Granted(lease))) =
                    (&self.presence.stage, answer)
                {
                    self.call(Caller::Nobody, Call::Revoke(lease));
                }
            }
        }
    }

    fn on_lease(&mut self, lease: i64, now: Now) {
        self.presence.lease = lease;
        self.presence.renewed = now.instant;
        self.presence.next_renewal = now.instant + RENEWAL;
        self.presence.failed = 0;
        match self.presence.has_name {
            true => self.put_key(now),
            false => {
                let id = self.find();
                self.presence.stage = Stage::Finding(id);
            }
        }
    }

    fn on_found(&mut self, rival: Option<Rival>, now: Now) {
        let Some(rival) = rival else {
            return self.put_key(now);
        };
        let question = self.keys.challenge(&self.run.node);
        let own = self.run.incarnation.to_string();
        let put = RequestOp::put(question, own, self.presence.lease);
        let id = self.call(Caller::Presence, Call::Txn(writes(put)));
        self.presence.stage = Stage::Asking(id, rival);
    }

    fn withdraw(&mut self, is_alive: bool) {
        let question = self.keys.challenge(&self.run.node);
        let id = self.call(
            Caller::Presence,
            Call::Txn(writes(RequestOp::delete(question))),
        );
        self.presence.stage = Stage::Withdrawing(id, is_alive);
    }

    /// Reads the key of this node.
    fn find(&mut self) -> CallId {
        let key = self.keys.node(&self.run.node);
        self.call(Caller::Presence, Call::Txn(writes(RequestOp::get(key))))
    }

    /// Another process whose key this answer has where the own one should be.
    fn rival(&self, answer: &EtcdAnswer) -> Option<Rival> {
        let read = answer.first_read()?;
        let record: NodeRecord = decode(&read.value)?;
        let is_other = record.incarnation != self.run.incarnation.to_string();
        let rival = Rival {
            incarnation: record.incarnation,
            revision: read.mod_revision,
        };
        is_other.then_some(rival)
    }

    /// Writes the node's key.
    fn put_key(&mut self, now: Now) {
        self.presence.has_name = true;
        self.presence.is_challenged = false;
        self.presence.is_outdated = false;
        self.presence.shown = (self.holds.len(), now.instant);
        let record = self.own_record();
        self.links.on_shown(record.links);
        let value = encode(&record);
        let key = self.keys.node(&self.run.node);
        let put = RequestOp::put(key, value.clone(), self.presence.lease);
        let id = self.call(Caller::Presence, Call::Txn(writes(put)));
        self.presence.stage = Stage::Putting(id, value);
    }

    /// What this node says of itself.
    pub(super) fn own_record(&self) -> NodeRecord {
        NodeRecord {
            incarnation: self.run.incarnation.to_string(),
            peer: self.settings.peer.clone(),
            zone: self.settings.zone.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: match self.presence.is_leaving {
                true => NodeState::Leaving,
                false => NodeState::Serving,
            },
            sessions: u64::try_from(self.holds.len()).unwrap_or(u64::MAX),
            links: self.links.shown(),
        }
    }

    fn on_key_put(&mut self, value: &[u8], revision: i64, now: Now) {
        let key = self.keys.node(&self.run.node);
        let source = Source::Write;
        self.table
            .put(key.as_bytes(), value, revision, source, now.instant);
        if !self.presence.is_present {
            self.presence.is_present = true;
            self.output_if_ready();
        }
        self.on_answered(EtcdService::Renewals, now.instant);
        self.presence.stage = Stage::Renewing;
        self.presence_next(now);
    }

    fn on_renewal(&mut self, error: Option<EtcdError>, sent: Instant, now: Now) {
        self.presence.stage = Stage::Renewing;
        self.presence.next_renewal = now.instant + RENEWAL;
        match error {
            None => {
                self.presence.renewed = sent;
                self.presence.failed = 0;
                self.on_answered(EtcdService::Renewals, now.instant);
                let (count, since) = self.presence.shown;
                let changed = self.holds.len().abs_diff(count);
                let is_due = now.instant.saturating_duration_since(since) >= COUNT_INTERVAL;
                self.presence.is_outdated |= is_due && changed > count / 20;
            }
            Some(EtcdError::LeaseEnded) => {
                return self.on_presence_failed(Some(EtcdError::LeaseEnded), now);
            }
            // Whatever else it is, the lease may live.
            Some(error) => {
                self.log(LogLine::RenewalUnanswered(error.clone()));
                self.presence.failed += 1;
                if self.presence.failed >= AWAY_AFTER {
                    self.on_unanswered(EtcdService::Renewals, error, now);
                }
            }
        }
        let age = now.instant.saturating_duration_since(self.presence.renewed);
        self.output(Output::LeaseLeft(TTL.saturating_sub(age)));
        self.presence_next(now);
    }

    /// The lease has ended, or something has failed: begins with another lease.
    fn on_presence_failed(&mut self, error: Option<EtcdError>, now: Now) {
        match error {
            None | Some(EtcdError::LeaseEnded) => {
                self.log(LogLine::LeaseEnded);
                self.presence.stage = Stage::Pausing(now.instant);
            }
            Some(error) => {
                self.log(LogLine::LeaseFailed(error.clone()));
                self.presence.stage = Stage::Pausing(now.instant + PAUSE);
                self.fail_if_denied(&error);
                self.on_unanswered(EtcdService::Renewals, error, now);
            }
        }
        self.presence_on_time(now);
    }
}

/// A transaction of one operation.
pub(super) fn writes(operation: RequestOp) -> TxnRequest {
    TxnRequest {
        success: vec![operation],
        ..TxnRequest::default()
    }
}
