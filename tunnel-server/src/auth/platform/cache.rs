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
const MOST_APPROVALS: usize = 50_000;

/// Most denials in the cache.
const MOST_DENIALS: usize = 10_000;

/// An approval, and when it was given.
#[derive(Debug, Clone)]
pub(super) struct Approval {
    pub(super) answer: Arc<Answer>,
    pub(super) received: Instant,
    pub(super) received_at: SystemTime,
    /// If later answers were neither approvals nor denials: the time of the first, and the last of them.
    inconclusive: Option<(Instant, Denial)>,
}

/// A denial or an answer that cannot be used, and when it was given.
#[derive(Debug, Clone)]
pub(super) struct Denial {
    pub(super) refusal: AuthRefusal,
    received: Instant,
}

/// The cached decisions.
pub(super) struct DecisionCache {
    approvals: Bounded<Approval>,
    denials: Bounded<Denial>,
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
            inconclusive: None,
        }
    }

    /// Since when the answers about this token have been neither approvals nor denials.
    pub(super) fn unusable_since(&self) -> Option<Instant> {
        self.inconclusive.as_ref().map(|(since, _)| *since)
    }

    /// Whether the answer was valid at this moment.
    pub(super) fn is_valid_at(&self, moment: Instant) -> bool {
        let valid_for = self.answer.valid_for;
        valid_for.is_none_or(|valid_for| moment < self.received + valid_for)
    }

    /// Whether the answer may be used again without a query. Ends well before the answer is renewed.
    fn is_fresh(&self, max_age: Duration) -> bool {
        let half = self.answer.valid_for.unwrap_or(RENEW) / 2;
        self.received.elapsed() < max_age.min(half)
    }
}

impl Denial {
    pub(super) fn new(refusal: AuthRefusal) -> Self {
        Self {
            refusal,
            received: Instant::now(),
        }
    }

    fn is_fresh(&self, max_age: Duration) -> bool {
        self.received.elapsed() < max_age
    }
}

impl Default for DecisionCache {
    fn default() -> Self {
        Self {
            approvals: Bounded::new(MOST_APPROVALS),
            denials: Bounded::new(MOST_DENIALS),
        }
    }
}

impl DecisionCache {
    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.approvals.values.len() + self.denials.values.len()
    }

    /// The decision about a token, if it is fresh enough to be used again.
    pub(super) fn fresh(&self, token: &TokenHash, max_age: Duration) -> Option<Decision> {
        let Some(approval) = self.approvals.get(token) else {
            let denial = self
                .denials
                .get(token)
                .filter(|denial| denial.is_fresh(max_age));
            return denial.map(|denial| Decision::Denied(denial.clone()));
        };
        match &approval.inconclusive {
            Some((_, denial)) if denial.is_fresh(max_age) => {
                Some(Decision::Inconclusive(denial.clone()))
            }
            None if approval.is_fresh(max_age) => Some(Decision::Approved(approval.clone())),
            _ => None,
        }
    }

    /// The last approval of a token that was not denied since.
    pub(super) fn last_approval(&self, token: &TokenHash) -> Option<&Approval> {
        self.approvals.get(token)
    }

    pub(super) fn insert_approval(&mut self, token: TokenHash, approval: Approval) {
        self.denials.values.remove(&token);
        self.approvals.put(token, approval);
    }

    pub(super) fn insert_denial(&mut self, token: TokenHash, denial: Denial) {
        self.approvals.values.remove(&token);
        self.denials.put(token, denial);
    }

    /// Neither an approval nor a denial: an earlier approval stays, and no new one is made.
    pub(super) fn insert_inconclusive(&mut self, token: TokenHash, denial: Denial) {
        match self.approvals.values.get_mut(&token) {
            Some((_, approval)) => {
                let since = approval.unusable_since().unwrap_or(denial.received);
                approval.inconclusive = Some((since, denial));
            }
            None => self.denials.put(token, denial),
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
    fn a_full_map_removes_the_oldest_entry() {
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
    async fn denials_do_not_evict_approvals() {
        let mut cache = DecisionCache::default();
        let answer = Answer::parse(br#"{"account": "a", "runtime": "b"}"#).unwrap();
        cache.insert_approval([0; 32], Approval::new(answer));
        for number in 0..(2 * MOST_DENIALS) as u64 {
            let mut token = [1; 32];
            token[..8].copy_from_slice(&number.to_be_bytes());
            match number % 2 {
                0 => cache.insert_denial(token, Denial::new(refusal())),
                _ => cache.insert_inconclusive(token, Denial::new(refusal())),
            }
        }
        assert!(cache.last_approval(&[0; 32]).is_some());
        assert_eq!(cache.denials.values.len(), MOST_DENIALS);
        cache.insert_inconclusive([0; 32], Denial::new(refusal()));
        assert!(cache.last_approval(&[0; 32]).is_some(), "it is no denial");
        cache.insert_denial([0; 32], Denial::new(refusal()));
        assert!(
            cache.last_approval(&[0; 32]).is_none(),
            "the last decision counts"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_inconclusive_answer_is_cached_with_the_time_of_the_first() {
        let max_age = Duration::from_secs(10);
        let mut cache = DecisionCache::default();
        let answer = || Answer::parse(br#"{"account": "a", "runtime": "b"}"#).unwrap();
        cache.insert_approval([0; 32], Approval::new(answer()));
        let began = Instant::now();
        for token in [0, 1] {
            cache.insert_inconclusive([token; 32], Denial::new(refusal()));
        }
        let approved = cache.fresh(&[0; 32], max_age);
        assert!(matches!(approved, Some(Decision::Inconclusive(_))));
        let unknown = cache.fresh(&[1; 32], max_age);
        assert!(matches!(unknown, Some(Decision::Denied(_))));
        tokio::time::advance(max_age).await;
        for token in [0, 1] {
            assert!(cache.fresh(&[token; 32], max_age).is_none());
            cache.insert_inconclusive([token; 32], Denial::new(refusal()));
        }
        let since = cache.last_approval(&[0; 32]).unwrap().unusable_since();
        assert_eq!(since, Some(began), "not from the last one on");
        cache.insert_approval([0; 32], Approval::new(answer()));
        assert_eq!(
            cache.last_approval(&[0; 32]).unwrap().unusable_since(),
            None
        );
    }
}
