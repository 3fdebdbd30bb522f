//! WebSocket messages in and out. The only file that names tungstenite.
//!
//! What comes in are the messages of an established connection, what goes out are batches of bytes,
//! control texts, pings and a close frame. It knows nothing of what the bytes mean.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message, Utf8Bytes,
        protocol::{CloseFrame, Role, WebSocketConfig},
    },
};

use super::Side;
use crate::{close::CloseReason, limits};

/// Bytes read from the socket at once. Small, because every idle session holds such a buffer.
const READ_BUFFER_BYTES: usize = 4 * 1024;

/// A new random value for `Sec-WebSocket-Key`.
#[must_use]
pub fn new_key() -> String {
    tungstenite::handshake::client::generate_key()
}

/// The `Sec-WebSocket-Accept` that belongs to a key (RFC 6455 section 4.2.2).
#[must_use]
pub fn accept_key(key: &[u8]) -> String {
    tungstenite::handshake::derive_accept_key(key)
}

/// One received message.
#[derive(Debug)]
pub(super) enum Received {
    /// Bytes of the multiplexer.
    Data(Bytes),
    /// A control message.
    Control(Utf8Bytes),
    /// A ping; the library has queued the pong, a flush sends it.
    Ping,
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
    Protocol(String),
}

impl From<tungstenite::Error> for WebSocketError {
    fn from(error: tungstenite::Error) -> Self {
        use tungstenite::{Error, error::ProtocolError};
        match error {
            Error::Io(error) => Self::Io(error),
            Error::ConnectionClosed
            | Error::AlreadyClosed
            | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => {
                Self::Io(io::ErrorKind::UnexpectedEof.into())
            }
            other => Self::Protocol(other.to_string()),
        }
    }
}

/// An established WebSocket connection over any byte stream.
pub(super) struct WebSocket<IO> {
    inner: WebSocketStream<IO>,
    /// Something was written, or queued by the library, since the last complete flush.
    unflushed: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> WebSocket<IO> {
    /// Takes over a connection whose upgrade is done; `leftover` are the bytes that were read
    /// past the handshake.
    pub(super) async fn new(io: IO, leftover: Bytes, side: Side) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            // Written by flushes only, one for all that a poll of the session produced.
            .write_buffer_size(2 * limits::MESSAGE_BYTES)
            .max_write_buffer_size(8 * limits::MESSAGE_BYTES)
            .max_message_size(Some(limits::MESSAGE_BYTES))
            .max_frame_size(Some(limits::MESSAGE_BYTES));
        let role = match side {
            Side::Server => Role::Server,
            Side::Client => Role::Client,
        };
        let leftover = leftover.to_vec();
        let inner = WebSocketStream::from_partially_read(io, leftover, role, Some(config)).await;
        Self {
            inner,
            unflushed: false,
        }
    }

    /// The next message; `None` when the connection has ended in order.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Received, WebSocketError>>> {
        loop {
            let message = match Pin::new(&mut self.inner).poll_next(cx) {
                Poll::Ready(Some(Ok(message))) => message,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            };
            let received = match message {
                Message::Binary(bytes) => Received::Data(bytes),
                Message::Text(text) => Received::Control(text),
                Message::Ping(_) => {
                    self.unflushed = true;
                    Received::Ping
                }
                Message::Pong(payload) => Received::Pong(payload),
                Message::Close(frame) => {
                    self.unflushed = true;
                    let code = frame.map(|frame| CloseReason::from_code(frame.code.into()));
                    Received::Close(code)
                }
                // Never produced by reading.
                Message::Frame(_) => continue,
            };
            return Poll::Ready(Some(Ok(received)));
        }
    }

    /// Queues bytes of the multiplexer. Call only after a flush was ready.
    pub(super) fn send_data(&mut self, bytes: Bytes) -> Result<(), WebSocketError> {
        self.send(Message::Binary(bytes))
    }

    /// Queues a control message.
    pub(super) fn send_control(&mut self, text: String) -> Result<(), WebSocketError> {
        self.send(Message::Text(text.into()))
    }

    /// Queues a ping.
    pub(super) fn send_ping(&mut self, payload: Bytes) -> Result<(), WebSocketError> {
        self.send(Message::Ping(payload))
    }

    /// Queues the close frame.
    pub(super) fn send_close(&mut self, reason: CloseReason) -> Result<(), WebSocketError> {
        let frame = CloseFrame {
            code: reason.code().into(),
            reason: reason.name().into(),
        };
        self.send(Message::Close(Some(frame)))
    }

    fn send(&mut self, message: Message) -> Result<(), WebSocketError> {
        self.unflushed = true;
        Ok(Pin::new(&mut self.inner).start_send(message)?)
    }

    /// Writes what is queued. Ready when all of it is with the socket.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WebSocketError>> {
        if !self.unflushed {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.inner).poll_flush(cx)?;
        self.unflushed = flushed.is_pending();
        flushed.map(Ok)
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
        let io = self.inner.get_mut();
        if ready!(Pin::new(&mut *io).poll_shutdown(cx)).is_err() {
            return Poll::Ready(());
        }
        let mut space = [0; READ_BUFFER_BYTES];
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            let read = ready!(Pin::new(&mut *io).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}
