//! What a certificate contains, for people: subject, issuer, validity, names.
//!
//! TLS has decided whether it is valid. Certificates that were refused are read too, so nothing here is trusted.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use serde::Serialize;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Name;

use super::text::{listed, moment, printable};

/// The extension with the public logs that have the certificate (RFC 6962); only public CAs add it.
const SCT_LIST: &str = "1.3.6.1.4.1.11129.2.4.2";

/// Most names read from a certificate: a shared one of a large site has some hundreds.
const NAMES: usize = 2_000;

/// Most names shown.
const SHOWN_NAMES: usize = 8;

/// One certificate of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct CertificateEvidence {
    pub(super) subject: String,
    pub(super) issuer: String,
    /// The issuer's common name or organisation.
    #[serde(skip)]
    pub(super) issuer_name: String,
    #[serde(serialize_with = "as_moment")]
    pub(super) not_before: SystemTime,
    #[serde(serialize_with = "as_moment")]
    pub(super) not_after: SystemTime,
    /// The names and addresses that it is valid for.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_few")]
    pub(super) names: Vec<String>,
    /// Whether its issuer is its subject.
    #[serde(skip)]
    pub(super) is_self_signed: bool,
    /// Whether it is that of a CA, which a server may not use as its own.
    #[serde(skip)]
    pub(super) is_authority: bool,
    /// Whether public logs have it, so that it is by a public CA.
    #[serde(skip)]
    pub(super) is_logged: bool,
}

impl CertificateEvidence {
    /// Reads a certificate; `None` if it cannot be parsed.
    pub(super) fn read(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let names = names(&parsed);
        Some(Self {
            subject: shown(parsed.subject()),
            issuer: shown(parsed.issuer()),
            issuer_name: short(parsed.issuer()),
            not_before: instant(parsed.validity().not_before),
            not_after: instant(parsed.validity().not_after),
            names,
            is_self_signed: parsed.subject().as_raw() == parsed.issuer().as_raw(),
            is_authority: parsed.is_ca(),
            is_logged: (parsed.extensions().iter())
                .any(|extension| extension.oid.to_id_string() == SCT_LIST),
        })
    }

    /// Reads those certificates of a chain that can be parsed.
    pub(super) fn read_chain(chain: &[CertificateDer<'_>]) -> Vec<Self> {
        chain.iter().filter_map(Self::read).collect()
    }

    /// Whether one of its names is that of this host.
    pub(super) fn is_for(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.');
        self.names.iter().any(|name| match name.strip_prefix("*.") {
            Some(parent) => host
                .split_once('.')
                .is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(parent)),
            None => name.eq_ignore_ascii_case(host),
        })
    }

    /// The first [`SHOWN_NAMES`] of its names, in a sentence.
    pub(super) fn names_line(&self) -> String {
        let shown = listed(&self.names[..self.names.len().min(SHOWN_NAMES)]);
        match self.names.len().checked_sub(SHOWN_NAMES) {
            None | Some(0) => shown,
            Some(more) => format!("{shown} and {more} more"),
        }
    }

    /// On one line.
    pub(super) fn line(&self) -> String {
        format!(
            "{}, signed by {}, valid from {} to {}",
            self.subject,
            self.issuer,
            moment(self.not_before),
            moment(self.not_after)
        )
    }
}

fn names(parsed: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(alternative)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    let names = alternative.value.general_names.iter();
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(printable(name)),
        GeneralName::IPAddress(bytes) => address(bytes),
        _ => None,
    });
    names.take(NAMES).collect()
}

fn address(bytes: &[u8]) -> Option<String> {
    let address: IpAddr = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok()?.into(),
        _ => <[u8; 16]>::try_from(bytes).ok()?.into(),
    };
    Some(address.to_string())
}

fn shown(name: &X509Name<'_>) -> String {
    let text = printable(&name.to_string());
    match text.is_empty() {
        true => "(no name)".to_owned(),
        false => text,
    }
}

/// The common name, else the organisation, else all of it.
fn short(name: &X509Name<'_>) -> String {
    let common = name.iter_common_name().chain(name.iter_organization());
    let first = common.filter_map(|part| part.as_str().ok()).next();
    first.map_or_else(|| shown(name), printable)
}

fn instant(time: ASN1Time) -> SystemTime {
    // An end before 1970 is as much in the past as 1970.
    let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn as_few<S: serde::Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().take(SHOWN_NAMES))
}

fn as_moment<S: serde::Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&moment(*time))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, SanType};

    use super::*;

    fn made(change: impl FnOnce(&mut CertificateParams)) -> CertificateEvidence {
        let names = [
            "tunnel.example.com".to_owned(),
            "*.tunnels.test".to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
        ];
        let mut params = CertificateParams::new(names).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, "the server");
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        CertificateEvidence::read(made.der()).unwrap()
    }

    #[test]
    fn it_says_whose_it_is_and_until_when() {
        let facts = made(|params| {
            params.not_before = rcgen::date_time_ymd(2026, 1, 2);
            params.not_after = rcgen::date_time_ymd(2027, 3, 4);
        });
        assert!(facts.subject.contains("the server"), "{}", facts.subject);
        assert_eq!(facts.issuer_name, "the server");
        assert!(facts.is_self_signed && !facts.is_logged);
        let line = facts.line();
        assert!(
            line.contains("valid from 2026-01-02T00:00:00Z to 2027-03-04T00:00:00Z"),
            "{line}"
        );
    }

    #[test]
    fn it_is_for_its_names_and_addresses() {
        let facts = made(|_| {});
        for host in [
            "tunnel.example.com",
            "TUNNEL.example.com.",
            "a.tunnels.test",
            "127.0.0.1",
            "::1",
        ] {
            assert!(facts.is_for(host), "{host}");
        }
        for host in [
            "example.com",
            "tunnels.test",
            "a.b.tunnels.test",
            "127.0.0.2",
        ] {
            assert!(!facts.is_for(host), "{host}");
        }
    }

    #[test]
    fn it_is_for_each_of_many_names_and_few_are_shown() {
        let facts = made(|params| {
            let name = |number| format!("site{number}.example.com").try_into().unwrap();
            params.subject_alt_names = (1..=12).map(|n| SanType::DnsName(name(n))).collect();
        });
        assert!(facts.is_for("site1.example.com") && facts.is_for("site12.example.com"));
        let line = facts.names_line();
        assert!(
            line.ends_with("site8.example.com and 4 more") && line.starts_with("site1."),
            "{line}"
        );
        let json = serde_json::to_value(&facts).unwrap();
        assert_eq!(json["names"].as_array().unwrap().len(), SHOWN_NAMES);
        assert!(!made(|_| {}).names_line().contains("more"));
    }

    #[test]
    fn one_that_signs_others_is_known() {
        let authority = made(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
        assert!(authority.is_authority && authority.is_self_signed);
        assert!(!made(|_| {}).is_authority);
    }

    #[test]
    fn its_words_do_not_reach_a_terminal_as_commands() {
        let facts = made(|params| {
            let name = &mut params.distinguished_name;
            name.push(DnType::CommonName, "a\u{1b}[2Jb");
        });
        assert!(!facts.line().contains('\u{1b}'));
        assert!(CertificateEvidence::read(&CertificateDer::from(vec![1, 2, 3])).is_none());
    }
}
