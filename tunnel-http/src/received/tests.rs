//! Requests of HTTP/2 whose content ends in every way there is, in a time that only the test moves.

use std::convert::Infallible;
use std::future::poll_fn;

use h2::client::SendRequest;
use h2::{Reason, SendStream};
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;
use crate::connection::{Bounds, http2};
use tunnel_ops::signals::Shutdown;
use tunnel_ops::task::Owned;

const SECOND: Duration = Duration::from_secs(1);

fn bounds() -> Bounds {
    Bounds {
        max_head_bytes: 16 * 1024,
        stream_window_bytes: 256 * 1024,
        tls_handshake_timeout: 60 * SECOND,
        first_byte_timeout: 60 * SECOND,
        request_head_timeout: 60 * SECOND,
        keep_alive_timeout: 60 * SECOND,
        body_idle_timeout: 60 * SECOND,
    }
}

/// Serves a connection whose requests are all handed to `take`, and answered with `no`.
fn serve(near: DuplexStream, take: impl Fn(ReceivedBody) + Send + Sync + 'static) -> Owned<()> {
    Owned::spawn("serving", async move {
        let (_trigger, stopping) = Shutdown::manual();
        let tasks = Tasks::default();
        let answer = |request: Request<ReceivedBody>| {
            take(request.into_body());
            async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"no")))) }
        };
        http2(near, bounds(), &tasks, &stopping, answer).await;
    })
}

async fn connect(far: DuplexStream) -> (SendRequest<Bytes>, Owned<()>) {
    let (send, connection) = h2::client::handshake(far).await.unwrap();
    let driver = Owned::spawn("peer", async move {
        let _ = connection.await;
    });
    (send.ready().await.unwrap(), driver)
}

fn post() -> Request<()> {
    Request::post("http://a/").body(()).unwrap()
}

fn piece(bytes: usize) -> Bytes {
    vec![7; bytes].into()
}

/// What the other end makes of content of four bytes that ends like this.
async fn read(end: impl AsyncFnOnce(SendStream<Bytes>, Owned<()>)) -> Result<usize, ReceiveError> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (tell, mut told) = mpsc::channel(1);
    let _serving = serve(near, move |body| {
        let tell = tell.clone();
        let reading = Owned::spawn("reading", async move {
            let read = body.collect().await;
            let _ = tell.try_send(read.map(|whole| whole.to_bytes().len()));
        });
        std::mem::forget(reading);
    });
    let (mut send, driver) = connect(far).await;
    let (_response, mut stream) = send.send_request(post(), false).unwrap();
    stream.send_data(piece(4), false).unwrap();
    // What comes before the end is on its way.
    tokio::time::sleep(SECOND).await;
    end(stream, driver).await;
    told.recv().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn only_the_end_of_a_stream_is_an_end() {
    let whole = async |mut stream: SendStream<Bytes>, driver| {
        stream.send_data(Bytes::new(), true).unwrap();
        std::mem::forget(driver);
    };
    assert_eq!(read(whole).await.unwrap(), 4);
    let with_trailers = async |mut stream: SendStream<Bytes>, driver| {
        stream.send_trailers(HeaderMap::new()).unwrap();
        std::mem::forget(driver);
    };
    assert_eq!(read(with_trailers).await.unwrap(), 4);
    for reason in [Reason::NO_ERROR, Reason::CANCEL, Reason::INTERNAL_ERROR] {
        let reset = async |mut stream: SendStream<Bytes>, driver| {
            stream.send_reset(reason);
            std::mem::forget((stream, driver));
        };
        assert!(read(reset).await.is_err(), "{reason:?}");
    }
    let lost = async |stream, driver| drop((driver, stream));
    assert!(read(lost).await.is_err());
}

/// A request whose content nobody wants, with its answer read.
async fn refused(send: &mut SendRequest<Bytes>) -> SendStream<Bytes> {
    let (response, mut stream) = send.send_request(post(), false).unwrap();
    stream.send_data(piece(10), false).unwrap();
    let mut answer = response.await.unwrap().into_body();
    let mut received = Vec::new();
    while let Some(data) = answer.data().await {
        received.extend(data.unwrap());
    }
    assert_eq!(received, b"no");
    assert!(answer.is_end_stream());
    stream
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wants_is_discarded_for_a_moment_before_the_reset() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let _serving = serve(near, drop);
    let (mut send, _driver) = connect(far).await;

    let start = Instant::now();
    let mut silent = refused(&mut send).await;
    let reset = poll_fn(|cx| silent.poll_reset(cx)).await;
    assert_eq!(reset.unwrap(), Reason::NO_ERROR);
    assert_eq!(start.elapsed().as_secs(), DISCARD_TIME.as_secs());

    let start = Instant::now();
    let mut endless = refused(&mut send).await;
    let mut sent = 0;
    let reset = poll_fn(|cx| {
        loop {
            if let Poll::Ready(reset) = endless.poll_reset(cx) {
                return Poll::Ready(reset);
            }
            endless.reserve_capacity(16 * 1024);
            let Some(Ok(room)) = ready!(endless.poll_capacity(cx)) else {
                return Poll::Pending;
            };
            sent += room;
            endless.send_data(piece(room), false).unwrap();
        }
    })
    .await;
    assert_eq!(reset.unwrap(), Reason::NO_ERROR);
    assert!((DISCARD_BYTES..3 * DISCARD_BYTES).contains(&sent), "{sent}");
    assert_eq!(start.elapsed(), Duration::ZERO);

    // Whoever stops in order, or gives up, is not reset.
    let mut whole = refused(&mut send).await;
    whole.send_data(Bytes::new(), true).unwrap();
    let reset = timeout(5 * SECOND, poll_fn(|cx| whole.poll_reset(cx)));
    assert!(!matches!(reset.await, Ok(Ok(_))));
}
