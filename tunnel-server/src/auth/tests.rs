//! The whole authenticator, without anybody to ask.

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
use crate::runtimes::edit::{Addition, Revoking, add_token, revoke_tokens};
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
    let addition = Addition {
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
    }
}

async fn show(
    authenticator: &Authenticator,
    bearer: Option<&str>,
    certificates: &[CertificateDer<'static>],
) -> Result<Grant, AuthRefusal> {
    let presented = Presented {
        bearer,
        certificates,
        greeting: &greeting("0.1.0", None),
        peer: "192.0.2.7:4000".parse().unwrap(),
    };
    authenticator.authenticate(&presented).await
}

/// Who signs clients' certificates, with the CA file and a file for the revocation list.
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

    /// Has its certificates let clients in.
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
async fn a_session_follows_its_token_in_the_file() {
    let (text, token) = added("", "acme", "prod");
    let (text, other) = added(&text, "acme", "prod");
    let authenticator = authenticator(&text, |_| {});
    let mut changed = authenticator.changed();
    assert!(changed.has_changed().unwrap(), "who begins looks once");
    changed.mark_unchanged();
    let grant = show(&authenticator, Some(token.expose()), &[])
        .await
        .unwrap();
    assert_eq!(
        grant.credential.to_string(),
        format!("token {}", token.id())
    );
    let now = SystemTime::now();
    assert_eq!(name(authenticator.as_of(&grant, now)), "good");

    let limits = text.replacen("name =", "allow_from = [\"192.0.2.7\"]\nname =", 1);
    authenticator.replace_runtimes(runtimes(&limits));
    assert!(changed.has_changed().unwrap());
    changed.mark_unchanged();
    let as_of = authenticator.as_of(&grant, now).unwrap();
    assert!(as_of.runtime.allow_from.is_some(), "the file's word of now");

    let ending = text.replacen("created", "expires = 2026-06-01T00:00:00Z\ncreated", 1);
    authenticator.replace_runtimes(runtimes(&ending));
    let end: SystemTime = "2026-06-01T00:00:00Z"
        .parse::<crate::runtimes::Moment>()
        .unwrap()
        .into();
    let in_grace = end + Duration::from_secs(29);
    let as_of = authenticator.as_of(&grant, in_grace).unwrap();
    assert_eq!(as_of.expires, Some(end), "the session is to warn");
    let over = end + Duration::from_secs(30);
    assert_eq!(name(authenticator.as_of(&grant, over)), "token_expired");

    let revoking = Revoking {
        account: &"acme".parse().unwrap(),
        runtime: &"prod".parse().unwrap(),
        id: Some(token.id()),
    };
    let (revoked, _) = revoke_tokens(&text, &revoking).unwrap();
    authenticator.replace_runtimes(runtimes(&revoked));
    let refusal = authenticator.as_of(&grant, now).unwrap_err();
    assert_eq!(refusal.name(), "credential_revoked");
    assert!(refusal.is_revoked(), "by who wrote the file");
    let fresh = show(&authenticator, Some(other.expose()), &[]).await;
    assert_eq!(name(fresh), "good", "the other goes on");

    for gone in ["", &text.replacen("prod", "stage", 1)] {
        authenticator.replace_runtimes(runtimes(gone));
        let refusal = authenticator.as_of(&grant, now).unwrap_err();
        assert_eq!(refusal.name(), "token_refused");
        assert!(!refusal.is_revoked(), "the file may have been cut short");
    }
    let (again, _) = added("", "acme", "prod");
    let same_id = again.replacen(again.split('"').nth(5).unwrap(), token.id().as_str(), 1);
    authenticator.replace_runtimes(runtimes(&same_id));
    assert_eq!(
        name(authenticator.as_of(&grant, now)),
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
        let grant = show(&authenticator, Some(token.expose()), &[])
            .await
            .unwrap();
        let untouched = show(&authenticator, Some(other.expose()), &[])
            .await
            .unwrap();
        authenticator
            .revoke(&revocation(target.clone(), before))
            .unwrap();
        assert!(changed.has_changed().unwrap());
        changed.mark_unchanged();
        let refusal = authenticator.as_of(&grant, now).unwrap_err();
        assert_eq!(
            (refusal.reason(), refusal.is_denial()),
            (RefusalReason::CredentialRevoked, true)
        );
        assert!(refusal.is_revoked());
        let again = show(&authenticator, Some(token.expose()), &[]).await;
        assert_eq!(name(again), "credential_revoked");
        assert!(authenticator.as_of(&untouched, now).is_ok());
        // What the operator said outlives another reading of the file.
        authenticator.replace_revocations(Revocations::default());
        assert!(authenticator.as_of(&grant, now).is_err());
    }
    let authenticator = authenticator(&text, |_| {});
    let account = RevocationTarget::Account("acme".parse().unwrap());
    authenticator
        .revoke(&revocation(account, Some("2025-01-01T00:00:00Z")))
        .unwrap();
    let later = show(&authenticator, Some(token.expose()), &[]).await;
    assert_eq!(name(later), "good", "it was made later");
}

#[tokio::test]
async fn a_certificate_lets_in_alone_or_beside_a_token_of_the_same_runtime() {
    let (text, token) = added("", "acme", "prod");
    let authenticator = authenticator(&text, with_certificates);
    let prod = [leaf("tunnel://acme/prod")];
    let test = [leaf("tunnel://acme/test")];
    let nobody = [leaf("https://acme/prod")];
    let alone = show(&authenticator, None, &prod).await.unwrap();
    assert_eq!(alone.runtime.label.as_str(), "acme-prod");
    assert_eq!(alone.credential.kind(), CredentialKind::Certificate);
    assert!(alone.expires.is_some());
    let unlisted = show(&authenticator, None, &test).await.unwrap();
    assert_eq!(unlisted.runtime.label.as_str(), "acme-test");
    let both = show(&authenticator, Some(token.expose()), &prod)
        .await
        .unwrap();
    assert_eq!(both.credential.kind(), CredentialKind::Token);
    assert_eq!(both.expires, alone.expires, "the first of the two ends");
    let token = Some(token.expose());
    for (bearer, chain, reason) in [
        (token, &test[..], "credentials_disagree"),
        (token, &nobody, "certificate_without_runtime"),
        (None, &nobody, "certificate_without_runtime"),
        (Some("x"), &prod, "token_refused"),
        (None, &[], "credential_missing"),
    ] {
        assert_eq!(name(show(&authenticator, bearer, chain).await), reason);
    }
    let serial = RevocationTarget::Credential(alone.credential.id().to_uppercase());
    authenticator.revoke(&revocation(serial, None)).unwrap();
    let now = SystemTime::now();
    for grant in [&alone, &both] {
        assert_eq!(name(authenticator.as_of(grant, now)), "credential_revoked");
    }
}

#[test]
fn an_end_is_put_off_by_the_platform_only_where_it_is_its_own() {
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

/// What a configuration with certificates of this authority, and perhaps its list, brings.
fn taking(authority: Option<(&Authority, bool)>) -> PreparedCredentials {
    let made = &*CERTIFICATES;
    let identity = Identity::from_pem(&made.server_pem, &made.server_key).unwrap();
    let mut config = Config::new(identity, runtimes(""), DOMAIN.parse().unwrap());
    if let Some((authority, with_list)) = authority {
        authority.set(&mut config, with_list);
    }
    PreparedCredentials::read(&config).unwrap()
}

#[tokio::test]
async fn what_let_a_session_in_may_be_revoked_by_its_issuer() {
    let ours = Authority::new("ours");
    ours.revoke(&[]);
    let authenticator = authenticator("", |config| {
        ours.set(config, true);
    });
    let (seven, eight) = (
        [ours.leaf("tunnel://acme/prod", 7)],
        [ours.leaf("tunnel://acme/test", 8)],
    );
    let grant = show(&authenticator, None, &seven).await.unwrap();
    let other = show(&authenticator, None, &eight).await.unwrap();
    let mut changed = authenticator.changed();
    ours.revoke(&[7]);
    authenticator.replace(taking(Some((&ours, true))));
    assert!(changed.has_changed().unwrap());
    changed.mark_unchanged();
    let now = SystemTime::now();
    let refusal = authenticator.as_of(&grant, now).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the credential has been revoked (certificate 7): request a new one"
    );
    assert_eq!(name(authenticator.as_of(&other, now)), "good");
    // The handshake was before the list came.
    let late = show(&authenticator, None, &seven).await;
    assert_eq!(name(late), "credential_revoked");
}

#[tokio::test]
async fn whose_issuer_is_trusted_no_more_is_let_in_no_more() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let authenticator = authenticator("", |config| {
        ours.set(config, false);
    });
    let chain = [ours.leaf("tunnel://acme/prod", 7)];
    let grant = show(&authenticator, None, &chain).await.unwrap();
    let now = SystemTime::now();
    for (certificates, reason) in [
        (Some((&ours, false)), "good"),
        (Some((&other, false)), "certificate_untrusted"),
        (None, "certificate_untrusted"),
        (Some((&ours, false)), "good"),
    ] {
        authenticator.replace(taking(certificates));
        assert_eq!(name(authenticator.as_of(&grant, now)), reason);
    }
    authenticator.replace(taking(Some((&other, false))));
    let refused = show(&authenticator, None, &chain).await;
    assert_eq!(name(refused), "certificate_untrusted");
    let strange = [other.leaf("tunnel://acme/prod", 7)];
    assert_eq!(name(show(&authenticator, None, &strange).await), "good");
}

