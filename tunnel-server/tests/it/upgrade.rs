//! Upgraded connections over HTTP/1.1: asked for, granted or not, and then bytes both ways.

use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use testkit::{
    deadline::soon,
    http1::{End, RawConnection},
    tunnel::{
        body::{AnyBody, BodyEnd, Failure, Feed, collect, data, endings, fed, full, status},
        client::FakeClient,
    },
};
use tokio::{sync::mpsc, time::sleep};
use tunnel_ops::task::Owned;
use tunnel_proto::{
    exchange::RecvBody,
    problem::{Hop, Problem, Reason},
};

use crate::rig::{PROD, PROD_HOST, Rig, connect, identity};

/// The two directions of an upgraded connection, at the upstream's end.
pub(crate) struct Upstream {
    pub(crate) received: RecvBody,
    pub(crate) send: Feed,
}

/// A client that grants every upgrade, and hands its connections to the test.
pub(crate) async fn granting(rig: &Rig) -> (FakeClient, mpsc::Receiver<Upstream>) {
    let (handed, upstreams) = mpsc::channel(4);
    let client = FakeClient::new(rig, PROD, move |request| {
        let handed = handed.clone();
        async move {
            let (send, body) = fed();
            let received = request.into_body();
            assert!(handed.send(Upstream { received, send }).await.is_ok());
            Ok(granted(body))
        }
    })
    .await;
    (client, upstreams)
}

fn granted(body: AnyBody) -> Response<AnyBody> {
    Response::builder()
        .header("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        .header("sec-websocket-protocol", "chat")
        .body(body)
        .unwrap()
}

impl Upstream {
    /// The next bytes, at least `length` of them.
    pub(crate) async fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let frame = soon("bytes", self.received.frame())
                .await
                .expect("the end")
                .unwrap();
            bytes.extend_from_slice(&frame.into_data().unwrap());
        }
        bytes
    }

    pub(crate) async fn send(&self, bytes: impl Into<Vec<u8>>) {
        soon("sending", self.send.send(data(bytes.into())))
            .await
            .unwrap();
    }
}

fn asking(lines: &str) -> String {
    format!(
        "GET /chat?x HTTP/1.1\r\nhost: {PROD_HOST}\r\nconnection: keep-alive, Upgrade\r\n\
         upgrade: WebSocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{lines}\r\n"
    )
}

pub(crate) async fn upgraded(rig: &Rig, behind: &[u8]) -> RawConnection {
    let mut raw = rig.raw().await;
    raw.send([asking("").as_bytes(), behind].concat()).await;
    let head = raw.head().await.unwrap();
    assert_eq!(head.status(), 101);
    assert_eq!(head.value("connection"), Some("upgrade"));
    assert_eq!(head.value("upgrade"), Some("websocket"));
    assert_eq!(
        head.value("sec-websocket-accept"),
        Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
    );
    assert_eq!(head.value("sec-websocket-protocol"), Some("chat"));
    assert_eq!(
        (
            head.value("content-length"),
            head.value("transfer-encoding")
        ),
        (None, None)
    );
    raw
}

#[tokio::test]
async fn an_upgrade_is_requested_unchanged_and_carries_bytes_both_ways() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = granting(&rig).await;
    let mut raw = rig.raw().await;
    raw.send(asking(
        "origin: https://a.test\r\nsec-websocket-protocol: chat, other\r\n\
         sec-websocket-extensions: permessage-deflate\r\n",
    ))
    .await;
    let seen = client.request(1).await;
    assert!(seen.is_upgrade);
    assert_eq!((seen.method.as_str(), seen.path()), ("CONNECT", "/chat?x"));
    assert_eq!(seen.values("origin"), ["https://a.test"]);
    assert_eq!(
        seen.values("sec-websocket-key"),
        ["dGhlIHNhbXBsZSBub25jZQ=="]
    );
    assert_eq!(seen.values("sec-websocket-protocol"), ["chat, other"]);
    assert_eq!(
        seen.values("sec-websocket-extensions"),
        ["permessage-deflate"]
    );
    assert!(!seen.headers.contains_key("upgrade") && !seen.headers.contains_key("connection"));
    assert_eq!(raw.head().await.unwrap().status(), 101);
    let mut upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    for round in 0..10 {
        let (up, down) = (format!("up {round}"), format!("down {round}"));
        raw.send(&up).await;
        assert_eq!(upstream.bytes(up.len()).await, up.as_bytes());
        upstream.send(down.clone()).await;
        assert_eq!(raw.bytes(down.len()).await, down.as_bytes());
    }
    rig.metric_becomes("tunnel_server_open_exchanges{runtime=\"acme-prod\"}", 1.0)
        .await;
    drop(upstream.send);
    raw.finish().await;
    assert_eq!(raw.closes().await, End::Clean);
    rig.metric_becomes("tunnel_server_open_exchanges{runtime=\"acme-prod\"}", 0.0)
        .await;
    let switched = "tunnel_server_exchanges_total{runtime=\"acme-prod\",status=\"1xx\"}";
    rig.metric_becomes(switched, 1.0).await;
}

