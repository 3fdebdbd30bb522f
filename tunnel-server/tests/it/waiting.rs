//! Requests that wait for a tunnel client to come back: how many there may be, and that they hold no more
//! memory than the bounds say. The program as a process, whose memory nobody else uses.

use std::fs;
use testkit::http2::Frame;
use testkit::{
    deadline::{SOON, eventually},
    http1::RawConnection,
};

use crate::{
    frames::{Frames, block},
    rig::{PROD_HOST, connect},
    serving::{Files, Serving, VERSION},
};

const MIB: usize = 1024 * 1024;

/// As much as may be sent ahead on one stream.
const WINDOW: usize = 256 * 1024;

/// As many streams as fill the window of a whole connection.
const STREAMS: u32 = 16;

/// What the program has in memory, in bytes.
fn resident(serving: &Serving) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", serving.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().split(' ').next().unwrap();
    number.parse::<usize>().unwrap() * 1024
}

/// A server whose runtime's client is never there.
async fn serving(settings: &str) -> Serving {
    let files = Files::new();
    files.add("acme", "prod");
    // Of a trusted proxy, which speaks for many, so that no share of an address ends what is tried.
    let settings = format!("offline_wait = \"10m\"\ntrusted_proxies = [\"127.0.0.1\"]\n{settings}");
    files.serve(&settings).await
}

async fn waiting(serving: &Serving) -> u64 {
    let (_, text) = crate::rig::ask_admin(serving.admin, "/api/v1/runtimes/acme-prod").await;
    let view: serde_json::Value = serde_json::from_str(&text).unwrap();
    view["waiting"].as_u64().unwrap()
}

async fn all_wait(serving: &Serving, wanted: u64) {
    eventually(SOON, "the waiting requests", async || {
        (waiting(serving).await == wanted).then_some(())
    })
    .await;
}

/// What begins an upload.
const FIELDS: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", PROD_HOST),
    (":path", "/upload"),
    ("content-length", "1000000"),
];

/// Begins as many uploads on one connection as it takes, each with all that may be sent ahead, in frames of
/// this size; the server has read them when this is done.
async fn uploads(serving: &Serving, piece: usize) -> Frames {
    streams(serving, &FIELDS, WINDOW, piece).await
}

/// The same with requests like this, and so much of the content of each.
async fn streams(
    serving: &Serving,
    fields: &[(&str, &str)],
    length: usize,
    piece: usize,
) -> Frames {
    let mut frames = Frames::new(RawConnection::over(connect(serving.public).await)).await;
    let piece = vec![b'x'; piece];
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        let mut bytes =
            Frame::new(Frame::HEADERS, Frame::END_HEADERS, stream, &block(fields)).bytes();
        for _ in 0..length / piece.len() {
            bytes.extend(Frame::new(Frame::DATA, 0, stream, &piece).bytes());
        }
        frames.raw.send(bytes).await;
    }
    frames.send(Frame::PING, 0, 0, b"all sent").await;
    while !matches!(frames.next().await, Some(frame) if frame.kind == Frame::PING && frame.flags == Frame::ACK)
    {
    }
    frames
}

/// The same over HTTP/1.1, where a connection carries one; more than the kernel keeps for anybody is not sent.
async fn upload(serving: &Serving) -> RawConnection {
    let mut raw = RawConnection::over(connect(serving.public).await);
    let head = format!("POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 1000000\r\n\r\n");
    raw.send([head.as_bytes(), &vec![b'x'; WINDOW]].concat())
        .await;
    raw
}

