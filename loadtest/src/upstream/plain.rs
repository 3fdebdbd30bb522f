//! Plain requests over HTTP/1.1, answered with bytes that were put together once.
//!
//! A whole server library costs three times as much for them, on the cores of what is measured.
//! The first request that is anything else goes, with its connection, to that library.

use std::{
    cell::Cell,
    io::{self, Cursor},
    mem::MaybeUninit,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use httparse::{ParserConfig, Request, Status};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::sleep,
};

use crate::upstream::UpstreamArgs;

/// More fields, or a longer head, are the library's.
const MOST_FIELDS: usize = 64;
const MOST_HEAD: usize = 16 * 1024;

/// Fields that make a request more than plain.
const NOT_PLAIN: [&str; 5] = [
    "content-length",
    "content-type",
    "expect",
    "transfer-encoding",
    "upgrade",
];

/// What comes first in a connection.
enum Next {
    /// A plain request of this length.
    Plain(usize),
    /// Not all of a request's head is there.
    Unknown,
    /// Something for the library.
    Other,
}

/// The answer to plain requests: its delay, its share of errors, its content.
#[derive(Clone, Debug)]
pub(super) struct PlainAnswer {
    delay: Duration,
    error_rate: f64,
    /// How many were answered.
    answered: Rc<Cell<u64>>,
    pub(super) content: Bytes,
    /// The answer over HTTP/1.1 in one piece, with each status.
    success: Bytes,
    error: Bytes,
}

impl PlainAnswer {
    pub(super) fn new(args: &UpstreamArgs) -> Self {
        let length = usize::try_from(args.answer_size.as_u64()).unwrap_or(0);
        let content = Bytes::from(vec![b'x'; length]);
        let in_one_piece = |status: StatusCode| {
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n"
            );
            Bytes::from([head.as_bytes(), &content].concat())
        };
        Self {
            delay: args.delay,
            error_rate: args.error_rate,
            answered: Rc::default(),
            success: in_one_piece(StatusCode::OK),
            error: in_one_piece(StatusCode::SERVICE_UNAVAILABLE),
            content,
        }
    }

    /// Waits for the delay; returns the status of the next answer.
    pub(super) async fn next(&self) -> StatusCode {
        if !self.delay.is_zero() {
            sleep(self.delay).await;
        }
        let number = self.answered.get();
        self.answered.set(number + 1);
        match is_error(number, self.error_rate) {
            true => StatusCode::SERVICE_UNAVAILABLE,
            false => StatusCode::OK,
        }
    }
}

/// Answers plain requests until something else comes, which it returns with the connection.
/// None when the peer has closed it.
pub(super) async fn serve(
    mut stream: TcpStream,
    plain: &PlainAnswer,
) -> io::Result<Option<impl AsyncRead + AsyncWrite + Unpin + use<>>> {
    let mut buffer = vec![0; 2048];
    let mut filled = 0;
    loop {
        match next(&buffer[..filled]) {
            Next::Plain(length) => {
                let answer = match plain.next().await {
                    StatusCode::OK => &plain.success,
                    _ => &plain.error,
                };
                stream.write_all(answer).await?;
                buffer.copy_within(length..filled, 0);
                filled -= length;
                if filled > 0 {
                    continue;
                }
            }
            Next::Unknown if filled < MOST_HEAD => {}
            Next::Unknown | Next::Other => {
                buffer.truncate(filled);
                let (read, write) = stream.into_split();
                return Ok(Some(tokio::io::join(
                    Cursor::new(buffer).chain(read),
                    write,
                )));
            }
        }
        if filled == buffer.len() {
            buffer.resize(filled * 2, 0);
        }
        match stream.read(&mut buffer[filled..]).await? {
            0 => return Ok(None),
            read => filled += read,
        }
    }
}

fn next(bytes: &[u8]) -> Next {
    if bytes.is_empty() {
        return Next::Unknown;
    }
    let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut request = Request::new(&mut []);
    let config = ParserConfig::default();
    let parsed = config.parse_request_with_uninit_headers(&mut request, bytes, &mut fields);
    let length = match parsed {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Next::Unknown,
        // HTTP/2 begins with what is no request of HTTP/1.
        Err(_) => return Next::Other,
    };
    let is_plain = request.method == Some("GET")
        && request.version == Some(1)
        && request.path.is_some_and(|path| !is_special(path));
    let is_more = request.headers.iter().any(|field| {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        NOT_PLAIN.into_iter().any(is)
            || is("connection") && !field.value.eq_ignore_ascii_case(b"keep-alive")
    });
    if is_plain && !is_more {
        Next::Plain(length)
    } else {
        Next::Other
    }
}

/// Whether a path has an answer of its own in `upstream.rs`.
fn is_special(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    path.starts_with("/bytes/") || ["/upload", "/pace", "/events", "/echo"].contains(&path)
}

/// Whether the answer with this number, from zero, is an error: evenly every tenth with a share of 0.1, so that they can
/// be counted.
fn is_error(number: u64, share: f64) -> bool {
    // Rounding must neither lose an error nor add one within any real run.
    let errors = |answers: u64| (answers as f64 * share + 1e-6).floor();
    errors(number + 1) > errors(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_requests_are_answered_here() {
        let plain = [
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /any/path?x HTTP/1.1\r\nhost: a\r\nConnection: keep-alive\r\n\r\n",
        ];
        for request in plain {
            let next = next(request.as_bytes());
            assert!(matches!(next, Next::Plain(length) if length == request.len()));
        }
        let other = [
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "GET /bytes/5 HTTP/1.1\r\n\r\n",
            "GET /echo HTTP/1.1\r\nupgrade: websocket\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n",
            "HEAD / HTTP/1.1\r\n\r\n",
        ];
        for request in other {
            assert!(
                matches!(next(request.as_bytes()), Next::Other),
                "{request:?}"
            );
        }
        assert!(matches!(next(b"GET / HTTP/1.1\r\nho"), Next::Unknown));
    }

    #[test]
    fn errors_are_exactly_their_share() {
        for (share, expected) in [(0.0, 0), (0.1, 1_000), (0.25, 2_500), (1.0, 10_000)] {
            let found = (0..10_000)
                .filter(|number| is_error(*number, share))
                .count();
            assert_eq!(found, expected, "of 10,000 with a share of {share}");
        }
    }
}
