//! Being asked to stop.
//!
//! The first SIGTERM or SIGINT asks, so that work in progress can finish; the second forces. Out
//! comes a cheap [`Shutdown`] that every part can await, on whichever runtime it lives. What
//! stopping means is the parts' business.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::task::Owned;

/// How far stopping has gone, in the order of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    Asked,
    Forced,
}

/// Tells when the program is asked, and when it is forced, to stop.
#[derive(Debug, Clone)]
pub struct Shutdown {
    stage: watch::Receiver<Stage>,
    /// Ends the listening for signals with the last handle.
    _signals: Option<Arc<Owned<()>>>,
}

/// Stops by hand: for tests, and for programs that hold several parts in one process.
#[derive(Debug, Clone)]
pub struct Trigger {
    stage: watch::Sender<Stage>,
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
                if trigger.ask() {
                    tracing::info!(
                        signal = name,
                        "shutting down (send the signal again to stop immediately)"
                    );
                } else {
                    tracing::warn!(signal = name, "asked again, ending at once");
                    trigger.force();
                }
            }
        });
        Ok(Self {
            _signals: Some(Arc::new(signals)),
            ..shutdown
        })
    }

    /// A shutdown that only its trigger starts.
    pub fn manual() -> (Trigger, Self) {
        let (sender, receiver) = watch::channel(Stage::Running);
        (
            Trigger { stage: sender },
            Self {
                stage: receiver,
                _signals: None,
            },
        )
    }

    /// Returns once the program is asked to stop; at once when it already is.
    pub async fn asked(&self) {
        self.reached(Stage::Asked).await;
    }

    /// Returns once the program is forced to stop, whatever is still in progress.
    pub async fn forced(&self) {
        self.reached(Stage::Forced).await;
    }

    /// Whether the program is asked to stop.
    pub fn is_asked(&self) -> bool {
        *self.stage.borrow() >= Stage::Asked
    }

    async fn reached(&self, wanted: Stage) {
        let mut stage = self.stage.clone();
        if stage.wait_for(|stage| *stage >= wanted).await.is_err() {
            // A dropped trigger can never ask again, which is not the same as asking.
            std::future::pending::<()>().await;
        }
    }
}

impl Trigger {
    /// Asks to stop. False if that was asked before.
    pub fn ask(&self) -> bool {
        self.advance(Stage::Asked)
    }

    /// Ends the program's parts at once. False if that was done before.
    pub fn force(&self) -> bool {
        self.advance(Stage::Forced)
    }

    fn advance(&self, to: Stage) -> bool {
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
    async fn asking_comes_before_forcing() {
        let (trigger, shutdown) = Shutdown::manual();
        assert!(is_pending(shutdown.asked()));
        assert!(!shutdown.is_asked());
        assert!(trigger.ask());
        assert!(!trigger.ask(), "only the first counts");
        shutdown.asked().await;
        assert!(shutdown.is_asked());
        assert!(is_pending(shutdown.forced()));
        assert!(trigger.force());
        shutdown.clone().forced().await;
    }

    #[tokio::test]
    async fn forcing_includes_asking_and_is_never_taken_back() {
        let (trigger, shutdown) = Shutdown::manual();
        trigger.force();
        assert!(!trigger.ask());
        shutdown.asked().await;
        shutdown.forced().await;
    }

    #[tokio::test]
    async fn a_dropped_trigger_asks_for_nothing() {
        let (trigger, shutdown) = Shutdown::manual();
        drop(trigger);
        assert!(is_pending(shutdown.asked()));
    }

    #[tokio::test]
    async fn whoever_waits_is_woken() {
        let (trigger, shutdown) = Shutdown::manual();
        let waiting = Owned::spawn("test", async move { shutdown.asked().await });
        tokio::task::yield_now().await;
        trigger.ask();
        waiting.await.unwrap();
    }
}
