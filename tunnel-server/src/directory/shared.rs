//! The directory of several nodes, in etcd.
//!
//! ```text
//!   claim ─▶ rules (table) ─▶ writer: batches of transactions ─▶ etcd ─▶ feed: listing, then watch ─▶ table
//!                                                                           └─▶ observer: superseded, adopted
//!   presence: the lease and the key of this node
//! ```
//!
//! All nodes hold the whole table, so that no lookup leaves the process. The rules are those of the directory in memory
//! ([`Standing`](super::standing)); what decides is the transaction, which compares the revision of the claim that the
//! rules have seen.

mod claiming;
mod feed;
mod pause;
mod presence;
mod report;
mod sweep;
mod writer;

use std::{
    collections::HashSet,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

pub(crate) use self::report::{REPORT_INTERVAL, ReceivedReports, SentReports};
use self::{
    report::{LastReports, Unrecorded},
    writer::ClaimRequest,
};
use super::{ClaimGuard, metrics::DirectoryMetrics};
use crate::{
    lock::{Mutex, RwLock},
    runtimes::RuntimeEntry,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::Instant,
};
use tokio_rustls::rustls::ClientConfig;
use tunnel_directory::{
    AccountName, Claim, Epoch, EtcdState, Holder, Incarnation, NodeName, NodeRun, NodeState, Owner,
    RuntimeLabel, RuntimeName, WithoutDirectory,
    holds::{HoldAction, Holds},
    record::{Keys, NodeRecord},
    table::{Change, Source, Table},
};
use tunnel_etcd::{Client, EtcdError, User};
use tunnel_ops::task::Owned;

/// Claims that wait for the writer; the gate of handshakes bounds them further.
const CLAIMS_WAITING: usize = 1_024;

/// What a node that shares a directory says of itself.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Where other nodes connect, if they can.
    pub peer: Option<String>,
    /// The zone that it lies in.
    pub zone: Option<Arc<str>>,
    /// What becomes of a new instance of a runtime that nobody holds while etcd cannot be reached.
    pub without_directory: WithoutDirectory,
}

/// Why a node cannot take part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// The records are of a later version.
    #[error(
        "the records under this prefix have format {found}, and this version reads up to {known}: update this server"
    )]
    Format {
        /// Their format.
        found: u32,
        /// The newest format of this version.
        known: u32,
    },
    /// Another program has this key, which is the one of the cluster's record.
    #[error(
        "the value of {0} in etcd is not this server's: give all server nodes another --etcd-prefix, or remove the key"
    )]
    Foreign(String),
    /// Another living node has the name.
    #[error("another server node runs under the name {0}: give each node its own --node")]
    NameTaken(NodeName),
    /// User, password or role do not allow it.
    #[error("etcd does not allow it: {0}")]
    Denied(String),
}

/// What etcd may fail to answer: with a full database it renews leases, and takes no write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unanswered {
    Renewals = 1,
    Writes = 2,
}

/// Gets the changes that concern runtimes of this node.
pub(crate) trait Observer: Send + Sync {
    /// There is a claim that is newer than the one that this node holds the runtime by: of another instance, which
    /// supersedes, or of the instance that is here, which goes on by it.
    fn on_claim(&self, label: &RuntimeLabel, claim: &Claim);

    /// Something of the runtime has changed: other nodes may hold it now.
    fn on_change(&self, label: &RuntimeLabel);
}

/// The directory of several nodes, as one of them sees it.
pub(crate) struct Shared {
    client: Client,
    keys: Keys,
    node: Node,
    run: NodeRun,
    /// The port that the kernel chose, where the one to be announced was 0.
    peer_port: AtomicU16,
    /// Shards that have just started and are not linked to all other nodes yet.
    unlinked: AtomicUsize,
    metrics: DirectoryMetrics,
    table: RwLock<Table>,
    /// Locked before the table where both are needed.
    holds: Mutex<Holds>,
    observer: OnceLock<Weak<dyn Observer>>,
    claims: mpsc::Sender<ClaimRequest>,
    claims_receiver: Mutex<Option<mpsc::Receiver<ClaimRequest>>>,
    /// Runtimes whose record of this node has to be written or removed.
    unwritten: Mutex<HashSet<RuntimeLabel>>,
    has_unwritten: Notify,
    /// What etcd does not answer: the bits of [`Unanswered`].
    unanswered: AtomicU8,
    /// When etcd has answered last.
    answered: Mutex<Instant>,
    /// The newest revision that the watched member has shown, and a request that it shows the newest at once.
    reached: watch::Sender<i64>,
    wants_progress: Notify,
    pause: pause::PauseDetector,
    /// The revision up to which the table is complete, and as it was a second ago.
    position: AtomicI64,
    past_position: AtomicI64,
    state: watch::Sender<EtcdState>,
    /// What other nodes have said lately.
    last_reports: Mutex<LastReports>,
    /// What this node holds without a record.
    unrecorded: Mutex<Arc<Unrecorded>>,
    /// How often all records were read.
    listings: watch::Sender<u64>,
    /// An answer or an event has shown that etcd was restored.
    is_restored: Notify,
    is_present: watch::Sender<bool>,
    failed: watch::Sender<Option<DirectoryError>>,
    is_leaving: watch::Sender<bool>,
    /// The lease that the node's key is on; 0 while there is none.
    lease: AtomicI64,
    /// The node's key is not written any more.
    has_departed: AtomicBool,
    /// The node's key is lost, or another node asks whether this one lives.
    is_challenged: Notify,
}

