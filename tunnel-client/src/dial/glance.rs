//! A look at whoever answers in the server's place: the same way, but no session is asked for, and nothing is
//! shown that is worth anything.
//!
//! For whoever wants to know why a dial has failed. One who cannot prove who he is is looked at as well, since
//! he is told nothing and believed in nothing that matters: neither token nor certificate of the client goes
//! there, and what comes back is words for a person.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tunnel_ops::tls_files::{self, Roots};

use super::observe::{Logged, Walk};
use super::step::{Step, StepError};
use super::{Dialler, tls, upgrade};

/// How whoever answers is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// He has to prove that he is the server.
    Proven,
    /// He need not.
    Unproven,
    /// Without TLS, which he does not speak.
    Plain,
}

/// An answer to nobody in particular: its status, its fields, and the beginning of its content.
pub(crate) type Glance = (StatusCode, HeaderMap, Bytes);

impl Dialler {
    /// Asks for no session, without a credential, and returns what is answered.
    ///
    /// # Errors
    /// As a dial fails.
    pub(crate) async fn glance(&self, look: Look) -> Result<Glance, StepError> {
        let mut observer = Logged;
        let mut walk = Walk::new(self.limit, &mut observer);
        let (link, _) = Box::pin(self.reach(&mut walk)).await?;
        let (name, limit) = (&self.server_name, walk.limit());
        let io = match look {
            Look::Plain => {
                let asking = Box::pin(upgrade::look(link, &self.host_field, limit));
                let asked = walk.step_with_limit(Step::Upgrade, limit, asking, |_, _| {});
                return asked.await;
            }
            Look::Proven => {
                self.tls
                    .secure(&mut walk, Step::Tls, link, name, None)
                    .await?
            }
            Look::Unproven => {
                let handshake = async {
                    let config = unproven_config().map_err(io::Error::other)?;
                    tls::handshake(link, &config, tls::server_name(name)?).await
                };
                walk.step(Step::Tls, handshake, |_, _| {}).await?
            }
        };
        let asking = Box::pin(upgrade::look(io, &self.host_field, limit));
        let asked = walk.step_with_limit(Step::Upgrade, limit, asking, |_, _| {});
        asked.await
    }
}

fn unproven_config() -> Result<Arc<ClientConfig>, tls_files::TlsFilesError> {
    let config = tls_files::client_config(&Roots::none(), None, &tls::ALPN)?;
    let mut config = Arc::unwrap_or_clone(config);
    config.resumption = Resumption::disabled();
    let provider = Arc::clone(config.crypto_provider());
    let schemes = provider
        .signature_verification_algorithms
        .supported_schemes();
    config
        .dangerous()
        .set_certificate_verifier(Arc::new(Anybody { schemes }));
    Ok(Arc::new(config))
}

/// Takes whoever answers.
#[derive(Debug)]
struct Anybody {
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}
