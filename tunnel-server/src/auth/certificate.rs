//! Reads client certificates: from a leaf to the runtime in its subject alternative names.
//!
//! TLS has verified chain and revocation lists already. The validity period is checked here again, since a resumed TLS
//! session carries a certificate that may have been verified long ago. The name has one of two forms, and nothing else of
//! the certificate is used:
//!
//! ```text
//!   URI  tunnel://<account>/<runtime>
//!   DNS  <runtime>.<account>.tunnel-client
//! ```
//!
//! `tunnel-client` is not a public top-level domain, so no public CA signs such a name.

use std::time::{Duration, SystemTime};

use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

use super::credential::{CredentialId, CredentialKind, printable};
use super::labels::NamedRuntime;
use super::refusal::AuthRefusal;
use super::revocation::serial;
use super::{Verified, VerifiedCredential};

const URI_SCHEME: &str = "tunnel:";
const DNS_SUFFIX: &str = ".tunnel-client";

/// Longest name shown in an error.
const LOGGED_CHARS: usize = 100;

/// Returns the runtime that the leaf of a verified chain names.
///
/// # Errors
/// When the leaf has expired, is not valid yet, or does not name exactly one runtime.
pub(super) fn verify(
    chain: &[CertificateDer<'static>],
    now: SystemTime,
) -> Result<Verified, AuthRefusal> {
    let certificate = leaf(chain)?;
    let named = runtime(&certificate)?;
    let validity = certificate.validity();
    let (issued, expires) = (moment(validity.not_before), moment(validity.not_after));
    if let Some(expired) = expires.filter(|expired| *expired <= now) {
        return Err(AuthRefusal::CertificateExpired { expired, now });
    }
    if let Some(valid_from) = issued.filter(|valid_from| *valid_from > now) {
        return Err(AuthRefusal::CertificateNotYetValid { valid_from, now });
    }
    Ok(Verified {
        named,
        credential: VerifiedCredential {
            id: id_of(&certificate),
            issued,
            expires,
            listed: None,
            signed_with: None,
            chain: Some(chain.into()),
        },
        query: None,
        renew_at: None,
        renewable_end: None,
    })
}

/// The runtime and the id of the leaf of a verified chain.
pub(super) fn identify(chain: &[CertificateDer<'static>]) -> Option<(NamedRuntime, CredentialId)> {
    let certificate = leaf(chain).ok()?;
    Some((runtime(&certificate).ok()?, id_of(&certificate)))
}

fn leaf<'a>(chain: &'a [CertificateDer<'static>]) -> Result<X509Certificate<'a>, AuthRefusal> {
    let leaf = chain.first().ok_or(AuthRefusal::CredentialMissing)?;
    let (rest, certificate) =
        X509Certificate::from_der(leaf).map_err(|_| names_no_runtime("it cannot be parsed"))?;
    match rest.is_empty() {
        true => Ok(certificate),
        false => Err(names_no_runtime("there are bytes after its end")),
    }
}

fn id_of(certificate: &X509Certificate<'_>) -> CredentialId {
    let serial = serial(&certificate.raw_serial_as_string()).unwrap_or_default();
    CredentialId::new(CredentialKind::Certificate, serial)
}

fn runtime(certificate: &X509Certificate<'_>) -> Result<NamedRuntime, AuthRefusal> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| names_no_runtime("its subject alternative names cannot be parsed"))?;
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let mut found: Option<NamedRuntime> = None;
    for name in names {
        let Some(named) = named_by(name) else {
            continue;
        };
        let named = named?;
        if found.as_ref().is_some_and(|found| *found != named) {
            return Err(names_no_runtime(
                "it names two runtimes: use one certificate for each",
            ));
        }
        found = Some(named);
    }
    found.ok_or_else(|| {
        names_no_runtime(
            "its subject alternative names must contain the URI `tunnel://<account>/<runtime>` or the DNS \
             name `<runtime>.<account>.tunnel-client`",
        )
    })
}

/// Parses the runtime in one name; `None` if the name has neither form.
fn named_by(name: &GeneralName<'_>) -> Option<Result<NamedRuntime, AuthRefusal>> {
    let (text, pair) = match name {
        GeneralName::URI(uri) => {
            let (scheme, rest) = uri.split_at_checked(URI_SCHEME.len())?;
            if !scheme.eq_ignore_ascii_case(URI_SCHEME) {
                return None;
            }
            let pair = rest
                .strip_prefix("//")
                .and_then(|path| path.split_once('/'));
            (*uri, pair)
        }
        GeneralName::DNSName(host) => {
            let start = host.len().checked_sub(DNS_SUFFIX.len())?;
            let (names, suffix) = host.split_at_checked(start)?;
            if !suffix.eq_ignore_ascii_case(DNS_SUFFIX) {
                return None;
            }
            let pair = names.split_once('.');
            (*host, pair.map(|(runtime, account)| (account, runtime)))
        }
        _ => return None,
    };
    let named = pair.and_then(|(account, runtime)| NamedRuntime::new(account, runtime).ok());
    Some(named.ok_or_else(|| {
        names_no_runtime(&format!("`{}` is malformed", printable(text, LOGGED_CHARS)))
    }))
}

/// Converts a time. Times before 1970 become 1970; `None` is beyond the range of `SystemTime`.
fn moment(time: ASN1Time) -> Option<SystemTime> {
    let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn names_no_runtime(why: &str) -> AuthRefusal {
    AuthRefusal::CertificateWithoutRuntime(why.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, SanType, SerialNumber, date_time_ymd};

    use super::*;
    use crate::runtimes::Moment;

    fn leaf(names: Vec<SanType>) -> CertificateDer<'static> {
        leaf_between(names, (1975, 4096))
    }

    fn leaf_between(names: Vec<SanType>, (from, until): (i32, i32)) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.serial_number = Some(SerialNumber::from(vec![0x0a, 0xff, 0x01]));
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    fn dns(text: &str) -> SanType {
        SanType::DnsName(text.try_into().unwrap())
    }

    #[track_caller]
    fn refused(names: Vec<SanType>) -> String {
        let refusal = verify(&[leaf(names)], SystemTime::now()).err().unwrap();
        assert_eq!(refusal.name(), "certificate_without_runtime");
        refusal.to_string()
    }

    #[test]
    fn a_uri_or_a_dns_name_names_the_runtime() {
        let wanted = NamedRuntime::new("acme", "prod").unwrap();
        for names in [
            vec![uri("tunnel://acme/prod")],
            vec![dns("prod.acme.tunnel-client")],
            vec![
                dns("x.example"),
                uri("tunnel://acme/prod"),
                uri("spiffe://a/b"),
            ],
            vec![uri("TUNNEL://acme/prod"), dns("prod.acme.Tunnel-Client")],
        ] {
            let now = SystemTime::now();
            let verified = verify(&[leaf(names)], now).unwrap();
            assert_eq!(verified.named, wanted);
            assert_eq!(verified.credential.id.to_string(), "certificate aff01");
            assert!(verified.credential.expires > Some(now));
            assert!(verified.credential.issued < Some(now));
        }
    }

    #[test]
    fn no_runtime_or_two_are_refused() {
        for names in [
            vec![],
            vec![dns("prod.acme.example"), uri("https://acme/prod")],
        ] {
            assert!(refused(names).contains("must contain the URI"));
        }
        let two = vec![uri("tunnel://acme/prod"), dns("test.acme.tunnel-client")];
        assert!(refused(two).contains("two runtimes"));
        for bad in [
            uri("tunnel://acme"),
            uri("tunnel:acme/prod"),
            uri("tunnel://acme/prod/x"),
            uri("tunnel://acme/prod?x"),
            uri("tunnel://Acme/prod"),
            uri("tunnel:///prod"),
            dns("acme.tunnel-client"),
            dns("*.acme.tunnel-client"),
            dns("x.prod.acme.tunnel-client"),
        ] {
            assert!(refused(vec![bad]).contains("is malformed"));
        }
    }

    #[test]
    fn a_malformed_certificate_is_refused() {
        let mut good = leaf(vec![uri("tunnel://acme/prod")]).to_vec();
        good.push(0);
        for bad in [&b""[..], b"x", &good, &good[..40]] {
            let chain = [CertificateDer::from(bad.to_vec())];
            assert!(verify(&chain, SystemTime::now()).is_err());
        }
    }

    /// As after a TLS resumption: the certificate was last checked while it was valid.
    #[test]
    fn an_expired_or_not_yet_valid_certificate_is_refused_with_both_clocks() {
        let now = SystemTime::from("2030-01-01T00:00:00Z".parse::<Moment>().unwrap());
        let at = |years| verify(&[leaf_between(vec![uri("tunnel://acme/prod")], years)], now);
        assert!(at((2029, 2031)).is_ok() && at((2030, 2031)).is_ok());
        for (years, reason, text) in [
            (
                (2020, 2030),
                "certificate_expired",
                "the client certificate expired at 2030-01-01T00:00:00Z; this server's clock says \
                 2030-01-01T00:00:00Z: use a new one",
            ),
            (
                (2031, 2032),
                "certificate_not_yet_valid",
                "the client certificate is not valid before 2031-01-01T00:00:00Z; this server's clock says \
                 2030-01-01T00:00:00Z: compare the clocks",
            ),
        ] {
            let refusal = at(years).err().unwrap();
            assert_eq!(
                (refusal.name(), refusal.to_string().as_str()),
                (reason, text)
            );
        }
        let ancient = at((1950, 1960)).err().unwrap();
        assert_eq!(ancient.name(), "certificate_expired", "before clocks begin");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = verify(&[CertificateDer::from(bytes)], SystemTime::UNIX_EPOCH);
        }

        #[test]
        fn no_name_makes_it_panic(text in "(tunnel:|TUNNEL://)?\\PC{0,40}(\\.tunnel-client)?") {
            let _ = named_by(&GeneralName::URI(&text));
            let _ = named_by(&GeneralName::DNSName(&text));
        }
    }
}
