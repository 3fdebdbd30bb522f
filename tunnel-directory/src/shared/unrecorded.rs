//! Where what this node holds differs from its records, because etcd is away: kept up to date with each change, so that a
//! report has only what has changed since the last one.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::{Duration, Instant},
};

use super::SharedDirectory;
use crate::{
    names::RuntimeLabel,
    peer_reports::{HoldDifference, UnrecordedHold},
    record::HeldState,
};

/// How long it is remembered that runtimes have records again, after the last of all has one. A link that has not sent
/// that by then sends it nevertheless, since it knows what it has sent.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The runtimes of which this node holds something else than its records say.
#[derive(Debug)]
pub(super) struct Unrecorded {
    /// Also those that have the right record again: `None`.
    differences: BTreeMap<RuntimeLabel, (u64, Option<HoldDifference>)>,
    /// The labels by the number of their last change.
    changes: BTreeMap<u64, RuntimeLabel>,
    last_change: u64,
    /// The last change that is forgotten.
    forgotten: u64,
    /// The number of differences.
    count: usize,
    changed_at: Instant,
}

/// What was sent on one link.
#[derive(Debug, Clone, Default)]
pub(super) struct SentHolds {
    differing: BTreeSet<RuntimeLabel>,
    last_change: u64,
}

/// What has changed for one link.
#[derive(Debug, Default)]
pub(super) struct HoldChanges {
    /// The runtimes; `None` for those of which the record says what is held.
    pub(super) changed: Vec<(RuntimeLabel, Option<HoldDifference>)>,
    last_change: u64,
    /// Further ones follow.
    pub(super) has_more: bool,
}

impl SentHolds {
    pub(super) fn on_sent(&mut self, changes: HoldChanges) {
        self.last_change = changes.last_change;
        for (label, difference) in changes.changed {
            match difference {
                Some(_) => self.differing.insert(label),
                None => self.differing.remove(&label),
            };
        }
    }
}

impl Unrecorded {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            differences: BTreeMap::new(),
            changes: BTreeMap::new(),
            last_change: 0,
            forgotten: 0,
            count: 0,
            changed_at: now,
        }
    }

    fn set(&mut self, label: &RuntimeLabel, difference: Option<HoldDifference>) {
        let known = self.differences.get(label);
        if known.and_then(|(_, known)| known.as_ref()) == difference.as_ref() {
            return;
        }
        if let Some((change, known)) = known {
            self.changes.remove(change);
            self.count -= usize::from(known.is_some());
        }
        self.last_change += 1;
        self.count += usize::from(difference.is_some());
        self.changes.insert(self.last_change, label.clone());
        let difference = (self.last_change, difference);
        self.differences.insert(label.clone(), difference);
    }

    /// Forgets what has long been over.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.count > 0 || self.changes.is_empty() {
            self.changed_at = now;
        } else if now.saturating_duration_since(self.changed_at) >= REMEMBERED {
            self.differences.clear();
            self.changes.clear();
            self.forgotten = self.last_change;
        }
    }

    /// The next changes for a link on which this was sent, at most so many.
    pub(super) fn next(&self, sent: &SentHolds, most: usize) -> HoldChanges {
        let mut next = HoldChanges {
            changed: Vec::new(),
            last_change: sent.last_change,
            has_more: false,
        };
        if sent.last_change < self.forgotten {
            // Whatever it has sent is over, unless it has changed again since.
            let is_over = |label: &&RuntimeLabel| !self.differences.contains_key(*label);
            let over = sent.differing.iter().filter(is_over).take(most);
            next.changed.extend(over.map(|label| (label.clone(), None)));
            if !next.changed.is_empty() {
                next.has_more = true;
                return next;
            }
            next.last_change = self.forgotten;
        }
        let later = (Bound::Excluded(next.last_change), Bound::Unbounded);
        for (change, label) in self.changes.range(later) {
            if next.changed.len() >= most {
                next.has_more = true;
                break;
            }
            next.last_change = *change;
            let known = self.differences.get(label);
            let difference = known.and_then(|(_, difference)| difference.clone());
            if difference.is_some() || sent.differing.contains(label) {
                next.changed.push((label.clone(), difference));
            }
        }
        next
    }
}

