//! HTTP/1.1 for one request that is sent over and over: written in one piece, the answer's frame read
//! and its content counted, nothing kept.
//!
//! Costs a third of what a full client costs, which matters: the load generator shares the
//! machine with what it measures. Whatever looks at content, or sends and receives at once, uses
//! [`crate::client::connection`].

use std::{
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Waker},
};

use bytes::Bytes;
use http::Method;
use httparse::{ParserConfig, Response, Status};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};

use crate::{
    client::{Dialer, Stream, connection::Connection, template::Template},
    measure::errors::{Failure, FailureKind},
};

/// Content up to this size can be written before the answer is read without both sides waiting
/// for each other: the kernel's buffers take it.
pub const MOST_CONTENT: u64 = 64 * 1024;

/// Enough for a small answer.
const SMALL: usize = 4 * 1024;

/// Enough for large content to cost no more than the kernel's copying.
const LARGE: usize = 256 * 1024;

/// No head is longer than this.
const MOST_HEAD: usize = 256 * 1024;

/// A request, as it goes over the wire.
#[derive(Clone, Debug)]
pub struct SerializedRequest {
    bytes: Bytes,
    is_head: bool,
}

/// The end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedResponse {
    /// Its final status.
    pub status: u16,
    /// Bytes of its content.
    pub length: u64,
}

/// A connection that carries one request at a time.
#[derive(Debug)]
pub struct MinimalClient {
    stream: Stream,
    buffer: Vec<u8>,
    /// How much of the buffer is filled, and not yet used.
    filled: usize,
    open: bool,
}

impl SerializedRequest {
    /// The request of `template`, with this content.
    pub fn new(template: &Template, content: &[u8]) -> Self {
        let Template { method, uri, .. } = template;
        let mut bytes = format!("{method} {uri} HTTP/1.1\r\n").into_bytes();
        for (name, value) in &template.headers {
            for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                bytes.extend_from_slice(part);
            }
        }
        if !content.is_empty() || method == Method::POST {
            bytes.extend_from_slice(format!("content-length: {}\r\n", content.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(content);
        Self {
            bytes: bytes.into(),
            is_head: method == Method::HEAD,
        }
    }
}

impl Dialer {
    /// Makes a connection for one request that is sent over and over, over HTTP/1.1.
    ///
    /// # Errors
    /// As [`Dialer::dial`].
    pub async fn minimal(&self) -> Result<MinimalClient, Failure> {
        Ok(MinimalClient {
            stream: self.dial().await?,
            buffer: vec![0; SMALL],
            filled: 0,
            open: true,
        })
    }
}

impl MinimalClient {
    /// Sends a request and takes the whole answer, whatever its status.
    ///
    /// # Errors
    /// The connection broke, or the answer is no HTTP. The connection is of no use then.
    pub async fn exchange(
        &mut self,
        request: &SerializedRequest,
    ) -> Result<CountedResponse, Failure> {
        self.exchange_counting(request, |_, _| {}).await
    }

    /// As [`Self::exchange`]; calls `content` with the status and the number of bytes whenever some of the
    /// content have come.
    ///
    /// # Errors
    /// As [`Self::exchange`].
    pub async fn exchange_counting(
        &mut self,
        request: &SerializedRequest,
        mut content: impl FnMut(u16, u64),
    ) -> Result<CountedResponse, Failure> {
        // Whatever happens before the end, also the drop of this future, ends the connection.
        self.open = false;
        self.stream.write_all(&request.bytes).await?;
        if matches!(self.stream, Stream::Right(_)) {
            self.stream.flush().await?;
        }
        let (head, mut framing) = self.head(request.is_head).await?;
        let mut length = 0;
        loop {
            let (used, bytes) = framing.advance(&self.buffer[..self.filled])?;
            if bytes > 0 {
                length += bytes;
                content(head.status, bytes);
            }
            self.buffer.copy_within(used..self.filled, 0);
            self.filled -= used;
            if framing.is_done() {
                break;
            }
            if framing.wants() > self.buffer.len() as u64 {
                self.buffer.resize(LARGE, 0);
            }
            let read = self.read().await;
            match read.map_err(short)? {
                0 if framing.is_until_close() => break,
                0 => return Err(FailureKind::BodyShort.into()),
                _ => {}
            }
        }
        self.open = head.keeps_open && !framing.is_until_close() && self.filled == 0;
        Ok(CountedResponse {
            status: head.status,
            length,
        })
    }

    /// Whether it may carry the next request: the peer has neither closed it while it rested, nor
    /// spoken unasked.
    pub fn is_open(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        let mut buffer = ReadBuf::new(&mut byte);
        let read = Pin::new(&mut self.stream).poll_read(&mut context, &mut buffer);
        self.open &= read.is_pending();
        self.open
    }

    /// Reads the head of the final answer, and takes it out of the buffer.
    async fn head(&mut self, is_head: bool) -> Result<(Head, Framing), Failure> {
        loop {
            let found = head(&self.buffer[..self.filled], is_head)?;
            if let Some((used, head, framing)) = found {
                self.buffer.copy_within(used..self.filled, 0);
                self.filled -= used;
                if head.is_final() {
                    return Ok((head, framing));
                }
                continue;
            }
            if self.filled == self.buffer.len() {
                if self.filled >= MOST_HEAD {
                    return Err(FailureKind::Protocol.into());
                }
                self.buffer.resize(self.filled * 2, 0);
            }
            if self.read().await? == 0 {
                return Err(FailureKind::ClosedEarly.into());
            }
        }
    }

    async fn read(&mut self) -> Result<usize, Failure> {
        let read = self.stream.read(&mut self.buffer[self.filled..]).await?;
        self.filled += read;
        Ok(read)
    }
}

/// A failure after the head: the content is incomplete, however the connection ended.
fn short(failure: Failure) -> Failure {
    match failure.kind {
        FailureKind::ClosedEarly => Failure::fatal(FailureKind::BodyShort),
        _ => failure,
    }
}

/// A connection for requests whose answers are counted alone, or for any.
#[derive(Debug)]
pub enum RequestConnection {
    /// HTTP/1.1, for requests in one piece.
    Minimal(Box<MinimalClient>),
    /// For all others.
    Hyper(Connection),
}

impl RequestConnection {
    /// Whether it may carry the next request: the peer has not closed it while it rested.
    pub fn is_open(&mut self) -> bool {
        match self {
            Self::Minimal(connection) => connection.is_open(),
            Self::Hyper(connection) => connection.is_open(),
        }
    }
}

/// The most fields of a head; more is taken for nonsense.
const MOST_FIELDS: usize = 128;

/// The answer breaks HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Malformed;

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Self {
        FailureKind::Protocol.into()
    }
}

/// What matters of an answer's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Whether the connection may carry another request.
    keeps_open: bool,
}

