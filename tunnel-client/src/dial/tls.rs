//! From a TCP connection to one under TLS, the peer's certificate checked.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The name that a peer's certificate has to be for: a DNS name, or an IP address.
///
/// # Errors
/// When the host is neither.
pub(crate) fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    // Certificates never have the last dot that keeps a resolver from trying its own domains.
    let name = host.strip_suffix('.').unwrap_or(host);
    ServerName::try_from(name.to_owned())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "no name that TLS can check"))
}

/// Does the handshake. An error of TLS itself is a [`rustls::Error`] within the [`io::Error`].
pub(crate) async fn handshake(
    stream: TcpStream,
    config: &Arc<ClientConfig>,
    name: ServerName<'static>,
) -> io::Result<TlsStream<TcpStream>> {
    TlsConnector::from(Arc::clone(config))
        .connect(name, stream)
        .await
}

/// Whether the peer's certificate is what a handshake failed for.
pub(crate) fn is_certificate_error(error: &io::Error) -> bool {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(
        inner,
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_can_be_checked() {
        for host in [
            "tunnel.example.com",
            "tunnel.example.com.",
            "127.0.0.1",
            "::1",
        ] {
            assert!(server_name(host).is_ok(), "{host}");
        }
        assert_eq!(server_name("a.b.").unwrap(), server_name("a.b").unwrap());
        assert!(server_name("a b").is_err());
    }
}
