//! Certificates of one's own making: a CA that signs a server's and a client's certificate and is
//! then forgotten.
//!
//! In come the names the server is reached by; out comes PEM text in memory. For trying out, for
//! tests and for closed networks: its key never leaves this function, so nothing else can be signed
//! with it later.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// Most days a certificate may be good: ten years.
pub const MAX_DAYS: u32 = 3650;

/// How far before now the certificates begin, for clocks that are behind.
const CLOCK_SLACK: Duration = Duration::from_secs(60 * 60);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A CA's certificate, and the server's and client's certificates with their keys, all PEM.
#[derive(Clone)]
#[non_exhaustive]
pub struct Certificates {
    /// Whom both ends trust.
    pub ca_pem: String,
    /// The server's certificate.
    pub server_pem: String,
    /// The server's key, PKCS#8.
    pub server_key: String,
    /// The client's certificate.
    pub client_pem: String,
    /// The client's key, PKCS#8.
    pub client_key: String,
}

/// Why no certificates can be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertsError {
    /// Nothing for the server's certificate to name.
    #[error("no name given: name the hosts or IP addresses that the server is reached by")]
    NoName,
    /// A name that a certificate cannot carry.
    #[error("`{0}` is no host name, wildcard (`*.example.com`) or IP address")]
    BadName(String),
    /// Too short or too long.
    #[error("{0} days are not possible: give 1 to {MAX_DAYS}")]
    BadDays(u32),
    /// The library failed.
    #[error("certificates cannot be made: {0}")]
    Failed(#[from] rcgen::Error),
}

/// Makes a CA and two certificates under it, good from now for `days` days. `names` are host names,
/// wildcards such as `*.tunnels.localhost`, or IP addresses; the server's certificate is good for
/// all of them.
pub fn generate(names: &[String], days: u32) -> Result<Certificates, CertsError> {
    let Some(first) = names.first() else {
        return Err(CertsError::NoName);
    };
    if let Some(bad) = names.iter().find(|name| !is_name(name)) {
        return Err(CertsError::BadName(bad.clone()));
    }
    if !(1..=MAX_DAYS).contains(&days) {
        return Err(CertsError::BadDays(days));
    }
    let ca = authority(days)?;
    let mut server = leaf(names, first, days, ExtendedKeyUsagePurpose::ServerAuth)?;
    // Nodes of one server show this certificate to each other as well.
    server
        .extended_key_usages
        .push(ExtendedKeyUsagePurpose::ClientAuth);
    let client = leaf(
        &[],
        "tunnel-client",
        days,
        ExtendedKeyUsagePurpose::ClientAuth,
    )?;
    let (server_key, client_key) = (KeyPair::generate()?, KeyPair::generate()?);
    Ok(Certificates {
        server_pem: server.signed_by(&server_key, &ca)?.pem(),
        server_key: server_key.serialize_pem(),
        client_pem: client.signed_by(&client_key, &ca)?.pem(),
        client_key: client_key.serialize_pem(),
        ca_pem: ca.pem(),
    })
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

fn authority(days: u32) -> Result<CertifiedIssuer<'static, KeyPair>, CertsError> {
    let mut params = params(&[], "tunnel development CA", days)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn leaf(
    names: &[String],
    common_name: &str,
    days: u32,
    usage: ExtendedKeyUsagePurpose,
) -> Result<CertificateParams, CertsError> {
    let mut params = params(names, common_name, days)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    // Strict verifiers, such as Python's since 3.13, ask for it.
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn params(names: &[String], common_name: &str, days: u32) -> Result<CertificateParams, CertsError> {
    let mut params = CertificateParams::new(names)?;
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SLACK).into();
    params.not_after = (now + DAY * days).into();
    Ok(params)
}

fn is_name(name: &str) -> bool {
    if name.parse::<IpAddr>().is_ok() {
        return true;
    }
    let host = name.strip_prefix("*.").unwrap_or(name);
    host.parse::<crate::runtimes::HostName>().is_ok()
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
    use tunnel_ops::tls_files::{Identity, Roots};
    use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Whether a verifier that trusts the CA takes the server for `name`, so many days from now.
    fn is_good_for(made: &Certificates, name: &str, in_days: u64) -> bool {
        let ca = CertificateDer::from_pem_slice(made.ca_pem.as_bytes()).unwrap();
        let server = CertificateDer::from_pem_slice(made.server_pem.as_bytes()).unwrap();
        let anchors = [anchor_from_trusted_cert(&ca).unwrap()];
        let end = EndEntityCert::try_from(&server).unwrap();
        let then = UnixTime::since_unix_epoch(Duration::from_secs(
            UnixTime::now().as_secs() + in_days * 86_400,
        ));
        let algorithms = rustls_algorithms();
        let chain = end.verify_for_usage(
            algorithms,
            &anchors,
            &[],
            then,
            KeyUsage::server_auth(),
            None,
            None,
        );
        chain.is_ok()
            && end
                .verify_is_valid_for_subject_name(&ServerName::try_from(name).unwrap())
                .is_ok()
    }

    fn rustls_algorithms()
    -> &'static [&'static dyn rustls_pki_types::SignatureVerificationAlgorithm] {
        webpki::ALL_VERIFICATION_ALGS
    }

    #[test]
    fn the_server_is_good_for_its_names_and_its_days() {
        let made = generate(
            &names(&["localhost", "*.tunnels.localhost", "127.0.0.1", "::1"]),
            30,
        )
        .unwrap();
        for name in ["localhost", "a-b.tunnels.localhost", "127.0.0.1", "::1"] {
            assert!(is_good_for(&made, name, 29), "{name}");
        }
        assert!(!is_good_for(&made, "other.example", 0));
        assert!(!is_good_for(&made, "localhost", 31));
    }

    #[test]
    fn keys_belong_to_their_certificates() {
        let made = generate(&names(&["localhost"]), 1).unwrap();
        Identity::from_pem(&made.server_pem, &made.server_key).unwrap();
        Identity::from_pem(&made.client_pem, &made.client_key).unwrap();
        Roots::from_pem(&made.ca_pem).unwrap();
        assert!(Identity::from_pem(&made.server_pem, &made.client_key).is_err());
    }

    #[test]
    fn names_and_days_are_checked() {
        assert!(matches!(generate(&[], 1), Err(CertsError::NoName)));
        for bad in ["", "a b", "*", "a.*.b", "https://a.b", "a:1"] {
            assert!(
                matches!(generate(&names(&[bad]), 1), Err(CertsError::BadName(_))),
                "{bad}"
            );
        }
        for bad in [0, MAX_DAYS + 1] {
            assert!(matches!(
                generate(&names(&["a"]), bad),
                Err(CertsError::BadDays(_))
            ));
        }
    }

    #[test]
    fn debug_shows_no_key() {
        let made = generate(&names(&["localhost"]), 1).unwrap();
        assert_eq!(format!("{made:?}"), "Certificates { .. }");
    }
}
