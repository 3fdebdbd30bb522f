//! Programs and networks that go away and come back: what is asked meanwhile is answered plainly,
//! and nobody has to start anything again.

use std::{fs, time::Duration};

use e2e::{
    client::Client,
    deadline::{SOON, within},
    platform::PlatformClient,
    program::Signal,
    raw::RawClient,
    system::{Options, System},
    upstream::Upstream,
};

/// How long a request waits for a runtime to come back, unless told otherwise.
const PARKING: Duration = Duration::from_secs(5);

const APP: &str = "demo-app";

async fn status(system: &System) -> u16 {
    let mut client = PlatformClient::http1(&system.entry()).await;
    client.get("/status/200").await.status.as_u16()
}

#[tokio::test]
async fn a_killed_client_is_offline_until_it_is_back() {
    let upstream = Upstream::start().await;
    let mut system = System::start(&upstream.url()).await;
    assert_eq!(status(&system).await, 200);
    system.kill_client(APP);
    // What is sent before the server has seen that is lost, and says so.
    let admin = system.server().admin();
    admin
        .wait_metric("tunnel_server_sessions", &[], |sessions| sessions < 0.5)
        .await;
    let mut client = PlatformClient::http1(&system.entry()).await;
    let answer = within(
        PARKING + Duration::from_secs(2),
        "an answer",
        client.get("/"),
    )
    .await;
    assert_eq!(answer.status, 503);
    assert!(answer.text().contains("runtime_offline"), "{answer:?}");
    assert!(!answer.values("retry-after").is_empty());
    system.start_client(APP).await;
    assert_eq!(status(&system).await, 200);
}

#[tokio::test]
async fn a_request_that_waits_is_served_when_the_client_is_back() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).not_connected();
    let mut system = System::with(options.server_flags(&["--offline-wait", "20s"])).await;
    let entry = system.entry();
    let waiting = async { PlatformClient::http1(&entry).await.get("/status/200").await };
    let (answer, ()) = tokio::join!(waiting, system.start_client(APP));
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn an_exchange_under_way_breaks_when_its_client_dies() {
    let upstream = Upstream::start().await;
    let mut system = System::start(&upstream.url()).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client.request("GET", "/events", "", b"").await;
    let head = client.head().await.unwrap();
    client.read_some().await.unwrap();
    system.kill_client(APP);
    let content = client.content(head.response_framing("GET")).await;
    assert_ne!(content.end, e2e::http1::End::Clean);

    system.start_client(APP).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client.request("GET", "/hold", "", b"").await;
    upstream.wait_request("/hold").await;
    system.kill_client(APP);
    assert_eq!(client.response_to("GET").await.head.status(), 502);
}

#[tokio::test]
async fn a_client_returns_to_a_server_that_was_killed() {
    let upstream = Upstream::start().await;
    let mut system = System::start(&upstream.url()).await;
    system.kill_server();
    system.client().admin().wait_ready(false).await;
    system.start_server().await;
    system.client().admin().wait_ready(true).await;
    assert_eq!(status(&system).await, 200);
}

#[tokio::test]
async fn a_cut_or_refusing_network_is_survived() {
    let upstream = Upstream::start().await;
    let system = System::with(Options::to(&upstream.url()).through_relay()).await;
    system.relay().refuse();
    system.relay().cut();
    system.client().admin().wait_ready(false).await;
    system.relay().resume();
    system.client().admin().wait_ready(true).await;
    assert_eq!(status(&system).await, 200);
}

#[tokio::test]
async fn a_lost_path_is_noticed_at_both_ends_without_traffic() {
    let upstream = Upstream::start().await;
    let pings = ["--ping-interval", "500ms"];
    let options = Options::to(&upstream.url()).through_relay();
    let options = options
        .server_flags(&pings)
        .server_flags(&["--offline-wait", "100ms"]);
    let system = System::with(options.client_flags(&pings)).await;
    system.relay().stall();
    system.client().admin().wait_ready(false).await;
    within(SOON, "the server to notice", async {
        while status(&system).await != 503 {}
    })
    .await;
    system.relay().resume();
    system.client().admin().wait_ready(true).await;
    assert_eq!(status(&system).await, 200);
}

#[tokio::test]
async fn a_bad_token_is_told_at_once_and_shown_again_until_it_is_replaced() {
    let mut system = System::with(Options::to("http://127.0.0.1:1").not_connected()).await;
    let token = system.directory().join("other.token");
    let good = fs::read_to_string(system.token_of(APP)).unwrap();
    let (last, rest) = good.trim().as_bytes().split_last().unwrap();
    let changed = if *last == b'a' { b'b' } else { b'a' };
    fs::write(&token, [rest, &[changed]].concat()).unwrap();
    let mut options = system.client_options(APP).clone();
    options.token = token;
    let client = Client::start(&options).await;
    let told = "put a valid one into its file";
    client.program().wait_for_line(told, SOON).await;
    assert!(!client.program().log().is_closed());
    fs::write(&options.token, &good).unwrap();
    client.admin().wait_ready(true).await;
    for program in [client.program(), system.server().program()] {
        let log = format!("{:?}", program.log().all());
        assert!(!log.contains(good.trim()) && !log.contains(&good.trim()[..good.len() / 2]));
    }
}

#[tokio::test]
async fn programs_end_when_asked_and_finish_what_is_under_way() {
    let upstream = Upstream::start().await;
    let mut system = System::start(&upstream.url()).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client
        .request("GET", "/events?count=10&every_ms=100", "", b"")
        .await;
    let head = client.head().await.unwrap();
    system.server().program().signal(Signal::TERM);
    let content = client.content(head.response_framing("GET")).await;
    assert_eq!(content.end, e2e::http1::End::Clean);
    assert_eq!(
        String::from_utf8_lossy(&content.bytes)
            .matches("id: ")
            .count(),
        10
    );
    assert!(
        system
            .server_mut()
            .program_mut()
            .wait_exit(2 * SOON)
            .await
            .success()
    );
}

#[tokio::test]
async fn the_newest_instance_holds_the_runtime_and_the_older_one_stands_by() {
    let (old, new) = (Upstream::start().await, Upstream::start().await);
    let options = Options::to(&old.url()).client_flags(&["--refusal-wait", "3s"]);
    let mut system = System::with(options).await;
    let mut options = system.client_options(APP).clone();
    options.upstream = new.url();
    let newer = Client::start(&options).await;
    newer.admin().wait_ready(true).await;
    assert_eq!(status(&system).await, 200);
    new.wait_request("/status/200").await;
    assert!(old.record().is_empty());
    let told = "has taken over";
    system.client().program().wait_for_line(told, SOON).await;
    // It was there for a moment only: the runtime is served again as soon as the older one looks.
    drop(newer);
    system.client().admin().wait_ready(true).await;
    assert_eq!(status(&system).await, 200);
    old.wait_request("/status/200").await;
}
