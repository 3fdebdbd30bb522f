//! Shutdown by signals.
//!
//! The first SIGTERM or SIGINT requests a graceful shutdown, so that work in progress can complete; the
//! second forces an immediate one. A [`Shutdown`] is a cheap handle that every part can await, on any Tokio
//! runtime.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::task::Owned;

/// The stages of a shutdown, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ShutdownStage {
    Running,
    Requested,
    Forced,
}

/// A handle to wait for a graceful or forced shutdown.
#[derive(Debug, Clone)]
pub struct Shutdown {
    stage: watch::Receiver<ShutdownStage>,
    /// Stops listening for signals when the last handle is dropped.
    _signals: Option<Arc<Owned<()>>>,
}

/// Starts a shutdown without a signal: for tests, and for programs with several parts in one process.
#[derive(Debug, Clone)]
pub struct Trigger {
    stage: watch::Sender<ShutdownStage>,
}

impl Shutdown {
    /// Listens for SIGTERM and SIGINT from now on. Must be called within a runtime with I/O.
    pub fn on_signals() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (trigger, shutdown) = Self::manual();
        let signals = Owned::spawn("signals", async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                if trigger.request() {
                    tracing::info!(
                        signal = name,
                        "shutting down (send the signal again to stop immediately)"
                    );
                } else {
                    tracing::warn!(signal = name, "stopping immediately");
                    trigger.force();
                }
            }
        });
        Ok(Self {
            _signals: Some(Arc::new(signals)),
            ..shutdown
        })
    }

    /// A shutdown that is started only by the returned trigger.
    pub fn manual() -> (Trigger, Self) {
        let (sender, receiver) = watch::channel(ShutdownStage::Running);
        (
            Trigger { stage: sender },
            Self {
                stage: receiver,
                _signals: None,
            },
        )
    }

    /// Waits for the shutdown; returns at once if it has begun.
    pub async fn requested(&self) {
        self.reached(ShutdownStage::Requested).await;
    }

    /// Returns once the program is forced to stop, whatever is still in progress.
    pub async fn forced(&self) {
        self.reached(ShutdownStage::Forced).await;
    }

    /// Whether the shutdown has begun.
    pub fn is_requested(&self) -> bool {
        *self.stage.borrow() >= ShutdownStage::Requested
    }

    /// Whether the program was forced to stop.
    pub fn is_forced(&self) -> bool {
        *self.stage.borrow() >= ShutdownStage::Forced
    }

    async fn reached(&self, wanted: ShutdownStage) {
        let mut stage = self.stage.clone();
        if stage.wait_for(|stage| *stage >= wanted).await.is_err() {
            // A dropped trigger can no longer request a shutdown, so this never resolves.
            std::future::pending::<()>().await;
        }
    }
}

impl Trigger {
    /// Begins a graceful shutdown; returns false if it has begun before.
    pub fn request(&self) -> bool {
        self.advance(ShutdownStage::Requested)
    }

    /// Forces an immediate shutdown; false if it was forced before.
    pub fn force(&self) -> bool {
        self.advance(ShutdownStage::Forced)
    }

    fn advance(&self, to: ShutdownStage) -> bool {
        self.stage.send_if_modified(|stage| {
            let advances = *stage < to;
            *stage = to.max(*stage);
            advances
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_poll::is_pending;

    use super::*;

    /// Polls a future once, which is all these tests need.
    mod futures_poll {
        use std::future::Future;
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        pub(super) fn is_pending(future: impl Future) -> bool {
            let mut context = Context::from_waker(Waker::noop());
            matches!(pin!(future).poll(&mut context), Poll::Pending)
        }
    }

    #[tokio::test]
    async fn a_request_comes_before_force() {
        let (trigger, shutdown) = Shutdown::manual();
        assert!(is_pending(shutdown.requested()));
        assert!(!shutdown.is_requested());
        assert!(trigger.request());
        assert!(!trigger.request(), "only the first counts");
        shutdown.requested().await;
        assert!(shutdown.is_requested());
        assert!(is_pending(shutdown.forced()));
        assert!(trigger.force());
        shutdown.clone().forced().await;
    }

    #[tokio::test]
    async fn force_includes_the_request_and_is_permanent() {
        let (trigger, shutdown) = Shutdown::manual();
        trigger.force();
        assert!(!trigger.request());
        shutdown.requested().await;
        shutdown.forced().await;
    }

    #[tokio::test]
    async fn a_dropped_trigger_does_not_request() {
        let (trigger, shutdown) = Shutdown::manual();
        drop(trigger);
        assert!(is_pending(shutdown.requested()));
    }

    #[tokio::test]
    async fn waiting_tasks_are_woken() {
        let (trigger, shutdown) = Shutdown::manual();
        let waiting = Owned::spawn("test", async move { shutdown.requested().await });
        tokio::task::yield_now().await;
        trigger.request();
        waiting.await.unwrap();
    }
}
