//! An HTTP/2 connection of a platform client.
//!
//! ```text
//!   socket ─▶ frame reader ─▶ h2 ─▶ request ─▶ a task: exchange ─▶ the program's answer
//!      ◀────────────────────── h2 ◀── head, pieces, trailers ◀──────────┘
//! ```
//!
//! The connection accepts requests, pings a peer that is silent, and ends: when it is idle for too long, when the peer
//! is gone, or, after the program has begun to stop, with its last exchange.

mod exchange;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{self, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::{Method, Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, timeout};
use tunnel_ops::alarm::Alarm;
use tunnel_ops::signals::Shutdown;

use self::exchange::{Connect, Exchange};
use super::Bounds;
use super::expansion::{ExpandedHead, HeadCredit};
use super::socket::ObservedSocket;
use super::unread::watched;
use crate::http2::unsent::{Piece, Progress, Unsent};
use crate::http2::{
    ContentRegistry, DATA_FRAME_BUDGET, FrameParser, FrameReader, ReadFrames, Reply, drive,
};
use crate::received::ReceivedBody;
use crate::tasks::Tasks;

/// Requests at once on one connection.
const MAX_STREAMS: u32 = 256;
/// Bytes that may be sent ahead on a whole connection, in windows of a stream: many, so that sixteen uploads that are not
/// read do not stop the others.
const CONNECTION_WINDOWS: u32 = 20;
/// Bytes of one answer that h2 may hold: two pieces, so that one can be written while the next is made. With the piece
/// that is given next, 256 streams have 12 MiB at most.
const SEND_BUFFER_BYTES: usize = 32 * 1024;
/// After how long without a sign of life a peer is pinged, and for how long its answer is awaited: finds peers that are gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Has the requests of an HTTP/2 connection answered until there are no more, or, after `stopping`,
/// until those in progress are. `tasks` take what runs for it, and have ended with it.
///
/// The connection ends when it is idle for `keep_alive_timeout`, and again for as long after it was asked to
/// leave; after `stopping`, `body_idle_timeout` is enough. It is idle when nothing runs for it, no request comes and
/// nothing is read of the answers that h2 holds for it; and also when requests come, but nothing is read.
pub async fn http2<IO, F, B>(
    io: IO,
    bounds: Bounds,
    tasks: &Tasks,
    stopping: &Shutdown,
    answer: impl Fn(Request<ReceivedBody>) -> F + Send,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let starting = Serving::start(io, bounds, tasks);
    // The preface of the connection is read like a head.
    let Ok(Some(mut serving)) = timeout(bounds.request_head_timeout, starting).await else {
        return;
    };
    let (mut is_leaving, mut is_stopping) = (false, false);
    loop {
        let before = serving.progress();
        let idle_timeout = match is_stopping {
            true => bounds.body_idle_timeout,
            false => bounds.keep_alive_timeout,
        };
        tokio::select! {
            () = serving.run(&answer) => break,
            () = sleep(idle_timeout) => {
                let is_idle = serving.is_idle_since(&before) && tasks.is_empty();
                // By the second time the peer has read nothing of what was left at the first.
                if is_idle && is_leaving {
                    break;
                }
                if is_idle {
                    serving.connection.graceful_shutdown();
                }
                is_leaving = is_idle;
            }
            () = stopping.requested(), if !is_stopping => {
                serving.connection.graceful_shutdown();
                is_stopping = true;
            }
        }
    }
    drop(serving);
    tasks.shutdown().await;
}

/// A connection whose preface has come.
struct Serving<IO> {
    connection: server::Connection<FrameReader<ObservedSocket<IO>>, Piece>,
    frames: ReadFrames,
    contents: Arc<ContentRegistry>,
    pings: Pings,
    unsent: Arc<Unsent>,
    credit: Arc<HeadCredit>,
    tasks: Tasks,
    /// How long a peer may read nothing of the bytes for it.
    unread_limit: Duration,
    /// The number of requests so far.
    requests: u64,
}

impl<IO> Serving<IO>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    /// Waits for the preface. Boxed, since it is large and its future would have room for it twice.
    async fn start(io: IO, bounds: Bounds, tasks: &Tasks) -> Option<Box<Self>> {
        let unsent = Arc::new(Unsent::default());
        let credit = Arc::new(HeadCredit::default());
        let socket = ObservedSocket {
            io,
            unsent: Arc::clone(&unsent),
            credit: Arc::clone(&credit),
        };
        let (reader, frames) = FrameReader::new(socket, FrameParser::of_client());
        let head_bytes = u32::try_from(bounds.max_head_bytes).unwrap_or(u32::MAX);
        let mut connection = server::Builder::new()
            .enable_connect_protocol()
            .max_concurrent_streams(MAX_STREAMS)
            .initial_window_size(bounds.stream_window_bytes)
            .initial_connection_window_size(bounds.stream_window_bytes * CONNECTION_WINDOWS)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .max_header_list_size(head_bytes)
            .data_frame_budget(DATA_FRAME_BUDGET)
            .handshake(reader)
            .await
            .inspect_err(|error| tracing::debug!(%error, "no HTTP/2 connection began"))
            .ok()?;
        let pings = Pings::new(connection.ping_pong()?);
        Some(Box::new(Self {
            connection,
            frames,
            contents: Arc::default(),
            pings,
            unsent,
            credit,
            tasks: tasks.clone(),
            unread_limit: bounds.body_idle_timeout,
            requests: 0,
        }))
    }

