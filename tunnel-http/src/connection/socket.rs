//! The socket of an HTTP/2 connection, observed for what it takes of the answers, and gives of the requests.
//!
//! h2 says nothing when a head or a trailer section has left it. But it ends each poll of the connection by flushing,
//! once no frame is left that is not waiting for a window; and heads wait for none. So after a poll whose last operation
//! was a complete flush, all heads have left that h2 had before it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::expansion::HeadCredit;
use crate::http2::unsent::Unsent;

/// A socket that counts written bytes in `unsent`, and read bytes in `credit`.
#[derive(Debug)]
pub(super) struct ObservedSocket<IO> {
    pub(super) io: IO,
    pub(super) unsent: Arc<Unsent>,
    pub(super) credit: Arc<HeadCredit>,
}

impl<IO: AsyncRead + Unpin> AsyncRead for ObservedSocket<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        self.credit.on_received(buffer.filled().len() - before);
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for ObservedSocket<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.unsent.on_write(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.unsent.on_flush(flushed.is_ready());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.unsent.on_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
