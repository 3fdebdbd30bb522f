//! From a platform client's socket to its requests, and to its last byte.
//!
//! ```text
//!   socket ─▶ Http1: guard ─▶ hyper ─▶ the program's answers ─▶ the socket again, for what comes last
//!      └────▶ http2: ────────▶ hyper ─▶ the program's answers
//! ```
//!
//! In: a socket, what was read of it to detect its protocol, and what answers a request. Each wait has its
//! limit. A connection without a request is closed after a while; when the program stops, after one more request or soon.
//! Which peers may connect, what a request becomes, and what an upgraded connection does is decided by the program.

mod delivery;
mod expansion;
mod persistence;
mod socket;
#[cfg(test)]
mod tests;
mod unread;
mod unsent;

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

pub(crate) use self::expansion::ExpandedHead;
use self::expansion::HeadCredit;
use self::persistence::{Persistence, RequestPersistence};
use self::socket::ObservedSocket;
use self::unread::Streams;
pub use self::unread::{Pieces, is_given_up};
use self::unsent::Unsent;
use crate::http1::framing::HeadLimits;
use crate::http1::{Guard, GuardConfig, GuardHandle, InFlight, ResetWhenDropped};
use crate::http2::{ContentRegistry, FrameParser, FrameReader, drive};
use crate::prefixed::Prefixed;
use crate::received::ReceivedBody;
use crate::tasks::Tasks;
use tunnel_ops::signals::Shutdown;

/// How long an exchange outlives the end of its platform client's input, so that a client that has sent
/// all its requests still gets the quick answers. Less than the second within which an upstream is to
/// see a hang-up.
const HANG_UP_GRACE: Duration = Duration::from_millis(500);
/// Most field lines in one request head: what hyper takes over HTTP/1 without an allocation for each request,
/// and what Envoy and Apache take by default.
pub(crate) const MAX_FIELDS: usize = 100;
/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// What may be sent ahead on a whole HTTP/2 connection, in windows of a stream: many, so that uploads
/// that are not read do not stop the others.
const CONNECTION_WINDOWS: u32 = 16;
/// Bytes of one HTTP/2 answer that h2 may hold: two pieces, so that one can be written while the next is
/// made. With the piece that hyper holds, 256 streams have 12 MiB at most.
const SEND_BUFFER_BYTES: usize = 32 * 1024;
/// Time between HTTP/2 pings, and for each answer: finds peers that are gone.
const HTTP2_PING: Duration = Duration::from_secs(20);
/// Limits each step of closing a connection: writing the last response, and each wait for what the peer still sends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long what a peer still sends is read in all behind the last response, as nginx does (`lingering_time`).
const LINGER: Duration = Duration::from_secs(30);

/// How much is read at once of what nobody wants.
const DRAIN_BYTES: usize = 8 * 1024;

/// What a connection may take, and how long.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Largest head of a request, in bytes.
    pub max_head_bytes: usize,
    /// What may be sent ahead on one HTTP/2 stream, in bytes.
    pub stream_window_bytes: u32,
    /// Time for the TLS handshake.
    pub tls_handshake_timeout: Duration,
    /// Time for the first byte of the first request.
    pub first_byte_timeout: Duration,
    /// Time for a head, from its first byte.
    pub request_head_timeout: Duration,
    /// Longest silence between two requests.
    pub keep_alive_timeout: Duration,
    /// Longest silence within a request's content over HTTP/1, until its answer begins; and how long a peer may
    /// take nothing of its answer, over HTTP/2.
    pub body_idle_timeout: Duration,
}

/// The socket after hyper has released it: reads begin with the bytes that were read ahead.
pub type Rest<IO> = Prefixed<Prefixed<IO>>;

/// A connection of HTTP/1 that is about to be answered.
#[derive(Debug)]
pub struct Http1<IO> {
    guarded: Guard<IO>,
    guard: GuardHandle,
    bounds: Bounds,
}

