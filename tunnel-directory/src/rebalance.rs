//! Which sessions a node gives to other nodes, decided once each second.
//!
//! ```text
//!   the node does not know what others have taken over,
//!   or reaches no other node although others reach each other     ─▶ all of all runtimes
//!   the nodes have been the same ones for a while:
//!     all sessions of a runtime are here, and another node serves ─▶ one of them
//!     this node has far more runtimes than the others             ─▶ the surplus
//! ```
//!
//! Pure. A session that is given away goes on until its client has another one, so that nothing is lost if there is none.

use std::time::{Duration, Instant};

use crate::{
    node::Incarnation,
    outage::EtcdState,
    record::{NodeRecord, NodeState},
};

/// Time between two decisions.
pub const REBALANCE_INTERVAL: Duration = Duration::from_secs(1);

/// How long the nodes have to be the same ones before their load is evened out.
const CALM: Duration = Duration::from_secs(60);

/// How long the nodes have to be the same ones before sessions of one client are spread: shorter, since a client whose
/// sessions are all at one node is without any if that node fails.
const SPREAD_CALM: Duration = Duration::from_secs(10);

/// How long all sessions of a runtime have to be here before one of them is given away, and the first pause after one that
/// has come back.
const SPREAD_AFTER: Duration = Duration::from_secs(5);

/// Longest pause after a session that has come back: a balancer may lead its client to this node alone.
const SPREAD_PAUSE_MAX: Duration = Duration::from_secs(10 * 60);

/// How far above the mean a node is before it gives sessions away: by a fifth and this many runtimes.
const SLACK: u64 = 50;

/// How old the figures of other nodes may be: a node writes its own each 10 s at most, when it renews its lease.
const FIGURES: Duration = Duration::from_secs(20);

/// What a node gives away now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveOrder {
    /// Nothing: the nodes are changing, or etcd is away.
    Nothing,
    /// All sessions.
    Everything(MoveReason),
    /// What the others should have.
    Share {
        /// The runtimes beyond the mean, if there are far more of them.
        surplus: u64,
        /// One session of each runtime whose sessions are all here may be given away.
        spreads: bool,
    },
}

/// Why a node gives everything away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveReason {
    /// It may serve what has been taken over.
    Directory,
    /// It reaches no other node.
    Links,
}

/// How a node stands to etcd and to the other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeStanding {
    /// Whether etcd answers it and others.
    pub etcd: EtcdState,
    /// No other node can be reached, although others reach each other.
    pub is_isolated: bool,
}

impl NodeStanding {
    /// Why clients are to be at other nodes, if they are.
    #[must_use]
    pub fn reason_to_leave(self) -> Option<MoveReason> {
        match self.etcd {
            EtcdState::CutOff | EtcdState::Alone => Some(MoveReason::Directory),
            EtcdState::Ok | EtcdState::Outage if self.is_isolated => Some(MoveReason::Links),
            EtcdState::Ok | EtcdState::Outage => None,
        }
    }
}

impl MoveReason {
    /// The name in the metric.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Links => "links",
        }
    }
}

/// The load of all nodes, and since when they are the same ones.
#[derive(Debug)]
pub struct Rebalance {
    members: Vec<Incarnation>,
    since: Instant,
    /// What this node keeps while it gives its surplus away, and until when that holds. The figures of the others do not
    /// show at once what they have got, so that a mean of the meantime would be too low.
    kept: Option<(u64, Instant)>,
}

/// When one session of a runtime is given away because all of them are at this node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spread {
    /// The sessions that were given away since the client has been at this node alone.
    moves: u32,
    next: Option<Instant>,
}

impl Rebalance {
    /// Nothing is known of the nodes yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            members: Vec::new(),
            since: now,
            kept: None,
        }
    }

    /// What the node `own`, which holds so many runtimes, gives away now. `nodes` are all nodes.
    pub fn order<'a>(
        &mut self,
        standing: NodeStanding,
        (own, held): (Incarnation, u64),
        nodes: impl IntoIterator<Item = (Incarnation, &'a NodeRecord)>,
        now: Instant,
    ) -> MoveOrder {
        if let Some(reason) = standing.reason_to_leave() {
            return MoveOrder::Everything(reason);
        }
        match standing.etcd {
            EtcdState::CutOff | EtcdState::Alone | EtcdState::Outage => {
                self.disturb(now);
                MoveOrder::Nothing
            }
            EtcdState::Ok => {
                let mut loads = Vec::new();
                for (node, record) in nodes {
                    if record.state == NodeState::Leaving {
                        self.disturb(now);
                    }
                    let is_own = node == own;
                    loads.push((node, if is_own { held } else { record.sessions }));
                }
                let surplus = self.surplus(held, &loads, now);
                MoveOrder::Share {
                    surplus,
                    spreads: loads.len() > 1 && now >= self.since + SPREAD_CALM,
                }
            }
        }
    }

    /// The number of runtimes that this node has above the mean, if it is far above. `nodes` are all nodes with what they
    /// hold; none leaves.
    fn surplus(&mut self, own: u64, nodes: &[(Incarnation, u64)], now: Instant) -> u64 {
        let mut members: Vec<Incarnation> = nodes.iter().map(|(node, _)| *node).collect();
        members.sort_unstable();
        if members != self.members {
            self.members = members;
            self.disturb(now);
        }
        if nodes.is_empty() || now < self.since + CALM {
            return 0;
        }
        if let Some((kept, until)) = self.kept
            && now < until
        {
            return own.saturating_sub(kept);
        }
        let all = nodes.iter().map(|(_, held)| held).sum::<u64>();
        let mean = all / nodes.len() as u64;
        let is_far_above = own > mean + mean / 5 + SLACK;
        self.kept = is_far_above.then_some((mean, now + FIGURES));
        match is_far_above {
            true => own - mean,
            false => 0,
        }
    }

    /// The nodes are changing.
    fn disturb(&mut self, now: Instant) {
        (self.since, self.kept) = (now, None);
    }
}

