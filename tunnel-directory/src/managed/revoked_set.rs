//! Revocations of all runtimes, and which of them etcd has.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use tunnel_etcd::{Compare, KeyValue, RequestOp, TxnRequest};

use super::{Batch, Keys, revoked::RevokedCredentials};
use crate::names::{AccountName, RuntimeName};

/// How long after its expiry a revoked credential is kept, in milliseconds, since clocks differ.
const KEPT_AFTER_MS: u64 = 24 * 60 * 60 * 1_000;

/// A runtime by its account and its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    account: AccountName,
    name: RuntimeName,
}

/// Revocations by their runtimes.
#[derive(Debug, Default)]
pub(super) struct RevokedSet {
    known: BTreeMap<Pair, RevokedCredentials>,
    /// The revision of each record in etcd.
    found: BTreeMap<Pair, i64>,
    /// Those of which etcd has no record, or one that revokes less.
    unwritten: BTreeSet<Pair>,
}

impl Pair {
    /// The runtime of these names.
    #[must_use]
    pub fn new(account: &AccountName, name: &RuntimeName) -> Self {
        Self {
            account: account.clone(),
            name: name.clone(),
        }
    }

    /// The account.
    #[must_use]
    pub fn account(&self) -> &AccountName {
        &self.account
    }

    /// The runtime's name.
    #[must_use]
    pub fn name(&self) -> &RuntimeName {
        &self.name
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.account, self.name)
    }
}

impl FromStr for Pair {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (account, name) = text.split_once('/').ok_or(())?;
        Ok(Self {
            account: account.parse().map_err(|_| ())?,
            name: name.parse().map_err(|_| ())?,
        })
    }
}

impl RevokedSet {
    pub(super) fn get(&self, pair: &Pair) -> Option<&RevokedCredentials> {
        self.known.get(pair)
    }

    pub(super) fn unwritten(&self) -> &BTreeSet<Pair> {
        &self.unwritten
    }

    /// Revokes more. Returns whether it is new.
    pub(super) fn add(&mut self, pair: &Pair, more: &RevokedCredentials) -> bool {
        let is_new = self.known.entry(pair.clone()).or_default().join(more);
        if is_new {
            self.unwritten.insert(pair.clone());
        }
        is_new
    }

    pub(super) fn begin_listing(&mut self) {
        self.found.clear();
    }

    pub(super) fn end_listing(&mut self) {
        let absent = self
            .known
            .keys()
            .filter(|pair| !self.found.contains_key(*pair));
        self.unwritten.extend(absent.cloned());
    }

    /// etcd has this record.
    pub(super) fn put(
        &mut self,
        pair: &str,
        kv: &KeyValue,
        now_ms: u64,
        changes: &mut BTreeSet<Pair>,
    ) {
        let Ok(pair) = pair.parse::<Pair>() else {
            return;
        };
        // What this version cannot read revokes nothing, and is written again with what is known.
        let found: RevokedCredentials = serde_json::from_slice(&kv.value).unwrap_or_default();
        let known = self.known.entry(pair.clone()).or_default();
        let mut lasting = found.clone();
        lasting.forget_expired(now_ms.saturating_sub(KEPT_AFTER_MS));
        if known.join(&lasting) {
            changes.insert(pair.clone());
        }
        known.forget_expired(now_ms.saturating_sub(KEPT_AFTER_MS));
        match found.includes(known) {
            true => self.unwritten.remove(&pair),
            false => self.unwritten.insert(pair.clone()),
        };
        self.found.insert(pair, kv.mod_revision);
    }

    /// etcd has a record of this runtime no more.
    pub(super) fn delete(&mut self, pair: &str) {
        let Ok(pair) = pair.parse::<Pair>() else {
            return;
        };
        self.found.remove(&pair);
        if self.known.get(&pair).is_some_and(|known| !known.is_empty()) {
            self.unwritten.insert(pair);
        }
    }

    /// Writes what etcd has not.
    pub(super) fn write(&self, keys: &Keys, batch: &mut Batch) {
        for pair in &self.unwritten {
            if batch.is_full() {
                return;
            }
            let Some(known) = self.known.get(pair) else {
                continue;
            };
            let length = self.put_record(keys, pair, known, &mut batch.txn);
            batch.records += 1;
            batch.bytes += length;
        }
    }

    /// Writes what is known of a runtime with more.
    pub(super) fn write_with(
        &self,
        keys: &Keys,
        pair: &Pair,
        more: &RevokedCredentials,
        txn: &mut TxnRequest,
    ) {
        let mut record = self.known.get(pair).cloned().unwrap_or_default();
        record.join(more);
        self.put_record(keys, pair, &record, txn);
    }

    /// Returns the length of the record.
    fn put_record(
        &self,
        keys: &Keys,
        pair: &Pair,
        record: &RevokedCredentials,
        txn: &mut TxnRequest,
    ) -> usize {
        let key = keys.revoked(&pair.to_string());
        let found = self.found.get(pair).copied().unwrap_or(0);
        // Serialising it cannot fail.
        let value = serde_json::to_vec(record).unwrap_or_default();
        let length = value.len();
        txn.compare.push(Compare::mod_revision(key.clone(), found));
        txn.success.push(RequestOp::put(key, value, 0));
        length
    }
}
