//! Tasks with an owner.
//!
//! The only place that calls `tokio::spawn`. The returned handle aborts the task when it is dropped, so
//! that no task outlives its owner. For many similar tasks use a `tokio::task::JoinSet`, which aborts its
//! tasks too.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument;

/// A handle of a running task, which is aborted when the handle is dropped. Awaiting it yields the task's
/// result.
#[derive(Debug)]
#[must_use = "the task ends when this is dropped"]
pub struct Owned<T> {
    handle: JoinHandle<T>,
}

impl<T: Send + 'static> Owned<T> {
    /// Starts `future` on the current Tokio runtime, in a span with this name in its field `task`.
    #[expect(
        clippy::disallowed_methods,
        reason = "the owner made here ends the task"
    )]
    pub fn spawn(name: &'static str, future: impl Future<Output = T> + Send + 'static) -> Self {
        let span = tracing::info_span!("task", task = name);
        Self {
            handle: tokio::spawn(future.instrument(span)),
        }
    }
}

impl<T> Owned<T> {
    /// Aborts the task. Awaiting the handle afterwards returns once the task is dropped.
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }
}

impl<T> Future for Owned<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(context)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_task_ends_with_its_owner() {
        let (held, ended) = oneshot::channel::<()>();
        let owned = Owned::spawn("test", async move {
            let _held = held;
            pending::<()>().await;
        });
        drop(owned);
        assert!(ended.await.is_err(), "the task's own values are dropped");
    }

    #[tokio::test]
    async fn awaiting_gives_the_result() {
        assert_eq!(Owned::spawn("test", async { 7 }).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_panic_ends_only_the_task() {
        let error = Owned::spawn("test", async { panic!("on purpose") })
            .await
            .unwrap_err();
        assert!(error.is_panic());
    }
}
