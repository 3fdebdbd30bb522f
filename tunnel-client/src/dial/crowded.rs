//! A server with too many handshakes in progress says so in place of TLS, which would cost it more than it has.
//!
//! In: the first bytes that the server sends. Out: these bytes, or an error with the time until there is room for this client.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tunnel_proto::handshake;

/// A connection whose first bytes may be such a response.
pub(crate) struct BeforeTls<IO> {
    io: IO,
    has_read: bool,
}

/// The server has too many handshakes in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server has too many handshakes in progress, and takes this client in {} s", retry_after.as_secs())]
pub(crate) struct Crowded {
    /// The time until there is room for this client.
    pub(crate) retry_after: Duration,
}

impl<IO> BeforeTls<IO> {
    /// A connection of which nothing was read.
    pub(super) fn new(io: IO) -> Self {
        Self {
            io,
            has_read: false,
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for BeforeTls<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let is_first = !std::mem::replace(&mut self.has_read, true);
        match handshake::crowded_retry_after(&buffer.filled()[before..]) {
            Some(retry_after) if is_first => {
                Poll::Ready(Err(io::Error::other(Crowded { retry_after })))
            }
            _ => Poll::Ready(Ok(())),
        }
    }
}

tunnel_ops::write_through!(BeforeTls);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn only_the_first_bytes_can_be_the_response_of_a_crowded_server() {
        let retry_after = Duration::from_secs(7);
        let crowded = handshake::crowded_response(retry_after);
        for (first, expected) in [("", Some(Crowded { retry_after })), ("\x16", None)] {
            let (ours, mut theirs) = duplex(1_024);
            let mut ours = BeforeTls::new(ours);
            theirs.write_all(first.as_bytes()).await.unwrap();
            ours.read_exact(&mut vec![0; first.len()]).await.unwrap();
            theirs.write_all(crowded.as_bytes()).await.unwrap();
            let read = ours.read(&mut [0; 1_024]).await;
            let error = read.err().and_then(io::Error::into_inner);
            let found = error.and_then(|error| error.downcast_ref::<Crowded>().copied());
            assert_eq!(found, expected);
        }
    }
}
