//! Documents and removals of all labels: what is known, and what etcd has of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use tunnel_etcd::{Compare, KeyValue, RequestOp, TxnRequest};

use super::{
    Batch, Changes, DocumentChange, Keys, Next,
    document::{Document, Merge},
    removal::Removal,
};

/// Most labels whose removals are kept. Beyond that a document is deleted as by versions without removals.
const REMOVALS: usize = 100_000;

/// How long a removal of which no entry counts any more stays in etcd, in milliseconds, since clocks differ.
const ENDED_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

/// All labels.
#[derive(Debug)]
pub(super) struct Documents {
    entries: BTreeMap<String, Entry>,
    /// Labels of which etcd has something else than what is known, in the order in which this node writes them.
    unwritten: BTreeSet<(u64, String)>,
    /// Labels whose documents were deleted in a revision of which not all is told.
    deleted: BTreeMap<String, i64>,
    /// How many labels have a removal.
    removals: usize,
    seed: u64,
    merge: Merge,
}

/// One label.
#[derive(Debug, Default)]
struct Entry {
    known: Option<Document>,
    /// The revision in which etcd had it last.
    known_at: i64,
    removal: Removal,
    found: Option<Found>,
    found_removal: Option<Found>,
}

/// What etcd has at a key.
#[derive(Debug, Clone, Copy)]
struct Found {
    revision: i64,
    /// The revision in which the key was made.
    made: i64,
    /// Whether it is what is known.
    is_known: bool,
}

impl Entry {
    fn is_written(&self) -> bool {
        let document = match (&self.known, self.found) {
            (Some(_), Some(found)) => found.is_known,
            (None, None) => true,
            _ => false,
        };
        document && self.has_written_removal()
    }

    fn has_written_removal(&self) -> bool {
        match self.found_removal {
            Some(found) => found.is_known,
            None => self.removal.is_empty(),
        }
    }

    fn is_empty(&self) -> bool {
        self.known.is_none()
            && self.removal.is_empty()
            && self.found.is_none()
            && self.found_removal.is_none()
    }

    /// Forgets a document that was removed. Returns whether there was one.
    fn drop_removed(&mut self) -> bool {
        let removal = &self.removal;
        let removed = self.known.take_if(|known| removal.covers(&known.makings));
        removed.is_some()
    }
}

impl Documents {
    pub(super) fn new(seed: u64, merge: Merge) -> Self {
        Self {
            entries: BTreeMap::new(),
            unwritten: BTreeSet::new(),
            deleted: BTreeMap::new(),
            removals: 0,
            seed,
            merge,
        }
    }

    pub(super) fn text(&self, label: &str) -> Option<&str> {
        let known = self.entries.get(label)?.known.as_ref()?;
        Some(&known.text)
    }

    pub(super) fn labels(&self) -> impl Iterator<Item = &str> {
        let known = self.entries.iter().filter(|(_, it)| it.known.is_some());
        known.map(|(label, _)| label.as_str())
    }

    pub(super) fn unwritten(&self) -> &BTreeSet<(u64, String)> {
        &self.unwritten
    }

    /// Changes an entry, and what follows from it.
    fn update<R>(&mut self, label: &str, update: impl FnOnce(&mut Entry) -> R) -> R {
        let mut hasher = DefaultHasher::new();
        (self.seed, label).hash(&mut hasher);
        let place = (hasher.finish(), label.to_owned());
        let entry = self.entries.entry(label.to_owned()).or_default();
        let had_removal = !entry.removal.is_empty();
        let result = update(entry);
        self.removals += usize::from(!entry.removal.is_empty());
        self.removals -= usize::from(had_removal);
        match entry.is_written() {
            true => self.unwritten.remove(&place),
            false => self.unwritten.insert(place),
        };
        if entry.is_empty() {
            self.entries.remove(label);
        }
        result
    }

    pub(super) fn begin_listing(&mut self, now_ms: u64) {
        self.deleted.clear();
        for entry in self.entries.values_mut() {
            entry.found = None;
            entry.found_removal = None;
            let had_removal = !entry.removal.is_empty();
            entry.removal.forget_ended(now_ms);
            self.removals -= usize::from(had_removal && entry.removal.is_empty());
        }
    }

