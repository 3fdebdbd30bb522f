//! What must always hold.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use tunnel_directory::{AccountName, Claim, RuntimeLabel};
use tunnel_proto::handshake::InstanceId;

use super::{
    World,
    client::{Client, LONGEST_WAIT, STANDBY, STRANGERS},
    names::Address,
    node::Node,
};
use crate::etcd::PREFIX;

/// The time after the last fault after which all is well again: the life of a lease, and the longest wait of a client.
const WELL: Duration = Duration::from_secs(65);

/// The time in an outage of etcd after which a client that reaches a node has a session.
const SERVED: Duration = Duration::from_secs(25);

/// What did not hold.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The rule.
    pub rule: &'static str,
    /// What was found.
    pub detail: String,
    /// The time since the beginning.
    pub at: Duration,
    /// The last events before it.
    pub trace: Vec<String>,
}

/// What has happened, as far as the rules need it.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) violation: Option<(&'static str, String)>,
    instances: HashMap<InstanceId, InstanceHistory>,
    /// The last time at which a fault began or ended.
    last_fault: Instant,
    /// Since when etcd alone is away.
    outage: Option<Instant>,
}

#[derive(Debug, Default)]
struct InstanceHistory {
    granted: Option<Instant>,
    refused: Option<Instant>,
    stopped: Option<Instant>,
}

impl History {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            violation: None,
            instances: HashMap::new(),
            last_fault: now,
            outage: None,
        }
    }

    fn instance(&mut self, instance: &InstanceId) -> &mut InstanceHistory {
        self.instances.entry(instance.clone()).or_default()
    }

    pub(crate) fn on_granted(&mut self, instance: &InstanceId, now: Instant) {
        self.instance(instance).granted.get_or_insert(now);
    }

    pub(crate) fn on_refused(&mut self, instance: &InstanceId, now: Instant) {
        self.instance(instance).refused = Some(now);
    }

    pub(crate) fn on_stopped(&mut self, instance: &InstanceId, now: Instant) {
        self.instance(instance).stopped = Some(now);
    }

    pub(crate) fn on_fault(&mut self, now: Instant) {
        self.last_fault = now;
    }

    pub(crate) fn set_outage(&mut self, is_outage: bool, now: Instant) {
        self.outage = match is_outage {
            true => Some(self.outage.unwrap_or(now)),
            false => None,
        };
    }

    pub(super) fn violate(&mut self, rule: &'static str, detail: String) {
        self.violation.get_or_insert((rule, detail));
    }
}

impl World {
    /// A node has learnt of a newer claim of a runtime that it has sessions of.
    pub(crate) fn history_on_newer(&mut self, at: Address, label: &RuntimeLabel, claim: &Claim) {
        let Some(process) = self.nodes[at.node].process.as_ref() else {
            return;
        };
        let sessions = process.sessions.values();
        let held = sessions.filter(|session| session.label == *label && !session.is_draining);
        let mut losers = held.filter(|session| session.instance != claim.instance);
        let Some(loser) = losers.find(|session| self.is_alive(&session.instance)) else {
            return;
        };
        let loser = loser.instance.clone();
        let granted = self.history.instance(&loser).granted;
        let by = self.history.instance(&claim.instance);
        let is_ghost = by
            .stopped
            .zip(granted)
            .is_some_and(|(stopped, granted)| stopped < granted);
        let was_refused = by.granted.is_none() && by.refused.is_some() && by.stopped.is_some();
        if is_ghost {
            let detail = format!(
                "{loser} of {label} is superseded by {} at n{}, which was gone",
                claim.instance, at.node
            );
            self.history.violate(
                "I2: an instance that is gone supersedes no living one",
                detail,
            );
        } else if was_refused {
            let detail = format!(
                "{loser} of {label} is superseded by {} at n{}, which was refused",
                claim.instance, at.node
            );
            self.history
                .violate("I10: a claim that was refused takes no effect", detail);
        }
    }

    pub(super) fn is_alive(&self, instance: &InstanceId) -> bool {
        let mut clients = self.clients.iter();
        clients.any(|client| client.instance == *instance && client.is_running)
    }

    pub(crate) fn check(&mut self) {
        // A node that starts is not ready before it has read the directory.
        if !self.nodes.iter().any(Node::is_ready) {
            self.history.outage = self.history.outage.map(|_| self.now);
        }
        if let Some(since) = self.history.outage
            && self.now > since + SERVED
        {
            self.check_served("I5: a client that is started in an outage of etcd gets a runtime that nobody holds", SERVED);
        }
        if self.open_faults == 0 && self.now > self.history.last_fault + WELL {
            self.check_served(
                "I5: a client has a session soon after the faults end",
                LONGEST_WAIT + STANDBY,
            );
            self.check_one_instance();
            self.check_known();
        }
    }

