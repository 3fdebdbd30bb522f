//! HTTP/1.1 messages as they are on the wire: heads with every byte kept, contents with their end.
//!
//! Unlike a client library, this reader forgives nothing and hides nothing: it says whether a
//! message was cut, which fields came in which order, and how it was framed. It reads what the
//! programs under test write, so it does not defend itself against hostile input. It shares no code
//! with the programs, so that nothing of theirs is tested against itself.

mod connection;

use std::{fmt, io, ops::Deref};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncReadExt};

pub use self::connection::{Duplex, RawConnection, RawResponse, get};

/// Fields in the order they came, with their names as they were written.
pub type Fields = Vec<(String, String)>;

/// Everything up to the empty line. It derefs to its text, empty line included.
#[derive(Clone, Debug)]
pub struct Head {
    /// Bytes that are no UTF-8 become one character each, as in Latin-1.
    text: String,
    /// Request line or status line.
    pub start: String,
    /// The field lines.
    pub fields: Fields,
}

/// What follows a head.
#[derive(Clone, Debug)]
pub struct Content {
    /// The content without its framing.
    pub bytes: Bytes,
    /// The trailer section, empty unless chunked.
    pub trailers: Fields,
    /// How the content ended.
    pub end: End,
}

/// How a message, or a connection, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As its framing says; for a connection, by an orderly close between messages.
    Clean,
    /// The connection was closed before the framing's end.
    Cut,
    /// The connection was reset.
    Reset,
}

/// How long a content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none, by the status or the method, whatever the fields say.
    Absent,
    /// As many bytes as `Content-Length` says; none without it in a request.
    Length(u64),
    /// Chunks and a trailer section.
    Chunked,
    /// All bytes until the connection ends (responses only).
    UntilClose,
}

impl Head {
    /// Takes apart a head with the empty line at its end.
    pub fn parse(raw: &[u8]) -> Self {
        let text = String::from_utf8(raw.to_vec())
            .unwrap_or_else(|_| raw.iter().copied().map(char::from).collect());
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        let fields = lines
            .filter(|line| !line.is_empty())
            .map(split_field)
            .collect();
        Self {
            text,
            start,
            fields,
        }
    }

    /// All values of a field, in order, whatever the case of its name.
    pub fn values(&self, name: &str) -> Vec<&str> {
        self.fields
            .iter()
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// The only value of a field.
    ///
    /// # Panics
    /// When the field is there more than once: a test that expects one should notice.
    pub fn value(&self, name: &str) -> Option<&str> {
        let values = self.values(name);
        assert!(
            values.len() <= 1,
            "{name} is there {} times: {self:?}",
            values.len()
        );
        values.first().copied()
    }

    /// All fields, which have to be valid.
    pub fn headers(&self) -> HeaderMap {
        let fields = self.fields.iter();
        let fields = fields.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        fields.collect()
    }

    /// The method of a request line.
    pub fn method(&self) -> &str {
        self.start.split(' ').next().unwrap_or_default()
    }

    /// The target of a request line, byte for byte.
    pub fn target(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or_default()
    }

    /// The status code of a status line.
    ///
    /// # Panics
    /// When this is no status line.
    pub fn status(&self) -> u16 {
        let code = self
            .start
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok());
        code.unwrap_or_else(|| panic!("not a status line: {:?}", self.start))
    }

    /// How the content after this request head is framed.
    pub fn request_framing(&self) -> Framing {
        self.declared_framing().unwrap_or(Framing::Length(0))
    }

    /// How the content after this response head is framed, if it answers `method`.
    ///
    /// # Panics
    /// When the framing is ambiguous, or one that the version does not have.
    pub fn response_framing(&self, method: &str) -> Framing {
        let status = self.status();
        if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            return Framing::Absent;
        }
        let framing = self.declared_framing().unwrap_or(Framing::UntilClose);
        let is_chunked = framing == Framing::Chunked;
        let is_old = self.start.starts_with("HTTP/1.0");
        assert!(!is_chunked || !is_old, "chunks for HTTP/1.0: {self:?}");
        let length = self.value("content-length");
        assert!(!is_chunked || length.is_none(), "two framings: {self:?}");
        framing
    }

    fn declared_framing(&self) -> Option<Framing> {
        let chunked = self
            .values("transfer-encoding")
            .iter()
            .any(|v| v.contains("chunked"));
        if chunked {
            return Some(Framing::Chunked);
        }
        self.value("content-length")
            .map(|length| Framing::Length(length.parse().unwrap()))
    }
}

