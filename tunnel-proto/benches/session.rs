//! Benchmarks of a session: exchanges over a pair of sessions with a connection in memory.
//!
//! ```text
//!   bencher ─▶ Session ─ driver ══ pipe in memory ══ driver ─ Session ─▶ Upstream (here)
//! ```
//!
//! In: requests as the tunnel server forwards them. Out: time, allocations and throughput of whole
//! exchanges, both ends together, on one thread. Without TLS, sockets, HTTP/1 and HTTP/2, which the two
//! programs add.
//!
//! Counting the allocations adds some nanoseconds to each of them.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use divan::{
    AllocProfiler, Bencher,
    counter::{BytesCount, ItemsCount},
};
use http::{Method, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncRead, AsyncWrite, duplex},
    runtime::{Builder, Runtime},
    sync::Barrier,
    task::{JoinSet, yield_now},
};
use tower_service::Service;
use tunnel_proto::{
    exchange::{AsProblem, RecvBody, exchange, serve},
    problem::Problem,
    session::{Session, SessionEvent, SessionEvents, SessionSettings, Side},
};

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

/// Bytes in flight before a writer blocks: about what the buffers of a socket hold.
const CONNECTION_BYTES: usize = 256 * 1024;

/// Length of a piece of a body: what a busy connection yields at once.
const PIECE_BYTES: usize = 64 * 1024;

static PIECE: [u8; PIECE_BYTES] = [b'x'; PIECE_BYTES];

/// Length of a small response.
const SMALL_BYTES: usize = 2;

const MIB: usize = 1024 * 1024;

/// Path of exchanges that are answered once there is one for each stream of the rig.
const GATHER: &str = "/gather";

fn main() {
    divan::main();
}

// === Benchmarks ===

/// A GET with a small response, with this many idle streams; each exchange uses one of them.
#[divan::bench(args = [1, 256], sample_count = 1_000)]
fn exchange_on_resting_stream(bencher: Bencher<'_, '_>, streams: usize) {
    let rig = Rig::with_resting(streams);
    bencher
        .with_inputs(|| get(SMALL_BYTES))
        .bench_local_values(|request| rig.fetch(request));
}

/// The first exchange of a session: its stream is opened and accepted.
#[divan::bench(sample_count = 1_000)]
fn exchange_on_new_stream(bencher: Bencher<'_, '_>) {
    bencher
        .with_inputs(|| (Rig::with_resting(0), Some(get(SMALL_BYTES))))
        .bench_local_refs(|(rig, request)| rig.fetch(request.take().unwrap()));
}

/// This many concurrent GETs, each in its own task, until all are answered.
#[divan::bench(args = [64], sample_count = 1_000)]
fn exchanges_at_once(bencher: Bencher<'_, '_>, count: usize) {
    let rig = Rig::with_resting(count);
    let requests = || std::iter::repeat_with(|| get(SMALL_BYTES)).take(count);
    bencher
        .counter(ItemsCount::new(count))
        .with_inputs(|| requests().collect())
        .bench_local_values(|requests| rig.fetch_all(requests));
}

/// One long response.
#[divan::bench(args = [MIB, 64 * MIB], max_time = 3)]
fn download(bencher: Bencher<'_, '_>, length: usize) {
    let rig = Rig::with_resting(1);
    bencher
        .counter(BytesCount::new(length))
        .with_inputs(|| get(length))
        .bench_local_values(|request| {
            assert_eq!(rig.fetch(request), length);
        });
}

/// One long request, with a small response once it is read completely.
#[divan::bench(args = [MIB, 64 * MIB], max_time = 3)]
fn upload(bencher: Bencher<'_, '_>, length: usize) {
    let rig = Rig::with_resting(1);
    bencher
        .counter(BytesCount::new(length))
        .with_inputs(|| post(length))
        .bench_local_values(|request| {
            assert_eq!(rig.fetch(request), SMALL_BYTES);
        });
}

// === Requests ===

fn get(answer: usize) -> Request<Content> {
    request(Method::GET, &format!("/{answer}"), 0)
}

fn post(length: usize) -> Request<Content> {
    request(Method::POST, &format!("/{SMALL_BYTES}"), length)
}

/// A request with the fields of a small request as the tunnel server forwards it.
fn request(method: Method, path: &str, length: usize) -> Request<Content> {
    Request::builder()
        .method(method)
        .uri(format!("https://acme-prod.tunnel.example{path}"))
        .header("accept", "*/*")
        .header("user-agent", "curl/8.5.0")
        .header("forwarded", "for=203.0.113.7;proto=https")
        .header("x-forwarded-for", "203.0.113.7")
        .header("x-forwarded-proto", "https")
        .header("tunnel-via", "tunnel-6f1d2c")
        .header("x-request-id", "0190d6a1-7c3e-7b52-9a57-2f1c9f0b6d11")
        .body(Content::new(length))
        .unwrap()
}

