//! WebSockets with foreign implementations at both ends of the tunnel.

use e2e::{
    deadline::SOON,
    peers::python::{Step, WebSocketServer, h2_client, websocket_client},
    raw::RawClient,
    system::System,
    upstream::Upstream,
};
use serde_json::json;

#[tokio::test]
async fn a_conversation_passes_whole() {
    let upstream = WebSocketServer::start().await;
    let system = System::start(&upstream.url()).await;
    let steps = [
        Step::Text("hello"),
        Step::Text(""),
        Step::Binary(1),
        Step::Binary(3_000_000),
        Step::Ping,
        Step::Rest(2_000),
        Step::Text("after a rest"),
        Step::Text("ping"),
        Step::Close(4001),
    ];
    let report = websocket_client(
        &system.entry(),
        "/path?query",
        &["other", "chat.v1"],
        &steps,
    )
    .await;
    let expected = [
        json!({"opened": "chat.v1"}),
        json!({"text": "hello"}),
        json!({"text": ""}),
        json!({"same": true}),
        json!({"same": true}),
        json!({"pong": true}),
        json!({"rested": true}),
        json!({"text": "after a rest"}),
        json!({"text": "pong"}),
        json!({"closed": 4001}),
    ];
    assert_eq!(report, expected);
    upstream
        .program()
        .wait_for_line("opened /path?query chat.v1", SOON)
        .await;
    upstream.program().wait_for_line("closed 4001", SOON).await;
}

#[tokio::test]
async fn the_upstream_may_close_or_refuse() {
    let upstream = WebSocketServer::start().await;
    let system = System::start(&upstream.url()).await;
    // The server closes with this code instead of an echo, so the step reports the close.
    let close = [Step::Text("close 4002")];
    let report = websocket_client(&system.entry(), "/", &[], &close).await;
    assert_eq!(report, [json!({"opened": null}), json!({"lost": 4002})]);

    let upstream = Upstream::start().await;
    let system = System::start(&upstream.url()).await;
    let refused = websocket_client(&system.entry(), "/status/403", &[], &[]).await;
    assert_eq!(refused, [json!({"refused": 403})]);
    let refused = websocket_client(&system.entry(), "/status/404", &[], &[]).await;
    assert_eq!(refused, [json!({"refused": 404})]);
}

#[tokio::test]
async fn an_end_that_breaks_off_is_noticed_at_the_other_end() {
    let upstream = WebSocketServer::start().await;
    let mut system = System::start(&upstream.url()).await;
    let lines = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let mut client = RawClient::connect(&system.entry()).await;
    let response = client.exchange("GET", "/gone", lines).await;
    assert_eq!(response.head.status(), 101);
    assert_eq!(
        response.head.value("sec-websocket-accept"),
        Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
    );
    upstream.program().wait_for_line("opened /gone", SOON).await;
    client.reset();
    upstream.program().wait_for_line("closed 1006", SOON).await;

    let mut client = RawClient::connect(&system.entry()).await;
    assert_eq!(client.exchange("GET", "/", lines).await.head.status(), 101);
    system.kill_client("demo-app");
    client.wait_end(SOON).await;
}

#[tokio::test]
async fn extended_connect_reaches_an_http1_upstream() {
    let upstream = WebSocketServer::start().await;
    let system = System::start(&upstream.url()).await;
    let fields = json!([
        [":method", "CONNECT"],
        [":protocol", "websocket"],
        [":scheme", "http"],
        [":path", "/extended"],
        [":authority", system.entry().authority()],
        ["sec-websocket-version", "13"],
        ["sec-websocket-protocol", "chat.v2"],
    ]);
    let events = h2_client(
        &system.entry(),
        &[
            json!({"do": "await", "event": "RemoteSettingsChanged"}),
            json!({"do": "headers", "stream": 1, "fields": fields}),
            json!({"do": "await", "event": "ResponseReceived", "stream": 1}),
            // A masked text frame with the key 0: "hi". Then a close with code 1000.
            json!({"do": "data", "stream": 1, "hex": "8182000000006869"}),
            json!({"do": "await", "event": "DataReceived", "stream": 1}),
            json!({"do": "data", "stream": 1, "hex": "88820000000003e8"}),
            json!({"do": "await", "event": "StreamEnded", "stream": 1}),
        ],
    )
    .await;
    let response = events
        .iter()
        .find(|event| event.event == "ResponseReceived")
        .unwrap();
    assert_eq!(response.fields[0], (":status".to_owned(), "200".to_owned()));
    assert!(
        response
            .fields
            .contains(&("sec-websocket-protocol".into(), "chat.v2".into()))
    );
    let data: String = events.iter().map(|event| event.hex.as_str()).collect();
    assert!(data.starts_with("81026869"), "{data}");
    upstream
        .program()
        .wait_for_line("opened /extended chat.v2", SOON)
        .await;
    upstream.program().wait_for_line("closed 1000", SOON).await;
}
