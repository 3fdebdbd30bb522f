//! A connection on which a test writes exactly the bytes it wants, and sees exactly what returns.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    panic::Location,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, empty, join, sink},
    net::TcpStream,
};

use super::{Content, End, Framing, Head, MessageReader};
use crate::deadline::{SOON, soon, within};

/// Bytes both ways, plain or TLS.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// One connection. Every wait on it is bounded, save where it says otherwise.
pub struct RawConnection {
    reader: MessageReader<Box<dyn Duplex>>,
    /// The socket itself, to change how it closes; none where the stream has none.
    socket: Option<OwnedFd>,
}

/// A response as it came.
#[derive(Clone, Debug)]
pub struct RawResponse {
    /// The heads before the final one.
    pub informational: Vec<Head>,
    /// The final head.
    pub head: Head,
    /// How the length of the content was said.
    pub framing: Framing,
    /// The content, and how it ended.
    pub content: Content,
}

impl RawResponse {
    /// The content as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.content.bytes.to_vec()).unwrap()
    }

    /// The member `reason` of the content, which is JSON.
    ///
    /// # Panics
    /// When the content is something else.
    pub fn reason(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.content.bytes)
            .unwrap_or_else(|error| panic!("{error} in {self:?}"));
        body["reason"].as_str().unwrap().to_owned()
    }

    /// Asserts that the tunnel server has refused a request that cannot be served, and closes.
    #[track_caller]
    pub fn assert_refused(&self, status: u16, what: &str) {
        let value = |name: &str| self.head.value(name);
        assert_eq!(self.head.status(), status, "{what}: {self:?}");
        assert_eq!(value("connection"), Some("close"), "{what}: {self:?}");
        assert_eq!(value("content-type"), Some("application/json"), "{what}");
        let proxy_status = value("proxy-status").unwrap_or_default();
        assert!(
            proxy_status.starts_with("tunnel-server; error="),
            "{what}: {self:?}"
        );
        assert!(value("date").is_some(), "{what}: no date");
        assert_eq!(self.content.end, End::Clean, "{what}");
        assert!(!self.reason().is_empty(), "{what}");
    }
}

/// The response of the listener at `address` to a `GET` for `path` with the host `host`.
///
/// # Panics
/// When there is no answer.
pub async fn get(address: SocketAddr, host: &str, path: &str) -> RawResponse {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    RawConnection::connect(address).await.ask(request).await
}

