//! Runtimes that the admin API makes and removes: in force when the answer comes, and kept by whatever runs next.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use http::Response;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{
    deadline::{SOON, eventually},
    etcd::Etcd,
    http1::{RawConnection, RawResponse},
    tunnel::{
        body::full,
        client::{FakeClient, dial, random_instance, session_request},
    },
};
use tunnel_server::config::{Config, ManagedPlace};

use crate::{
    admin::{ADMIN_TOKEN, TokenFile, ask, check_refused, json_of},
    nodes::{is_ready, shared},
    rig::{DEV_OWN_HOST, Rig, ask_admin},
    serving::Files,
};

/// The label of the runtime that is made here.
pub(crate) const NEW: &str = "/runtimes/initech-test";

/// A server whose operator may make runtimes, in this place.
pub(crate) async fn managing(place: ManagedPlace, change: impl FnOnce(&mut Config)) -> Rig {
    let file = TokenFile::new();
    let path = file.path();
    let rig = Rig::with(|config| {
        config.settings.admin_token_file = Some(path);
        config.settings.managed_runtimes = Some(place);
        change(config);
    })
    .await;
    is_ready(&rig).await;
    rig
}

pub(crate) async fn in_folder(folder: &Path) -> Rig {
    managing(ManagedPlace::Folder(folder.to_owned()), |_| {}).await
}

pub(crate) async fn act(rig: &Rig, method: &str, path: &str, body: &Value) -> RawResponse {
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    ask(rig, method, path, &[("authorization", &bearer)], &body).await
}

#[track_caller]
pub(crate) fn check(answer: &RawResponse, status: u16) {
    assert_eq!(answer.head.status(), status, "{answer:?}");
}

pub(crate) fn definition(hosts: &[&str]) -> Value {
    json!({ "account": "initech", "name": "test", "hosts": hosts })
}

/// Makes the runtime, and a token of it: id and text.
pub(crate) async fn make(rig: &Rig) -> (String, String) {
    check(&act(rig, "PUT", NEW, &definition(&[])).await, 201);
    token(rig, NEW).await
}

/// Makes a token of the runtime at this path.
pub(crate) async fn token(rig: &Rig, runtime: &str) -> (String, String) {
    let wanted = json!({ "note": "first", "expires": "2999-01-01T00:00:00Z" });
    let made = act(rig, "POST", &format!("{runtime}/tokens"), &wanted).await;
    check(&made, 201);
    let made = json_of(&made);
    let text = |key: &str| made[key].as_str().unwrap().to_owned();
    assert_eq!(made["expires"], "2999-01-01T00:00:00.000Z");
    (text("id"), text("token"))
}

pub(crate) async fn client(rig: &Rig, token: &str) -> FakeClient {
    let connected = dial(rig, &session_request(token, random_instance())).await;
    assert_eq!(connected.status, 101);
    FakeClient::on(connected, |_| async { Ok(Response::new(full("here"))) }).await
}

/// Why a token is refused.
pub(crate) async fn refusal(rig: &Rig, token: &str) -> (u16, String) {
    let connected = dial(rig, &session_request(token, random_instance())).await;
    let (rest, _) = RawConnection::over(connected.io).rest().await;
    let refusal = [&connected.behind[..], &rest].concat();
    let refusal: Value = serde_json::from_slice(&refusal).unwrap();
    (
        connected.status,
        refusal["reason"].as_str().unwrap().to_owned(),
    )
}

async fn shown(rig: &Rig) -> Value {
    json_of(&ask(rig, "GET", NEW, &[], "").await)
}

