//! What all nodes keep although etcd loses it: managed runtimes, their removals, and revocations by the admin API.
//!
//! ```text
//!   listing, events ─▶ Replica: what is known, what etcd has ─▶ changes of what is known
//!   admin calls     ─▶                                        ─▶ writes: what is known and etcd has not
//! ```
//!
//! Keys below the prefix, in one range, in this order:
//!
//! ```text
//!   runtime-removed/<label>               which documents of the label were removed (`removal.rs`)
//!   runtime-revoked/<account>/<runtime>   credentials that the operator has revoked (`revoked.rs`)
//!   runtime/                              written with each change of a document
//!   runtime/<label>                       a document (`document.rs`)
//! ```
//!
//! A listing is merged and never taken for the whole truth: what is known here and absent there was lost, and is written
//! again, unless its removal is known. All that is merged only grows (removals, revocations, tokens of a document), so that
//! nodes come to know one state in whatever order they learn of it. So nothing has to find out whether etcd was restored,
//! and to which state. What nodes have made apart, because etcd had lost it, is removed as one.
//!
//! Versions without removals delete a document together with a write of `runtime/`; a document that vanishes without that
//! was deleted by hand, and is written again. A node that did not watch when such a version has deleted one writes it again,
//! unless another node has seen it and has written the removal: a listing cannot tell that from a loss.

mod document;
mod documents;
mod removal;
mod revoked;
mod revoked_set;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tunnel_etcd::{Compare, Event, KeyValue, RequestOp, TxnRequest, prefix_end};

pub use self::{document::Merge, revoked::RevokedCredentials, revoked_set::Pair};
use self::{documents::Documents, revoked_set::RevokedSet};

/// Records in one write. Each is compared and written by its document and its removal; etcd takes 128 operations.
const BATCH: usize = 30;

/// Most documents that one transaction changes.
pub const CHANGES: usize = BATCH;

/// Bytes of one write, far below the 1.5 MiB that etcd takes.
const BATCH_BYTES: usize = 512 << 10;

/// Time until a write that has failed, or was refused because of a change that is not known here yet, is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// How long the removal of a document is kept whose tokens are not known, or have no end, in milliseconds: older snapshots are
/// not restored.
pub const UNKNOWN_LIFE_MS: u64 = 400 * 24 * 60 * 60 * 1_000;

/// What one node knows, and what etcd has of it.
#[derive(Debug)]
pub struct Replica {
    keys: Keys,
    /// Whether documents concern this node.
    has_documents: bool,
    documents: Documents,
    revoked: RevokedSet,
    /// The revision of `runtime/`; 0 where there is none.
    mark: i64,
    /// The revision up to which all is known.
    position: i64,
    listings: u64,
    writing: Writing,
}

/// A write of what etcd has not.
#[derive(Debug)]
enum Writing {
    Idle,
    Sent,
    /// Another one when this revision is known, or at this time.
    Waiting(i64, Instant),
}

/// The keys below one prefix.
#[derive(Debug)]
struct Keys {
    prefix: String,
}

/// What a key names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key<'a> {
    Mark,
    Document(&'a str),
    Removal(&'a str),
    Revoked(&'a str),
}

/// What has changed of what is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// The labels of documents, each with its text; `None` for a removal.
    pub documents: Vec<(String, Option<String>)>,
    /// The runtimes whose revocations have changed.
    pub revoked: BTreeSet<Pair>,
}

/// A change of a document by the admin API.
#[derive(Debug, Clone, Copy)]
pub struct DocumentChange<'a> {
    /// The label.
    pub label: &'a str,
    /// The next text, or the removal.
    pub next: Next<'a>,
    /// Revocations that have to be known with it: of tokens that have made room.
    pub revoked: Option<(&'a Pair, &'a RevokedCredentials)>,
    /// The wall clock, in milliseconds.
    pub now_ms: u64,
    /// Random; names a document that is made.
    pub nonce: u64,
}

/// What a document becomes.
#[derive(Debug, Clone, Copy)]
pub enum Next<'a> {
    /// This text.
    Text(&'a str),
    /// Nothing. A document that was removed stays so until this wall clock in milliseconds, whatever etcd is restored to.
    Removed {
        /// The end of the life of its last token.
        until_ms: u64,
    },
}

