//! Tests of client authentication, and of session tickets when it changes.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};

use super::*;

/// A certificate authority that can issue revocation lists.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            cert,
        }
    }

    fn roots(&self) -> Roots {
        Roots::from_pem(&self.cert).unwrap()
    }

    fn identity(&self, serial: u64, purpose: ExtendedKeyUsagePurpose) -> Identity {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Identity::from_pem(&cert.pem(), &key.serialize_pem()).unwrap()
    }

    fn client(&self, serial: u64) -> Identity {
        self.identity(serial, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn server(&self, serial: u64) -> Identity {
        self.identity(serial, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn revoking(&self, serials: &[u64], next_year: i32) -> String {
        let revoke = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(next_year, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoke).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

fn auth(roots: Roots, revoked: Option<&str>, is_required: bool) -> ClientAuth {
    ClientAuth {
        roots,
        revocation_lists: revoked.map(|pem| RevocationLists::from_pem(pem).unwrap()),
        is_required,
    }
}

fn config(trusted: &Authority, identity: Option<&Identity>) -> Arc<ClientConfig> {
    client_config(&trusted.roots(), identity, &[]).unwrap()
}

/// Checks that a listener with this client authentication accepts this client, or refuses it with this
/// error.
#[track_caller]
fn check(authority: &Authority, auth: &ClientAuth, client: Option<&Identity>, refusal: &str) {
    let server = server_config(&authority.server(1), &[], Some(auth)).unwrap();
    let result = handshake(&config(authority, client), &server);
    let said = result
        .err()
        .map_or_else(String::new, |error| error.to_string());
    assert!(
        said.contains(refusal) && said.is_empty() == refusal.is_empty(),
        "{said}, expected {refusal:?}"
    );
}

#[test]
fn a_client_of_the_given_authority_is_accepted_and_identified() {
    let ours = Authority::new("ours");
    let client = ours.client(7);
    let server = server_config(&ours.server(1), &[], Some(&auth(ours.roots(), None, true)));
    let ends = handshake(&config(&ours, Some(&client)), &server.unwrap()).unwrap();
    let shown = ends.server.peer_certificates().unwrap();
    assert_eq!(shown, &client.certified.cert[..]);
    assert_eq!(not_after(&shown[0]), Some(client.not_after()));
}

#[test]
fn others_are_refused() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let required = auth(ours.roots(), None, true);
    check(&ours, &required, None, "peer sent no certificates");
    check(&ours, &required, Some(&other.client(7)), "UnknownIssuer");
    let of_a_server = ours.server(7);
    check(
        &ours,
        &required,
        Some(&of_a_server),
        "not allow extended key usage",
    );
}

#[test]
fn an_optional_certificate_must_still_be_valid() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let optional = auth(ours.roots(), None, false);
    check(&ours, &optional, None, "");
    check(&ours, &optional, Some(&ours.client(7)), "");
    check(&ours, &optional, Some(&other.client(7)), "UnknownIssuer");
}

#[test]
fn a_revoked_certificate_is_refused_and_another_is_not() {
    let ours = Authority::new("ours");
    let list = ours.revoking(&[7], 2100);
    let strict = auth(ours.roots(), Some(&list), true);
    check(&ours, &strict, Some(&ours.client(7)), "Revoked");
    check(&ours, &strict, Some(&ours.client(8)), "");
}

#[test]
fn lists_fail_closed() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let client = ours.client(7);
    let of_another = auth(ours.roots(), Some(&other.revoking(&[], 2100)), true);
    check(&ours, &of_another, Some(&client), "UnknownRevocationStatus");
    let past = auth(ours.roots(), Some(&ours.revoking(&[], 2021)), true);
    check(&ours, &past, Some(&client), "revocation list expired");
    let past = past.revocation_lists.unwrap();
    assert!(past.next_update() < SystemTime::now());
}

#[test]
fn an_invalid_revocation_list_is_reported() {
    let none = Authority::new("ours").cert;
    let hollow = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    for (pem, expected) in [
        (none.as_str(), "holds no revocation list"),
        (hollow, "holds a damaged or unusual revocation list"),
        ("-----BEGIN X509 CRL-----\n!", "holds a damaged"),
    ] {
        let error = RevocationLists::from_pem(pem).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("revocation list: {expected}")),
            "{error}"
        );
    }
    let error = RevocationLists::load(Path::new("/nowhere/crl")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("/nowhere/crl: cannot be read")
    );
}

