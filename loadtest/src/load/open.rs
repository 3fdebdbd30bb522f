//! Open loop: requests are due at planned instants, whatever the target does.
//!
//! A request that is due waits for a free connection, and its latency counts from when it was
//! due. So a stall of the target shows in all requests that it delayed (no coordinated omission),
//! as it would for users who do not wait for one another.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use crate::load::{Client, Worker, closed::WorkerConnection};

/// Sends what is due, over one connection, until the window is over.
pub async fn work<C: Client>(client: Arc<C>, mut worker: Worker) {
    let mut connection = WorkerConnection::new(client, &worker);
    // What fails here fails again when a request is due, and is counted then.
    let _ = connection.connect().await;
    let window = worker.ready().await;
    let Some(schedule) = worker.schedule().cloned() else {
        return;
    };
    while let Some(due) = schedule.next(&window, &worker.recorder).await {
        match connection.exchange(Instant::now()).await {
            Ok(moved) => worker.recorder.completed(due, moved.up, moved.down),
            Err(failure) => worker.recorder.failed(due, failure.kind),
        }
    }
    // The stretch is as long as it was planned, not until the last that was due is answered.
    sleep_until(window.end).await;
}
