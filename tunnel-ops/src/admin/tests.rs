//! What the listener answers, and to which requests, over real connections.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::Extension;
use bytes::Bytes;
use http::Uri;
use prometheus::IntCounter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::*;
use crate::admin::permits::MAX_CONNECTIONS;
use crate::signals::{Shutdown, Trigger};
use crate::task::Owned;

struct Running {
    address: SocketAddr,
    ready: Arc<AtomicBool>,
    trigger: Trigger,
    serving: Owned<()>,
}

async fn start() -> Running {
    start_with(|routes| routes).await
}

async fn start_with(more: impl FnOnce(AdminRoutes) -> AdminRoutes) -> Running {
    start_by(AdminSettings::default(), more).await
}

async fn start_by(
    settings: AdminSettings,
    more: impl FnOnce(AdminRoutes) -> AdminRoutes,
) -> Running {
    let registry = Registry::new();
    let counter = IntCounter::new("tunnel_test_total", "counts").unwrap();
    registry.register(Box::new(counter)).unwrap();
    let ready = Arc::new(AtomicBool::new(false));
    let is_ready = Arc::clone(&ready);
    let readiness = move || match is_ready.load(Ordering::Relaxed) {
        true => Readiness::Ready,
        false => Readiness::NotReady("not yet".to_owned()),
    };
    let routes = more(AdminRoutes::new(registry, readiness, settings));
    let listener = AdminListener::bind("127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = listener.local_addr();
    let (trigger, shutdown) = Shutdown::manual();
    let serving = Owned::spawn("admin", async move {
        listener.serve(routes, shutdown.requested()).await
    });
    Running {
        address,
        ready,
        trigger,
        serving,
    }
}

async fn send(running: &Running, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream
}

async fn ask_whole(running: &Running, request: &str) -> String {
    let mut answer = String::new();
    let mut stream = send(running, request).await;
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn ask(running: &Running, head: &str) -> String {
    let request = format!("{head} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    ask_whole(running, &request).await
}

#[track_caller]
fn check(answer: &str, status: &str, body: &str) {
    assert!(
        answer.starts_with(&format!("HTTP/1.1 {status} ")),
        "{answer}"
    );
    let given = answer.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(given, body);
}

#[tokio::test]
async fn each_path_has_its_answer() {
    let running = start().await;
    let metrics = ask(&running, "GET /metrics").await;
    assert!(metrics.contains("\ntunnel_test_total 0\n"), "{metrics}");
    assert!(
        metrics.contains("content-type: text/plain; version=0.0.4"),
        "{metrics}"
    );
    check(&ask(&running, "GET /healthz").await, "200", "ok\n");
    check(&ask(&running, "HEAD /healthz").await, "200", "");
    check(
        &ask(&running, "GET /readyz?verbose").await,
        "503",
        "not yet\n",
    );
    check(&ask(&running, "OPTIONS /readyz").await, "503", "not yet\n");
    running.ready.store(true, Ordering::Relaxed);
    for method in ["GET", "OPTIONS"] {
        let answer = ask(&running, &format!("{method} /readyz")).await;
        check(&answer, "200", "ready\n");
    }
    assert!(ask(&running, "GET /").await.starts_with("HTTP/1.1 404 "));
    let refused = ask(&running, "POST /metrics").await;
    assert!(
        refused.starts_with("HTTP/1.1 405 ") && refused.contains("allow: GET,HEAD"),
        "{refused}"
    );
}

#[tokio::test]
async fn it_closes_when_asked_and_ends_with_its_last_connection() {
    let running = start().await;
    let mut idle = TcpStream::connect(running.address).await.unwrap();
    check(&ask(&running, "GET /healthz").await, "200", "ok\n");
    running.trigger.request();
    running.serving.await.unwrap();
    assert!(
        matches!(idle.read(&mut [0]).await, Ok(0) | Err(_)),
        "the idle connection is closed"
    );
    assert!(
        TcpStream::connect(running.address).await.is_err(),
        "the port is free"
    );
}

#[tokio::test(start_paused = true)]
async fn a_peer_whose_request_does_not_come_is_cut_off() {
    let running = start().await;
    for beginning in [
        "",
        "GET /hea",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
    ] {
        let began = tokio::time::Instant::now();
        let mut idle = send(&running, beginning).await;
        let mut answer = String::new();
        let _ = idle.read_to_string(&mut answer).await;
        assert!(!answer.contains("200 OK"), "{answer}");
        let taken = began.elapsed();
        assert!(
            taken <= HEAD_DEADLINE + Duration::from_millis(10),
            "{beginning}: {taken:?}"
        );
    }
}

#[tokio::test]
async fn a_probe_is_answered_beside_any_number_of_silent_connections() {
    let running = start().await;
    let mut silent = Vec::new();
    for number in 0..MAX_CONNECTIONS + 44 {
        let beginning = ["", "GET /hea"][number % 2];
        silent.push(send(&running, beginning).await);
        // All the time, not only once the crowd is there.
        if number % 50 == 0 {
            let probe = timeout(HEAD_DEADLINE / 2, ask(&running, "GET /healthz")).await;
            check(&probe.expect("in good time"), "200", "ok\n");
        }
    }
    let probe = timeout(HEAD_DEADLINE / 2, ask(&running, "GET /healthz")).await;
    check(&probe.expect("in good time"), "200", "ok\n");
    // The last of the crowd is still heard.
    let last = silent.last_mut().unwrap();
    last.write_all(b"lthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    read_until(last, "200 OK").await;
}

#[tokio::test]
async fn content_that_is_on_its_way_keeps_no_probe_out() {
    let (running, _streams) = start_api().await;
    let request = "POST /api HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhell";
    let mut slow = Vec::new();
    for _ in 0..=MAX_CONNECTIONS {
        slow.push(send(&running, request).await);
    }
    let probe = timeout(HEAD_DEADLINE / 2, ask(&running, "GET /healthz")).await;
    check(&probe.expect("in good time"), "200", "ok\n");
    // The last of them are still answered.
    let mut last = slow.pop().unwrap();
    last.write_all(b"o").await.unwrap();
    read_until(&mut last, "POST /api hello").await;
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let running = start().await;
    let error = AdminListener::bind(running.address)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(&format!("cannot listen on {}", running.address)),
        "{error}"
    );
}

/// Says what it was asked; `/events` is a stream of what is sent into it.
fn api(routes: AdminRoutes, opened: mpsc::Sender<mpsc::Sender<Bytes>>) -> AdminRoutes {
    let events = async move || {
        let (events, mut body) = mpsc::channel::<Bytes>(1);
        opened.send(events).await.unwrap();
        let body = futures_util::stream::poll_fn(move |cx| {
            body.poll_recv(cx)
                .map(|bytes| bytes.map(Ok::<_, Infallible>))
        });
        (Extension(Streaming), Body::from_stream(body))
    };
    let echo =
        async |method: Method, uri: Uri, content: String| format!("{method} {uri} {content}");
    let api = Router::new().route("/events", get(events)).fallback(echo);
    routes.with_api(api)
}

async fn start_api() -> (Running, mpsc::Receiver<mpsc::Sender<Bytes>>) {
    let (opened, streams) = mpsc::channel(MAX_STREAMS);
    let running = start_with(|routes| api(routes, opened)).await;
    (running, streams)
}

const EVENTS: &str = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Reads until this text has come.
async fn read_until(stream: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        let count = stream.read_buf(&mut seen).await.unwrap();
        assert!(count > 0, "ended after {}", String::from_utf8_lossy(&seen));
    }
}

#[tokio::test]
async fn a_program_answers_all_other_paths_with_the_content_at_hand() {
    let (running, _streams) = start_api().await;
    check(
        &ask(&running, "GET /api/x?y=z").await,
        "200",
        "GET /api/x?y=z ",
    );
    check(&ask(&running, "GET /healthz").await, "200", "ok\n");
    let request = "POST /api HTTP/1.1\r\nHost: [::1]:1\r\nContent-Length: 5\r\n\r\nhello";
    check(
        &ask_whole(&running, request).await,
        "200",
        "POST /api hello",
    );
}

/// A refusal as programs read it.
fn refused(reason: &str, detail: &str) -> String {
    format!(r#"{{"reason":"{reason}","detail":"{detail}"}}"#)
}

#[tokio::test]
async fn content_has_a_limit() {
    let (running, _streams) = start_api().await;
    let head = "POST /api HTTP/1.1\r\nHost: localhost\r\n";
    let most = format!(
        "{head}Content-Length: {MAX_CONTENT}\r\n\r\n{}",
        "x".repeat(MAX_CONTENT)
    );
    assert!(
        ask_whole(&running, &most)
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    let told = format!("{head}Content-Length: {}\r\n\r\n", MAX_CONTENT + 1);
    let untold = format!(
        "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{}",
        MAX_CONTENT + 1,
        "x".repeat(MAX_CONTENT + 1)
    );
    for request in [told, untold] {
        let answer = ask_whole(&running, &request).await;
        check(
            &answer,
            "413",
            &refused("body_too_large", "the content is larger than 64 KiB"),
        );
    }
    let damaged = format!("{head}Transfer-Encoding: chunked\r\n\r\nx");
    let answer = ask_whole(&running, &damaged).await;
    check(
        &answer,
        "400",
        &refused("body_malformed", "the content is cut or malformed"),
    );
}

#[tokio::test(start_paused = true)]
async fn content_that_does_not_come_is_not_waited_for() {
    let (running, _streams) = start_api().await;
    let request = "POST /api HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhell";
    let answer = ask_whole(&running, request).await;
    check(
        &answer,
        "408",
        &refused("body_too_slow", "the content came too slowly"),
    );
}

#[tokio::test]
async fn no_web_page_but_the_own_changes_anything() {
    let (running, _streams) = start_api().await;
    let own = "POST /api HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:1\r\nContent-Length: 1\r\n\r\nx";
    check(&ask_whole(&running, own).await, "200", "POST /api x");
    for origin in ["http://localhost:3000", "null", "http://evil.example"] {
        let fields = format!("HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\r\n");
        for method in ["POST", "DELETE", "OPTIONS", "X"] {
            let answer = ask_whole(&running, &format!("{method} /api {fields}")).await;
            check(
                &answer,
                "403",
                &refused(
                    "origin_refused",
                    "requests of other web pages are not answered",
                ),
            );
            assert!(!answer.contains("access-control"), "{answer}");
        }
        let answer = ask_whole(&running, &format!("GET /api {fields}")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(!answer.contains("access-control"), "{answer}");
    }
}

#[test]
fn this_machine_is_told_from_what_passes_through_it() {
    for (peer, expected) in [
        ("127.0.0.1", true),
        ("::1", true),
        ("127.0.0.6", false),
        ("10.0.0.1", false),
        ("fd00::1", false),
    ] {
        let peer = AdminPeer(peer.parse().unwrap());
        assert_eq!(peer.is_this_machine(), expected, "{peer:?}");
    }
}

#[tokio::test]
async fn a_page_is_served_and_may_load_nothing_from_elsewhere() {
    const FILES: &[PageFile] = &[
        PageFile {
            name: "index.html",
            content: "<!doctype html>",
        },
        PageFile {
            name: "main.js",
            content: "// main",
        },
    ];
    let running = start_with(|routes| routes.with_page(FILES)).await;
    for (path, kind, content) in [
        ("/", "text/html", "<!doctype html>"),
        ("/page/main.js", "text/javascript", "// main"),
        ("/page/page.css", "text/css", "}\n"),
    ] {
        let answer = ask(&running, &format!("GET {path}")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(
            answer.contains(&format!("content-type: {kind}")),
            "{answer}"
        );
        assert!(answer.ends_with(content), "{answer}");
        for field in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
        ] {
            assert!(answer.contains(field), "{field} {answer}");
        }
    }
    check(&ask(&running, "POST /").await, "405", "only GET and HEAD\n");
    assert!(
        ask(&running, "GET /page/x.js")
            .await
            .starts_with("HTTP/1.1 404 ")
    );
}

#[tokio::test]
async fn a_foreign_host_name_is_answered_nothing() {
    let settings = AdminSettings {
        allowed_hosts: vec!["tunnel.example.com".parse().unwrap()],
    };
    let (opened, _streams) = mpsc::channel(1);
    let running = start_by(settings, |routes| api(routes, opened)).await;
    for path in ["/metrics", "/healthz", "/readyz", "/api", "/events"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        let answer = ask_whole(&running, &request).await;
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        assert!(
            answer.contains("not a host name of this listener"),
            "{answer}"
        );
        let is_json = answer.contains("content-type: application/json")
            && answer.contains("\"reason\":\"host_unknown\"");
        assert_eq!(is_json, path == "/api", "{answer}");
    }
    let request = "GET /healthz HTTP/1.1\r\nHost: tunnel.example.com:9090\r\n\r\n";
    check(&ask_whole(&running, request).await, "200", "ok\n");
}

#[tokio::test]
async fn no_web_page_but_the_own_holds_a_stream() {
    let (running, _streams) = start_api().await;
    let stream =
        |field: &str| format!("GET /events HTTP/1.1\r\nHost: localhost\r\n{field}\r\n\r\n");
    for field in [
        "Origin: http://evil.example",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ] {
        let answer = ask_whole(&running, &stream(field)).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{field}: {answer}");
        assert!(
            answer.contains("requests of other web pages are not answered"),
            "{answer}"
        );
    }
    for field in ["Sec-Fetch-Site: none", "Sec-Fetch-Site: same-origin"] {
        let mut own = send(&running, &stream(field)).await;
        read_until(&mut own, "200 OK").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_outlives_the_deadline_and_ends_with_its_peer() {
    let (running, mut streams) = start_api().await;
    let mut stream = send(&running, EVENTS).await;
    let events = streams.recv().await.unwrap();
    events.send("one".into()).await.unwrap();
    read_until(&mut stream, "one").await;
    tokio::time::advance(10 * CONNECTION_DEADLINE).await;
    events.send("two".into()).await.unwrap();
    read_until(&mut stream, "two").await;
    drop(stream);
    events.closed().await;
}

#[tokio::test]
async fn streams_have_their_own_permits_and_return_them() {
    let (running, mut streams) = start_api().await;
    let mut open = Vec::new();
    for _ in 0..MAX_STREAMS {
        let mut stream = send(&running, EVENTS).await;
        let events = streams.recv().await.unwrap();
        read_until(&mut stream, "200 OK").await;
        open.push((stream, events));
    }
    let refusal = ask_whole(&running, EVENTS).await;
    assert!(refusal.starts_with("HTTP/1.1 503 "), "{refusal}");
    assert!(refusal.contains("retry-after: 10"), "{refusal}");
    streams.recv().await.unwrap();
    let (stream, events) = open.pop().unwrap();
    drop(stream);
    events.closed().await;
    let mut stream = send(&running, EVENTS).await;
    read_until(&mut stream, "200 OK").await;
    drop(running.serving);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "cut, which is no clean end");
}
