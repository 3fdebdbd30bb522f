//! The runtimes that this node holds: for each the instance, the number of its sessions here, and what is to be done so
//! that the shared records say so. A plain value.

use std::{collections::BTreeMap, ops::Bound};

use tunnel_proto::handshake::InstanceId;

use crate::{
    claim::{Claim, Epoch},
    names::{AccountName, RuntimeLabel, RuntimeName},
    node::NodeRun,
    owner::Owner,
    record::HeldState,
    table::Table,
};

/// All runtimes of which this node has sessions.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    by_label: BTreeMap<RuntimeLabel, Hold>,
    last_serial: u64,
}

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    /// Tells it from an earlier one of the runtime.
    serial: u64,
    /// The claim that the sessions are here by.
    pub(crate) claim: Claim,
    /// The account of the runtime.
    pub(crate) account: AccountName,
    /// The runtime's name.
    pub(crate) name: RuntimeName,
    sessions: usize,
    is_leaving: bool,
    /// There is no record of the claim yet, because etcd is away.
    is_provisional: bool,
    /// Another instance has the runtime: the sessions finish what they have, and hold nothing any more.
    is_superseded: bool,
}

/// What is to be done about one runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HoldAction {
    /// Nothing.
    None,
    /// The record of this node has to be written or removed.
    Write,
    /// There is a newer claim of the instance that is held here: it has this epoch from now on.
    Adopt(Claim),
    /// Another instance has the runtime.
    Supersede(Claim),
    /// Another instance has a newer claim, by which no node holds the runtime: the record of its holder is awaited.
    AwaitHolder,
}

/// A session that has been added to what is held already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddedSession {
    /// The number of the hold.
    pub(crate) serial: u64,
    /// The claim.
    pub(crate) claim: Claim,
    /// Whether the record of this node changes.
    pub(crate) is_record_changed: bool,
}

impl Holds {
    /// Adds a session to what is held already; `None` if this instance holds nothing.
    pub(crate) fn add_session(
        &mut self,
        label: &RuntimeLabel,
        owner: Owner,
        instance: &InstanceId,
    ) -> Option<AddedSession> {
        let hold = self.by_label.get_mut(label)?;
        if hold.claim.instance != *instance || hold.owner() != owner || hold.is_superseded {
            return None;
        }
        hold.sessions += 1;
        Some(AddedSession {
            serial: hold.serial,
            claim: hold.claim.clone(),
            is_record_changed: std::mem::take(&mut hold.is_leaving),
        })
    }

    /// Adds the first session of an instance, or one of an instance that has got a newer claim. Returns the serial.
    pub(crate) fn insert(
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
    pub(crate) fn leave(&mut self, label: &RuntimeLabel, serial: u64) -> bool {
        let hold = self.by_label.get_mut(label);
        let hold = hold.filter(|hold| hold.serial == serial);
        hold.is_some_and(|hold| !std::mem::replace(&mut hold.is_leaving, true))
    }

    /// Removes a session. Returns whether it was the last one.
    pub(crate) fn release(&mut self, label: &RuntimeLabel, serial: u64) -> bool {
        let Some(hold) = self.by_label.get_mut(label) else {
            return false;
        };
        if hold.serial != serial {
            return false;
        }
        hold.sessions = hold.sessions.saturating_sub(1);
        let is_last = hold.sessions == 0;
        if is_last {
            self.by_label.remove(label);
        }
        is_last
    }

    /// What this node holds of a runtime.
    pub(crate) fn get(&self, label: &RuntimeLabel) -> Option<&Hold> {
        self.by_label.get(label).filter(|hold| !hold.is_superseded)
    }

    /// The labels after this one, superseded ones included; all labels if there is none.
    pub(crate) fn labels_after(
        &self,
        label: Option<&RuntimeLabel>,
    ) -> impl Iterator<Item = &RuntimeLabel> {
        let from = label.map_or(Bound::Unbounded, Bound::Excluded);
        let after = self
            .by_label
            .range::<RuntimeLabel, _>((from, Bound::Unbounded));
        after.map(|(label, _)| label)
    }

    /// The number of runtimes, superseded ones included.
    pub(crate) fn len(&self) -> usize {
        self.by_label.len()
    }

    /// The claim of this runtime was written for the instance that holds it here.
    pub(crate) fn on_claimed(&mut self, label: &RuntimeLabel, claim: &Claim) {
        if let Some(hold) = self.by_label.get_mut(label)
            && hold.claim.instance == claim.instance
            && !hold.is_superseded
            && hold.claim.epoch <= claim.epoch
        {
            hold.claim.epoch = claim.epoch;
            hold.is_provisional = false;
        }
    }

    /// Compares what this node holds of a runtime with the records, and returns what is to be done. The absence of a claim
    /// never takes a runtime away.
    pub(crate) fn settle(
        &mut self,
        label: &RuntimeLabel,
        table: &Table,
        own: &NodeRun,
    ) -> HoldAction {
        let record = table.held_by(label, own);
        let hold = self.by_label.get_mut(label);
        let Some(hold) = hold.filter(|hold| !hold.is_superseded) else {
            return match record {
                Some(_) => HoldAction::Write,
                None => HoldAction::None,
            };
        };
        let Some(current) = hold.current(table, label) else {
            return HoldAction::Write;
        };
        if current.instance != hold.claim.instance {
            let is_newer = current.epoch > hold.claim.epoch;
            let is_effective =
                is_newer && table.is_claim_held_by_other(label.as_str(), own.incarnation);
            let has_returned =
                hold.is_provisional && table.is_claim_reported(label.as_str(), own.incarnation);
            if is_effective || has_returned {
                hold.is_superseded = true;
                return HoldAction::Supersede(current);
            }
            return match is_newer {
                true => HoldAction::AwaitHolder,
                false => HoldAction::Write,
            };
        }
        hold.is_provisional = false;
        if current.epoch > hold.claim.epoch {
            hold.claim.epoch = current.epoch;
            return HoldAction::Adopt(current);
        }
        match record == Some((hold.claim.epoch, hold.state())) {
            true => HoldAction::None,
            false => HoldAction::Write,
        }
    }
}

impl Hold {
    /// The claim of the label, as far as it counts here. One for another runtime that does not overrule this one counts only
    /// if this one has no record yet.
    pub(crate) fn current(&self, table: &Table, label: &RuntimeLabel) -> Option<Claim> {
        match self.is_provisional {
            true => table.claim(label.as_str()),
            false => table.claim_for(label.as_str(), self.owner()),
        }
    }

    /// The runtime that it is of.
    pub(crate) fn owner(&self) -> Owner {
        Owner::of(&self.account)
    }

    /// Whether the instance was given the runtime while etcd was away: no record is of its claim.
    pub(crate) fn is_provisional(&self) -> bool {
        self.is_provisional
    }

    /// The state that the record of this node has to have.
    pub(crate) fn state(&self) -> HeldState {
        HeldState::of(self.is_leaving)
    }

    /// The epoch of the claim.
    pub(crate) fn epoch(&self) -> Epoch {
        self.claim.epoch
    }
}
