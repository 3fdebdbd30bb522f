//! etcd that loses members, its leader, or all of it, while requests go on.

use std::time::Duration;

use e2e::{
    client::Client,
    deadline::{SOON, eventually},
    load::Load,
    nodes::{APP, Nodes, OTHER},
    program::Signal,
    relay::Relay,
    upstream::Upstream,
};
use tokio::time::{Instant, sleep};

use super::every_kind;

/// Two nodes that both hold a runtime, under load of every kind.
struct Loaded {
    nodes: Nodes,
    loads: [Load; 2],
    balancer: Relay,
    upstream: Upstream,
    _client: Client,
}

impl Loaded {
    async fn start() -> Self {
        let (nodes, upstream) = (Nodes::start(2).await, Upstream::start().await);
        let balancer = nodes.balancer().await;
        let client = nodes.client(APP, balancer.address(), &upstream, 2).await;
        nodes.wait_holders(0, APP, &[0, 1]).await;
        nodes.wait_holders(1, APP, &[0, 1]).await;
        let loads = [0, 1].map(|number| nodes.load(number, &every_kind()));
        let this = Self {
            nodes,
            loads,
            balancer,
            upstream,
            _client: client,
        };
        this.go_on("all is well").await;
        this
    }

    fn mark(&self, what: &str) {
        for load in &self.loads {
            load.mark(what);
        }
    }

    /// Waits until both loads have made progress after this.
    async fn go_on(&self, what: &str) {
        self.mark(what);
        for load in &self.loads {
            load.wait_progress(5).await;
        }
    }

    /// Asserts that nothing has failed, and that no session has ended.
    async fn assert_unnoticed(self) -> Nodes {
        for load in self.loads {
            load.finish().await.assert_none_failed();
        }
        assert_eq!(
            self.balancer.dials().len(),
            2,
            "the client has dialled again"
        );
        self.nodes
    }
}

/// Waits until a client knows that another one has its runtime.
pub(super) async fn is_superseded(older: &Client) {
    older.program().wait_for_line("has taken over", SOON).await;
}

#[tokio::test]
async fn members_are_restarted_one_after_another_unnoticed() {
    let mut loaded = Loaded::start().await;
    for member in 0..3 {
        loaded.mark("a member stops");
        loaded.nodes.etcd_mut().stop(member).await;
        loaded.nodes.etcd_mut().start_again(member).await;
        loaded.go_on("it is back").await;
    }
    let nodes = loaded.assert_unnoticed().await;
    for number in 0..2 {
        let metric = "tunnel_server_directory_relistings_total";
        let relistings = nodes.metric(number, metric, &[]).await;
        assert!(relistings < 1.0, "the watch was not resumed");
    }
}

/// The leader is lost: requests go on, and a takeover waits for the election at most.
#[tokio::test]
async fn a_lost_leader_delays_takeovers_alone() {
    for signal in [Signal::KILL, Signal::STOP] {
        let loaded = Loaded::start().await;
        let (nodes, upstream) = (&loaded.nodes, &loaded.upstream);
        let addresses = [0, 1].map(|number| nodes.server(number).tunnel_address());
        let older = nodes.client(OTHER, addresses[0], upstream, 1).await;
        nodes.wait_holders(1, OTHER, &[0]).await;
        let leader = nodes.etcd().leader().await;
        loaded.mark("the leader is lost");
        let start = Instant::now();
        nodes.etcd().signal(leader, signal);
        let _newer = nodes.client(OTHER, addresses[1], upstream, 1).await;
        is_superseded(&older).await;
        let delay = start.elapsed();
        eprintln!("{signal:?} of the leader: taken over after {delay:?}");
        // With the start of a program, on a machine that is busy with others.
        assert!(delay < Duration::from_secs(10), "{delay:?}");
        loaded.go_on("taken over").await;
        loaded.assert_unnoticed().await;
    }
}

