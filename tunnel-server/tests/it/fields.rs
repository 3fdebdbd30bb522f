//! Fields on their way: which end at the server, which are kept as they are, and which it adds.

use http::{HeaderMap, HeaderName, HeaderValue, Response};

use testkit::tunnel::{body::empty, client::FakeClient};

use crate::rig::{PROD, PROD_HOST, Rig};

/// Names in this order and number, those that differ per request left out.
fn names(headers: &HeaderMap) -> Vec<String> {
    let mut names: Vec<_> = headers.iter().map(|(name, _)| name.to_string()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_request_is_built_anew_with_our_own_fields_and_nothing_of_the_connection() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {PROD_HOST}\r\n\
         Connection: keep-alive, x-first, x-forwarded-for, host\r\n\
         Connection: X-Second, tunnel-via, x-request-id, forwarded, close-not\r\n\
         X-First: 1\r\nX-Second: 2\r\nX-Third: 3\r\n\
         Keep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\
         Proxy-Authorization: Basic eDp5\r\nProxy-Authenticate: x\r\n\
         TE: gzip, trailers;q=0.5, trailers\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\
         X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Host: evil.test\r\n\
         X-Forwarded-Proto: gopher\r\nX-Forwarded-Port: 6\r\nX-Real-IP: 6.6.6.6\r\n\
         X-Forwarded-User: admin\r\nX-Forwarded-Groups: admins\r\n\
         Forwarded: for=6.6.6.6;host=evil.test\r\nMax-Forwards: 3\r\n\
         Authorization: Bearer upstream's own\r\nOrigin: https://a.test\r\n\r\n"
    );
    assert_eq!(raw.ask(request).await.head.status(), 200);
    let seen = client.request(1).await;
    assert_eq!(seen.authority, PROD_HOST);
    assert_eq!(
        names(&seen.headers),
        [
            "authorization",
            "forwarded",
            "origin",
            "te",
            "tunnel-via",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-request-id",
            "x-third",
        ]
    );
    assert_eq!(seen.values("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen.values("x-forwarded-host"), [PROD_HOST]);
    assert_eq!(seen.values("x-forwarded-proto"), ["http"]);
    let forwarded = format!("for=127.0.0.1;host=\"{PROD_HOST}\";proto=http");
    assert_eq!(seen.values("forwarded"), [forwarded]);
    assert_eq!(seen.values("te"), ["trailers"]);
    assert!(seen.values("tunnel-via")[0].starts_with("tunnel-"));
}

#[tokio::test]
async fn order_number_and_bytes_of_fields_are_kept_both_ways() {
    let rig = Rig::start().await;
    let client = FakeClient::new(&rig, PROD, |_| async {
        let mut response = Response::new(empty());
        for (name, value) in [
            ("set-cookie", &b"a=1; Path=/; HttpOnly"[..]),
            ("x-list", b"1"),
            ("set-cookie", b"b=2, c=3"),
            ("x-list", b"2, 3"),
            ("set-cookie", b"a=4"),
            ("x-bytes", b"\xe4\xf6\xff\ttab"),
            ("x-empty", b""),
            ("server", b"upstream/1"),
            ("date", b"Thu, 01 Jan 1970 00:00:00 GMT"),
            ("via", b"1.1 inner"),
            ("location", b"http://elsewhere.test/%zz"),
        ] {
            let value = HeaderValue::from_bytes(value).unwrap();
            response
                .headers_mut()
                .append(HeaderName::from_static(name), value);
        }
        Ok(response)
    })
    .await;
    let mut raw = rig.raw().await;
    let mut request = format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n").into_bytes();
    request.extend_from_slice(
        b"accept: a\r\nx-b:  padded \t\r\nAccept: b, c\r\nx-bytes: \xe4\xff\ttab\r\naccept:a\r\nx-empty:\r\n\
        cookie: a=1; b=2\r\n\r\n",
    );
    let head = raw.ask(request).await.head;
    let seen = client.request(1).await;
    assert_eq!(seen.values("accept"), ["a", "b, c", "a"]);
    assert_eq!(seen.values("x-b"), ["padded"]);
    assert_eq!(seen.values("x-empty"), [""]);
    assert_eq!(seen.values("cookie"), ["a=1; b=2"]);
    assert_eq!(seen.headers["x-bytes"], &b"\xe4\xff\ttab"[..]);

    assert_eq!(
        head.values("set-cookie"),
        ["a=1; Path=/; HttpOnly", "b=2, c=3", "a=4"]
    );
    assert_eq!(head.values("x-list"), ["1", "2, 3"]);
    assert_eq!(head.values("x-bytes"), ["\u{e4}\u{f6}\u{ff}\ttab"]);
    assert_eq!(head.value("x-empty"), Some(""));
    assert_eq!(head.value("server"), Some("upstream/1"));
    assert_eq!(head.value("date"), Some("Thu, 01 Jan 1970 00:00:00 GMT"));
    assert_eq!(head.value("location"), Some("http://elsewhere.test/%zz"));
    assert_eq!(head.value("via"), Some("1.1 inner"));
}

/// What ends at a hop never comes from the other end of the wire in order (the decoder refuses it),
/// but what `Connection` would nominate, and proxies' own fields, can.
#[tokio::test]
async fn the_response_has_nothing_of_the_upstreams_connection() {
    let rig = Rig::start().await;
    let _client = FakeClient::new(&rig, PROD, |_| async {
        let mut response = Response::new(empty());
        for name in [
            "proxy-authenticate",
            "proxy-authorization",
            "te",
            "http2-settings",
        ] {
            response
                .headers_mut()
                .append(name, HeaderValue::from_static("trailers"));
        }
        Ok(response)
    })
    .await;
    let mut raw = rig.raw().await;
    let head = raw
        .ask(format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await
        .head;
    let names: Vec<_> = head.fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "x-request-id",
            "connection",
            "keep-alive",
            "content-length",
            "date"
        ]
    );
}

#[tokio::test]
async fn request_ids_are_kept_or_made_and_sent_to_both_sides() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    let long = "x".repeat(200);
    for (given, is_kept) in [
        ("my-id-1", true),
        ("a b", false),
        (long.as_str(), false),
        ("", false),
    ] {
        let request =
            format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\nx-request-id: {given}\r\n\r\n");
        let head = raw.ask(request).await.head;
        let seen = client.seen().last().unwrap().clone();
        let told = head.value("x-request-id").unwrap();
        assert_eq!(seen.values("x-request-id"), [told]);
        assert_eq!(told == given, is_kept, "{given:?} {told:?}");
    }
}

