//! Exchanges through a pair of sessions: what goes in comes out, and what breaks is seen as broken.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::time::timeout;
use tunnel_proto::{
    exchange::{AsProblem, BodyError, ExchangeError, RecvBody, exchange},
    problem::{Hop, Problem, Reason},
};

use crate::pair::Pair;

/// The body of a response that a test makes.
type TestBody = http_body_util::combinators::BoxBody<Bytes, TestError>;

#[derive(Debug)]
struct TestError;

impl AsProblem for TestError {
    fn as_problem(&self) -> Problem {
        Problem::new(Hop::Client, Reason::ResponseIncomplete, "the test broke it")
    }
}

fn full(content: impl Into<Bytes>) -> TestBody {
    Full::new(content.into()).map_err(|never| match never {}).boxed()
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://a-b.tunnels.test{path}")).body(Empty::new()).unwrap()
}

#[tokio::test]
async fn a_request_is_answered_and_its_stream_carries_the_next() {
    let pair = Pair::start(async |request: Request<RecvBody>| {
        let path = request.uri().path_and_query().unwrap().to_string();
        Ok(Response::builder().header("x-path", path.as_str()).body(full("hello")).unwrap())
    })
    .await;
    for number in 0..100 {
        let path = format!("/a//b/%2e%2e/;x?y=%zz&n={number}");
        let response = exchange(&pair.server, get(&path), |_, _| {}).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["x-path"], path.as_str());
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "hello");
    }
    assert_eq!(pair.server.outstanding(), 0);
}

#[tokio::test]
async fn large_bodies_go_both_ways_at_once() {
    let pair = Pair::start(async |request: Request<RecvBody>| {
        let body = request.into_body().map_err(|_| TestError).boxed();
        Ok(Response::new(body))
    })
    .await;
    let content: Bytes = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect::<Vec<_>>().into();
    let request = Request::builder()
        .method(Method::POST)
        .uri("http://a-b.tunnels.test/echo")
        .body(Full::new(content.clone()))
        .unwrap();
    let response = exchange(&pair.server, request, |_, _| {}).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body == content, "{} of {} bytes", body.len(), content.len());
}

#[tokio::test]
async fn a_problem_of_the_client_arrives_with_its_reason() {
    let pair = Pair::start(async |_: Request<RecvBody>| {
        Err::<Response<TestBody>, _>(Problem::new(
            Hop::Client,
            Reason::ConnectionRefused,
            "127.0.0.1:1 refused the connection",
        ))
    })
    .await;
    let error = exchange(&pair.server, get("/"), |_, _| {}).await.unwrap_err();
    let ExchangeError::Failed { problem, accepted: true } = error else { panic!("{error}") };
    assert_eq!(problem.reason(), Reason::ConnectionRefused);
    assert_eq!(problem.detail(), "127.0.0.1:1 refused the connection");
}

#[tokio::test]
async fn a_response_that_breaks_is_never_a_clean_end() {
    let pair = Pair::start(async |_: Request<RecvBody>| {
        let frames = futures_util::stream::iter([
            Ok(http_body::Frame::data(Bytes::from_static(b"half"))),
            Err(TestError),
        ]);
        Ok(Response::new(BodyExt::boxed(StreamBody::new(frames))))
    })
    .await;
    let response = exchange(&pair.server, get("/"), |_, _| {}).await.unwrap();
    let error = response.into_body().collect().await.unwrap_err();
    let BodyError::Aborted(problem) = error else { panic!("{error}") };
    assert_eq!(problem.reason(), Reason::ResponseIncomplete);
}

#[tokio::test]
async fn a_request_given_up_is_cancelled_at_the_client() {
    let (started, mut handlers) = tokio::sync::mpsc::channel(1);
    let pair = Pair::start(move |_: Request<RecvBody>| {
        let (held, dropped) = tokio::sync::oneshot::channel::<()>();
        let told = started.try_send(dropped);
        async move {
            told.unwrap();
            std::future::pending::<()>().await;
            drop(held);
            Ok(Response::new(full("")))
        }
    })
    .await;
    let server = pair.server.clone();
    let mut waiting = Box::pin(exchange(&server, get("/"), |_, _| {}));
    let dropped = tokio::select! {
        dropped = handlers.recv() => dropped.unwrap(),
        _ = &mut waiting => panic!("nobody answers"),
    };
    drop(waiting);
    let dropped = timeout(Duration::from_secs(5), dropped).await;
    assert!(dropped.unwrap().is_err(), "the handler is dropped");
    pair.client.at_rest().await;
}
