//! Responses over HTTP/1: what has a body, how its end is told, and that one which broke never looks
//! whole.

use http::{HeaderMap, HeaderValue, Response};
use http_body::Frame;
use testkit::{
    deadline::soon,
    http1::{End, Framing, RawConnection},
    tunnel::{
        body::{BodyEnd, Failure, Feed, data, empty, endings, fed, full, status},
        client::FakeClient,
    },
};
use tunnel_http::answer::ProblemDetail;
use tunnel_proto::problem::{Hop, Problem, Reason};

use crate::rig::{PROD, PROD_HOST, Rig};

async fn ask(raw: &mut RawConnection, method: &str, path: &str) -> testkit::http1::RawResponse {
    raw.send(format!(
        "{method} {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"
    ))
    .await;
    raw.response_to(method).await
}

fn with_length<B>(mut response: Response<B>, length: u64) -> Response<B> {
    response
        .headers_mut()
        .insert("content-length", length.into());
    response
}

#[tokio::test]
async fn a_cookie_for_all_runtimes_is_set_only_where_that_is_allowed() {
    let cookies = [
        "own=1; path=/",
        "shared=2; domain=tunnels.test",
        "mine=3; domain=acme-prod.tunnels.test",
    ];
    for is_allowed in [false, true] {
        let rig = Rig::with(|config| config.settings.allow_shared_cookies = is_allowed).await;
        let _client = FakeClient::new(&rig, PROD, move |_| async move {
            let mut response = status(200, empty());
            for cookie in cookies {
                let value = HeaderValue::from_static(cookie);
                response.headers_mut().append("set-cookie", value);
            }
            Ok(response)
        })
        .await;
        let mut raw = rig.raw().await;
        let answer = ask(&mut raw, "GET", "/").await;
        let got = answer.head.values("set-cookie");
        let expected = match is_allowed {
            true => cookies.to_vec(),
            false => vec![cookies[0], cookies[2]],
        };
        assert_eq!(got, expected);
    }
}

#[tokio::test]
async fn responses_without_a_body_have_none_and_keep_their_length() {
    let rig = Rig::start().await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        Ok(match request.uri().path() {
            "/204" => status(204, empty()),
            "/204-length" => with_length(status(204, empty()), 0),
            "/304" => status(304, empty()),
            "/304-length" => with_length(status(304, empty()), 1234),
            "/head-length" => with_length(status(200, empty()), 1234),
            _ => status(200, empty()),
        })
    })
    .await;
    let mut raw = rig.raw().await;
    for (method, path, code, length) in [
        ("GET", "/204", 204, None),
        ("GET", "/204-length", 204, None),
        ("GET", "/304", 304, None),
        ("GET", "/304-length", 304, Some("1234")),
        ("HEAD", "/304-length", 304, Some("1234")),
        ("HEAD", "/204", 204, None),
        ("HEAD", "/head-length", 200, Some("1234")),
        ("GET", "/", 200, Some("0")),
    ] {
        let answer = ask(&mut raw, method, path).await;
        assert_eq!(answer.head.status(), code, "{method} {path}");
        assert_eq!(
            answer.head.value("content-length"),
            length,
            "{method} {path}"
        );
        assert_eq!(
            answer.head.value("transfer-encoding"),
            None,
            "{method} {path}"
        );
        assert!(answer.content.bytes.is_empty(), "{method} {path}");
    }
    assert_eq!(ask(&mut raw, "GET", "/").await.head.status(), 200);
}