impl Shared {
    pub(crate) fn new(
        client: Client,
        prefix: &str,
        node: Node,
        random: u64,
        metrics: DirectoryMetrics,
    ) -> Arc<Self> {
        let (claims, receiver) = mpsc::channel(CLAIMS_WAITING);
        let keys = Keys::new(prefix);
        Arc::new(Self {
            client,
            table: RwLock::new(Table::new(keys.clone(), random)),
            keys,
            run: NodeRun {
                node: node.name.clone(),
                incarnation: Incarnation::new(random),
            },
            node,
            peer_port: AtomicU16::new(0),
            unlinked: AtomicUsize::new(0),
            metrics,
            holds: Mutex::default(),
            observer: OnceLock::new(),
            claims,
            claims_receiver: Mutex::new(Some(receiver)),
            unwritten: Mutex::default(),
            has_unwritten: Notify::new(),
            unanswered: AtomicU8::new(0),
            answered: Mutex::new(Instant::now()),
            reached: watch::Sender::new(0),
            wants_progress: Notify::new(),
            pause: pause::PauseDetector::default(),
            position: AtomicI64::new(0),
            past_position: AtomicI64::new(0),
            state: watch::Sender::default(),
            last_reports: Mutex::default(),
            unrecorded: Mutex::default(),
            listings: watch::Sender::new(0),
            is_restored: Notify::new(),
            is_present: watch::Sender::new(false),
            failed: watch::Sender::new(None),
            is_leaving: watch::Sender::new(false),
            lease: AtomicI64::new(0),
            has_departed: AtomicBool::new(false),
            is_challenged: Notify::new(),
        })
    }

    /// Starts its tasks, which end when the result is dropped.
    pub(crate) fn start(self: &Arc<Self>) -> Vec<Owned<()>> {
        vec![
            Owned::spawn("directory-feed", feed::feed(self.clone())),
            Owned::spawn("directory-presence", presence::keep(self.clone())),
            Owned::spawn("directory-writer", writer::write(self.clone())),
            Owned::spawn("directory-sweep", sweep::sweep(self.clone())),
            Owned::spawn("directory-state", report::judge(self.clone())),
        ]
    }

    pub(crate) fn observe(&self, observer: Weak<dyn Observer>) {
        // Set once, when the server starts.
        let _ = self.observer.set(observer);
    }

    /// Whether the table is complete and other nodes see this one.
    pub(crate) fn is_ready(&self) -> bool {
        *self.listings.borrow() > 0 && *self.is_present.borrow()
    }

    /// A shard begins to link itself to other nodes.
    pub(crate) fn expect_links(&self) {
        self.unlinked.fetch_add(1, Ordering::Relaxed);
    }

