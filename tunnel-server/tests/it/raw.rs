//! A platform client that writes exactly the bytes a test gives it, and reads HTTP/1.1 answers by
//! rules of its own, so that nothing of the server's is tested against itself.

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::deadline::soon;

/// Bytes both ways, plain or TLS.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// One connection.
pub(crate) struct Raw {
    io: Box<dyn Duplex>,
    held: BytesMut,
}

/// Status and fields of a response.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) is_http11: bool,
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
}

/// How the end of a content was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Nothing,
    Length(usize),
    Chunked,
    Close,
}

/// How reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// As the framing says; for [`Framing::Close`] by an orderly end of the connection.
    Whole,
    /// The connection ended first.
    Cut,
    /// The connection was reset.
    Reset,
}

/// A response.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) interim: Vec<Head>,
    pub(crate) head: Head,
    pub(crate) framing: Framing,
    pub(crate) content: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    pub(crate) end: End,
}

impl Head {
    /// The lines of a field, in their order.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.fields.iter();
        lines
            .filter(|(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// The value of a field that stands there at most once.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let values = self.values(name);
        assert!(
            values.len() <= 1,
            "{name} stands there more than once: {self:?}"
        );
        values.first().copied()
    }

    fn framing(&self, is_to_head: bool) -> Framing {
        let is_chunked = self.value("transfer-encoding") == Some("chunked");
        let length = self
            .value("content-length")
            .map(|length| length.parse().unwrap());
        if is_to_head || matches!(self.status, 100..200 | 204 | 304) {
            Framing::Nothing
        } else if is_chunked {
            assert_eq!(length, None, "two framings: {self:?}");
            assert!(self.is_http11, "chunks for HTTP/1.0: {self:?}");
            Framing::Chunked
        } else {
            length.map_or(Framing::Close, Framing::Length)
        }
    }
}

impl Answer {
    /// The content as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.content.clone()).unwrap()
    }

    /// The `reason` in the body of an answer that the tunnel itself has made.
    pub(crate) fn reason(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.content)
            .unwrap_or_else(|error| panic!("{error} in {self:?}"));
        body["reason"].as_str().unwrap().to_owned()
    }

    /// Checks that the tunnel server has refused a request that cannot be served.
    #[track_caller]
    pub(crate) fn is_refusal(&self, status: u16, what: &str) {
        assert_eq!(self.head.status, status, "{what}: {self:?}");
        assert_eq!(
            self.head.value("connection"),
            Some("close"),
            "{what}: {self:?}"
        );
        assert_eq!(
            self.head.value("content-type"),
            Some("application/json"),
            "{what}"
        );
        let proxy_status = self.head.value("proxy-status").unwrap_or_default();
        assert!(
            proxy_status.starts_with("tunnel-server; error="),
            "{what}: {self:?}"
        );
        assert!(self.head.value("date").is_some(), "{what}: no date");
        assert_eq!(self.end, End::Whole, "{what}");
        assert!(!self.reason().is_empty(), "{what}");
    }
}

impl Raw {
    pub(crate) fn new(io: impl Duplex + 'static) -> Self {
        Self {
            io: Box::new(io),
            held: BytesMut::new(),
        }
    }

