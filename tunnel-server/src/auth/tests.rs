//! Tests of the authenticator with tokens of the runtimes file and certificates; those with a platform are in
//! `platform/tests.rs`.

use std::sync::LazyLock;

use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SanType, SerialNumber, date_time_ymd,
};
use tempfile::NamedTempFile;
use tunnel_ops::config_file::TomlFile;
use tunnel_ops::tls_files::Identity;
use tunnel_proto::handshake::InstanceSecret;
use tunnel_proto::refusal::RefusalReason;

use super::revocation::RevocationTarget;
use super::*;
use crate::certs::Certificates;
use crate::config::Config;
use crate::runtimes::edit::{TokenAddition, TokenRevocation, add_token, revoke_tokens};
use crate::token::Token;

static CERTIFICATES: LazyLock<Certificates> =
    LazyLock::new(|| crate::certs::generate(&["localhost".to_owned()], 1).unwrap());

const DOMAIN: &str = "d.example";

fn runtimes(text: &str) -> Runtimes {
    let domain = DOMAIN.parse().unwrap();
    Runtimes::parse(&TomlFile::from_text("r.toml", text), &domain).unwrap()
}

fn authenticator(text: &str, change: impl FnOnce(&mut Config)) -> Arc<Authenticator> {
    let made = &*CERTIFICATES;
    let identity = Identity::from_pem(&made.server_pem, &made.server_key).unwrap();
    let mut config = Config::new(identity, runtimes(text), DOMAIN.parse().unwrap());
    change(&mut config);
    Authenticator::new(&config).unwrap()
}

/// The file with one more token in it.
fn added(text: &str, account: &str, runtime: &str) -> (String, Token) {
    let token = Token::generate().unwrap();
    let addition = TokenAddition {
        account: &account.parse().unwrap(),
        runtime: &runtime.parse().unwrap(),
        hosts: &[],
        token: &token,
        created: Some("2026-01-01T00:00:00Z".parse().unwrap()),
        expires: None,
        note: None,
    };
    (add_token(text, &addition).unwrap(), token)
}

fn greeting(version: &str, allow_from: Option<&str>) -> Greeting {
    Greeting {
        instance: InstanceSecret::from_random([7; 16]),
        version: version.into(),
        session_number: 1,
        allow_from: allow_from.map(str::to_owned),
        is_check: false,
        stands_by: false,
        placement: None,
    }
}

async fn authenticate(
    authenticator: &Authenticator,
    bearer: Option<&str>,
    certificates: &[CertificateDer<'static>],
) -> Result<Grant, AuthRefusal> {
    let presented = Presented {
        bearer,
        certificates,
        greeting: &greeting("0.1.0", None),
        peer: std::net::SocketAddr::from(([192, 0, 2, 7], 4000)).into(),
    };
    authenticator.authenticate(&presented).await
}

/// An authority that signs client certificates, with the CA file and a file for the revocation list.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    ca: NamedTempFile,
    crl: NamedTempFile,
}

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("ours"));

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let ca = NamedTempFile::new().unwrap();
        std::fs::write(ca.path(), issuer.pem()).unwrap();
        let crl = NamedTempFile::new().unwrap();
        Self { issuer, ca, crl }
    }

    fn leaf(&self, uri: &str, serial: u64) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &*self.issuer).unwrap().der().clone()
    }

    /// Writes the list of these serial numbers.
    fn revoke(&self, serials: &[u64]) {
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
        let list = params.signed_by(&*self.issuer).unwrap();
        std::fs::write(self.crl.path(), list.pem().unwrap()).unwrap();
    }

    /// Configures this authority as `--client-ca`, and its revocation list as `--client-crl` if `with_list`.
    fn set(&self, config: &mut Config, with_list: bool) {
        config.settings.client_ca = Some(self.ca.path().into());
        config.settings.client_crl = with_list.then(|| self.crl.path().into());
    }
}

fn leaf(uri: &str) -> CertificateDer<'static> {
    AUTHORITY.leaf(uri, 0x0a_ff)
}

fn with_certificates(config: &mut Config) {
    AUTHORITY.set(config, false);
}

fn revocation(target: RevocationTarget, before: Option<&str>) -> Revocation {
    let moment = |text: &str| text.parse::<crate::runtimes::Moment>().unwrap().into();
    Revocation {
        target,
        before: before.map(moment),
    }
}

