//! Paths on which nothing passes any more and nobody is told: by a relay that holds what it gets,
//! by packets that are dropped, and by a program that stands still.

use std::time::Duration;

use e2e::{
    deadline::{SOON, eventually, within},
    load::{ExchangeKind, Load, Plan},
    network::Network,
    platform::PlatformClient,
    program::Signal,
    raw::RawClient,
    relay::Held,
    system::{Options, System},
    upstream::{Event, Upstream},
};
use tokio::time::{Instant, sleep};

/// Short, so that two of them pass within a test.
const PINGS: [&str; 2] = ["--ping-interval", "1s"];

/// The 3 s in which a lost path is found under traffic, and a moment for what follows on a busy machine.
const LOST: Duration = Duration::from_millis(3_500);

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
        let load = Load::start(system.entry(), &Plan::only(&[ExchangeKind::Get], 6));
        load.wait_progress(20).await;
        let admin = system.server().admin();
        system.relay().hold_one(first, held);
        load.mark(name);
        // A session that is silent is replaced before it is given up.
        let sessions = async || {
            let count = admin.metric("tunnel_server_sessions", &[]).await;
            (count == Some(3.0)).then_some(())
        };
        eventually(LOST, &format!("{name}: a third session"), sessions).await;
        // Until nobody waits for the lost path any more, and for a while after.
        let limit = Instant::now() + LOST + Duration::from_millis(500);
        while Instant::now() < limit {
            load.wait_progress(20).await;
        }
        let report = load.finish().await;
        report.assert_none_failed();
        let longest = report.counts(ExchangeKind::Get).longest;
        eprintln!("{name}: the longest GET took {longest:?}");
        assert!(longest < LOST, "{name}\n{report}");
    }
}

/// What waits for its answer already, and sends nothing more, is moved as soon as what comes anew is.
#[tokio::test]
async fn an_exchange_that_waits_on_a_lost_path_goes_by_another_within_three_seconds() {
    for (name, held) in WAYS {
        let upstream = Upstream::start().await;
        let options = Options::to(&upstream.url()).through_relay();
        let system = System::with(options.client_flags(&["--sessions", "2"])).await;
        let [first, _] = system.relay().wait_connections(2).await[..] else {
            unreachable!()
        };
        let admin = system.server().admin();
        let sessions = "tunnel_server_sessions";
        admin.wait_metric(sessions, &[], |count| count == 2.0).await;
        // One on each path, used paths among them: nothing is heard of an exchange before its answer.
        let mut clients = Vec::new();
        for number in 1..=2 {
            assert_eq!(status(&system).await, 200);
            let mut client = RawClient::connect(&system.entry()).await;
            client.request("GET", "/hold", "", b"").await;
            wait_held(&upstream, number).await;
            clients.push(client);
        }
        // Longer than silence after what was sent could explain.
        sleep(Duration::from_millis(1_500)).await;
        system.relay().hold_one(first, held);
        let began = Instant::now();
        let again = wait_held(&upstream, 3);
        let what = format!("{name}: the request by the other path");
        within(LOST, &what, again).await;
        eprintln!("{name}: moved after {:?}", began.elapsed());
    }
}

