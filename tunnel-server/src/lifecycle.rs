//! The stages of the server's life, from serving to its end.
//!
//! ```text
//!   serving ─▶ leaving ─▶ draining ─▶ stopping ─▶ ending ─▶ ended
//! ```
//!
//! `server/drain.rs` moves it from stage to stage and defines each; the other parts check or await the stages that
//! concern them. A stage that was reached stays reached.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use tunnel_ops::signals::{Shutdown, Trigger};
use tunnel_proto::control::millis;

/// How long a stopping server waits for the first request of a connection. Without this limit, a connection that sends
/// none would delay the end for the whole grace period.
const SILENT_GRACE: Duration = Duration::from_secs(1);

/// The stages of a server's life, and what the end waits for.
pub(crate) struct Lifecycle {
    started: SystemTime,
    shutdown_requested: Stage,
    leaving: Stage,
    /// Whether draining has begun; an atomic, because it is read for each request.
    is_draining: AtomicBool,
    /// Time over which the clients' dials are spread, in milliseconds; set when draining begins.
    spread_ms: AtomicU64,
    draining: Stage,
    stopping: Stage,
    ending: Stage,
    ended: Stage,
    /// Sessions whose client has no session at another server yet.
    pub(crate) unmoved_sessions: TaskTracker,
    pub(crate) public_connections: TaskTracker,
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
            shutdown_requested: Stage::new(),
            leaving: Stage::new(),
            is_draining: AtomicBool::new(false),
            spread_ms: AtomicU64::new(0),
            draining: Stage::new(),
            stopping: Stage::new(),
            ending: Stage::new(),
            ended: Stage::new(),
            unmoved_sessions: TaskTracker::new(),
            public_connections: TaskTracker::new(),
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

    /// Resolves when the server begins to drain: it accepts nothing new, and its clients move to other servers.
    pub(crate) async fn draining(&self) {
        self.draining.reached.requested().await;
    }

    /// Whether the server accepts nothing new.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
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

    pub(crate) fn leave(&self) {
        self.leaving.trigger.request();
    }

    pub(crate) fn drain(&self, spread: Duration) {
        self.spread_ms.store(millis(spread), Ordering::Relaxed);
        self.unmoved_sessions.close();
        self.is_draining.store(true, Ordering::Relaxed);
        self.draining.trigger.request();
    }

    pub(crate) fn stop(&self) {
        self.public_connections.close();
        self.stopping.trigger.request();
    }

    pub(crate) fn end(&self) {
        self.ending.trigger.request();
    }

    pub(crate) fn cut(&self) {
        self.ended.trigger.request();
    }
}

impl Stage {
    fn new() -> Self {
        let (trigger, reached) = Shutdown::manual();
        Self { trigger, reached }
    }
}
