//! Behind proxies: whose word is taken for who asked.

use testkit::{
    http1::RawConnection,
    tunnel::client::{FakeClient, ReceivedRequest},
};
use tokio::io::AsyncWriteExt;

use crate::rig::{PROD, PROD_HOST, Rig, connect, identity, tls, try_tls};

const V1: &[u8] = b"PROXY TCP4 203.0.113.9 192.0.2.1 50000 443\r\n";
const V1_IPV6: &[u8] = b"PROXY TCP6 2001:db8::9 2001:db8::1 50000 443\r\n";
const V1_UNKNOWN: &[u8] = b"PROXY UNKNOWN\r\n";

/// A header of version 2 with this command and an IPv4 address, and an extension behind that.
fn v2(command: u8) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([0x20 | command, 0x11, 0, 12 + 7]);
    header.extend([203, 0, 113, 10, 192, 0, 2, 1, 0xc3, 0x50, 1, 0xbb]);
    header.extend([0x05, 0, 4, 1, 2, 3, 4]);
    header
}

fn get(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n{lines}\r\n")
}

/// Who asked, as the upstream is told.
fn origin(seen: &ReceivedRequest) -> (String, String) {
    (
        seen.values("x-forwarded-for").join(", "),
        seen.values("forwarded").join(", "),
    )
}

fn forwarded(node: &str, scheme: &str) -> String {
    format!("for={node};host=\"{PROD_HOST}\";proto={scheme}")
}

#[tokio::test]
async fn a_trusted_peer_names_its_client() {
    let rig = Rig::with(|config| {
        config.settings.proxy_protocol = true;
        config.settings.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    })
    .await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut count = 0;
    for (header, address, node) in [
        (V1.to_vec(), "203.0.113.9", "203.0.113.9"),
        (V1_IPV6.to_vec(), "2001:db8::9", "\"[2001:db8::9]\""),
        (V1_UNKNOWN.to_vec(), "127.0.0.1", "127.0.0.1"),
        (v2(1), "203.0.113.10", "203.0.113.10"),
        (v2(0), "127.0.0.1", "127.0.0.1"),
    ] {
        for pieces in [1, usize::MAX] {
            let what = header.escape_ascii();
            let mut raw = rig.raw().await;
            let bytes = [&header[..], get("x-forwarded-for: 6.6.6.6\r\n").as_bytes()].concat();
            if pieces == 1 {
                raw.send(bytes).await;
            } else {
                for byte in bytes {
                    raw.send([byte]).await;
                }
            }
            assert_eq!(raw.response().await.head.status(), 200, "{what}");
            count += 1;
            let (list, forwarded_by) = origin(&client.request(count).await);
            // The proxy is believed; whom it speaks for is not, known or unknown, unless it speaks for itself.
            let is_own = header == v2(0);
            let before = if is_own { "6.6.6.6, " } else { "" };
            assert_eq!(list, format!("{before}{address}"), "{what}");
            assert_eq!(forwarded_by, forwarded(node, "http"), "{what}");
        }
    }
}

#[tokio::test]
async fn a_trusted_peer_without_a_valid_header_is_dropped() {
    let rig = Rig::with(|config| {
        config.settings.proxy_protocol = true;
        config.settings.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
        config.settings.first_byte_timeout = std::time::Duration::from_millis(300);
    })
    .await;
    let client = FakeClient::describing(&rig, PROD).await;
    let long = [b"PROXY TCP4 ".to_vec(), vec![b'1'; 200]].concat();
    for first in [
        get("").as_bytes(),
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 99999\r\n",
        b"PROXY TCP4 ::1 1.2.3.4 1 2\r\n",
        b"proxy TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2",
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c",
        &long,
        b"",
    ] {
        let mut raw = rig.raw().await;
        raw.send(first).await;
        if !first.starts_with(b"GET") {
            raw.send(get("")).await;
        }
        let (rest, _) = raw.rest().await;
        assert_eq!(rest, b"", "{}", first.escape_ascii());
    }
    assert_eq!(client.seen().len(), 0);
    let refused =
        "tunnel_server_connections_refused_total{cause=\"proxy_protocol\",listener=\"public\"}";
    rig.metric_becomes(refused, 9.0).await;
}