/// Waits until the upstream has had so many requests that it holds.
async fn wait_held(upstream: &Upstream, count: usize) {
    let is_held = |event: &Event| matches!(event, Event::Request(seen) if seen.target == "/hold");
    let held = async || {
        let events = upstream.record().all();
        let held = events.iter().filter(|event| is_held(event)).count();
        (held >= count).then_some(())
    };
    eventually(SOON, &format!("{count} requests that are held"), held).await;
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
    let noticed =
        |line: &e2e::program::OutputLine| line.text().contains("dialling again").then_some(());
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

/// Longer than it takes until a silent session gets nothing new, and shorter than until it is given up.
const BLACKOUT: Duration = Duration::from_secs(4);

#[tokio::test]
async fn a_blackout_of_seconds_costs_no_exchange_that_is_open() {
    let network = match Network::make() {
        Ok(network) => network,
        Err(why) => {
            eprintln!("skipped: this machine makes no network of its own: {why}");
            return;
        }
    };
    let upstream = Upstream::start_at(network.beside()).await;
    let options = Options::to(&upstream.url()).tunnel_name(&network.server_address().to_string());
    let mut options = options.not_connected();
    options.server.tunnel_listen = Some((network.server_address(), 0).into());
    let mut system = System::with(options).await;
    let client = network.start_client(system.client_options("demo-app"));
    client.wait_for_line("the tunnel is up", SOON).await;
    let admin = system.server().admin();
    let sessions = "tunnel_server_sessions";
    admin.wait_metric(sessions, &[], |count| count == 2.0).await;
    // Six whose answers have begun, and six that wait for theirs, as each has sent half of its content.
    let mut open = Vec::new();
    for target in ["/duplex", "/upload"].repeat(6) {
        let mut client = RawClient::connect(&system.entry()).await;
        let host = client.host_line();
        let head = format!("POST {target} HTTP/1.1\r\n{host}content-length: 20\r\n\r\n0123456789");
        client.send(head).await;
        open.push(client);
    }
    let arrived = async || {
        let events = upstream.record().all();
        let requests = events
            .iter()
            .filter(|event| matches!(event, Event::Request(_)));
        (requests.count() == 12).then_some(())
    };
    eventually(SOON, "twelve open requests", arrived).await;

    let began = Instant::now();
    network.drop_packets(true);
    for client in &mut open {
        client.send("01234").await;
    }
    let server = system.server().program();
    server.wait_for_line("a session is silent", LOST).await;
    let mut late = PlatformClient::http1(&system.entry()).await;
    let packets = async {
        tokio::time::sleep_until(began + BLACKOUT).await;
        network.drop_packets(false);
    };
    // Asked for while nothing passes.
    let (answer, ()) = tokio::join!(late.get("/status/200"), packets);
    assert_eq!(answer.status.as_u16(), 200);
    for (number, mut client) in open.into_iter().enumerate() {
        client.send("56789").await;
        let response = client.response_to("POST").await;
        assert_eq!(response.head.status(), 200, "exchange {number}");
        if number % 2 == 0 {
            assert_eq!(response.content.bytes, "01234567890123456789");
        }
    }
    let dead = ["reason=\"dead\""];
    let ended = admin
        .metric("tunnel_server_sessions_ended_total", &dead)
        .await;
    assert!(ended.is_none_or(|count| count == 0.0), "{ended:?}");
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

/// Pings that are so rare that they find nothing within the test.
const RARE: [&str; 2] = ["--ping-interval", "60s"];

#[tokio::test]
async fn a_client_that_time_has_jumped_for_replaces_its_sessions_before_anybody_gives_them_up() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).through_relay();
    let options = options.server_flags(&RARE).client_flags(&RARE);
    let system = System::with(options.client_flags(&["--sessions", "2"])).await;
    let admin = system.server().admin();
    let sessions = "tunnel_server_sessions";
    admin.wait_metric(sessions, &[], |count| count == 2.0).await;
    let before = system.relay().wait_connections(2).await;
    // Whatever was said at the beginning is answered by then, or pinged for after a second: a client that
    // stands still with a word outstanding is given up, and rightly so.
    sleep(Duration::from_millis(2_500)).await;
    let client = system.client().program();
    client.signal(Signal::STOP);
    // More than the 5 s that are a jump, and the second of a tick.
    sleep(Duration::from_millis(6_500)).await;
    assert_eq!(system.relay().dials().len(), 2);
    client.signal(Signal::CONT);
    let began = Instant::now();
    let dialled = async || (system.relay().dials().len() >= 4).then_some(());
    eventually(Duration::from_secs(3), "two new dials", dialled).await;
    eprintln!("dialled {:?} after the client went on", began.elapsed());
    let replaced = async || {
        let now = system.relay().connections();
        let is_new = now.iter().all(|number| !before.contains(number));
        (is_new && now.len() == 2).then_some(())
    };
    eventually(SOON, "two new sessions, and no old one", replaced).await;
    client.wait_for_line("time has jumped", SOON).await;
    let left = ["reason=\"left\""];
    admin
        .wait_metric("tunnel_server_sessions_ended_total", &left, |count| {
            count == 2.0
        })
        .await;
    assert_eq!(status(&system).await, 200);
    // The new one of each place first.
    let log = system.server().program().log().all();
    let at = |what: &str, nth: usize| {
        let mut lines = log.iter().enumerate();
        let found = lines
            .by_ref()
            .filter(|(_, line)| line.text().contains(what))
            .nth(nth);
        found.map(|(at, _)| at).unwrap()
    };
    for place in 0..2 {
        assert!(at("a session has begun", 2 + place) < at("a session has ended", place));
    }
}

#[tokio::test]
async fn whoever_comes_again_resumes_its_tls_session() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).through_relay();
    let system = System::with(options.client_flags(&["--sessions", "1"])).await;
    let admin = system.server().admin();
    let handshakes = async |kind: &str| {
        let label = format!("kind=\"{kind}\"");
        admin
            .metric("tunnel_server_tls_handshakes_total", &[&label])
            .await
    };
    assert_eq!(handshakes("full").await, Some(1.0));
    assert_eq!(handshakes("resumed").await, Some(0.0));
    for redials in 1..=3 {
        let [only] = system.relay().wait_connections(1).await[..] else {
            unreachable!()
        };
        system.relay().cut_one(only);
        let label = ["kind=\"resumed\""];
        let wanted = f64::from(redials);
        admin
            .wait_metric("tunnel_server_tls_handshakes_total", &label, |count| {
                count == wanted
            })
            .await;
        system.client().admin().wait_ready(true).await;
    }
    assert_eq!(handshakes("full").await, Some(1.0));
}
