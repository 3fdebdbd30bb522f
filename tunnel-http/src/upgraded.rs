//! What both programs need to move the bytes of an upgraded connection: its reading half, lent to
//! whatever sends it on; a writing half whose peer is to take something of what there is, where the kernel
//! does not see to that; and whether anything moves.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

/// The reading half of a connection, given back when what reads it is dropped: which also tells that
/// the direction has ended.
pub struct Lent<IO> {
    reader: Option<ReadHalf<IO>>,
    give_back: Option<oneshot::Sender<ReadHalf<IO>>>,
}

impl<IO> Lent<IO> {
    /// Lends it, and says when it is given back.
    pub fn new(reader: ReadHalf<IO>) -> (Self, oneshot::Receiver<ReadHalf<IO>>) {
        let (give_back, given_back) = oneshot::channel();
        let lent = Self {
            reader: Some(reader),
            give_back: Some(give_back),
        };
        (lent, given_back)
    }
}

impl<IO> fmt::Debug for Lent<IO> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").finish_non_exhaustive()
    }
}

impl<IO: AsyncRead> AsyncRead for Lent<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.reader {
            Some(reader) => Pin::new(reader).poll_read(cx, buffer),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl<IO> Drop for Lent<IO> {
    fn drop(&mut self) {
        if let (Some(reader), Some(give_back)) = (self.reader.take(), self.give_back.take()) {
            let _ = give_back.send(reader);
        }
    }
}

/// The writing half of a connection. A peer that takes less than a piece of what there is for it, for too
/// long, is given up; one that was given nothing may be silent for ever.
pub struct Taken<W> {
    writer: W,
    /// For each piece; `None` where the kernel sees how much is taken.
    limit: Option<Duration>,
}

/// How much is written at once where that has a limit: of an HTTP/2 stream it is not seen that a part of it
/// was taken.
const PIECE_BYTES: usize = 16 * 1024;

/// Nothing of what there is was taken for too long.
#[derive(Debug, thiserror::Error)]
#[error("the peer took nothing for too long")]
struct NotTaken;

/// Whether an error of [`Taken`] says that its peer was given up.
#[must_use]
pub fn is_not_taken(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<NotTaken>())
}

impl<W: AsyncWrite + Unpin> Taken<W> {
    /// Gives up who takes less than 16 KiB in `limit`. Without one that is left to the kernel, which knows
    /// of each byte: a socket does not say that it takes more before a good part of its buffer is free,
    /// which a peer that reads slowly and steadily needs minutes for.
    pub fn new(writer: W, limit: Option<Duration>) -> Self {
        Self { writer, limit }
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// When the connection fails, or with one that [`is_not_taken`].
    pub async fn send(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let length = match self.limit {
                Some(_) => data.len().min(PIECE_BYTES),
                None => data.len(),
            };
            let written = in_time(self.limit, self.writer.write(&data[..length])).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            data = &data[written..];
        }
        in_time(self.limit, self.writer.flush()).await
    }

    /// Ends this direction in order.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn end(&mut self) -> io::Result<()> {
        in_time(self.limit, self.writer.shutdown()).await
    }
}

impl<W> fmt::Debug for Taken<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken").finish_non_exhaustive()
    }
}

async fn in_time<T>(
    limit: Option<Duration>,
    step: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let Some(limit) = limit else {
        return step.await;
    };
    match timeout(limit, step).await {
        Ok(done) => done,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, NotTaken)),
    }
}

/// How many pieces have moved, in either direction. Clones count the same.
#[derive(Debug, Clone, Default)]
pub struct Moved(Arc<AtomicUsize>);

impl Moved {
    /// One more has.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Resolves after a time of this length in which nothing has moved.
    pub async fn silence(&self, time: Duration) {
        loop {
            let before = self.0.load(Ordering::Relaxed);
            sleep(time).await;
            if self.0.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, split};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_reader_is_given_back_with_what_was_not_read() {
        let (mut peer, io) = tokio::io::duplex(64);
        let (reader, _writer) = split(io);
        let (mut lent, given_back) = Lent::new(reader);
        peer.write_all(b"onetwo").await.unwrap();
        let mut bytes = [0; 3];
        lent.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"one");
        drop(lent);
        let mut reader = given_back.await.unwrap();
        reader.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"two");
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_given_up_and_who_takes_a_little_is_not() {
        const LIMIT: Duration = Duration::from_secs(60);
        let (mut peer, io) = tokio::io::duplex(16);
        let mut taken = Taken::new(io, Some(LIMIT));
        let reading = async {
            let mut byte = [0];
            for _ in 0..84 {
                sleep(LIMIT / 2).await;
                peer.read_exact(&mut byte).await.unwrap();
            }
        };
        let (sent, ()) = tokio::join!(taken.send(&[7; 100]), reading);
        sent.unwrap();
        // 16 bytes have found room that nobody takes.
        sleep(LIMIT * 5).await;
        let begun = Instant::now();
        let error = taken.send(b"more").await.unwrap_err();
        assert!(is_not_taken(&error), "{error}");
        assert_eq!(begun.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_a_writer_that_is_full_for_long_is_waited_for() {
        let (mut peer, io) = tokio::io::duplex(16);
        let mut taken = Taken::new(io, None);
        let reading = async {
            sleep(Duration::from_secs(3600)).await;
            peer.read_exact(&mut [0; 100]).await.unwrap();
        };
        let (sent, _) = tokio::join!(taken.send(&[7; 100]), reading);
        sent.unwrap();
        // What fails otherwise is not the peer's slowness.
        drop(peer);
        let error = taken.send(b"more").await.unwrap_err();
        assert!(!is_not_taken(&error), "{error}");
    }
}
