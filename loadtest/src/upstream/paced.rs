//! Content that comes at a steady rate, however fast it could be taken.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http_body::{Body, Frame};
use http_body_util::StreamBody;
use tokio::time::{Instant, sleep_until};

/// Time between two pieces: short against what people notice, long against a timer's tick.
const STEP: Duration = Duration::from_millis(10);

/// A reader that was slower than the rate by more than this does not get the rest in one burst.
const BURST: Duration = Duration::from_millis(100);

/// Pieces of the chunk at a rate in bytes a second, without end or of this length in all.
pub(super) fn paced(
    chunk: Bytes,
    rate: f64,
    length: Option<u64>,
) -> impl Body<Data = Bytes, Error = Infallible> + Send {
    let now = Instant::now();
    let pace = Pace {
        chunk,
        rate: rate.max(1.0),
        left: length,
        paid: now,
        next: now,
    };
    StreamBody::new(stream::unfold(pace, async |mut pace: Pace| {
        let piece = pace.piece().await?;
        Some((Ok(Frame::data(piece)), pace))
    }))
}

struct Pace {
    chunk: Bytes,
    rate: f64,
    left: Option<u64>,
    /// Until when all bytes were given that were due.
    paid: Instant,
    next: Instant,
}

impl Pace {
    async fn piece(&mut self) -> Option<Bytes> {
        if self.left == Some(0) {
            return None;
        }
        loop {
            sleep_until(self.next).await;
            let now = Instant::now();
            let length = self.take_due(now);
            if length < self.chunk.len() {
                self.next = now + STEP;
            }
            if length > 0 {
                return Some(self.chunk.slice(..length));
            }
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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keeps_its_rate_and_its_length() {
        let chunk = Bytes::from(vec![b'x'; 1024]);
        let begun = Instant::now();
        let content = paced(chunk, 100_000.0, Some(50_000));
        let content = content.collect().await.unwrap().to_bytes();
        assert_eq!(content.len(), 50_000);
        let took = begun.elapsed();
        let expected = Duration::from_millis(500);
        assert!(took >= expected && took < expected * 2, "{took:?}");
    }
}
