//! A limit on how often something is done: a burst, and then once in each interval.
//!
//! In: a wish to do it. Out: whether it may be done, and how often it was left out since the last time. So a
//! client that is refused all the time neither fills the disk with log lines nor hides other lines.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A limit on how often one thing is done.
#[derive(Debug)]
pub(crate) struct Allowance {
    burst: u32,
    each: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: u32,
    /// From when on the next time is earned.
    since: Instant,
    left_out: u64,
}

impl Allowance {
    /// So many times at once, and once more after each such time.
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

    /// Takes one: gives how many were left out before it. `None` when this one is left out too.
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
    async fn what_is_left_out_is_told_with_the_next_one() {
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
