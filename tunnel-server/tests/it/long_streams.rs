//! How long streams end when a tunnel, or the server, leaves: by their own protocol where they can, and
//! as a cut everywhere else.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{Request, Response};
use http_body_util::BodyExt;
use testkit::{
    deadline::{SOON, eventually, soon},
    http1::{End, RawConnection},
    tunnel::{
        body::{Feed, data, fed},
        client::FakeClient,
    },
};
use tokio::{net::TcpStream, sync::mpsc, time::Instant};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, protocol::frame::coding::CloseCode},
};
use tunnel_proto::{close::CloseReason, handshake};

use crate::{
    access_lines::logged,
    http2_client::{self, Http2},
    rig::{PROD, PROD_HOST, Rig, connect},
    sessions::get,
    upgrade::Upstream,
};

/// Long enough for all that a stopping server does one after the other.
const SHORT: Duration = Duration::from_secs(3);
/// And for what it waits for a second.
const LONG: Duration = Duration::from_secs(8);
/// What the server says at its end, to the upstream: 1001 with a mask of zeros.
const CLOSE_MASKED: [u8; 8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe9];
const TEXT: &[u8] = b"\x81\x02hi";

async fn with_grace(grace: Duration) -> Rig {
    Rig::with(|config| config.settings.grace_period = grace).await
}

/// A client that grants every upgrade as RFC 6455 wants it, and answers all else with a stream of the
/// content type that the path names. Both are handed to the test.
async fn streaming(rig: &Rig) -> (FakeClient, mpsc::Receiver<Upstream>) {
    let (handed, upstreams) = mpsc::channel(4);
    let client = FakeClient::new(rig, PROD, move |request| {
        let handed = handed.clone();
        async move {
            let (send, body) = fed();
            let mut response = Response::builder();
            if let Some(key) = request.headers().get("sec-websocket-key") {
                response = response.header(
                    "sec-websocket-accept",
                    handshake::accept_key(key.as_bytes()),
                );
            } else {
                response = response.header("content-type", &request.uri().path()[1..]);
            }
            let received = request.into_body();
            assert!(handed.send(Upstream { received, send }).await.is_ok());
            Ok(response.body(body).unwrap())
        }
    })
    .await;
    (client, upstreams)
}

async fn next(upstreams: &mut mpsc::Receiver<Upstream>) -> Upstream {
    soon("the request", upstreams.recv()).await.unwrap()
}

async fn websocket(rig: &Rig) -> WebSocketStream<TcpStream> {
    let socket = connect(rig.addresses.public).await;
    let url = format!("ws://{PROD_HOST}/chat");
    soon("an upgrade", client_async(url, socket))
        .await
        .unwrap()
        .0
}

/// What a WebSocket says next.
async fn said(websocket: &mut WebSocketStream<TcpStream>) -> Option<Result<Message, Error>> {
    soon("a message", websocket.next()).await
}

async fn says_hi(websocket: &mut WebSocketStream<TcpStream>) {
    let message = said(websocket).await.unwrap().unwrap();
    assert_eq!(message.to_text().unwrap(), "hi");
}

/// That the WebSocket is closed because the server goes away, and the connection ends in order.
async fn is_going_away(websocket: &mut WebSocketStream<TcpStream>) {
    let message = said(websocket).await.unwrap().unwrap();
    let Message::Close(Some(close)) = message else {
        panic!("{message:?}");
    };
    assert_eq!(close.code, CloseCode::Away);
    assert!(said(websocket).await.is_none(), "it ends in order");
}

#[tokio::test]
async fn a_websocket_whose_tunnel_leaves_is_closed_by_1001() {
    let rig = Rig::with(|config| config.settings.grace_period = Duration::from_millis(500)).await;
    let (client, mut upstreams) = streaming(&rig).await;
    let mut left = websocket(&rig).await;
    let upstream = next(&mut upstreams).await;
    left.send(Message::text("up")).await.unwrap();
    upstream.send(TEXT).await;
    says_hi(&mut left).await;
    client.session.close(CloseReason::Left);
    is_going_away(&mut left).await;

    // Superseded: closed when the grace of the older one is over.
    let (_older, mut upstreams) = streaming(&rig).await;
    let mut superseded = websocket(&rig).await;
    let _upstream = next(&mut upstreams).await;
    let (_newer, _upstreams) = streaming(&rig).await;
    is_going_away(&mut superseded).await;
    let ended = "tunnel_server_problems_total{hop=\"tunnel-server\",reason=\"session_lost\"}";
    assert!(rig.metric(ended).await < 0.5);
}

