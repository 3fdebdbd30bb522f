//! The wire as `docs/protocol.md` has it: a tunnel client that was written from it alone is served,
//! and one that breaks it loses its own session and nothing else.

use e2e::{
    deadline::SOON,
    peers::curl::curl,
    stranger::{
        INSTANCE_LINE, Stranger,
        wire::{Frame, SYN, response},
    },
    system::{Options, System},
};

async fn system() -> System {
    let options = Options::to("http://127.0.0.1:1").not_connected();
    System::with(options.server_flags(&["--offline-wait", "100ms"])).await
}

#[tokio::test]
async fn a_client_written_from_the_document_carries_requests() {
    let mut system = system().await;
    let token = system.token_of("demo-app");
    let mut stranger = Stranger::dial(&system.tunnel_entry(), &token)
        .await
        .unwrap();
    // Some clients compare this value as a whole.
    assert_eq!(stranger.head().value("connection"), Some("upgrade"));
    let welcome = stranger.greet().await;
    assert_eq!(
        welcome["version"].as_str().map(str::is_empty),
        Some(false),
        "{welcome}"
    );

    for number in 0..3 {
        let url = system.url(&format!("/a//b?{number}=%zz"));
        let asked = curl(["--data-binary", "content", &url]);
        let answered = async {
            let request = stranger.next_request().await;
            assert_eq!(
                (request.method.as_str(), &request.content[..]),
                ("POST", &b"content"[..])
            );
            assert_eq!(request.path, format!("/a//b?{number}=%zz"));
            assert_eq!(request.authority, system.entry().authority());
            let fields = [("set-cookie", "b"), ("set-cookie", "a")];
            stranger
                .answer(request.stream, &response(200, &fields, b"answer"))
                .await;
        };
        let (output, ()) = tokio::join!(asked, answered);
        assert_eq!((output.status(), output.text().as_str()), (200, "answer"));
        assert_eq!(output.head().values("set-cookie"), ["b", "a"]);
    }
}

#[tokio::test]
async fn a_dial_is_refused_before_the_upgrade_and_says_why() {
    let mut system = system().await;
    let token = system.token_of("demo-app");
    let entry = system.tunnel_entry();
    let bearer = std::fs::read_to_string(token).unwrap();
    let bearer = format!("Authorization: Bearer {}\r\n", bearer.trim());
    for (lines, status, reason) in [
        (INSTANCE_LINE.to_owned(), 401, None),
        (
            format!("{INSTANCE_LINE}Authorization: Bearer nonsense\r\n"),
            401,
            None,
        ),
        (bearer.clone(), 400, Some("greeting_malformed")),
        (
            format!("{INSTANCE_LINE}{bearer}Origin: https://a.test\r\n"),
            403,
            Some("origin_not_allowed"),
        ),
    ] {
        let refusal = Stranger::dial_with(&entry, &lines)
            .await
            .err()
            .expect("a refusal");
        assert_eq!(refusal.head.status(), status, "{refusal:?}");
        assert!(
            reason.is_none() || refusal.body["reason"].as_str() == reason,
            "{refusal:?}"
        );
        assert!(refusal.body["detail"].is_string(), "{refusal:?}");
    }
}

#[tokio::test]
async fn a_client_that_opens_a_stream_or_sends_garbage_loses_its_session() {
    let mut system = system().await;
    let token = system.token_of("demo-app");
    for bytes in [
        Frame::data(SYN, 2, b"x").bytes(),
        "garbage, and more of it".into(),
    ] {
        let mut stranger = Stranger::dial(&system.tunnel_entry(), &token)
            .await
            .unwrap();
        stranger.greet().await;
        stranger.send_bytes(bytes).await;
        assert_eq!(stranger.wait_close(SOON).await, Some(4004));
    }
    // The runtime is free again.
    let mut stranger = Stranger::dial(&system.tunnel_entry(), &token)
        .await
        .unwrap();
    stranger.greet().await;
    let (output, ()) = tokio::join!(curl([system.url("/")]), async {
        let request = stranger.next_request().await;
        stranger
            .answer(request.stream, &response(204, &[], b""))
            .await;
    });
    assert_eq!(output.status(), 204);
    drop(stranger);
    let offline = curl(["--max-time", "20", &system.url("/")]).await;
    assert_eq!(offline.head().status(), 503);
    assert!(offline.text().contains("runtime_offline"));
}
