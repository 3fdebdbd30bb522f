//! Whether clients have their sessions at two nodes.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tunnel_directory::EtcdState;

use super::{World, names::Address};

/// The time after which the sessions of a client are at two nodes.
const SPREAD: Duration = Duration::from_secs(60);

/// What has been the same for a while.
#[derive(Debug, Default)]
pub(crate) struct Spreading {
    /// The nodes that serve, and how they stand to etcd.
    serving: Vec<(Address, EtcdState)>,
    /// The clients whose sessions are all at one node, and since when.
    at_one: BTreeMap<usize, Instant>,
}

impl World {
    /// The sessions of a client are not at one node for long while another one serves.
    pub(crate) fn check_spread(&mut self) {
        let serving: Vec<_> = (0..self.nodes.len())
            .filter_map(|node| self.serving(node))
            .collect();
        let is_the_same = serving == self.spreading.serving;
        let is_well = serving.iter().all(|(_, state)| *state == EtcdState::Ok);
        let mut at_one = BTreeMap::new();
        if is_the_same && is_well && serving.len() > 1 {
            for (number, client) in self.clients.iter().enumerate() {
                let nodes: Vec<usize> = client.sessions().map(|(at, _)| at.node).collect();
                if let [one, two] = nodes[..]
                    && one == two
                    && client.is_running
                {
                    let known = self.spreading.at_one.get(&number);
                    at_one.insert(number, known.copied().unwrap_or(self.now));
                }
            }
        }
        let long = at_one.iter().find(|(_, since)| self.now > **since + SPREAD);
        if let Some((number, _)) = long {
            let label = &self.clients[*number].runtime.label;
            let detail = format!("all sessions of {label} are at one node");
            let rule = "I6: the sessions of a client are at two nodes";
            self.history.violate(rule, detail);
        }
        self.spreading = Spreading { serving, at_one };
    }

    fn serving(&self, node: usize) -> Option<(Address, EtcdState)> {
        let serving = &self.nodes[node];
        let process = serving.process.as_ref().filter(|_| serving.is_ready())?;
        let is_running = serving.held.is_none() && !process.is_leaving;
        is_running.then(|| (self.address(node), process.directory.state()))
    }
}
