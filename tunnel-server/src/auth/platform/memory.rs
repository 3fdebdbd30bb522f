//! What the platform said of tokens, by their hash: for a moment, so that it is not asked again; and
//! what was good for longer, in case the platform goes away.
//!
//! Bounded, and strangers' tokens never push out good ones, since they have a place of their own.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::answer::Answer;
use super::{RENEW, Verdict};
use crate::auth::refusal::AuthRefusal;
use crate::token::TokenHash;

/// Good tokens remembered at most.
const MOST_GOOD: usize = 50_000;

/// Refused ones.
const MOST_REFUSED: usize = 10_000;

/// A yes, and when it was given.
#[derive(Debug, Clone)]
pub(super) struct Approval {
    pub(super) answer: Arc<Answer>,
    pub(super) asked: Instant,
    pub(super) at: SystemTime,
    /// What the platform has said since then, if that is neither yes nor no: when it began, and the last.
    unclear: Option<(Instant, No)>,
}

/// A no, or what cannot be used as a yes, and when it was given.
#[derive(Debug, Clone)]
pub(super) struct No {
    pub(super) refusal: AuthRefusal,
    asked: Instant,
}

/// What the platform said.
pub(super) struct Memory {
    good: Bounded<Approval>,
    refused: Bounded<No>,
}

/// A map that forgets what was put in first when it is full.
struct Bounded<V> {
    most: usize,
    values: HashMap<TokenHash, (u64, V)>,
    /// In the order of their coming, with the number that each had then.
    order: VecDeque<(u64, TokenHash)>,
    next: u64,
}

impl Approval {
    pub(super) fn new(answer: Answer) -> Self {
        Self {
            answer: Arc::new(answer),
            asked: Instant::now(),
            at: SystemTime::now(),
            unclear: None,
        }
    }

    /// Since when the platform says neither yes nor no about this token.
    pub(super) fn unclear_since(&self) -> Option<Instant> {
        self.unclear.as_ref().map(|(since, _)| *since)
    }

    /// Whether the answer held at this moment.
    pub(super) fn holds_at(&self, moment: Instant) -> bool {
        let holds = self.answer.holds;
        holds.is_none_or(|holds| moment < self.asked + holds)
    }

    /// Whether the answer may be used again without asking. Never up to when it is to be renewed.
    fn is_fresh(&self, cache: Duration) -> bool {
        let half = self.answer.holds.unwrap_or(RENEW) / 2;
        self.asked.elapsed() < cache.min(half)
    }
}

impl No {
    pub(super) fn new(refusal: AuthRefusal) -> Self {
        Self {
            refusal,
            asked: Instant::now(),
        }
    }

    fn is_fresh(&self, cache: Duration) -> bool {
        self.asked.elapsed() < cache
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
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.good.values.len() + self.refused.values.len()
    }

    /// What was said a moment ago.
    pub(super) fn fresh(&self, token: &TokenHash, cache: Duration) -> Option<Verdict> {
        let Some(good) = self.good.get(token) else {
            let no = self.refused.get(token).filter(|no| no.is_fresh(cache));
            return no.map(|no| Verdict::No(no.clone()));
        };
        match &good.unclear {
            Some((_, no)) if no.is_fresh(cache) => Some(Verdict::Unclear(no.clone())),
            None if good.is_fresh(cache) => Some(Verdict::Yes(good.clone())),
            _ => None,
        }
    }

    /// The last word on a token, if that was a yes.
    pub(super) fn known(&self, token: &TokenHash) -> Option<&Approval> {
        self.good.get(token)
    }

    pub(super) fn good(&mut self, token: TokenHash, good: Approval) {
        self.refused.values.remove(&token);
        self.good.put(token, good);
    }

    pub(super) fn refused(&mut self, token: TokenHash, no: No) {
        self.good.values.remove(&token);
        self.refused.put(token, no);
    }

    /// Neither yes nor no: what was good before is not forgotten, and nothing becomes good.
    pub(super) fn unclear(&mut self, token: TokenHash, no: No) {
        match self.good.values.get_mut(&token) {
            Some((_, good)) => {
                let since = good.unclear_since().unwrap_or(no.asked);
                good.unclear = Some((since, no));
            }
            None => self.refused.put(token, no),
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
                0 => memory.refused(token, No::new(refusal())),
                _ => memory.unclear(token, No::new(refusal())),
            }
        }
        assert!(memory.known(&[0; 32]).is_some());
        assert_eq!(memory.refused.values.len(), MOST_REFUSED);
        memory.unclear([0; 32], No::new(refusal()));
        assert!(memory.known(&[0; 32]).is_some(), "it is not a no");
        memory.refused([0; 32], No::new(refusal()));
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
            memory.unclear([token; 32], No::new(refusal()));
        }
        let good = memory.fresh(&[0; 32], cache);
        assert!(matches!(good, Some(Verdict::Unclear(_))));
        let stranger = memory.fresh(&[1; 32], cache);
        assert!(matches!(stranger, Some(Verdict::No(_))));
        tokio::time::advance(cache).await;
        for token in [0, 1] {
            assert!(memory.fresh(&[token; 32], cache).is_none());
            memory.unclear([token; 32], No::new(refusal()));
        }
        let since = memory.known(&[0; 32]).unwrap().unclear_since();
        assert_eq!(since, Some(began), "not from the last one on");
        memory.good([0; 32], Approval::new(answer()));
        assert_eq!(memory.known(&[0; 32]).unwrap().unclear_since(), None);
    }
}
