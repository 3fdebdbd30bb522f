//! WebSocket messages in and out (RFC 6455). Uses tungstenite for the headers of frames.
//!
//! ```text
//!   socket ─▶ incoming ─▶ Received            send_… ─▶ outgoing ─▶ socket
//! ```
//!
//! In: the messages of an established connection. Out: batches of bytes, control texts, pings and a close
//! frame. What the bytes mean is not known here. Binary messages are one stream of bytes: the received part
//! of a message is passed on before the rest has arrived, and nothing is gathered. An idle connection holds
//! no buffer.

mod incoming;
mod mask;
mod outgoing;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::{
    self,
    protocol::frame::coding::{Control, Data, OpCode},
};
use tokio_util::io::poll_read_buf;

use self::{incoming::Incoming, outgoing::Outgoing};
use super::Side;
use crate::{close::CloseReason, limits};

/// Bytes read from the socket at once: the initial and the largest size. The size grows while reads fill
/// it; one read never yields more than a TLS record, which is 16 KiB.
pub(super) const READ_BYTES: (usize, usize) = (4 * 1024, 16 * 1024);

/// One received item.
#[derive(Debug)]
pub(super) enum Received {
    /// Bytes of the multiplexer.
    Data(Bytes),
    /// An empty frame of binary messages, or a part of a control message: nothing to pass on, but work that counts.
    Part,
    /// A control message.
    Control(String),
    /// A ping with its payload; the pong is queued, a flush sends it.
    Ping(Bytes),
    /// A pong with its payload.
    Pong(Bytes),
    /// The other end closes, with this code if it sent one.
    Close(Option<CloseReason>),
}

