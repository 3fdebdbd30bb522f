//! etcd that is slow, members that are silent, events in bulk, and clocks that differ.

use std::time::Duration;

use e2e::{
    client::Client,
    deadline::{SOON, eventually},
    etcd::Etcd,
    load::{ExchangeKind, Plan},
    nodes::{APP, Nodes, OTHER},
    peers::at_clock,
    program::Signal,
    relay::Relay,
    upstream::Upstream,
};
use tokio::time::{Instant, sleep};

/// Longer than the lease of a node lives.
const LEASE: Duration = Duration::from_secs(25);

/// How long a request may take on a busy machine, in a build for debugging.
const QUICK: Duration = Duration::from_secs(1);

/// Lets all calls of etcd take so much longer, for all nodes.
fn delay(nodes: &Nodes, round_trip: Duration) {
    let ways = (0..2).flat_map(|number| nodes.to_etcd(number));
    ways.for_each(|way| way.delay(round_trip / 2));
}

/// Starts a client that takes the runtime over, and waits until the older one knows. Returns the time for both.
async fn take_over(
    nodes: &Nodes,
    number: usize,
    older: &Client,
    upstream: &Upstream,
) -> (Client, Duration) {
    let start = Instant::now();
    let address = nodes.server(number).tunnel_address();
    let newer = nodes.client(OTHER, address, upstream, 1).await;
    older.program().wait_for_line("has taken over", SOON).await;
    (newer, start.elapsed())
}

/// No request waits for etcd, however slow it is; claims do, as long as it answers within a call's time.
#[tokio::test]
#[ignore = "takes a minute: e2e/run-cluster runs it"]
async fn no_request_waits_for_a_slow_etcd() {
    let (nodes, upstream) = (Nodes::start(2).await, Upstream::start().await);
    let addresses = [0, 1].map(|number| nodes.server(number).tunnel_address());
    let network = Relay::start(addresses[0]).await;
    let _client = nodes.client(APP, network.address(), &upstream, 1).await;
    let older = nodes.client(OTHER, addresses[0], &upstream, 1).await;
    nodes.wait_served(1, APP).await;
    let plan =
        Plan::only(&[ExchangeKind::Get, ExchangeKind::Post], 1).paced(Duration::from_millis(100));
    let loads = [0, 1].map(|number| nodes.load(number, &plan));

    delay(&nodes, Duration::from_millis(50));
    let (newer, time) = take_over(&nodes, 1, &older, &upstream).await;
    eprintln!("50 ms: taken over after {time:?}");
    drop(newer);
    for slow in [500, 3_000] {
        delay(&nodes, Duration::from_millis(slow));
        loads[0].mark("slower");
        sleep(LEASE).await;
        eprintln!("{slow} ms: keys {:?}", nodes.keys("node/").await);
        // One more session of an instance that is known is welcome at once.
        let session = network.connections();
        let start = Instant::now();
        network.cut();
        eventually(SOON, "another session", async || {
            let now = network.connections();
            (!now.is_empty() && now != session).then_some(())
        })
        .await;
        nodes.wait_served(0, APP).await;
        eprintln!("{slow} ms: served again after {:?}", start.elapsed());
        loads[0].mark("cut once");
    }
    delay(&nodes, Duration::ZERO);
    nodes.wait_served(1, APP).await;
    eventually(SOON, "both nodes' keys", async || {
        (nodes.keys("node/").await.len() == 2).then_some(())
    })
    .await;
    for load in loads {
        let report = load.finish().await;
        eprintln!("{report}");
        report.assert_at_most_failed(2);
        assert!(
            report.counts(ExchangeKind::Get).longest < QUICK + SOON,
            "{report}"
        );
    }
}

/// A member of etcd stands still, whichever it is: the node that watches there watches another one.
#[tokio::test]
#[ignore = "takes a minute: e2e/run-cluster runs it"]
async fn a_silent_member_holds_up_no_event_for_long() {
    let (nodes, upstream) = (Nodes::start(2).await, Upstream::start().await);
    let address = nodes.server(0).tunnel_address();
    for member in 0..3 {
        let older = nodes.client(OTHER, address, &upstream, 1).await;
        nodes.wait_holders(1, OTHER, &[0]).await;
        nodes.etcd().signal(member, Signal::STOP);
        let (newer, time) = take_over(&nodes, 1, &older, &upstream).await;
        nodes.etcd().signal(member, Signal::CONT);
        eprintln!("member {member} stands still: taken over after {time:?}");
        // Silence of 3 s, an election, and the start of a program.
        assert!(time < Duration::from_secs(8), "{time:?}");
        drop((older, newer));
        eventually(SOON, "the runtime to be free", async || {
            nodes.keys("held/").await.is_empty().then_some(())
        })
        .await;
    }
}

/// A node is cut off while more has happened than one message carries, and the beginning of it is compacted: its table is
/// what etcd has, and it serves meanwhile.
#[tokio::test]
async fn what_was_missed_in_bulk_is_made_up_for() {
    let (nodes, upstream) = (Nodes::start(2).await, Upstream::start().await);
    let address = nodes.server(0).tunnel_address();
    let older = nodes.client(OTHER, address, &upstream, 1).await;
    nodes.wait_served(1, OTHER).await;
    for is_compacted in [false, true] {
        for way in nodes.to_etcd(0) {
            way.stall();
        }
        let large = "x".repeat(100_000);
        let mut revision = String::new();
        for number in 0..60 {
            let key = format!("/tunnel/v1/later/{number}");
            let put = ["put", &key, &large, "--write-out", "json"];
            revision = nodes.etcd().ctl(&put).await;
        }
        if is_compacted {
            let answer: serde_json::Value = serde_json::from_str(&revision).unwrap();
            let revision = answer["header"]["revision"].to_string();
            nodes.etcd().ctl(&["compact", &revision]).await;
        }
        assert_eq!(nodes.status(0, OTHER).await, 200);
        for way in nodes.to_etcd(0) {
            way.resume();
        }
        let admin = nodes.server(0).admin();
        let is_away = |value: f64| value < 1.0;
        admin
            .wait_metric("tunnel_server_directory_away", &[], is_away)
            .await;
    }
    let (_newer, time) = take_over(&nodes, 1, &older, &upstream).await;
    eprintln!("taken over after {time:?}");
    nodes.wait_holders(0, OTHER, &[1]).await;
}

/// The clocks of two nodes differ by hours: nothing depends on it.
#[tokio::test]
async fn clocks_of_nodes_may_differ() {
    let mut nodes = Nodes::on(Etcd::start(3).await);
    for clock in ["+1h", "-50m"] {
        nodes.add(at_clock(clock)).await;
    }
    nodes.wait_linked().await;
    let upstream = Upstream::start().await;
    let address = nodes.server(0).tunnel_address();
    let mut older = nodes.client(OTHER, address, &upstream, 1).await;
    nodes.wait_served(1, OTHER).await;
    for number in [1, 0] {
        let (newer, time) = take_over(&nodes, number, &older, &upstream).await;
        eprintln!("taken over after {time:?}");
        assert!(time < Duration::from_secs(5), "{time:?}");
        older = newer;
        nodes.wait_served(0, OTHER).await;
        nodes.wait_served(1, OTHER).await;
    }
    assert_eq!(nodes.keys("node/").await.len(), 2);
}
