//! JSON Web Tokens by an issuer's keys: keys from a URL and from a file, and what happens when they change.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use jsonwebtoken::{Algorithm, EncodingKey, Header, jwk::Jwk};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};
use testkit::deadline::{SOON, eventually, soon};
use tokio::{sync::Semaphore, task::JoinSet};
use tunnel_proto::refusal::RefusalReason;
use tunnel_server::{
    auth::{Authenticator, CredentialKind},
    certs,
    config::{JwksSource, Settings},
};

use crate::{
    credentials::{CERTIFICATES, config, later, name, show},
    program::Folder,
    scripted_server::{Reply, SHORT, ScriptedServer},
};

/// Who signs JSON Web Tokens, with a key of this name.
pub(crate) struct Issuer(EncodingKey, &'static str);

impl Issuer {
    pub(crate) fn new(kid: &'static str) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        Self(EncodingKey::from_ec_der(&key.serialize_der()), kid)
    }

    /// The keys of some, as a JWK set.
    pub(crate) fn keys(issuers: &[&Self]) -> String {
        let jwk = |issuer: &&Self| {
            let mut jwk = Jwk::from_encoding_key(&issuer.0, Algorithm::ES256).unwrap();
            jwk.common.key_id = Some(issuer.1.into());
            jwk
        };
        let keys: Vec<Jwk> = issuers.iter().map(jwk).collect();
        json!({ "keys": keys }).to_string()
    }

    /// A token for `https://id.example`'s audience `tunnel`.
    pub(crate) fn sign(&self, account: &str, runtime: &str) -> String {
        self.sign_claims(account, runtime, json!({}))
    }

    /// The same with further claims.
    pub(crate) fn sign_claims(&self, account: &str, runtime: &str, more: Value) -> String {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let mut claims = json!({
            "iss": "https://id.example", "aud": "tunnel", "exp": now + 600,
            "account": account, "runtime": runtime,
        });
        let more = more.as_object().unwrap().clone();
        claims.as_object_mut().unwrap().extend(more);
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.1.into());
        jsonwebtoken::encode(&header, &claims, &self.0).unwrap()
    }
}

pub(crate) fn jwt(settings: &mut Settings, keys: JwksSource) {
    settings.jwks = Some(keys);
    settings.jwt_issuer = Some("https://id.example".into());
    settings.jwt_audience = Some("tunnel".into());
}

fn by_keys(folder: &Folder, keys: JwksSource) -> Arc<Authenticator> {
    let config = config(folder, |config| {
        jwt(&mut config.settings, keys);
        config.settings.auth_timeout = SHORT;
    });
    Authenticator::new(&config).unwrap()
}

#[tokio::test]
async fn keys_are_fetched_over_tls_once_for_many_tokens() {
    let issuer = Issuer::new("k1");
    let keys = Reply::Answer(200, Issuer::keys(&[&issuer]));
    let server = ScriptedServer::start(Some(&CERTIFICATES), keys).await;
    let folder = Folder::new();
    let authenticator = by_keys(&folder, server.url.parse().unwrap());
    assert_eq!(authenticator.key_count(), Some(0), "nobody was asked yet");
    let mut clients = JoinSet::new();
    for _ in 0..20 {
        let (authenticator, token) = (authenticator.clone(), issuer.sign("acme", "prod"));
        clients.spawn(async move { show(&authenticator, &token).await });
    }
    while let Some(granted) = clients.join_next().await {
        let grant = granted.unwrap().unwrap();
        assert_eq!(grant.runtime.label.as_str(), "acme-prod");
        assert_eq!(grant.credential.kind(), CredentialKind::Jwt);
        assert!(grant.expires.is_some());
    }
    assert_eq!(server.questions().len(), 1);
    // A key that is not known is asked for once in a while only, however many name it.
    let stranger = Issuer::new("k2");
    for _ in 0..20 {
        let refused = show(&authenticator, &stranger.sign("acme", "prod")).await;
        assert_eq!(name(refused), "token_key_unknown");
    }
    assert_eq!(server.questions().len(), 1);
    assert_eq!(
        name(show(&authenticator, &issuer.sign("a", "b")).await),
        "good"
    );
}

