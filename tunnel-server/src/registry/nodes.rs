//! What a registry does because there are other server nodes.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tunnel_proto::memory::MemoryAccount;

use super::{Registry, Slot};
use crate::{
    history::Carried,
    metrics::{Metrics, RuntimeMetrics},
    runtimes::{RuntimeEntry, RuntimeLimits},
    tunnel::Tunnel,
};

/// How long the series of a runtime stay after its last request that was forwarded to another node: several scrapes.
pub(super) const FORWARDED_SERIES: Duration = Duration::from_secs(300);

/// Runtimes that are looked at each second to find those whose sessions are all here: a few milliseconds.
const SPREAD_STEP: usize = 2_000;

/// Which runtimes move to other nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Moved {
    /// All of them.
    All,
    /// So many of those that have one session here. Of those with more, one session alone moves ([`Registry::spread`]).
    Surplus(usize),
}

impl Moved {
    fn count(self) -> usize {
        match self {
            Self::All => usize::MAX,
            Self::Surplus(count) => count,
        }
    }
}

/// The runtimes that are still to be looked at in this round.
#[derive(Default)]
pub(crate) struct SpreadWalk {
    slots: Vec<Weak<Slot>>,
}

impl Registry {
    /// The slot of a runtime that this node knows, or another one.
    pub(crate) fn known(&self, label: &str) -> Option<Arc<Slot>> {
        self.slot(label).or_else(|| self.slot_of_other(label))
    }

    /// The slot of a runtime that only other nodes know, which is made if it is held anywhere or was.
    fn slot_of_other(&self, label: &str) -> Option<Arc<Slot>> {
        let (label, account, name) = self.directory.shared()?.runtime(label)?;
        let entry = Arc::new(RuntimeEntry {
            account,
            name,
            label,
            hosts: Vec::new(),
            limits: RuntimeLimits::default(),
            allow_from: None,
        });
        Some(self.slot_of(&mut self.slots.write(), &entry))
    }

    /// Has the sessions of so many runtimes moved to other nodes, those included that are moving already, and at most
    /// `at_once` more; not those that have just come back. Returns the number of runtimes that begin to move.
    pub(crate) fn move_away(&self, runtimes: Moved, at_once: usize) -> usize {
        let tunnels = self.slots().into_iter().filter_map(|slot| slot.tunnel());
        let (moving, staying): (Vec<_>, Vec<_>) = tunnels.partition(|tunnel| tunnel.is_moving());
        let next = runtimes.count().saturating_sub(moving.len()).min(at_once);
        let now = Instant::now().into_std();
        let may_move = |tunnel: &Arc<Tunnel>| match runtimes {
            Moved::All => tunnel.may_move(now),
            Moved::Surplus(_) => tunnel.session_count() == 1 && tunnel.may_move(now),
        };
        let next: Vec<_> = staying.into_iter().filter(may_move).take(next).collect();
        for tunnel in &next {
            tunnel.move_away(now);
        }
        next.len()
    }

    /// Has one session of each runtime moved whose sessions are all here, if that is due: of the next ones of `walk`, and of
    /// `at_once` at most. Returns their number.
    pub(crate) fn spread(&self, walk: &mut SpreadWalk, at_once: usize) -> usize {
        let Some(directory) = self.directory.shared() else {
            return 0;
        };
        if walk.slots.is_empty() {
            walk.slots = self.slots().iter().map(Arc::downgrade).collect();
        }
        let now = Instant::now().into_std();
        let (mut moved, mut left) = (0, SPREAD_STEP);
        while moved < at_once
            && left > 0
            && let Some(slot) = walk.slots.pop()
        {
            left -= 1;
            if let Some(slot) = slot.upgrade()
                && let Some(tunnel) = slot.tunnel()
            {
                let is_held_elsewhere = directory.holders(slot.label.as_str()).is_some();
                moved += usize::from(tunnel.spread(is_held_elsewhere, now));
            }
        }
        moved
    }

    /// To be notified when a link to another node has opened, for which requests may wait.
    pub(crate) fn linked(&self) -> &Arc<Notify> {
        &self.linked
    }

    /// The account of bytes that are received from other nodes and not sent on yet.
    pub(crate) fn link_memory(&self) -> &Arc<MemoryAccount> {
        self.budget.memory()
    }

    /// Divides the limits of a runtime among the nodes that have sessions of it, of which this is one: all of its exchanges
    /// pass through one of them. A node without a session has the whole limits, which the others keep.
    pub(super) fn share_limits(&self, slot: &Slot) {
        let Some(directory) = self.directory.shared() else {
            return;
        };
        let others = directory.holders(slot.label.as_str());
        let others = others.map_or(0, |(_, holders)| {
            holders.iter().filter(|holder| !holder.is_leaving).count()
        });
        let holders = match slot.tunnel() {
            Some(_) => 1 + others,
            None => 1,
        };
        slot.budget.share(holders);
    }
}

impl Slot {
    /// The series of the runtime for a request that is forwarded to another node.
    pub(crate) fn forwarded_series(&self, metrics: &Arc<Metrics>) -> Arc<RuntimeMetrics> {
        let now = Instant::now();
        let mut forwarded = self.forwarded.lock();
        let (series, last) =
            forwarded.get_or_insert_with(|| (metrics.runtime(&self.label, &self.history), now));
        *last = now;
        series.clone()
    }

    /// What the runtime's series have counted, those of its tunnel or of forwarded requests.
    pub(crate) fn carrying(&self) -> Carried {
        let tunnel = self.tunnel().map(|tunnel| tunnel.metrics.clone());
        let forwarded = || Some(self.forwarded.lock().as_ref()?.0.clone());
        let series = tunnel.or_else(forwarded);
        series.map_or_else(Carried::default, |series| series.carried())
    }

    /// Whether a request was forwarded to another node lately; if not, the series go.
    pub(super) fn has_forwarded_lately(&self, now: Instant) -> bool {
        let mut forwarded = self.forwarded.lock();
        forwarded.take_if(|(_, last)| *last + FORWARDED_SERIES < now);
        forwarded.is_some()
    }
}
