//! Moves sessions to other nodes, as `tunnel-directory` decides: all of them from a node that does not know what the others
//! do, one of several that a client has here alone, and the surplus of a node that has far more than the others.

use std::sync::Arc;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tunnel_directory::{MoveOrder, REBALANCE_INTERVAL, Rebalance};

use crate::{
    config::live::LiveConfig,
    directory::EtcdDirectory,
    lifecycle::Lifecycle,
    metrics::Metrics,
    registry::{Moved, Registry, SpreadWalk},
};

/// The part of the clients that a stopping node moves each second, by which load is evened out.
const PART: u32 = 10;

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
    let mut ticks = interval(REBALANCE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rebalance = Rebalance::new(Instant::now().into_std());
    let mut walk = SpreadWalk::default();
    loop {
        ticks.tick().await;
        if lifecycle.is_leaving() {
            return;
        }
        let each_second = config.load().leaving_per_second;
        let part = (each_second / PART).max(1) as usize;
        match order(&mut rebalance, &directory, &registry) {
            MoveOrder::Nothing => {}
            MoveOrder::Everything(reason) => {
                let moved = registry.move_away(Moved::All, each_second as usize);
                metrics.peers.on_moved(reason.name(), moved);
            }
            MoveOrder::Share { surplus, spreads } => {
                if surplus > 0 {
                    let surplus = usize::try_from(surplus).unwrap_or(usize::MAX);
                    let moved = registry.move_away(Moved::Surplus(surplus), part);
                    metrics.peers.on_moved("balance", moved);
                }
                if spreads {
                    let moved = registry.spread(&mut walk, part);
                    metrics.peers.on_moved("spread", moved);
                }
            }
        }
    }
}

fn order(rebalance: &mut Rebalance, directory: &EtcdDirectory, registry: &Registry) -> MoveOrder {
    let (standing, nodes) = (directory.standing(), directory.nodes());
    let nodes = nodes.iter().map(|(_, node, record)| (*node, record));
    let own = (directory.incarnation(), registry.claims() as u64);
    rebalance.order(standing, own, nodes, Instant::now().into_std())
}
