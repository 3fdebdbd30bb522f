//! Nodes that are killed, that stand still, and that come back.

use std::time::Duration;

use e2e::{
    deadline::SOON,
    load::{ExchangeKind, Failure, Load},
    nodes::{APP, Nodes, OTHER},
    program::Signal,
    raw::RawClient,
    upstream::Upstream,
};
use tokio::time::{Instant, sleep, sleep_until};

use super::every_kind;

/// What a platform client may repeat; what was sent once only, or is long, is lost with the node that it went through.
fn is_repeatable(failure: &Failure) -> bool {
    failure.kind == ExchangeKind::Get
}

/// Asserts that each worker lost at most what it had in flight through the lost node, and nothing that can be repeated.
async fn assert_only_in_flight_lost(load: Load) {
    let report = load.finish().await;
    eprintln!("through the lost node:\n{report}");
    report.assert_at_most_failed(1);
    report.assert_none_failed_but(|failure| !is_repeatable(failure));
}

/// A node is killed under load: what went through it and cannot be repeated is lost, nothing else. A runtime that had all
/// of its sessions there is back when its client has dialled.
#[tokio::test]
async fn a_killed_node_takes_with_it_what_is_in_flight_through_it_alone() {
    let (mut nodes, upstream) = (Nodes::start(3).await, Upstream::start().await);
    let (first, second) = (
        nodes.server(0).tunnel_address(),
        nodes.server(1).tunnel_address(),
    );
    let both = nodes.balancer().await;
    both.lead_to_each(&[first, second]);
    let _client = nodes.client(APP, both.address(), &upstream, 2).await;
    let alone = nodes.balancer().await;
    alone.lead_to(first);
    let _other = nodes.client(OTHER, alone.address(), &upstream, 2).await;
    nodes.wait_holders(2, APP, &[0, 1]).await;
    nodes.wait_served(2, OTHER).await;
    let at_holder = nodes.load(1, &every_kind());
    let elsewhere = nodes.load(2, &every_kind());
    for load in [&at_holder, &elsewhere] {
        load.wait_progress(5).await;
        load.mark("a node is killed");
    }
    alone.lead_to(second);
    let killed = Instant::now();
    nodes.kill(0);
    nodes.wait_served(2, OTHER).await;
    eprintln!(
        "a runtime of the killed node was back after {:?}",
        killed.elapsed()
    );
    for load in [&at_holder, &elsewhere] {
        load.wait_progress(5).await;
    }
    at_holder.finish().await.assert_none_failed();
    assert_only_in_flight_lost(elsewhere).await;
}

/// A node that is killed and started again under its name at once: nothing is sent to what it was.
#[tokio::test]
async fn a_node_that_is_killed_and_comes_back_is_another_one() {
    let (mut nodes, upstream) = (Nodes::start(2).await, Upstream::start().await);
    let address = nodes.server(0).tunnel_address();
    let _client = nodes.client(APP, address, &upstream, 1).await;
    nodes.wait_served(1, APP).await;
    nodes.kill(0);
    nodes.start_again(0).await;
    nodes.wait_served(0, APP).await;
    nodes.wait_served(1, APP).await;
}

/// A node stands still for some time: the others go on without it, and its runtimes may be taken over. When it runs again
/// it knows of that, and serves.
async fn stands_still(pause: Duration) {
    let (nodes, upstream) = (Nodes::start(3).await, Upstream::start().await);
    let (older_upstream, newer_upstream) = (Upstream::start().await, Upstream::start().await);
    let (first, second) = (
        nodes.server(0).tunnel_address(),
        nodes.server(1).tunnel_address(),
    );
    let both = nodes.balancer().await;
    both.lead_to_each(&[first, second]);
    let _client = nodes.client(APP, both.address(), &upstream, 2).await;
    let older = nodes.client(OTHER, first, &older_upstream, 1).await;
    nodes.wait_holders(2, APP, &[0, 1]).await;
    nodes.wait_served(2, OTHER).await;
    let load = nodes.load(2, &every_kind());
    load.wait_progress(5).await;
    let start = Instant::now();
    nodes.signal(0, Signal::STOP);
    load.mark("a node stands still");
    let newer = nodes.client(OTHER, second, &newer_upstream, 1).await;
    nodes.wait_served(2, OTHER).await;
    let asked = older_upstream.requests().len();
    // The kernel accepts it for the node, which reads it later.
    let mut early = RawClient::connect(&nodes.entry(0, OTHER)).await;
    early.request("GET", "/early-bird", "", b"").await;
    sleep_until(start + pause).await;
    nodes.signal(0, Signal::CONT);
    load.mark("it runs again");
    let runs = Instant::now();
    let _ = early.response_to("GET").await;
    eprintln!("answered {:?} after the pause", runs.elapsed());
    older.program().wait_for_line("has taken over", SOON).await;
    nodes.wait_linked().await;
    nodes.wait_served(0, APP).await;
    for number in 0..3 {
        assert_eq!(nodes.status(number, OTHER).await, 200);
    }
    let asked = &older_upstream.requests()[asked..];
    eprintln!("asked: {asked:?}");
    assert!(asked.is_empty(), "an older instance was asked: {asked:?}");
    newer.admin().wait_ready(true).await;
    drop(older);
    sleep(Duration::from_millis(100)).await;
    let longest = load.counts(ExchangeKind::Get).longest;
    eprintln!("the slowest request took {longest:?}");
    assert!(longest < Duration::from_secs(6), "{longest:?}");
    assert_only_in_flight_lost(load).await;
}

#[tokio::test]
async fn a_node_that_stands_still_for_seconds_is_left_and_comes_back() {
    stands_still(Duration::from_secs(5)).await;
}
