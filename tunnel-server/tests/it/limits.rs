//! Limits of time and number: who does nothing, or too much at once, costs nobody else anything.

use std::{future::Future, net::SocketAddr, process::Stdio, time::Duration};

use rustls_pki_types::ServerName;
use testkit::{
    deadline::{SOON, eventually, soon},
    http1::{End, RawConnection},
    tunnel::{
        body::{BodyEnd, collect, data, endings, full, status},
        client::{FakeClient, dial_over, random_instance, session_request},
    },
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpSocket,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_rustls::rustls::ClientConnection;
use tunnel_ops::tls_files;
use tunnel_proto::handshake;

use crate::{
    access_lines::logged,
    http2_limits::handing,
    program::Folder,
    rig::{PROD, PROD_HOST, Rig, connect, identity, roots, tls, try_tls},
};

/// A limit that a test waits for.
const SHORT: Duration = Duration::from_millis(500);
/// What a limit may be late by on a busy machine.
const SLACK: Duration = Duration::from_secs(5);

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n")
}

/// A request whose content has begun.
fn chunked(path: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
    )
}

/// Awaits something that a limit, which cannot count from before `began`, has to bring about:
/// neither before it nor long after it.
async fn takes<T>(
    began: Instant,
    limit: Duration,
    what: &str,
    future: impl Future<Output = T>,
) -> T {
    let value = soon(what, future).await;
    let took = began.elapsed();
    assert!(
        took >= limit && took < limit + SLACK,
        "{what} took {took:?}"
    );
    value
}

#[tokio::test]
async fn a_connection_without_a_first_byte_is_closed() {
    let rig = Rig::with(|config| config.settings.first_byte_timeout = SHORT).await;
    let _client = FakeClient::describing(&rig, PROD).await;
    let began = Instant::now();
    let mut silent = rig.raw().await;
    let mut begun = rig.raw().await;
    begun.send("P").await;
    let mut good = rig.raw().await;
    assert_eq!(good.ask(get("/")).await.head.status(), 200);
    takes(began, SHORT, "the silent one's end", silent.closes()).await;
    begun.closes().await;
    let ended = "tunnel_server_connections_refused_total{cause=\"first_byte\",listener=\"public\"}";
    rig.metric_becomes(ended, 2.0).await;
    assert_eq!(good.ask(get("/")).await.head.status(), 200);
}

/// Also where the protocol is known before it.
#[tokio::test]
async fn a_tls_connection_without_a_first_byte_is_closed() {
    let rig = Rig::with(|config| {
        config.settings.first_byte_timeout = SHORT;
        config.public_tls = Some(identity());
    })
    .await;
    for alpn in [&[&b"http/1.1"[..]][..], &[b"h2"], &[]] {
        let mut silent = rig.raw_tls(alpn).await;
        silent.closes().await;
    }
    let ended = "tunnel_server_connections_refused_total{cause=\"first_byte\",listener=\"public\"}";
    rig.metric_becomes(ended, 3.0).await;
}

#[tokio::test]
async fn a_stalled_tls_handshake_is_ended_and_delays_no_other() {
    let rig = Rig::with(|config| {
        config.settings.tls_handshake_timeout = SHORT;
        config.public_tls = Some(identity());
    })
    .await;
    let mut stalled = Vec::new();
    for address in [rig.addresses.public, rig.addresses.tunnel] {
        for first in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
            let mut raw = RawConnection::over(connect(address).await);
            raw.send(first).await;
            stalled.push(raw);
        }
    }
    let _client = FakeClient::describing(&rig, PROD).await;
    let mut good = rig.raw_tls(&[b"http/1.1"]).await;
    assert_eq!(good.ask(get("/")).await.head.status(), 200);
    for mut raw in stalled {
        raw.closes().await;
    }
    for listener in ["public", "tunnel"] {
        let ended = format!(
            "tunnel_server_connections_refused_total{{cause=\"tls\",listener=\"{listener}\"}}"
        );
        rig.metric_becomes(&ended, 2.0).await;
    }
}

