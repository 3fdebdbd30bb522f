//! Writes claims and records in batches: while one transaction is under way, the next collects.
//!
//! ```text
//!   idle ── a claim, or records ──▶ sending ── answered ──▶ idle
//!                                     ▲ │ └── etcd was restored ──▶ awaiting the next listing ──▶ idle
//!                                     │ └ failed ──▶ between tries ── for too long ──▶ idle, or paused
//!                                     └────────────────────┘
//! ```
//!
//! A batch is one transaction with one transaction for each runtime in it, so that each has its own condition. A batch that
//! is not answered is sent again to another member: its claims have a nonce, by which their writer knows them.

use std::{
    collections::{BTreeSet, VecDeque},
    ops::Bound,
    time::{Duration, Instant},
};

use tunnel_etcd::{Compare, EtcdError, Request, RequestOp, Response, TxnRequest, TxnResponse};
use tunnel_proto::{control::millis, handshake::InstanceId};

use super::{
    Call, CallId, Caller, ClaimId, ClaimResult, EtcdAnswer, GrantedClaim, LogLine, Now, Output,
    SharedDirectory, availability::EtcdService, claiming::PendingClaim,
};
use crate::{
    claim::{Claim, OnConflict},
    names::{AccountName, RuntimeLabel, RuntimeName},
    owner::Right,
    record::{ClaimRecord, HeldRecord, HeldState, decode, encode},
    table::{ClaimStep, NextClaim, Source},
};

/// Most runtimes in a batch. etcd allows 128 operations in a transaction, and each runtime takes up to three.
const BATCH: usize = 40;

/// How long a batch is tried: longer than an election, which takes 1 to 1.5 s.
const BATCH_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a batch is tried while etcd is away, so that sessions are soon given what needs no claim.
const BATCH_TIMEOUT_AWAY: Duration = Duration::from_secs(1);

/// Time between two tries where a member answers at once that it cannot.
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Time until records are tried again while etcd is away.
const AWAY_PAUSE: Duration = Duration::from_millis(500);

/// What waits to be written, and what is being written.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// Claims that sessions wait for, in the order in which they came.
    waiting: VecDeque<PendingClaim>,
    /// Runtimes whose record of this node has to be written or removed.
    unwritten: BTreeSet<RuntimeLabel>,
    /// The last of them that was written, after which the next batch goes on, so that each has its turn.
    last: Option<RuntimeLabel>,
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Idle,
    Sending(Batch, CallId),
    /// A member has failed: the batch is sent again then.
    BetweenTries(Batch, Instant),
    /// etcd was restored: all is decided again after the next listing, or then.
    AwaitingListing(Vec<Item>, Instant),
    /// etcd has taken no write: records are tried again then, claims at once.
    Paused(Instant),
    /// The node departs.
    Ended,
}

#[derive(Debug)]
struct Batch {
    items: Vec<Item>,
    txn: TxnRequest,
    /// When it is given up.
    until: Instant,
    /// The revision up to which the table was complete when it was sent last.
    position: i64,
}

/// One runtime of a batch.
#[derive(Debug)]
struct Item {
    label: RuntimeLabel,
    kind: ItemKind,
    txn: TxnRequest,
}

#[derive(Debug)]
enum ItemKind {
    /// A session waits.
    Requested(PendingClaim, Option<ClaimRecord>),
    /// The record of what this node holds; with the claim, where that is missing.
    Kept(Option<ClaimRecord>),
    /// This node holds the runtime no more.
    Released,
}

