//! Ends long streams early and in order.
//!
//! Content that is cut is an error to its reader, and must never look like an end. But some protocols have an end after
//! which the reader connects again: a close frame, the status of a call, the gap between two events. This module finds the
//! positions where such an end is possible, and ends the stream there when the program stops.
//!
//! In: the bytes of content, which pass unchanged.

mod events;
mod long_stream;
mod messages;
mod websocket;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

pub use self::events::Events;
pub use self::long_stream::{Carrier, Direct, GRACE, Hold, LongStream};
pub use self::messages::Messages;
pub use self::websocket::Frames;

/// The gRPC status UNAVAILABLE, after which a client tries again.
const UNAVAILABLE: HeaderValue = HeaderValue::from_static("14");
const GOING_AWAY: HeaderValue = HeaderValue::from_static("the tunnel is going away");

/// A parser that finds where the units of a stream end, such as frames or events.
pub trait Units {
    /// Consumes at least one byte, never past the current unit. Returns the count.
    fn step(&mut self, bytes: &[u8]) -> usize;

    /// Whether the position is between two units.
    fn is_between(&self) -> bool;

    /// Consumes all bytes.
    fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = self.step(bytes);
            bytes = &bytes[taken..];
        }
    }

    /// Consumes bytes up to the end of a unit. Returns how many, or `None` if no unit ends in them.
    fn advance_to_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut taken = 0;
        while taken < bytes.len() {
            taken += self.step(&bytes[taken..]);
            if self.is_between() {
                return Some(taken);
            }
        }
        None
    }
}

/// Format of a long stream, with its parser.
#[derive(Debug)]
pub enum StreamFormat {
    /// `text/event-stream`.
    Events(Events),
    /// Messages of gRPC.
    Messages(Messages),
    /// Frames of WebSocket, with the close frame that ends them.
    WebSocket(Frames, &'static [u8]),
}

/// The last part of content that ends early in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EarlyEnd {
    /// These bytes.
    Content(Bytes),
    /// These trailers.
    Trailers(HeaderMap),
}

impl StreamFormat {
    /// The format of a response's content; `None` if the content cannot end early in order. An event stream can only if its
    /// reader reconnects, see [`reconnects`].
    #[must_use]
    pub fn of_response(headers: &HeaderMap, is_http2: bool, reconnects: bool) -> Option<Self> {
        let kind = headers.get(header::CONTENT_TYPE)?.as_bytes();
        let format = if reconnects
            && is_event_stream(kind)
            && !headers.contains_key(header::CONTENT_ENCODING)
        {
            Self::Events(Events::default())
        } else if is_http2 && is_grpc(headers) {
            Self::Messages(Messages::default())
        } else {
            return None;
        };
        // Content with a declared length cannot end earlier.
        (!headers.contains_key(header::CONTENT_LENGTH)).then_some(format)
    }

    /// The direction to the platform client of an upgraded connection.
    #[must_use]
    pub fn download() -> Self {
        Self::WebSocket(Frames::default(), websocket::GOING_AWAY)
    }

    /// The direction from the platform client.
    #[must_use]
    pub fn upload() -> Self {
        Self::WebSocket(Frames::default(), websocket::GOING_AWAY_MASKED)
    }

    /// The parser.
    pub fn units(&mut self) -> &mut dyn Units {
        match self {
            Self::Events(events) => events,
            Self::Messages(messages) => messages,
            Self::WebSocket(frames, _) => frames,
        }
    }

    /// The last part if the content ends here; `None` for events, which can end between any two.
    #[must_use]
    pub fn early_end(&self) -> Option<EarlyEnd> {
        match self {
            Self::Events(_) => None,
            Self::Messages(_) => {
                let mut trailers = HeaderMap::with_capacity(2);
                trailers.insert("grpc-status", UNAVAILABLE);
                trailers.insert("grpc-message", GOING_AWAY);
                Some(EarlyEnd::Trailers(trailers))
            }
            Self::WebSocket(frames, close) => {
                (!frames.is_closed()).then(|| EarlyEnd::Content(Bytes::from_static(close)))
            }
        }
    }
}

