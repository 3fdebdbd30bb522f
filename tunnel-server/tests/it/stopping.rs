//! How a server stops: in order, in time, and at once when it must.

use std::time::Duration;

use http::Response;
use testkit::http2::Frame;
use testkit::tunnel::{
    body::{collect, data, empty, fed},
    client::{FakeClient, random_instance},
};
use testkit::{
    deadline::soon,
    http1::{End, RawConnection},
};
use tokio::{io::AsyncWriteExt, time::Instant};
use tunnel_ops::task::Owned;
use tunnel_proto::{close::CloseReason, control::Control, session::SessionEnd};

use crate::{
    frames::{Frames, block},
    rig::{DEV, DEV_HOST, PROD, PROD_HOST, Rig, connect, identity, tls},
    serving::Files,
    sessions::{answering, get},
};

#[tokio::test]
async fn stopping_tells_sessions_and_finishes_what_is_open() {
    let rig = Rig::start().await;
    let (mut client, mut feeds) = answering(&rig, random_instance()).await;
    let (mut idle, mut busy) = (rig.raw().await, rig.raw().await);
    assert_eq!(idle.ask(get("/now")).await.head.status(), 200);
    busy.send(get("/long")).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    assert_eq!(rig.admin("/readyz").await.0, 200);

    rig.trigger.request();
    client
        .control(|control| matches!(control, Control::Drain { .. }))
        .await;
    assert_eq!(idle.closes().await, End::Clean);
    let (code, text) = rig.admin("/readyz").await;
    assert_eq!(code, 503, "{text}");
    assert_eq!(rig.admin("/healthz").await.0, 200);
    feed.send(data("done")).await.unwrap();
    drop(feed);
    let answer = busy.response().await;
    assert_eq!(
        (answer.text().as_str(), answer.content.end),
        ("done", End::Clean)
    );
    let end = client.ended().await;
    assert!(
        matches!(end, SessionEnd::ClosedByPeer(CloseReason::Drained)),
        "{end}"
    );
    rig.stopped().await;
}

#[tokio::test]
async fn stopping_waits_no_longer_than_the_grace_period() {
    let grace = Duration::from_millis(300);
    let rig = Rig::with(|config| config.settings.grace_period = grace).await;
    let (client, mut feeds) = answering(&rig, random_instance()).await;
    let mut busy = rig.raw().await;
    busy.send(get("/long")).await;
    let _feed = soon("the request", feeds.recv()).await.unwrap();
    let began = Instant::now();
    rig.stop().await;
    let took = began.elapsed();
    assert!(
        // The last of it is for telling why.
        took >= grace * 8 / 10 && took < grace + Duration::from_secs(3),
        "{took:?}"
    );
    assert_eq!(busy.head().await.unwrap().status(), 200);
    let (rest, _) = busy.rest().await;
    assert!(!rest.ends_with(b"0\r\n\r\n"));
    soon("the session's end", client.session.closed()).await;
}

