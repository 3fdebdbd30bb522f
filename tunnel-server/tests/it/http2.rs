//! HTTP/2: requests and responses, streams in both directions, trailers, resets.

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use testkit::{
    deadline::soon,
    tunnel::{
        body::{BodyEnd, Failure, collect, data, empty, endings, fed, full, internal, status},
        client::FakeClient,
    },
};
use tokio::time::Instant;
use tunnel_ops::task::Owned;
use tunnel_proto::problem::{Hop, Problem};

use crate::{
    http2_client::{Http2, get, read},
    rig::{DEV, DEV_HOST, PROD, PROD_HOST, Rig, connect, identity, tls},
};

#[tokio::test]
async fn requests_pass_with_and_without_tls() {
    for has_tls in [false, true] {
        let rig = Rig::with(|config| config.public_tls = has_tls.then(identity)).await;
        let client = FakeClient::describing(&rig, PROD).await;
        let socket = connect(rig.addresses.public).await;
        let mut http2 = if has_tls {
            Http2::over(tls(socket, &[b"h2", b"http/1.1"]).await).await
        } else {
            Http2::over(socket).await
        };
        let mut request = get("/a//b/%2e%2e/;x?y=%zz");
        for (name, value) in [
            ("cookie", "a=1"),
            ("x-a", "1"),
            ("cookie", "b=2"),
            ("x-a", "2"),
            ("te", "trailers"),
        ] {
            request
                .headers_mut()
                .append(name, HeaderValue::from_static(value));
        }
        let response = http2.ask(request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.headers().contains_key("date"));
        let (content, trailers) = read(response.into_body()).await.unwrap();
        assert_eq!(content, b"acme-prod GET /a//b/%2e%2e/;x?y=%zz\n");
        assert!(trailers.is_none());
        let seen = client.request(1).await;
        assert_eq!(seen.values("cookie"), ["a=1; b=2"]);
        assert_eq!(seen.values("x-a"), ["1", "2"]);
        assert_eq!(seen.values("te"), ["trailers"]);
        assert!(seen.values("tunnel-via")[0].starts_with("tunnel-"));
        let scheme = if has_tls { "https" } else { "http" };
        assert_eq!(seen.values("x-forwarded-proto"), [scheme]);
    }
}

#[tokio::test]
async fn one_connection_may_ask_for_two_runtimes() {
    let rig = Rig::start().await;
    let _prod = FakeClient::describing(&rig, PROD).await;
    let _dev = FakeClient::describing(&rig, DEV).await;
    let mut http2 = Http2::new(&rig).await;
    for _ in 0..5 {
        for (host, runtime) in [(PROD_HOST, PROD), (DEV_HOST, DEV)] {
            for header in ["x-forwarded-host", "forwarded", "x-host"] {
                let other = if host == PROD_HOST {
                    DEV_HOST
                } else {
                    PROD_HOST
                };
                let mut request = Request::get(format!("http://{host}/x"));
                request = request.header(header, other);
                let response = http2.ask(request.body(()).unwrap()).await.unwrap();
                let (content, _) = read(response.into_body()).await.unwrap();
                assert_eq!(
                    String::from_utf8(content).unwrap(),
                    format!("{runtime} GET /x\n")
                );
            }
        }
    }
}

#[tokio::test]
async fn responses_without_a_body_have_none_and_no_length_is_invented() {
    let rig = Rig::start().await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        let path = request.uri().path().to_owned();
        let (feed, late) = fed();
        let is_late = path.contains("late");
        let body = if is_late { late } else { empty() };
        let code = path.split('-').next().unwrap()[1..].parse().unwrap();
        let mut response = status(code, body);
        if path.contains("length") {
            response.headers_mut().insert("content-length", 1234.into());
        }
        if is_late {
            let _ = Owned::spawn("late", async move { drop(feed) }).await;
        }
        Ok(response)
    })
    .await;
    let mut http2 = Http2::new(&rig).await;
    for (method, path, length) in [
        ("HEAD", "/200", None),
        ("HEAD", "/200-length", Some("1234")),
        ("HEAD", "/200-late", None),
        ("HEAD", "/200-late-length", Some("1234")),
        ("GET", "/204", None),
        ("GET", "/204-late", None),
        ("GET", "/304-length", Some("1234")),
        ("GET", "/304-late-length", Some("1234")),
        ("GET", "/304", None),
    ] {
        let mut request = get(path);
        *request.method_mut() = method.parse().unwrap();
        let response = http2.ask(request).await.unwrap();
        assert_eq!(response.status().as_str(), &path[1..4], "{method} {path}");
        let told = response.headers().get("content-length");
        let told = told.map(|told| told.to_str().unwrap());
        assert_eq!(told, length, "{method} {path}");
        let (content, trailers) = read(response.into_body()).await.unwrap();
        assert_eq!((content.len(), trailers), (0, None), "{method} {path}");
    }
}

