//! Requests: at each check one arrives at each ready node for each runtime that is held somewhere, and it is found out where it
//! goes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tunnel_directory::{RuntimeLabel, UnreachedRuntime};

use super::World;

/// How long a request waits for a runtime that is not reached: the server's setting.
const OFFLINE_WAIT: Duration = Duration::from_secs(5);

/// How long a session has to be there, so that all nodes know of it.
const SETTLED: Duration = Duration::from_secs(5);

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestPath {
    /// To a session, of this node or of one that a link leads to.
    Sent,
    /// It waits.
    Waits,
    /// It is answered with 503 at once.
    Offline,
}

/// Since when requests find a way that should be there.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// The nodes and runtimes of which a session can be reached, and since when requests wait for it.
    waiting: BTreeMap<(usize, RuntimeLabel), Instant>,
}

impl World {
    /// What becomes of requests.
    pub(crate) fn check_requests(&mut self) {
        let runtimes = self.runtimes_held();
        let mut waiting = BTreeMap::new();
        for node in 0..self.nodes.len() {
            // A node that etcd does not answer is not told of what others claim anew, until it is not ready.
            let is_behind = self.cut_from_etcd.contains(&node);
            if !self.nodes[node].is_ready() || self.nodes[node].held.is_some() || is_behind {
                continue;
            }
            for (label, holders) in &runtimes {
                let path = self.path(node, label);
                if path == RequestPath::Offline {
                    let rule = "I4: no request fails at once while the runtime is held";
                    let detail = format!("n{node} answers 503 for {label}, held at {holders:?}");
                    self.history.violate(rule, detail);
                }
                let is_reachable = holders.iter().any(|holder| !self.is_silent(node, *holder));
                if path == RequestPath::Waits && is_reachable {
                    let key = (node, label.clone());
                    let since = self.requests.waiting.get(&key).copied();
                    let since = since.unwrap_or(self.now);
                    if self.now > since + OFFLINE_WAIT {
                        let rule = "I4: a request reaches a runtime that is held, within the wait";
                        let detail = format!("n{node} does not reach {label}, held at {holders:?}");
                        self.history.violate(rule, detail);
                    }
                    waiting.insert(key, since);
                }
            }
        }
        self.requests.waiting = waiting;
    }

    /// The runtimes of which a running client has had a session for some time, and the nodes where that is.
    fn runtimes_held(&self) -> BTreeMap<RuntimeLabel, Vec<usize>> {
        let mut held: BTreeMap<RuntimeLabel, Vec<usize>> = BTreeMap::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let process = node.process.as_ref().filter(|_| node.held.is_none());
            let sessions = process
                .into_iter()
                .flat_map(|process| process.sessions.values());
            for session in sessions.filter(|session| !session.is_draining) {
                let is_settled = self.now > session.since + SETTLED;
                if is_settled && self.is_alive(&session.instance) {
                    held.entry(session.label.clone()).or_default().push(number);
                }
            }
        }
        held
    }

    /// Where a request for a runtime goes that arrives at a node.
    fn path(&mut self, number: usize, label: &RuntimeLabel) -> RequestPath {
        let now = self.now;
        let node = &mut self.nodes[number];
        let Some(process) = node.process.as_mut() else {
            return RequestPath::Offline;
        };
        let mut here = process.sessions.values();
        let mut here = here
            .by_ref()
            .filter(|session| session.label == *label)
            .peekable();
        let has_tunnel = here.peek().is_some();
        let is_open = here.any(|session| !session.is_draining);
        let holders = process.directory.holders(label.as_str());
        let holders = holders.map(|(_, holders)| holders).unwrap_or_default();
        let last_online = *process.last_online.entry(label.clone()).or_insert(now);
        let unreached = UnreachedRuntime {
            has_tunnel,
            is_held_elsewhere: !holders.is_empty(),
            last_online,
        };
        let is_linked = |name| {
            let to = self.nodes.iter().position(|other| other.name == name);
            to.is_some_and(|to| self.nodes[number].links.contains_key(&to))
        };
        if is_open || holders.into_iter().any(|holder| is_linked(holder.node)) {
            RequestPath::Sent
        } else if unreached.is_awaited(now) {
            RequestPath::Waits
        } else {
            RequestPath::Offline
        }
    }
}
