//! The circuit breaker of queries to the platform.
//!
//! After some failures in a row no query is sent for a while, so that a failing platform gets no more load and clients
//! do not wait for it. Then one query is sent as a trial.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Failures in a row after which queries pause.
const FAILURES: u32 = 5;

/// Length of a pause.
const PAUSE: Duration = Duration::from_secs(5);

/// The state of the circuit breaker.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    /// The time of the first failure since the last answer.
    unreachable_since: Option<Instant>,
    paused_until: Option<Instant>,
    /// Whether the trial query after a pause is open.
    is_trying: bool,
}

/// An open query. If it is dropped without a result, it does not count.
#[must_use]
pub(super) struct Attempt<'a> {
    breaker: &'a Mutex<Breaker>,
    is_over: bool,
}

impl Breaker {
    pub(super) fn unreachable_since(&self) -> Option<Instant> {
        self.unreachable_since
    }

    fn may_ask(&mut self) -> bool {
        match self.paused_until {
            None => true,
            Some(until) if Instant::now() < until || self.is_trying => false,
            Some(_) => {
                self.is_trying = true;
                true
            }
        }
    }

    fn failed(&mut self) {
        let now = Instant::now();
        self.is_trying = false;
        self.failures = self.failures.saturating_add(1);
        self.unreachable_since.get_or_insert(now);
        if self.failures >= FAILURES {
            self.paused_until = Some(now + PAUSE);
        }
    }
}

impl<'a> Attempt<'a> {
    /// Begins a query; `None` during a pause.
    pub(super) fn begin(breaker: &'a Mutex<Breaker>) -> Option<Self> {
        let may_ask = breaker.lock().may_ask();
        may_ask.then(|| Self {
            breaker,
            is_over: false,
        })
    }

    pub(super) fn succeeded(mut self) {
        self.is_over = true;
        *self.breaker.lock() = Breaker::default();
    }

    pub(super) fn failed(mut self) {
        self.is_over = true;
        self.breaker.lock().failed();
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.breaker.lock().is_trying = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn fail(breaker: &Mutex<Breaker>) {
        Attempt::begin(breaker).unwrap().failed();
    }

    #[tokio::test(start_paused = true)]
    async fn after_failures_in_a_row_one_query_at_a_time_is_sent() {
        let breaker = Mutex::default();
        let start = Instant::now();
        for _ in 0..FAILURES {
            fail(&breaker);
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(breaker.lock().unreachable_since(), Some(start));
        assert!(Attempt::begin(&breaker).is_none());
        advance(PAUSE).await;
        let trial = Attempt::begin(&breaker).unwrap();
        assert!(Attempt::begin(&breaker).is_none(), "one is enough");
        drop(trial);
        // The attempt was abandoned without a result: the next one may be made.
        fail(&breaker);
        assert!(Attempt::begin(&breaker).is_none());
        advance(PAUSE).await;
        Attempt::begin(&breaker).unwrap().succeeded();
        assert_eq!(breaker.lock().unreachable_since(), None);
        let both = [Attempt::begin(&breaker), Attempt::begin(&breaker)];
        assert!(both.iter().all(Option::is_some));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_between_failures_starts_the_count_over() {
        let breaker = Mutex::default();
        for _ in 1..FAILURES {
            fail(&breaker);
        }
        Attempt::begin(&breaker).unwrap().succeeded();
        for _ in 1..FAILURES {
            fail(&breaker);
        }
        assert!(Attempt::begin(&breaker).is_some());
    }
}
