//! What one runtime may use: each limit is named where it is reached, all places come back, rates are
//! kept, and a runtime at its limits costs its neighbour nothing.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use testkit::{
    deadline::{SOON, eventually, soon},
    http1::{RawConnection, RawResponse},
    tunnel::{
        body::{Feed, collect, data, fed, full, status},
        client::{FakeClient, random_instance},
    },
};
use tokio::{net::TcpSocket, task::JoinSet, time::Instant};
use tunnel_http::answer::ProblemDetail;
use tunnel_server::config::Config;

use crate::{
    access_lines::PANIC_PATH,
    http2_client::{self, Http2},
    rig::{DEV, DEV_HOST, PROD, PROD_HOST, Rig},
    sessions::{answering, get},
    upgrade::granting,
};

const UPGRADE: &str = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn asking(host: &str, path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{lines}\r\n")
}

/// A server that names the limit in its answers.
async fn rig_naming_limits(change: impl FnOnce(&mut Config)) -> Rig {
    Rig::with(|config| {
        config.settings.problem_detail = ProblemDetail::Full;
        change(config);
    })
    .await
}

#[track_caller]
fn is_limited(answer: &RawResponse, status: u16, reason: &str, limit: &str) {
    assert_eq!(answer.head.status(), status, "{answer:?}");
    assert_eq!(answer.reason(), reason);
    assert!(answer.text().contains(&format!("`{limit}`")), "{answer:?}");
    let has_retry = answer.head.value("retry-after").is_some();
    assert_eq!(has_retry, status != 431, "{answer:?}");
}

async fn is_counted(rig: &Rig, reason: &str, times: f64) {
    let series =
        format!("tunnel_server_problems_total{{hop=\"tunnel-server\",reason=\"{reason}\"}}");
    rig.metric_becomes(&series, times).await;
}

/// Asks for something that does not end before the test says so.
async fn open(rig: &Rig, feeds: &mut tokio::sync::mpsc::Receiver<Feed>) -> (RawConnection, Feed) {
    let mut raw = rig.raw().await;
    raw.send(get("/long")).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    assert_eq!(raw.head().await.unwrap().status(), 200);
    (raw, feed)
}