#[tokio::test]
async fn a_new_key_is_found_and_the_last_good_ones_are_kept() {
    let (old, new, stranger) = (Issuer::new("old"), Issuer::new("new"), Issuer::new("x"));
    let server = ScriptedServer::start(None, Reply::Answer(200, Issuer::keys(&[&old]))).await;
    let folder = Folder::new();
    let authenticator = by_keys(&folder, server.url.parse().unwrap());
    authenticator.start();
    let is_good = async |issuer: &Issuer| name(show(&authenticator, &issuer.sign("a", "b")).await);
    assert_eq!(is_good(&old).await, "good");
    server.reply(Reply::Answer(200, Issuer::keys(&[&old, &new])));
    assert_eq!(
        is_good(&new).await,
        "token_key_unknown",
        "too soon to ask again"
    );
    later(Duration::from_secs(10)).await;
    assert_eq!(is_good(&new).await, "good");
    assert_eq!(
        (server.questions().len(), authenticator.key_count()),
        (2, Some(2))
    );
    server.reply(Reply::Answer(500, String::new()));
    later(Duration::from_secs(10)).await;
    assert_eq!(is_good(&stranger).await, "token_key_unknown");
    assert_eq!(server.questions().len(), 3);
    assert_eq!((is_good(&old).await, is_good(&new).await), ("good", "good"));
    // Nobody needs to ask for what has changed in the end.
    server.reply(Reply::Answer(200, Issuer::keys(&[&new])));
    later(Duration::from_secs(15 * 60)).await;
    eventually(SOON, "one key", async || {
        (authenticator.key_count() == Some(1)).then_some(())
    })
    .await;
    assert_eq!(is_good(&old).await, "token_key_unknown");
}

#[tokio::test]
async fn a_key_is_replaced_by_one_of_the_same_name() {
    let (old, new, stranger) = (Issuer::new("k"), Issuer::new("k"), Issuer::new("k"));
    let server = ScriptedServer::start(None, Reply::Answer(200, Issuer::keys(&[&old]))).await;
    let folder = Folder::new();
    let authenticator = by_keys(&folder, server.url.parse().unwrap());
    let is_good = async |issuer: &Issuer| name(show(&authenticator, &issuer.sign("a", "b")).await);
    assert_eq!(is_good(&old).await, "good");
    server.reply(Reply::Answer(200, Issuer::keys(&[&new])));
    // Its client must not give up: the keys were fetched before it was signed.
    assert_eq!(is_good(&new).await, "token_key_unknown");
    later(Duration::from_secs(10)).await;
    assert_eq!(is_good(&new).await, "good");
    later(Duration::from_secs(10)).await;
    assert_eq!(is_good(&stranger).await, "token_signature");
    assert_eq!(server.questions().len(), 3);
}

#[tokio::test]
async fn sessions_of_a_removed_key_are_checked_again() {
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let server = ScriptedServer::start(None, Reply::Answer(200, Issuer::keys(&[&old]))).await;
    let folder = Folder::new();
    let authenticator = by_keys(&folder, server.url.parse().unwrap());
    let grant = show(&authenticator, &old.sign("a", "b")).await.unwrap();
    let mut changed = authenticator.changed();
    changed.mark_unchanged();
    let stranger = Issuer::new("x").sign("a", "b");
    let is_good = || name(authenticator.recheck(&grant, SystemTime::now()));
    for reply in [
        Reply::Answer(200, Issuer::keys(&[&new, &old])),
        Reply::Answer(500, String::new()),
        Reply::Answer(200, Issuer::keys(&[])),
        Reply::Answer(200, "<html>".into()),
    ] {
        server.reply(reply);
        later(Duration::from_secs(10)).await;
        let refused = show(&authenticator, &stranger).await;
        assert_eq!(name(refused), "token_key_unknown");
        assert!(!changed.has_changed().unwrap());
        assert_eq!(is_good(), "good");
    }
    server.reply(Reply::Answer(200, Issuer::keys(&[&new])));
    later(Duration::from_secs(10)).await;
    let _ = show(&authenticator, &stranger).await;
    soon("word of it", changed.changed()).await.unwrap();
    assert_eq!(is_good(), "token_key_unknown");
}