#[test]
fn a_renewed_certificate_is_served_and_keeps_tickets_valid() {
    let ours = Authority::new("ours");
    let (old, new) = (ours.server(1), ours.server(2));
    let live = LiveServerConfig::new(old.clone(), &[], None).unwrap();
    let current = || Arc::clone(live.acceptor().config());
    let client = config(&ours, None);
    assert!(!is_resumed(&client, &current()));
    assert!(!live.replace(old, None).unwrap(), "nothing is new");
    assert!(live.replace(new.clone(), None).unwrap());
    assert_eq!(live.not_after(), Some(new.not_after()));
    assert!(is_resumed(&client, &current()));
    let ends = handshake(&config(&ours, None), &current()).unwrap();
    assert_eq!(
        ends.client.peer_certificates().unwrap(),
        &new.certified.cert[..]
    );
}

#[test]
fn a_ticket_does_not_bypass_a_new_revocation_list() {
    let ours = Authority::new("ours");
    let server = ours.server(1);
    let with = |serials: &[u64]| {
        let list = ours.revoking(serials, 2100);
        Some(auth(ours.roots(), Some(&list), true))
    };
    let live = LiveServerConfig::new(server.clone(), &[], with(&[])).unwrap();
    let current = || Arc::clone(live.acceptor().config());
    let revoked = config(&ours, Some(&ours.client(7)));
    assert!(!is_resumed(&revoked, &current()));
    assert!(is_resumed(&revoked, &current()));
    assert!(live.replace(server, with(&[7])).unwrap());
    let error = handshake(&revoked, &current()).err().unwrap().to_string();
    assert!(error.contains("Revoked"), "{error}");
}

#[test]
fn accepted_certificates_are_checked_again() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let chain = |client: &Identity| client.certified.cert.clone();
    let (seven, eight) = (chain(&ours.client(7)), chain(&ours.client(8)));
    let with = |roots: &Authority, revoked: Option<&str>| {
        ClientCheck::new(auth(roots.roots(), revoked, false)).unwrap()
    };
    let now = SystemTime::now();
    let open = with(&ours, None);
    assert!(open.is_trusted(&seven, now) && !open.is_revoked(&seven[0]));
    assert!(!open.is_trusted(&[], now));
    let strict = with(&ours, Some(&ours.revoking(&[7], 2021)));
    assert!(
        strict.is_revoked(&seven[0]),
        "though the list is past its date"
    );
    assert!(!strict.is_revoked(&eight[0]));
    assert!(strict.is_trusted(&eight, now));
    // A certificate of another issuer with an equal serial number.
    let of_another = with(&ours, Some(&other.revoking(&[7], 2100)));
    assert!(!of_another.is_revoked(&seven[0]));
    assert!(!with(&other, None).is_trusted(&seven, now));
    // Expiry is not part of this check.
    let at_the_end = ours.client(9);
    let later = at_the_end.not_after() + Duration::from_secs(1);
    assert!(open.is_trusted(&chain(&at_the_end), later));
}

#[test]
fn fingerprints_distinguish_lists_and_roots() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let list = |serials: &[u64]| {
        let list = RevocationLists::from_pem(&ours.revoking(serials, 2100));
        list.unwrap().fingerprint()
    };
    assert_ne!(list(&[7]), list(&[8]));
    assert_eq!(list(&[7]).len(), 16);
    assert_eq!(ours.roots().fingerprint(), ours.roots().fingerprint());
    assert_ne!(ours.roots().fingerprint(), other.roots().fingerprint());
}

#[test]
fn a_prepared_configuration_takes_effect_when_committed() {
    let ours = Authority::new("ours");
    let (old, new) = (ours.server(1), ours.server(2));
    let live = LiveServerConfig::new(old.clone(), &[], None).unwrap();
    let shown = || {
        let ends = handshake(&config(&ours, None), live.acceptor().config()).unwrap();
        ends.client.peer_certificates().unwrap().to_vec()
    };
    let next = live.prepare(new.clone(), None).unwrap();
    assert_eq!(shown(), old.certified.cert);
    assert!(live.commit(next));
    assert_eq!(shown(), new.certified.cert);
    let same = live.prepare(new, None).unwrap();
    assert!(!live.commit(same));
}
