//! Every failure is counted, under the name that says what it was.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
    thread,
};

use rcgen::{CertificateParams, KeyPair};
use rustls::{ServerConfig, ServerConnection, StreamOwned, crypto::aws_lc_rs};
use tempfile::TempDir;
use testkit::closed_port::closed_port;

use crate::language::{Upstream, http, loadtest, scripted};

fn scripted_url(answer: &'static [u8]) -> String {
    format!("http://{}", scripted(answer))
}

#[test]
fn nobody_listens() {
    let url = format!("http://{}", closed_port());
    http(&url, "--connections 2").assert_only("connect_refused");
    // In open loop each that is due fails, and no more.
    let open = http(&url, "--rate 50");
    let (refused, not_sent) = (open.errors("connect_refused"), open.errors("not_sent"));
    assert_eq!((open.completed(), refused + not_sent), (0, 25), "{open:#?}");
    assert!(refused > 12, "{open:#?}");
}

#[test]
fn no_answer_in_time() {
    let upstream = Upstream::start("--delay 1m");
    let measured = http(&upstream.url, "--connections 2 --timeout 150ms");
    measured.assert_only("timeout");
    // Each connection tries at 0, 150, 300 and 450 ms.
    assert!(
        (2..=8).contains(&measured.errors("timeout")),
        "{measured:#?}"
    );
}

#[test]
fn a_status_keeps_its_code() {
    let upstream = Upstream::start("--error-rate 1");
    http(&upstream.url, "--connections 2").assert_only("status_503");
    http(&upstream.url, "--connections 2 --http2").assert_only("status_503");
}

#[test]
fn the_connection_closes_before_the_answer() {
    http(&scripted_url(b""), "--connections 1").assert_only("closed_early");
}

#[test]
fn the_content_is_cut() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc";
    http(&scripted_url(answer), "--connections 1").assert_only("body_short");
    let answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc";
    http(&scripted_url(answer), "--connections 1").assert_only("body_short");
}

#[test]
fn the_answer_is_no_http() {
    http(&scripted_url(b"SSH-2.0-OpenSSH\r\n\r\n"), "--connections 1").assert_only("protocol");
}

#[test]
fn a_connection_that_the_answer_closes_is_no_error() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
    let measured = http(&scripted_url(answer), "--rate 50");
    measured.assert_sent(25);
}

#[test]
fn a_stranger_s_certificate_is_not_believed() {
    let directory = TempDir::new().unwrap();
    let url = format!("https://localhost:{}", tls_server(directory.path()).port());
    http(&url, "--connections 1").assert_only("tls_handshake");
    let ca = directory.path().join("ca.pem");
    for trust in [format!("--ca {}", ca.display()), "--insecure".to_owned()] {
        let measured = http(&url, &format!("--rate 20 {trust}"));
        assert_eq!(measured.code, 0, "{measured:#?}");
        measured.assert_sent(10);
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    let cases = [
        (
            "http --url ftp://localhost",
            "starts with http:// or https://",
        ),
        ("http --url http://name.invalid/", "name.invalid"),
        (
            "http --url http://localhost --pid x=999999999",
            "no such process",
        ),
        (
            "http --url https://localhost --ca missing.pem",
            "missing.pem",
        ),
        ("http", "--url"),
        ("http --url http://localhost --rate 0", "above zero"),
    ];
    for (arguments, expected) in cases {
        let measured = loadtest(arguments);
        assert_ne!(measured.code, 0, "{arguments}");
        assert!(measured.complaint.contains(expected), "{measured:#?}");
    }
}

/// A server on localhost whose certificate, which it signed itself, is in `ca.pem`. It answers one
/// request on each connection.
fn tls_server(directory: &Path) -> SocketAddr {
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned()];
    let certificate = CertificateParams::new(names)
        .unwrap()
        .self_signed(&key)
        .unwrap();
    std::fs::write(directory.join("ca.pem"), certificate.pem()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            key.serialize_der().try_into().unwrap(),
        );
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let connection = ServerConnection::new(config.clone()).unwrap();
            let mut stream = StreamOwned::new(connection, stream);
            thread::spawn(move || {
                let mut head = [0; 4096];
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
                if stream.read(&mut head).is_ok_and(|length| length > 0) {
                    drop(stream.write_all(answer));
                    stream.conn.send_close_notify();
                    drop(stream.flush());
                }
            });
        }
    });
    address
}