#[tokio::test]
async fn an_untrusted_peer_cannot_send_a_proxy_header() {
    for is_on in [true, false] {
        let rig = Rig::with(|config| {
            config.settings.proxy_protocol = is_on;
            config.settings.trusted_proxies = vec!["192.0.2.0/24".parse().unwrap()];
        })
        .await;
        let client = FakeClient::describing(&rig, PROD).await;
        for header in [V1.to_vec(), v2(1)] {
            let mut raw = rig.raw().await;
            let answer = raw.ask([&header[..], get("").as_bytes()].concat()).await;
            answer.assert_refused(400, "a header of a stranger");
        }
        // And needs none.
        let mut raw = rig.raw().await;
        assert_eq!(raw.ask(get("")).await.head.status(), 200);
        assert_eq!(origin(&client.request(1).await).0, "127.0.0.1");
    }
}

#[tokio::test]
async fn a_proxy_header_stands_in_front_of_tls() {
    let rig = Rig::with(|config| {
        config.settings.proxy_protocol = true;
        config.settings.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
        config.public_tls = Some(identity());
    })
    .await;
    let client = FakeClient::describing(&rig, PROD).await;
    for (header, address) in [(V1.to_vec(), "203.0.113.9"), (v2(1), "203.0.113.10")] {
        let mut socket = connect(rig.addresses.public).await;
        socket.write_all(&header).await.unwrap();
        let mut raw = RawConnection::over(tls(socket, &[b"http/1.1"]).await);
        assert_eq!(raw.ask(get("")).await.head.status(), 200);
        let seen = client.seen().pop().unwrap();
        assert_eq!(
            origin(&seen),
            (address.to_owned(), forwarded(address, "https"))
        );
        assert_eq!(seen.values("x-forwarded-proto"), ["https"]);
    }
    assert!(
        try_tls(connect(rig.addresses.public).await, &[b"http/1.1"])
            .await
            .is_err()
    );
}

#[tokio::test]
async fn fields_of_trusted_proxies_are_kept_and_added_to() {
    let rig = Rig::with(|config| {
        config.settings.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    })
    .await;
    let client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    raw.ask(get(
        "x-forwarded-for: 198.51.100.1\r\nx-forwarded-for: 198.51.100.2, 198.51.100.3\r\n\
         x-forwarded-proto: https\r\nx-forwarded-host: www.example.com\r\n\
         x-forwarded-port: 443\r\nx-real-ip: 198.51.100.1\r\n\
         forwarded: for=198.51.100.1;proto=https\r\n",
    ))
    .await;
    let seen = client.request(1).await;
    let (list, by) = origin(&seen);
    assert_eq!(list, "198.51.100.1, 198.51.100.2, 198.51.100.3, 127.0.0.1");
    // In one line, since many readers take only one.
    assert_eq!(seen.values("x-forwarded-for").len(), 1);
    assert_eq!(
        by,
        format!(
            "for=198.51.100.1;proto=https, {}",
            forwarded("127.0.0.1", "http")
        )
    );
    assert_eq!(seen.values("x-forwarded-proto"), ["https"]);
    assert_eq!(seen.values("x-forwarded-host"), ["www.example.com"]);
    assert_eq!(seen.values("x-forwarded-port"), ["443"]);
    assert_eq!(seen.values("x-real-ip"), ["198.51.100.1"]);
    // Even so, what it says is not what the request is routed by.
    assert_eq!(seen.authority, PROD_HOST);
    // No `Connection` line takes away what is added.
    raw.ask(get(
        "connection: x-forwarded-for, forwarded, x-forwarded-proto, x-forwarded-host\r\n",
    ))
    .await;
    let seen = client.request(2).await;
    assert_eq!(
        origin(&seen),
        ("127.0.0.1".to_owned(), forwarded("127.0.0.1", "http"))
    );
    assert_eq!(seen.values("x-forwarded-host"), [PROD_HOST]);
}
