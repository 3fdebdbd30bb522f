//! Writes claims and records in batches: while one transaction is under way, the next collects.
//!
//! A batch is one transaction with one transaction for each runtime in it, so that each has its own condition. A batch that
//! is not answered is sent again to another member: its claims have a nonce, by which their writer knows them.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout_at},
};
use tunnel_directory::{
    AccountName, Claim, OnConflict, Right, RuntimeLabel, RuntimeName,
    record::{ClaimRecord, HeldRecord, HeldState, decode, encode},
    table::{ClaimStep, NextClaim, Source},
};
use tunnel_etcd::{Compare, EtcdError, Request, RequestOp, Response, TxnRequest, TxnResponse};
use tunnel_proto::{control::millis, handshake::InstanceId};

use super::{
    super::{
        ClaimGuard,
        metrics::{FAILED, LOST, WON},
        now,
    },
    Shared, Unanswered, read_at, wall_ms,
};

/// Most runtimes in a batch. etcd allows 128 operations in a transaction, and each runtime takes up to three.
const BATCH: usize = 40;

/// How long a batch is tried: longer than an election, which takes 1 to 1.5 s.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a batch is tried while etcd is away, so that sessions are soon given what needs no claim.
const AWAY_PATIENCE: Duration = Duration::from_secs(1);

/// Time between two tries where a member answers at once that it cannot.
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Time until records are tried again while etcd is away.
const AWAY_PAUSE: Duration = Duration::from_millis(500);

/// A claim that a session waits for.
pub(super) struct ClaimRequest {
    pub(super) label: RuntimeLabel,
    pub(super) account: AccountName,
    pub(super) name: RuntimeName,
    pub(super) instance: InstanceId,
    pub(super) step: ClaimStep,
    pub(super) answer: oneshot::Sender<ClaimAnswer>,
}

/// What has become of it.
pub(super) enum ClaimAnswer {
    /// The instance has the runtime.
    Claimed(ClaimGuard),
    /// Another claim was made, or etcd was restored: the table has it now.
    Outdated,
    /// etcd does not answer.
    Away,
}

/// One runtime of a batch.
pub(super) struct Item {
    label: RuntimeLabel,
    kind: ItemKind,
    pub(super) txn: TxnRequest,
}

enum ItemKind {
    /// A session waits.
    Requested(ClaimRequest, Option<ClaimRecord>),
    /// The record of what this node holds; with the claim, where that is missing.
    Kept(Option<ClaimRecord>),
    /// This node holds the runtime no more.
    Released,
}

/// Writes until it is dropped.
pub(super) async fn write(shared: Arc<Shared>) {
    let Some(mut claims) = shared.claims_receiver.lock().take() else {
        return;
    };
    let mut waiting: Vec<ClaimRequest> = Vec::new();
    loop {
        if waiting.is_empty() {
            tokio::select! {
                request = claims.recv() => match request {
                    Some(request) => waiting.push(request),
                    None => return,
                },
                () = shared.has_unwritten.notified() => {}
            }
        }
        collect(&mut claims, &mut waiting);
        let batch = batch(&shared, &mut waiting);
        if batch.is_empty() {
            continue;
        }
        let is_written = commit(&shared, batch).await;
        if !is_written && waiting.is_empty() {
            // A claim is tried at once, records wait.
            tokio::select! {
                () = sleep(AWAY_PAUSE) => {}
                Some(request) = claims.recv() => waiting.push(request),
            }
        }
        if !shared.unwritten.lock().is_empty() {
            shared.has_unwritten.notify_one();
        }
    }
}

/// Takes the requests that have come meanwhile.
fn collect(claims: &mut mpsc::Receiver<ClaimRequest>, waiting: &mut Vec<ClaimRequest>) {
    while waiting.len() < BATCH
        && let Ok(request) = claims.try_recv()
    {
        waiting.push(request);
    }
}

/// The next batch: each runtime once, claims before records.
pub(super) fn batch(shared: &Shared, waiting: &mut Vec<ClaimRequest>) -> Vec<Item> {
    let mut labels = HashSet::new();
    let mut batch = Vec::new();
    let mut later = Vec::new();
    for request in waiting.drain(..) {
        // The session may have ended while it waited.
        if request.answer.is_closed() {
            continue;
        }
        match batch.len() < BATCH && labels.insert(request.label.clone()) {
            true => batch.push(shared.requested(request)),
            false => later.push(request),
        }
    }
    *waiting = later;
    let mut unwritten = shared.unwritten.lock();
    let next = unwritten.iter().filter(|label| !labels.contains(*label));
    let next: Vec<RuntimeLabel> = next.take(BATCH - batch.len()).cloned().collect();
    for label in &next {
        unwritten.remove(label);
    }
    drop(unwritten);
    batch.extend(next.into_iter().filter_map(|label| shared.kept(label)));
    batch
}

