//! Gauges of a server's tasks and of the entries of its tables, to find leaks.
//!
//! Counted when the metrics are read, each under its table's lock; nothing is counted on the path of a request.

use std::time::SystemTime;

use parking_lot::Mutex;
use prometheus::{
    IntGauge, IntGaugeVec,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::runtime::Handle;
use tunnel_directory::RuntimeLabel;

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
    pub(crate) entries: [(&'static str, usize); 17],
    /// The known runtimes that have a session at this node, and the others.
    pub(crate) runtimes: [(&'static str, usize); 2],
    /// The runtimes of the runtimes file; empty unless each one is exported.
    pub(crate) listed: Vec<ListedRuntime>,
}

/// Whether a runtime of the runtimes file has a session at this node.
pub(crate) struct ListedRuntime {
    pub(crate) label: RuntimeLabel,
    pub(crate) is_online: bool,
    /// When it was last online, if it was and is not.
    pub(crate) last_online: Option<SystemTime>,
}

/// Exports [`Gauges`] as metrics; calls `count` whenever they are read.
pub(crate) struct GaugeFamilies<F> {
    pub(crate) count: F,
    pub(crate) tasks: IntGauge,
    pub(crate) buffered: IntGauge,
    pub(crate) entries: IntGaugeVec,
    pub(crate) runtimes: IntGaugeVec,
    pub(crate) runtime_online: IntGaugeVec,
    pub(crate) runtime_last_online: IntGaugeVec,
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

impl<F> GaugeFamilies<F> {
    /// Sets the series of listed runtimes; those of runtimes that are not listed any more go.
    fn set_listed(&self, listed: &[ListedRuntime]) {
        self.runtime_online.reset();
        self.runtime_last_online.reset();
        for runtime in listed {
            let label = [runtime.label.as_str()];
            let is_online = i64::from(runtime.is_online);
            self.runtime_online.with_label_values(&label).set(is_online);
            let since = runtime.last_online;
            let since = since.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
            if let Some(since) = since {
                let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
                self.runtime_last_online
                    .with_label_values(&label)
                    .set(seconds);
            }
        }
    }
}

impl<F: Fn() -> Option<Gauges> + Send + Sync> Collector for GaugeFamilies<F> {
    fn desc(&self) -> Vec<&Desc> {
        [
            self.tasks.desc(),
            self.buffered.desc(),
            self.entries.desc(),
            self.runtimes.desc(),
            self.runtime_online.desc(),
            self.runtime_last_online.desc(),
        ]
        .concat()
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
        for (state, count) in now.runtimes {
            self.runtimes.with_label_values(&[state]).set(value(count));
        }
        self.set_listed(&now.listed);
        [
            self.tasks.collect(),
            self.buffered.collect(),
            self.entries.collect(),
            self.runtimes.collect(),
            self.runtime_online.collect(),
            self.runtime_last_online.collect(),
        ]
        .concat()
    }
}
