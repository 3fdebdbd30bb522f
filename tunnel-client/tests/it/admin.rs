//! What the operator sees of a client.

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
