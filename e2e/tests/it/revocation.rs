//! Tokens that come and go while the server runs: a new one is good without a restart, and whoever
//! is in by one that is taken back is cut within a second.

use std::{fs, path::Path, time::Duration};

use e2e::{
    deadline::{SOON, eventually, within},
    load::{Load, Plan},
    platform::PlatformClient,
    stranger::Stranger,
    system::{ADMIN_TOKEN, Options, System},
    upstream::Upstream,
};

const APP: &str = "demo-app";

/// How long a revocation may take, with some room for a busy machine.
const AT_ONCE: Duration = Duration::from_millis(1_500);

/// The public part of the token in this file.
fn token_id(path: &Path) -> String {
    let token = fs::read_to_string(path).unwrap();
    token.split('_').nth(1).unwrap().to_owned()
}

async fn status(system: &System) -> u16 {
    let mut client = PlatformClient::http1(&system.entry()).await;
    client.get("/status/200").await.status.as_u16()
}

async fn usual() -> (Upstream, System) {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url())
        .server_flags(&["--offline-wait", "100ms"])
        .server_file("--revocations", "revocations.toml", "")
        .with_admin_token();
    let system = System::with(options).await;
    assert_eq!(status(&system).await, 200);
    (upstream, system)
}

/// Waits until the runtime's session is cut, which must be soon, and the client told why.
async fn assert_cut(system: &System) {
    let admin = system.server().admin();
    within(AT_ONCE, "the session to be cut", async {
        admin
            .wait_metric("tunnel_server_sessions", &[], |count| count == 0.0)
            .await;
    })
    .await;
    let client = system.client().program();
    client.wait_for_line("no longer valid", SOON).await;
    assert_eq!(status(system).await, 503);
}

#[tokio::test]
async fn a_token_made_while_the_server_runs_is_good() {
    let (upstream, mut system) = usual().await;
    let mut options = system.client_options(APP).clone();
    options.token = system.files().create_token("demo", "late");
    options.upstream = upstream.url();
    // The server may hear of the file a moment later than the client comes.
    let patient = ["--on-refusal", "retry", "--refusal-wait", "100ms"];
    options.flags = patient.map(str::to_owned).to_vec();
    let late = e2e::client::Client::start(&options).await;
    within(Duration::from_secs(3), "a session", async {
        late.admin().wait_ready(true).await;
    })
    .await;
    let entry = system.entry_of("demo-late");
    let answer = PlatformClient::http1(&entry).await.get("/late").await;
    assert_eq!(answer.status, 200);
    assert_eq!(status(&system).await, 200, "the others stay as they are");
}

#[tokio::test]
async fn the_command_that_revokes_a_token_cuts_its_session() {
    let (_upstream, mut system) = usual().await;
    let id = token_id(&system.token_of(APP));
    system.files().revoke_token("demo", "app", Some(&id));
    assert_cut(&system).await;
}

#[tokio::test]
async fn the_command_that_revokes_all_tokens_of_a_runtime_leaves_the_others() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).and("demo", "other", &upstream.url());
    let system = System::with(options.server_flags(&["--offline-wait", "100ms"])).await;
    system.files().revoke_token("demo", "app", None);
    let admin = system.server().admin();
    within(AT_ONCE, "one session to be cut", async {
        let one = system.client_of(APP).program();
        one.wait_for_line("no longer valid", SOON).await;
    })
    .await;
    let entry = system.entry_of("demo-other");
    let answer = PlatformClient::http1(&entry).await.get("/").await;
    assert_eq!(answer.status, 200);
    assert!(admin.metric("tunnel_server_sessions", &[]).await >= Some(1.0));
}

#[tokio::test]
async fn a_token_that_is_taken_out_of_the_file_by_hand_cuts_its_session() {
    let (_upstream, system) = usual().await;
    let path = &system.files().runtimes;
    let text = fs::read_to_string(path).unwrap();
    let (runtime, _tokens) = text.split_once("[[runtime.token]]").unwrap();
    fs::write(path, runtime).unwrap();
    assert_cut(&system).await;
}

