//! HTTP/2 peers that read slowly, or not at all, in a time that only the test moves.

mod clients;
mod ends;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::Empty;
use tokio::io::ReadBuf;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::*;
use crate::connection::delivery::Delivery;
use crate::connection::is_given_up;
use crate::http2::{ContentEnd, unsent};
use crate::upgraded::TimedWriter;
use tunnel_ops::task::Owned;

const LIMIT: Duration = Duration::from_secs(60);

/// So many frames of so many bytes, then an end; it says when it is dropped, and whether its stream was
/// given up.
struct Content {
    left: usize,
    frame: usize,
    /// Nothing comes after the frames.
    is_endless: bool,
    /// The end comes only after this.
    pause: Option<Pin<Box<Sleep>>>,
    /// The end is known with the last frame.
    knows_end: bool,
    dropped: mpsc::Sender<bool>,
}

impl Drop for Content {
    fn drop(&mut self) {
        let _ = self.dropped.try_send(is_given_up());
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self {
            left,
            frame,
            is_endless,
            pause,
            ..
        } = &mut *self;
        if *left > 0 {
            *left -= 1;
            return Poll::Ready(Some(Ok(Frame::data(vec![7; *frame].into()))));
        }
        if let Some(pause) = pause {
            ready!(pause.as_mut().poll(cx));
        }
        match *is_endless {
            true => Poll::Pending,
            false => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.knows_end && self.left == 0
    }
}

fn bounds() -> Bounds {
    Bounds {
        max_head_bytes: 16 * 1024,
        stream_window_bytes: 64 * 1024,
        tls_handshake_timeout: LIMIT,
        first_byte_timeout: LIMIT,
        request_head_timeout: LIMIT,
        keep_alive_timeout: LIMIT * 2,
        body_idle_timeout: LIMIT,
    }
}

/// A connection whose requests get contents like this, with a peer that gives each stream such a window;
/// what says that no content is left; and the connection itself.
async fn connection(
    window: u32,
    content: impl Fn(mpsc::Sender<bool>) -> Content + Send + Sync + 'static,
) -> (
    h2::client::SendRequest<Bytes>,
    mpsc::Receiver<bool>,
    Owned<()>,
) {
    let (near, far) = tokio::io::duplex(1024 * 1024);
    let (dropped, ended) = mpsc::channel(1024);
    let serving = Owned::spawn("serving", async move {
        let (_trigger, stopping) = Shutdown::manual();
        let tasks = Tasks::default();
        let answer = |_: Request<ReceivedBody>| {
            let content = content(dropped.clone());
            async move { Ok(Response::new(content)) }
        };
        http2(near, bounds(), &tasks, &stopping, answer).await;
    });
    let mut client = h2::client::Builder::new();
    client.initial_window_size(window);
    client.initial_connection_window_size(1 << 20);
    let (send, connection) = client.handshake(far).await.unwrap();
    std::mem::forget(Owned::spawn("peer", async move {
        let _ = connection.await;
    }));
    (send, ended, serving)
}

async fn get(send: &h2::client::SendRequest<Bytes>) -> Response<RecvStream> {
    let mut send = send.clone().ready().await.unwrap();
    let request = Request::get("http://a/").body(()).unwrap();
    send.send_request(request, true).unwrap().0.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn who_takes_nothing_of_an_answer_is_given_up() {
    // One piece, many, and one that is not all there is.
    for (left, is_endless, knows_end) in [
        (1, false, false),
        (1, false, true),
        (20, false, false),
        (20, false, true),
        (1, true, false),
    ] {
        let content = move |dropped| Content {
            left,
            frame: 1_000,
            is_endless,
            pause: None,
            knows_end,
            dropped,
        };
        let (send, mut ended, _serving) = connection(0, content).await;
        let begun = Instant::now();
        let response = get(&send).await;
        let error = response.into_body().data().await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
        let took = begun.elapsed();
        assert!(took >= LIMIT && took < LIMIT * 2, "{took:?}");
        // The content is gone, and with it what the exchange holds; only the answering has its sender.
        drop(send);
        for expected in [Some(true), None] {
            assert_eq!(timeout(LIMIT * 5, ended.recv()).await.unwrap(), expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_which_nothing_is_there_may_be_silent() {
    let content = |dropped| Content {
        left: 1,
        frame: 10,
        is_endless: true,
        pause: None,
        knows_end: false,
        dropped,
    };
    let (send, _ended, _serving) = connection(100, content).await;
    let mut body = get(&send).await.into_body();
    assert_eq!(body.data().await.unwrap().unwrap().len(), 10);
    assert!(timeout(LIMIT * 20, body.data()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn who_reads_slowly_is_not_given_up() {
    const BYTES: usize = 128 * 1024;
    let content = |dropped| Content {
        left: 2,
        frame: BYTES / 2,
        is_endless: false,
        pause: None,
        knows_end: false,
        dropped,
    };
    let (send, _ended, _serving) = connection(4 * 1024, content).await;
    let mut body = get(&send).await.into_body();
    let (mut received, begun) = (0, Instant::now());
    while let Some(data) = body.data().await {
        let length = data.unwrap().len();
        received += length;
        // A piece of 16 KiB takes four times as long.
        sleep(LIMIT / 5).await;
        body.flow_control().release_capacity(length).unwrap();
    }
    assert_eq!(received, BYTES);
    assert!(begun.elapsed() > LIMIT * 5);
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_peer_takes_no_end_of_an_answer_ends_itself() {
    // All of it is with h2, and no task of a stream is left that could give it up.
    let content = |dropped| Content {
        left: 1,
        frame: 1_000,
        is_endless: false,
        pause: None,
        knows_end: false,
        dropped,
    };
    let (send, _ended, serving) = connection(1, content).await;
    let _response = get(&send).await;
    timeout(LIMIT * 10, serving).await.unwrap().unwrap();
}

/// One answer of 1,000 bytes, and after that answers without content.
fn one_with_content(dropped: mpsc::Sender<bool>, answers: &AtomicUsize) -> Content {
    Content {
        left: usize::from(answers.fetch_add(1, Ordering::Relaxed) == 0),
        frame: 1_000,
        is_endless: false,
        pause: None,
        knows_end: true,
        dropped,
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_goes_on_asking_ends_when_nothing_of_an_answer_is_taken() {
    let answers = AtomicUsize::new(0);
    let (send, _ended, serving) =
        connection(1, move |dropped| one_with_content(dropped, &answers)).await;
    let _response = get(&send).await;
    let asking = async {
        loop {
            sleep(LIMIT / 6).await;
            let Ok(mut send) = send.clone().ready().await else {
                break;
            };
            let request = Request::head("http://a/").body(()).unwrap();
            let Ok((response, _)) = send.send_request(request, true) else {
                break;
            };
            let _ = response.await;
        }
    };
    let (ended, ()) = timeout(LIMIT * 10, async { tokio::join!(serving, asking) })
        .await
        .unwrap();
    ended.unwrap();
}

#[tokio::test(start_paused = true)]
async fn small_answers_go_out_in_one_flight_each_and_are_over() {
    for knows_end in [true, false] {
        let content = move |dropped| Content {
            left: 1,
            frame: 1_000,
            is_endless: false,
            pause: None,
            knows_end,
            dropped,
        };
        let (send, mut ended, _serving) = connection(64 * 1024, content).await;
        let mut responses = Vec::new();
        for _ in 0..MAX_STREAMS / 2 {
            let request = Request::get("http://a/").body(()).unwrap();
            let mut send = send.clone().ready().await.unwrap();
            responses.push(send.send_request(request, true).unwrap().0);
        }
        for response in responses {
            let mut body = response.await.unwrap().into_body();
            assert_eq!(body.data().await.unwrap().unwrap().len(), 1_000);
            assert!(body.is_end_stream() || !knows_end, "the end came alone");
            assert_eq!(ended.recv().await, Some(false));
        }
    }
}

/// Lets nothing be read while it is closed.
struct Valve<IO> {
    io: IO,
    is_closed: Arc<AtomicBool>,
}

impl<IO: AsyncRead + Unpin> AsyncRead for Valve<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

tunnel_ops::write_through!(Valve);

/// Asks for `count` answers on a connection with windows of `window` bytes and a socket that is not read
/// after the handshake if `is_closed`; how many answers were over, and how many were given up.
async fn untaken(
    count: usize,
    window: u32,
    is_closed: bool,
    content: impl Fn(mpsc::Sender<bool>) -> Content + Send + Sync + 'static,
) -> (usize, usize) {
    let response = move |dropped| Response::new(content(dropped));
    untaken_responses(count, window, is_closed, response).await
}

/// As [`untaken`], for responses with a head of their own.
async fn untaken_responses(
    count: usize,
    window: u32,
    is_closed: bool,
    response: impl Fn(mpsc::Sender<bool>) -> Response<Content> + Send + Sync + 'static,
) -> (usize, usize) {
    let (near, far) = tokio::io::duplex(1024);
    let (dropped, mut ended) = mpsc::channel(1024);
    let _serving = Owned::spawn("serving", async move {
        let (_trigger, stopping) = Shutdown::manual();
        let tasks = Tasks::default();
        let answer = |_: Request<ReceivedBody>| {
            let response = response(dropped.clone());
            async move { Ok(response) }
        };
        let bounds = Bounds {
            body_idle_timeout: PING_INTERVAL / 2,
            ..bounds()
        };
        http2(near, bounds, &tasks, &stopping, answer).await;
    });
    let mut client = h2::client::Builder::new();
    client.initial_window_size(window);
    client.initial_connection_window_size(1 << 30);
    let valve = Arc::new(AtomicBool::new(false));
    let io = Valve {
        io: far,
        is_closed: valve.clone(),
    };
    let (mut send, mut connection) = client.handshake::<_, Bytes>(io).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let _peer = Owned::spawn("peer", async move {
        let _ = connection.await;
    });
    pings.ping(Ping::opaque()).await.unwrap();
    valve.store(is_closed, Ordering::Relaxed);
    let mut responses = Vec::new();
    for _ in 0..count {
        send = send.ready().await.unwrap();
        let request = Request::get("http://a/").body(()).unwrap();
        responses.push(send.send_request(request, true).unwrap());
    }
    let (mut over, mut given_up) = (0, 0);
    let first = timeout(PING_INTERVAL * 4, ended.recv()).await;
    let mut next = first.unwrap_or_default();
    while let Some(was_given_up) = next {
        match was_given_up {
            true => given_up += 1,
            false => over += 1,
        }
        if over + given_up == count {
            break;
        }
        next = ended.recv().await;
    }
    (over, given_up)
}

#[tokio::test(start_paused = true)]
async fn few_answers_are_over_that_a_peer_without_window_has_not_taken() {
    for knows_end in [true, false] {
        let content = move |dropped| Content {
            left: 1,
            frame: 8_000,
            is_endless: false,
            pause: None,
            knows_end,
            dropped,
        };
        let (over, given_up) = untaken(200, 1, false, content).await;
        assert_eq!(over + given_up, 200);
        assert!(over * 8_000 <= unsent::FINISHED_BYTES, "{over} are over");
    }
}

#[tokio::test(start_paused = true)]
async fn few_answers_are_over_that_a_peer_does_not_read_from_its_socket() {
    for knows_end in [true, false] {
        let content = move |dropped| Content {
            left: 4,
            frame: 16 * 1024,
            is_endless: false,
            pause: None,
            knows_end,
            dropped,
        };
        let (over, given_up) = untaken(200, 1 << 30, true, content).await;
        assert_eq!(over + given_up, 200);
        assert!(
            over * 64 * 1024 <= 2 * unsent::FINISHED_BYTES,
            "{over} are over"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn few_heads_are_given_that_a_peer_does_not_read_from_its_socket() {
    const HEAD_BYTES: usize = 100 * 1024;
    // Without content, and with some.
    for left in [0, 1] {
        let response = move |dropped| {
            let content = Content {
                left,
                frame: 10,
                is_endless: false,
                pause: None,
                knows_end: true,
                dropped,
            };
            let field = "v".repeat(HEAD_BYTES);
            Response::builder()
                .header("x-a", field)
                .body(content)
                .unwrap()
        };
        let (over, given_up) = untaken_responses(200, 1 << 30, true, response).await;
        assert_eq!(over + given_up, 200);
        assert!(over * HEAD_BYTES <= unsent::HEADS_BYTES, "{over} are over");
        assert!(over > 1, "{over} are over");
        // A peer that reads gets as many as may wait at once.
        let most = (unsent::HEADS_BYTES + unsent::HELD_BACK_BYTES) / (HEAD_BYTES + 1_000);
        let taken = untaken_responses(most, 1 << 30, false, response).await;
        assert_eq!(taken, (most, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_goes_on_asking_ends_when_no_head_is_taken() {
    let (near, far) = tokio::io::duplex(1024);
    let serving = Owned::spawn("serving", async move {
        let (_trigger, stopping) = Shutdown::manual();
        let answer = |_: Request<ReceivedBody>| async {
            let head = Response::builder().header("x-a", "v".repeat(10_000));
            let empty = Empty::<Bytes>::new();
            Ok(head.body(empty).unwrap())
        };
        let no_pings = Bounds {
            keep_alive_timeout: PING_INTERVAL / 4,
            ..bounds()
        };
        http2(near, no_pings, &Tasks::default(), &stopping, answer).await;
    });
    let valve = Arc::new(AtomicBool::new(false));
    let io = Valve {
        io: far,
        is_closed: valve.clone(),
    };
    let (mut send, mut connection) = h2::client::handshake(io).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let _peer = Owned::spawn("peer", async move {
        let _ = connection.await;
    });
    pings.ping(Ping::opaque()).await.unwrap();
    valve.store(true, Ordering::Relaxed);
    let asking = async {
        let mut responses = Vec::new();
        loop {
            let Ok(ready) = send.clone().ready().await else {
                break;
            };
            send = ready;
            let request = Request::get("http://a/").body(()).unwrap();
            match send.send_request(request, true) {
                Ok((response, _)) => responses.push(response),
                Err(_) => break,
            }
            sleep(PING_INTERVAL / 10).await;
        }
    };
    let begun = Instant::now();
    tokio::select! {
        ended = serving => ended.unwrap(),
        () = asking => {}
        () = sleep(LIMIT * 10) => panic!("it goes on"),
    }
    // Sooner than the pings find out.
    assert!(begun.elapsed() < PING_INTERVAL, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn trailers_are_given_while_there_is_room_and_all_of_them_once_the_socket_is_flushed() {
    const TRAILER_BYTES: usize = 100 * 1024;
    /// A piece, then trailers.
    struct WithTrailers(usize);
    impl Body for WithTrailers {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0 += 1;
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x-a", "v".repeat(TRAILER_BYTES).parse().unwrap());
            Poll::Ready(match self.0 {
                1 => Some(Ok(Frame::data(Bytes::from_static(b"x")))),
                2 => Some(Ok(Frame::trailers(trailers))),
                _ => None,
            })
        }
    }
    let connection = Arc::new(Unsent::default());
    let mut cx = Context::from_waker(Waker::noop());
    for is_taken in [true, false] {
        let most = match is_taken {
            true => unsent::HEADS_BYTES / TRAILER_BYTES,
            false => unsent::FINISHED_BYTES / TRAILER_BYTES,
        };
        let (mut given, mut held) = (0, Vec::new());
        for _ in 0..100 {
            let delivery =
                Delivery::new(WithTrailers(0), connection.clone(), ContentEnd::new(true));
            let mut delivery = Box::pin(delivery);
            let Poll::Ready(Some(Ok(piece))) = delivery.as_mut().poll_frame(&mut cx) else {
                panic!("no piece");
            };
            held.extend((!is_taken).then_some(piece));
            given += usize::from(delivery.as_mut().poll_frame(&mut cx).is_ready());
        }
        assert!((most - 1..=most).contains(&given), "{given}");
        drop(held);
        let flush = Box::pin(async { connection.on_flush(true) });
        connection.observe(flush).await;
        let progress = format!("{:?}", connection.progress());
        assert_eq!(progress, "Progress { pieces: None, written: None }");
    }
}

#[tokio::test(start_paused = true)]
async fn each_piece_before_an_end_that_waits_has_the_whole_time() {
    let connection = Arc::new(Unsent::default());
    // Nothing more may be left to h2.
    let full = (0..unsent::FINISHED_BYTES / 1_024).all(|_| connection.finish(1_024));
    assert!(full);
    let (dropped, mut ended) = mpsc::channel(1);
    let content = Content {
        left: 3,
        frame: 16 * 1024,
        is_endless: false,
        pause: None,
        knows_end: true,
        dropped,
    };
    let (handed, mut pieces) = mpsc::channel(3);
    let delivering = async move {
        let mut delivery = pin!(Delivery::new(content, connection, ContentEnd::new(true)));
        while let Some(piece) = poll_fn(|cx| delivery.as_mut().poll_frame(cx)).await {
            handed.try_send(piece.unwrap()).unwrap();
        }
    };
    let _stream = Owned::spawn("stream", watched(delivering, LIMIT));
    while let Some(piece) = pieces.recv().await {
        sleep(LIMIT * 4 / 5).await;
        drop(piece);
    }
    assert_eq!(ended.recv().await, Some(false), "it was given up");
}

#[tokio::test(start_paused = true)]
async fn an_end_that_comes_late_waits_no_longer_for_a_peer_that_reads_nothing() {
    let content = |dropped| Content {
        left: 1,
        frame: 8_000,
        is_endless: false,
        pause: Some(Box::pin(sleep(PING_INTERVAL / 20))),
        knows_end: false,
        dropped,
    };
    let (over, given_up) = untaken(200, 1 << 30, true, content).await;
    assert_eq!(over + given_up, 200);
    assert!(over * 8_000 <= unsent::FINISHED_BYTES, "{over} are over");
}

/// Messages of 20 bytes, each when the test says so.
struct Messages(mpsc::Receiver<()>);

impl Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let message = |()| Ok(Frame::data(Bytes::from_static(&[7; 20])));
        self.0.poll_recv(cx).map(|due| due.map(message))
    }
}

#[tokio::test(start_paused = true)]
async fn each_short_message_is_seen_before_the_next_one_is_sent() {
    let (near, far) = tokio::io::duplex(1024 * 1024);
    let (due, receiver) = mpsc::channel(1);
    let content = parking_lot::Mutex::new(Some(Messages(receiver)));
    let _serving = Owned::spawn("serving", async move {
        let (_trigger, stopping) = Shutdown::manual();
        let answer = |_: Request<ReceivedBody>| {
            let content = content.lock().take().unwrap();
            async move { Ok(Response::new(content)) }
        };
        http2(near, bounds(), &Tasks::default(), &stopping, answer).await;
    });
    let (send, connection) = h2::client::handshake(far).await.unwrap();
    let _peer = Owned::spawn("peer", async move {
        let _ = connection.await;
    });
    let mut body = get(&send).await.into_body();
    let begun = Instant::now();
    for _ in 0..1_000 {
        due.send(()).await.unwrap();
        let message = body.data().await.unwrap().unwrap();
        assert_eq!(message.len(), 20);
        body.flow_control().release_capacity(20).unwrap();
    }
    assert_eq!(begun.elapsed(), Duration::ZERO, "something has waited");
}

#[tokio::test(start_paused = true)]
async fn content_that_goes_on_gives_a_peer_that_takes_nothing_no_more_time() {
    let pieces_until_full = unsent::UNSENT_BYTES / (20 + unsent::PIECE_COST);
    let (due, receiver) = mpsc::channel(1);
    let _source = Owned::spawn("source", async move {
        while due.send(()).await.is_ok() {
            sleep(LIMIT / 100).await;
        }
    });
    let content = Messages(receiver);
    let begun = Instant::now();
    let delivering = async move {
        let mut delivery = pin!(Delivery::new(
            content,
            Arc::default(),
            ContentEnd::new(true)
        ));
        let mut held = Vec::new();
        while let Some(piece) = poll_fn(|cx| delivery.as_mut().poll_frame(cx)).await {
            held.push(piece.unwrap());
        }
    };
    watched(delivering, LIMIT).await;
    let full = LIMIT / 100 * u32::try_from(pieces_until_full).unwrap();
    let took = begun.elapsed();
    assert!(
        took >= full + LIMIT && took < full + LIMIT * 11 / 10,
        "{took:?}"
    );
}

/// Sends messages of `length` bytes over an upgraded stream of `window` bytes, whose peer does not read its socket if
/// `is_closed`. Returns how many were sent until the stream was given up, after which nothing runs for it.
async fn sent_over_upgraded(window: u32, length: usize, is_closed: bool) -> usize {
    let (near, far) = tokio::io::duplex(1024);
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let tasks = Tasks::default();
    let running = tasks.clone();
    let _serving = Owned::spawn("serving", async move {
        let (_trigger, stopping) = Shutdown::manual();
        let answer = |request: Request<ReceivedBody>| {
            let on_upgrade = request.into_body().on_upgrade().unwrap();
            let counted = counted.clone();
            running.spawn(async move {
                let (_reader, writer) = tokio::io::split(on_upgrade.await.unwrap());
                let mut writer = TimedWriter::new(writer, Some(LIMIT));
                let message = vec![7; length];
                while writer.send(&message).await.is_ok() {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
            async { Ok(Response::new(Empty::<Bytes>::new())) }
        };
        http2(near, bounds(), &running, &stopping, answer).await;
    });
    let mut client = h2::client::Builder::new();
    client.initial_window_size(window);
    client.initial_connection_window_size(1 << 30);
    let valve = Arc::new(AtomicBool::new(false));
    let io = Valve {
        io: far,
        is_closed: valve.clone(),
    };
    let (send, mut connection) = client.handshake::<_, Bytes>(io).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let _peer = Owned::spawn("peer", async move {
        let _ = connection.await;
    });
    // After that the settings are known.
    pings.ping(Ping::opaque()).await.unwrap();
    let mut request = Request::connect("http://a/").body(()).unwrap();
    let websocket = h2::ext::Protocol::from_static("websocket");
    request.extensions_mut().insert(websocket);
    let mut send = send.ready().await.unwrap();
    let (response, _stream) = send.send_request(request, false).unwrap();
    let _response = response.await.unwrap();
    valve.store(is_closed, Ordering::Relaxed);
    let begun = Instant::now();
    let over = async {
        while !tasks.is_empty() {
            sleep(LIMIT / 10).await;
        }
    };
    timeout(LIMIT * 2, over).await.unwrap();
    assert!(begun.elapsed() >= LIMIT || is_closed);
    sent.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn an_upgraded_stream_that_nobody_reads_takes_little_and_is_given_up() {
    assert_eq!(sent_over_upgraded(0, 1_000, false).await, 0);
    // What h2 has written into its buffer, of 32 KiB at most, counts as sent.
    for length in [1, 20, 4_000] {
        let sent = sent_over_upgraded(1 << 24, length, true).await;
        let most = unsent::UNSENT_BYTES / (length + unsent::PIECE_COST) + 40 * 1024 / (length + 9);
        assert!((1..=most).contains(&sent), "{sent} of {length} bytes");
    }
}

/// A connection that is lost takes its exchanges along.
#[tokio::test(start_paused = true)]
async fn a_peer_that_goes_away_leaves_no_content_behind() {
    let content = |dropped| Content {
        left: 1,
        frame: 10,
        is_endless: true,
        pause: None,
        knows_end: false,
        dropped,
    };
    let (near, mut far) = tokio::io::duplex(1024);
    let (dropped, mut ended) = mpsc::channel(1);
    let (_trigger, stopping) = Shutdown::manual();
    let tasks = Tasks::default();
    let answer = |_: Request<ReceivedBody>| {
        let content = content(dropped.clone());
        async move { Ok(Response::new(content)) }
    };
    let serving = http2(near, bounds(), &tasks, &stopping, answer);
    let asking = async {
        let (send, connection) = h2::client::handshake(&mut far).await.unwrap();
        tokio::select! {
            _ = connection => panic!("it goes on"),
            _ = get(&send) => {}
        }
        drop(far);
    };
    timeout(LIMIT, async { tokio::join!(serving, asking) })
        .await
        .unwrap();
    drop(dropped);
    assert_eq!(ended.recv().await, Some(false), "nobody gave it up");
    assert_eq!(ended.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn uploads_with_an_empty_frame_each_end_no_connection() {
    let (send, _ended, serving) = connection(1 << 20, |dropped| {
        one_with_content(dropped, &AtomicUsize::new(0))
    })
    .await;
    for _ in 0..300 {
        let mut send = send.clone().ready().await.unwrap();
        let request = Request::post("http://a/").body(()).unwrap();
        let (response, mut content) = send.send_request(request, false).unwrap();
        for (piece, is_last) in [("one", false), ("", false), ("two", true)] {
            content
                .send_data(Bytes::from_static(piece.as_bytes()), is_last)
                .unwrap();
        }
        assert_eq!(response.await.unwrap().status(), 200);
        // No more than a hundred in a second.
        sleep(Duration::from_millis(20)).await;
    }
    assert!(!serving.is_finished());
}
