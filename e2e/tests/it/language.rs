//! The language against upstreams directly: each word does what it says before anything is
//! concluded from it about a tunnel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use e2e::{
    ca::Ca,
    deadline::{SOON, within},
    entry::Entry,
    grpc::{self, DETAILS, GrpcUpstream, Say},
    http1::End,
    payload::{Payload, sha256},
    peers::{
        curl::curl,
        nginx::Nginx,
        python::{Step, WebSocketServer, h2_client, websocket_client},
    },
    platform::{PlatformClient, empty, streamed, with_trailers},
    raw::RawClient,
    scripted::{ScriptEvent, ScriptedUpstream},
    upstream::{Echo, Received, Upstream, sign},
};
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde_json::json;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn an_upstream_tells_what_it_saw() {
    let upstream = Upstream::start().await;
    for mut client in [
        PlatformClient::http1(&upstream.entry()).await,
        PlatformClient::http2(&upstream.entry()).await,
    ] {
        let answer = client.post("/a//b/%2e%2e/;x?y=%zz", "content").await;
        let echo: Echo = answer.json();
        assert_eq!(echo.head.target, "/a//b/%2e%2e/;x?y=%zz");
        assert_eq!(echo.head.authority, upstream.address().to_string());
        assert_eq!(echo.content.sha256, sha256(b"content"));
        let answer = client.get("/cookies").await;
        assert_eq!(answer.values("set-cookie")[1], "a=2; HttpOnly");
        assert!(client.get("/status/204").await.body.is_empty());
        assert_eq!(client.get("/status/304").await.status, 304);
        assert_eq!(client.get("/early").await.status, 413);
    }
}

#[tokio::test]
async fn long_contents_arrive_whole_both_ways() {
    let upstream = Upstream::start().await;
    let payload = Payload::new(5_000_000);
    for mut client in [
        PlatformClient::http1(&upstream.entry()).await,
        PlatformClient::http2(&upstream.entry()).await,
    ] {
        let upload = Request::put("/upload")
            .body(streamed(payload.clone()))
            .unwrap();
        let received: Received = client.ask(upload).await.json();
        assert_eq!(
            (received.bytes, received.sha256),
            (5_000_000, payload.sha256())
        );
        for path in ["/download?bytes=5000000", "/download?bytes=5000000&chunked"] {
            assert_eq!(sha256(&client.get(path).await.body), payload.sha256());
        }
        let duplex = Request::post("/duplex")
            .body(streamed(payload.clone()))
            .unwrap();
        assert_eq!(sha256(&client.ask(duplex).await.body), payload.sha256());
    }
}

#[tokio::test]
async fn trailers_travel_both_ways() {
    let upstream = Upstream::start().await;
    for mut client in [
        PlatformClient::http1(&upstream.entry()).await,
        PlatformClient::http2(&upstream.entry()).await,
    ] {
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
        let request = Request::post("/upload")
            .header("trailer", "x-sum")
            .header("te", "trailers");
        let request = request.body(with_trailers("abc", trailers)).unwrap();
        let received: Received = client.ask(request).await.json();
        assert_eq!(received.trailers, [("x-sum".to_owned(), "7".to_owned())]);

        let request = Request::get("/trailers")
            .header("te", "trailers")
            .body(empty())
            .unwrap();
        let values: Vec<_> = client.ask(request).await.trailers.into_iter().collect();
        assert_eq!(values.len(), 2, "{values:?}");
    }
}

#[tokio::test]
async fn a_webhook_is_checked_over_its_raw_bytes() {
    let upstream = Upstream::start().await;
    let mut client = PlatformClient::http1(&upstream.entry()).await;
    let body = Payload::new(100_000).to_bytes();
    for (signature, status) in [(sign(&body), 200), (sign(b"another"), 401)] {
        let request = Request::post("/webhook").header("x-signature", signature);
        let request = request.body(streamed(Payload::new(100_000))).unwrap();
        assert_eq!(client.ask(request).await.status, status);
    }
}

