//! Whether nodes that reach no other are left by clients.

use std::time::Duration;

use super::World;

/// The time after which a node without links is not ready: longer than the key of a dead node outlives it.
const NOTICED: Duration = Duration::from_secs(35);

impl World {
    /// A node that reaches no other says that it is not ready, if others reach each other.
    pub(crate) fn check_links(&mut self) {
        let all = 0..self.nodes.len();
        let (isolated, linked): (Vec<usize>, Vec<usize>) = all
            .filter(|node| self.runs(*node))
            .partition(|node| self.nodes[*node].links.is_empty());
        let known = std::mem::take(&mut self.isolated);
        if linked.is_empty() {
            return;
        }
        for node in isolated {
            let since = known.get(&node).copied().unwrap_or(self.now);
            self.isolated.insert(node, since);
            if self.now > since + NOTICED && self.nodes[node].is_ready() {
                let rule = "I8: a node that reaches no other is not ready";
                let detail = format!("n{node} has no link, and is ready");
                self.history.violate(rule, detail);
            }
        }
    }

    /// Whether a node runs, and would be ready.
    fn runs(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        let process = node.process.as_ref().filter(|_| node.held.is_none());
        process.is_some_and(|process| process.directory.is_ready() && !process.is_leaving)
    }
}