const EVENT_STREAM: &[u8] = b"text/event-stream";

/// Whether a media type, without spaces before it, is that of event streams.
fn is_event_stream(kind: &[u8]) -> bool {
    let Some((name, rest)) = kind.split_at_checked(EVENT_STREAM.len()) else {
        return false;
    };
    name.eq_ignore_ascii_case(EVENT_STREAM) && matches!(rest, [] | [b';' | b' ', ..])
}

/// The last event that a reader of an event stream has seen (HTML, section 9.2).
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Whether the sender of this request sends it again when an event stream in answer to it ends. An
/// `EventSource` does: it sends GET with `Accept: text/event-stream` and, from the second time on, mostly
/// `Last-Event-ID` (HTML, section 9.2). Any other reader takes an end for the end of the whole content.
#[must_use]
pub fn reconnects(method: &Method, headers: &HeaderMap) -> bool {
    let accepts = |value: &HeaderValue| {
        let mut kinds = value.as_bytes().split(|byte| *byte == b',');
        kinds.any(|kind| is_event_stream(kind.trim_ascii()))
    };
    *method == Method::GET
        && (headers.get_all(header::ACCEPT).iter().any(accepts)
            || headers.contains_key(LAST_EVENT_ID))
}

/// Whether a message is gRPC, which has a status of its own.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else {
        return false;
    };
    let rest = kind.as_bytes().strip_prefix(b"application/grpc");
    // Not `application/grpc-web`, whose format differs.
    matches!(rest, Some([] | [b'+' | b';' | b' ', ..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn format(lines: &[(&'static str, &'static str)], is_http2: bool) -> &'static str {
        name(StreamFormat::of_response(&fields(lines), is_http2, true))
    }

    fn name(format: Option<StreamFormat>) -> &'static str {
        match format {
            Some(StreamFormat::Events(_)) => "events",
            Some(StreamFormat::Messages(_)) => "messages",
            Some(StreamFormat::WebSocket(..)) => "websocket",
            None => "none",
        }
    }

    #[test]
    fn only_what_can_end_in_order_is_followed() {
        for (kind, http1, http2) in [
            ("text/event-stream", "events", "events"),
            ("Text/Event-Stream; charset=utf-8", "events", "events"),
            ("text/event-stream2", "none", "none"),
            ("text/event", "none", "none"),
            ("application/grpc", "none", "messages"),
            ("application/grpc+proto", "none", "messages"),
            ("application/grpc-web+proto", "none", "none"),
            ("application/json", "none", "none"),
        ] {
            assert_eq!(format(&[("content-type", kind)], false), http1, "{kind}");
            assert_eq!(format(&[("content-type", kind)], true), http2, "{kind}");
        }
        let events = ("content-type", "text/event-stream");
        assert_eq!(
            format(&[events, ("content-encoding", "gzip")], true),
            "none"
        );
        assert_eq!(format(&[events, ("content-length", "10")], true), "none");
        assert_eq!(format(&[], true), "none");
    }

    #[test]
    fn events_end_in_order_only_where_the_reader_reconnects() {
        let events = fields(&[("content-type", "text/event-stream")]);
        assert_eq!(
            name(StreamFormat::of_response(&events, true, false)),
            "none"
        );
        let calls = fields(&[("content-type", "application/grpc")]);
        assert_eq!(
            name(StreamFormat::of_response(&calls, true, false)),
            "messages"
        );
        let accept = |value| fields(&[("accept", value)]);
        for (headers, is_it) in [
            (accept("text/event-stream"), true),
            (accept("application/json, Text/Event-Stream;q=0.9"), true),
            (
                fields(&[("accept", "a/b"), ("accept", "text/event-stream")]),
                true,
            ),
            (fields(&[("last-event-id", "7")]), true),
            (accept("*/*"), false),
            (accept("text/event-streams"), false),
            (accept("x-text/event-stream"), false),
            (fields(&[]), false),
        ] {
            assert_eq!(reconnects(&Method::GET, &headers), is_it, "{headers:?}");
            assert!(!reconnects(&Method::POST, &headers), "{headers:?}");
        }
    }
}
