//! Informational responses: 100 when the upstream asks for the body, and others before the answer.

use std::time::Duration;

use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use testkit::{
    deadline::soon,
    http1::{End, RawConnection},
    tunnel::{
        body::{BodyEnd, Failure, collect, data, endings, full, internal, status},
        client::FakeClient,
    },
};
use tokio::{sync::mpsc, time::Instant};
use tunnel_proto::exchange::{Informational, RecvBody};

use crate::rig::{PROD, PROD_HOST, Rig};

/// So long that nothing in a test happens because it has passed.
const NEVER: Duration = Duration::from_secs(600);

fn push(request: &Request<RecvBody>, code: u16, hint: &'static str) {
    let mut headers = HeaderMap::new();
    headers.append("link", HeaderValue::from_static(hint));
    let informational = request.extensions().get::<Informational>().unwrap();
    assert!(informational.push(StatusCode::from_u16(code).unwrap(), headers));
}

async fn begin(rig: &Rig, version: &str) -> RawConnection {
    let mut raw = rig.raw().await;
    raw.send(format!(
        "POST / HTTP/{version}\r\nhost: {PROD_HOST}\r\nexpect: 100-continue\r\n\
         content-length: 5\r\n\r\n"
    ))
    .await;
    raw
}

#[tokio::test]
async fn a_100_comes_when_the_upstream_asks_for_the_body_and_not_before() {
    let rig = Rig::with(|config| config.settings.expect_wait = NEVER).await;
    let (go, going) = mpsc::channel::<()>(1);
    let going = std::sync::Arc::new(tokio::sync::Mutex::new(going));
    let client = FakeClient::new(&rig, PROD, move |request| {
        let going = going.clone();
        async move {
            // If a 100 had been sent by itself, it would stand before this.
            push(&request, 103, "<a>");
            going.lock().await.recv().await.unwrap();
            push(&request, 100, "<b>");
            let (content, end) = collect(request.into_body()).await;
            end.map_err(|_| internal())?;
            Ok(status(200, full(content)))
        }
    })
    .await;
    let mut raw = begin(&rig, "1.1").await;
    assert_eq!(client.request(1).await.values("expect"), ["100-continue"]);
    assert_eq!(raw.head().await.unwrap().status(), 103);
    go.send(()).await.unwrap();
    assert_eq!(raw.head().await.unwrap().status(), 100);
    raw.send("hello").await;
    let answer = raw.response().await;
    assert_eq!(
        (answer.informational.len(), answer.text().as_str()),
        (0, "hello")
    );
    // And the connection is good for more.
    go.send(()).await.unwrap();
    let answer = raw
        .ask(format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    assert_eq!(answer.head.status(), 200);
}

#[tokio::test]
async fn a_100_is_sent_after_a_while_if_the_upstream_sends_none() {
    let wait = Duration::from_millis(300);
    let rig = Rig::with(|config| config.settings.expect_wait = wait).await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        let (content, end) = collect(request.into_body()).await;
        end.map_err(|_| internal())?;
        Ok(status(200, full(content)))
    })
    .await;
    let began = Instant::now();
    let mut raw = begin(&rig, "1.1").await;
    assert_eq!(raw.head().await.unwrap().status(), 100);
    assert!(began.elapsed() >= wait);
    raw.send("hello").await;
    assert_eq!(raw.response().await.text(), "hello");
}

