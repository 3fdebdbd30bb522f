//! What the gauges show of all runtimes of this node.

use super::Registry;
use crate::gauges::ListedRuntime;

impl Registry {
    /// The number of runtimes that an instance holds.
    pub(crate) fn claims(&self) -> usize {
        self.directory.len()
    }

    /// The number of known runtimes.
    pub(crate) fn len(&self) -> usize {
        self.slots.read().len()
    }

    /// The number of known runtimes in each state.
    pub(crate) fn states(&self) -> [(&'static str, usize); 2] {
        let slots = self.slots.read();
        let online = slots
            .values()
            .filter(|slot| slot.tunnel().is_some())
            .count();
        [("online", online), ("offline", slots.len() - online)]
    }

    /// The runtimes of the runtimes file.
    pub(crate) fn listed(&self) -> Vec<ListedRuntime> {
        let slots = self.slots.read();
        let listed = slots.values().filter(|slot| slot.listed.load().is_some());
        let listed = listed.map(|slot| {
            let state = slot.state.lock();
            ListedRuntime {
                label: slot.label.clone(),
                is_online: state.tunnel.is_some(),
                last_online: state.last_online_at,
            }
        });
        listed.collect()
    }

    /// The number of open exchanges of all runtimes.
    pub(crate) fn open(&self) -> usize {
        self.budget.open()
    }

    /// The number of open upgraded connections of all runtimes.
    pub(crate) fn websockets(&self) -> usize {
        self.budget.websockets()
    }

    /// See [`NodeBudget::used`](crate::budget::NodeBudget::used).
    pub(crate) fn used_limits(&self) -> Vec<(&'static str, (usize, usize))> {
        self.budget.used()
    }

    /// Received bytes of answers that platform clients have not taken yet, of all runtimes.
    pub(crate) fn buffered(&self) -> usize {
        self.budget.buffered()
    }

    /// The number of requests that wait for their runtime to come back.
    pub(crate) fn waiting(&self) -> usize {
        let slots = self.slots.read();
        slots.values().map(|slot| slot.budget.waiting()).sum()
    }

    /// The number of streams of all sessions, including idle ones.
    pub(crate) fn streams(&self) -> usize {
        let tunnels = self.slots().into_iter().filter_map(|slot| slot.tunnel());
        let members = tunnels.flat_map(|tunnel| tunnel.members());
        members.map(|member| member.session.streams()).sum()
    }
}
