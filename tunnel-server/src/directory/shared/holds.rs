//! The runtimes that this node holds: for each the instance, the number of its sessions here, and what is to be done so
//! that the shared records say so. A plain value.

use std::collections::HashMap;

use tunnel_proto::handshake::InstanceId;

use super::super::{
    Claim, Epoch,
    node::{Incarnation, NodeName},
    owner::Owner,
};
use super::{record::HeldState, table::Table};
use crate::runtimes::{AccountName, RuntimeLabel, RuntimeName};

/// All runtimes of which this node has sessions.
#[derive(Debug, Default)]
pub(super) struct Holds {
    by_label: HashMap<RuntimeLabel, Hold>,
    last_serial: u64,
}

/// One of them.
#[derive(Debug, Clone)]
pub(super) struct Hold {
    /// Tells it from an earlier one of the runtime.
    serial: u64,
    pub(super) claim: Claim,
    pub(super) account: AccountName,
    pub(super) name: RuntimeName,
    sessions: usize,
    is_leaving: bool,
    /// There is no record of the claim yet, because etcd is away.
    pub(super) is_provisional: bool,
    /// Another instance has the runtime: the sessions finish what they have, and hold nothing any more.
    is_superseded: bool,
}

/// What is to be done about one runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// The record of this node has to be written or removed.
    Write,
    /// There is a newer claim of the instance that is held here: it has this epoch from now on.
    Adopt(Claim),
    /// Another instance has the runtime.
    Superseded(Claim),
}

impl Holds {
    /// Adds a session to what is held already; `None` if this instance holds nothing. Also returns whether the record
    /// changes.
    pub(super) fn enter(
        &mut self,
        label: &RuntimeLabel,
        owner: Owner,
        instance: &InstanceId,
    ) -> Option<(u64, Claim, bool)> {
        let hold = self.by_label.get_mut(label)?;
        if hold.claim.instance != *instance || hold.owner() != owner || hold.is_superseded {
            return None;
        }
        hold.sessions += 1;
        let is_changed = std::mem::take(&mut hold.is_leaving);
        Some((hold.serial, hold.claim.clone(), is_changed))
    }

    /// The first session of an instance, or one of an instance that has got a newer claim. Returns the serial.
    pub(super) fn insert(
        &mut self,
        label: &RuntimeLabel,
        claim: Claim,
        (account, name): (AccountName, RuntimeName),
        is_provisional: bool,
    ) -> u64 {
        if let Some(hold) = self.by_label.get_mut(label)
            && hold.claim.instance == claim.instance
            && hold.account == account
            && !hold.is_superseded
        {
            hold.sessions += 1;
            hold.is_leaving = false;
            hold.claim = claim;
            hold.is_provisional = is_provisional;
            return hold.serial;
        }
        self.last_serial += 1;
        let hold = Hold {
            serial: self.last_serial,
            claim,
            account,
            name,
            sessions: 1,
            is_leaving: false,
            is_provisional,
            is_superseded: false,
        };
        self.by_label.insert(label.clone(), hold);
        self.last_serial
    }

    /// The instance leaves this node. Returns whether the record changes.
    pub(super) fn leave(&mut self, label: &RuntimeLabel, serial: u64) -> bool {
        let hold = self.by_label.get_mut(label);
        let hold = hold.filter(|hold| hold.serial == serial);
        hold.is_some_and(|hold| !std::mem::replace(&mut hold.is_leaving, true))
    }

    /// Removes a session. Returns whether it was the last one.
    pub(super) fn release(&mut self, label: &RuntimeLabel, serial: u64) -> bool {
        let Some(hold) = self.by_label.get_mut(label) else {
            return false;
        };
        if hold.serial != serial {
            return false;
        }
        hold.sessions -= 1;
        let is_last = hold.sessions == 0;
        if is_last {
            self.by_label.remove(label);
        }
        is_last
    }

    /// What this node holds of a runtime.
    pub(super) fn get(&self, label: &RuntimeLabel) -> Option<&Hold> {
        self.by_label.get(label).filter(|hold| !hold.is_superseded)
    }

    /// All that is held and not superseded.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RuntimeLabel, &Hold)> {
        self.by_label.iter().filter(|(_, hold)| !hold.is_superseded)
    }

    pub(super) fn labels(&self) -> impl Iterator<Item = &RuntimeLabel> {
        self.by_label.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.by_label.len()
    }

    /// The claim of this runtime was written for the instance that holds it here.
    pub(super) fn on_claimed(&mut self, label: &RuntimeLabel, claim: &Claim) {
        if let Some(hold) = self.by_label.get_mut(label)
            && hold.claim.instance == claim.instance
            && !hold.is_superseded
            && hold.claim.epoch <= claim.epoch
        {
            hold.claim.epoch = claim.epoch;
            hold.is_provisional = false;
        }
    }

    /// What is to be done about a runtime after something of it has changed. An absent claim never takes a runtime away.
    pub(super) fn settle(
        &mut self,
        label: &RuntimeLabel,
        table: &Table,
        (node, incarnation): (&NodeName, Incarnation),
    ) -> Action {
        let record = table.held_by(label, node, incarnation);
        let hold = self.by_label.get_mut(label);
        let Some(hold) = hold.filter(|hold| !hold.is_superseded) else {
            return match record {
                Some(_) => Action::Write,
                None => Action::Nothing,
            };
        };
        let Some(current) = hold.current(table, label) else {
            return Action::Write;
        };
        if current.instance != hold.claim.instance {
            let is_newer = current.epoch > hold.claim.epoch;
            let has_returned =
                hold.is_provisional && table.is_held_elsewhere(label.as_str(), incarnation);
            if is_newer || has_returned {
                hold.is_superseded = true;
                return Action::Superseded(current);
            }
            return Action::Write;
        }
        hold.is_provisional = false;
        if current.epoch > hold.claim.epoch {
            hold.claim.epoch = current.epoch;
            return Action::Adopt(current);
        }
        match record == Some((hold.claim.epoch, hold.state())) {
            true => Action::Nothing,
            false => Action::Write,
        }
    }
}

impl Hold {
    /// The claim of the label, as far as it counts here. One for another runtime that does not overrule this one counts only
    /// if this one has no record yet.
    pub(super) fn current(&self, table: &Table, label: &RuntimeLabel) -> Option<Claim> {
        match self.is_provisional {
            true => table.claim(label.as_str()),
            false => table.claim_for(label.as_str(), self.owner()),
        }
    }

    /// The runtime that it is of.
    pub(super) fn owner(&self) -> Owner {
        Owner::of(&self.account)
    }

    pub(super) fn state(&self) -> HeldState {
        HeldState::of(self.is_leaving)
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.claim.epoch
    }
}
