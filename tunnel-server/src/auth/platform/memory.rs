//! The cache of the platform's decisions, by hash of the token: all of them for a moment, so that a query is not
//! repeated, and approvals for longer, in case the platform becomes unreachable.
//!
//! Bounded. Denials have a table of their own, so that invalid tokens cannot evict approvals.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::answer::Answer;
use super::{Decision, RENEW};
use crate::auth::refusal::AuthRefusal;
use crate::token::TokenHash;

/// Most approvals in the cache.
const MOST_GOOD: usize = 50_000;

/// Most denials in the cache.
const MOST_REFUSED: usize = 10_000;

/// An approval, and when it was given.
#[derive(Debug, Clone)]
pub(super) struct Approval {
    pub(super) answer: Arc<Answer>,
    pub(super) received: Instant,
    pub(super) received_at: SystemTime,
    /// If later answers were neither approvals nor denials: the time of the first, and the last of them.
    unclear: Option<(Instant, Denial)>,
}

/// A denial or an answer that cannot be used, and when it was given.
#[derive(Debug, Clone)]
pub(super) struct Denial {
    pub(super) refusal: AuthRefusal,
    received: Instant,
}

/// The cached decisions.
pub(super) struct Memory {
    good: Bounded<Approval>,
    refused: Bounded<Denial>,
}

/// A map that removes the oldest entry when it is full.
struct Bounded<V> {
    most: usize,
    values: HashMap<TokenHash, (u64, V)>,
    /// The keys in the order of insertion, each with the number of its insertion.
    order: VecDeque<(u64, TokenHash)>,
    next: u64,
}

impl Approval {
    pub(super) fn new(answer: Answer) -> Self {
        Self {
            answer: Arc::new(answer),
            received: Instant::now(),
            received_at: SystemTime::now(),
            unclear: None,
        }
    }

    /// Since when the answers about this token have been neither approvals nor denials.
    pub(super) fn unclear_since(&self) -> Option<Instant> {
        self.unclear.as_ref().map(|(since, _)| *since)
    }

    /// Whether the answer was valid at this moment.
    pub(super) fn is_valid_at(&self, moment: Instant) -> bool {
        let valid_for = self.answer.valid_for;
        valid_for.is_none_or(|valid_for| moment < self.received + valid_for)
    }

    /// Whether the answer may be used again without a query. Ends well before the answer is renewed.
    fn is_fresh(&self, cache: Duration) -> bool {
        let half = self.answer.valid_for.unwrap_or(RENEW) / 2;
        self.received.elapsed() < cache.min(half)
    }
}

impl Denial {
    pub(super) fn new(refusal: AuthRefusal) -> Self {
        Self {
            refusal,
            received: Instant::now(),
        }
    }

    fn is_fresh(&self, cache: Duration) -> bool {
        self.received.elapsed() < cache
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            good: Bounded::new(MOST_GOOD),
            refused: Bounded::new(MOST_REFUSED),
        }
    }
}

impl Memory {
    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.good.values.len() + self.refused.values.len()
    }

    /// The decision about a token, if it is fresh enough to be used again.
    pub(super) fn fresh(&self, token: &TokenHash, cache: Duration) -> Option<Decision> {
        let Some(good) = self.good.get(token) else {
            let denial = self
                .refused
                .get(token)
                .filter(|denial| denial.is_fresh(cache));
            return denial.map(|denial| Decision::Denied(denial.clone()));
        };
        match &good.unclear {
            Some((_, denial)) if denial.is_fresh(cache) => {
                Some(Decision::Inconclusive(denial.clone()))
            }
            None if good.is_fresh(cache) => Some(Decision::Approved(good.clone())),
            _ => None,
        }
    }

    /// The last approval of a token that was not denied since.
    pub(super) fn known(&self, token: &TokenHash) -> Option<&Approval> {
        self.good.get(token)
    }

    pub(super) fn good(&mut self, token: TokenHash, good: Approval) {
        self.refused.values.remove(&token);
        self.good.put(token, good);
    }

    pub(super) fn refused(&mut self, token: TokenHash, denial: Denial) {
        self.good.values.remove(&token);
        self.refused.put(token, denial);
    }

    /// Neither an approval nor a denial: an earlier approval stays, and no new one is made.
    pub(super) fn unclear(&mut self, token: TokenHash, denial: Denial) {
        match self.good.values.get_mut(&token) {
            Some((_, good)) => {
                let since = good.unclear_since().unwrap_or(denial.received);
                good.unclear = Some((since, denial));
            }
            None => self.refused.put(token, denial),
        }
    }
}

