//! Requests and responses of every usual shape, through both programs, unchanged.

use e2e::{
    http1::End,
    payload::{Payload, sha256},
    peers::{curl::curl, nginx::Nginx},
    platform::{PlatformClient, empty, streamed, with_trailers},
    raw::RawClient,
    scripted::ScriptedUpstream,
    system::{Options, System},
    upstream::{Echo, Received, Upstream, sign},
};
use http::{HeaderMap, Request};

async fn usual() -> (Upstream, System) {
    let upstream = Upstream::start().await;
    let system = System::start(&upstream.url()).await;
    (upstream, system)
}

/// A client of each protocol.
async fn clients(system: &System) -> [PlatformClient; 2] {
    let entry = system.entry();
    [
        PlatformClient::http1(&entry).await,
        PlatformClient::http2(&entry).await,
    ]
}

#[tokio::test]
async fn the_usual_methods_and_statuses_by_curl() {
    let (_upstream, system) = usual().await;
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let ask = |more: &[&str], path: &str| {
            let url = system.url(path);
            curl([version].iter().chain(more).copied().chain([url.as_str()]))
        };
        let get: Echo = serde_json::from_slice(&ask(&[], "/a?b=c").await.body).unwrap();
        assert_eq!(
            (get.head.method.as_str(), get.head.target.as_str()),
            ("GET", "/a?b=c")
        );
        assert_eq!(get.head.authority, system.entry().authority());
        let head = ask(&["--head"], "/status/200").await;
        assert_eq!(
            (head.status(), head.head().value("content-length")),
            (200, Some("11"))
        );
        let post = ask(&["--data-binary", "abc"], "/upload").await;
        let received: Received = serde_json::from_slice(&post.body).unwrap();
        assert_eq!((received.bytes, received.sha256), (3, sha256(b"abc")));
        for status in [204, 304] {
            let output = ask(&[], &format!("/status/{status}")).await;
            assert_eq!((output.status(), output.body.len()), (status, 0));
        }
        for status in [200, 201, 302, 400, 401, 404, 418, 429, 500, 502, 503] {
            let output = ask(&[], &format!("/status/{status}")).await;
            assert_eq!(output.status(), status);
            assert_eq!(output.text(), format!("status {status}\n"));
        }
        for method in ["PUT", "PATCH", "DELETE", "OPTIONS"] {
            let output = ask(&["--request", method], "/x").await;
            let echo: Echo = serde_json::from_slice(&output.body).unwrap();
            assert_eq!(echo.head.method, method);
        }
    }
}

#[tokio::test]
async fn path_and_query_arrive_byte_for_byte() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let upstream = ScriptedUpstream::answering(answer).await;
    let system = System::start(&upstream.url()).await;
    let targets = [
        "/a//b/%2e%2e/;x?y=%zz",
        "/%2F%2f/../.",
        "/?",
        "/?a=b?c&&",
        "//x",
        "/a%00b",
    ];
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for target in targets {
            let mark = upstream.record().len();
            let url = format!("{}{target}", system.url(""));
            assert_eq!(curl([version, "--path-as-is", &url]).await.status(), 200);
            assert_eq!(upstream.wait_head(mark).await.target(), target);
        }
    }
}

#[tokio::test]
async fn a_connection_carries_many_requests_at_both_ends() {
    let (upstream, system) = usual().await;
    for mut client in clients(&system).await {
        for number in 0..50 {
            let echo: Echo = client.get(&format!("/{number}")).await.json();
            assert_eq!(echo.head.target, format!("/{number}"));
        }
    }
    let connections = upstream.connections();
    assert!(
        connections <= 2,
        "{connections} connections to the upstream for 100 requests"
    );
}

#[tokio::test]
async fn a_webhook_of_25_megabytes_is_signed_over_its_raw_bytes() {
    let (_upstream, system) = usual().await;
    let payload = Payload::new(25_000_000);
    let signature = sign(&payload.to_bytes());
    for mut client in clients(&system).await {
        let request = Request::post("/webhook").header("x-signature", &signature);
        let request = request.body(streamed(payload.clone())).unwrap();
        assert_eq!(client.ask(request).await.status, 200);
    }
}

