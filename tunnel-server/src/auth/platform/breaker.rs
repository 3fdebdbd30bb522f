//! The circuit breaker of queries to the platform.
//!
//! After some failures in a row no query is sent for a while, so that a failing platform gets no more load and clients
//! do not wait for it. Then single queries are sent as a trial.
//!
//! What anybody can cause opens nothing: a query about a token that was never approved counts only if there was no
//! connection for it, and one about an approved token counts once until the next answer. A trial with a token that was
//! never approved does not keep others from making one.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::token::TokenHash;

/// Failures in a row after which queries pause.
const FAILURES: usize = 5;

/// Length of a pause.
const PAUSE: Duration = Duration::from_secs(5);

/// Most trials at once with tokens that were never approved, one from each network.
const STRANGERS_TRIALS: usize = 8;

/// Whose token a query is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// The platform has approved this token before.
    Approved(TokenHash),
    /// It never has, as far as is known. Its client is in this network.
    Stranger(IpAddr),
}

/// How a query has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// There was no connection, whatever the token.
    NoConnection,
    /// The platform has received the token and not answered.
    NoAnswer,
}

/// The state of the circuit breaker.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Queries without a connection since the last answer.
    unconnected: usize,
    /// The approved tokens whose queries have failed since the last answer, at most [`FAILURES`].
    failed: Vec<TokenHash>,
    /// The time of the first failure that counts since the last answer.
    unreachable_since: Option<Instant>,
    /// Whether the last query failed, of any token and any client.
    has_failed: bool,
    paused_until: Option<Instant>,
    /// The open trial queries after a pause.
    trials: Vec<Trial>,
}

/// Who makes a trial. There is at most one by each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    Approved,
    Stranger(IpAddr),
}

/// An open query. If it is dropped without a result, it does not count.
#[must_use]
pub(super) struct Attempt<'a> {
    breaker: &'a Mutex<Breaker>,
    subject: Subject,
    is_trial: bool,
}

impl Breaker {
    /// Since when the platform is unreachable for everybody; `None` if it is not.
    pub(super) fn unreachable_since(&self) -> Option<Instant> {
        self.unreachable_since
    }

    /// Whether the last query was not answered.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether a query may be sent, and whether it is a trial.
    fn begin(&mut self, subject: Subject) -> Option<bool> {
        let Some(until) = self.paused_until else {
            return Some(false);
        };
        let trial = Trial::of(subject);
        let of_strangers = self.trials.iter().filter(|it| **it != Trial::Approved);
        let has_room = trial == Trial::Approved || of_strangers.count() < STRANGERS_TRIALS;
        if Instant::now() < until || self.trials.contains(&trial) || !has_room {
            return None;
        }
        self.trials.push(trial);
        Some(true)
    }

    fn failed(&mut self, subject: Subject, failure: Failure) {
        self.has_failed = true;
        match (failure, subject) {
            (Failure::NoConnection, _) => self.unconnected = self.unconnected.saturating_add(1),
            (Failure::NoAnswer, Subject::Stranger(_)) => return,
            (Failure::NoAnswer, Subject::Approved(token)) => {
                if self.failed.len() < FAILURES && !self.failed.contains(&token) {
                    self.failed.push(token);
                }
            }
        }
        let now = Instant::now();
        self.unreachable_since.get_or_insert(now);
        if self.unconnected + self.failed.len() >= FAILURES {
            self.paused_until = Some(now + PAUSE);
        }
    }
}

impl Trial {
    fn of(subject: Subject) -> Self {
        match subject {
            Subject::Approved(_) => Self::Approved,
            Subject::Stranger(network) => Self::Stranger(network),
        }
    }
}

impl<'a> Attempt<'a> {
    /// Begins a query; `None` during a pause.
    pub(super) fn begin(breaker: &'a Mutex<Breaker>, subject: Subject) -> Option<Self> {
        let is_trial = breaker.lock().begin(subject)?;
        Some(Self {
            breaker,
            subject,
            is_trial,
        })
    }

