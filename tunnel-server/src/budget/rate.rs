//! A limit on the exchanges that begin per second.
//!
//! A sliding window of one second: the count of the previous second is weighted by the part of it that is still in the
//! window. So an idle runtime may begin a second's worth at once, and a busy one is held to its rate exactly.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(1);

/// A limit on events per second; initially without limit.
#[derive(Debug, Default)]
pub struct Rate {
    /// 0 means no limit.
    max: AtomicU32,
    /// `None` before the first event.
    window: Mutex<Option<Window>>,
}

/// The limit is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateExceeded {
    /// The limit per second.
    pub max: u32,
    /// Time until the next event is allowed.
    pub after: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    began: Instant,
    /// Events in the second before it.
    before: u32,
    /// Events since it began.
    since: u32,
}

impl Rate {
    /// Changes the limit and keeps the counts.
    pub fn set(&self, max: Option<u32>) {
        self.max.store(max.unwrap_or(0), Ordering::Relaxed);
    }

    /// Counts an event.
    ///
    /// # Errors
    /// When the limit is exceeded; nothing is counted then.
    pub fn take(&self) -> Result<(), RateExceeded> {
        match self.max.load(Ordering::Relaxed) {
            0 => Ok(()),
            max => self.take_at(max, Instant::now()),
        }
    }

    fn take_at(&self, max: u32, now: Instant) -> Result<(), RateExceeded> {
        let mut window = self.window.lock();
        let window = window.get_or_insert_with(|| Window::beginning(now));
        window.slide(now);
        match window.wait(max, now) {
            None => {
                window.since += 1;
                Ok(())
            }
            Some(after) => Err(RateExceeded { max, after }),
        }
    }
}

impl Window {
    fn beginning(now: Instant) -> Self {
        Self {
            began: now,
            before: 0,
            since: 0,
        }
    }

    /// Advances to the second that contains `now`.
    fn slide(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.began);
        if age >= WINDOW * 2 {
            *self = Self::beginning(now);
        } else if age >= WINDOW {
            *self = Self {
                began: self.began + WINDOW,
                before: self.since,
                since: 0,
            };
        }
    }

    /// Time until one more event is allowed; `None` if it is now.
    fn wait(&self, max: u32, now: Instant) -> Option<Duration> {
        let age = now.saturating_duration_since(self.began);
        if self.since >= max {
            return Some((WINDOW - age).max(Duration::from_nanos(1)));
        }
        // Allowed when the weighted count of the previous second is less than what is left.
        let left = f64::from(max - self.since);
        let before = f64::from(self.before);
        let gone = age.as_secs_f64();
        if before * (1.0 - gone) < left {
            return None;
        }
        let wait = 1.0 - left / before - gone;
        Some(Duration::from_secs_f64(wait.clamp(1e-9, 1.0)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(max: u32) -> Rate {
        let rate = Rate::default();
        rate.set(Some(max));
        rate
    }

    #[tokio::test]
    async fn without_a_limit_nothing_is_counted() {
        let rate = Rate::default();
        for _ in 0..10_000 {
            rate.take().unwrap();
        }
        assert!(rate.window.lock().is_none());
    }

    #[tokio::test]
    async fn an_idle_second_allows_a_burst_and_then_the_rate_is_kept() {
        for max in [1, 2, 7, 50, 1_000] {
            let rate = rate(max);
            let start = Instant::now();
            let mut taken = 0;
            for step in 0..10_000 {
                let now = start + Duration::from_millis(step);
                while rate.take_at(max, now).is_ok() {
                    taken += 1;
                }
                if step == 0 {
                    assert_eq!(taken, max);
                }
            }
            // The last step is a little before the tenth second is over.
            let missing = (max * 10).checked_sub(taken).unwrap();
            assert!(missing <= max.div_ceil(100), "{max}: {taken}");
        }
    }

    proptest! {
        #[test]
        fn the_rate_is_kept_for_any_arrivals_and_a_wait_is_never_too_short(
            max in 1_u32..20,
            pauses in prop::collection::vec(0_u64..400, 1..300),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _entered = runtime.enter();
            let rate = rate(max);
            let start = Instant::now();
            let (mut now, mut taken) = (start, 0_u32);
            for pause in pauses {
                now += Duration::from_millis(pause);
                match rate.take_at(max, now) {
                    Ok(()) => taken += 1,
                    Err(refused) => {
                        prop_assert!(refused.after <= WINDOW);
                        let before = now + refused.after.mul_f64(0.9);
                        let copy = Rate::default();
                        *copy.window.lock() = *rate.window.lock();
                        if refused.after > Duration::from_micros(1) {
                            prop_assert!(copy.take_at(max, before).is_err());
                        }
                        let later = now + refused.after + Duration::from_micros(1);
                        prop_assert!(copy.take_at(max, later).is_ok());
                    }
                }
            }
            let seconds = (now - start).as_secs_f64();
            prop_assert!(f64::from(taken) <= f64::from(max) * (seconds + 1.0) + 1.0);
        }
    }
}