#[tokio::test]
async fn events_come_when_they_are_sent_and_a_hang_up_is_seen() {
    let upstream = Upstream::start().await;
    for http2 in [false, true] {
        let mut client = if http2 {
            PlatformClient::http2(&upstream.entry()).await
        } else {
            PlatformClient::http1(&upstream.entry()).await
        };
        let target = format!("/events?every_ms=20&http2={}", u8::from(http2));
        let mut response = client
            .send(Request::get(&target).body(empty()).unwrap())
            .await
            .unwrap();
        for number in 0..5 {
            let frame = within(SOON, "an event", response.body_mut().frame()).await;
            let data = frame.unwrap().unwrap().into_data().unwrap();
            let text = std::str::from_utf8(&data).unwrap();
            let (id, sent) = text.trim_end().split_once("\ndata: ").unwrap();
            assert_eq!(id, format!("id: {number}"));
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_micros();
            assert!(
                now - sent.parse::<u128>().unwrap() < 1_000_000,
                "an event was late"
            );
        }
        drop((response, client));
        upstream.wait_hang_up(&target, SECOND).await;
    }
}

#[tokio::test]
async fn a_request_that_is_given_up_is_seen_before_its_answer() {
    let upstream = Upstream::start().await;
    let mut client = RawClient::connect(&upstream.entry()).await;
    client.request("GET", "/hold", "", b"").await;
    upstream.wait_request("/hold").await;
    drop(client);
    upstream.wait_hang_up("/hold", SECOND).await;
}

#[tokio::test]
async fn a_cut_is_told_from_an_end_in_both_directions() {
    let upstream = Upstream::start().await;
    let mut client = RawClient::connect(&upstream.entry()).await;
    let response = client.exchange("GET", "/truncate", "").await;
    assert_eq!(response.content.end, End::Cut);

    let mut client = RawClient::connect(&upstream.entry()).await;
    client
        .request("POST", "/upload", "Content-Length: 10\r\n", b"half ")
        .await;
    upstream.wait_request("/upload").await;
    drop(client);
    let received = upstream.wait_content("/upload").await;
    assert!(!received.complete && received.bytes == 5, "{received:?}");

    let mut client = RawClient::connect(&upstream.entry()).await;
    client.request("GET", "/status/200", "", b"").await;
    client.response_to("GET").await;
    client.reset();
}

#[tokio::test]
async fn tls_upstreams_agree_on_a_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(directory.path());
    let upstream = Upstream::start_tls(&ca.issue("upstream", &["localhost"])).await;
    let entry = Entry::tls(upstream.address(), "localhost", &ca);
    let one = PlatformClient::http1(&entry).await.get("/").await;
    assert_eq!(one.json::<Echo>().head.version, "HTTP/1.1");
    let two = PlatformClient::http2(&entry).await.get("/").await;
    assert_eq!(two.json::<Echo>().head.version, "HTTP/2.0");
    let raw = RawClient::connect(&entry)
        .await
        .exchange("GET", "/status/200", "")
        .await;
    assert_eq!(raw.head.status(), 200);

    let expired = ca.issue_expired("expired", &["localhost"]);
    let upstream = Upstream::start_tls(&expired).await;
    let url = format!("https://localhost:{}/", upstream.address().port());
    let refused = curl(["--cacert", ca.file().to_str().unwrap(), &url]).await;
    assert_eq!(
        refused.code, 60,
        "curl takes an expired certificate: {}",
        refused.complaint
    );
}

#[tokio::test]
async fn a_script_says_what_it_likes() {
    let upstream = ScriptedUpstream::answering(
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n\
         HTTP/1.1 200 OK\r\nSet-Cookie: b\r\nset-cookie: a\r\nContent-Length: 2\r\n\r\nok",
    )
    .await;
    let entry = Entry::direct(upstream.address());
    let mut client = PlatformClient::http1(&entry).await;
    let request = Request::get("/x").body(empty()).unwrap();
    let (informational, response) = client.send_observing(request).await.unwrap();
    assert_eq!(informational[0].0, 103);
    assert_eq!(response.status(), 200);
    let head = upstream.wait_head(0).await;
    assert_eq!((head.method(), head.target()), ("GET", "/x"));
    let heads = curl([entry.url("/y")]).await.heads;
    assert_eq!(
        heads.iter().map(|head| head.status()).collect::<Vec<_>>(),
        [103, 200]
    );
}