#[tokio::test]
async fn bytes_right_behind_the_request_arrive_first_and_in_order() {
    let rig = Rig::start().await;
    let (_client, mut upstreams) = granting(&rig).await;
    for length in [1, 100, 4_096, 10_000, 16 * 1024, 60_000] {
        let early: Vec<u8> = (0..length).map(|number: u32| number as u8).collect();
        let mut raw = upgraded(&rig, &early).await;
        raw.send("late").await;
        let mut upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
        let bytes = upstream.bytes(early.len() + 4).await;
        assert!(bytes[..early.len()] == early, "{length}");
        assert_eq!(&bytes[early.len()..], b"late");
    }
}

#[tokio::test]
async fn bulk_passes_both_ways_at_once() {
    const BYTES: usize = 4 * 1024 * 1024;
    let rig = Rig::start().await;
    let (_client, mut upstreams) = granting(&rig).await;
    let raw = upgraded(&rig, b"").await;
    let mut upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    let send = upstream.send.clone();
    let down = Owned::spawn("down", async move {
        for _ in 0..BYTES / 65_536 {
            send.send(data(vec![b'd'; 65_536])).await.unwrap();
        }
    });
    let (mut reading, mut writing) = raw.split();
    let up = Owned::spawn("up", async move {
        for _ in 0..BYTES / 65_536 {
            writing.send(&[b'u'; 65_536]).await;
        }
        writing
    });
    let (received, sent) = tokio::join!(reading.bytes(BYTES), upstream.bytes(BYTES));
    assert!(received.iter().all(|byte| *byte == b'd'));
    assert!(sent.iter().all(|byte| *byte == b'u'));
    soon("both tasks", async {
        (down.await.unwrap(), up.await.unwrap())
    })
    .await;
}

#[tokio::test]
async fn the_platform_client_may_end_its_direction_first() {
    let rig = Rig::start().await;
    let (_client, mut upstreams) = granting(&rig).await;
    let mut raw = upgraded(&rig, b"").await;
    let upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    raw.send("bye").await;
    raw.finish().await;
    let (content, end) = soon("the end", collect(upstream.received)).await;
    assert_eq!((&content[..], end.is_ok()), (&b"bye"[..], true));
    for round in 0..3 {
        let text = format!("still here {round}");
        upstream.send.send(data(text.clone())).await.unwrap();
        assert_eq!(raw.bytes(text.len()).await, text.as_bytes());
    }
    drop(upstream.send);
    assert_eq!(raw.closes().await, End::Clean);
}

#[tokio::test]
async fn the_upstream_may_end_its_direction_first() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = granting(&rig).await;
    let mut raw = upgraded(&rig, b"").await;
    let Upstream { received, send } = soon("the upgrade", upstreams.recv()).await.unwrap();
    send.send(data("bye")).await.unwrap();
    drop(send);
    assert_eq!(raw.closes_after(b"bye").await, End::Clean);
    for _ in 0..3 {
        raw.send("still here ").await;
    }
    raw.send(vec![b'x'; 1_000_000]).await;
    raw.finish().await;
    let (content, end) = soon("the end", collect(received)).await;
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(content.len(), 33 + 1_000_000);
    rig.metric_becomes("tunnel_server_open_exchanges{runtime=\"acme-prod\"}", 0.0)
        .await;
    client.rests().await;
}

#[tokio::test]
async fn an_open_half_is_ended_after_a_silence() {
    let rig =
        Rig::with(|config| config.settings.body_idle_timeout = Duration::from_millis(200)).await;
    let (_client, mut upstreams) = granting(&rig).await;
    let mut raw = upgraded(&rig, b"").await;
    let upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    raw.finish().await;
    raw.closes().await;
    soon("the upstream's end", upstream.send.closed()).await;

    let raw = upgraded(&rig, b"").await;
    let Upstream { received, send } = soon("the upgrade", upstreams.recv()).await.unwrap();
    drop(send);
    let (_, end) = soon("the end", collect(received)).await;
    assert!(end.is_err());
    drop(raw);
}

