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
//! The revision of a claim's last change is its epoch, with its generation, so that nothing but a takeover may write it. A
//! `held` record is valid while the node's key has its incarnation, and no node holds the runtime by a later claim. It is
//! written when the claim was answered, and the claim takes effect with it: one that etcd makes after its writer has given it
//! up takes nothing from anybody. While etcd is away nodes report which of their records are void.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tunnel_proto::handshake::InstanceId;

use crate::{
    names::RuntimeLabel,
    node::{NodeName, NodeRun},
};

/// The format of the records that this version reads and writes.
pub(crate) const FORMAT: u32 = 1;

/// The keys below one prefix.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
}

/// What a key names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Key {
    Cluster,
    Node(NodeName),
    Challenge(NodeName),
    Claim(RuntimeLabel),
    Held(NodeRun, RuntimeLabel),
}

/// The record of all nodes together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterRecord {
    /// Random, so that an etcd that was emptied is told from what it was.
    #[serde(default)]
    pub(crate) id: String,
    /// The format of all records.
    pub(crate) format: u32,
    /// The upper bits of all epochs. Raised after a restore of etcd.
    pub(crate) generation: u16,
}

/// The record of a server node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The process that runs under the node's name.
    pub incarnation: String,
    /// Where other nodes connect; none if they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The zone that it lies in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<Arc<str>>,
    /// The version of the program.
    pub version: String,
    /// Whether it takes new sessions.
    pub state: NodeState,
    /// The number of runtimes that it holds, now and then.
    #[serde(default)]
    pub sessions: u64,
    /// The number of other nodes to which it had a link when it wrote this; none if it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<u64>,
}

/// Whether a node takes new sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It does.
    Serving,
    /// It stops.
    Leaving,
    /// Something that only a later version knows: the node is there, and is given no sessions.
    #[serde(untagged)]
    Other(Arc<str>),
}

impl NodeState {
    /// The name, as in the record.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Serving => "serving",
            Self::Leaving => "leaving",
            Self::Other(name) => name,
        }
    }
}

/// Which instance holds a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimRecord {
    /// The instance.
    pub(crate) instance: InstanceId,
    /// Random for each claim, so that the writer recognises its own one after an answer was lost.
    pub(crate) nonce: String,
    /// The account of the runtime that the label belongs to.
    #[serde(default)]
    pub(crate) account: String,
    /// The runtime's name.
    #[serde(default)]
    pub(crate) runtime: String,
    /// The upper bits of the epoch. A version that does not write it leaves it to be found out by the revision: such a claim is
    /// of the last generation, or of the one before if it is older than the record of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<u16>,
    /// The label has been taken from another runtime on purpose since it was free: by a listed one, or back by the one that
    /// had it. A node of a version that does not compare account and name writes over another runtime's record without it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) overrules: bool,
    /// The node that wrote it together with its own record.
    pub(crate) node: String,
    /// The writer's clock.
    pub(crate) at_ms: u64,
    /// Takeovers in a row.
    #[serde(rename = "row", default, skip_serializing_if = "is_zero")]
    pub(crate) takeovers: u32,
    /// The time from the last takeover of the row to this claim.
    #[serde(rename = "row_age_ms", default, skip_serializing_if = "is_zero")]
    pub(crate) last_takeover_ms: u64,
    /// Instances that have lost the runtime since it was last free.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(crate) superseded: VecDeque<InstanceId>,
}

/// A node has sessions of the instance that holds the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldRecord {
    /// The revision of the claim; 0 means that both were written in one revision.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) epoch: i64,
    /// Whether the sessions take new exchanges.
    pub(crate) state: HeldState,
}

/// Whether the sessions of an instance at one node take new exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HeldState {
    /// Some do.
    Open,
    /// None does: the instance leaves this node.
    Leaving,
    /// Something that only a later version knows: the node holds the runtime.
    #[serde(other)]
    Other,
}

impl HeldState {
    /// The state of an instance that leaves the node, or does not.
    pub(crate) fn of(is_leaving: bool) -> Self {
        match is_leaving {
            true => Self::Leaving,
            false => Self::Open,
        }
    }
}

pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Keys {
    /// The keys below this prefix.
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    /// The range of all keys.
    pub(crate) fn all(&self) -> (Bytes, Bytes) {
        let prefix = self.prefix.as_bytes();
        (prefix.to_vec().into(), tunnel_etcd::prefix_end(prefix))
    }

    /// The range of the keys of one kind, such as `node/`.
    pub(crate) fn of_kind(&self, kind: &str) -> (Bytes, Bytes) {
        let prefix = format!("{}{kind}", self.prefix);
        let end = tunnel_etcd::prefix_end(prefix.as_bytes());
        (prefix.into(), end)
    }

    /// The key of the cluster's record.
    pub(crate) fn cluster(&self) -> String {
        format!("{}cluster", self.prefix)
    }

    /// The key of a node's record.
    pub(crate) fn node(&self, node: &NodeName) -> String {
        format!("{}node/{node}", self.prefix)
    }

    /// The key that asks whether a node lives.
    pub(crate) fn challenge(&self, node: &NodeName) -> String {
        format!("{}challenge/{node}", self.prefix)
    }

    /// The key of a claim.
    pub(crate) fn claim(&self, label: &RuntimeLabel) -> String {
        format!("{}claim/{label}", self.prefix)
    }

    /// The key of the record that a process of a node holds a runtime.
    pub(crate) fn held(&self, run: &NodeRun, label: &RuntimeLabel) -> String {
        let NodeRun { node, incarnation } = run;
        format!("{}held/{node}/{incarnation}/{label}", self.prefix)
    }

    /// The range of all such records of one process.
    pub(crate) fn held_by(&self, run: &NodeRun) -> (Bytes, Bytes) {
        self.of_kind(&format!("held/{}/{}/", run.node, run.incarnation))
    }

    /// What a key names; `None` for one that this version does not know.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<Key> {
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
                let run = NodeRun {
                    node: node.parse().ok()?,
                    incarnation: incarnation.parse().ok()?,
                };
                Some(Key::Held(run, RuntimeLabel::parse(label).ok()?))
            }
            _ => None,
        }
    }
}

/// The text of a record. Serialising these types cannot fail.
pub(crate) fn encode(record: &impl Serialize) -> Bytes {
    serde_json::to_vec(record).unwrap_or_default().into()
}

/// The record in a value; `None` if this version cannot read it.
pub(crate) fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Incarnation;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let keys = Keys::new("/tunnel/v1/");
        let node: NodeName = "n1".parse().unwrap();
        let label = RuntimeLabel::parse("acme-prod").unwrap();
        let run = NodeRun {
            node: node.clone(),
            incarnation: Incarnation::new(7),
        };
        for (text, key) in [
            (keys.cluster(), Key::Cluster),
            (keys.node(&node), Key::Node(node.clone())),
            (keys.challenge(&node), Key::Challenge(node.clone())),
            (keys.claim(&label), Key::Claim(label.clone())),
            (
                keys.held(&run, &label),
                Key::Held(run.clone(), label.clone()),
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

    /// What a later version may say.
    #[test]
    fn a_state_that_is_not_known_is_kept() {
        let node = br#"{"incarnation":"7","version":"9.0.0","state":"resting","sessions":1}"#;
        let record: NodeRecord = decode(node).unwrap();
        assert_eq!(record.state.name(), "resting");
        assert_eq!(&encode(&record)[..], node);
        let held: HeldRecord = decode(br#"{"epoch":5,"state":"resting"}"#).unwrap();
        assert_eq!(held.epoch, 5);
        assert_ne!(held.state, HeldState::Leaving);
    }

    #[test]
    fn defaults_are_not_written() {
        let held = HeldRecord {
            epoch: 0,
            state: HeldState::Open,
        };
        assert_eq!(&encode(&held)[..], br#"{"state":"open"}"#);
        assert_eq!(decode(br#"{"state":"open","later":1}"#), Some(held));
    }
}
