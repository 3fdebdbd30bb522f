//! A stream of HTTP/2 that has become an upgraded connection (RFC 8441): its bytes as those of a socket.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::SendStream;
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::StreamContent;
use super::reply::poll_window;
use super::unsent::{AnswerBytes, PIECE_BYTES, Piece, Unsent};

/// Resolves when the request for an upgrade was granted, which its answer does; fails when it was not.
pub type OnUpgrade = oneshot::Receiver<UpgradedStream>;

/// The bytes of an upgraded stream in both directions. Dropped before its shutdown, it resets the stream.
pub struct UpgradedStream {
    content: StreamContent,
    /// Received bytes that were not read.
    received: Bytes,
    stream: SendStream<Piece>,
    sent: Arc<AnswerBytes>,
    has_ended: bool,
}

impl UpgradedStream {
    /// The stream behind the head of an answer that grants an upgrade. `content` is that of the request.
    pub(super) fn new(
        content: StreamContent,
        stream: SendStream<Piece>,
        connection: &Arc<Unsent>,
    ) -> Self {
        Self {
            content,
            received: Bytes::new(),
            stream,
            sent: AnswerBytes::new(connection),
            has_ended: false,
        }
    }
}

impl fmt::Debug for UpgradedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpgradedStream").finish_non_exhaustive()
    }
}

impl AsyncRead for UpgradedStream {
    /// Ends with the peer's `END_STREAM`; a reset is an error.
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.received.is_empty() {
            match ready!(Pin::new(&mut this.content).poll_frame(cx)) {
                // Trailers say nothing here.
                Some(Ok(frame)) => this.received = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let length = this.received.len().min(buffer.remaining());
        buffer.put_slice(&this.received[..length]);
        this.received.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UpgradedStream {
    /// Takes a piece when the window has room for one byte, and h2 for the piece.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        if piece.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if this.stream.poll_reset(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        ready!(this.sent.poll_room(cx, piece.len()));
        if !ready!(poll_window(&mut this.stream, cx)) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let data = Piece::new(Bytes::copy_from_slice(piece), &this.sent);
        this.stream
            .send_data(data, false)
            .map_err(io::Error::other)?;
        Poll::Ready(Ok(piece.len()))
    }

    /// The connection flushes by itself.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Ends the stream, once the connection has room for what is left of it, or nothing is left while the peer still sends.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.has_ended {
            return Poll::Ready(Ok(()));
        }
        if this.stream.poll_reset(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let is_whole = this.content.is_end_stream();
        ready!(this.sent.poll_end(cx, 0, is_whole));
        this.has_ended = true;
        let ended = this.stream.send_data(Piece::empty(), true);
        Poll::Ready(ended.map_err(io::Error::other))
    }
}
