//! Server-Sent Events: as many as were sent, as late as they came.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    language::{Measured, Upstream, loadtest, scripted},
    relay::Relay,
};

fn sse(url: &str, arguments: &str) -> Measured {
    loadtest(&format!(
        "sse --url {url} --warm-up 0s --duration 1s --timeout 5s {arguments}"
    ))
}

#[test]
fn a_known_rate_and_delay_are_reported() {
    let upstream = Upstream::start("");
    let relay = Relay::start(&upstream.url, "--delay 30ms");
    let measured = sse(&relay.url, "--subscribers 3 --rate 25 --event-size 200B");
    assert_eq!(
        measured.run()["errors"],
        serde_json::json!({}),
        "{measured:#?}"
    );
    // 75 are due; those at the edges of the window may belong to it or not.
    assert!((60..=78).contains(&measured.completed()), "{measured:#?}");
    assert_eq!(measured.run()["bytes_down"], measured.completed() * 200);
    // One way, not there and back.
    assert!(measured.latency("min") >= 0.03, "{measured:#?}");
}

#[test]
fn a_stream_that_ends_is_subscribed_to_again_and_counted() {
    let upstream = Upstream::start("");
    let measured = sse(&format!("{}/events?rate=100&count=5", upstream.url), "-n 1");
    let ends = measured.errors("stream_ended");
    assert!(ends >= 2, "{measured:#?}");
    // Five each, but for the first and the last.
    let completed = measured.completed();
    assert!(
        completed >= (ends - 1) * 5 && completed <= (ends + 1) * 5,
        "{measured:#?}"
    );
}

#[test]
fn gaps_in_the_numbers_are_missed_events() {
    let address = numbered(&[1, 2, 5, 6]);
    let measured = sse(&format!("http://{address}/numbered"), "-n 1");
    let (missed, completed) = (measured.errors("missed_event"), measured.completed());
    assert!(completed >= 4, "{measured:#?}");
    // Two are missed in each four, but for a stream that the window cut.
    assert!(missed.abs_diff(completed / 2) <= 2, "{measured:#?}");
}

#[test]
fn a_silence_that_outlives_the_window_is_told() {
    let address = silent();
    let measured = loadtest(&format!(
        "sse --url http://{address} -n 1 --rate 20 --warm-up 0s --duration 500ms --timeout 1s"
    ));
    assert_eq!(measured.completed(), 0, "{measured:#?}");
    // Ten were due, or one less: where in its period the window began is not known.
    assert!(measured.errors("missed_event") >= 9, "{measured:#?}");
    assert_eq!(measured.errors("timeout"), 1, "{measured:#?}");
}

#[test]
fn events_without_a_time_are_told() {
    let address = scripted(b"HTTP/1.1 200 OK\r\n\r\ndata: hello\n\n");
    let measured = sse(&format!("http://{address}/hello"), "-n 1");
    assert!(measured.errors("no_send_time") > 0, "{measured:#?}");
    assert!(
        measured.text.contains("does not begin with the time"),
        "{}",
        measured.text
    );
}

/// Answers each request with a head, and never with an event.
fn silent() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut streams = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            drop(send(&mut stream, &[]));
            streams.push(stream);
        }
    });
    address
}

/// Sends events with these numbers on each connection, and closes it.
fn numbered(numbers: &'static [u64]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || drop(send(&mut stream, numbers)));
        }
    });
    address
}

fn send(stream: &mut TcpStream, numbers: &[u64]) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    let mut answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_owned();
    for number in numbers {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        answer += &format!("id: {number}\ndata: {}\n\n", now.as_nanos());
    }
    stream.write_all(answer.as_bytes())
}
