//! HTTP/1: what is refused without anybody behind the tunnel having seen it, and its good
//! neighbours, which pass byte for byte.

use serde_json::Value;
use testkit::{
    deadline::soon,
    http1::End,
    tunnel::{
        body::{BodyEnd, collect, endings, full, status},
        client::FakeClient,
    },
};
use tokio::sync::mpsc;

use crate::{
    rig::{PROD, PROD_HOST, Rig, identity},
    serving::Files,
};

/// What follows a request that is refused: it must never be served.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: acme-prod.tunnels.test\r\n\r\n";

/// A request that is in order but for its lines.
fn post(lines: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\n{lines}\r\n")
}

/// The same with its first line.
fn line(line: &str) -> String {
    format!("{line}\r\nhost: {PROD_HOST}\r\n\r\n")
}

/// Sends each request, another one behind it, and checks that only the refusal comes back and that
/// the tunnel client has seen neither.
async fn all_refused(cases: impl IntoIterator<Item = (String, u16)>) {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut count = 0.0;
    for (request, status) in cases {
        let what = request.escape_debug().to_string();
        let mut raw = rig.raw().await;
        let answer = raw.ask(format!("{request}{SMUGGLED}")).await;
        answer.assert_refused(status, &what);
        raw.finish().await;
        assert_eq!(raw.closes().await, End::Clean, "{what}");
        count += 1.0;
    }
    let mut raw = rig.raw().await;
    let answer = raw.ask(line("GET /good HTTP/1.1")).await;
    assert_eq!(answer.head.status(), 200);
    assert_eq!(client.paths(), ["/good"]);
    let mut counted = 0.0;
    for reason in [
        "request_malformed",
        "method_not_allowed",
        "uri_too_long",
        "head_too_large",
        "method_unsupported",
        "coding_unsupported",
        "version_unsupported",
        "expectation_failed",
    ] {
        let series =
            format!("tunnel_server_problems_total{{hop=\"tunnel-server\",reason=\"{reason}\"}}");
        counted += rig.metric(&series).await;
    }
    assert!(
        counted >= count,
        "{counted} of {count} refusals were counted"
    );
}

/// Else what follows the head is taken for the next answer.
#[tokio::test]
async fn a_refused_head_request_gets_no_content() {
    let rig = Rig::start().await;
    for refused in [
        line("HEAD /#a HTTP/1.1"),
        line("HEAD / HTTP/9.9"),
        line("HEAD /a HTTP/1.1").replace("\r\n\r\n", "\r\nx y: z\r\n\r\n"),
    ] {
        let mut raw = rig.raw().await;
        raw.send(refused.as_bytes()).await;
        let head = raw.head().await.unwrap();
        assert!((400..=505).contains(&head.status()), "{refused}");
        assert_ne!(head.value("content-length"), Some("0"));
        raw.finish().await;
        assert_eq!(raw.closes().await, End::Clean, "{refused}");
    }
}

#[tokio::test]
async fn hosts_that_are_missing_repeated_or_none_are_refused() {
    let get = |lines: &str| format!("GET / HTTP/1.1\r\n{lines}\r\n");
    let host = |host: &str| (get(&format!("host: {host}\r\n")), 400);
    all_refused([
        (get(""), 400),
        (
            get(&format!("host: {PROD_HOST}\r\nhost: {PROD_HOST}\r\n")),
            400,
        ),
        (
            get(&format!("host: {PROD_HOST}\r\nx: y\r\nHost: evil.test\r\n")),
            400,
        ),
        host(""),
        host("a b"),
        host("acme-prod.tunnels.test,evil.test"),
        host("user@acme-prod.tunnels.test"),
        host("acme-prod.tunnels.test/x"),
        host("acme-prod.tunnels.test\\x"),
        host("acme-prod.tunnels.test:"),
        host("acme-prod.tunnels.test:80:80"),
        host("acme-prod.tunnels.test:99999"),
        host("0.0.0.0=5000"),
        host("[::1"),
        host("%61cme-prod.tunnels.test"),
        ("GET / HTTP/1.0\r\n\r\n".into(), 400),
        ("GET / HTTP/1.0\r\nhost: a b\r\n\r\n".into(), 400),
    ])
    .await;
}

