//! One timer for all deadlines of a connection, of which at most one applies at a time.
//!
//! In: the deadline that applies now. Out: whether it has passed. Deadlines change with every request, but
//! the timer is reset only when it fires too early or would fire too late, so that a busy connection
//! touches the timer wheel about once per deadline, not once per request.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// The timer. It is allocated when the first deadline is awaited.
#[derive(Debug, Default)]
pub struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Ready once `due` has passed. Until then, wakes the task at `due` or earlier.
    pub fn poll(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if sleep.deadline() > due {
            sleep.as_mut().reset(due);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
        Poll::Pending
    }

    /// Whether no deadline was awaited yet.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.sleep.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_fires_when_the_last_deadline_has_passed_and_not_before() {
        let start = Instant::now();
        let mut alarm = Alarm::default();
        let mut wait = async |ms| {
            let due = start + Duration::from_millis(ms);
            poll_fn(|cx| alarm.poll(cx, due)).await;
            (Instant::now() - start).as_millis()
        };
        assert_eq!(wait(20).await, 20);
        // Later than the previous one, and then earlier than one that was not awaited to its end.
        assert_eq!(wait(50).await, 50);
        let due = start + Duration::from_secs(60);
        assert!(
            tokio::time::timeout(Duration::from_millis(10), poll_fn(|cx| alarm.poll(cx, due)))
                .await
                .is_err()
        );
        let due = start + Duration::from_millis(70);
        poll_fn(|cx| alarm.poll(cx, due)).await;
        assert_eq!((Instant::now() - start).as_millis(), 70);
    }
}
