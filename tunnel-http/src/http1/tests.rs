//! The guard with a real hyper behind it: what a client sees, what a service sees, and when.
//!
//! Time is paused, so that each test can say to the millisecond when something ends.

mod ahead;

use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tunnel_ops::task::Owned;

use super::*;

const CONFIG: GuardConfig = GuardConfig {
    limits: HeadLimits {
        bytes: 32 * 1024,
        fields: 100,
    },
    head_timeout: Duration::from_secs(10),
    keep_alive_timeout: Duration::from_secs(60),
    body_idle_timeout: Duration::from_secs(30),
    hang_up_grace: Duration::from_millis(500),
};

const GET: &str = "GET /get HTTP/1.1\r\nHost: a\r\n\r\n";
const BAD: &str = "GET /bad HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n";
const CHUNKED: &str = "POST /post HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
const WEBSOCKET: &str =
    "GET /up HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";

impl ResetWhenDropped for DuplexStream {
    fn reset_when_dropped(&self, _: bool) {}
}

type Content = UnsyncBoxBody<Bytes, Infallible>;

/// An answer that counts as in flight until hyper has taken all of its body.
struct Answer {
    body: Content,
    _in_flight: InFlight,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that starts and never ends.
struct Endless(Option<Bytes>);

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |bytes| {
            Poll::Ready(Some(Ok(Frame::data(bytes))))
        })
    }
}

/// A body that is made while its answer is on the way.
struct Late(oneshot::Receiver<Bytes>);

impl Body for Late {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0.is_terminated() {
            return Poll::Ready(None);
        }
        let made = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(made.ok().map(|bytes| Ok(Frame::data(bytes))))
    }
}

fn ok(body: impl Into<Bytes>) -> Response<Content> {
    Response::new(Full::new(body.into()).boxed_unsync())
}

