//! Gauges of a server's tasks and of the entries of its tables, to find leaks.
//!
//! Counted when the metrics are read, each under its table's lock; nothing is counted on the path of a request.

use parking_lot::Mutex;
use prometheus::{
    IntGauge, IntGaugeVec,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::runtime::Handle;

/// The threads of a server, each with a tokio runtime of its own, whose tasks are counted.
#[derive(Debug, Default)]
pub(crate) struct Threads(Mutex<Vec<Handle>>);

/// The values of the gauges.
pub(crate) struct Gauges {
    /// Tasks that have not ended.
    pub(crate) tasks: usize,
    /// Received bytes of answers that platform clients have not taken yet.
    pub(crate) buffered_bytes: usize,
    /// The entries of each table.
    pub(crate) entries: [(&'static str, usize); 14],
}

/// Exports [`Gauges`] as metrics; calls `count` whenever they are read.
pub(crate) struct GaugeFamilies<F> {
    pub(crate) count: F,
    pub(crate) tasks: IntGauge,
    pub(crate) buffered: IntGauge,
    pub(crate) entries: IntGaugeVec,
}

impl Threads {
    pub(crate) fn add(&self, thread: Handle) {
        self.0.lock().push(thread);
    }

    /// Tasks that have not ended.
    pub(crate) fn tasks(&self) -> usize {
        let threads = self.0.lock();
        threads
            .iter()
            .map(|thread| thread.metrics().num_alive_tasks())
            .sum()
    }
}

impl<F: Fn() -> Option<Gauges> + Send + Sync> Collector for GaugeFamilies<F> {
    fn desc(&self) -> Vec<&Desc> {
        [self.tasks.desc(), self.buffered.desc(), self.entries.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(now) = (self.count)() else {
            return Vec::new();
        };
        let value = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.tasks.set(value(now.tasks));
        self.buffered.set(value(now.buffered_bytes));
        for (table, count) in now.entries {
            let entries = self.entries.with_label_values(&[table]);
            entries.set(value(count));
        }
        [
            self.tasks.collect(),
            self.buffered.collect(),
            self.entries.collect(),
        ]
        .concat()
    }
}