#[tokio::test]
async fn a_head_that_trickles_is_refused_in_time() {
    let rig = Rig::with(|config| config.settings.request_head_timeout = SHORT).await;
    let client = FakeClient::describing(&rig, PROD).await;
    let head = get(&"x".repeat(1000)).into_bytes();
    for is_second in [false, true] {
        let mut raw = rig.raw().await;
        if is_second {
            assert_eq!(raw.ask(get("/first")).await.head.status(), 200);
        }
        let began = Instant::now();
        let (mut reading, mut writing) = raw.split();
        let trickle = async {
            for byte in &head {
                writing.send([*byte]).await;
                sleep(SHORT / 20).await;
            }
        };
        let answer = async {
            let answer = takes(began, SHORT, "a refusal", reading.response()).await;
            reading.closes().await;
            answer
        };
        let answer = tokio::select! {
            answer = answer => answer,
            () = trickle => panic!("nobody minded"),
        };
        answer.assert_refused(408, "a trickled head");
        assert_eq!(answer.reason(), "request_timeout");
    }
    assert_eq!(client.paths(), ["/first"]);

    let began = Instant::now();
    let mut tunnel = RawConnection::over(rig.tunnel().await);
    tunnel.send("GET /connect HTTP/1.1\r\n").await;
    let end = tunnel.rest();
    takes(began, SHORT, "the tunnel connection's end", end).await;
}

#[tokio::test]
async fn a_body_that_stalls_is_given_up() {
    let rig = Rig::with(|config| config.settings.body_idle_timeout = SHORT).await;
    let (endings, mut ends) = endings();
    let client = FakeClient::new(&rig, PROD, move |request| {
        let mut ending = endings.next();
        async move {
            ending.on_read(&collect(request.into_body()).await.1);
            Ok(status(200, full("whole")))
        }
    })
    .await;
    for (lines, body) in [
        ("content-length: 10\r\n", "12345"),
        ("transfer-encoding: chunked\r\n", "5\r\n12345\r\n"),
        ("transfer-encoding: chunked\r\n", "5\r\n12"),
    ] {
        let began = Instant::now();
        let mut raw = rig.raw().await;
        raw.send(format!(
            "POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\n{lines}\r\n{body}"
        ))
        .await;
        let answer = takes(began, SHORT, "a refusal", raw.response()).await;
        answer.assert_refused(400, lines);
        assert_eq!(answer.reason(), "request_incomplete");
        raw.finish().await;
        raw.closes().await;
        assert_eq!(
            soon("the exchange's end", ends.recv()).await,
            Some(BodyEnd::Cut)
        );
    }
    assert_eq!(client.seen().len(), 3);

    // One that is slow, but never still, takes as long as it needs.
    let mut raw = rig.raw().await;
    raw.send(format!(
        "POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 10\r\n\r\n"
    ))
    .await;
    for _ in 0..10 {
        sleep(SHORT / 5).await;
        raw.send("x").await;
    }
    assert_eq!(raw.response().await.text(), "whole");
    assert_eq!(
        soon("the exchange's end", ends.recv()).await,
        Some(BodyEnd::Whole)
    );
}

/// What a platform client sends and what it gets are two streams once there is an answer.
#[tokio::test]
async fn a_body_may_be_silent_once_the_answer_has_begun() {
    let rig = Rig::with(|config| {
        config.settings.body_idle_timeout = SHORT;
        config.settings.keep_alive_timeout = SHORT;
    })
    .await;
    let (_client, mut feeds) = handing(&rig).await;
    let mut raw = rig.raw().await;
    raw.send(chunked("/live")).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    // That nothing happens in this time is what the test is about.
    sleep(SHORT * 4).await;
    feed.send(data("still here")).await.unwrap();
    drop(feed);
    raw.send("0\r\n\r\n").await;
    assert_eq!(raw.response().await.text(), "still here");
}

/// The session is well, whatever becomes of the request.
#[tokio::test]
async fn a_body_cut_after_the_responses_head_is_reported_as_such() {
    let rig = Rig::start().await;
    let (client, mut feeds) = handing(&rig).await;
    let mut raw = rig.raw().await;
    raw.send(chunked("/breaks")).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    assert_eq!(raw.head().await.unwrap().status(), 200);
    raw.send("no size of a chunk\r\n").await;
    raw.rest().await;
    soon("the exchange's end", feed.closed()).await;
    client.rests().await;
    let line = eventually(SOON, "a line", async || logged("/breaks")).await;
    assert_eq!(line["end"], "request_malformed");
    let counted = |reason| {
        format!("tunnel_server_problems_total{{hop=\"tunnel-server\",reason=\"{reason}\"}}")
    };
    rig.metric_becomes(&counted("request_malformed"), 1.0).await;
    assert!(rig.metric(&counted("session_lost")).await < 0.5);
}

