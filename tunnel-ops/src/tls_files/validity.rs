//! The end of validity of certificates and revocation lists, for metrics, warnings and the end of sessions.
//! Verification is done elsewhere.

use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use x509_parser::revocation_list::CertificateRevocationList;
use x509_parser::time::ASN1Time;

/// The end of a certificate's validity; `None` if it cannot be parsed.
#[must_use]
pub fn not_after(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    version_and_end(certificate).map(|(_, end)| end)
}

/// A certificate's version of X.509, from 1, and the end of its validity; `None` if it cannot be parsed.
pub(super) fn version_and_end(certificate: &CertificateDer<'_>) -> Option<(u32, SystemTime)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let version = parsed.version().0.saturating_add(1);
    Some((version, instant(parsed.validity().not_after)))
}

pub(super) fn next_update(list: &CertificateRevocationList<'_>) -> Option<SystemTime> {
    list.next_update().map(instant)
}

fn instant(time: ASN1Time) -> SystemTime {
    // Dates before 1970 are mapped to 1970: they have passed.
    let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}
