//! Runs the directory that several nodes share: calls etcd, keeps the time, and delivers what `tunnel-directory` decides.
//!
//! ```text
//!   sessions, links ─┐
//!   answers of etcd ─┼─▶ SharedDirectory (under one lock) ─▶ outputs ─▶ one task ─▶ etcd, observer, sessions, log, metrics
//!   watch, deadlines ┘
//! ```
//!
//! Nothing here decides. Inputs come from any thread, also under the registry's locks; outputs are delivered by the task
//! alone, in their order and outside all locks.

mod drive;

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};
use tokio_rustls::rustls::ClientConfig;
use tunnel_directory::{
    AccountName, Claim, ClaimRefusal, Claimant, DirectoryError, Epoch, Holder, Incarnation,
    NodeName, NodeRecord, NodeRun, NodeStanding, RuntimeLabel, RuntimeName,
    shared::{
        ClaimId, ClaimProgress, GrantedClaim, NodeSettings, Now, Report, ReportingLink,
        SentReports, SharedDirectory, was_paused,
    },
};
use tunnel_etcd::{Client, User};
use tunnel_ops::task::Owned;
use tunnel_proto::control::millis;

use super::{ClaimGuard, metrics::DirectoryMetrics, now};
use crate::{
    lock::{Mutex, RwLock},
    runtimes::RuntimeEntry,
};

/// Gets the changes that concern runtimes of this node.
pub(crate) trait Observer: Send + Sync {
    /// There is a claim that is newer than the one that this node holds the runtime by: of another instance, which
    /// supersedes, or of the instance that is here, which goes on by it.
    fn on_claim(&self, label: &RuntimeLabel, claim: &Claim);

    /// Something of the runtime has changed: other nodes may hold it now.
    fn on_change(&self, label: &RuntimeLabel);
}

/// The directory of several nodes, as one of them sees it.
pub(crate) struct EtcdDirectory {
    client: Client,
    directory: RwLock<SharedDirectory>,
    settings: NodeSettings,
    run: NodeRun,
    metrics: DirectoryMetrics,
    observer: OnceLock<Weak<dyn Observer>>,
    /// There may be outputs, or an earlier deadline.
    has_input: Notify,
    /// Locked after the directory where both are needed.
    claims: Mutex<HashMap<ClaimId, oneshot::Sender<Result<ClaimGuard, ClaimRefusal>>>>,
    last_claim: AtomicU64,
    /// Shards that have just started and are not linked to all other nodes yet.
    unlinked: AtomicUsize,
    /// When the node has run last, in milliseconds after it began: each request asks.
    began: Instant,
    last_tick: AtomicU64,
    /// How often the node has caught up after a pause.
    caught_up: watch::Sender<u64>,
    is_ready: watch::Sender<bool>,
    failed: watch::Sender<Option<DirectoryError>>,
    has_departed: watch::Sender<bool>,
    /// The task has ended, and nothing is answered any more.
    is_closed: watch::Sender<bool>,
}

/// A claim that a session waits for; given up when it is dropped.
struct PendingClaim<'a> {
    directory: &'a EtcdDirectory,
    id: ClaimId,
    answer: oneshot::Receiver<Result<ClaimGuard, ClaimRefusal>>,
}

/// The reports that are received on one link; forgotten when it is dropped.
pub(crate) struct ReceivedReports {
    directory: Arc<EtcdDirectory>,
    link: ReportingLink,
}

impl EtcdDirectory {
    pub(crate) fn new(
        client: Client,
        prefix: &str,
        settings: NodeSettings,
        random: u64,
        metrics: DirectoryMetrics,
    ) -> Arc<Self> {
        let directory = SharedDirectory::new(settings.clone(), prefix, random, now());
        metrics.set_state(directory.state());
        Arc::new(Self {
            client,
            run: directory.run().clone(),
            directory: RwLock::new(directory),
            settings,
            metrics,
            observer: OnceLock::new(),
            has_input: Notify::new(),
            claims: Mutex::default(),
            last_claim: AtomicU64::new(0),
            unlinked: AtomicUsize::new(0),
            began: Instant::now(),
            last_tick: AtomicU64::new(0),
            caught_up: watch::Sender::new(0),
            is_ready: watch::Sender::new(false),
            failed: watch::Sender::new(None),
            has_departed: watch::Sender::new(false),
            is_closed: watch::Sender::new(false),
        })
    }

