//! A second look at certificates that a handshake has let in, while their connections last.
//!
//! In come the check of clients that is in force now and a chain that was verified once; out comes
//! whether it has been revoked since, and whether it still ends at a trusted root. Whether it has run
//! out is for whoever counts its time: see [`super::not_after`].

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::CertificateError;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};

use super::{ClientAuth, Roots, TlsFilesError};

/// Looks at clients' certificates again.
pub struct ClientCheck {
    auth: ClientAuth,
    /// Knows the roots alone: what a list says is looked up without a signature.
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientCheck {
    /// For certificates that a listener with this check takes.
    pub fn new(auth: ClientAuth) -> Result<Self, TlsFilesError> {
        let roots_alone = ClientAuth {
            roots: auth.roots.clone(),
            revocation_lists: None,
            is_required: true,
        };
        let verifier = roots_alone.verifier()?;
        Ok(Self { auth, verifier })
    }

    /// The check of the listener.
    #[must_use]
    pub fn auth(&self) -> &ClientAuth {
        &self.auth
    }

    /// The roots. A chain that [is trusted](Self::is_trusted) by some need not be checked with the same
    /// again.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.auth.roots
    }

    /// Whether a revocation list has this certificate. A list that is past its date counts still: what
    /// it says has not become untrue. Cheap.
    #[must_use]
    pub fn is_revoked(&self, certificate: &CertificateDer<'_>) -> bool {
        let lists = self.auth.revocation_lists.as_ref();
        lists.is_some_and(|lists| lists.contains(certificate))
    }

    /// Whether a chain, the client's own certificate first, ends at one of the roots, apart from its dates.
    /// Costs as much as in a handshake.
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
