//! Who may connect to the peer listener, and what a node serves for another one.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair,
};
use rustls_pki_types::ServerName;
use testkit::deadline::{SOON, eventually, soon};
use testkit::tunnel::{FakeEnd, body::full, client::FakeClient};
use tokio_rustls::TlsConnector;
use tunnel_ops::{connect::tls::config_without_verification, tls_files::Identity};
use tunnel_proto::{
    exchange::{EncodedHead, ExchangeError, open},
    problem::Reason,
    session::{Session, SessionSettings, Side},
};

use crate::{
    forwarding::Linked,
    rig::{PROD, PROD_HOST, Rig, connect},
};

const REFUSED: &str = "tunnel_server_peer_connections_refused_total";

/// Dials a link as a node does, with this certificate and protocol.
async fn link(address: SocketAddr, identity: &Identity, alpn: &[u8]) -> std::io::Result<FakeEnd> {
    // Whom a node accepts is looked at, not who it is.
    let config = config_without_verification(Some(identity), &[alpn]).unwrap();
    let name = ServerName::try_from("tunnel-node").unwrap();
    let connector = TlsConnector::from(config);
    let stream = soon("TLS", connector.connect(name, connect(address).await)).await?;
    let settings = SessionSettings::default();
    Ok(FakeEnd::new(stream, Bytes::new(), Side::Server, settings))
}

/// Forwards a request with this note; returns the status, or the reason of the refusal.
async fn forward(session: &Session, note: &str) -> Result<u16, Reason> {
    let request = Request::get(format!("http://{PROD_HOST}/"));
    let head = EncodedHead::of(&request.body(()).unwrap()).forwarded(note, "");
    let opened = open(session).await.unwrap();
    let carried = opened.carry(&head, full(""), |_, _| {}, std::future::pending());
    match soon("an answer", carried).await {
        Ok(response) => Ok(response.status().as_u16()),
        Err(ExchangeError::Failed { problem, .. }) => Err(problem.reason()),
        Err(_) => panic!("the exchange was not carried"),
    }
}

/// A certificate of the nodes' CA for a client of tunnels, which names no node.
fn of_no_node(linked: &Linked) -> Identity {
    let key = KeyPair::from_pem(&linked.authority.key).unwrap();
    let mut ca = CertificateParams::default();
    ca.distinguished_name = DistinguishedName::new();
    ca.distinguished_name
        .push(DnType::CommonName, "tunnel node CA");
    let issuer = Issuer::new(ca, key);
    let mut params = CertificateParams::new(vec!["acme-prod".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let own = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&own, &issuer).unwrap();
    Identity::from_pem(&certificate.pem(), &own.serialize_pem()).unwrap()
}

fn of_node(linked: &Linked, name: &str) -> Identity {
    let issued = linked.authority.issue(&name.parse().unwrap(), 1).unwrap();
    Identity::from_pem(&issued.0, &issued.1).unwrap()
}

/// Whether a link can be used: with TLS 1.3 a refusal comes after the handshake.
async fn is_refused(rig: &Rig, identity: &Identity, alpn: &[u8]) {
    let before = rig.metric(REFUSED).await;
    if let Ok(link) = link(rig.addresses.peer.unwrap(), identity, alpn).await {
        eventually(SOON, "the link's end", async || {
            link.session.is_closed().then_some(())
        })
        .await;
    }
    eventually(SOON, "the count", async || {
        (rig.metric(REFUSED).await > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_certificate_that_names_no_node_gets_no_link() {
    let linked = Linked::on(1).await;
    let one = linked.node("n1", |_| {}).await;
    is_refused(&one, &of_no_node(&linked), b"tunnel-peer/1").await;
    is_refused(&one, &of_node(&linked, "n2"), b"http/1.1").await;
}

/// A record that gives the address of one node for another: the certificate tells.
#[tokio::test]
async fn a_node_with_the_name_of_another_gets_no_link() {
    let linked = Linked::on(1).await;
    let one = linked.node("n1", |_| {}).await;
    let before = one.metric(REFUSED).await;
    let record = format!(
        "{{\"incarnation\":\"00000000000000ff\",\"peer\":\"{}\",\"version\":\"0\",\"state\":\"serving\"}}",
        one.addresses.peer.unwrap()
    );
    linked
        .etcd
        .ctl(&["put", "/tunnel/v1/node/n9", &record])
        .await;
    let two = linked.node("n2", |_| {}).await;
    two.metric_becomes("tunnel_server_peer_links", 2.0).await;
    eventually(SOON, "its dials", async || {
        (one.metric(REFUSED).await >= before + 3.0).then_some(())
    })
    .await;
    assert!(two.metric("tunnel_server_peer_links").await < 3.0);
}

#[tokio::test]
async fn what_a_node_does_not_hold_by_this_claim_is_not_served() {
    let linked = Linked::on(1).await;
    let one = linked.node("n1", |_| {}).await;
    let client = FakeClient::describing(&one, PROD).await;
    let (_, text) = one.admin("/api/v1/runtimes/acme-prod").await;
    let runtime: serde_json::Value = serde_json::from_str(&text).unwrap();
    let epoch = runtime["epoch"].as_u64().unwrap();
    let identity = of_node(&linked, "n2");
    let address = one.addresses.peer.unwrap();
    let link = link(address, &identity, b"tunnel-peer/1").await.unwrap();
    let session = &link.session;
    let notes = [
        (
            "of the future",
            format!("1 {PROD} {} 127.0.0.1", epoch + 1),
            Reason::NotHeld,
        ),
        (
            "unknown",
            format!("1 nobody-here {epoch} 127.0.0.1"),
            Reason::NotHeld,
        ),
        (
            "of another version",
            format!("2 {PROD} {epoch} 127.0.0.1"),
            Reason::WireMalformed,
        ),
        (
            "without an address",
            format!("1 {PROD} {epoch}"),
            Reason::WireMalformed,
        ),
    ];
    for (what, note, reason) in notes {
        assert_eq!(forward(session, &note).await, Err(reason), "{what}");
    }
    assert!(client.seen().is_empty());
    let good = format!("1 {PROD} {epoch} 127.0.0.1");
    assert_eq!(forward(session, &good).await, Ok(200));
    assert_eq!(client.seen().len(), 1);
}
