//! Closed loop: each connection sends the next request when the last one has ended.
//!
//! Shows what a target can do with so many clients that wait for it. It hides queueing: a target
//! that stalls is asked less. For that see [`crate::load::open`].

use std::{future::Future, pin::Pin, sync::Arc, task::Poll, time::Duration};

use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::{
    load::{Client, Moved, Worker},
    measure::errors::{Failure, Kind},
};

/// Rest after a connection that could not be made, so that a dead target does not cost a core.
const DIAL_PAUSE: Duration = Duration::from_millis(100);

/// Sends requests over one connection until the window is over.
pub async fn work<C: Client>(client: Arc<C>, mut worker: Worker) {
    let mut connection = WorkerConnection::new(client, &worker);
    // What fails here fails again within the window, and is counted there.
    let _ = connection.connect().await;
    let window = worker.ready().await;
    loop {
        let begun = Instant::now();
        if begun >= window.end {
            return;
        }
        match connection.exchange(begun).await {
            Ok(moved) => worker.recorder.completed(begun, moved.up, moved.down),
            Err(failure) => {
                worker.recorder.failed(begun, failure.kind);
                if !connection.is_connected() && !connection.has_worked() {
                    sleep(DIAL_PAUSE).await;
                }
            }
        }
    }
}

/// A connection that is made anew when it breaks, with a time limit for everything.
pub(super) struct WorkerConnection<C: Client> {
    client: Arc<C>,
    worker: usize,
    connection: Option<C::Connection>,
    limit: Limit,
    worked: bool,
}

impl<C: Client> WorkerConnection<C> {
    pub(super) fn new(client: Arc<C>, worker: &Worker) -> Self {
        Self {
            client,
            worker: worker.index,
            connection: None,
            limit: Limit::new(worker.timeout),
            worked: false,
        }
    }

    /// Whether the connection is there.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the last connection was of any use.
    pub(super) fn has_worked(&self) -> bool {
        self.worked
    }

    /// Makes the connection if it is not there, or was closed while it rested.
    pub(super) async fn connect(&mut self) -> Result<(), Failure> {
        if let Some(connection) = &mut self.connection
            && !C::is_open(connection)
        {
            self.connection = None;
        }
        if self.connection.is_none() {
            self.worked = false;
            let made = self.client.connect(self.worker);
            let made = self.limit.within(Instant::now(), made).await;
            let late = Failure::fatal(Kind::ConnectTimeout);
            self.connection = Some(made.unwrap_or(Err(late))?);
        }
        Ok(())
    }

    /// Does one request, over a new connection if the old one broke; its time limit counts from
    /// `sent`, and making the connection is part of it.
    pub(super) async fn exchange(&mut self, sent: Instant) -> Result<Moved, Failure> {
        self.connect().await?;
        let Some(connection) = &mut self.connection else {
            return Err(Failure::fatal(Kind::ConnectFailed));
        };
        let answer = self.client.exchange(connection);
        let answer = self.limit.within(sent, answer).await;
        let late = Failure::fatal(Kind::Timeout);
        let answer = answer.unwrap_or(Err(late));
        let good = answer.map_or_else(|failure| failure.connection_good, |_| true);
        self.worked |= good;
        if !good {
            self.connection = None;
        }
        answer
    }
}

/// A time limit for many futures after one another, with one timer that is seldom touched: it may
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
