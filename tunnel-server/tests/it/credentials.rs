//! Credentials that the platform vouches for when it is asked; real sockets, real TLS, and all that can go wrong
//! with them. What signed tokens need stands in [`crate::jwt_keys`].

use std::{
    io::Write,
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{
    deadline::{SOON, eventually, soon},
    tunnel::client::{dial, random_instance, session_request},
};
use tokio::{io::AsyncReadExt, sync::Semaphore, task::JoinSet};
use tunnel_proto::handshake::{Greeting, InstanceSecret, Refusal};
use tunnel_proto::refusal::RefusalReason;
use tunnel_server::{
    auth::{AuthRefusal, Authenticator, Grant, Presented},
    certs::{self, Certificates},
    config::{Config, Settings},
    runtimes::Runtimes,
};

use crate::{
    program::Folder,
    rig::{self, Rig},
    scripted_server::{Reply, SHORT, ScriptedServer},
};

pub(crate) static CERTIFICATES: LazyLock<Certificates> =
    LazyLock::new(|| certs::generate(&["localhost".to_owned()], 1).unwrap());

const TOKEN: &str = "s3cr3t-of-prod";

const YES: &str = r#"{"account": "acme", "runtime": "prod", "id": "t-7"}"#;

/// What the server knows of the one that it asks.
pub(crate) fn config(folder: &Folder, change: impl FnOnce(&mut Config)) -> Config {
    folder.write("ca.pem", &CERTIFICATES.ca_pem);
    let domain = "tunnels.test".parse().unwrap();
    let mut config = Config::new(rig::identity(), Runtimes::default(), domain);
    config.settings.auth_ca_file = Some(folder.path("ca.pem"));
    change(&mut config);
    config
}

/// Has a server ask the platform here.
pub(crate) fn ask(settings: &mut Settings, url: &str) {
    settings.auth_url = Some(url.parse().unwrap());
    settings.auth_concurrency = 4;
    settings.auth_cache = Duration::ZERO;
}

fn platform(folder: &Folder, change: impl FnOnce(&mut Settings), url: &str) -> Arc<Authenticator> {
    let config = config(folder, |config| {
        ask(&mut config.settings, url);
        config.settings.auth_timeout = SHORT;
        change(&mut config.settings);
    });
    Authenticator::new(&config).unwrap()
}

pub(crate) async fn show(authenticator: &Authenticator, token: &str) -> Result<Grant, AuthRefusal> {
    show_from("192.0.2.7", authenticator, token).await
}

async fn show_from(
    address: &str,
    authenticator: &Authenticator,
    token: &str,
) -> Result<Grant, AuthRefusal> {
    let greeting = Greeting {
        instance: InstanceSecret::from_random([7; 16]),
        version: "0.1.0".into(),
        session_number: 2,
        allow_from: None,
        is_check: false,
        stands_by: false,
        placement: None,
    };
    let peer = SocketAddr::new(address.parse().unwrap(), 4000);
    let presented = Presented {
        bearer: Some(token),
        certificates: &[],
        greeting: &greeting,
        peer: peer.into(),
    };
    soon("an answer", authenticator.authenticate(&presented)).await
}

pub(crate) fn name<T>(result: Result<T, AuthRefusal>) -> &'static str {
    result.map_or_else(|refusal| refusal.name(), |_| "good")
}

