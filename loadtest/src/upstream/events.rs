//! Server-Sent Events that carry the time of their sending.
//!
//! An event is `id: N` and `data: NS PAD`. NS are nanoseconds since the Unix epoch, so that a receiver
//! on the same machine knows its delay; N rises by one from event to event and is the same for all
//! subscribers of a rate, so that a receiver knows what it missed, even while it was not subscribed. `?rate=N` events come each second, `&count=N` in all, `&size=N` pads
//! each to about so many bytes. All subscribers of one rate get theirs at the same time, as
//! subscribers of one source do.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

/// One subscriber's events.
#[derive(Debug)]
pub(super) struct Events {
    every: u64,
    left: Option<u64>,
    size: usize,
    pad: String,
    next: u64,
    timer: Pin<Box<Sleep>>,
}

impl Events {
    /// Begins with the next event that is due for all.
    pub(super) fn new(rate: f64, count: Option<u64>, size: usize) -> Self {
        // From one event a day to a million a second.
        let rate = if rate.is_finite() {
            rate.clamp(1e-5, 1e6)
        } else {
            1.0
        };
        let every = (1e9 / rate) as u64;
        let next = (now() / every + 1) * every;
        Self {
            every,
            left: count,
            size,
            pad: "x".repeat(size),
            next,
            timer: Box::pin(sleep_until(at(next))),
        }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.left == Some(0) {
            return Poll::Ready(None);
        }
        while now() < this.next {
            this.timer.as_mut().reset(at(this.next));
            ready!(this.timer.as_mut().poll(context));
        }
        this.left = this.left.map(|left| left - 1);
        let mut event = format!("id: {}\ndata: {} ", this.next / this.every, now());
        this.next += this.every;
        let room = this.size.saturating_sub(event.len() + "\n\n".len());
        event.extend([&this.pad[..room], "\n\n"]);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(event)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }
}

/// Nanoseconds since the epoch.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// When the clock will say so.
fn at(nanoseconds: u64) -> Instant {
    Instant::now() + Duration::from_nanos(nanoseconds.saturating_sub(now()))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn tell_when_they_were_sent() {
        let before = now();
        let content = Events::new(200.0, Some(3), 100).collect().await.unwrap();
        let content = String::from_utf8(content.to_bytes().to_vec()).unwrap();
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