/// Asks until the answer is not a refusal.
async fn is_served(rig: &Rig) {
    eventually(SOON, "a place", async || {
        let answer = rig.raw().await.ask(get("/now")).await;
        (answer.head.status() == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn exchanges_that_are_open_are_bounded_for_each_runtime() {
    let rig = rig_naming_limits(|config| config.settings.limit_exchanges = 2).await;
    let (_client, mut feeds) = answering(&rig, random_instance()).await;
    let _other = FakeClient::describing(&rig, DEV).await;
    let (_first, feed) = open(&rig, &mut feeds).await;
    let (second, _feed) = open(&rig, &mut feeds).await;
    let mut raw = rig.raw().await;
    let answer = raw.ask(get("/now")).await;
    is_limited(&answer, 503, "exchange_limit", "exchanges");
    is_counted(&rig, "exchange_limit", 1.0).await;
    // The connection goes on, and another runtime has a budget of its own.
    let other = raw.ask(asking(DEV_HOST, "/", "")).await;
    assert_eq!(other.head.status(), 200);
    // One that ends gives its place back, and so does one whose platform client leaves.
    drop(feed);
    is_served(&rig).await;
    drop(second);
    let (_first, _feed) = open_when_possible(&rig, &mut feeds).await;
    let (_second, _feed) = open_when_possible(&rig, &mut feeds).await;
    let answer = raw.ask(get("/now")).await;
    is_limited(&answer, 503, "exchange_limit", "exchanges");
}

/// Sends a request from another address of this machine.
async fn ask_from(rig: &Rig, address: &str, request: String) -> RawResponse {
    let socket = TcpSocket::new_v4().unwrap();
    let address: IpAddr = address.parse().unwrap();
    socket.bind(SocketAddr::new(address, 0)).unwrap();
    let connecting = socket.connect(rig.addresses.public);
    let mut raw = RawConnection::over(soon("a connection", connecting).await.unwrap());
    raw.ask(request).await
}

#[tokio::test]
async fn one_address_leaves_half_of_a_runtime_to_others() {
    const MOST: usize = 64;
    let rig = rig_naming_limits(|config| config.settings.limit_exchanges = MOST as u32).await;
    let (_client, mut feeds) = answering(&rig, random_instance()).await;
    let mut held = Vec::new();
    for _ in 0..MOST / 2 {
        held.push(open(&rig, &mut feeds).await);
    }
    let answer = rig.raw().await.ask(get("/now")).await;
    assert_eq!(answer.head.status(), 429, "{answer:?}");
    assert_eq!(answer.reason(), "address_limit");
    assert_eq!(answer.head.value("retry-after"), Some("1"));
    is_counted(&rig, "address_limit", 1.0).await;
    // Another address of the same network finds room, and so does this one when it gives some back.
    let other = ask_from(&rig, "127.0.0.2", get("/now")).await;
    assert_eq!(other.head.status(), 200, "{other:?}");
    held.pop();
    is_served(&rig).await;
}

#[tokio::test]
async fn a_trusted_proxy_that_speaks_for_many_has_no_share() {
    let rig = rig_naming_limits(|config| {
        config.settings.limit_exchanges = 64;
        config.settings.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    })
    .await;
    let (_client, mut feeds) = answering(&rig, random_instance()).await;
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(open(&rig, &mut feeds).await);
    }
    let answer = rig.raw().await.ask(get("/now")).await;
    is_limited(&answer, 503, "exchange_limit", "exchanges");
}

async fn open_when_possible(
    rig: &Rig,
    feeds: &mut tokio::sync::mpsc::Receiver<Feed>,
) -> (RawConnection, Feed) {
    eventually(SOON, "a place", async || {
        let mut raw = rig.raw().await;
        raw.send(get("/long")).await;
        if raw.head().await.unwrap().status() != 200 {
            return None;
        }
        Some((raw, feeds.recv().await.unwrap()))
    })
    .await
}

#[tokio::test]
async fn upgraded_connections_are_bounded_beside_that() {
    let rig = rig_naming_limits(|config| config.settings.limit_websockets = 1).await;
    let (_client, mut upstreams) = granting(&rig).await;
    let upgrade = asking(PROD_HOST, "/chat", UPGRADE);
    let mut upgraded = rig.raw().await;
    upgraded.send(&upgrade).await;
    assert_eq!(upgraded.head().await.unwrap().status(), 101);
    let upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    let mut raw = rig.raw().await;
    let answer = raw.ask(&upgrade).await;
    is_limited(&answer, 503, "websocket_limit", "websockets");
    is_counted(&rig, "websocket_limit", 1.0).await;
    drop((upgraded, upstream));
    eventually(SOON, "the place", async || {
        let mut raw = rig.raw().await;
        raw.send(&upgrade).await;
        (raw.head().await.unwrap().status() == 101).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_refused_upgrade_returns_its_permit_at_once() {
    let rig = rig_naming_limits(|config| {
        config.settings.limit_websockets = 1;
        config.settings.limit_exchanges = 2;
    })
    .await;
    // The refusals have contents that do not end.
    let (handed, mut feeds) = tokio::sync::mpsc::channel(4);
    let _client = FakeClient::new(&rig, PROD, move |_| {
        let (feed, body) = fed();
        handed.try_send(feed).unwrap();
        async { Ok(status(403, body)) }
    })
    .await;
    let upgrade = asking(PROD_HOST, "/chat", UPGRADE);
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut raw = rig.raw().await;
        raw.send(&upgrade).await;
        assert_eq!(raw.head().await.unwrap().status(), 403);
        held.push((raw, soon("the request", feeds.recv()).await.unwrap()));
    }
    // They are exchanges like any other.
    let answer = rig.raw().await.ask(&upgrade).await;
    is_limited(&answer, 503, "exchange_limit", "exchanges");
}

#[tokio::test]
async fn the_exchanges_of_all_runtimes_together_are_bounded() {
    let rig = rig_naming_limits(|config| config.settings.max_open_exchanges = 1).await;
    let (_client, mut feeds) = answering(&rig, random_instance()).await;
    let _other = FakeClient::describing(&rig, DEV).await;
    let (_first, feed) = open(&rig, &mut feeds).await;
    let answer = rig.raw().await.ask(asking(DEV_HOST, "/", "")).await;
    is_limited(&answer, 503, "server_limit", "max-open-exchanges");
    drop(feed);
    is_served(&rig).await;
}

#[tokio::test]
async fn upgraded_connections_and_beginnings_of_all_runtimes_together_are_bounded() {
    let rig = rig_naming_limits(|config| {
        config.settings.max_open_websockets = 1;
        config.settings.max_exchange_rate = Some(4);
    })
    .await;
    let (_client, mut upstreams) = granting(&rig).await;
    let _other = FakeClient::describing(&rig, DEV).await;
    let mut upgraded = rig.raw().await;
    upgraded.send(asking(PROD_HOST, "/chat", UPGRADE)).await;
    assert_eq!(upgraded.head().await.unwrap().status(), 101);
    let _upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    let upgrade = asking(DEV_HOST, "/chat", UPGRADE);
    let answer = rig.raw().await.ask(&upgrade).await;
    is_limited(&answer, 503, "server_limit", "max-open-websockets");
    let mut raw = rig.raw().await;
    let refused = eventually(SOON, "a refusal", async || {
        let answer = raw.ask(asking(DEV_HOST, "/", "")).await;
        (answer.head.status() != 200).then_some(answer)
    })
    .await;
    is_limited(&refused, 503, "server_limit", "max-exchange-rate");
    eventually(SOON, "another second", async || {
        let answer = raw.ask(asking(DEV_HOST, "/", "")).await;
        (answer.head.status() == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn exchanges_that_begin_in_a_second_are_bounded() {
    let rig = rig_naming_limits(|config| config.settings.limit_exchange_rate = Some(5)).await;
    let (client, _feeds) = answering(&rig, random_instance()).await;
    let _other = FakeClient::describing(&rig, DEV).await;
    let mut raw = rig.raw().await;
    let began = Instant::now();
    let (mut served, mut refused) = (0, 0);
    while began.elapsed() < Duration::from_millis(2_500) {
        let answer = raw.ask(get("/now")).await;
        match answer.head.status() {
            200 => served += 1,
            _ => {
                is_limited(&answer, 429, "exchange_rate_limit", "exchange_rate");
                assert_eq!(answer.head.value("retry-after"), Some("1"));
                refused += 1;
            }
        }
        if served + refused < 6 {
            let other = raw.ask(asking(DEV_HOST, "/", "")).await;
            assert_eq!(other.head.status(), 200);
        }
    }
    // Five in each second, and of the last one the half that is over.
    let most = (began.elapsed().as_secs_f64() * 5.0).ceil() as usize + 1;
    assert!((10..=most).contains(&served), "{served} of {most}");
    assert!(refused > 0);
    assert_eq!(client.seen().len(), served);
}

#[tokio::test]
async fn a_head_that_is_too_large_for_the_runtime_is_refused_by_name() {
    let rig = rig_naming_limits(|config| config.settings.limit_head_size = Some(2_048)).await;
    let client = FakeClient::describing(&rig, PROD).await;
    let head_of = |bytes: usize| {
        let lines = |length| format!("x-large: {}\r\n", "x".repeat(length));
        let without = asking(PROD_HOST, "/", &lines(0)).len();
        asking(PROD_HOST, "/", &lines(bytes - without))
    };
    let mut raw = rig.raw().await;
    assert_eq!(raw.ask(head_of(2_048)).await.head.status(), 200);
    let answer = raw.ask(head_of(2_049)).await;
    is_limited(&answer, 431, "head_too_large", "head_size");
    answer.assert_refused(431, "a large head");
    assert_eq!(client.seen().len(), 1);
    let mut http2 = Http2::new(&rig).await;
    let mut request = http2_client::get("/");
    let value = http::HeaderValue::from_str(&"x".repeat(2_048)).unwrap();
    request.headers_mut().insert("x-large", value);
    assert_eq!(http2.ask(request).await.unwrap().status(), 431);
}

#[tokio::test]
async fn those_that_wait_for_a_runtime_are_bounded() {
    let rig = rig_naming_limits(|config| {
        config.settings.limit_waiting = 1;
        config.settings.offline_wait = Duration::from_secs(600);
    })
    .await;
    let mut waiting = rig.raw().await;
    waiting.send(get("/now")).await;
    let refused = eventually(SOON, "a refusal", async || {
        let mut raw = rig.raw().await;
        raw.send(get("/now")).await;
        tokio::time::timeout(Duration::from_millis(200), raw.response())
            .await
            .ok()
    })
    .await;
    is_limited(&refused, 503, "waiting_limit", "waiting");
    let (_client, _feeds) = answering(&rig, random_instance()).await;
    is_served(&rig).await;
}

#[tokio::test]
async fn one_address_leaves_half_of_the_waiting_permits_to_others() {
    const MOST: usize = 64;
    let rig = rig_naming_limits(|config| {
        config.settings.limit_waiting = MOST as u32;
        config.settings.offline_wait = Duration::from_secs(600);
    })
    .await;
    let mut waiting = Vec::new();
    for _ in 0..MOST / 2 {
        let mut raw = rig.raw().await;
        raw.send(get("/now")).await;
        waiting.push(raw);
    }
    let refused = eventually(SOON, "a refusal", async || {
        let mut raw = rig.raw().await;
        raw.send(get("/now")).await;
        let answered = tokio::time::timeout(Duration::from_millis(200), raw.response());
        answered.await.ok()
    })
    .await;
    assert_eq!(refused.head.status(), 429, "{refused:?}");
    assert_eq!(refused.reason(), "address_limit");
    // Another address waits, and is served when the runtime has come.
    let (other, _client) = tokio::join!(ask_from(&rig, "127.0.0.2", get("/now")), async {
        answering(&rig, random_instance()).await
    });
    assert_eq!(other.head.status(), 200, "{other:?}");
    drop(waiting);
}

/// One place in all, and each way in which an exchange can end: the next one finds the place free.
#[tokio::test]
async fn an_exchange_returns_its_permit_however_it_ends() {
    let rig = rig_naming_limits(|config| {
        config.settings.limit_exchanges = 1;
        config.settings.limit_websockets = 1;
        config.settings.max_open_exchanges = 1;
    })
    .await;
    let (client, mut feeds) = answering(&rig, random_instance()).await;
    is_served(&rig).await;
    // The platform client leaves, before and after there was an answer.
    let (raw, feed) = open(&rig, &mut feeds).await;
    drop(raw);
    soon("the exchange's end", feed.closed()).await;
    is_served(&rig).await;
    // The stream of HTTP/2 is reset.
    let mut http2 = Http2::new(&rig).await;
    let response = http2.ask(http2_client::get("/long")).await.unwrap();
    let feed = soon("the request", feeds.recv()).await.unwrap();
    drop(response);
    soon("the exchange's end", feed.closed()).await;
    is_served(&rig).await;
    // The upstream fails in the middle.
    let (mut raw, feed) = open(&rig, &mut feeds).await;
    let failure = testkit::tunnel::body::Failure(testkit::tunnel::body::internal());
    feed.send(Err(failure)).await.unwrap();
    raw.rest().await;
    is_served(&rig).await;
    // A fault of our own.
    rig.raw().await.send(get(PANIC_PATH)).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    drop(feed);
    is_served(&rig).await;
    // The session is lost, under an exchange and under an upgraded connection.
    let (mut raw, _feed) = open(&rig, &mut feeds).await;
    client.die();
    raw.rest().await;
    let (client, mut upstreams) = granting(&rig).await;
    let mut raw = eventually(SOON, "a place", async || {
        let mut raw = rig.raw().await;
        raw.send(asking(PROD_HOST, "/chat", UPGRADE)).await;
        (raw.head().await.unwrap().status() == 101).then_some(raw)
    })
    .await;
    let _upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    client.die();
    raw.rest().await;
    // The runtime is offline.
    let answer = rig.raw().await.ask(get("/now")).await;
    assert_eq!(answer.reason(), "runtime_offline");
    let (_client, _feeds) = answering(&rig, random_instance()).await;
    is_served(&rig).await;
}

/// Bytes in a second that the shaped runtimes may have.
const RATE: usize = 1_024 * 1_024;
/// What goes at once.
const BURST: usize = RATE / 4;
/// What is moved: as long as the rest takes.
const BYTES: usize = BURST + RATE;

/// A client of both runtimes' kind: takes what it is sent, and answers with as many bytes as the path
/// says.
async fn moving(rig: &Rig, runtime: &str) -> FakeClient {
    FakeClient::new(rig, runtime, |request| async move {
        let length: usize = request.uri().path()[1..].parse().unwrap();
        let _ = collect(request.into_body()).await;
        Ok(status(200, full(vec![b'x'; length])))
    })
    .await
}

/// That this took a second, and hardly less: later it may be, on a busy machine.
#[track_caller]
fn took_a_second(began: Instant) {
    let took = began.elapsed();
    let wanted = Duration::from_millis(900)..Duration::from_secs(4);
    assert!(wanted.contains(&took), "{took:?}");
}

#[tokio::test]
async fn what_a_runtime_sends_is_held_to_its_rate() {
    let rig =
        rig_naming_limits(|config| config.settings.limit_download_rate = Some(RATE as u64)).await;
    let _client = moving(&rig, PROD).await;
    let began = Instant::now();
    let answer = rig.raw().await.ask(get(&format!("/{BYTES}"))).await;
    took_a_second(began);
    assert_eq!(answer.content.bytes.len(), BYTES);
}

/// All that share a rate get their part of it, and together no more than it.
#[tokio::test]
async fn the_bodies_of_a_runtime_share_its_rate() {
    let rig =
        rig_naming_limits(|config| config.settings.limit_download_rate = Some(RATE as u64)).await;
    let _client = moving(&rig, PROD).await;
    let _other = moving(&rig, DEV).await;
    let began = Instant::now();
    let mut bodies = JoinSet::new();
    for _ in 0..8 {
        let mut raw = rig.raw().await;
        bodies.spawn(async move {
            let answer = raw.ask(get(&format!("/{}", BYTES / 8))).await;
            (answer.content.bytes.len(), began.elapsed())
        });
    }
    let mut http2 = Http2::new(&rig).await;
    // Meanwhile another runtime has a rate of its own, and its burst.
    for _ in 0..4 {
        let mut request = http2_client::get("/10000");
        *request.uri_mut() = format!("http://{DEV_HOST}/10000").parse().unwrap();
        let response = http2.ask(request).await.unwrap();
        let (content, _) = http2_client::read(response.into_body()).await.unwrap();
        assert_eq!(content.len(), 10_000);
    }
    assert!(began.elapsed() < Duration::from_millis(800));
    let ended = soon("all bodies", bodies.join_all()).await;
    took_a_second(began);
    assert!(ended.iter().all(|(length, _)| *length == BYTES / 8));
    // Whoever came first has had the burst; of the others nobody is through long before the rest.
    let early = |(_, at): &&(usize, Duration)| *at < Duration::from_millis(400);
    assert!(ended.iter().filter(early).count() <= 2, "{ended:?}");
}

#[tokio::test]
async fn what_a_runtime_is_sent_is_held_to_its_rate() {
    let rig =
        rig_naming_limits(|config| config.settings.limit_upload_rate = Some(RATE as u64)).await;
    let _client = moving(&rig, PROD).await;
    let head = format!("POST /1 HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: {BYTES}\r\n\r\n");
    let request = [head.as_bytes(), &vec![b'x'; BYTES]].concat();
    let began = Instant::now();
    let answer = rig.raw().await.ask(request).await;
    took_a_second(began);
    assert_eq!(answer.head.status(), 200);

    let mut http2 = Http2::new(&rig).await;
    let request = http::Request::post(format!("http://{PROD_HOST}/1"));
    let request = request.body(()).unwrap();
    let began = Instant::now();
    let (response, mut body) = http2.send.send_request(request, false).unwrap();
    let sending = async {
        for _ in 0..BYTES / 16_384 {
            body.reserve_capacity(16_384);
            while body.capacity() < 16_384 {
                let more = std::future::poll_fn(|cx| body.poll_capacity(cx)).await;
                more.unwrap().unwrap();
            }
            body.send_data(Bytes::from_static(&[b'x'; 16_384]), false)
                .unwrap();
        }
        body.send_data(Bytes::new(), true).unwrap();
    };
    let (response, ()) = soon("an upload", async { tokio::join!(response, sending) }).await;
    assert_eq!(response.unwrap().status(), 200);
    // The burst is not back whole yet.
    took_a_second(began);
}

#[tokio::test]
async fn upgraded_connections_are_held_to_both_rates() {
    let rig = rig_naming_limits(|config| {
        config.settings.limit_upload_rate = Some(RATE as u64);
        config.settings.limit_download_rate = Some(RATE as u64);
    })
    .await;
    let (_client, mut upstreams) = granting(&rig).await;
    let mut raw = rig.raw().await;
    raw.send(asking(PROD_HOST, "/chat", UPGRADE)).await;
    assert_eq!(raw.head().await.unwrap().status(), 101);
    let mut upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    let (mut reading, mut writing) = raw.split();
    let began = Instant::now();
    let send = upstream.send.clone();
    let down = async {
        for _ in 0..BYTES / 65_536 {
            send.send(data(vec![b'd'; 65_536])).await.unwrap();
        }
    };
    let received = async {
        reading.bytes(BYTES).await;
        took_a_second(began);
    };
    let sent = async {
        upstream.bytes(BYTES).await;
        took_a_second(began);
    };
    let up = writing.send(vec![b'u'; BYTES]);
    tokio::join!(up, down, received, sent);
}

/// A runtime floods each of its limits; its neighbour, with the same ones, is served without an error.
#[tokio::test]
async fn a_runtime_at_all_its_limits_costs_its_neighbour_nothing() {
    let rig = rig_naming_limits(|config| {
        config.settings.limit_exchanges = 8;
        config.settings.limit_websockets = 2;
        config.settings.limit_exchange_rate = Some(200);
        config.settings.limit_head_size = Some(4_096);
        config.settings.limit_download_rate = Some(RATE as u64);
        config.settings.limit_upload_rate = Some(RATE as u64);
        config.settings.limit_waiting = 2;
    })
    .await;
    let _a = moving(&rig, PROD).await;
    let _b = moving(&rig, DEV).await;
    let large = format!("x-large: {}\r\n", "x".repeat(5_000));
    let body = "x".repeat(500_000);
    let upload =
        format!("POST /1 HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 500000\r\n\r\n{body}");
    let floods = [
        get("/1"),
        get("/500000"),
        asking(PROD_HOST, "/1", UPGRADE),
        asking(PROD_HOST, "/1", &large),
        upload,
    ];
    let mut flooding = JoinSet::new();
    for flood in floods {
        for _ in 0..6 {
            let (flood, address) = (flood.clone(), rig.addresses.public);
            flooding.spawn(async move {
                loop {
                    let mut raw = RawConnection::over(crate::rig::connect(address).await);
                    raw.send(&flood).await;
                    drop(raw.head().await);
                }
            });
        }
    }
    let mut raw = rig.raw().await;
    for _ in 0..100 {
        let answer = raw.ask(asking(DEV_HOST, "/100", "")).await;
        assert_eq!(answer.head.status(), 200, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for reason in ["exchange_limit", "head_too_large"] {
        let series =
            format!("tunnel_server_problems_total{{hop=\"tunnel-server\",reason=\"{reason}\"}}");
        assert!(rig.metric(&series).await > 0.0, "{reason}");
    }
    flooding.shutdown().await;
}