#[tokio::test]
async fn a_connection_between_two_requests_is_closed_after_a_while() {
    let rig = Rig::with(|config| config.settings.keep_alive_timeout = SHORT).await;
    let client = FakeClient::new(&rig, PROD, |request| async move {
        if request.uri().path() == "/slow" {
            sleep(SHORT * 3).await;
        }
        Ok(status(200, full("here")))
    })
    .await;
    let mut raw = rig.raw().await;
    assert_eq!(raw.ask(get("/")).await.text(), "here");
    let began = Instant::now();
    assert_eq!(raw.ask(get("/")).await.text(), "here");
    let end = takes(began, SHORT, "the end", raw.closes()).await;
    assert_eq!(end, End::Clean);
    // Only the client's own time-out counts while it waits for an answer.
    let mut raw = rig.raw().await;
    assert_eq!(raw.ask(get("/slow")).await.text(), "here");
    assert_eq!(client.seen().len(), 3);
}

#[tokio::test]
async fn connections_are_bounded_in_all() {
    let rig = Rig::with(|config| config.settings.max_connections = 3).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut raw = rig.raw().await;
        assert_eq!(raw.ask(get("/")).await.head.status(), 503);
        open.push(raw);
    }
    for _ in 0..3 {
        rig.raw().await.closes().await;
    }
    let full =
        "tunnel_server_connections_refused_total{cause=\"max_connections\",listener=\"public\"}";
    rig.metric_becomes(full, 3.0).await;
    rig.metric_becomes("tunnel_server_connections{listener=\"public\"}", 3.0)
        .await;
    drop(open.pop());
    eventually(SOON, "a place", async || {
        let mut raw = rig.raw().await;
        raw.send(get("/")).await;
        raw.head()
            .await
            .ok()
            .filter(|head| head.status() == 503)
            .map(drop)
    })
    .await;
}

#[tokio::test]
async fn connections_are_bounded_per_address() {
    let rig = Rig::with(|config| config.settings.max_connections_per_address = 2).await;
    let from = async |address: &str| {
        let socket = TcpSocket::new_v4().unwrap();
        socket
            .bind(SocketAddr::new(address.parse().unwrap(), 0))
            .unwrap();
        RawConnection::over(
            soon("a connection", socket.connect(rig.addresses.public))
                .await
                .unwrap(),
        )
    };
    let mut open = Vec::new();
    for address in ["127.0.0.1", "127.0.0.1", "127.0.0.2"] {
        let mut raw = from(address).await;
        assert_eq!(raw.ask(get("/")).await.head.status(), 503);
        open.push(raw);
    }
    from("127.0.0.1").await.closes().await;
    assert_eq!(
        from("127.0.0.2").await.ask(get("/")).await.head.status(),
        503
    );
    assert_eq!(
        from("127.0.0.3").await.ask(get("/")).await.head.status(),
        503
    );
}

/// They shake hands and say nothing more, in number enough to fill the gate and its queue from two addresses.
#[tokio::test]
async fn silent_handshakes_from_a_few_addresses_keep_no_tunnel_client_out() {
    let rig = Rig::with(|config| {
        (
            config.settings.max_handshakes,
            config.settings.handshake_queue,
        ) = (4, 8)
    })
    .await;
    let address = rig.addresses.tunnel;
    let mut flood = JoinSet::new();
    for number in 0..80 {
        flood.spawn(async move {
            let socket = TcpSocket::new_v4().unwrap();
            let from = [127, 0, 0, 2 + number % 2];
            socket.bind(SocketAddr::from((from, 0))).unwrap();
            if let Ok(socket) = socket.connect(address).await
                && let Ok(held) = try_tls(socket, &[b"http/1.1"]).await
            {
                RawConnection::over(held).closes().await;
            }
        });
    }
    // Some that find no room are told so over TLS, and may be silent, and the rest before TLS.
    let closed =
        "tunnel_server_connections_refused_total{cause=\"max_handshakes\",listener=\"tunnel\"}";
    eventually(SOON, "a full gate", async || {
        (rig.metric(closed).await >= 50.0).then_some(())
    })
    .await;
    let request = session_request(rig.token(PROD), random_instance());
    let socket = connect(address).await;
    let stream = try_tls(socket, &[b"http/1.1"]).await.unwrap();
    assert_eq!(dial_over(stream, &request).await.status, 101);
    let silent = "tunnel_server_connections_refused_total{cause=\"silent\",listener=\"tunnel\"}";
    assert!(rig.metric(silent).await >= 1.0);
}

