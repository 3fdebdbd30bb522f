//! Requests that reach a node without a session of their runtime, and are served through the node that has one.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use testkit::{
    deadline::{SOON, eventually, soon},
    etcd::Etcd,
    http1::{End, RawConnection},
    tunnel::{
        body::{BodyEnd, collect, data, endings, fed, full, internal, status},
        client::FakeClient,
    },
};
use tokio::time::Instant;
use tunnel_etcd::{Client, RequestOp, TxnRequest};
use tunnel_http::answer::ProblemDetail;
use tunnel_ops::{task::Owned, tls_files::Identity};
use tunnel_proto::{
    close::CloseReason,
    exchange::Informational,
    handshake::InstanceSecret,
    problem::{Hop, Problem, Reason},
};
use tunnel_server::{
    certs::NodeAuthority,
    config::{Config, PeerLinks},
    peer_tls::PeerCa,
};

use crate::{
    nodes::{is_ready, keys, shared},
    rig::{PROD, PROD_HOST, Rig, connect, try_tls},
    upgrade::{Upstream, granting, upgraded},
};

/// Links of all shards of one node to another.
const LINKS: f64 = 2.0;

/// A cluster of nodes that forward to each other.
pub(crate) struct Linked {
    pub(crate) etcd: Etcd,
    pub(crate) authority: NodeAuthority,
}

impl Linked {
    pub(crate) async fn start() -> Self {
        Self::on(1).await
    }

    /// On an etcd of so many members.
    pub(crate) async fn on(members: usize) -> Self {
        Self {
            etcd: Etcd::start(members).await,
            authority: NodeAuthority::generate(1).unwrap(),
        }
    }

    /// Adds a node.
    pub(crate) async fn node(&self, name: &str, change: impl FnOnce(&mut Config)) -> Rig {
        let (pem, key) = self.authority.issue(&name.parse().unwrap(), 1).unwrap();
        let identity = Identity::from_pem(&pem, &key).unwrap();
        let ca = PeerCa::from_pem(&self.authority.pem).unwrap();
        let mut shared = shared(&self.etcd, name);
        shared.links = Some(PeerLinks::new("127.0.0.1:0".into(), ca, identity));
        let rig = Rig::with(|config| {
            config.shared_directory = Some(shared);
            config.settings.peer_listen = Some("127.0.0.1:0".parse().unwrap());
            change(config);
        })
        .await;
        is_ready(&rig).await;
        rig
    }

    /// Two nodes that are linked both ways.
    pub(crate) async fn pair(&self) -> (Rig, Rig) {
        let (one, two) = (self.node("n1", |_| {}).await, self.node("n2", |_| {}).await);
        for node in [&one, &two] {
            node.metric_becomes("tunnel_server_peer_links", LINKS).await;
        }
        (one, two)
    }
}

/// Waits until a node knows that this one holds the runtime.
pub(crate) async fn knows_holder(rig: &Rig, holder: &str) {
    let named = format!("\"{holder}\"");
    eventually(SOON, "a node to know the holder", async || {
        let (_, text) = rig.admin("/api/v1/runtimes/acme-prod?scope=node").await;
        let (_, nodes) = text.split_once("\"nodes\":[")?;
        let (nodes, _) = nodes.split_once(']')?;
        nodes.contains(&named).then_some(())
    })
    .await;
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n")
}

async fn forwards(rig: &Rig, result: &str) -> f64 {
    let series = format!("tunnel_server_forwards_total{{result=\"{result}\"}}");
    rig.metric(&series).await
}