impl Spread {
    /// Whether one session of a runtime is given away now. `sessions` are those at this node that take exchanges and are not
    /// given away already. Called again and again while the nodes are calm; pauses grow while sessions come back.
    pub fn is_due(&mut self, sessions: usize, is_held_elsewhere: bool, now: Instant) -> bool {
        if sessions < 2 || is_held_elsewhere {
            if is_held_elsewhere {
                *self = Self::default();
            }
            return false;
        }
        let next = *self.next.get_or_insert(now + SPREAD_AFTER);
        if now < next {
            return false;
        }
        self.next = Some(now + self.pause());
        self.moves = self.moves.saturating_add(1);
        true
    }

    fn pause(&self) -> Duration {
        let factor = 1_u32.checked_shl(self.moves).unwrap_or(u32::MAX);
        SPREAD_AFTER.saturating_mul(factor).min(SPREAD_PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::start;

    const SECOND: Duration = Duration::from_secs(1);

    fn record(state: NodeState) -> NodeRecord {
        NodeRecord {
            incarnation: String::new(),
            peer: None,
            zone: None,
            version: String::new(),
            state,
            sessions: 0,
            links: None,
        }
    }

    #[test]
    fn a_node_far_above_the_mean_has_a_surplus_once_the_nodes_are_calm() {
        let start = start();
        let nodes = |held: [u64; 3]| {
            let held = held.into_iter().enumerate();
            held.map(|(node, held)| (Incarnation::new(node as u64), held))
                .collect::<Vec<_>>()
        };
        let mut balance = Rebalance::new(start);
        let full = nodes([900, 0, 0]);
        assert_eq!(balance.surplus(900, &full, start), 0);
        assert_eq!(balance.surplus(900, &full, start + CALM / 2), 0);
        assert_eq!(balance.surplus(900, &full, start + CALM), 600);
        // What was given away is not shown by the others yet.
        let second = start + CALM + REBALANCE_INTERVAL;
        assert_eq!(balance.surplus(700, &nodes([700, 0, 0]), second), 400);
        assert_eq!(balance.surplus(300, &nodes([300, 0, 0]), second), 0);
        let shown = start + CALM + FIGURES;
        assert_eq!(balance.surplus(300, &nodes([300, 310, 290]), shown), 0);
        // Another node is there: it may be filled by itself.
        let mut more = full.clone();
        more.push((Incarnation::new(9), 0));
        let joined = start + 2 * CALM;
        assert_eq!(balance.surplus(900, &more, joined), 0);
        assert_eq!(balance.surplus(900, &more, joined + CALM), 675);
        balance.disturb(joined + CALM);
        assert_eq!(balance.surplus(900, &more, joined + CALM), 0);
        let later = joined + 3 * CALM;
        assert_eq!(balance.surplus(410, &nodes([410, 250, 240]), later), 0);
        let calm = later + CALM;
        assert_eq!(
            balance.surplus(410, &nodes([410, 250, 240]), calm),
            0,
            "a fifth and 50 above"
        );
        assert_eq!(balance.surplus(411, &nodes([411, 249, 240]), calm), 111);
    }

    #[test]
    fn sessions_are_spread_when_the_nodes_are_calm() {
        let begin = start();
        let mut balance = Rebalance::new(begin);
        let own = Incarnation::new(0);
        let mut order = |state, others: &[NodeState], at| {
            let records: Vec<NodeRecord> = others.iter().cloned().map(record).collect();
            let own_record = record(NodeState::Serving);
            let others = (1..).map(Incarnation::new).zip(&records);
            let nodes = others.chain([(own, &own_record)]);
            let standing = NodeStanding {
                etcd: state,
                is_isolated: false,
            };
            balance.order(standing, (own, 8), nodes, begin + at * SECOND)
        };
        let share = |spreads| MoveOrder::Share {
            surplus: 0,
            spreads,
        };
        let (serving, leaving) = ([NodeState::Serving], [NodeState::Leaving]);
        assert_eq!(order(EtcdState::Ok, &[], 0), share(false));
        assert_eq!(order(EtcdState::Ok, &[], 20), share(false), "alone");
        assert_eq!(order(EtcdState::Ok, &serving, 21), share(false));
        assert_eq!(order(EtcdState::Ok, &serving, 31), share(true));
        assert_eq!(order(EtcdState::Ok, &leaving, 32), share(false));
        assert_eq!(order(EtcdState::Outage, &serving, 60), MoveOrder::Nothing);
        assert_eq!(order(EtcdState::Ok, &serving, 61), share(false));
        let left = MoveOrder::Everything(MoveReason::Directory);
        assert_eq!(order(EtcdState::CutOff, &serving, 62), left);
    }

    #[test]
    fn one_of_several_sessions_at_one_node_is_given_away_with_growing_pauses() {
        let begin = start();
        let mut spread = Spread::default();
        let mut moved = Vec::new();
        for second in 0..100 {
            if spread.is_due(2, false, begin + second * SECOND) {
                moved.push(second);
            }
        }
        assert_eq!(moved, [5, 10, 20, 40, 80]);
        // While it is on its way there is one less.
        assert!(!spread.is_due(1, false, begin + 200 * SECOND));
        assert!(spread.is_due(2, false, begin + 200 * SECOND));
        assert!(!spread.is_due(2, true, begin + 2_000 * SECOND));
        assert!(!spread.is_due(2, false, begin + 2_001 * SECOND));
        assert!(spread.is_due(2, false, begin + 2_006 * SECOND));
    }
}