/// Why the connection failed.
#[derive(Debug, thiserror::Error)]
pub enum WebSocketError {
    /// The socket failed, or ended without a close frame.
    #[error("the connection failed: {}", why(.0))]
    Io(#[source] io::Error),
    /// The other end broke RFC 6455, or exceeded a limit.
    #[error("websocket protocol broken: {0}")]
    Protocol(&'static str),
}

/// In place of the TLS library's words for an end without a close, which lead to its own documentation.
fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            "it ended without a close: the other end was killed, or something on the way cut it"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

impl From<tungstenite::Error> for WebSocketError {
    fn from(_: tungstenite::Error) -> Self {
        // Reading and writing headers yields no other errors.
        Self::Protocol("an invalid frame header")
    }
}

/// Whether the socket is full, and which call that has blocked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocked {
    No,
    Writing,
    Flushing,
}

/// An established WebSocket connection over any byte stream.
pub(super) struct WebSocket<IO> {
    io: IO,
    incoming: Incoming,
    outgoing: Outgoing,
    /// The answer to the last ping, not queued yet. Only the last one counts (RFC 6455 section 5.5.3).
    pong: Option<Bytes>,
    /// Whether something was queued since the last complete flush.
    is_unflushed: bool,
    blocked: Blocked,
    /// Whether a full socket has taken more bytes since the flag was last read.
    has_resumed: bool,
    /// Bytes read in all.
    read: u64,
    read_bytes: usize,
    is_closed_here: bool,
    is_closed_there: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> WebSocket<IO> {
    /// Takes over a connection after its handshake; `leftover` holds bytes that were read past its end.
    pub(super) fn new(io: IO, leftover: Bytes, side: Side) -> Self {
        Self {
            io,
            read: leftover.len() as u64,
            incoming: Incoming::new(side, BytesMut::from(leftover)),
            outgoing: Outgoing::new(side == Side::Client),
            pong: None,
            is_unflushed: false,
            blocked: Blocked::No,
            has_resumed: false,
            read_bytes: READ_BYTES.0,
            is_closed_here: false,
            is_closed_there: false,
        }
    }

    /// The next received item; `None` when the connection has ended in order.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Received, WebSocketError>>> {
        if self.is_closed_there {
            return Poll::Ready(None);
        }
        loop {
            match self.incoming.next() {
                Ok(Some(received)) => return Poll::Ready(Some(self.on_received(received))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) => {
                    self.is_closed_there = true;
                    let error = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Some(Err(WebSocketError::Io(error))));
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(WebSocketError::Io(error)))),
            }
        }
    }

    /// Reads from the socket once; the number of bytes.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let buffer = &mut self.incoming.buffer;
        buffer.reserve(self.read_bytes);
        let mut space = buffer.limit(self.read_bytes);
        let read = poll_read_buf(Pin::new(&mut self.io), cx, &mut space);
        if let Poll::Ready(Ok(read)) = &read {
            self.read += *read as u64;
        }
        match read {
            Poll::Ready(Ok(read)) if read == self.read_bytes => {
                self.read_bytes = (2 * self.read_bytes).min(READ_BYTES.1);
            }
            Poll::Pending if self.incoming.buffer.is_empty() => {
                self.incoming.buffer = BytesMut::new();
            }
            _ => {}
        }
        read
    }

    fn on_received(&mut self, received: Received) -> Result<Received, WebSocketError> {
        match &received {
            Received::Ping(payload) if !self.is_closed_here => self.pong = Some(payload.clone()),
            Received::Close(reason) => {
                self.is_closed_there = true;
                if !self.is_closed_here {
                    // The answer echoes the code (RFC 6455 section 5.5.1).
                    self.close(
                        reason.map_or_else(Bytes::new, |reason| close_payload(reason).freeze()),
                    )?;
                }
            }
            _ => {}
        }
        Ok(received)
    }

    /// Queues bytes of the multiplexer. To be called only after a complete flush, so that the queue stays
    /// bounded.
    pub(super) fn send_data(&mut self, bytes: Bytes) -> Result<(), WebSocketError> {
        self.send(OpCode::Data(Data::Binary), bytes)
    }

    /// Queues a control message.
    pub(super) fn send_control(&mut self, text: String) -> Result<(), WebSocketError> {
        self.send(OpCode::Data(Data::Text), text.into())
    }

    /// Queues a ping.
    pub(super) fn send_ping(&mut self, payload: Bytes) -> Result<(), WebSocketError> {
        self.send(OpCode::Control(Control::Ping), payload)
    }

    /// Queues the close frame. Whatever is sent later is discarded.
    pub(super) fn send_close(&mut self, reason: CloseReason) -> Result<(), WebSocketError> {
        let mut payload = close_payload(reason);
        payload.extend_from_slice(reason.name().as_bytes());
        self.close(payload.freeze())
    }

    fn close(&mut self, payload: Bytes) -> Result<(), WebSocketError> {
        let closed = self.send(OpCode::Control(Control::Close), payload);
        self.is_closed_here = true;
        closed
    }

    fn send(&mut self, opcode: OpCode, payload: Bytes) -> Result<(), WebSocketError> {
        if self.is_closed_here {
            return Ok(());
        }
        self.is_unflushed = true;
        self.outgoing.push(opcode, payload)
    }

    /// Writes what is queued. Ready when the socket has taken all of it.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        loop {
            if self.is_unflushed {
                ready!(self.poll_write_and_flush(cx)).map_err(WebSocketError::Io)?;
                self.is_unflushed = false;
            }
            // Only after a complete flush, so that the pongs for a peer that does not read cannot pile up.
            match self.pong.take() {
                Some(payload) => self.send(OpCode::Control(Control::Pong), payload)?,
                None => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_write_and_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let before = self.outgoing.written();
        let written = self.outgoing.poll_write(&mut self.io, cx);
        // Does not count after a pending flush: the bytes may only fill the buffer of TLS.
        self.has_resumed |= self.blocked == Blocked::Writing && self.outgoing.written() > before;
        if written.is_pending() {
            self.blocked = Blocked::Writing;
        }
        ready!(written)?;
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if flushed.is_pending() {
            self.blocked = Blocked::Flushing;
        } else {
            self.has_resumed |= self.blocked != Blocked::No;
            self.blocked = Blocked::No;
        }
        flushed
    }

    /// Whether a full socket has taken more bytes since the last call.
    pub(super) fn has_resumed(&mut self) -> bool {
        std::mem::take(&mut self.has_resumed)
    }

    /// Total bytes written to the connection, and read from it.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.outgoing.written(), self.read)
    }

    /// Gives back memory that a burst has left.
    pub(super) fn trim(&mut self) {
        self.outgoing.trim();
        self.read_bytes = READ_BYTES.0;
    }

    /// Completes the close handshake: sends what is queued, which includes the close frame, and reads until
    /// the other end has closed. Closing a socket with unread bytes resets it, and the close frame would be
    /// lost.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let flushed = self.poll_flush(cx);
        while ready!(self.poll_receive(cx)).is_some_and(|received| received.is_ok()) {}
        // No further message can be received, but after a protocol error other bytes can.
        if ready!(flushed).is_err() {
            return Poll::Ready(());
        }
        if ready!(Pin::new(&mut self.io).poll_shutdown(cx)).is_err() {
            return Poll::Ready(());
        }
        let mut space = [0; READ_BYTES.0];
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

/// The payload of a close frame with this reason's code and no text.
fn close_payload(reason: CloseReason) -> BytesMut {
    let mut payload = BytesMut::new();
    payload.put_u16(reason.code());
    payload
}

const _: () = assert!(READ_BYTES.1 <= limits::MESSAGE_BYTES);
