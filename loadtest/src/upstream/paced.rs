//! Content that comes at a steady rate, however fast it could be taken.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

/// Time between two pieces: short against what people notice, long against a timer's tick.
const STEP: Duration = Duration::from_millis(10);

/// Whoever was slower than the rate by more than this does not get it back in one burst.
const BURST: Duration = Duration::from_millis(100);

/// So many bytes a second, for ever or up to a length.
#[derive(Debug)]
pub(super) struct Paced {
    chunk: Bytes,
    rate: f64,
    left: Option<u64>,
    paid: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Paced {
    /// Begins now; `length` ends it.
    pub(super) fn new(chunk: Bytes, rate: f64, length: Option<u64>) -> Self {
        let now = Instant::now();
        Self {
            chunk,
            // So slow that it is as good as none, and still a number to divide by.
            rate: if rate >= 1.0 { rate } else { 1.0 },
            left: length,
            paid: now,
            timer: Box::pin(sleep_until(now)),
        }
    }

    /// How many bytes are due now; takes them as sent.
    fn take_due(&mut self, now: Instant) -> usize {
        self.paid = self.paid.max(now.checked_sub(BURST).unwrap_or(now));
        let due = (now - self.paid).as_secs_f64() * self.rate;
        let most = self.left.map_or(self.chunk.len() as u64, |left| {
            left.min(self.chunk.len() as u64)
        });
        let length = (due as u64).min(most);
        self.paid += Duration::from_secs_f64(length as f64 / self.rate);
        self.left = self.left.map(|left| left - length);
        usize::try_from(length).unwrap_or(0)
    }
}

impl Body for Paced {
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
        loop {
            ready!(this.timer.as_mut().poll(context));
            let now = Instant::now();
            let length = this.take_due(now);
            if length == this.chunk.len() {
                // More is due at once.
                return Poll::Ready(Some(Ok(Frame::data(this.chunk.clone()))));
            }
            this.timer.as_mut().reset(now + STEP);
            if length > 0 {
                return Poll::Ready(Some(Ok(Frame::data(this.chunk.slice(..length)))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keeps_its_rate_and_its_length() {
        let chunk = Bytes::from(vec![b'x'; 1024]);
        let begun = Instant::now();
        let content = Paced::new(chunk, 100_000.0, Some(50_000));
        let content = content.collect().await.unwrap().to_bytes();
        assert_eq!(content.len(), 50_000);
        let took = begun.elapsed();
        let expected = Duration::from_millis(500);
        assert!(took >= expected && took < expected * 2, "{took:?}");
    }
}
