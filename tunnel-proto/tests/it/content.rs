//! Requests, responses, bodies and services for tests, and functions that read what arrives.

use std::{future::poll_fn, pin::Pin, task::Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::{sync::mpsc, task::JoinSet};
use tunnel_proto::{
    exchange::{AsProblem, BodyError, ExchangeError, RecvBody, exchange},
    problem::{Hop, Problem, Reason},
    session::{OpenError, Session},
};

/// The body of a message that a test makes.
pub(crate) type TestBody = http_body_util::combinators::BoxBody<Bytes, TestError>;

#[derive(Debug, thiserror::Error)]
#[error("failed by the test")]
pub(crate) struct TestError;

impl AsProblem for TestError {
    fn as_problem(&self) -> Problem {
        Problem::new(
            Hop::Client,
            Reason::ResponseIncomplete,
            "failed by the test",
        )
    }
}

/// A body with all of its content at once. If it is empty, its end is known from the start.
pub(crate) fn full(content: impl Into<Bytes>) -> TestBody {
    Full::new(content.into())
        .map_err(|never| match never {})
        .boxed()
}

/// A body of these frames, whose end is known only after them.
pub(crate) fn frames(frames: Vec<Result<Frame<Bytes>, TestError>>) -> TestBody {
    BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)))
}

/// A body that is fed while it is sent; it ends when the sender is dropped.
pub(crate) type Feed = mpsc::Sender<Result<Frame<Bytes>, TestError>>;

pub(crate) fn fed() -> (Feed, TestBody) {
    let (feed, mut frames) = mpsc::channel(1);
    let stream = futures_util::stream::poll_fn(move |cx| frames.poll_recv(cx));
    (feed, BodyExt::boxed(StreamBody::new(stream)))
}

pub(crate) async fn feed(feed: &Feed, data: impl Into<Bytes>) {
    feed.send(Ok(Frame::data(data.into())))
        .await
        .expect("the body was dropped");
}

/// Bytes that differ from their neighbours.
pub(crate) fn pattern(length: usize) -> Bytes {
    let period: Vec<u8> = (0..251).collect();
    Bytes::from(period.repeat(length / 251 + 1)).slice(..length)
}

pub(crate) fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://a-b.tunnels.test{path}"))
        .body(Empty::new())
        .unwrap()
}

pub(crate) fn request<B>(method: Method, path: &str, body: B) -> Request<B> {
    let uri = format!("http://a-b.tunnels.test{path}");
    Request::builder()
        .method(method)
        .uri(uri)
        .body(body)
        .unwrap()
}

/// What was received of a body: all content, the trailers, and the error if it failed.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) content: BytesMut,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) error: Option<BodyError>,
}

/// Reads a body to its end or error.
pub(crate) async fn read(mut body: RecvBody) -> Arrived {
    let mut arrived = Arrived::default();
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => arrived.content.extend_from_slice(&data),
            Ok(Err(frame)) => arrived.trailers = frame.into_trailers().ok(),
            Err(error) => arrived.error = Some(error),
        }
    }
    arrived
}

/// Reads a body as hyper does: not at all if there can be no content, and no further than a declared
/// length. Then drops it.
pub(crate) async fn read_by_length(response: Response<RecvBody>) -> BytesMut {
    let mut body = response.into_body();
    let mut content = BytesMut::new();
    let declared = body.size_hint().exact();
    while !body.is_end_stream() && declared.is_none_or(|length| length > content.len() as u64) {
        let Some(frame) = body.frame().await else {
            break;
        };
        if let Ok(data) = frame.unwrap().into_data() {
            content.extend_from_slice(&data);
        }
    }
    content
}

/// Whether no piece of a body is available yet.
pub(crate) async fn is_pending(body: &mut RecvBody) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx).is_pending())).await
}

/// The next data of a body.
pub(crate) async fn next_data(body: &mut RecvBody) -> Bytes {
    let frame = body
        .frame()
        .await
        .expect("the body has ended")
        .expect("the body broke");
    frame.into_data().expect("trailers instead of data")
}

pub(crate) async fn empty(_: Request<RecvBody>) -> Result<Response<TestBody>, Problem> {
    Ok(Response::new(full("")))
}

pub(crate) async fn never(_: Request<RecvBody>) -> Result<Response<TestBody>, Problem> {
    std::future::pending().await
}

/// Answers at once, except under `/never`.
pub(crate) async fn never_there(request: Request<RecvBody>) -> Result<Response<TestBody>, Problem> {
    if request.uri().path() == "/never" {
        std::future::pending::<()>().await;
    }
    Ok(Response::new(full("answered")))
}

/// Starts an exchange in a task.
pub(crate) fn start(
    exchanges: &mut JoinSet<Result<Bytes, OpenError>>,
    session: &Session,
    path: &'static str,
) {
    let session = session.clone();
    exchanges.spawn(async move {
        match exchange(&session, get(path), |_, _| {}).await {
            Ok(response) => Ok(read(response.into_body()).await.content.freeze()),
            Err(ExchangeError::NotOpened(error)) => Err(error),
            Err(_) => Ok(Bytes::from_static(b"failed")),
        }
    });
}

/// A frame of a body.
pub(crate) fn data(text: &'static str) -> Result<Frame<Bytes>, TestError> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

/// A small seeded generator, so that failures are reproducible.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}