#[tokio::test]
async fn a_websocket_is_cut_within_a_frame_and_when_the_tunnel_breaks() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = streaming(&rig).await;
    let mut within = websocket(&rig).await;
    let mut upstream = next(&mut upstreams).await;
    upstream.send(TEXT).await;
    upstream.send(&TEXT[..3]).await;
    assert!(said(&mut within).await.unwrap().is_ok());
    // What has come back says that what was sent before it has arrived.
    within.send(Message::text("")).await.unwrap();
    upstream.bytes(6).await;
    let mut next_one = websocket(&rig).await;
    let _upstream = next(&mut upstreams).await;
    client.session.close(CloseReason::Left);
    is_going_away(&mut next_one).await;
    assert!(said(&mut within).await.unwrap().is_err());

    let (client, mut upstreams) = streaming(&rig).await;
    let mut broken = websocket(&rig).await;
    let _upstream = next(&mut upstreams).await;
    client.die();
    assert!(said(&mut broken).await.unwrap().is_err());
}

#[tokio::test]
async fn a_stopping_server_closes_a_websocket_towards_both_ends() {
    let rig = with_grace(SHORT).await;
    let (_client, mut upstreams) = streaming(&rig).await;
    let mut websocket = websocket(&rig).await;
    let mut upstream = next(&mut upstreams).await;
    rig.trigger.request();
    // Until the grace is about to end it goes on.
    for _ in 0..3 {
        upstream.send(TEXT).await;
        says_hi(&mut websocket).await;
    }
    let told = async {
        assert_eq!(upstream.bytes(CLOSE_MASKED.len()).await, CLOSE_MASKED);
        let end = soon("the upstream's end", upstream.received.frame()).await;
        assert!(end.is_none(), "it ends in order");
        // Which an upstream answers, and then it ends too.
        upstream.send([0x88, 2, 0x03, 0xe9]).await;
        drop(upstream.send);
    };
    tokio::join!(is_going_away(&mut websocket), told);
    drop(websocket);
    let began = Instant::now();
    rig.stopped().await;
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "nothing is waited for"
    );
}

#[tokio::test]
async fn a_stopping_server_waits_a_moment_for_the_end_of_a_frame() {
    let rig = with_grace(LONG).await;
    let (_client, mut upstreams) = streaming(&rig).await;
    let mut whole = websocket(&rig).await;
    let upstream = next(&mut upstreams).await;
    upstream.send(&TEXT[..3]).await;
    let mut idle = websocket(&rig).await;
    let _upstream = next(&mut upstreams).await;
    let mut never = websocket(&rig).await;
    let half = next(&mut upstreams).await;
    half.send(&TEXT[..3]).await;
    rig.trigger.request();
    is_going_away(&mut idle).await;
    // The rest comes, and behind it the beginning of another one.
    upstream.send([&TEXT[3..], &TEXT[..2]].concat()).await;
    says_hi(&mut whole).await;
    is_going_away(&mut whole).await;
    assert!(said(&mut never).await.unwrap().is_err());
    rig.stopped().await;
}

/// Whoever has closed already is not closed again.
#[tokio::test]
async fn a_websocket_that_was_closed_gets_no_second_close_frame() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = streaming(&rig).await;
    let mut raw = rig.raw().await;
    raw.send(format!(
        "GET /chat HTTP/1.1\r\nhost: {PROD_HOST}\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ))
    .await;
    assert_eq!(raw.head().await.unwrap().status(), 101);
    let upstream = next(&mut upstreams).await;
    let close = [0x88, 2, 0x03, 0xe8];
    upstream.send(close).await;
    assert_eq!(raw.bytes(4).await, close);
    client.session.close(CloseReason::Left);
    assert_eq!(raw.closes().await, End::Clean);
}

#[tokio::test]
async fn a_websocket_over_http2_is_closed_by_1001_too() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = streaming(&rig).await;
    let mut http2 = Http2::new(&rig).await;
    let mut request = http2_client::get("/chat");
    *request.method_mut() = http::Method::CONNECT;
    let fields = request.headers_mut();
    fields.insert("sec-websocket-version", "13".parse().unwrap());
    request
        .extensions_mut()
        .insert(h2::ext::Protocol::from_static("websocket"));
    let (response, _up) = http2.send.send_request(request, false).unwrap();
    let response = soon("a response", response).await.unwrap();
    assert_eq!(response.status(), 200);
    let _upstream = next(&mut upstreams).await;
    client.session.close(CloseReason::Left);
    let (content, _) = http2_client::read(response.into_body()).await.unwrap();
    assert_eq!(content, [0x88, 2, 0x03, 0xe9]);
}

/// A stream of events, up to where these have come.
async fn events(
    rig: &Rig,
    upstreams: &mut mpsc::Receiver<Upstream>,
    sent: &str,
) -> (RawConnection, Feed) {
    events_for(rig, upstreams, "GET", "accept: text/event-stream", sent).await
}

