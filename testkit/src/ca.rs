//! How tests make certificates: a CA and its certificates, held in memory. `e2e/src/ca.rs` makes them as files, for
//! child processes.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};
use tunnel_ops::tls_files::{Identity, Roots};

use crate::secrets;

/// A certificate authority that only the test trusts.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, PEM.
#[derive(Clone, Debug)]
pub struct CertifiedKey {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Authority {
    /// Makes an authority whose common name is `name`.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate, PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Itself as the only root to trust.
    pub fn roots(&self) -> Roots {
        Roots::from_pem(&self.pem()).unwrap()
    }

    /// A certificate for `names` (DNS names or addresses) that is valid now.
    pub fn issue(&self, names: &[&str]) -> CertifiedKey {
        self.issue_with(names, |_| {})
    }

    /// A certificate for `names` whose parameters `change` may alter.
    pub fn issue_with(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> CertifiedKey {
        let mut params = params(names);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.0).unwrap();
        CertifiedKey::new(signed.pem(), &key)
    }

    /// The revocation list of these serial numbers, PEM.
    pub fn revocation_list(&self, serials: &[u64]) -> String {
        let entry = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }
}

impl CertifiedKey {
    fn new(certificate: String, key: &KeyPair) -> Self {
        let key = key.serialize_pem();
        secrets::keep("a private key", &key);
        Self { certificate, key }
    }

    /// Certificate and key, as a listener or a client uses them.
    pub fn identity(&self) -> Identity {
        Identity::from_pem(&self.certificate, &self.key).unwrap()
    }

    /// The certificate as the only root to trust: good for one that [`self_signed`] made.
    pub fn roots(&self) -> Roots {
        Roots::from_pem(&self.certificate).unwrap()
    }
}

/// A certificate for `name` that is its own issuer.
pub fn self_signed(name: &str) -> CertifiedKey {
    self_signed_with(name, |_| {})
}

/// A certificate that is its own issuer, whose parameters `change` may alter.
pub fn self_signed_with(name: &str, change: impl FnOnce(&mut CertificateParams)) -> CertifiedKey {
    let mut params = params(&[name]);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let signed = params.self_signed(&key).unwrap();
    CertifiedKey::new(signed.pem(), &key)
}

fn params(names: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, names[0]);
    params.subject_alt_names = names
        .iter()
        .map(|name| match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName((*name).try_into().unwrap()),
        })
        .collect();
    params
}