#[tokio::test]
async fn continue_is_sent_when_expected_and_early_answers_are_early() {
    let upstream = ScriptedUpstream::continuing().await;
    let entry = Entry::direct(upstream.address());
    let mut client = RawClient::connect(&entry).await;
    client
        .request(
            "POST",
            "/",
            "Expect: 100-continue\r\nContent-Length: 3\r\n",
            b"",
        )
        .await;
    assert_eq!(client.head().await.unwrap().status(), 100);
    client.send("abc").await;
    assert_eq!(client.response_to("POST").await.head.status(), 200);
    assert_eq!(upstream.wait_content().await.bytes, "abc");

    let early = "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let upstream = ScriptedUpstream::answering_early(early).await;
    let entry = Entry::direct(upstream.address());
    let mut client = RawClient::connect(&entry).await;
    client
        .request(
            "POST",
            "/",
            "Expect: 100-continue\r\nContent-Length: 3\r\n",
            b"",
        )
        .await;
    assert_eq!(client.response_to("POST").await.head.status(), 417);
    client.finish().await;
    assert_eq!(upstream.wait_ended(SOON).await, End::Clean);
}

#[tokio::test]
async fn a_silent_upstream_sees_who_gives_up() {
    let upstream = ScriptedUpstream::silent().await;
    let entry = Entry::direct(upstream.address());
    let mut client = RawClient::connect(&entry).await;
    client.request("GET", "/", "", b"").await;
    upstream.wait_head(0).await;
    client.reset();
    assert_eq!(upstream.wait_ended(SECOND).await, End::Reset);

    let noting =
        ScriptedUpstream::start(|connection| async move { connection.note("hello") }).await;
    RawClient::connect(&Entry::direct(noting.address()))
        .await
        .wait_end(SOON)
        .await;
    let is_note = |event: &ScriptEvent| matches!(event, ScriptEvent::Note(_)).then_some(());
    noting.record().wait_for("a note", SOON, is_note).await;
}

#[tokio::test]
async fn curl_reports_what_a_person_would_see() {
    let upstream = Upstream::start().await;
    let answer = curl(["--data-binary", "abc", &upstream.entry().url("/upload")]).await;
    assert_eq!(answer.status(), 200);
    assert!(answer.text().contains(&sha256(b"abc")), "{answer:?}");
    let cut = curl([upstream.entry().url("/truncate")]).await;
    assert_eq!(cut.code, 18, "{cut:?}");
    let http2 = curl(["--http2-prior-knowledge", &upstream.entry().url("/")]).await;
    assert!(http2.text().contains("HTTP/2"), "{http2:?}");
}

#[tokio::test]
async fn nginx_serves_files_and_is_a_gateway() {
    let upstream = Upstream::start().await;
    let nginx = Nginx::upstream(Some(upstream.address())).await;
    std::fs::write(nginx.files().join("a.txt"), "0123456789").unwrap();
    let part = curl(["--range", "2-4", &nginx.entry().url("/files/a.txt")]).await;
    assert_eq!((part.status(), part.text().as_str()), (206, "234"));
    assert!(
        curl([nginx.entry().url("/echo?a")])
            .await
            .text()
            .starts_with("GET /echo?a HTTP/1.1")
    );
    assert_eq!(
        curl([nginx.entry().url("/moved")])
            .await
            .head()
            .value("location"),
        Some("/echo?moved")
    );
    assert_eq!(curl([nginx.entry().url("/status/204")]).await.status(), 204);

    let gateway = Nginx::gateway(upstream.address(), "inner.test").await;
    let answer = PlatformClient::http1(&gateway.entry()).await.get("/").await;
    assert_eq!(answer.json::<Echo>().head.authority, "inner.test");
    let report = websocket_client(&gateway.entry(), "/websocket", &[], &[Step::Text("a")]).await;
    assert_eq!(report[1], json!({"text": "a"}));
}

