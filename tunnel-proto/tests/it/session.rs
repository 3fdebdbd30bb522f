//! One session: what its two ends tell each other, how it ends, and what it may cost.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use tokio::{io::duplex, sync::Semaphore, task::JoinSet, time::Instant};
use tunnel_proto::{
    close::CloseReason,
    control::Control,
    exchange::{ExchangeError, RecvBody, exchange, serve},
    limits,
    session::{OpenError, Session, SessionClosed, SessionEnd, SessionEvent, SessionSettings, Side},
};

use crate::{
    content::{TestBody, fed, feed, full, get, pattern, read, read_by_length, request},
    pair::{Drivers, Handler, Pair, Relay, Setup, session, settle, within},
};

async fn empty(_: Request<RecvBody>) -> Result<Response<TestBody>, tunnel_proto::problem::Problem> {
    Ok(Response::new(full("")))
}

async fn never(_: Request<RecvBody>) -> Result<Response<TestBody>, tunnel_proto::problem::Problem> {
    std::future::pending().await
}

/// Answers at once, except under `/never`.
async fn never_there(
    request: Request<RecvBody>,
) -> Result<Response<TestBody>, tunnel_proto::problem::Problem> {
    if request.uri().path() == "/never" {
        std::future::pending::<()>().await;
    }
    Ok(Response::new(full("answered")))
}

/// Starts an exchange that goes on in a task of its own.
fn start(exchanges: &mut JoinSet<Result<Bytes, OpenError>>, session: &Session, path: &'static str) {
    let session = session.clone();
    exchanges.spawn(async move {
        match exchange(&session, get(path), |_, _| {}).await {
            Ok(response) => Ok(read(response.into_body()).await.content.freeze()),
            Err(ExchangeError::NotOpened(error)) => Err(error),
            Err(_) => Ok(Bytes::from_static(b"failed")),
        }
    });
}