/// A leader that stands still for longer than the leases live, and comes back: versions before 3.5.13 then revoke the
/// leases of living nodes. No client notices.
#[tokio::test]
#[ignore = "takes a minute: e2e/run-cluster runs it"]
async fn a_leader_that_stood_still_for_longer_than_leases_live_changes_nothing() {
    let loaded = Loaded::start().await;
    let leader = loaded.nodes.etcd().leader().await;
    loaded.nodes.etcd().signal(leader, Signal::STOP);
    loaded.mark("the leader stands still");
    sleep(Duration::from_secs(30)).await;
    loaded.nodes.etcd().signal(leader, Signal::CONT);
    loaded.go_on("it runs again").await;
    let until = Instant::now() + Duration::from_secs(10);
    let mut missing = Duration::ZERO;
    while Instant::now() < until {
        let start = Instant::now();
        eventually(SOON, "both nodes' keys", async || {
            (loaded.nodes.keys("node/").await.len() == 2).then_some(())
        })
        .await;
        missing = missing.max(start.elapsed());
        sleep(Duration::from_millis(50)).await;
    }
    eprintln!("keys of nodes were missing for at most {missing:?}");
    assert!(missing < Duration::from_secs(2), "{missing:?}");
    loaded.assert_unnoticed().await;
}

/// etcd is lost as a whole for some time. Requests go on; a client that has lost its connection comes back; a runtime that
/// nobody holds is given; one that somebody holds is not, until etcd is back. `E2E_ETCD_AWAY` sets the seconds.
async fn is_away(time: Duration) {
    let mut loaded = Loaded::start().await;
    let addresses = [0, 1].map(|number| loaded.nodes.server(number).tunnel_address());
    let network = Relay::start(addresses[0]).await;
    let upstream = Upstream::start().await;
    let older = loaded
        .nodes
        .client(OTHER, network.address(), &upstream, 1)
        .await;
    loaded.nodes.wait_holders(1, OTHER, &[0]).await;
    for member in 0..3 {
        loaded.nodes.etcd_mut().kill(member);
    }
    let start = Instant::now();
    loaded.go_on("etcd is away").await;

    network.cut();
    let lost = Instant::now();
    older.program().wait_for_line("dialling again", SOON).await;
    older.admin().wait_ready(true).await;
    loaded.nodes.wait_served(0, OTHER).await;
    eprintln!(
        "a client that lost its network was back after {:?}",
        lost.elapsed()
    );
    let mut options = loaded.nodes.client_options(OTHER, addresses[1], &upstream);
    let newer = Client::start(&options).await;
    newer
        .program()
        .wait_for_line("directory_unavailable", SOON)
        .await;
    loaded.go_on("a takeover waits").await;

    drop((older, newer));
    options.server = addresses[0];
    let provisional = Client::start(&options).await;
    provisional.admin().wait_ready(true).await;
    loaded.nodes.wait_served(0, OTHER).await;
    loaded.go_on("a free runtime was given").await;
    sleep(time.saturating_sub(start.elapsed())).await;
    loaded.go_on("etcd comes back").await;

    for member in 0..3 {
        loaded.nodes.etcd_mut().begin_again(member);
    }
    let nodes = &loaded.nodes;
    eventually(SOON, "etcd to answer", async || {
        // A program of its own tells, which waits for a leader.
        (!nodes.keys("cluster").await.is_empty()).then_some(())
    })
    .await;
    let back = Instant::now();
    nodes.wait_holders(1, OTHER, &[0]).await;
    nodes.wait_served(1, OTHER).await;
    eprintln!("claims were true {:?} after etcd's return", back.elapsed());
    assert!(
        back.elapsed() < Duration::from_secs(5),
        "{:?}",
        back.elapsed()
    );
    options.server = addresses[1];
    let _newest = Client::start(&options).await;
    is_superseded(&provisional).await;
    loaded.go_on("taken over").await;
    loaded.assert_unnoticed().await;
}

