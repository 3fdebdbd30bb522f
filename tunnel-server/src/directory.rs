//! Which instance holds a runtime: one claim for each, fenced by an epoch.
//!
//! ```text
//!   connect ── precheck ─▶ may this instance have the runtime?   before the 101
//!   connect ── claim ────▶ ClaimGuard: the claim, while it lives  when the session is ready
//!                           └─▶ registry: of two claims the later epoch counts, in whatever order they join
//! ```
//!
//! The directory alone decides which instance holds a runtime. The claims of a single server node live in memory
//! (`claims.rs`); several nodes share theirs in etcd (`shared.rs`). Both have one set of rules: whose label it is
//! (`owner.rs`), and which of its instances has it (`standing.rs`).
//!
//! Releasing a claim ([`ClaimGuard::leave`], dropping [`ClaimGuard`]) is not async, since it is done in `Drop`. The shared
//! directory passes it to a task, which writes and retries; what a failed node has held is void when its key is gone. A
//! late release is harmless: it names what it releases and does not affect a later claim.

mod claims;
mod contention;
mod handed;
mod metrics;
mod node;
mod owner;
mod shared;
mod standing;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tunnel_etcd::Client;
use tunnel_ops::task::Owned;
use tunnel_proto::{handshake::InstanceId, refusal::RefusalReason};

pub(crate) use self::claims::EXPECTED;
pub(crate) use self::handed::HandedClaim;
#[cfg(test)]
pub(crate) use self::owner::tests::unlisted;
use self::{claims::Claims, owner::Owner};
pub use self::{
    metrics::DirectoryMetrics,
    node::{BadNodeName, NodeName},
    owner::Claimant,
    shared::{DirectoryError, Node},
};
pub(crate) use self::{
    node::Incarnation,
    shared::{
        EtcdState, Holder, NodeState, Observer, REPORT_INTERVAL, ReceivedReports, SentReports,
        Shared,
    },
};
use crate::{
    lock::Mutex,
    runtimes::{AccountName, RuntimeEntry, RuntimeLabel, RuntimeName},
};

/// What happens when an instance claims a runtime that another one holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The newer instance takes the runtime over at once.
    #[default]
    Supersede,
    /// The older instance keeps it as long as it is connected.
    Reject,
}

/// What happens to a new instance of a runtime that nobody holds, while the shared directory cannot be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WithoutDirectory {
    /// It gets the runtime; the claim follows, and gives way to any that was made meanwhile.
    #[default]
    Accept,
    /// It is refused until the directory is back.
    Refuse,
}

/// A number that grows with every claim, so that releases of older claims are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(u64);

/// The record that an instance holds a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The holder.
    pub instance: InstanceId,
    /// The number of the claim.
    pub epoch: Epoch,
}

/// Why an instance does not get a runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimRefusal {
    /// The label belongs to another runtime.
    #[error(
        "the label `{0}` belongs to another runtime: the two names must differ by more than where the hyphen is"
    )]
    LabelTaken(RuntimeLabel),
    /// Another instance holds it, and keeps it.
    #[error("the runtime is held by the instance {holder}, which keeps it while it is connected")]
    Held {
        /// The instance that holds it.
        holder: InstanceId,
    },
    /// This instance held it, and a newer one took it over.
    #[error("the newer instance {by} holds the runtime: a runtime has one tunnel client")]
    Superseded {
        /// The instance that holds it now.
        by: InstanceId,
    },
    /// Instances repeatedly take the runtime from each other.
    #[error(
        "instances take this runtime from each other, {takeovers} times in a row: a runtime has one \
         tunnel client, stop the others"
    )]
    Contested {
        /// The instance that keeps it for now.
        holder: InstanceId,
        /// The number of takeovers in a row.
        takeovers: u32,
        /// When the next takeover is possible.
        retry_after: Duration,
    },
    /// The shared directory cannot be written, and another instance holds the runtime.
    #[error("the directory of the server nodes cannot be reached, and takeovers wait for it")]
    Unavailable,
}

