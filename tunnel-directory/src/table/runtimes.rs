//! The records of all runtimes, by label.
//!
//! They are divided into many small hash tables, so that going through all of them, and growing, is done in steps. Each
//! slot has one pointer, because about half of all slots are empty: with the label in the slot, as in `HashMap`, a million
//! runtimes would take 16 MB more. The hash depends on nothing but the label and the seed, so that runs with equal seeds go
//! through the runtimes in one order.

use std::hash::{DefaultHasher, Hasher};

use hashbrown::{HashTable, hash_table::Entry as TableEntry};

use super::entries::RuntimeRecords;
use crate::names::RuntimeLabel;

/// The number of hash tables: each of a million runtimes' has about a thousand.
pub(super) const PARTS: usize = 1_024;

#[derive(Debug)]
pub(super) struct Runtimes {
    parts: Box<[HashTable<Box<Entry>>]>,
    /// Random, so that nobody can choose labels of one hash.
    seed: u64,
    len: usize,
}

#[derive(Debug)]
struct Entry {
    label: RuntimeLabel,
    records: RuntimeRecords,
}

// On 64 bits: larger ones need the allocator's next class of sizes, 112 bytes.
const _: () = assert!(size_of::<Entry>() <= 96);

impl Runtimes {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            parts: (0..PARTS).map(|_| HashTable::new()).collect(),
            seed,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, label: &str) -> Option<&RuntimeRecords> {
        self.get_key_value(label).map(|(_, records)| records)
    }

    pub(super) fn get_key_value(&self, label: &str) -> Option<(&RuntimeLabel, &RuntimeRecords)> {
        let hash = hash(self.seed, label);
        let entry = self.parts[part_of(hash)].find(hash, |entry| entry.label.as_str() == label)?;
        Some((&entry.label, &entry.records))
    }

    /// The records of a runtime, which are made if there are none.
    pub(super) fn get_or_insert(&mut self, label: &RuntimeLabel) -> &mut RuntimeRecords {
        let seed = self.seed;
        let hash_of_label = hash(seed, label.as_str());
        let part = &mut self.parts[part_of(hash_of_label)];
        let entry = part.entry(
            hash_of_label,
            |entry| entry.label == *label,
            |entry| hash(seed, entry.label.as_str()),
        );
        let entry = match entry {
            TableEntry::Occupied(entry) => entry.into_mut(),
            TableEntry::Vacant(vacant) => {
                self.len += 1;
                let entry = Entry {
                    label: label.clone(),
                    records: RuntimeRecords::default(),
                };
                vacant.insert(Box::new(entry)).into_mut()
            }
        };
        &mut entry.records
    }

    /// Removes the entry of a runtime if it has no record.
    pub(super) fn forget_empty(&mut self, label: &str) {
        let hash = hash(self.seed, label);
        let found = self.parts[part_of(hash)].find_entry(hash, |entry| {
            entry.label.as_str() == label && entry.records.is_empty()
        });
        if let Ok(entry) = found {
            entry.remove();
            self.len -= 1;
        }
    }

    /// Lets a function change all records of a part, and removes entries that have none then.
    pub(super) fn update_part(
        &mut self,
        part: usize,
        mut update: impl FnMut(&RuntimeLabel, &mut RuntimeRecords),
    ) {
        let Some(part) = self.parts.get_mut(part) else {
            return;
        };
        let before = part.len();
        part.retain(|entry| {
            update(&entry.label, &mut entry.records);
            !entry.records.is_empty()
        });
        self.len -= before - part.len();
    }

    /// The records of a part.
    pub(super) fn part(
        &self,
        part: usize,
    ) -> impl Iterator<Item = (&RuntimeLabel, &RuntimeRecords)> {
        let part = self.parts.get(part).into_iter().flatten();
        part.map(|entry| (&entry.label, &entry.records))
    }
}

/// The hash of a label: its lower bits choose the slot, others the part.
fn hash(seed: u64, label: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(seed);
    hasher.write(label.as_bytes());
    hasher.finish()
}

fn part_of(hash: u64) -> usize {
    // A remainder of so few parts is a `usize`.
    usize::try_from((hash >> 32) % PARTS as u64).unwrap_or(0)
}
