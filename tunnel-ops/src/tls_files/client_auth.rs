//! Client authentication of a TLS listener: by a certificate that ends at given roots and is not revoked.
//!
//! In: roots and revocation lists. Out: a rustls verifier that fails closed: if there is any revocation
//! list, certificates whose issuer has none are refused, and so are all certificates of an issuer whose
//! list has expired. Only the client's own certificate is checked against the lists, not those of its
//! issuers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use webpki::BorrowedCertRevocationList;
use x509_parser::revocation_list::CertificateRevocationList;

use super::{Roots, TlsFilesError, fingerprint, provider, read, validity};

/// How a listener verifies its clients' certificates. Values are equal if they accept the same clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuth {
    /// The roots at which a client's chain must end; never the system's.
    pub roots: Roots,
    /// The revoked certificates. Without it, none is.
    pub revocation_lists: Option<RevocationLists>,
    /// Whether a client without a certificate is refused in the handshake.
    pub is_required: bool,
}

/// Parsed certificate revocation lists. Their signatures are verified with each client's certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct RevocationLists {
    lists: Vec<CertificateRevocationListDer<'static>>,
    revoked: Arc<Revoked>,
    next_update: SystemTime,
}

/// Encoded serial numbers by the encoded name of their issuer, since serial numbers are unique per issuer
/// only.
type Revoked = HashMap<Vec<u8>, HashSet<Vec<u8>>>;

impl ClientAuth {
    pub(super) fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, TlsFilesError> {
        let roots = Arc::clone(&self.roots.store);
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .only_check_end_entity_revocation()
            .enforce_revocation_expiration();
        if let Some(revoked) = &self.revocation_lists {
            builder = builder.with_crls(revoked.lists.iter().cloned());
        }
        if !self.is_required {
            builder = builder.allow_unauthenticated();
        }
        // Roots and lists were checked when they were read, so an error here is a bug.
        builder
            .build()
            .map_err(|error| TlsFilesError::Setup(rustls::Error::General(error.to_string())))
    }
}

impl RevocationLists {
    /// Reads a PEM file with one or more lists.
    pub fn load(path: &Path) -> Result<Self, TlsFilesError> {
        Self::parse(path, &read(path)?)
    }

    /// Reads one or more lists from PEM text.
    pub fn from_pem(pem: &str) -> Result<Self, TlsFilesError> {
        Self::parse(Path::new("revocation list"), pem.as_bytes())
    }

    fn parse(origin: &Path, pem: &[u8]) -> Result<Self, TlsFilesError> {
        let damaged = |reason: &dyn fmt::Display| TlsFilesError::DamagedRevocationList {
            origin: origin.to_owned(),
            reason: reason.to_string(),
        };
        let lists: Result<Vec<_>, pem::Error> =
            CertificateRevocationListDer::pem_slice_iter(pem).collect();
        let lists = lists.map_err(|error| damaged(&error))?;
        let mut first_update = None;
        let mut revoked = Revoked::new();
        for list in &lists {
            // The verifier's own parser has to accept it too.
            BorrowedCertRevocationList::from_der(list).map_err(|error| damaged(&error))?;
            let (_, list) = x509_parser::parse_x509_crl(list).map_err(|error| damaged(&error))?;
            let next = validity::next_update(&list).ok_or_else(|| damaged(&"no next update"))?;
            first_update = Some(first_update.map_or(next, |first: SystemTime| first.min(next)));
            add_revoked(&mut revoked, &list);
        }
        let next_update = first_update.ok_or_else(|| TlsFilesError::NoRevocationList {
            origin: origin.to_owned(),
        })?;
        if next_update <= SystemTime::now() {
            tracing::warn!(
                file = %origin.display(),
                "a revocation list is past its next update, so all certificates of its issuer are refused: \
                 fetch a new one"
            );
        }
        Ok(Self {
            lists,
            revoked: Arc::new(revoked),
            next_update,
        })
    }

    /// Whether a certificate is revoked, by its issuer's name and serial number; true if it cannot be
    /// parsed. For certificates that were verified before: signatures are not checked here.
    #[must_use]
    pub fn contains(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else {
            return true;
        };
        let serials = self.revoked.get(certificate.issuer().as_raw());
        serials.is_some_and(|serials| serials.contains(certificate.raw_serial()))
    }

    /// Whether these lists are of all issuers of `others`, and revoke all that those revoke.
    #[must_use]
    pub fn includes(&self, others: &Self) -> bool {
        let mut others = others.revoked.iter();
        others.all(|(issuer, serials)| {
            let own = self.revoked.get(issuer);
            own.is_some_and(|own| own.is_superset(serials))
        })
    }

    /// The first 16 hexadecimal digits of the lists' SHA-256, as an identifier.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        fingerprint(self.lists.iter().map(AsRef::as_ref))
    }

    /// When the first of the lists expires. From then on its issuer's certificates are refused.
    #[must_use]
    pub fn next_update(&self) -> SystemTime {
        self.next_update
    }
}

impl fmt::Debug for RevocationLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocationLists")
            .field("lists", &self.lists.len())
            .field("next_update", &self.next_update)
            .finish()
    }
}

fn add_revoked(revoked: &mut Revoked, list: &CertificateRevocationList<'_>) {
    let serials = list.iter_revoked_certificates();
    let serials = serials.map(|entry| entry.raw_serial().to_vec());
    let issuer = list.issuer().as_raw().to_vec();
    revoked.entry(issuer).or_default().extend(serials);
}