/// As if so much time had gone by.
pub(crate) async fn later(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn the_platform_is_asked_once_with_all_that_it_needs() {
    let answer = json!({
        "account": "acme", "runtime": "prod", "id": "t-7", "expires_in": 600,
        "limits": { "exchanges": 5 }, "allow_from": ["10.0.0.0/8"],
    });
    let server =
        ScriptedServer::start(Some(&CERTIFICATES), Reply::Answer(200, answer.to_string())).await;
    let folder = Folder::new();
    folder.write("own", "s3cr3t-of-server\n");
    let own = folder.path("own");
    let authenticator = platform(
        &folder,
        |settings| settings.auth_token_file = Some(own),
        &server.url,
    );
    let grant = show(&authenticator, TOKEN).await.unwrap();
    assert_eq!(grant.runtime.label.as_str(), "acme-prod");
    assert_eq!(grant.runtime.limits.exchanges, Some(5));
    assert_eq!(grant.runtime.allow_from.as_ref().unwrap().len(), 1);
    assert_eq!(grant.credential.to_string(), "platform t-7");
    let now = SystemTime::now();
    let (expires, renew_at) = (grant.expires.unwrap(), grant.renew_at.unwrap());
    assert!(renew_at > now && renew_at < expires && expires < now + Duration::from_secs(601));
    let seen = server.questions();
    let [question] = seen.as_slice() else {
        panic!("{seen:?}");
    };
    assert_eq!(question.method, "POST");
    assert_eq!(
        question.authorization.as_deref(),
        Some("Bearer s3cr3t-of-server")
    );
    let body: Value = serde_json::from_str(&question.body).unwrap();
    assert_eq!(
        body,
        json!({
            "token": TOKEN, "instance": InstanceSecret::from_random([7; 16]).id().to_string(), "version": "0.1.0", "session": 2,
            "peer": "192.0.2.7:4000",
        })
    );
    let shown = format!("{grant:?} {authenticator:?}");
    assert!(!shown.contains("s3cr3t"), "{shown}");
}

#[tokio::test]
async fn a_denial_has_the_platforms_reason() {
    let no = json!({ "reason": "unpaid", "detail": format!("{TOKEN} is of a closed account") });
    for status in [401, 403] {
        let server = ScriptedServer::start(None, Reply::Answer(status, no.to_string())).await;
        let folder = Folder::new();
        let authenticator = platform(&folder, |_| {}, &server.url);
        let refusal = show(&authenticator, TOKEN).await.unwrap_err();
        assert_eq!(refusal.reason(), RefusalReason::TokenRefused);
        // It may say yes a moment later: the session is cut, and its client dials again.
        assert!(refusal.is_denial() && !refusal.is_revoked());
        assert_eq!(
            refusal.to_string(),
            "the platform refused the token: unpaid: (the token) is of a closed account"
        );
        assert_eq!(authenticator.is_platform_away(), Some(false));
    }
}

#[tokio::test]
async fn while_the_platform_is_unreachable_approved_tokens_stay_valid_and_others_wait() {
    let server = ScriptedServer::start(Some(&CERTIFICATES), Reply::Answer(200, YES.into())).await;
    let folder = Folder::new();
    let authenticator = platform(&folder, |_| {}, &server.url);
    let before = show(&authenticator, TOKEN).await.unwrap();
    for reply in [
        Reply::Answer(500, YES.into()),
        Reply::Answer(503, format!("{YES}{}", " ".repeat(64 * 1024))),
        Reply::Silence,
    ] {
        server.reply(reply);
        let grant = show(&authenticator, TOKEN).await.unwrap();
        assert_eq!(grant.runtime.label, before.runtime.label);
        assert!(grant.expires.is_some(), "not for ever");
        let grant = authenticator.renew(&before).await.unwrap();
        assert!(grant.expires.is_some() && grant.renew_at < grant.expires);
        let refusal = show(&authenticator, "s3cr3t-of-nobody").await.unwrap_err();
        assert_eq!(
            (refusal.reason(), refusal.is_denial()),
            (RefusalReason::AuthUnavailable, false)
        );
        assert_eq!(authenticator.is_platform_away(), Some(true));
    }
    server.reply(Reply::Answer(200, YES.into()));
    show(&authenticator, TOKEN).await.unwrap();
    assert_eq!(authenticator.is_platform_away(), Some(false));
}

#[tokio::test]
async fn a_platform_that_fails_at_strangers_tokens_is_asked_about_all_others() {
    let answer: fn(&str) -> (u16, String) = |body| match body {
        _ if body.contains("bad-") => (500, String::new()),
        _ if body.contains("gone-") => (403, "{}".into()),
        _ => (200, YES.into()),
    };
    let server = ScriptedServer::start(None, Reply::Answer(200, YES.into())).await;
    let folder = Folder::new();
    let authenticator = platform(&folder, |_| {}, &server.url);
    show(&authenticator, "gone-later").await.unwrap();
    server.reply(Reply::Made(answer));
    for number in 0..20 {
        let bad = show(&authenticator, &format!("bad-{number}")).await;
        assert_eq!(name(bad), "auth_unavailable");
    }
    assert_eq!(
        name(show(&authenticator, "gone-later").await),
        "token_refused"
    );
    assert_eq!(name(show(&authenticator, TOKEN).await), "good");
}

/// Strangers' tokens can drive a platform to its limit of questions; that neither hides what it says of other
/// tokens nor keeps anybody out who was let in.
#[tokio::test]
async fn a_platform_that_limits_questions_is_busy_and_not_away() {
    for status in [408, 429] {
        let server = ScriptedServer::start(None, Reply::Answer(200, YES.into())).await;
        let folder = Folder::new();
        let authenticator = platform(&folder, |_| {}, &server.url);
        let before = show(&authenticator, TOKEN).await.unwrap();
        server.reply(Reply::Answer(status, String::new()));
        for number in 0..10 {
            let stranger = format!("s3cr3t-{number}");
            let refusal = show(&authenticator, &stranger).await.unwrap_err();
            assert_eq!(refusal.reason(), RefusalReason::AuthBusy);
            assert!(refusal.retry_after().is_some() && !refusal.is_denial());
        }
        assert_eq!(authenticator.is_platform_away(), Some(false));
        assert!(
            show(&authenticator, TOKEN).await.unwrap().expires.is_some(),
            "not for ever"
        );
        assert!(
            authenticator
                .renew(&before)
                .await
                .unwrap()
                .expires
                .is_some()
        );
        server.reply(Reply::Answer(401, String::new()));
        let no = authenticator.renew(&before).await.unwrap_err();
        assert_eq!(
            no.reason(),
            RefusalReason::TokenRefused,
            "it is asked all the same"
        );
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_used_is_a_matter_of_its_token_alone() {
    let odd = |token| format!("{{\"account\": \"Not A Name\", \"runtime\": \"{token}\"}}");
    for (reply, told) in [
        (
            Reply::Answer(200, odd(TOKEN)),
            "cannot be used: it is malformed: `Not A Name`",
        ),
        (
            Reply::Answer(200, "<html>".into()),
            "it is malformed: expected value",
        ),
        (
            Reply::Answer(
                200,
                r#"{"account": "a", "runtime": "b", "limit": {}}"#.into(),
            ),
            "it is malformed: unknown field `limit`",
        ),
        (
            Reply::Answer(200, format!("{YES}{}", " ".repeat(64 * 1024))),
            "larger than 65536 bytes",
        ),
        (Reply::Answer(302, String::new()), "it is 302 Found"),
    ] {
        let server = ScriptedServer::start(None, Reply::Answer(200, YES.into())).await;
        let folder = Folder::new();
        let authenticator = platform(&folder, |_| {}, &server.url);
        let before = show(&authenticator, TOKEN).await.unwrap();
        server.reply(reply);
        for number in 0..10 {
            let stranger = format!("s3cr3t-{number}");
            let refusal = show(&authenticator, &stranger).await.unwrap_err();
            assert_eq!(
                (refusal.reason(), refusal.is_denial()),
                (RefusalReason::AuthUnclear, false)
            );
            let text = refusal.to_string();
            assert!(text.contains(told) && !text.contains("s3cr3t"), "{text}");
        }
        let renewed = authenticator.renew(&before).await.unwrap();
        assert!(renewed.expires.is_some(), "not for ever");
        assert_eq!(name(show(&authenticator, TOKEN).await), "good");
        assert_eq!(authenticator.is_platform_away(), Some(false));
        server.reply(Reply::Answer(200, YES.into()));
        let others = show(&authenticator, "s3cr3t-0").await;
        assert_eq!(name(others), "good", "nobody else is kept out");
        assert!(show(&authenticator, TOKEN).await.unwrap().expires.is_none());
    }
}

#[tokio::test]
async fn rejected_queries_do_not_affect_other_tokens() {
    for status in [400, 404, 413, 422] {
        let server = ScriptedServer::start(None, Reply::Answer(status, "{}".into())).await;
        let folder = Folder::new();
        let cache = |settings: &mut Settings| settings.auth_cache = Duration::from_secs(60);
        let authenticator = platform(&folder, cache, &server.url);
        for number in 0..20 {
            let stranger = format!("s3cr3t-{}", number % 10);
            let refusal = show(&authenticator, &stranger).await.unwrap_err();
            assert_eq!(
                (refusal.reason(), refusal.is_denial()),
                (RefusalReason::TokenRefused, false)
            );
            let text = refusal.to_string();
            assert!(text.contains(&format!("it answered {status} ")), "{text}");
        }
        assert_eq!(server.questions().len(), 10, "the no is remembered");
        server.reply(Reply::Answer(200, YES.into()));
        assert_eq!(name(show(&authenticator, TOKEN).await), "good");
        let again = show(&authenticator, "s3cr3t-0").await;
        assert_eq!(name(again), "token_refused", "not only while it says so");
    }
}

#[tokio::test]
async fn a_renewed_answer_counts_whatever_it_is() {
    let server = ScriptedServer::start(None, Reply::Answer(200, YES.into())).await;
    let folder = Folder::new();
    let authenticator = platform(&folder, |_| {}, &server.url);
    let grant = show(&authenticator, TOKEN).await.unwrap();
    let wider = r#"{"account": "acme", "runtime": "prod", "limits": {"exchanges": 9}}"#;
    server.reply(Reply::Answer(200, wider.into()));
    let renewed = authenticator.renew(&grant).await.unwrap();
    assert_eq!(renewed.runtime.limits.exchanges, Some(9));
    let other = r#"{"account": "acme", "runtime": "test"}"#;
    server.reply(Reply::Answer(200, other.into()));
    assert_eq!(
        name(authenticator.renew(&grant).await),
        "credentials_disagree"
    );
    server.reply(Reply::Answer(403, "{}".into()));
    assert_eq!(name(authenticator.renew(&grant).await), "token_refused");
    server.reply(Reply::Answer(500, String::new()));
    assert_eq!(
        name(show(&authenticator, TOKEN).await),
        "auth_unavailable",
        "its last word was no"
    );
}

#[tokio::test]
async fn questions_are_bounded_and_two_about_one_token_are_one() {
    let permits = Arc::new(Semaphore::new(0));
    let held = Reply::Held(permits.clone(), 200, YES.into());
    let server = ScriptedServer::start(None, held).await;
    let folder = Folder::new();
    let config = config(&folder, |config| {
        ask(&mut config.settings, &server.url);
        config.settings.auth_cache = Duration::from_secs(60);
        config.settings.auth_timeout = Duration::from_secs(20);
    });
    let authenticator = Authenticator::new(&config).unwrap();
    let mut clients = JoinSet::new();
    // Tokens that were never approved get half of the questions for one address.
    for (address, questions) in [("192.0.2.7", 2), ("192.0.2.8", 4)] {
        for number in 0..20 {
            let authenticator = authenticator.clone();
            let token = format!("s3cr3t-{}-{questions}", number % 5);
            clients.spawn(async move { show_from(address, &authenticator, &token).await });
        }
        eventually(SOON, "as many questions as may be open", async || {
            (server.open() == questions).then_some(())
        })
        .await;
    }
    permits.add_permits(40);
    while let Some(granted) = clients.join_next().await {
        assert_eq!(name(granted.unwrap()), "good");
    }
    assert_eq!(server.questions().len(), 10, "one for each token");
    assert_eq!(server.most_at_once(), 4);
    show(&authenticator, "s3cr3t-3-2").await.unwrap();
    assert_eq!(server.questions().len(), 10, "the answer is used again");
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_fail_other_waiters() {
    let permits = Arc::new(Semaphore::new(0));
    let server = ScriptedServer::start(None, Reply::Held(permits.clone(), 200, YES.into())).await;
    let folder = Folder::new();
    let config = config(&folder, |config| {
        ask(&mut config.settings, &server.url);
        config.settings.auth_timeout = Duration::from_secs(20);
    });
    let authenticator = Authenticator::new(&config).unwrap();
    let client =
        |authenticator: Arc<Authenticator>| async move { show(&authenticator, TOKEN).await };
    let mut first = JoinSet::new();
    first.spawn(client(authenticator.clone()));
    eventually(SOON, "a question", async || {
        (server.open() == 1).then_some(())
    })
    .await;
    let mut second = JoinSet::new();
    second.spawn(client(authenticator.clone()));
    first.shutdown().await;
    eventually(SOON, "another question", async || {
        (server.questions().len() == 2).then_some(())
    })
    .await;
    permits.add_permits(2);
    assert_eq!(name(second.join_next().await.unwrap().unwrap()), "good");
}

#[tokio::test]
async fn a_busy_platform_delays_no_client_for_long() {
    let server = ScriptedServer::start(None, Reply::Silence).await;
    let folder = Folder::new();
    let authenticator = platform(
        &folder,
        |settings| settings.auth_concurrency = 1,
        &server.url,
    );
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let authenticator = authenticator.clone();
        clients.spawn(async move { show(&authenticator, &format!("s3cr3t-{number}")).await });
    }
    let mut names = Vec::new();
    while let Some(refused) = clients.join_next().await {
        names.push(name(refused.unwrap()));
    }
    assert!(names.contains(&"auth_busy"), "{names:?}");
    assert!(
        names
            .iter()
            .all(|it| ["auth_busy", "auth_unavailable"].contains(it))
    );
    assert_eq!(server.most_at_once(), 1);
}

/// What the program logged, for the search for secrets.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_log_line_holds_a_secret() {
    let captured = Captured::default();
    let writer = captured.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let echo = |body: &str| (200, body.to_owned());
    let server = ScriptedServer::start(None, Reply::Made(echo)).await;
    let folder = Folder::new();
    folder.write("own", "s3cr3t-of-server");
    let own = folder.path("own");
    let authenticator = platform(
        &folder,
        |settings| settings.auth_token_file = Some(own),
        &server.url,
    );
    let unclear = show(&authenticator, TOKEN).await.unwrap_err();
    server.reply(Reply::Answer(500, String::new()));
    // Another test may have met the line's place in the code while this one began to listen: it would stay off.
    tracing::callsite::rebuild_interest_cache();
    assert_eq!(name(show(&authenticator, TOKEN).await), "auth_unavailable");
    server.reply(Reply::Made(|body| {
        (403, json!({ "detail": body }).to_string())
    }));
    let refusal = show(&authenticator, TOKEN).await.unwrap_err();
    server.reply(Reply::Answer(200, YES.into()));
    let grant = show(&authenticator, TOKEN).await.unwrap();
    tracing::info!(%unclear, ?unclear, %refusal, ?refusal, ?grant, "shown");
    let text = String::from_utf8(captured.0.lock().clone()).unwrap();
    assert!(
        text.contains("the platform does not answer a token query"),
        "{text}"
    );
    assert!(text.contains("a token cannot be used: repair"), "{text}");
    assert!(!text.contains("s3cr3t"), "{text}");
}

#[tokio::test]
async fn log_lines_about_a_busy_or_unclear_platform_are_limited() {
    for reply in [
        Reply::Answer(429, String::new()),
        Reply::Answer(200, "<html>".into()),
    ] {
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        let server = ScriptedServer::start(None, reply).await;
        let folder = Folder::new();
        let authenticator = platform(&folder, |_| {}, &server.url);
        for number in 0..100 {
            let _ = show(&authenticator, &format!("s3cr3t-{number}")).await;
        }
        assert_eq!(server.questions().len(), 100);
        let text = String::from_utf8(captured.0.lock().clone()).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.contains("platform"))
            .count();
        assert!((1..50).contains(&lines), "{lines} lines");
    }
}

#[tokio::test]
async fn a_refused_client_gets_the_reason_and_is_counted() {
    let server = ScriptedServer::start(
        None,
        Reply::Made(|body| match body.contains(TOKEN) {
            true => (200, YES.into()),
            false => (401, r#"{"reason": "unpaid"}"#.into()),
        }),
    )
    .await;
    let folder = Folder::new();
    folder.write("ca.pem", &CERTIFICATES.ca_pem);
    let rig = Rig::with(|config| {
        config.settings.auth_ca_file = Some(folder.path("ca.pem"));
        ask(&mut config.settings, &server.url);
    })
    .await;
    let request = session_request("s3cr3t-of-nobody", random_instance());
    let mut connected = dial(&rig, &request).await;
    let mut body = connected.behind.to_vec();
    // The connection may end without a farewell.
    let _ = soon("the end", connected.io.read_to_end(&mut body)).await;
    let refusal: Refusal = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (connected.status, refusal.reason.as_str()),
        (401, "token_refused")
    );
    assert!(refusal.detail.ends_with(": unpaid"), "{}", refusal.detail);
    rig.metric_becomes(
        "tunnel_server_handshakes_total{result=\"token_refused\"}",
        1.0,
    )
    .await;
}

#[tokio::test]
async fn the_gauge_of_the_platform_exists_only_if_one_is_configured() {
    let server = ScriptedServer::start(None, Reply::Answer(500, String::new())).await;
    let rig = Rig::with(|config| ask(&mut config.settings, &server.url)).await;
    let series = "tunnel_server_platform_away";
    let (_, before) = rig.admin("/metrics").await;
    assert!(before.contains(&format!("\n{series} 0\n")), "{before}");
    assert!(!before.contains("tunnel_server_jwks_keys"), "{before}");
    let request = session_request(TOKEN, random_instance());
    assert_eq!(dial(&rig, &request).await.status, 503);
    rig.metric_becomes(series, 1.0).await;
    let plain = Rig::start().await;
    let (_, shown) = plain.admin("/metrics").await;
    assert!(!shown.contains(series), "nobody is asked: {shown}");
}
