//! What a request looks like at an HTTP/1.1 upstream, and its answer at the tunnel server.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty};
use testkit::deadline::SOON;
use testkit::http1::Head;
use testkit::scripted::{ScriptedConnection, ScriptedUpstream};
use testkit::tunnel::body::data;
use testkit::tunnel::whole;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tunnel_proto::exchange::exchange;
use tunnel_proto::problem::Reason;

use crate::setup::{Setup, get, post, post_fed};

/// An upstream that hands out what it received, and answers nothing of note.
async fn recording(bytes: usize) -> (ScriptedUpstream, mpsc::Receiver<(Head, Vec<u8>)>) {
    let (seen, requests) = mpsc::channel(8);
    let upstream = ScriptedUpstream::start(move |mut connection| {
        let seen = seen.clone();
        async move {
            while let Ok(head) = connection.head().await {
                let content = connection.bytes(bytes).await;
                seen.send((head, content)).await.unwrap();
                connection
                    .send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    .await;
            }
        }
    })
    .await;
    (upstream, requests)
}

#[tokio::test]
async fn a_request_arrives_as_it_was_sent() {
    let (upstream, mut requests) = recording(0).await;
    let setup = Setup::new(&upstream.url()).await;
    let request = Request::get("https://a-b.tunnels.test/a//b/%2e%2e/;x?y=%zz&&")
        .header("cookie", "a=1")
        .header("x-forwarded-proto", "https")
        .header("te", "trailers")
        .body(Empty::<Bytes>::new());
    setup.session.fetch(request.unwrap()).await;
    let (head, _) = requests.recv().await.unwrap();
    assert_eq!(
        &*head,
        "GET /a//b/%2e%2e/;x?y=%zz&& HTTP/1.1\r\nhost: a-b.tunnels.test\r\ncookie: a=1\r\n\
         x-forwarded-proto: https\r\nte: trailers\r\nconnection: te\r\n\r\n"
    );
}

#[tokio::test]
async fn content_of_known_length_keeps_its_length() {
    let (upstream, mut requests) = recording(5).await;
    let setup = Setup::new(&upstream.url()).await;
    setup.session.fetch(post("hello")).await;
    let (head, content) = requests.recv().await.unwrap();
    assert!(head.contains("\r\ncontent-length: 5\r\n"), "{head}");
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert_eq!(content, b"hello");
}

#[tokio::test]
async fn content_of_unknown_length_is_chunked_whatever_the_method() {
    for method in [Method::POST, Method::GET, Method::DELETE] {
        let (upstream, mut requests) = recording(b"2\r\nhi\r\n0\r\n\r\n".len()).await;
        let setup = Setup::new(&upstream.url()).await;
        let (pieces, mut request) = post_fed();
        *request.method_mut() = method.clone();
        let sending = async {
            pieces.send(data("hi")).await.unwrap();
            drop(pieces);
        };
        tokio::join!(setup.session.fetch(request), sending);
        let (head, content) = requests.recv().await.unwrap();
        assert!(
            head.contains("\r\ntransfer-encoding: chunked\r\n"),
            "{method}: {head}"
        );
        assert_eq!(content, b"2\r\nhi\r\n0\r\n\r\n");
    }
}

#[tokio::test]
async fn trailers_that_were_announced_arrive() {
    let expected = b"2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n";
    let (upstream, mut requests) = recording(expected.len()).await;
    let setup = Setup::new(&upstream.url()).await;
    let (pieces, mut request) = post_fed();
    request
        .headers_mut()
        .insert("trailer", "x-sum".parse().unwrap());
    let sending = async {
        pieces.send(data("hi")).await.unwrap();
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
        pieces.send(Ok(Frame::trailers(trailers))).await.unwrap();
        drop(pieces);
    };
    tokio::join!(setup.session.fetch(request), sending);
    let (_, content) = requests.recv().await.unwrap();
    assert_eq!(content, expected, "{}", String::from_utf8_lossy(&content));
}