/// The same for whoever asks like this.
async fn events_for(
    rig: &Rig,
    upstreams: &mut mpsc::Receiver<Upstream>,
    method: &str,
    field: &str,
    sent: &str,
) -> (RawConnection, Feed) {
    let mut raw = rig.raw().await;
    let request = get("/text/event-stream").replace("GET", method);
    raw.send(request.replace("\r\n\r\n", &format!("\r\n{field}\r\n\r\n")))
        .await;
    let Upstream { send, .. } = next(upstreams).await;
    assert_eq!(raw.head().await.unwrap().status(), 200);
    send.send(data(sent.to_owned())).await.unwrap();
    let chunk = format!("{:X}\r\n{sent}\r\n", sent.len());
    let received = raw.bytes(chunk.len()).await;
    assert_eq!(String::from_utf8(received).unwrap(), chunk);
    (raw, send)
}

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

#[tokio::test]
async fn events_whose_tunnel_leaves_end_between_two_of_them() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = streaming(&rig).await;
    let (mut whole, _feed) = events(&rig, &mut upstreams, "data: a\n\ndata: b\n\n").await;
    let (mut commented, _feed) = events(&rig, &mut upstreams, "data: a\r\n\r\n: here\r\n").await;
    let (mut part, _feed) = events(&rig, &mut upstreams, "data: a\n\ndata: b\n").await;
    client.session.close(CloseReason::Left);
    ends_whole(&mut whole).await;
    ends_whole(&mut commented).await;
    assert_eq!(part.closes().await, End::Reset);

    let (client, mut upstreams) = streaming(&rig).await;
    let (mut broken, _feed) = events(&rig, &mut upstreams, "data: a\n\n").await;
    client.die();
    assert_eq!(broken.closes().await, End::Reset);
}

#[tokio::test]
async fn events_of_a_client_that_does_not_reconnect_are_cut() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = streaming(&rig).await;
    let mut open = Vec::new();
    for (method, field, is_in_order) in [
        ("GET", "accept: text/event-stream", true),
        ("GET", "last-event-id: 7", true),
        ("GET", "accept: */*", false),
        ("POST", "accept: text/event-stream", false),
    ] {
        let asked = events_for(&rig, &mut upstreams, method, field, "data: a\n\n").await;
        open.push((asked, is_in_order, field));
    }
    client.session.close(CloseReason::Left);
    for ((mut raw, _feed), is_in_order, field) in open {
        if is_in_order {
            ends_whole(&mut raw).await;
        } else {
            assert_eq!(raw.closes().await, End::Reset, "{field}");
        }
    }
}

/// Waits for the last chunk of a content.
async fn ends_whole(raw: &mut RawConnection) {
    assert_eq!(raw.bytes(LAST_CHUNK.len()).await, LAST_CHUNK);
}

