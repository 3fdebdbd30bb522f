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
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastReload {
    pub(crate) is_good: bool,
    pub(crate) at: SystemTime,
}

impl LiveConfig {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            current: ArcSwap::from_pointee(config),
            last_reload: Mutex::default(),
        }
    }

    /// The configuration as it is now. Not to be held for long, since a reload may replace it.
    pub(crate) fn load(&self) -> Guard<Arc<Config>> {
        self.current.load()
    }

    /// The configuration as it is now, to be held for as long as is needed.
    pub(crate) fn load_full(&self) -> Arc<Config> {
        self.current.load_full()
    }

    pub(crate) fn replace(&self, config: Config) {
        self.current.store(Arc::new(config));
    }

    /// The files were read again, and were good or not.
    pub(crate) fn on_reload(&self, is_good: bool) {
        let at = SystemTime::now();
        *self.last_reload.lock() = Some(LastReload { is_good, at });
    }

    /// `None` before the first reload.
    pub(crate) fn last_reload(&self) -> Option<LastReload> {
        *self.last_reload.lock()
    }

    /// Whether this is the address of a trusted proxy, which may name the client that it speaks for.
    pub(crate) fn is_trusted(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.load()
            .settings
            .trusted_proxies
            .iter()
            .any(|network| network.contains(&address))
    }
}
