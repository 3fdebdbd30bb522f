//! A response of Server-Sent Events that has no end of its own.

use std::{convert::Infallible, time::Duration};

use axum::{
    Extension,
    body::Body,
    response::{
        IntoResponse,
        sse::{KeepAlive, Sse},
    },
};
use futures_util::{Stream, StreamExt, stream};
use http::Response;

pub use axum::response::sse::Event;

use super::Streaming;

/// Longest silence on a stream: half of what common proxies allow, so that no end considers an idle stream dead.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// The name of the event by which a process says that a new one has taken the listener over: the reader opens the stream
/// there, after this event's id, and goes on to read this one, which says what ends in the old process.
pub const REPLACED: &str = "replaced";

/// The reconnection time that clients are given.
const RETRY: Duration = Duration::from_secs(1);

/// The response with these events, and a comment for each silence. `opening` is a comment that is sent at once, so that
/// the client sees that the stream is open. It takes one of the listener's permits for streams.
pub fn event_stream(
    opening: &str,
    events: impl Stream<Item = Event> + Send + 'static,
) -> Response<Body> {
    let opening = Event::default().comment(opening).retry(RETRY);
    let events = stream::iter([opening])
        .chain(events)
        .map(Ok::<_, Infallible>);
    let keep_alive = KeepAlive::new().interval(HEARTBEAT).text("still here");
    (
        Extension(Streaming),
        Sse::new(events).keep_alive(keep_alive),
    )
        .into_response()
}