/// Sends a batch until it is answered, or the time is over. Returns whether it was.
async fn commit(shared: &Arc<Shared>, batch: Vec<Item>) -> bool {
    let txn = shared.joined(&batch);
    let patience = match shared.is_away() {
        true => AWAY_PATIENCE,
        false => PATIENCE,
    };
    let until = Instant::now() + patience;
    loop {
        let position = shared.position.load(Ordering::Relaxed);
        match shared.client.txn(txn.clone()).await {
            Ok(answer) => {
                shared.on_answered(Unanswered::Writes);
                match answer.succeeded && answer.revision() >= position {
                    true => shared.on_answers(batch, answer),
                    false => on_restored(shared, batch, until).await,
                }
                return true;
            }
            Err(error) => {
                tracing::debug!(%error, "etcd has not taken a write");
                if Instant::now() >= until {
                    shared.on_not_written(batch, &error);
                    return false;
                }
            }
        }
        sleep(BETWEEN_TRIES).await;
    }
}

/// The record of the cluster is another one than the table has, or etcd has fewer revisions: it was restored, and epochs of
/// its claims may be below those that nodes have seen. All is decided again after the next listing.
async fn on_restored(shared: &Arc<Shared>, batch: Vec<Item>, until: Instant) {
    let mut listings = shared.listings.subscribe();
    shared.is_restored.notify_one();
    // If it takes longer, the next batch waits for it.
    let _ = timeout_at(until, listings.changed()).await;
    for item in batch {
        if let ItemKind::Requested(request, _) = item.kind {
            drop(request.answer.send(ClaimAnswer::Outdated));
        }
        shared.unwritten.lock().insert(item.label);
    }
}

impl Shared {
    /// The transaction of a batch, which does nothing where the record of the cluster is another one than the table has.
    pub(super) fn joined(&self, batch: &[Item]) -> TxnRequest {
        let cluster = self.table.read().cluster().to_vec();
        let items = batch.iter();
        TxnRequest {
            compare: vec![Compare::value(self.keys.cluster(), cluster)],
            success: items.map(|item| item.txn.clone().into()).collect(),
            failure: Vec::new(),
        }
    }

    /// The transaction of a claim, or of one more node of the claim's instance.
    fn requested(&self, request: ClaimRequest) -> Item {
        let label = request.label.clone();
        let instance = &request.instance;
        let names = (&request.account, &request.name);
        let (txn, record) = match &request.step {
            ClaimStep::Hold(revision) => (self.hold(&label, *revision, HeldState::Open), None),
            ClaimStep::Claim(next) => {
                let (txn, record) = self.claim_txn(&label, instance, names, next);
                (txn, Some(record))
            }
        };
        Item {
            label,
            kind: ItemKind::Requested(request, record),
            txn,
        }
    }

    /// The transaction that makes the records say what this node holds; `None` if another instance has the runtime.
    fn kept(&self, label: RuntimeLabel) -> Option<Item> {
        let holds = self.holds.lock();
        let table = self.table.read();
        let Some(hold) = holds.get(&label) else {
            let key = self.keys.held(&self.run, &label);
            let txn = TxnRequest {
                success: vec![RequestOp::delete(key)],
                ..TxnRequest::default()
            };
            let kind = ItemKind::Released;
            return Some(Item { label, kind, txn });
        };
        let instance = &hold.claim.instance;
        let current = hold.current(&table, &label);
        let seen = table.claim_revision(label.as_str());
        let (txn, record) = match &current {
            Some(claim) if claim.instance == *instance && claim.epoch >= hold.epoch() => {
                (self.hold(&label, seen, hold.state()), None)
            }
            Some(claim) if claim.instance != *instance && claim.epoch > hold.epoch() => {
                return None;
            }
            _ => {
                // The rules for sessions that dial decide about the history; what is held stays whatever they say.
                let is_rival = table.is_rival(label.as_str(), hold.owner());
                let right = match is_rival {
                    true => Right::Overruling,
                    false => Right::Own(OnConflict::Supersede),
                };
                let decided = table.decide(label.as_str(), instance, right, now());
                let next = match decided {
                    Ok(ClaimStep::Claim(next)) => next,
                    _ => NextClaim {
                        seen,
                        overrules: is_rival,
                        ..NextClaim::default()
                    },
                };
                let names = (&hold.account, &hold.name);
                let (txn, record) = self.claim_txn(&label, instance, names, &next);
                (txn, Some(record))
            }
        };
        let kind = ItemKind::Kept(record);
        Some(Item { label, kind, txn })
    }

