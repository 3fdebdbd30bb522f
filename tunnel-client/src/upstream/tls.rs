//! How TLS is spoken with upstreams: whom they may be, what they are shown, which name they have.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tunnel_ops::tls_files::{self, Identity, TlsFilesError};

use super::settings::{UpstreamError, UpstreamTls};
use crate::dial::tls;

/// HTTP/2 or HTTP/1.1, as the upstream likes.
const ANY: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// HTTP/1.1 alone.
const HTTP1: [&[u8]; 1] = [b"http/1.1"];

/// What a connection is to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// HTTP/2 or HTTP/1.1.
    Any,
    /// HTTP/1.1.
    Http1,
}

/// What is offered to upstreams; clones share the sessions that can be resumed.
#[derive(Clone)]
pub(super) struct TlsOffers {
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
    /// The one name of all of them, if it is not each one's host.
    name: Option<ServerName<'static>>,
}

impl TlsOffers {
    /// As a route says.
    ///
    /// # Errors
    /// See [`UpstreamError`].
    pub(super) fn new(options: &UpstreamTls) -> Result<Self, UpstreamError> {
        let name = options.server_name.as_ref().map(|name| {
            tls::server_name(name).map_err(|_| UpstreamError::ServerName(name.clone()))
        });
        let config = |alpn: &[&[u8]]| match &options.roots {
            _ if options.insecure => unchecked(options.identity.as_ref(), alpn),
            Some(roots) => tls_files::client_config(roots, options.identity.as_ref(), alpn),
            None => Err(TlsFilesError::NoRoots),
        };
        Ok(Self {
            any: config(&ANY)?,
            http1: config(&HTTP1)?,
            name: name.transpose()?,
        })
    }

    pub(super) fn config(&self, offer: Offer) -> &Arc<ClientConfig> {
        match offer {
            Offer::Any => &self.any,
            Offer::Http1 => &self.http1,
        }
    }

    /// The name that the certificate of an upstream with this host has to be for.
    pub(super) fn name(&self, host: &str) -> io::Result<ServerName<'static>> {
        match &self.name {
            Some(name) => Ok(name.clone()),
            None => tls::server_name(host),
        }
    }
}

fn unchecked(
    identity: Option<&Identity>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, TlsFilesError> {
    tls_files::client_config_with(identity, alpn, |provider| {
        Arc::new(Unchecked {
            schemes: provider
                .signature_verification_algorithms
                .supported_schemes(),
        })
    })
}

/// Takes any certificate of anybody, for those who have written that they want it so. Signatures are
/// not looked at either: from somebody unknown they say nothing, and many an old certificate cannot
/// even be read.
struct Unchecked {
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for Unchecked {
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

impl fmt::Debug for Unchecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unchecked")
    }
}
