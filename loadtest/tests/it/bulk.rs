//! Streams of bytes: exactly those that moved are reported, and a link is not outrun.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::{
    language::{Upstream, loadtest, programs, scripted},
    relay::Relay,
};

/// The run with this name.
#[track_caller]
fn run<'a>(report: &'a Value, name: &str) -> &'a Value {
    let runs = report["runs"].as_array().unwrap();
    let found = runs.iter().find(|run| run["name"] == name);
    found.unwrap_or_else(|| panic!("no run {name}: {report:#?}"))
}

#[test]
fn each_stream_moves_exactly_its_size() {
    let upstream = Upstream::start("");
    for version in ["", "--http2"] {
        let measured = loadtest(&format!(
            "bulk --url {} --size 3000001B --streams 4 --direction both --verify {version}",
            upstream.url
        ));
        assert_eq!(measured.code, 0, "{measured:#?}");
        for (name, up, down) in [("down", 0, 12_000_004), ("up", 12_000_004, 0)] {
            let run = run(&measured.report, name);
            assert_eq!(run["bytes_up"], up, "{measured:#?}");
            assert_eq!(run["bytes_down"], down, "{measured:#?}");
            assert_eq!(run["completed"], 4, "{measured:#?}");
            assert_eq!(run["errors"], serde_json::json!({}), "{measured:#?}");
            assert!(run["seconds"].as_f64().unwrap() > 0.0, "{measured:#?}");
        }
        for shown in [
            "fairness",
            "first byte",
            "processor time per GiB",
            "load generator",
        ] {
            assert!(measured.text.contains(shown), "{shown}: {}", measured.text);
        }
    }
}

#[test]
fn streams_without_a_size_end_with_the_window() {
    let upstream = Upstream::start("");
    let measured = loadtest(&format!(
        "bulk --url {} --warm-up 100ms --duration 500ms --direction both",
        upstream.url
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    for (name, field) in [("down", "bytes_down"), ("up", "bytes_up")] {
        let run = run(&measured.report, name);
        assert!(run[field].as_u64().unwrap() > 0, "{measured:#?}");
        assert_eq!(run["errors"], serde_json::json!({}), "{measured:#?}");
        assert!(
            !run["timeline"].as_array().unwrap().is_empty(),
            "{measured:#?}"
        );
    }
}

#[test]
fn a_pace_is_kept_in_both_directions() {
    let upstream = Upstream::start("");
    let measured = loadtest(&format!(
        "bulk --url {} --rate-per-stream 200KiB --streams 3 --warm-up 0s --duration 500ms \
         --direction both",
        upstream.url
    ));
    for (name, field) in [("down", "bytes_down"), ("up", "bytes_up")] {
        let run = run(&measured.report, name);
        let moved = run[field].as_u64().unwrap();
        // A piece may already be under way when the window begins or ends.
        let most = 3.0 * 250.0 * 1024.0 * run["seconds"].as_f64().unwrap();
        assert!(moved > 0 && (moved as f64) <= most, "{measured:#?}");
    }
}

#[test]
fn a_link_is_not_outrun() {
    let upstream = Upstream::start("");
    let relay = Relay::start(&upstream.url, "--delay 20ms --rate 8Mbit");
    for direction in ["down", "up"] {
        let measured = loadtest(&format!(
            "bulk --url {} --size 500000B --direction {direction}",
            relay.url
        ));
        assert_eq!(measured.code, 0, "{measured:#?}");
        // At a million bytes a second, and the request there and the answer back.
        let seconds = measured.run()["seconds"].as_f64().unwrap();
        assert!(seconds >= 0.54, "{measured:#?}");
    }
}

#[test]
fn what_is_cut_or_too_short_is_no_transfer() {
    let cut = scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello");
    let measured = loadtest(&format!("bulk --url http://{cut}/file --size 10B"));
    assert_eq!(measured.errors("body_short"), 1, "{measured:#?}");
    assert_eq!(measured.run()["bytes_down"], 5, "{measured:#?}");
    let short = scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
    let measured = loadtest(&format!("bulk --url http://{short}/file --size 10B"));
    assert_eq!(measured.errors("wrong_length"), 1, "{measured:#?}");
    let refused = scripted(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n");
    let measured = loadtest(&format!("bulk --url http://{refused} --size 10B"));
    measured.assert_only("status_503");
}

#[test]
fn what_began_in_the_warm_up_and_breaks_in_the_window_is_counted() {
    let address = breaking(Duration::from_millis(900));
    let measured = loadtest(&format!(
        "bulk --url http://{address}/file --warm-up 200ms --duration 1200ms"
    ));
    // The second transfer would break after the window.
    assert_eq!(measured.errors("body_short"), 1, "{measured:#?}");
}

/// A server whose answers are cut after so long.
fn breaking(after: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut head = [0; 4096];
                if stream.read(&mut head).is_ok_and(|length| length > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello";
                    drop(stream.write_all(answer));
                    thread::sleep(after);
                }
            });
        }
    });
    address
}

#[test]
fn a_link_in_a_tunnel_is_measured_against_its_rate() {
    let measured = loadtest(&format!(
        "bulk --self-contained --programs {} --link-delay 5ms --link-rate 40Mbit --size 1000000B",
        programs().display()
    ));
    assert_eq!(measured.code, 0, "{measured:#?}");
    let run = measured.run();
    assert_eq!(run["bytes_down"], 1_000_000, "{measured:#?}");
    // The link carries five million bytes a second.
    assert!(run["seconds"].as_f64().unwrap() >= 0.2, "{measured:#?}");
    assert!(run["usage"]["relay"].is_object(), "{measured:#?}");
    assert!(
        measured.text.contains("share of the link"),
        "{}",
        measured.text
    );
}
