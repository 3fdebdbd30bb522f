//! TLS on a connection: handshake, names, certificate errors, and a verifier that accepts any certificate.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::tls_files::{self, Identity, TlsFilesError};

/// The name that a peer's certificate must have: a DNS name or an IP address.
///
/// # Errors
/// When the host is neither.
pub fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    // Certificates have no last dot, with which a resolver skips its search domains.
    let name = host.strip_suffix('.').unwrap_or(host);
    ServerName::try_from(name.to_owned())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "not a DNS name or IP address"))
}

/// Makes the handshake. An error of TLS is a [`rustls::Error`] inside the [`io::Error`].
pub async fn handshake<IO>(
    stream: IO,
    config: &Arc<ClientConfig>,
    name: ServerName<'static>,
) -> io::Result<TlsStream<IO>>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    TlsConnector::from(Arc::clone(config))
        .connect(name, stream)
        .await
}

/// Whether a handshake failed because of the peer's certificate.
pub fn is_certificate_error(error: &io::Error) -> bool {
    matches!(
        tls_error(error),
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)
    )
}

/// Whether the peer refused the handshake because it speaks none of the offered protocols (RFC 7301 section 3.2).
pub fn is_protocol_refused(error: &io::Error) -> bool {
    use rustls::{AlertDescription::NoApplicationProtocol, Error};
    matches!(
        tls_error(error),
        Some(Error::AlertReceived(NoApplicationProtocol) | Error::NoApplicationProtocol)
    )
}

/// The error of the peer's certificate, if that made the handshake fail.
pub fn certificate_error(error: &io::Error) -> Option<&CertificateError> {
    match tls_error(error)? {
        rustls::Error::InvalidCertificate(error) => Some(error),
        _ => None,
    }
}

/// Whether a certificate is of a version of X.509 that has no extensions.
pub fn is_old_certificate(error: &CertificateError) -> bool {
    match error {
        CertificateError::Other(other) => {
            other.0.downcast_ref() == Some(&webpki::Error::UnsupportedCertVersion)
        }
        _ => false,
    }
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// A TLS configuration that accepts any certificate.
///
/// # Errors
/// When TLS cannot be set up.
pub fn config_without_verification(
    identity: Option<&Identity>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsFilesError> {
    tls_files::client_config_with(identity, alpn, |provider| {
        Arc::new(AcceptAny {
            schemes: provider
                .signature_verification_algorithms
                .supported_schemes(),
        })
    })
}

/// Accepts any certificate: for upstreams configured so, and for diagnosis. Signatures are not checked either: from an
/// unknown peer they prove nothing, and some old certificates cannot even be parsed.
#[derive(Debug)]
struct AcceptAny {
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
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
