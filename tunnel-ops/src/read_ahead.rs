//! A connection that is read in large pieces while it is busy.
//!
//! In: reads of any size, such as those of a TLS library, which asks for one record at a time. Out: their bytes, of which
//! several such reads are answered by one system call. A connection holds a buffer only while it is busy, unlike one in
//! `tokio::io::BufReader`, which would cost each idle session 64 KiB.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

/// Bytes read at once from a busy connection: four TLS records.
const READ_BYTES: usize = 64 * 1024;
/// Bytes of one read below which the connection is no longer busy.
const BUSY_BYTES: usize = READ_BYTES / 4;
/// Bytes copied at once, since longer copies are slow on some processors (`tunnel-proto/src/session/websocket/outgoing.rs`).
const COPY_BYTES: usize = 2 * 1024;

/// Reads ahead while reads are filled. Writes are passed through.
#[derive(Debug)]
pub struct ReadAhead<IO> {
    io: IO,
    /// Bytes that were read ahead.
    bytes: BytesMut,
    is_busy: bool,
}

impl<IO> ReadAhead<IO> {
    /// A connection of which nothing was read ahead.
    pub fn new(io: IO) -> Self {
        Self {
            io,
            bytes: BytesMut::new(),
            is_busy: false,
        }
    }

    fn copy_out(&mut self, buffer: &mut ReadBuf<'_>) {
        let taken = self.bytes.len().min(buffer.remaining());
        for piece in self.bytes[..taken].chunks(COPY_BYTES) {
            buffer.put_slice(piece);
        }
        self.bytes.advance(taken);
        if self.bytes.is_empty() && !self.is_busy {
            self.bytes = BytesMut::new();
        }
    }
}

impl<IO: AsyncRead + Unpin> ReadAhead<IO> {
    /// Reads into the caller's buffer, and notes whether it was filled.
    fn poll_read_directly(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.remaining();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.is_busy = before > 0 && buffer.remaining() == 0;
        Poll::Ready(Ok(()))
    }

    fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bytes.reserve(READ_BYTES);
        // The future has no state between polls.
        let read = pin!(self.io.read_buf(&mut self.bytes)).poll(cx);
        self.is_busy = matches!(&read, Poll::Ready(Ok(read)) if *read >= BUSY_BYTES);
        if read.is_pending() {
            self.bytes = BytesMut::new();
        }
        read.map_ok(drop)
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for ReadAhead<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() {
            if !self.is_busy {
                return self.poll_read_directly(cx, buffer);
            }
            ready!(self.poll_read_ahead(cx))?;
        }
        self.copy_out(buffer);
        Poll::Ready(Ok(()))
    }
}

crate::write_through!(ReadAhead);

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn everything_comes_in_order_whatever_the_sizes_of_reads() {
        let sent: Vec<u8> = (0..400_000_u32).map(|at| (at / 7) as u8).collect();
        for size in [1_000, 5_000, 17_000, 100_000] {
            let (ours, mut theirs) = duplex(150_000);
            let mut ours = ReadAhead::new(ours);
            let sending = async {
                theirs.write_all(&sent).await.unwrap();
                drop(theirs);
            };
            let reading = async {
                let (mut read, mut space) = (Vec::new(), vec![0; size]);
                loop {
                    match ours.read(&mut space).await.unwrap() {
                        0 => return read,
                        count => read.extend_from_slice(&space[..count]),
                    }
                }
            };
            let (read, ()) = tokio::join!(reading, sending);
            assert!(read == sent, "reads of {size}");
        }
    }

    #[tokio::test]
    async fn a_busy_connection_is_read_ahead_and_one_at_rest_holds_no_buffer() {
        let (ours, mut theirs) = duplex(1 << 20);
        let mut ours = ReadAhead::new(ours);
        theirs.write_all(&[7; 200_000]).await.unwrap();
        let mut space = [0; 4_000];
        ours.read_exact(&mut space).await.unwrap();
        assert_eq!(ours.bytes.len(), 0, "not known to be busy yet");
        ours.read_exact(&mut space).await.unwrap();
        assert_eq!(ours.bytes.len(), READ_BYTES - space.len());
        ours.read_exact(&mut [0; 192_000]).await.unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let mut buffer = ReadBuf::new(&mut space);
        while Pin::new(&mut ours)
            .poll_read(&mut cx, &mut buffer)
            .is_ready()
        {
            buffer.clear();
        }
        assert_eq!(ours.bytes.capacity(), 0);
    }
}