#[tokio::test]
async fn a_reset_by_the_platform_client_is_not_laid_to_the_session() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = granting(&rig).await;
    let socket = connect(rig.addresses.public).await;
    socket.set_zero_linger().unwrap();
    let mut raw = RawConnection::over(socket);
    raw.send(asking("")).await;
    assert_eq!(raw.head().await.unwrap().status(), 101);
    let upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    drop(raw);
    soon("the upstream's end", upstream.send.closed()).await;
    drop(upstream);
    client.rests().await;
    let counted = |reason| {
        format!("tunnel_server_problems_total{{hop=\"tunnel-server\",reason=\"{reason}\"}}")
    };
    rig.metric_becomes(&counted("request_incomplete"), 1.0)
        .await;
    assert!(rig.metric(&counted("session_lost")).await < 0.5);
}

/// A socket takes more only when a good part of its buffer is free again, which is much longer than the
/// limit here; that bytes go all the time only the kernel sees.
#[tokio::test]
async fn a_slow_reader_keeps_the_connection() {
    const BYTES: usize = 16 * 1024 * 1024;
    const SLOW: usize = 32 * 1024;
    let rig = Rig::with(|config| config.settings.body_idle_timeout = Duration::from_secs(3)).await;
    let (client, mut upstreams) = granting(&rig).await;
    let mut raw = upgraded(&rig, b"").await;
    let Upstream { received, send } = soon("the upgrade", upstreams.recv()).await.unwrap();
    let _upstream = Owned::spawn("upstream", async move {
        let piece = vec![7; 16 * 1024];
        for _ in 0..BYTES / piece.len() {
            if send.send(data(piece.clone())).await.is_err() {
                return;
            }
        }
        let _ = collect(received).await;
    });
    const READS: usize = 28;
    for _ in 0..READS {
        sleep(Duration::from_millis(250)).await;
        raw.bytes(SLOW).await;
    }
    raw.bytes(BYTES - READS * SLOW).await;
    drop(raw);
    client.rests().await;
}

#[tokio::test]
async fn no_idle_limit_ends_an_upgraded_connection() {
    let limit = Duration::from_millis(100);
    let rig = Rig::with(|config| {
        config.settings.keep_alive_timeout = limit;
        config.settings.body_idle_timeout = limit;
        config.settings.request_head_timeout = limit;
    })
    .await;
    let (_client, mut upstreams) = granting(&rig).await;
    let mut raw = upgraded(&rig, b"").await;
    let mut upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    // That nothing happens in this time is what the test is about.
    sleep(limit * 5).await;
    raw.send("ping").await;
    assert_eq!(upstream.bytes(4).await, b"ping");
    upstream.send("pong").await;
    assert_eq!(raw.bytes(4).await, b"pong");
}

#[tokio::test]
async fn bytes_after_a_refused_upgrade_are_the_next_request() {
    let rig = Rig::start().await;
    let client = FakeClient::new(&rig, PROD, |request| async move {
        Ok(if request.uri().path() == "/next" {
            status(200, full("next"))
        } else {
            status(403, full("not you"))
        })
    })
    .await;
    let mut raw = rig.raw().await;
    let next = format!("GET /next HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n");
    for _ in 0..2 {
        raw.send(asking("") + &next).await;
        let answer = raw.response().await;
        assert_eq!(
            (answer.head.status(), answer.text().as_str()),
            (403, "not you")
        );
        assert_eq!(answer.head.value("upgrade"), None);
        assert_eq!(raw.response().await.text(), "next");
    }
    assert_eq!(client.paths(), ["/chat?x", "/next", "/chat?x", "/next"]);
}