#[tokio::test]
async fn trailers_pass_both_ways_and_trailers_alone_too() {
    let rig = Rig::start().await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        if request.uri().path() == "/alone" {
            let mut response = Response::new(empty());
            response
                .headers_mut()
                .insert("grpc-status", HeaderValue::from_static("5"));
            return Ok(response);
        }
        let (content, trailers) = collect(request.into_body()).await;
        let mut trailers = trailers.map_err(|_| internal())?;
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.insert("content-length", HeaderValue::from_static("7"));
        let (feed, body) = fed();
        feed.send(data(content)).await.unwrap();
        feed.send(Ok(Frame::trailers(trailers))).await.unwrap();
        Ok(Response::new(body))
    })
    .await;
    let mut http2 = Http2::new(&rig).await;
    let mut request = get("/echo");
    *request.method_mut() = http::Method::POST;
    let (response, mut body) = http2.send.send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(b"hello"), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("7"));
    for name in ["host", "x_forwarded_user", "via", "x-http-method-override"] {
        trailers.insert(name, HeaderValue::from_static("evil.test"));
    }
    body.send_trailers(trailers).unwrap();
    let response = soon("a response", response).await.unwrap();
    assert_eq!(response.headers().get("content-length"), None);
    let (content, trailers) = read(response.into_body()).await.unwrap();
    let trailers = trailers.unwrap();
    assert_eq!((&content[..], trailers.len()), (&b"hello"[..], 2));
    assert_eq!(
        (&trailers["grpc-status"], &trailers["x-sum"]),
        (&"0".parse().unwrap(), &"7".parse().unwrap())
    );

    let response = http2.ask(get("/alone")).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "5");
    assert!(response.body().is_end_stream());
}

#[tokio::test]
async fn a_response_that_breaks_is_reset() {
    let rig = Rig::start().await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        if request.uri().path() == "/good" {
            return Ok(status(200, full("good")));
        }
        let (feed, body) = fed();
        feed.send(data("12345")).await.unwrap();
        let why = Problem::new(
            Hop::Client,
            tunnel_proto::problem::Reason::ResponseIncomplete,
            "",
        );
        feed.send(Err(Failure(why))).await.unwrap();
        Ok(status(200, body))
    })
    .await;
    let mut http2 = Http2::new(&rig).await;
    let response = http2.ask(get("/cut")).await.unwrap();
    let error = read(response.into_body()).await.unwrap_err();
    assert!(error.is_reset(), "{error}");
    let response = http2.ask(get("/good")).await.unwrap();
    assert_eq!(read(response.into_body()).await.unwrap().0, b"good");
}

#[tokio::test]
async fn an_early_response_resets_the_unread_body() {
    let rig = Rig::start().await;
    let (endings, mut ends) = endings();
    let _client = FakeClient::new(&rig, PROD, move |request| {
        let ending = endings.next();
        async move {
            drop((ending, request));
            Ok(status(413, full("too much")))
        }
    })
    .await;
    let mut http2 = Http2::new(&rig).await;
    for _ in 0..3 {
        let mut request = get("/");
        *request.method_mut() = http::Method::POST;
        let (response, mut body) = http2.send.send_request(request, false).unwrap();
        body.send_data(Bytes::from_static(b"begin"), false).unwrap();
        let response = soon("a response", response).await.unwrap();
        assert_eq!(response.status(), 413);
        assert_eq!(read(response.into_body()).await.unwrap().0, b"too much");
        let reason = soon("a reset", std::future::poll_fn(|cx| body.poll_reset(cx))).await;
        assert_eq!(reason.unwrap(), Reason::NO_ERROR);
        assert_eq!(
            soon("the exchange's end", ends.recv()).await,
            Some(BodyEnd::Cut)
        );
    }
}

