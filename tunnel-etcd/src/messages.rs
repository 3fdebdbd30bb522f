//! The messages of etcd's version 3 interface, as far as this client uses them.
//!
//! Fields and their numbers are those of etcd's `rpc.proto` and `kv.proto`; left-out fields keep their defaults. They
//! are written here rather than generated, so that building needs no protobuf compiler.

use prost::{Enumeration, Message, Oneof};

/// What every answer says of the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ResponseHeader {
    /// The cluster.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// The member that answered.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The store's revision when the request was applied.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// One key with its value.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyValue {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: bytes::Bytes,
    /// The revision in which the key was made.
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    /// The revision of the last change.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// The value.
    #[prost(bytes = "bytes", tag = "5")]
    pub value: bytes::Bytes,
    /// The lease with which the key ends; 0 for none.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// A read of keys.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeRequest {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: bytes::Bytes,
    /// The first key after the range; empty for `key` alone.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: bytes::Bytes,
    /// The most keys in the answer; 0 for no limit.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// The revision of the store that is read; 0 for the newest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    /// Whether the member may answer from what it has, without asking the others.
    #[prost(bool, tag = "7")]
    pub serializable: bool,
    /// Whether the answer has only the number of keys.
    #[prost(bool, tag = "9")]
    pub count_only: bool,
}

/// The answer to a [`RangeRequest`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RangeResponse {
    /// The cluster's state.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The keys, in order.
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether there are more keys than the limit let through.
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// How many keys are in the range.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

/// A write of one key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PutRequest {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: bytes::Bytes,
    /// The value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: bytes::Bytes,
    /// The lease with which the key ends; 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

/// The answer to a [`PutRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PutResponse {
    /// The cluster's state.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// Removes keys.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeleteRangeRequest {
    /// The first key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: bytes::Bytes,
    /// The first key after the range; empty for `key` alone.
    #[prost(bytes = "bytes", tag = "2")]
    pub range_end: bytes::Bytes,
}

/// The answer to a [`DeleteRangeRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DeleteRangeResponse {
    /// The cluster's state.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// How many keys were removed.
    #[prost(int64, tag = "2")]
    pub deleted: i64,
}

/// One operation of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RequestOp {
    /// The operation.
    #[prost(oneof = "Request", tags = "1, 2, 3, 4")]
    pub request: Option<Request>,
}

/// The kinds of [`RequestOp`].
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Request {
    /// Reads.
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    /// Writes one key.
    #[prost(message, tag = "2")]
    Put(PutRequest),
    /// Removes keys.
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
    /// A transaction within the transaction.
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

/// The answer to one operation of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResponseOp {
    /// The answer.
    #[prost(oneof = "Response", tags = "1, 2, 3, 4")]
    pub response: Option<Response>,
}

/// The kinds of [`ResponseOp`].
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Response {
    /// To a read.
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    /// To a write.
    #[prost(message, tag = "2")]
    Put(PutResponse),
    /// To a removal.
    #[prost(message, tag = "3")]
    Delete(DeleteRangeResponse),
    /// To a transaction within the transaction.
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

/// A condition of a transaction.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Compare {
    /// How the two are compared.
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub result: i32,
    /// What of the key is compared.
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub target: i32,
    /// The key.
    #[prost(bytes = "bytes", tag = "3")]
    pub key: bytes::Bytes,
    /// What it is compared with.
    #[prost(oneof = "Operand", tags = "6, 7")]
    pub operand: Option<Operand>,
}

/// The value that a key is compared with.
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Operand {
    /// The revision of the last change; 0 for a key that does not exist.
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    /// The value.
    #[prost(bytes = "bytes", tag = "7")]
    Value(bytes::Bytes),
}

/// How a [`Compare`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum CompareResult {
    /// Both are equal.
    Equal = 0,
    /// What the key has is less.
    Less = 2,
}

/// What a [`Compare`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum CompareTarget {
    /// How often the key was changed; not used.
    Version = 0,
    /// The revision of the last change.
    ModRevision = 2,
    /// The value.
    Value = 3,
}

/// If all of `compare` hold, does `success`, and `failure` otherwise, in one revision.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnRequest {
    /// The conditions.
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    /// What is done when all hold.
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    /// What is done when one does not.
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

/// The answer to a [`TxnRequest`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TxnResponse {
    /// The cluster's state. A transaction within a transaction has none.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether all conditions held.
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    /// The answers to the operations, in their order.
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

/// Client message on a watch stream.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "WatchCommand", tags = "1, 3")]
    pub(crate) command: Option<WatchCommand>,
}

/// The kinds of [`WatchRequest`].
#[derive(Clone, PartialEq, Eq, Oneof)]
pub(crate) enum WatchCommand {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "3")]
    Progress(WatchProgress),
}

/// Begins a watch.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct WatchCreate {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: bytes::Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: bytes::Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(bool, tag = "4")]
    pub(crate) progress_notify: bool,
    #[prost(bool, tag = "8")]
    pub(crate) fragment: bool,
}

/// The progress request: the member answers it with its revision.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct WatchProgress {}

/// Member message on a watch stream.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    /// -1 in an answer to [`WatchProgress`].
    #[prost(int64, tag = "2")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    /// The oldest revision that can be watched from, if the wanted one was compacted.
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    /// Whether the next answer has more events of this revision.
    #[prost(bool, tag = "7")]
    pub(crate) fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

/// One change of a key.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Event {
    /// What happened.
    #[prost(enumeration = "EventKind", tag = "1")]
    pub kind: i32,
    /// The key after the change; without a value when it was removed.
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

/// The kinds of [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum EventKind {
    /// The key was written.
    Put = 0,
    /// The key was removed.
    Delete = 1,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseRevokeResponse {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct LeaseKeepAliveResponse {
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct StatusRequest {}

/// The state of one member.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StatusResponse {
    /// The cluster's state.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The member's version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The size of its database in bytes.
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    /// The id of the leader; 0 for none.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}