impl Head {
    /// Whether no other head follows for the request.
    fn is_final(self) -> bool {
        self.status >= 200 || self.status == 101
    }
}

/// How much content is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// So many bytes.
    Length(u64),
    /// Until the connection closes.
    Close,
    /// A chunk's size line comes next.
    ChunkSize,
    /// So many bytes of a chunk, and the line's end after it.
    Chunk(u64),
    /// Trailers, up to an empty line.
    Trailers,
}

/// The head at the start of `bytes`, how long it is, and how content is framed; none when more
/// bytes are needed.
fn head(bytes: &[u8], is_head: bool) -> Result<Option<(usize, Head, Framing)>, Malformed> {
    let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut response = Response::new(&mut []);
    let config = ParserConfig::default();
    let parsed = config.parse_response_with_uninit_headers(&mut response, bytes, &mut fields);
    let used = match parsed.map_err(|_| Malformed)? {
        Status::Complete(used) => used,
        Status::Partial => return Ok(None),
    };
    let status = response.code.ok_or(Malformed)?;
    let mut head = Head {
        status,
        keeps_open: response.version == Some(1),
    };
    let mut framing = Framing::Close;
    for field in response.headers.iter() {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if is("content-length") && framing != Framing::ChunkSize {
            framing = Framing::Length(number(field.value)?);
        } else if is("transfer-encoding") {
            framing = match last_item(field.value) {
                item if item.eq_ignore_ascii_case(b"chunked") => Framing::ChunkSize,
                _ => Framing::Close,
            };
        } else if is("connection") {
            let mut items = field
                .value
                .split(|byte| *byte == b',')
                .map(<[u8]>::trim_ascii);
            if items.any(|item| item.eq_ignore_ascii_case(b"close")) {
                head.keeps_open = false;
            }
        }
    }
    if is_head || status < 200 || status == 204 || status == 304 {
        framing = Framing::Length(0);
    }
    Ok(Some((used, head, framing)))
}

impl Framing {
    /// Takes what it can of `bytes`: how many were used, and how many of those were content.
    fn advance(&mut self, bytes: &[u8]) -> Result<(usize, u64), Malformed> {
        let mut used = 0;
        let mut content = 0;
        loop {
            let rest = &bytes[used..];
            match self {
                Self::Length(left) => {
                    let taken = take(left, rest);
                    return Ok((used + taken, content + taken as u64));
                }
                Self::Close => return Ok((bytes.len(), content + rest.len() as u64)),
                Self::ChunkSize => {
                    let parsed = httparse::parse_chunk_size(rest).map_err(|_| Malformed)?;
                    let Status::Complete((length, size)) = parsed else {
                        return Ok((used, content));
                    };
                    used += length;
                    *self = match size {
                        0 => Self::Trailers,
                        size => Self::Chunk(size),
                    };
                }
                Self::Chunk(0) => match rest {
                    [] | [b'\r'] => return Ok((used, content)),
                    [b'\r', b'\n', ..] => {
                        used += 2;
                        *self = Self::ChunkSize;
                    }
                    _ => return Err(Malformed),
                },
                Self::Chunk(left) => {
                    let taken = take(left, rest);
                    if taken == 0 {
                        return Ok((used, content));
                    }
                    used += taken;
                    content += taken as u64;
                }
                Self::Trailers => {
                    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
                    let parsed = httparse::parse_headers(rest, &mut fields);
                    let Status::Complete((length, _)) = parsed.map_err(|_| Malformed)? else {
                        return Ok((used, content));
                    };
                    used += length;
                    *self = Self::Length(0);
                }
            }
        }
    }

