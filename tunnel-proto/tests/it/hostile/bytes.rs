//! Invalid WebSocket bytes, connections that end within a message, and endless input.

use std::time::Duration;

use bytes::Bytes;
use tokio::{
    io::{AsyncWriteExt, duplex},
    task::JoinSet,
    time::Instant,
};
use tokio_tungstenite::tungstenite::Message;
use tunnel_proto::{
    close::CloseReason,
    session::{SessionEnd, Side, WebSocketError},
};

use crate::{
    content::pattern,
    pair::{Drivers, settle, within},
    peer::{Frame, Peer},
};

#[tokio::test(start_paused = true)]
async fn invalid_websocket_bytes_end_the_session() {
    // Unmasked; reserved bits; an unknown opcode; a fragmented control frame, and one too long; a
    // continuation without a message; lengths beyond the limit; text that is not UTF-8.
    let attacks: [&[u8]; 9] = [
        &[0x82, 0x01, 0x00],
        &[0xc2, 0x80, 0, 0, 0, 0],
        &[0x83, 0x80, 0, 0, 0, 0],
        &[0x09, 0x80, 0, 0, 0, 0],
        &[0x89, 0xfe, 0x01, 0x00, 0, 0, 0, 0],
        &[0x80, 0x80, 0, 0, 0, 0],
        &[0x82, 0xff, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0, 0],
        &[
            0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
        ],
        &[0x81, 0x81, 0, 0, 0, 0, 0xff],
    ];
    for (number, bytes) in attacks.into_iter().enumerate() {
        let mut drivers = Drivers::default();
        let (server, _events, peer) = Peer::of(Side::Server, &mut drivers).await;
        let mut connection = peer.into_connection();
        let start = Instant::now();
        connection.write_all(bytes).await.unwrap();
        // Later bytes are never parsed.
        let _ = connection.write_all(&[0; 1_000]).await;
        let (_, end) = drivers.next_end().await;
        let is_named = matches!(end, SessionEnd::WebSocket(WebSocketError::Protocol(_)));
        assert!(is_named, "attack {number}: {end}");
        assert!(start.elapsed() <= Duration::from_secs(1), "attack {number}");
        assert!(server.is_closed());
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_applies_to_a_fragmented_message_as_a_whole() {
    let mut drivers = Drivers::default();
    let (_server, _events, peer) = Peer::of(Side::Server, &mut drivers).await;
    let mut connection = peer.into_connection();
    let mut first = vec![0x02];
    for _ in 0..1_000 {
        // 1,000 masked bytes, never the last piece.
        let mut piece = std::mem::replace(&mut first, vec![0x00]);
        piece.extend_from_slice(&[0x80 | 126, 0x03, 0xe8, 0, 0, 0, 0]);
        piece.resize(piece.len() + 1_000, 0);
        if within(connection.write_all(&piece)).await.is_err() {
            break;
        }
    }
    let (_, end) = drivers.next_end().await;
    assert!(
        matches!(end, SessionEnd::WebSocket(WebSocketError::Protocol(_))),
        "{end}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_end_within_a_message_is_a_lost_connection() {
    for bytes in [&[][..], &[0x82], &[0x82, 0x85, 0, 0, 0, 0, 1, 2]] {
        let mut drivers = Drivers::default();
        let (_server, _events, peer) = Peer::of(Side::Server, &mut drivers).await;
        let mut connection = peer.into_connection();
        connection.write_all(bytes).await.unwrap();
        drop(connection);
        let (_, end) = drivers.next_end().await;
        assert!(
            matches!(end, SessionEnd::WebSocket(WebSocketError::Io(_))),
            "{end}"
        );
    }
}

/// In real time: paused time does not advance while any task is busy.
#[tokio::test]
async fn endless_input_does_not_delay_the_close() {
    for is_broken in [false, true] {
        let mut drivers = Drivers::default();
        // More than one poll may read.
        let (ours, theirs) = duplex(4 << 20);
        let (server, _events, mut peer) =
            Peer::over(ours, Box::new(theirs), Side::Server, &mut drivers).await;
        let mut talking = JoinSet::new();
        talking.spawn(async move {
            if is_broken {
                peer.send(Message::Text("garbage".into())).await;
            }
            let frame = Frame::data(0, 100, &[7; 10_000]);
            while peer.frame(frame.clone()).await {
                peer.send(Message::Ping(Bytes::from_static(&[1; 125])))
                    .await;
            }
        });
        settle().await;
        server.close(CloseReason::Revoked);
        let end = tokio::time::timeout(Duration::from_secs(5), drivers.next_end()).await;
        end.expect("it stays");
    }
}

/// Over real sockets: closing one with unread bytes resets it, and the last bytes sent are lost.
#[tokio::test]
async fn a_peer_with_unread_input_still_receives_the_close_reason() {
    for attack in [
        Message::Binary(pattern(300_000)),
        Message::Text("garbage".into()),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let theirs = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (ours, _) = listener.accept().await.unwrap();
        let mut drivers = Drivers::default();
        let (_server, _events, mut peer) =
            Peer::over(ours, Box::new(theirs), Side::Server, &mut drivers).await;
        peer.send(attack).await;
        for _ in 0..10 {
            peer.bytes(pattern(100_000)).await;
        }
        assert_eq!(peer.close_code().await, Some(4004));
        drivers.next_end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn frames_without_content_do_not_starve_other_tasks() {
    const FRAMES: usize = 20_000;
    // Masked: pings, binary messages, and the parts of one binary message, and of one text message.
    for (first, frame) in [(0x89, 0x89), (0x82, 0x82), (0x02, 0x00), (0x01, 0x00)] {
        let mut drivers = Drivers::default();
        let (ours, theirs) = duplex(1024 * 1024);
        let (server, _events, peer) =
            Peer::over(ours, Box::new(theirs), Side::Server, &mut drivers).await;
        let mut connection = peer.into_connection();
        settle().await;
        let before = drivers.polls();
        let mut frames = vec![first, 0x80, 0, 0, 0, 0];
        frames.extend([frame, 0x80, 0, 0, 0, 0].repeat(FRAMES));
        connection.write_all(&frames).await.unwrap();
        settle().await;
        let polls = drivers.polls() - before;
        assert!(!server.is_closed());
        // Each frame counts for at least 256 bytes, and a poll handles 128 KiB.
        assert!(polls >= FRAMES / 512, "{polls} polls for {frame:#x}");
    }
}
