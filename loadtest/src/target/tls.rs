//! Which certificates of a target are trusted.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// The trusted certificates.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Those of these authorities.
    Only(Vec<CertificateDer<'static>>),
    /// Any certificate: the load is the point, not who takes it.
    Anybody,
}

impl Trust {
    /// That of the system.
    pub fn system() -> Self {
        Self::Only(rustls_native_certs::load_native_certs().certs)
    }
}

/// The TLS settings of a client.
///
/// # Errors
/// No authority is known.
pub fn client(trust: Trust, http2: bool) -> anyhow::Result<Arc<ClientConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let builder = match trust {
        Trust::Anybody => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        Trust::Only(authorities) => {
            let mut roots = RootCertStore::empty();
            for authority in authorities {
                let added = roots.add(authority);
                added.context("a CA certificate is not usable")?;
            }
            if roots.is_empty() {
                bail!("no CA certificates are known: give --ca FILE, or --insecure");
            }
            builder.with_root_certificates(roots)
        }
    };
    let mut config = builder.with_no_client_auth();
    let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

/// Accepts any certificate, but checks the handshake's own signature, which costs what it costs.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
