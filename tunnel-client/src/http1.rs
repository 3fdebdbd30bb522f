//! One HTTP/1.1 connection to a tunnel server, driven by the future that dials: it has no task of its own.
//!
//! ```text
//!   dial ── ask ──▶ sender ┐
//!        ── poll ─▶ connection ── bytes ──▶ tunnel server
//! ```
//!
//! hyper splits a connection into a sender and a future that moves the bytes. Both are polled side
//! by side here, so that the connection can be taken apart after the 101.

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

/// Time for the content of a refusal: enough for a page that is on its way, and no wait for one that has no
/// end.
const REFUSAL_TIME: Duration = Duration::from_secs(1);

/// A connection that carries one request at a time.
pub(crate) struct Http1<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Body + 'static,
{
    sender: SendRequest<B>,
    /// `None` once it has ended, in order or not, or HTTP is over after a 101.
    connection: Option<Connection<TokioIo<IO>, B>>,
    /// What the connection left when it ended.
    remains: Option<Remains<IO>>,
}

/// What is left of a connection when HTTP is over on it.
pub(crate) struct Remains<IO> {
    /// The connection below.
    pub(crate) io: IO,
    /// Bytes that were read from it and belong to nothing before.
    pub(crate) unread: Bytes,
}

impl<IO, B> Http1<IO, B>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Takes over a new connection. A response's head may have `fields` fields and `head_bytes`
    /// bytes.
    pub(crate) async fn new(io: IO, fields: usize, head_bytes: usize) -> hyper::Result<Self> {
        let (sender, connection) = http1::Builder::new()
            .max_headers(fields)
            .max_header_size(head_bytes)
            // Content is read in pieces of up to that size too.
            .max_buf_size(head_bytes)
            .handshake(TokioIo::new(io))
            .await?;
        Ok(Self {
            sender,
            connection: Some(connection),
            remains: None,
        })
    }

    /// Drives the connection as far as it goes.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        if connection.poll_without_shutdown(cx).is_ready() {
            // Taking it apart ends all that waits for something of it.
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
    /// With the request itself, should nothing of it have been sent.
    pub(crate) async fn send_request(
        &mut self,
        request: Request<B>,
    ) -> Result<Response<Incoming>, TrySendError<Request<B>>> {
        let mut response = pin!(unconstrained(self.sender.try_send_request(request)));
        poll_fn(|cx| {
            self.poll(cx);
            // Only the connection can make it ready, and was polled right above: with a waker of
            // its own it would wake this very task once more for each response.
            response
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
        })
        .await
    }

    /// The next part of a response's body, the connection polled as far as that needs.
    pub(crate) fn poll_frame(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<http_body::Frame<Bytes>>>> {
        // As in `send_request`: only the connection makes it ready.
        let mut unheard = Context::from_waker(Waker::noop());
        if let Poll::Ready(frame) = pin!(&mut *body).poll_frame(&mut unheard) {
            return Poll::Ready(frame);
        }
        self.poll(cx);
        pin!(body).poll_frame(&mut unheard)
    }

    /// The first `most` bytes of a refusal's content, as far as they come in its own time; and whether that
    /// is all of it. What breaks off says as much as what is cut.
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

    /// What is left of an ended connection.
    pub(crate) fn into_remains(self) -> Option<Remains<IO>> {
        self.remains
    }
}
