//! The streams of a session: their limits, the order in which they are opened, and that none is leaked.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::Frame;
use tokio::{io::duplex, sync::Semaphore, task::JoinSet};
use tunnel_proto::{
    close::CloseReason,
    exchange::{ExchangeError, RecvBody, exchange},
    limits,
    problem::{Hop, Problem, Reason},
    session::{OpenError, SessionEvent, SessionSettings, Side},
};

use crate::{
    content::{
        TestBody, data, fed, feed, frames, full, get, never_there, pattern, random, read,
        read_by_length, request, start,
    },
    pair::{Drivers, Handler, Pair, Setup, serve_with, session, settle, within},
};

#[tokio::test(start_paused = true)]
async fn three_hundred_unanswered_exchanges_do_not_block_the_next() {
    let pair = Pair::start(never_there).await;
    let mut exchanges = JoinSet::new();
    for _ in 0..300 {
        start(&mut exchanges, &pair.server, "/never");
    }
    settle().await;
    assert_eq!(pair.server.outstanding(), 300);
    assert_eq!(pair.client.outstanding(), 300);
    let response = within(exchange(&pair.server, get("/"), |_, _| {}))
        .await
        .unwrap();
    assert_eq!(read(response.into_body()).await.content, "answered");
    exchanges.shutdown().await;
    within(pair.server.at_rest()).await;
    within(pair.client.at_rest()).await;
}

#[tokio::test(start_paused = true)]
async fn one_exchange_beyond_the_limit_is_refused_and_the_session_continues() {
    let settings = SessionSettings {
        exchanges: 10,
        ..SessionSettings::default()
    };
    let pair = Pair::start_with(
        Setup {
            settings,
            ..Setup::default()
        },
        never_there,
    )
    .await;
    let mut exchanges = JoinSet::new();
    for _ in 0..10 {
        start(&mut exchanges, &pair.server, "/never");
    }
    settle().await;
    for _ in 0..3 {
        let refused = exchange(&pair.server, get("/"), |_, _| {})
            .await
            .unwrap_err();
        assert!(
            matches!(refused, ExchangeError::NotOpened(OpenError::TooMany)),
            "{refused}"
        );
    }
    exchanges.shutdown().await;
    let response = within(exchange(&pair.server, get("/"), |_, _| {}))
        .await
        .unwrap();
    assert_eq!(read(response.into_body()).await.content, "answered");
}

#[tokio::test(start_paused = true)]
async fn the_multiplexers_limit_never_ends_the_session() {
    let settings = SessionSettings {
        exchanges: usize::MAX,
        ..SessionSettings::default()
    };
    let pair = Pair::start_with(
        Setup {
            settings,
            ..Setup::default()
        },
        never_there,
    )
    .await;
    let mut exchanges = JoinSet::new();
    for _ in 0..limits::STREAMS + 10 {
        start(&mut exchanges, &pair.server, "/never");
    }
    settle().await;
    assert_eq!(pair.client.outstanding(), limits::EXCHANGES_MAX);
    assert!(!pair.server.is_closed());
}

#[tokio::test(start_paused = true)]
async fn every_exchange_gets_a_stream_from_a_client_that_accepts_slowly() {
    let (server_io, client_io) = duplex(64 * 1024);
    let mut drivers = Drivers::default();
    let settings = SessionSettings::default();
    let (server, _events) = session(&mut drivers, server_io, Side::Server, settings).await;
    let (client, mut events) = session(&mut drivers, client_io, Side::Client, settings).await;
    let mut exchanges = JoinSet::new();
    for _ in 0..700 {
        start(&mut exchanges, &server, "/");
    }
    settle().await;
    let before = drivers.polls();
    tokio::time::sleep(Duration::from_secs(5)).await;
    // A ping each second, since there are exchanges that wait, and its answer.
    assert!(
        drivers.polls() - before < 25,
        "{} polls for nothing",
        drivers.polls() - before
    );
    let mut serving = JoinSet::new();
    let service = Handler(Arc::new(never_there));
    let mut given_up = exchanges.len();
    while !exchanges.is_empty() {
        tokio::select! {
            event = events.next(&client) => {
                let Some(SessionEvent::Stream(stream)) = event else { panic!("it ended") };
                serving.spawn(serve_with(stream, service.clone()));
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            answer = exchanges.join_next() => {
                assert_eq!(answer.unwrap().unwrap().unwrap(), "answered");
            }
            () = tokio::time::sleep(Duration::from_secs(10)) => panic!("{given_up} left over"),
        }
        given_up = exchanges.len();
    }
}

/// Answers, by path, with every kind of complete message.
async fn whole(request: Request<RecvBody>) -> Result<Response<TestBody>, Problem> {
    let path = request.uri().path().to_owned();
    let _ = read(request.into_body()).await;
    let response = Response::builder();
    let response = match path.as_str() {
        "/length" => response.header("content-length", 5).body(full("hello")),
        "/chunked" => response.body(frames(vec![data("a"), data("b")])),
        "/trailers" => {
            let name = HeaderName::from_static("grpc-status");
            let trailers = HeaderMap::from_iter([(name, HeaderValue::from_static("0"))]);
            response.body(frames(vec![data("a"), Ok(Frame::trailers(trailers))]))
        }
        "/head" => response.header("content-length", 5).body(full("")),
        "/empty" => response.header("content-length", 0).body(full("")),
        "/204" => response.status(204).body(full("")),
        "/304" => response
            .status(304)
            .header("content-length", 7)
            .body(full("")),
        "/late-end" => response.header("content-length", 5).body(late_end()),
        _ => response
            .header("content-length", LARGE)
            .body(full(pattern(LARGE))),
    };
    Ok(response.unwrap())
}

/// Content whose end follows some time after its last byte.
fn late_end() -> TestBody {
    let (feeding, body) = fed();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        feed(&feeding, &b"12345"[..]).await;
        settle().await;
    });
    tasks.detach_all();
    body
}