#[tokio::test]
async fn targets_and_versions_that_no_gateway_serves_are_refused() {
    let bad = |text: &str, status| (line(text), status);
    all_refused([
        bad("GET http://evil.test/x HTTP/1.1", 400),
        bad(&format!("GET http://u@{PROD_HOST}/x HTTP/1.1"), 400),
        bad(&format!("GET {PROD_HOST}:443 HTTP/1.1"), 400),
        bad(&format!("GET ftp://{PROD_HOST}/ HTTP/1.1"), 400),
        bad("GET * HTTP/1.1", 400),
        bad("GET x HTTP/1.1", 400),
        bad("GET ?x HTTP/1.1", 400),
        bad("GET /#x HTTP/1.1", 400),
        bad("GET /a b HTTP/1.1", 400),
        bad("GET /\u{e4} HTTP/1.1", 400),
        bad("GET /a\tb HTTP/1.1", 400),
        bad("GET  / HTTP/1.1", 400),
        bad("GET / HTTP/1.2", 505),
        bad("GET / HTTP/2.0", 505),
        bad("GET / http/1.1", 400),
        bad("GET /", 400),
        bad("G@T / HTTP/1.1", 400),
        bad(" GET / HTTP/1.1", 400),
        bad("\r\n\r\nGET / HTTP/1.1", 400),
        bad(&format!("CONNECT {PROD_HOST}:443 HTTP/1.1"), 405),
        bad("TRACE / HTTP/1.1", 405),
        bad(&format!("{} / HTTP/1.1", "M".repeat(40)), 501),
        bad(&format!("GET /{} HTTP/1.1", "a".repeat(140_000)), 414),
    ])
    .await;
}

#[tokio::test]
async fn two_lengths_or_none_that_is_one_are_refused() {
    let chunked = "transfer-encoding: chunked\r\n";
    let te = |value: &str, status| (post(&format!("transfer-encoding: {value}\r\n")), status);
    let length = |value: &str| (post(&format!("content-length: {value}\r\n")), 400);
    all_refused([
        (
            post(&format!("content-length: 5\r\n{chunked}")) + "0\r\n\r\n",
            400,
        ),
        (
            post(&format!("{chunked}content-length: 5\r\n")) + "0\r\n\r\n",
            400,
        ),
        (post(&format!("{chunked}{chunked}")) + "0\r\n\r\n", 400),
        (
            post(&format!("{chunked}transfer-encoding: identity\r\n")),
            400,
        ),
        te("xchunked", 501),
        te(",chunked", 400),
        te("chunked, chunked", 400),
        te("chunked, identity", 501),
        te("\u{b}chunked", 400),
        te("\u{a0}chunked", 400),
        te("gzip, chunked", 501),
        te("gzip", 501),
        te("chunked;q=1", 400),
        (
            format!("POST / HTTP/1.0\r\nhost: {PROD_HOST}\r\n{chunked}\r\n"),
            400,
        ),
        (post("content-length: 1\r\ncontent-length: 2\r\n"), 400),
        (post("content-length: 1\r\ncontent-length: 1\r\n"), 400),
        length("1, 1"),
        length(""),
        length("+1"),
        length("-1"),
        length("0x1"),
        length("1 1"),
        length("18446744073709551616"),
    ])
    .await;
}