    /// Starts its task, which ends when the result is dropped.
    pub(crate) fn start(self: &Arc<Self>) -> Owned<()> {
        Owned::spawn("directory", drive::drive(self.clone()))
    }

    pub(crate) fn observe(&self, observer: Weak<dyn Observer>) {
        // Set once, when the server starts.
        let _ = self.observer.set(observer);
    }

    /// Changes the directory, and has the task deliver what that leads to.
    fn input<R>(&self, input: impl FnOnce(&mut SharedDirectory, Now) -> R) -> R {
        let now = Now {
            instant: now(),
            wall_ms: wall_ms(),
        };
        let mut directory = self.directory.write();
        let result = input(&mut directory, now);
        let last_tick = Instant::from_std(directory.last_tick());
        drop(directory);
        let since = last_tick.saturating_duration_since(self.began);
        self.last_tick.store(millis(since), Ordering::Relaxed);
        self.has_input.notify_one();
        result
    }

    /// Whether the table is complete and other nodes see this one.
    pub(crate) fn is_ready(&self) -> bool {
        *self.is_ready.borrow()
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
        let mut is_ready = self.is_ready.subscribe();
        tokio::select! {
            // The sender lives as long as this.
            _ = is_ready.wait_for(|is_ready| *is_ready) => Ok(()),
            error = self.failed() => Err(error),
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

    /// Removes what this node has written, so that others need not wait for the end of its lease. The last step of a
    /// server that stops, before its task is dropped; gives up soon if etcd does not answer.
    pub(crate) async fn depart(&self) {
        let mut departed = self.has_departed.subscribe();
        let mut closed = self.is_closed.subscribe();
        self.input(SharedDirectory::depart);
        // The senders live as long as this.
        tokio::select! {
            _ = departed.wait_for(|has_departed| *has_departed) => {}
            _ = closed.wait_for(|is_closed| *is_closed) => {}
        }
    }

    /// Other nodes prefer other holders from now on.
    pub(crate) fn leave(&self) {
        self.input(SharedDirectory::leave);
    }

    /// Dials etcd, and logs in there, by these from now on.
    pub(crate) fn set_etcd_credentials(&self, tls: Arc<ClientConfig>, user: Option<User>) {
        self.client.set_credentials(tls, user);
    }

    /// Sets the port of the peer listener, before the node takes part.
    pub(crate) fn set_peer_port(&self, port: u16) {
        self.input(|directory, _| directory.set_peer_port(port));
    }

    pub(crate) fn node(&self) -> &NodeSettings {
        &self.settings
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.run.incarnation
    }

    /// How this node stands to etcd and to the other nodes.
    pub(crate) fn standing(&self) -> NodeStanding {
        self.directory.read().standing()
    }

    /// Links to so many other nodes are open.
    pub(crate) fn on_links(&self, open: usize) {
        self.input(|directory, now| directory.on_links(open, now));
    }

    /// The number of runtimes that this node holds, and of those with a record.
    pub(crate) fn len(&self) -> (usize, usize) {
        self.directory.read().len()
    }

    /// Whether a claim would be granted now.
    pub(crate) fn precheck(&self, claimant: Claimant<'_>) -> Result<(), ClaimRefusal> {
        self.directory.read().precheck(claimant, now())
    }

    /// Claims a runtime for a session.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        claimant: Claimant<'_>,
    ) -> Result<ClaimGuard, ClaimRefusal> {
        let id = ClaimId(self.last_claim.fetch_add(1, Ordering::Relaxed));
        let pending = self.input(|directory, now| match directory.claim(id, claimant, now) {
            ClaimProgress::Answered(answer) => Err(answer),
            ClaimProgress::Pending => Ok(self.pending(id)),
        });
        match pending {
            Ok(mut pending) => (&mut pending.answer)
                .await
                .unwrap_or(Err(ClaimRefusal::Unavailable)),
            Err(answer) => answer.map(|granted| self.guard(granted)),
        }
    }

    fn pending(&self, id: ClaimId) -> PendingClaim<'_> {
        let (sender, answer) = oneshot::channel();
        let mut claims = self.claims.lock();
        if !*self.is_closed.borrow() {
            claims.insert(id, sender);
        }
        PendingClaim {
            directory: self,
            id,
            answer,
        }
    }

    fn guard(self: &Arc<Self>, granted: GrantedClaim) -> ClaimGuard {
        ClaimGuard::shared(self.clone(), granted)
    }

    /// The instance leaves this node.
    pub(super) fn on_leave(&self, label: &RuntimeLabel, serial: u64) {
        self.input(|directory, now| directory.on_leave(label, serial, now));
    }