    /// What etcd has not was lost, and is written again.
    pub(super) fn end_listing(&mut self) {
        let labels: Vec<String> = self.entries.keys().cloned().collect();
        for label in labels {
            self.update(&label, |_| ());
        }
    }

    /// etcd has this document.
    pub(super) fn put(&mut self, label: &str, kv: &KeyValue, now_ms: u64, changes: &mut Changes) {
        self.deleted.remove(label);
        let merge = self.merge;
        let is_changed = self.update(label, |entry| entry.on_document(kv, merge, now_ms));
        if is_changed {
            self.changed(label, changes);
        }
    }

    fn changed(&self, label: &str, changes: &mut Changes) {
        let text = self.text(label).map(str::to_owned);
        changes.documents.push((label.to_owned(), text));
    }

    /// etcd has this document no more. Whether it is removed is known at the end of the revision.
    pub(super) fn delete(&mut self, label: &str, revision: i64) {
        let is_known = self.update(label, |entry| {
            entry.found = None;
            entry.known.is_some()
        });
        if is_known {
            self.deleted.insert(label.to_owned(), revision);
        }
    }

    /// All of the revisions up to this one is told. `mark` is that of the last change by an admin API. A document that was deleted
    /// in it alone was removed by a version without removals; one that was deleted in another one was lost, and with a removal
    /// that does not cover it, it is another one that was removed.
    pub(super) fn end_revision(
        &mut self,
        revision: i64,
        mark: i64,
        now_ms: u64,
        changes: &mut Changes,
    ) {
        if self.deleted.is_empty() {
            return;
        }
        let labels = self.deleted.iter().filter(|(_, at)| **at <= revision);
        let labels: Vec<(String, i64)> = labels.map(|(label, at)| (label.clone(), *at)).collect();
        for (label, deleted) in labels {
            self.deleted.remove(&label);
            let is_alone = self.entries.get(&label).is_some_and(|entry| {
                let removal = entry.found_removal.map(|found| found.revision);
                entry.known.is_some() && removal != Some(deleted)
            });
            if deleted == mark && is_alone {
                self.remove_deleted(&label, now_ms, changes);
            }
        }
    }

    /// A version without removals has removed a document: the removal is written for it.
    fn remove_deleted(&mut self, label: &str, now_ms: u64, changes: &mut Changes) {
        let has_room = self.removals < REMOVALS;
        self.update(label, |entry| {
            let makings = entry.makings();
            entry.known = None;
            if has_room {
                let until_ms = now_ms.saturating_add(super::UNKNOWN_LIFE_MS);
                entry.removal.add(&makings, until_ms);
            }
        });
        self.changed(label, changes);
    }

    /// etcd has this removal.
    pub(super) fn put_removal(
        &mut self,
        label: &str,
        kv: &KeyValue,
        now_ms: u64,
        changes: &mut Changes,
    ) {
        let found = Removal::read(&kv.value);
        let is_changed = self.update(label, |entry| {
            let mut lasting = found.clone();
            lasting.forget_ended(now_ms);
            entry.removal.join(&lasting);
            let has_ended = found.until_ms().saturating_add(ENDED_MS) < now_ms;
            entry.found_removal = Some(Found {
                revision: kv.mod_revision,
                made: kv.create_revision,
                is_known: found.includes(&entry.removal)
                    && !(has_ended && entry.removal.is_empty()),
            });
            entry.drop_removed()
        });
        if is_changed {
            self.changed(label, changes);
        }
    }

    /// etcd has a removal no more.
    pub(super) fn delete_removal(&mut self, label: &str, now_ms: u64) {
        self.update(label, |entry| {
            entry.removal.forget_ended(now_ms);
            entry.found_removal = None;
        });
    }

    /// Writes what etcd has not.
    pub(super) fn write(&self, keys: &Keys, batch: &mut Batch) {
        for (_, label) in &self.unwritten {
            if batch.is_full() {
                return;
            }
            let Some(entry) = self.entries.get(label) else {
                continue;
            };
            // Whether it was removed is not known yet.
            if self.deleted.contains_key(label) {
                continue;
            }
            batch.records += 1;
            entry.compare(keys, label, &mut batch.txn);
            let removal = keys.removal(label);
            let operation = match entry.removal.is_empty() {
                true => RequestOp::delete(removal),
                false => RequestOp::put(removal, entry.removal.value(), 0),
            };
            batch.txn.success.push(operation);
            let document = keys.document(label);
            let operation = match &entry.known {
                Some(known) => {
                    batch.bytes += known.text.len();
                    RequestOp::put(document, known.value(), 0)
                }
                None => RequestOp::delete(document),
            };
            batch.txn.success.push(operation);
        }
    }