#[tokio::test]
async fn websockets_talk_to_each_other() {
    let steps = [
        Step::Text("hello"),
        Step::Binary(300_000),
        Step::Ping,
        Step::Close(4001),
    ];
    let expected = [
        json!({"opened": "chat.v1"}),
        json!({"text": "hello"}),
        json!({"same": true}),
        json!({"pong": true}),
        json!({"closed": 4001}),
    ];
    let (rust, python) = (Upstream::start().await, WebSocketServer::start().await);
    for entry in [rust.entry(), python.entry()] {
        let report = websocket_client(&entry, "/websocket", &["chat.v1"], &steps).await;
        assert_eq!(report, expected);
    }
    python.program().wait_for_line("closed 4001", SOON).await;

    let path = "/websocket?close=4002";
    let report = websocket_client(
        &rust.entry(),
        path,
        &[],
        &[Step::Text("x"), Step::AwaitClose],
    )
    .await;
    assert_eq!(report[2], json!({"closed": 4002, "reason": "as you asked"}));
    let refused = websocket_client(&rust.entry(), "/status/403", &[], &[]).await;
    assert_eq!(refused, [json!({"refused": 403})]);
}

#[tokio::test]
async fn an_h2_client_may_break_the_rules() {
    let upstream = Upstream::start().await;
    let fields = json!([
        [":method", "GET"],
        [":scheme", "http"],
        [":authority", "localhost"],
        [":path", "/x"],
    ]);
    let events = h2_client(&upstream.entry(), &[
        json!({"do": "headers", "stream": 1, "fields": fields, "end": true}),
        json!({"do": "await", "event": "StreamEnded", "stream": 1}),
        json!({"do": "headers", "stream": 3, "fields": [[":method", "GET"], [":path", "/"], ["connection", "close"]], "end": true}),
        json!({"do": "await", "event": "StreamReset", "stream": 3}),
    ])
    .await;
    let response = events
        .iter()
        .find(|event| event.event == "ResponseReceived")
        .unwrap();
    assert_eq!(response.fields[0], (":status".to_owned(), "200".to_owned()));
}

#[tokio::test]
async fn grpc_calls_of_all_four_kinds() {
    let upstream = GrpcUpstream::start().await;
    let mut client = grpc::client(&upstream.entry());
    let say = |text: &str| Say {
        text: text.to_owned(),
        ..Say::default()
    };
    assert_eq!(client.once(say("a")).await.unwrap().into_inner().text, "a");
    let gathered = client
        .gather(tokio_stream::iter([say("a"), say("b")]))
        .await
        .unwrap();
    assert_eq!(gathered.into_inner().text, "a b");
    let many = client
        .many(Say {
            count: 3,
            ..say("c")
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        tokio_stream::StreamExt::collect::<Vec<_>>(many).await.len(),
        3
    );
    let mut chat = client
        .chat(tokio_stream::iter([say("d"), say("e")]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(chat.message().await.unwrap().unwrap().text, "d");
    assert_eq!(chat.message().await.unwrap().unwrap().text, "e");
    assert!(chat.message().await.unwrap().is_none());
}

#[tokio::test]
async fn grpc_failures_deadlines_and_cancellation() {
    let upstream = GrpcUpstream::start().await;
    let mut client = grpc::client(&upstream.entry());
    let status = client
        .once(Say {
            text: "no".into(),
            fail_with: 9,
            ..Say::default()
        })
        .await;
    let status = status.unwrap_err();
    assert_eq!((status.code() as i32, status.message()), (9, "no"));
    assert_eq!(status.details(), DETAILS);
    assert_eq!(status.metadata().get("x-reason").unwrap(), "as you asked");

    let mut held = tonic::Request::new(Say {
        hold: true,
        ..Say::default()
    });
    held.set_timeout(Duration::from_millis(200));
    let status = within(SOON, "the deadline", client.once(held))
        .await
        .unwrap_err();
    let code = status.code();
    assert!(
        matches!(code, tonic::Code::DeadlineExceeded | tonic::Code::Cancelled),
        "{status:?}"
    );
    upstream.wait_given_up("Once", SECOND).await;

    let endless = client
        .many(Say {
            every_ms: 10,
            ..Say::default()
        })
        .await
        .unwrap();
    drop(endless);
    upstream.wait_given_up("Many", SECOND).await;
}
