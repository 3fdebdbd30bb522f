//! Managed runtimes and revocations by the admin API outlive etcd, nodes that nobody reaches, and restarts.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{
    deadline::{SOON, eventually},
    etcd::Etcd,
    tunnel::client::{FakeClient, dial, random_instance, session_request},
};
use tunnel_server::config::{Config, ManagedPlace};

use crate::{
    admin::{ALL, TokenFile, act as post, check_refused, json_of},
    managed::{NEW, act, check, client, definition, in_folder, make, managing, refusal, token},
    nodes::{node_with, shared},
    rig::{DEV, PROD, Rig},
};

/// A runtime that is made after the snapshot.
const LATE: &str = "/runtimes/initech-late";

/// One that is removed after it.
const GONE: &str = "/runtimes/initech-gone";

async fn node(etcd: &Etcd, name: &str) -> Rig {
    let shared = shared(etcd, name);
    managing(ManagedPlace::Etcd, |config| {
        config.shared_directory = Some(shared);
    })
    .await
}

async fn key(etcd: &Etcd, label: &str) -> String {
    let key = format!("/tunnel/v1/runtime/{label}");
    etcd.ctl(&["get", &key, "--print-value-only"]).await
}

/// What has happened since the snapshot, which etcd loses. The runtimes file of each server has other tokens, without a time of
/// issue, which a revocation of all revokes, too.
struct Since {
    snapshot: std::path::PathBuf,
    kept: (FakeClient, String),
    late: (FakeClient, String),
    revoked: String,
    gone: String,
}

impl Since {
    /// Makes a runtime with two tokens and another one, takes a snapshot, then makes a third, revokes a token, and removes the
    /// second.
    async fn make(etcd: &Etcd, one: &Rig, two: &Rig) -> Self {
        let (id, revoked) = make(one).await;
        let (_, kept) = token(one, NEW).await;
        let body = json!({ "account": "initech", "name": "gone" });
        check(&act(one, "PUT", GONE, &body).await, 201);
        let (_, gone) = token(one, GONE).await;
        let snapshot = etcd.snapshot().await;
        let body = json!({ "account": "initech", "name": "late" });
        check(&act(one, "PUT", LATE, &body).await, 201);
        let (_, late) = token(one, LATE).await;
        let path = format!("{NEW}/tokens/{id}");
        check(&act(one, "DELETE", &path, &Value::Null).await, 204);
        check(&act(one, "DELETE", GONE, &Value::Null).await, 204);
        Self {
            snapshot,
            kept: (client(one, &kept).await, kept),
            late: (eventually_client(two, &late).await, late),
            revoked,
            gone,
        }
    }

    /// Checks that all of it holds at a node, and that no session has ended.
    async fn check(&self, node: &Rig) {
        for (client, token) in [&self.kept, &self.late] {
            assert!(client.session.is_open());
            let _again = client_of(node, token).await;
        }
        for (token, reason) in [
            (&self.revoked, (403, "credential_revoked")),
            (&self.gone, (401, "token_refused")),
        ] {
            let (status, given) = refusal(node, token).await;
            assert_eq!((status, given.as_str()), reason);
        }
    }
}

async fn client_of(rig: &Rig, token: &str) -> u16 {
    let status = dial(rig, &session_request(token, random_instance()))
        .await
        .status;
    assert!(matches!(status, 101 | 503), "{status}");
    status
}

/// A client at a node that learns of its token in a moment.
async fn eventually_client(rig: &Rig, token: &str) -> FakeClient {
    eventually(SOON, "the token at the other node", async || {
        let request = session_request(token, random_instance());
        (dial(rig, &request).await.status == 101).then_some(())
    })
    .await;
    client(rig, token).await
}