impl<IO> Http1<IO>
where
    IO: AsyncRead + AsyncWrite + Transport + Unpin + Send + 'static,
{
    /// A socket of which `first` was read already.
    pub fn new(io: IO, first: Bytes, bounds: Bounds) -> Self {
        let config = GuardConfig {
            limits: HeadLimits {
                bytes: bounds.max_head_bytes,
                fields: MAX_FIELDS,
            },
            head_timeout: bounds.request_head_timeout,
            keep_alive_timeout: bounds.keep_alive_timeout,
            body_idle_timeout: bounds.body_idle_timeout,
            hang_up_grace: HANG_UP_GRACE,
        };
        let (guarded, guard) = Guard::new(io, first, config);
        Self {
            guarded,
            guard,
            bounds,
        }
    }

    /// What knows of its exchanges, and why it was ended.
    pub fn guard(&self) -> &GuardHandle {
        &self.guard
    }

    /// Has requests answered until there are no more. After `stopping` the next answer ends the connection; one that is
    /// idle when the future that `idle_over` makes is ready ends then. `tasks` take what runs for it. Gives the socket
    /// back, unless an answer was cut: then it is reset.
    pub fn serve<F, B, I>(
        self,
        stopping: &Shutdown,
        idle_over: impl FnOnce() -> I,
        tasks: &Tasks,
        answer: impl Fn(Request<ReceivedBody>, InFlight) -> F + Unpin,
    ) -> impl Future<Output = Option<Rest<IO>>>
    where
        F: Future<Output = Result<Response<B>, Infallible>>,
        B: Body + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
        I: Future<Output = ()>,
    {
        let guard = self.guard.clone();
        let persistence = Persistence::new(self.bounds.keep_alive_timeout, guard.clone());
        let own_persistence = Arc::clone(&persistence);
        let service = service_fn(move |request: Request<_>| {
            let in_flight = guard.begin_exchange();
            let says = RequestPersistence::of(&request);
            let (received, unread) = ReceivedBody::http1_request(request, tasks);
            let answered = answer(received, in_flight);
            let answering = persistence::Answering::new(answered, says, unread, &persistence);
            // Boxed, because hyper gives a socket back only when the future can be moved.
            Box::pin(answering)
        });
        let mut serving = http1::Builder::new()
            .half_close(false)
            // The guard bounds the head; this only has to hold it.
            .max_buf_size(http1_buffer_bytes(self.bounds.max_head_bytes))
            .serve_connection(TokioIo::new(self.guarded), service);
        async move {
            let served = {
                let mut requested = pin!(stopping.requested());
                let mut idle_over = Some(idle_over);
                // Set when the program stops. Boxed, since it is large and awaited once in a connection.
                let mut leaving: Option<Pin<Box<I>>> = None;
                // The waker that is registered with the stop. Registering it at each poll would cost more than the
                // answer.
                let mut registered: Option<Waker> = None;
                poll_fn(|cx| {
                    let is_registered = registered
                        .as_ref()
                        .is_some_and(|registered| registered.will_wake(cx.waker()));
                    if idle_over.is_some() && (!is_registered || stopping.is_requested()) {
                        let is_stopping = requested.as_mut().poll(cx).is_ready();
                        registered = Some(cx.waker().clone());
                        if is_stopping {
                            own_persistence.leave();
                            leaving = idle_over.take().map(|idle_over| Box::pin(idle_over()));
                        }
                    }
                    // Before the connection is closed, since a request may have come.
                    let served = serving.poll_without_shutdown(cx);
                    if served.is_pending()
                        && let Some(idle_over) = &mut leaving
                        && idle_over.as_mut().poll(cx).is_ready()
                    {
                        leaving = None;
                        // The request in progress is answered, and the connection ends with it.
                        Pin::new(&mut serving).graceful_shutdown();
                        return serving.poll_without_shutdown(cx);
                    }
                    served
                })
                .await
            };
            let parts = serving.into_parts();
            let (io, unread) = parts.io.into_inner().into_inner();
            let is_close_delimited = self.guard.is_close_delimited();
            if served.is_err_and(|error| error.is_user() || is_close_delimited) {
                // A response was cut. To an HTTP/1.0 client an orderly end would look like its own.
                io.reset_when_dropped(true);
                return None;
            }
            if is_close_delimited {
                io.reset_when_dropped(false);
            }
            // hyper has read on a little after the last request.
            Some(Prefixed::new(parts.read_buf, Prefixed::new(unread, io)))
        }
    }
}

/// How much is read ahead over HTTP/1, in bytes: a head of the largest size
/// with a part of its content, or content alone.
#[must_use]
pub const fn http1_buffer_bytes(max_head_bytes: usize) -> usize {
    max_head_bytes + 64 * 1024
}

