//! The entry of a platform client's requests: the address to connect to, and the host of the requests.
//!
//! An entry is a tunnel server's public listener with a runtime's host, or an upstream itself.
//! Tests take one, so that they can be run through the tunnel and, to prove the test, without it.

use std::{net::SocketAddr, sync::Arc};

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    ca::Ca,
    deadline::{SOON, within},
};

/// An address, the authority of the requests, and whether to speak TLS.
#[derive(Clone, Debug)]
pub struct Entry {
    address: SocketAddr,
    authority: String,
    tls: Option<Arc<ClientConfig>>,
}

impl Entry {
    /// A plain listener at `address`, for requests to `host` (without port).
    pub fn plain(address: SocketAddr, host: &str) -> Self {
        Self {
            address,
            authority: format!("{host}:{}", address.port()),
            tls: None,
        }
    }

    /// The listener at `address` itself, with no other name.
    pub fn direct(address: SocketAddr) -> Self {
        Self {
            address,
            authority: address.to_string(),
            tls: None,
        }
    }

    /// A TLS listener at `address`, for requests to `host`, whose certificate is checked against `ca`.
    pub fn tls(address: SocketAddr, host: &str, ca: &Ca) -> Self {
        Self {
            tls: Some(Arc::new(ca.client_config())),
            ..Self::plain(address, host)
        }
    }

    /// A TLS listener at `address`, for requests to `host`, whose certificate is checked as `config` says.
    pub fn tls_by(address: SocketAddr, host: &str, config: Arc<ClientConfig>) -> Self {
        Self {
            tls: Some(config),
            ..Self::plain(address, host)
        }
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `Host` or `:authority` of a request, with the port.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The host alone.
    pub fn host(&self) -> &str {
        self.authority
            .rsplit_once(':')
            .map_or(self.authority.as_str(), |(host, _)| host)
    }

    /// A URL whose name resolves to loopback in curl and in browsers.
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.authority)
    }

    /// The URL with the scheme `ws` or `wss`.
    pub fn websocket_url(&self, path: &str) -> String {
        format!("ws{}", &self.url(path)["http".len()..])
    }

    /// A connection to the listener.
    ///
    /// # Panics
    /// When it is not accepted.
    pub async fn connect(&self) -> TcpStream {
        let socket = within(SOON, "a connection", TcpStream::connect(self.address)).await;
        let socket = socket.unwrap_or_else(|error| panic!("{}: {error}", self.address));
        socket.set_nodelay(true).unwrap();
        socket
    }

    /// TLS with this protocol over a connection, or the connection itself if the entry is plain.
    ///
    /// # Errors
    /// The connection, where there is no TLS.
    ///
    /// # Panics
    /// When the handshake fails.
    pub async fn secure<S>(&self, connection: S, alpn: &str) -> Result<TlsStream<S>, S>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Some(config) = &self.tls else {
            return Err(connection);
        };
        let mut config = config.as_ref().clone();
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        let name = ServerName::try_from(self.host().to_owned()).unwrap();
        let handshake = TlsConnector::from(Arc::new(config)).connect(name, connection);
        Ok(within(SOON, "a TLS handshake", handshake).await.unwrap())
    }

    /// An entry at this listener for requests to another host.
    #[must_use]
    pub fn with_host(&self, host: &str) -> Self {
        Self {
            authority: format!("{host}:{}", self.address.port()),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_carry_scheme_host_and_port() {
        let entry = Entry::plain(
            "127.0.0.1:8080".parse().unwrap(),
            "demo-app.tunnels.localhost",
        );
        assert_eq!(
            entry.url("/a?b"),
            "http://demo-app.tunnels.localhost:8080/a?b"
        );
        assert_eq!(
            entry.websocket_url("/ws"),
            "ws://demo-app.tunnels.localhost:8080/ws"
        );
        assert_eq!(entry.host(), "demo-app.tunnels.localhost");
        assert_eq!(
            entry.with_host("other.localhost").authority(),
            "other.localhost:8080"
        );
    }
}
