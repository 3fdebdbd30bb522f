//! Tunnel clients and platform clients at one listener; and tunnel clients behind load balancers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode, header};
use rustls_pki_types::ServerName;
use testkit::{
    deadline::{SOON, eventually, soon},
    http1::{End, RawConnection},
    tunnel::{
        body::{data, full},
        client::{Connected, FakeClient, dial, dial_over, random_instance, session_request},
    },
};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{SignatureScheme, client::ResolvesClientCert, sign::CertifiedKey},
};
use tunnel_ops::tls_files;
use tunnel_proto::{close::CloseReason, control::Control, session::SessionEnd};
use tunnel_server::config::Config;

use crate::{
    http2_client::{self, Http2},
    program::Folder,
    rig::{
        DEV, DEV_HOST, DEV_OWN_HOST, PROD, PROD_HOST, Rig, ca_pem, connect, identity, roots, tls,
        try_tls_as,
    },
    sessions::{answering_on, get},
};

const V1: &[u8] = b"PROXY TCP4 203.0.113.9 192.0.2.1 50000 443\r\n";
const ACCEPTED: &str = "tunnel_server_handshakes_total{result=\"accepted\"}";

/// Both at one address, over TLS; tunnel clients by this name.
fn shared(host: &str) -> impl FnOnce(&mut Config) + use<> {
    let host = host.parse().unwrap();
    move |config| {
        config.settings.tunnel_host = vec![host];
        config.public_tls = Some(identity());
    }
}

async fn public_tls(rig: &Rig, name: &'static str, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
    let socket = connect(rig.addresses.public).await;
    try_tls_as(socket, name, alpn).await.unwrap()
}

/// A request for a session at this host.
fn dial_at(rig: &Rig, runtime: &str, host: &'static str) -> Request<()> {
    let mut request = session_request(rig.token(runtime), random_instance());
    let host = HeaderValue::from_static(host);
    request.headers_mut().insert(header::HOST, host);
    request
}

/// A client that answers each request, and grants no upgrade.
async fn client_on(connected: Connected) -> FakeClient {
    FakeClient::on(connected, |_| async {
        let mut response = Response::new(full("here"));
        *response.status_mut() = StatusCode::ACCEPTED;
        Ok(response)
    })
    .await
}

/// A WebSocket handshake for `/connect` as a tunnel client's, but by a platform client of this host.
fn connect_request(host: &str, protocol: &str) -> String {
    format!(
        "GET /connect HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         sec-websocket-protocol: {protocol}\r\n\r\n"
    )
}