fn name<T>(result: Result<T, AuthRefusal>) -> &'static str {
    result.map_or_else(|refusal| refusal.name(), |_| "good")
}

#[tokio::test]
async fn a_grant_follows_its_token_in_the_file() {
    let (text, token) = added("", "acme", "prod");
    let (text, other) = added(&text, "acme", "prod");
    let authenticator = authenticator(&text, |_| {});
    let mut changed = authenticator.changed();
    assert!(changed.has_changed().unwrap(), "a new session checks once");
    changed.mark_unchanged();
    let grant = authenticate(&authenticator, Some(token.expose()), &[])
        .await
        .unwrap();
    assert_eq!(
        grant.credential.to_string(),
        format!("token {}", token.id())
    );
    let now = SystemTime::now();
    assert_eq!(name(authenticator.recheck(&grant, now)), "good");

    let limits = text.replacen("name =", "allow_from = [\"192.0.2.7\"]\nname =", 1);
    authenticator.replace_runtimes(runtimes(&limits));
    assert!(changed.has_changed().unwrap());
    changed.mark_unchanged();
    let rechecked = authenticator.recheck(&grant, now).unwrap();
    assert!(rechecked.runtime.allow_from.is_some(), "as in the new file");

    let ending = text.replacen("created", "expires = 2026-06-01T00:00:00Z\ncreated", 1);
    authenticator.replace_runtimes(runtimes(&ending));
    let end: SystemTime = "2026-06-01T00:00:00Z"
        .parse::<crate::runtimes::Moment>()
        .unwrap()
        .into();
    let in_grace = end + Duration::from_secs(29);
    let rechecked = authenticator.recheck(&grant, in_grace).unwrap();
    assert_eq!(rechecked.expires, Some(end), "the session must warn");
    let over = end + Duration::from_secs(30);
    assert_eq!(name(authenticator.recheck(&grant, over)), "token_expired");

    let revocation = TokenRevocation {
        account: &"acme".parse().unwrap(),
        runtime: &"prod".parse().unwrap(),
        id: Some(token.id()),
    };
    let (revoked, _) = revoke_tokens(&text, &revocation).unwrap();
    authenticator.replace_runtimes(runtimes(&revoked));
    let refusal = authenticator.recheck(&grant, now).unwrap_err();
    assert_eq!(refusal.name(), "credential_revoked");
    assert!(refusal.is_revoked(), "explicitly, in the file");
    let fresh = authenticate(&authenticator, Some(other.expose()), &[]).await;
    assert_eq!(name(fresh), "good", "the other token stays valid");

    for gone in ["", &text.replacen("prod", "stage", 1)] {
        authenticator.replace_runtimes(runtimes(gone));
        let refusal = authenticator.recheck(&grant, now).unwrap_err();
        assert_eq!(refusal.name(), "token_refused");
        assert!(!refusal.is_revoked(), "the file may have been cut short");
    }
    let (again, _) = added("", "acme", "prod");
    let same_id = again.replacen(again.split('"').nth(5).unwrap(), token.id().as_str(), 1);
    authenticator.replace_runtimes(runtimes(&same_id));
    assert_eq!(
        name(authenticator.recheck(&grant, now)),
        "token_refused",
        "the same id with another secret"
    );
}

