//! Calls of etcd and their answers, for people.

use tunnel_directory::shared::Call;
use tunnel_etcd::{Compare, Operand, Request, RequestOp, Response, TxnRequest, TxnResponse};

use super::PREFIX;

/// A call.
#[must_use]
pub fn shown_call(call: &Call) -> String {
    match call {
        Call::Txn(txn) => shown_txn(txn),
        other => format!("{other:?}"),
    }
}

/// Whether a transaction has succeeded, and what it has read.
#[must_use]
pub fn shown_answer(txn: &TxnResponse) -> String {
    let parts = txn.responses.iter().map(|answer| match &answer.response {
        Some(Response::Txn(inner)) => shown_answer(inner),
        Some(Response::Range(range)) => {
            let found = range
                .kvs
                .iter()
                .map(|kv| format!("{}@{}", text(&kv.value), kv.mod_revision));
            format!("read {}", found.collect::<Vec<_>>().join(" "))
        }
        _ => "done".to_owned(),
    });
    let parts = parts.collect::<Vec<_>>().join(", ");
    let revision = txn.header.map(|header| header.revision);
    let revision = revision.map_or_else(String::new, |revision| format!(" @{revision}"));
    match txn.succeeded {
        true => format!("({parts}){revision}"),
        false => format!("else ({parts}){revision}"),
    }
}

fn shown_txn(txn: &TxnRequest) -> String {
    let conditions = txn
        .compare
        .iter()
        .map(shown_condition)
        .collect::<Vec<_>>()
        .join(" and ");
    let operations = txn
        .success
        .iter()
        .map(shown_operation)
        .collect::<Vec<_>>()
        .join(", ");
    match conditions.is_empty() {
        true => operations,
        false => format!("if {conditions}: {operations}"),
    }
}

fn shown_condition(compare: &Compare) -> String {
    match &compare.operand {
        Some(Operand::ModRevision(revision)) => format!("{}@{revision}", name(&compare.key)),
        _ => name(&compare.key),
    }
}

fn shown_operation(operation: &RequestOp) -> String {
    match &operation.request {
        Some(Request::Range(range)) => format!("get {}", name(&range.key)),
        Some(Request::Put(put)) => format!("put {} {}", name(&put.key), text(&put.value)),
        Some(Request::Delete(delete)) => format!("delete {}", name(&delete.key)),
        Some(Request::Txn(inner)) => format!("[{}]", shown_txn(inner)),
        None => String::new(),
    }
}

/// A key without the prefix that all have.
fn name(key: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    key.strip_prefix(PREFIX).unwrap_or(&key).to_owned()
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}