    /// A shard has its links, or has tried for long enough.
    pub(crate) fn on_linked(&self) {
        self.unlinked.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether requests can be forwarded from all shards.
    pub(crate) fn is_linked(&self) -> bool {
        self.unlinked.load(Ordering::Relaxed) == 0
    }

    /// Resolves when the node takes part.
    pub(crate) async fn ready(&self) -> Result<(), DirectoryError> {
        let mut listings = self.listings.subscribe();
        let mut present = self.is_present.subscribe();
        let mut failed = self.failed.subscribe();
        let ready = async {
            // The sender lives as long as this.
            let _ = listings.wait_for(|listings| *listings > 0).await;
            let _ = present.wait_for(|present| *present).await;
        };
        tokio::select! {
            () = ready => Ok(()),
            failed = failed.wait_for(Option::is_some) => match failed.ok().and_then(|error| error.clone()) {
                Some(error) => Err(error),
                None => Ok(()),
            },
        }
    }

    /// Resolves when the node cannot take part any more.
    pub(crate) async fn failed(&self) -> DirectoryError {
        let mut failed = self.failed.subscribe();
        loop {
            if let Some(error) = failed.borrow_and_update().clone() {
                return error;
            }
            // The sender lives as long as this.
            if failed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn fail(&self, error: DirectoryError) {
        self.failed.send_replace(Some(error));
    }

    /// Ends the node if etcd refuses its user, password or role before it takes part. Later that is an outage like any
    /// other: no session ends because of etcd.
    fn fail_if_denied(&self, error: &EtcdError) {
        if matches!(error, EtcdError::Denied { .. }) && !self.is_ready() {
            self.fail(DirectoryError::Denied(error.to_string()));
        }
    }

    /// Removes what this node has written, so that others need not wait for the end of its lease. The last step of a
    /// server that stops; gives up soon if etcd does not answer.
    pub(crate) async fn depart(&self) {
        presence::depart(self).await;
    }

    /// Other nodes prefer other holders from now on.
    pub(crate) fn leave(&self) {
        self.is_leaving.send_replace(true);
    }

    /// Dials etcd, and logs in there, by these from now on.
    pub(crate) fn set_etcd_credentials(&self, tls: Arc<ClientConfig>, user: Option<User>) {
        self.client.set_credentials(tls, user);
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.run.incarnation
    }

    /// The number of runtimes that this node holds, and of those with a record.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.holds.lock().len(), self.table.read().len())
    }

    fn guard(self: &Arc<Self>, label: &RuntimeLabel, claim: Claim, serial: u64) -> ClaimGuard {
        ClaimGuard::shared(self.clone(), label.clone(), claim, serial)
    }

    /// The instance leaves this node.
    pub(super) fn on_leave(&self, label: &RuntimeLabel, serial: u64) {
        if self.holds.lock().leave(label, serial) {
            self.write(label);
        }
    }

    /// A session has ended.
    pub(super) fn on_release(&self, label: &RuntimeLabel, serial: u64) {
        if self.holds.lock().release(label, serial) {
            self.write(label);
        }
    }

    /// Has the record of this node written as it stands then.
    fn write(&self, label: &RuntimeLabel) {
        self.unwritten.lock().insert(label.clone());
        self.has_unwritten.notify_one();
    }

    /// The claim that is newer than this one of a runtime and of another instance, if there is one.
    pub(crate) fn newer(&self, runtime: &RuntimeEntry, than: &Claim) -> Option<Claim> {
        let (label, owner) = (runtime.label.as_str(), Owner::of(&runtime.account));
        let claim = self.table.read().claim_for(label, owner)?;
        (claim.instance != than.instance && claim.epoch > than.epoch).then_some(claim)
    }

    /// The claim of a runtime.
    pub(crate) fn current(&self, label: &str) -> Option<Claim> {
        self.table.read().claim(label)
    }

    /// Whether this node may be about to hold a runtime by this claim or a later one: others may know of its claim before
    /// it does, and it knows of that before the session that waits for the claim has joined.
    pub(crate) fn is_joining(&self, label: &RuntimeLabel, epoch: Epoch) -> bool {
        let table = self.table.read();
        let Some(claim) = table.claim(label.as_str()) else {
            return true;
        };
        let own = table.held_by(label, &self.run);
        claim.epoch < epoch || own.is_some_and(|(held, _)| held == claim.epoch)
    }

    /// The names of a runtime that any node has held.
    pub(crate) fn runtime(&self, label: &str) -> Option<(RuntimeLabel, AccountName, RuntimeName)> {
        self.table.read().runtime(label)
    }

    /// The other nodes that hold a runtime by its current claim, and that claim's epoch.
    pub(crate) fn holders(&self, label: &str) -> Option<(Epoch, Vec<Holder>)> {
        let table = self.table.read();
        let reported = || {
            table
                .unrecorded_holds(label)
                .next()
                .map(|(_, hold)| &hold.claim)
        };
        let epoch = match table.claim(label) {
            Some(claim) => claim.epoch,
            None => reported()?.epoch,
        };
        let mut holders = table.holders(label);
        holders.retain(|holder| holder.incarnation != self.run.incarnation);
        (!holders.is_empty()).then_some((epoch, holders))
    }

    /// The record of a node.
    pub(crate) fn node_record(&self, name: &NodeName) -> Option<(Incarnation, NodeRecord)> {
        let table = self.table.read();
        let (incarnation, record) = table.node(name)?;
        Some((incarnation, record.clone()))
    }

    /// Whether etcd has this node's key, written by this process.
    fn has_own_key(&self) -> bool {
        let shown = self.node_record(&self.node.name);
        shown.is_some_and(|(incarnation, _)| incarnation == self.run.incarnation)
    }

    /// All nodes, this one included.
    pub(crate) fn nodes(&self) -> Vec<(NodeName, Incarnation, NodeRecord)> {
        let table = self.table.read();
        let nodes = table.nodes();
        nodes
            .map(|(name, incarnation, record)| (name.clone(), incarnation, record.clone()))
            .collect()
    }

    /// Whether any node besides this one and the avoided ones takes sessions.
    pub(crate) fn has_other_serving(&self, is_avoided: impl Fn(&NodeName) -> bool) -> bool {
        let table = self.table.read();
        let mut nodes = table.nodes();
        nodes.any(|(name, incarnation, record)| {
            incarnation != self.run.incarnation
                && record.state == NodeState::Serving
                && !is_avoided(name)
        })
    }

    /// Acts on changes of the table.
    fn on_changes(&self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            match change {
                Change::Runtime(label) => self.settle(&label),
                Change::Node(name) if name == self.node.name && !self.has_own_key() => {
                    self.is_challenged.notify_one();
                }
                Change::Challenge(name) if name == self.node.name => {
                    self.is_challenged.notify_one()
                }
                Change::Cluster => self.is_restored.notify_one(),
                Change::Node(_) | Change::Challenge(_) => {}
            }
        }
    }

    fn settle(&self, label: &RuntimeLabel) {
        let mut holds = self.holds.lock();
        let action = holds.settle(label, &self.table.read(), &self.run);
        drop(holds);
        let observer = self.observer.get().and_then(Weak::upgrade);
        match action {
            HoldAction::None => {}
            HoldAction::Write => self.write(label),
            HoldAction::Adopt(claim) => {
                self.write(label);
                if let Some(observer) = &observer {
                    observer.on_claim(label, &claim);
                }
            }
            HoldAction::Supersede(claim) => {
                if let Some(observer) = &observer {
                    observer.on_claim(label, &claim);
                }
            }
        }
        if let Some(observer) = observer {
            observer.on_change(label);
        }
    }

    /// Settles all that this node holds, after a listing.
    fn settle_all(&self) {
        let labels: Vec<RuntimeLabel> = self.holds.lock().labels_after(None).cloned().collect();
        for label in labels {
            self.settle(&label);
        }
    }

    fn record(&self, sessions: u64) -> NodeRecord {
        NodeRecord {
            incarnation: self.run.incarnation.to_string(),
            peer: self.peer(),
            zone: self.node.zone.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: match *self.is_leaving.borrow() {
                true => NodeState::Leaving,
                false => NodeState::Serving,
            },
            sessions,
        }
    }

    /// Sets the port of the peer listener, before the node takes part.
    pub(crate) fn set_peer_port(&self, port: u16) {
        self.peer_port.store(port, Ordering::Relaxed);
    }

    /// Where other nodes connect.
    fn peer(&self) -> Option<String> {
        let address = self.node.peer.as_ref()?;
        Some(match address.strip_suffix(":0") {
            Some(host) => format!("{host}:{}", self.peer_port.load(Ordering::Relaxed)),
            None => address.clone(),
        })
    }

    /// Whether etcd does not take what this node writes, or does not answer at all.
    fn is_away(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) != 0
    }

    /// etcd has answered.
    fn on_answered(&self, what: Unanswered) {
        *self.answered.lock() = Instant::now();
        let before = self.unanswered.fetch_and(!(what as u8), Ordering::Relaxed);
        let is_away = before & !(what as u8) != 0;
        if before != 0 && !is_away {
            tracing::info!("etcd answers again");
        }
        self.metrics.set_away(is_away);
    }

    /// etcd has not answered, or refuses.
    fn on_unanswered(&self, what: Unanswered, error: &EtcdError) {
        let before = self.unanswered.fetch_or(what as u8, Ordering::Relaxed);
        if before == 0 {
            tracing::warn!(
                %error,
                "etcd does not answer: what is known is served on, takeovers wait"
            );
        }
        self.metrics.set_away(true);
    }
}

/// The wall clock in milliseconds.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or(Duration::ZERO).as_millis()).unwrap_or(u64::MAX)
}

/// How records come that were read at this revision.
fn read_at(revision: i64) -> Source {
    Source::Read {
        revision,
        wall_ms: wall_ms(),
    }
}

#[cfg(test)]
mod tests;