/// Length of the response to one request.
async fn fetch(session: Session, request: Request<Content>) -> usize {
    let response = exchange(&session, request, |_, _| {}).await.unwrap();
    drain(response.into_body()).await
}

async fn fetch_all(session: &Session, requests: Vec<Request<Content>>) {
    let mut exchanges = JoinSet::new();
    for request in requests {
        exchanges.spawn(fetch(session.clone(), request));
    }
    while let Some(length) = exchanges.join_next().await {
        assert_ne!(length.unwrap(), 0);
    }
}

async fn drain(mut body: RecvBody) -> usize {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame.unwrap().data_ref().map_or(0, Bytes::len);
    }
    length
}

// === Both ends of a session ===

/// Two connected sessions, with their runtime and tasks.
struct Rig {
    session: Session,
    _events: SessionEvents,
    _tasks: JoinSet<()>,
    runtime: Runtime,
}

impl Rig {
    /// A pair with this many idle streams.
    fn with_resting(streams: usize) -> Self {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let upstream = Upstream {
            gathering: Arc::new(Barrier::new(streams)),
        };
        let mut tasks = JoinSet::new();
        let (session, events) = runtime.block_on(async {
            let (server_io, client_io) = duplex(CONNECTION_BYTES);
            let (client, accepted) = start(&mut tasks, client_io, Side::Client).await;
            tasks.spawn(serve_all(client, accepted, upstream));
            let (session, events) = start(&mut tasks, server_io, Side::Server).await;
            let gather = || request(Method::GET, GATHER, 0);
            let requests = std::iter::repeat_with(gather).take(streams).collect();
            fetch_all(&session, requests).await;
            // By then the work of the start and of the last exchange is complete.
            for _ in 0..16 {
                yield_now().await;
            }
            (session, events)
        });
        Self {
            session,
            _events: events,
            _tasks: tasks,
            runtime,
        }
    }

    /// The length of the response. The exchange runs in a task, as in the tunnel server: a current-thread
    /// runtime polls the future that it blocks on only after many polls of tasks, and bytes for it would
    /// pile up.
    fn fetch(&self, request: Request<Content>) -> usize {
        let session = self.session.clone();
        let mut task = JoinSet::new();
        let length = self.runtime.block_on(async {
            task.spawn(fetch(session, request));
            task.join_next().await
        });
        length.unwrap().unwrap()
    }

    fn fetch_all(&self, requests: Vec<Request<Content>>) {
        self.runtime.block_on(fetch_all(&self.session, requests));
    }
}

/// A session over one end of a connection, its driver running.
async fn start<IO>(tasks: &mut JoinSet<()>, io: IO, side: Side) -> (Session, SessionEvents)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let settings = SessionSettings::default();
    let (session, events, driver) = Session::new(io, Bytes::new(), side, settings);
    tasks.spawn(async move {
        Box::pin(driver).await;
    });
    (session, events)
}

async fn serve_all(session: Session, mut events: SessionEvents, upstream: Upstream) {
    let mut streams = JoinSet::new();
    while let Some(event) = events.next(&session).await {
        if let SessionEvent::Stream(stream) = event {
            let mut upstream = upstream.clone();
            streams.spawn(serve(stream, move |request, _| upstream.call(request)));
        }
    }
}

/// Answers with the number of bytes that the path contains.
#[derive(Clone)]
struct Upstream {
    gathering: Arc<Barrier>,
}

impl Service<Request<RecvBody>> for Upstream {
    type Response = Response<Content>;
    type Error = Problem;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Problem>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Problem>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RecvBody>) -> Self::Future {
        let gathering = self.gathering.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            drain(body).await;
            let length = match head.uri.path() {
                GATHER => {
                    gathering.wait().await;
                    SMALL_BYTES
                }
                path => path[1..].parse().unwrap(),
            };
            Ok(answer(length))
        })
    }
}

fn answer(length: usize) -> Response<Content> {
    Response::builder()
        .header("content-type", "application/octet-stream")
        .header("content-length", length)
        .header("date", "Tue, 15 Nov 1994 08:12:31 GMT")
        .body(Content::new(length))
        .unwrap()
}

/// A body of this many bytes, in pieces that cost nothing to create.
struct Content {
    left: usize,
}

impl Content {
    fn new(length: usize) -> Self {
        Self { left: length }
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = Never;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Never>>> {
        let length = self.left.min(PIECE_BYTES);
        self.left -= length;
        let piece = Bytes::from_static(&PIECE[..length]);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

/// The error of a body that cannot fail.
#[derive(Debug)]
enum Never {}

impl AsProblem for Never {
    fn as_problem(&self) -> Problem {
        match *self {}
    }
}