#[tokio::test]
async fn a_session_ends_with_its_certificate_after_the_grace() {
    let authenticator = authenticator("", with_certificates);
    let chain = [leaf("tunnel://acme/prod")];
    let grant = show(&authenticator, None, &chain).await.unwrap();
    let end = grant.expires.unwrap();
    let in_grace = end + Duration::from_secs(29);
    let as_of = authenticator.as_of(&grant, in_grace).unwrap();
    assert_eq!(as_of.expires, Some(end), "the session is to warn");
    let over = end + Duration::from_secs(30);
    let refusal = authenticator.as_of(&grant, over).unwrap_err();
    assert_eq!(refusal.name(), "certificate_expired");
    assert!(refusal.is_expiry());
}

#[tokio::test]
async fn a_certificate_is_nothing_where_none_are_taken() {
    let authenticator = authenticator("", |_| {});
    let refused = show(&authenticator, None, &[leaf("tunnel://acme/prod")]).await;
    assert_eq!(name(refused), "credential_missing");
}

#[tokio::test]
async fn whom_the_file_names_later_keeps_his_label() {
    let authenticator = authenticator("", with_certificates);
    let grant = show(&authenticator, None, &[leaf("tunnel://a-b/c")])
        .await
        .unwrap();
    let other = show(&authenticator, None, &[leaf("tunnel://a/b-c")]).await;
    assert_eq!(name(other), "runtime_label_taken");
    let (text, _) = added("", "a", "b-c");
    authenticator.replace_runtimes(runtimes(&text));
    let now = SystemTime::now();
    let refusal = authenticator.as_of(&grant, now).unwrap_err();
    assert_eq!(
        (refusal.name(), refusal.is_revoked()),
        ("runtime_label_taken", true)
    );
}