    pub(super) fn succeeded(mut self) {
        self.is_trial = false;
        *self.breaker.lock() = Breaker::default();
    }

    pub(super) fn failed(self, failure: Failure) {
        self.breaker.lock().failed(self.subject, failure);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.is_trial {
            let trial = Trial::of(self.subject);
            self.breaker.lock().trials.retain(|it| *it != trial);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const KNOWN: Subject = Subject::Approved([7; 32]);

    fn stranger(number: u8) -> Subject {
        Subject::Stranger([192, 0, 2, number].into())
    }

    fn fail(breaker: &Mutex<Breaker>, subject: Subject, failure: Failure) {
        Attempt::begin(breaker, subject).unwrap().failed(failure);
    }

    fn may_ask(breaker: &Mutex<Breaker>) -> bool {
        Attempt::begin(breaker, KNOWN).is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn after_failures_in_a_row_one_query_at_a_time_is_sent() {
        let breaker = Mutex::default();
        let start = Instant::now();
        for number in 0..FAILURES as u8 {
            fail(&breaker, stranger(number), Failure::NoConnection);
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(breaker.lock().unreachable_since(), Some(start));
        assert!(!may_ask(&breaker));
        advance(PAUSE).await;
        let trial = Attempt::begin(&breaker, KNOWN).unwrap();
        assert!(!may_ask(&breaker), "one is enough");
        drop(trial);
        // The attempt was abandoned without a result: the next one may be made.
        fail(&breaker, KNOWN, Failure::NoConnection);
        assert!(!may_ask(&breaker));
        advance(PAUSE).await;
        Attempt::begin(&breaker, KNOWN).unwrap().succeeded();
        assert_eq!(breaker.lock().unreachable_since(), None);
        let both = [
            Attempt::begin(&breaker, KNOWN),
            Attempt::begin(&breaker, KNOWN),
        ];
        assert!(both.iter().all(Option::is_some));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_between_failures_starts_the_count_over() {
        let breaker = Mutex::default();
        for _ in 1..FAILURES {
            fail(&breaker, KNOWN, Failure::NoConnection);
        }
        Attempt::begin(&breaker, KNOWN).unwrap().succeeded();
        for _ in 1..FAILURES {
            fail(&breaker, KNOWN, Failure::NoConnection);
        }
        assert!(may_ask(&breaker));
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_nobody_knows_open_nothing_and_an_approved_one_counts_once() {
        let breaker = Mutex::default();
        for number in 0..100 {
            fail(&breaker, stranger(number), Failure::NoAnswer);
        }
        assert!(may_ask(&breaker) && breaker.lock().has_failed());
        assert_eq!(breaker.lock().unreachable_since(), None);
        for _ in 0..100 {
            fail(&breaker, KNOWN, Failure::NoAnswer);
        }
        assert!(may_ask(&breaker));
        for number in 1..FAILURES as u8 {
            fail(&breaker, Subject::Approved([number; 32]), Failure::NoAnswer);
        }
        assert!(!may_ask(&breaker));
    }

    #[tokio::test(start_paused = true)]
    async fn trials_of_strangers_keep_nobody_else_from_one() {
        let breaker = Mutex::default();
        for _ in 0..FAILURES {
            fail(&breaker, KNOWN, Failure::NoConnection);
        }
        advance(PAUSE).await;
        let open: Vec<_> = (0..20)
            .filter_map(|number| Attempt::begin(&breaker, stranger(number)))
            .collect();
        assert_eq!(open.len(), STRANGERS_TRIALS);
        assert!(Attempt::begin(&breaker, stranger(0)).is_none());
        assert!(may_ask(&breaker));
        for trial in open {
            trial.failed(Failure::NoAnswer);
        }
        assert!(may_ask(&breaker), "the pause is not longer by that");
        Attempt::begin(&breaker, stranger(0)).unwrap().succeeded();
        assert!(breaker.lock().trials.is_empty());
    }
}