#[tokio::test]
async fn a_request_reaches_the_session_of_another_node() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    let client = FakeClient::describing(&one, PROD).await;
    knows_holder(&two, "n1").await;
    let mut raw = two.raw().await;
    let answer = raw.ask(get("/a?b=%20c")).await;
    assert_eq!(answer.head.status(), 200);
    assert_eq!(answer.text(), "acme-prod GET /a?b=%20c\n");
    let content = "x".repeat(300_000);
    let post = format!(
        "POST /up HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: {}\r\n\r\n{content}",
        content.len()
    );
    assert_eq!(raw.ask(post).await.text(), "acme-prod POST /up\n");
    let seen = client.seen();
    assert_eq!(seen[0].authority, PROD_HOST);
    assert_eq!(seen[0].values("x-forwarded-for"), ["127.0.0.1"]);
    assert!(seen.iter().all(|seen| seen.values(":forward").is_empty()));
    assert!(forwards(&two, "answered").await >= 2.0);
    assert!(forwards(&one, "answered").await < 1.0);
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn informational_heads_content_and_trailers_pass_both_ways() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    let _client = FakeClient::new(&one, PROD, |request| async move {
        let informational = request.extensions().get::<Informational>().unwrap().clone();
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("</style>"));
        assert!(informational.push(StatusCode::EARLY_HINTS, headers));
        let (content, end) = collect(request.into_body()).await;
        let trailers = end.map_err(|_| internal())?;
        let (feed, body) = fed();
        feed.send(data(content)).await.unwrap();
        let trailers = Frame::trailers(trailers);
        feed.send(Ok(trailers)).await.unwrap();
        Ok(status(201, body))
    })
    .await;
    knows_holder(&two, "n1").await;
    let mut raw = two.raw().await;
    raw.send(format!(
        "POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ntransfer-encoding: chunked\r\nte: trailers\r\n\
         trailer: x-sum\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n"
    ))
    .await;
    let answer = raw.response().await;
    assert_eq!(answer.head.status(), 201);
    let hints = answer.informational.iter().map(|head| head.status());
    assert_eq!(hints.collect::<Vec<_>>(), [103]);
    assert_eq!(answer.text(), "hello");
}

#[tokio::test]
async fn an_upgraded_connection_passes_bytes_and_half_closes() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    let (_client, mut upstreams) = granting(&one).await;
    knows_holder(&two, "n1").await;
    let mut raw = upgraded(&two, b"early").await;
    let mut upstream: Upstream = soon("an upgrade", upstreams.recv()).await.unwrap();
    assert_eq!(upstream.bytes(5).await, b"early");
    upstream.send("answer").await;
    assert_eq!(raw.bytes(6).await, b"answer");
    raw.finish().await;
    let rest = collect(upstream.received).await;
    assert!(
        rest.0.is_empty() && rest.1.is_ok(),
        "a half-close is an end"
    );
    upstream.send.send(data("last")).await.unwrap();
    drop(upstream.send);
    assert_eq!(raw.rest().await, (b"last".to_vec(), End::Clean));
}

#[tokio::test]
async fn a_platform_client_that_leaves_cancels_the_exchange_at_the_other_node() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    let (endings, mut ends) = endings();
    let client = FakeClient::new(&one, PROD, move |_| {
        let ending = endings.next();
        async move {
            let _ending = ending;
            std::future::pending().await
        }
    })
    .await;
    knows_holder(&two, "n1").await;
    let mut raw = two.raw().await;
    raw.send(get("/")).await;
    client.request(1).await;
    let left = Instant::now();
    drop(raw);
    assert_eq!(soon("the end", ends.recv()).await, Some(BodyEnd::Cut));
    assert!(left.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_failure_names_the_program_that_has_met_it() {
    let linked = Linked::start().await;
    let limited = |config: &mut Config| config.settings.limit_websockets = 0;
    let one = linked.node("n1", limited).await;
    // Only the node that answers the platform client decides what that learns.
    let full = |config: &mut Config| config.settings.problem_detail = ProblemDetail::Full;
    let two = linked.node("n2", full).await;
    two.metric_becomes("tunnel_server_peer_links", LINKS).await;
    let _client = FakeClient::new(&one, PROD, |_| async move {
        Err(Problem::new(Hop::Client, Reason::RouteUnknown, "no route"))
    })
    .await;
    knows_holder(&two, "n1").await;
    let mut raw = two.raw().await;
    let answer = raw.ask(get("/")).await;
    assert_eq!(answer.head.status(), 404, "{}", answer.text());
    assert!(
        answer.text().contains("\"hop\":\"tunnel-client\""),
        "{}",
        answer.text()
    );
    assert_eq!(
        answer.head.value("proxy-status").unwrap(),
        "tunnel-client; error=destination_not_found; details=\"no route\", tunnel-server; next-hop=\"n1\""
    );
    // A limit of the runtime counts where its session is.
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let answer = raw
        .ask(format!(
            "GET / HTTP/1.1\r\nhost: {PROD_HOST}\r\n{upgrade}\r\n"
        ))
        .await;
    assert_eq!(answer.head.status(), 503);
    assert_eq!(answer.reason(), "websocket_limit");
    assert!(answer.text().contains("\"hop\":\"tunnel-server\""));
    assert!(answer.head.value("retry-after").is_some());
}

/// A node that is said to hold the runtime and does not: the request goes to the one that does, whole.
#[tokio::test]
async fn what_a_node_does_not_hold_is_sent_to_another_with_all_its_content() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    let three = linked.node("n3", |_| {}).await;
    two.metric_becomes("tunnel_server_peer_links", 2.0 * LINKS)
        .await;
    let _client = FakeClient::new(&three, PROD, |request| async move {
        let (content, end) = collect(request.into_body()).await;
        end.map_err(|_| internal())?;
        Ok(status(200, full(content)))
    })
    .await;
    knows_holder(&two, "n3").await;
    // The node that is lied about corrects it within milliseconds, so that it has to be told again and again.
    let (etcd, held) = lie_of(&linked, "n1").await;
    let _lying = Owned::spawn("lies", async move {
        loop {
            etcd.txn(held.clone()).await.unwrap();
        }
    });
    let post = format!("POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 5\r\n\r\nhello");
    let mut raw = two.raw().await;
    eventually(SOON, "a detour", async || {
        let answer = raw.ask(&post).await;
        assert_eq!(
            (answer.head.status(), answer.text().as_str()),
            (200, "hello")
        );
        (forwards(&two, "not_held").await >= 1.0).then_some(())
    })
    .await;
    drop(one);
}