/// Waits until etcd has what was made after the snapshot, and not what was removed.
async fn is_written_again(etcd: &Etcd) {
    eventually(SOON, "etcd to have all again", async || {
        let is_there = key(etcd, "initech-late").await.contains("late")
            && key(etcd, "initech-test").await.contains("test")
            && key(etcd, "initech-gone").await.is_empty();
        is_there.then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_a_restored_or_emptied_etcd_has_lost_is_written_again() {
    let mut etcd = Etcd::start(1).await;
    let (one, two) = (node(&etcd, "n1").await, node(&etcd, "n2").await);
    let since = Since::make(&etcd, &one, &two).await;
    let revoke = format!("/runtimes/{PROD}/revoke");
    let answer = json_of(&post(&one, &revoke, ALL).await);
    assert_eq!(answer["durable"], true, "{answer}");

    let snapshot = since.snapshot.clone();
    etcd.restore(&snapshot, &[]).await;
    is_written_again(&etcd).await;
    since.check(&one).await;
    etcd.wipe(0);
    etcd.start_again(0).await;
    is_written_again(&etcd).await;
    since.check(&one).await;
    since.check(&two).await;
    // Whoever comes now learns it from etcd.
    let three = node(&etcd, "n3").await;
    since.check(&three).await;
    let prod = session_request(three.token(PROD), random_instance());
    assert_eq!(dial(&three, &prod).await.status, 403);
    for rig in [one, two, three] {
        rig.stop().await;
    }
}

#[tokio::test]
async fn keys_that_are_deleted_by_hand_come_back_and_those_of_the_command_do_not() {
    let etcd = Etcd::start(1).await;
    let rig = node(&etcd, "n1").await;
    let (_, first) = make(&rig).await;
    let mut client = client(&rig, &first).await;
    etcd.ctl(&["del", "--prefix", "/tunnel/v1/runtime"]).await;
    eventually(SOON, "the document", async || {
        let is_there = key(&etcd, "initech-test").await.contains("initech");
        is_there.then_some(())
    })
    .await;
    assert!(client.session.is_open());
    let unclear = post(&rig, "/runtimes/clear", r#"{"all": false}"#).await;
    check_refused(&unclear, 400, "body_malformed");
    let cleared = post(&rig, "/runtimes/clear", ALL).await;
    assert_eq!(json_of(&cleared), json!({ "removed": 1 }));
    client.ended().await;
    assert_eq!(key(&etcd, "initech-test").await, "");
    rig.stop().await;
}

#[tokio::test]
async fn all_runtimes_of_a_folder_are_removed_by_the_command() {
    let folder = TempDir::new().unwrap();
    let rig = in_folder(folder.path()).await;
    make(&rig).await;
    check(
        &act(
            &rig,
            "PUT",
            LATE,
            &json!({ "account": "initech", "name": "late" }),
        )
        .await,
        201,
    );
    let cleared = post(&rig, "/runtimes/clear", ALL).await;
    assert_eq!(json_of(&cleared), json!({ "removed": 2 }));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    check(&act(&rig, "PUT", NEW, &definition(&[])).await, 201);
    rig.stop().await;
}

/// The nodes have no links, by which one would ask the others.
#[tokio::test]
async fn a_revocation_holds_at_nodes_that_do_not_answer() {
    let etcd = Etcd::start(1).await;
    let (one, two) = (guarded(&etcd, "n1").await, guarded(&etcd, "n2").await);
    let mut there = FakeClient::describing(&two.0, PROD).await;
    let answer = json_of(&post(&one.0, &format!("/runtimes/{PROD}/revoke"), ALL).await);
    assert_eq!(answer["durable"], true, "{answer}");
    assert_eq!(answer["unanswered"], json!(["n2"]), "{answer}");
    there.ended().await;
    let answer = json_of(&post(&one.0, &format!("/runtimes/{DEV}/disconnect"), "").await);
    assert_eq!(answer["unanswered"], json!(["n2"]), "{answer}");
    assert_eq!(answer["durable"], Value::Null, "{answer}");
    for (rig, _) in [one, two] {
        rig.stop().await;
    }
    let (later, _file) = guarded(&etcd, "n1").await;
    let prod = session_request(later.token(PROD), random_instance());
    assert_eq!(dial(&later, &prod).await.status, 403);
    later.stop().await;
}

async fn guarded(etcd: &Etcd, name: &str) -> (Rig, TokenFile) {
    let file = TokenFile::new();
    let path = file.path();
    let set = |config: &mut Config| config.settings.admin_token_file = Some(path);
    (node_with(etcd, name, set).await, file)
}

#[tokio::test]
async fn a_revocation_is_kept_in_a_file_where_there_is_one() {
    let folder = TempDir::new().unwrap();
    let file = TokenFile::new();
    let path = folder.path().join("kept.json");
    let start = async || {
        let (token, path) = (file.path(), path.clone());
        Rig::with(|config| {
            config.settings.admin_token_file = Some(token);
            config.settings.admin_revocations = Some(path);
        })
        .await
    };
    let rig = start().await;
    let answer = json_of(&post(&rig, &format!("/runtimes/{PROD}/revoke"), ALL).await);
    assert_eq!(answer["durable"], true, "{answer}");
    rig.stop().await;
    let rig = start().await;
    for (label, status) in [(PROD, 403), (DEV, 101)] {
        let request = session_request(rig.token(label), random_instance());
        assert_eq!(dial(&rig, &request).await.status, status, "{label}");
    }
    // What cannot be kept is in force all the same.
    fs::write(&path, "{").unwrap();
    let answer = json_of(&post(&rig, &format!("/runtimes/{DEV}/revoke"), ALL).await);
    assert_eq!(answer["durable"], false, "{answer}");
    let request = session_request(rig.token(DEV), random_instance());
    assert_eq!(dial(&rig, &request).await.status, 403);
    rig.stop().await;
}

#[tokio::test]
async fn a_revocation_is_kept_beside_managed_runtimes() {
    let folder = TempDir::new().unwrap();
    let rig = in_folder(folder.path()).await;
    let answer = json_of(&post(&rig, &format!("/runtimes/{PROD}/revoke"), ALL).await);
    assert_eq!(answer["durable"], true, "{answer}");
    rig.stop().await;
    let rig = in_folder(folder.path()).await;
    let request = session_request(rig.token(PROD), random_instance());
    assert_eq!(dial(&rig, &request).await.status, 403);
    rig.stop().await;
}