#[tokio::test]
async fn fields_keep_their_order_and_their_number() {
    let (_upstream, system) = usual().await;
    for mut client in clients(&system).await {
        let answer = client.get("/cookies").await;
        let cookies = answer.values("set-cookie");
        assert_eq!(cookies[..2], ["z=1; Path=/", "a=2; HttpOnly"]);
        assert_eq!(cookies.len(), 3);

        let request = Request::get("/")
            .header("x-a", "2")
            .header("x-a", "1")
            .header("x-a", "3");
        let echo: Echo = client.ask(request.body(empty()).unwrap()).await.json();
        assert_eq!(echo.head.values("x-a"), ["2", "1", "3"]);
    }
}

#[tokio::test]
async fn heads_of_nearly_128_kib_pass_both_ways() {
    let (_upstream, system) = usual().await;
    let value = "v".repeat(4_000);
    for mut client in clients(&system).await {
        let mut request = Request::get("/");
        for number in 0..30 {
            request = request.header(format!("x-field-{number}"), &value);
        }
        let echo: Echo = client.ask(request.body(empty()).unwrap()).await.json();
        let count = echo
            .head
            .fields
            .iter()
            .filter(|(_, field)| *field == value)
            .count();
        assert_eq!(count, 30);
        let answer = client.get("/fields?count=30&bytes=4000").await;
        let count = answer
            .headers
            .values()
            .filter(|field| field.len() == 4_000)
            .count();
        assert_eq!(count, 30);
    }
    let too_long = "v".repeat(140_000);
    let mut client = RawClient::connect(&system.entry()).await;
    let response = client
        .exchange("GET", "/", &format!("x-a: {too_long}\r\n"))
        .await;
    assert_eq!(response.head.status(), 431);
}

