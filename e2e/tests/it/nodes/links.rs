//! Links between nodes that are cut while everything else is well.

use std::time::Duration;

use e2e::{
    load::{ExchangeKind, Plan},
    nodes::{APP, Nodes, OTHER},
    platform::PlatformClient,
    relay::Held,
    upstream::Upstream,
};
use tokio::time::Instant;

/// Forwards of a node, by all results.
async fn forwards(nodes: &Nodes, number: usize) -> f64 {
    nodes
        .metric(number, "tunnel_server_forwards_total", &[])
        .await
}

/// Nodes that see etcd and not each other serve what they have, and say of the rest that it is offline: nothing goes
/// round in circles.
#[tokio::test]
async fn nodes_that_are_cut_from_each_other_serve_what_they_have() {
    let (nodes, upstream) = (Nodes::start(2).await, Upstream::start().await);
    let addresses = [0, 1].map(|number| nodes.server(number).tunnel_address());
    let _client = nodes.client(APP, addresses[0], &upstream, 1).await;
    let _other = nodes.client(OTHER, addresses[1], &upstream, 1).await;
    nodes.wait_served(1, APP).await;
    nodes.wait_served(0, OTHER).await;
    for number in 0..2 {
        nodes.from_peers(number).refuse();
        nodes.from_peers(number).cut();
    }
    for number in 0..2 {
        let admin = nodes.server(number).admin();
        let metric = "tunnel_server_peer_links";
        admin.wait_metric(metric, &[], |links| links < 1.0).await;
    }
    let before = [forwards(&nodes, 0).await, forwards(&nodes, 1).await];
    for (number, own, others) in [(0, APP, OTHER), (1, OTHER, APP)] {
        assert_eq!(nodes.status(number, own).await, 200);
        let entry = nodes.entry(number, others);
        let answer = PlatformClient::http1(&entry).await.get("/").await;
        assert_eq!(answer.status, 503);
        assert!(answer.text().contains("runtime_offline"), "{answer:?}");
    }
    let after = [forwards(&nodes, 0).await, forwards(&nodes, 1).await];
    assert_eq!(before.map(f64::to_bits), after.map(f64::to_bits));
    for number in 0..2 {
        nodes.from_peers(number).resume();
    }
    nodes.wait_served(1, APP).await;
    nodes.wait_served(0, OTHER).await;
}

/// A node cannot be reached by others, which it reaches: requests go to another node that holds the runtime.
#[tokio::test]
async fn a_link_that_is_silent_one_way_costs_a_moment_once() {
    let (nodes, upstream) = (Nodes::start(3).await, Upstream::start().await);
    let balancer = nodes.balancer().await;
    balancer.lead_to_each(&[0, 1].map(|number| nodes.server(number).tunnel_address()));
    let _client = nodes.client(APP, balancer.address(), &upstream, 2).await;
    nodes.wait_holders(2, APP, &[0, 1]).await;
    let plan = Plan::only(&[ExchangeKind::Get], 4).paced(Duration::from_millis(50));
    let load = nodes.load(2, &plan);
    load.wait_progress(10).await;
    nodes.from_peers(0).hold(Held::BOTH);
    load.mark("one node cannot be reached");
    let start = Instant::now();
    load.wait_progress(10).await;
    let silent = start.elapsed();
    let (before, answers) = (
        forwards(&nodes, 2).await,
        load.counts(ExchangeKind::Get).ticks,
    );
    load.wait_progress(50).await;
    let (after, more) = (
        forwards(&nodes, 2).await,
        load.counts(ExchangeKind::Get).ticks,
    );
    let report = load.finish().await;
    eprintln!("went on after {silent:?}, {report}");
    // A response that had begun on the silent link ends with it.
    report.assert_at_most_failed(1);
    report.assert_none_failed_but(|failure| failure.what.starts_with("200 OK and then"));
    #[allow(clippy::cast_precision_loss, reason = "some hundreds")]
    let most = 2.0 * ((more - answers) as f64 + 4.0);
    assert!(
        after - before <= most,
        "{} forwards, at most {most}",
        after - before
    );
    // The other way is not concerned.
    assert_eq!(nodes.status(0, APP).await, 200);
    nodes.from_peers(0).resume();
    nodes.wait_linked().await;
}
