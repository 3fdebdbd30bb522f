//! Streams and connections that end at odd moments.

use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tunnel_ops::signals::Trigger;

use super::*;

/// A connection whose requests are answered so, and the future that serves it, until it is to stop.
async fn served<F>(
    window: u32,
    answer: impl Fn(Request<ReceivedBody>) -> F + Send + Sync + 'static,
) -> (h2::client::SendRequest<Bytes>, Trigger, Owned<()>)
where
    F: Future<Output = Response<Content>> + Send + 'static,
{
    let (near, far) = tokio::io::duplex(1024 * 1024);
    let (trigger, stopping) = Shutdown::manual();
    let serving = Owned::spawn("serving", async move {
        let answer = |request| {
            let answered = answer(request);
            async { Ok(answered.await) }
        };
        http2(near, bounds(), &Tasks::default(), &stopping, answer).await;
    });
    let mut client = h2::client::Builder::new();
    client.initial_window_size(window);
    client.initial_connection_window_size(1 << 20);
    let (send, connection) = client.handshake(far).await.unwrap();
    std::mem::forget(Owned::spawn("peer", async move {
        let _ = connection.await;
    }));
    (send, trigger, serving)
}

const FRAME_BYTES: usize = 16 * 1024;

/// So many frames, which are all there is.
fn frames(left: usize) -> Content {
    Content {
        left,
        frame: FRAME_BYTES,
        is_endless: false,
        pause: None,
        knows_end: true,
        dropped: mpsc::channel(1).0,
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_but_the_answer_follows_its_head() {
    let replies: Arc<Mutex<Vec<Reply>>> = Arc::default();
    let kept = replies.clone();
    let (send, _trigger, _serving) = served(FRAME_BYTES as u32, move |request| {
        kept.lock().extend(request.into_body().reply());
        async { Response::new(frames(2)) }
    })
    .await;
    let hint = || {
        for reply in &*replies.lock() {
            reply.send_informational(StatusCode::EARLY_HINTS, HeaderMap::new());
        }
    };
    for _ in 0..3 {
        let mut body = get(&send).await.into_body();
        hint();
        let mut received = 0;
        while let Some(data) = body.data().await {
            let length = data.unwrap().len();
            received += length;
            body.flow_control().release_capacity(length).unwrap();
        }
        assert_eq!(received, 2 * FRAME_BYTES);
        hint();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_given_up_is_reset_whoever_could_reply_to_it() {
    let replies: Arc<Mutex<Vec<Reply>>> = Arc::default();
    let kept = replies.clone();
    let (send, _trigger, _serving) = served(1, move |request| {
        kept.lock().extend(request.into_body().reply());
        async { Response::new(frames(20)) }
    })
    .await;
    let mut body = get(&send).await.into_body();
    assert_eq!(body.data().await.unwrap().unwrap().len(), 1);
    let next = timeout(LIMIT * 4, body.data()).await.unwrap();
    let error = next.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_over_are_read_as_slowly_as_others() {
    let (send, _trigger, _serving) = served(8 * 1024, |_| async { Response::new(frames(1)) }).await;
    let mut bodies = Vec::new();
    for _ in 0..20 {
        bodies.push(get(&send).await.into_body());
    }
    for (number, body) in bodies.iter_mut().enumerate() {
        let mut received = 0;
        while let Some(data) = body.data().await {
            let length = data
                .unwrap_or_else(|error| panic!("{number}: {error}"))
                .len();
            received += length;
            body.flow_control().release_capacity(length).unwrap();
        }
        assert_eq!(received, FRAME_BYTES);
        sleep(LIMIT / 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_stops_ends_although_an_answer_is_not_taken() {
    let (send, trigger, serving) = served(1, |_| async { Response::new(frames(1)) }).await;
    let _response = get(&send).await;
    sleep(LIMIT).await;
    trigger.request();
    timeout(LIMIT * 10, serving).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn streams_that_the_peer_resets_leave_nothing_behind() {
    let (send, trigger, serving) = served(1, |_| async { Response::new(frames(1)) }).await;
    for _ in 0..2 * MAX_STREAMS {
        let mut ready = send.clone().ready().await.unwrap();
        let request = Request::get("http://a/").body(()).unwrap();
        let (response, mut stream) = ready.send_request(request, true).unwrap();
        let response = response.await.unwrap();
        stream.send_reset(h2::Reason::CANCEL);
        drop(response);
    }
    sleep(Duration::from_secs(1)).await;
    trigger.request();
    timeout(Duration::from_secs(5), serving)
        .await
        .unwrap()
        .unwrap();
}

/// Reads slowly.
struct Slow<IO> {
    io: IO,
    pause: Pin<Box<Sleep>>,
}

impl<IO: AsyncRead + Unpin> AsyncRead for Slow<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.pause.as_mut().poll(cx));
        let room = buffer.remaining().min(4 * 1024);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut part))?;
        let length = part.filled().len();
        buffer.advance(length);
        if length == 4 * 1024 {
            self.pause
                .as_mut()
                .reset(Instant::now() + Duration::from_secs(1));
        }
        Poll::Ready(Ok(()))
    }
}

tunnel_ops::write_through!(Slow);

#[tokio::test(start_paused = true)]
async fn a_peer_whose_pong_waits_behind_an_answer_is_not_gone() {
    // What the network holds of the answer takes the peer four minutes.
    let (near, far) = tokio::io::duplex(1024 * 1024);
    let _serving = Owned::spawn("serving", async move {
        let (_trigger, stopping) = Shutdown::manual();
        let answer = |_: Request<ReceivedBody>| async { Ok(Response::new(frames(256))) };
        http2(near, bounds(), &Tasks::default(), &stopping, answer).await;
    });
    let mut client = h2::client::Builder::new();
    client.initial_window_size(1 << 30);
    client.initial_connection_window_size(1 << 30);
    let io = Slow {
        io: far,
        pause: Box::pin(sleep(Duration::ZERO)),
    };
    let (send, connection) = client.handshake::<_, Bytes>(io).await.unwrap();
    let _peer = Owned::spawn("peer", async move {
        let _ = connection.await;
    });
    let mut body = get(&send).await.into_body();
    let mut received = 0;
    while let Some(data) = body.data().await {
        received += data
            .unwrap_or_else(|error| panic!("{received}: {error}"))
            .len();
    }
    assert_eq!(received, 256 * FRAME_BYTES);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_gives_no_sign_of_life_is_gone_after_two_intervals() {
    // It has read all, or nothing more of an answer that the network holds.
    for room in [1 << 24, 1 << 16] {
        let (near, far) = tokio::io::duplex(room);
        let serving = Owned::spawn("serving", async move {
            let (_trigger, stopping) = Shutdown::manual();
            let answer = |_: Request<ReceivedBody>| async {
                let mut content = frames(256);
                content.is_endless = true;
                content.knows_end = false;
                Ok(Response::new(content))
            };
            let bounds = Bounds {
                body_idle_timeout: LIMIT * 100,
                ..bounds()
            };
            http2(near, bounds, &Tasks::default(), &stopping, answer).await;
        });
        let mut client = h2::client::Builder::new();
        client.initial_window_size(1 << 30);
        client.initial_connection_window_size(1 << 30);
        let valve = Arc::new(AtomicBool::new(false));
        let io = Valve {
            io: far,
            is_closed: valve.clone(),
        };
        let (send, connection) = client.handshake::<_, Bytes>(io).await.unwrap();
        let _peer = Owned::spawn("peer", async move {
            let _ = connection.await;
        });
        sleep(PING_INTERVAL / 4).await;
        let response = get(&send).await;
        valve.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        timeout(LIMIT * 10, serving).await.unwrap().unwrap();
        let took = begun.elapsed();
        let expected = PING_INTERVAL * 2;
        assert!(
            took >= expected && took < expected + PING_INTERVAL / 10,
            "{took:?}"
        );
        drop(response);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_cut_behind_their_answers_leave_room_for_others() {
    let (send, _trigger, _serving) = served(FRAME_BYTES as u32 - 1, |_| async {
        Response::new(frames(1))
    })
    .await;
    let mut open = Vec::new();
    for _ in 0..MAX_STREAMS {
        let mut ready = send.clone().ready().await.unwrap();
        let request = Request::post("http://a/").body(()).unwrap();
        let (response, content) = ready.send_request(request, false).unwrap();
        open.push((response.await.unwrap(), content));
        if open.len() == 20 {
            // The content is discarded for a moment.
            sleep(Duration::from_secs(3)).await;
            for (_, content) in &mut open {
                content.send_reset(h2::Reason::CANCEL);
            }
            open.clear();
        }
    }
    drop(open);
    let mut body = get(&send).await.into_body();
    assert_eq!(body.data().await.unwrap().unwrap().len(), FRAME_BYTES - 1);
}
