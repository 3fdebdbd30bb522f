//! Several server nodes as programs, over a real etcd: what platform clients notice of what is lost, slow, replaced, or
//! stopped in order.
//!
//! What takes minutes is ignored, and run by `e2e/run-cluster`.

mod balance;
mod death;
mod etcd;
mod links;
mod restore;
mod slow;
mod walk;

use std::time::Duration;

use e2e::{
    load::{ExchangeKind, Plan},
    nodes::{APP, Nodes},
    upstream::Upstream,
};

/// One worker of every kind, slow enough for a cluster on one machine.
fn every_kind() -> Plan {
    Plan::only(&ExchangeKind::ALL, 1).paced(Duration::from_millis(100))
}

/// A node that stops in order takes its records with it.
#[tokio::test]
async fn a_node_that_stops_leaves_nothing_behind() {
    let (mut nodes, upstream) = (Nodes::start(2).await, Upstream::start().await);
    let address = nodes.server(0).tunnel_address();
    let client = nodes.client(APP, address, &upstream, 1).await;
    nodes.wait_served(1, APP).await;
    drop(client);
    for number in 0..2 {
        let server = nodes.server_mut(number);
        assert_eq!(server.program_mut().stop().await, Some(0));
    }
    assert_eq!(nodes.keys("node/").await, [""; 0]);
    assert_eq!(nodes.keys("held/").await, [""; 0]);
}