/// A sender that stops in the middle of its content, one that is never silent, and one whose protocol has an
/// end: the program is gone before its time is over, by its own will.
#[tokio::test]
async fn the_program_ends_before_the_grace_period_does_whatever_is_stuck() {
    let grace = Duration::from_secs(5);
    let files = Files::new();
    let token = files.add("acme", "prod");
    let serving = files.serve("grace_period = \"5s\"").await;
    let connected = serving.dial(token.expose()).await;
    let (handed, mut feeds) = tokio::sync::mpsc::channel(2);
    let client = FakeClient::on(connected, move |request| {
        let handed = handed.clone();
        async move {
            let (feed, body) = fed();
            match request.uri().path() {
                "/post" => {
                    let _ = collect(request.into_body()).await;
                    return Ok(Response::new(empty()));
                }
                "/endless" => {
                    let endless = async move { while feed.send(data("more")).await.is_ok() {} };
                    handed
                        .send(Ok(Owned::spawn("endless", endless)))
                        .await
                        .unwrap();
                }
                _ => handed.send(Err(feed)).await.unwrap(),
            }
            Ok(Response::new(body))
        }
    })
    .await;
    let mut requests = Vec::new();
    for request in [
        format!("POST /post HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 9\r\n\r\nstuck"),
        get("/endless"),
        format!(
            "GET /chat HTTP/1.1\r\nhost: {PROD_HOST}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ),
    ] {
        let mut raw = RawConnection::over(connect(serving.public).await);
        raw.send(request).await;
        client.request(requests.len() + 1).await;
        requests.push(raw);
    }
    let (chat, mut endless) = (requests.pop().unwrap(), requests.pop().unwrap());
    let _feeds = (feeds.recv().await.unwrap(), feeds.recv().await.unwrap());
    let mut chat = chat;
    assert_eq!(chat.head().await.unwrap().status(), 101);
    let reading = Owned::spawn("reading", async move { endless.rest().await });
    let asked = Instant::now();
    serving.stop().await;
    let took = asked.elapsed();
    assert!((grace / 2..grace).contains(&took), "{took:?}");
    let (content, _) = soon("the end", reading).await.unwrap();
    assert!(!content.ends_with(b"0\r\n\r\n"), "a cut is no end");
    // 1001: going away.
    assert_eq!(chat.rest().await.0, [0x88, 2, 0x03, 0xe9]);
}

#[tokio::test]
async fn http2_connections_get_a_goaway_and_their_streams_end_whole() {
    let rig = Rig::start().await;
    let (client, mut feeds) = answering(&rig, random_instance()).await;
    let mut frames = Frames::new(rig.raw().await).await;
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", PROD_HOST),
        (":path", "/long"),
    ];
    let flags = Frame::END_HEADERS | Frame::END_STREAM;
    frames.send(Frame::HEADERS, flags, 1, &block(&fields)).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    rig.trigger.request();
    client
        .control(|control| matches!(control, Control::Drain { .. }))
        .await;
    client.session.send(Control::Moved).unwrap();
    let mut feed = Some(feed);
    let (mut goaways, mut content, mut is_ended) = (Vec::new(), Vec::new(), false);
    while let Some(frame) = frames.next().await {
        match frame.kind {
            Frame::PING if frame.flags & Frame::ACK == 0 => {
                frames
                    .send(Frame::PING, Frame::ACK, 0, &frame.payload)
                    .await
            }
            Frame::GOAWAY => {
                assert!(
                    !is_ended,
                    "before the stream ends, so that no other is begun"
                );
                assert_eq!(frame.payload[4..8], [0; 4], "no error");
                goaways.push(frame.payload[..4].to_vec());
            }
            Frame::DATA => {
                content.extend(frame.payload);
                is_ended |= frame.flags & Frame::END_STREAM != 0;
            }
            _ => {}
        }
        // The second one says which streams still count.
        if goaways.last().is_some_and(|last| *last == [0, 0, 0, 1])
            && let Some(feed) = feed.take()
        {
            feed.send(data("done")).await.unwrap();
        }
    }
    assert_eq!((&*content, is_ended), (&b"done"[..], true));
    rig.stopped().await;
}

/// As many sessions as two servers would make in two seconds are told to take that time.
#[tokio::test]
async fn the_drain_messages_to_many_clients_are_spread() {
    for (per_second, spread_ms) in [(1, Some(2_000)), (2, Some(1_000)), (3, None)] {
        let rig = Rig::with(|config| {
            config.leaving_per_second = per_second;
            config.settings.grace_period = Duration::from_secs(10);
        })
        .await;
        let (one, _feeds) = answering(&rig, random_instance()).await;
        let other = FakeClient::describing(&rig, DEV).await;
        rig.trigger.request();
        for client in [&one, &other] {
            let told = client.control(|control| matches!(control, Control::Drain { .. }));
            assert_eq!(told.await, Control::Drain { spread_ms });
            // The server may have ended the session by now, since nothing is open.
            let _ = client.session.send(Control::Moved);
        }
        rig.stopped().await;
    }
}

#[tokio::test]
async fn an_answer_of_a_draining_server_ends_its_connection() {
    let rig = Rig::start().await;
    let (client, _feeds) = answering(&rig, random_instance()).await;
    let (mut before, mut own) = (rig.raw().await, rig.raw().await);
    for raw in [&mut before, &mut own] {
        assert_eq!(
            raw.ask(get("/now")).await.head.value("connection"),
            Some("keep-alive")
        );
    }
    rig.trigger.request();
    client
        .control(|control| matches!(control, Control::Drain { .. }))
        .await;
    // The client has not moved yet: all is still served.
    let answer = before.ask(get("/now")).await;
    assert_eq!(
        (answer.head.status(), answer.content.end),
        (200, End::Clean)
    );
    let offline = format!("GET / HTTP/1.1\r\nhost: {DEV_HOST}\r\n\r\n");
    let refused = own.ask(offline).await;
    assert_eq!(refused.reason(), "runtime_offline");
    for (mut raw, answer) in [(before, answer), (own, refused)] {
        assert_eq!(answer.head.value("connection"), Some("close"), "{answer:?}");
        assert_eq!(raw.closes().await, End::Clean);
    }
    client.session.send(Control::Moved).unwrap();
    rig.stopped().await;
}

