//! Responses of [`super::Upstream`] whose content takes time. Each detects at once that the peer is gone.

use std::{
    future::pending,
    io,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use tokio::{
    sync::mpsc::{Sender, channel},
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;

use super::{Body, Event, Shared, number, target};
use crate::payload::Payload;

type Frames = Sender<Result<Frame<Bytes>, io::Error>>;

/// A payload of the length that the query asks for.
pub(super) fn download(
    request: &Request<Incoming>,
    query: &str,
    shared: &Shared,
) -> Response<Body> {
    let bytes = number(query, "bytes").unwrap_or(0);
    let body = stream(target(request), shared, async move |frames| {
        for piece in Payload::new(bytes) {
            if frames.send(Ok(Frame::data(piece))).await.is_err() {
                pending().await
            }
        }
    });
    let mut response = Response::new(body);
    if !query.contains("chunked") {
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    response
}

/// Server-Sent Events: their number and the time at which each was sent, in microseconds.
pub(super) fn events(request: &Request<Incoming>, query: &str, shared: &Shared) -> Response<Body> {
    let every = Duration::from_millis(number(query, "every_ms").unwrap_or(100));
    let count = number(query, "count").unwrap_or(u64::MAX);
    let body = stream(target(request), shared, async move |frames| {
        for index in 0..count {
            if index > 0 {
                sleep(every).await;
            }
            let event = format!("id: {index}\ndata: {}\n\n", microseconds());
            if frames.send(Ok(Frame::data(event.into()))).await.is_err() {
                pending().await
            }
        }
    });
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A response whose connection breaks after half of the announced content.
pub(super) fn truncated(request: &Request<Incoming>, shared: &Shared) -> Response<Body> {
    let body = stream(target(request), shared, async |frames| {
        drop(
            frames
                .send(Ok(Frame::data(Bytes::from_static(b"half of it"))))
                .await,
        );
        // Without this pause the error would come before the half is written.
        sleep(Duration::from_millis(50)).await;
        drop(
            frames
                .send(Err(io::Error::other("the upstream breaks off here")))
                .await,
        );
    });
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, HeaderValue::from_static("20"));
    response
}

/// Never responds; records a hang-up when the request is dropped.
pub(super) async fn hold(request: &Request<Incoming>, shared: &Shared) -> Response<Body> {
    let _given_up = GivenUp {
        target: target(request),
        shared,
    };
    pending().await
}

/// The wall clock in microseconds, which all processes of the machine share.
pub(crate) fn microseconds() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros()
}

struct GivenUp<'a> {
    target: String,
    shared: &'a Shared,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.shared.record.push(Event::HungUp(self.target.clone()));
    }
}

/// A content that `produce` writes. If the content is dropped before `produce` has ended, `produce` is stopped and a
/// hang-up recorded.
fn stream<P, F>(target: String, shared: &Shared, produce: P) -> Body
where
    P: FnOnce(Frames) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let (frames, content) = channel(1);
    let watched = frames.clone();
    let producing = produce(frames);
    let record = shared.record.clone();
    shared.tasks.lock().spawn(async move {
        tokio::select! {
            () = producing => {}
            () = watched.closed() => record.push(Event::HungUp(target)),
        }
    });
    StreamBody::new(ReceiverStream::new(content)).boxed_unsync()
}
