//! Which instance holds a runtime: one claim for each, fenced by an epoch.
//!
//! ```text
//!   connect ── precheck ─▶ may this instance have the runtime?   before the 101
//!   connect ── claim ────▶ ClaimGuard: the claim, while it lives  when the session is ready
//!                           └─▶ registry: of two claims the later epoch counts, in whatever order they join
//! ```
//!
//! The directory alone decides which instance holds a runtime, by the rules of `tunnel-directory`. The claims of a single
//! server node live in memory; several nodes share theirs in etcd (`etcd.rs`).
//!
//! Releasing a claim ([`ClaimGuard::leave`], dropping [`ClaimGuard`]) is not async, since it is done in `Drop`. The shared
//! directory has it written, again and again until it is; what a failed node has held is void when its key is gone. A late
//! release is harmless: it names what it releases and does not affect a later claim.

mod etcd;
mod metrics;

use std::sync::{Arc, Weak};

use tokio::time::Instant;
use tunnel_directory::{
    AccountName, Claim, ClaimRefusal, Claimant, HandedClaim, MemoryClaims, NodeName, RuntimeLabel,
    RuntimeName,
    shared::{GrantedClaim, NodeSettings},
};
use tunnel_etcd::Client;
use tunnel_ops::task::Owned;

pub(crate) use self::etcd::{EtcdDirectory, Observer, ReceivedReports};
pub use self::metrics::DirectoryMetrics;
use crate::{lock::Mutex, runtimes::RuntimeEntry};

/// All claims.
#[derive(Debug, Default)]
pub struct Directory {
    store: ClaimStore,
}

/// Where the claims are.
#[derive(Clone)]
enum ClaimStore {
    Memory(Arc<Mutex<MemoryClaims>>),
    Shared(Arc<EtcdDirectory>),
}

/// Holds a claim until it is dropped. Several sessions of one instance hold one claim together.
#[derive(Debug)]
pub struct ClaimGuard {
    store: ClaimStore,
    runtime: RuntimeLabel,
    claim: Claim,
    /// Names what this node holds, in the shared directory.
    serial: u64,
}

impl Directory {
    /// A directory that several nodes share. `random` tells this run of the node from others.
    pub(crate) fn on_etcd(
        client: Client,
        prefix: &str,
        node: NodeSettings,
        random: u64,
        metrics: DirectoryMetrics,
    ) -> Self {
        let shared = EtcdDirectory::new(client, prefix, node, random, metrics);
        Self {
            store: ClaimStore::Shared(shared),
        }
    }

    /// What other nodes share with this one; `None` for a directory in memory.
    pub(crate) fn shared(&self) -> Option<&Arc<EtcdDirectory>> {
        match &self.store {
            ClaimStore::Memory(_) => None,
            ClaimStore::Shared(shared) => Some(shared),
        }
    }

    /// The name of this node, if it is one of several.
    pub(crate) fn node_name(&self) -> Option<String> {
        Some(self.shared()?.node().name.to_string())
    }

    /// Whether a session had better be at another node: this one leaves or does not know what the others do, or the instance
    /// avoids it, and there is a node that takes sessions and is not avoided.
    pub(crate) fn is_better_elsewhere(&self, avoid: &[String], is_leaving: bool) -> bool {
        let Some(shared) = self.shared() else {
            return false;
        };
        let is_avoided = |name: &NodeName| avoid.iter().any(|avoided| avoided == name.as_str());
        shared.is_better_elsewhere(is_leaving, is_avoided)
    }

    /// Starts the task of a shared directory, which ends when the result is dropped. `observer` gets the changes.
    pub(crate) fn start(&self, observer: Weak<dyn Observer>) -> Option<Owned<()>> {
        let shared = self.shared()?;
        shared.observe(observer);
        Some(shared.start())
    }

    /// Checks whether a claim would be granted now, without a change.
    ///
    /// # Errors
    /// When it would not.
    pub async fn precheck(&self, claimant: Claimant<'_>) -> Result<(), ClaimRefusal> {
        match &self.store {
            ClaimStore::Memory(claims) => claims.lock().precheck(claimant, now()),
            ClaimStore::Shared(shared) => shared.precheck(claimant),
        }
    }