    /// Whether all has come.
    fn is_done(self) -> bool {
        self == Self::Length(0)
    }

    /// Whether only the connection's end says that all has come.
    fn is_until_close(self) -> bool {
        self == Self::Close
    }

    /// How many bytes are sure to come, for the size of a buffer.
    fn wants(self) -> u64 {
        match self {
            Self::Length(left) | Self::Chunk(left) => left,
            Self::Close => u64::MAX,
            Self::ChunkSize | Self::Trailers => 0,
        }
    }
}

/// Takes as many of `left` as there are bytes.
fn take(left: &mut u64, bytes: &[u8]) -> usize {
    let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left -= taken as u64;
    taken
}

fn number(value: &[u8]) -> Result<u64, Malformed> {
    let digits = std::str::from_utf8(value.trim_ascii()).map_err(|_| Malformed)?;
    digits.parse().map_err(|_| Malformed)
}

fn last_item(value: &[u8]) -> &[u8] {
    let items = value.rsplit(|byte| *byte == b',');
    items.map(<[u8]>::trim_ascii).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The content's length, and how many bytes follow it; none when it is incomplete.
    type Content = Result<Option<(u64, usize)>, Malformed>;

    fn read(answer: &[u8], pieces: usize) -> Content {
        let Some((used, head, mut framing)) = head(answer, false)? else {
            return Ok(None);
        };
        assert!(head.is_final());
        let mut length = 0;
        let mut pending = Vec::new();
        let mut rest = answer[used..].chunks(pieces);
        loop {
            let (used, content) = framing.advance(&pending)?;
            length += content;
            pending.drain(..used);
            if framing.is_done() {
                let rest: usize = rest.map(<[u8]>::len).sum();
                return Ok(Some((length, pending.len() + rest)));
            }
            match rest.next() {
                Some(piece) => pending.extend_from_slice(piece),
                None if framing.is_until_close() => return Ok(Some((length, 0))),
                None => return Ok(None),
            }
        }
    }

    #[test]
    fn every_framing_ends_where_it_should() {
        let ok = "HTTP/1.1 200 OK\r\n";
        let cases: [(&str, Content); 11] = [
            ("content-length: 3\r\n\r\nabcX", Ok(Some((3, 1)))),
            ("content-length: 3\r\n\r\nab", Ok(None)),
            ("content-length: 0\r\n\r\n", Ok(Some((0, 0)))),
            ("\r\nuntil the end", Ok(Some((13, 0)))),
            (
                "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nX",
                Ok(Some((3, 1))),
            ),
            (
                "Transfer-Encoding: gzip, Chunked\r\n\r\na;x=y\r\n0123456789\r\n0\r\n\r\n",
                Ok(Some((10, 0))),
            ),
            (
                "transfer-encoding: chunked\r\n\r\n0\r\ntrailer: x\r\n\r\n",
                Ok(Some((0, 0))),
            ),
            ("transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", Ok(None)),
            (
                "transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n",
                Err(Malformed),
            ),
            ("transfer-encoding: chunked\r\n\r\nxyz\r\n", Err(Malformed)),
            ("content-length: -1\r\n\r\n", Err(Malformed)),
        ];
        for (rest, expected) in cases {
            for pieces in [1, 2, 1000] {
                let answer = format!("{ok}{rest}");
                assert_eq!(read(answer.as_bytes(), pieces), expected, "{rest:?}");
            }
        }
    }

    #[test]
    fn heads_say_whether_the_connection_goes_on() {
        let cases = [
            ("HTTP/1.1 200 OK\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nconnection: keep-alive\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nConnection: x, Close\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\n\r\n", false),
        ];
        for (answer, expected) in cases {
            let (_, head, _) = head(answer.as_bytes(), false).unwrap().unwrap();
            assert_eq!(head.keeps_open, expected, "{answer:?}");
        }
    }

    #[test]
    fn some_answers_have_no_content_whatever_they_announce() {
        for status in ["204 No Content", "304 Not Modified", "100 Continue"] {
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\n\r\n");
            let (_, _, framing) = head(answer.as_bytes(), false).unwrap().unwrap();
            assert!(framing.is_done(), "{status}");
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        let (_, _, framing) = head(answer, true).unwrap().unwrap();
        assert!(framing.is_done(), "the answer to HEAD");
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(answer: Vec<u8>, pieces in 1..50_usize) {
            let _ = read(&answer, pieces);
            let mut chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
            chunked.extend_from_slice(&answer);
            let _ = read(&chunked, pieces);
        }
    }
}
