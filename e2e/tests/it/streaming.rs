//! Streams: nothing is held back, nothing is held in memory, and who gives up is heard.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use e2e::{
    deadline::{SOON, within},
    payload::Payload,
    platform::{PlatformClient, digest, empty, streamed},
    raw::RawClient,
    scripted::ScriptedUpstream,
    system::System,
    upstream::{Received, Upstream},
};
use http::Request;
use http_body_util::BodyExt;

const GIB: u64 = 1024 * 1024 * 1024;

/// What each program may hold at most while it carries any amount.
const MEMORY: u64 = 64 * 1024 * 1024;

/// Time for a transfer on a busy machine, with programs built for debugging.
const TIME_LIMIT: Duration = Duration::from_secs(300);

const SECOND: Duration = Duration::from_secs(1);

async fn usual() -> (Upstream, System) {
    let upstream = Upstream::start().await;
    let system = System::start(&upstream.url()).await;
    (upstream, system)
}

fn assert_memory(system: &System) {
    for program in [system.server().program(), system.client().program()] {
        let memory = program.memory();
        assert!(memory.peak_bytes < MEMORY, "{memory:?} in {program:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gibibyte_goes_up_in_constant_memory() {
    let (_upstream, system) = usual().await;
    let payload = Payload::new(GIB);
    let client = PlatformClient::http1(&system.entry()).await;
    let request = Request::put("/upload")
        .body(streamed(payload.clone()))
        .unwrap();
    let received: Received = client.with_time_limit(TIME_LIMIT).ask(request).await.json();
    assert_eq!((received.bytes, received.sha256), (GIB, payload.sha256()));
    assert_memory(&system);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gibibyte_comes_down_in_constant_memory() {
    let (_upstream, system) = usual().await;
    let mut client = PlatformClient::http1(&system.entry()).await;
    let request = Request::get(format!("/download?bytes={GIB}"))
        .body(empty())
        .unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(
        digest(response.into_body()).await,
        (GIB, Payload::new(GIB).sha256())
    );
    assert_memory(&system);
}

#[tokio::test]
async fn both_directions_flow_at_once() {
    let (_upstream, system) = usual().await;
    let payload = Payload::new(50_000_000);
    for mut client in [
        PlatformClient::http1(&system.entry()).await,
        PlatformClient::http2(&system.entry()).await,
    ] {
        let request = Request::post("/duplex")
            .body(streamed(payload.clone()))
            .unwrap();
        let response = client.send(request).await.unwrap();
        assert_eq!(
            digest(response.into_body()).await,
            (50_000_000, payload.sha256())
        );
    }
}

#[tokio::test]
async fn a_reader_that_stands_still_holds_the_upstream_and_no_memory() {
    let (upstream, system) = usual().await;
    let mut client = RawClient::connect(&system.entry()).await;
    client
        .request("GET", &format!("/download?bytes={GIB}"), "", b"")
        .await;
    client.head().await.unwrap();
    // Others go on beside it.
    let mut other = PlatformClient::http1(&system.entry()).await;
    for _ in 0..20 {
        assert_eq!(
            other.get("/download?bytes=1000000").await.body.len(),
            1_000_000
        );
    }
    assert_memory(&system);
    drop(client);
    upstream
        .wait_hang_up(&format!("/download?bytes={GIB}"), SECOND)
        .await;
}

#[tokio::test]
async fn events_are_seen_as_they_are_sent_and_a_hang_up_within_a_second() {
    let (upstream, system) = usual().await;
    for http2 in [false, true] {
        let mut client = match http2 {
            true => PlatformClient::http2(&system.entry()).await,
            false => PlatformClient::http1(&system.entry()).await,
        };
        let target = format!("/events?every_ms=50&http2={}", u8::from(http2));
        let request = Request::get(&target).body(empty()).unwrap();
        let mut response = client.send(request).await.unwrap();
        let mut delays = Vec::new();
        for _ in 0..20 {
            let frame = within(SOON, "an event", response.body_mut().frame()).await;
            let data = frame.unwrap().unwrap().into_data().unwrap();
            let text = std::str::from_utf8(&data).unwrap();
            let sent: u128 = text.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_micros();
            delays.push(now - sent);
        }
        // Of each, but the machine may stand still for a moment: whoever gathers events delays most.
        delays.sort_unstable();
        assert!(delays[15] < 100_000, "events took {delays:?} microseconds");
        drop((response, client));
        upstream.wait_hang_up(&target, SECOND).await;
    }
}

#[tokio::test]
async fn a_request_that_is_given_up_before_its_answer_is_given_up_upstream() {
    let (upstream, system) = usual().await;
    let mut client = RawClient::connect(&system.entry()).await;
    client.request("GET", "/hold", "", b"").await;
    upstream.wait_request("/hold").await;
    drop(client);
    upstream.wait_hang_up("/hold", SECOND).await;

    let silent = ScriptedUpstream::silent().await;
    let system = System::start(&silent.url()).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client.request("GET", "/", "", b"").await;
    silent.wait_head(0).await;
    client.reset();
    silent.wait_ended(SECOND).await;
}

#[tokio::test]
async fn three_hundred_that_are_never_answered_do_not_stop_the_next() {
    let (upstream, system) = usual().await;
    let mut held = Vec::new();
    for number in 0..300 {
        let mut client = RawClient::connect(&system.entry()).await;
        client
            .request("GET", &format!("/hold?{number}"), "", b"")
            .await;
        held.push(client);
    }
    for number in 0..300 {
        upstream.wait_request(&format!("/hold?{number}")).await;
    }
    let mut client = PlatformClient::http1(&system.entry()).await;
    let answer = within(5 * SECOND, "the 301st", client.get("/status/200")).await;
    assert_eq!(answer.status, 200);
    drop(held);
    for number in 0..300 {
        upstream
            .wait_hang_up(&format!("/hold?{number}"), SOON)
            .await;
    }
}
