//! What a server holds: tasks, and the entries of its tables. What only ever grows there is not let go.
//!
//! Counted when the metrics are read, each under its table's own lock for as long as a count takes;
//! nothing of it is on the way of a request.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::{
    IntGauge, IntGaugeVec,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::runtime::Handle;

use crate::node::Node;

/// How many entries a table has.
type Count = fn(&Node) -> usize;

/// The tables, by the names that docs/reference/metrics.md explains.
const TABLES: [(&str, Count); 14] = [
    ("claims", |node| node.registry.claims()),
    ("runtimes", |node| node.registry.len()),
    ("hosts", |node| node.router.hosts()),
    ("labels", |node| node.authenticator.labels_known()),
    ("platform_questions", |node| node.authenticator.questions()),
    ("platform_answers", |node| {
        node.authenticator.answers_known()
    }),
    ("exchanges", |node| node.registry.open()),
    ("waiting", |node| node.registry.waiting()),
    ("streams", |node| node.registry.streams()),
    ("public_addresses", |node| node.places.addresses()),
    ("tunnel_addresses", |node| node.tunnel_places.addresses()),
    ("gate_addresses", |node| node.gate.addresses()),
    ("checks", |node| node.checks.len()),
    ("event_readers", |node| node.events.readers()),
];

/// The threads of a server, each with a tokio runtime of its own, whose tasks are counted.
#[derive(Debug, Default)]
pub(crate) struct Threads(Mutex<Vec<Handle>>);

/// Shows what a node holds, for as long as it is there.
pub(crate) struct Holdings {
    node: Weak<Node>,
    tasks: IntGauge,
    buffered: IntGauge,
    entries: IntGaugeVec,
}

impl Threads {
    /// One more of them.
    pub(crate) fn add(&self, thread: Handle) {
        self.0.lock().push(thread);
    }

    /// Tasks that have not ended.
    fn tasks(&self) -> usize {
        let threads = self.0.lock();
        threads
            .iter()
            .map(|thread| thread.metrics().num_alive_tasks())
            .sum()
    }
}

impl Holdings {
    /// Of this node, in these families; the last has the table's name as its only label.
    pub(crate) fn new(
        node: &Arc<Node>,
        tasks: IntGauge,
        buffered: IntGauge,
        entries: IntGaugeVec,
    ) -> Self {
        Self {
            node: Arc::downgrade(node),
            tasks,
            buffered,
            entries,
        }
    }
}

impl Collector for Holdings {
    fn desc(&self) -> Vec<&Desc> {
        [self.tasks.desc(), self.buffered.desc(), self.entries.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(node) = self.node.upgrade() else {
            return Vec::new();
        };
        let shown = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.tasks.set(shown(node.threads.tasks()));
        self.buffered.set(shown(node.registry.buffered()));
        for (table, count) in TABLES {
            let entries = self.entries.with_label_values(&[table]);
            entries.set(shown(count(&node)));
        }
        [
            self.tasks.collect(),
            self.buffered.collect(),
            self.entries.collect(),
        ]
        .concat()
    }
}
