//! Exchanges through a pair of sessions: messages arrive unchanged, and failures arrive as failures.

use std::{
    future::pending,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::{sync::mpsc, task::JoinSet};
use tunnel_proto::{
    exchange::{
        BodyError, EncodedHead, ExchangeError, ForwardHints, Informational, RecvBody, exchange,
        open,
    },
    limits,
    memory::MemoryAccount,
    problem::{Hop, Problem, Reason},
};

use crate::{
    content::{
        TestBody, TestError, data, fed, feed, frames, full, get, is_pending, next_data, pattern,
        read, request,
    },
    pair::{Pair, settle, within},
};

fn trailers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let fields = fields
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    fields.collect()
}

#[tokio::test(start_paused = true)]
async fn long_heads_count_as_long_as_they_are_kept_and_too_many_are_refused() {
    const HEAD_BYTES: usize = 100_000;
    let (kept, mut heads) = mpsc::channel(100);
    let pair = Pair::start(move |request: Request<RecvBody>| {
        // Never answered: how long the head is kept is in the test's hands.
        kept.try_send(request.into_parts().0).unwrap();
        pending::<Result<Response<TestBody>, Problem>>()
    })
    .await;
    let account = MemoryAccount::new(20 * HEAD_BYTES);
    pair.client.set_account(&account);
    let mut exchanges = JoinSet::new();
    let mut ask = |length: usize| {
        let server = pair.server.clone();
        let mut request = get("/");
        let value = HeaderValue::try_from("v".repeat(length)).unwrap();
        request.headers_mut().insert("x-a", value);
        exchanges.spawn(async move { exchange(&server, request, |_, _| {}).await });
    };
    for _ in 0..6 {
        ask(HEAD_BYTES);
        settle().await;
    }
    ask(1_000);
    settle().await;
    let parts: Vec<_> = (0..5).map(|_| heads.try_recv().unwrap()).collect();
    assert_eq!(parts[4].headers["x-a"].len(), 1_000);
    assert_eq!(account.heads() / HEAD_BYTES, 4);
    assert_eq!(account.held(), account.heads());
    for _ in 0..2 {
        let refused = within(exchanges.join_next()).await.unwrap().unwrap();
        let Err(ExchangeError::Failed { problem, .. }) = refused else {
            panic!("it was answered");
        };
        assert_eq!(problem.reason(), Reason::MemoryLimit);
    }
    drop(parts);
    assert_eq!(account.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn fields_beyond_the_usual_number_count_with_what_a_map_keeps_for_each() {
    let (kept, mut heads) = mpsc::channel(10);
    let pair = Pair::start(move |request: Request<RecvBody>| {
        kept.try_send(request.into_parts().0).unwrap();
        pending::<Result<Response<TestBody>, Problem>>()
    })
    .await;
    let account = MemoryAccount::new(10_000_000);
    pair.client.set_account(&account);
    let mut exchanges = JoinSet::new();
    for (fields, held) in [(99, 0..1), (990, 100_000..150_000)] {
        let server = pair.server.clone();
        let mut request = get("/");
        let field = |at: usize| {
            (
                format!("x-{at}").parse::<HeaderName>().unwrap(),
                HeaderValue::from(at),
            )
        };
        request.headers_mut().extend((0..fields).map(field));
        exchanges.spawn(async move { exchange(&server, request, |_, _| {}).await });
        let parts = within(heads.recv()).await.unwrap();
        assert!(held.contains(&account.held()), "{}", account.held());
        drop(parts);
        assert_eq!(account.held(), 0);
    }
}

#[tokio::test]
async fn a_request_is_answered_and_its_stream_carries_the_next() {
    let pair = Pair::start(async |request: Request<RecvBody>| {
        let path = request.uri().path_and_query().unwrap().to_string();
        Ok(Response::builder()
            .header("x-path", path.as_str())
            .body(full("hello"))
            .unwrap())
    })
    .await;
    for number in 0..100 {
        let path = format!("/a//b/%2e%2e/;x?y=%zz&n={number}");
        let response = within(exchange(&pair.server, get(&path), |_, _| {}))
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["x-path"], path.as_str());
        assert_eq!(within(read(response.into_body())).await.content, "hello");
    }
    assert_eq!(pair.server.outstanding(), 0);
}

#[tokio::test]
async fn large_bodies_are_sent_in_both_directions_at_once() {
    let pair = Pair::start(async |request: Request<RecvBody>| {
        let body = request.into_body().map_err(|_| TestError).boxed();
        Ok(Response::new(body))
    })
    .await;
    let content = pattern(3_000_000);
    let request = request(Method::POST, "/echo", full(content.clone()));
    let response = within(exchange(&pair.server, request, |_, _| {}))
        .await
        .unwrap();
    let arrived = within(read(response.into_body())).await;
    assert!(
        arrived.content == content,
        "{} bytes",
        arrived.content.len()
    );
}

#[tokio::test(start_paused = true)]
async fn a_problem_of_the_client_arrives_with_its_reason() {
    let pair = Pair::start(async |_: Request<RecvBody>| {
        let detail = "127.0.0.1:1 refused the connection";
        let problem = Problem::new(Hop::Client, Reason::ConnectionRefused, detail);
        Err::<Response<TestBody>, _>(problem)
    })
    .await;
    for _ in 0..3 {
        let error = within(exchange(&pair.server, get("/"), |_, _| {}))
            .await
            .unwrap_err();
        let ExchangeError::Failed { problem, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(problem.reason(), Reason::ConnectionRefused);
        assert_eq!(problem.detail(), "127.0.0.1:1 refused the connection");
    }
    assert_eq!(pair.streams.all(), 1, "the message that names it is whole");
}

#[tokio::test(start_paused = true)]
async fn a_failed_response_never_ends_cleanly() {
    let pair = Pair::start(async |_: Request<RecvBody>| {
        Ok(Response::new(frames(vec![data("half"), Err(TestError)])))
    })
    .await;
    let response = within(exchange(&pair.server, get("/"), |_, _| {}))
        .await
        .unwrap();
    let arrived = within(read(response.into_body())).await;
    assert_eq!(arrived.content, "half");
    let Some(BodyError::Aborted(problem)) = arrived.error else {
        panic!("{:?}", arrived.error)
    };
    assert_eq!(problem.reason(), Reason::ResponseIncomplete);
}

#[tokio::test(start_paused = true)]
async fn informational_responses_arrive_in_order_and_none_is_lost() {
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = refused.clone();
    let pair = Pair::start(move |request: Request<RecvBody>| {
        let refused = counted.clone();
        async move {
            let informational = request.extensions().get::<Informational>().unwrap().clone();
            let push = |status: u16, number: usize| {
                let fields = trailers(&[]);
                let mut fields = fields;
                fields.insert("x-number", HeaderValue::from(number));
                informational.push(StatusCode::from_u16(status).unwrap(), fields)
            };
            for status in [101, 200] {
                refused.fetch_add(usize::from(!push(status, 99)), Ordering::Relaxed);
            }
            for number in 0..limits::INFORMATIONAL {
                assert!(push(if number == 0 { 100 } else { 103 }, number));
                // Some are sent at once, some together, the last ones with the final head.
                if number % 3 == 0 {
                    settle().await;
                }
            }
            refused.fetch_add(usize::from(!push(103, 99)), Ordering::Relaxed);
            Ok(Response::new(full("final")))
        }
    })
    .await;
    for _ in 0..3 {
        let mut received = Vec::new();
        let response = within(exchange(&pair.server, get("/"), |status, fields| {
            received.push((
                status.as_u16(),
                fields["x-number"].to_str().unwrap().to_owned(),
            ));
        }))
        .await
        .unwrap();
        assert_eq!(within(read(response.into_body())).await.content, "final");
        let status = |number| if number == 0 { 100 } else { 103 };
        let expected = (0..limits::INFORMATIONAL).map(|n| (status(n), n.to_string()));
        assert_eq!(received, expected.collect::<Vec<_>>());
    }
    assert_eq!(
        refused.load(Ordering::Relaxed),
        3 * 3,
        "101, 200 and one too many"
    );
    assert_eq!(pair.streams.all(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_informational_response_is_sent_while_the_service_waits() {
    let (sender, mut handles) = mpsc::channel::<Informational>(1);
    let pair = Pair::start(move |request: Request<RecvBody>| {
        let informational = request.extensions().get::<Informational>().unwrap().clone();
        let sender = sender.clone();
        async move {
            sender.send(informational).await.unwrap();
            pending::<()>().await;
            Ok(Response::new(full("")))
        }
    })
    .await;
    let (received, mut statuses) = mpsc::channel(1);
    let mut exchanges = JoinSet::new();
    let server = pair.server.clone();
    exchanges.spawn(async move {
        let received = |status, _| received.try_send(status).unwrap();
        exchange(&server, get("/"), received).await.map(drop)
    });
    let informational = within(handles.recv()).await.unwrap();
    settle().await;
    assert!(
        informational.push(StatusCode::EARLY_HINTS, HeaderMap::new()),
        "from another task"
    );
    assert_eq!(within(statuses.recv()).await, Some(StatusCode::EARLY_HINTS));
}

#[tokio::test(start_paused = true)]
async fn trailers_are_sent_in_both_directions_without_forbidden_fields() {
    let sent = [
        ("x-sum", "1"),
        ("content-length", "9"),
        ("host", "evil"),
        ("x-sum", "2"),
        ("te", "x"),
    ];
    let pair = Pair::start(move |request: Request<RecvBody>| async move {
        let arrived = read(request.into_body()).await;
        assert!(arrived.error.is_none());
        let mut back = arrived.trailers.unwrap();
        back.insert(
            "x-content",
            HeaderValue::from_bytes(&arrived.content).unwrap(),
        );
        back.insert("transfer-encoding", HeaderValue::from_static("chunked"));
        Ok(Response::new(frames(vec![
            data("down"),
            Ok(Frame::trailers(back)),
        ])))
    })
    .await;
    for _ in 0..2 {
        let body = frames(vec![data("up"), Ok(Frame::trailers(trailers(&sent)))]);
        let request = request(Method::POST, "/", body);
        let response = within(exchange(&pair.server, request, |_, _| {}))
            .await
            .unwrap();
        let arrived = within(read(response.into_body())).await;
        assert_eq!(arrived.content, "down");
        let back = arrived.trailers.unwrap();
        assert_eq!(
            back,
            trailers(&[("x-sum", "1"), ("x-sum", "2"), ("x-content", "up")])
        );
    }
    assert_eq!(pair.streams.all(), 1, "both messages were whole");
}

#[tokio::test(start_paused = true)]
async fn content_of_another_length_than_declared_is_an_error_at_either_end() {
    let pair = Pair::start(async |request: Request<RecvBody>| {
        let declared = request.uri().path()[1..].to_owned();
        let body = match request.method().as_str() {
            "POST" => full(format!("{:?}", read(request.into_body()).await.error)),
            _ => frames(vec![data("12"), data("345")]),
        };
        let is_upload = body.size_hint().exact().is_some();
        let mut response = Response::new(body);
        if !is_upload {
            response
                .headers_mut()
                .insert("content-length", declared.parse().unwrap());
        }
        Ok(response)
    })
    .await;
    for declared in ["0", "1", "4", "6", "5"] {
        let path = format!("/{declared}");
        let response = within(exchange(&pair.server, get(&path), |_, _| {}))
            .await
            .unwrap();
        let arrived = within(read(response.into_body())).await;
        let mut request = request(Method::POST, &path, frames(vec![data("12"), data("345")]));
        request
            .headers_mut()
            .insert("content-length", declared.parse().unwrap());
        let response = within(exchange(&pair.server, request, |_, _| {}))
            .await
            .unwrap();
        let received = within(read(response.into_body())).await.content;
        if declared == "5" {
            assert!(arrived.error.is_none());
            assert_eq!(received, "None");
        } else {
            let error = arrived.error;
            assert!(
                matches!(error, Some(BodyError::Length)),
                "{declared}: {error:?}"
            );
            assert_eq!(received, "Some(Length)", "{declared}");
        }
    }
    // RFC 9110 section 6.4.1: there is no content, whatever the declared length.
    let request = request(Method::HEAD, "/5", full(""));
    let response = within(exchange(&pair.server, request, |_, _| {}))
        .await
        .unwrap();
    let arrived = within(read(response.into_body())).await;
    assert!(matches!(arrived.error, Some(BodyError::Length)) && arrived.content.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_service_fails_one_exchange() {
    let pair = Pair::start(async |request: Request<RecvBody>| {
        assert!(request.uri().path() != "/panic", "on purpose");
        Ok(Response::new(full("fine")))
    })
    .await;
    for _ in 0..3 {
        let error = within(exchange(&pair.server, get("/panic"), |_, _| {}))
            .await
            .unwrap_err();
        let ExchangeError::Failed { problem, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(problem.reason(), Reason::SessionLost);
        let response = within(exchange(&pair.server, get("/"), |_, _| {}))
            .await
            .unwrap();
        assert_eq!(within(read(response.into_body())).await.content, "fine");
    }
    within(pair.client.at_rest()).await;
}

#[tokio::test(start_paused = true)]
async fn a_large_head_without_content_is_known_to_have_none() {
    let pair = Pair::start(async |request: Request<RecvBody>| {
        let size = request
            .headers()
            .get_all("x-large")
            .iter()
            .map(|value| value.len())
            .sum::<usize>();
        let is_empty = request.body().is_end_stream();
        let mut response = Response::new(full(format!("{size} {is_empty}")));
        *response.headers_mut() = request.headers().clone();
        Ok(response)
    })
    .await;
    // These include heads that fill a last frame of 32 KiB, so that the end follows in a separate frame.
    for last in 18_800..19_100 {
        let mut request = get("/");
        for number in 0..9 {
            let length = if number == 0 { last } else { 14_000 };
            let value = HeaderValue::from_maybe_shared(Bytes::from(vec![b'x'; length])).unwrap();
            request.headers_mut().append("x-large", value);
        }
        let response = within(exchange(&pair.server, request, |_, _| {}))
            .await
            .unwrap();
        assert_eq!(response.headers().get_all("x-large").iter().count(), 9);
        let arrived = within(read(response.into_body())).await;
        assert_eq!(arrived.content, format!("{} true", 8 * 14_000 + last));
    }
    assert_eq!(pair.streams.all(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_too_large_fails_only_its_exchange() {
    let pair = Pair::start(async |request: Request<RecvBody>| {
        let mut response = Response::new(full("fine"));
        if request.uri().path() == "/large" {
            let value = vec![b'x'; limits::HEAD_BYTES];
            response
                .headers_mut()
                .insert("x", HeaderValue::from_bytes(&value).unwrap());
        }
        Ok(response)
    })
    .await;
    for _ in 0..2 {
        let error = within(exchange(&pair.server, get("/large"), |_, _| {}))
            .await
            .unwrap_err();
        let ExchangeError::Failed { problem, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(problem.reason(), Reason::WireMalformed);
        let response = within(exchange(&pair.server, get("/"), |_, _| {}))
            .await
            .unwrap();
        assert_eq!(within(read(response.into_body())).await.content, "fine");
    }
    within(pair.client.at_rest()).await;
}

#[tokio::test(start_paused = true)]
async fn server_sent_events_arrive_one_by_one() {
    let (give, mut bodies) = mpsc::channel(1);
    let pair = Pair::start(move |_: Request<RecvBody>| {
        let (feed, body) = fed();
        give.try_send(feed).unwrap();
        async { Ok(Response::new(body)) }
    })
    .await;
    let response = within(exchange(&pair.server, get("/"), |_, _| {}))
        .await
        .unwrap();
    let (events, mut body) = (bodies.recv().await.unwrap(), response.into_body());
    for number in 0..100 {
        assert!(is_pending(&mut body).await);
        let event = format!("data: {number}\n\n");
        feed(&events, event.clone()).await;
        assert_eq!(within(next_data(&mut body)).await, event);
    }
    drop(events);
    assert!(within(Pin::new(&mut body).frame()).await.is_none());
}

/// What one server node has heard of a forwarded request decides whether the other one may repeat it. Nobody else can say so.
#[tokio::test(start_paused = true)]
async fn a_node_says_whether_it_has_heard_anything_of_a_forwarded_request() {
    let failed = || Problem::new(Hop::Server, Reason::SessionLost, "lost");
    let pair = Pair::start(move |request: Request<RecvBody>| {
        let hints = request.extensions().get::<ForwardHints>();
        assert_eq!(hints.map(|hints| &*hints.0), Some(&b"repeat"[..]));
        let problem = match request.uri().path() {
            "/heard" => failed(),
            "/unheard" => failed().unheard(),
            _ => Problem::new(Hop::Client, Reason::SessionLost, "lost").unheard(),
        };
        async { Err::<Response<TestBody>, _>(problem) }
    })
    .await;
    for (path, expected) in [("/heard", true), ("/unheard", false), ("/client", true)] {
        let head = EncodedHead::of(&get(path)).forwarded("1 a-b 1 ::1", "repeat");
        let opened = within(open(&pair.server)).await.unwrap();
        let carried = opened.carry(&head, full(""), |_, _| {}, pending());
        let Err(ExchangeError::Failed { is_heard, .. }) = within(carried).await else {
            panic!("{path}: it was answered");
        };
        assert_eq!(is_heard, expected, "{path}");
    }
}