    /// Claims a runtime for an instance. If it holds the runtime already, it gets the existing claim.
    ///
    /// # Errors
    /// As [`Directory::precheck`].
    pub async fn claim(&self, claimant: Claimant<'_>) -> Result<ClaimGuard, ClaimRefusal> {
        match &self.store {
            ClaimStore::Memory(claims) => {
                let claim = claims.lock().claim(claimant, now())?;
                Ok(ClaimGuard {
                    store: self.store.clone(),
                    runtime: claimant.label.clone(),
                    claim,
                    serial: 0,
                })
            }
            ClaimStore::Shared(shared) => shared.claim(claimant).await,
        }
    }

    /// The claim of another instance that is newer than this one of a runtime, if there is one. In memory there is none while
    /// the claim's guard exists and its epoch is the newest that the registry has seen.
    pub(crate) fn newer(&self, runtime: &RuntimeEntry, than: &Claim) -> Option<Claim> {
        self.shared()?.newer(runtime, than)
    }

    /// The number of runtimes that this node holds.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.store {
            ClaimStore::Memory(claims) => claims.lock().len(),
            ClaimStore::Shared(shared) => shared.len().0,
        }
    }

    /// The runtimes whose labels are known in memory, with the claims of those that are held, for a process that takes this
    /// server's listeners over.
    pub(crate) fn handed(&self) -> Vec<(AccountName, RuntimeName, Option<HandedClaim>)> {
        match &self.store {
            ClaimStore::Memory(claims) => claims.lock().handed(now()),
            ClaimStore::Shared(_) => Vec::new(),
        }
    }

    /// Takes over a label of a process whose listeners this server takes over, and the claim if it is held there. It belongs to
    /// the runtime of this account.
    pub(crate) fn take_over(
        &self,
        label: RuntimeLabel,
        account: &AccountName,
        claim: Option<HandedClaim>,
    ) {
        if let ClaimStore::Memory(claims) = &self.store {
            claims.lock().take_over(label, account, claim, now());
        }
    }

    /// The number of labels whose owners are kept in memory, held or not.
    pub(crate) fn owned_labels(&self) -> usize {
        match &self.store {
            ClaimStore::Memory(claims) => claims.lock().owned_labels(),
            ClaimStore::Shared(_) => 0,
        }
    }

    /// Forgets claims in memory whose instances have not come.
    pub(crate) fn sweep(&self) {
        if let ClaimStore::Memory(claims) = &self.store {
            claims.lock().sweep(now());
        }
    }

    /// The current claim of a runtime.
    #[cfg(test)]
    pub(crate) fn current(&self, runtime: &RuntimeLabel) -> Option<Claim> {
        match &self.store {
            ClaimStore::Memory(claims) => claims.lock().current(runtime).cloned(),
            ClaimStore::Shared(shared) => shared.current(runtime.as_str()),
        }
    }

    /// Whether this node holds no runtime.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ClaimGuard {
    fn shared(directory: Arc<EtcdDirectory>, granted: GrantedClaim) -> Self {
        Self {
            store: ClaimStore::Shared(directory),
            runtime: granted.label,
            claim: granted.claim,
            serial: granted.serial,
        }
    }

    /// Records that the holder is leaving, so that the next instance does not supersede it.
    pub fn leave(&self) {
        match &self.store {
            ClaimStore::Memory(claims) => claims.lock().leave(&self.runtime, self.claim.epoch),
            ClaimStore::Shared(shared) => shared.on_leave(&self.runtime, self.serial),
        }
    }

    /// The claim.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        match &self.store {
            ClaimStore::Memory(claims) => claims.lock().release(&self.runtime, self.claim.epoch),
            ClaimStore::Shared(shared) => shared.on_release(&self.runtime, self.serial),
        }
    }
}

impl Default for ClaimStore {
    fn default() -> Self {
        Self::Memory(Arc::default())
    }
}

impl std::fmt::Debug for ClaimStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "Memory",
            Self::Shared(_) => "Shared",
        })
    }
}

/// The time, by the clock that tests can pause.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}
