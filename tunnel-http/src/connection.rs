//! From a platform client's socket to its requests, and to its last byte.
//!
//! ```text
//!   socket ─▶ Http1: guard ─▶ hyper ─▶ the program's answers ─▶ the socket again, for what comes last
//!      └────▶ http2: ────────▶ h2 ────▶ the program's answers
//! ```
//!
//! In: a socket, what was read of it to detect its protocol, and what answers a request. Each wait has its
//! limit. A connection without a request is closed after a while; when the program stops, after one more request or soon.
//! Which peers may connect, what a request becomes, and what an upgraded connection does is decided by the program.

mod delivery;
mod expansion;
mod http2;
mod persistence;
mod socket;
mod unread;

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

pub(crate) use self::expansion::ExpandedHead;
pub use self::http2::http2;
use self::persistence::{Persistence, RequestPersistence};
pub use self::unread::is_given_up;
use crate::http1::framing::HeadLimits;
use crate::http1::{Guard, GuardConfig, GuardHandle, InFlight, ResetWhenDropped};
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
            // Boxed, because hyper gives a socket back only when the future can be moved; here, because a large future is
            // copied each time that another one takes it.
            let answered = Box::pin(answer(received, in_flight));
            persistence::Answering::new(answered, says, unread, &persistence)
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
