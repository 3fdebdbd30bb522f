//! When the platform is asked, and when it is left alone for a while.
//!
//! After some failures in a row no question is asked for a moment, so that neither a failing platform nor
//! the clients that wait for it suffer more; then one question goes ahead as a probe.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Failures in a row after which the platform is left alone.
const FAILURES: u32 = 5;

/// For how long.
const PAUSE: Duration = Duration::from_secs(5);

/// What the last questions met.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: u32,
    /// When the first of the failures since the last answer was.
    away_since: Option<Instant>,
    paused_until: Option<Instant>,
    /// Whether the one question after a pause is on its way.
    is_probing: bool,
}

/// A question on its way. Dropped without an end, it counts as not asked.
#[must_use]
pub(super) struct Attempt<'a> {
    breaker: &'a Mutex<Breaker>,
    is_over: bool,
}

impl Breaker {
    pub(super) fn away_since(&self) -> Option<Instant> {
        self.away_since
    }

    fn may_ask(&mut self) -> bool {
        match self.paused_until {
            None => true,
            Some(until) if Instant::now() < until || self.is_probing => false,
            Some(_) => {
                self.is_probing = true;
                true
            }
        }
    }

    fn failed(&mut self) {
        let now = Instant::now();
        self.is_probing = false;
        self.failures = self.failures.saturating_add(1);
        self.away_since.get_or_insert(now);
        if self.failures >= FAILURES {
            self.paused_until = Some(now + PAUSE);
        }
    }
}

impl<'a> Attempt<'a> {
    /// `None` while the platform is left alone.
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
            self.breaker.lock().is_probing = false;
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
    async fn after_failures_in_a_row_one_question_at_a_time_goes_ahead() {
        let breaker = Mutex::default();
        let start = Instant::now();
        for _ in 0..FAILURES {
            fail(&breaker);
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(breaker.lock().away_since(), Some(start));
        assert!(Attempt::begin(&breaker).is_none());
        advance(PAUSE).await;
        let probe = Attempt::begin(&breaker).unwrap();
        assert!(Attempt::begin(&breaker).is_none(), "one is enough");
        drop(probe);
        // Whoever asked gave up: the next may.
        fail(&breaker);
        assert!(Attempt::begin(&breaker).is_none());
        advance(PAUSE).await;
        Attempt::begin(&breaker).unwrap().succeeded();
        assert_eq!(breaker.lock().away_since(), None);
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