#[tokio::test]
async fn an_upgrade_that_cannot_be_sent_on_leaves_the_connection_good() {
    let rig = Rig::start().await;
    let mut raw = rig.raw().await;
    let answer = raw.ask(asking("")).await;
    assert_eq!(
        (answer.head.status(), answer.reason().as_str()),
        (503, "runtime_offline")
    );
    let _client = FakeClient::describing(&rig, PROD).await;
    let answer = raw
        .ask(format!("GET /x HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    assert_eq!(answer.text(), "acme-prod GET /x\n");
}

#[tokio::test]
async fn upgrades_that_are_none_are_ordinary_requests() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    for (line, lines) in [
        (
            "GET / HTTP/1.1",
            "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n",
        ),
        ("GET / HTTP/1.1", "connection: upgrade\r\nupgrade: tcp\r\n"),
        ("GET / HTTP/1.1", "upgrade: websocket\r\n"),
        ("GET / HTTP/1.1", "connection: upgrade\r\n"),
        (
            "GET / HTTP/1.0",
            "connection: upgrade\r\nupgrade: websocket\r\n",
        ),
        (
            "POST / HTTP/1.1",
            "connection: upgrade\r\nupgrade: websocket\r\n",
        ),
        (
            "POST / HTTP/1.1",
            "connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n",
        ),
    ] {
        let mut raw = rig.raw().await;
        let body = if lines.contains("length") { "hi" } else { "" };
        let answer = raw
            .ask(format!("{line}\r\nhost: {PROD_HOST}\r\n{lines}\r\n{body}"))
            .await;
        assert_eq!(answer.head.status(), 200, "{line} {lines}");
        assert_eq!(answer.head.value("upgrade"), None);
        let seen = client.seen().pop().unwrap();
        assert!(!seen.is_upgrade, "{line} {lines}");
        for gone in ["upgrade", "connection", "http2-settings"] {
            assert!(!seen.headers.contains_key(gone), "{gone}");
        }
    }
    let mut raw = rig.raw().await;
    let with_body = asking("content-length: 2\r\n") + "hi";
    raw.ask(with_body)
        .await
        .assert_refused(400, "an upgrade with a body");
}

#[tokio::test]
async fn an_upgraded_connection_that_breaks_is_cut_at_both_ends() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = granting(&rig).await;
    let mut raw = upgraded(&rig, b"").await;
    let upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    let why = Problem::new(Hop::Client, Reason::ConnectionTerminated, "reset");
    upstream.send.send(Err(Failure(why))).await.unwrap();
    raw.closes().await;

    let mut raw = upgraded(&rig, b"").await;
    let _upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    client.die();
    raw.closes().await;
}

#[tokio::test]
async fn an_upgrade_behind_other_requests_waits_for_its_turn() {
    let rig = Rig::start().await;
    let (handed, mut upstreams) = mpsc::channel(1);
    let client = FakeClient::new(&rig, PROD, move |request| {
        let handed = handed.clone();
        async move {
            if request.uri().path() != "/chat" {
                return Ok(status(200, full("first")));
            }
            let (send, body) = fed();
            let received = request.into_body();
            assert!(handed.send(Upstream { received, send }).await.is_ok());
            Ok(granted(body))
        }
    })
    .await;
    let mut raw = rig.raw().await;
    let get = format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n");
    raw.send(format!("{get}{get}{}early", asking(""))).await;
    for _ in 0..2 {
        assert_eq!(raw.response().await.text(), "first");
    }
    assert_eq!(raw.head().await.unwrap().status(), 101);
    let mut upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    assert_eq!(upstream.bytes(5).await, b"early");
    assert_eq!(client.paths(), ["/", "/", "/chat?x"]);
}

#[tokio::test]
async fn a_hang_up_cancels_an_undecided_upgrade() {
    let rig = Rig::start().await;
    let (endings, mut ends) = endings();
    let client = FakeClient::new(&rig, PROD, move |_request| {
        let ending = endings.next();
        async move {
            let _ending = ending;
            std::future::pending::<()>().await;
            unreachable!()
        }
    })
    .await;
    for early in ["", "early"] {
        let mut raw = rig.raw().await;
        raw.send(asking("") + early).await;
        client.request(1).await;
        drop(raw);
        assert_eq!(
            soon("the exchange's end", ends.recv()).await,
            Some(BodyEnd::Cut)
        );
    }
}

#[tokio::test]
async fn an_upgrade_over_tls_ends_in_order_in_each_direction() {
    let rig = Rig::with(|config| config.public_tls = Some(identity())).await;
    let (_client, mut upstreams) = granting(&rig).await;
    let mut raw = rig.raw_tls(&[b"http/1.1"]).await;
    raw.send(asking("") + "early").await;
    assert_eq!(raw.head().await.unwrap().status(), 101);
    let mut upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    assert_eq!(upstream.bytes(5).await, b"early");
    upstream.send("bye").await;
    let Upstream { received, send } = upstream;
    drop(send);
    assert_eq!(raw.closes_after(b"bye").await, End::Clean);
    raw.send("still here").await;
    raw.finish().await;
    let (content, end) = soon("the end", collect(received)).await;
    assert_eq!((&content[..], end.is_ok()), (&b"still here"[..], true));
}
