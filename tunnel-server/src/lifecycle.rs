//! The stages of the server's life, from serving to its end.
//!
//! ```text
//!   starting ─▶ serving ─▶ leaving ─▶ draining ─▶ closing ─▶ stopping ─▶ ending ─▶ ended ─▶ exiting
//! ```
//!
//! `server/drain.rs` moves it from stage to stage and defines each, up to the exit; the other parts check or await the stages that
//! concern them. A stage that was reached stays reached. Serving begins for tunnel clients, for platform clients and for the
//! operator separately, since a server may take over from another process (`server/handover.rs`). A process that hands
//! over may have to take its clients back, so it only pauses its listeners before it leaves.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tunnel_ops::signals::{Shutdown, Trigger};
use tunnel_proto::control::millis;

use crate::{accepting::Accepting, upgrades::Upgrades};

/// How long a stopping server waits for the first request of a connection. Without this limit, a connection that sends
/// none would delay the end for the whole grace period.
const SILENT_GRACE: Duration = Duration::from_secs(1);

/// The stages of a server's life, and what the end waits for.
pub(crate) struct Lifecycle {
    started: SystemTime,
    serving_tunnels: Stage,
    serving_public: Stage,
    serving_admin: Stage,
    shutdown_requested: Stage,
    leaving: Stage,
    replaced: Stage,
    /// Whether the public listener is closed; an atomic, because it is read for each request.
    is_closing: AtomicBool,
    /// Whether everything that is open is cut now; an atomic, because it is read for each request.
    is_cut: AtomicBool,
    /// Time over which the clients' dials are spread, in milliseconds; set when draining begins.
    spread_ms: AtomicU64,
    draining: Stage,
    closing: Stage,
    stopping: Stage,
    ending: Stage,
    ended: Stage,
    exiting: Stage,
    /// The process that takes over; 0 if there is none.
    successor: AtomicU32,
    /// Whether tunnel clients are accepted between serving and draining; paused while another process is to have them.
    pub(crate) accepting_tunnels: Accepting,
    /// Whether platform clients are accepted between serving and closing.
    pub(crate) accepting_public: Accepting,
    /// Replacing this process by a new one.
    pub(crate) upgrades: Upgrades,
    /// Sessions whose client has no session at another server yet.
    pub(crate) unmoved_sessions: TaskTracker,
    pub(crate) public_connections: TaskTracker,
    /// What accepts and serves the clients of each shard. Other nodes are served until all of it has ended: what they
    /// forward over one shard may be for a session of another.
    pub(crate) serving_clients: TaskTracker,
}

struct Stage {
    trigger: Trigger,
    reached: Shutdown,
}

impl Lifecycle {
    /// The life of a server that starts now.
    pub(crate) fn new() -> Self {
        Self {
            started: SystemTime::now(),
            serving_tunnels: Stage::new(),
            serving_public: Stage::new(),
            serving_admin: Stage::new(),
            shutdown_requested: Stage::new(),
            leaving: Stage::new(),
            replaced: Stage::new(),
            is_closing: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            spread_ms: AtomicU64::new(0),
            draining: Stage::new(),
            closing: Stage::new(),
            stopping: Stage::new(),
            ending: Stage::new(),
            ended: Stage::new(),
            exiting: Stage::new(),
            successor: AtomicU32::new(0),
            accepting_tunnels: Accepting::default(),
            accepting_public: Accepting::default(),
            upgrades: Upgrades::default(),
            unmoved_sessions: TaskTracker::new(),
            public_connections: TaskTracker::new(),
            serving_clients: TaskTracker::new(),
        }
    }

    /// When the server was started.
    pub(crate) fn started(&self) -> SystemTime {
        self.started
    }

    /// Requests the shutdown of the server, as a signal does.
    pub(crate) fn request_shutdown(&self) {
        self.shutdown_requested.trigger.request();
    }

    /// Resolves when a shutdown was requested by [`Self::request_shutdown`].
    pub(crate) async fn shutdown_requested(&self) {
        self.shutdown_requested.reached.requested().await;
    }