/// The end of the message comes later than its head, so that nobody knows yet that it is empty.
#[tokio::test]
async fn responses_without_a_body_whose_end_is_late_are_answered_too() {
    let rig = Rig::start().await;
    let (handed, mut feeds) = tokio::sync::mpsc::channel::<Feed>(1);
    let _client = FakeClient::new(&rig, PROD, move |request| {
        let handed = handed.clone();
        async move {
            let (feed, body) = fed();
            handed.send(feed).await.unwrap();
            let code = request.uri().path()[1..].parse().unwrap();
            Ok(with_length(status(code, body), 5))
        }
    })
    .await;
    let mut raw = rig.raw().await;
    for (method, code, length) in [
        ("HEAD", 200, Some("5")),
        ("GET", 304, Some("5")),
        ("GET", 204, None),
    ] {
        raw.send(format!(
            "{method} /{code} HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"
        ))
        .await;
        let feed = soon("the request", feeds.recv()).await.unwrap();
        let head = raw.head().await.unwrap();
        assert_eq!(
            (head.status(), head.value("content-length")),
            (code, length)
        );
        drop(feed);
    }
    raw.send(format!("GET /200 HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    feed.send(data("12345")).await.unwrap();
    drop(feed);
    assert_eq!(raw.response().await.text(), "12345");
}

#[tokio::test]
async fn the_framing_fits_the_body_and_the_version() {
    let rig = Rig::start().await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        let (feed, body) = fed();
        feed.send(data("1234")).await.unwrap();
        feed.send(data("567890")).await.unwrap();
        Ok(match request.uri().path() {
            "/length" => with_length(Response::new(body), 10),
            _ => Response::new(body),
        })
    })
    .await;
    for (version, path, framing) in [
        ("1.1", "/", Framing::Chunked),
        ("1.1", "/length", Framing::Length(10)),
        ("1.0", "/", Framing::UntilClose),
        ("1.0", "/length", Framing::Length(10)),
    ] {
        let mut raw = rig.raw().await;
        let answer = raw
            .ask(format!(
                "GET {path} HTTP/{version}\r\nhost: {PROD_HOST}\r\n\r\n"
            ))
            .await;
        assert_eq!(
            (answer.text().as_str(), answer.content.end),
            ("1234567890", End::Clean),
            "{version}"
        );
        assert_eq!(answer.framing, framing, "{version} {path}");
        if version == "1.0" {
            assert_eq!(raw.closes().await, End::Clean);
        }
    }
}

#[tokio::test]
async fn pieces_are_sent_on_as_they_come() {
    let rig = Rig::start().await;
    let (handed, mut feeds) = tokio::sync::mpsc::channel::<Feed>(1);
    let _client = FakeClient::new(&rig, PROD, move |_| {
        let handed = handed.clone();
        async move {
            let (feed, body) = fed();
            handed.send(feed).await.unwrap();
            let mut response = Response::new(body);
            let stream = HeaderValue::from_static("text/event-stream");
            response.headers_mut().insert("content-type", stream);
            Ok(response)
        }
    })
    .await;
    let mut raw = rig.raw().await;
    raw.send(format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    // The head comes although there is no content yet.
    assert_eq!(
        raw.head().await.unwrap().value("content-type"),
        Some("text/event-stream")
    );
    for number in 0..3 {
        let event = format!("data: {number}\n\n");
        feed.send(data(event.clone())).await.unwrap();
        assert_eq!(raw.line().await.unwrap(), format!("{:X}", event.len()));
        assert_eq!(
            raw.bytes(event.len() + 2).await,
            format!("{event}\r\n").as_bytes()
        );
    }
}

#[tokio::test]
async fn a_response_that_breaks_never_looks_whole() {
    let rig = Rig::start().await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        let (feed, body) = fed();
        feed.send(data("12345")).await.unwrap();
        let path = request.uri().path().to_owned();
        if path.starts_with("/short") {
            drop(feed);
        } else if path.starts_with("/long") {
            feed.send(data("1234567890")).await.unwrap();
        } else {
            let why = Problem::new(Hop::Client, Reason::ResponseIncomplete, "cut");
            feed.send(Err(Failure(why))).await.unwrap();
        }
        let response = Response::new(body);
        Ok(if path.ends_with("-length") {
            with_length(response, 10)
        } else {
            response
        })
    })
    .await;
    for (version, path, end) in [
        ("1.1", "/cut", End::Cut),
        ("1.1", "/cut-length", End::Cut),
        ("1.1", "/short-length", End::Cut),
        ("1.1", "/long-length", End::Cut),
        ("1.0", "/cut-length", End::Cut),
        // Nothing but a reset tells an HTTP/1.0 client that this was not all.
        ("1.0", "/cut", End::Reset),
    ] {
        let mut raw = rig.raw().await;
        let answer = raw
            .ask(format!(
                "GET {path} HTTP/{version}\r\nhost: {PROD_HOST}\r\n\r\n"
            ))
            .await;
        assert_eq!(answer.head.status(), 200);
        if end == End::Cut {
            // A reset says the same, and may overtake the content.
            assert_ne!(
                answer.content.end,
                End::Clean,
                "{version} {path}: {answer:?}"
            );
        } else {
            assert_eq!(answer.content.end, end, "{version} {path}: {answer:?}");
        }
        assert!(answer.content.bytes.len() <= 10, "{answer:?}");
    }
    rig.metric_becomes(
        "tunnel_server_problems_total{hop=\"tunnel-client\",reason=\"response_incomplete\"}",
        4.0,
    )
    .await;
}

