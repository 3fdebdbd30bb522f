//! A thin client of etcd's version 3 interface.
//!
//! ```text
//!   Client ─ each call ─▶ the member that answered last ─ failed ─▶ the next one, for the next call
//!          ─ watch ─────▶ a member that the caller chooses
//! ```
//!
//! [`Client`] holds one connection to each member and never spreads calls over them: a call goes to one member, has a
//! short time-out, and is not repeated here, since only the caller knows whether that is safe. After a failure the next
//! call goes to the next member, so that a dead or cut-off member costs one time-out. Nothing is dialled before the
//! first call.
//!
//! It knows keys, values and revisions, and nothing of tunnels.

mod call_time;
mod client;
mod error;
mod follow;
mod member;
mod messages;
mod watch;

pub use self::{
    client::{Client, Lease, Settings, User},
    error::EtcdError,
    follow::Followed,
    member::{BadMemberUrl, MemberUrl},
    messages::{
        Compare, CompareResult, CompareTarget, DeleteRangeRequest, DeleteRangeResponse, Event,
        EventKind, KeyValue, Operand, PutRequest, PutResponse, RangeRequest, RangeResponse,
        Request, RequestOp, Response, ResponseHeader, ResponseOp, StatusResponse, TxnRequest,
        TxnResponse,
    },
    watch::{Watch, WatchReport},
};

use bytes::Bytes;

/// The first key after all keys with this prefix, as the end of a range. Empty for a prefix of `0xff` bytes alone, which
/// no text has.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end.into()
}

impl Compare {
    /// Holds if the key's last change was in this revision; 0 means that the key does not exist.
    pub fn mod_revision(key: impl Into<Bytes>, revision: i64) -> Self {
        Self {
            result: CompareResult::Equal.into(),
            target: CompareTarget::ModRevision.into(),
            key: key.into(),
            operand: Some(Operand::ModRevision(revision)),
        }
    }

    /// Holds if the key was not changed after this revision, or does not exist.
    pub fn unchanged_since(key: impl Into<Bytes>, revision: i64) -> Self {
        Self {
            result: CompareResult::Less.into(),
            ..Self::mod_revision(key, revision.saturating_add(1))
        }
    }

    /// Holds if the key has this value.
    pub fn value(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Value.into(),
            key: key.into(),
            operand: Some(Operand::Value(value.into())),
        }
    }
}

impl RequestOp {
    /// Writes a key, which ends with the lease unless that is 0.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: i64) -> Self {
        let (key, value) = (key.into(), value.into());
        Request::Put(PutRequest { key, value, lease }).into()
    }

    /// Reads one key.
    pub fn get(key: impl Into<Bytes>) -> Self {
        let key = key.into();
        Request::Range(RangeRequest {
            key,
            ..RangeRequest::default()
        })
        .into()
    }

    /// Removes one key.
    pub fn delete(key: impl Into<Bytes>) -> Self {
        Self::delete_range((key.into(), Bytes::new()))
    }

    /// Removes all keys from the first to before the second.
    #[must_use]
    pub fn delete_range((key, range_end): (Bytes, Bytes)) -> Self {
        Request::Delete(DeleteRangeRequest { key, range_end }).into()
    }
}

impl From<Request> for RequestOp {
    fn from(request: Request) -> Self {
        Self {
            request: Some(request),
        }
    }
}

impl From<TxnRequest> for RequestOp {
    fn from(request: TxnRequest) -> Self {
        Request::Txn(request).into()
    }
}

impl TxnResponse {
    /// The revision of the transaction; 0 within another transaction, which has the revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.header.map_or(0, |header| header.revision)
    }

    /// The key that the first operation has read, if it was a read and found one.
    #[must_use]
    pub fn first_read(&self) -> Option<&KeyValue> {
        let first = self.responses.first()?.response.as_ref()?;
        match first {
            Response::Range(read) => read.kvs.first(),
            _ => None,
        }
    }
}

impl Event {
    /// Whether the key was removed.
    #[must_use]
    pub fn is_delete(&self) -> bool {
        self.kind == i32::from(EventKind::Delete)
    }
}

#[cfg(test)]
mod tests {
    use super::prefix_end;

    #[test]
    fn the_end_of_a_prefix_is_the_first_key_after_it() {
        assert_eq!(&prefix_end(b"/a/")[..], b"/a0");
        assert_eq!(&prefix_end(b"a\xff")[..], b"b");
        assert!(prefix_end(b"\xff").is_empty());
    }
}
