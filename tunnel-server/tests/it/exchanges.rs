//! The live tail of a runtime's exchanges over real sockets: what is shown of which exchange, and to whom.

use serde_json::{Value, json};
use testkit::tunnel::client::FakeClient;

use crate::{
    admin::{ADMIN_TOKEN, ask, check_refused, guarded},
    events::Watcher,
    forwarding::Linked,
    rig::{DEV, DEV_HOST, PROD, PROD_HOST, Rig},
};

/// A watcher of the exchanges of [`PROD`].
async fn tail(rig: &Rig, query: &str) -> Watcher {
    let path = format!("/runtimes/{PROD}/exchanges{query}");
    Watcher::open(rig.addresses.admin, &path, "").await
}

async fn status_of(rig: &Rig, host: &str, target: &str) -> u16 {
    let request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n");
    rig.raw().await.ask(request).await.head.status()
}

async fn exchange(watcher: &mut Watcher) -> Value {
    let (name, data) = watcher.named().await;
    assert_eq!(name, "exchange", "{data}");
    data
}

#[tokio::test]
async fn the_exchanges_of_one_runtime_are_shown_also_those_that_fail_without_a_tunnel() {
    let rig = Rig::start().await;
    let mut all = tail(&rig, "").await;
    let mut failed = tail(&rig, "?status=5xx,400&path=/").await;
    assert_eq!(status_of(&rig, PROD_HOST, "/first?secret=1").await, 503);
    for watcher in [&mut all, &mut failed] {
        let offline = exchange(watcher).await;
        assert_eq!(offline["runtime"], PROD);
        assert_eq!(
            (&offline["status"], &offline["end"], &offline["hop"]),
            (
                &json!(503),
                &json!("runtime_offline"),
                &json!("tunnel-server")
            )
        );
        assert_eq!(
            (&offline["host"], &offline["path"]),
            (&json!(PROD_HOST), &json!("/first"))
        );
        assert!(!offline.to_string().contains("secret"), "{offline}");
        assert!(
            offline["request_id"].is_string() && offline["duration_ms"].is_f64(),
            "{offline}"
        );
    }
    let _prod = FakeClient::describing(&rig, PROD).await;
    let _dev = FakeClient::describing(&rig, DEV).await;
    assert_eq!(status_of(&rig, DEV_HOST, "/of-another").await, 200);
    assert_eq!(status_of(&rig, PROD_HOST, "/second").await, 200);
    let whole = exchange(&mut all).await;
    assert_eq!(
        (&whole["path"], &whole["status"], &whole["end"]),
        (&json!("/second"), &json!(200), &json!("whole"))
    );
    assert_eq!(whole["response_bytes"], "acme-prod GET /second\n".len());
    // Refused before it was known where it goes.
    let malformed = format!("GET /third HTTP/1.1\r\nhost: {PROD_HOST}\r\nexpect: x\r\n\r\n");
    assert_eq!(rig.raw().await.ask(malformed).await.head.status(), 417);
    let refused = exchange(&mut all).await;
    assert_eq!(
        (&refused["path"], &refused["end"]),
        (&json!("/third"), &json!("expectation_failed"))
    );
    drop((all, failed));
    rig.metric_becomes("tunnel_server_held{table=\"tails\"}", 0.0)
        .await;
    rig.stop().await;
}

#[tokio::test]
async fn a_tail_is_private_and_its_query_is_checked() {
    let (rig, _file) = guarded().await;
    let path = "/runtimes/acme-prod/exchanges";
    let refused = ask(&rig, "GET", path, &[], "").await;
    check_refused(&refused, 401, "admin_token_refused");
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    let token = [("authorization", bearer.as_str())];
    let malformed = ask(&rig, "GET", &format!("{path}?stauts=503"), &token, "").await;
    check_refused(&malformed, 400, "query_malformed");
    let unknown = ask(&rig, "GET", "/runtimes/acme-none/exchanges", &token, "").await;
    check_refused(&unknown, 404, "runtime_unknown");
    let mut tails = Vec::new();
    for _ in 0..8 {
        let field = format!("authorization: {bearer}\r\n");
        tails.push(Watcher::open(rig.addresses.admin, path, &field).await);
    }
    let full = ask(&rig, "GET", path, &token, "").await;
    check_refused(&full, 503, "too_many_streams");
    rig.stop().await;
}

#[tokio::test]
async fn a_node_shows_the_exchanges_of_all_nodes_and_names_those_that_are_gone() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    two.metric_becomes("tunnel_server_peer_links", 2.0).await;
    let mut all = tail(&two, "?path=/seen").await;
    let mut own = tail(&two, "?scope=node").await;
    one.metric_becomes("tunnel_server_held{table=\"tails\"}", 1.0)
        .await;
    assert_eq!(status_of(&one, PROD_HOST, "/not").await, 503);
    assert_eq!(status_of(&one, PROD_HOST, "/seen/1").await, 503);
    assert_eq!(exchange(&mut all).await["path"], "/seen/1");
    assert_eq!(status_of(&two, PROD_HOST, "/seen/2").await, 503);
    assert_eq!(exchange(&mut all).await["path"], "/seen/2");
    assert_eq!(exchange(&mut own).await["path"], "/seen/2");
    one.kill();
    let (name, data) = all.named().await;
    assert_eq!(
        (&*name, data),
        ("unanswered", json!({ "unanswered": ["n1"] }))
    );
}