    /// Whether a shutdown was requested, by a signal or otherwise.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.reached.is_requested()
    }

    /// Resolves when a new process takes over, with its id: this one leaves the admin listener.
    pub(crate) async fn replaced(&self) -> u32 {
        self.replaced.reached.requested().await;
        self.successor.load(Ordering::Relaxed)
    }

    /// Whether a new process takes over.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.reached.is_requested()
    }

    /// Resolves when tunnel clients may be accepted.
    pub(crate) async fn serving_tunnels(&self) {
        self.serving_tunnels.reached.requested().await;
    }

    /// Resolves when platform clients may be accepted.
    pub(crate) async fn serving_public(&self) {
        self.serving_public.reached.requested().await;
    }

    /// Resolves when the admin listener may be served.
    pub(crate) async fn serving_admin(&self) {
        self.serving_admin.reached.requested().await;
    }

    /// Resolves when the server begins to drain: it accepts no tunnel clients, and those it has move to other servers.
    pub(crate) async fn draining(&self) {
        self.draining.reached.requested().await;
    }

    /// Whether the server accepts no tunnel clients.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.reached.is_requested()
    }

    /// Resolves when the server accepts no platform clients any more.
    pub(crate) async fn closing(&self) {
        self.closing.reached.requested().await;
    }

    /// Whether the server accepts no platform clients any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Whether what is still open is cut now: what ends without another cause ends by this.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Time over which leaving clients spread their dials.
    pub(crate) fn spread(&self) -> Duration {
        Duration::from_millis(self.spread_ms.load(Ordering::Relaxed))
    }

    /// Reached when connections must be closed after their current requests.
    pub(crate) fn stopping(&self) -> &Shutdown {
        &self.stopping.reached
    }

    /// Resolves when a stopping server must close connections that have sent no request.
    pub(crate) async fn silent_grace_over(&self) {
        self.stopping().requested().await;
        sleep(SILENT_GRACE).await;
    }

    /// Reached when open exchanges must be ended in the way that their protocol provides.
    pub(crate) fn ending(&self) -> &Shutdown {
        &self.ending.reached
    }

    /// Resolves when everything that is still open must be cut.
    pub(crate) async fn ended(&self) {
        self.ended.reached.requested().await;
    }

    pub(crate) fn serve_tunnels(&self) {
        self.serving_tunnels.trigger.request();
    }

    pub(crate) fn serve_public(&self) {
        self.serving_public.trigger.request();
    }

    pub(crate) fn serve_admin(&self) {
        self.serving_admin.trigger.request();
    }

    /// The sessions are about to move to another process, their dials spread over this time.
    pub(crate) fn hand_over(&self, spread: Duration) {
        self.spread_ms.store(millis(spread), Ordering::Relaxed);
        self.unmoved_sessions.close();
    }

    /// The other process does not serve: all is accepted here again.
    pub(crate) fn take_back(&self) {
        self.unmoved_sessions.reopen();
        self.accepting_tunnels.resume();
        self.accepting_public.resume();
    }

    /// Resolves when tunnel clients are accepted here again.
    pub(crate) async fn taken_back(&self) {
        self.accepting_tunnels.resumed().await;
    }

    pub(crate) fn leave(&self) {
        self.upgrades.leave();
        self.leaving.trigger.request();
    }

    pub(crate) fn replace(&self, successor: u32) {
        self.successor.store(successor, Ordering::Relaxed);
        self.replaced.trigger.request();
    }

    pub(crate) fn drain(&self, spread: Duration) {
        self.spread_ms.store(millis(spread), Ordering::Relaxed);
        self.unmoved_sessions.close();
        self.serving_clients.close();
        self.draining.trigger.request();
    }

    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.closing.trigger.request();
    }

    pub(crate) fn stop(&self) {
        self.public_connections.close();
        self.stopping.trigger.request();
    }

    pub(crate) fn end(&self) {
        self.ending.trigger.request();
    }

    /// Everything has ended but what says so.
    pub(crate) fn exit(&self) {
        self.exiting.trigger.request();
    }

    /// Resolves when the server is about to exit.
    pub(crate) async fn exiting(&self) {
        self.exiting.reached.requested().await;
    }

    /// Has the sessions close, which gives their clients the reason and cuts what is still open.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.ended.trigger.request();
    }
}

impl Stage {
    fn new() -> Self {
        let (trigger, reached) = Shutdown::manual();
        Self { trigger, reached }
    }
}
