//! The idle timer of an exchange.
//!
//! In: each poll at which the upstream has nothing to read. Out: the [`Problem`] when no byte moved in either
//! direction for as long as the route allows. While the platform client takes nothing the body is not polled, and the
//! timer stands still.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tunnel_ops::alarm::Alarm;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::progress::{Progress, ProgressMark};

/// The idle timer of one exchange.
pub(super) struct Idle {
    limit: Duration,
    /// Set while the upstream is silent: the progress of the request when that began, and when the limit is over.
    since: Option<(ProgressMark, Instant)>,
    alarm: Alarm,
    progress: Arc<Progress>,
}

impl Idle {
    /// A timer that starts with the first silent poll.
    pub(super) fn new(limit: Duration, progress: &Arc<Progress>) -> Box<Self> {
        Box::new(Self {
            limit,
            since: None,
            alarm: Alarm::default(),
            progress: Arc::clone(progress),
        })
    }

    /// The upstream sent something.
    pub(super) fn on_input(&mut self) {
        self.since = None;
    }

    /// Polled while the upstream is silent; ready with the problem after the limit.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Problem> {
        let mark = self.progress.mark();
        let anew = || (mark, Instant::now() + self.limit);
        let (mut since, mut due) = self.since.unwrap_or_else(anew);
        while self.alarm.poll(cx, due).is_ready() {
            if since == mark {
                let detail = format!("not a byte came or went for {:?}", self.limit);
                return Poll::Ready(Problem::new(Hop::Client, Reason::IdleTimeout, detail));
            }
            (since, due) = (mark, Instant::now() + self.limit);
        }
        self.since = Some((since, due));
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::{sleep, timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn it_ends_what_does_not_move_and_nothing_else() {
        let progress = Progress::of_test();
        let mut idle = Idle::new(LIMIT, &progress);
        let start = Instant::now();
        let reason = poll_fn(|cx| idle.poll(cx)).await.reason();
        assert_eq!((reason, start.elapsed()), (Reason::IdleTimeout, LIMIT));
        // What came before starts the wait anew.
        idle.on_input();
        let mut wait = async |time| timeout(time, poll_fn(|cx| idle.poll(cx))).await;
        assert!(wait(LIMIT - Duration::from_secs(1)).await.is_err());
        progress.on_bytes(1);
        assert!(wait(LIMIT).await.is_err(), "something went");
        assert!(wait(LIMIT).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_asks_does_not_count() {
        let progress = Progress::of_test();
        let mut idle = Idle::new(LIMIT, &progress);
        sleep(3 * LIMIT).await;
        let wait = timeout(Duration::from_secs(9), poll_fn(|cx| idle.poll(cx)));
        assert!(wait.await.is_err());
        idle.on_input();
        sleep(3 * LIMIT).await;
        let wait = timeout(Duration::from_secs(9), poll_fn(|cx| idle.poll(cx)));
        assert!(wait.await.is_err());
    }
}
