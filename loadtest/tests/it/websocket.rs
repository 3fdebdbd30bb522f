//! WebSocket echoes: the round trip is that of the link, and what is due is sent.

use testkit::closed_port::closed_port;

use crate::{
    language::{Measured, Upstream, loadtest, scripted},
    relay::Relay,
};

fn websocket(url: &str, arguments: &str) -> Measured {
    loadtest(&format!(
        "websocket --url {url} --warm-up 0s --duration 500ms --timeout 5s {arguments}"
    ))
}

#[test]
fn a_round_trip_takes_what_the_link_takes() {
    let upstream = Upstream::start("");
    let relay = Relay::start(&upstream.url, "--delay 20ms");
    let measured = websocket(&relay.url, "--connections 3 --message-size 1000B");
    assert_eq!(
        measured.run()["errors"],
        serde_json::json!({}),
        "{measured:#?}"
    );
    assert!(measured.completed() > 0, "{measured:#?}");
    assert!(measured.latency("min") >= 0.04, "{measured:#?}");
    let moved = measured.completed() * 1000;
    assert_eq!(measured.run()["bytes_up"], moved);
    assert_eq!(measured.run()["bytes_down"], moved);
}

#[test]
fn messages_that_are_due_do_not_wait_for_one_another() {
    let upstream = Upstream::start("");
    let relay = Relay::start(&upstream.url, "--delay 100ms");
    let measured = websocket(&relay.url, "--connections 2 --rate 40");
    // In closed loop the link would let two or three through on each connection.
    measured.assert_sent(40);
    assert!(measured.latency("min") >= 0.199, "{measured:#?}");
}

#[test]
fn both_versions_of_http_carry_it() {
    let upstream = Upstream::start("");
    for version in ["", "--http2"] {
        let measured = websocket(
            &upstream.url,
            &format!("--connections 2 --rate 20 {version}"),
        );
        measured.assert_sent(20);
    }
}

#[test]
fn an_upgrade_that_fails_is_counted_by_its_reason() {
    websocket(&format!("http://{}", closed_port()), "-c 2").assert_only("connect_refused");
    let refuses = scripted(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
    websocket(&format!("http://{refuses}"), "-c 2").assert_only("status_403");
    let lies = scripted(
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n",
    );
    websocket(&format!("http://{lies}"), "-c 2").assert_only("upgrade_wrong_accept");
    // With a rate each message that was due is a failure, or was not sent.
    let measured = websocket(&format!("http://{refuses}"), "-c 1 --rate 10");
    let (refused, not_sent) = (measured.errors("status_403"), measured.errors("not_sent"));
    assert!(refused > 0 && refused + not_sent >= 5, "{measured:#?}");
}
