//! HTTP/2 connections: what h2 alone would keep to itself, or end.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request, Response, StatusCode, Version, header};
use http_body_util::BodyExt;
use testkit::deadline::soon;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tunnel_http::listener_body::{BodyOptions, ListenerBody};
use tunnel_http::received::ReceivedBody;
use tunnel_ops::task::Owned;
use tunnel_proto::problem::Hop;

use crate::rig::{Content, Rig, ok};

/// A connection to the rig, and its driver.
async fn connect(rig: &Rig) -> (SendRequest<Bytes>, Owned<()>) {
    let socket = TcpStream::connect(rig.address).await.unwrap();
    let (requests, connection) = h2::client::handshake(socket).await.unwrap();
    let driver = Owned::spawn("peer", async move {
        let _ = connection.await;
    });
    (requests, driver)
}

/// Answers with `ok` behind a 103 and, once asked for the content, behind the content.
async fn answer_behind_hints(request: Request<ReceivedBody>) -> Response<Content> {
    let body = request.into_body();
    let reply = body.reply();
    let options = BodyOptions {
        hop: Hop::Server,
        guard: None,
        reply: reply.as_ref(),
        version: Version::HTTP_2,
        expect_wait: Some(Duration::from_secs(3_600)),
        idle: None,
    };
    let (content, mut informational) = ListenerBody::received(body, &options, |content| content);
    let mut hints = HeaderMap::new();
    hints.insert(header::LINK, "</style.css>".parse().unwrap());
    hints.insert(header::CONNECTION, "x-hop".parse().unwrap());
    assert!(informational.push(StatusCode::EARLY_HINTS, &hints));
    assert!(informational.push(StatusCode::CONTINUE, &HeaderMap::new()));
    let content = content.collect().await.unwrap().to_bytes();
    assert_eq!(content, "asked for");
    ok("ok")
}

#[tokio::test]
async fn informational_responses_reach_a_client() {
    let rig = Rig::answering(answer_behind_hints).await;
    let (requests, _driver) = connect(&rig).await;
    let request = Request::post("http://a/")
        .header(header::EXPECT, "100-continue")
        .body(())
        .unwrap();
    let mut requests = requests.ready().await.unwrap();
    let (mut response, mut content) = requests.send_request(request, false).unwrap();
    let mut informational = async || {
        let head = soon(
            "an informational head",
            poll_fn(|cx| response.poll_informational(cx)),
        )
        .await;
        head.unwrap().unwrap()
    };
    let hints = informational().await;
    assert_eq!(hints.status(), StatusCode::EARLY_HINTS);
    assert_eq!(hints.headers()[header::LINK], "</style.css>");
    assert!(!hints.headers().contains_key(header::CONNECTION));
    assert_eq!(informational().await.status(), StatusCode::CONTINUE);
    content
        .send_data(Bytes::from_static(b"asked for"), true)
        .unwrap();
    assert_eq!(
        soon("the answer", response).await.unwrap().status(),
        StatusCode::OK
    );
}

/// Begins an upload that nobody reads: a window in frames of this size.
async fn stall(requests: &SendRequest<Bytes>, frame: usize) -> (ResponseFuture, SendStream<Bytes>) {
    let request = Request::post("http://a/stalled").body(()).unwrap();
    let mut requests = requests.clone().ready().await.unwrap();
    let (response, mut content) = requests.send_request(request, false).unwrap();
    // Of the first window, which the settings give.
    let mut left: usize = 64 * 1024;
    while left > 0 {
        content.reserve_capacity(left);
        let capacity = soon("the window", poll_fn(|cx| content.poll_capacity(cx))).await;
        let capacity = capacity.unwrap().unwrap().min(left);
        let piece = Bytes::from(vec![b'x'; capacity]);
        for start in (0..capacity).step_by(frame) {
            let piece = piece.slice(start..(start + frame).min(capacity));
            content.send_data(piece, false).unwrap();
        }
        left -= capacity;
    }
    (response, content)
}

#[tokio::test]
async fn uploads_that_nobody_reads_hold_up_nothing_else() {
    for frame in [7, 300, 16 * 1024] {
        let go_on = Arc::new(Notify::new());
        let waiting = go_on.clone();
        let rig = Rig::answering(move |request: Request<ReceivedBody>| {
            let waiting = waiting.clone();
            async move {
                if request.uri().path() == "/stalled" {
                    waiting.notified().await;
                }
                let content = request.into_body().collect().await;
                assert!(content.unwrap().to_bytes().iter().all(|byte| *byte == b'x'));
                ok("whole")
            }
        })
        .await;
        let (requests, driver) = connect(&rig).await;
        let mut stalled = Vec::new();
        for _ in 0..16 {
            stalled.push(stall(&requests, frame).await);
        }
        // More than one window, so that it is given back.
        let request = Request::post("http://a/").body(()).unwrap();
        let mut ready = requests.clone().ready().await.unwrap();
        let (response, mut content) = ready.send_request(request, false).unwrap();
        content
            .send_data(Bytes::from(vec![b'x'; 200 * 1024]), true)
            .unwrap();
        assert_eq!(
            soon("the answer", response).await.unwrap().status(),
            StatusCode::OK
        );
        for (response, mut content) in stalled {
            content.send_data(Bytes::from_static(b"xx"), true).unwrap();
            go_on.notify_one();
            assert_eq!(
                soon("the answer", response).await.unwrap().status(),
                StatusCode::OK
            );
        }
        assert!(!driver.is_finished(), "{frame}");
    }
}