#[tokio::test]
async fn a_stopping_server_ends_events_where_one_is_whole() {
    let rig = with_grace(LONG).await;
    let (_client, mut upstreams) = streaming(&rig).await;
    let (mut idle, _feed) = events(&rig, &mut upstreams, "data: a\n\n").await;
    let (mut part, feed) = events(&rig, &mut upstreams, "data: a\n").await;
    let (mut never, _feed) = events(&rig, &mut upstreams, "data: a\n").await;
    let (mut busy, busy_feed) = events(&rig, &mut upstreams, "data: 0\n").await;
    // One that is never silent, and whose pieces never end with an event.
    let flow = tunnel_ops::task::Owned::spawn("flow", async move {
        let event = || data("\ndata: 1\n");
        while busy_feed.send(event()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    rig.trigger.request();
    ends_whole(&mut idle).await;
    let began = Instant::now();
    feed.send(data("id: 1\n\ndata: b\n\n")).await.unwrap();
    assert_eq!(part.bytes(12).await, b"7\r\nid: 1\n\n\r\n");
    ends_whole(&mut part).await;
    assert_eq!(never.closes().await, End::Reset);
    assert!(began.elapsed() < Duration::from_secs(4));
    let (rest, end) = busy.rest().await;
    assert_eq!(end, End::Clean);
    assert!(
        rest.ends_with(b"1\r\n\n\r\n0\r\n\r\n"),
        "{}",
        rest.escape_ascii()
    );
    soon("the flow's end", flow).await.unwrap();
    rig.stopped().await;
}

/// Events over HTTP/2, and contents that nothing is known of: these stay what they were, a cut.
#[tokio::test]
async fn whatever_has_no_end_of_its_own_is_cut() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = streaming(&rig).await;
    let mut http2 = Http2::new(&rig).await;
    let mut bodies = Vec::new();
    for kind in ["text/event-stream", "text/plain", "application/json"] {
        let path = format!("/{kind}");
        let mut request = http2_client::get(&path);
        let accept = http::HeaderValue::from_static("text/event-stream");
        request.headers_mut().insert("accept", accept);
        let response = http2.ask(request).await.unwrap();
        let Upstream { send, .. } = next(&mut upstreams).await;
        send.send(data("data: a\n\n")).await.unwrap();
        let mut body = response.into_body();
        soon("content", body.data()).await.unwrap().unwrap();
        bodies.push((body, send));
    }
    let mut raw = rig.raw().await;
    raw.send(get("/text/plain")).await;
    let Upstream { send, .. } = next(&mut upstreams).await;
    send.send(data("a\n\n")).await.unwrap();
    assert_eq!(raw.head().await.unwrap().status(), 200);
    raw.bytes(8).await;
    client.session.close(CloseReason::Left);
    assert_eq!(raw.closes().await, End::Reset);
    let mut ends = Vec::new();
    for (body, _feed) in bodies {
        ends.push(http2_client::read(body).await.is_ok());
    }
    assert_eq!(ends, [true, false, false]);
}

#[tokio::test]
async fn the_access_log_tells_that_a_stream_has_moved_and_what_went_each_way() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = streaming(&rig).await;
    let path = "/text/event-stream;logged";
    let mut raw = rig.raw().await;
    raw.send(format!(
        "GET {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\naccept: text/event-stream\r\ncontent-length: 5\r\n\r\nhello"
    ))
    .await;
    let mut upstream = next(&mut upstreams).await;
    assert_eq!(upstream.bytes(5).await, b"hello");
    upstream.send("data: a\n\n").await;
    assert_eq!(raw.head().await.unwrap().status(), 200);
    raw.bytes(14).await;
    client.session.close(CloseReason::Left);
    ends_whole(&mut raw).await;
    let line = eventually(SOON, "a line", async || logged(path)).await;
    assert_eq!(line["end"], "moved");
    assert_eq!(line["request_bytes"], "5");
    assert_eq!(line["response_bytes"], "9");
}

fn message(content: &[u8]) -> Bytes {
    let mut message = vec![0];
    message.extend(u32::try_from(content.len()).unwrap().to_be_bytes());
    message.extend(content);
    message.into()
}

/// A call, up to where this much has come.
async fn call(
    http2: &mut Http2,
    upstreams: &mut mpsc::Receiver<Upstream>,
    sent: &[u8],
) -> (h2::RecvStream, Feed) {
    let request = Request::post(format!("http://{PROD_HOST}/application/grpc+proto"))
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let response = http2.ask(request).await.unwrap();
    let Upstream { send, .. } = next(upstreams).await;
    let mut body = response.into_body();
    if !sent.is_empty() {
        send.send(data(sent.to_vec())).await.unwrap();
        let received = soon("content", body.data()).await.unwrap().unwrap();
        assert_eq!(received, sent);
    }
    (body, send)
}

/// That a call ends with the status that says "try again".
async fn is_unavailable(call: (h2::RecvStream, Feed)) {
    let (_, trailers) = http2_client::read(call.0).await.unwrap();
    let trailers = trailers.unwrap();
    assert_eq!(trailers["grpc-status"], "14");
    assert_eq!(trailers["grpc-message"], "the tunnel is going away");
}

#[tokio::test]
async fn a_call_whose_tunnel_leaves_is_unavailable_between_two_messages() {
    let rig = Rig::start().await;
    let (client, mut upstreams) = streaming(&rig).await;
    let mut http2 = Http2::new(&rig).await;
    let begun = call(&mut http2, &mut upstreams, b"").await;
    let whole = call(&mut http2, &mut upstreams, &message(b"hello")).await;
    let part = call(&mut http2, &mut upstreams, &message(b"hello")[..7]).await;
    client.session.close(CloseReason::Left);
    is_unavailable(begun).await;
    is_unavailable(whole).await;
    assert!(http2_client::read(part.0).await.is_err());

    let (client, mut upstreams) = streaming(&rig).await;
    let broken = call(&mut http2, &mut upstreams, b"").await;
    client.die();
    assert!(http2_client::read(broken.0).await.is_err());
}

#[tokio::test]
async fn a_stopping_server_ends_calls_where_a_message_is_whole() {
    let rig = with_grace(LONG).await;
    let (_client, mut upstreams) = streaming(&rig).await;
    let mut http2 = Http2::new(&rig).await;
    let idle = call(&mut http2, &mut upstreams, &message(b"hello")).await;
    let (part, feed) = call(&mut http2, &mut upstreams, &message(b"hello")[..7]).await;
    rig.trigger.request();
    is_unavailable(idle).await;
    let rest = [&message(b"hello")[7..], &message(b"world")[..]].concat();
    feed.send(data(rest)).await.unwrap();
    is_unavailable((part, feed)).await;
    rig.stopped().await;
}