#[tokio::test]
async fn tunnel_clients_and_platform_clients_share_a_listener_by_name() {
    let rig = Rig::with(shared("localhost")).await;
    assert_eq!(rig.addresses.tunnel, rig.addresses.public);
    let client = client_on(dial(&rig, &dial_at(&rig, PROD, "localhost")).await).await;

    let browser = public_tls(&rig, PROD_HOST, &[b"h2", b"http/1.1"]).await;
    assert_eq!(browser.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut browser = Http2::over(browser).await;
    let answer = browser.ask(http2_client::get("/by-h2")).await.unwrap();
    assert_eq!(answer.status(), 202);
    let mut curl = RawConnection::over(public_tls(&rig, PROD_HOST, &[b"http/1.1"]).await);
    assert_eq!(curl.ask(get("/by-http1")).await.head.status(), 202);

    // The runtime may have a path `/connect` of its own, even for WebSocket with the tunnel's subprotocol.
    let upgrade = curl.ask(connect_request(PROD_HOST, "tunnel.v1")).await;
    assert_eq!(upgrade.head.status(), 202);
    assert_eq!(client.paths(), ["/by-h2", "/by-http1", "/connect"]);

    // And nothing but a request for the tunnel's host is taken for a tunnel client's on its connections.
    let tunnel = public_tls(&rig, "localhost", &[b"http/1.1"]).await;
    let refused = dial_over(tunnel, &dial_at(&rig, PROD, PROD_HOST)).await;
    assert_eq!(refused.status, 404);
    assert_eq!(rig.metric(ACCEPTED).await, 1.0);
}

#[tokio::test]
async fn the_requests_host_counts_where_the_name_in_tls_says_nothing() {
    let rig = Rig::with(shared("localhost")).await;
    // As a load balancer connects that encrypts again: with another name, and other requests before on the connection.
    let mut balancer = RawConnection::over(public_tls(&rig, PROD_HOST, &[b"http/1.1"]).await);
    assert_eq!(balancer.ask(get("/")).await.head.status(), 503);
    let (io, behind) = balancer.into_parts();
    assert!(behind.is_empty());
    let client = client_on(dial_over(io, &dial_at(&rig, PROD, "localhost")).await).await;
    let mut curl = RawConnection::over(public_tls(&rig, PROD_HOST, &[b"http/1.1"]).await);
    assert_eq!(curl.ask(get("/")).await.text(), "here");
    assert_eq!(client.paths(), ["/"]);
    let connections = |listener| format!("tunnel_server_connections{{listener=\"{listener}\"}}");
    rig.metric_becomes(&connections("tunnel"), 1.0).await;
    rig.metric_becomes(&connections("public"), 1.0).await;
    client.die();
    rig.metric_becomes(&connections("tunnel"), 0.0).await;
}

#[tokio::test]
async fn where_a_runtime_has_the_tunnels_host_the_path_decides() {
    let rig = Rig::with(shared(DEV_OWN_HOST)).await;
    let ask = async |request: String| {
        let mut curl = RawConnection::over(public_tls(&rig, DEV_OWN_HOST, &[b"http/1.1"]).await);
        curl.ask(request).await
    };
    let tunnel = public_tls(&rig, DEV_OWN_HOST, &[b"http/1.1"]).await;
    let client = client_on(dial_over(tunnel, &dial_at(&rig, DEV, DEV_OWN_HOST)).await).await;

    let browser = public_tls(&rig, DEV_OWN_HOST, &[b"h2", b"http/1.1"]).await;
    assert_eq!(browser.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let plain = format!("GET /connect HTTP/1.1\r\nhost: {DEV_OWN_HOST}\r\n\r\n");
    assert_eq!(ask(plain).await.text(), "here");
    let other = connect_request(DEV_OWN_HOST, "chat.v1");
    assert_eq!(ask(other).await.text(), "here");
    assert_eq!(client.paths(), ["/connect", "/connect"]);
    // What asks for a session gets an answer of this server.
    let refused = ask(connect_request(DEV_OWN_HOST, "tunnel.v1")).await;
    assert_eq!(refused.head.status(), 400);
    assert!(refused.text().contains("greeting_malformed"));
    // Another host's is still no tunnel client's.
    let other_host = ask(connect_request(DEV_HOST, "tunnel.v1")).await;
    assert_eq!(other_host.text(), "here");
}

/// Counts how often a server asks for a client certificate.
#[derive(Debug, Default)]
struct Asked(AtomicUsize);

impl ResolvesClientCert for Asked {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn only_tunnel_clients_are_asked_for_a_certificate() {
    let folder = Folder::new();
    folder.write("ca.pem", ca_pem());
    for (tunnel_host, name, alpn, asked) in [
        ("localhost", "localhost", &[&b"http/1.1"[..]][..], 1),
        ("localhost", PROD_HOST, &[b"http/1.1"], 0),
        (DEV_OWN_HOST, DEV_OWN_HOST, &[b"http/1.1"], 1),
        (DEV_OWN_HOST, DEV_OWN_HOST, &[b"h2", b"http/1.1"], 0),
    ] {
        let rig = Rig::with(|config| {
            shared(tunnel_host)(config);
            config.settings.client_ca = Some(folder.path("ca.pem"));
        })
        .await;
        let count = Arc::new(Asked::default());
        let mut config =
            Arc::unwrap_or_clone(tls_files::client_config(&roots(), None, alpn).unwrap());
        config.client_auth_cert_resolver = count.clone();
        let socket = connect(rig.addresses.public).await;
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from(name).unwrap();
        soon("TLS", connector.connect(name, socket)).await.unwrap();
        assert_eq!(count.0.load(Ordering::Relaxed), asked, "{alpn:?}");
    }
}

#[tokio::test]
async fn platform_clients_hold_no_handshake_permit() {
    let rig = Rig::with(|config| {
        shared("localhost")(config);
        config.settings.max_handshakes = 1;
        config.settings.handshake_queue = 0;
    })
    .await;
    let silent = "tunnel_server_held{table=\"gate_addresses\"}";
    // Silent ones after TLS, and before it.
    let platform = public_tls(&rig, PROD_HOST, &[b"http/1.1"]).await;
    let stranger = connect(rig.addresses.public).await;
    assert_eq!(rig.metric(silent).await, 0.0);
    let client = FakeClient::describing(&rig, PROD).await;
    // One by the tunnel's name does hold it.
    let tunnel = public_tls(&rig, "localhost", &[b"http/1.1"]).await;
    rig.metric_becomes(silent, 1.0).await;
    let refused = dial(&rig, &session_request(rig.token(DEV), random_instance())).await;
    assert_eq!(refused.status, 503);
    drop((platform, stranger, tunnel, client));
}

#[tokio::test]
async fn platform_clients_do_not_use_up_the_places_of_tunnel_clients() {
    let rig = Rig::with(|config| {
        shared("localhost")(config);
        config.settings.max_connections = 2;
    })
    .await;
    let held = [
        public_tls(&rig, PROD_HOST, &[b"http/1.1"]).await,
        public_tls(&rig, PROD_HOST, &[b"http/1.1"]).await,
    ];
    let more = try_tls_as(connect(rig.addresses.public).await, PROD_HOST, &[]).await;
    assert!(more.is_err(), "a third one");
    let _client = FakeClient::describing(&rig, PROD).await;
    drop(held);
}

#[tokio::test]
async fn a_stop_moves_tunnel_clients_while_public_requests_go_on() {
    let rig = Rig::with(|config| {
        shared(DEV_OWN_HOST)(config);
        config.settings.grace_period = Duration::from_secs(30);
    })
    .await;
    // One by the name of a runtime, so that its session is on a connection that began as a platform client's.
    let socket = public_tls(&rig, DEV_OWN_HOST, &[b"http/1.1"]).await;
    let (mut client, mut feeds) = answering_on(
        dial_over(socket, &dial_at(&rig, PROD, DEV_OWN_HOST)).await,
        "one".into(),
    )
    .await;
    let mut busy = RawConnection::over(public_tls(&rig, PROD_HOST, &[b"http/1.1"]).await);
    busy.send(get("/long")).await;
    let feed = soon("the request", feeds.recv()).await.unwrap();
    rig.trigger.request();
    client
        .control(|control| matches!(control, Control::Drain { .. }))
        .await;
    eventually(SOON, "the listener to close", async || {
        (TcpStream::connect(rig.addresses.public).await.is_err()).then_some(())
    })
    .await;
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

/// The address of the first session of a runtime, as the operator sees it.
async fn peer(rig: &Rig, runtime: &str) -> String {
    let (_, text) = rig.admin(&format!("/api/v1/runtimes/{runtime}")).await;
    let view: serde_json::Value = serde_json::from_str(&text).unwrap();
    view["sessions"][0]["peer"]
        .as_str()
        .unwrap_or(&text)
        .to_owned()
}

fn trusting(config: &mut Config) {
    config.settings.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
}

#[tokio::test]
async fn a_proxy_header_names_the_tunnel_client() {
    for one_listener in [false, true] {
        let rig = Rig::with(|config| {
            trusting(config);
            if one_listener {
                shared("localhost")(config);
                config.settings.proxy_protocol = true;
            } else {
                config.settings.tunnel_proxy_protocol = true;
            }
        })
        .await;
        let v2 = [
            &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
            &[203, 0, 113, 10, 192, 0, 2, 1, 0xc3, 0x50, 1, 0xbb],
        ];
        for (runtime, header, named) in [
            (PROD, V1.to_vec(), "203.0.113.9:50000"),
            (DEV, v2.concat(), "203.0.113.10:50000"),
        ] {
            let mut socket = connect(rig.addresses.tunnel).await;
            socket.write_all(&header).await.unwrap();
            let mut request = dial_at(&rig, runtime, "localhost");
            // The client's own fields are not believed.
            let forged = HeaderValue::from_static("6.6.6.6");
            request.headers_mut().insert("x-forwarded-for", forged);
            let connected = dial_over(tls(socket, &[b"http/1.1"]).await, &request).await;
            let _client = client_on(connected).await;
            assert_eq!(peer(&rig, runtime).await, named);
        }
        let without =
            TlsConnector::from(tls_files::client_config(&roots(), None, &[b"http/1.1"]).unwrap());
        let socket = connect(rig.addresses.tunnel).await;
        let name = ServerName::try_from("localhost").unwrap();
        assert!(soon("an end", without.connect(name, socket)).await.is_err());
    }
}

/// A request for a session over plain TCP, with a further field.
async fn dial_plain(
    rig: &Rig,
    runtime: &str,
    name: &'static str,
    value: &'static str,
) -> Connected {
    let mut request = dial_at(rig, runtime, "localhost");
    let value = HeaderValue::from_static(value);
    request.headers_mut().append(name, value);
    dial_over(connect(rig.addresses.tunnel).await, &request).await
}

#[tokio::test]
async fn behind_a_proxy_that_terminates_tls_its_fields_name_the_tunnel_client() {
    for one_listener in [false, true] {
        let rig = Rig::with(|config| {
            trusting(config);
            config.settings.tunnel_tls = false;
            config.tunnel_tls = None;
            if one_listener {
                config.settings.tunnel_host = vec!["localhost".parse().unwrap()];
            }
        })
        .await;
        for (name, value, named) in [
            (
                "x-forwarded-for",
                "6.6.6.6, 203.0.113.9, 127.0.0.2",
                "203.0.113.9",
            ),
            ("x-forwarded-for", "203.0.113.9:4711", "203.0.113.9:4711"),
            ("forwarded", "for=203.0.113.9;proto=https", "203.0.113.9"),
            ("x-forwarded-proto", "https", "127.0.0.1:"),
        ] {
            let client = client_on(dial_plain(&rig, PROD, name, value).await).await;
            let shown = peer(&rig, PROD).await;
            assert!(shown.starts_with(named), "{shown} for {value}");
            client.die();
        }
        let refused = dial_plain(&rig, PROD, "x-forwarded-proto", "http").await;
        assert_eq!(refused.status, 403);
        rig.metric_becomes("tunnel_server_sessions", 0.0).await;
        let mut raw = rig.raw().await;
        assert_eq!(
            raw.ask(get("/")).await.head.status(),
            503,
            "a platform client"
        );
    }
}

#[tokio::test]
async fn fields_of_strangers_name_nobody() {
    let rig = Rig::with(|config| {
        config.settings.trusted_proxies = vec!["192.0.2.0/24".parse().unwrap()];
        config.settings.tunnel_tls = false;
        config.tunnel_tls = None;
    })
    .await;
    for (name, value) in [
        ("x-forwarded-for", "6.6.6.6"),
        ("forwarded", "for=6.6.6.6"),
        ("x-forwarded-proto", "http"),
    ] {
        let client = client_on(dial_plain(&rig, PROD, name, value).await).await;
        let shown = peer(&rig, PROD).await;
        assert!(shown.starts_with("127.0.0.1:"), "{shown}");
        client.die();
    }
}

#[tokio::test]
async fn connections_of_a_trusted_proxy_count_by_the_client_that_it_names() {
    let rig = Rig::with(|config| {
        trusting(config);
        config.settings.max_tunnel_connections_per_address = 1;
    })
    .await;
    let dial_for = async |runtime, client: &'static str| {
        let mut request = dial_at(&rig, runtime, "localhost");
        let client = HeaderValue::from_static(client);
        request.headers_mut().insert("x-forwarded-for", client);
        dial_over(rig.tunnel().await, &request).await
    };
    let _first = client_on(dial_for(PROD, "203.0.113.9").await).await;
    assert_eq!(dial_for(DEV, "203.0.113.9").await.status, 503);
    assert_eq!(dial_for(DEV, "203.0.113.10").await.status, 101);
}

#[tokio::test]
async fn tunnel_clients_can_use_either_listener_while_they_move() {
    let rig = Rig::with(|config| {
        shared("localhost")(config);
        config.settings.tunnel_listen = "127.0.0.2:0".parse().unwrap();
    })
    .await;
    assert_ne!(rig.addresses.tunnel, rig.addresses.public);
    let _old = FakeClient::describing(&rig, PROD).await;
    let new = public_tls(&rig, "localhost", &[b"http/1.1"]).await;
    let _new = client_on(dial_over(new, &dial_at(&rig, DEV, "localhost")).await).await;
}
