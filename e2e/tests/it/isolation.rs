//! Two runtimes on one server: whatever a request says, it is answered by the one that its host
//! names, or by nobody.

use e2e::{
    deadline::{SOON, within},
    peers::python::h2_client,
    platform::PlatformClient,
    raw::RawClient,
    scripted::ScriptedUpstream,
    system::{Options, System},
};
use serde_json::{Value, json};

/// An upstream that says its name.
async fn named(name: &str) -> ScriptedUpstream {
    let length = name.len();
    ScriptedUpstream::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{name}"
    ))
    .await
}

async fn two() -> (ScriptedUpstream, ScriptedUpstream, System) {
    let (red, blue) = (named("red").await, named("blue").await);
    let options = Options::to(&red.url()).and("demo", "blue", &blue.url());
    (red, blue, System::with(options).await)
}

#[tokio::test]
async fn no_field_leads_to_another_runtime() {
    let (_red, blue, system) = two().await;
    let other = system.host_of("demo-blue");
    let port = system.entry().address().port();
    let names = [
        "X-Forwarded-Host",
        "Forwarded",
        "X-Host",
        "X-Original-Host",
        "X-Forwarded-Server",
        "X-Original-URL",
        "X-Rewrite-URL",
        "Referer",
        "Origin",
        "Cookie",
        "Via",
        "X-HTTP-Host-Override",
        "Proxy-Connection",
        "Tunnel-Runtime",
        "X-Runtime",
    ];
    for name in names {
        for value in [
            other.clone(),
            format!("{other}:{port}"),
            format!("host={other}"),
        ] {
            let mut client = RawClient::connect(&system.entry()).await;
            let response = client
                .exchange("GET", "/", &format!("{name}: {value}\r\n"))
                .await;
            let body = &response.content.bytes[..];
            assert_ne!(body, b"blue", "{name}: {value}");
            assert!(
                body == b"red" || response.head.status() >= 400,
                "{name}: {value}"
            );
        }
    }
    assert!(blue.record().is_empty(), "{}", blue.record().tail());
}

#[tokio::test]
async fn a_request_that_names_two_hosts_is_answered_by_neither() {
    let (red, blue, system) = two().await;
    let (one, other) = (system.host_of("demo-app"), system.host_of("demo-blue"));
    for wire in [
        format!("GET / HTTP/1.1\r\nHost: {one}\r\nHost: {other}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {other}\r\nHost: {one}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {one},{other}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {one} {other}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {one}@{other}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {one}\\{other}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {one}/{other}\r\n\r\n"),
        "GET / HTTP/1.1\r\nHost:\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET http://{one}@{other}/ HTTP/1.1\r\nHost: {one}\r\n\r\n"),
    ] {
        let mut client = RawClient::connect(&system.entry()).await;
        client.send(&wire).await;
        let response = client.response_to("GET").await;
        assert_eq!(response.head.status(), 400, "{wire:?}");
        client.wait_end(SOON).await;
    }
    assert!(red.record().is_empty() && blue.record().is_empty());
}

#[tokio::test]
async fn the_target_s_authority_wins_over_the_host_or_nothing_does() {
    let (_red, blue, system) = two().await;
    let (one, other) = (system.host_of("demo-app"), system.host_of("demo-blue"));
    let wire = format!("GET http://{one}/ HTTP/1.1\r\nHost: {other}\r\n\r\n");
    let mut client = RawClient::connect(&system.entry()).await;
    client.send(&wire).await;
    let response = client.response_to("GET").await;
    let is_first = response.content.bytes == "red";
    assert!(is_first || response.head.status() == 400, "{response:?}");
    assert!(blue.record().is_empty());
}

#[tokio::test]
async fn http2_authority_and_host_must_agree() {
    let (_red, blue, system) = two().await;
    let (one, other) = (system.host_of("demo-app"), system.host_of("demo-blue"));
    let ask = |fields: Value| {
        let entry = system.entry();
        async move {
            let steps = [
                json!({"do": "headers", "stream": 1, "fields": fields, "end": true}),
                json!({"do": "headers", "stream": 3, "end": true, "fields": [
                    [":method", "GET"], [":scheme", "http"], [":path", "/"],
                    [":authority", entry.authority()],
                ]}),
                json!({"do": "await", "event": "StreamEnded", "stream": 3}),
            ];
            h2_client(&entry, &steps).await
        }
    };
    let base = [[":method", "GET"], [":scheme", "http"], [":path", "/"]];
    for extra in [
        vec![[":authority", one.as_str()], ["host", other.as_str()]],
        vec![
            [":authority", one.as_str()],
            ["host", one.as_str()],
            ["host", other.as_str()],
        ],
        vec![[":authority", ""], ["host", other.as_str()]],
    ] {
        let fields: Vec<_> = base.iter().copied().chain(extra).collect();
        let events = ask(json!(fields)).await;
        let body: String = events.iter().map(|event| event.data.as_str()).collect();
        let text = format!("{fields:?}: {events:?}");
        assert!(!body.contains("blue") || fields[3][1].is_empty(), "{text}");
        assert!(
            body.contains("red"),
            "the connection itself goes on: {text}"
        );
    }
    drop(blue);
}

#[tokio::test]
async fn connections_of_one_runtime_never_serve_another() {
    let (red, blue, system) = two().await;
    // The same connection, host by host in turns.
    let mut client = RawClient::connect(&system.entry()).await;
    for number in 0..50 {
        let (label, name) = if number % 2 == 0 {
            ("demo-app", "red")
        } else {
            ("demo-blue", "blue")
        };
        let host = system.host_of(label);
        client
            .send(format!("GET /{number} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
            .await;
        assert_eq!(client.response_to("GET").await.content.bytes, name);
    }
    for upstream in [red, blue] {
        assert!(upstream.wait_head(0).await.target().starts_with('/'));
    }
}

#[tokio::test]
async fn a_runtime_that_holds_everything_up_holds_up_only_itself() {
    let (silent, blue) = (ScriptedUpstream::silent().await, named("blue").await);
    let options = Options::to(&silent.url()).and("demo", "blue", &blue.url());
    let system = System::with(options).await;
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut client = RawClient::connect(&system.entry()).await;
        client.request("GET", "/", "", b"").await;
        held.push(client);
    }
    let mut client = PlatformClient::http1(&system.entry_of("demo-blue")).await;
    for _ in 0..20 {
        assert_eq!(
            within(SOON, "the other runtime", client.get("/"))
                .await
                .text(),
            "blue"
        );
    }
}