#[tokio::test]
async fn a_file_that_cannot_be_read_changes_nothing() {
    let (_upstream, mut system) = usual().await;
    let path = system.files().runtimes.clone();
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, "[[runtime]\nthis is not TOML").unwrap();
    let log = system.server().program();
    log.wait_for_line("runtimes.toml:1", SOON).await;
    assert_eq!(status(&system).await, 200);
    let before = system.client().program().id();
    fs::write(&path, good).unwrap();
    let id = token_id(&system.token_of(APP));
    system.files().revoke_token("demo", "app", Some(&id));
    assert_eq!(system.client().program().id(), before);
    assert_cut(&system).await;
}

#[tokio::test]
async fn the_list_of_revocations_cuts_by_token_by_runtime_and_by_account() {
    for which in ["id", "runtime", "account"] {
        let (_upstream, mut system) = usual().await;
        let entry = match which {
            "id" => format!("id = \"{}\"", token_id(&system.token_of(APP))),
            "runtime" => "account = \"demo\"\nruntime = \"app\"".to_owned(),
            _ => "account = \"demo\"".to_owned(),
        };
        let path = system.directory().join("revocations.toml");
        fs::write(path, format!("[[revoked]]\n{entry}\n")).unwrap();
        assert_cut(&system).await;
        let token = system.token_of(APP);
        let Err(refusal) = Stranger::dial(&system.tunnel_entry(), &token).await else {
            panic!("a revoked token opened a session: {which}");
        };
        assert_eq!(refusal.head.status(), 403, "{which}: {refusal:?}");
        assert_eq!(refusal.body["reason"], "credential_revoked", "{refusal:?}");
    }
}

#[tokio::test]
async fn the_operator_revokes_through_the_admin_listener() {
    let (_upstream, system) = usual().await;
    let admin = system.server().admin();
    let path = format!("/api/v1/runtimes/{APP}/revoke");
    for wrong in [None, Some("somebody-else")] {
        assert_eq!(admin.post(&path, wrong).await.status, 401, "{wrong:?}");
    }
    assert_eq!(status(&system).await, 200);
    let unclear = admin.post(&path, Some(ADMIN_TOKEN)).await;
    assert_eq!(unclear.status, 400, "{unclear:?}");
    assert_eq!(status(&system).await, 200);
    let all = r#"{"all": true}"#;
    let answer = admin.post_with(&path, Some(ADMIN_TOKEN), all).await;
    assert!(answer.status.is_success(), "{answer:?}");
    assert_cut(&system).await;
}

#[tokio::test]
async fn a_token_is_replaced_and_the_old_one_revoked_without_losing_anything() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.h2c_url()).client_flags(&["--sessions", "2"]);
    let mut system = System::with(options).await;
    let load = Load::start(system.entry(), &Plan::every_kind());
    load.wait_progress(5).await;
    let file = system.token_of(APP);
    let old = system.directory().join("old.token");
    fs::copy(&file, &old).unwrap();

    let newer = system.files().create_token("demo", "app");
    load.mark("there is a second token");
    // What was written after it is known to the server, so it is too.
    let witness = system.files().create_token("demo", "witness");
    wait_good(&system, &witness, true).await;
    fs::rename(&newer, &file).unwrap();
    load.mark("the client's file holds it");
    let client = system.client().program();
    client
        .wait_for_line("the server has accepted the new token", SOON)
        .await;

    let id = token_id(&old);
    system.files().revoke_token("demo", "app", Some(&id));
    load.mark("the first token is revoked");
    system.files().revoke_token("demo", "witness", None);
    wait_good(&system, &witness, false).await;
    load.wait_progress(60).await;
    let report = load.finish().await;
    report.assert_none_failed();
    for kind in e2e::load::ExchangeKind::ALL {
        assert_eq!(report.counts(kind).by_protocol, 0, "{report}");
    }
    let admin = system.client().admin();
    let dials = admin.metric("tunnel_client_dials_total", &[]).await;
    assert_eq!(dials, Some(2.0), "both sessions are the first ones");
}

/// Waits until this token opens a session, or does not any more.
async fn wait_good(system: &System, token: &Path, is_wanted: bool) {
    let is_good = async || {
        let stranger = Stranger::dial(&system.tunnel_entry(), token).await;
        (stranger.is_ok() == is_wanted).then_some(())
    };
    eventually(SOON, "the server to know its file", is_good).await;
}