impl Writer {
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::BetweenTries(_, at) | Stage::AwaitingListing(_, at) | Stage::Paused(at) => {
                Some(*at)
            }
            Stage::Idle | Stage::Sending(..) | Stage::Ended => None,
        }
    }

    /// The session that waits for this claim has ended.
    pub(super) fn abandon(&mut self, id: ClaimId) {
        self.waiting.retain(|pending| pending.id != id);
        let items = match &mut self.stage {
            Stage::Sending(batch, _) | Stage::BetweenTries(batch, _) => &mut batch.items,
            Stage::AwaitingListing(items, _) => items,
            Stage::Idle | Stage::Paused(_) | Stage::Ended => return,
        };
        for item in items {
            if let ItemKind::Requested(pending, _) = &mut item.kind {
                pending.is_abandoned |= pending.id == id;
            }
        }
    }

    /// Removes and returns the next runtimes whose record has to be written, at most so many, without those of the batch.
    fn next_unwritten(&mut self, batch: &BTreeSet<RuntimeLabel>, most: usize) -> Vec<RuntimeLabel> {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let up_to = self.last.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let later = self
            .unwritten
            .range::<RuntimeLabel, _>((after, Bound::Unbounded));
        let earlier = self.last.as_ref().map(|_| {
            self.unwritten
                .range::<RuntimeLabel, _>((Bound::Unbounded, up_to))
        });
        let all = later.chain(earlier.into_iter().flatten());
        let next = all.filter(|label| !batch.contains(*label)).take(most);
        let next: Vec<RuntimeLabel> = next.cloned().collect();
        for label in &next {
            self.unwritten.remove(label);
        }
        if let Some(last) = next.last() {
            self.last = Some(last.clone());
        }
        next
    }
}

impl SharedDirectory {
    /// A claim waits for the next batch.
    pub(super) fn enqueue(&mut self, pending: PendingClaim) {
        self.writer.waiting.push_back(pending);
    }

    /// Has the record of this node written as it stands then.
    pub(super) fn write(&mut self, label: &RuntimeLabel) {
        self.writer.unwritten.insert(label.clone());
        self.update_unrecorded(label);
    }

    /// Sends the next batch, if there is none under way and something to write.
    pub(super) fn write_next(&mut self, now: Now) {
        loop {
            let may_begin = match &self.writer.stage {
                Stage::Idle => true,
                Stage::Paused(until) => !self.writer.waiting.is_empty() || now.instant >= *until,
                Stage::Sending(..)
                | Stage::BetweenTries(..)
                | Stage::AwaitingListing(..)
                | Stage::Ended => false,
            };
            let is_empty = self.writer.waiting.is_empty() && self.writer.unwritten.is_empty();
            if !may_begin || is_empty {
                return;
            }
            let items = self.next_items(now);
            if items.is_empty() {
                continue;
            }
            let timeout = match self.is_away() {
                true => BATCH_TIMEOUT_AWAY,
                false => BATCH_TIMEOUT,
            };
            let batch = Batch {
                txn: self.joined(&items),
                items,
                until: now.instant + timeout,
                position: 0,
            };
            return self.send(batch);
        }
    }

    fn send(&mut self, mut batch: Batch) {
        batch.position = self.position;
        let id = self.call(Caller::Writer, Call::Txn(batch.txn.clone()));
        self.writer.stage = Stage::Sending(batch, id);
    }

    /// The items of the next batch: each runtime once, claims before records.
    fn next_items(&mut self, now: Now) -> Vec<Item> {
        let mut labels = BTreeSet::new();
        let mut items = Vec::new();
        let mut later = VecDeque::new();
        for pending in std::mem::take(&mut self.writer.waiting) {
            match items.len() < BATCH && labels.insert(pending.label.clone()) {
                true => {
                    let item = self.requested(pending, now);
                    items.push(item);
                }
                false => later.push_back(pending),
            }
        }
        self.writer.waiting = later;
        let next = self.writer.next_unwritten(&labels, BATCH - items.len());
        for label in next {
            items.extend(self.kept(label, now));
        }
        items
    }

    /// A deadline has come.
    pub(super) fn writer_on_time(&mut self, now: Now) {
        if self.writer.deadline().is_none_or(|at| now.instant < at) {
            return;
        }
        match std::mem::take(&mut self.writer.stage) {
            Stage::BetweenTries(batch, _) => self.send(batch),
            Stage::AwaitingListing(items, _) => self.decide_again(items, now),
            Stage::Idle | Stage::Paused(_) => {}
            stage @ (Stage::Sending(..) | Stage::Ended) => self.writer.stage = stage,
        }
        self.write_next(now);
    }