/// More than a window.
const LARGE: usize = 300_000;

#[tokio::test(start_paused = true)]
async fn a_thousand_exchanges_of_every_kind_use_one_stream() {
    let pair = Pair::start(whole).await;
    let kinds = [
        ("/length", 5),
        ("/chunked", 2),
        ("/trailers", 1),
        ("/head", 0),
        ("/empty", 0),
        ("/204", 0),
        ("/304", 0),
        ("/late-end", 5),
        ("/large", LARGE),
        ("/upload", LARGE),
    ];
    for number in 0..1_000 {
        let (path, length) = kinds[number % kinds.len()];
        let method = if path == "/head" {
            Method::HEAD
        } else {
            Method::POST
        };
        let body = full(if path == "/upload" {
            pattern(LARGE)
        } else {
            Bytes::new()
        });
        let request = request(method, path, body);
        let response = within(exchange(&pair.server, request, |_, _| {}))
            .await
            .unwrap();
        let content = within(read_by_length(response)).await;
        assert_eq!(content.len(), length, "{path}");
        assert_eq!(pair.server.outstanding(), 0, "{path}");
        assert_eq!(pair.streams.all(), 1, "{path} was no whole end");
    }
    within(pair.client.at_rest()).await;
}

#[tokio::test(start_paused = true)]
async fn unused_streams_of_a_burst_are_ended() {
    let interval = Duration::from_secs(15);
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let pair = Pair::start(move |_: Request<RecvBody>| {
        let gate = held.clone();
        async move {
            let _permit = gate.acquire().await.unwrap();
            Ok(Response::new(full("answered")))
        }
    })
    .await;
    let mut exchanges = JoinSet::new();
    for _ in 0..400 {
        start(&mut exchanges, &pair.server, "/");
    }
    settle().await;
    gate.add_permits(400);
    while let Some(answer) = within(exchanges.join_next()).await {
        assert_eq!(answer.unwrap().unwrap(), "answered");
    }
    settle().await;
    assert_eq!(pair.streams.open(), limits::IDLE_STREAMS);
    // One stays in use.
    for _ in 0..30 {
        tokio::time::sleep(interval / 10).await;
        within(exchange(&pair.server, get("/"), |_, _| {}))
            .await
            .unwrap();
    }
    assert_eq!(pair.streams.open(), 1);
    tokio::time::sleep(interval * 3).await;
    assert_eq!(pair.streams.open(), 0);
    within(exchange(&pair.server, get("/"), |_, _| {}))
        .await
        .unwrap();
}

/// Answers as the number in the path selects: never, with a problem, with much content, after the request,
/// or without end.
async fn by_number(request: Request<RecvBody>) -> Result<Response<TestBody>, Problem> {
    let seed: usize = request.uri().path()[1..].parse().unwrap();
    match seed % 5 {
        0 => std::future::pending().await,
        1 => Err(Problem::new(Hop::Client, Reason::DnsError, "")),
        2 => Ok(Response::new(full(pattern(seed % 1_000_000)))),
        3 => {
            let _ = read(request.into_body()).await;
            Ok(Response::new(full("read")))
        }
        _ => {
            let (feed, body) = fed();
            let mut feeding = JoinSet::new();
            feeding.spawn(async move {
                while feed.send(Ok(Frame::data(pattern(10_000)))).await.is_ok() {
                    settle().await;
                }
            });
            feeding.detach_all();
            Ok(Response::new(body))
        }
    }
}

#[tokio::test(start_paused = true)]
async fn exchanges_leave_nothing_behind_however_they_end() {
    let mut pair = Pair::start(by_number).await;
    let mut state = 7;
    let mut exchanges = JoinSet::new();
    for _ in 0..2_000 {
        let session = pair.server.clone();
        let path = format!("/{}", random(&mut state));
        let body = full(pattern(random(&mut state) as usize % 400_000));
        let timeout = Duration::from_millis(random(&mut state) % 20);
        exchanges.spawn(async move {
            let _ = tokio::time::timeout(timeout, async {
                let request = request(Method::POST, &path, body);
                let response = exchange(&session, request, |_, _| {}).await.ok()?;
                Some(read(response.into_body()).await)
            })
            .await;
        });
        if random(&mut state).is_multiple_of(20) {
            settle().await;
        }
    }
    while within(exchanges.join_next()).await.is_some() {}
    within(pair.server.at_rest()).await;
    within(pair.client.at_rest()).await;
    assert_eq!(
        (pair.server.outstanding(), pair.client.outstanding()),
        (0, 0)
    );
    assert!(
        !pair.server.is_closed(),
        "none of it is the session's fault"
    );
    let response = within(exchange(&pair.server, get("/2"), |_, _| {}))
        .await
        .unwrap();
    assert_eq!(read(response.into_body()).await.content.len(), 2);
    settle().await;
    assert!(
        pair.streams.open() <= limits::IDLE_STREAMS,
        "{} streams",
        pair.streams.open()
    );
    pair.server.close(CloseReason::Drained);
    pair.drivers.ends().await;
    within(pair.serving.join_next()).await.unwrap().unwrap();
    assert_eq!(pair.streams.open(), 0);
}