#[tokio::test]
async fn a_runtime_lives_from_its_making_to_its_removal_also_over_a_restart() {
    let parent = TempDir::new().unwrap();
    let folder = parent.path().join("managed");
    let rig = in_folder(&folder).await;
    let made = act(&rig, "PUT", NEW, &definition(&["own.test"])).await;
    check(&made, 201);
    assert_eq!(json_of(&made)["managed"], true);
    let (id, first) = token(&rig, NEW).await;
    let _client = client(&rig, &first).await;
    let runtime = shown(&rig).await;
    assert_eq!(runtime["online"], true);
    assert_eq!(
        runtime["hosts"],
        json!(["initech-test.tunnels.test", "own.test"])
    );
    let listed = &runtime["tokens"][0];
    assert_eq!(
        (&listed["id"], &listed["revoked"]),
        (&json!(id), &json!(false))
    );
    assert_eq!(listed["note"], "first");
    assert!(listed["created"].is_string());
    let secret = first.rsplit('_').next().unwrap();
    assert!(!runtime.to_string().contains(secret));

    // Only its user can read what is kept, which holds no secret either.
    let path = folder.join("initech-test.toml");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(!fs::read_to_string(&path).unwrap().contains(secret));

    // Another definition keeps the tokens.
    check(&act(&rig, "PUT", NEW, &definition(&[])).await, 200);
    assert_eq!(shown(&rig).await["tokens"][0]["id"], id);

    rig.stop().await;
    let rig = in_folder(&folder).await;
    let mut kept = client(&rig, &first).await;
    check(&act(&rig, "DELETE", NEW, &Value::Null).await, 204);
    kept.ended().await;
    assert_eq!(
        refusal(&rig, &first).await,
        (401, "token_refused".to_owned())
    );
    check_refused(
        &act(&rig, "DELETE", NEW, &Value::Null).await,
        404,
        "runtime_unknown",
    );
    assert!(!path.exists());
    rig.stop().await;
}

#[tokio::test]
async fn a_revoked_token_is_told_so_also_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let rig = in_folder(folder.path()).await;
    let (id, first) = make(&rig).await;
    let (_, other) = token(&rig, NEW).await;
    let mut cut = client(&rig, &first).await;
    let path = format!("{NEW}/tokens/{id}");
    check(&act(&rig, "DELETE", &path, &Value::Null).await, 204);
    cut.ended().await;
    check(&act(&rig, "DELETE", &path, &Value::Null).await, 204);
    let unknown = format!("{NEW}/tokens/0123456789abcdef");
    let unknown = act(&rig, "DELETE", &unknown, &Value::Null).await;
    check_refused(&unknown, 404, "credential_unknown");
    rig.stop().await;
    let rig = in_folder(folder.path()).await;
    assert_eq!(
        refusal(&rig, &first).await,
        (403, "credential_revoked".to_owned())
    );
    let _client = client(&rig, &other).await;
    rig.stop().await;
}

#[tokio::test]
async fn what_cannot_stand_beside_the_others_is_refused() {
    let folder = TempDir::new().unwrap();
    let rig = in_folder(folder.path()).await;
    let put = async |path: &str, body: Value| act(&rig, "PUT", path, &body).await;
    let listed = json!({ "account": "acme", "name": "prod" });
    check_refused(
        &put("/runtimes/acme-prod", listed).await,
        409,
        "runtime_listed",
    );
    let listed = act(&rig, "DELETE", "/runtimes/acme-prod", &Value::Null).await;
    check_refused(&listed, 409, "runtime_listed");
    check_refused(
        &put(NEW, definition(&[DEV_OWN_HOST])).await,
        409,
        "runtime_conflict",
    );
    check(&put(NEW, definition(&["own.test"])).await, 201);
    let taken = json!({ "account": "other", "name": "one", "hosts": ["own.test"] });
    check_refused(
        &put("/runtimes/other-one", taken).await,
        409,
        "runtime_conflict",
    );
    for (path, body, named) in [
        ("/runtimes/other-one", definition(&[]), "initech-test"),
        (
            NEW,
            json!({ "account": "initech", "name": "test", "host": [] }),
            "`host`",
        ),
        (
            NEW,
            json!({ "account": "initech", "name": "test", "limits": { "exchanges": 0 } }),
            "limits.exchanges",
        ),
        (
            "/runtimes/..%2Fx",
            json!({ "account": "a", "name": "b" }),
            "`a-b`",
        ),
    ] {
        let answer = put(path, body).await;
        check_refused(&answer, 400, "body_malformed");
        let detail = json_of(&answer)["detail"].to_string();
        assert!(detail.contains(named), "{detail}");
    }
    let answer = act(
        &rig,
        "POST",
        &format!("{NEW}/tokens"),
        &json!({ "expiry": 1 }),
    )
    .await;
    check_refused(&answer, 400, "body_malformed");
    let open = ask(&rig, "PUT", NEW, &[], "{}").await;
    check_refused(&open, 401, "admin_token_refused");
    rig.stop().await;
}

#[tokio::test]
async fn without_a_place_no_runtime_is_made() {
    let file = TokenFile::new();
    let path = file.path();
    let rig = Rig::with(|config| config.settings.admin_token_file = Some(path)).await;
    let answer = act(&rig, "PUT", NEW, &definition(&[])).await;
    check_refused(&answer, 409, "managed_unset");
    rig.stop().await;
}