#[tokio::test]
async fn revocations_cut_by_id_runtime_and_account_and_leave_others() {
    let (text, token) = added("", "acme", "prod");
    let (text, other) = added(&text, "globex", "prod");
    let (account, runtime) = ("acme".parse().unwrap(), "prod".parse().unwrap());
    let id = RevocationTarget::Credential(token.id().to_string());
    for (target, before) in [
        (id, None),
        (RevocationTarget::Runtime(account, runtime), None),
        (
            RevocationTarget::Account("acme".parse().unwrap()),
            Some("2026-01-02T00:00:00Z"),
        ),
    ] {
        let authenticator = authenticator(&text, |_| {});
        let mut changed = authenticator.changed();
        changed.mark_unchanged();
        let now = SystemTime::now();
        let grant = authenticate(&authenticator, Some(token.expose()), &[])
            .await
            .unwrap();
        let untouched = authenticate(&authenticator, Some(other.expose()), &[])
            .await
            .unwrap();
        authenticator
            .revoke(&[revocation(target.clone(), before)])
            .unwrap();
        assert!(changed.has_changed().unwrap());
        changed.mark_unchanged();
        let refusal = authenticator.recheck(&grant, now).unwrap_err();
        assert_eq!(
            (refusal.reason(), refusal.is_denial()),
            (RefusalReason::CredentialRevoked, true)
        );
        assert!(refusal.is_revoked());
        let again = authenticate(&authenticator, Some(token.expose()), &[]).await;
        assert_eq!(name(again), "credential_revoked");
        assert!(authenticator.recheck(&untouched, now).is_ok());
        // The operator's revocations stay when the file is read again.
        authenticator.replace_revocations(Revocations::default());
        assert!(authenticator.recheck(&grant, now).is_err());
    }
    let authenticator = authenticator(&text, |_| {});
    let account = RevocationTarget::Account("acme".parse().unwrap());
    authenticator
        .revoke(&[revocation(account, Some("2025-01-01T00:00:00Z"))])
        .unwrap();
    let later = authenticate(&authenticator, Some(token.expose()), &[]).await;
    assert_eq!(name(later), "good", "it was made later");
}

#[tokio::test]
async fn a_certificate_authenticates_alone_or_beside_a_token_of_its_runtime() {
    let (text, token) = added("", "acme", "prod");
    let authenticator = authenticator(&text, with_certificates);
    let prod = [leaf("tunnel://acme/prod")];
    let test = [leaf("tunnel://acme/test")];
    let nameless = [leaf("https://acme/prod")];
    let alone = authenticate(&authenticator, None, &prod).await.unwrap();
    assert_eq!(alone.runtime.label.as_str(), "acme-prod");
    assert_eq!(alone.credential.kind(), CredentialKind::Certificate);
    assert!(alone.expires.is_some());
    let unlisted = authenticate(&authenticator, None, &test).await.unwrap();
    assert_eq!(unlisted.runtime.label.as_str(), "acme-test");
    let both = authenticate(&authenticator, Some(token.expose()), &prod)
        .await
        .unwrap();
    assert_eq!(both.credential.kind(), CredentialKind::Token);
    assert_eq!(both.expires, alone.expires, "the first of the two ends");
    let token = Some(token.expose());
    for (bearer, chain, reason) in [
        (token, &test[..], "credentials_disagree"),
        (token, &nameless, "certificate_without_runtime"),
        (None, &nameless, "certificate_without_runtime"),
        (Some("x"), &prod, "token_malformed"),
        (None, &[], "credential_missing"),
    ] {
        assert_eq!(
            name(authenticate(&authenticator, bearer, chain).await),
            reason
        );
    }
    let serial = RevocationTarget::Credential(alone.credential.id().to_uppercase());
    authenticator.revoke(&[revocation(serial, None)]).unwrap();
    let now = SystemTime::now();
    for grant in [&alone, &both] {
        assert_eq!(
            name(authenticator.recheck(grant, now)),
            "credential_revoked"
        );
    }
}

#[test]
fn the_platform_postpones_only_the_expiry_of_its_own_answer() {
    let authenticator = authenticator("", with_certificates);
    let now = SystemTime::now();
    let minutes = |count: u64| Some(now + Duration::from_secs(60 * count));
    let chain = [leaf("tunnel://acme/prod")];
    let verified = || certificate::verify(&chain, now).unwrap();
    for (platform, certificate, expected) in [
        (minutes(60), minutes(600), true),
        (minutes(60), minutes(10), false),
        (minutes(600), minutes(60), false),
        (minutes(20), minutes(600), false),
    ] {
        let mut first = verified();
        first.credential.expires = platform;
        (first.renew_at, first.renewable_end) = (minutes(30), platform);
        let mut second = verified();
        second.credential.expires = certificate;
        let grant = authenticator.grant(vec![first, second], now).unwrap();
        assert_eq!(
            grant.is_renewable(),
            expected,
            "{platform:?} {certificate:?}"
        );
    }
}

