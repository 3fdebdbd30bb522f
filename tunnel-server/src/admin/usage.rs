//! What the server's process uses, as `/status` shows it.

use std::{collections::BTreeMap, sync::Arc};

#[cfg(target_os = "linux")]
use prometheus::{core::Collector, process_collector::ProcessCollector};
use serde::{Deserialize, Serialize};

/// What the server's process uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessView {
    /// Its resident memory, in bytes.
    pub memory_bytes: u64,
    /// Processor time since the start, of all threads, in seconds.
    pub cpu_seconds: f64,
}

/// A limit of the whole server, and how much of it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedLimitView {
    /// How much is used.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

/// Reads the limits of the whole server, by their names.
pub(crate) type ReadLimits = Arc<dyn Fn() -> BTreeMap<String, UsedLimitView> + Send + Sync>;

/// What the process uses now; `None` where the system does not say so in `/proc`.
#[cfg(target_os = "linux")]
pub(super) fn process() -> Option<ProcessView> {
    let families = ProcessCollector::for_self().collect();
    let value = |name: &str| {
        let family = families.iter().find(|family| family.name() == name)?;
        family.get_metric().first()
    };
    let memory = value("process_resident_memory_bytes")?
        .get_gauge()
        .get_value();
    let cpu = value("process_cpu_seconds_total")?
        .get_counter()
        .get_value();
    Some(ProcessView {
        memory_bytes: memory as u64,
        cpu_seconds: cpu,
    })
}

/// Nothing is known on this system.
#[cfg(not(target_os = "linux"))]
pub(super) fn process() -> Option<ProcessView> {
    None
}
