//! Bodies of a fake client's responses, and functions that read those of its requests.

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::sync::mpsc;
use tunnel_proto::{
    exchange::{AsProblem, BodyError, RecvBody},
    problem::{Hop, Problem, Reason},
};

/// Why a scripted body fails.
#[derive(Debug)]
pub struct Failure(pub Problem);

impl AsProblem for Failure {
    fn as_problem(&self) -> Problem {
        self.0.clone()
    }
}

/// The body of a response.
pub type AnyBody = UnsyncBoxBody<Bytes, Failure>;

/// Feeds a body piece by piece; dropped, the body ends whole.
pub type Feed = mpsc::Sender<Result<Frame<Bytes>, Failure>>;

/// A body of one piece.
pub fn full(content: impl Into<Bytes>) -> AnyBody {
    Full::new(content.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// No body.
pub fn empty() -> AnyBody {
    full(Bytes::new())
}

/// A body that is fed while it is sent.
pub fn fed() -> (Feed, AnyBody) {
    let (feed, mut frames) = mpsc::channel(16);
    let frames = stream::poll_fn(move |context| frames.poll_recv(context));
    (feed, StreamBody::new(frames).boxed_unsync())
}

/// A frame of content.
pub fn data(content: impl Into<Bytes>) -> Result<Frame<Bytes>, Failure> {
    Ok(Frame::data(content.into()))
}

/// A response with nothing but a status and a body.
pub fn status(status: u16, body: AnyBody) -> Response<AnyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// A failure of the client, without further meaning.
pub fn internal() -> Problem {
    Problem::new(Hop::Client, Reason::InternalError, "a handler failed")
}

/// Reads a body to its end: its content, and its trailers or why it ended early.
pub async fn collect(mut body: RecvBody) -> (Vec<u8>, Result<HeaderMap, BodyError>) {
    let mut content = Vec::new();
    let mut trailers = HeaderMap::new();
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => content.extend_from_slice(&data),
            Ok(Err(frame)) => trailers = frame.into_trailers().unwrap_or_default(),
            Err(error) => return (content, Err(error)),
        }
    }
    (content, Ok(trailers))
}

/// How an exchange ended for its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEnd {
    /// The request's body was read to its end.
    Whole,
    /// It failed, or the exchange was cancelled.
    Cut,
}

/// Makes an [`Ending`] for each exchange of a handler.
pub struct Endings(mpsc::Sender<BodyEnd>);

/// Held by a handler for as long as its exchange lives; reports how that ended.
pub struct Ending {
    reports: mpsc::Sender<BodyEnd>,
    end: BodyEnd,
}

/// What reports how exchanges end, and its reports.
pub fn endings() -> (Endings, mpsc::Receiver<BodyEnd>) {
    let (reports, ends) = mpsc::channel(1024);
    (Endings(reports), ends)
}

impl Endings {
    /// For the next exchange.
    pub fn next(&self) -> Ending {
        Ending {
            reports: self.0.clone(),
            end: BodyEnd::Cut,
        }
    }
}

impl Ending {
    /// The request's body was read.
    pub fn on_read<T>(&mut self, result: &Result<T, BodyError>) {
        if result.is_ok() {
            self.end = BodyEnd::Whole;
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.reports.try_send(self.end);
    }
}
