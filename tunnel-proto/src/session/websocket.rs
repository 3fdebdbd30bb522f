//! WebSocket messages in and out (RFC 6455). The only folder that names tungstenite, of which it takes
//! the handshake's keys and the headers of frames.
//!
//! ```text
//!   socket ─▶ incoming ─▶ Received            send_… ─▶ outgoing ─▶ socket
//! ```
//!
//! What comes in are the messages of an established connection, what goes out are batches of bytes,
//! control texts, pings and a close frame. It knows nothing of what the bytes mean. Binary messages
//! are a stream of bytes: what is there of one is handed on before the rest has come, and nothing is
//! gathered. A connection at rest holds no buffer.

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
    self, handshake,
    protocol::frame::coding::{Control, Data, OpCode},
};
use tokio_util::io::poll_read_buf;

use self::{incoming::Incoming, outgoing::Outgoing};
use super::Side;
use crate::{close::CloseReason, limits};

/// Bytes read from the socket at once, at first and at most. It grows while reads fill it: no more than
/// a TLS record ever comes at once.
pub(super) const READ_BYTES: (usize, usize) = (4 * 1024, 16 * 1024);

/// A new random value for `Sec-WebSocket-Key`.
#[must_use]
pub fn new_key() -> String {
    handshake::client::generate_key()
}

/// The `Sec-WebSocket-Accept` that belongs to a key (RFC 6455 section 4.2.2).
#[must_use]
pub fn accept_key(key: &[u8]) -> String {
    handshake::derive_accept_key(key)
}

/// Something received.
#[derive(Debug)]
pub(super) enum Received {
    /// Bytes of the multiplexer.
    Data(Bytes),
    /// A control message.
    Control(String),
    /// A ping with its payload; the pong is queued, a flush sends it.
    Ping(Bytes),
    /// A pong with its payload.
    Pong(Bytes),
    /// The other end closes, with this code if it gave one.
    Close(Option<CloseReason>),
}

/// Why the connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WebSocketError {
    /// The socket failed, or ended without a close frame.
    #[error("the connection failed: {0}")]
    Io(#[source] io::Error),
    /// The other end broke RFC 6455, or sent more than is allowed.
    #[error("websocket protocol broken: {0}")]
    Protocol(&'static str),
}

impl From<tungstenite::Error> for WebSocketError {
    fn from(_: tungstenite::Error) -> Self {
        // Of reading and writing headers nothing else can come.
        Self::Protocol("a frame with a header that is none")
    }
}

/// Whether the socket takes what there is, and what waits for it if not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Full {
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
    /// Something was written since the last complete flush.
    is_unflushed: bool,
    full: Full,
    /// The socket was full, and takes more again.
    has_taken: bool,
    /// Bytes read in all.
    read: u64,
    read_bytes: usize,
    is_closed_here: bool,
    is_closed_there: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> WebSocket<IO> {
    /// Takes over a connection whose upgrade is done; `leftover` are the bytes that were read
    /// past the handshake.
    pub(super) fn new(io: IO, leftover: Bytes, side: Side) -> Self {
        Self {
            io,
            read: leftover.len() as u64,
            incoming: Incoming::new(side, BytesMut::from(leftover)),
            outgoing: Outgoing::new(side == Side::Client),
            pong: None,
            is_unflushed: false,
            full: Full::No,
            has_taken: false,
            read_bytes: READ_BYTES.0,
            is_closed_here: false,
            is_closed_there: false,
        }
    }

    /// What was received next; `None` when the connection has ended in order.
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

    /// Reads what there is; how much it was.
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
                    // RFC 6455 section 5.5.1: answered with the same code.
                    self.close(reason.map_or_else(Bytes::new, |reason| code(reason).freeze()))?;
                }
            }
            _ => {}
        }
        Ok(received)
    }

    /// Queues bytes of the multiplexer. Call only after a flush was ready.
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

    /// Queues the close frame.
    pub(super) fn send_close(&mut self, reason: CloseReason) -> Result<(), WebSocketError> {
        let mut payload = code(reason);
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

    /// Writes what is queued. Ready when all of it is with the socket.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        loop {
            if self.is_unflushed {
                ready!(self.poll_out(cx)).map_err(WebSocketError::Io)?;
                self.is_unflushed = false;
            }
            // Only now, so that pings cannot fill what the other end does not read.
            match self.pong.take() {
                Some(payload) => self.send(OpCode::Control(Control::Pong), payload)?,
                None => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let before = self.outgoing.written();
        let written = self.outgoing.poll_write(&mut self.io, cx);
        // Bytes that follow a flush which is pending may only fill a buffer of ours, that of TLS.
        self.has_taken |= self.full == Full::Writing && self.outgoing.written() > before;
        if written.is_pending() {
            self.full = Full::Writing;
        }
        ready!(written)?;
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if flushed.is_pending() {
            self.full = Full::Flushing;
        } else {
            self.has_taken |= self.full != Full::No;
            self.full = Full::No;
        }
        flushed
    }

    /// Whether, since the last call, the socket was full and has taken more again.
    pub(super) fn has_taken(&mut self) -> bool {
        std::mem::take(&mut self.has_taken)
    }

    /// Bytes written to the connection and read from it, in all.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.outgoing.written(), self.read)
    }

    /// Gives space back that a burst has left.
    pub(super) fn trim(&mut self) {
        self.outgoing.trim();
        self.read_bytes = READ_BYTES.0;
    }

    /// Sends what is queued, the close frame above all, and reads on until the other end has closed:
    /// closing a socket with unread bytes resets it, and the close frame would be lost.
    pub(super) fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let flushed = self.poll_flush(cx);
        while ready!(self.poll_receive(cx)).is_some_and(|received| received.is_ok()) {}
        // No message can come any more. After a breach of the protocol other bytes may.
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

/// The start of a close frame's payload.
fn code(reason: CloseReason) -> BytesMut {
    let mut payload = BytesMut::new();
    payload.put_u16(reason.code());
    payload
}

const _: () = assert!(READ_BYTES.1 <= limits::MESSAGE_BYTES);
