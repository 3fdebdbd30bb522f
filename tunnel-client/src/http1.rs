//! One HTTP/1.1 connection to a tunnel server or proxy, driven by the dialling future, without a task of its own.
//!
//! ```text
//!   dial ── ask ──▶ sender ┐
//!        ── poll ─▶ connection ── bytes ──▶ tunnel server
//! ```
//!
//! hyper splits a connection into a sender and a future that moves the bytes. Both are polled together here, so that the
//! connection can be taken apart after the 101.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::coop::unconstrained;
use tokio::time::{Duration, timeout};

/// Time-out of a refusal's content: enough for a page, and short for content without an end.
const REFUSAL_TIME: Duration = Duration::from_secs(1);

/// A connection that carries one request at a time.
pub(crate) struct Http1<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Body + 'static,
{
    sender: SendRequest<B>,
    /// `None` after it has ended, or HTTP has ended with a 101.
    connection: Option<Connection<TokioIo<IO>, B>>,
    /// The parts of the ended connection.
    remains: Option<Remains<IO>>,
}

/// The parts of a connection after the end of HTTP on it.
pub(crate) struct Remains<IO> {
    /// The connection.
    pub(crate) io: IO,
    /// Bytes that were read and are not part of a response.
    pub(crate) unread: Bytes,
}

impl<IO, B> Http1<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// For a new connection. A response's head may have `fields` fields and `head_bytes` bytes.
    pub(crate) async fn new(io: IO, fields: usize, head_bytes: usize) -> hyper::Result<Self> {
        let (sender, connection) = http1::Builder::new()
            .max_headers(fields)
            .max_header_size(head_bytes)
            // Also the most bytes of one read of content.
            .max_buf_size(head_bytes)
            .handshake(TokioIo::new(io))
            .await?;
        Ok(Self {
            sender,
            connection: Some(connection),
            remains: None,
        })
    }

    /// Drives the connection until it is pending.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        if connection.poll_without_shutdown(cx).is_ready() {
            // Dropping its other parts ends pending requests and bodies.
            let parts = self.connection.take().map(Connection::into_parts);
            self.remains = parts.map(|parts| Remains {
                io: parts.io.into_inner(),
                unread: parts.read_buf,
            });
        }
    }

    /// Sends a request and waits for the head of its response.
    ///
    /// # Errors
    /// Contains the request if nothing of it has been sent.
    pub(crate) async fn send_request(
        &mut self,
        request: Request<B>,
    ) -> Result<Response<Incoming>, TrySendError<Request<B>>> {
        let mut response = pin!(unconstrained(self.sender.try_send_request(request)));
        poll_fn(|cx| {
            self.poll(cx);
            // Without a waker: only the connection makes it ready, which was polled above. A waker would wake this task once more
            // for each response.
            response
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
        })
        .await
    }

    /// The next frame of a response's body; drives the connection.
    pub(crate) fn poll_frame(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<http_body::Frame<Bytes>>>> {
        // As in `send_request`: only the connection makes it ready.
        let mut noop = Context::from_waker(Waker::noop());
        if let Poll::Ready(frame) = pin!(&mut *body).poll_frame(&mut noop) {
            return Poll::Ready(frame);
        }
        self.poll(cx);
        pin!(body).poll_frame(&mut noop)
    }

    /// The first `most` bytes of a refusal's content, as far as they arrive within the time-out, and whether that is all of
    /// it. An error ends the content early.
    pub(crate) async fn beginning(&mut self, mut body: Incoming, most: usize) -> (Bytes, bool) {
        let mut text = BytesMut::new();
        let reading = async {
            while let Some(frame) = poll_fn(|cx| self.poll_frame(&mut body, cx)).await {
                let Ok(frame) = frame else {
                    return false;
                };
                let data = frame.into_data().unwrap_or_default();
                text.extend_from_slice(&data[..data.len().min(most - text.len())]);
                if text.len() == most {
                    return false;
                }
            }
            true
        };
        let is_whole = timeout(REFUSAL_TIME, reading).await.unwrap_or(false);
        (text.freeze(), is_whole)
    }

    /// The parts of an ended connection.
    pub(crate) fn into_remains(self) -> Option<Remains<IO>> {
        self.remains
    }
}
