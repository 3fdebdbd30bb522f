//! How long connections may rest, and how their clients learn that.

use testkit::deadline::at_once;
use testkit::http1::{End, RawResponse};
use tokio::time::Instant;

use crate::rig::{KEEP_ALIVE, Rig, ok};

fn persistence(answer: &RawResponse) -> [Option<&str>; 2] {
    ["connection", "keep-alive"].map(|field| answer.head.value(field))
}

#[tokio::test(start_paused = true)]
async fn idle_connections_end_in_time_and_their_clients_know_when() {
    for (is_trusted, announced) in [(false, "timeout=70"), (true, "timeout=615")] {
        let rig = Rig::with(is_trusted, |_| async { ok("x") }).await;
        let mut raw = rig.connect().await;
        let answer = at_once(raw.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n")).await;
        assert_eq!(persistence(&answer), [Some("keep-alive"), Some(announced)]);
        let began = Instant::now();
        assert!(raw.unbounded_head().await.is_err());
        let limit = KEEP_ALIVE[usize::from(is_trusted)];
        assert_eq!(began.elapsed().as_secs(), limit.as_secs());
    }
}

#[tokio::test]
async fn no_time_is_announced_for_a_connection_that_ends() {
    let rig = Rig::answering(|request| async move {
        let mut answer = ok("x");
        if request.uri().path() == "/last" {
            let close = http::HeaderValue::from_static("close");
            answer.headers_mut().insert("connection", close);
        }
        answer
    })
    .await;
    for (request, connection) in [
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n",
            Some("close"),
        ),
        ("GET /last HTTP/1.1\r\nHost: a\r\n\r\n", Some("close")),
        ("GET / HTTP/1.0\r\nHost: a\r\n\r\n", None),
    ] {
        let mut raw = rig.connect().await;
        let answer = raw.ask(request).await;
        assert_eq!(persistence(&answer), [connection, None], "{request}");
        assert_eq!(raw.closes().await, End::Clean, "{request}");
    }
    let mut raw = rig.connect().await;
    let answer = raw
        .ask("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n")
        .await;
    assert_eq!(persistence(&answer), [Some("keep-alive"), None]);
}
