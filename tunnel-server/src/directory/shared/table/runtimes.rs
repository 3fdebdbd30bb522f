//! The records of all runtimes, by label.
//!
//! The hash table has one pointer for each runtime, because about half of its slots are empty: with the label in the slot,
//! as in `HashMap`, a million runtimes would take 16 MB more.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use super::entries::RuntimeRecords;
use crate::runtimes::RuntimeLabel;

#[derive(Debug, Default)]
pub(super) struct Runtimes {
    entries: HashTable<Box<Entry>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Entry {
    label: RuntimeLabel,
    records: RuntimeRecords,
}

// On 64 bits: larger ones need the allocator's next class of sizes, 112 bytes.
const _: () = assert!(size_of::<Entry>() <= 96);

impl Runtimes {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get(&self, label: &str) -> Option<&RuntimeRecords> {
        self.get_key_value(label).map(|(_, records)| records)
    }

    pub(super) fn get_key_value(&self, label: &str) -> Option<(&RuntimeLabel, &RuntimeRecords)> {
        let hash = self.hasher.hash_one(label);
        let entry = self
            .entries
            .find(hash, |entry| entry.label.as_str() == label)?;
        Some((&entry.label, &entry.records))
    }

    pub(super) fn get_mut(&mut self, label: &str) -> Option<&mut RuntimeRecords> {
        let hash = self.hasher.hash_one(label);
        let entry = self
            .entries
            .find_mut(hash, |entry| entry.label.as_str() == label)?;
        Some(&mut entry.records)
    }

    /// The records of a runtime, which are made if there are none.
    pub(super) fn get_or_insert(&mut self, label: &RuntimeLabel) -> &mut RuntimeRecords {
        let hasher = &self.hasher;
        let entry = self.entries.entry(
            hasher.hash_one(label.as_str()),
            |entry| entry.label == *label,
            |entry| hasher.hash_one(entry.label.as_str()),
        );
        let new = || {
            Box::new(Entry {
                label: label.clone(),
                records: RuntimeRecords::default(),
            })
        };
        &mut entry.or_insert_with(new).into_mut().records
    }

    /// Removes the entry of a runtime if it has no record.
    pub(super) fn forget_empty(&mut self, label: &str) {
        let hash = self.hasher.hash_one(label);
        let found = self.entries.find_entry(hash, |entry| {
            entry.label.as_str() == label && entry.records.is_empty()
        });
        if let Ok(entry) = found {
            entry.remove();
        }
    }

    /// Lets a function change all records, and removes entries that have none then.
    pub(super) fn update_all(
        &mut self,
        mut update: impl FnMut(&RuntimeLabel, &mut RuntimeRecords),
    ) {
        self.entries.retain(|entry| {
            update(&entry.label, &mut entry.records);
            !entry.records.is_empty()
        });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&RuntimeLabel, &RuntimeRecords)> {
        self.entries
            .iter()
            .map(|entry| (&entry.label, &entry.records))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &RuntimeRecords> {
        self.iter().map(|(_, records)| records)
    }
}