/// Serves `io` the way the public listener does: a refusal is written once hyper is done.
async fn serve<IO, Service, Answered>(
    io: IO,
    first: Bytes,
    vectored: bool,
    service: Service,
) -> hyper::Result<()>
where
    IO: AsyncRead + AsyncWrite + ResetWhenDropped + Unpin + Send + 'static,
    Service: Fn(Request<Incoming>, GuardHandle) -> Answered,
    Answered: Future<Output = Response<Content>>,
{
    let (guard, handle) = Guard::new(io, first, CONFIG);
    let own_handle = handle.clone();
    let service = hyper::service::service_fn(move |request| {
        let in_flight = handle.begin_exchange();
        let answered = service(request, handle.clone());
        async move {
            let answer = answered.await;
            Ok::<_, Infallible>(answer.map(|body| Answer {
                body,
                _in_flight: in_flight,
            }))
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .half_close(false)
        .auto_date_header(false)
        .writev(vectored);
    let connection = builder.serve_connection(TokioIo::new(guard), service);
    let parts = connection.without_shutdown().await?;
    let mut guard = parts.io.into_inner();
    if own_handle.is_upgraded() {
        let mut read = parts.read_buf.to_vec();
        guard.read_to_end(&mut read).await.unwrap();
        guard.write_all(&read).await.unwrap();
        guard.write_all(b"after half-close").await.unwrap();
    } else if let Some(refusal) = own_handle.refusal() {
        let answer = format!(
            "REFUSED {} {}\n",
            refusal.reason().status().as_u16(),
            refusal.detail()
        );
        guard.write_all(answer.as_bytes()).await.unwrap();
    }
    guard.into_inner().0.shutdown().await.unwrap();
    Ok(())
}

/// The client's end of a connection, and the task that serves it.
struct Client {
    io: DuplexStream,
    server: JoinSet<hyper::Result<()>>,
    start: Instant,
}

impl Client {
    fn connect<Service, Answered>(service: Service) -> Self
    where
        Service: Fn(Request<Incoming>, GuardHandle) -> Answered + Send + 'static,
        Answered: Future<Output = Response<Content>> + Send + 'static,
    {
        Self::connect_with(true, service)
    }

    fn connect_with<Service, Answered>(vectored: bool, service: Service) -> Self
    where
        Service: Fn(Request<Incoming>, GuardHandle) -> Answered + Send + 'static,
        Answered: Future<Output = Response<Content>> + Send + 'static,
    {
        let (io, server_io) = tokio::io::duplex(16 * 1024);
        let mut server = JoinSet::new();
        server.spawn(serve(server_io, Bytes::new(), vectored, service));
        Self {
            io,
            server,
            start: Instant::now(),
        }
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.io.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Everything that still comes.
    async fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        self.io.read_to_end(&mut rest).await.unwrap();
        String::from_utf8(rest).unwrap()
    }

    /// What comes, up to and with `end`.
    async fn until(&mut self, end: &str) -> String {
        let mut read = String::new();
        while !read.ends_with(end) {
            read.push(char::from(self.io.read_u8().await.unwrap()));
        }
        read
    }

    async fn end(&mut self) -> hyper::Result<()> {
        self.server.join_next().await.unwrap().unwrap()
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Answers each request with its path, its body and how that ended.
async fn echo(request: Request<Incoming>, _: GuardHandle) -> Response<Content> {
    let path = request.uri().path().to_owned();
    match request.into_body().collect().await {
        Ok(body) => ok(format!("[{path} {}]", body.to_bytes().escape_ascii())),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            ok(format!("[{path} failed: {}]", cause.unwrap_or_default()))
        }
    }
}

/// The bodies of the answers of [`echo`] in `answers`.
fn bodies(answers: &str) -> Vec<&str> {
    answers
        .split('[')
        .skip(1)
        .map(|part| part.split_once(']').unwrap().0)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn pipelined_requests_are_answered_in_order() {
    let mut client = Client::connect(echo);
    let post = "POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    client
        .send([GET, post, CHUNKED, "2\r\nde\r\n0\r\n\r\n", GET].concat())
        .await;
    client.io.shutdown().await.unwrap();
    let answers = client.rest().await;
    assert_eq!(
        bodies(&answers),
        ["/get ", "/post abc", "/post de", "/get "]
    );
    client.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_was_read_before_comes_first() {
    for split in 0..GET.len() {
        let (mut io, server_io) = tokio::io::duplex(1024);
        let (first, second) = GET.split_at(split);
        let serve = serve(
            server_io,
            Bytes::copy_from_slice(first.as_bytes()),
            true,
            echo,
        );
        let talk = async {
            io.write_all(second.as_bytes()).await.unwrap();
            io.shutdown().await.unwrap();
            let mut answer = String::new();
            io.read_to_string(&mut answer).await.unwrap();
            assert_eq!(bodies(&answer), ["/get "]);
        };
        tokio::join!(serve, talk).0.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_head_is_answered_and_never_served() {
    let mut client = Client::connect(echo);
    client.send([BAD, GET].concat()).await;
    assert_eq!(
        client.rest().await,
        "REFUSED 400 more than one host field\n"
    );
    client.end().await.unwrap();
    assert_eq!(client.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn requests_before_a_refused_one_are_answered_first() {
    // More than fits between the two ends, so that the answer is still being written when its
    // exchange has ended.
    let long = "x".repeat(200_000);
    let body = long.clone();
    let mut client = Client::connect(move |_, _| {
        let body = body.clone();
        async move {
            sleep(Duration::from_secs(3600)).await;
            ok(body)
        }
    });
    client.send([GET, GET, BAD, GET].concat()).await;
    for _ in 0..2 {
        let head = client.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        // A client that reads slowly gets all of it, too.
        for part in long.as_bytes().chunks(10_000) {
            sleep(Duration::from_secs(20)).await;
            let mut read = vec![0; part.len()];
            client.io.read_exact(&mut read).await.unwrap();
        }
    }
    let answered = Instant::now();
    assert_eq!(
        client.rest().await,
        "REFUSED 400 more than one host field\n"
    );
    client.end().await.unwrap();
    assert_eq!(answered.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn no_refusal_is_sent_after_a_response_with_connection_close() {
    let mut client = Client::connect(echo);
    client
        .send(
            [
                &GET.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"),
                BAD,
            ]
            .concat(),
        )
        .await;
    assert_eq!(bodies(&client.rest().await), ["/get "]);
    client.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_does_not_keep_a_refused_connection() {
    let (sender, mut handles) = mpsc::channel(1);
    let mut client = Client::connect(move |_, handle| {
        sender.try_send(handle).unwrap();
        async { ok("x".repeat(200_000)) }
    });
    client.send([GET, BAD].concat()).await;
    client.end().await.unwrap_err();
    assert_eq!(client.elapsed(), CONFIG.keep_alive_timeout);
    // There is no place for a refusal inside of an answer.
    assert_eq!(handles.recv().await.unwrap().refusal(), None);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_does_not_keep_a_connection_at_rest() {
    let mut client = Client::connect(|_, _| async { ok("x".repeat(200_000)) });
    client.send(GET).await;
    client.end().await.unwrap_err();
    assert_eq!(client.elapsed(), CONFIG.keep_alive_timeout);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_half_closes_gets_quick_answers() {
    let mut client = Client::connect(|_, _| async {
        sleep(CONFIG.hang_up_grace - Duration::from_millis(1)).await;
        ok("[done]")
    });
    client.send(GET).await;
    client.io.shutdown().await.unwrap();
    assert_eq!(bodies(&client.rest().await), ["done"]);
    client.end().await.unwrap();
}

/// Says on a channel when it is dropped.
struct Dropped(mpsc::Sender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.try_send(()).unwrap();
    }
}

type Answered = Pin<Box<dyn Future<Output = Response<Content>> + Send>>;

/// A service that never answers, and the channel on which it says that it was cancelled.
fn never() -> (
    impl Fn(Request<Incoming>, GuardHandle) -> Answered,
    mpsc::Receiver<()>,
) {
    let (sender, receiver) = mpsc::channel(8);
    let service = move |_, _| {
        let dropped = Dropped(sender.clone());
        let answered: Answered = Box::pin(async move {
            let _dropped = dropped;
            pending().await
        });
        answered
    };
    (service, receiver)
}

#[tokio::test(start_paused = true)]
async fn a_hang_up_cancels_the_exchange_after_the_grace() {
    let (service, mut cancelled) = never();
    let mut client = Client::connect(service);
    client.send(GET).await;
    sleep(Duration::from_secs(7200)).await;
    client.io.shutdown().await.unwrap();
    client.end().await.unwrap_err();
    cancelled.recv().await.unwrap();
    assert_eq!(
        client.elapsed(),
        Duration::from_secs(7200) + CONFIG.hang_up_grace
    );
}

#[tokio::test(start_paused = true)]
async fn a_hang_up_with_part_of_the_next_head_cancels_too() {
    let (service, mut cancelled) = never();
    let mut client = Client::connect(service);
    client.send([GET, &GET[..9]].concat()).await;
    client.io.shutdown().await.unwrap();
    client.end().await.unwrap_err();
    cancelled.recv().await.unwrap();
    assert_eq!(client.elapsed(), CONFIG.hang_up_grace);
}

#[tokio::test(start_paused = true)]
async fn a_hang_up_at_rest_ends_the_connection_at_once() {
    for sent in ["", GET, &GET[..9]] {
        let mut client = Client::connect(echo);
        client.send(sent).await;
        if sent == GET {
            client.until("]").await;
        }
        client.io.shutdown().await.unwrap();
        assert_eq!(client.rest().await, "");
        client.end().await.unwrap();
        assert_eq!(client.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hang_up_inside_of_a_body_breaks_it_at_once() {
    for cut in [
        "",
        "5",
        "5\r\nabc",
        "5\r\nabcde\r\n",
        "0\r\n",
        "0\r\nX: a\r\n",
    ] {
        let mut client = Client::connect(echo);
        client.send([CHUNKED, cut].concat()).await;
        client.io.shutdown().await.unwrap();
        let answer = client.rest().await;
        assert!(
            bodies(&answer)[0].starts_with("/post failed: "),
            "{cut:?}: {answer}"
        );
        client.end().await.unwrap();
        assert_eq!(client.elapsed(), Duration::ZERO);
    }
}

#[tokio::test]
async fn a_reset_cancels_the_exchange_without_a_grace() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (server, _) = listener.accept().await.unwrap();
    let (sender, mut started) = mpsc::channel(1);
    let serving = serve(server, Bytes::new(), true, move |_, _| {
        sender.try_send(()).unwrap();
        pending()
    });
    let reset = async {
        let mut client = client;
        client.write_all(GET.as_bytes()).await.unwrap();
        started.recv().await.unwrap();
        client.set_zero_linger().unwrap();
        drop(client);
    };
    let before = Instant::now();
    let (result, ()) = tokio::join!(serving, reset);
    result.unwrap_err();
    assert!(before.elapsed() < CONFIG.hang_up_grace);
}

#[tokio::test(start_paused = true)]
async fn a_head_must_come_in_time_however_it_trickles() {
    let long = CONFIG.keep_alive_timeout - Duration::from_secs(1);
    for pause in [None, Some(Duration::ZERO), Some(long)] {
        let mut client = Client::connect(echo);
        if let Some(pause) = pause {
            client.send(GET).await;
            client.until("]").await;
            sleep(pause).await;
        }
        let start = Instant::now();
        for byte in GET.as_bytes().chunks(1).take(20) {
            client.send(byte).await;
            sleep(Duration::from_millis(400)).await;
        }
        assert_eq!(
            client.rest().await,
            "REFUSED 408 head of the request did not come in time\n"
        );
        client.end().await.unwrap();
        assert_eq!(start.elapsed(), CONFIG.head_timeout);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_is_not_answered() {
    let mut client = Client::connect(echo);
    assert_eq!(client.rest().await, "");
    client.end().await.unwrap();
    assert_eq!(client.elapsed(), CONFIG.head_timeout);
}

#[tokio::test(start_paused = true)]
async fn a_head_may_trickle_while_an_answer_is_awaited_but_not_longer() {
    let mut client = Client::connect(|_, _| async {
        sleep(Duration::from_secs(25)).await;
        ok("[done]")
    });
    client.send([GET, &GET[..9]].concat()).await;
    let answers = client.rest().await;
    assert!(answers.ends_with("[done]REFUSED 408 head of the request did not come in time\n"));
    client.end().await.unwrap();
    assert_eq!(client.elapsed(), Duration::from_secs(25));
}

#[tokio::test(start_paused = true)]
async fn an_empty_line_behind_a_request_is_not_the_start_of_a_head() {
    let mut client = Client::connect(|_, _| async { ok("[done]") });
    client.send([GET, "\r\n"].concat()).await;
    client.until("]").await;
    sleep(CONFIG.head_timeout * 2).await;
    client.send([GET, "\r\n"].concat()).await;
    client.until("]").await;
    assert_eq!(client.rest().await, "");
    client.end().await.unwrap();
    let expected = CONFIG.head_timeout * 2 + CONFIG.keep_alive_timeout;
    assert_eq!(client.elapsed(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_connection_at_rest_ends_after_a_while_but_never_one_that_works() {
    let mut client = Client::connect(|_, _| async {
        sleep(CONFIG.keep_alive_timeout * 10).await;
        ok("[done]")
    });
    for _ in 0..3 {
        client.send(GET).await;
        client.until("]").await;
        sleep(CONFIG.keep_alive_timeout - Duration::from_millis(10)).await;
    }
    assert_eq!(client.rest().await, "");
    client.end().await.unwrap();
    assert_eq!(
        client.elapsed(),
        CONFIG.keep_alive_timeout * 33 - Duration::from_millis(20)
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_may_take_long_but_must_not_stall() {
    let mut client = Client::connect(echo);
    client.send(CHUNKED).await;
    for _ in 0..100 {
        client.send("1\r\na\r\n").await;
        sleep(CONFIG.body_idle_timeout - Duration::from_millis(10)).await;
    }
    let stalled = Instant::now();
    let answer = client.rest().await;
    assert!(bodies(&answer)[0].starts_with("/post failed: "), "{answer}");
    client.end().await.unwrap();
    assert_eq!(stalled.elapsed(), Duration::from_millis(10));
}

#[tokio::test(start_paused = true)]
async fn a_body_may_stall_while_it_is_answered_and_no_longer() {
    let (sender, mut taken) = mpsc::channel(1);
    let mut client = Client::connect(move |request, _| {
        let sender = sender.clone();
        async move {
            let reading = Owned::spawn("reading", request.into_body().collect());
            let (body, content) = oneshot::channel();
            let making = Owned::spawn("making", async move {
                sleep(CONFIG.body_idle_timeout * 10).await;
                let _ = body.send(Bytes::from_static(b"late"));
            });
            sender.send((reading, making)).await.unwrap();
            Response::new(Late(content).boxed_unsync())
        }
    });
    client.send(format!("{CHUNKED}3\r\nabc\r\n")).await;
    let (reading, _making) = taken.recv().await.unwrap();
    let began = Instant::now();
    assert!(client.rest().await.contains("late"));
    reading.await.unwrap().unwrap_err();
    assert_eq!(began.elapsed(), CONFIG.body_idle_timeout * 11);
    client.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_reads_may_wait() {
    let mut client = Client::connect(|request, handle| async {
        sleep(CONFIG.body_idle_timeout * 10).await;
        echo(request, handle).await
    });
    // More than hyper keeps before the service asks for it.
    client
        .send(format!("{CHUNKED}{}", "3\r\nabc\r\n".repeat(1_000)))
        .await;
    client.send("0\r\n\r\n").await;
    let answer = client.until("]").await;
    assert!(bodies(&answer)[0].ends_with("abcabc"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_violation_inside_of_a_body_breaks_it_and_ends_the_connection() {
    for broken in [
        "3\r\nabc\n0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "0\r\nHost: b\r\n\r\n",
    ] {
        let (sender, mut violations) = mpsc::channel(1);
        let mut client = Client::connect(move |request, handle: GuardHandle| {
            let sender = sender.clone();
            async move {
                let answer = echo(request, handle.clone()).await;
                sender.try_send(handle.body_violation()).unwrap();
                answer
            }
        });
        client.send([CHUNKED, broken, GET].concat()).await;
        let answers = client.rest().await;
        let violation = violations.recv().await.unwrap().unwrap();
        assert_eq!(
            bodies(&answers),
            [format!("/post failed: {violation}")],
            "{broken:?}"
        );
        client.end().await.unwrap();
    }
}

const HINT: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn large_heads_pass_in_pieces_and_too_large_ones_not_at_all() {
    let mut client = Client::connect(|request: Request<Incoming>, _| async move {
        ok(format!("[{}]", request.headers()["x"].len()))
    });
    let large = GET.replace(
        "\r\n\r\n",
        &format!("\r\nX: {}\r\n\r\n", "a".repeat(30_000)),
    );
    client.send(large.repeat(3)).await;
    for _ in 0..3 {
        assert_eq!(bodies(&client.until("]").await), ["30000"]);
    }
    client
        .send(large.replace("X: ", &format!("X: {}", "a".repeat(5_000))))
        .await;
    assert_eq!(
        client.rest().await,
        "REFUSED 431 head of the request is too large\n"
    );
}

#[tokio::test]
async fn a_whole_head_in_one_read_is_not_copied() {
    let (mut client, server) = tokio::io::duplex(1024);
    let (mut guard, handle) = Guard::new(server, Bytes::new(), CONFIG);
    client
        .write_all(format!("{GET}{}", &GET[..10]).as_bytes())
        .await
        .unwrap();
    let mut read = [0; 1024];
    let len = guard.read(&mut read).await.unwrap();
    assert_eq!(&read[..len], GET.as_bytes());
    assert_eq!(handle.refusal(), None);
    let (_, rest) = guard.into_inner();
    assert_eq!(rest, GET.as_bytes()[..10]);

    let (mut client, server) = tokio::io::duplex(1024);
    let (mut guard, _handle) = Guard::new(server, Bytes::new(), CONFIG);
    client.write_all(GET.as_bytes()).await.unwrap();
    assert_eq!(guard.read(&mut read).await.unwrap(), GET.len());
    assert_eq!(guard.buffered.capacity(), 0);
    assert!(
        guard.alarm.is_idle(),
        "a request that does not wait needs no timer"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// hyper and the guard agree about where each request ends: whatever bodies contain, each is
    /// seen as one body, and each request is seen once.
    #[test]
    fn hyper_sees_the_requests_that_the_guard_saw(
        requests in prop::collection::vec((0..5u8, prop::collection::vec("[ -~\r\n]{1,60}", 0..4)), 1..8),
        cut in 1usize..200,
    ) {
        let mut stream = String::new();
        let mut expected = Vec::new();
        for (kind, parts) in &requests {
            let body = parts.concat().replace(['[', ']'], "x");
            match kind {
                0 | 4 => {
                    // Perhaps with an empty line in front.
                    stream.push_str(if *kind == 0 { "" } else { "\r\n" });
                    stream.push_str(GET);
                    expected.push("/get ".to_owned());
                    continue;
                }
                1 => {
                    let length = body.len();
                    let head = format!("PUT /post HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
                    stream.push_str(&(head + &body));
                }
                _ => {
                    stream.push_str(CHUNKED);
                    for part in parts {
                        let part = part.replace(['[', ']'], "x");
                        let extension = if *kind == 2 { "" } else { ";a=b" };
                        stream.push_str(&format!("{:x}{extension}\r\n{part}\r\n", part.len()));
                    }
                    stream.push_str(if *kind == 2 { "0\r\n\r\n" } else { "0\r\nX: y\r\n\r\n" });
                }
            }
            expected.push(format!("/post {}", body.escape_default()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let answers = runtime.block_on(async {
            let mut client = Client::connect(echo);
            let (mut read, mut write) = tokio::io::split(client.io);
            let send = async {
                for piece in stream.as_bytes().chunks(cut) {
                    write.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
            };
            let receive = async {
                let mut answers = String::new();
                while bodies_so_far(&answers) < requests.len() {
                    let mut buffer = [0; 4096];
                    let len = read.read(&mut buffer).await.unwrap();
                    assert_ne!(len, 0, "{answers}");
                    answers.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
                }
                answers
            };
            let answers = tokio::join!(send, receive).1;
            client.server.abort_all();
            answers
        });
        let bodies: Vec<String> = bodies(&answers)
            .into_iter()
            .map(|body| body.replace("\\'", "'").replace("\\\"", "\"").replace("\\\\", "\\"))
            .collect();
        let expected: Vec<String> = expected
            .into_iter()
            .map(|body| body.replace("\\'", "'").replace("\\\"", "\"").replace("\\\\", "\\"))
            .collect();
        prop_assert_eq!(bodies, expected);
    }
}

fn bodies_so_far(answers: &str) -> usize {
    answers.matches(']').count()
}
