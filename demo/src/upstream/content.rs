//! Contents that are made or read piece by piece: events, downloads, digests.
//!
//! Nothing here holds more than one piece of a content, and everything stops when the reader is gone.

use std::{
    io,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use sha2::{Digest, Sha256};
use tokio::time::{MissedTickBehavior, interval};

use super::Body;

/// Time between two events.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// Length of a download's pieces: large enough that their number does not count.
pub(super) const PIECE: usize = 64 * 1024;

/// An event at once and each second, until the reader is gone.
pub(super) fn events() -> Response<Body> {
    let mut ticks = interval(EVENT_INTERVAL);
    // A reader that stalls gets no burst of events later: each is about the time it was made.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let frames = stream::unfold((ticks, 1_u64), |(mut ticks, count)| async move {
        ticks.tick().await;
        let event = format!(
            "id: {count}\nevent: tick\ndata: {{\"count\":{count},\"unix_ms\":{}}}\n\n",
            unix_ms()
        );
        Some((Ok(Frame::data(Bytes::from(event))), (ticks, count + 1)))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// So many bytes, all of them dots, with their length declared.
pub(super) fn download(bytes: u64) -> Response<Body> {
    let piece = Bytes::from(vec![b'.'; PIECE]);
    let frames = stream::iter((0..bytes).step_by(PIECE).map(move |start| {
        let length = usize::try_from(bytes - start).map_or(PIECE, |rest| rest.min(PIECE));
        Ok::<_, io::Error>(Frame::data(piece.slice(..length)))
    }));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    let kind = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    response
}

/// Length and SHA-256 of a content of any size.
pub(super) async fn digest(mut body: Incoming) -> Result<(u64, String), hyper::Error> {
    let (mut bytes, mut digest) = (0, Sha256::new());
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame?.data_ref() {
            bytes += data.len() as u64;
            digest.update(data);
        }
    }
    let sha256 = digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok((bytes, sha256))
}

fn unix_ms() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_millis())
}
