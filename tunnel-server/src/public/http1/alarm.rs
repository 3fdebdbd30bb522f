//! One timer for all the deadlines of a connection, of which at most one counts at a time.
//!
//! In: the deadline that counts now. Out: whether it has passed. Deadlines move with every request,
//! the timer does not: it is set anew only when it rings too early or would ring too late, so that
//! a busy connection touches the timer wheel about once per deadline, not once per request.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// The timer, made when the first deadline is waited for.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Ready once `due` has passed; until then the task is woken in time to ask again.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, due: Instant) -> Poll<()> {
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
}

#[cfg(test)]
impl Alarm {
    /// Whether no timer was ever needed.
    pub(super) const fn is_idle(&self) -> bool {
        self.sleep.is_none()
    }
}
