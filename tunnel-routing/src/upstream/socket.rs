//! A connection to an upstream: TCP, plain or under TLS, or a Unix socket.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;
use tunnel_ops::socket::set_user_timeout;

/// Longest time for which sent bytes may stay unacknowledged: long enough for several lost retransmissions, of which
/// one comes after more than 6 s.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// A connected socket.
pub(crate) enum Socket {
    /// Without TLS.
    Plain(TcpStream),
    /// Unix domain socket.
    Unix(UnixStream),
    /// With TLS; boxed, since its state is large.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Socket {
    /// Whether both ends agreed on HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        match self {
            Self::Plain(_) | Self::Unix(_) => false,
            Self::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }

    /// The TCP connection below; none for a Unix socket.
    pub(super) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.get_ref().0),
            Self::Unix(_) => None,
        }
    }

    /// Sets or lifts the limit after which the kernel ends the connection with `ETIMEDOUT` because the peer
    /// acknowledges nothing ([`UNACKNOWLEDGED`]). Without it, a request to a host that has vanished waits for minutes,
    /// since keepalive probes are not sent while data is unacknowledged. A closed receive window counts too, so the
    /// limit is lifted while the upstream may have reason to close its window.
    pub(super) fn limit_unacknowledged(&self, is_limited: bool) {
        if let Some(stream) = self.tcp() {
            let limit = is_limited.then_some(UNACKNOWLEDGED);
            // A connection without the limit works until its host vanishes.
            let _ = set_user_timeout(stream, limit);
        }
    }
}

macro_rules! each {
    ($socket:expr, $stream:ident => $poll:expr) => {
        match $socket.get_mut() {
            Self::Plain(stream) => {
                let $stream = Pin::new(stream);
                $poll
            }
            Self::Unix(stream) => {
                let $stream = Pin::new(stream);
                $poll
            }
            Self::Tls(stream) => {
                let $stream = Pin::new(stream);
                $poll
            }
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_shutdown(cx))
    }
}