    /// The transaction of a batch was answered, or has failed.
    pub(super) fn on_writer_answer(
        &mut self,
        id: CallId,
        answer: Result<EtcdAnswer, EtcdError>,
        now: Now,
    ) {
        let batch = match std::mem::take(&mut self.writer.stage) {
            Stage::Sending(batch, sent) if sent == id => batch,
            stage => {
                self.writer.stage = stage;
                return;
            }
        };
        match answer {
            Ok(EtcdAnswer::Txn(answer)) => {
                self.on_answered(EtcdService::Writes, now.instant);
                match answer.succeeded && answer.revision() >= batch.position {
                    true => self.on_batch_answered(batch.items, answer, now),
                    false => {
                        // The record of the cluster is another one than the table has, or etcd has fewer revisions: it was
                        // restored, and epochs of its claims may be below those that nodes have seen.
                        self.writer.stage = Stage::AwaitingListing(batch.items, batch.until);
                        self.on_restored();
                    }
                }
            }
            Ok(_) => {}
            Err(error) => {
                self.log(LogLine::WriteFailed(error.clone()));
                match now.instant >= batch.until {
                    true => self.on_batch_failed(batch.items, error, now),
                    false => {
                        let at = now.instant + BETWEEN_TRIES;
                        self.writer.stage = Stage::BetweenTries(batch, at);
                    }
                }
            }
        }
        self.write_next(now);
    }

    /// All records were read.
    pub(super) fn writer_on_listed(&mut self, now: Now) {
        match std::mem::take(&mut self.writer.stage) {
            Stage::AwaitingListing(items, _) => self.decide_again(items, now),
            stage => self.writer.stage = stage,
        }
        self.write_next(now);
    }

    /// Writes nothing any more.
    pub(super) fn end_writer(&mut self) {
        self.writer = Writer {
            stage: Stage::Ended,
            ..Writer::default()
        };
    }

    /// Decides what was in a batch again, by what etcd has after a restore.
    fn decide_again(&mut self, items: Vec<Item>, now: Now) {
        for item in items {
            if let ItemKind::Requested(pending, _) = item.kind {
                self.on_claim_outdated(pending, now.instant);
            }
            self.write(&item.label);
        }
    }

    /// The transaction of a batch, which does nothing where the record of the cluster is another one than the table has.
    fn joined(&self, items: &[Item]) -> TxnRequest {
        let cluster = self.table.cluster().to_vec();
        TxnRequest {
            compare: vec![Compare::value(self.keys.cluster(), cluster)],
            success: items.iter().map(|item| item.txn.clone().into()).collect(),
            failure: Vec::new(),
        }
    }

    /// The transaction of a claim, or of one more node of the claim's instance.
    fn requested(&mut self, pending: PendingClaim, now: Now) -> Item {
        let label = pending.label.clone();
        let (txn, record) = match &pending.step {
            ClaimStep::Hold(revision) => (self.hold_txn(&label, *revision, HeldState::Open), None),
            ClaimStep::Claim(next) => {
                let names = (&pending.account, &pending.name);
                let (mut txn, record) = self.claim_txn(&label, &pending.instance, names, next, now);
                // The claim alone. It takes effect with the record that this node holds the runtime by it, which is written
                // when the claim is answered: one that is made after it was given up takes nothing from anybody.
                txn.success.truncate(1);
                (txn, Some(record))
            }
        };
        Item {
            label,
            kind: ItemKind::Requested(pending, record),
            txn,
        }
    }