/// Two are silent after TLS: one has the only handshake permit, and one is to be refused.
#[tokio::test]
async fn who_finds_no_room_for_a_refusal_either_is_told_before_tls_when_to_return() {
    let rig = Rig::with(|config| {
        (
            config.settings.max_handshakes,
            config.settings.handshake_queue,
        ) = (1, 0)
    })
    .await;
    let address = rig.addresses.tunnel;
    let silent = async || {
        try_tls(connect(address).await, &[b"http/1.1"])
            .await
            .unwrap()
    };
    let _held = [silent().await, silent().await];
    let mut hello = Vec::new();
    let name = ServerName::try_from("localhost").unwrap();
    let mut tls =
        ClientConnection::new(tls_files::client_config(&roots(), None, &[]).unwrap(), name)
            .unwrap();
    tls.write_tls(&mut hello).unwrap();
    let mut socket = connect(address).await;
    socket.write_all(&hello).await.unwrap();
    let mut answer = Vec::new();
    soon("an answer", socket.read_to_end(&mut answer))
        .await
        .unwrap();
    let after = handshake::crowded_retry_after(&answer).unwrap();
    assert!((1..=60).contains(&after.as_secs()), "{after:?}");
}

#[tokio::test]
async fn tunnel_connections_are_bounded_per_address() {
    let rig = Rig::with(|config| config.settings.max_tunnel_connections_per_address = 2).await;
    let _serving = FakeClient::describing(&rig, PROD).await;
    // One that is still in its handshake counts as well.
    let silent = connect(rig.addresses.tunnel).await;
    let series = "tunnel_server_connections_refused_total{cause=\"max_connections_per_address\",listener=\"tunnel\"}";
    assert_eq!(rig.metric(series).await, 0.0);
    RawConnection::over(connect(rig.addresses.tunnel).await)
        .closes()
        .await;
    rig.metric_becomes(series, 1.0).await;
    // Other addresses have places of their own.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let connecting = socket.connect(rig.addresses.tunnel);
    let elsewhere = soon("a connection", connecting).await.unwrap();
    tls(elsewhere, &[b"http/1.1"]).await;
    drop(silent);
    let again = eventually(SOON, "the place", async || {
        let socket = connect(rig.addresses.tunnel).await;
        try_tls(socket, &[b"http/1.1"]).await.ok()
    });
    let request = session_request(rig.token(PROD), random_instance());
    assert_eq!(dial_over(again.await, &request).await.status, 101);
    // Platform clients are counted apart.
    let answer = rig.raw().await.ask(get("/")).await;
    assert!([200, 503].contains(&answer.head.status()), "{answer:?}");
}

#[tokio::test]
async fn connections_of_a_trusted_proxy_count_only_in_all() {
    let rig = Rig::with(|config| {
        config.settings.max_connections_per_address = 1;
        config.settings.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    })
    .await;
    let mut open = Vec::new();
    for _ in 0..5 {
        let mut raw = rig.raw().await;
        assert_eq!(raw.ask(get("/")).await.head.status(), 503);
        open.push(raw);
    }
}