#[tokio::test]
async fn lines_that_two_readers_could_read_in_two_ways_are_refused() {
    let bad = |lines: &str| (post(lines), 400);
    all_refused([
        bad("x : y\r\n"),
        bad("content-length : 0\r\n"),
        bad("transfer-encoding\t: chunked\r\n"),
        (
            format!("GET / HTTP/1.1\r\n x: y\r\nhost: {PROD_HOST}\r\n\r\n"),
            400,
        ),
        bad("x\r\n"),
        bad(": y\r\n"),
        bad("x: y\r\n z\r\n"),
        bad("x: y\r\n\tz\r\n"),
        bad("x: a\0b\r\n"),
        bad("x: a\rb\r\n"),
        bad("x: a\nb: c\r\n"),
        bad("x: a\u{1}b\r\n"),
        bad("x: a\u{7f}b\r\n"),
        bad("x y: z\r\n"),
        bad("x(: z\r\n"),
        bad("content_length: 5\r\n"),
        bad("x_forwarded_for: 1.1.1.1\r\n"),
        (format!("GET / HTTP/1.1\nhost: {PROD_HOST}\n\n"), 400),
        (format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\n\r\n"), 400),
        (format!("GET / HTTP/1.1\rhost: {PROD_HOST}\r\r"), 400),
        (post("expect: banana\r\n"), 417),
        (
            post("content-type: application/grpc\r\nexpect: banana\r\n"),
            417,
        ),
        (post("expect: 100-continue, 100-continue\r\n"), 417),
        (post(&format!("x: {}\r\n", "a".repeat(140_000))), 431),
        (post(&"x: y\r\n".repeat(101)), 431),
    ])
    .await;
}

/// A client that reads every request's body, and how each body ended.
async fn reading(rig: &Rig) -> (FakeClient, mpsc::Receiver<BodyEnd>) {
    let (endings, ends) = endings();
    let client = FakeClient::new(rig, PROD, move |request| {
        let mut ending = endings.next();
        async move {
            let (_, result) = collect(request.into_body()).await;
            ending.on_read(&result);
            Ok(status(200, full("")))
        }
    })
    .await;
    (client, ends)
}

/// Bodies that break chunked coding: the head was in order and has gone on, so that the tunnel
/// client sees a request that is cut, never one that is whole.
#[tokio::test]
async fn a_body_that_breaks_its_framing_is_cut_and_refused() {
    let rig = Rig::start().await;
    let (client, mut ends) = reading(&rig).await;
    for body in [
        "0x1\r\na\r\n0\r\n\r\n",
        "+1\r\na\r\n0\r\n\r\n",
        "-1\r\na\r\n0\r\n\r\n",
        "1_0\r\na\r\n0\r\n\r\n",
        "1\na\r\n0\r\n\r\n",
        "1;\na\r\n0\r\n\r\n",
        "1 \r\na\r\n0\r\n\r\n",
        "1\r\r\na\r\n0\r\n\r\n",
        "\r\na\r\n0\r\n\r\n",
        "00000000000000001\r\na\r\n0\r\n\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "2\r\na\r\n0\r\n\r\n",
        "1;a=\0\r\na\r\n0\r\n\r\n",
        "1\r\na\r\n0\r\nhost: evil.test\r\n\r\n",
        "1\r\na\r\n0\r\ncontent-length: 5\r\n\r\n",
        "1\r\na\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
        "1\r\na\r\n0\r\nauthorization: Bearer x\r\n\r\n",
        "1\r\na\r\n0\r\nset-cookie: a=b\r\n\r\n",
        "1\r\na\r\n0\r\nX: a\n\r\n",
        "1\r\na\r\n0\r\n folded: a\r\n\r\n",
        // What stands behind it becomes a part of it.
        "1\r\na\r\n0\r\nX:",
    ] {
        let what = body.escape_debug().to_string();
        let mut raw = rig.raw().await;
        let request = post("transfer-encoding: chunked\r\n") + body;
        raw.send(format!("{request}{SMUGGLED}")).await;
        raw.finish().await;
        raw.response().await.assert_refused(400, &what);
        raw.closes().await;
    }
    let mut raw = rig.raw().await;
    assert_eq!(raw.ask(post("")).await.head.status(), 200);
    // What broke before anything was sent on was not even begun.
    let ends: Vec<_> = std::iter::from_fn(|| ends.try_recv().ok()).collect();
    let whole = ends.iter().filter(|end| **end == BodyEnd::Whole).count();
    assert_eq!(whole, 1, "{ends:?}");
    assert!(client.paths().iter().all(|path| path == "/"));
}

#[tokio::test]
async fn a_request_that_ends_early_is_seen_as_cut() {
    let rig = Rig::start().await;
    let (client, mut ends) = reading(&rig).await;
    let mut count = 0;
    for (lines, body) in [
        ("content-length: 10\r\n", "12345"),
        ("transfer-encoding: chunked\r\n", "5\r\n12345\r\n"),
        ("transfer-encoding: chunked\r\n", "5\r\n12345\r\n0\r\n"),
    ] {
        let mut raw = rig.raw().await;
        raw.send(post(lines) + body).await;
        count += 1;
        client.request(count).await;
        drop(raw);
        let end = soon("the body's end", ends.recv()).await.unwrap();
        assert_eq!(end, BodyEnd::Cut, "{body:?}");
    }
}

#[tokio::test]
async fn what_is_in_order_passes_byte_for_byte() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    let paths = [
        "/a//b/%2e%2e/;x?y=%zz",
        "/",
        "/?",
        "/.",
        "/..",
        "//double",
        "/a;b=c,d",
        "/%00%ff",
        "/?a=b?c=d&&",
        "/{x}|y^z",
        "/'()*!$&~",
        "/a:b@c",
        "/\\x",
    ];
    for path in paths {
        let answer = raw.ask(line(&format!("GET {path} HTTP/1.1"))).await;
        assert_eq!(answer.head.status(), 200, "{path}");
    }
    assert_eq!(client.paths(), paths);
    let long = format!("/{}", "x".repeat(65_000));
    raw.ask(line(&format!("GET {long} HTTP/1.1"))).await;
    assert_eq!(client.paths().last(), Some(&long));
}