impl SharedDirectory {
    /// Notes whether what this node holds of a runtime differs from its record. Other nodes are told while etcd is away: else
    /// the record follows at once.
    pub(super) fn update_unrecorded(&mut self, label: &RuntimeLabel) {
        let record = self.table.held_by(label, &self.run);
        let difference = match (self.holds.get(label), record) {
            (Some(hold), record)
                if hold.is_provisional() || record != Some((hold.epoch(), hold.state())) =>
            {
                Some(HoldDifference::Held(UnrecordedHold {
                    claim: hold.claim.clone(),
                    account: hold.account.clone(),
                    name: hold.name.clone(),
                    is_leaving: hold.state() == HeldState::Leaving,
                }))
            }
            (None, Some(_)) => Some(HoldDifference::Released),
            _ => None,
        };
        let is_held = self
            .holds
            .get(label)
            .is_some_and(|hold| !hold.is_provisional());
        self.table.set_released(label, record.is_some() && !is_held);
        if difference.is_none() || self.may_be_away() {
            self.unrecorded.set(label, difference);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        claim::{Claim, Epoch},
        fixtures::{Runtime, instance, start},
    };

    fn hold(runtime: &Runtime) -> HoldDifference {
        HoldDifference::Held(UnrecordedHold {
            claim: Claim {
                instance: instance(1),
                epoch: Epoch::from_number(5),
            },
            account: runtime.account.clone(),
            name: runtime.name.clone(),
            is_leaving: false,
        })
    }

    /// Sends what is to be sent. Returns the labels, each with whether it is held without a record.
    fn send(unrecorded: &Unrecorded, sent: &mut SentHolds) -> Vec<(String, bool)> {
        let changes = unrecorded.next(sent, 10);
        let labels = changes.changed.iter();
        let labels = labels.map(|(label, hold)| (label.to_string(), hold.is_some()));
        let labels = labels.collect();
        sent.on_sent(changes);
        labels
    }

    #[test]
    fn each_link_is_sent_each_change_once() {
        let (one, two) = (Runtime::new("acme", "a"), Runtime::new("acme", "b"));
        let mut unrecorded = Unrecorded::new(start());
        let (mut early, mut late) = (SentHolds::default(), SentHolds::default());
        unrecorded.set(&one.label, Some(hold(&one)));
        let first = ("acme-a".to_owned(), true);
        assert_eq!(send(&unrecorded, &mut early), [first]);
        assert_eq!(send(&unrecorded, &mut early), []);
        unrecorded.set(&one.label, None);
        unrecorded.set(&two.label, Some(hold(&two)));
        let (gone, second) = (("acme-a".to_owned(), false), ("acme-b".to_owned(), true));
        assert_eq!(send(&unrecorded, &mut early), [gone, second.clone()]);
        assert_eq!(
            send(&unrecorded, &mut late),
            [second],
            "it has not been told"
        );
    }

    #[test]
    fn a_link_that_is_behind_takes_back_what_is_forgotten() {
        let (one, two) = (Runtime::new("acme", "a"), Runtime::new("acme", "b"));
        let begin = start();
        let mut unrecorded = Unrecorded::new(begin);
        let mut sent = SentHolds::default();
        for runtime in [&one, &two] {
            unrecorded.set(&runtime.label, Some(hold(runtime)));
        }
        assert_eq!(send(&unrecorded, &mut sent).len(), 2);
        for runtime in [&one, &two] {
            unrecorded.set(&runtime.label, None);
        }
        unrecorded.tick(begin);
        unrecorded.tick(begin + REMEMBERED);
        assert!(unrecorded.differences.is_empty());
        unrecorded.set(&two.label, Some(hold(&two)));
        assert_eq!(send(&unrecorded, &mut sent), [("acme-a".to_owned(), false)]);
        assert_eq!(send(&unrecorded, &mut sent), [("acme-b".to_owned(), true)]);
        assert_eq!(send(&unrecorded, &mut sent), []);
    }
}
