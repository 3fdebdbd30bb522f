//! The admin API of one node, which answers for all.

use serde_json::Value;
use testkit::{
    deadline::{SOON, eventually},
    tunnel::client::{FakeClient, dial, random_instance, session_request},
};
use tunnel_proto::{close::CloseReason, session::SessionEnd};

use crate::{
    admin::{TokenFile, act, json_of},
    forwarding::Linked,
    rig::{DEV, PROD, Rig},
};

async fn asked(rig: &Rig, path: &str) -> Value {
    let (_, text) = rig.admin(&format!("/api/v1{path}")).await;
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn a_runtime_is_shown_and_operated_on_at_a_node_that_does_not_have_it() {
    let linked = Linked::start().await;
    let file = TokenFile::new();
    let path = file.path();
    let one = linked.node("n1", |_| {}).await;
    let two = linked
        .node("n2", |config| config.settings.admin_token_file = Some(path))
        .await;
    two.metric_becomes("tunnel_server_peer_links", 2.0).await;
    let mut client = FakeClient::describing(&one, PROD).await;
    let _other = FakeClient::describing(&two, DEV).await;
    let shown = eventually(SOON, "both runtimes", async || {
        let page = asked(&two, "/runtimes?online=true").await;
        let runtimes = page["runtimes"].as_array()?.clone();
        (runtimes.len() == 2).then_some(runtimes)
    });
    let shown = shown.await;
    assert_eq!(
        (&shown[0]["label"], &shown[1]["label"]),
        (&PROD.into(), &DEV.into())
    );
    assert_eq!(shown[0]["sessions"][0]["node"], "n1");
    assert_eq!(shown[0]["nodes"][0], "n1");
    let own = asked(&two, "/runtimes/acme-prod?scope=node").await;
    assert_eq!(own["sessions"], Value::Array(Vec::new()));

    let answer = act(&two, "/runtimes/acme-prod/disconnect", "").await;
    assert_eq!(json_of(&answer)["sessions"], 1);
    let end = client.ended().await;
    assert!(
        matches!(end, SessionEnd::ClosedByPeer(CloseReason::Disconnected)),
        "{end}"
    );
    // What one node has revoked, all refuse.
    act(&two, "/runtimes/acme-prod/revoke", r#"{"all": true}"#).await;
    let refused = session_request(one.token(PROD), random_instance());
    assert_eq!(dial(&one, &refused).await.status, 403);
    let why = eventually(SOON, "the refusal at the other node", async || {
        let runtime = asked(&two, "/runtimes/acme-prod").await;
        (!runtime["last_refusal"].is_null()).then_some(runtime)
    });
    let why = why.await;
    assert_eq!(why["last_refusal"]["reason"], "credential_revoked");
    assert_eq!(why["last_session_end"]["reason"], "disconnected");
}

#[tokio::test]
async fn nodes_that_do_not_answer_are_named() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    assert_eq!(asked(&two, "/runtimes").await["unanswered"], Value::Null);
    one.kill();
    let unanswered = eventually(SOON, "the loss", async || {
        let page = asked(&two, "/runtimes").await;
        page["unanswered"][0].as_str().map(str::to_owned)
    });
    assert_eq!(unanswered.await, "n1");
}