/// All claims.
#[derive(Debug, Default)]
pub struct Directory {
    store: ClaimStore,
}

/// Where the claims are.
#[derive(Clone)]
enum ClaimStore {
    Memory(Arc<Mutex<Claims>>),
    Shared(Arc<Shared>),
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
        node: Node,
        random: u64,
        metrics: DirectoryMetrics,
    ) -> Self {
        let shared = Shared::new(client, prefix, node, random, metrics);
        Self {
            store: ClaimStore::Shared(shared),
        }
    }

    /// What other nodes share with this one; `None` for a directory in memory.
    pub(crate) fn shared(&self) -> Option<&Arc<Shared>> {
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
        let is_bad = is_leaving || shared.state().is_behind();
        (is_bad || is_avoided(&shared.node().name)) && shared.has_other_serving(is_avoided)
    }

    /// Starts the tasks of a shared directory, which end when the result is dropped. `observer` gets the changes.
    pub(crate) fn start(&self, observer: Weak<dyn Observer>) -> Vec<Owned<()>> {
        let Some(shared) = self.shared() else {
            return Vec::new();
        };
        shared.observe(observer);
        shared.start()
    }

    /// Checks whether a claim would be granted now, without a change.
    ///
    /// # Errors
    /// When it would not.
    pub async fn precheck(&self, claimant: Claimant<'_>) -> Result<(), ClaimRefusal> {
        match &self.store {
            ClaimStore::Memory(claims) => claims.lock().precheck(claimant, Instant::now()),
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
                let claim = claims.lock().claim(claimant, Instant::now())?;
                Ok(ClaimGuard {
                    store: self.store.clone(),
                    runtime: claimant.runtime.label.clone(),
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
        let ClaimStore::Memory(claims) = &self.store else {
            return Vec::new();
        };
        let (handed, now) = (claims.lock().handed(), Instant::now());
        let handed = handed.into_iter().filter_map(|(label, owner, standing)| {
            let (account, name) = owner.names(&label)?;
            let claim = standing.map(|standing| HandedClaim::of(standing, now));
            Some((account, name, claim))
        });
        handed.collect()
    }

    /// Takes over a label of a process whose listeners this server takes over, and the claim if it is held there. It belongs to
    /// the runtime of this account.
    pub(crate) fn expect(
        &self,
        label: RuntimeLabel,
        account: &AccountName,
        claim: Option<HandedClaim>,
    ) {
        if let ClaimStore::Memory(claims) = &self.store {
            let (now, owner) = (Instant::now(), Owner::of(account));
            let standing = claim.map(|claim| claim.standing(now));
            claims.lock().expect(label, owner, standing, now);
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
            claims.lock().sweep(Instant::now());
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
    fn shared(shared: Arc<Shared>, runtime: RuntimeLabel, claim: Claim, serial: u64) -> Self {
        Self {
            store: ClaimStore::Shared(shared),
            runtime,
            claim,
            serial,
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

impl ClaimRefusal {
    /// The reason in the response and in the metric.
    #[must_use]
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::LabelTaken(_) => RefusalReason::RuntimeLabelTaken,
            Self::Held { .. } => RefusalReason::RuntimeHeld,
            Self::Superseded { .. } => RefusalReason::Superseded,
            Self::Contested { .. } => RefusalReason::RuntimeContested,
            Self::Unavailable => RefusalReason::DirectoryUnavailable,
        }
    }
}

impl Epoch {
    /// The number, for people.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The epoch of this number, as another node has sent it.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}

tunnel_ops::word_value!(WithoutDirectory {
    "accept" => Self::Accept,
    "refuse" => Self::Refuse,
});

tunnel_ops::word_value!(OnConflict {
    "supersede" => Self::Supersede,
    "reject" => Self::Reject,
});
