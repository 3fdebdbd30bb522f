//! What this node holds without a record, because etcd is away: kept up to date with each change, so that a report has
//! only what has changed since the last one.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::{Duration, Instant},
};

use super::SharedDirectory;
use crate::{names::RuntimeLabel, peer_reports::UnrecordedHold, record::HeldState};

/// How long it is remembered that runtimes have records again, after the last of all has one. A link that has not sent
/// that by then sends it nevertheless, since it knows what it has sent.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What this node holds without a record.
#[derive(Debug)]
pub(super) struct Unrecorded {
    /// Also those that have a record again: `None`.
    holds: BTreeMap<RuntimeLabel, (u64, Option<UnrecordedHold>)>,
    /// The labels by the number of their last change.
    changes: BTreeMap<u64, RuntimeLabel>,
    last_change: u64,
    /// The last change that is forgotten.
    forgotten: u64,
    /// The number of runtimes without a record.
    count: usize,
    changed_at: Instant,
}

/// What was sent on one link.
#[derive(Debug, Clone, Default)]
pub(super) struct SentHolds {
    held: BTreeSet<RuntimeLabel>,
    last_change: u64,
}

/// What has changed for one link.
#[derive(Debug, Default)]
pub(super) struct HoldChanges {
    /// The runtimes; `None` for those that have a record again, or are not held any more.
    pub(super) changed: Vec<(RuntimeLabel, Option<UnrecordedHold>)>,
    last_change: u64,
}

impl SentHolds {
    pub(super) fn on_sent(&mut self, changes: HoldChanges) {
        self.last_change = changes.last_change;
        for (label, hold) in changes.changed {
            match hold {
                Some(_) => self.held.insert(label),
                None => self.held.remove(&label),
            };
        }
    }
}

impl Unrecorded {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            holds: BTreeMap::new(),
            changes: BTreeMap::new(),
            last_change: 0,
            forgotten: 0,
            count: 0,
            changed_at: now,
        }
    }

    fn set(&mut self, label: &RuntimeLabel, hold: Option<UnrecordedHold>) {
        let known = self.holds.get(label);
        if known.and_then(|(_, known)| known.as_ref()) == hold.as_ref() {
            return;
        }
        if let Some((change, known)) = known {
            self.changes.remove(change);
            self.count -= usize::from(known.is_some());
        }
        self.last_change += 1;
        self.count += usize::from(hold.is_some());
        self.changes.insert(self.last_change, label.clone());
        self.holds.insert(label.clone(), (self.last_change, hold));
    }

    /// Forgets what has long been over.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.count > 0 || self.changes.is_empty() {
            self.changed_at = now;
        } else if now.saturating_duration_since(self.changed_at) >= REMEMBERED {
            self.holds.clear();
            self.changes.clear();
            self.forgotten = self.last_change;
        }
    }

    /// The next changes for a link on which this was sent, at most so many.
    pub(super) fn next(&self, sent: &SentHolds, most: usize) -> HoldChanges {
        let mut next = HoldChanges {
            changed: Vec::new(),
            last_change: sent.last_change,
        };
        if sent.last_change < self.forgotten {
            // Whatever it has sent is over, unless it has changed again since.
            let is_over = |label: &&RuntimeLabel| !self.holds.contains_key(*label);
            let over = sent.held.iter().filter(is_over).take(most);
            next.changed.extend(over.map(|label| (label.clone(), None)));
            if !next.changed.is_empty() {
                return next;
            }
            next.last_change = self.forgotten;
        }
        let later = (Bound::Excluded(next.last_change), Bound::Unbounded);
        for (change, label) in self.changes.range(later) {
            if next.changed.len() >= most {
                break;
            }
            next.last_change = *change;
            let hold = self.holds.get(label).and_then(|(_, hold)| hold.clone());
            if hold.is_some() || sent.held.contains(label) {
                next.changed.push((label.clone(), hold));
            }
        }
        next
    }
}

impl SharedDirectory {
    /// Notes whether this node holds a runtime without a record, while etcd is away, or has a record again.
    pub(super) fn update_unrecorded(&mut self, label: &RuntimeLabel) {
        let hold = self.holds.get(label);
        let unrecorded = hold.filter(|hold| {
            let record = self.table.held_by(label, &self.run);
            record != Some((hold.epoch(), hold.state()))
        });
        let unrecorded = unrecorded.map(|hold| UnrecordedHold {
            claim: hold.claim.clone(),
            account: hold.account.clone(),
            name: hold.name.clone(),
            is_leaving: hold.state() == HeldState::Leaving,
        });
        if unrecorded.is_none() || self.is_away() {
            self.unrecorded.set(label, unrecorded);
        }
    }
}
