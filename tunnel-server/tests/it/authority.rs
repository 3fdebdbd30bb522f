//! Who signs tunnel clients' certificates, and takes them back.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SanType, SerialNumber, date_time_ymd,
};
use tunnel_ops::tls_files::Identity;

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// Its own certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a runtime, which it names as `tunnel://<account>/<runtime>`.
    pub(crate) fn client(&self, runtime: &str, serial: u64) -> Identity {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(runtime.try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &*self.0).unwrap();
        Identity::from_pem(&cert.pem(), &key.serialize_pem()).unwrap()
    }

    /// The revocation list of these serial numbers.
    pub(crate) fn revoking(&self, serials: &[u64]) -> String {
        let entry = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&*self.0).unwrap().pem().unwrap()
    }
}

/// A certificate of one's own for `localhost` whose time is over, and its key, both PEM.
pub(crate) fn that_ran_out() -> (String, String) {
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2021, 2, 1);
    let key = KeyPair::generate().unwrap();
    let cert = params.self_signed(&key).unwrap();
    (cert.pem(), key.serialize_pem())
}
