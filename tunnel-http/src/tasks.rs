//! The tasks that one connection runs.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::task::JoinSet;

/// The tasks of one connection. They are aborted when the last clone is dropped.
#[derive(Clone, Default)]
pub struct Tasks(Arc<Mutex<JoinSet<()>>>);

impl Tasks {
    /// Starts a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Whether there are no tasks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.is_empty()
    }

    /// Aborts the remaining tasks and waits until they have ended.
    pub async fn shutdown(&self) {
        let mut left = std::mem::take(&mut *self.0.lock());
        left.shutdown().await;
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}