#[tokio::test]
#[ignore = "takes a minute: e2e/run-cluster runs it"]
async fn without_etcd_requests_and_clients_go_on() {
    let seconds = std::env::var("E2E_ETCD_AWAY").map_or(20, |text| text.parse().unwrap());
    is_away(Duration::from_secs(seconds)).await;
}

/// etcd is lost as a whole, and comes back: nobody notices.
#[tokio::test]
async fn requests_go_on_while_etcd_is_away_for_a_moment() {
    let mut loaded = Loaded::start().await;
    for member in 0..3 {
        loaded.nodes.etcd_mut().kill(member);
    }
    loaded.go_on("etcd is away").await;
    sleep(Duration::from_secs(5)).await;
    loaded.go_on("etcd comes back").await;
    for member in 0..3 {
        loaded.nodes.etcd_mut().begin_again(member);
    }
    for number in 0..2 {
        let admin = loaded.nodes.server(number).admin();
        let metric = "tunnel_server_directory_away";
        admin.wait_metric(metric, &[], |value| value < 1.0).await;
    }
    loaded.go_on("etcd is back").await;
    loaded.assert_unnoticed().await;
}

/// A node that etcd does not answer, and all others are answered: what is taken over elsewhere reaches it by its peers; once
/// its lease has ended its clients go to other nodes, without loss, and it comes back by itself.
#[tokio::test]
#[ignore = "waits until a lease has ended: e2e/run-cluster runs it"]
async fn a_node_that_is_cut_off_from_etcd_is_left_without_loss() {
    let (nodes, upstream) = (Nodes::start(3).await, Upstream::start().await);
    let balancer = nodes.balancer().await;
    let addresses = [0, 1, 2].map(|number| nodes.server(number).tunnel_address());
    balancer.lead_to_each(&addresses[..2]);
    let _client = nodes.client(APP, balancer.address(), &upstream, 2).await;
    let older = nodes.client(OTHER, addresses[0], &upstream, 1).await;
    nodes.wait_holders(2, APP, &[0, 1]).await;
    balancer.lead_to_each(&addresses);
    nodes.wait_holders(1, OTHER, &[0]).await;
    let loads = [0, 1, 2].map(|number| nodes.load(number, &every_kind()));
    let go_on = async |what: &str| {
        for load in &loads {
            load.mark(what);
            load.wait_progress(5).await;
        }
    };
    go_on("all is well").await;
    for way in nodes.to_etcd(0) {
        way.refuse();
        way.cut();
    }
    let start = Instant::now();
    let newer = nodes.client(OTHER, addresses[1], &upstream, 1).await;
    is_superseded(&older).await;
    let delay = start.elapsed();
    eprintln!("taken over after {delay:?}, with the start of a program");
    assert!(delay < Duration::from_secs(3), "{delay:?}");
    assert_eq!(nodes.status(0, OTHER).await, 200);
    go_on("taken over elsewhere").await;
    let admin = nodes.server(0).admin();
    let cut_off = &["state=\"cut_off\""];
    eventually(4 * SOON, "the node to be cut off", async || {
        let state = "tunnel_server_directory_state";
        (nodes.metric(0, state, cut_off).await > 0.0).then_some(())
    })
    .await;
    admin.wait_ready(false).await;
    let third = nodes.server(2).admin();
    let sessions = "tunnel_server_sessions";
    third.wait_metric(sessions, &[], |count| count >= 1.0).await;
    go_on("its clients have gone elsewhere").await;
    for way in nodes.to_etcd(0) {
        way.resume();
    }
    admin.wait_ready(true).await;
    nodes.wait_served(0, APP).await;
    go_on("it is back").await;
    assert_eq!(nodes.keys("node/").await.len(), 3);
    for load in loads {
        let report = load.finish().await;
        eprintln!("{report}");
        report.assert_none_failed();
    }
    newer.admin().wait_ready(true).await;
}
