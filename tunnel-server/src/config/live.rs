//! The configuration in force, which a reload replaces while the server runs.

use std::{net::IpAddr, sync::Arc, time::SystemTime};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::Config;

/// The configuration in force, and how the last reload went.
pub(crate) struct LiveConfig {
    current: ArcSwap<Config>,
    last_reload: Mutex<Option<LastReload>>,
}

/// How a reload of the configuration went.
#[derive(Debug, Clone)]
pub(crate) struct LastReload {
    pub(crate) at: SystemTime,
    /// The first fault of the files, for which it failed.
    pub(crate) fault: Option<String>,
    /// The settings that wait for a restart, by the last one that did not fail.
    pub(crate) waiting: Vec<String>,
}

impl LiveConfig {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            current: ArcSwap::from_pointee(config),
            last_reload: Mutex::default(),
        }
    }

    /// The current configuration, for a short use: it may be replaced by a reload.
    pub(crate) fn load(&self) -> Guard<Arc<Config>> {
        self.current.load()
    }

    /// The current configuration, which can be kept.
    pub(crate) fn load_full(&self) -> Arc<Config> {
        self.current.load_full()
    }

    pub(crate) fn replace(&self, config: Config) {
        self.current.store(Arc::new(config));
    }

    /// Records a reload: the settings that wait for a restart, or the first fault of the files.
    pub(crate) fn on_reload(&self, result: Result<Vec<String>, String>) {
        let mut last = self.last_reload.lock();
        let before = last.take().map(|last| last.waiting);
        let (fault, waiting) = match result {
            Ok(waiting) => (None, waiting),
            Err(fault) => (Some(fault), before.unwrap_or_default()),
        };
        let at = SystemTime::now();
        *last = Some(LastReload { at, fault, waiting });
    }

    /// The last reload; `None` before the first one.
    pub(crate) fn last_reload(&self) -> Option<LastReload> {
        self.last_reload.lock().clone()
    }

    /// Whether this is the address of a trusted proxy, which may name the client of its requests.
    pub(crate) fn is_trusted(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.load()
            .settings
            .trusted_proxies
            .iter()
            .any(|network| network.contains(&address))
    }
}