    /// The newest client of each runtime has a session, if it runs long enough.
    fn check_served(&mut self, rule: &'static str, within: Duration) {
        let numbers: BTreeSet<usize> = self.clients.iter().map(|client| client.number).collect();
        let has_stranger = |number| {
            let mut clients = self.clients.iter();
            clients.any(|client| client.number == number + STRANGERS)
        };
        // Of two runtimes with one label the first keeps it, as long as there is a record.
        let own = numbers.into_iter().filter(|number| *number < STRANGERS);
        let own: Vec<usize> = own.filter(|number| !has_stranger(*number)).collect();
        for number in own {
            let of_runtime = self.clients.iter().filter(|client| client.number == number);
            let mut running = of_runtime.filter(|client| client.is_running).peekable();
            let is_old = |client: &Client| {
                let standby = if client.is_standby {
                    STANDBY
                } else {
                    Duration::ZERO
                };
                self.now > client.began + within + standby
            };
            if running.peek().is_none() || !running.clone().all(is_old) {
                continue;
            }
            if running
                .clone()
                .all(|client| client.sessions().next().is_none())
            {
                let labels: Vec<String> = running
                    .map(|client| client.runtime.label.to_string())
                    .collect();
                self.history
                    .violate(rule, format!("{} has no session", labels.join(", ")));
                return;
            }
        }
    }

    /// A label leads to the sessions of one account.
    pub(crate) fn check_accounts(&mut self) {
        let mut accounts: HashMap<&RuntimeLabel, &AccountName> = HashMap::new();
        let processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
        let sessions = processes.flat_map(|process| process.sessions.values());
        let mut found = None;
        for session in sessions.filter(|session| !session.is_draining) {
            let account = accounts.entry(&session.label).or_insert(&session.account);
            if **account != session.account {
                let (label, other) = (&session.label, &session.account);
                found = Some(format!("{label} leads to {account} and {other}"));
            }
        }
        if let Some(detail) = found {
            self.history
                .violate("I3: a label leads to one account", detail);
        }
    }

    /// All sessions of a runtime are of one instance.
    fn check_one_instance(&mut self) {
        let mut holders: HashMap<RuntimeLabel, InstanceId> = HashMap::new();
        let processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
        let sessions = processes.flat_map(|process| process.sessions.values());
        let mut found = None;
        for session in sessions.filter(|session| !session.is_draining) {
            let holder = holders
                .entry(session.label.clone())
                .or_insert_with(|| session.instance.clone());
            if *holder != session.instance {
                found = Some(format!(
                    "{} is held by {holder} and {}",
                    session.label, session.instance
                ));
            }
        }
        if let Some(detail) = found {
            self.history
                .violate("I1: a superseded instance takes nothing new", detail);
        }
    }

    /// Each node that is ready knows who holds the runtimes that it has no session of.
    fn check_known(&mut self) {
        let mut found = None;
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(process) = node.process.as_ref() else {
                continue;
            };
            if !node.is_ready() {
                found = Some((
                    "I8: a node is ready when all is well",
                    format!("n{number} is not"),
                ));
                continue;
            }
            let here: BTreeSet<&RuntimeLabel> = process
                .sessions
                .values()
                .map(|session| &session.label)
                .collect();
            for (other, holder) in self
                .nodes
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != number)
            {
                let sessions = holder
                    .process
                    .iter()
                    .flat_map(|process| process.sessions.values());
                for session in sessions
                    .filter(|session| !session.is_draining && !here.contains(&session.label))
                {
                    let known = process.directory.holders(session.label.as_str());
                    let is_known = known.is_some_and(|(_, holders)| {
                        holders.iter().any(|known| known.node == holder.name)
                    });
                    if !is_known {
                        found = Some((
                            "I4: a ready node knows who holds a runtime",
                            format!(
                                "n{number} does not know that n{other} holds {}",
                                session.label
                            ),
                        ));
                    }
                }
            }
        }
        if let Some((rule, detail)) = found {
            self.history.violate(rule, detail);
        }
    }

    /// Nothing is left of clients that have ended.
    pub(crate) fn check_empty(&self) -> Option<(&'static str, String)> {
        let rule = "I9: nothing is left of clients that have ended";
        for (number, node) in self.nodes.iter().enumerate() {
            let (holds, _) = node.process.as_ref()?.directory.len();
            if holds > 0 {
                return Some((rule, format!("n{number} holds {holds} runtimes")));
            }
        }
        let prefix = format!("{PREFIX}held/");
        let mut left = self.etcd.keys(&prefix).map(|(key, _)| key.to_owned());
        let first = left.next()?;
        Some((rule, format!("etcd has {first} and {} more", left.count())))
    }
}
