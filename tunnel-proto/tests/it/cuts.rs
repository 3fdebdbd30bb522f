//! Exchanges that are cancelled, fail or stall half-way: which end notices, how soon, and at what cost.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};
use tunnel_proto::{
    exchange::{BodyError, ExchangeError, RecvBody, exchange},
    limits,
    problem::{Hop, Problem, Reason},
};

use crate::{
    content::{TestError, data, fed, feed, frames, full, get, next_data, pattern, read, request},
    pair::{Pair, settle, within},
};

/// Cancellations have to take effect within this time.
const A_SECOND: Duration = Duration::from_secs(1);

/// A pair whose handlers never answer. Each reports its start, and the receiver resolves when it is
/// dropped.
async fn hanging() -> (
    Pair,
    mpsc::Receiver<(Option<RecvBody>, oneshot::Receiver<()>)>,
) {
    let (started, handlers) = mpsc::channel(10);
    let pair = Pair::start(move |request: Request<RecvBody>| {
        let (held, dropped) = oneshot::channel::<()>();
        let (parts, body) = request.into_parts();
        // Under `/held` the handler keeps the body without reading it.
        let (kept, given) = if parts.uri.path() == "/held" {
            (Some(body), None)
        } else {
            (None, Some(body))
        };
        let started = started.clone();
        async move {
            started.send((given, dropped)).await.unwrap();
            pending::<()>().await;
            drop((held, kept));
            Ok(Response::new(full("")))
        }
    })
    .await;
    (pair, handlers)
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_is_cancelled_at_the_client() {
    let (pair, mut handlers) = hanging().await;
    let (upload, endless) = fed();
    feed(&upload, "some").await;
    let bodies = [
        // Complete; with an unread body; with a body that is being read.
        ("/", full("")),
        ("/held", endless),
        ("/read", frames(vec![data("some")])),
    ];
    for (path, body) in bodies {
        let server = pair.server.clone();
        let mut exchanges = JoinSet::new();
        let request = request(Method::POST, path, body);
        exchanges.spawn(async move { exchange(&server, request, |_, _| {}).await.map(drop) });
        let (_body, dropped) = within(handlers.recv()).await.unwrap();
        settle().await;
        let start = Instant::now();
        exchanges.shutdown().await;
        assert!(within(dropped).await.is_err(), "the handler is dropped");
        assert!(start.elapsed() < A_SECOND, "{path}: {:?}", start.elapsed());
        within(pair.client.at_rest()).await;
        within(pair.server.at_rest()).await;
    }
    assert!(upload.is_closed(), "the request's body is dropped too");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_response_is_dropped_at_the_client() {
    let (give, mut bodies) = mpsc::channel(10);
    let pair = Pair::start(move |_: Request<RecvBody>| {
        let (feed, body) = fed();
        give.try_send(feed).unwrap();
        async { Ok(Response::new(body)) }
    })
    .await;
    // While nothing is sent, and while more is sent than is read.
    for is_flood in [false, true] {
        let response = within(exchange(&pair.server, get("/"), |_, _| {}))
            .await
            .unwrap();
        let body = bodies.recv().await.unwrap();
        if is_flood {
            let flood =
                async { while body.send(Ok(Frame::data(pattern(10_000)))).await.is_ok() {} };
            assert!(
                tokio::time::timeout(A_SECOND, flood).await.is_err(),
                "it is not slowed down"
            );
        }
        settle().await;
        let start = Instant::now();
        drop(response);
        within(body.closed()).await;
        assert!(start.elapsed() < A_SECOND, "{:?}", start.elapsed());
        within(pair.client.at_rest()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_body_fails_is_cut_at_the_client() {
    let (pair, mut handlers) = hanging().await;
    let (upload, body) = fed();
    let server = pair.server.clone();
    let mut exchanges = JoinSet::new();
    let request = request(Method::POST, "/", body);
    exchanges.spawn(async move { exchange(&server, request, |_, _| {}).await.map(drop) });
    let (body, dropped) = within(handlers.recv()).await.unwrap();
    let mut body = body.unwrap();
    feed(&upload, "half").await;
    assert_eq!(within(next_data(&mut body)).await, "half");
    let start = Instant::now();
    upload.send(Err(TestError)).await.unwrap();
    let arrived = within(read(body)).await;
    assert!(
        matches!(arrived.error, Some(BodyError::Cut(None))),
        "{:?}",
        arrived.error
    );
    assert!(within(dropped).await.is_err(), "the handler is dropped");
    assert!(start.elapsed() < A_SECOND, "{:?}", start.elapsed());
    let end = within(exchanges.join_next()).await.unwrap().unwrap();
    assert!(
        matches!(end, Err(ExchangeError::RequestBody(TestError))),
        "{end:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_body_fails_after_the_response_began_is_cut_at_both_ends() {
    let pair = Pair::start(async |request: Request<RecvBody>| {
        let body = request.into_body().map_err(|_| TestError).boxed();
        Ok(Response::new(body))
    })
    .await;
    let (upload, body) = fed();
    let request = request(Method::POST, "/", body);
    let response = within(exchange(&pair.server, request, |_, _| {}))
        .await
        .unwrap();
    let mut echo = response.into_body();
    feed(&upload, "half").await;
    assert_eq!(within(next_data(&mut echo)).await, "half");
    upload.send(Err(TestError)).await.unwrap();
    let arrived = within(read(echo)).await;
    assert!(
        arrived.error.is_some() && arrived.content.is_empty(),
        "{arrived:?}"
    );
    within(pair.client.at_rest()).await;
    within(pair.server.at_rest()).await;
}

#[tokio::test(start_paused = true)]
async fn an_early_response_is_complete_without_the_whole_upload() {
    let pair = Pair::start(async |_: Request<RecvBody>| {
        Ok(Response::builder()
            .status(413)
            .body(full("too much"))
            .unwrap())
    })
    .await;
    for number in 1..=3 {
        let (upload, body) = fed();
        let request = request(Method::POST, "/", body);
        let response = within(exchange(&pair.server, request, |_, _| {}))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(within(read(response.into_body())).await.content, "too much");
        within(upload.closed()).await;
        within(pair.server.at_rest()).await;
        within(pair.client.at_rest()).await;
        assert_eq!(
            pair.streams.all(),
            number,
            "a stream with half a request is not used again"
        );
    }
    settle().await;
    assert_eq!(pair.streams.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_sent_and_not_read_leaves_its_stream_to_the_next_one() {
    let pair = Pair::start(
        async |request: Request<RecvBody>| match request.uri().path() {
            "/fails" => Err(Problem::new(Hop::Client, Reason::ConnectionRefused, "no")),
            _ => Ok(Response::new(full("not read"))),
        },
    )
    .await;
    for path in ["/fails", "/", "/fails", "/"] {
        let request = request(Method::POST, path, full(pattern(20_000)));
        match within(exchange(&pair.server, request, |_, _| {})).await {
            Ok(response) => {
                let arrived = within(read(response.into_body())).await;
                assert_eq!(arrived.content, "not read");
            }
            Err(error) => assert!(path == "/fails", "{error:?}"),
        }
        within(pair.server.at_rest()).await;
        within(pair.client.at_rest()).await;
    }
    assert_eq!((pair.streams.all(), pair.streams.open()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_early_response_is_complete_while_the_upload_is_blocked() {
    // More than window and connection take, so that the reset arrives while the sender is writing.
    let pair =
        Pair::start(async |_: Request<RecvBody>| Ok(Response::new(full(pattern(100_000))))).await;
    for _ in 0..3 {
        let request = request(Method::POST, "/", full(pattern(2_000_000)));
        let response = within(exchange(&pair.server, request, |_, _| {}))
            .await
            .unwrap();
        let arrived = within(read(response.into_body())).await;
        assert!(arrived.error.is_none(), "{:?}", arrived.error);
        assert!(arrived.content == pattern(100_000));
    }
    within(pair.server.at_rest()).await;
}

#[tokio::test(start_paused = true)]
async fn an_upload_continues_while_the_response_is_unread() {
    let (done, mut uploads) = mpsc::channel(1);
    let pair = Pair::start(move |request: Request<RecvBody>| {
        let done = done.clone();
        async move {
            let (feeding, body) = fed();
            let mut reading = JoinSet::new();
            reading.spawn(async move {
                let arrived = read(request.into_body()).await;
                done.send(arrived.content.len()).await.unwrap();
                feed(&feeding, "read").await;
            });
            reading.detach_all();
            Ok(Response::new(body))
        }
    })
    .await;
    let request = request(Method::POST, "/", full(pattern(2_000_000)));
    let response = within(exchange(&pair.server, request, |_, _| {}))
        .await
        .unwrap();
    assert_eq!(within(uploads.recv()).await, Some(2_000_000));
    assert_eq!(within(read(response.into_body())).await.content, "read");
    within(pair.server.at_rest()).await;
    within(pair.client.at_rest()).await;
    assert_eq!(pair.streams.open(), 1, "it was whole");
}

/// A pair whose handler sends without end, and the number of bytes taken from it.
async fn flooding() -> (Pair, Arc<AtomicUsize>) {
    let produced = Arc::new(AtomicUsize::new(0));
    let counted = produced.clone();
    let pair = Pair::start(move |request: Request<RecvBody>| {
        let produced = counted.clone();
        async move {
            if request.uri().path() != "/flood" {
                return Ok(Response::new(full("small")));
            }
            let piece = pattern(10_000);
            let flood = futures_util::stream::poll_fn(move |_| {
                produced.fetch_add(piece.len(), Ordering::Relaxed);
                Poll::Ready(Some(Ok(Frame::data(piece.clone()))))
            });
            Ok(Response::new(BodyExt::boxed(StreamBody::new(flood))))
        }
    })
    .await;
    (pair, produced)
}

/// Bytes that one stream, both pipes, the connection and a message in flight may hold.
const IN_FLIGHT: usize = limits::STREAM_WINDOW_BYTES + 4 * limits::OUTPUT_BYTES;

#[tokio::test(start_paused = true)]
async fn an_unread_response_is_slowed_down_and_blocks_no_other() {
    let (pair, produced) = flooding().await;
    let mut unread = Vec::new();
    for number in 1..=20 {
        unread.push(
            within(exchange(&pair.server, get("/flood"), |_, _| {}))
                .await
                .unwrap(),
        );
        settle().await;
        let produced = produced.load(Ordering::Relaxed);
        assert!(
            produced <= number * IN_FLIGHT,
            "{produced} bytes for {number} streams"
        );
        let response = within(exchange(&pair.server, get("/"), |_, _| {}))
            .await
            .unwrap();
        assert_eq!(within(read(response.into_body())).await.content, "small");
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = produced.load(Ordering::Relaxed);
    assert!(
        before <= 20 * limits::STREAM_WINDOW_BYTES + IN_FLIGHT,
        "{before} bytes"
    );
    // It continues as soon as the body is read.
    let mut body = unread.pop().unwrap().into_body();
    for _ in 0..1_000 {
        within(next_data(&mut body)).await;
    }
    assert!(produced.load(Ordering::Relaxed) > before + 5_000_000);
    assert!(!pair.server.is_closed());
}

#[tokio::test(start_paused = true)]
async fn an_unread_request_is_slowed_down() {
    let (pair, mut handlers) = hanging().await;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let piece = pattern(10_000);
    let flood = futures_util::stream::poll_fn(move |_| {
        counted.fetch_add(piece.len(), Ordering::Relaxed);
        Poll::Ready(Some(Ok::<_, TestError>(Frame::data(piece.clone()))))
    });
    let request = request(Method::POST, "/", StreamBody::new(flood));
    let server = pair.server.clone();
    let mut exchanges = JoinSet::new();
    exchanges.spawn(async move { exchange(&server, request, |_, _| {}).await.map(drop) });
    let (body, _dropped) = within(handlers.recv()).await.unwrap();
    settle().await;
    let before = sent.load(Ordering::Relaxed);
    assert!(before <= IN_FLIGHT, "{before} bytes");
    let mut body = body.unwrap();
    for _ in 0..200 {
        within(next_data(&mut body)).await;
    }
    settle().await;
    assert!(
        sent.load(Ordering::Relaxed) > before + 1_000_000,
        "it goes on"
    );
}