/// Neither does it wait for those that have connected and ask for nothing.
#[tokio::test]
async fn stopping_does_not_wait_for_the_silent() {
    for has_tls in [false, true] {
        let rig = Rig::with(|config| {
            config.settings.grace_period = Duration::from_secs(600);
            config.settings.proxy_protocol = has_tls;
            config.settings.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
            config.public_tls = has_tls.then(identity);
        })
        .await;
        let mut silent = Vec::new();
        for (address, first) in [(rig.addresses.tunnel, 0x16), (rig.addresses.public, b'P')] {
            silent.push(RawConnection::over(connect(address).await));
            let mut begun = RawConnection::over(connect(address).await);
            begun.send([first]).await;
            silent.push(begun);
        }
        silent.push(RawConnection::over(rig.tunnel().await));
        if has_tls {
            let mut socket = connect(rig.addresses.public).await;
            socket.write_all(b"PROXY UNKNOWN\r\n").await.unwrap();
            silent.push(RawConnection::over(tls(socket, &[b"http/1.1"]).await));
            let mut socket = connect(rig.addresses.public).await;
            socket.write_all(b"PROXY UNKNOWN\r\n").await.unwrap();
            silent.push(RawConnection::over(socket));
        }
        rig.metric_becomes("tunnel_server_connections{listener=\"tunnel\"}", 3.0)
            .await;
        rig.stop().await;
        for mut raw in silent {
            raw.closes().await;
        }
    }
}

#[tokio::test]
async fn stopping_by_force_waits_for_nothing() {
    let rig = Rig::with(|config| {
        config.settings.grace_period = Duration::from_secs(600);
        config.settings.drain_delay = Duration::from_secs(600);
    })
    .await;
    let (_client, mut feeds) = answering(&rig, random_instance()).await;
    let mut busy = rig.raw().await;
    busy.send(get("/long")).await;
    let _feed = soon("the request", feeds.recv()).await.unwrap();
    rig.trigger.request();
    // Until it is forced, everything goes on, also for those who come now.
    let mut raw: RawConnection = rig.raw().await;
    assert_eq!(raw.ask(get("/now")).await.head.status(), 200);
    rig.trigger.force();
    rig.stopped().await;
}

#[tokio::test]
async fn a_tunnel_client_that_dials_a_stopping_server_is_sent_elsewhere() {
    let rig = Rig::start().await;
    let (_client, mut feeds) = answering(&rig, random_instance()).await;
    let mut busy = rig.raw().await;
    busy.send(get("/long")).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    // Connected before the listener is gone, asking after it.
    let io = rig.tunnel().await;
    rig.trigger.request();
    _client
        .control(|control| matches!(control, Control::Drain { .. }))
        .await;
    let mut raw = RawConnection::over(io);
    raw.send(format!(
        "GET /connect HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         sec-websocket-protocol: tunnel.v1\r\ntunnel-instance: 00000000000000000000000000000000\r\ntunnel-client-version: 1\r\n\
         tunnel-session: 1\r\nauthorization: Bearer {}\r\n\r\n",
        rig.token(PROD),
    ))
    .await;
    let answer = raw.response().await;
    assert_eq!(
        (answer.head.status(), answer.reason().as_str()),
        (503, "server_draining")
    );
    assert!(answer.head.value("retry-after").is_some());
    drop(feed);
    rig.stopped().await;
}

/// A second server would get half of the connections, unnoticed.
#[tokio::test]
async fn an_address_that_is_in_use_cannot_be_bound_again() {
    let rig = Rig::start().await;
    for listener in ["public", "tunnel"] {
        for shards in [1, 2] {
            let addresses = rig.addresses;
            let error = rig
                .second(|config| {
                    config.settings.shards = shards;
                    match listener {
                        "public" => config.settings.public_listen = addresses.public,
                        _ => config.settings.tunnel_listen = addresses.tunnel,
                    }
                })
                .await;
            let text = error.to_string();
            assert!(text.contains(listener) && text.contains("in use"), "{text}");
        }
    }
}
