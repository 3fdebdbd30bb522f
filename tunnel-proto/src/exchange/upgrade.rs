//! Upgraded connections: a connection as the body of a message, and a body copied to a connection.
//!
//! An upgrade is an exchange in which the content of each message is the bytes of one direction, so it needs nothing
//! else of the protocol. Each end joins its own connection to the two bodies with these functions. The end of a body is
//! the half-close of its direction, and a body that fails is a cut.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Most bytes read from a connection at once.
const READ_BYTES: usize = 16 * 1024;

/// The protocol that an upgrade requests. Only `websocket` is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol(());

/// The protocol is not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the only supported upgrade is to websocket")]
pub struct UnknownProtocol;

impl Protocol {
    /// RFC 6455.
    pub const WEBSOCKET: Self = Self(());

    /// The name in `:protocol` and in `Upgrade`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        "websocket"
    }

    /// Reads a name in any letter case.
    ///
    /// # Errors
    /// For every other protocol, above all `h2c`, which would carry unchecked requests.
    pub fn from_wire(name: &[u8]) -> Result<Self, UnknownProtocol> {
        if name.eq_ignore_ascii_case(b"websocket") {
            Ok(Self(()))
        } else {
            Err(UnknownProtocol)
        }
    }
}

/// The bytes read from a connection, as a body.
pub fn read_body<R: AsyncRead + Unpin>(connection: R) -> ReadBody<R> {
    ReadBody {
        connection,
        ended: false,
    }
}

/// The bytes that come from a connection, see [`read_body`].
#[derive(Debug)]
pub struct ReadBody<R> {
    connection: R,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Body for ReadBody<R> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        // On the stack, so that an idle connection holds no buffer.
        let mut space = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.connection).poll_read(cx, &mut buffer))?;
        if buffer.filled().is_empty() {
            self.ended = true;
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(
            buffer.filled(),
        )))))
    }
}

/// Writes a body to a connection, and shuts down that direction at its end.
///
/// # Errors
/// When the body or the connection fails. The connection is then not shut down in order.
pub async fn copy_body<B, W>(body: B, mut connection: W) -> io::Result<()>
where
    B: Body<Data = Bytes>,
    B::Error: std::error::Error + Send + Sync + 'static,
    W: AsyncWrite + Unpin,
{
    let mut body = std::pin::pin!(body);
    while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
            connection.write_all(&data).await?;
            connection.flush().await?;
        }
    }
    connection.shutdown().await
}
