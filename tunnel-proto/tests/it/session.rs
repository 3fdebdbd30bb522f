//! One session: control messages, its end, and its cost.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::{io::duplex, sync::Semaphore, task::JoinSet, time::Instant};
use tunnel_proto::{
    close::CloseReason,
    control::Control,
    exchange::{ExchangeError, RecvBody, exchange},
    limits,
    session::{OpenError, Session, SessionClosed, SessionEnd, SessionEvent, SessionSettings, Side},
};

use crate::{
    content::{
        TestError, empty, fed, feed, full, get, never, next_data, pattern, read, request, start,
    },
    pair::{Drivers, Handler, Pair, Relay, Setup, serve_with, session, settle, within},
};

#[tokio::test(start_paused = true)]
async fn control_messages_are_delivered_both_ways_and_unknown_ones_are_ignored() {
    let mut pair = Pair::start(empty).await;
    settle().await;
    let said = [
        Control::Unknown,
        Control::Welcome {
            runtime: "a-b".into(),
            session: "1".into(),
            version: "2".into(),
            node: None,
            url: None,
        },
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
        let Some(SessionEvent::Control(received)) = event else {
            panic!("no control message")
        };
        assert_eq!(&received, control);
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
async fn unhandled_control_messages_end_the_session() {
    let mut pair = Pair::start(empty).await;
    for _ in 0..=limits::CONTROLS_WAITING {
        pair.client
            .send(Control::Hello {
                version: "1".into(),
            })
            .unwrap();
        settle().await;
    }
    let (server, client) = pair.drivers.ends().await;
    assert!(matches!(server, SessionEnd::Protocol(_)), "{server}");
    assert_eq!(client.reason(), CloseReason::ProtocolError);
}

#[tokio::test(start_paused = true)]
async fn a_close_reason_arrives_at_the_other_end() {
    use CloseReason::*;
    for reason in [
        Left,
        Drained,
        Superseded,
        Revoked,
        Overloaded,
        Internal,
        Other(4321),
    ] {
        for side in [Side::Server, Side::Client] {
            let mut pair = Pair::start(empty).await;
            settle().await;
            let closing = if side == Side::Server {
                &pair.server
            } else {
                &pair.client
            };
            closing.close(reason);
            assert!(!closing.is_open() && !closing.is_closed());
            let (server, client) = pair.drivers.ends().await;
            let (own, other) = if side == Side::Server {
                (server, client)
            } else {
                (client, server)
            };
            assert!(
                matches!(own, SessionEnd::Closed(own) if own == reason),
                "{own:?}"
            );
            assert!(
                matches!(other, SessionEnd::ClosedByPeer(other) if other == reason),
                "{side:?} {reason:?}: {other:?}"
            );
            within(pair.server.closed()).await;
            within(pair.client.closed()).await;
            within(pair.serving.join_next()).await.unwrap().unwrap();
            assert!(
                within(pair.server_events.next(&pair.server))
                    .await
                    .is_none()
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn messages_queued_before_the_close_still_arrive() {
    let mut pair = Pair::start(empty).await;
    settle().await;
    pair.server
        .send(Control::Revoked {
            detail: "expired".into(),
        })
        .unwrap();
    pair.server.close(CloseReason::Revoked);
    let received = within(pair.controls.recv()).await;
    assert_eq!(
        received,
        Some(Control::Revoked {
            detail: "expired".into()
        })
    );
    let (_, client) = pair.drivers.ends().await;
    assert_eq!(client.reason(), CloseReason::Revoked);
}

#[tokio::test(start_paused = true)]
async fn a_response_sent_before_the_client_leaves_is_complete() {
    // Far more than the connection takes at once.
    let content = pattern(200_000);
    let (answer, started) = (content.clone(), Arc::new(Semaphore::new(0)));
    let setup = Setup {
        connection_bytes: 8 * 1024,
        ..Setup::default()
    };
    let leave = started.clone();
    let mut pair = Pair::start_with(setup, move |_: Request<RecvBody>| {
        let answer = answer.clone();
        started.add_permits(1);
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
    let response = within(exchange(&pair.server, get("/"), |_, _| {}))
        .await
        .unwrap();
    let arrived = within(read(response.into_body())).await;
    assert!(arrived.error.is_none(), "{:?}", arrived.error);
    assert!(
        arrived.content == content,
        "{} bytes",
        arrived.content.len()
    );
    let (server, _) = pair.drivers.ends().await;
    assert_eq!(server.reason(), CloseReason::Left);
}

#[tokio::test(start_paused = true)]
async fn a_close_does_not_wait_for_a_peer_that_does_not_read() {
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
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    assert!(relay.is_running());
}

#[tokio::test(start_paused = true)]
async fn a_dead_peer_is_detected_within_two_ping_intervals() {
    let interval = Duration::from_secs(15);
    let (relay, server_io, client_io) = Relay::start(Duration::ZERO);
    let settings = SessionSettings {
        ping_interval: interval,
        ..SessionSettings::default()
    };
    let mut pair = Pair::start_over(server_io, client_io, settings, never).await;
    let mut exchanges = JoinSet::new();
    start(&mut exchanges, &pair.server, "/");
    tokio::time::sleep(interval * 3 + interval / 2).await;
    assert!(!pair.server.is_closed() && !pair.client.is_closed());
    relay.stop();
    let start = Instant::now();
    let (server, client) = pair.drivers.ends().await;
    assert!(start.elapsed() <= interval * 2, "{:?}", start.elapsed());
    assert!(
        matches!((&server, &client), (SessionEnd::Dead, SessionEnd::Dead)),
        "{server} {client}"
    );
    assert_eq!(
        within(exchanges.join_next())
            .await
            .unwrap()
            .unwrap()
            .unwrap(),
        "failed"
    );
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
async fn a_session_with_pongs_slower_than_the_interval_stays_alive() {
    let (_relay, server_io, client_io) = Relay::start(Duration::from_millis(800));
    let interval = Duration::from_secs(1);
    let settings = SessionSettings {
        ping_interval: interval,
        ..SessionSettings::default()
    };
    let pair = Pair::start_over(server_io, client_io, settings, empty).await;
    tokio::time::sleep(interval * 20).await;
    assert!(!pair.server.is_closed() && !pair.client.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_draining_session_refuses_new_exchanges_and_completes_open_ones() {
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
    let refused = exchange(&pair.server, get("/"), |_, _| {})
        .await
        .unwrap_err();
    assert!(
        matches!(refused, ExchangeError::NotOpened(OpenError::Closed)),
        "{refused}"
    );
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
    assert_eq!(
        within(exchanges.join_next())
            .await
            .unwrap()
            .unwrap()
            .unwrap(),
        "answered"
    );
    while within(waiting.join_next()).await.is_some() {}
    assert!(!pair.server.is_closed(), "a drain is no end");
}

#[tokio::test(start_paused = true)]
async fn an_end_without_a_close_frame_wakes_all_waiting_tasks() {
    let (server_io, _client_io) = duplex(1024);
    let mut drivers = Drivers::default();
    let (server, mut events) = session(
        &mut drivers,
        server_io,
        Side::Server,
        SessionSettings::default(),
    )
    .await;
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
async fn an_unread_body_does_not_keep_an_ended_session_busy() {
    let (server_io, client_io) = duplex(1024);
    let mut drivers = Drivers::default();
    let settings = SessionSettings::default();
    let (server, _events) = session(&mut drivers, server_io, Side::Server, settings).await;
    let (client, mut events) = session(&mut drivers, client_io, Side::Client, settings).await;
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let Some(SessionEvent::Stream(stream)) = events.next(&client).await else {
            return;
        };
        let (feed, body) = fed();
        let body = Mutex::new(Some(body));
        let answer = move |_: Request<RecvBody>| {
            let body = body.lock().unwrap().take().unwrap();
            async { Ok(Response::new(body)) }
        };
        serve_with(stream, Handler(Arc::new(answer))).await;
        drop(feed);
    });
    let response = within(exchange(&server, get("/"), |_, _| {}))
        .await
        .unwrap();
    let (waiting, session) = (&mut JoinSet::new(), server.clone());
    waiting.spawn(async move { session.at_rest().await });
    settle().await;
    assert_eq!((waiting.len(), server.outstanding()), (1, 1));
    drivers.drop_all().await;
    within(waiting.join_next()).await.unwrap().unwrap();
    within(server.at_rest()).await;
    drop(response);
    assert_eq!(server.outstanding(), 0);
    within(serving.join_next()).await.unwrap().unwrap();
}

/// Whether a future is pending.
async fn is_pending(mut future: Pin<Box<impl Future>>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

#[tokio::test(start_paused = true)]
async fn a_cut_session_sends_its_reason_and_ends_all_exchanges() {
    let (_relay, server_io, client_io) = Relay::start(Duration::from_millis(1));
    let settings = SessionSettings::default();
    // Both ends send without end.
    let flood = || {
        let piece = || Ok::<_, TestError>(Frame::data(pattern(10_000)));
        BodyExt::boxed(StreamBody::new(futures_util::stream::repeat_with(piece)))
    };
    let answer = move |request: Request<RecvBody>| async move {
        let mut reading = JoinSet::new();
        reading.spawn(read(request.into_body()));
        reading.detach_all();
        Ok(Response::new(flood()))
    };
    let mut pair = Pair::start_over(server_io, client_io, settings, answer).await;
    let request = request(Method::POST, "/", flood());
    let response = within(exchange(&pair.server, request, |_, _| {}))
        .await
        .unwrap();
    let mut reading = JoinSet::new();
    reading.spawn(read(response.into_body()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    let revoked = Control::Revoked {
        detail: "gone".into(),
    };
    pair.server.send(revoked.clone()).unwrap();
    pair.server.cut(CloseReason::Revoked);
    let arrived = within(reading.join_next()).await.unwrap().unwrap();
    let close = arrived.error.and_then(|error| error.close_reason());
    assert_eq!(close, Some(CloseReason::Revoked));
    assert!(start.elapsed() <= Duration::from_millis(20));
    assert_eq!(within(pair.controls.recv()).await, Some(revoked));
    let (server, client) = pair.drivers.ends().await;
    assert!(
        matches!(server, SessionEnd::Closed(CloseReason::Revoked)),
        "{server}"
    );
    assert!(
        matches!(client, SessionEnd::ClosedByPeer(CloseReason::Revoked)),
        "{client}"
    );
    assert!(start.elapsed() <= Duration::from_millis(20));
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_costs_nothing_but_its_pings() {
    let settings = SessionSettings {
        ping_interval: Duration::from_secs(15),
        ..SessionSettings::default()
    };
    let mut pair = Pair::start_with(
        Setup {
            settings,
            ..Setup::default()
        },
        empty,
    )
    .await;
    within(exchange(&pair.server, get("/"), |_, _| {}))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = pair.drivers.polls();
    tokio::time::sleep(Duration::from_secs(15 * 100)).await;
    // For each ping of either end: one poll for the timer, one for the pong, and one at the other end for
    // the ping.
    let polls = pair.drivers.polls() - before;
    assert!(polls <= 100 * 2 * 4, "{polls} polls for 200 pings");
    pair.server.close(CloseReason::Drained);
    pair.drivers.ends().await;
}

#[tokio::test(start_paused = true)]
async fn a_stalled_session_does_not_spin() {
    let setup = Setup {
        connection_bytes: 4 * 1024,
        ..Setup::default()
    };
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
    // A ping each second, since there are exchanges that wait, and its answer.
    assert!(
        pair.drivers.polls() - before < 50,
        "{}",
        pair.drivers.polls() - before
    );
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_has_ended_may_be_kept_and_polled() {
    let (server_io, client_io) = duplex(1024);
    let settings = SessionSettings::default();
    let (server, mut events, driver) =
        Session::new(server_io, Bytes::new(), Side::Server, settings);
    drop(client_io);
    let mut driver = Box::pin(driver);
    let end = within(driver.as_mut()).await;
    assert!(matches!(end, SessionEnd::WebSocket(_)), "{end}");
    assert!(
        within(events.next(&server)).await.is_none(),
        "the events end with the session"
    );
    assert!(is_pending(driver).await, "nothing more comes of it");
    assert_eq!(server.send(Control::Unknown), Err(SessionClosed));
}

#[tokio::test(start_paused = true)]
async fn an_exchange_continues_while_control_messages_are_sent() {
    let mut pair = Pair::start(async |request: Request<RecvBody>| {
        let body = request.into_body();
        let (feeding, answer) = fed();
        let mut echoing = JoinSet::new();
        echoing.spawn(async move {
            let mut body = body;
            while let Some(Ok(frame)) = body.frame().await {
                if let Ok(data) = frame.into_data() {
                    feed(&feeding, data).await;
                }
            }
        });
        echoing.detach_all();
        Ok(Response::new(answer))
    })
    .await;
    let (upload, body) = fed();
    let request = request(Method::POST, "/", body);
    let response = within(exchange(&pair.server, request, |_, _| {}))
        .await
        .unwrap();
    let mut echo = response.into_body();
    for number in 0..200_u8 {
        feed(&upload, vec![number]).await;
        pair.server
            .send(Control::Drain { spread_ms: None })
            .unwrap();
        assert_eq!(within(next_data(&mut echo)).await[..], [number]);
        assert!(within(pair.controls.recv()).await.is_some());
    }
    drop(upload);
    assert!(within(read(echo)).await.content.is_empty());
}