/// The credentials of a configuration that accepts certificates of this authority, and perhaps checks its list.
fn accepting(authority: Option<(&Authority, bool)>) -> PreparedCredentials {
    let made = &*CERTIFICATES;
    let identity = Identity::from_pem(&made.server_pem, &made.server_key).unwrap();
    let mut config = Config::new(identity, runtimes(""), DOMAIN.parse().unwrap());
    if let Some((authority, with_list)) = authority {
        authority.set(&mut config, with_list);
    }
    PreparedCredentials::read(&config, Arc::default()).unwrap()
}

#[tokio::test]
async fn the_issuer_s_list_revokes_a_certificate_in_use() {
    let ours = Authority::new("ours");
    ours.revoke(&[]);
    let authenticator = authenticator("", |config| {
        ours.set(config, true);
    });
    let (seven, eight) = (
        [ours.leaf("tunnel://acme/prod", 7)],
        [ours.leaf("tunnel://acme/test", 8)],
    );
    let grant = authenticate(&authenticator, None, &seven).await.unwrap();
    let other = authenticate(&authenticator, None, &eight).await.unwrap();
    let mut changed = authenticator.changed();
    ours.revoke(&[7]);
    authenticator.replace(accepting(Some((&ours, true))));
    assert!(changed.has_changed().unwrap());
    changed.mark_unchanged();
    let now = SystemTime::now();
    let refusal = authenticator.recheck(&grant, now).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the credential has been revoked (certificate 7): request a new one"
    );
    assert_eq!(name(authenticator.recheck(&other, now)), "good");
    // The TLS handshake was before the list was read.
    let late = authenticate(&authenticator, None, &seven).await;
    assert_eq!(name(late), "credential_revoked");
}

#[tokio::test]
async fn a_certificate_is_refused_once_its_issuer_is_no_longer_trusted() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let authenticator = authenticator("", |config| {
        ours.set(config, false);
    });
    let chain = [ours.leaf("tunnel://acme/prod", 7)];
    let grant = authenticate(&authenticator, None, &chain).await.unwrap();
    let now = SystemTime::now();
    for (certificates, reason) in [
        (Some((&ours, false)), "good"),
        (Some((&other, false)), "certificate_untrusted"),
        (None, "certificate_untrusted"),
        (Some((&ours, false)), "good"),
    ] {
        authenticator.replace(accepting(certificates));
        assert_eq!(name(authenticator.recheck(&grant, now)), reason);
    }
    authenticator.replace(accepting(Some((&other, false))));
    let refused = authenticate(&authenticator, None, &chain).await;
    assert_eq!(name(refused), "certificate_untrusted");
    let foreign = [other.leaf("tunnel://acme/prod", 7)];
    assert_eq!(
        name(authenticate(&authenticator, None, &foreign).await),
        "good"
    );
}

#[tokio::test]
async fn a_session_ends_with_its_certificate_after_the_grace() {
    let authenticator = authenticator("", with_certificates);
    let chain = [leaf("tunnel://acme/prod")];
    let grant = authenticate(&authenticator, None, &chain).await.unwrap();
    let end = grant.expires.unwrap();
    let in_grace = end + Duration::from_secs(29);
    let rechecked = authenticator.recheck(&grant, in_grace).unwrap();
    assert_eq!(rechecked.expires, Some(end), "the session must warn");
    let over = end + Duration::from_secs(30);
    let refusal = authenticator.recheck(&grant, over).unwrap_err();
    assert_eq!(refusal.name(), "certificate_expired");
    assert!(refusal.is_expiry());
}

#[tokio::test]
async fn a_certificate_is_ignored_if_none_are_accepted() {
    let authenticator = authenticator("", |_| {});
    let refused = authenticate(&authenticator, None, &[leaf("tunnel://acme/prod")]).await;
    assert_eq!(name(refused), "credential_missing");
}

#[tokio::test]
async fn a_runtime_that_is_listed_later_takes_its_label() {
    let authenticator = authenticator("", with_certificates);
    let grant = authenticate(&authenticator, None, &[leaf("tunnel://a-b/c")])
        .await
        .unwrap();
    let (text, _) = added("", "a", "b-c");
    authenticator.replace_runtimes(runtimes(&text));
    let now = SystemTime::now();
    let refusal = authenticator.recheck(&grant, now).unwrap_err();
    assert_eq!(
        (refusal.name(), refusal.is_revoked()),
        ("runtime_label_taken", true)
    );
}

