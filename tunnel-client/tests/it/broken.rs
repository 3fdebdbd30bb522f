//! Upstreams that are hostile, broken, or not there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::BodyExt;
use tokio::net::TcpListener;
use tunnel_proto::exchange::BodyError;
use tunnel_proto::limits;
use tunnel_proto::problem::{Hop, Reason};

use crate::setup::{Setup, get, post};
use testkit::scripted::ScriptedUpstream;

const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood";

/// What an upstream's bytes become. Afterwards it is asked again, and answers well.
async fn reason(answer: impl Into<Vec<u8>>) -> Reason {
    let answer = answer.into();
    let upstream = ScriptedUpstream::start(move |mut connection| {
        let answer = answer.clone();
        async move {
            let head = connection.head().await.unwrap();
            if head.starts_with("GET") {
                connection.send(GOOD).await;
                connection.rest().await;
                return;
            }
            // What is left unread would make the end a reset, which overtakes the answer.
            connection.bytes(1).await;
            connection.send(answer).await;
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let problem = setup.session.ask(post("x")).await.unwrap_err();
    assert_eq!(problem.hop(), Hop::Client);
    assert_eq!(setup.session.fetch(get("/")).await.body(), "good");
    assert_eq!(
        upstream.connections(),
        2,
        "the broken one is never used again"
    );
    problem.reason()
}

/// Its end is a reset, and whoever still sends finds out by that first.
#[tokio::test]
async fn an_answer_given_before_the_upstream_closed_is_heard_by_who_still_sends() {
    let asked = Arc::new(AtomicUsize::new(0));
    let upstream = ScriptedUpstream::start(move |mut connection| {
        let taken = asked.fetch_add(1, Ordering::Relaxed) * 20_000;
        async move {
            connection.head().await.unwrap();
            connection.bytes(taken).await;
            connection.send(GOOD).await;
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let content: &'static str = Box::leak("x".repeat(5_000_000).into_boxed_str());
    for _ in 0..60 {
        let response = setup.session.ask(post(content)).await.unwrap();
        let content = response.into_body().collect().await.unwrap();
        assert_eq!(content.to_bytes(), "good");
    }
}

#[tokio::test]
async fn what_is_no_http_is_invalid() {
    for garbage in [
        "SSH-2.0-OpenSSH_9.6\r\n\r\n",
        "\0\0\0\0",
        "HTTP/1.1 2000 OK\r\n\r\n",
    ] {
        assert_eq!(
            reason(garbage).await,
            Reason::ResponseInvalid,
            "{garbage:?}"
        );
    }
}

#[tokio::test]
async fn framing_that_two_readers_could_understand_differently_is_invalid() {
    for fields in [
        "content-length: 1\r\ntransfer-encoding: chunked",
        "content-length: 1\r\ncontent-length: 2",
        "content-length: 1, 1",
        "content-length: -1",
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: gzip",
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n1\r\nx\r\n0\r\n\r\n");
        assert_eq!(reason(answer).await, Reason::ResponseInvalid, "{fields:?}");
    }
}

#[tokio::test]
async fn a_status_out_of_range_is_invalid() {
    for status in [600, 999] {
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(reason(answer).await, Reason::ResponseInvalid, "{status}");
    }
}

#[tokio::test]
async fn a_protocol_change_that_nobody_asked_for_fails() {
    let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                  upgrade: websocket\r\n\r\n\x01\x02";
    assert_eq!(reason(answer).await, Reason::UpgradeFailed);
}

#[tokio::test]
async fn a_flood_of_informational_responses_is_invalid() {
    let few = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(limits::INFORMATIONAL + 1);
    assert_eq!(reason(few).await, Reason::ResponseInvalid);
    // A whole read buffer at a time, and then the connection is gone.
    let many = "HTTP/1.1 100 Continue\r\n\r\n".repeat(1_000);
    assert_eq!(reason(many).await, Reason::ResponseInvalid);
}

#[tokio::test]
async fn a_head_beyond_the_limits_is_invalid() {
    let large = "x".repeat(limits::HEAD_BYTES);
    let answer = format!("HTTP/1.1 200 OK\r\nx: {large}\r\n\r\n");
    assert_eq!(reason(answer).await, Reason::ResponseInvalid);
    let many = "x: y\r\n".repeat(limits::FIELDS + 1);
    let answer = format!("HTTP/1.1 200 OK\r\n{many}\r\n");
    assert_eq!(reason(answer).await, Reason::ResponseInvalid);
}

#[tokio::test]
async fn a_large_head_within_the_limits_goes_on() {
    let fields: String = (0..256)
        .map(|n| format!("x-{n}: {}\r\n", "y".repeat(490)))
        .collect();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{fields}\r\n").into_bytes();
    let upstream = ScriptedUpstream::answering(answer).await;
    let setup = Setup::new(&upstream.url()).await;
    assert_eq!(setup.session.fetch(get("/")).await.headers().len(), 257);
}

#[tokio::test]
async fn who_hangs_up_before_the_answer_terminates() {
    assert_eq!(reason("").await, Reason::ConnectionTerminated);
    assert_eq!(
        reason("HTTP/1.1 200 OK\r\ncontent-le").await,
        Reason::ConnectionTerminated
    );
}

#[tokio::test]
async fn a_truncated_response_is_never_a_clean_end() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
    ] {
        let upstream = ScriptedUpstream::answering_once(answer).await;
        let setup = Setup::new(&upstream.url()).await;
        let response = setup.session.ask(get("/")).await.unwrap();
        let error = response.into_body().collect().await.unwrap_err();
        let BodyError::Aborted(problem) = error else {
            panic!("{error}")
        };
        assert_eq!(problem.reason(), Reason::ResponseIncomplete, "{problem}");
    }
}

#[tokio::test]
async fn an_upstream_that_is_not_there_says_how() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for (url, expected) in [
        (closed.as_str(), Reason::ConnectionRefused),
        ("http://no-such-host.invalid", Reason::DnsError),
    ] {
        let setup = Setup::new(url).await;
        assert_eq!(setup.session.failure(get("/")).await, expected);
        let series = format!("problems_total{{reason=\"{}\"}}", expected.name());
        setup.client.wait_metric(&series, 1.0).await;
    }
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_in_time_is_given_up() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        connection.rest().await;
    })
    .await;
    let limit = Duration::from_millis(100);
    let setup = Setup::with(&upstream.url(), |config| {
        config.settings.upstream_head_timeout = limit
    })
    .await;
    assert_eq!(
        setup.session.failure(get("/")).await,
        Reason::ResponseTimeout
    );
}

#[tokio::test]
async fn no_request_decides_where_it_goes() {
    let upstream = ScriptedUpstream::answering(GOOD).await;
    let setup = Setup::new(&upstream.url()).await;
    for uri in [
        "http://169.254.169.254/latest/meta-data/",
        "https://127.0.0.1:1/",
    ] {
        let request = http::Request::get(uri)
            .body(http_body_util::Empty::new())
            .unwrap();
        assert_eq!(setup.session.fetch(request).await.body(), "good");
    }
    let elsewhere =
        http::Request::connect("http://127.0.0.1:1/").body(http_body_util::Empty::new());
    assert_eq!(
        setup.session.failure(elsewhere.unwrap()).await,
        Reason::MethodNotAllowed
    );
}
