//! How a server stops: in order, in time, and at once when it must.

use std::time::Duration;

use tokio::{io::AsyncWriteExt, time::Instant};
use tunnel_proto::{close::CloseReason, control::Control, session::SessionEnd};

use crate::{
    deadline::soon,
    fake::{data, random_instance},
    raw::{End, Raw},
    rig::{PROD, Rig, connect, identity, tls},
    sessions::{answering, get},
};

#[tokio::test]
async fn stopping_tells_sessions_and_finishes_what_is_open() {
    let rig = Rig::start().await;
    let (mut client, mut feeds) = answering(&rig, random_instance()).await;
    let (mut idle, mut busy) = (rig.raw().await, rig.raw().await);
    assert_eq!(idle.ask(get("/now")).await.head.status, 200);
    busy.send(get("/long")).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    assert_eq!(rig.admin("/readyz").await.0, 200);

    rig.trigger.ask();
    client
        .control(|control| matches!(control, Control::Drain { .. }))
        .await;
    assert_eq!(idle.closes().await, End::Whole);
    let (code, text) = rig.admin("/readyz").await;
    assert_eq!(code, 503, "{text}");
    assert_eq!(rig.admin("/healthz").await.0, 200);
    feed.send(data("done")).await.unwrap();
    drop(feed);
    let answer = busy.answer().await;
    assert_eq!((answer.text().as_str(), answer.end), ("done", End::Whole));
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
    let rig = Rig::with(|config| config.grace_period = grace).await;
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
    assert_eq!(busy.head().await.unwrap().status, 200);
    let (rest, _) = busy.rest().await;
    assert!(!rest.ends_with(b"0\r\n\r\n"));
    soon("the session's end", client.session.closed()).await;
}

/// Neither does it wait for those that have connected and ask for nothing.
#[tokio::test]
async fn stopping_does_not_wait_for_the_silent() {
    for has_tls in [false, true] {
        let rig = Rig::with(|config| {
            config.grace_period = Duration::from_secs(600);
            config.proxy_protocol = has_tls;
            config.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
            config.public_tls = has_tls.then(identity);
        })
        .await;
        let mut silent = Vec::new();
        for (address, first) in [(rig.addresses.tunnel, 0x16), (rig.addresses.public, b'P')] {
            silent.push(Raw::new(connect(address).await));
            let mut begun = Raw::new(connect(address).await);
            begun.send([first]).await;
            silent.push(begun);
        }
        silent.push(Raw::new(rig.tunnel().await));
        if has_tls {
            let mut socket = connect(rig.addresses.public).await;
            socket.write_all(b"PROXY UNKNOWN\r\n").await.unwrap();
            silent.push(Raw::new(tls(socket, &[b"http/1.1"]).await));
            let mut socket = connect(rig.addresses.public).await;
            socket.write_all(b"PROXY UNKNOWN\r\n").await.unwrap();
            silent.push(Raw::new(socket));
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
        config.grace_period = Duration::from_secs(600);
        config.drain_delay = Duration::from_secs(600);
    })
    .await;
    let (_client, mut feeds) = answering(&rig, random_instance()).await;
    let mut busy = rig.raw().await;
    busy.send(get("/long")).await;
    let _feed = soon("the request", feeds.recv()).await.unwrap();
    rig.trigger.ask();
    // Until it is forced, everything goes on, also for those who come now.
    let mut raw: Raw = rig.raw().await;
    assert_eq!(raw.ask(get("/now")).await.head.status, 200);
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
    rig.trigger.ask();
    _client
        .control(|control| matches!(control, Control::Drain { .. }))
        .await;
    let mut raw = Raw::new(io);
    raw.send(format!(
        "GET /connect HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         sec-websocket-protocol: tunnel.v1\r\ntunnel-instance: {}\r\ntunnel-client-version: 1\r\n\
         tunnel-session: 1\r\nauthorization: Bearer {}\r\n\r\n",
        random_instance(),
        rig.token(PROD),
    ))
    .await;
    let answer = raw.answer().await;
    assert_eq!(
        (answer.head.status, answer.reason().as_str()),
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
                    config.shards = shards;
                    match listener {
                        "public" => config.public_listen = addresses.public,
                        _ => config.tunnel_listen = addresses.tunnel,
                    }
                })
                .await;
            let text = error.to_string();
            assert!(text.contains(listener) && text.contains("in use"), "{text}");
        }
    }
}
