//! What the operator sees of a client.

use serde_json::Value;
use testkit::deadline::{SOON, eventually};
use testkit::scripted::ScriptedUpstream;
use testkit::tunnel::server::FakeServer;

use crate::setup::{Running, Setup, get, post};

#[tokio::test]
async fn a_client_is_ready_only_while_a_session_answers() {
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, "http://127.0.0.1:1", |_| {});
    assert!(client.admin("/healthz").await.head.status() == 200);
    let session = server.accept().await;
    assert!(
        client
            .admin("/readyz")
            .await
            .text()
            .contains("no session with the server")
    );
    drop(session);
    let session = server.welcome().await;
    client.wait_ready(true).await;
    client.wait_metric("sessions", 1.0).await;
    drop(session);
    client.wait_ready(false).await;
    client.wait_metric("sessions", 0.0).await;
}

#[tokio::test]
async fn the_status_says_how_the_tunnel_is_and_why_it_is_down() {
    let status = async |client: &Running| {
        let answer = client.admin("/api/v1/status").await;
        assert_eq!(answer.head.status(), 200);
        assert!(!answer.text().contains("tnlrt_"), "{}", answer.text());
        serde_json::from_str::<Value>(&answer.text()).unwrap()
    };
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, "http://127.0.0.1:1", |_| {});
    let session = server.accept().await;
    assert_eq!(status(&client).await["tunnel"]["state"], "dialling");
    drop(session);
    let session = server.welcome().await;
    client.wait_ready(true).await;
    let online = status(&client).await;
    let tunnel = &online["tunnel"];
    assert_eq!(tunnel["state"], "online");
    assert_eq!(tunnel["sessions"][0]["server"], server.url());
    assert_eq!(tunnel["servers"][0]["url"], server.url());
    assert!(tunnel["online_since"].is_string(), "{online}");
    assert_eq!(online["routes"][0]["upstreams"][0]["state"], "unknown");
    session.failure(get("/")).await;
    let failed = status(&client).await;
    assert_eq!(failed["routes"][0]["state"], "down");
    assert_eq!(failed["routes"][0]["upstreams"][0]["state"], "unreachable");
    assert_eq!(failed["problems"][0]["reason"], "connection_refused");
    drop(session);
    client.wait_ready(false).await;
    drop(server);
    eventually(SOON, "a failed dial in the status", async || {
        let offline = status(&client).await;
        let tunnel = &offline["tunnel"];
        assert!(tunnel["sessions"].as_array().unwrap().is_empty());
        assert!(tunnel["last_session_end"]["reason"].is_string());
        tunnel["last_failure"]["detail"].is_string().then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_operator_may_ask_by_the_names_that_are_set() {
    let server = FakeServer::start().await;
    let client = Running::start(&server, "http://127.0.0.1:1", |config| {
        config.settings.admin_host = vec!["tunnel.example".parse().unwrap()];
    });
    for (host, status) in [("tunnel.example:9091", 200), ("evil.example", 421)] {
        let answer = client.admin_as(host, "/healthz").await;
        assert_eq!(answer.head.status(), status);
    }
}

#[tokio::test]
async fn exchanges_are_counted() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        while let Ok(head) = connection.head().await {
            let status = if head.starts_with("POST") {
                connection.bytes(5).await;
                "404 Not Found"
            } else {
                "200 OK"
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 3\r\n\r\nabc");
            connection.send(answer).await;
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    setup.session.fetch(get("/")).await;
    setup.session.fetch(get("/")).await;
    setup.session.fetch(post("hello")).await;
    for (series, value) in [
        ("exchanges_total{status=\"2xx\"}", 2.0),
        ("exchanges_total{status=\"4xx\"}", 1.0),
        ("open_exchanges", 0.0),
        ("bytes_total{direction=\"in\"}", 5.0),
        ("bytes_total{direction=\"out\"}", 9.0),
        ("exchange_duration_seconds_count", 3.0),
        ("own_duration_seconds_count", 3.0),
    ] {
        setup.client.wait_metric(series, value).await;
    }
}
