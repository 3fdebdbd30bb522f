//! HTTP/2: what a connection and a stream may take, and how long, and how both end.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;
use testkit::{
    deadline::{SOON, eventually, soon},
    tunnel::{
        body::{BodyEnd, Feed, collect, data, empty, endings, fed, full, status},
        client::FakeClient,
    },
};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep},
};
use tunnel_ops::task::Owned;
use tunnel_proto::control::Control;
use tunnel_proto::limits;

use crate::{
    access_lines::logged,
    http2_client::{Http2, get, read},
    rig::{DEV, DEV_HOST, PROD, Rig},
};

/// A limit that a test waits for.
const SHORT: Duration = Duration::from_millis(300);

/// Answers of which nothing was taken.
pub(crate) const NOT_TAKEN: &str =
    "tunnel_server_problems_total{hop=\"tunnel-server\",reason=\"not_taken\"}";

/// Answers `/flow` with more than anybody takes, and hands everything else to the test.
pub(crate) async fn handing(rig: &Rig) -> (FakeClient, mpsc::Receiver<Feed>) {
    let (handed, feeds) = mpsc::channel(8);
    let client = FakeClient::new(rig, PROD, move |request| {
        let handed = handed.clone();
        async move {
            let (feed, body) = fed();
            if request.uri().path() == "/flow" {
                let flow = Owned::spawn("flow", async move {
                    while feed.send(data(vec![b'x'; 16_384])).await.is_ok() {}
                });
                std::mem::forget(flow);
            } else {
                handed.send(feed).await.unwrap();
            }
            Ok(status(200, body))
        }
    })
    .await;
    (client, feeds)
}

#[tokio::test]
async fn an_unread_stream_delays_no_other() {
    let rig = Rig::start().await;
    let (_client, mut feeds) = handing(&rig).await;
    let mut http2 = Http2::new(&rig).await;
    let mut unread = Vec::new();
    // Fewer than would fill the connection's own window, which is the client's to give.
    let response = http2.ask(get("/flow")).await.unwrap();
    unread.push(response);
    let mut other = Http2::new(&rig).await;
    for _ in 0..10 {
        let response = other.ask(get("/")).await.unwrap();
        let feed = soon("the request", feeds.recv()).await.unwrap();
        feed.send(data("event")).await.unwrap();
        drop(feed);
        assert_eq!(read(response.into_body()).await.unwrap().0, b"event");
    }
}

#[tokio::test]
async fn a_body_that_stalls_is_given_up() {
    let rig = Rig::with(|config| config.settings.body_idle_timeout = SHORT).await;
    let (endings, mut ends) = endings();
    let _client = FakeClient::new(&rig, PROD, move |request| {
        let mut ending = endings.next();
        async move {
            ending.on_read(&collect(request.into_body()).await.1);
            Ok(status(200, empty()))
        }
    })
    .await;
    let mut http2 = Http2::new(&rig).await;
    let mut request = get("/");
    *request.method_mut() = http::Method::POST;
    let began = Instant::now();
    let (response, mut body) = http2.send.send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(b"begin"), false).unwrap();
    let response = soon("a response", response).await.unwrap();
    assert!(began.elapsed() >= SHORT);
    assert_eq!(response.status(), 400);
    let refusal = read(response.into_body()).await.unwrap().0;
    assert!(String::from_utf8_lossy(&refusal).contains("\"request_incomplete\""));
    assert_eq!(
        soon("the exchange's end", ends.recv()).await,
        Some(BodyEnd::Cut)
    );
}

/// As with gRPC streams: whoever has been answered may be silent for as long as it likes.
#[tokio::test]
async fn a_stream_that_was_answered_may_be_silent() {
    let rig = Rig::with(|config| {
        config.settings.body_idle_timeout = SHORT;
        config.settings.keep_alive_timeout = SHORT;
    })
    .await;
    let (_client, mut feeds) = handing(&rig).await;
    let mut http2 = Http2::new(&rig).await;
    let mut request = get("/");
    *request.method_mut() = http::Method::POST;
    let (response, mut body) = http2.send.send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(b"begin"), false).unwrap();
    let response = soon("a response", response).await.unwrap();
    let feed = soon("the request", feeds.recv()).await.unwrap();
    // That nothing happens in this time is what the test is about.
    sleep(SHORT * 4).await;
    feed.send(data("still here")).await.unwrap();
    drop(feed);
    body.send_data(Bytes::new(), true).unwrap();
    assert_eq!(read(response.into_body()).await.unwrap().0, b"still here");
}