/// Has the requests of an HTTP/2 connection answered until there are no more, or, after `stopping`,
/// until those in progress are. `tasks` take what runs for it, and have ended with it.
///
/// The connection ends when it is idle for `keep_alive_timeout`, and again for as long after it was asked to
/// leave. It is idle when nothing runs for it and no request comes; and also when requests come, but the
/// peer reads none of the answers that h2 holds for it.
pub fn http2<IO, F, B>(
    io: IO,
    bounds: Bounds,
    tasks: &Tasks,
    stopping: &Shutdown,
    answer: impl Fn(Request<ReceivedBody>) -> F + Send,
) -> impl Future<Output = ()> + Send
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let discarding = tasks.clone();
    let unsent = Arc::new(Unsent::default());
    let delivering = Arc::clone(&unsent);
    let credit = Arc::new(HeadCredit::default());
    let socket = ObservedSocket {
        io,
        unsent: Arc::clone(&unsent),
        credit: Arc::clone(&credit),
    };
    let service = service_fn(move |mut request: Request<_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        if !credit.take(request.headers(), request.uri()) {
            request.extensions_mut().insert(ExpandedHead);
        }
        let received = request.map(|incoming| ReceivedBody::http2_request(incoming, &discarding));
        delivery::Answering::new(answer(received), &delivering)
    });
    let head_bytes = u32::try_from(bounds.max_head_bytes).unwrap_or(u32::MAX);
    let (reader, frames) = FrameReader::new(socket, FrameParser::of_client());
    // hyper keeps the contents of requests to itself.
    let contents = ContentRegistry::default();
    let streams = Streams {
        tasks: tasks.clone(),
        limit: bounds.body_idle_timeout,
    };
    let serving = http2::Builder::new(streams)
        .timer(TokioTimer::new())
        .enable_connect_protocol()
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(bounds.stream_window_bytes)
        .initial_connection_window_size(bounds.stream_window_bytes * CONNECTION_WINDOWS)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(head_bytes)
        .keep_alive_interval(Some(HTTP2_PING))
        .keep_alive_timeout(HTTP2_PING)
        .serve_connection(TokioIo::new(reader), service);
    // Boxed, since it is large, and this future would have room for it twice.
    let mut serving = Box::pin(serving);
    async move {
        let mut is_leaving = false;
        loop {
            let before = (requests.load(Ordering::Relaxed), unsent.progress());
            let served = drive(&frames, &contents, |cx| serving.as_mut().poll(cx));
            tokio::select! {
                () = unsent.observe(Box::pin(served)) => break,
                () = sleep(bounds.keep_alive_timeout) => {
                    let is_quiet = requests.load(Ordering::Relaxed) == before.0;
                    let is_stuck = unsent.progress().is_stuck_since(&before.1);
                    let is_idle = (is_quiet || is_stuck) && tasks.is_empty();
                    // By the second time the peer has read nothing of what was left at the first.
                    if is_idle && is_leaving {
                        break;
                    }
                    if is_idle {
                        serving.as_mut().graceful_shutdown();
                    }
                    is_leaving = is_idle;
                }
                () = stopping.requested() => {
                    serving.as_mut().graceful_shutdown();
                    let served = drive(&frames, &contents, |cx| serving.as_mut().poll(cx));
                    unsent.observe(Box::pin(served)).await;
                    break;
                }
            }
        }
        tasks.shutdown().await;
    }
}

/// Writes the last response of a connection, and closes the connection so that the peer can read it.
pub async fn send_last<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO, answer: &[u8]) {
    let _ = timeout(CLOSE_TIMEOUT, async {
        io.write_all(answer).await?;
        io.shutdown().await
    })
    .await;
    drain(io).await;
}

/// Closes a connection in order.
pub async fn close<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) {
    if let Ok(Ok(())) = timeout(CLOSE_TIMEOUT, io.shutdown()).await {
        drain(io).await;
    }
}

/// Reads on for a while after the last answer: closing a socket with unread bytes resets it, and
/// the peer would lose the answer (RFC 9112 section 9.6). Ends when the peer sends nothing for a moment.
pub async fn drain<IO: AsyncRead + Unpin>(mut io: IO) {
    let mut discarded = vec![0; DRAIN_BYTES];
    let _ = timeout(LINGER, async {
        while let Ok(Ok(1..)) = timeout(CLOSE_TIMEOUT, io.read(&mut discarded)).await {}
    })
    .await;
}

/// A connection over a socket, possibly with TLS.
pub trait Transport {
    /// The socket.
    fn socket(&self) -> &TcpStream;

    /// Limits the sent bytes that the TLS library may hold, if there is TLS.
    fn set_tls_buffer_limit(&mut self, bytes: usize);
}

impl<IO: Transport> ResetWhenDropped for IO {
    fn reset_when_dropped(&self, is_reset: bool) {
        let linger = is_reset.then_some(Duration::ZERO);
        let _ = SockRef::from(self.socket()).set_linger(linger);
    }
}

impl Transport for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }

    fn set_tls_buffer_limit(&mut self, _: usize) {}
}

impl<IO: Transport> Transport for Prefixed<IO> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().socket()
    }

    fn set_tls_buffer_limit(&mut self, bytes: usize) {
        self.get_mut().set_tls_buffer_limit(bytes);
    }
}

impl<IO: Transport> Transport for TlsStream<IO> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0.socket()
    }

    fn set_tls_buffer_limit(&mut self, bytes: usize) {
        self.get_mut().1.set_buffer_limit(Some(bytes));
    }
}