#[tokio::test(start_paused = true)]
async fn control_messages_go_both_ways_and_unknown_ones_are_ignored() {
    let mut pair = Pair::start(empty).await;
    let said = [
        Control::Unknown,
        Control::Welcome { runtime: "a-b".into(), session: "1".into(), version: "2".into() },
        Control::Unknown,
        Control::Drain { spread_ms: Some(5) },
    ];
    for control in &said {
        pair.server.send(control.clone()).unwrap();
        pair.client.send(control.clone()).unwrap();
    }
    for control in [&said[1], &said[3]] {
        assert_eq!(within(pair.controls.recv()).await.as_ref(), Some(control));
        let event = within(pair.server_events.next(&pair.server)).await;
        let Some(SessionEvent::Control(heard)) = event else { panic!("no control message") };
        assert_eq!(&heard, control);
    }
    assert!(!pair.client.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_unknown_control_messages_ends_the_session() {
    let mut pair = Pair::start(empty).await;
    for _ in 0..=limits::CONTROLS_UNKNOWN {
        while pair.client.send(Control::Unknown) == Err(SessionClosed) {
            settle().await;
        }
    }
    let (server, client) = pair.drivers.ends().await;
    assert!(matches!(server, SessionEnd::Protocol(_)), "{server}");
    assert_eq!(client.reason(), CloseReason::ProtocolError);
}

#[tokio::test(start_paused = true)]
async fn control_messages_that_nobody_handles_end_the_session() {
    let mut pair = Pair::start(empty).await;
    for _ in 0..=limits::CONTROLS_WAITING {
        pair.client.send(Control::Hello { version: "1".into() }).unwrap();
        settle().await;
    }
    let (server, client) = pair.drivers.ends().await;
    assert!(matches!(server, SessionEnd::Protocol(_)), "{server}");
    assert_eq!(client.reason(), CloseReason::ProtocolError);
}

#[tokio::test(start_paused = true)]
async fn a_close_reason_arrives_at_the_other_end() {
    use CloseReason::*;
    for reason in [Left, Drained, Superseded, Revoked, Overloaded, Internal, Other(4321)] {
        for side in [Side::Server, Side::Client] {
            let mut pair = Pair::start(empty).await;
            settle().await;
            let closing = if side == Side::Server { &pair.server } else { &pair.client };
            closing.close(reason);
            assert!(!closing.is_open() && !closing.is_closed());
            let (server, client) = pair.drivers.ends().await;
            let (own, other) = if side == Side::Server { (server, client) } else { (client, server) };
            assert!(matches!(own, SessionEnd::Closed(own) if own == reason), "{own:?}");
            assert!(
                matches!(other, SessionEnd::ClosedByPeer(other) if other == reason),
                "{side:?} {reason:?}: {other:?}"
            );
            within(pair.server.closed()).await;
            within(pair.client.closed()).await;
            within(pair.serving.join_next()).await.unwrap().unwrap();
            assert!(within(pair.server_events.next(&pair.server)).await.is_none());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_said_before_the_close_still_arrives() {
    let mut pair = Pair::start(empty).await;
    settle().await;
    pair.server.send(Control::Revoked { detail: "expired".into() }).unwrap();
    pair.server.close(CloseReason::Revoked);
    let heard = within(pair.controls.recv()).await;
    assert_eq!(heard, Some(Control::Revoked { detail: "expired".into() }));
    let (_, client) = pair.drivers.ends().await;
    assert_eq!(client.reason(), CloseReason::Revoked);
}

#[tokio::test(start_paused = true)]
async fn an_answer_given_before_the_client_leaves_is_whole() {
    // Far more than the connection takes at once.
    let content = pattern(200_000);
    let (answer, asked) = (content.clone(), Arc::new(Semaphore::new(0)));
    let setup = Setup { connection_bytes: 8 * 1024, ..Setup::default() };
    let leave = asked.clone();
    let mut pair = Pair::start_with(setup, move |_: Request<RecvBody>| {
        let answer = answer.clone();
        asked.add_permits(1);
        async { Ok(Response::new(full(answer))) }
    })
    .await;
    let client = pair.client.clone();
    let mut leaving = JoinSet::new();
    leaving.spawn(async move {
        leave.acquire().await.unwrap().forget();
        assert_eq!(client.outstanding(), 1);
        client.at_rest().await;
        client.close(CloseReason::Left);
    });
    let response = within(exchange(&pair.server, get("/"), |_, _| {})).await.unwrap();
    let arrived = within(read(response.into_body())).await;
    assert!(arrived.error.is_none(), "{:?}", arrived.error);
    assert!(arrived.content == content, "{} bytes", arrived.content.len());
    let (server, _) = pair.drivers.ends().await;
    assert_eq!(server.reason(), CloseReason::Left);
}

#[tokio::test(start_paused = true)]
async fn a_close_does_not_wait_for_a_peer_that_takes_nothing() {
    let (relay, server_io, client_io) = Relay::start(Duration::ZERO);
    let settings = SessionSettings::default();
    let mut pair = Pair::start_over(server_io, client_io, settings, never).await;
    settle().await;
    relay.stop();
    let session = pair.server.clone();
    let mut uploads = JoinSet::new();
    uploads.spawn(async move {
        let body = full(pattern(1_000_000));
        let _ = exchange(&session, request(Method::POST, "/", body), |_, _| {}).await;
    });
    settle().await;
    let start = Instant::now();
    pair.server.close(CloseReason::Drained);
    let (side, end) = pair.drivers.next_end().await;
    assert_eq!((side, end.reason()), (Side::Server, CloseReason::Drained));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(relay.is_running());
}

#[tokio::test(start_paused = true)]
async fn a_dead_peer_is_found_within_two_ping_intervals() {
    let interval = Duration::from_secs(15);
    let (relay, server_io, client_io) = Relay::start(Duration::ZERO);
    let settings = SessionSettings { ping_interval: interval, ..SessionSettings::default() };
    let mut pair = Pair::start_over(server_io, client_io, settings, never).await;
    let mut exchanges = JoinSet::new();
    start(&mut exchanges, &pair.server, "/");
    tokio::time::sleep(interval * 3 + interval / 2).await;
    assert!(!pair.server.is_closed() && !pair.client.is_closed());
    relay.stop();
    let start = Instant::now();
    let (server, client) = pair.drivers.ends().await;
    assert!(start.elapsed() <= interval * 2, "{:?}", start.elapsed());
    assert!(matches!((&server, &client), (SessionEnd::Dead, SessionEnd::Dead)), "{server} {client}");
    assert_eq!(within(exchanges.join_next()).await.unwrap().unwrap().unwrap(), "failed");
}

#[tokio::test(start_paused = true)]
async fn the_round_trip_time_is_measured() {
    let (_relay, server_io, client_io) = Relay::start(Duration::from_millis(20));
    let pair = Pair::start_over(server_io, client_io, SessionSettings::default(), empty).await;
    assert_eq!(pair.server.round_trip(), None);
    tokio::time::sleep(Duration::from_secs(20)).await;
    for session in [&pair.server, &pair.client] {
        let time = session.round_trip().unwrap();
        assert!((40..60).contains(&time.as_millis()), "{time:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_pongs_are_slower_than_its_pings_lives() {
    let (_relay, server_io, client_io) = Relay::start(Duration::from_millis(800));
    let interval = Duration::from_secs(1);
    let settings = SessionSettings { ping_interval: interval, ..SessionSettings::default() };
    let pair = Pair::start_over(server_io, client_io, settings, empty).await;
    tokio::time::sleep(interval * 20).await;
    assert!(!pair.server.is_closed() && !pair.client.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_draining_session_takes_no_exchange_and_finishes_those_it_has() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let pair = Pair::start(move |_: Request<RecvBody>| {
        let gate = held.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(Response::new(full("answered")))
        }
    })
    .await;
    let mut exchanges = JoinSet::new();
    start(&mut exchanges, &pair.server, "/");
    settle().await;
    assert!(pair.server.is_open());
    pair.server.start_drain();
    assert!(!pair.server.is_open() && !pair.server.is_closed());
    let refused = exchange(&pair.server, get("/"), |_, _| {}).await.unwrap_err();
    assert!(matches!(refused, ExchangeError::NotOpened(OpenError::Closed)), "{refused}");
    let at_rest = Arc::new(Mutex::new(false));
    let mut waiting = JoinSet::new();
    for session in [pair.server.clone(), pair.client.clone()] {
        let at_rest = at_rest.clone();
        waiting.spawn(async move {
            session.at_rest().await;
            *at_rest.lock().unwrap() = true;
        });
    }
    settle().await;
    assert!(!*at_rest.lock().unwrap(), "one is open still");
    gate.add_permits(1);
    assert_eq!(within(exchanges.join_next()).await.unwrap().unwrap().unwrap(), "answered");
    while within(waiting.join_next()).await.is_some() {}
    assert!(!pair.server.is_closed(), "a drain is no end");
}

#[tokio::test(start_paused = true)]
async fn an_end_without_a_word_wakes_everybody_who_waits() {
    let (server_io, _client_io) = duplex(1024);
    let mut drivers = Drivers::default();
    let (server, mut events) =
        session(&mut drivers, server_io, Side::Server, SessionSettings::default()).await;
    let mut exchanges = JoinSet::new();
    // The first 256 wait for their answer, the others for a stream.
    for _ in 0..300 {
        start(&mut exchanges, &server, "/");
    }
    let mut others = JoinSet::new();
    let session = server.clone();
    others.spawn(async move { session.at_rest().await });
    let session = server.clone();
    others.spawn(async move { session.closed().await });
    others.spawn(async move { while events.next(&server).await.is_some() {} });
    settle().await;
    drivers.drop_all().await;
    let mut closed = 0;
    while let Some(end) = within(exchanges.join_next()).await {
        closed += usize::from(end.unwrap() == Err(OpenError::Closed));
    }
    assert_eq!(closed, 300 - 256);
    while within(others.join_next()).await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_reads_does_not_keep_an_ended_session_from_rest() {
    let (server_io, client_io) = duplex(1024);
    let mut drivers = Drivers::default();
    let settings = SessionSettings::default();
    let (server, _events) = session(&mut drivers, server_io, Side::Server, settings).await;
    let (client, mut events) = session(&mut drivers, client_io, Side::Client, settings).await;
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let Some(SessionEvent::Exchanges(stream)) = events.next(&client).await else { return };
        let (feed, body) = fed();
        let body = Mutex::new(Some(body));
        let answer = move |_: Request<RecvBody>| {
            let body = body.lock().unwrap().take().unwrap();
            async { Ok(Response::new(body)) }
        };
        serve(stream, Handler(Arc::new(answer))).await;
        drop(feed);
    });
    let response = within(exchange(&server, get("/"), |_, _| {})).await.unwrap();
    drivers.drop_all().await;
    within(server.at_rest()).await;
    drop(response);
    assert_eq!(server.outstanding(), 0);
    within(serving.join_next()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn three_hundred_without_an_answer_do_not_stop_the_next() {
    let pair = Pair::start(never_there).await;
    let mut exchanges = JoinSet::new();
    for _ in 0..300 {
        start(&mut exchanges, &pair.server, "/never");
    }
    settle().await;
    assert_eq!(pair.server.outstanding(), 300);
    assert_eq!(pair.client.outstanding(), 300);
    let response = within(exchange(&pair.server, get("/"), |_, _| {})).await.unwrap();
    assert_eq!(read(response.into_body()).await.content, "answered");
    exchanges.shutdown().await;
    within(pair.server.at_rest()).await;
    within(pair.client.at_rest()).await;
}

#[tokio::test(start_paused = true)]
async fn one_more_than_allowed_is_refused_and_the_session_goes_on() {
    let settings = SessionSettings { exchanges: 10, ..SessionSettings::default() };
    let pair = Pair::start_with(Setup { settings, ..Setup::default() }, never_there).await;
    let mut exchanges = JoinSet::new();
    for _ in 0..10 {
        start(&mut exchanges, &pair.server, "/never");
    }
    settle().await;
    for _ in 0..3 {
        let refused = exchange(&pair.server, get("/"), |_, _| {}).await.unwrap_err();
        assert!(matches!(refused, ExchangeError::NotOpened(OpenError::TooMany)), "{refused}");
    }
    exchanges.shutdown().await;
    let response = within(exchange(&pair.server, get("/"), |_, _| {})).await.unwrap();
    assert_eq!(read(response.into_body()).await.content, "answered");
}

#[tokio::test(start_paused = true)]
async fn no_setting_lets_the_multiplexers_own_limit_end_the_session() {
    let settings = SessionSettings { exchanges: usize::MAX, ..SessionSettings::default() };
    let pair = Pair::start_with(Setup { settings, ..Setup::default() }, never_there).await;
    let mut exchanges = JoinSet::new();
    for _ in 0..limits::STREAMS + 10 {
        start(&mut exchanges, &pair.server, "/never");
    }
    settle().await;
    assert_eq!(pair.client.outstanding(), limits::EXCHANGES_MAX);
    assert!(!pair.server.is_closed());
}

#[tokio::test(start_paused = true)]
async fn all_get_a_stream_in_the_end_from_a_client_that_accepts_slowly() {
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
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(drivers.polls() - before < 10, "{} polls for nothing", drivers.polls() - before);
    let mut serving = JoinSet::new();
    let service = Handler(Arc::new(never_there));
    let mut given_up = exchanges.len();
    while !exchanges.is_empty() {
        tokio::select! {
            event = events.next(&client) => {
                let Some(SessionEvent::Exchanges(stream)) = event else { panic!("it ended") };
                serving.spawn(serve(stream, service.clone()));
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

/// Whether a future is pending.
async fn poll_once(mut future: std::pin::Pin<Box<impl Future>>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Every kind of message that ends whole, many times over.
#[tokio::test(start_paused = true)]
async fn a_thousand_exchanges_of_every_kind_use_one_stream() {
    use http_body::Frame;
    let large = pattern(300_000);
    let content = large.clone();
    let pair = Pair::start(move |request: Request<RecvBody>| {
        let large = large.clone();
        async move {
            let path = request.uri().path().to_owned();
            let _ = read(request.into_body()).await;
            let response = Response::builder();
            let data = |text: &'static str| Ok(Frame::data(Bytes::from_static(text.as_bytes())));
            Ok(match path.as_str() {
                "/length" => response.header("content-length", 5).body(full("hello")),
                "/chunked" => response.body(crate::content::frames(vec![data("a"), data("b")])),
                "/trailers" => {
                    let trailers = http::HeaderMap::from_iter([(
                        http::HeaderName::from_static("grpc-status"),
                        http::HeaderValue::from_static("0"),
                    )]);
                    let frames = vec![data("a"), Ok(Frame::trailers(trailers))];
                    response.body(crate::content::frames(frames))
                }
                "/head" => response.header("content-length", 5).body(full("")),
                "/empty" => response.header("content-length", 0).body(full("")),
                "/204" => response.status(204).body(full("")),
                "/304" => response.status(304).header("content-length", 7).body(full("")),
                "/late-end" => {
                    let (feed, body) = fed();
                    let mut feeding = JoinSet::new();
                    feeding.spawn(async move {
                        crate::content::feed(&feed, &b"12345"[..]).await;
                        settle().await;
                    });
                    feeding.detach_all();
                    response.header("content-length", 5).body(body)
                }
                _ => response.header("content-length", large.len()).body(full(large)),
            }
            .unwrap())
        }
    })
    .await;
    let kinds = [
        ("/length", 5),
        ("/chunked", 2),
        ("/trailers", 1),
        ("/head", 0),
        ("/empty", 0),
        ("/204", 0),
        ("/304", 0),
        ("/late-end", 5),
        ("/large", 300_000),
        ("/upload", 300_000),
    ];
    for number in 0..1_000 {
        let (path, length) = kinds[number % kinds.len()];
        let method = if path == "/head" { Method::HEAD } else { Method::POST };
        let body = full(if path == "/upload" { content.clone() } else { Bytes::new() });
        let asked = request(method, path, body);
        let response = within(exchange(&pair.server, asked, |_, _| {})).await.unwrap();
        let content = within(read_by_length(response)).await;
        assert_eq!(content.len(), length, "{path}");
        assert_eq!(pair.server.outstanding(), 0, "{path}");
        assert_eq!(pair.streams.all(), 1, "{path} was no whole end");
    }
    within(pair.client.at_rest()).await;
}

#[tokio::test(start_paused = true)]
async fn streams_of_a_burst_are_ended_when_nothing_needs_them() {
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
    // One goes on being used.
    for _ in 0..30 {
        tokio::time::sleep(interval / 10).await;
        within(exchange(&pair.server, get("/"), |_, _| {})).await.unwrap();
    }
    assert_eq!(pair.streams.open(), 1);
    tokio::time::sleep(interval * 3).await;
    assert_eq!(pair.streams.open(), 0);
    within(exchange(&pair.server, get("/"), |_, _| {})).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_costs_nothing_but_its_pings() {
    let settings =
        SessionSettings { ping_interval: Duration::from_secs(15), ..SessionSettings::default() };
    let mut pair = Pair::start_with(Setup { settings, ..Setup::default() }, empty).await;
    within(exchange(&pair.server, get("/"), |_, _| {})).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = pair.drivers.polls();
    tokio::time::sleep(Duration::from_secs(15 * 100)).await;
    // For each ping: the timer, and the pong; at the other end: the ping. The same in return.
    let polls = pair.drivers.polls() - before;
    assert!(polls <= 100 * 2 * 4, "{polls} polls for 200 pings");
    pair.server.close(CloseReason::Drained);
    pair.drivers.ends().await;
}

#[tokio::test(start_paused = true)]
async fn a_stalled_session_does_not_spin() {
    let setup = Setup { connection_bytes: 4 * 1024, ..Setup::default() };
    let pair = Pair::start_with(setup, never).await;
    let mut exchanges = JoinSet::new();
    for _ in 0..20 {
        let session = pair.server.clone();
        exchanges.spawn(async move {
            let body = full(pattern(1_000_000));
            let _ = exchange(&session, request(Method::POST, "/", body), |_, _| {}).await;
        });
    }
    settle().await;
    let before = pair.drivers.polls();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(pair.drivers.polls() - before < 20, "{}", pair.drivers.polls() - before);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_has_ended_may_be_kept_and_polled() {
    let (server_io, client_io) = duplex(1024);
    let settings = SessionSettings::default();
    let (server, mut events, driver) =
        Session::new(server_io, Bytes::new(), Side::Server, settings).await;
    drop(client_io);
    let mut driver = Box::pin(driver);
    let end = within(driver.as_mut()).await;
    assert!(matches!(end, SessionEnd::WebSocket(_)), "{end}");
    assert!(within(events.next(&server)).await.is_none(), "the events end with the session");
    assert!(poll_once(driver).await, "nothing more comes of it");
    assert_eq!(server.send(Control::Unknown), Err(SessionClosed));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_exchanges_that_end_in_any_way() {
    let mut pair = Pair::start(async |request: Request<RecvBody>| {
        let seed: u64 = request.uri().path()[1..].parse().unwrap();
        match seed % 5 {
            0 => std::future::pending().await,
            1 => Err(tunnel_proto::problem::Problem::new(
                tunnel_proto::problem::Hop::Client,
                tunnel_proto::problem::Reason::DnsError,
                "",
            )),
            2 => Ok(Response::new(full(pattern((seed % 1_000_000) as usize)))),
            3 => {
                let _ = read(request.into_body()).await;
                Ok(Response::new(full("read")))
            }
            _ => {
                let (feed, body) = fed();
                drop(request);
                let mut feeding = JoinSet::new();
                feeding.spawn(async move {
                    while feed.send(Ok(http_body::Frame::data(pattern(10_000)))).await.is_ok() {
                        settle().await;
                    }
                });
                feeding.detach_all();
                Ok(Response::new(body))
            }
        }
    })
    .await;
    // A small generator, so that a failure can be repeated.
    let mut state = 7_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut exchanges = JoinSet::new();
    for _ in 0..2_000 {
        let session = pair.server.clone();
        let (seed, upload, patience) = (random(), random() % 400_000, random() % 20);
        exchanges.spawn(async move {
            let body = full(pattern(upload as usize));
            let asked = request(Method::POST, &format!("/{seed}"), body);
            let _ = tokio::time::timeout(Duration::from_millis(patience), async {
                let response = exchange(&session, asked, |_, _| {}).await.ok()?;
                Some(read(response.into_body()).await)
            })
            .await;
        });
        if random() % 20 == 0 {
            settle().await;
        }
    }
    while within(exchanges.join_next()).await.is_some() {}
    within(pair.server.at_rest()).await;
    within(pair.client.at_rest()).await;
    assert_eq!((pair.server.outstanding(), pair.client.outstanding()), (0, 0));
    assert!(!pair.server.is_closed(), "none of it is the session's fault");
    let response = within(exchange(&pair.server, get("/2"), |_, _| {})).await.unwrap();
    assert_eq!(read(response.into_body()).await.content.len(), 2);
    settle().await;
    assert!(pair.streams.open() <= limits::IDLE_STREAMS, "{} streams", pair.streams.open());
    pair.server.close(CloseReason::Drained);
    pair.drivers.ends().await;
    within(pair.serving.join_next()).await.unwrap().unwrap();
    assert_eq!(pair.streams.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_exchange_goes_on_while_control_messages_pass() {
    let mut pair = Pair::start(async |request: Request<RecvBody>| {
        let body = request.into_body();
        let (feed, answer) = fed();
        let mut echoing = JoinSet::new();
        echoing.spawn(async move {
            let mut body = body;
            use http_body_util::BodyExt;
            while let Some(Ok(frame)) = body.frame().await {
                if let Ok(data) = frame.into_data() {
                    crate::content::feed(&feed, data).await;
                }
            }
        });
        echoing.detach_all();
        Ok(Response::new(answer))
    })
    .await;
    let (upload, body) = fed();
    let asked = request(Method::POST, "/", body);
    let response = within(exchange(&pair.server, asked, |_, _| {})).await.unwrap();
    let mut echo = response.into_body();
    for number in 0..200_u8 {
        feed(&upload, vec![number]).await;
        pair.server.send(Control::Drain { spread_ms: None }).unwrap();
        assert_eq!(within(crate::content::next_data(&mut echo)).await[..], [number]);
        assert!(within(pair.controls.recv()).await.is_some());
    }
    drop(upload);
    assert!(within(read(echo)).await.content.is_empty());
}
