//! Development certificates: a CA that signs a server's and a client's certificate.
//!
//! In: the names that the server is reached by, and the existing files. Out: PEM text in memory. For development, tests
//! and closed networks: the holder of the CA's key can impersonate any server to every client that trusts the CA.

mod complete;
mod node;

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

pub use self::{
    complete::{Present, complete, unnamed},
    node::NodeAuthority,
};

/// Longest validity of a certificate, in days: ten years.
pub const MAX_DAYS: u32 = 3650;

/// How long before now the certificates become valid, for clocks that are behind.
const CLOCK_SLACK: Duration = Duration::from_secs(60 * 60);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The CA's common name.
const CA_NAME: &str = "tunnel development CA";

/// The CA's, the server's and the client's certificates with their keys, all PEM.
#[derive(Clone)]
#[non_exhaustive]
pub struct Certificates {
    /// The CA that both ends trust.
    pub ca_pem: String,
    /// The CA's key, PKCS#8; `None` if it exists elsewhere only and nothing had to be signed.
    pub ca_key: Option<String>,
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
    /// There is no name for the server's certificate.
    #[error("no name given: name the hosts or IP addresses that the server is reached by")]
    NoName,
    /// A name that a certificate cannot contain.
    #[error("`{0}` is no host name, wildcard (`*.example.com`) or IP address")]
    BadName(String),
    /// The validity is too short or too long.
    #[error("{0} days are out of range: give 1 to {MAX_DAYS}")]
    BadDays(u32),
    /// A certificate must be signed, and the CA's key is missing.
    #[error(
        "ca.pem exists and its key, ca.key, does not, so that no certificate can be added: put the key back, or replace \
         all files with --force"
    )]
    NoCaKey,
    /// There is a certificate, and the CA that has signed it is missing.
    #[error(
        "{0} exists and the CA that signed it, ca.pem, does not: put that back, or replace all files with --force"
    )]
    NoCa(&'static str),
    /// There is a certificate, and its key is missing.
    #[error(
        "{0} exists and its key, {1}, does not: put the key back, or remove {0} to have both made"
    )]
    NoKey(&'static str, &'static str),
    /// An existing key cannot be used.
    #[error(
        "{0} holds no usable private key: give an unencrypted PKCS#8 key in PEM, or remove the file to have one made"
    )]
    BadKey(&'static str),
    /// The CA, or its key, was not made by this program.
    #[error(
        "ca.pem and ca.key were not made together by this command, so that no certificate can be added: sign it with the \
         CA's own tools, or give another folder"
    )]
    OtherCa,
    /// The library failed.
    #[error("certificates cannot be made: {0}")]
    Failed(#[from] rcgen::Error),
}

