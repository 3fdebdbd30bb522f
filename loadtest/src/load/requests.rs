//! Workers that send requests over a connection each, in closed or in open loop.
//!
//! **Closed loop**: the next request goes out when the last one has ended. It shows what a target can do with so many
//! clients that wait for it, and hides queueing: a target that stalls gets fewer requests.
//!
//! **Open loop**: requests are due at planned instants, whatever the target does. A request that is due waits for a free
//! connection, and its latency counts from when it was due. So a stall of the target shows in all requests that it
//! delayed (no coordinated omission), as it would for users who do not wait for one another.

use std::{future::Future, pin::Pin, sync::Arc, task::Poll, time::Duration};

use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::{
    client::template::PAUSE,
    load::{BodyBytes, Client, Worker},
    measure::errors::{Failure, FailureKind},
};

/// Sends requests over one connection until the window is over.
pub(super) async fn work<C: Client>(client: Arc<C>, mut worker: Worker) {
    let mut connection = WorkerConnection::new(client, &worker);
    // What fails here fails again within the window, and is counted there.
    let _ = connection.connect().await;
    let window = worker.ready().await;
    if let Some(schedule) = worker.schedule() {
        while let Some(due) = schedule.next(&window, &worker.recorder).await {
            let ended = connection.exchange(Instant::now()).await;
            record(&worker, due, ended);
        }
        // The stretch is as long as it was planned, not until the last that was due is answered.
        return sleep_until(window.end).await;
    }
    loop {
        let begun = Instant::now();
        if begun >= window.end {
            return;
        }
        let ended = connection.exchange(begun).await;
        record(&worker, begun, ended);
        if ended.is_err() && connection.connection.is_none() && !connection.worked {
            sleep(PAUSE).await;
        }
    }
}

fn record(worker: &Worker, begun: Instant, ended: Result<BodyBytes, Failure>) {
    match ended {
        Ok(moved) => worker.recorder.completed(begun, moved.up, moved.down),
        Err(failure) => worker.recorder.failed(begun, failure.kind),
    }
}

/// A connection that is made anew when it breaks, with a time limit for everything.
struct WorkerConnection<C: Client> {
    client: Arc<C>,
    worker: usize,
    connection: Option<C::Connection>,
    limit: Limit,
    /// Whether the last connection carried anything.
    worked: bool,
}

impl<C: Client> WorkerConnection<C> {
    fn new(client: Arc<C>, worker: &Worker) -> Self {
        Self {
            client,
            worker: worker.index,
            connection: None,
            limit: Limit::new(worker.timeout),
            worked: false,
        }
    }

    /// Makes the connection if it is not there, or was closed while it rested.
    async fn connect(&mut self) -> Result<(), Failure> {
        if let Some(connection) = &mut self.connection
            && !C::is_open(connection)
        {
            self.connection = None;
        }
        if self.connection.is_none() {
            self.worked = false;
            let made = self.client.connect(self.worker);
            let made = self.limit.within(Instant::now(), made).await;
            let late = Failure::fatal(FailureKind::ConnectTimeout);
            self.connection = Some(made.unwrap_or(Err(late))?);
        }
        Ok(())
    }

    /// Does one request, over a new connection if the old one broke; its time limit counts from
    /// `sent`, and making the connection is part of it.
    async fn exchange(&mut self, sent: Instant) -> Result<BodyBytes, Failure> {
        self.connect().await?;
        let Some(connection) = &mut self.connection else {
            return Err(FailureKind::ConnectFailed.into());
        };
        let answer = self.client.exchange(connection);
        let answer = self.limit.within(sent, answer).await;
        let late = Failure::fatal(FailureKind::Timeout);
        let answer = answer.unwrap_or(Err(late));
        let good = answer.map_or_else(|failure| failure.connection_good, |_| true);
        self.worked |= good;
        if !good {
            self.connection = None;
        }
        answer
    }
}

/// A time limit for many futures one after another. It has one timer that is seldom touched: the timer may
/// fire too early, and is then set anew.
struct Limit {
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Limit {
    fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            timer: Box::pin(sleep_until(Instant::now() + timeout)),
        }
    }

    /// The future's result; none when it took longer than the limit, from `since`.
    async fn within<F: Future>(&mut self, since: Instant, future: F) -> Option<F::Output> {
        let due = since + self.timeout;
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|context| {
            if let Poll::Ready(result) = future.as_mut().poll(context) {
                return Poll::Ready(Some(result));
            }
            while self.timer.as_mut().poll(context).is_ready() {
                if self.timer.deadline() >= due {
                    return Poll::Ready(None);
                }
                self.timer.as_mut().reset(due);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_kept_each_time() {
        let mut limit = Limit::new(Duration::from_millis(100));
        for wait in [90, 90, 90, 110, 90] {
            let begun = Instant::now();
            let slept = limit.within(begun, sleep(Duration::from_millis(wait)));
            assert_eq!(slept.await.is_some(), wait < 100);
            let expected = Duration::from_millis(wait.min(100));
            assert!(begun.elapsed() >= expected && begun.elapsed() < expected * 2);
        }
    }
}
