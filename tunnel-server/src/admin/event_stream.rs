//! The stream of Server-Sent Events, which ends when its reader is too slow, and what all streams of the server say.

use std::sync::Arc;

use axum::response::Response;
use futures_util::{Stream, StreamExt, stream};
use tunnel_ops::admin::{self, Event, REPLACED};

use crate::{
    events::{EventView, Reader, beginning_of},
    lifecycle::Lifecycle,
};

/// These events until the server exits, and [`REPLACED`] among them when a new process takes over.
pub(super) fn of_process(
    events: impl Stream<Item = Event> + Send + 'static,
    lifecycle: Arc<Lifecycle>,
) -> impl Stream<Item = Event> + Send + 'static {
    let state = (events.boxed(), lifecycle, false);
    stream::unfold(state, async |(mut events, lifecycle, is_told)| {
        let event = tokio::select! {
            biased;
            successor = lifecycle.replaced(), if !is_told => {
                let id = beginning_of(successor);
                let replaced = Event::default().event(REPLACED).id(id).data("{}");
                return Some((replaced, (events, lifecycle, true)));
            }
            // The last ones come before the end.
            event = events.next() => event?,
            () = lifecycle.exiting() => return None,
        };
        Some((event, (events, lifecycle, is_told)))
    })
}

/// The response with the events of a reader.
pub(super) fn response(reader: Reader, lifecycle: Arc<Lifecycle>) -> Response {
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
    let events = of_process(batches.flat_map(stream::iter), lifecycle);
    admin::event_stream("events follow", events)
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
        response(reader, Arc::new(Lifecycle::new())).into_body()
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
