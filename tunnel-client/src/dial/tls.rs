//! TLS to one peer, with verification of its certificate.
//!
//! [`Tls`] reads the CA files at each dial, and keeps the last valid ones. The observer of a dial can get the peer's
//! certificates.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_blocking;
use tokio_rustls::client::TlsStream;
use tunnel_ops::connect::tls::{handshake, server_name};
use tunnel_ops::tls_files::{self, Identity, Roots, TlsFilesError};

use super::observe::{Observation, StepRunner};
use super::step::StepError;
use crate::config::Trust;
use crate::step::Step;

/// Upgrades and `CONNECT` need HTTP/1.1.
pub(super) const ALPN: [&[u8]; 1] = [b"http/1.1"];

/// The TLS configuration for one peer.
#[derive(Debug)]
pub(super) struct Tls {
    trust: Trust,
    state: Mutex<TlsState>,
}

/// The roots in use, and the configuration that was made from them.
#[derive(Debug)]
struct TlsState {
    roots: Roots,
    /// The last configuration and its identity, kept because it holds the TLS sessions for resumption.
    cached: Option<(Option<Identity>, Arc<ClientConfig>)>,
    /// The last logged error of the files.
    reported: Option<String>,
}

/// The certificates of a peer.
type Chain = Arc<Mutex<Vec<CertificateDer<'static>>>>;

/// Verifies by another verifier, and keeps the peer's certificates.
#[derive(Debug)]
struct RecordingVerifier {
    inner: Arc<dyn ServerCertVerifier>,
    chain: Chain,
}

impl Tls {
    /// Reads the CA files for the first time.
    ///
    /// # Errors
    /// When they cannot be used.
    pub(super) fn new(trust: Trust) -> Result<Self, TlsFilesError> {
        let roots = trust.load()?;
        Ok(Self {
            trust,
            state: Mutex::new(TlsState {
                roots,
                cached: None,
                reported: None,
            }),
        })
    }

    /// Runs the step of the TLS handshake; `host` is the name that the certificate has to be valid for.
    pub(super) async fn secure<IO>(
        &self,
        steps: &mut StepRunner<'_>,
        step: Step,
        stream: IO,
        host: &str,
        identity: Option<&Identity>,
    ) -> Result<TlsStream<IO>, StepError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let chain = steps.wants_chains().then(Chain::default);
        let handshake = async {
            self.read().await?;
            let config = self
                .config(identity, chain.as_ref())
                .map_err(io::Error::other)?;
            handshake(stream, &config, server_name(host)?).await
        };
        steps
            .step(step, handshake, |ended, observer| {
                if let Some(chain) = chain.as_ref().map(|chain| chain.lock())
                    && !chain.is_empty()
                {
                    observer.observe(Observation::Chain(&chain));
                }
                if let Ok(stream) = ended {
                    let version = stream.get_ref().1.protocol_version();
                    observer.observe(Observation::Tls { version });
                }
            })
            .await
    }

    /// Reads the CA files again, on a blocking thread, since a folder of them takes a while.
    async fn read(&self) -> io::Result<()> {
        if !self.trust.is_fixed() {
            let trust = self.trust.clone();
            let read = spawn_blocking(move || trust.load()).await?;
            self.state.lock().update_roots(read);
        }
        Ok(())
    }

    /// The configuration for the next handshake. With `chain`, which gets the peer's certificates, it is made for this
    /// handshake alone.
    fn config(
        &self,
        identity: Option<&Identity>,
        chain: Option<&Chain>,
    ) -> Result<Arc<ClientConfig>, TlsFilesError> {
        let mut state = self.state.lock();
        let Some(chain) = chain else {
            return state.config(identity);
        };
        let config = tls_files::client_config(&state.roots, identity, &ALPN)?;
        let mut config = Arc::unwrap_or_clone(config);
        config.resumption = Resumption::disabled();
        let inner = state.roots.verifier()?;
        let chain = Arc::clone(chain);
        config
            .dangerous()
            .set_certificate_verifier(Arc::new(RecordingVerifier { inner, chain }));
        Ok(Arc::new(config))
    }
}

impl TlsState {
    /// Uses the roots that were read. An error is logged once, and the previous roots stay in use.
    fn update_roots(&mut self, read: Result<Roots, TlsFilesError>) {
        match read {
            Ok(roots) => {
                self.reported = None;
                if roots != self.roots {
                    tracing::info!("the CA certificates have changed");
                    self.roots = roots;
                    self.cached = None;
                }
            }
            Err(error) => {
                let text = error.to_string();
                if self.reported.as_ref() != Some(&text) {
                    tracing::warn!(%error, "the CA certificates cannot be used, the previous ones stay in use");
                    self.reported = Some(text);
                }
            }
        }
    }

    fn config(&mut self, identity: Option<&Identity>) -> Result<Arc<ClientConfig>, TlsFilesError> {
        if let Some((cached_for, config)) = &self.cached
            && cached_for.as_ref() == identity
        {
            return Ok(Arc::clone(config));
        }
        let config = tls_files::client_config(&self.roots, identity, &ALPN)?;
        self.cached = Some((identity.cloned(), Arc::clone(&config)));
        Ok(config)
    }
}

impl ServerCertVerifier for RecordingVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let shown = [end_entity].into_iter().chain(intermediates);
        *self.chain.lock() = shown.map(|one| one.clone().into_owned()).collect();
        self.inner
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn certificate(name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn sessions_are_resumed_for_as_long_as_nothing_changes() {
        let (pem, key) = certificate("a");
        let identity = Identity::from_pem(&pem, &key).unwrap();
        let tls = Tls::new(Roots::from_pem(&pem).unwrap().into()).unwrap();
        let first = tls.config(Some(&identity), None).unwrap();
        let again = tls.config(Some(&identity), None).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let (pem, key) = certificate("a");
        let newer = Identity::from_pem(&pem, &key).unwrap();
        let second = tls.config(Some(&newer), None).unwrap();
        assert!(
            !Arc::ptr_eq(&first, &second),
            "a new certificate is never shown by an old TLS session"
        );
        let none = tls.config(None, None).unwrap();
        assert!(!Arc::ptr_eq(&second, &none));
    }

    #[tokio::test]
    async fn ca_files_are_read_at_each_dial_and_a_bad_one_leaves_what_was_good() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        fs::write(&path, certificate("a").0).unwrap();
        let tls = Tls::new(Trust::new(false, vec![path.clone()], Vec::new())).unwrap();
        let first = tls.config(None, None).unwrap();
        fs::write(&path, "nothing").unwrap();
        tls.read().await.unwrap();
        assert!(Arc::ptr_eq(&first, &tls.config(None, None).unwrap()));
        assert!(tls.state.lock().reported.is_some());
        fs::write(&path, certificate("b").0).unwrap();
        tls.read().await.unwrap();
        assert!(!Arc::ptr_eq(&first, &tls.config(None, None).unwrap()));
        assert!(tls.state.lock().reported.is_none());
        fs::remove_file(&path).unwrap();
        assert!(Tls::new(Trust::new(false, vec![path], Vec::new())).is_err());
    }
}
