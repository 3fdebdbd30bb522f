//! Paths on which nothing passes any more and nobody is told: by a relay that holds what it gets,
//! by packets that are dropped, and by a program that stands still.

use std::time::Duration;

use e2e::{
    deadline::{SOON, eventually, within},
    load::{Kind, Load, Plan},
    network::Network,
    platform::PlatformClient,
    program::Signal,
    relay::Held,
    system::{Options, System},
    upstream::Upstream,
};
use tokio::time::Instant;

/// Short, so that two of them pass within a test.
const PINGS: [&str; 2] = ["--ping-interval", "1s"];

/// Two intervals, a moment for the new dial, and one for a busy machine.
const IDLE_LIMIT: Duration = Duration::from_secs(7);

/// Every direction in which a path can be lost.
const WAYS: [(&str, Held); 3] = [
    ("both ways", Held::BOTH),
    ("what the server is sent", Held::THERE),
    ("what the client is sent", Held::BACK),
];

async fn status(system: &System) -> u16 {
    let mut client = PlatformClient::http1(&system.entry()).await;
    client.get("/status/200").await.status.as_u16()
}

/// With pings as rare as they usually are: it is the traffic that finds the path lost.
#[tokio::test]
async fn under_traffic_a_lost_path_costs_no_get_more_than_three_seconds() {
    for (name, held) in WAYS {
        let upstream = Upstream::start().await;
        let options = Options::to(&upstream.url()).through_relay();
        let system = System::with(options.client_flags(&["--sessions", "2"])).await;
        let [first, _] = system.relay().wait_connections(2).await[..] else {
            unreachable!()
        };
        let load = Load::start(system.entry(), &Plan::only(&[Kind::Get], 6));
        load.wait_progress(20).await;
        system.relay().hold_one(first, held);
        load.mark(name);
        // Until nobody waits for the lost path any more, and for a while after.
        let limit = Instant::now() + Duration::from_millis(4_500);
        while Instant::now() < limit {
            load.wait_progress(20).await;
        }
        let report = load.finish().await;
        report.assert_none_failed();
        let longest = report.counts(Kind::Get).longest;
        eprintln!("{name}: the longest GET took {longest:?}");
        assert!(longest < Duration::from_millis(4_500), "{name}\n{report}");
    }
}

#[tokio::test]
async fn an_idle_lost_path_is_found_from_either_end_and_left_for_a_healthy_one() {
    for (name, held) in WAYS {
        let upstream = Upstream::start().await;
        let options = Options::to(&upstream.url()).through_relay();
        let options = options.server_flags(&PINGS).client_flags(&PINGS);
        let system = System::with(options.client_flags(&["--sessions", "1"])).await;
        let before = system.relay().wait_connections(1).await;
        system.relay().hold_present(held);
        let returned = async || {
            let now = system.relay().connections();
            now.iter()
                .any(|number| !before.contains(number))
                .then_some(())
        };
        let what = format!("{name}: a dial by the healthy path");
        eventually(IDLE_LIMIT, &what, returned).await;
        assert_eq!(status(&system).await, 200, "{name}");
    }
}

#[tokio::test]
async fn dropped_packets_are_a_lost_path_like_any_other() {
    let network = match Network::make() {
        Ok(network) => network,
        Err(why) => {
            eprintln!("skipped: this machine makes no network of its own: {why}");
            return;
        }
    };
    let upstream = Upstream::start_at(network.beside()).await;
    let options = Options::to(&upstream.url()).tunnel_name(&network.server_address().to_string());
    let mut options = options
        .server_flags(&PINGS)
        .client_flags(&PINGS)
        .server_flags(&["--offline-wait", "100ms"])
        .not_connected();
    options.server.tunnel_listen = Some((network.server_address(), 0).into());
    let mut system = System::with(options).await;
    let client = network.start_client(system.client_options("demo-app"));
    client.wait_for_line("the tunnel is up", SOON).await;
    let answered = async || (status(&system).await == 200).then_some(());
    eventually(SOON, "an answer through the network", answered).await;

    let lines = client.log().len();
    network.drop_packets(true);
    let admin = system.server().admin();
    within(IDLE_LIMIT, "the server to find the path lost", async {
        admin
            .wait_metric("tunnel_server_sessions", &[], |count| count == 0.0)
            .await;
    })
    .await;
    let noticed = |line: &e2e::program::Line| line.text().contains("dialling again").then_some(());
    client
        .log()
        .wait_for_after(
            lines,
            "the client to find the path lost",
            IDLE_LIMIT,
            noticed,
        )
        .await;
    network.drop_packets(false);
    eventually(SOON, "an answer when packets pass again", answered).await;
}

#[tokio::test]
async fn a_client_that_stood_still_is_back_at_once() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).server_flags(&PINGS);
    let system = System::with(options.client_flags(&PINGS)).await;
    let client = system.client().program();
    client.signal(Signal::STOP);
    let admin = system.server().admin();
    admin
        .wait_metric("tunnel_server_sessions", &[], |count| count == 0.0)
        .await;
    client.signal(Signal::CONT);
    let began = Instant::now();
    assert_eq!(status(&system).await, 200, "it waits for the client");
    let took = began.elapsed();
    eprintln!("answered {took:?} after the client went on");
    assert!(took < Duration::from_secs(3), "{took:?}");
}
