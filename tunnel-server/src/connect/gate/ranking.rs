//! Addresses or networks in the order of a key, of which each has at most one.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

/// Addresses or networks in an order.
#[derive(Debug)]
pub(super) struct Ranking<K> {
    keys: HashMap<IpAddr, K>,
    order: BTreeSet<(K, IpAddr)>,
}

impl<K> Default for Ranking<K> {
    fn default() -> Self {
        Self {
            keys: HashMap::new(),
            order: BTreeSet::new(),
        }
    }
}

impl<K: Copy + Ord> Ranking<K> {
    /// Gives one its key, or takes it out.
    pub(super) fn set(&mut self, one: IpAddr, key: Option<K>) {
        let before = match key {
            Some(key) => self.keys.insert(one, key),
            None => self.keys.remove(&one),
        };
        if before == key {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, one));
        }
        if let Some(key) = key {
            self.order.insert((key, one));
        }
    }

    /// The entry of one.
    pub(super) fn entry(&self, one: IpAddr) -> Option<(K, IpAddr)> {
        Some((*self.keys.get(&one)?, one))
    }

    /// All, from the least.
    pub(super) fn iter(&self) -> impl Iterator<Item = (K, IpAddr)> {
        self.order.iter().copied()
    }

    /// The least.
    pub(super) fn first(&self) -> Option<(K, IpAddr)> {
        self.order.first().copied()
    }

    /// The greatest.
    pub(super) fn last(&self) -> Option<(K, IpAddr)> {
        self.order.last().copied()
    }
}
