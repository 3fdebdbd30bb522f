//! Makes the missing files beside existing ones, without changing those.
//!
//! In: the texts of the existing files. Out: the texts of all files, which fit together, or why that is not possible:
//! without the CA's key nothing can be signed, and a missing key of a certificate cannot be made.

use std::net::IpAddr;

use rcgen::{Issuer, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tunnel_ops::tls_files::Identity;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::{CA_NAME, Certificates, CertsError, MAX_DAYS, authority, client, is_name, server};

/// The existing files, PEM.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Present {
    /// The CA's certificate.
    pub ca_pem: Option<String>,
    /// Its key.
    pub ca_key: Option<String>,
    /// The server's certificate.
    pub server_pem: Option<String>,
    /// Its key.
    pub server_key: Option<String>,
    /// The client's certificate.
    pub client_pem: Option<String>,
    /// Its key.
    pub client_key: Option<String>,
}

/// Makes the missing files, as [`super::generate`] does: the server's certificate for `names`, all valid for `days` days.
///
/// # Errors
/// When names or days are invalid, or the existing files cannot be completed.
pub fn complete(
    present: &Present,
    names: &[String],
    days: u32,
) -> Result<Certificates, CertsError> {
    if names.is_empty() {
        return Err(CertsError::NoName);
    }
    if let Some(bad) = names.iter().find(|name| !is_name(name)) {
        return Err(CertsError::BadName(bad.clone()));
    }
    if !(1..=MAX_DAYS).contains(&days) {
        return Err(CertsError::BadDays(days));
    }
    let server_files = ("server.pem", "server.key");
    let server_key = key(server_files, &present.server_pem, &present.server_key)?;
    let client_files = ("client.pem", "client.key");
    let client_key = key(client_files, &present.client_pem, &present.client_key)?;
    let ca = Authority::of(present, days)?;
    let issuer = || ca.issuer.as_ref().ok_or(CertsError::NoCaKey);
    let server_pem = match (&present.server_pem, &server_key) {
        (Some(pem), _) => pem.clone(),
        (None, key) => server(names, days, key.pair()?, issuer()?)?,
    };
    let client_pem = match (&present.client_pem, &client_key) {
        (Some(pem), _) => pem.clone(),
        (None, key) => client(days, key.pair()?, issuer()?)?,
    };
    Ok(Certificates {
        ca_pem: ca.pem,
        ca_key: ca.key,
        server_pem,
        server_key: server_key.text,
        client_pem,
        client_key: client_key.text,
    })
}

/// The names, host names or IP addresses, that the certificate in this text does not cover; empty if it cannot be read.
#[must_use]
pub fn unnamed<'a>(pem: &str, names: &'a [String]) -> Vec<&'a str> {
    let Ok(certificate) = CertificateDer::from_pem_slice(pem.as_bytes()) else {
        return Vec::new();
    };
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&certificate) else {
        return Vec::new();
    };
    let names = names.iter().map(String::as_str);
    names.filter(|name| !is_for(&certificate, name)).collect()
}

fn is_for(certificate: &X509Certificate<'_>, name: &str) -> bool {
    let address = name.parse::<IpAddr>().ok();
    let address = address.map(|address| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    });
    let is_it = |known: &GeneralName<'_>| match known {
        GeneralName::DNSName(known) => known.eq_ignore_ascii_case(name),
        GeneralName::IPAddress(known) => address.as_deref() == Some(known),
        _ => false,
    };
    let known = certificate.subject_alternative_name().ok().flatten();
    known.is_some_and(|known| known.value.general_names.iter().any(is_it))
}

/// A key: its text, and the key pair if a certificate has to be made for it.
struct Key {
    file: &'static str,
    text: String,
    pair: Option<KeyPair>,
}

impl Key {
    fn pair(&self) -> Result<&KeyPair, CertsError> {
        self.pair.as_ref().ok_or(CertsError::BadKey(self.file))
    }
}

/// The existing key, or a new one.
fn key(
    (cert_file, file): (&'static str, &'static str),
    cert: &Option<String>,
    key: &Option<String>,
) -> Result<Key, CertsError> {
    match (cert, key) {
        (Some(_), None) => Err(CertsError::NoKey(cert_file, file)),
        (None, None) => {
            let pair = KeyPair::generate()?;
            Ok(Key {
                file,
                text: pair.serialize_pem(),
                pair: Some(pair),
            })
        }
        // Not used for a new certificate, so it need not be valid.
        (Some(_), Some(text)) => Ok(Key {
            file,
            text: text.clone(),
            pair: None,
        }),
        (None, Some(text)) => Ok(Key {
            file,
            text: text.clone(),
            pair: Some(pair(file, text)?),
        }),
    }
}

/// The library's errors quote their input, so they are not passed on for a key.
fn pair(file: &'static str, text: &str) -> Result<KeyPair, CertsError> {
    KeyPair::from_pem(text).map_err(|_| CertsError::BadKey(file))
}

/// The CA, which can sign only with its key.
struct Authority {
    pem: String,
    key: Option<String>,
    issuer: Option<Issuer<'static, KeyPair>>,
}

impl Authority {
    fn of(present: &Present, days: u32) -> Result<Self, CertsError> {
        let params = authority(CA_NAME, days)?;
        let (pem, text, pair) = match (&present.ca_pem, &present.ca_key) {
            (Some(pem), None) => {
                return Ok(Self {
                    pem: pem.clone(),
                    key: None,
                    issuer: None,
                });
            }
            (Some(pem), Some(text)) => {
                if !is_ours(pem, text) {
                    return Err(CertsError::OtherCa);
                }
                (pem.clone(), text.clone(), pair("ca.key", text)?)
            }
            // Certificates that were signed with this key are also valid under a new CA certificate for it.
            (None, Some(text)) => {
                let pair = pair("ca.key", text)?;
                (params.self_signed(&pair)?.pem(), text.clone(), pair)
            }
            (None, None) => {
                let signed = [
                    ("server.pem", &present.server_pem),
                    ("client.pem", &present.client_pem),
                ];
                if let Some((file, _)) = signed.into_iter().find(|(_, pem)| pem.is_some()) {
                    return Err(CertsError::NoCa(file));
                }
                let pair = KeyPair::generate()?;
                let text = pair.serialize_pem();
                (params.self_signed(&pair)?.pem(), text, pair)
            }
        };
        Ok(Self {
            pem,
            key: Some(text),
            issuer: Some(Issuer::new(params, pair)),
        })
    }
}

/// Whether this is a CA that this program made, with this key.
fn is_ours(pem: &str, key: &str) -> bool {
    let Ok(certificate) = CertificateDer::from_pem_slice(pem.as_bytes()) else {
        return false;
    };
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&certificate) else {
        return false;
    };
    let name = format!("CN={CA_NAME}");
    certificate.subject().to_string() == name && Identity::from_pem(pem, key).is_ok()
}