#[tokio::test]
async fn a_credential_that_lets_nobody_in_keeps_no_label() {
    let authenticator = authenticator("", with_certificates);
    let revoked = AUTHORITY.leaf("tunnel://a-b/c", 0x0b);
    let target = RevocationTarget::Credential("0b".to_owned());
    authenticator.revoke(&revocation(target, None)).unwrap();
    let refused = show(&authenticator, None, &[revoked]).await;
    assert_eq!(name(refused), "credential_revoked");
    let foreign = Authority::new("theirs").leaf("tunnel://a-b/c", 0x0c);
    let refused = show(&authenticator, None, &[foreign]).await;
    assert_eq!(name(refused), "certificate_untrusted");
    let rightful = show(&authenticator, None, &[leaf("tunnel://a/b-c")]).await;
    assert_eq!(name(rightful), "good");
}

#[tokio::test]
async fn a_token_has_one_verifier_by_its_form() {
    let authenticator = authenticator("", |_| {});
    for (text, reason) in [
        ("", "token_refused"),
        ("x", "token_refused"),
        ("eyJhbGciOiJub25lIn0.e30.", "token_refused"),
        ("tnlrt_x", "token_refused"),
    ] {
        assert_eq!(name(show(&authenticator, Some(text), &[]).await), reason);
    }
    assert_eq!(
        (authenticator.key_count(), authenticator.is_platform_away()),
        (None, None)
    );
}

#[tokio::test]
async fn a_file_that_is_not_good_keeps_the_server_from_starting() {
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
async fn nothing_that_is_shown_holds_a_secret() {
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
        peer: "192.0.2.7:4000".parse().unwrap(),
    };
    let grant = authenticator.authenticate(&presented).await.unwrap();
    let wrong = format!("{}x", token.expose());
    let refusal = show(&authenticator, Some(&wrong), &[]).await.unwrap_err();
    let runtimes = runtimes(&text);
    let listed = runtimes.tokens().next().unwrap();
    let shown = format!(
        "{presented:?} {grant:?} {authenticator:?} {refusal:?} {refusal} {listed:?} {runtimes:?}"
    );
    assert!(shown.contains("acme-prod") && shown.contains(token.id().as_str()));
    assert!(!shown.contains(secret) && !shown.contains(&hash), "{shown}");
}

#[test]
fn one_bearer_and_only_one_is_taken() {
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
    fn a_token_never_lets_another_runtime_in(
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
        };
        let mut other = token.expose().to_owned();
        other.replace_range(changed..changed + 1, &letter);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for bearer in [token.expose(), &other] {
            let presented = Presented {
                bearer: Some(bearer),
                certificates: &[],
                greeting: &greeting,
                peer: "192.0.2.7:4000".parse().unwrap(),
            };
            let granted = runtime.block_on(authenticator.authenticate(&presented));
            match granted {
                Ok(grant) => prop_assert_eq!(grant.runtime.label.as_str(), "acme-prod"),
                Err(_) => prop_assert_ne!(bearer, token.expose()),
            }
        }
    }
}
