//! Two sessions over a connection in memory, their drivers running, and a service at the client's end.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, duplex},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use tower_service::Service;
use tunnel_proto::{
    control::Control,
    exchange::{AsProblem, Informational, RecvBody, serve},
    problem::Problem,
    session::{
        AcceptedStream, Driver, Session, SessionEnd, SessionEvent, SessionEvents, SessionSettings,
        Side,
    },
};

/// Bytes that the connection between the two takes before it blocks.
const CONNECTION_BYTES: usize = 64 * 1024;

/// Time-out of operations that do not wait. Shorter than the time to the next ping, which could hide a lost
/// wake-up. Under paused time it passes at once.
const LONG: Duration = Duration::from_secs(10);

/// Longer than the detection of a dead peer takes.
const LONGER: Duration = Duration::from_secs(100);

/// The result of a future that must not hang.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(LONG, future).await.expect("this hangs")
}

/// Runs all other tasks until they only wait for time.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// The configuration of a pair.
pub(crate) struct Setup {
    pub(crate) settings: SessionSettings,
    /// Bytes in flight before a writer blocks.
    pub(crate) connection_bytes: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            settings: SessionSettings::default(),
            connection_bytes: CONNECTION_BYTES,
        }
    }
}

/// Both ends of a session.
pub(crate) struct Pair {
    pub(crate) server: Session,
    pub(crate) server_events: SessionEvents,
    pub(crate) client: Session,
    /// The control messages that the client has received.
    pub(crate) controls: mpsc::Receiver<Control>,
    pub(crate) drivers: Drivers,
    /// Ends when the client's session and all tasks that served its streams have ended.
    pub(crate) serving: JoinSet<()>,
    pub(crate) streams: Streams,
}

/// Counts the streams that the client serves: all so far, and those that are open.
#[derive(Clone, Default)]
pub(crate) struct Streams {
    all: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
}

impl Streams {
    pub(crate) fn all(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

/// The running drivers.
#[derive(Default)]
pub(crate) struct Drivers {
    tasks: JoinSet<(Side, SessionEnd)>,
    polls: Arc<AtomicUsize>,
}

impl Drivers {
    pub(crate) fn spawn<IO>(&mut self, side: Side, driver: Driver<IO>)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut driver = Box::pin(driver);
        let polls = self.polls.clone();
        let counted = std::future::poll_fn(move |cx| {
            polls.fetch_add(1, Ordering::Relaxed);
            driver.as_mut().poll(cx)
        });
        self.tasks.spawn(async move { (side, counted.await) });
    }

    /// How often the drivers were polled.
    pub(crate) fn polls(&self) -> usize {
        self.polls.load(Ordering::Relaxed)
    }

    /// How the next driver ends.
    pub(crate) async fn next_end(&mut self) -> (Side, SessionEnd) {
        timeout(LONGER, self.tasks.join_next())
            .await
            .expect("this hangs")
            .expect("no driver is left")
            .unwrap()
    }

    /// How the server's and the client's session end.
    pub(crate) async fn ends(&mut self) -> (SessionEnd, SessionEnd) {
        let (first, one) = self.next_end().await;
        let (_, other) = self.next_end().await;
        if first == Side::Server {
            (one, other)
        } else {
            (other, one)
        }
    }

    /// Ends them without a close frame.
    pub(crate) async fn drop_all(&mut self) {
        self.tasks.shutdown().await;
    }
}

/// A session over one end of a connection, its driver running.
pub(crate) async fn session<IO>(
    drivers: &mut Drivers,
    io: IO,
    side: Side,
    settings: SessionSettings,
) -> (Session, SessionEvents)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (session, events, driver) = Session::new(io, Bytes::new(), side, settings);
    drivers.spawn(side, driver);
    (session, events)
}

/// Serves a stream with a service, which finds [`Informational`] in the request's extensions.
pub(crate) async fn serve_with<S, B>(stream: AcceptedStream, mut service: S)
where
    S: Service<Request<RecvBody>, Response = Response<B>, Error = Problem>,
    B: Body<Data = Bytes>,
    B::Error: AsProblem,
{
    let answer = |mut request: Request<RecvBody>, informational: Informational| {
        request.extensions_mut().insert(informational);
        service.call(request)
    };
    serve(stream, answer).await;
}