/// Nobody holds it, although a record says so: the request waits, and is told that the runtime is offline.
#[tokio::test]
async fn a_record_without_a_session_does_not_make_a_loop() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    let client = FakeClient::describing(&two, PROD).await;
    knows_holder(&one, "n2").await;
    client.die();
    eventually(SOON, "the record's end", async || {
        keys(&linked.etcd, "/tunnel/v1/held/")
            .await
            .is_empty()
            .then_some(())
    })
    .await;
    let (etcd, held) = lie_of(&linked, "n1").await;
    etcd.txn(held).await.unwrap();
    let answer = two.raw().await.ask(get("/")).await;
    assert_eq!(answer.reason(), "runtime_offline");
    assert!(forwards(&two, "not_held").await <= 2.0);
    drop(one);
}

/// What writes a record that this node holds the runtime.
async fn lie_of(linked: &Linked, node: &str) -> (Client, TxnRequest) {
    let text = linked
        .etcd
        .ctl(&["get", "/tunnel/v1/claim/acme-prod", "--write-out", "json"])
        .await;
    let claim: serde_json::Value = serde_json::from_str(&text).unwrap();
    let epoch = claim["kvs"][0]["mod_revision"].clone();
    let key = format!("/tunnel/v1/node/{node}");
    let text = linked.etcd.ctl(&["get", &key, "--print-value-only"]).await;
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    let incarnation = record["incarnation"].as_str().unwrap();
    let held = format!("/tunnel/v1/held/{node}/{incarnation}/acme-prod");
    let value = format!("{{\"epoch\":{epoch},\"state\":\"open\"}}");
    let txn = TxnRequest {
        success: vec![RequestOp::put(held, value, 0)],
        ..TxnRequest::default()
    };
    (Client::new(shared(&linked.etcd, node).etcd), txn)
}

#[tokio::test]
async fn a_runtime_of_which_a_node_has_never_heard_is_served_by_the_one_that_has_it() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    let _client = FakeClient::describing(&one, PROD).await;
    knows_holder(&two, "n1").await;
    let unlisted =
        |config: &mut Config| config.runtimes = tunnel_server::runtimes::Runtimes::default();
    let three = linked.node("n3", unlisted).await;
    three
        .metric_becomes("tunnel_server_peer_links", 2.0 * LINKS)
        .await;
    let (_, entry) = three.admin("/api/v1/runtimes/acme-prod").await;
    assert!(entry.contains("\"nodes\":[\"n1\"]"), "{entry}");
    let answer = three.raw().await.ask(get("/")).await;
    assert_eq!(answer.text(), "acme-prod GET /\n");
    let host = PROD_HOST.replace("acme-prod", "nobody-here");
    let unknown = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
    assert_eq!(three.raw().await.ask(unknown).await.head.status(), 404);
    drop(two);
}

/// A node that dies takes its links with it: what it held is offline at once, and back with the next session.
#[tokio::test]
async fn a_dead_node_is_left_at_once() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    let client = FakeClient::describing(&one, PROD).await;
    knows_holder(&two, "n1").await;
    assert_eq!(two.raw().await.ask(get("/")).await.head.status(), 200);
    one.kill();
    client.die();
    two.metric_becomes("tunnel_server_peer_links", 0.0).await;
    let answer = two.raw().await.ask(get("/")).await;
    assert_eq!(answer.reason(), "runtime_offline");
    let _client = FakeClient::describing(&two, PROD).await;
    assert_eq!(two.raw().await.ask(get("/")).await.head.status(), 200);
}

