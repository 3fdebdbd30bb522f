//! Events as they are sent: a body of Server-Sent Events that ends only when its reader is too slow.

use std::{convert::Infallible, fmt::Write, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http_body::{Body, Frame};
use http_body_util::StreamBody;
use tokio::time::timeout;

use crate::events::{EventView, Reader};

/// Longest silence: half of what common proxies allow, so that neither end takes a quiet stream for
/// a dead one.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Sent first, so that who asked knows that he is heard, and comes again a second after the end.
const BEGINNING: &str = ": events follow\nretry: 1000\n\n";

/// What is sent next.
enum State {
    Beginning(Reader),
    Events(Reader),
    Over,
}

/// The events of a reader as a body.
pub(super) fn body(reader: Reader) -> impl Body<Data = Bytes, Error = Infallible> + Send + 'static {
    StreamBody::new(stream::unfold(State::Beginning(reader), |state| async {
        let (text, state) = match state {
            State::Beginning(reader) => (BEGINNING.into(), State::Events(reader)),
            State::Events(reader) => next(reader).await,
            State::Over => return None,
        };
        Some((Ok(Frame::data(text)), state))
    }))
}

async fn next(mut reader: Reader) -> (Bytes, State) {
    match timeout(HEARTBEAT, reader.next()).await {
        Ok(Ok(events)) => (text(&events).into(), State::Events(reader)),
        Ok(Err(error)) => (format!(": {error}: come again\n\n").into(), State::Over),
        Err(_) => (": still here\n\n".into(), State::Events(reader)),
    }
}

fn text(events: &[EventView]) -> String {
    let mut text = String::new();
    for event in events {
        // Neither serialising plain values nor writing into memory has a way to fail; JSON has no
        // line break in it.
        let data = serde_json::to_string(event).unwrap_or_default();
        if let Some(id) = &event.id {
            let _ = writeln!(text, "id: {id}");
        }
        let _ = write!(text, "event: {}\ndata: {data}\n\n", event.kind.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use http_body_util::BodyExt;
    use tokio::time::Instant;

    use super::*;
    use crate::events::{Event, EventKind, Events, RING};

    async fn piece(body: &mut (impl Body<Data = Bytes, Error = Infallible> + Unpin)) -> String {
        let frame = body.frame().await.unwrap().unwrap();
        String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_sent_as_they_come_and_silence_is_broken() {
        let events = Events::new("run");
        let mut body = pin!(body(events.read()));
        assert_eq!(piece(&mut body).await, BEGINNING);
        events.tell(Event::new(EventKind::Draining).detail("two\nlines"));
        let text = piece(&mut body).await;
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("id: run-1"));
        assert_eq!(lines.next(), Some("event: draining"));
        let data = lines.next().unwrap().strip_prefix("data: ").unwrap();
        let event: EventView = serde_json::from_str(data).unwrap();
        assert_eq!(event.detail.as_deref(), Some("two\nlines"));
        assert_eq!((lines.next(), lines.next()), (Some(""), None));
        let start = Instant::now();
        assert_eq!(piece(&mut body).await, ": still here\n\n");
        assert_eq!(start.elapsed(), HEARTBEAT);
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_and_dropped() {
        let events = Events::new("run");
        let mut body = pin!(body(events.read()));
        piece(&mut body).await;
        for _ in 0..=RING {
            events.tell(Event::new(EventKind::Reloaded));
        }
        let text = piece(&mut body).await;
        assert!(text.starts_with(": read too slowly"), "{text}");
        assert!(body.frame().await.is_none());
    }
}