#[tokio::test]
async fn keys_that_are_missed_while_they_are_fetched_are_not_fetched_twice() {
    let issuer = Issuer::new("k1");
    let keys = Issuer::keys(&[&issuer]);
    let server = ScriptedServer::start(None, Reply::Answer(200, keys.clone())).await;
    let folder = Folder::new();
    let config = config(&folder, |config| {
        jwt(&mut config.settings, server.url.parse().unwrap());
        config.settings.auth_timeout = Duration::from_secs(60);
    });
    let authenticator = Authenticator::new(&config).unwrap();
    assert_eq!(
        name(show(&authenticator, &issuer.sign("a", "b")).await),
        "good"
    );
    let permits = Arc::new(Semaphore::new(0));
    server.reply(Reply::Held(permits.clone(), 200, keys));
    later(Duration::from_secs(10)).await;
    let mut strangers = JoinSet::new();
    for _ in 0..2 {
        for _ in 0..5 {
            let (authenticator, stranger) = (authenticator.clone(), Issuer::new("x"));
            let token = stranger.sign("a", "b");
            strangers.spawn(async move { show(&authenticator, &token).await });
        }
        eventually(SOON, "one fetch", async || {
            (server.open() == 1).then_some(())
        })
        .await;
    }
    // As long as a fetch is under way, everybody waits for that one.
    tokio::task::yield_now().await;
    permits.add_permits(10);
    while let Some(refused) = strangers.join_next().await {
        assert_eq!(name(refused.unwrap()), "token_key_unknown");
    }
    assert_eq!(server.questions().len(), 2);
    later(Duration::from_secs(10)).await;
    // Long enough for a question that nobody needs: another server's goes there and back.
    let other = by_keys(&folder, server.url.parse().unwrap());
    assert_eq!(name(show(&other, &issuer.sign("a", "b")).await), "good");
    assert_eq!(server.questions().len(), 3, "only the other's");
}

#[tokio::test]
async fn fetching_ends_with_the_authenticator_and_outlives_a_runtime() {
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let server = ScriptedServer::start(None, Reply::Answer(200, Issuer::keys(&[&old]))).await;
    let folder = Folder::new();
    let config = config(&folder, |config| {
        jwt(&mut config.settings, server.url.parse().unwrap());
        config.settings.auth_timeout = Duration::from_secs(60);
    });
    let authenticator = Authenticator::new(&config).unwrap();
    // A shard's runtime begins it, and ends.
    let (elsewhere, token) = (authenticator.clone(), old.sign("a", "b"));
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        name(runtime.block_on(show(&elsewhere, &token)))
    });
    let done = async || thread.is_finished().then_some(());
    eventually(SOON, "the other runtime", done).await;
    assert_eq!(thread.join().unwrap(), "good");
    server.reply(Reply::Answer(200, Issuer::keys(&[&new])));
    authenticator.start();
    authenticator.start();
    eventually(SOON, "the new key", async || {
        (server.questions().len() == 2).then_some(())
    })
    .await;
    later(Duration::from_secs(10)).await;
    assert_eq!(
        name(show(&authenticator, &new.sign("a", "b")).await),
        "good"
    );
    server.reply(Reply::Silence);
    later(Duration::from_secs(15 * 60)).await;
    eventually(SOON, "a question", async || {
        (server.open() == 1).then_some(())
    })
    .await;
    drop(authenticator);
    eventually(SOON, "its end", async || (server.open() == 0).then_some(())).await;
}

