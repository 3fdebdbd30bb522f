//! A connection with bytes that were already read from it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, ReadBuf};

/// Reads first the bytes that were already read. Writes are passed through.
#[derive(Debug)]
pub struct Prefixed<IO> {
    front: Bytes,
    io: IO,
}

impl<IO> Prefixed<IO> {
    /// `io`, from which `front` was read already.
    pub fn new(front: Bytes, io: IO) -> Self {
        Self { front, io }
    }

    /// The connection without the bytes in front.
    pub fn get_ref(&self) -> &IO {
        &self.io
    }

    /// The connection without the bytes in front.
    pub fn get_mut(&mut self) -> &mut IO {
        &mut self.io
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Prefixed<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.front.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let length = self.front.len().min(buffer.remaining());
        buffer.put_slice(&self.front[..length]);
        self.front.advance(length);
        Poll::Ready(Ok(()))
    }
}

tunnel_ops::write_through!(Prefixed);
