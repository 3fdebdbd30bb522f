//! Repeated checks of client certificates while their connections are open.
//!
//! In: the listener's current client authentication and a chain that was verified in the handshake. Out:
//! whether it was revoked since, and whether it still ends at a trusted root. Expiry is not checked here:
//! see [`super::not_after`].

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::CertificateError;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::{ClientAuth, Roots, TlsFilesError};

/// Checks clients' certificates again.
pub struct ClientCheck {
    auth: ClientAuth,
    /// Has only the roots: revocation is looked up in the lists without verifying signatures.
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientCheck {
    /// The check for a listener with this client authentication.
    pub fn new(auth: ClientAuth) -> Result<Self, TlsFilesError> {
        let roots_alone = ClientAuth {
            roots: auth.roots.clone(),
            revocation_lists: None,
            is_required: true,
        };
        let verifier = roots_alone.verifier()?;
        Ok(Self { auth, verifier })
    }

    /// The client authentication of the listener.
    #[must_use]
    pub fn auth(&self) -> &ClientAuth {
        &self.auth
    }

    /// The roots. A chain that [is trusted](Self::is_trusted) need not be checked again while these are
    /// unchanged.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.auth.roots
    }

    /// Whether a revocation list contains this certificate. Expired lists count too, since revocations do
    /// not expire. Costs one hash lookup after parsing.
    #[must_use]
    pub fn is_revoked(&self, certificate: &CertificateDer<'_>) -> bool {
        let lists = self.auth.revocation_lists.as_ref();
        lists.is_some_and(|lists| lists.contains(certificate))
    }

    /// Whether a chain, the client's own certificate first, ends at one of the roots, regardless of its
    /// dates. Costs as much as the verification in a handshake.
    #[must_use]
    pub fn is_trusted(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> bool {
        let Some((leaf, issuers)) = chain.split_first() else {
            return false;
        };
        let since = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = UnixTime::since_unix_epoch(since.unwrap_or_default());
        match self.verifier.verify_client_cert(leaf, issuers, now) {
            Ok(_) => true,
            Err(rustls::Error::InvalidCertificate(error)) => matches!(
                error,
                CertificateError::Expired
                    | CertificateError::ExpiredContext { .. }
                    | CertificateError::NotValidYet
                    | CertificateError::NotValidYetContext { .. }
            ),
            Err(_) => false,
        }
    }
}

impl fmt::Debug for ClientCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCheck")
            .field("auth", &self.auth)
            .finish_non_exhaustive()
    }
}