#[tokio::test]
async fn trailers_behind_a_declared_length_do_not_hide_the_end() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        connection.head().await.unwrap();
        connection.rest().await;
    })
    .await;
    let limit = Duration::from_millis(100);
    let setup = Setup::with(&upstream.url(), |config| {
        config.settings.upstream_head_timeout = limit;
    })
    .await;
    let (pieces, mut request) = post_fed();
    request
        .headers_mut()
        .insert("content-length", "2".parse().unwrap());
    let sending = async {
        pieces.send(data("hi")).await.unwrap();
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
        pieces.send(Ok(Frame::trailers(trailers))).await.unwrap();
        drop(pieces);
    };
    let (failure, ()) = tokio::join!(setup.session.failure(request), sending);
    assert_eq!(failure, Reason::ResponseTimeout);
}

#[tokio::test]
async fn answers_without_content_have_none_and_keep_their_fields() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        while let Ok(head) = connection.head().await {
            let answer = match head.split(' ').next().unwrap() {
                "HEAD" => "HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n",
                "GET" => "HTTP/1.1 304 Not Modified\r\ncontent-length: 1234\r\netag: x\r\n\r\n",
                _ => "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
            };
            connection.send(answer).await;
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    for (method, status, length) in [
        (Method::HEAD, 200, Some("1234")),
        (Method::GET, 304, Some("1234")),
        (Method::PUT, 204, None),
    ] {
        let mut request = get("/");
        *request.method_mut() = method.clone();
        let response = setup.session.fetch(request).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.body(), "", "{method}");
        let found = response
            .headers()
            .get("content-length")
            .map(|value| value.to_str().unwrap());
        assert_eq!(found, length, "{method}");
    }
}

#[tokio::test]
async fn trailers_of_a_response_arrive() {
    let upstream = ScriptedUpstream::answering(
        b"HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n\
          2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n",
    )
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let response = setup.session.ask(get("/")).await.unwrap();
    let collected = response.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-sum"], "7");
}

