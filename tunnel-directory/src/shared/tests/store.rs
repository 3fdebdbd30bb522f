//! A store with etcd's transactions.

use super::*;
use tunnel_etcd::{
    Operand, RangeResponse, Request, Response, ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};

#[derive(Default)]
pub(super) struct Store {
    pub(super) keys: BTreeMap<Vec<u8>, KeyValue>,
    pub(super) revision: i64,
    /// Those that were not delivered yet.
    pub(super) events: Vec<Event>,
}

impl Store {
    pub(super) fn txn(&mut self, txn: &TxnRequest) -> TxnResponse {
        self.revision += 1;
        let mut answer = self.inner(txn);
        answer.header = Some(ResponseHeader {
            revision: self.revision,
            ..ResponseHeader::default()
        });
        answer
    }

    fn inner(&mut self, txn: &TxnRequest) -> TxnResponse {
        let succeeded = txn.compare.iter().all(|compare| {
            let found = self.keys.get(&compare.key[..]);
            match compare.operand.as_ref().unwrap() {
                Operand::ModRevision(revision) => {
                    found.map_or(0, |kv| kv.mod_revision) == *revision
                }
                Operand::Value(value) => found.is_some_and(|kv| kv.value == *value),
            }
        });
        let operations = match succeeded {
            true => &txn.success,
            false => &txn.failure,
        };
        let responses = operations.iter().map(|operation| {
            let response = match operation.request.as_ref().unwrap() {
                Request::Txn(inner) => Response::Txn(self.inner(inner)),
                Request::Range(read) => Response::Range(RangeResponse {
                    kvs: self.keys.get(&read.key[..]).cloned().into_iter().collect(),
                    ..RangeResponse::default()
                }),
                Request::Put(put) => {
                    self.put(&put.key, &put.value);
                    Response::Put(tunnel_etcd::PutResponse::default())
                }
                Request::Delete(delete) => {
                    for key in self.matched(&delete.key, &delete.range_end) {
                        self.delete(&key);
                    }
                    Response::Delete(tunnel_etcd::DeleteRangeResponse::default())
                }
            };
            ResponseOp {
                response: Some(response),
            }
        });
        let responses = responses.collect();
        TxnResponse {
            succeeded,
            responses,
            header: None,
        }
    }

    /// The keys of a range, or the one key.
    fn matched(&self, key: &[u8], range_end: &[u8]) -> Vec<Vec<u8>> {
        match range_end.is_empty() {
            true => vec![key.to_vec()],
            false => {
                let keys = self.keys.range(key.to_vec()..range_end.to_vec());
                keys.map(|(key, _)| key.clone()).collect()
            }
        }
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        let known = self.keys.get(key);
        let kv = KeyValue {
            key: key.to_vec().into(),
            value: value.to_vec().into(),
            create_revision: known.map_or(self.revision, |kv| kv.create_revision),
            mod_revision: self.revision,
            ..KeyValue::default()
        };
        self.keys.insert(key.to_vec(), kv.clone());
        self.events.push(event(EventKind::Put, kv));
    }

    pub(super) fn set_generation(&mut self, generation: u16) {
        let cluster = ClusterRecord {
            id: String::new(),
            format: record::FORMAT,
            generation,
        };
        self.revision += 1;
        self.put(b"/t/cluster", &encode(&cluster));
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        if self.keys.remove(key).is_some() {
            let kv = KeyValue {
                key: key.to_vec().into(),
                mod_revision: self.revision,
                ..KeyValue::default()
            };
            self.events.push(event(EventKind::Delete, kv));
        }
    }
}

pub(super) fn event(kind: EventKind, kv: KeyValue) -> Event {
    Event {
        kind: kind.into(),
        kv: Some(kv),
    }
}
