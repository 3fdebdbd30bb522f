//! Upgraded connections: bytes in both directions, either direction ending first, and cuts reported as
//! errors.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split},
    sync::mpsc,
    task::JoinSet,
};
use tunnel_proto::{
    close::CloseReason,
    exchange::{Protocol, RecvBody, copy_body, exchange, read_body},
    session::Session,
};

use crate::{
    content::{TestBody, TestError, full, get, read, request},
    pair::{Pair, settle, within},
};

/// How a direction ended.
type Ends = JoinSet<(&'static str, std::io::Result<()>)>;

/// An upgraded connection: its two outer ends, and how each direction ends in each program.
struct Upgraded {
    pair: Pair,
    platform: DuplexStream,
    upstream: DuplexStream,
    ends: Ends,
    uploads: mpsc::Receiver<std::io::Result<()>>,
}

impl Upgraded {
    async fn start() -> Self {
        let (give, mut upstreams) = mpsc::channel(1);
        let (report, uploads) = mpsc::channel(1);
        let pair = Pair::start(move |request: Request<RecvBody>| {
            let (give, report) = (give.clone(), report.clone());
            async move { Ok(answer(request, &give, report)) }
        })
        .await;
        let (platform, server_side) = duplex(4_096);
        let mut ends = Ends::new();
        upgrade(&pair.server, server_side, &mut ends).await;
        let upstream = within(upstreams.recv()).await.unwrap();
        Self {
            pair,
            platform,
            upstream,
            ends,
            uploads,
        }
    }
}

/// What a tunnel client does with an upgrade.
fn answer(
    request: Request<RecvBody>,
    give: &mpsc::Sender<DuplexStream>,
    report: mpsc::Sender<std::io::Result<()>>,
) -> Response<TestBody> {
    if request.extensions().get::<Protocol>() != Some(&Protocol::WEBSOCKET) {
        return Response::new(full("no upgrade"));
    }
    assert_eq!(request.method(), Method::CONNECT);
    let (client_side, upstream) = duplex(4_096);
    give.try_send(upstream).unwrap();
    let (from, to) = split(client_side);
    let mut copying = JoinSet::new();
    copying.spawn(async move {
        let end = copy_body(request.into_body(), to).await;
        let _ = report.send(end).await;
    });
    copying.detach_all();
    Response::new(read_body(from).map_err(|_| TestError).boxed())
}

/// What a tunnel server does with an upgrade.
async fn upgrade(session: &Session, connection: DuplexStream, ends: &mut Ends) {
    let (from, to) = split(connection);
    let content = read_body(from).map_err(|_| TestError);
    let mut request = request(Method::CONNECT, "/socket", content);
    request.extensions_mut().insert(Protocol::WEBSOCKET);
    let response = within(exchange(session, request, |_, _| {})).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    ends.spawn(async move {
        let end = copy_body(&mut body, to).await;
        if end.is_ok() {
            body.sent().await;
        }
        ("download", end)
    });
}

async fn sends(from: &mut DuplexStream, to: &mut DuplexStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    let (written, arrived) =
        within(async { tokio::join!(from.write_all(bytes), to.read_exact(&mut read)) }).await;
    written.unwrap();
    arrived.unwrap();
    assert!(read == bytes, "{} bytes", bytes.len());
}

async fn has_ended(connection: &mut DuplexStream) {
    assert_eq!(
        within(connection.read_u8()).await.unwrap_err().kind(),
        std::io::ErrorKind::UnexpectedEof
    );
}

#[tokio::test(start_paused = true)]
async fn bytes_are_copied_in_both_directions() {
    let mut it = Upgraded::start().await;
    let large = crate::content::pattern(1_000_000);
    for _ in 0..3 {
        sends(&mut it.platform, &mut it.upstream, b"ping").await;
        sends(&mut it.upstream, &mut it.platform, b"pong").await;
        sends(&mut it.platform, &mut it.upstream, &large).await;
        sends(&mut it.upstream, &mut it.platform, &large).await;
        tokio::time::sleep(std::time::Duration::from_secs(3_600)).await;
    }
    assert_eq!(
        (it.pair.server.outstanding(), it.pair.client.outstanding()),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn either_direction_may_end_first_and_the_other_continues() {
    for is_platform_first in [true, false] {
        let mut it = Upgraded::start().await;
        let (first, second) = if is_platform_first {
            (&mut it.platform, &mut it.upstream)
        } else {
            (&mut it.upstream, &mut it.platform)
        };
        sends(first, second, b"last words").await;
        first.shutdown().await.unwrap();
        has_ended(second).await;
        for _ in 0..3 {
            // Too short for a probe of the client.
            tokio::time::sleep(std::time::Duration::from_secs(4)).await;
            assert_eq!(
                it.pair.server.outstanding(),
                1,
                "platform first: {is_platform_first}"
            );
            assert_eq!(
                it.pair.client.outstanding(),
                1,
                "platform first: {is_platform_first}"
            );
            sends(second, first, &crate::content::pattern(600_000)).await;
        }
        second.shutdown().await.unwrap();
        has_ended(first).await;
        assert!(within(it.uploads.recv()).await.unwrap().is_ok());
        let (_, end) = within(it.ends.join_next()).await.unwrap().unwrap();
        end.unwrap();
        within(it.pair.server.at_rest()).await;
        within(it.pair.client.at_rest()).await;
        within(exchange(&it.pair.server, get("/"), |_, _| {}))
            .await
            .unwrap();
        assert_eq!(it.pair.streams.all(), 2, "its stream carries nothing else");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_upstream_is_an_error_on_the_other_side() {
    let pair = Pair::start(async |_: Request<RecvBody>| {
        let frames = vec![
            Ok(http_body::Frame::data(Bytes::from_static(b"a"))),
            Err(TestError),
        ];
        Ok(Response::new(crate::content::frames(frames)))
    })
    .await;
    let (mut platform, server_side) = duplex(4_096);
    let mut ends = Ends::new();
    upgrade(&pair.server, server_side, &mut ends).await;
    assert_eq!(within(platform.read_u8()).await.unwrap(), b'a');
    let (_, end) = within(ends.join_next()).await.unwrap().unwrap();
    assert!(end.is_err());
    within(pair.server.at_rest()).await;
    within(pair.client.at_rest()).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_is_an_error_at_both_ends_in_either_state() {
    for is_half_closed in [false, true] {
        let mut it = Upgraded::start().await;
        sends(&mut it.platform, &mut it.upstream, b"hello").await;
        if is_half_closed {
            it.upstream.shutdown().await.unwrap();
            has_ended(&mut it.platform).await;
        }
        settle().await;
        it.pair.client.close(CloseReason::Left);
        it.pair.drivers.ends().await;
        assert!(within(it.uploads.recv()).await.unwrap().is_err());
        let (_, end) = within(it.ends.join_next()).await.unwrap().unwrap();
        // Half closed: its own direction had ended cleanly, but it does not wait forever.
        assert_eq!(end.is_ok(), is_half_closed);
        within(it.pair.serving.join_next()).await.unwrap().unwrap();
        assert_eq!(
            (it.pair.server.outstanding(), it.pair.client.outstanding()),
            (0, 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_platform_client_that_is_lost_is_an_error_at_the_upstream() {
    let mut it = Upgraded::start().await;
    sends(&mut it.platform, &mut it.upstream, b"hello").await;
    it.ends.shutdown().await;
    assert!(within(it.uploads.recv()).await.unwrap().is_err());
    within(it.pair.client.at_rest()).await;
    within(it.pair.server.at_rest()).await;
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_to_anything_else_is_refused_by_the_client_itself() {
    let handled = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let pair = Pair::start(async |_: Request<RecvBody>| Ok(Response::new(full("plain")))).await;
    for name in ["h2c", "", "websocket2"] {
        assert!(Protocol::from_wire(name.as_bytes()).is_err());
    }
    assert_eq!(
        Protocol::from_wire(b"WebSocket").unwrap(),
        Protocol::WEBSOCKET
    );
    let response = within(exchange(&pair.server, get("/"), |_, _| {}))
        .await
        .unwrap();
    assert_eq!(within(read(response.into_body())).await.content, "plain");
    assert_eq!(handled.load(std::sync::atomic::Ordering::Relaxed), 0);
}
