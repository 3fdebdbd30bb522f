//! Keys, revisions and their history.

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;
use tunnel_etcd::{
    Compare, CompareResult, DeleteRangeRequest, DeleteRangeResponse, EtcdError, Event, EventKind,
    KeyValue, Operand, PutRequest, PutResponse, RangeRequest, RangeResponse, Request, RequestOp,
    Response, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};

/// The state of the cluster that is committed.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    keys: BTreeMap<Bytes, KeyValue>,
    pub(super) revision: i64,
    /// The changes after the compacted revision, by revision.
    history: Vec<Event>,
    /// Revisions up to this one have no history.
    compacted: i64,
}

impl Store {
    /// Makes a transaction. All its changes have one revision, and there is a new one only if something changes.
    pub(super) fn txn(
        &mut self,
        txn: &TxnRequest,
        has_lease: impl Fn(i64) -> bool + Copy,
    ) -> Result<TxnResponse, EtcdError> {
        self.check(txn, has_lease)?;
        let revision = self.revision + 1;
        let begun = self.history.len();
        let mut answer = self.apply(txn, revision);
        if self.history.len() > begun {
            self.revision = revision;
        }
        answer.header = Some(self.header());
        Ok(answer)
    }

    /// A transaction that puts a key on a lease that is not there is refused as a whole.
    fn check(
        &self,
        txn: &TxnRequest,
        has_lease: impl Fn(i64) -> bool + Copy,
    ) -> Result<(), EtcdError> {
        for operation in self.chosen(txn).1 {
            match &operation.request {
                Some(Request::Put(put)) if put.lease != 0 && !has_lease(put.lease) => {
                    return Err(EtcdError::LeaseEnded);
                }
                Some(Request::Txn(inner)) => self.check(inner, has_lease)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn chosen<'a>(&self, txn: &'a TxnRequest) -> (bool, &'a [RequestOp]) {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        match succeeded {
            true => (true, &txn.success),
            false => (false, &txn.failure),
        }
    }

    fn holds(&self, compare: &Compare) -> bool {
        let found = self.keys.get(&compare.key);
        match &compare.operand {
            Some(Operand::ModRevision(revision)) => {
                let found = found.map_or(0, |kv| kv.mod_revision);
                match compare.result == i32::from(CompareResult::Less) {
                    true => found < *revision,
                    false => found == *revision,
                }
            }
            Some(Operand::Value(value)) => found.is_some_and(|kv| kv.value == *value),
            None => false,
        }
    }

    fn apply(&mut self, txn: &TxnRequest, revision: i64) -> TxnResponse {
        let (succeeded, operations) = self.chosen(txn);
        let responses = operations.iter().map(|operation| {
            let response = operation.request.as_ref().map(|request| match request {
                Request::Range(read) => Response::Range(self.read(read)),
                Request::Put(put) => {
                    self.put(put, revision);
                    Response::Put(PutResponse::default())
                }
                Request::Delete(range) => Response::Delete(DeleteRangeResponse {
                    header: None,
                    deleted: self.delete(range, revision),
                }),
                Request::Txn(inner) => Response::Txn(self.apply(inner, revision)),
            });
            ResponseOp { response }
        });
        let responses = responses.collect();
        TxnResponse {
            header: None,
            succeeded,
            responses,
        }
    }

    /// A read of the newest state.
    pub(super) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, EtcdError> {
        self.range_at(request, self.revision)
    }

    /// A read at a member that has applied the writes up to this revision.
    pub(super) fn range_at(
        &self,
        request: &RangeRequest,
        applied: i64,
    ) -> Result<RangeResponse, EtcdError> {
        let wanted = match request.revision {
            0 => applied,
            revision if revision > applied => {
                return Err(EtcdError::Refused {
                    member: "http://etcd".to_owned(),
                    message: "etcdserver: mvcc: required revision is a future revision".to_owned(),
                });
            }
            revision => revision,
        };
        if wanted < self.compacted {
            return Err(EtcdError::Compacted { oldest: 0 });
        }
        let past = self.at(wanted);
        let mut answer = past.read(request);
        answer.header = Some(ResponseHeader {
            revision: applied,
            ..ResponseHeader::default()
        });
        Ok(answer)
    }

    /// The state at an earlier revision, without history.
    fn at(&self, revision: i64) -> Self {
        let mut past = Self {
            keys: self.keys.clone(),
            revision,
            history: Vec::new(),
            compacted: revision,
        };
        if revision >= self.revision {
            return past;
        }
        let later = self
            .history
            .iter()
            .filter(|event| changed(event) > revision);
        for key in later.filter_map(|event| Some(event.kv.as_ref()?.key.clone())) {
            past.keys.remove(&key);
            let of_key = |event: &&Event| {
                event.kv.as_ref().is_some_and(|kv| kv.key == key) && changed(event) <= revision
            };
            let known = self.history.iter().rev().find(of_key);
            if let Some(kv) = known
                .filter(|event| !event.is_delete())
                .and_then(|event| event.kv.clone())
            {
                past.keys.insert(key, kv);
            }
        }
        past
    }

    fn read(&self, request: &RangeRequest) -> RangeResponse {
        let in_range = self.in_range(&request.key, &request.range_end);
        let all: Vec<&KeyValue> = in_range.collect();
        let limit = match usize::try_from(request.limit) {
            Ok(limit) if limit > 0 => limit,
            _ => usize::MAX,
        };
        let kvs = match request.count_only {
            true => Vec::new(),
            false => all.iter().take(limit).map(|kv| (*kv).clone()).collect(),
        };
        RangeResponse {
            header: Some(self.header()),
            kvs,
            more: all.len() > limit,
            count: i64::try_from(all.len()).unwrap_or(i64::MAX),
        }
    }

    fn in_range(&self, key: &Bytes, end: &Bytes) -> impl Iterator<Item = &KeyValue> {
        let upper = match end.is_empty() {
            true => Bound::Included(key.clone()),
            false => Bound::Excluded(end.clone()),
        };
        let range = (Bound::Included(key.clone()), upper);
        self.keys.range(range).map(|(_, kv)| kv)
    }

    fn put(&mut self, put: &PutRequest, revision: i64) {
        let created = self.keys.get(&put.key).map(|kv| kv.create_revision);
        let kv = KeyValue {
            key: put.key.clone(),
            create_revision: created.unwrap_or(revision),
            mod_revision: revision,
            value: put.value.clone(),
            lease: put.lease,
        };
        self.keys.insert(put.key.clone(), kv.clone());
        self.history.push(Event {
            kind: EventKind::Put.into(),
            kv: Some(kv),
        });
    }

    /// Removes keys. Returns how many.
    fn delete(&mut self, range: &DeleteRangeRequest, revision: i64) -> i64 {
        let keys = self.in_range(&range.key, &range.range_end);
        let keys: Vec<Bytes> = keys.map(|kv| kv.key.clone()).collect();
        for key in &keys {
            self.delete_key(key, revision);
        }
        i64::try_from(keys.len()).unwrap_or(i64::MAX)
    }

    fn delete_key(&mut self, key: &Bytes, revision: i64) {
        self.keys.remove(key);
        let kv = KeyValue {
            key: key.clone(),
            mod_revision: revision,
            ..KeyValue::default()
        };
        self.history.push(Event {
            kind: EventKind::Delete.into(),
            kv: Some(kv),
        });
    }

    /// Removes the keys on a lease, in one revision.
    pub(super) fn delete_of_lease(&mut self, lease: i64) {
        let keys = self.keys.values().filter(|kv| kv.lease == lease);
        let keys: Vec<Bytes> = keys.map(|kv| kv.key.clone()).collect();
        if keys.is_empty() {
            return;
        }
        self.revision += 1;
        for key in keys {
            self.delete_key(&key, self.revision);
        }
    }

    /// The keys that begin with a prefix.
    pub(super) fn keys<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let all = self.keys.values().filter_map(|kv| {
            let key = std::str::from_utf8(&kv.key).ok()?;
            Some((key, &kv.value[..]))
        });
        all.filter(move |(key, _)| key.starts_with(prefix))
    }

    /// Removes the history up to the newest revision.
    pub(super) fn compact(&mut self) {
        self.history.clear();
        self.compacted = self.revision;
    }

    /// Removes the history: a restored cluster has none from before.
    pub(super) fn begin_history(&mut self) {
        self.compact();
    }

    /// The events from one revision to another.
    pub(super) fn events(&self, from: i64, to: i64) -> Result<Vec<Event>, EtcdError> {
        if from <= self.compacted {
            let oldest = self.compacted + 1;
            return Err(EtcdError::Compacted { oldest });
        }
        let begin = self.history.partition_point(|event| changed(event) < from);
        let end = self.history.partition_point(|event| changed(event) <= to);
        Ok(self.history[begin..end].to_vec())
    }

    fn header(&self) -> ResponseHeader {
        ResponseHeader {
            revision: self.revision,
            ..ResponseHeader::default()
        }
    }
}

/// The revision of a change.
fn changed(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}