#[tokio::test]
async fn a_token_has_one_verifier_by_its_form() {
    let authenticator = authenticator("", |_| {});
    for (text, reason) in [
        ("", "token_malformed"),
        ("x", "token_malformed"),
        ("eyJhbGciOiJub25lIn0.e30.", "token_malformed"),
        ("tnlrt_x", "token_malformed"),
    ] {
        assert_eq!(
            name(authenticate(&authenticator, Some(text), &[]).await),
            reason
        );
    }
    assert_eq!(
        (authenticator.key_count(), authenticator.is_platform_away()),
        (None, None)
    );
}

#[tokio::test]
async fn an_unreadable_file_keeps_the_server_from_starting() {
    let made = &*CERTIFICATES;
    let identity = Identity::from_pem(&made.server_pem, &made.server_key).unwrap();
    let mut config = Config::new(identity, runtimes(""), DOMAIN.parse().unwrap());
    config.settings.revocations = Some("/nowhere/v.toml".into());
    let error = Authenticator::new(&config).unwrap_err().to_string();
    assert!(
        error.starts_with("/nowhere/v.toml: cannot be read"),
        "{error}"
    );
}

#[tokio::test]
async fn no_debug_output_contains_a_secret() {
    let (text, token) = added("", "acme", "prod");
    let secret = token.expose().rsplit('_').next().unwrap();
    let hash: String = token
        .sha256()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let authenticator = authenticator(&text, with_certificates);
    let bearer = Some(token.expose());
    let greeting = greeting("0.1.0", None);
    let presented = Presented {
        bearer,
        certificates: &[],
        greeting: &greeting,
        peer: std::net::SocketAddr::from(([192, 0, 2, 7], 4000)).into(),
    };
    let grant = authenticator.authenticate(&presented).await.unwrap();
    let wrong = format!("{}x", token.expose());
    let refusal = authenticate(&authenticator, Some(&wrong), &[])
        .await
        .unwrap_err();
    let runtimes = runtimes(&text);
    let listed = runtimes.tokens().next().unwrap();
    let shown = format!(
        "{presented:?} {grant:?} {authenticator:?} {refusal:?} {refusal} {listed:?} {runtimes:?}"
    );
    assert!(shown.contains("acme-prod") && shown.contains(token.id().as_str()));
    assert!(!shown.contains(secret) && !shown.contains(&hash), "{shown}");
}

#[test]
fn exactly_one_bearer_is_accepted() {
    let headers = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        headers
    };
    assert_eq!(bearer(&headers(&["Bearer x"])), Some("x"));
    assert_eq!(bearer(&headers(&["bearer x"])), Some("x"));
    for bad in [
        &[][..],
        &["Bearer"],
        &["Basic x"],
        &["Bearer x", "Bearer x"],
    ] {
        assert_eq!(bearer(&headers(bad)), None, "{bad:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_token_never_authenticates_another_runtime(
        version in "\\PC{0,40}",
        allow_from in proptest::option::of("\\PC{0,40}"),
        instance in any::<[u8; 16]>(),
        session_number in any::<u32>(),
        changed in 6_usize..66,
        letter in "[0-9a-f]",
    ) {
        let (text, token) = added("", "acme", "prod");
        let (text, _) = added(&text, "globex", "dev");
        let authenticator = authenticator(&text, |_| {});
        let greeting = Greeting {
            instance: InstanceSecret::from_random(instance),
            version,
            session_number,
            allow_from,
            is_check: false,
            stands_by: false,
            placement: None,
        };
        let mut other = token.expose().to_owned();
        other.replace_range(changed..changed + 1, &letter);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for bearer in [token.expose(), &other] {
            let presented = Presented {
                bearer: Some(bearer),
                certificates: &[],
                greeting: &greeting,
                peer: std::net::SocketAddr::from(([192, 0, 2, 7], 4000)).into(),
            };
            let granted = runtime.block_on(authenticator.authenticate(&presented));
            match granted {
                Ok(grant) => prop_assert_eq!(grant.runtime.label.as_str(), "acme-prod"),
                Err(_) => prop_assert_ne!(bearer, token.expose()),
            }
        }
    }
}
