//! The keys of the shared directory and their values.
//!
//! ```text
//!   <prefix>cluster                                the format, and the generation of epochs
//!   <prefix>node/<node>                            a server node; on its lease, the only key that is
//!   <prefix>challenge/<node>                       asks whether a node of that name lives; on the lease of who asks
//!   <prefix>claim/<label>                          which instance holds the runtime; written at a takeover only
//!   <prefix>held/<node>/<incarnation>/<label>      the node has sessions of that instance
//!   <prefix>acme/…                                 certificates (`acme/store.rs`)
//! ```
//!
//! The revision of a claim's last change is its epoch, so that nothing but a takeover may write it. A `held` record is
//! valid while the node's key has its incarnation, and the claim has its epoch.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tunnel_proto::handshake::InstanceId;

use super::super::node::{Incarnation, NodeName};
use crate::runtimes::RuntimeLabel;

/// The format of the records that this version reads and writes.
pub(super) const FORMAT: u32 = 1;

/// The keys below one prefix.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
}

/// What a key names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Cluster,
    Node(NodeName),
    Challenge(NodeName),
    Claim(RuntimeLabel),
    Held(NodeName, Incarnation, RuntimeLabel),
}

/// The record of all nodes together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClusterRecord {
    /// Random, so that an etcd that was emptied is told from what it was.
    #[serde(default)]
    pub(super) id: String,
    pub(super) format: u32,
    /// The upper bits of all epochs. Raised after a restore of etcd.
    pub(super) generation: u16,
}

/// A server node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRecord {
    pub(crate) incarnation: String,
    /// Where other nodes connect; none if they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<Arc<str>>,
    pub(crate) version: String,
    pub(crate) state: NodeState,
    #[serde(default)]
    pub(crate) sessions: u64,
}

/// Whether a node takes new sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NodeState {
    /// It does.
    Serving,
    /// It stops.
    Leaving,
}

impl NodeState {
    /// The name, as in the record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Leaving => "leaving",
        }
    }
}

/// Which instance holds a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClaimRecord {
    pub(super) instance: InstanceId,
    /// Drawn for each claim, so that the writer knows its own one after an answer was lost.
    pub(super) nonce: String,
    /// The runtime that the label belongs to.
    #[serde(default)]
    pub(super) account: String,
    #[serde(default)]
    pub(super) runtime: String,
    /// The label has been taken from another runtime on purpose since it was free: by a listed one, or back by the one that
    /// had it. A node of a version that does not compare account and name writes over another runtime's record without it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) overrules: bool,
    /// The node that wrote it together with its own record, and its clock, for people.
    pub(super) node: String,
    pub(super) at_ms: u64,
    /// Takeovers in a row, and the time from the last one to this claim.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) row: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) row_age_ms: u64,
    /// Instances that have lost the runtime since it was last free.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(super) superseded: VecDeque<InstanceId>,
}

/// A node has sessions of the instance that holds the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldRecord {
    /// The revision of the claim; 0 means that both were written in one revision.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) epoch: i64,
    pub(super) state: HeldState,
}

/// Whether the sessions take new exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum HeldState {
    /// Some do.
    Open,
    /// None does: the instance leaves this node.
    Leaving,
}

impl HeldState {
    pub(super) fn of(is_leaving: bool) -> Self {
        match is_leaving {
            true => Self::Leaving,
            false => Self::Open,
        }
    }
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    /// The range of all keys.
    pub(super) fn all(&self) -> (Bytes, Bytes) {
        let prefix = self.prefix.as_bytes();
        (prefix.to_vec().into(), tunnel_etcd::prefix_end(prefix))
    }

    /// The range of the keys of one kind, such as `node/`.
    pub(super) fn of_kind(&self, kind: &str) -> (Bytes, Bytes) {
        let prefix = format!("{}{kind}", self.prefix);
        let end = tunnel_etcd::prefix_end(prefix.as_bytes());
        (prefix.into(), end)
    }

    pub(super) fn cluster(&self) -> String {
        format!("{}cluster", self.prefix)
    }

    pub(super) fn node(&self, node: &NodeName) -> String {
        format!("{}node/{node}", self.prefix)
    }

    pub(super) fn challenge(&self, node: &NodeName) -> String {
        format!("{}challenge/{node}", self.prefix)
    }

    pub(super) fn claim(&self, label: &RuntimeLabel) -> String {
        format!("{}claim/{label}", self.prefix)
    }

    pub(super) fn held(
        &self,
        node: &NodeName,
        incarnation: Incarnation,
        label: &RuntimeLabel,
    ) -> String {
        format!("{}held/{node}/{incarnation}/{label}", self.prefix)
    }

    /// The range of all `held` records of one run of a node.
    pub(super) fn held_by(&self, node: &NodeName, incarnation: Incarnation) -> (Bytes, Bytes) {
        self.of_kind(&format!("held/{node}/{incarnation}/"))
    }

    /// What a key names; `None` for one that this version does not know.
    pub(super) fn parse(&self, key: &[u8]) -> Option<Key> {
        let key = std::str::from_utf8(key).ok()?;
        let rest = key.strip_prefix(&self.prefix)?;
        if rest == "cluster" {
            return Some(Key::Cluster);
        }
        let (kind, rest) = rest.split_once('/')?;
        match kind {
            "node" => Some(Key::Node(rest.parse().ok()?)),
            "challenge" => Some(Key::Challenge(rest.parse().ok()?)),
            "claim" => Some(Key::Claim(RuntimeLabel::parse(rest).ok()?)),
            "held" => {
                let (node, rest) = rest.split_once('/')?;
                let (incarnation, label) = rest.split_once('/')?;
                let label = RuntimeLabel::parse(label).ok()?;
                Some(Key::Held(
                    node.parse().ok()?,
                    incarnation.parse().ok()?,
                    label,
                ))
            }
            _ => None,
        }
    }
}

/// The text of a record. Serialising these types cannot fail.
pub(super) fn encode(record: &impl Serialize) -> Bytes {
    serde_json::to_vec(record).unwrap_or_default().into()
}

/// The record in a value; `None` if this version cannot read it.
pub(super) fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let keys = Keys::new("/tunnel/v1/");
        let (node, label) = (
            "n1".parse().unwrap(),
            RuntimeLabel::parse("acme-prod").unwrap(),
        );
        let incarnation = Incarnation::new(7);
        for (text, key) in [
            (keys.cluster(), Key::Cluster),
            (keys.node(&node), Key::Node(node.clone())),
            (keys.challenge(&node), Key::Challenge(node.clone())),
            (keys.claim(&label), Key::Claim(label.clone())),
            (
                keys.held(&node, incarnation, &label),
                Key::Held(node.clone(), incarnation, label.clone()),
            ),
        ] {
            assert_eq!(keys.parse(text.as_bytes()), Some(key), "{text}");
        }
        for unknown in [
            "/tunnel/v1/later/x",
            "/tunnel/v1/claim/A",
            "/other/cluster",
            "/tunnel/v1/held/n1/x",
        ] {
            assert_eq!(keys.parse(unknown.as_bytes()), None, "{unknown}");
        }
    }

    #[test]
    fn what_is_usual_is_not_written() {
        let held = HeldRecord {
            epoch: 0,
            state: HeldState::Open,
        };
        assert_eq!(&encode(&held)[..], br#"{"state":"open"}"#);
        assert_eq!(decode(br#"{"state":"open","later":1}"#), Some(held));
    }
}