/// A watch asks once, and is answered when there is something to tell.
#[tokio::test]
async fn a_grpc_call_may_be_silent_before_it_is_answered() {
    let rig = Rig::with(|config| config.settings.body_idle_timeout = SHORT).await;
    let news = Arc::new(Notify::new());
    let awaited = news.clone();
    let _client = FakeClient::new(&rig, PROD, move |request| {
        let news = awaited.clone();
        async move {
            news.notified().await;
            drop(request);
            Ok(status(200, empty()))
        }
    })
    .await;
    let mut http2 = Http2::new(&rig).await;
    let mut request = get("/a.B/Watch");
    *request.method_mut() = http::Method::POST;
    let grpc = http::HeaderValue::from_static("application/grpc+proto");
    request.headers_mut().insert("content-type", grpc);
    let (response, mut body) = http2.send.send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(b"begin"), false).unwrap();
    // That nothing happens in this time is what the test is about.
    sleep(SHORT * 4).await;
    news.notify_one();
    let response = soon("a response", response).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("grpc-status"));
}

#[tokio::test]
async fn unread_responses_stay_within_their_runtimes_memory() {
    const BUFFERED: &str = "tunnel_server_buffered_bytes";
    const LIMIT: u64 = 2 * 1024 * 1024;
    // What one message brings is counted before streams are cut for it.
    const MOST: f64 = (LIMIT as usize + limits::MESSAGE_BYTES) as f64;
    let rig = Rig::with(|config| config.settings.max_buffered_size = 4 * LIMIT).await;
    let _client = FakeClient::new(&rig, PROD, |_| async {
        Ok(status(200, full(vec![7; 200_000])))
    })
    .await;
    let _neighbour = FakeClient::describing(&rig, DEV).await;
    assert!(rig.metric(BUFFERED).await < 0.5);
    let mut http2 = Http2::with_window(&rig, 4 * 1024).await;
    let mut unread = Vec::new();
    for _ in 0..60 {
        unread.push(http2.ask(get("/unread")).await.unwrap());
        assert!(rig.metric(BUFFERED).await <= MOST);
    }
    let is_full = async || (rig.metric(BUFFERED).await > LIMIT as f64 / 2.0).then_some(());
    eventually(SOON, "what is held", is_full).await;
    let mut raw = rig.raw().await;
    let request = format!("GET / HTTP/1.1\r\nhost: {DEV_HOST}\r\n\r\n");
    assert_eq!(raw.ask(request).await.text(), "globex-dev GET /\n");
    let (mut whole, mut cut) = (0, 0);
    for response in unread {
        match read(response.into_body()).await {
            Ok((content, _)) => {
                assert_eq!(content.len(), 200_000);
                whole += 1;
            }
            Err(_) => cut += 1,
        }
    }
    assert!(whole > 4 && cut > 30, "{whole} whole, {cut} cut");
    let counted = "tunnel_server_problems_total{hop=\"tunnel-server\",reason=\"memory_limit\"}";
    rig.metric_becomes(counted, f64::from(cut)).await;
    rig.metric_becomes(BUFFERED, 0.0).await;
}

