//! What the sample upstream answers on each path, by way of the program's own client.

use std::{future::Future, time::Duration};

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use loadtest::client::{
    Dialer,
    body::{self, Outgoing},
    connection::Connection,
};
use tokio::{
    runtime::{Builder, LocalOptions},
    time::timeout,
};
use tokio_tungstenite::{client_async, tungstenite::Message};

use crate::language::Upstream;

/// Far more than any of this takes.
const SOON: Duration = Duration::from_secs(20);

/// Runs a test against an upstream, as the load threads run their work.
fn test<Fut: Future<Output = ()>>(run: impl FnOnce(Dialer, String) -> Fut) {
    let upstream = Upstream::start("");
    let authority = upstream.url.strip_prefix("http://").unwrap().to_owned();
    let dialer = Dialer::new(vec![authority.parse().unwrap()], None);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .unwrap();
    let run = async { timeout(SOON, run(dialer, authority)).await };
    runtime.block_on(run).expect("it takes too long");
}

fn get(uri: &str) -> Request<Outgoing> {
    let request = Request::get(uri).header("host", "upstream");
    request.body(body::empty()).unwrap()
}

async fn length(connection: &mut Connection, mut content: Incoming) -> usize {
    let mut length = 0;
    while let Some(data) = connection.frame(&mut content).await.unwrap() {
        length += data.len();
    }
    length
}

#[test]
fn plain_requests_and_others_share_a_connection() {
    test(async |dialer, _| {
        let mut connection = dialer.connect(false).await.unwrap();
        let cases = [
            ("/", 16),
            ("/x?y", 16),
            ("/bytes/100000", 100_000),
            ("/", 16),
        ];
        for (path, expected) in cases {
            let answer = connection.send(get(path)).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            let length = length(&mut connection, answer.into_body()).await;
            assert_eq!(length, expected, "{path}");
        }
        assert!(connection.is_open());
    });
}

#[test]
fn an_upload_is_counted() {
    test(async |dialer, authority| {
        let request = |uri: String| {
            let request = Request::post(uri).header("host", "upstream");
            request
                .body(body::full(vec![b'x'; 3_000_000].into()))
                .unwrap()
        };
        let mut one = dialer.connect(false).await.unwrap();
        let answer = one.send(request("/upload".to_owned())).await.unwrap();
        let mut content = answer.into_body();
        let text = one.frame(&mut content).await.unwrap();
        assert_eq!(text, Some(Bytes::from("3000000")));

        let mut two = dialer.connect(true).await.unwrap();
        let uri = format!("http://{authority}/upload");
        let answer = two.send(request(uri)).await.unwrap();
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text, "3000000");
    });
}

#[test]
fn a_pace_is_kept() {
    test(async |dialer, _| {
        let mut connection = dialer.connect(false).await.unwrap();
        let begun = tokio::time::Instant::now();
        let answer = connection.send(get("/pace?rate=100000&bytes=30000")).await;
        let length = length(&mut connection, answer.unwrap().into_body()).await;
        assert_eq!(length, 30_000);
        assert!(
            begun.elapsed() >= Duration::from_millis(280),
            "{:?}",
            begun.elapsed()
        );
    });
}

#[test]
fn events_come_one_by_one() {
    test(async |dialer, _| {
        let mut connection = dialer.connect(false).await.unwrap();
        let answer = connection
            .send(get("/events?rate=50&count=3"))
            .await
            .unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut content = answer.into_body();
        for _ in 0..3 {
            let event = connection.frame(&mut content).await.unwrap().unwrap();
            assert!(
                event.starts_with(b"id: ") && event.ends_with(b"\n\n"),
                "{event:?}"
            );
        }
        assert_eq!(connection.frame(&mut content).await, Ok(None));
    });
}

#[test]
fn a_websocket_echoes() {
    test(async |dialer, authority| {
        let stream = dialer.dial().await.unwrap();
        let url = format!("ws://{authority}/echo");
        let (mut socket, _) = client_async(url, stream).await.unwrap();
        for message in [Message::text("text"), Message::binary(vec![7; 100_000])] {
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        socket.close(None).await.unwrap();
    });
}

#[test]
fn grpc_messages_come_back_with_a_status() {
    test(async |dialer, authority| {
        let mut connection = dialer.connect(true).await.unwrap();
        let message = Bytes::from_static(b"\0\0\0\0\x03abc");
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{authority}/echo.Echo/Unary"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(body::full(message.clone()));
        let answer = connection.send(request.unwrap()).await.unwrap();
        assert_eq!(answer.headers()["content-type"], "application/grpc");
        let content = answer.into_body().collect().await.unwrap();
        assert_eq!(content.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(content.to_bytes(), message);
    });
}