#[tokio::test]
async fn the_server_says_who_asked_and_believes_nobody_else() {
    let (_upstream, system) = usual().await;
    let forged = "X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nX-Forwarded-Host: evil\r\n\
        X-Forwarded-Proto: https\r\nX-Real-IP: 1.2.3.4\r\nConnection: x-forwarded-for, host\r\n";
    let mut client = RawClient::connect(&system.entry()).await;
    let response = client.exchange("GET", "/", forged).await;
    let echo: Echo = serde_json::from_slice(&response.content.bytes).unwrap();
    assert_eq!(echo.head.values("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(echo.head.values("x-forwarded-proto"), ["http"]);
    assert_eq!(
        echo.head.values("x-forwarded-host"),
        [system.entry().authority()]
    );
    let text = serde_json::to_string(&echo).unwrap();
    assert!(
        !text.contains("1.2.3.4") && !text.contains("evil"),
        "{text}"
    );
    assert!(echo.head.values("via").is_empty(), "{text}");

    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let response = client
        .exchange("GET", "/", &format!("traceparent: {trace}\r\n"))
        .await;
    let echo: Echo = serde_json::from_slice(&response.content.bytes).unwrap();
    assert_eq!(echo.head.values("traceparent"), [trace]);
    let id = response.head.value("x-request-id").unwrap();
    assert_eq!(echo.head.values("x-request-id"), [id]);
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let upstream = Upstream::start().await;
    for url in [upstream.url(), upstream.h2c_url()] {
        let system = System::start(&url).await;
        for mut client in clients(&system).await {
            let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
            let request = Request::post("/upload").header("te", "trailers");
            let request = request.header("trailer", "x-sum");
            let request = request.body(with_trailers("abc", trailers)).unwrap();
            let received: Received = client.ask(request).await.json();
            assert_eq!(
                received.trailers,
                [("x-sum".to_owned(), "7".to_owned())],
                "{url}"
            );

            let request = Request::get("/trailers").header("te", "trailers");
            let answer = client.ask(request.body(empty()).unwrap()).await;
            let expected = ["abc", "def"].map(|value| ("x-checksum".to_owned(), value.to_owned()));
            assert_eq!(answer.trailers, expected, "{url}");
        }
    }
}

#[tokio::test]
async fn a_refused_expectation_keeps_the_content_from_being_sent() {
    let early = "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let upstream = ScriptedUpstream::answering_early(early).await;
    let system = System::start(&upstream.url()).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client
        .request(
            "POST",
            "/",
            "Expect: 100-continue\r\nContent-Length: 5\r\n",
            b"",
        )
        .await;
    assert_eq!(client.head().await.unwrap().status(), 417);
    assert_eq!(
        upstream.wait_head(0).await.value("expect"),
        Some("100-continue")
    );
}

#[tokio::test]
async fn an_accepted_expectation_asks_for_the_content() {
    let upstream = ScriptedUpstream::continuing().await;
    let system = System::start(&upstream.url()).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client
        .request(
            "POST",
            "/",
            "Expect: 100-continue\r\nContent-Length: 5\r\n",
            b"",
        )
        .await;
    assert_eq!(client.head().await.unwrap().status(), 100);
    client.send("hello").await;
    assert_eq!(client.response_to("POST").await.head.status(), 200);
    assert_eq!(upstream.wait_content().await.bytes, "hello");
    let url = system.url("/");
    let output = curl([
        "--header",
        "Expect: 100-continue",
        "--data-binary",
        "hello",
        &url,
    ])
    .await;
    assert_eq!(output.status(), 200);
}

#[tokio::test]
async fn an_early_answer_does_not_wait_for_the_content() {
    let early = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let upstream = ScriptedUpstream::answering_early(early).await;
    let system = System::start(&upstream.url()).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client
        .request(
            "POST",
            "/",
            "Content-Length: 1000000\r\n",
            b"the first of it",
        )
        .await;
    assert_eq!(client.response_to("POST").await.head.status(), 413);
    let mut client = PlatformClient::http2(&system.entry()).await;
    let request = Request::post("/")
        .body(streamed(Payload::new(50_000_000)))
        .unwrap();
    assert_eq!(client.ask(request).await.status, 413);
}

#[tokio::test]
async fn a_cut_request_is_never_a_whole_one_upstream() {
    for lines in ["Content-Length: 100\r\n", "Transfer-Encoding: chunked\r\n"] {
        let (upstream, system) = usual().await;
        let mut client = RawClient::connect(&system.entry()).await;
        client
            .request("POST", "/upload", lines, b"5\r\nhello\r\n")
            .await;
        upstream.wait_request("/upload").await;
        drop(client);
        assert!(!upstream.wait_content("/upload").await.complete, "{lines}");
    }
}

#[tokio::test]
async fn a_cut_response_is_never_a_whole_one_at_the_platform() {
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhalf of it\r\n",
    ] {
        let upstream = ScriptedUpstream::answering_once(response).await;
        let system = System::start(&upstream.url()).await;
        let mut client = RawClient::connect(&system.entry()).await;
        client.request("GET", "/", "", b"").await;
        // If the cut comes with the head, there may be no head.
        if let Ok(head) = client.head().await
            && head.status() != 502
        {
            let content = client.content(head.response_framing("GET")).await;
            assert_ne!(content.end, End::Clean, "{response:?}");
        }
        let output = curl(["--http2-prior-knowledge", &system.url("/")]).await;
        assert!(
            output.code != 0 || output.head().status() == 502,
            "{output:?}"
        );
    }
}

#[tokio::test]
async fn early_hints_cross_the_wire() {
    let upstream = ScriptedUpstream::answering(
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    )
    .await;
    let system = System::start(&upstream.url()).await;
    let output = curl(["--http1.1", &system.url("/")]).await;
    assert_eq!((output.status(), output.text().as_str()), (200, "ok"));
    if let [hints, _] = &output.heads[..] {
        assert_eq!(
            (hints.status(), hints.value("link")),
            (103, Some("</a.css>"))
        );
    }
}

#[tokio::test]
async fn nginx_as_an_upstream_serves_ranges_validators_and_redirects() {
    let nginx = Nginx::upstream(None).await;
    let content = Payload::new(300_000).to_bytes();
    std::fs::write(nginx.files().join("a.bin"), &content).unwrap();
    let system = System::start(&nginx.url()).await;
    let url = system.url("/files/a.bin");
    let whole = curl([&url]).await;
    assert_eq!(whole.body, content);
    let part = curl(["--range", "1000-1999", &url]).await;
    assert_eq!(
        (part.status(), &part.body[..]),
        (206, &content[1_000..2_000])
    );
    assert_eq!(
        part.head().value("content-range"),
        Some("bytes 1000-1999/300000")
    );
    let validator = format!("If-None-Match: {}", whole.head().value("etag").unwrap());
    let unchanged = curl(["--header", &validator, &url]).await;
    assert_eq!((unchanged.status(), unchanged.body.len()), (304, 0));
    let moved = curl([system.url("/moved")]).await;
    assert_eq!(moved.head().value("location"), Some("/echo?moved"));
    let head = curl(["--head", &url]).await;
    assert_eq!(head.head().value("content-length"), Some("300000"));
}

#[tokio::test]
async fn nginx_as_a_gateway_stands_before_the_server() {
    let (_upstream, system) = usual().await;
    let gateway = Nginx::gateway(system.entry().address(), system.entry().host()).await;
    let mut client = PlatformClient::http1(&gateway.entry()).await;
    let request = Request::put("/upload")
        .body(streamed(Payload::new(3_000_000)))
        .unwrap();
    assert_eq!(
        client.ask(request).await.json::<Received>().sha256,
        Payload::new(3_000_000).sha256()
    );
    let echo: Echo = client.get("/x").await.json();
    assert_eq!(echo.head.authority, system.entry().host());
}

#[tokio::test]
async fn the_public_listener_speaks_tls_with_both_protocols() {
    let upstream = Upstream::start().await;
    let system = System::with(Options::to(&upstream.url()).public_tls()).await;
    for mut client in clients(&system).await {
        let echo: Echo = client.get("/").await.json();
        assert_eq!(echo.head.values("x-forwarded-proto"), ["https"]);
    }
    let ca = system.ca().file();
    let url = system.url("/status/200");
    let output = curl(["--cacert", ca.to_str().unwrap(), &url]).await;
    assert_eq!(
        (output.status(), output.head().start.as_str()),
        (200, "HTTP/2 200 ")
    );
}

#[tokio::test]
async fn an_upstream_may_speak_tls_or_h2c() {
    let directory = tempfile::tempdir().unwrap();
    let ca = e2e::ca::Ca::new(directory.path());
    let secure = Upstream::start_tls(&ca.issue("upstream", &["localhost"])).await;
    let file = ca.file();
    let flags = ["--upstream-ca-file", file.to_str().unwrap()];
    let system = System::with(Options::to(&secure.url()).client_flags(&flags)).await;
    let echo: Echo = PlatformClient::http1(&system.entry())
        .await
        .get("/")
        .await
        .json();
    assert_eq!(echo.head.version, "HTTP/1.1");

    let plain = Upstream::start().await;
    let system = System::start(&plain.h2c_url()).await;
    let echo: Echo = PlatformClient::http1(&system.entry())
        .await
        .get("/")
        .await
        .json();
    assert_eq!(echo.head.version, "HTTP/2.0");
    assert_eq!(echo.head.authority, system.entry().authority());
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_is_named() {
    let gone = Upstream::start().await.url();
    let system = System::start(&gone).await;
    let answer = PlatformClient::http1(&system.entry()).await.get("/").await;
    assert_eq!(answer.status, 502);
    assert!(answer.text().contains("connection_refused"), "{answer:?}");
    assert!(
        answer.values("proxy-status")[0].contains("tunnel-client"),
        "{answer:?}"
    );
}