#[tokio::test]
async fn a_reset_or_a_lost_connection_cancels_within_a_second() {
    let rig = Rig::start().await;
    let (endings, mut ends) = endings();
    let client = FakeClient::new(&rig, PROD, move |_request| {
        let ending = endings.next();
        async move {
            let _ending = ending;
            std::future::pending::<()>().await;
            unreachable!()
        }
    })
    .await;
    let mut http2 = Http2::new(&rig).await;
    let mut count = 0;
    for has_body in [false, true] {
        let (response, mut body) = http2.send.send_request(get("/"), !has_body).unwrap();
        count += 1;
        client.request(count).await;
        let began = Instant::now();
        body.send_reset(Reason::CANCEL);
        drop(response);
        assert_eq!(soon("the end", ends.recv()).await, Some(BodyEnd::Cut));
        assert!(began.elapsed() < Duration::from_secs(1));
    }
    let _pending: Vec<_> = (0..3)
        .map(|_| http2.send.send_request(get("/"), true).unwrap())
        .collect();
    client.request(count + 3).await;
    let began = Instant::now();
    drop((_pending, http2));
    for _ in 0..3 {
        assert_eq!(soon("the end", ends.recv()).await, Some(BodyEnd::Cut));
    }
    assert!(began.elapsed() < Duration::from_secs(1));
    client.rests().await;
}

#[tokio::test]
async fn bytes_flow_both_ways_at_once() {
    const BYTES: usize = 3 * 1024 * 1024;
    let rig = Rig::start().await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        use http_body_util::BodyExt;
        let mut body = request.into_body();
        let (feed, echoed) = fed();
        let echo = Owned::spawn("echo", async move {
            while let Some(Ok(frame)) = body.frame().await {
                if feed.send(Ok(frame)).await.is_err() {
                    break;
                }
            }
        });
        std::mem::forget(echo);
        Ok(status(200, echoed))
    })
    .await;
    let mut http2 = Http2::new(&rig).await;
    let mut request = get("/");
    *request.method_mut() = http::Method::POST;
    let (response, mut body) = http2.send.send_request(request, false).unwrap();
    let sending = async {
        let mut left = BYTES;
        while left > 0 {
            body.reserve_capacity(left.min(65_536));
            let room = std::future::poll_fn(|cx| body.poll_capacity(cx))
                .await
                .unwrap()
                .unwrap();
            let now = room.min(left);
            left -= now;
            body.send_data(vec![b'u'; now].into(), left == 0).unwrap();
        }
    };
    let receiving = async {
        let response = response.await.unwrap();
        read(response.into_body()).await.unwrap().0
    };
    let ((), received) = soon("the echo", async { tokio::join!(sending, receiving) }).await;
    assert_eq!(received.len(), BYTES);
}

#[tokio::test]
async fn problems_are_answered_as_over_http1() {
    let rig = Rig::start().await;
    let mut http2 = Http2::new(&rig).await;
    let request = Request::get("http://unknown.tunnels.test/")
        .body(())
        .unwrap();
    for (request, code) in [(request, 404), (get("/"), 503)] {
        let response = http2.ask(request).await.unwrap();
        assert_eq!(response.status(), code);
        let status = response.headers()["proxy-status"]
            .to_str()
            .unwrap()
            .to_owned();
        assert!(status.starts_with("tunnel-server; error="), "{status}");
        assert!(!response.headers().contains_key("connection"));
        let (content, _) = read(response.into_body()).await.unwrap();
        assert!(content.starts_with(b"{\"reason\":\"runtime_"));
    }
    // gRPC clients look for a status of their own.
    let mut request = get("/svc/Method");
    request.headers_mut().insert(
        "content-type",
        HeaderValue::from_static("application/grpc+proto"),
    );
    let response = http2.ask(request).await.unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            &response.headers()["grpc-status"]
        ),
        (200, &"14".parse().unwrap())
    );
}