    /// Drives the connection to its end.
    async fn run<F, B>(&mut self, answer: &impl Fn(Request<ReceivedBody>) -> F)
    where
        F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (frames, contents) = (self.frames.clone(), Arc::clone(&self.contents));
        let unsent = Arc::clone(&self.unsent);
        let served = drive(&frames, &contents, |cx| self.poll(cx, answer));
        unsent.observe(pin!(served)).await;
    }

    fn poll<F, B>(
        &mut self,
        cx: &mut Context<'_>,
        answer: &impl Fn(Request<ReceivedBody>) -> F,
    ) -> Poll<()>
    where
        F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        while let Poll::Ready(next) = self.connection.poll_accept(cx) {
            match next {
                Some(Ok((request, response))) => self.accept(request, response, answer),
                Some(Err(error)) => {
                    tracing::debug!(%error, "an HTTP/2 connection failed");
                    return Poll::Ready(());
                }
                None => return Poll::Ready(()),
            }
        }
        let signs = self.frames.reads() + self.unsent.resumptions();
        let gone = self.pings.poll(cx, signs);
        if gone.is_ready() {
            tracing::debug!("the peer of an HTTP/2 connection answers no ping");
        }
        gone
    }

    /// Starts the task of a request.
    fn accept<F, B>(
        &mut self,
        mut request: Request<RecvStream>,
        response: SendResponse<Piece>,
        answer: &impl Fn(Request<ReceivedBody>) -> F,
    ) where
        F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        self.requests += 1;
        if !self.credit.take(request.headers(), request.uri()) {
            request.extensions_mut().insert(ExpandedHead);
        }
        let reply = Reply::new(response, &self.unsent);
        let (parts, stream) = request.into_parts();
        let content = self.contents.content(stream);
        let end = content.end();
        let (received, connect) = match parts.method {
            Method::CONNECT => {
                let (connect, on_upgrade) = Connect::new(content, &self.tasks);
                let received = ReceivedBody::upgrade(on_upgrade, reply.clone());
                (received, Some(connect))
            }
            _ => {
                let received =
                    ReceivedBody::http2_request(&parts, content, reply.clone(), &self.tasks);
                (received, None)
            }
        };
        let answered = answer(Request::from_parts(parts, received));
        let exchange = Exchange::new(answered, reply, connect, end);
        self.tasks.spawn(watched(exchange, self.unread_limit));
    }

    fn progress(&self) -> (u64, Progress) {
        (self.requests, self.unsent.progress())
    }

    /// Whether no request has come since and no answer gets on that h2 holds, or one of these is stuck.
    fn is_idle_since(&self, (requests, unsent): &(u64, Progress)) -> bool {
        let now = self.unsent.progress();
        let is_quiet = self.requests == *requests && !now.gets_on_since(unsent);
        is_quiet || now.is_stuck_since(unsent)
    }
}

/// The pings to a silent peer.
struct Pings {
    pings: PingPong,
    alarm: Alarm,
    /// The number of signs of life when the silence began.
    signs: u64,
    silent_since: Instant,
    /// Whether a ping was sent since.
    is_asked: bool,
}

impl Pings {
    fn new(pings: PingPong) -> Self {
        Self {
            pings,
            alarm: Alarm::default(),
            signs: 0,
            silent_since: Instant::now(),
            is_asked: false,
        }
    }

    /// Ready when the peer is gone: when it gave no sign of life for [`PING_INTERVAL`], nor in as long behind a ping. `signs`
    /// is the number of them so far: reads that brought something, and writes that went on after the socket was full.
    /// The answer to a ping waits behind all that the network holds for a peer.
    fn poll(&mut self, cx: &mut Context<'_>, signs: u64) -> Poll<()> {
        if self.signs != signs {
            self.signs = signs;
            self.silent_since = Instant::now();
            self.is_asked = false;
        }
        loop {
            let intervals = 1 + u32::from(self.is_asked);
            let due = self.silent_since + PING_INTERVAL * intervals;
            ready!(self.alarm.poll(cx, due));
            if self.is_asked {
                return Poll::Ready(());
            }
            self.is_asked = true;
            // Takes the last pong, without which no other ping can be sent. If that is still missing it is the one awaited.
            let _ = self.pings.poll_pong(cx);
            let _ = self.pings.send_ping(Ping::opaque());
        }
    }
}
