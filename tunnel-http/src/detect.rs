//! Detects from its first bytes whether a client speaks HTTP/1 or HTTP/2 (RFC 9113, 3.4).
//!
//! In: a connection, after TLS if there is any. Out: the protocol, and the bytes that were read, which precede the next
//! ones. One time-out covers the detection, so that a client that sends nothing, or the preface byte by byte, does not keep
//! its connection. Anything but the preface of HTTP/2 is HTTP/1.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The connection preface of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Most bytes that are read. Enough for most first requests, and little memory for clients that never send one.
const READ_BYTES: usize = 2 * 1024;

/// The protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.0 or HTTP/1.1, or an unknown protocol.
    Http1,
    /// HTTP/2, with prior knowledge or by ALPN.
    Http2,
}

/// Why the protocol could not be detected.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    /// The client did not send enough bytes in time.
    #[error(
        "client sent {received} bytes of a first request in time, too few to know its protocol"
    )]
    TimedOut {
        /// How much it sent.
        received: usize,
    },
    /// The client ended the connection first.
    #[error("client closed the connection after {received} bytes, before its protocol was known")]
    Closed {
        /// How much it sent.
        received: usize,
    },
    /// Reading failed.
    #[error("cannot read the first bytes of the connection: {0}")]
    Io(#[from] io::Error),
}

/// Reads from `io` until the protocol is known.
///
/// # Errors
/// When it is not known within `first_byte_timeout`, or the connection ends or fails before.
pub async fn detect<IO: AsyncRead + Unpin>(
    io: &mut IO,
    first_byte_timeout: Duration,
) -> Result<(Protocol, Bytes), DetectError> {
    let mut read = BytesMut::new();
    match tokio::time::timeout(first_byte_timeout, read_until_known(io, &mut read)).await {
        Ok(protocol) => Ok((protocol?, read.freeze())),
        Err(_) => Err(DetectError::TimedOut {
            received: read.len(),
        }),
    }
}

async fn read_until_known<IO: AsyncRead + Unpin>(
    io: &mut IO,
    read: &mut BytesMut,
) -> Result<Protocol, DetectError> {
    read.reserve(READ_BYTES);
    loop {
        if io.read_buf(read).await? == 0 {
            return Err(DetectError::Closed {
                received: read.len(),
            });
        }
        let compared = read.len().min(PREFACE.len());
        if read[..compared] != PREFACE[..compared] {
            return Ok(Protocol::Http1);
        }
        if compared == PREFACE.len() {
            return Ok(Protocol::Http2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    const LIMIT: Duration = Duration::from_secs(5);

    async fn detect_pieces(pieces: &[&[u8]]) -> Result<(Protocol, Bytes), DetectError> {
        let (mut client, mut server) = tokio::io::duplex(64);
        let send = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(client);
        };
        tokio::join!(send, detect(&mut server, LIMIT)).1
    }

    #[tokio::test(start_paused = true)]
    async fn http2_is_known_at_the_last_byte_of_its_preface() {
        for split in 0..=PREFACE.len() {
            let (start, end) = PREFACE.split_at(split);
            let (protocol, read) = detect_pieces(&[start, end]).await.unwrap();
            assert_eq!((protocol, &read[..]), (Protocol::Http2, PREFACE));
        }
        let bytes: Vec<&[u8]> = PREFACE.chunks(1).chain([&b"frames"[..]]).collect();
        let (protocol, read) = detect_pieces(&bytes).await.unwrap();
        assert_eq!(protocol, Protocol::Http2);
        assert!(read.starts_with(PREFACE));
    }

    #[tokio::test(start_paused = true)]
    async fn http1_is_known_at_the_first_other_byte() {
        for first in [
            "GET / HTTP/1.1\r\n",
            "P",
            "PU",
            "PRI * HTTP/1.1",
            "\r\n",
            "\u{16}\u{3}",
        ] {
            let result = detect_pieces(&[first.as_bytes()]).await;
            if PREFACE.starts_with(first.as_bytes()) {
                let Err(DetectError::Closed { received }) = result else {
                    panic!("{result:?}")
                };
                assert_eq!(received, first.len());
            } else {
                let (protocol, read) = result.unwrap();
                assert_eq!((protocol, &read[..]), (Protocol::Http1, first.as_bytes()));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_inside_the_preface_has_no_more_time_than_one_that_never_starts() {
        for start in [&b""[..], &PREFACE[..1], &PREFACE[..23]] {
            let (mut client, mut server) = tokio::io::duplex(64);
            let before = tokio::time::Instant::now();
            let trickle = async {
                for byte in start {
                    client.write_all(&[*byte]).await.unwrap();
                    tokio::time::sleep(LIMIT / 50).await;
                }
                std::future::pending::<()>().await;
            };
            let result = tokio::select! {
                result = detect(&mut server, LIMIT) => result,
                () = trickle => unreachable!(),
            };
            let Err(DetectError::TimedOut { received }) = result else {
                panic!("{result:?}")
            };
            assert_eq!(received, start.len());
            assert_eq!(before.elapsed(), LIMIT);
        }
    }
}