impl<V> Bounded<V> {
    fn new(most: usize) -> Self {
        Self {
            most,
            values: HashMap::new(),
            order: VecDeque::new(),
            next: 0,
        }
    }

    fn get(&self, key: &TokenHash) -> Option<&V> {
        self.values.get(key).map(|(_, value)| value)
    }

    fn put(&mut self, key: TokenHash, value: V) {
        self.next += 1;
        self.values.insert(key, (self.next, value));
        self.order.push_back((self.next, key));
        while self.values.len() > self.most {
            let Some((number, key)) = self.order.pop_front() else {
                break;
            };
            if self.is_current(number, &key) {
                self.values.remove(&key);
            }
        }
        // Keys that were put in again leave their old numbers behind.
        if self.order.len() > 2 * self.most {
            let values = &self.values;
            self.order.retain(|(number, key)| {
                values
                    .get(key)
                    .is_some_and(|(current, _)| current == number)
            });
        }
    }

    fn is_current(&self, number: u64, key: &TokenHash) -> bool {
        let current = self.values.get(key).map(|(current, _)| *current);
        current == Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal() -> AuthRefusal {
        AuthRefusal::PlatformUnclear("it is malformed".into())
    }

    #[test]
    fn a_full_memory_forgets_the_oldest() {
        let mut bounded = Bounded::new(3);
        for key in 0..3 {
            bounded.put([key; 32], key);
        }
        bounded.put([0; 32], 100);
        bounded.put([3; 32], 3);
        assert_eq!(bounded.get(&[0; 32]), Some(&100), "put in again");
        assert_eq!(bounded.get(&[1; 32]), None);
        for _ in 0..100 {
            bounded.put([9; 32], 9);
        }
        assert_eq!(bounded.values.len(), 3);
        assert!(bounded.order.len() <= 6, "{}", bounded.order.len());
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_push_out_no_good_token() {
        let mut memory = Memory::default();
        let answer = Answer::parse(br#"{"account": "a", "runtime": "b"}"#).unwrap();
        memory.good([0; 32], Approval::new(answer));
        for number in 0..(2 * MOST_REFUSED) as u64 {
            let mut token = [1; 32];
            token[..8].copy_from_slice(&number.to_be_bytes());
            match number % 2 {
                0 => memory.refused(token, Denial::new(refusal())),
                _ => memory.unclear(token, Denial::new(refusal())),
            }
        }
        assert!(memory.known(&[0; 32]).is_some());
        assert_eq!(memory.refused.values.len(), MOST_REFUSED);
        memory.unclear([0; 32], Denial::new(refusal()));
        assert!(memory.known(&[0; 32]).is_some(), "it is no denial");
        memory.refused([0; 32], Denial::new(refusal()));
        assert!(memory.known(&[0; 32]).is_none(), "the last word counts");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_unclear_is_remembered_for_a_moment_and_from_when_on_it_was() {
        let cache = Duration::from_secs(10);
        let mut memory = Memory::default();
        let answer = || Answer::parse(br#"{"account": "a", "runtime": "b"}"#).unwrap();
        memory.good([0; 32], Approval::new(answer()));
        let began = Instant::now();
        for token in [0, 1] {
            memory.unclear([token; 32], Denial::new(refusal()));
        }
        let good = memory.fresh(&[0; 32], cache);
        assert!(matches!(good, Some(Decision::Inconclusive(_))));
        let stranger = memory.fresh(&[1; 32], cache);
        assert!(matches!(stranger, Some(Decision::Denied(_))));
        tokio::time::advance(cache).await;
        for token in [0, 1] {
            assert!(memory.fresh(&[token; 32], cache).is_none());
            memory.unclear([token; 32], Denial::new(refusal()));
        }
        let since = memory.known(&[0; 32]).unwrap().unclear_since();
        assert_eq!(since, Some(began), "not from the last one on");
        memory.good([0; 32], Approval::new(answer()));
        assert_eq!(memory.known(&[0; 32]).unwrap().unclear_since(), None);
    }
}