/// As where a platform's answer brings the list, which the server does not have while the runtime is offline.
#[tokio::test]
async fn a_request_that_waited_is_checked_against_the_current_list() {
    let files = Files::new();
    let token = files.add("acme", "prod");
    let serving = files.serve("offline_wait = \"10m\"\n").await;
    let mut raw = RawConnection::over(connect(serving.public).await);
    raw.send(format!("GET /now HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    all_wait(&serving, 1).await;
    let listed = serving.folder.read("runtimes.toml");
    let name = "name = \"prod\"\n";
    assert!(listed.contains(name), "{listed}");
    let narrowed = format!("{name}allow_from = [\"192.0.2.0/24\"]\n");
    let text = listed.replacen(name, &narrowed, 1);
    serving.folder.write("runtimes.toml", &text);
    serving.metric_becomes(VERSION, 2.0).await;
    let (client, _feeds) = serving.client(token.expose()).await;
    let answer = raw.response().await;
    assert_eq!(
        (answer.head.status(), answer.reason().as_str()),
        (403, "address_denied")
    );
    assert!(client.seen().is_empty());
}

#[tokio::test]
async fn uploads_that_wait_hold_no_more_than_the_bound_says() {
    for piece in [16 * 1024, 4 * 1024, 256] {
        // Hardly more than 256 of them weigh.
        let bound = 163 * MIB;
        let serving = serving("limit_waiting_size = \"163MiB\"").await;
        let before = resident(&serving);
        let mut connections = Vec::new();
        for _ in 0..256 / STREAMS {
            connections.push(uploads(&serving, piece).await);
        }
        all_wait(&serving, 256).await;
        let held = resident(&serving) - before;
        let sent = 256 * WINDOW;
        assert!((sent..=bound).contains(&held), "{piece}: {held} of {bound}");
        // One more does not find a place among so many.
        let mut raw = RawConnection::over(connect(serving.public).await);
        let request = format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n");
        assert_eq!(raw.ask(request).await.reason(), "waiting_limit");
        drop(connections);
        all_wait(&serving, 0).await;
        serving.stop().await;
    }
}

#[tokio::test]
async fn uploads_for_which_there_is_no_room_are_refused_and_hold_nothing() {
    for settings in [
        "limit_waiting_size = \"8MiB\"",
        "max_waiting_size = \"8MiB\"",
    ] {
        let bound = 8 * MIB;
        let serving = serving(settings).await;
        let before = resident(&serving);
        let mut connections = Vec::new();
        for _ in 0..256 / STREAMS {
            connections.push(uploads(&serving, 16 * 1024).await);
        }
        let fitting = waiting(&serving).await;
        // Each weighs two and a half windows, and a little.
        assert_eq!(fitting, 12);
        let refused =
            "tunnel_server_problems_total{hop=\"tunnel-server\",reason=\"waiting_limit\"}";
        let others = 256.0 - fitting as f64;
        serving.metric_becomes(refused, others).await;
        // What is let go goes back to the system when the allocator likes; it is not kept beside.
        let held = resident(&serving).saturating_sub(before);
        assert!(held < 3 * bound, "{held}");
        serving.stop().await;
    }
}

#[tokio::test]
async fn calls_without_length_get_as_many_permits_as_others() {
    let serving = serving("problem_detail = \"full\"\n").await;
    let mut connections = Vec::new();
    for _ in 0..256 / STREAMS {
        // A message of gRPC.
        connections.push(streams(&serving, &FIELDS[..4], 10, 10).await);
    }
    all_wait(&serving, 256).await;
    // It is their number that is full.
    let mut raw = RawConnection::over(connect(serving.public).await);
    let refused = raw.ask(format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"));
    let refused = refused.await;
    assert_eq!(refused.reason(), "waiting_limit");
    assert!(refused.text().contains("256"), "{}", refused.text());
    serving.stop().await;
}

#[tokio::test]
async fn requests_without_length_hold_at_most_four_times_their_weight() {
    // Hardly more than 256 of them weigh.
    let bound = 43 * MIB;
    let serving = serving("limit_waiting_size = \"43MiB\"").await;
    let before = resident(&serving);
    let mut connections = Vec::new();
    for _ in 0..256 / STREAMS {
        connections.push(streams(&serving, &FIELDS[..4], WINDOW, 256).await);
    }
    all_wait(&serving, 256).await;
    let held = resident(&serving) - before;
    assert!(held <= 4 * bound, "{held}");
    serving.stop().await;
}

#[tokio::test]
async fn uploads_over_http1_hold_no_more_either() {
    // Hardly more than 256 of them weigh, of which each has 192 KiB read ahead at most.
    let bound = 123 * MIB;
    let serving = serving("limit_waiting_size = \"123MiB\"").await;
    let before = resident(&serving);
    let mut connections = Vec::new();
    for _ in 0..256 {
        connections.push(upload(&serving).await);
    }
    all_wait(&serving, 256).await;
    let held = resident(&serving) - before;
    assert!(held <= bound, "{held}");
    serving.stop().await;
}