#[tokio::test]
async fn good_forms_of_a_target_are_served() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    for (request, path) in [
        (format!("GET http://{PROD_HOST}/x?y HTTP/1.1"), "/x?y"),
        (format!("GET HTTPS://{PROD_HOST} HTTP/1.1"), "/"),
        (format!("GET http://{PROD_HOST}?q HTTP/1.1"), "/?q"),
        ("OPTIONS * HTTP/1.1".into(), "*"),
        ("get /lower HTTP/1.1".into(), "/lower"),
        ("PROPFIND /dav HTTP/1.1".into(), "/dav"),
        ("M-SEARCH /x HTTP/1.1".into(), "/x"),
    ] {
        let answer = raw.ask(line(&request)).await;
        assert_eq!(answer.head.status(), 200, "{request}");
        assert_eq!(client.paths().last().unwrap(), path, "{request}");
    }
    let methods: Vec<_> = client
        .seen()
        .iter()
        .map(|seen| seen.method.to_string())
        .collect();
    assert_eq!(methods[4..], ["get", "PROPFIND", "M-SEARCH"]);
}

#[tokio::test]
async fn bodies_of_both_kinds_pass_and_the_connection_is_used_again() {
    let rig = Rig::start().await;
    let client = FakeClient::new(&rig, PROD, |request| async move {
        let length = request.headers().get("content-length").cloned();
        let (content, trailers) = collect(request.into_body()).await;
        let trailers = trailers.map_err(|_| testkit::tunnel::body::internal())?;
        let text = String::from_utf8(content).unwrap();
        Ok(status(200, full(format!("{length:?} {text} {trailers:?}"))))
    })
    .await;
    let mut raw = rig.raw().await;
    for (lines, body, seen) in [
        ("content-length: 5\r\n", "hello", "Some(\"5\") hello {}"),
        ("content-length: 005\r\n", "hello", "Some(\"5\") hello {}"),
        ("content-length: 0\r\n", "", "Some(\"0\")  {}"),
        ("", "", "None  {}"),
        (
            "transfer-encoding: Chunked\r\n",
            "2;ext=\"a;b\"\r\nhe\r\n0003\r\nllo\r\n0\r\n\r\n",
            "None hello {}",
        ),
        (
            "transfer-encoding: chunked\r\ntrailer: x-sum\r\n",
            "5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n",
            "None hello {\"x-sum\": \"7\"}",
        ),
    ] {
        let answer = raw.ask(post(lines) + body).await;
        assert_eq!(answer.text(), seen);
    }
    assert_eq!(client.seen().len(), 6);
    assert!(
        client
            .seen()
            .iter()
            .all(|seen| !seen.headers.contains_key("transfer-encoding"))
    );
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    let requests = ["GET /1 HTTP/1.1", "POST /2 HTTP/1.1", "GET /3 HTTP/1.1"].map(line);
    raw.send(requests.concat()).await;
    // Half-closed, as some clients are that have sent all: the answers still come.
    raw.finish().await;
    for (number, method) in [(1, "GET"), (2, "POST"), (3, "GET")] {
        let text = raw.response().await.text();
        assert_eq!(text, format!("acme-prod {method} /{number}\n"));
    }
    assert_eq!(raw.closes().await, End::Clean);
    assert_eq!(client.paths(), ["/1", "/2", "/3"]);
}