impl Deref for Head {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn split_field(line: &str) -> (String, String) {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    (name.to_owned(), value.trim().to_owned())
}

/// Reads messages from a stream, keeping what was read too far for the next.
#[derive(Debug)]
pub struct MessageReader<R> {
    stream: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> MessageReader<R> {
    /// Reads from `stream`, which stands at the start of a message.
    pub fn new(stream: R) -> Self {
        Self {
            stream,
            buffer: BytesMut::new(),
        }
    }

    /// The stream, and what was read from it too far.
    pub fn into_parts(self) -> (R, BytesMut) {
        (self.stream, self.buffer)
    }

    /// The stream itself, to write to.
    pub fn stream_mut(&mut self) -> &mut R {
        &mut self.stream
    }

    /// The next head, or how the connection ended instead.
    ///
    /// # Errors
    /// [`End`] when there is no further head.
    pub async fn read_head(&mut self) -> Result<Head, End> {
        let mut searched = 0;
        loop {
            if let Some(at) = find(&self.buffer[searched..], b"\r\n\r\n") {
                return Ok(Head::parse(&self.buffer.split_to(searched + at + 4)));
            }
            searched = self.buffer.len().saturating_sub(3);
            self.fill().await?;
        }
    }

    /// The content that follows a head.
    pub async fn read_content(&mut self, framing: Framing) -> Content {
        let mut bytes = BytesMut::new();
        let mut trailers = Fields::new();
        let end = match framing {
            Framing::Absent => Ok(()),
            Framing::Length(length) => self.read_length(length, &mut bytes).await,
            Framing::Chunked => self.read_chunks(&mut bytes, &mut trailers).await,
            Framing::UntilClose => loop {
                bytes.extend_from_slice(&self.buffer.split());
                match self.fill().await {
                    Ok(()) => {}
                    Err(End::Reset) => break Err(End::Reset),
                    Err(_) => break Ok(()),
                }
            },
        };
        let end = end.err().unwrap_or(End::Clean);
        Content {
            bytes: bytes.freeze(),
            trailers,
            end,
        }
    }

    /// Whatever comes next: at least one byte, unless the connection has ended.
    ///
    /// # Errors
    /// [`End`] when nothing more comes.
    pub async fn read_some(&mut self) -> Result<Bytes, End> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        Ok(self.buffer.split().freeze())
    }

    /// Exactly `length` bytes.
    ///
    /// # Errors
    /// [`End`] when fewer come.
    pub async fn read_exact(&mut self, length: usize) -> Result<Bytes, End> {
        while self.buffer.len() < length {
            self.fill().await?;
        }
        Ok(self.buffer.split_to(length).freeze())
    }

    /// One line without its end.
    ///
    /// # Errors
    /// [`End`] when the line is cut.
    pub async fn read_line(&mut self) -> Result<String, End> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let line = self.buffer.split_to(at + 2);
                return Ok(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            self.fill().await?;
        }
    }

    async fn read_length(&mut self, length: u64, bytes: &mut BytesMut) -> Result<(), End> {
        let mut rest = length;
        while rest > 0 {
            if self.buffer.is_empty() {
                self.fill().await.map_err(cut)?;
            }
            let piece = usize::try_from(rest)
                .unwrap_or(usize::MAX)
                .min(self.buffer.len());
            bytes.extend_from_slice(&self.buffer.split_to(piece));
            rest -= piece as u64;
        }
        Ok(())
    }

    async fn read_chunks(
        &mut self,
        bytes: &mut BytesMut,
        trailers: &mut Fields,
    ) -> Result<(), End> {
        loop {
            let line = self.read_line().await.map_err(cut)?;
            let size = line.split(';').next().unwrap_or_default();
            let size = u64::from_str_radix(size, 16).unwrap_or_else(|_| panic!("chunk {line:?}"));
            if size == 0 {
                break;
            }
            self.read_length(size, bytes).await?;
            let line = self.read_line().await.map_err(cut)?;
            assert!(line.is_empty(), "a chunk is followed by {line:?}");
        }
        loop {
            let line = self.read_line().await.map_err(cut)?;
            if line.is_empty() {
                return Ok(());
            }
            trailers.push(split_field(&line));
        }
    }

    /// Reads more into the buffer. A stream that ends here ends cleanly only between messages;
    /// the callers that are inside one turn it into a cut.
    async fn fill(&mut self) -> Result<(), End> {
        match self.stream.read_buf(&mut self.buffer).await {
            Ok(0) if self.buffer.is_empty() => Err(End::Clean),
            Ok(0) => Err(End::Cut),
            Ok(_) => Ok(()),
            // rustls reports a TLS stream that ended without its closing alert in this way.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(End::Cut),
            Err(_) => Err(End::Reset),
        }
    }
}

fn cut(end: End) -> End {
    if end == End::Clean { End::Cut } else { end }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// Fields as text, for records and for JSON.
pub fn fields(headers: &HeaderMap) -> Fields {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(wire: &[u8], method: &str) -> (Head, Content) {
        let mut reader = MessageReader::new(wire);
        let head = reader.read_head().await.unwrap();
        let content = reader.read_content(head.response_framing(method)).await;
        (head, content)
    }

    #[tokio::test]
    async fn fields_keep_order_case_and_count() {
        let wire = b"HTTP/1.1 204 No Content\r\nSet-Cookie: b\r\nX: 1\r\nset-cookie: a\r\n\r\n";
        let (head, _) = read(wire, "GET").await;
        assert_eq!(head.status(), 204);
        assert_eq!(head.values("SET-COOKIE"), ["b", "a"]);
        assert_eq!(head.fields[2].0, "set-cookie");
    }

    #[tokio::test]
    async fn chunks_and_trailers_are_taken_apart() {
        let wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n";
        let (_, content) = read(wire, "GET").await;
        assert_eq!(content.bytes, "abcde");
        assert_eq!(content.trailers, [("X-Sum".to_owned(), "5".to_owned())]);
        assert_eq!(content.end, End::Clean);
    }

    #[tokio::test]
    async fn a_cut_is_told_from_a_clean_end() {
        for (wire, end) in [
            (
                &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"[..],
                End::Clean,
            ),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", End::Cut),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", End::Cut),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                End::Cut,
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
                End::Cut,
            ),
            (b"HTTP/1.1 200 OK\r\n\r\nabc", End::Clean),
        ] {
            assert_eq!(
                read(wire, "GET").await.1.end,
                end,
                "{:?}",
                String::from_utf8_lossy(wire)
            );
        }
    }

    #[tokio::test]
    async fn a_head_request_has_no_content() {
        let (_, content) = read(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "HEAD").await;
        assert!(content.bytes.is_empty());
        assert_eq!(content.end, End::Clean);
    }
}
