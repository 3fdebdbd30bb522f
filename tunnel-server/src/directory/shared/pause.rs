//! A node that was paused, as a virtual machine is while it is moved, may have lost runtimes meanwhile: before it
//! serves by its own sessions again, it learns what has happened.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use tunnel_etcd::{RequestOp, TxnRequest};

use super::Shared;

/// Time without a tick after which the node counts as paused: several ticks.
const WITHOUT_TICK: Duration = Duration::from_millis(1_500);

/// How long requests wait for what has happened meanwhile. Without an answer of etcd, what is known is served.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Time between two tries.
const RETRY: Duration = Duration::from_millis(20);

/// Knows when the node has run last.
#[derive(Debug)]
pub(super) struct PauseDetector {
    began: Instant,
    /// Milliseconds after `began`.
    ticked: AtomicU64,
    /// One catches up for all.
    turn: tokio::sync::Mutex<()>,
}

impl Default for PauseDetector {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            ticked: AtomicU64::new(0),
            turn: tokio::sync::Mutex::default(),
        }
    }
}

impl PauseDetector {
    fn tick(&self) {
        let elapsed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.ticked.store(elapsed, Ordering::Relaxed);
    }

    fn was_paused(&self) -> bool {
        let ticked = Duration::from_millis(self.ticked.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(ticked) >= WITHOUT_TICK
    }
}

impl Shared {
    /// Whether the node was paused, and does not know yet what has happened meanwhile.
    pub(crate) fn was_paused(&self) -> bool {
        self.pause.was_paused()
    }

    /// Waits until the node knows what has happened while it was paused, or cannot learn it in time.
    pub(crate) async fn catch_up(&self) {
        let _turn = self.pause.turn.lock().await;
        if !self.was_paused() {
            return;
        }
        if timeout(CATCH_UP, self.newest_reached()).await.is_err() {
            tracing::debug!("etcd has not reported in time what has happened during a pause");
        }
        self.pause.tick();
    }

    /// The node runs.
    pub(super) async fn on_tick(&self) {
        match self.was_paused() {
            true => self.catch_up().await,
            false => self.pause.tick(),
        }
    }

    /// Waits until the watch has reported all that etcd has now.
    async fn newest_reached(&self) {
        let read = TxnRequest {
            success: vec![RequestOp::get(self.keys.cluster())],
            ..TxnRequest::default()
        };
        let newest = loop {
            match self.client.txn(read.clone()).await {
                Ok(newest) => break newest,
                // Connections may have been lost meanwhile.
                Err(_) => sleep(RETRY).await,
            }
        };
        let mut reached = self.reached.subscribe();
        self.wants_progress.notify_one();
        // The sender lives as long as this.
        let _ = reached
            .wait_for(|reached| *reached >= newest.revision())
            .await;
    }
}