impl Replica {
    /// Knows nothing yet. `merge` puts two texts of one document together. The seed is random: nodes write in different orders,
    /// so that they seldom write the same at once.
    #[must_use]
    pub fn new(prefix: &str, has_documents: bool, seed: u64, merge: Merge) -> Self {
        Self {
            keys: Keys {
                prefix: prefix.to_owned(),
            },
            has_documents,
            documents: Documents::new(seed, merge),
            revoked: RevokedSet::default(),
            mark: 0,
            position: 0,
            listings: 0,
            writing: Writing::Idle,
        }
    }

    /// The range of all keys: the first one, and the first one behind it.
    #[must_use]
    pub fn range(&self) -> (Bytes, Bytes) {
        let (first, last) = match self.has_documents {
            true => (self.keys.removal(""), self.keys.mark()),
            false => (self.keys.revoked(""), self.keys.revoked("")),
        };
        (first.into(), prefix_end(last.as_bytes()))
    }

    /// The revision up to which all is known, since the last listing.
    #[must_use]
    pub fn position(&self) -> i64 {
        self.position
    }

    /// How often all keys were listed.
    #[must_use]
    pub fn listings(&self) -> u64 {
        self.listings
    }

    /// Whether etcd has all that is known here.
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.documents.unwritten().is_empty() && self.revoked.unwritten().is_empty()
    }

    /// All keys that etcd has at this revision. `now_ms` is the wall clock.
    pub fn on_listed(&mut self, keys: &[KeyValue], revision: i64, now_ms: u64) -> Changes {
        let mut changes = Changes::default();
        self.mark = 0;
        self.documents.begin_listing(now_ms);
        self.revoked.begin_listing();
        for kv in keys {
            self.put(kv, now_ms, &mut changes);
        }
        self.documents.end_listing();
        self.revoked.end_listing();
        self.position = revision;
        self.listings += 1;
        if let Writing::Waiting(..) = self.writing {
            self.writing = Writing::Idle;
        }
        changes
    }

    /// Changes of keys, in order, after a listing. `up_to` is the revision up to which all is told; `None` when more of the
    /// last one follow.
    pub fn on_changed(&mut self, events: &[Event], up_to: Option<i64>, now_ms: u64) -> Changes {
        let mut changes = Changes::default();
        let mut revision = 0;
        for event in events {
            let Some(kv) = &event.kv else { continue };
            if kv.mod_revision > revision {
                self.end_revision(revision, now_ms, &mut changes);
                revision = kv.mod_revision;
            }
            match event.is_delete() {
                true => self.delete(kv, now_ms),
                false => self.put(kv, now_ms, &mut changes),
            }
        }
        if let Some(up_to) = up_to {
            self.end_revision(up_to, now_ms, &mut changes);
            self.position = self.position.max(up_to);
            if let Writing::Waiting(revision, _) = self.writing
                && self.position >= revision
            {
                self.writing = Writing::Idle;
            }
        }
        changes
    }

    /// All of the revisions up to this one is told.
    fn end_revision(&mut self, revision: i64, now_ms: u64, changes: &mut Changes) {
        let mark = self.mark;
        self.documents.end_revision(revision, mark, now_ms, changes);
    }

    fn put(&mut self, kv: &KeyValue, now_ms: u64, changes: &mut Changes) {
        match self.keys.parse(&kv.key) {
            Some(Key::Mark) => self.mark = kv.mod_revision,
            Some(Key::Document(label)) => self.documents.put(label, kv, now_ms, changes),
            Some(Key::Removal(label)) => self.documents.put_removal(label, kv, now_ms, changes),
            Some(Key::Revoked(pair)) => self.revoked.put(pair, kv, now_ms, &mut changes.revoked),
            None => {}
        }
    }

    fn delete(&mut self, kv: &KeyValue, now_ms: u64) {
        match self.keys.parse(&kv.key) {
            Some(Key::Mark) => self.mark = 0,
            Some(Key::Document(label)) => self.documents.delete(label, kv.mod_revision),
            Some(Key::Removal(label)) => self.documents.delete_removal(label, now_ms),
            Some(Key::Revoked(pair)) => self.revoked.delete(pair),
            None => {}
        }
    }

    /// The text of a document.
    #[must_use]
    pub fn document(&self, label: &str) -> Option<&str> {
        self.documents.text(label)
    }

    /// The labels of all documents.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.documents.labels()
    }

    /// What is revoked of a runtime.
    #[must_use]
    pub fn revoked(&self, pair: &Pair) -> Option<&RevokedCredentials> {
        self.revoked.get(pair)
    }

    /// Whether etcd has all that is revoked of a runtime.
    #[must_use]
    pub fn is_revoked_durably(&self, pair: &Pair) -> bool {
        self.listings > 0 && !self.revoked.unwritten().contains(pair)
    }

    /// Revokes credentials. They are known at once, and written next. Returns whether that is new.
    pub fn revoke(&mut self, pair: &Pair, more: &RevokedCredentials) -> bool {
        self.revoked.add(pair, more)
    }

    /// The transaction that changes documents, up to [`CHANGES`] of them, if etcd has what this node knows it to have. It is known
    /// when its events come.
    #[must_use]
    pub fn change(&self, changes: &[DocumentChange<'_>]) -> TxnRequest {
        let mut txn = TxnRequest {
            compare: vec![Compare::mod_revision(self.keys.mark(), self.mark)],
            success: Vec::new(),
            failure: vec![RequestOp::get(self.keys.mark())],
        };
        for change in changes {
            self.documents.change(&self.keys, change, &mut txn);
            if let Some((pair, more)) = change.revoked {
                self.revoked.write_with(&self.keys, pair, more, &mut txn);
            }
        }
        txn.success.push(self.write_mark());
        txn
    }

    fn write_mark(&self) -> RequestOp {
        RequestOp::put(self.keys.mark(), Bytes::new(), 0)
    }

    /// When [`Self::next_write`] is to be asked again, if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.writing {
            Writing::Waiting(_, at) if !self.is_written() => Some(at),
            _ => None,
        }
    }

    /// The next transaction that writes what is known and etcd has not; its end is told by [`Self::on_written`].
    pub fn next_write(&mut self, now: Instant) -> Option<TxnRequest> {
        match self.writing {
            Writing::Sent => return None,
            Writing::Waiting(_, at) if now < at => return None,
            _ => {}
        }
        if self.listings == 0 {
            return None;
        }
        let mut batch = Batch::default();
        self.revoked.write(&self.keys, &mut batch);
        let revoked = batch.records;
        self.documents.write(&self.keys, &mut batch);
        if batch.records == 0 {
            return None;
        }
        if batch.records > revoked {
            batch.txn.success.push(self.write_mark());
        }
        self.writing = Writing::Sent;
        Some(batch.txn)
    }

    /// The write that [`Self::next_write`] has given was made in this revision; `None` if it was not, or that is not known.
    pub fn on_written(&mut self, made: Option<i64>, now: Instant) {
        // What it has not written, or somebody else has, comes as an event.
        let known_at = made.unwrap_or_else(|| self.position.saturating_add(1));
        self.writing = match self.position >= known_at {
            true => Writing::Idle,
            false => Writing::Waiting(known_at, now + PAUSE),
        };
    }
}

/// A write of several records.
#[derive(Debug, Default)]
struct Batch {
    txn: TxnRequest,
    records: usize,
    bytes: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.records >= BATCH || self.bytes >= BATCH_BYTES
    }
}

impl Keys {
    fn mark(&self) -> String {
        format!("{}runtime/", self.prefix)
    }

    fn document(&self, label: &str) -> String {
        format!("{}runtime/{label}", self.prefix)
    }

    fn removal(&self, label: &str) -> String {
        format!("{}runtime-removed/{label}", self.prefix)
    }

    fn revoked(&self, pair: &str) -> String {
        format!("{}runtime-revoked/{pair}", self.prefix)
    }

    fn parse<'a>(&self, key: &'a [u8]) -> Option<Key<'a>> {
        let key = std::str::from_utf8(key).ok()?;
        let (kind, name) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        match (kind, name) {
            ("runtime", "") => Some(Key::Mark),
            ("runtime", label) => Some(Key::Document(label)),
            (_, "") => None,
            ("runtime-removed", label) => Some(Key::Removal(label)),
            ("runtime-revoked", pair) => Some(Key::Revoked(pair)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
