//! WebSockets over HTTP/2 (RFC 8441): an upgrade is one stream of many.

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderValue, Request};
use testkit::{
    deadline::soon,
    tunnel::{
        body::{Failure, collect, data, full, status},
        client::FakeClient,
    },
};
use tokio::time::Instant;
use tunnel_proto::problem::{Hop, Problem};

use crate::{
    http2_client::{Http2, get, read},
    http2_limits::NOT_TAKEN,
    rig::{PROD, Rig},
    upgrade::{Upstream, granting},
};

/// A limit that a test waits for.
const SHORT: Duration = Duration::from_millis(300);

fn upgrade(protocol: &'static str) -> Request<()> {
    let mut request = get("/chat?x");
    *request.method_mut() = http::Method::CONNECT;
    for (name, value) in [
        ("sec-websocket-version", "13"),
        ("sec-websocket-protocol", "chat"),
    ] {
        request
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    request
        .extensions_mut()
        .insert(h2::ext::Protocol::from_static(protocol));
    request
}

#[tokio::test]
async fn a_websocket_may_be_one_stream_of_many() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = granting(&rig).await;
    let mut http2 = Http2::new(&rig).await;
    assert!(http2.send.is_extended_connect_protocol_enabled());
    let (response, mut up) = http2
        .send
        .send_request(upgrade("websocket"), false)
        .unwrap();
    let response = soon("a response", response).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    for gone in [
        "sec-websocket-accept",
        "upgrade",
        "connection",
        "content-length",
    ] {
        assert!(!response.headers().contains_key(gone), "{gone}");
    }
    let seen = client.request(1).await;
    assert!(seen.is_upgrade);
    assert_eq!((seen.method.as_str(), seen.path()), ("CONNECT", "/chat?x"));
    let mut upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    let mut down = response.into_body();
    for round in 0..5 {
        up.send_data(format!("up {round}").into(), false).unwrap();
        assert_eq!(upstream.bytes(4).await, format!("up {round}").as_bytes());
        upstream.send(format!("down {round}")).await;
        let bytes = soon("bytes", down.data()).await.unwrap().unwrap();
        assert_eq!(bytes, format!("down {round}"));
    }
    // Half-close, and then the other half.
    up.send_data(Bytes::new(), true).unwrap();
    let Upstream { received, send } = upstream;
    assert!(soon("the end", collect(received)).await.1.is_ok());
    send.send(data("bye")).await.unwrap();
    drop(send);
    assert_eq!(read(down).await.unwrap().0, b"bye");
    client.rests().await;
}

#[tokio::test]
async fn a_key_gets_its_answer_also_over_http2() {
    let rig = Rig::start().await;
    let (_client, _upstreams) = granting(&rig).await;
    let mut http2 = Http2::new(&rig).await;
    // Of a proxy that sends on the key of its own client.
    let mut request = upgrade("websocket");
    let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
    request.headers_mut().insert("sec-websocket-key", key);
    let (response, _up) = http2.send.send_request(request, false).unwrap();
    let response = soon("a response", response).await.unwrap();
    let accept = &response.headers()["sec-websocket-accept"];
    assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

/// hyper shows a reset of such a stream as its end, and ends it in order where it should be reset:
/// both are told from a whole WebSocket by the close frame that is missing. Here it matters that
/// neither leaves anything behind.
#[tokio::test]
async fn an_upgraded_stream_that_breaks_is_over_at_both_ends() {
    let rig = Rig::with(|config| config.settings.body_idle_timeout = SHORT).await;
    let (client, mut upstreams) = granting(&rig).await;
    let mut http2 = Http2::new(&rig).await;
    let (response, mut up) = http2
        .send
        .send_request(upgrade("websocket"), false)
        .unwrap();
    let response = soon("a response", response).await.unwrap();
    let upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    up.send_reset(Reason::CANCEL);
    drop(response);
    let began = Instant::now();
    let _ = soon("the end", collect(upstream.received)).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    soon("the other direction's end", upstream.send.closed()).await;
    client.rests().await;

    let (response, _up) = http2
        .send
        .send_request(upgrade("websocket"), false)
        .unwrap();
    let response = soon("a response", response).await.unwrap();
    let upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    let why = Problem::new(
        Hop::Client,
        tunnel_proto::problem::Reason::ConnectionTerminated,
        "",
    );
    upstream.send.send(Err(Failure(why))).await.unwrap();
    let _ = read(response.into_body()).await;
    client.rests().await;
    rig.metric_becomes("tunnel_server_open_exchanges{runtime=\"acme-prod\"}", 0.0)
        .await;
}

#[tokio::test]
async fn an_unread_upgraded_stream_is_cancelled() {
    let rig = Rig::with(|config| config.settings.body_idle_timeout = SHORT).await;
    let (client, mut upstreams) = granting(&rig).await;
    let mut http2 = Http2::reading_nothing(&rig).await;
    let (response, _up) = http2
        .send
        .send_request(upgrade("websocket"), false)
        .unwrap();
    let response = soon("a response", response).await.unwrap();
    let upstream = soon("the upgrade", upstreams.recv()).await.unwrap();
    let flooding = async { while upstream.send.send(data(vec![7; 10_000])).await.is_ok() {} };
    soon("the exchange's end", flooding).await;
    client.rests().await;
    rig.metric_becomes(NOT_TAKEN, 1.0).await;
    // Neither does the stream stay.
    let cut = soon("the stream's end", response.into_body().data()).await;
    assert!(!matches!(cut, Some(Ok(_))), "{cut:?}");
}

#[tokio::test]
async fn an_upgrade_that_is_refused_is_an_ordinary_answer() {
    let rig = Rig::start().await;
    let _client = FakeClient::new(&rig, PROD, |_| async { Ok(status(403, full("not you"))) }).await;
    let mut http2 = Http2::new(&rig).await;
    let (response, _up) = http2
        .send
        .send_request(upgrade("websocket"), false)
        .unwrap();
    let response = soon("a response", response).await.unwrap();
    assert_eq!(response.status(), 403);
    assert_eq!(read(response.into_body()).await.unwrap().0, b"not you");
    let (response, _up) = http2
        .send
        .send_request(upgrade("connect-udp"), false)
        .unwrap();
    assert_eq!(soon("a response", response).await.unwrap().status(), 400);
}