#[tokio::test]
async fn strangers_at_the_peer_port_are_refused() {
    let linked = Linked::start().await;
    let one = linked.node("n1", |_| {}).await;
    let address = one.addresses.peer.unwrap();
    // Plain text, and TLS without a certificate.
    let mut raw = RawConnection::over(connect(address).await);
    raw.send(get("/")).await;
    assert!(raw.head().await.is_err());
    let stream = try_tls(connect(address).await, &[b"tunnel-peer/1"]).await;
    assert!(stream.is_err(), "another CA's listener");
    one.metric_becomes("tunnel_server_peer_connections_refused_total", 2.0)
        .await;
    // A node without a name in its certificate, or of another CA, gets no link.
    let stranger = NodeAuthority::generate(1).unwrap();
    let other = Linked {
        etcd: linked.etcd,
        authority: stranger,
    };
    let two = other.node("n2", |_| {}).await;
    eventually(SOON, "its dials", async || {
        let series = "tunnel_server_peer_connections_refused_total";
        (one.metric(series).await > 3.0).then_some(())
    })
    .await;
    assert!(two.metric("tunnel_server_peer_links").await < 1.0);
    assert!(one.metric("tunnel_server_peer_links").await < 1.0);
}

/// A limit of a runtime counts where its session is, whichever nodes its requests come by; what a node had in progress
/// that dies is given back.
#[tokio::test]
async fn a_limit_counts_at_the_holder() {
    let linked = Linked::start().await;
    let limited = |config: &mut Config| config.settings.limit_exchanges = 3;
    let one = linked.node("n1", limited).await;
    let two = linked.node("n2", |_| {}).await;
    let three = linked.node("n3", |_| {}).await;
    for node in [&two, &three] {
        node.metric_becomes("tunnel_server_peer_links", 2.0 * LINKS)
            .await;
    }
    let client = FakeClient::new(&one, PROD, |request| async move {
        if request.uri().path() == "/hold" {
            std::future::pending::<()>().await;
        }
        Ok(status(200, full("")))
    })
    .await;
    knows_holder(&two, "n1").await;
    knows_holder(&three, "n1").await;
    let mut held = Vec::new();
    for node in [&one, &two, &three] {
        let mut raw = node.raw().await;
        raw.send(get("/hold")).await;
        client.request(held.len() + 1).await;
        held.push(raw);
    }
    for node in [&one, &two, &three] {
        let answer = node.raw().await.ask(get("/now")).await;
        assert_eq!(answer.reason(), "exchange_limit");
    }
    two.kill();
    eventually(SOON, "room for another one", async || {
        let answer = three.raw().await.ask(get("/now")).await;
        (answer.head.status() == 200).then_some(())
    })
    .await;
}

/// A limit of a runtime is divided among the nodes that hold it: all together admit no more than one of them alone.
#[tokio::test]
async fn a_limit_is_divided_among_two_holders() {
    let linked = Linked::start().await;
    let limited = |config: &mut Config| config.settings.limit_exchanges = 4;
    let one = linked.node("n1", limited).await;
    let two = linked.node("n2", limited).await;
    let hold = |_| std::future::pending();
    let instance = || InstanceSecret::from_random([7; 16]);
    let first = FakeClient::of_instance(&one, PROD, instance(), hold).await;
    let second = FakeClient::of_instance(&two, PROD, instance(), hold).await;
    for node in [&one, &two] {
        knows_holder(node, "n1").await;
        knows_holder(node, "n2").await;
    }
    let mut held = Vec::new();
    for (node, client) in [(&one, &first), (&two, &second)] {
        for count in 1..=2 {
            let mut raw = node.raw().await;
            raw.send(get("/hold")).await;
            client.request(count).await;
            held.push(raw);
        }
        let answer = node.raw().await.ask(get("/more")).await;
        assert_eq!(answer.reason(), "exchange_limit");
    }
    // The last holder has the whole limit.
    second.session.close(CloseReason::Left);
    let mut more = Vec::new();
    eventually(SOON, "the whole limit at the other node", async || {
        let mut raw = one.raw().await;
        raw.send(get("/hold")).await;
        more.push(raw);
        (first.seen().len() >= 4).then_some(())
    })
    .await;
}