    /// Writes the bytes. That the other side has gone is not a failure here: what a test wants to
    /// know then is what it can still read.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = soon("writing", async {
            self.io.write_all(bytes.as_ref()).await?;
            self.io.flush().await
        })
        .await;
    }

    /// Says that no more bytes come from here.
    pub(crate) async fn finish(&mut self) {
        let _ = soon("half-closing", self.io.shutdown()).await;
    }

    /// Sends a request and reads the answer to it.
    pub(crate) async fn ask(&mut self, request: impl AsRef<[u8]>) -> Answer {
        self.send(request).await;
        self.answer().await
    }

    /// The next answer; to a request with any method but HEAD.
    pub(crate) async fn answer(&mut self) -> Answer {
        self.answer_to("GET").await
    }

    /// The next answer, to a request with this method.
    pub(crate) async fn answer_to(&mut self, method: &str) -> Answer {
        let mut interim = Vec::new();
        let head = loop {
            let head = self.head().await.expect("an answer");
            if head.status >= 200 || head.status == 101 {
                break head;
            }
            interim.push(head);
        };
        let framing = head.framing(method == "HEAD");
        let mut answer = Answer {
            interim,
            head,
            framing,
            content: Vec::new(),
            trailers: Vec::new(),
            end: End::Whole,
        };
        answer.end = match self.content(&mut answer).await {
            Ok(()) => End::Whole,
            Err(end) if end == End::Whole && framing != Framing::Close => End::Cut,
            Err(end) => end,
        };
        answer
    }

    /// The next head, informational or not; `None` when the connection ends instead.
    pub(crate) async fn head(&mut self) -> Option<Head> {
        loop {
            if let Some(end) = self.held.windows(4).position(|four| four == b"\r\n\r\n") {
                let bytes = self.held.split_to(end + 4);
                return Some(parse_head(&bytes));
            }
            if self.more("a head").await.is_err() {
                assert!(self.held.is_empty(), "half a head: {:?}", self.held);
                return None;
            }
        }
    }

    async fn content(&mut self, answer: &mut Answer) -> Result<(), End> {
        match answer.framing {
            Framing::Nothing => Ok(()),
            Framing::Length(length) => {
                let taken = self.take(length, &mut answer.content).await;
                taken.map(drop)
            }
            Framing::Close => loop {
                let length = self.held.len();
                answer
                    .content
                    .extend_from_slice(&self.held.split_to(length));
                self.more("content up to the end").await?;
            },
            Framing::Chunked => {
                loop {
                    let size = usize::from_str_radix(&self.line().await?, 16).unwrap();
                    if size == 0 {
                        break;
                    }
                    self.take(size, &mut answer.content).await?;
                    assert_eq!(
                        self.line().await?,
                        "",
                        "a chunk that is longer than it said"
                    );
                }
                loop {
                    let line = self.line().await?;
                    let Some((name, value)) = line.split_once(": ") else {
                        assert_eq!(line, "");
                        return Ok(());
                    };
                    answer.trailers.push((name.to_owned(), value.to_owned()));
                }
            }
        }
    }

    async fn take(&mut self, length: usize, content: &mut Vec<u8>) -> Result<(), End> {
        let mut left = length;
        loop {
            let now = left.min(self.held.len());
            content.extend_from_slice(&self.held.split_to(now));
            left -= now;
            if left == 0 {
                return Ok(());
            }
            self.more("content").await?;
        }
    }

    /// The next line, without its end.
    pub(crate) async fn line(&mut self) -> Result<String, End> {
        loop {
            if let Some(end) = self.held.windows(2).position(|two| two == b"\r\n") {
                let line = self.held.split_to(end);
                self.held.advance(2);
                return Ok(String::from_utf8(line.to_vec()).unwrap());
            }
            self.more("a line").await?;
        }
    }

    /// The next `length` bytes, whatever they are.
    pub(crate) async fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.take(length, &mut bytes).await.unwrap();
        bytes
    }

    /// The same; `None` when the connection ends first.
    pub(crate) async fn try_bytes(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.take(length, &mut bytes).await.ok()?;
        Some(bytes)
    }

    /// Everything up to the end of the connection, and how that came.
    pub(crate) async fn rest(&mut self) -> (Vec<u8>, End) {
        loop {
            if let Err(end) = self.more("the end of the connection").await {
                return (self.held.split().to_vec(), end);
            }
        }
    }

    /// Waits for the end of the connection, before which nothing may come.
    #[track_caller]
    pub(crate) fn closes(&mut self) -> impl Future<Output = End> {
        let caller = std::panic::Location::caller();
        async move {
            let (rest, end) = self.rest().await;
            let rest = rest.escape_ascii();
            assert!(
                rest.clone().next().is_none(),
                "{caller}: before the end came {rest}"
            );
            end
        }
    }

    /// Waits for the end of the connection, before which these bytes come.
    pub(crate) async fn closes_behind(&mut self, bytes: &[u8]) -> End {
        let (rest, end) = self.rest().await;
        assert_eq!(
            rest.escape_ascii().to_string(),
            bytes.escape_ascii().to_string()
        );
        end
    }

    /// Two handles, of which one only reads and the other only writes.
    pub(crate) fn split(self) -> (Self, Self) {
        let (reading, writing) = tokio::io::split(self.io);
        let reading = Self {
            io: Box::new(tokio::io::join(reading, tokio::io::sink())),
            held: self.held,
        };
        (
            reading,
            Self::new(tokio::io::join(tokio::io::empty(), writing)),
        )
    }

    /// Reads more; `Err` at the end of the connection.
    async fn more(&mut self, what: &str) -> Result<(), End> {
        match soon(what, self.io.read_buf(&mut self.held)).await {
            Ok(0) => Err(End::Whole),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(End::Cut),
            Err(_) => Err(End::Reset),
        }
    }
}

fn parse_head(bytes: &[u8]) -> Head {
    let mut fields = [httparse::EMPTY_HEADER; 256];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(bytes).unwrap();
    assert!(parsed.is_complete());
    let text = |value: &[u8]| value.iter().map(|&byte| char::from(byte)).collect();
    Head {
        is_http11: response.version == Some(1),
        status: response.code.unwrap(),
        fields: response
            .headers
            .iter()
            .map(|field| (field.name.to_owned(), text(field.value)))
            .collect(),
    }
}