#[tokio::test]
async fn each_piece_of_a_stream_goes_on_at_once() {
    let (events_in, events) = mpsc::channel::<()>(1);
    let events = std::sync::Arc::new(tokio::sync::Mutex::new(events));
    let upstream = ScriptedUpstream::start(move |mut connection| {
        let events = events.clone();
        async move {
            connection.head().await.unwrap();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
            connection.send(head).await;
            while events.lock().await.recv().await.is_some() {
                connection.send("data: x\n\n").await;
            }
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let mut body = setup.session.ask(get("/")).await.unwrap().into_body();
    for _ in 0..5 {
        events_in.send(()).await.unwrap();
        let frame = timeout(SOON, body.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), "data: x\n\n");
    }
    drop(events_in);
    assert!(
        timeout(SOON, body.frame()).await.unwrap().is_none(),
        "a clean end"
    );
}

#[tokio::test]
async fn early_hints_come_before_the_response() {
    let upstream = ScriptedUpstream::answering(
        b"HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nconnection: x-hop\r\nx-hop: 1\r\n\r\n\
          HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    )
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let mut hints = Vec::new();
    let answered = setup
        .session
        .ask_with(get("/"), |status, fields| hints.push((status, fields)));
    assert_eq!(answered.await.unwrap().status(), StatusCode::OK);
    let [(status, fields)] = &hints[..] else {
        panic!("{hints:?}")
    };
    assert_eq!(*status, StatusCode::EARLY_HINTS);
    assert_eq!(fields.len(), 1);
    assert_eq!(fields["link"], "</a.css>");
}

#[tokio::test]
async fn content_is_sent_when_the_upstream_says_continue() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        let head = connection.head().await.unwrap();
        assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
        connection.send("HTTP/1.1 100 Continue\r\n\r\n").await;
        assert_eq!(connection.bytes(5).await, b"hello");
        connection
            .send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await;
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let (pieces, mut request) = post_fed();
    request
        .headers_mut()
        .insert("expect", "100-continue".parse().unwrap());
    request
        .headers_mut()
        .insert("content-length", "5".parse().unwrap());
    let (told, heard) = oneshot::channel();
    let mut told = Some(told);
    let answered = setup.session.ask_with(request, |status, _| {
        told.take().unwrap().send(status).unwrap();
    });
    let sending = async {
        assert_eq!(heard.await.unwrap(), StatusCode::CONTINUE);
        pieces.send(data("hello")).await.unwrap();
        drop(pieces);
    };
    let (response, ()) = tokio::join!(answered, sending);
    assert_eq!(response.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn an_expectation_that_is_refused_needs_no_content() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        connection.head().await.unwrap();
        connection
            .send("HTTP/1.1 417 Expectation Failed\r\ncontent-length: 2\r\n\r\nno")
            .await;
        assert!(
            connection.rest().await.0.is_empty(),
            "no content, no other request"
        );
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    for _ in 0..2 {
        let (_pieces, mut request) = post_fed();
        request
            .headers_mut()
            .insert("expect", "100-continue".parse().unwrap());
        let response = setup.session.ask(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::EXPECTATION_FAILED);
        assert_eq!(whole(response).await.body(), "no");
    }
    assert_eq!(
        upstream.connections(),
        2,
        "a connection with half a request is not used again"
    );
}

#[tokio::test]
async fn both_directions_flow_at_once_and_neither_holds_up_the_other() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        connection.head().await.unwrap();
        connection.send("HTTP/1.1 200 OK\r\n\r\n").await;
        // More than all windows hold goes out before anybody reads it.
        let (mut reading, mut writing) = connection.into_raw().split();
        let sending = async {
            let chunk = vec![b'x'; 64 * 1024];
            for _ in 0..128 {
                writing.send(&chunk).await;
            }
        };
        let receiving = async {
            let mut received = Vec::new();
            while !received.ends_with(b"0\r\n\r\n") {
                received.extend_from_slice(&reading.read_some().await.unwrap());
            }
        };
        tokio::join!(sending, receiving);
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let (pieces, request) = post_fed();
    let response = setup.session.ask(request).await.unwrap();
    // All is sent before one byte of the response is taken.
    let chunk: &'static str = Box::leak("y".repeat(64 * 1024).into_boxed_str());
    for _ in 0..64 {
        timeout(SOON, pieces.send(data(chunk)))
            .await
            .unwrap()
            .unwrap();
    }
    drop(pieces);
    let body = timeout(SOON, response.into_body().collect())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(body.to_bytes().len(), 128 * 64 * 1024);
}

#[tokio::test]
async fn who_hangs_up_is_gone_at_the_upstream_within_a_second() {
    for answer in ["", "HTTP/1.1 200 OK\r\n\r\npart"] {
        let (tell, mut told) = mpsc::channel(1);
        let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
            let tell = tell.clone();
            async move {
                connection.head().await.unwrap();
                connection.send(answer).await;
                tell.send("asked").await.unwrap();
                connection.rest().await;
                tell.send("gone").await.unwrap();
            }
        })
        .await;
        let setup = Setup::new(&upstream.url()).await;
        let session = setup.session.session.clone();
        let mut asking = Box::pin(async {
            let response = exchange(&session, get("/"), |_, _| {}).await;
            let mut body = response.unwrap().into_body();
            body.frame().await.unwrap().unwrap();
            std::future::pending::<()>().await;
        });
        tokio::select! {
            () = &mut asking => unreachable!(),
            event = told.recv() => assert_eq!(event, Some("asked")),
        }
        drop(asking);
        let gone = timeout(Duration::from_secs(1), told.recv()).await;
        assert_eq!(gone.unwrap(), Some("gone"));
    }
}

#[tokio::test]
async fn a_hang_up_in_the_middle_of_a_request_is_seen_as_a_broken_request() {
    let (tell, mut told) = mpsc::channel(1);
    let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
        let tell = tell.clone();
        async move {
            connection.head().await.unwrap();
            tell.send(connection.bytes(9).await).await.unwrap();
            tell.send(connection.rest().await.0).await.unwrap();
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let (pieces, request) = post_fed();
    let session = setup.session.session.clone();
    let mut asking = Box::pin(exchange(&session, request, |_, _| {}));
    pieces.send(data("half")).await.unwrap();
    tokio::select! {
        _ = &mut asking => panic!("nobody answers"),
        content = told.recv() => assert_eq!(content.unwrap(), b"4\r\nhalf\r\n"),
    }
    drop(asking);
    let rest = timeout(Duration::from_secs(1), told.recv())
        .await
        .unwrap()
        .unwrap();
    assert!(rest.is_empty(), "no last chunk");
}
