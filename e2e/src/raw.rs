//! A connection on which a test writes exactly the bytes it wants, and sees exactly what returns.
//!
//! [`RawClient`] asks like a platform client that follows no rules; [`RawConnection`] is also what
//! a [`crate::scripted::ScriptedUpstream`] hands to its script.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use bytes::BytesMut;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    deadline::{SOON, within},
    entry::Entry,
    message::{Content, End, Framing, Head, MessageReader},
};

/// Bytes both ways, plain or TLS.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// One connection, with the socket under it. Every wait on it is bounded.
pub struct RawConnection {
    reader: MessageReader<Box<dyn Duplex>>,
    /// The socket itself, to change how it closes.
    socket: OwnedFd,
}

/// A response as it came.
#[derive(Clone, Debug)]
pub struct RawResponse {
    /// Its head.
    pub head: Head,
    /// Its content, and how that ended.
    pub content: Content,
}

impl RawConnection {
    pub(crate) fn new(socket: TcpStream) -> Self {
        let descriptor = socket.as_fd().try_clone_to_owned().unwrap();
        Self {
            reader: MessageReader::new(Box::new(socket)),
            socket: descriptor,
        }
    }

    /// Writes these bytes, in one piece as far as the kernel allows.
    ///
    /// # Panics
    /// When the other side takes none for long. That it is gone is not a failure here: what a
    /// test wants to know then is what it can still read.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        let stream = self.reader.stream_mut();
        let written = within(SOON, "writing", async {
            stream.write_all(bytes.as_ref()).await?;
            stream.flush().await
        });
        drop(written.await);
    }

    /// Writes like [`RawConnection::write`], and says whether the bytes could be handed over.
    pub async fn try_write(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        within(
            SOON,
            "writing",
            self.reader.stream_mut().write_all(bytes.as_ref()),
        )
        .await
        .is_ok()
    }

    /// Ends the sending direction and keeps reading.
    pub async fn finish(&mut self) {
        drop(self.reader.stream_mut().shutdown().await);
    }

    /// Ends the connection with a reset, as a crashed machine's kernel would.
    pub fn reset(self) {
        SockRef::from(&self.socket)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    }

    /// The next head.
    ///
    /// # Errors
    /// How the connection ended instead.
    pub async fn read_head(&mut self) -> Result<Head, End> {
        within(SOON, "a message head", self.reader.read_head()).await
    }

    /// The stream for another protocol, with what was read from it too far.
    pub(crate) fn into_parts(self) -> (Box<dyn Duplex>, BytesMut) {
        self.reader.into_parts()
    }

    /// The next head, without bound: for a connection that may rest between messages.
    pub(crate) async fn read_head_patiently(&mut self) -> Result<Head, End> {
        self.reader.read_head().await
    }

    /// The content after a head.
    pub async fn read_content(&mut self, framing: Framing) -> Content {
        within(
            3 * SOON,
            "a message's content",
            self.reader.read_content(framing),
        )
        .await
    }

    /// The content after a request head.
    pub async fn read_request_content(&mut self, head: &Head) -> Content {
        self.read_content(head.request_framing()).await
    }

    /// Whatever comes next.
    ///
    /// # Errors
    /// How the connection ended, when nothing comes.
    pub async fn read_some(&mut self) -> Result<bytes::Bytes, End> {
        within(SOON, "some bytes", self.reader.read_some()).await
    }

    /// Exactly `length` bytes.
    ///
    /// # Errors
    /// How the connection ended, when fewer come.
    pub async fn read_exact(&mut self, length: usize) -> Result<bytes::Bytes, End> {
        within(SOON, "bytes", self.reader.read_exact(length)).await
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
}

/// A platform client that writes raw bytes.
pub struct RawClient {
    connection: RawConnection,
    authority: String,
}

impl RawClient {
    /// Connects to `entry`, with TLS if it has any (ALPN `http/1.1`).
    ///
    /// # Panics
    /// When nobody listens there, or the TLS handshake fails.
    pub async fn connect(entry: &Entry) -> Self {
        let socket = entry.connect().await;
        let descriptor = socket.as_fd().try_clone_to_owned().unwrap();
        let stream: Box<dyn Duplex> = match entry.secure(socket, "http/1.1").await {
            Ok(secure) => Box::new(secure),
            Err(plain) => Box::new(plain),
        };
        let connection = RawConnection {
            reader: MessageReader::new(stream),
            socket: descriptor,
        };
        Self {
            connection,
            authority: entry.authority().to_owned(),
        }
    }

    /// The connection alone.
    pub fn into_connection(self) -> RawConnection {
        self.connection
    }

    /// Ends the connection with a reset, as a crashed machine's kernel would.
    pub fn reset(self) {
        self.connection.reset();
    }

    /// `Host: …\r\n` for this entry.
    pub fn host_line(&self) -> String {
        format!("Host: {}\r\n", self.authority)
    }

    /// Sends a request with these extra field lines (each with its `\r\n`) and this content.
    pub async fn request(&mut self, method: &str, target: &str, lines: &str, content: &[u8]) {
        let mut wire = format!("{method} {target} HTTP/1.1\r\n{}{lines}", self.host_line());
        let framed = lines.to_ascii_lowercase();
        let framed = framed.contains("content-length") || framed.contains("transfer-encoding");
        if !content.is_empty() && !framed {
            wire.push_str(&format!("Content-Length: {}\r\n", content.len()));
        }
        wire.push_str("\r\n");
        self.connection
            .write([wire.as_bytes(), content].concat())
            .await;
    }

    /// Sends a request and reads its final response.
    ///
    /// # Panics
    /// When there is none.
    pub async fn exchange(&mut self, method: &str, target: &str, lines: &str) -> RawResponse {
        self.request(method, target, lines, b"").await;
        self.read_response(method).await
    }

    /// Reads one final response to a request with `method`; informational ones are skipped.
    ///
    /// # Panics
    /// When the connection ends first.
    pub async fn read_response(&mut self, method: &str) -> RawResponse {
        loop {
            let head = self.connection.read_head().await;
            let head = head.unwrap_or_else(|end| panic!("no response, the connection is {end:?}"));
            if head.status() >= 200 || head.status() == 101 {
                let content = self
                    .connection
                    .read_content(head.response_framing(method))
                    .await;
                return RawResponse { head, content };
            }
        }
    }
}

impl std::ops::Deref for RawClient {
    type Target = RawConnection;

    fn deref(&self) -> &RawConnection {
        &self.connection
    }
}

impl std::ops::DerefMut for RawClient {
    fn deref_mut(&mut self) -> &mut RawConnection {
        &mut self.connection
    }
}
