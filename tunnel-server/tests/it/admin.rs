//! The admin API over real sockets: what it shows, what it does, and whom it refuses.

use std::{
    collections::BTreeSet,
    io::Write,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use testkit::{
    deadline::{SOON, eventually},
    http1::{RawConnection, RawResponse},
    tunnel::{
        body::{full, status},
        client::{FakeClient, dial, random_instance, session_request},
    },
};
use tunnel_ops::{config_file::TomlFile, timestamp::Timestamp};
use tunnel_proto::{close::CloseReason, control::Control, session::SessionEnd};
use tunnel_server::{
    admin,
    config::{Config, JwksSource},
    runtimes::Runtimes,
};

use crate::{
    jwt_keys::{Issuer, jwt},
    rig::{DEV, DEV_HOST, DEV_OWN_HOST, PROD, PROD_HOST, Rig, connect},
    sessions::get,
};

pub(crate) const ADMIN_TOKEN: &str = "a-token-of-the-operator";

/// The body of a revocation of everything.
pub(crate) const ALL: &str = r#"{"all": true}"#;

/// The admin token in a file, for as long as it is held.
pub(crate) struct TokenFile(NamedTempFile);

impl TokenFile {
    pub(crate) fn new() -> Self {
        let mut file = NamedTempFile::new().unwrap();
        writeln!(file, "{ADMIN_TOKEN}").unwrap();
        Self(file)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }
}

/// A server whose operator has a token.
pub(crate) async fn guarded() -> (Rig, TokenFile) {
    let file = TokenFile::new();
    let path = file.path();
    let rig = Rig::with(|config| config.settings.admin_token_file = Some(path)).await;
    (rig, file)
}

/// The answer to a request below the API's root.
pub(crate) async fn ask(
    rig: &Rig,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> RawResponse {
    let mut request = format!("{method} /api/v1{path} HTTP/1.1\r\n");
    if !fields.iter().any(|(name, _)| *name == "host") {
        request += "host: localhost\r\n";
    }
    for (name, value) in fields {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("content-length: {}\r\n\r\n{body}", body.len());
    let mut admin = RawConnection::over(connect(rig.addresses.admin).await);
    admin.send(request).await;
    admin.response_to(method).await
}

pub(crate) fn json_of(answer: &RawResponse) -> Value {
    assert_eq!(answer.head.value("content-type"), Some("application/json"));
    assert_eq!(answer.head.value("cache-control"), Some("no-store"));
    serde_json::from_slice(&answer.content.bytes).unwrap()
}

async fn read(rig: &Rig, path: &str) -> Value {
    let answer = ask(rig, "GET", path, &[], "").await;
    assert_eq!(answer.head.status(), 200, "{answer:?}");
    json_of(&answer)
}

/// Does something with the operator's token.
pub(crate) async fn act(rig: &Rig, path: &str, body: &str) -> RawResponse {
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    ask(rig, "POST", path, &[("authorization", &bearer)], body).await
}

#[track_caller]
pub(crate) fn check_refused(answer: &RawResponse, status: u16, reason: &str) {
    assert_eq!(answer.head.status(), status, "{answer:?}");
    assert_eq!(json_of(answer)["reason"], reason);
    assert_ne!(json_of(answer)["detail"], "");
}

fn labels(page: &Value) -> Vec<&str> {
    let runtimes = page["runtimes"].as_array().unwrap().iter();
    runtimes
        .map(|view| view["label"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn the_server_is_shown_as_it_is() {
    let rig = Rig::start().await;
    let quiet = read(&rig, "/status").await;
    assert_eq!(quiet["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(quiet["state"], "running");
    assert_eq!(
        (&quiet["runtimes"], &quiet["runtimes_online"]),
        (&json!(2), &json!(0))
    );
    let _client = FakeClient::describing(&rig, PROD).await;
    let busy = read(&rig, "/status").await;
    assert_eq!(
        (&busy["runtimes_online"], &busy["sessions"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(busy["started"], quiet["started"]);
    rig.stop().await;
}

#[tokio::test]
async fn the_configuration_is_shown_and_nothing_secret_of_it() {
    let rig = Rig::start().await;
    let shown = read(&rig, "/config").await;
    assert_eq!(shown["version"], 1);
    let settings = &shown["settings"];
    assert_eq!(
        (&settings["domain"], &settings["limit-exchanges"]),
        (&json!("tunnels.test"), &json!("2048"))
    );
    let token = rig.token(DEV);
    let id = &token["tnlrt_".len()..][..16];
    assert_eq!(
        settings["runtime globex-dev"],
        format!("hosts {DEV_OWN_HOST}, tokens {id}")
    );
    let secret = token.rsplit('_').next().unwrap();
    assert!(!shown.to_string().contains(secret), "{shown}");
    rig.stop().await;
}

#[tokio::test]
async fn the_configuration_names_files_and_so_needs_the_token_where_there_is_one() {
    let (rig, _file) = guarded().await;
    check_refused(
        &ask(&rig, "GET", "/config", &[], "").await,
        401,
        "admin_token_refused",
    );
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let fields = [("authorization", bearer.as_str())];
    let answer = ask(&rig, "GET", "/config", &fields, "").await;
    assert_eq!(answer.head.status(), 200);
    assert!(!answer.text().contains(ADMIN_TOKEN));
    let file = &json_of(&answer)["settings"]["admin-token-file"];
    assert!(file.as_str().unwrap().starts_with('/'), "{file}");
    assert_eq!(
        ask(&rig, "GET", "/status", &[], "").await.head.status(),
        200
    );
    rig.stop().await;
}

#[tokio::test]
async fn a_runtime_is_shown_with_its_sessions() {
    let rig = Rig::start().await;
    let offline = read(&rig, "/runtimes/acme-prod").await;
    assert_eq!(
        (&offline["online"], &offline["last_online"]),
        (&json!(false), &Value::Null)
    );
    assert_eq!(offline["sessions"], json!([]));
    let instance = random_instance();
    let client = FakeClient::of_instance(&rig, PROD, instance.clone(), |_| async {
        Err(testkit::tunnel::body::internal())
    })
    .await;
    let online = read(&rig, "/runtimes/acme-prod").await;
    assert_eq!(
        (&online["account"], &online["name"]),
        (&json!("acme"), &json!("prod"))
    );
    assert_eq!(online["hosts"], json!([PROD_HOST]));
    assert_eq!(
        (&online["online"], &online["instance"]),
        (&json!(true), &json!(instance.id().to_string()))
    );
    assert!(
        online["online_since"].is_string() && online["epoch"].is_u64(),
        "{online}"
    );
    assert_eq!(
        online["limits"],
        json!({
            "exchanges": 2_048, "websockets": 1_024, "waiting": 256, "waiting_bytes": 64 * 1024 * 1024
        })
    );
    let session = &online["sessions"][0];
    assert_eq!(
        (&session["number"], &session["client_version"]),
        (&json!(1), &json!("1.2.3"))
    );
    assert_eq!(session["id"], format!("{}/1", instance.id()));
    assert!(
        session["peer"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{session}"
    );
    assert_eq!(session["is_draining"], false);
    client.die();
    let gone = eventually(SOON, "the runtime to be offline", async || {
        let view = read(&rig, "/runtimes/acme-prod").await;
        (view["online"] == false).then_some(view)
    })
    .await;
    assert!(
        gone["last_online"].is_string() && gone["instance"].is_null(),
        "{gone}"
    );
    rig.stop().await;
}

#[tokio::test]
async fn the_traffic_of_a_runtime_is_shown() {
    let rig = Rig::start().await;
    let _client = FakeClient::describing(&rig, PROD).await;
    let text = rig.raw().await.ask(get("/x")).await.text();
    let shown = eventually(SOON, "the exchange's end", async || {
        let view = read(&rig, "/runtimes/acme-prod").await;
        (view["open_exchanges"] == 0).then_some(view)
    })
    .await;
    assert_eq!(shown["bytes_out"], text.len());
    rig.stop().await;
}

#[tokio::test]
async fn runtimes_are_listed_by_page_and_filter() {
    let rig = Rig::start().await;
    let _client = FakeClient::describing(&rig, DEV).await;
    let all = read(&rig, "/runtimes").await;
    assert_eq!(labels(&all), [PROD, DEV]);
    assert_eq!(all["next"], Value::Null);
    assert_eq!(all["runtimes"][1]["hosts"], json!([DEV_HOST, DEV_OWN_HOST]));
    let first = read(&rig, "/runtimes?limit=1").await;
    assert_eq!((labels(&first), &first["next"]), (vec![PROD], &json!(PROD)));
    let second = read(&rig, "/runtimes?limit=1&after=acme-prod").await;
    assert_eq!(
        (labels(&second), &second["next"]),
        (vec![DEV], &Value::Null)
    );
    assert_eq!(labels(&read(&rig, "/runtimes?online=true").await), [DEV]);
    assert_eq!(labels(&read(&rig, "/runtimes?online=false").await), [PROD]);
    assert_eq!(labels(&read(&rig, "/runtimes?account=acme").await), [PROD]);
    assert!(labels(&read(&rig, "/runtimes?account=nobody").await).is_empty());
    let wrong = ask(&rig, "GET", "/runtimes?limit=all", &[], "").await;
    check_refused(&wrong, 400, "query_malformed");
    rig.stop().await;
}

#[tokio::test]
async fn pages_lead_through_thousands() {
    let rig = Rig::with(|config| config.runtimes = thousands(&config.clone())).await;
    let mut seen = 0;
    let mut path = "/runtimes?limit=1000".to_owned();
    loop {
        let page = read(&rig, &path).await;
        seen += labels(&page).len();
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/runtimes?limit=1000&after={next}");
    }
    assert_eq!(seen, 2_500);
    rig.stop().await;
}

/// A file of 2,500 runtimes without tokens.
pub(crate) fn thousands(config: &Config) -> Runtimes {
    let entry = |number| format!("[[runtime]]\naccount = \"acme\"\nname = \"r{number:04}\"\n");
    let text: String = (0..2_500).map(entry).collect();
    Runtimes::parse(
        &TomlFile::from_text("r.toml", text),
        &config.settings.domain,
    )
    .unwrap()
}

#[tokio::test]
async fn unknown_paths_and_runtimes_are_refused_by_name() {
    let rig = Rig::start().await;
    for (path, reason) in [
        ("/runtimes/nobody-prod", "runtime_unknown"),
        ("/runtimes/acme-prod/", "path_unknown"),
        ("/status/", "path_unknown"),
        ("", "path_unknown"),
    ] {
        check_refused(&ask(&rig, "GET", path, &[], "").await, 404, reason);
    }
    for (method, path, allowed) in [
        ("POST", "/status", "GET,HEAD"),
        ("POST", "/runtimes", "GET,HEAD"),
        ("GET", "/runtimes/acme-prod/drain", "POST"),
    ] {
        let answer = ask(&rig, method, path, &[], "").await;
        check_refused(&answer, 405, "method_not_allowed");
        assert_eq!(answer.head.value("allow"), Some(allowed), "{method} {path}");
    }
    let head = ask(&rig, "HEAD", "/status", &[], "").await;
    assert_eq!((head.head.status(), head.content.bytes.len()), (200, 0));
    let rebound = ask(&rig, "GET", "/status", &[("host", "evil.example")], "").await;
    assert_eq!(rebound.head.status(), 421);
    rig.stop().await;
}

#[tokio::test]
async fn every_operation_is_as_described() {
    let (rig, _file) = guarded().await;
    let description: Value = serde_json::from_str(admin::DESCRIPTION).unwrap();
    for (path, item) in description["paths"].as_object().unwrap() {
        let path = path.replace("{label}", "acme-prod").replace("{id}", "0");
        let item = item.as_object().unwrap();
        let operations = item.iter().filter(|(name, _)| *name != "parameters");
        let mut methods = Vec::new();
        for (name, operation) in operations {
            // A stream of events would not end.
            let (method, all) = match name.as_str() {
                "get" => ("HEAD", "GET,HEAD"),
                "post" => ("POST", "POST"),
                "put" => ("PUT", "PUT"),
                "delete" => ("DELETE", "DELETE"),
                other => panic!("{path}: {other}"),
            };
            methods.push(all);
            let expected = match (method, &operation["security"]) {
                // As for the whole: only where others than this machine can ask.
                ("HEAD", Value::Null) => 200,
                // Only where there is a token.
                ("HEAD", security) if *security == json!([{}, { "adminToken": [] }]) => 401,
                ("POST" | "PUT" | "DELETE", security)
                    if *security == json!([{ "adminToken": [] }]) =>
                {
                    401
                }
                (_, security) => panic!("{path}: {security}"),
            };
            let answer = ask(&rig, method, &path, &[], "").await;
            assert_eq!(answer.head.status(), expected, "{name} {path}");
        }
        let other = ask(&rig, "OPTIONS", &path, &[], "").await;
        check_refused(&other, 405, "method_not_allowed");
        let described = methods.iter().flat_map(|all| all.split(','));
        let allowed = other.head.value("allow").unwrap().split(',');
        assert_eq!(
            allowed.collect::<BTreeSet<_>>(),
            described.collect(),
            "{path}"
        );
    }
    rig.stop().await;
}

#[tokio::test]
async fn a_name_that_the_operator_gave_is_a_name_of_the_listener() {
    let rig =
        Rig::with(|config| config.settings.admin_host = vec!["ops.example.com".parse().unwrap()]);
    let rig = rig.await;
    let named = ask(&rig, "GET", "/status", &[("host", "ops.example.com")], "").await;
    assert_eq!(named.head.status(), 200);
    rig.stop().await;
}

#[tokio::test]
async fn the_description_is_served() {
    let rig = Rig::start().await;
    let answer = ask(&rig, "GET", "/openapi.json", &[], "").await;
    assert_eq!(answer.text(), admin::DESCRIPTION);
    rig.stop().await;
}

#[tokio::test]
async fn nothing_changes_without_the_operators_token() {
    let (rig, _file) = guarded().await;
    let client = FakeClient::describing(&rig, PROD).await;
    for operation in ["disconnect", "drain", "revoke"] {
        let path = format!("/runtimes/{PROD}/{operation}");
        let missing = ask(&rig, "POST", &path, &[], "").await;
        check_refused(&missing, 401, "admin_token_refused");
        assert_eq!(missing.head.value("www-authenticate"), Some("Bearer"));
        let fields = [("authorization", "Bearer another-token-of-nobody")];
        let wrong = ask(&rig, "POST", &path, &fields, "").await;
        check_refused(&wrong, 401, "admin_token_refused");
        // Whether a runtime is there is nobody's business either.
        let path = format!("/runtimes/nobody-prod/{operation}");
        let unknown = ask(&rig, "POST", &path, &[], "").await;
        check_refused(&unknown, 401, "admin_token_refused");
    }
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let fields = [
        ("authorization", &*bearer),
        ("origin", "http://evil.example"),
    ];
    let path = format!("/runtimes/{PROD}/disconnect");
    let page = ask(&rig, "POST", &path, &fields, "").await;
    assert_eq!(page.head.status(), 403, "{page:?}");
    assert!(client.session.is_open());
    rig.stop().await;
}

#[tokio::test]
async fn without_any_token_nothing_can_be_changed() {
    let rig = Rig::start().await;
    let answer = act(&rig, "/runtimes/acme-prod/disconnect", "").await;
    check_refused(&answer, 403, "admin_token_unset");
    rig.stop().await;
}

#[tokio::test]
async fn from_elsewhere_reading_needs_the_token_too() {
    let file = TokenFile::new();
    let path = file.path();
    let rig = Rig::with(|config| {
        config.settings.admin_listen = "0.0.0.0:0".parse().unwrap();
        config.settings.admin_token_file = Some(path);
    })
    .await;
    for path in ["/status", "/runtimes", "/events", "/openapi.json"] {
        let answer = ask(&rig, "GET", path, &[], "").await;
        check_refused(&answer, 401, "admin_token_refused");
    }
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let known = ask(&rig, "GET", "/status", &[("authorization", &bearer)], "").await;
    assert_eq!(known.head.status(), 200);
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(rig.admin(path).await.0, 200, "{path}");
    }
    rig.stop().await;
}

#[tokio::test]
async fn from_elsewhere_nothing_is_read_where_there_is_no_token() {
    let rig = Rig::with(|config| config.settings.admin_listen = "0.0.0.0:0".parse().unwrap()).await;
    let answer = ask(&rig, "GET", "/status", &[], "").await;
    check_refused(&answer, 403, "admin_token_unset");
    assert_eq!(rig.admin("/healthz").await.0, 200);
    rig.stop().await;
}

#[tokio::test]
async fn a_disconnected_client_gets_the_reason_and_may_dial_again() {
    let (rig, _file) = guarded().await;
    let mut client = FakeClient::describing(&rig, PROD).await;
    let other = FakeClient::describing(&rig, DEV).await;
    let answer = act(&rig, "/runtimes/acme-prod/disconnect", "").await;
    let expected = json!({ "label": PROD, "sessions": 1 });
    assert_eq!(json_of(&answer), expected);
    let end = client.ended().await;
    assert!(
        matches!(end, SessionEnd::ClosedByPeer(CloseReason::Disconnected)),
        "{end}"
    );
    let again = FakeClient::describing(&rig, PROD).await;
    assert!(again.session.is_open() && other.session.is_open());
    let unknown = act(&rig, "/runtimes/nobody-prod/disconnect", "").await;
    check_refused(&unknown, 404, "runtime_unknown");
    rig.stop().await;
}

#[tokio::test]
async fn a_drained_client_gets_a_drain_message() {
    let (rig, _file) = guarded().await;
    let instance = random_instance();
    let good = |_| async { Ok(status(200, full("good"))) };
    let mut client = FakeClient::of_instance(&rig, PROD, instance.clone(), good).await;
    rig.metric_becomes("tunnel_server_sessions", 1.0).await;
    let answer = act(&rig, "/runtimes/acme-prod/drain", "").await;
    assert_eq!(json_of(&answer)["sessions"], 1);
    client
        .control(|control| matches!(control, Control::Drain { .. }))
        .await;
    // Until there is another session, this one is needed.
    assert!(!client.session.is_closed());
    let _next = FakeClient::of_instance(&rig, PROD, instance, good).await;
    let end = client.ended().await;
    assert!(
        matches!(end, SessionEnd::ClosedByPeer(CloseReason::Drained)),
        "{end}"
    );
    let offline = act(&rig, "/runtimes/globex-dev/drain", "").await;
    assert_eq!(json_of(&offline)["sessions"], 0);
    rig.stop().await;
}

#[tokio::test]
async fn a_revoked_client_is_cut_and_refused_again() {
    let (rig, _file) = guarded().await;
    let mut client = FakeClient::describing(&rig, PROD).await;
    let other = FakeClient::describing(&rig, DEV).await;
    let began = Timestamp::now();
    let answer = json_of(&act(&rig, "/runtimes/acme-prod/revoke", ALL).await);
    assert_eq!(answer["sessions"], 1);
    // Credentials have whole seconds.
    let before = answer["issued_before"].as_str().unwrap();
    assert!(before.ends_with(".000Z"), "{before}");
    assert!(
        before.parse::<Timestamp>().unwrap() >= began,
        "{before} {began}"
    );
    client
        .control(|control| matches!(control, Control::Revoked { .. }))
        .await;
    let end = client.ended().await;
    assert!(
        matches!(end, SessionEnd::ClosedByPeer(CloseReason::Revoked)),
        "{end}"
    );
    assert!(!is_let_in(&rig, PROD).await);
    assert!(other.session.is_open() && is_let_in(&rig, DEV).await);
    rig.stop().await;
}

#[tokio::test]
async fn a_revocation_must_name_its_scope() {
    let (rig, _file) = guarded().await;
    let client = FakeClient::describing(&rig, PROD).await;
    for body in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"id":null}"#,
        r#"{"id":""}"#,
        r#"{"id":1}"#,
        r#"{"all":false}"#,
        r#"{"all":true,"id":"x"}"#,
        r#"{"token":"x"}"#,
    ] {
        let answer = act(&rig, "/runtimes/acme-prod/revoke", body).await;
        check_refused(&answer, 400, "body_malformed");
    }
    assert!(client.session.is_open() && is_let_in(&rig, PROD).await);
    rig.stop().await;
}

#[tokio::test]
async fn credentials_issued_after_a_revocation_of_all_are_valid() {
    // Both say when they were made: long ago, and in a time to come.
    let made = |text: String, moment: &str| {
        text.replacen("id = ", &format!("created = {moment}\nid = "), 1)
    };
    let edit = |text: String| {
        let (prod, dev) = text.split_at(text.rfind("[[runtime]]").unwrap());
        made(prod.to_owned(), "2026-01-01T00:00:00Z")
            + &made(dev.to_owned(), "2999-01-01T00:00:00Z")
    };
    let file = TokenFile::new();
    let path = file.path();
    let rig = Rig::listing(edit, |config| config.settings.admin_token_file = Some(path)).await;
    for (label, is_good) in [(PROD, false), (DEV, true)] {
        let answer = act(&rig, &format!("/runtimes/{label}/revoke"), ALL).await;
        assert_eq!(answer.head.status(), 200, "{answer:?}");
        assert_eq!(is_let_in(&rig, label).await, is_good, "{label}");
    }
    rig.stop().await;
}

/// An issuer's clock may be ahead of the server's by `--jwt-leeway`, 30 s here; that of a runtimes file is not.
#[tokio::test]
async fn revoking_all_covers_tokens_that_a_fast_clock_has_issued() {
    let issuer = Issuer::new("k1");
    let mut keys = NamedTempFile::new().unwrap();
    write!(keys, "{}", Issuer::keys(&[&issuer])).unwrap();
    let (file, source) = (TokenFile::new(), JwksSource::File(keys.path().to_owned()));
    let path = file.path();
    let made = humantime::format_rfc3339_seconds(SystemTime::now() + Duration::from_secs(10));
    let edit = |text: String| text.replace("id = ", &format!("created = {made}\nid = "));
    let rig = Rig::listing(edit, |config| {
        config.settings.admin_token_file = Some(path);
        jwt(&mut config.settings, source);
    })
    .await;
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let issued = |ahead: u64| issuer.sign_claims("acme", "prod", json!({ "iat": now + ahead }));
    let (within, beyond) = (issued(20), issued(120));
    let status_of = async |token: &str| {
        let request = session_request(token, random_instance());
        dial(&rig, &request).await.status
    };
    assert_eq!(
        (status_of(&within).await, status_of(&beyond).await),
        (101, 101)
    );
    let answer = act(&rig, "/runtimes/acme-prod/revoke", ALL).await;
    assert_eq!(answer.head.status(), 200, "{answer:?}");
    assert_eq!(
        (status_of(&within).await, status_of(&beyond).await),
        (403, 101)
    );
    assert!(is_let_in(&rig, PROD).await, "its token is made later");
    rig.stop().await;
}

#[tokio::test]
async fn one_credential_is_revoked_by_its_id() {
    let (rig, _file) = guarded().await;
    let mut client = FakeClient::describing(&rig, PROD).await;
    let id = &rig.token(PROD)["tnlrt_".len()..][..16];
    let by_id = |id: &str| json!({ "id": id }).to_string();
    // Nobody's, and another runtime's: a mistake, of which the operator hears.
    for (path, id) in [
        ("/runtimes/acme-prod/revoke", "leaked-long-ago"),
        ("/runtimes/globex-dev/revoke", id),
    ] {
        let answer = act(&rig, path, &by_id(id)).await;
        check_refused(&answer, 404, "credential_unknown");
    }
    assert!(client.session.is_open() && is_let_in(&rig, PROD).await);
    let answer = act(&rig, "/runtimes/acme-prod/revoke", &by_id(id)).await;
    let expected = json!({ "label": PROD, "sessions": 1, "durable": false });
    assert_eq!(json_of(&answer), expected);
    client.ended().await;
    assert!(!is_let_in(&rig, PROD).await);
    let again = eventually(SOON, "the session to be forgotten", async || {
        let again = act(&rig, "/runtimes/acme-prod/revoke", &by_id(id)).await;
        (json_of(&again)["sessions"] == 0).then_some(again)
    });
    assert_eq!(again.await.head.status(), 200);
    assert!(!is_let_in(&rig, PROD).await && is_let_in(&rig, DEV).await);
    rig.stop().await;
}

async fn is_let_in(rig: &Rig, runtime: &str) -> bool {
    let request = session_request(rig.token(runtime), random_instance());
    match dial(rig, &request).await.status {
        101 => true,
        401 | 403 => false,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_unusable_token_file_is_reported_at_the_start() {
    let rig = Rig::start().await;
    let error = rig
        .second(|config| config.settings.admin_token_file = Some("/nowhere/token".into()))
        .await;
    assert!(error.to_string().starts_with("/nowhere/token: "), "{error}");
    rig.stop().await;
}