/// Makes a CA and two certificates that it signs, valid from now for `days` days. `names` are host names, wildcards such
/// as `*.tunnels.localhost`, or IP addresses; the server's certificate covers all of them.
pub fn generate(names: &[String], days: u32) -> Result<Certificates, CertsError> {
    complete(&Present::default(), names, days)
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

/// The parameters of a development CA.
fn authority(name: &str, days: u32) -> Result<CertificateParams, CertsError> {
    let mut params = params(&[], name, days)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// The server's certificate, for this key.
fn server(
    names: &[String],
    days: u32,
    key: &KeyPair,
    ca: &Issuer<'_, KeyPair>,
) -> Result<String, CertsError> {
    let first = names.first().ok_or(CertsError::NoName)?;
    let server = leaf(names, first, days, ExtendedKeyUsagePurpose::ServerAuth)?;
    Ok(server.signed_by(key, ca)?.pem())
}

/// The client's certificate, for this key.
fn client(days: u32, key: &KeyPair, ca: &Issuer<'_, KeyPair>) -> Result<String, CertsError> {
    let usage = ExtendedKeyUsagePurpose::ClientAuth;
    let client = leaf(&[], "tunnel-client", days, usage)?;
    Ok(client.signed_by(key, ca)?.pem())
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
    // Strict verifiers, such as Python's since 3.13, require it.
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

    /// Whether a verifier that trusts the CA accepts the server as `name`, `in_days` from now.
    fn is_valid_for(made: &Certificates, name: &str, in_days: u64) -> bool {
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
    fn the_server_certificate_is_valid_for_its_names_and_days() {
        let made = generate(
            &names(&["localhost", "*.tunnels.localhost", "127.0.0.1", "::1"]),
            30,
        )
        .unwrap();
        for name in ["localhost", "a-b.tunnels.localhost", "127.0.0.1", "::1"] {
            assert!(is_valid_for(&made, name, 29), "{name}");
        }
        assert!(!is_valid_for(&made, "other.example", 0));
        assert!(!is_valid_for(&made, "localhost", 31));
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

    /// All files that were made.
    fn present(made: &Certificates) -> Present {
        let made = made.clone();
        Present {
            ca_pem: Some(made.ca_pem),
            ca_key: made.ca_key,
            server_pem: Some(made.server_pem),
            server_key: Some(made.server_key),
            client_pem: Some(made.client_pem),
            client_key: Some(made.client_key),
        }
    }

    #[test]
    fn missing_files_are_made_to_fit_existing_ones() {
        let names = names(&["localhost"]);
        let made = generate(&names, 1).unwrap();
        let without = |change: fn(&mut Present)| {
            let mut present = present(&made);
            change(&mut present);
            complete(&present, &names, 1)
        };
        type Change = fn(&mut Present);
        let changes: [Change; 6] = [
            |_| {},
            |present| present.ca_pem = None,
            |present| present.server_pem = None,
            |present| (present.server_pem, present.server_key) = (None, None),
            |present| present.client_pem = None,
            |present| (present.client_pem, present.client_key) = (None, None),
        ];
        for change in changes {
            let after = without(change).unwrap();
            let mut kept = present(&made);
            change(&mut kept);
            assert!(kept.ca_pem.is_none_or(|text| text == after.ca_pem));
            assert!(kept.server_key.is_none_or(|text| text == after.server_key));
            assert!(kept.client_key.is_none_or(|text| text == after.client_key));
            assert_eq!(made.ca_key, after.ca_key);
            assert!(is_valid_for(&after, "localhost", 0));
            Identity::from_pem(&after.server_pem, &after.server_key).unwrap();
            Identity::from_pem(&after.client_pem, &after.client_key).unwrap();
        }
        // Nothing has to be signed, so the CA's key is not needed.
        let whole = without(|present| present.ca_key = None).unwrap();
        assert_eq!(
            (whole.server_pem, whole.ca_key),
            (made.server_pem.clone(), None)
        );
    }

    #[test]
    fn files_that_cannot_be_completed_are_refused() {
        let names = names(&["localhost"]);
        let made = generate(&names, 1).unwrap();
        let other = generate(&names, 1).unwrap();
        let refused = |change: &dyn Fn(&mut Present)| {
            let mut present = present(&made);
            change(&mut present);
            complete(&present, &names, 1).unwrap_err()
        };
        let no_key = refused(&|present| (present.ca_key, present.client_pem) = (None, None));
        assert!(matches!(no_key, CertsError::NoCaKey), "{no_key}");
        let no_ca = refused(&|present| (present.ca_pem, present.ca_key) = (None, None));
        assert!(matches!(no_ca, CertsError::NoCa("server.pem")), "{no_ca}");
        let alone = refused(&|present| present.client_key = None);
        assert!(
            matches!(alone, CertsError::NoKey("client.pem", "client.key")),
            "{alone}"
        );
        let unfit = refused(&|present| {
            (present.ca_key, present.client_pem) = (other.ca_key.clone(), None);
        });
        assert!(matches!(unfit, CertsError::OtherCa), "{unfit}");
        let secret = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
        let bad = refused(&|present| {
            (present.server_pem, present.server_key) = (None, Some(secret.to_owned()));
        });
        assert!(matches!(bad, CertsError::BadKey("server.key")), "{bad}");
        assert!(!bad.to_string().contains("c2Vj"), "{bad}");
    }

    #[test]
    fn names_that_a_certificate_lacks_are_found() {
        let known = names(&["localhost", "*.tunnels.localhost", "127.0.0.1", "::1"]);
        let made = generate(&known, 1).unwrap();
        assert_eq!(unnamed(&made.server_pem, &known), [""; 0]);
        let asked = names(&["LOCALHOST", "tunnel.example", "127.0.0.2", "::1"]);
        assert_eq!(
            unnamed(&made.server_pem, &asked),
            ["tunnel.example", "127.0.0.2"]
        );
        assert_eq!(unnamed("nothing", &asked), [""; 0]);
    }

    #[test]
    fn debug_shows_no_key() {
        let made = generate(&names(&["localhost"]), 1).unwrap();
        assert_eq!(format!("{made:?}"), "Certificates { .. }");
    }
}
