//! A rate limit: a burst, and then once per interval. Used for log lines that clients can cause.
//!
//! In: an attempt. Out: whether it is allowed, and how many were suppressed since the last allowed one. So a client that
//! is refused repeatedly can neither fill the disk with log lines nor hide other lines.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A rate limit.
#[derive(Debug)]
pub(crate) struct Allowance {
    burst: u32,
    each: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: u32,
    /// When the interval of the next allowed attempt began.
    since: Instant,
    left_out: u64,
}

impl Allowance {
    /// Allows `burst` attempts at once, and one more after each interval `each`.
    pub(crate) fn new(burst: u32, each: Duration) -> Self {
        let state = State {
            left: burst,
            since: Instant::now(),
            left_out: 0,
        };
        Self {
            burst,
            each,
            state: Mutex::new(state),
        }
    }

    /// Makes an attempt: returns how many were suppressed before it, or `None` if this one is suppressed too.
    pub(crate) fn take(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let now = Instant::now();
        while state.left < self.burst && now.duration_since(state.since) >= self.each {
            state.since += self.each;
            state.left += 1;
        }
        if state.left == self.burst {
            state.since = now;
        }
        match state.left.checked_sub(1) {
            Some(left) => {
                state.left = left;
                Some(std::mem::take(&mut state.left_out))
            }
            None => {
                state.left_out += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn suppressed_attempts_are_counted_with_the_next_allowed_one() {
        let limit = Allowance::new(3, Duration::from_secs(1));
        let taken: Vec<_> = (0..5).map(|_| limit.take()).collect();
        assert_eq!(taken, [Some(0), Some(0), Some(0), None, None]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((limit.take(), limit.take()), (Some(2), None));
        tokio::time::advance(Duration::from_secs(60)).await;
        let taken: Vec<_> = (0..4).map(|_| limit.take()).collect();
        assert_eq!(taken, [Some(1), Some(0), Some(0), None]);
    }
}
