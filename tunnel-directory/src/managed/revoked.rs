//! The credentials of one runtime that the operator has revoked: a record that only grows until its entries end.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is revoked of one runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedCredentials {
    /// All that were issued before this wall clock in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before_ms: Option<u64>,
    /// Credentials by their public ids, each with the wall clock in milliseconds at which it expires anyway; 0 if that is not
    /// known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ids: BTreeMap<String, u64>,
}

impl RevokedCredentials {
    /// All credentials that were issued before this wall clock in milliseconds.
    #[must_use]
    pub fn before(moment_ms: u64) -> Self {
        Self {
            before_ms: Some(moment_ms),
            ids: BTreeMap::new(),
        }
    }

    /// One credential, which expires anyway at this wall clock in milliseconds, if that is known.
    #[must_use]
    pub fn of_id(id: &str, expires_ms: Option<u64>) -> Self {
        Self {
            before_ms: None,
            ids: BTreeMap::from([(id.to_owned(), expires_ms.unwrap_or(0))]),
        }
    }

    /// The wall clock in milliseconds before which all were issued that are revoked.
    #[must_use]
    pub fn before_ms(&self) -> Option<u64> {
        self.before_ms
    }

    /// The ids that are revoked.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.ids.keys().map(String::as_str)
    }

    /// Whether nothing is revoked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.before_ms.is_none() && self.ids.is_empty()
    }

    /// Whether it revokes all that another one revokes.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        let mut ids = other.ids.keys();
        self.before_ms >= other.before_ms && ids.all(|id| self.ids.contains_key(id))
    }

    /// Revokes what another one revokes, too. Returns whether that is new.
    pub fn join(&mut self, other: &Self) -> bool {
        let is_new = !self.includes(other);
        self.before_ms = self.before_ms.max(other.before_ms);
        for (id, expires) in &other.ids {
            let own = self.ids.entry(id.clone()).or_insert(*expires);
            // Of two, the one that is kept longer.
            *own = match *own == 0 || *expires == 0 {
                true => 0,
                false => (*own).max(*expires),
            };
        }
        is_new
    }

    /// Forgets ids that have expired by this wall clock in milliseconds.
    pub fn forget_expired(&mut self, now_ms: u64) {
        self.ids
            .retain(|_, expires| *expires == 0 || *expires > now_ms);
    }

    /// How many entries it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len() + usize::from(self.before_ms.is_some())
    }
}
