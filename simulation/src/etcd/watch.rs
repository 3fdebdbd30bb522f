//! Watches at members.

use std::collections::BTreeMap;

use tunnel_etcd::{EtcdError, WatchReport};

use super::{Etcd, MemberState, name, unreachable};

/// Names a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(u64);

#[derive(Debug, Default)]
pub(super) struct Watches {
    open: BTreeMap<WatchId, Watch>,
    last: u64,
}

#[derive(Debug)]
struct Watch {
    member: usize,
    /// The first revision that was not reported.
    next: i64,
}

impl Watches {
    /// Ends the watches at a member.
    pub(super) fn end_at(&mut self, member: usize) {
        self.open.retain(|_, watch| watch.member != member);
    }
}

impl Etcd {
    /// Begins a watch of all keys from a revision on, at a member. As etcd does, it accepts any revision, and the watch ends by
    /// its first report if that one is compacted.
    ///
    /// # Errors
    /// When the member does not run, or has no leader. `Ok(None)`: nothing comes.
    pub fn watch(&mut self, member: usize, from: i64) -> Result<Option<WatchId>, EtcdError> {
        if self.is_frozen() {
            return Ok(None);
        }
        match self.member(member) {
            MemberState::Down => Err(unreachable(member)),
            _ if !self.has_leader(member) => Err(EtcdError::Unreachable {
                member: name(member),
                reason: "etcdserver: no leader".to_owned(),
            }),
            _ => {
                self.watches.last += 1;
                let id = WatchId(self.watches.last);
                self.watches.open.insert(id, Watch { member, next: from });
                Ok(Some(id))
            }
        }
    }

    /// Ends a watch that its client has dropped.
    pub fn end_watch(&mut self, id: WatchId) {
        self.watches.open.remove(&id);
    }

    /// What a watch has to report now: the changes since its last report. `None` if there are none, or the member is silent.
    ///
    /// # Errors
    /// When the watch has ended.
    pub fn report(&mut self, id: WatchId) -> Result<Option<WatchReport>, EtcdError> {
        if self.is_frozen() {
            return Ok(None);
        }
        let Some(watch) = self.watches.open.get_mut(&id) else {
            return Err(EtcdError::Unreachable {
                member: "http://etcd".to_owned(),
                reason: "the watch has ended".to_owned(),
            });
        };
        let applied = self.members[watch.member].applied;
        if applied < watch.next {
            return Ok(None);
        }
        let events = self.store.events(watch.next, applied);
        if events.is_err() {
            self.watches.open.remove(&id);
        } else {
            watch.next = applied + 1;
        }
        let events = events?;
        Ok((!events.is_empty()).then_some(WatchReport::Events {
            events,
            up_to: Some(applied),
        }))
    }

    /// The answer to a progress request on a watch: the member's revision, whether or not all changes up to it have been
    /// reported. `None` if the member is silent.
    #[must_use]
    pub fn progress(&self, id: WatchId) -> Option<WatchReport> {
        let watch = self.watches.open.get(&id).filter(|_| !self.is_frozen())?;
        let revision = self.members[watch.member].applied;
        Some(WatchReport::Alive { revision })
    }
}