#[tokio::test]
async fn a_via_is_added_only_where_it_is_wanted() {
    for is_wanted in [false, true] {
        let rig = Rig::with(|config| config.settings.via = is_wanted).await;
        let client = FakeClient::describing(&rig, PROD).await;
        let get = format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\nvia: 1.1 other\r\n\r\n");
        rig.raw().await.ask(get).await;
        let seen = client.request(1).await;
        let values = seen.values("via");
        assert_eq!(
            (values[0], values.len()),
            ("1.1 other", 1 + usize::from(is_wanted))
        );
        assert!(
            values
                .iter()
                .skip(1)
                .all(|via| via.starts_with("1.1 tunnel-"))
        );
    }
}

#[tokio::test]
async fn a_request_that_was_here_before_is_a_loop() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    raw.ask(format!(
        "GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\ntunnel-via: tunnel-other\r\n\r\n"
    ))
    .await;
    let seen = client.request(1).await;
    let via = seen.values("tunnel-via").join(", ");
    assert!(via.starts_with("tunnel-other, tunnel-"), "{via}");
    let again = format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\ntunnel-via: {via}\r\n\r\n");
    let answer = raw.ask(again).await;
    answer.assert_refused(508, "a loop");
    assert_eq!(answer.reason(), "loop_detected");
    assert_eq!(client.seen().len(), 1);
}

#[tokio::test]
async fn options_with_no_forwards_left_ends_here() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    let mut ask = async |forwards: &str| {
        let request =
            format!("OPTIONS * HTTP/1.1\r\nhost: {PROD_HOST}\r\nmax-forwards: {forwards}\r\n\r\n");
        raw.ask(request).await
    };
    assert_eq!(ask("2").await.head.status(), 200);
    assert_eq!(client.request(1).await.values("max-forwards"), ["1"]);
    assert_eq!(ask("0").await.head.status(), 204);
    ask("x").await.assert_refused(400, "max-forwards");
    assert_eq!(client.seen().len(), 1);
}