    /// Adds a change of a document to a transaction.
    pub(super) fn change(&self, keys: &Keys, change: &DocumentChange<'_>, txn: &mut TxnRequest) {
        let label = change.label;
        let nothing = Entry::default();
        let entry = self.entries.get(label).unwrap_or(&nothing);
        entry.compare(keys, label, txn);
        let known = entry.known.as_ref();
        match change.next {
            Next::Text(text) => {
                let written = known.map_or(0, |known| known.written_ms.saturating_add(1));
                let makings = known.map(|known| known.makings.clone());
                let next = Document {
                    text: text.to_owned(),
                    written_ms: change.now_ms.max(written),
                    makings: makings.unwrap_or_else(|| [format!("{:016x}", change.nonce)].into()),
                };
                // Before what is made, so that nobody takes it for what was removed.
                if !entry.has_written_removal() {
                    let removal = RequestOp::put(keys.removal(label), entry.removal.value(), 0);
                    txn.success.push(removal);
                }
                txn.success
                    .push(RequestOp::put(keys.document(label), next.value(), 0));
            }
            Next::Removed { until_ms } => {
                let mut removal = entry.removal.clone();
                if self.removals < REMOVALS {
                    removal.add(&entry.makings(), until_ms);
                    txn.success
                        .push(RequestOp::put(keys.removal(label), removal.value(), 0));
                }
                txn.success.push(RequestOp::delete(keys.document(label)));
            }
        }
    }
}

impl Entry {
    /// Holds if etcd has what is found.
    fn compare(&self, keys: &Keys, label: &str, txn: &mut TxnRequest) {
        let revision = |found: Option<Found>| found.map_or(0, |found| found.revision);
        let document = Compare::mod_revision(keys.document(label), revision(self.found));
        let removal = Compare::mod_revision(keys.removal(label), revision(self.found_removal));
        txn.compare.extend([document, removal]);
    }

    /// etcd has this document. Returns whether what is known has changed.
    fn on_document(&mut self, kv: &KeyValue, merge: Merge, now_ms: u64) -> bool {
        let mut read = Document::read(&kv.value);
        if read.makings.is_empty() {
            read = self.unnamed(read, kv);
        }
        let is_removed = self.removal.covers(&read.makings);
        let before = self.known.as_ref().map(|known| known.text.clone());
        let mut is_known = !is_removed;
        if !is_removed {
            let is_newer = |known: &Document| {
                let order = |document: &Document, revision| (document.written_ms, revision);
                order(known, self.known_at) > order(&read, kv.mod_revision)
            };
            let next = match &self.known {
                None => read.clone(),
                Some(known) if is_newer(known) => known.merged(&read, merge, now_ms),
                Some(known) => read.merged(known, merge, now_ms),
            };
            is_known = next == read;
            self.known = Some(next);
            self.known_at = kv.mod_revision;
        }
        self.found = Some(Found {
            revision: kv.mod_revision,
            made: kv.create_revision,
            is_known,
        });
        before != self.known.as_ref().map(|known| known.text.clone())
    }

    /// A document that a version without the first line has written: it descends from the one that is known, unless it is known
    /// as one that was removed.
    fn unnamed(&self, mut read: Document, kv: &KeyValue) -> Document {
        let own = unnamed_making(kv.create_revision);
        match &self.known {
            Some(known) if !self.removal.has(&own) => {
                read.written_ms = known.written_ms;
                read.makings = known.makings.clone();
            }
            _ => read.makings = [own].into(),
        }
        read
    }

    /// The makings of what is known, and that of the key in etcd.
    fn makings(&self) -> BTreeSet<String> {
        let known = self.known.iter().flat_map(|known| known.makings.clone());
        let found = self.found.map(|found| unnamed_making(found.made));
        known.chain(found).collect()
    }
}

/// The name of the making of a document without a first line, whose key was made in this revision: a restored etcd has the key
/// with that revision.
fn unnamed_making(made: i64) -> String {
    format!("made-{made}")
}
