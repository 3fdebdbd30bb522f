//! Whether a new connection speaks the HTTP of its upstream's scheme: the answer to a first question that changes
//! nothing.
//!
//! ```text
//!   HTTP/2     the preface and SETTINGS      ◀── SETTINGS (RFC 9113 section 3.4)
//!   HTTP/1.1   HEAD /                         ◀── HTTP/1.x and a status
//! ```

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// The preface of HTTP/2, and an empty frame SETTINGS.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Length of a frame's head, and the type of SETTINGS.
const FRAME_HEAD: usize = 9;
const SETTINGS: u8 = 4;
/// Length of `HTTP/1.1 200`.
const STATUS: usize = 12;
/// How long to wait for the answer.
const LIMIT: Duration = Duration::from_secs(2);

/// What an upstream said first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstAnswer {
    /// SETTINGS of HTTP/2, which a server that speaks it alone sends unasked.
    Http2,
    /// A status of HTTP/1, to `HEAD /`.
    Http1(u16),
    /// Nothing in time, or the end of the connection.
    Nothing,
    /// Bytes of another protocol.
    Other,
}

/// Asks on a new connection.
pub(super) async fn ask<S>(mut socket: S, is_http2: bool, host: &str) -> FirstAnswer
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let question = match is_http2 {
        true => HTTP2.to_vec(),
        false => format!("HEAD / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").into(),
    };
    let mut answer = [0; STATUS];
    let length = if is_http2 { FRAME_HEAD } else { STATUS };
    let mut read = 0;
    let asking = async {
        socket.write_all(&question).await?;
        socket.flush().await?;
        while read < length {
            match socket.read(&mut answer[read..length]).await? {
                0 => break,
                more => read += more,
            }
        }
        io::Result::Ok(())
    };
    // What was read before an error or the end of the time counts.
    let _ = timeout(LIMIT, asking).await;
    first_answer(&answer[..read], is_http2)
}

fn first_answer(answer: &[u8], is_http2: bool) -> FirstAnswer {
    if answer.is_empty() {
        return FirstAnswer::Nothing;
    }
    if let [_, _, _, SETTINGS, _, 0, 0, 0, 0, ..] = answer {
        return FirstAnswer::Http2;
    }
    if is_http2 {
        return FirstAnswer::Other;
    }
    let status = answer
        .strip_prefix(b"HTTP/1.")
        .and_then(|rest| rest.get(2..5));
    let status = status.and_then(|status| std::str::from_utf8(status).ok()?.parse().ok());
    status.map_or(FirstAnswer::Other, FirstAnswer::Http1)
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_shows_which_http_an_upstream_speaks() {
        for (is_http2, bytes, expected) in [
            (
                true,
                &b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0d"[..],
                FirstAnswer::Http2,
            ),
            (
                true,
                b"HTTP/1.1 400 Bad Request\r\n\r\n",
                FirstAnswer::Other,
            ),
            (true, b"", FirstAnswer::Nothing),
            (
                false,
                b"HTTP/1.1 204 No Content\r\n\r\n",
                FirstAnswer::Http1(204),
            ),
            (false, b"HTTP/1.0 400\r\n\r\n", FirstAnswer::Http1(400)),
            (false, b"\x15\x03\x01\x00\x02\x02\x46", FirstAnswer::Other),
            (false, b"SSH-2.0-OpenSSH_9.2p1\r\n", FirstAnswer::Other),
            (false, b"", FirstAnswer::Nothing),
            (
                false,
                b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0@\0",
                FirstAnswer::Http2,
            ),
        ] {
            let (ours, mut theirs) = duplex(1024);
            theirs.write_all(bytes).await.unwrap();
            let answer = ask(ours, is_http2, "a:1").await;
            assert_eq!(answer, expected, "{bytes:?}");
        }
    }
}
