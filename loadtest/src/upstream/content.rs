//! Much content: as fast as it is taken, or at a steady rate however fast it could be taken.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::{
    task::yield_now,
    time::{Instant, sleep_until},
};

/// Time between two pieces: short against what people notice, long against a timer's tick.
const STEP: Duration = Duration::from_millis(10);

/// A reader that was slower than the rate by more than this does not get the rest in one burst.
const BURST: Duration = Duration::from_millis(100);

/// So many bytes of a chunk, as fast as they are taken. After each chunk all other connections on this thread have
/// their turn: else downloads would delay small requests here, which would be taken for the doing of a tunnel.
pub(crate) fn repeated(chunk: Bytes, length: u64) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(length, move |left| {
        let chunk = chunk.clone();
        async move {
            if left < length {
                yield_now().await;
            }
            let size = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            (size > 0).then(|| (chunk.slice(..size), left - size as u64))
        }
    })
}

/// Pieces of the chunk at a rate in bytes a second, without end or of this length in all.
pub(crate) fn paced(
    chunk: Bytes,
    rate: f64,
    length: Option<u64>,
) -> impl Stream<Item = Bytes> + Send {
    let now = Instant::now();
    let pace = PacedContent {
        chunk,
        rate: rate.max(1.0),
        left: length,
        paid: now,
        next: now,
    };
    stream::unfold(pace, async |mut pace: PacedContent| {
        let piece = pace.piece().await?;
        Some((piece, pace))
    })
}

struct PacedContent {
    chunk: Bytes,
    rate: f64,
    left: Option<u64>,
    /// Until when all bytes were given that were due.
    paid: Instant,
    next: Instant,
}

impl PacedContent {
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
    use futures_util::{StreamExt as _, poll};

    use super::*;

    #[tokio::test]
    async fn others_have_their_turn_between_chunks() {
        let content = repeated(Bytes::from_static(b"xxxx"), 10);
        let mut content = std::pin::pin!(content);
        for (first, expected) in [(true, 4), (false, 4), (false, 2)] {
            if !first {
                assert!(poll!(content.next()).is_pending());
            }
            assert_eq!(content.next().await.unwrap().len(), expected);
        }
        assert!(content.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_its_rate_and_its_length() {
        let chunk = Bytes::from(vec![b'x'; 1024]);
        let begun = Instant::now();
        let content = paced(chunk, 100_000.0, Some(50_000));
        let content: Vec<_> = content.collect().await;
        assert_eq!(content.concat().len(), 50_000);
        let took = begun.elapsed();
        let expected = Duration::from_millis(500);
        assert!(took >= expected && took < expected * 2, "{took:?}");
    }
}