#[tokio::test]
async fn the_client_that_a_proxy_names_is_counted() {
    let rig = Rig::with(|config| {
        config.settings.max_connections_per_address = 1;
        config.settings.proxy_protocol = true;
        config.settings.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    })
    .await;
    let mut open = Vec::new();
    for (address, is_first) in [(1, true), (2, true), (1, false), (3, true), (2, false)] {
        let mut raw = rig.raw().await;
        raw.send(format!("PROXY TCP4 203.0.113.{address} 192.0.2.1 5 6\r\n"))
            .await;
        if is_first {
            assert_eq!(raw.ask(get("/")).await.head.status(), 503);
            open.push(raw);
        } else {
            raw.closes().await;
        }
    }
}

#[tokio::test]
async fn exchanges_of_a_session_are_bounded() {
    let rig = Rig::with(|config| config.settings.max_exchanges = 2).await;
    let client = FakeClient::new(&rig, PROD, |request| async move {
        if request.uri().path() == "/hold" {
            std::future::pending::<()>().await;
        }
        Ok(status(200, full("here")))
    })
    .await;
    let mut held = Vec::new();
    for count in 1..=2 {
        let mut raw = rig.raw().await;
        raw.send(get("/hold")).await;
        client.request(count).await;
        held.push(raw);
    }
    let mut raw = rig.raw().await;
    let answer = raw.ask(get("/")).await;
    assert_eq!(
        (answer.head.status(), answer.reason().as_str()),
        (503, "exchange_limit")
    );
    assert!(answer.head.value("retry-after").is_some());
    assert!(
        answer
            .head
            .value("proxy-status")
            .unwrap()
            .contains("connection_limit_reached")
    );
    drop(held.pop());
    eventually(SOON, "room for one more", async || {
        (raw.ask(get("/")).await.head.status() == 200).then_some(())
    })
    .await;
    assert!(!client.session.is_closed());
}

#[tokio::test]
async fn requests_that_never_end_leave_room_for_others() {
    let rig = Rig::start().await;
    let client = FakeClient::new(&rig, PROD, |request| async move {
        if request.uri().path() == "/hold" {
            std::future::pending::<()>().await;
        }
        Ok(status(200, full("here")))
    })
    .await;
    let mut held = Vec::new();
    for _ in 0..300 {
        let mut raw = rig.raw().await;
        raw.send(get("/hold")).await;
        held.push(raw);
    }
    client.request(300).await;
    let mut raw = rig.raw().await;
    assert_eq!(raw.ask(get("/")).await.text(), "here");
}

/// The real program, which may open so few more files that accepting fails.
#[tokio::test]
async fn too_many_open_files_do_not_end_the_listener() {
    let folder = Folder::with_all_files();
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_tunnel-server"))
        .arg("run")
        .args([
            "--tls-cert=server.pem",
            "--tls-key=server.key",
            "--runtimes=runtimes.toml",
        ])
        .args(["--tunnel-listen=127.0.0.1:0", "--public-listen=127.0.0.1:0"])
        .args([
            "--admin-listen=127.0.0.1:0",
            "--domain=tunnels.test",
            "--log-format=json",
        ])
        .args(["--offline-wait=1ms", "--shards=1"])
        .current_dir(folder.path(""))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut log = BufReader::new(program.stderr.take().unwrap()).lines();
    let address: SocketAddr = soon("the public address", async {
        loop {
            let line = log
                .next_line()
                .await
                .unwrap()
                .expect("the program has ended");
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            let text = line.to_string();
            if text.contains("\"public\"") && text.contains("listening") {
                let from = text.find("127.0.0.1:").unwrap();
                break text[from..].split('"').next().unwrap().parse().unwrap();
            }
        }
    })
    .await;
    // Set only now: at its start the program takes as many connections as the limit leaves room for.
    let pid = program.id().unwrap();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    let limited = tokio::process::Command::new("prlimit")
        .args([format!("--pid={pid}"), format!("--nofile={}", files + 8)])
        .status()
        .await;
    assert!(limited.unwrap().success());
    let mut open = Vec::new();
    for _ in 0..100 {
        open.push(connect(address).await);
    }
    soon("an accept error", async {
        loop {
            let line = log
                .next_line()
                .await
                .unwrap()
                .expect("the program has ended");
            if line.contains("cannot accept") {
                break;
            }
        }
    })
    .await;
    drop(open);
    let mut raw = RawConnection::over(connect(address).await);
    assert_eq!(raw.ask(get("/")).await.reason(), "runtime_offline");
}
