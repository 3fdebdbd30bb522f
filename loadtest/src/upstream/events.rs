//! Server-Sent Events that carry the time of their sending.
//!
//! An event is `id: N` and `data: NS PAD`. NS is the time of sending in nanoseconds since the Unix epoch, from which a
//! receiver on this machine computes the delay. N is the number of the event since the Unix epoch at this rate: all
//! subscribers of one rate get an event with one number, at one time, so that a receiver can count the events that it
//! missed, also while it was not subscribed. `?rate=N` is the number of events per second, `&count=N` ends the stream
//! after N events, `&size=N` pads each to about N bytes.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use tokio::time::{Instant, sleep_until};

/// A stream of `rate` events per second that ends after `count` events, if given. Each event has at least `size` bytes.
pub(super) fn events(
    rate: f64,
    count: Option<u64>,
    size: usize,
) -> impl Stream<Item = Bytes> + Send {
    let rate = if rate.is_finite() {
        rate.clamp(1e-5, 1e6)
    } else {
        1.0
    };
    let every = (1e9 / rate) as u64;
    let first = now() / every + 1;
    let pad: Arc<str> = "x".repeat(size).into();
    let most = count.map_or(usize::MAX, |count| {
        usize::try_from(count).unwrap_or(usize::MAX)
    });
    stream::iter(first..).take(most).then(move |number| {
        let pad = pad.clone();
        async move {
            while now() < number * every {
                sleep_until(at(number * every)).await;
            }
            let mut event = format!("id: {number}\ndata: {} ", now());
            let room = pad.len().saturating_sub(event.len() + "\n\n".len());
            event.extend([&pad[..room], "\n\n"]);
            Bytes::from(event)
        }
    })
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// The instant at which the wall clock reaches this time.
fn at(nanoseconds: u64) -> Instant {
    Instant::now() + Duration::from_nanos(nanoseconds.saturating_sub(now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_have_their_time_of_sending() {
        let before = now();
        let content: Vec<_> = events(200.0, Some(3), 100).collect().await;
        let content = String::from_utf8(content.concat()).unwrap();
        let events: Vec<_> = content.split_terminator("\n\n").collect();
        assert_eq!(events.len(), 3);
        let (mut last, mut number) = (before, None);
        for event in events {
            assert_eq!(event.len() + 2, 100);
            let (id, sent) = event.split_once("\ndata: ").unwrap();
            let id: u64 = id.strip_prefix("id: ").unwrap().parse().unwrap();
            assert!(number.is_none_or(|number| id == number + 1), "{event}");
            number = Some(id);
            let sent: u64 = sent.split(' ').next().unwrap().parse().unwrap();
            assert!(sent >= last && sent <= now(), "{event}");
            last = sent;
        }
    }
}
