//! The stream of Server-Sent Events, which ends only when its reader is too slow.

use axum::response::Response;
use futures_util::{StreamExt, stream};
use tunnel_ops::admin::{self, Event};

use crate::events::{EventView, Reader};

/// The response with the events of a reader.
pub(super) fn response(reader: Reader) -> Response {
    let batches = stream::unfold(Some(reader), async |reader| {
        let mut reader = reader?;
        Some(match reader.next().await {
            Ok(events) => (events.iter().map(event).collect(), Some(reader)),
            Err(error) => {
                let last = Event::default().comment(format!("{error}: connect again"));
                (vec![last], None)
            }
        })
    });
    admin::event_stream("events follow", batches.flat_map(stream::iter))
}

fn event(view: &EventView) -> Event {
    // Serialising plain values cannot fail.
    let data = serde_json::to_string(view).unwrap_or_default();
    let event = match &view.id {
        Some(id) => Event::default().id(id),
        None => Event::default(),
    };
    event.event(view.kind.name()).data(data)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http_body_util::BodyExt;
    use tokio::time::Instant;

    use super::*;
    use crate::events::{self, EventKind, Events, RING};

    fn body(reader: Reader) -> Body {
        response(reader).into_body()
    }

    async fn piece(body: &mut Body) -> String {
        let frame = body.frame().await.unwrap().unwrap();
        String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_sent_as_they_occur_and_silence_is_bounded() {
        let events = Events::new("run");
        let mut body = body(events.read());
        let beginning = ": events follow\nretry: 1000\n\n";
        assert_eq!(piece(&mut body).await, beginning);
        events.report(events::Event::new(EventKind::Draining).detail("two\nlines"));
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
        assert_eq!(start.elapsed(), admin::HEARTBEAT);
    }

    #[tokio::test]
    async fn a_slow_reader_gets_a_comment_and_is_dropped() {
        let events = Events::new("run");
        let mut body = body(events.read());
        piece(&mut body).await;
        for _ in 0..=RING {
            events.report(events::Event::new(EventKind::Reloaded));
        }
        let text = piece(&mut body).await;
        assert!(text.starts_with(": read too slowly"), "{text}");
        assert!(body.frame().await.is_none());
    }
}