    /// A session has ended.
    pub(super) fn on_release(&self, label: &RuntimeLabel, serial: u64) {
        self.input(|directory, now| directory.on_release(label, serial, now));
    }

    /// The claim that is newer than this one of a runtime and of another instance, if there is one.
    pub(crate) fn newer(&self, runtime: &RuntimeEntry, than: &Claim) -> Option<Claim> {
        let directory = self.directory.read();
        directory.newer(&runtime.label, &runtime.account, than)
    }

    /// The claim of a runtime.
    pub(crate) fn current(&self, label: &str) -> Option<Claim> {
        self.directory.read().current(label)
    }

    /// Whether this node may be about to hold a runtime by this claim or a later one.
    pub(crate) fn is_joining(&self, label: &RuntimeLabel, epoch: Epoch) -> bool {
        self.directory.read().is_joining(label, epoch)
    }

    /// The names of a runtime that any node has held.
    pub(crate) fn runtime(&self, label: &str) -> Option<(RuntimeLabel, AccountName, RuntimeName)> {
        self.directory.read().runtime(label)
    }

    /// The other nodes that hold a runtime by its current claim, and that claim's epoch.
    pub(crate) fn holders(&self, label: &str) -> Option<(Epoch, Vec<Holder>)> {
        self.directory.read().holders(label)
    }

    /// Whether a node has a record.
    pub(crate) fn has_node(&self, name: &NodeName) -> bool {
        self.directory.read().has_node(name)
    }

    /// All nodes, this one included.
    pub(crate) fn nodes(&self) -> Vec<(NodeName, Incarnation, NodeRecord)> {
        self.directory.read().nodes()
    }

    /// Whether a session had better be at another node.
    pub(crate) fn is_better_elsewhere(
        &self,
        is_leaving: bool,
        is_avoided: impl Fn(&NodeName) -> bool,
    ) -> bool {
        let directory = self.directory.read();
        directory.is_better_elsewhere(is_leaving, is_avoided)
    }

    /// Whether the node was paused, and does not know yet what has happened meanwhile.
    pub(crate) fn was_paused(&self) -> bool {
        let last_tick = Duration::from_millis(self.last_tick.load(Ordering::Relaxed));
        was_paused((self.began + last_tick).into_std(), now())
    }

    /// Waits until the node knows what has happened while it was paused, or cannot learn it in time.
    pub(crate) async fn catch_up(&self) {
        let mut caught_up = self.caught_up.subscribe();
        let mut closed = self.is_closed.subscribe();
        self.input(SharedDirectory::notice_pause);
        while self.was_paused() {
            // The senders live as long as this.
            tokio::select! {
                _ = caught_up.changed() => {}
                _ = closed.wait_for(|is_closed| *is_closed) => return,
            }
        }
    }

    /// Sends another node the reports that it needs now. `send` returns whether a report was sent; what was not is in a later
    /// one.
    pub(crate) fn report_to(
        &self,
        node: &NodeRun,
        sent: &mut SentReports,
        mut send: impl FnMut(String) -> bool,
    ) {
        for number in 0.. {
            let report = self.directory.read().next_report(node, sent, number, now());
            let Some(mut report) = report else { return };
            if !send(std::mem::take(&mut report.text)) {
                return;
            }
            sent.on_sent(report);
        }
    }
}

impl ReceivedReports {
    /// Nothing was received from a node yet.
    pub(crate) fn new(directory: Arc<EtcdDirectory>, node: NodeName) -> Self {
        Self {
            directory,
            link: ReportingLink::new(node),
        }
    }

    /// The node has sent a report. One that this version cannot read is ignored.
    pub(crate) fn on_report(&mut self, text: &str) {
        if let Some(report) = Report::parse(text) {
            let link = &mut self.link;
            self.directory
                .input(|directory, now| directory.on_report(link, report, now));
        }
    }
}

impl Drop for ReceivedReports {
    fn drop(&mut self) {
        let link = &self.link;
        self.directory
            .input(|directory, now| directory.on_link_down(link, now));
    }
}

impl Drop for PendingClaim<'_> {
    fn drop(&mut self) {
        let pending = self.directory.claims.lock().remove(&self.id);
        if pending.is_some() {
            let id = self.id;
            self.directory
                .input(|directory, _| directory.on_claim_abandoned(id));
        }
    }
}

/// The wall clock in milliseconds.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    millis(since.unwrap_or(Duration::ZERO))
}