#[tokio::test]
async fn a_final_answer_instead_of_a_100_ends_the_connection() {
    let rig = Rig::with(|config| config.settings.expect_wait = NEVER).await;
    let (endings, mut ends) = endings();
    let client = FakeClient::new(&rig, PROD, move |_| {
        let ending = endings.next();
        async move {
            drop(ending);
            Ok(status(401, full("no")))
        }
    })
    .await;
    let mut raw = begin(&rig, "1.1").await;
    let answer = raw.response().await;
    assert_eq!((answer.head.status(), answer.informational.len()), (401, 0));
    assert_eq!(answer.head.value("connection"), Some("close"));
    assert_eq!(
        soon("the exchange's end", ends.recv()).await,
        Some(BodyEnd::Cut)
    );
    // What comes now may be the body or another request: nobody can tell, so it is neither.
    raw.send(format!("GET /x HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
        .await;
    raw.finish().await;
    raw.closes().await;
    assert_eq!(client.seen().len(), 1);
}

#[tokio::test]
async fn a_body_that_does_not_wait_is_taken_as_it_comes() {
    let rig = Rig::with(|config| config.settings.expect_wait = Duration::from_millis(50)).await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        let (content, end) = collect(request.into_body()).await;
        end.map_err(|_| internal())?;
        Ok(status(200, full(content)))
    })
    .await;
    let mut raw = begin(&rig, "1.1").await;
    raw.send("hello").await;
    assert_eq!(raw.response().await.text(), "hello");
    let answer = raw
        .ask(format!(
            "POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\nexpect: 100-continue\r\n\r\n"
        ))
        .await;
    assert_eq!((answer.head.status(), answer.informational.len()), (200, 0));
}

#[tokio::test]
async fn an_http10_client_expects_nothing_and_gets_nothing_before_the_answer() {
    let rig = Rig::with(|config| config.settings.expect_wait = NEVER).await;
    let client = FakeClient::new(&rig, PROD, |request| async move {
        push(&request, 100, "<a>");
        push(&request, 103, "<b>");
        let (content, end) = collect(request.into_body()).await;
        end.map_err(|_| internal())?;
        Ok(status(200, full(content)))
    })
    .await;
    let mut raw = begin(&rig, "1.0").await;
    raw.send("hello").await;
    let answer = raw.response().await;
    assert_eq!(
        (answer.text().as_str(), answer.informational.len()),
        ("hello", 0)
    );
    assert_eq!(raw.closes().await, End::Clean);
    assert!(client.request(1).await.values("expect").is_empty());
}

#[tokio::test]
async fn early_hints_come_before_the_answer_each_with_its_fields() {
    let rig = Rig::start().await;
    let (go, going) = mpsc::channel::<()>(1);
    let going = std::sync::Arc::new(tokio::sync::Mutex::new(going));
    let _client = FakeClient::new(&rig, PROD, move |request| {
        let going = going.clone();
        async move {
            push(&request, 103, "</a.css>; rel=preload");
            push(&request, 102, "<x>");
            push(&request, 103, "</b.js>; rel=preload");
            going.lock().await.recv().await.unwrap();
            Ok(status(200, full("x")))
        }
    })
    .await;
    let mut raw = rig.raw().await;
    for _ in 0..2 {
        raw.send(format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n"))
            .await;
        for (code, link) in [
            (103, "</a.css>; rel=preload"),
            (102, "<x>"),
            (103, "</b.js>; rel=preload"),
        ] {
            let head = raw.head().await.unwrap();
            assert_eq!((head.status(), head.value("link")), (code, Some(link)));
            assert_eq!(head.fields.len(), 1);
        }
        go.send(()).await.unwrap();
        assert_eq!(raw.response().await.text(), "x");
    }
}

#[tokio::test]
async fn content_that_follows_a_final_answer_instead_of_a_100_is_sent_on() {
    let rig = Rig::with(|config| config.settings.expect_wait = NEVER).await;
    let _client = FakeClient::new(&rig, PROD, |request| async move {
        // The answer's content is that of the request.
        let frames = stream::once(async move {
            let (content, end) = collect(request.into_body()).await;
            end.map_err(|_| Failure(internal()))?;
            data(content)
        });
        Ok(status(200, StreamBody::new(frames).boxed_unsync()))
    })
    .await;
    let mut raw = begin(&rig, "1.1").await;
    let head = raw.head().await.unwrap();
    assert_eq!(
        (head.status(), head.value("connection")),
        (200, Some("close"))
    );
    raw.send("hello").await;
    let content = raw.content(head.response_framing("POST")).await;
    assert_eq!((&*content.bytes, content.end), (&b"hello"[..], End::Clean));
    assert_eq!(raw.closes().await, End::Clean);
}
