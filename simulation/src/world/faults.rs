//! Faults begin, and are healed.

use std::time::Duration;

use super::{
    Event, World,
    client::{Runtime, STRANGERS},
    names::Heal,
};
use crate::{
    etcd::{MemberState, Writes},
    plan::Fault,
};

impl World {
    pub(crate) fn begin_fault(&mut self, fault: Fault) {
        self.open_faults += 1;
        self.history.on_fault(self.now);
        let heal = self.apply(fault);
        self.history.set_outage(self.only_etcd_is_away(), self.now);
        if let Some(heal) = heal {
            self.after(fault.lasts(), Event::Heal(heal));
        } else {
            self.after(Duration::ZERO, Event::Heal(Heal::Over));
        }
    }

    fn apply(&mut self, fault: Fault) -> Option<Heal> {
        match fault {
            Fault::CrashNode(node, _) => {
                self.nodes[node].process.as_ref()?;
                self.end_node(node);
                Some(Heal::StartNode(node))
            }
            Fault::ReplaceNode(node, lasts) => {
                self.nodes[node].restart_after = Some(lasts);
                self.drain_node(node);
                None
            }
            Fault::PauseNode(node, _) => {
                self.nodes[node].process.as_ref()?;
                self.nodes[node].held.get_or_insert_default();
                Some(Heal::ResumeNode(node))
            }
            Fault::CutFromEtcd(node, _) => self
                .cut_from_etcd
                .insert(node)
                .then_some(Heal::ReachEtcd(node)),
            Fault::CutLink(from, to, _) => self
                .cut_links
                .insert((from, to))
                .then_some(Heal::JoinLink(from, to)),
            Fault::CutLinks(node, _) => {
                self.cut_nodes.insert(node).then_some(Heal::JoinLinks(node))
            }
            Fault::RestartClient(number) => {
                let client = self.running_client(number)?;
                self.stop_client(client);
                self.start_client(number);
                None
            }
            Fault::StopClient(number, _) => {
                let client = self.running_client(number)?;
                self.stop_client(client);
                Some(Heal::StartClient(number))
            }
            Fault::SecondInstance(number, _) => {
                let second = self.start_client(number);
                Some(Heal::StopSecond(second))
            }
            Fault::Stranger(number, _) => {
                let stranger = self.start_client_of(Runtime::stranger(number), number + STRANGERS);
                Some(Heal::StopSecond(stranger))
            }
            Fault::StopMember(..)
            | Fault::CutMember(..)
            | Fault::StopEtcd(_)
            | Fault::FreezeEtcd(_)
            | Fault::FillEtcd(_)
            | Fault::SlowEtcd(..)
            | Fault::Compact
            | Fault::Snapshot
            | Fault::Restore
            | Fault::Empty => self.apply_to_etcd(fault),
        }
    }

    fn apply_to_etcd(&mut self, fault: Fault) -> Option<Heal> {
        match fault {
            Fault::StopMember(member, _) => self.stop_member(member, MemberState::Down),
            Fault::CutMember(member, _) => self.stop_member(member, MemberState::CutOff),
            Fault::StopEtcd(_) => {
                for member in 0..self.etcd.members() {
                    self.etcd.set_member(member, MemberState::Down, self.now);
                }
                Some(Heal::StartEtcd)
            }
            Fault::FreezeEtcd(_) => {
                self.etcd.set_frozen(true);
                Some(Heal::ThawEtcd)
            }
            Fault::FillEtcd(_) => {
                self.etcd.set_writes(Writes::Full);
                Some(Heal::AllowWrites)
            }
            Fault::SlowEtcd(delay, _) => {
                self.etcd_delay = delay;
                Some(Heal::SpeedUpEtcd)
            }
            Fault::Compact => {
                self.etcd.compact();
                None
            }
            Fault::Snapshot => {
                self.snapshot = Some(self.etcd.snapshot());
                None
            }
            Fault::Restore => {
                let snapshot = self.snapshot.clone()?;
                self.etcd.restore(&snapshot, self.now);
                self.poll_watches();
                None
            }
            Fault::Empty => {
                self.etcd.empty(self.now);
                self.poll_watches();
                None
            }
            _ => None,
        }
    }

    fn stop_member(&mut self, member: usize, state: MemberState) -> Option<Heal> {
        if self.etcd.member(member) != MemberState::Up {
            return None;
        }
        self.etcd.set_member(member, state, self.now);
        self.poll_watches();
        Some(Heal::StartMember(member))
    }

    pub(crate) fn heal(&mut self, heal: Heal) {
        match heal {
            Heal::Depart(at) => {
                self.input(at, |directory, now| directory.depart(now));
                return;
            }
            Heal::StartNode(node) if self.nodes[node].process.is_none() => self.start_node(node),
            Heal::StartNode(_) | Heal::Over => {}
            Heal::ResumeNode(node) => {
                let held = self.nodes[node].held.take().unwrap_or_default();
                for event in held {
                    self.after(Duration::ZERO, event);
                }
            }
            Heal::ReachEtcd(node) => {
                self.cut_from_etcd.remove(&node);
            }
            Heal::JoinLink(from, to) => {
                self.cut_links.remove(&(from, to));
            }
            Heal::JoinLinks(node) => {
                self.cut_nodes.remove(&node);
            }
            Heal::StartMember(member) => {
                self.etcd.set_member(member, MemberState::Up, self.now);
            }
            Heal::StartEtcd => {
                for member in 0..self.etcd.members() {
                    self.etcd.set_member(member, MemberState::Up, self.now);
                }
            }
            Heal::ThawEtcd => {
                self.etcd.set_frozen(false);
                for call in std::mem::take(&mut self.frozen) {
                    self.after(Duration::ZERO, call);
                }
            }
            Heal::AllowWrites => self.etcd.set_writes(Writes::Allowed),
            Heal::SpeedUpEtcd => self.etcd_delay = Duration::ZERO,
            Heal::StartClient(number) => {
                if self.running_client(number).is_none() {
                    self.start_client(number);
                }
            }
            Heal::StopSecond(client) => {
                if self.clients[client].is_running {
                    self.stop_client(client);
                }
            }
        }
        self.poll_watches();
        self.open_faults = self.open_faults.saturating_sub(1);
        self.history.on_fault(self.now);
        self.history.set_outage(self.only_etcd_is_away(), self.now);
    }

    /// Whether etcd answers nobody, and all else is well.
    fn only_etcd_is_away(&self) -> bool {
        let is_down = |member| self.etcd.member(member) == MemberState::Down;
        let is_away = self.etcd.is_frozen() || (0..self.etcd.members()).all(is_down);
        is_away && self.open_faults == 1
    }
}
