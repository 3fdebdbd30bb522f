//! Upgraded connections: agreed, refused, closed by halves.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use testkit::deadline::SOON;
use testkit::scripted::{ScriptedConnection, ScriptedUpstream};
use testkit::tunnel::body::{AnyBody, Feed, data, fed};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tunnel_proto::exchange::{Protocol, RecvBody};
use tunnel_proto::handshake::accept_key;
use tunnel_proto::problem::Reason;

use crate::setup::{Setup, get};

/// A key of RFC 6455 section 1.3.
pub(crate) const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// An upgrade, and what its direction to the upstream carries.
pub(crate) fn websocket() -> (Feed, Request<AnyBody>) {
    let (feed, body) = fed();
    let mut request = Request::connect("https://a-b.tunnels.test/socket")
        .body(body)
        .unwrap();
    request.extensions_mut().insert(Protocol::WEBSOCKET);
    (feed, request)
}

/// The next bytes; `None` at the end.
pub(crate) async fn next(body: &mut RecvBody) -> Option<Bytes> {
    let frame = timeout(SOON, body.frame()).await.unwrap()?;
    Some(frame.unwrap().into_data().unwrap())
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The answer to a request for an upgrade.
pub(crate) fn switching(head: &str) -> String {
    let accept = accept_key(field(head, "sec-websocket-key").unwrap().as_bytes());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {accept}\r\nsec-websocket-protocol: chat\r\n\r\n"
    )
}

/// An upstream that agrees, and then does as the script says.
async fn agreeing<F>(
    script: impl Fn(ScriptedConnection) -> F + Send + Sync + 'static,
) -> ScriptedUpstream
where
    F: Future<Output = ()> + Send + 'static,
{
    let script = std::sync::Arc::new(script);
    ScriptedUpstream::start(move |mut connection| {
        let script = script.clone();
        async move {
            let head = connection.head().await.unwrap();
            assert!(head.starts_with("GET /socket HTTP/1.1\r\n"), "{head}");
            assert_eq!(field(&head, "upgrade"), Some("websocket"));
            connection.send(switching(&head) + "first").await;
            script(connection).await;
        }
    })
    .await
}

#[tokio::test]
async fn bytes_flow_both_ways_from_the_first_on() {
    let upstream = agreeing(async |mut connection| {
        assert_eq!(connection.bytes(4).await, b"ping");
        connection.send("pong").await;
        connection.rest().await;
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let (sender, request) = websocket();
    let response = setup.session.ask(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    assert!(
        !response.headers().contains_key("sec-websocket-accept"),
        "the key was ours"
    );
    let mut body = response.into_body();
    assert_eq!(next(&mut body).await.unwrap(), "first");
    sender.send(data("ping")).await.unwrap();
    assert_eq!(next(&mut body).await.unwrap(), "pong");
}

#[tokio::test]
async fn the_platform_clients_own_key_is_answered_to_it() {
    let upstream = agreeing(async |mut connection| drop(connection.rest().await.0)).await;
    let setup = Setup::new(&upstream.url()).await;
    let (_sender, mut request) = websocket();
    request
        .headers_mut()
        .insert("sec-websocket-key", KEY.parse().unwrap());
    let response = setup.session.ask(request).await.unwrap();
    assert_eq!(
        response.headers()["sec-websocket-accept"],
        accept_key(KEY.as_bytes()).as_str()
    );
}

#[tokio::test]
async fn an_agreement_that_names_a_length_does_not_limit_what_follows() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        let head = connection.head().await.unwrap();
        let head = switching(&head).replace("\r\n\r\n", "\r\ncontent-length: 0\r\n\r\n");
        connection.send(head + "first").await;
        connection.rest().await;
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let (_sender, request) = websocket();
    let response = setup.session.ask(request).await.unwrap();
    assert!(!response.headers().contains_key("content-length"));
    assert_eq!(next(&mut response.into_body()).await.unwrap(), "first");
}

#[tokio::test]
async fn the_platform_client_may_end_its_direction_first() {
    let upstream = agreeing(async |mut connection| {
        assert_eq!(connection.rest().await.0, b"last", "an end, and no reset");
        connection.send("answer").await;
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let (sender, request) = websocket();
    let mut body = setup.session.ask(request).await.unwrap().into_body();
    assert_eq!(next(&mut body).await.unwrap(), "first");
    sender.send(data("last")).await.unwrap();
    drop(sender);
    assert_eq!(next(&mut body).await.unwrap(), "answer");
    assert_eq!(next(&mut body).await, None);
}

#[tokio::test]
async fn the_upstream_may_end_its_direction_first() {
    let (seen, mut rest) = mpsc::channel(1);
    let upstream = agreeing(move |mut connection: ScriptedConnection| {
        let seen = seen.clone();
        async move {
            connection.finish().await;
            seen.send(connection.rest().await.0).await.unwrap();
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let (sender, request) = websocket();
    let mut body = setup.session.ask(request).await.unwrap().into_body();
    assert_eq!(next(&mut body).await.unwrap(), "first");
    assert_eq!(next(&mut body).await, None);
    for bytes in ["still ", "here"] {
        sender.send(data(bytes)).await.unwrap();
    }
    drop(sender);
    assert_eq!(
        timeout(SOON, rest.recv()).await.unwrap().unwrap(),
        b"still here"
    );
}

#[tokio::test]
async fn a_cut_is_a_cut_in_both_directions() {
    let (seen, mut ends) = mpsc::channel(1);
    let upstream = agreeing(move |mut connection: ScriptedConnection| {
        let seen = seen.clone();
        async move {
            connection.rest().await;
            seen.send(()).await.unwrap();
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let (_sender, request) = websocket();
    let response = setup.session.ask(request).await.unwrap();
    drop(response);
    timeout(std::time::Duration::from_secs(1), ends.recv())
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn an_upstream_may_decline_and_answer_like_to_any_other_request() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        connection.head().await.unwrap();
        connection
            .send("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")
            .await;
        assert!(
            connection.rest().await.0.is_empty(),
            "nothing is sent before the upstream agrees"
        );
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    let (sender, request) = websocket();
    sender.send(data("too early")).await.unwrap();
    let response = setup.session.ask(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(testkit::tunnel::whole(response).await.body(), "no");
}

#[tokio::test]
async fn what_only_looks_like_an_agreement_fails() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npage"[..],
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
          sec-websocket-accept: wrong\r\n\r\n",
    ] {
        let upstream = ScriptedUpstream::answering_once(answer).await;
        let setup = Setup::new(&upstream.url()).await;
        let (_sender, request) = websocket();
        assert_eq!(setup.session.failure(request).await, Reason::UpgradeFailed);
    }
}

#[tokio::test]
async fn ordinary_exchanges_go_on_beside_an_upgraded_connection() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        while let Ok(head) = connection.head().await {
            if head.contains("upgrade: websocket") {
                connection.send(switching(&head)).await;
                connection.rest().await;
                return;
            }
            connection
                .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
                .await;
        }
    })
    .await;
    let setup = Setup::new(&upstream.url()).await;
    assert_eq!(setup.session.fetch(get("/")).await.body(), "hi");
    let (_sender, request) = websocket();
    let _socket = setup.session.ask(request).await.unwrap();
    assert_eq!(setup.session.fetch(get("/")).await.body(), "hi");
    setup.client.wait_metric("open_exchanges", 1.0).await;
}
