//! A platform client that follows no rules: it writes raw bytes to an entry.

use std::os::fd::AsFd;

pub use testkit::http1::{Duplex, RawConnection, RawResponse};

use crate::entry::Entry;

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
        let connection = RawConnection::with_socket(stream, descriptor);
        Self {
            connection,
            authority: entry.authority().to_owned(),
        }
    }

    /// The connection alone.
    pub fn into_connection(self) -> RawConnection {
        self.connection
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
            .send([wire.as_bytes(), content].concat())
            .await;
    }

    /// Sends a request and reads its final response.
    ///
    /// # Panics
    /// When there is none.
    pub async fn exchange(&mut self, method: &str, target: &str, lines: &str) -> RawResponse {
        self.request(method, target, lines, b"").await;
        self.response_to(method).await
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
