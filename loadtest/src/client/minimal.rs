//! HTTP/1.1 for one request that is sent over and over: written in one piece, the answer's frame read
//! and its content counted, nothing kept.
//!
//! Costs a third of what a full client costs, which matters: the load generator shares the
//! machine with what it measures. Whatever looks at content, or sends and receives at once, uses
//! [`crate::client::connection`].

mod framing;

use std::{
    pin::Pin,
    task::{Context, Waker},
};

use bytes::Bytes;
use http::Method;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};

use crate::{
    client::{
        Dialer, Stream, connection::Connection, minimal::framing::Framing, template::Template,
    },
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
    async fn head(&mut self, is_head: bool) -> Result<(framing::Head, Framing), Failure> {
        loop {
            let found = framing::head(&self.buffer[..self.filled], is_head)?;
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
