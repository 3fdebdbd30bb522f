//! The links of this node to others, over which it forwards requests: whether it has any while others have.
//!
//! ```text
//!   a link is open, or no other node has one          ─▶ linked
//!   no link is open, and another node says in its key
//!   that it has one, for longer than a dead node's key
//!   can outlive it                                    ─▶ isolated: not ready, and its clients move
//! ```
//!
//! A node shows in its key how many nodes it has links to, so that a node that reaches none knows whether that is its own fault.
//! Two nodes that do not reach each other are both linked by this rule: clients are served wherever they are.

use std::time::{Duration, Instant};

use super::{LogLine, Now, Output, SharedDirectory, presence::TTL};
use crate::record::NodeState;

/// How long a node has no link before it is isolated: longer than the key of a dead node outlives it.
const ISOLATED_AFTER: Duration = TTL.saturating_add(Duration::from_secs(5));

/// How long a node has no link before it shows that in its key.
const SHOWN_AFTER: Duration = Duration::from_secs(2);

/// The links of this node.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// The number of nodes to which one is open; `None` before that is known.
    open: Option<usize>,
    /// Since when none is open.
    none_since: Option<Instant>,
    /// Since when none is open, and another node has one.
    isolated_since: Option<Instant>,
    is_isolated: bool,
    /// Whether the key shows that there is one; `None` if it shows nothing.
    shows_any: Option<bool>,
}

impl Links {
    /// What the key says of them.
    pub(super) fn shown(&self) -> Option<u64> {
        let open = self.open?;
        Some(u64::try_from(open).unwrap_or(u64::MAX))
    }

    /// The key is written, and says this.
    pub(super) fn on_shown(&mut self, links: Option<u64>) {
        self.shows_any = links.map(|links| links > 0);
    }
}

impl SharedDirectory {
    /// Links to so many other nodes are open.
    pub fn on_links(&mut self, open: usize, now: Now) {
        self.links.open = Some(open);
        match open {
            0 => self.links.none_since = self.links.none_since.or(Some(now.instant)),
            _ => self.links.none_since = None,
        }
        if open > 0 {
            self.judge_links(now);
        }
    }

    /// Whether no other node can be reached, although others reach each other.
    #[must_use]
    pub fn is_isolated(&self) -> bool {
        self.links.is_isolated
    }

    /// Judges the links, each half second, and when one has opened.
    pub(super) fn judge_links(&mut self, now: Now) {
        let Some(open) = self.links.open else { return };
        let lasted = |since: Option<Instant>, time: Duration| {
            since.is_some_and(|since| now.instant.saturating_duration_since(since) >= time)
        };
        let is_settled = open > 0 || lasted(self.links.none_since, SHOWN_AFTER);
        if is_settled && self.links.shows_any != Some(open > 0) {
            self.on_key_outdated(now);
        }
        let is_alone = open == 0 && self.has_linked_other();
        self.links.isolated_since = match is_alone {
            true => self.links.isolated_since.or(Some(now.instant)),
            false => None,
        };
        let is_isolated = lasted(self.links.isolated_since, ISOLATED_AFTER);
        if std::mem::replace(&mut self.links.is_isolated, is_isolated) != is_isolated {
            self.output(Output::Isolated(is_isolated));
            self.log(LogLine::Isolated(is_isolated));
        }
    }

    /// Whether another node that serves says that it has a link.
    fn has_linked_other(&self) -> bool {
        let mut nodes = self.table.nodes();
        nodes.any(|(_, incarnation, record)| {
            incarnation != self.run.incarnation
                && record.state == NodeState::Serving
                && record.peer.is_some()
                && record.links.is_some_and(|links| links > 0)
        })
    }
}
