//! The multiplexer. The only file that names the yamux crate.
//!
//! Wraps its connection and its streams so that nothing of its interface shows: streams of whole
//! chunks of bytes, that end cleanly or are cut. Its traps are handled here: it ends the session
//! when its own stream limit is passed, it wakes only one of those who wait to open a stream and
//! none when a stream is given up, and it learns of a first write only when somebody polls it.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{AsyncWrite, Stream, task::noop_waker_ref};
use tokio::sync::oneshot;

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
    waiting: VecDeque<oneshot::Sender<MuxStream>>,
}

/// A stream that was asked for.
pub(super) enum Opening {
    /// Here it is.
    Open(MuxStream),
    /// It comes when others were accepted or given up; never, if the session ends before.
    Waiting(oneshot::Receiver<MuxStream>),
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
        Self {
            connection,
            pipe,
            waiting: VecDeque::new(),
        }
    }

    /// The driver's end of the pipe.
    pub(super) fn pipe(&self) -> &DriverEnd {
        &self.pipe
    }

    /// Opens a stream, in turn: 256 new ones at most wait to be accepted by the other end.
    pub(super) fn open(&mut self) -> Result<Opening, MuxError> {
        if self.waiting.is_empty()
            && let Some(stream) = self.try_open()?
        {
            return Ok(Opening::Open(stream));
        }
        if self.waiting.len() >= limits::EXCHANGES_MAX {
            // No more than that are open, so that the others were given up.
            self.waiting.retain(|waiting| !waiting.is_closed());
        }
        let (hand_over, opening) = oneshot::channel();
        self.waiting.push_back(hand_over);
        Ok(Opening::Waiting(opening))
    }

    /// A new stream; `None` while too many wait to be accepted.
    fn try_open(&mut self) -> Result<Option<MuxStream>, MuxError> {
        let mut ignore = Context::from_waker(noop_waker_ref());
        match self.connection.poll_new_outbound(&mut ignore) {
            Poll::Ready(Ok(stream)) => Ok(Some(MuxStream(stream))),
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Pending => Ok(None),
        }
    }

    /// Hands new streams to those that wait; whether there was any.
    fn open_waiting(&mut self) -> Result<bool, MuxError> {
        let mut any = false;
        while let Some(first) = self.waiting.front() {
            if !first.is_closed() {
                let Some(stream) = self.try_open()? else {
                    break;
                };
                any = true;
                if let Some(first) = self.waiting.pop_front() {
                    // Given up in this very moment, it is dropped.
                    let _ = first.send(stream);
                }
            } else {
                self.waiting.pop_front();
            }
        }
        Ok(any)
    }

    /// Moves frames between the pipe and the streams; ready with a stream of the other end.
    pub(super) fn poll_accept(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<MuxStream, MuxError>> {
        loop {
            match self.connection.poll_next_inbound(cx) {
                Poll::Ready(Some(Ok(stream))) => return Poll::Ready(Ok(MuxStream(stream))),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),
                Poll::Ready(None) => return Poll::Ready(Err(MuxError::Ended)),
                Poll::Pending if self.pipe.is_refused() => {
                    let what = "a frame that is not allowed".into();
                    return Poll::Ready(Err(MuxError::Protocol(what)));
                }
                Poll::Pending => {}
            }
            // What the new streams write is noticed only after another poll.
            if !self.open_waiting()? {
                return Poll::Pending;
            }
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

    /// Whether the stream is open and nothing has come on it that was not read.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let mut cx = Context::from_waker(noop_waker_ref());
        self.poll_read(&mut cx).is_pending()
    }

    /// Ends the stream in order, so that dropping it is no reset. Only for a stream at rest.
    pub(crate) fn finish(mut self) {
        // At rest its queue is empty, so that this cannot be pending.
        let mut cx = Context::from_waker(noop_waker_ref());
        let _ = Pin::new(&mut self.0).poll_close(&mut cx);
    }
}