#[tokio::test]
async fn a_broken_document_is_left_out_alone() {
    let folder = TempDir::new().unwrap();
    let write = |label: &str, text: &str| {
        fs::write(folder.path().join(format!("{label}.toml")), text).unwrap();
    };
    write("broken-one", "[[runtime]\n");
    write(
        "hoo-li",
        "[[runtime]]\naccount = \"hoo\"\nname = \"li\"\nhosts = [\"api.globex.test\"]\n",
    );
    write(
        "initech-test",
        "[[runtime]]\naccount = \"initech\"\nname = \"test\"\n",
    );
    let rig = in_folder(folder.path()).await;
    assert_eq!(shown(&rig).await["managed"], true);
    for label in ["broken-one", "hoo-li"] {
        let path = format!("/runtimes/{label}");
        check(&ask(&rig, "GET", &path, &[], "").await, 404);
    }
    let answer = act(&rig, "POST", "/runtimes/broken-one/tokens", &Value::Null).await;
    check_refused(&answer, 409, "document_faulty");
    // Both can be mended.
    let mended = json!({ "account": "hoo", "name": "li" });
    check(&act(&rig, "PUT", "/runtimes/hoo-li", &mended).await, 200);
    check(
        &act(&rig, "DELETE", "/runtimes/broken-one", &Value::Null).await,
        204,
    );
    rig.stop().await;
}

#[tokio::test]
async fn nodes_share_what_one_of_them_has_made() {
    let etcd = Etcd::start(1).await;
    let node = async |name: &str| {
        let shared = shared(&etcd, name);
        managing(ManagedPlace::Etcd, |config| {
            config.shared_directory = Some(shared)
        })
        .await
    };
    let (one, two) = (node("n1").await, node("n2").await);
    let (id, token) = make(&one).await;
    let known = eventually(SOON, "the token at the other node", async || {
        let runtime = ask(&two, "GET", &format!("{NEW}?scope=node"), &[], "").await;
        let is_there = runtime.text().contains(&id);
        is_there.then_some(())
    });
    known.await;
    let mut there = client(&two, &token).await;
    // Whoever writes first has the host, whatever the other node knew.
    let body = |label: &str| json!({ "account": label, "name": "x", "hosts": ["own.test"] });
    let (first, second) = (body("first"), body("second"));
    let (first, second) = tokio::join!(
        act(&one, "PUT", "/runtimes/first-x", &first),
        act(&two, "PUT", "/runtimes/second-x", &second),
    );
    let mut statuses = [first.head.status(), second.head.status()];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409]);
    let three = node("n3").await;
    assert_eq!(shown(&three).await["tokens"][0]["id"], id);
    check(&act(&one, "DELETE", NEW, &Value::Null).await, 204);
    there.ended().await;
    assert_eq!(
        etcd.ctl(&["get", "/tunnel/v1/runtime/initech-test"]).await,
        ""
    );
    for rig in [one, two, three] {
        rig.stop().await;
    }
}

#[tokio::test]
async fn what_is_left_out_is_said_and_an_edited_file_is_beside_the_rest() {
    let files = Files::new();
    fs::create_dir(files.folder.path("managed")).unwrap();
    files
        .folder
        .write("managed/broken-one.toml", "[[runtime]\n");
    let good = "[[runtime]]\naccount = \"initech\"\nname = \"test\"\n";
    files.folder.write("managed/initech-test.toml", good);
    let serving = files.serve("managed_runtimes = \"managed\"").await;
    let says = |line: &Value, name: &str| {
        let place = line["place"].as_str();
        line["level"] == "ERROR" && place.is_some_and(|place| place.ends_with(name))
    };
    let broken = |line: &Value| says(line, "managed/broken-one.toml");
    serving.logged("the broken document", broken).await;
    let token = serving.add("globex", "dev");
    let _client = serving.client(token.expose()).await;
    let (_, text) = ask_admin(serving.admin, &format!("/api/v1{NEW}")).await;
    assert!(text.contains("\"managed\":true"), "{text}");
    // What the file takes, a document may not have.
    serving.add("initech", "test");
    let taken = |line: &Value| says(line, "managed/initech-test.toml");
    serving.logged("the document that conflicts", taken).await;
    serving.stop().await;
}