/// Serves every stream of a session with the service.
async fn serve_all<S, B>(
    session: Session,
    mut events: SessionEvents,
    controls: mpsc::Sender<Control>,
    streams: Streams,
    service: S,
) where
    S: Service<Request<RecvBody>, Response = Response<B>, Error = Problem>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: AsProblem + Send,
{
    let mut serving = JoinSet::new();
    while let Some(event) = events.next(&session).await {
        match event {
            SessionEvent::Stream(stream) => {
                streams.all.fetch_add(1, Ordering::Relaxed);
                streams.open.fetch_add(1, Ordering::Relaxed);
                let open = streams.open.clone();
                let service = service.clone();
                serving.spawn(async move {
                    serve_with(stream, service).await;
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
            SessionEvent::Control(control) => {
                let _ = controls.try_send(control);
            }
        }
    }
    while serving.join_next().await.is_some() {}
}

impl Pair {
    /// A pair whose client answers with `handler`.
    pub(crate) async fn start<H, F, B>(handler: H) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response<B>, Problem>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + Send,
    {
        Self::start_with(Setup::default(), handler).await
    }

    pub(crate) async fn start_with<H, F, B>(setup: Setup, handler: H) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response<B>, Problem>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + Send,
    {
        let (server_io, client_io) = duplex(setup.connection_bytes);
        Self::start_over(server_io, client_io, setup.settings, handler).await
    }

    /// A pair over two connections that the caller joins.
    pub(crate) async fn start_over<H, F, B>(
        server_io: DuplexStream,
        client_io: DuplexStream,
        settings: SessionSettings,
        handler: H,
    ) -> Self
    where
        H: Fn(Request<RecvBody>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Response<B>, Problem>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + Send,
    {
        let mut drivers = Drivers::default();
        let (server, server_events) =
            session(&mut drivers, server_io, Side::Server, settings).await;
        let (client, events) = session(&mut drivers, client_io, Side::Client, settings).await;
        let (sender, controls) = mpsc::channel(1_000);
        let streams = Streams::default();
        let service = Handler(Arc::new(handler));
        let mut serving = JoinSet::new();
        serving.spawn(serve_all(
            client.clone(),
            events,
            sender,
            streams.clone(),
            service,
        ));
        Self {
            server,
            server_events,
            client,
            controls,
            drivers,
            serving,
            streams,
        }
    }
}

/// A service made of a function.
pub(crate) struct Handler<H>(pub(crate) Arc<H>);

impl<H> Clone for Handler<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<H, F, B> Service<Request<RecvBody>> for Handler<H>
where
    H: Fn(Request<RecvBody>) -> F,
    F: Future<Output = Result<Response<B>, Problem>> + Send + 'static,
{
    type Response = Response<B>;
    type Error = Problem;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, Problem>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Problem>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RecvBody>) -> Self::Future {
        Box::pin((self.0)(request))
    }
}

/// Joins two connections and forwards bytes after a delay, until it is stopped. From then on it forwards
/// nothing but keeps both open, as a peer that vanishes without closing.
pub(crate) struct Relay {
    tasks: JoinSet<()>,
    stop: tokio::sync::watch::Sender<bool>,
    /// The bytes that the server sends, and those that the client sends.
    held: [Arc<AtomicBool>; 2],
}

impl Relay {
    /// The relay, and the ends for the server and the client.
    pub(crate) fn start(delay: Duration) -> (Self, DuplexStream, DuplexStream) {
        let (server, server_side) = duplex(CONNECTION_BYTES);
        let (client, client_side) = duplex(CONNECTION_BYTES);
        let (server_read, server_write) = tokio::io::split(server_side);
        let (client_read, client_write) = tokio::io::split(client_side);
        let stop = tokio::sync::watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        let held = <[Arc<AtomicBool>; 2]>::default();
        let path = |from: usize| (delay, held[from].clone(), stop.subscribe());
        tasks.spawn(pass_on(server_read, client_write, path(0)));
        tasks.spawn(pass_on(client_read, server_write, path(1)));
        (Self { tasks, stop, held }, server, client)
    }

    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Holds received bytes back, or forwards them again.
    pub(crate) fn hold(&self, is_held: bool) {
        for held in &self.held {
            held.store(is_held, Ordering::SeqCst);
        }
    }

    /// Holds back only the bytes that one of the two sends.
    pub(crate) fn hold_from(&self, side: Side, is_held: bool) {
        self.held[usize::from(side == Side::Client)].store(is_held, Ordering::SeqCst);
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.tasks.is_empty()
    }
}

async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    (delay, held, mut stop): (
        Duration,
        Arc<AtomicBool>,
        tokio::sync::watch::Receiver<bool>,
    ),
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let passing = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            tokio::time::sleep(delay).await;
            while held.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if to.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    };
    let stopped = tokio::select! {
        () = passing => false,
        stopped = stop.changed() => stopped.is_ok(),
    };
    if stopped {
        std::future::pending().await
    }
}
