//! Which documents of a label were removed: a record that only grows until its entries end.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Most removals that are kept of one label; those that end last.
const ENTRIES: usize = 32;

/// The makings that were removed, each with the wall clock in milliseconds until which that is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Removal {
    removed: BTreeMap<String, u64>,
}

impl Removal {
    /// The record in a value; an empty one if it cannot be read.
    pub(super) fn read(value: &[u8]) -> Self {
        serde_json::from_slice(value).unwrap_or_default()
    }

    /// The value. Serialising it cannot fail.
    pub(super) fn value(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.removed.is_empty()
    }

    pub(super) fn has(&self, making: &str) -> bool {
        self.removed.contains_key(making)
    }

    /// Whether it has all entries of another one.
    pub(super) fn includes(&self, other: &Self) -> bool {
        let mut entries = other.removed.iter();
        entries.all(|(making, until)| self.removed.get(making).is_some_and(|own| own >= until))
    }

    /// Whether one of these makings was removed: what nodes have made apart, and then put together, is removed as one.
    pub(super) fn covers(&self, makings: &BTreeSet<String>) -> bool {
        makings.iter().any(|making| self.has(making))
    }

    pub(super) fn add(&mut self, makings: &BTreeSet<String>, until_ms: u64) {
        let removed = makings.iter().map(|making| (making.clone(), until_ms));
        self.join(&Self {
            removed: removed.collect(),
        });
    }

    /// Adds the entries of another one.
    pub(super) fn join(&mut self, other: &Self) {
        for (making, until) in &other.removed {
            let own = self.removed.entry(making.clone()).or_default();
            *own = (*own).max(*until);
        }
        while self.removed.len() > ENTRIES {
            let first = self.removed.iter().min_by_key(|(_, until)| **until);
            let Some(making) = first.map(|(making, _)| making.clone()) else {
                return;
            };
            self.removed.remove(&making);
        }
    }

    /// Forgets what has ended by this wall clock.
    pub(super) fn forget_ended(&mut self, now_ms: u64) {
        self.removed.retain(|_, until| *until > now_ms);
    }

    /// When the last entry ends.
    pub(super) fn until_ms(&self) -> u64 {
        self.removed.values().copied().max().unwrap_or(0)
    }
}
