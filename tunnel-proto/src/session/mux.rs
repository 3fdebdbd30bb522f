//! The multiplexer. The only file that names the yamux crate.
//!
//! Wraps its connection and its streams so that nothing of its interface shows: streams of whole
//! chunks of bytes, that end cleanly or are cut. Its traps are handled here: it ends the session
//! when its own stream limit is passed, it wakes only one of those who wait to open a stream, and
//! it learns of a first write only when somebody polls it.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_util::{AsyncWrite, Stream, task::noop_waker_ref};

use super::{
    Side,
    pipe::{self, DriverEnd, MuxEnd},
};
use crate::limits;

/// Why the multiplexer ended.
#[derive(Debug, thiserror::Error)]
pub enum MuxError {
    /// The other end broke the multiplexer's protocol, or passed a limit of it.
    #[error("multiplexer protocol broken: {0}")]
    Protocol(String),
    /// It has ended in order.
    #[error("the multiplexer has ended")]
    Ended,
}

/// All streams of one session.
pub(super) struct Mux {
    connection: yamux::Connection<MuxEnd>,
    pipe: DriverEnd,
    /// Exchanges that wait until the other end has accepted enough of the new streams.
    waiting: Vec<Waker>,
}

impl Mux {
    pub(super) fn new(side: Side) -> Self {
        let mut config = yamux::Config::default();
        config
            .set_max_connection_receive_window(Some(
                limits::STREAMS * limits::STREAM_WINDOW_BYTES + limits::WINDOW_GROWTH_BYTES,
            ))
            .set_max_num_streams(limits::STREAMS);
        // Who opens the streams is yamux's client.
        let mode = match side {
            Side::Server => yamux::Mode::Client,
            Side::Client => yamux::Mode::Server,
        };
        let (mux_end, pipe) = pipe::pipe();
        let connection = yamux::Connection::new(mux_end, config, mode);
        Self { connection, pipe, waiting: Vec::new() }
    }

    /// The driver's end of the pipe.
    pub(super) fn pipe(&self) -> &DriverEnd {
        &self.pipe
    }

    /// Opens a stream. Pending while 256 new ones wait to be accepted by the other end.
    pub(super) fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<MuxStream, MuxError>> {
        // The crate would keep one waker only; the driver wakes all of ours instead.
        let mut ignore = Context::from_waker(noop_waker_ref());
        match self.connection.poll_new_outbound(&mut ignore) {
            Poll::Ready(Ok(stream)) => Poll::Ready(Ok(MuxStream(stream))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            Poll::Pending => {
                if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    self.waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Moves frames between the pipe and the streams; ready with a stream of the other end.
    pub(super) fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<MuxStream, MuxError>> {
        let accepted = match self.connection.poll_next_inbound(cx) {
            Poll::Ready(Some(Ok(stream))) => Poll::Ready(Ok(MuxStream(stream))),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Err(error.into())),
            Poll::Ready(None) => Poll::Ready(Err(MuxError::Ended)),
            Poll::Pending if self.pipe.is_refused() => {
                Poll::Ready(Err(MuxError::Protocol("a frame that is not allowed".into())))
            }
            Poll::Pending => Poll::Pending,
        };
        for waker in self.waiting.drain(..) {
            waker.wake();
        }
        accepted
    }
}

/// Whoever waits to open a stream learns that there will be none.
impl Drop for Mux {
    fn drop(&mut self) {
        for waker in self.waiting.drain(..) {
            waker.wake();
        }
    }
}

impl From<yamux::ConnectionError> for MuxError {
    fn from(error: yamux::ConnectionError) -> Self {
        match error {
            yamux::ConnectionError::Closed => Self::Ended,
            other => Self::Protocol(other.to_string()),
        }
    }
}

/// The stream can take no more bytes: it was reset, or its session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut;

/// One stream. Dropped, it is reset unless it was finished.
pub(crate) struct MuxStream(yamux::Stream);

impl MuxStream {
    /// The next bytes as one chunk; `None` when no more can come, for whatever cause.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match Pin::new(&mut self.0).poll_next(cx) {
                Poll::Ready(Some(Ok(packet))) if packet.as_ref().is_empty() => {}
                Poll::Ready(Some(Ok(packet))) => {
                    return Poll::Ready(Some(Bytes::from_owner(packet)));
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Takes some of the bytes; pending while the other end's window is full.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, Cut>> {
        Pin::new(&mut self.0).poll_write(cx, bytes).map_err(|_| Cut)
    }

    /// Whether the stream is over in both directions.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Ends the stream in order, so that dropping it is no reset. Only for a stream at rest.
    pub(crate) fn finish(mut self) {
        // At rest its queue is empty, so that this cannot be pending.
        let mut cx = Context::from_waker(noop_waker_ref());
        let _ = Pin::new(&mut self.0).poll_close(&mut cx);
    }
}