#[tokio::test]
async fn a_refused_request_behind_a_good_one_does_not_cost_the_good_one_its_answer() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    let good = line("GET /good HTTP/1.1");
    let bad = post("content-length: 5\r\ntransfer-encoding: chunked\r\n");
    raw.send(format!("{good}{bad}0\r\n\r\n{SMUGGLED}")).await;
    assert_eq!(raw.response().await.text(), "acme-prod GET /good\n");
    raw.response()
        .await
        .assert_refused(400, "behind a good one");
    raw.finish().await;
    assert_eq!(raw.closes().await, End::Clean);
    assert_eq!(client.paths(), ["/good"]);
}

#[tokio::test]
async fn requests_in_whatever_pieces_are_the_same_requests() {
    let rig = Rig::start().await;
    let client = FakeClient::new(&rig, PROD, |request| async move {
        let (content, trailers) = collect(request.into_body()).await;
        trailers.map_err(|_| testkit::tunnel::body::internal())?;
        Ok(status(200, full(content)))
    })
    .await;
    let chunked = post("transfer-encoding: chunked\r\n") + "3;x\r\nabc\r\n0\r\nx-sum: 1\r\n\r\n";
    let sized = post("content-length: 5\r\n") + "hello";
    let bytes = format!("{chunked}{sized}{}", line("GET /3 HTTP/1.1"));
    let mut raw = rig.raw().await;
    for split in 0..bytes.len() {
        let (start, end) = bytes.split_at(split);
        raw.send(start).await;
        tokio::task::yield_now().await;
        raw.send(end).await;
        for content in ["abc", "hello", ""] {
            assert_eq!(raw.response().await.text(), content, "split at {split}");
        }
    }
    assert_eq!(client.seen().len(), 3 * bytes.len());
}

#[tokio::test]
async fn a_client_that_wants_to_close_is_closed_on() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    for (version, lines) in [
        ("1.1", "connection: close\r\n"),
        ("1.1", "connection: x-y, Close\r\n"),
        ("1.0", ""),
        // Nobody keeps a connection with HTTP/1.0 through a proxy (RFC 9112 section 9.3).
        ("1.0", "connection: keep-alive\r\n"),
    ] {
        let mut raw = rig.raw().await;
        let request = format!("GET /1 HTTP/{version}\r\nhost: {PROD_HOST}\r\n{lines}\r\n");
        let answer = raw.ask(format!("{request}{SMUGGLED}")).await;
        assert_eq!(answer.text(), "acme-prod GET /1\n");
        raw.finish().await;
        assert_eq!(raw.closes().await, End::Clean);
    }
    assert!(client.paths().iter().all(|path| path == "/1"));
}

#[tokio::test]
async fn requests_over_tls_are_served_too() {
    let rig = Rig::with(|config| config.public_tls = Some(identity())).await;
    let client = FakeClient::describing(&rig, PROD).await;
    for alpn in [&[&b"http/1.1"[..]][..], &[]] {
        let mut raw = rig.raw_tls(alpn).await;
        for _ in 0..3 {
            let answer = raw.ask(line("GET /x HTTP/1.1")).await;
            assert_eq!(answer.text(), "acme-prod GET /x\n");
        }
        raw.ask(line("GET /#x HTTP/1.1"))
            .await
            .assert_refused(400, "over TLS");
    }
    assert_eq!(
        client.request(1).await.values("x-forwarded-proto"),
        ["https"]
    );
}

#[tokio::test]
async fn what_is_refused_has_a_line_in_the_access_log() {
    let files = Files::new();
    files.add("acme", "prod");
    let serving = files.serve("").await;
    // By the guard, of which nothing can be told; and by the check, which names what it could read.
    assert_eq!(serving.status(PROD, "/a#b").await, 400);
    let line = |line: &Value| line["target"] == "access" && line["status"] == 400;
    let refused = serving.logged("the guard's refusal", line).await;
    assert_eq!(refused["end"], "request_malformed");
    assert!(refused["path"].is_null() && refused["peer"] == "127.0.0.1");
    let path = "/odd?secret HTTP/1.1\r\nexpect: wonders\r\nz: z";
    assert_eq!(serving.status(PROD, path).await, 417);
    let line = |line: &Value| line["path"] == "/odd";
    let refused = serving.logged("the check's refusal", line).await;
    let host = refused["host"].as_str().unwrap();
    assert!(host.starts_with(PROD), "{refused}");
    assert_eq!(refused["end"], "expectation_failed");
    assert!(!refused.to_string().contains("secret"), "{refused}");
}