    /// The transaction that makes the records say what this node holds; `None` if another instance has the runtime.
    fn kept(&mut self, label: RuntimeLabel, now: Now) -> Option<Item> {
        let Some(hold) = self.holds.get(&label) else {
            let key = self.keys.held(&self.run, &label);
            let txn = TxnRequest {
                success: vec![RequestOp::delete(key)],
                ..TxnRequest::default()
            };
            let kind = ItemKind::Released;
            return Some(Item { label, kind, txn });
        };
        let instance = &hold.claim.instance;
        let seen = self.table.claim_revision(label.as_str());
        let (txn, record) = match &hold.current(&self.table, &label) {
            Some(claim) if claim.instance == *instance && claim.epoch >= hold.epoch() => {
                (self.hold_txn(&label, seen, hold.state()), None)
            }
            Some(claim)
                if claim.instance != *instance
                    && claim.epoch > hold.epoch()
                    && !self.may_claim_back(&label) =>
            {
                return None;
            }
            _ => {
                // The rules for sessions that dial decide about the history; what is held stays whatever they say.
                let is_rival = self.table.is_rival(label.as_str(), hold.owner());
                let right = match is_rival {
                    true => Right::Overruling,
                    false => Right::Own(OnConflict::Supersede),
                };
                let decided = self
                    .table
                    .decide(label.as_str(), instance, right, now.instant);
                let next = match decided {
                    Ok(ClaimStep::Claim(next)) => next,
                    _ => NextClaim {
                        seen,
                        overrules: is_rival,
                        ..NextClaim::default()
                    },
                };
                let hold = hold.clone();
                let names = (&hold.account, &hold.name);
                let instance = &hold.claim.instance;
                let (txn, record) = self.claim_txn(&label, instance, names, &next, now);
                (txn, Some(record))
            }
        };
        let kind = ItemKind::Kept(record);
        Some(Item { label, kind, txn })
    }

    fn claim_txn(
        &mut self,
        label: &RuntimeLabel,
        instance: &InstanceId,
        (account, name): (&AccountName, &RuntimeName),
        next: &NextClaim,
        now: Now,
    ) -> (TxnRequest, ClaimRecord) {
        let claim = self.keys.claim(label);
        let held = self.keys.held(&self.run, label);
        let record = ClaimRecord {
            instance: instance.clone(),
            nonce: self.nonce(),
            account: account.to_string(),
            runtime: name.to_string(),
            generation: Some(self.table.generation()),
            overrules: next.overrules,
            node: self.run.node.to_string(),
            at_ms: now.wall_ms,
            takeovers: next.takeovers,
            last_takeover_ms: millis(next.since_takeover),
            superseded: next.superseded.clone(),
        };
        let together = HeldRecord {
            epoch: 0,
            state: HeldState::Open,
        };
        let txn = TxnRequest {
            compare: vec![Compare::mod_revision(claim.clone(), next.seen)],
            success: vec![
                RequestOp::put(claim.clone(), encode(&record), 0),
                RequestOp::put(held, encode(&together), 0),
            ],
            failure: vec![RequestOp::get(claim)],
        };
        (txn, record)
    }

    fn hold_txn(&self, label: &RuntimeLabel, revision: i64, state: HeldState) -> TxnRequest {
        let claim = self.keys.claim(label);
        let held = self.keys.held(&self.run, label);
        let record = HeldRecord {
            epoch: revision,
            state,
        };
        TxnRequest {
            compare: vec![Compare::mod_revision(claim.clone(), revision)],
            success: vec![RequestOp::put(held, encode(&record), 0)],
            failure: vec![RequestOp::get(claim)],
        }
    }

    fn on_batch_answered(&mut self, items: Vec<Item>, answer: TxnResponse, now: Now) {
        let revision = answer.revision();
        for (item, answer) in items.into_iter().zip(answer.responses) {
            if let Some(Response::Txn(answer)) = answer.response {
                self.on_item_answered(item, &answer, revision, now);
            }
        }
    }