    fn claim_txn(
        &self,
        label: &RuntimeLabel,
        instance: &InstanceId,
        (account, name): (&AccountName, &RuntimeName),
        next: &NextClaim,
    ) -> (TxnRequest, ClaimRecord) {
        let claim = self.keys.claim(label);
        let held = self.keys.held(&self.run, label);
        let record = ClaimRecord {
            instance: instance.clone(),
            nonce: nonce(),
            account: account.to_string(),
            runtime: name.to_string(),
            overrules: next.overrules,
            node: self.node.name.to_string(),
            at_ms: wall_ms(),
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

    fn hold(&self, label: &RuntimeLabel, revision: i64, state: HeldState) -> TxnRequest {
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

    /// Acts on the answer to a batch.
    pub(super) fn on_answers(self: &Arc<Self>, batch: Vec<Item>, answer: TxnResponse) {
        let revision = answer.revision();
        for (item, answer) in batch.into_iter().zip(answer.responses) {
            if let Some(Response::Txn(answer)) = answer.response {
                self.on_answer(item, &answer, revision);
            }
        }
    }

    fn on_answer(self: &Arc<Self>, item: Item, answer: &TxnResponse, revision: i64) {
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
            return self.on_outdated(&label, kind, answer, revision);
        };
        self.apply_own(&txn, made_at);
        match kind {
            ItemKind::Requested(request, record) => self.on_claimed(request, record, made_at),
            ItemKind::Kept(record) => self.on_kept(&label, record, made_at),
            ItemKind::Released => {}
        }
    }

    /// Puts what this node has written into the table, before the watch reports it.
    fn apply_own(&self, txn: &TxnRequest, revision: i64) {
        let mut table = self.table.write();
        for operation in &txn.success {
            // A removal has no revision of its own in the table: the watch reports it.
            if let Some(Request::Put(put)) = &operation.request {
                table.put(&put.key, &put.value, revision, Source::Write, now());
            }
        }
    }

    fn on_claimed(
        self: &Arc<Self>,
        request: ClaimRequest,
        record: Option<ClaimRecord>,
        revision: i64,
    ) {
        let ClaimRequest {
            label,
            account,
            name,
            instance,
            step,
            answer,
        } = request;
        let mut holds = self.holds.lock();
        let table = self.table.read();
        let epoch = match &step {
            ClaimStep::Hold(revision) => table.epoch(*revision),
            ClaimStep::Claim(_) => table.epoch(revision),
        };
        drop(table);
        let claim = Claim { instance, epoch };
        let serial = holds.insert(&label, claim.clone(), (account, name), false);
        drop(holds);
        if record.is_some() {
            self.metrics.claims(WON).inc();
        }
        let guard = self.guard(&label, claim, serial);
        // If the session has ended meanwhile, the guard is dropped, which releases the runtime.
        drop(answer.send(ClaimAnswer::Claimed(guard)));
        // Events that came before the hold was there have been settled without it.
        self.settle(&label);
    }

    /// The record is written; if the claim was, too, it has a new epoch.
    fn on_kept(&self, label: &RuntimeLabel, record: Option<ClaimRecord>, revision: i64) {
        if let Some(record) = record {
            let claim = Claim {
                instance: record.instance,
                epoch: self.table.read().epoch(revision),
            };
            self.holds.lock().on_claimed(label, &claim);
            if let Some(observer) = self.observer.get().and_then(std::sync::Weak::upgrade) {
                observer.on_claim(label, &claim);
            }
        }
        self.settle(label);
    }

    /// The claim is another one than was seen.
    fn on_outdated(
        &self,
        label: &RuntimeLabel,
        kind: ItemKind,
        answer: &TxnResponse,
        revision: i64,
    ) {
        let change = {
            let mut table = self.table.write();
            match answer.first_read() {
                Some(read) => {
                    let source = read_at(revision);
                    table.put(&read.key, &read.value, read, source, now())
                }
                None => table.delete(self.keys.claim(label).as_bytes(), revision),
            }
        };
        self.on_changes(change);
        match kind {
            ItemKind::Requested(request, _) => {
                self.metrics.claims(LOST).inc();
                drop(request.answer.send(ClaimAnswer::Outdated));
            }
            ItemKind::Kept(_) => self.settle(label),
            ItemKind::Released => {}
        }
    }

    /// A batch was not answered: whether it was made is unknown. Records are tried again.
    fn on_not_written(&self, batch: Vec<Item>, error: &EtcdError) {
        self.on_unanswered(Unanswered::Writes, error);
        for item in batch {
            if let ItemKind::Requested(request, _) = item.kind {
                self.metrics.claims(FAILED).inc();
                drop(request.answer.send(ClaimAnswer::Away));
            }
            self.unwritten.lock().insert(item.label);
        }
    }
}

/// A random text, different each time.
pub(super) fn nonce() -> String {
    let mut bytes = [0; 8];
    // Without random numbers the program does not get this far: instances' secrets and keys need them.
    let _ = getrandom::fill(&mut bytes);
    format!("{:016x}", u64::from_be_bytes(bytes))
}