#[tokio::test]
async fn without_keys_clients_are_refused_for_now() {
    let issuer = Issuer::new("k1");
    let good = Issuer::keys(&[&issuer]);
    let large = format!("{good}{}", " ".repeat(256 * 1024));
    for reply in [
        Reply::Silence,
        Reply::Answer(500, good.clone()),
        Reply::Answer(302, good.clone()),
        Reply::Answer(200, "<html>".into()),
        Reply::Answer(200, large),
    ] {
        let server = ScriptedServer::start(Some(&CERTIFICATES), reply).await;
        let folder = Folder::new();
        let authenticator = by_keys(&folder, server.url.parse().unwrap());
        let refusal = show(&authenticator, &issuer.sign("acme", "prod")).await;
        let refusal = refusal.unwrap_err();
        assert_eq!(
            (refusal.reason(), refusal.is_denial()),
            (RefusalReason::AuthUnavailable, false)
        );
        assert!(refusal.retry_after().is_some());
    }
}

#[tokio::test]
async fn an_issuer_with_a_strange_certificate_is_not_believed() {
    let issuer = Issuer::new("k1");
    let strange = certs::generate(&["localhost".to_owned()], 1).unwrap();
    let keys = Reply::Answer(200, Issuer::keys(&[&issuer]));
    let server = ScriptedServer::start(Some(&strange), keys).await;
    let folder = Folder::new();
    let authenticator = by_keys(&folder, server.url.parse().unwrap());
    let refused = show(&authenticator, &issuer.sign("acme", "prod")).await;
    assert_eq!(name(refused), "auth_unavailable");
    assert!(server.questions().is_empty());
}

#[tokio::test]
async fn keys_of_a_file_are_there_at_once_and_can_be_replaced() {
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let folder = Folder::new();
    folder.write("keys.json", &Issuer::keys(&[&old]));
    let authenticator = by_keys(&folder, JwksSource::File(folder.path("keys.json")));
    assert_eq!(
        name(show(&authenticator, &old.sign("acme", "prod")).await),
        "good"
    );
    let unknown = show(&authenticator, &new.sign("acme", "prod")).await;
    assert_eq!(name(unknown), "token_key_unknown");
    let grant = show(&authenticator, &old.sign("acme", "prod"))
        .await
        .unwrap();
    let mut changed = authenticator.changed();
    changed.mark_unchanged();
    let read = |keys: String| tunnel_server::auth::jwks::Jwks::parse(keys.as_bytes()).unwrap();
    let now = SystemTime::now();
    authenticator.replace_jwks(read(Issuer::keys(&[&new, &old])));
    assert_eq!(name(authenticator.recheck(&grant, now)), "good");
    changed.mark_unchanged();
    let same_name = Issuer::new("old");
    authenticator.replace_jwks(read(Issuer::keys(&[&new, &same_name])));
    assert!(changed.has_changed().unwrap());
    let refusal = authenticator.recheck(&grant, now).unwrap_err();
    assert_eq!(
        (refusal.name(), refusal.is_denial(), refusal.is_revoked()),
        ("token_key_unknown", false, false)
    );
    authenticator.replace_jwks(read(Issuer::keys(&[&old])));
    assert_eq!(
        name(authenticator.recheck(&grant, now)),
        "good",
        "it is back"
    );
    authenticator.replace_jwks(read(Issuer::keys(&[&new])));
    assert_eq!(
        name(show(&authenticator, &new.sign("acme", "prod")).await),
        "good"
    );
    folder.write("keys.json", "{}");
    let config = config(&folder, |config| {
        jwt(
            &mut config.settings,
            JwksSource::File(folder.path("keys.json")),
        );
    });
    let error = Authenticator::new(&config).unwrap_err().to_string();
    assert!(error.contains("keys.json: is not a JWK set"), "{error}");
}