    fn on_item_answered(&mut self, item: Item, answer: &TxnResponse, revision: i64, now: Now) {
        let Item { label, kind, txn } = item;
        let record = match &kind {
            ItemKind::Requested(_, record) | ItemKind::Kept(record) => record.as_ref(),
            ItemKind::Released => None,
        };
        // An earlier try may have been made although it was not answered.
        let own = answer.first_read().filter(|read| {
            let found: Option<ClaimRecord> = decode(&read.value);
            let nonce = found.map(|found| found.nonce);
            record.is_some_and(|record| Some(&record.nonce) == nonce.as_ref())
        });
        let made_at = match (answer.succeeded, own) {
            (true, _) => Some(revision),
            (false, Some(own)) => Some(own.mod_revision),
            (false, None) => None,
        };
        let Some(made_at) = made_at else {
            return self.on_outdated(&label, kind, answer, revision, now);
        };
        self.apply_own(&txn, made_at, now.instant);
        match kind {
            ItemKind::Requested(pending, record) => {
                self.on_claimed(pending, record.is_some(), made_at, now);
            }
            ItemKind::Kept(record) => self.on_kept(&label, record, made_at, now),
            ItemKind::Released => {}
        }
    }

    /// Puts what this node has written into the table, before the watch reports it.
    fn apply_own(&mut self, txn: &TxnRequest, revision: i64, now: Instant) {
        for operation in &txn.success {
            // A removal has no revision of its own in the table: the watch reports it.
            if let Some(Request::Put(put)) = &operation.request {
                self.table
                    .put(&put.key, &put.value, revision, Source::Write, now);
            }
        }
    }

    fn on_claimed(&mut self, pending: PendingClaim, is_new: bool, revision: i64, now: Now) {
        let PendingClaim {
            id,
            label,
            account,
            name,
            instance,
            step,
            ..
        } = pending;
        let epoch = match &step {
            ClaimStep::Hold(revision) => self.table.epoch_at(&label, *revision),
            ClaimStep::Claim(_) => self.table.epoch_at(&label, revision),
        };
        let claim = Claim { instance, epoch };
        let serial = self
            .holds
            .insert(&label, claim.clone(), (account, name), false);
        if is_new {
            self.output(Output::ClaimResult(ClaimResult::Won));
        }
        let granted = GrantedClaim {
            label: label.clone(),
            claim,
            serial,
        };
        self.output(Output::ClaimAnswer(id, Ok(granted)));
        // Events that came before the hold was there have been settled without it.
        self.settle(&label, now);
    }

    /// The record is written; if the claim was, too, it has a new epoch.
    fn on_kept(
        &mut self,
        label: &RuntimeLabel,
        record: Option<ClaimRecord>,
        revision: i64,
        now: Now,
    ) {
        if let Some(record) = record {
            let claim = Claim {
                instance: record.instance,
                epoch: self.table.epoch_at(label, revision),
            };
            self.holds.on_claimed(label, &claim);
            self.output(Output::NewerClaim(label.clone(), claim));
        }
        self.settle(label, now);
    }

    /// The claim is another one than was seen.
    fn on_outdated(
        &mut self,
        label: &RuntimeLabel,
        kind: ItemKind,
        answer: &TxnResponse,
        revision: i64,
        now: Now,
    ) {
        let change = match answer.first_read() {
            Some(read) => {
                let source = Source::Read {
                    revision,
                    wall_ms: now.wall_ms,
                };
                let (key, value) = (&read.key, &read.value);
                self.table.put(key, value, read, source, now.instant)
            }
            None => self
                .table
                .delete(self.keys.claim(label).as_bytes(), revision),
        };
        if change.is_some() {
            self.settle(label, now);
        }
        match kind {
            ItemKind::Requested(pending, _) => {
                self.output(Output::ClaimResult(ClaimResult::Lost));
                self.on_claim_outdated(pending, now.instant);
            }
            ItemKind::Kept(_) => self.settle(label, now),
            ItemKind::Released => {}
        }
    }

    /// A batch was not answered: whether it was made is unknown. Records are tried again.
    fn on_batch_failed(&mut self, items: Vec<Item>, error: EtcdError, now: Now) {
        self.on_unanswered(EtcdService::Writes, error, now);
        for item in items {
            if let ItemKind::Requested(pending, _) = item.kind {
                self.output(Output::ClaimResult(ClaimResult::Failed));
                self.on_claim_unanswered(&pending);
            }
            self.write(&item.label);
        }
        if self.writer.waiting.is_empty() {
            self.writer.stage = Stage::Paused(now.instant + AWAY_PAUSE);
        }
    }
}
