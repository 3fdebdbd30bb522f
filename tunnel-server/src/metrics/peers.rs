//! The families of links between server nodes. In a server that stands alone they stay at zero.

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use tunnel_ops::metrics::Families;
use tunnel_proto::problem::{Problem, Reason};

/// What is forwarded to other nodes, and for them.
pub struct PeerMetrics {
    links: IntGauge,
    refused: IntCounter,
    forwards: IntCounterVec,
    served: IntCounterVec,
    moved: IntCounterVec,
}

/// What has become of a request that was forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forwarding {
    /// The other node has answered.
    Answered,
    /// The other node has no session of the runtime.
    NotHeld,
    /// The link was lost before the answer.
    Lost,
    /// The other node has refused it, or has failed.
    Failed,
}

impl PeerMetrics {
    pub(super) fn new(new: &mut Families) -> prometheus::Result<Self> {
        Ok(Self {
            links: new.gauge("peer_links", "Open links to other server nodes, those of all shards")?,
            refused: new.counter(
                "peer_connections_refused_total",
                "Connections of the peer listener that are not from a server node",
            )?,
            forwards: new.counters_of(
                "forwards_total",
                "Requests forwarded to another server node: answered, not_held by it, lost with the link, or failed there",
                "result",
                ["answered", "not_held", "lost", "failed"],
            )?,
            served: new.counters_of(
                "forwards_served_total",
                "Requests that another server node has forwarded to this one: served, not_held, or failed",
                "result",
                ["served", "not_held", "failed"],
            )?,
            moved: new.counters_of(
                "moved_total",
                "Runtimes whose clients were asked to move to other server nodes: for balance, to spread the sessions of a client, or by a node that is cut off from the directory (directory) or from other nodes (links)",
                "reason",
                ["balance", "directory", "links", "spread"],
            )?,
        })
    }

    /// The gauge of open links.
    pub(crate) fn links(&self) -> IntGauge {
        self.links.clone()
    }

    pub(crate) fn on_refused(&self) {
        self.refused.inc();
    }

    pub(crate) fn on_forwarded(&self, forwarding: Forwarding) {
        let result = match forwarding {
            Forwarding::Answered => "answered",
            Forwarding::NotHeld => "not_held",
            Forwarding::Lost => "lost",
            Forwarding::Failed => "failed",
        };
        self.forwards.with_label_values(&[result]).inc();
    }

    /// The clients of so many runtimes were asked to move.
    pub(crate) fn on_moved(&self, reason: &str, runtimes: usize) {
        self.moved
            .with_label_values(&[reason])
            .inc_by(runtimes as u64);
    }

    pub(crate) fn on_served(&self, problem: Option<&Problem>) {
        let result = match problem.map(Problem::reason) {
            None => "served",
            Some(Reason::NotHeld) => "not_held",
            Some(_) => "failed",
        };
        self.served.with_label_values(&[result]).inc();
    }
}
