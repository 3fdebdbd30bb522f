//! Moves sessions to other nodes: all of them from a node that does not know what the others do, and the surplus of a node
//! that has far more than the others, as the last one of a rollout has.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval};
use tunnel_directory::{EtcdState, Incarnation, NodeState};

use crate::{config::live::LiveConfig, lifecycle::Lifecycle, metrics::Metrics, registry::Registry};

/// Time between two checks of the load of the nodes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long the nodes have to be the same ones before their load is evened out.
const CALM: Duration = Duration::from_secs(60);

/// How far above the mean a node is before it moves sessions away: by a fifth and this many runtimes.
const SLACK: u64 = 50;

/// The part of the clients that a stopping node moves each second, by which load is evened out.
const PART: u32 = 10;

/// How old the figures of other nodes may be: a node writes its own each 10 s at most, when it renews its lease.
const FIGURES: Duration = Duration::from_secs(20);

/// The load of all nodes, and since when they are the same ones.
struct Balance {
    members: Vec<Incarnation>,
    since: Instant,
    /// What this node keeps while it gives its surplus away, and until when that holds. The figures of the others do not
    /// show at once what they have got, so that a mean of the meantime would be too low.
    kept: Option<(u64, Instant)>,
}

impl Balance {
    fn new(now: Instant) -> Self {
        Self {
            members: Vec::new(),
            since: now,
            kept: None,
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

/// Moves sessions until it is dropped; ends at once in a server that stands alone.
pub(super) async fn move_sessions(
    registry: Arc<Registry>,
    lifecycle: Arc<Lifecycle>,
    config: Arc<LiveConfig>,
    metrics: Arc<Metrics>,
) {
    let Some(directory) = registry.directory().shared().cloned() else {
        return;
    };
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut balance = Balance::new(Instant::now());
    loop {
        ticks.tick().await;
        if lifecycle.is_leaving() {
            return;
        }
        let (now, each_second) = (Instant::now(), config.load().leaving_per_second);
        let (runtimes, at_once, why) = match directory.state() {
            EtcdState::CutOff | EtcdState::Alone => (usize::MAX, each_second, "directory"),
            EtcdState::Outage => {
                balance.disturb(now);
                continue;
            }
            EtcdState::Ok => {
                let all = directory.nodes();
                if all
                    .iter()
                    .any(|(.., record)| record.state == NodeState::Leaving)
                {
                    balance.disturb(now);
                }
                let own = registry.claims() as u64;
                let held = |incarnation: Incarnation, shown: u64| match incarnation
                    == directory.incarnation()
                {
                    true => (incarnation, own),
                    false => (incarnation, shown),
                };
                let all = all.iter();
                let all: Vec<_> = all
                    .map(|(_, node, record)| held(*node, record.sessions))
                    .collect();
                let surplus = balance.surplus(own, &all, now);
                let surplus = usize::try_from(surplus).unwrap_or(usize::MAX);
                (surplus, (each_second / PART).max(1), "balance")
            }
        };
        if runtimes > 0 {
            let moved = registry.move_away(runtimes, at_once as usize);
            metrics.peers.on_moved(why, moved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_far_above_the_mean_has_a_surplus_once_the_nodes_are_calm() {
        let start = Instant::now();
        let nodes = |held: [u64; 3]| {
            let held = held.into_iter().enumerate();
            held.map(|(node, held)| (Incarnation::new(node as u64), held))
                .collect::<Vec<_>>()
        };
        let mut balance = Balance::new(start);
        let full = nodes([900, 0, 0]);
        assert_eq!(balance.surplus(900, &full, start), 0);
        assert_eq!(balance.surplus(900, &full, start + CALM / 2), 0);
        assert_eq!(balance.surplus(900, &full, start + CALM), 600);
        // What was given away is not shown by the others yet.
        let second = start + CALM + CHECK_INTERVAL;
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
}
