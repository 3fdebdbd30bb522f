//! Tunnel clients that are let in and then break the rules: it costs them their request or their
//! session, and others do not notice.

use std::time::Duration;

use testkit::{
    bhttp::{field, number, response, string},
    http1::{RawConnection, RawResponse},
    tunnel::{
        client::FakeClient,
        wire::{BINARY, TEXT, Wire},
    },
    yamux::{DATA, Frame, SYN, WINDOW},
};
use tokio::time::sleep;
use tunnel_proto::control::Control;

use crate::{
    rig::{DEV, DEV_HOST, PROD, PROD_HOST, Rig},
    serving::Files,
};

/// The close code for a broken protocol.
const PROTOCOL_ERROR: u16 = 4004;

fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")
}

/// Checks that another runtime is served on a connection that was there before.
async fn neighbour_is_well(raw: &mut RawConnection) {
    assert_eq!(raw.ask(get(DEV_HOST)).await.text(), "globex-dev GET /\n");
}

#[tokio::test]
async fn a_session_that_breaks_the_protocol_ends_alone() {
    type Breach = (&'static str, u8, Vec<u8>);
    let rig = Rig::start().await;
    let _dev = FakeClient::describing(&rig, DEV).await;
    let mut neighbour = rig.raw().await;
    neighbour_is_well(&mut neighbour).await;
    let breaches: Vec<Breach> = vec![
        ("garbage", BINARY, vec![0xa5; 1000]),
        (
            "another version of the multiplexer",
            BINARY,
            vec![9, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        ),
        (
            "an unknown frame",
            BINARY,
            Frame::bare(77, 0, 1, 0).bytes().to_vec(),
        ),
        (
            "a stream of its own",
            BINARY,
            Frame::bare(WINDOW, SYN, 2, 0).bytes().to_vec(),
        ),
        (
            "data that is never small enough",
            BINARY,
            Frame::bare(DATA, SYN, 2, 0x7fff_ffff).bytes().to_vec(),
        ),
        ("a control message that is none", TEXT, b"hello".to_vec()),
        (
            "a control message without its fields",
            TEXT,
            br#"{"type":"refresh-token"}"#.to_vec(),
        ),
        (
            "a control message that is too large",
            TEXT,
            vec![b' '; 20 * 1024],
        ),
        ("text that is none", TEXT, vec![0xff; 10]),
        ("a reserved opcode", 0x83, b"x".to_vec()),
        ("a reserved bit", 0xc2, b"x".to_vec()),
        ("a message that is too large", BINARY, vec![0; 300 * 1024]),
        ("a ping that is too large", 0x89, vec![0; 200]),
        ("a continuation of nothing", 0x80, b"x".to_vec()),
    ];
    let count = breaches.len();
    for (what, first, payload) in breaches {
        let mut wire = Wire::connect(&rig, PROD).await;
        wire.frame(first, &payload).await;
        let code = wire.end().await;
        assert!(
            code.is_none_or(|code| code == PROTOCOL_ERROR),
            "{what}: {code:?}"
        );
        neighbour_is_well(&mut neighbour).await;
    }
    // Not masked, which only a server's frames may be.
    let mut wire = Wire::connect(&rig, PROD).await;
    wire.send(&[BINARY, 1, 0]).await;
    wire.end().await;
    let ended = "tunnel_server_sessions_ended_total{reason=\"protocol_error\"}";
    rig.metric_becomes(ended, count as f64 + 1.0).await;
    rig.metric_becomes("tunnel_server_sessions", 1.0).await;
    let mut raw = rig.raw().await;
    assert_eq!(raw.ask(get(PROD_HOST)).await.reason(), "runtime_offline");
}

#[tokio::test]
async fn a_flood_of_control_messages_ends_the_session() {
    let rig = Rig::start().await;
    let _dev = FakeClient::describing(&rig, DEV).await;
    let mut neighbour = rig.raw().await;
    let mut wire = Wire::connect(&rig, PROD).await;
    for _ in 0..1_000 {
        wire.frame(TEXT, br#"{"type":"sing"}"#).await;
    }
    assert!(wire.end().await.is_none_or(|code| code == PROTOCOL_ERROR));
    neighbour_is_well(&mut neighbour).await;
    rig.metric_becomes("tunnel_server_sessions", 1.0).await;
}

#[tokio::test]
async fn a_client_that_does_not_answer_pings_is_dead() {
    let rig = Rig::with(|config| config.settings.ping_interval = Duration::from_millis(100)).await;
    let mut wire = Wire::connect(&rig, PROD).await;
    wire.is_alive = false;
    let waiting = async {
        let mut raw = rig.raw().await;
        raw.ask(get(PROD_HOST)).await
    };
    let (answer, _) = tokio::join!(waiting, wire.end());
    assert_eq!(
        (answer.head.status(), answer.reason().as_str()),
        (502, "session_lost")
    );
    rig.metric_becomes("tunnel_server_sessions_ended_total{reason=\"dead\"}", 1.0)
        .await;
}

/// Asks through the wire, which answers with these bytes.
async fn answered_with(rig: &Rig, wire: &mut Wire, bytes: &[u8]) -> RawResponse {
    let mut raw = rig.raw().await;
    raw.send(get(PROD_HOST)).await;
    let stream = wire.request().await;
    wire.answer(stream, bytes).await;
    raw.response().await
}

/// Responses up to the end of their heads, each with a fault, and what that is.
fn broken_heads() -> Vec<(&'static str, Vec<u8>)> {
    let ok = number(200);
    let end = &[0, 0, 0][..];
    let one = |name: &str, value: &[u8]| response(&[&ok, &field(name.as_bytes(), value), end]);
    // As many as the stream's window takes: more would break the multiplexer's own rules.
    let informational = [number(103), vec![0]].concat().repeat(80_000);
    vec![
        ("a request", [&[2][..], &field(b"GET", b"https")].concat()),
        ("no message", vec![0xff; 8]),
        ("the known-length form", vec![1, 0x40, 200, 0, 0, 0]),
        (
            "a 101 that nobody asked for",
            response(&[&number(101), end]),
        ),
        ("a status below all", response(&[&number(42), end])),
        ("a status above all", response(&[&number(600), end])),
        ("a status beyond numbers", response(&[&[0xff; 8], end])),
        (
            "80,000 informational responses",
            response(&[&informational, &ok, end]),
        ),
        (
            "a head without end",
            response(&[&ok, &field(b"x", &[b'y'; 1000]).repeat(200)]),
        ),
        (
            "more fields than anybody sends",
            response(&[&ok, &field(b"x", b"y").repeat(2000)]),
        ),
        ("a line break in a value", one("x", b"a\r\nset-cookie: b")),
        ("a zero in a value", one("x", b"a\0b")),
        ("a line break in a name", one("x\r\ny", b"a")),
        ("a space in a name", one("x y", b"a")),
        ("a capital in a name", one("X", b"a")),
        ("chunks", one("transfer-encoding", b"chunked")),
        ("a connection field", one("connection", b"close")),
        ("a keep-alive field", one("keep-alive", b"timeout=5")),
        ("an upgrade", one("upgrade", b"websocket")),
        ("a length that is none", one("content-length", b"+5")),
        (
            "two lengths",
            response(&[
                &ok,
                &field(b"content-length", b"0"),
                &field(b"content-length", b"0"),
                end,
            ]),
        ),
        ("a status as a field", one(":status", b"200")),
    ]
}

#[tokio::test]
async fn a_response_that_breaks_the_rules_fails_that_request_alone() {
    let rig = Rig::start().await;
    let _dev = FakeClient::describing(&rig, DEV).await;
    let mut neighbour = rig.raw().await;
    let mut wire = Wire::connect(&rig, PROD).await;
    let cases = broken_heads();
    let count = cases.len();
    for (what, bytes) in cases {
        let answer = answered_with(&rig, &mut wire, &bytes).await;
        assert_eq!(
            (answer.head.status(), answer.reason().as_str()),
            (502, "wire_malformed"),
            "{what}"
        );
        assert_eq!(answer.head.value("set-cookie"), None, "{what}");
        neighbour_is_well(&mut neighbour).await;
        let good = response(&[
            &number(200),
            &field(b"x", b"y"),
            &[0],
            &field(b"", b"good")[1..],
            &[0, 0],
        ]);
        let answer = answered_with(&rig, &mut wire, &good).await;
        assert_eq!(
            (answer.head.status(), answer.text().as_str()),
            (200, "good"),
            "after {what}"
        );
    }
    let counted = "tunnel_server_problems_total{hop=\"tunnel-server\",reason=\"wire_malformed\"}";
    rig.metric_becomes(counted, count as f64).await;
    rig.metric_becomes("tunnel_server_sessions", 2.0).await;
}

#[tokio::test]
async fn a_body_that_breaks_the_rules_is_cut() {
    let rig = Rig::start().await;
    let mut wire = Wire::connect(&rig, PROD).await;
    let ok = number(200);
    let length = field(b"content-length", b"5");
    for (what, bytes) in [
        (
            "more than its length",
            response(&[&ok, &length, &[0], &string(b"123456"), &[0, 0]]),
        ),
        (
            "less than its length",
            response(&[&ok, &length, &[0], &string(b"1234"), &[0, 0]]),
        ),
        (
            "a trailer with a line break",
            response(&[
                &ok,
                &[0],
                &string(b"1234"),
                &[0],
                &field(b"x", b"a\r\nb"),
                &[0],
            ]),
        ),
        (
            "a problem",
            response(&[
                &ok,
                &[0],
                &string(b"1"),
                &[0],
                &field(b":problem", b"moon"),
                &[0],
            ]),
        ),
    ] {
        let mut raw = rig.raw().await;
        raw.send(get(PROD_HOST)).await;
        let stream = wire.request().await;
        wire.answer(stream, &bytes).await;
        let mut seen = Vec::new();
        while let Ok(line) = raw.line().await {
            seen.push(line);
        }
        let is_whole = seen.last().is_some_and(String::is_empty) && seen.contains(&"0".to_owned());
        assert!(!is_whole, "{what}: {seen:?}");
    }
    let good = response(&[&ok, &length, &[0], &string(b"12345"), &[0, 0]]);
    assert_eq!(answered_with(&rig, &mut wire, &good).await.text(), "12345");
}

/// What comes behind a whole response belongs to nobody: the stream is not used again for it.
#[tokio::test]
async fn bytes_after_a_response_are_no_response() {
    let rig = Rig::start().await;
    let mut wire = Wire::connect(&rig, PROD).await;
    let ok = number(200);
    let good = |text: &[u8]| response(&[&ok, &[0], &string(text), &[0, 0]]);
    // An answer to a question that was not asked yet, in the same write.
    let two = [good(b"first"), good(b"poison")].concat();
    assert_eq!(answered_with(&rig, &mut wire, &two).await.text(), "first");
    assert_eq!(
        answered_with(&rig, &mut wire, &good(b"second"))
            .await
            .text(),
        "second"
    );
    // And in a later write, while the stream is at rest.
    let mut raw = rig.raw().await;
    raw.send(get(PROD_HOST)).await;
    let stream = wire.request().await;
    wire.answer(stream, &good(b"third")).await;
    assert_eq!(raw.response().await.text(), "third");
    wire.data(stream, &good(b"poison")).await;
    // The server has read it before it is asked for something else. Read after that, it would be the
    // answer, which is the tunnel client's to give: of its own runtime alone.
    wire.round_trip().await;
    raw.send(get(PROD_HOST)).await;
    let next = wire.request().await;
    wire.answer(next, &good(b"fourth")).await;
    assert_eq!(raw.response().await.text(), "fourth");
}

/// A stream that is not accepted carries nothing.
#[tokio::test]
async fn a_stream_that_was_not_accepted_fails_its_request() {
    let rig = Rig::start().await;
    let mut wire = Wire::connect(&rig, PROD).await;
    let (mut before, mut raw) = (rig.raw().await, rig.raw().await);
    // The stream that the session was probed by is accepted; the next one is not.
    before.send(get(PROD_HOST)).await;
    wire.request().await;
    raw.send(get(PROD_HOST)).await;
    let stream = wire.request().await;
    wire.data(stream, &[2, 3, 0x40, 200, 0, 0, 0]).await;
    assert_eq!(raw.response().await.reason(), "wire_malformed");
    let good = response(&[&number(204), &[0, 0, 0]]);
    assert_eq!(
        answered_with(&rig, &mut wire, &good).await.head.status(),
        204
    );
}

#[tokio::test]
async fn repeated_reports_of_silence_do_not_fill_the_log() {
    let files = Files::new();
    let token = files.add("acme", "prod");
    let serving = files.serve("").await;
    let (client, _feeds) = serving.client(token.expose()).await;
    for number in 0..500 {
        let is_over = number % 2 == 1;
        client.session.send(Control::Unheard { is_over }).unwrap();
        // So that the server sees most of them one by one.
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(serving.status(PROD, "/now").await, 200);
    let log = serving.stop().await;
    let is_counted = |line: &&serde_json::Value| {
        let message = line["message"].as_str();
        message
            .is_some_and(|message| message.starts_with("a session") && message.contains("silent"))
    };
    let lines = log.iter().filter(is_counted).count();
    assert!((1..50).contains(&lines), "{lines} lines");
}