/// Over HTTP/1 the kernel sees it; here a peer answers pings, and gives a stream no window.
#[tokio::test]
async fn an_unread_response_is_cancelled() {
    let rig = Rig::with(|config| config.settings.body_idle_timeout = SHORT).await;
    let (client, mut feeds) = handing(&rig).await;
    let mut http2 = Http2::reading_nothing(&rig).await;
    let response = http2.ask(get("/unread")).await.unwrap();
    let feed = soon("the request", feeds.recv()).await.unwrap();
    // As long as there is nothing to be read, nobody can be blamed for not reading.
    sleep(SHORT * 4).await;
    feed.send(data("unread")).await.unwrap();
    let cut = read(response.into_body()).await.unwrap_err();
    assert_eq!(cut.reason(), Some(h2::Reason::CANCEL));
    soon("the exchange's end", feed.closed()).await;
    client.rests().await;
    rig.metric_becomes(NOT_TAKEN, 1.0).await;
    let line = eventually(SOON, "a line", async || logged("/unread")).await;
    assert_eq!(line["end"], "not_taken");
    // One that the platform client itself gives up is none of these.
    let response = http2.ask(get("/unread")).await.unwrap();
    let feed = soon("the request", feeds.recv()).await.unwrap();
    drop(response);
    soon("the exchange's end", feed.closed()).await;
    let is_cancelled = async || logged("/unread").filter(|line| line["end"] == "cancelled");
    eventually(SOON, "another line", is_cancelled).await;
    assert!(rig.metric(NOT_TAKEN).await < 1.5);
}

#[tokio::test]
async fn a_connection_without_requests_is_closed_after_a_while() {
    let rig = Rig::with(|config| config.settings.keep_alive_timeout = SHORT).await;
    let _client = FakeClient::describing(&rig, PROD).await;
    let mut http2 = Http2::new(&rig).await;
    assert_eq!(http2.ask(get("/")).await.unwrap().status(), 200);
    soon("the connection's end", &mut http2.connection)
        .await
        .unwrap()
        .unwrap();
    // One that never asks for anything, too.
    let silent = Http2::new(&rig).await;
    soon("the connection's end", silent.connection)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn stopping_finishes_streams_and_takes_no_more() {
    let rig = Rig::start().await;
    let (client, mut feeds) = handing(&rig).await;
    let mut http2 = Http2::new(&rig).await;
    let response = http2.ask(get("/")).await.unwrap();
    let feed = soon("the request", feeds.recv()).await.unwrap();
    let idle = Http2::new(&rig).await;
    rig.trigger.request();
    soon("the idle one's end", idle.connection)
        .await
        .unwrap()
        .unwrap();
    client
        .control(|control| matches!(control, Control::Drain { .. }))
        .await;
    feed.send(data("done")).await.unwrap();
    drop(feed);
    assert_eq!(read(response.into_body()).await.unwrap().0, b"done");
    soon("the connection's end", http2.connection)
        .await
        .unwrap()
        .unwrap();
    rig.stopped().await;
}

#[tokio::test]
async fn large_heads_pass_up_to_the_limit() {
    let rig = Rig::start().await;
    let client = FakeClient::new(&rig, PROD, |_| async {
        let mut response = Response::new(full("large"));
        for number in 0..12 {
            let name: http::HeaderName = format!("x-{number}").parse().unwrap();
            response
                .headers_mut()
                .insert(name, "r".repeat(8_000).parse().unwrap());
        }
        Ok(response)
    })
    .await;
    let mut http2 = Http2::new(&rig).await;
    let with = |count: usize, length: usize| {
        let mut request = get("/");
        for number in 0..count {
            let name: http::HeaderName = format!("x-{number}").parse().unwrap();
            request
                .headers_mut()
                .insert(name, "q".repeat(length).parse().unwrap());
        }
        request
    };
    let response = http2.ask(with(14, 8_000)).await.unwrap();
    assert_eq!(response.headers()["x-11"].len(), 8_000);
    assert_eq!(client.request(1).await.headers["x-13"].len(), 8_000);
    // Too large, and too many for what comes behind us.
    let response = http2.ask(with(20, 8_000)).await.unwrap();
    assert_eq!(response.status(), 431);
    let response = http2.ask(with(1_500, 1)).await.unwrap();
    assert_eq!(response.status(), 431);
    assert_eq!(http2.ask(with(101, 1)).await.unwrap().status(), 431);
    assert_eq!(http2.ask(with(100, 1)).await.unwrap().status(), 200);
    assert_eq!(client.seen().len(), 2);
}