#[tokio::test]
async fn a_session_that_dies_cuts_its_responses() {
    let rig = Rig::start().await;
    let client = FakeClient::new(&rig, PROD, |request| async move {
        if request.uri().path() == "/silent" {
            std::future::pending::<()>().await;
        }
        let (feed, body) = fed();
        feed.send(data("12345")).await.unwrap();
        std::mem::forget(feed);
        Ok(Response::new(body))
    })
    .await;
    let (mut begun, mut silent) = (rig.raw().await, rig.raw().await);
    begun
        .send(format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    assert_eq!(begun.head().await.unwrap().status(), 200);
    silent
        .send(format!("GET /silent HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    client.request(2).await;
    client.die();
    let answer = silent.response().await;
    assert_eq!(
        (answer.head.status(), answer.reason().as_str()),
        (502, "session_lost")
    );
    assert_eq!(answer.head.value("connection"), Some("keep-alive"));
    let (rest, _) = begun.rest().await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "{}", rest.escape_ascii());
}

#[tokio::test]
async fn trailers_reach_a_client_that_takes_them() {
    let rig = Rig::start().await;
    let client = FakeClient::new(&rig, PROD, |_| async {
        let (feed, body) = fed();
        feed.send(data("x")).await.unwrap();
        let mut trailers = HeaderMap::new();
        for name in [
            "x-checksum",
            "content-length",
            "set-cookie",
            "x-unannounced",
        ] {
            trailers.insert(name, HeaderValue::from_static("7"));
        }
        feed.send(Ok(Frame::trailers(trailers))).await.unwrap();
        let mut response = Response::new(body);
        let announced = HeaderValue::from_static("x-checksum, set-cookie");
        response.headers_mut().insert("trailer", announced);
        Ok(response)
    })
    .await;
    let mut raw = rig.raw().await;
    let request = |te: &str| format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n{te}\r\n");
    let answer = raw.ask(request("te: trailers\r\nconnection: te\r\n")).await;
    assert_eq!(
        answer.content.trailers,
        [("x-checksum".to_owned(), "7".to_owned())]
    );
    assert_eq!(client.request(1).await.values("te"), ["trailers"]);
    let answer = raw.ask(request("")).await;
    assert_eq!(
        (answer.text().as_str(), answer.content.trailers.len()),
        ("x", 0)
    );
    assert!(client.request(2).await.values("te").is_empty());
}

#[tokio::test]
async fn a_problem_of_the_tunnel_client_is_answered_as_it_names_it() {
    let rig = Rig::with(|config| config.settings.problem_detail = ProblemDetail::Full).await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        let name = &request.uri().path()[1..];
        let reason = Reason::from_name(name.as_bytes()).unwrap();
        Err(Problem::new(Hop::Client, reason, "as \"asked\""))
    })
    .await;
    let mut raw = rig.raw().await;
    for (reason, code) in [
        ("connection_refused", 502),
        ("connection_timeout", 504),
        ("route_unknown", 404),
        ("route_denied", 403),
        ("response_timeout", 504),
    ] {
        let answer = ask(&mut raw, "GET", &format!("/{reason}")).await;
        assert_eq!(
            (answer.head.status(), answer.reason().as_str()),
            (code, reason)
        );
        let proxy_status = answer.head.value("proxy-status").unwrap();
        assert!(
            proxy_status.starts_with("tunnel-client; error="),
            "{proxy_status}"
        );
        assert!(
            proxy_status.ends_with("details=\"as \\\"asked\\\"\""),
            "{proxy_status}"
        );
        let series =
            format!("tunnel_server_problems_total{{hop=\"tunnel-client\",reason=\"{reason}\"}}");
        rig.metric_becomes(&series, 1.0).await;
    }
    // An upstream cannot make one: `:` is in no field name, and this is just a body.
    let head = raw.ask(format!(
        "HEAD /connection_refused HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"
    ));
    drop(head);
}

#[tokio::test]
async fn an_early_answer_ends_a_request_whose_body_still_comes() {
    let rig = Rig::start().await;
    let (ends, mut end) = endings();
    let _client = FakeClient::new(&rig, PROD, move |request| {
        let ending = ends.next();
        async move {
            let _ending = ending;
            drop(request);
            Ok(status(413, full("too much")))
        }
    })
    .await;
    let mut raw = rig.raw().await;
    raw.send(format!(
        "POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 1000000\r\n\r\nbegin"
    ))
    .await;
    let answer = raw.response().await;
    assert_eq!(
        (answer.head.status(), answer.text().as_str()),
        (413, "too much")
    );
    assert_eq!(
        soon("the exchange's end", end.recv()).await,
        Some(BodyEnd::Cut)
    );
    // Whatever follows is the body's rest and no request.
    raw.send("GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n").await;
    raw.finish().await;
    raw.closes().await;
}