impl RawConnection {
    /// Connects to `address`, without TLS.
    ///
    /// # Panics
    /// When there is no listener.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = soon("a connection", TcpStream::connect(address)).await;
        let socket = socket.unwrap_or_else(|error| panic!("{address}: {error}"));
        socket.set_nodelay(true).unwrap();
        Self::new(socket)
    }

    /// A connection without TLS.
    pub fn new(socket: TcpStream) -> Self {
        let descriptor = socket.as_fd().try_clone_to_owned().unwrap();
        Self::with_socket(socket, descriptor)
    }

    /// A connection whose bytes go through `stream` and, under it, this socket.
    pub fn with_socket(stream: impl Duplex + 'static, socket: OwnedFd) -> Self {
        Self {
            socket: Some(socket),
            ..Self::over(stream)
        }
    }

    /// A connection over any stream. It cannot be reset.
    pub fn over(stream: impl Duplex + 'static) -> Self {
        Self {
            reader: MessageReader::new(Box::new(stream)),
            socket: None,
        }
    }

    /// Writes these bytes, in one piece as far as the kernel allows.
    ///
    /// # Panics
    /// When the other side takes none for long. That it is gone is not a failure here: what a
    /// test wants to know then is what it can still read.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).await;
    }

    /// Writes like [`RawConnection::send`], and says whether the bytes could be handed over.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        let stream = self.reader.stream_mut();
        let written = soon("writing", async {
            stream.write_all(bytes.as_ref()).await?;
            stream.flush().await
        });
        written.await.is_ok()
    }

    /// Ends the sending direction and keeps reading.
    pub async fn finish(&mut self) {
        drop(soon("half-closing", self.reader.stream_mut().shutdown()).await);
    }

    /// Ends the connection with a reset, as a crashed machine's kernel would.
    ///
    /// # Panics
    /// When there is no socket under the stream.
    pub fn reset(&mut self) {
        let socket = self.socket.take().unwrap();
        SockRef::from(&socket)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        self.reader = MessageReader::new(Box::new(empty()));
    }

    /// The stream for another protocol, with what was read from it too far.
    pub fn into_parts(self) -> (Box<dyn Duplex>, BytesMut) {
        self.reader.into_parts()
    }

    /// Two handles, of which one only reads and the other only writes.
    pub fn split(self) -> (Self, Self) {
        let (stream, buffer) = self.reader.into_parts();
        let (reading, writing) = tokio::io::split(stream);
        let mut reader = Self::over(join(reading, sink()));
        reader.reader.buffer = buffer;
        (reader, Self::over(join(empty(), writing)))
    }

    /// Sends a request, not one with the method HEAD, and reads its final response.
    ///
    /// # Panics
    /// When there is none.
    pub async fn ask(&mut self, request: impl AsRef<[u8]>) -> RawResponse {
        self.send(request).await;
        self.response().await
    }

    /// The final response to a request with any method but HEAD.
    ///
    /// # Panics
    /// When the connection ends first.
    pub async fn response(&mut self) -> RawResponse {
        self.response_to("GET").await
    }

    /// The final response to a request with `method`.
    ///
    /// # Panics
    /// When the connection ends first.
    pub async fn response_to(&mut self, method: &str) -> RawResponse {
        let mut informational = Vec::new();
        let head = loop {
            let head = self.head().await;
            let head = head.unwrap_or_else(|end| panic!("no response, the connection is {end:?}"));
            if head.status() >= 200 || head.status() == 101 {
                break head;
            }
            informational.push(head);
        };
        let framing = head.response_framing(method);
        let content = self.content(framing).await;
        RawResponse {
            informational,
            head,
            framing,
            content,
        }
    }

    /// The next head.
    ///
    /// # Errors
    /// How the connection ended instead.
    pub async fn head(&mut self) -> Result<Head, End> {
        soon("a message head", self.reader.read_head()).await
    }

    /// The next head, without a bound: for a connection that may rest between messages.
    ///
    /// # Errors
    /// How the connection ended instead.
    pub async fn unbounded_head(&mut self) -> Result<Head, End> {
        self.reader.read_head().await
    }

    /// The content after a head.
    pub async fn content(&mut self, framing: Framing) -> Content {
        within(
            3 * SOON,
            "a message's content",
            self.reader.read_content(framing),
        )
        .await
    }

    /// Whatever comes next.
    ///
    /// # Errors
    /// How the connection ended, when nothing comes.
    pub async fn read_some(&mut self) -> Result<Bytes, End> {
        soon("some bytes", self.reader.read_some()).await
    }

    /// One line without its end.
    ///
    /// # Errors
    /// How the connection ended, when the line is cut.
    pub async fn line(&mut self) -> Result<String, End> {
        soon("a line", self.reader.read_line()).await
    }

    /// The next `length` bytes.
    ///
    /// # Panics
    /// When fewer come.
    pub async fn bytes(&mut self, length: usize) -> Vec<u8> {
        let bytes = self.try_bytes(length).await;
        bytes.unwrap_or_else(|end| panic!("fewer than {length} bytes: the connection is {end:?}"))
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// How the connection ended, when fewer come.
    pub async fn try_bytes(&mut self, length: usize) -> Result<Vec<u8>, End> {
        let bytes = soon("bytes", self.reader.read_exact(length)).await;
        bytes.map(|bytes| bytes.to_vec())
    }

    /// Everything up to the end of the connection, and how that came.
    pub async fn rest(&mut self) -> (Vec<u8>, End) {
        let mut rest = Vec::new();
        loop {
            match self.read_some().await {
                Ok(bytes) => rest.extend_from_slice(&bytes),
                Err(end) => return (rest, end),
            }
        }
    }

    /// Reads and throws away until the connection ends, and says how it did.
    pub async fn wait_end(&mut self, limit: Duration) -> End {
        within(limit, "the end of the connection", async {
            loop {
                if let Err(end) = self.reader.read_some().await {
                    return end;
                }
            }
        })
        .await
    }

    /// Waits for the end of the connection, before which nothing may come.
    #[track_caller]
    pub fn closes(&mut self) -> impl Future<Output = End> {
        self.closes_after(b"")
    }

    /// Waits for the end of the connection, before which exactly these bytes come.
    #[track_caller]
    pub fn closes_after(&mut self, bytes: &[u8]) -> impl Future<Output = End> {
        let caller = Location::caller();
        async move {
            let (rest, end) = self.rest().await;
            assert_eq!(
                rest.escape_ascii().to_string(),
                bytes.escape_ascii().to_string(),
                "before the end, at {caller}"
            );
            end
        }
    }
}
