//! One HTTP/1.1 connection to an upstream. It has no task of its own; the exchange that uses it polls it.
//!
//! ```text
//!   exchange ── send ───▶ sending ─▶ upstream
//!            ── poll ───▶ head, content ◀─ input ◀─┘
//! ```
//!
//! In: a request's head as bytes, and its content. Out: the head of the response, then its content. The request is
//! sent and the response read side by side in one task, so that a request costs no task switch. An idle connection is
//! not polled.

mod content;
mod head;
mod input;
mod sending;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Body, Frame};
use tokio::io::{AsyncRead, ReadHalf};
use tokio::time::Instant;
use tunnel_ops::task::Owned;
use tunnel_proto::exchange::BodyError;
use tunnel_proto::memory::MemoryAccount;

use self::content::Content;
pub(super) use self::content::ContentError;
use self::head::HeadError;
use self::input::Input;
use self::sending::Sending;
pub(super) use self::sending::{Framing, SendError, field};
use super::closing::{ExchangeState, UpstreamSocket};
use super::outgoing_body::OutgoingBody;
use super::socket::Socket;
use tunnel_ops::alarm::Alarm;

/// A connection for one request at a time.
pub(super) struct Connection {
    socket: UpstreamSocket,
    /// The address of the upstream's name; `None` without a name.
    peer: Option<IpAddr>,
    input: Input,
    sending: Sending,
    /// Why the rest of the request cannot be sent.
    broken: Option<io::Error>,
    /// Whether the request is a `HEAD`.
    is_head: bool,
    /// Whether the upstream keeps the connection open.
    is_kept: bool,
    content: Content,
    /// The timer for heads of responses.
    pub(super) alarm: Alarm,
    /// See [`Socket::limit_unacknowledged`].
    is_limited: bool,
    /// How long it may be idle, as the upstream said with its last response.
    keep_alive: Option<Duration>,
    /// Until when an idle connection may be used, if the upstream said so.
    usable_until: Option<Instant>,
}

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResponseError {
    #[error("{0}")]
    Content(BodyError),
    #[error("{0}")]
    Head(#[from] HeadError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("connection closed before message completed")]
    Ended,
}

impl Connection {
    /// A new connection; `peer` is the address of the upstream's name if it has one. What is read at once counts in
    /// `memory`.
    pub(super) fn new(
        socket: UpstreamSocket,
        peer: Option<IpAddr>,
        memory: &Arc<MemoryAccount>,
    ) -> Self {
        socket.limit_unacknowledged(true);
        Self {
            socket,
            peer,
            input: Input::new(memory),
            sending: Sending::default(),
            broken: None,
            is_head: false,
            is_kept: true,
            content: Content::Ended,
            alarm: Alarm::default(),
            is_limited: true,
            keep_alive: None,
            usable_until: None,
        }
    }

    /// Sets or lifts the limit for unacknowledged bytes. Makes a system call only if that is a change.
    pub(super) fn limit_unacknowledged(&mut self, is_limited: bool) {
        if self.is_limited != is_limited {
            self.is_limited = is_limited;
            self.socket.limit_unacknowledged(is_limited);
        }
    }

    /// The address of the upstream's name.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Starts a request. `write` writes the head and says how the content is framed.
    pub(super) fn send(
        &mut self,
        method: &Method,
        body: OutgoingBody,
        write: impl FnOnce(&mut Vec<u8>, &OutgoingBody) -> Framing,
    ) {
        self.limit_unacknowledged(true);
        self.is_head = *method == Method::HEAD;
        self.socket.state().on_request(!body.is_end_stream());
        let framing = write(self.sending.head(), &body);
        self.sending.begin(framing, body);
    }

    /// Polls for the head of the response while the request is sent. `on_informational` gets the heads before it.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        mut on_informational: impl FnMut(StatusCode, HeaderMap),
    ) -> Poll<Result<Response<()>, ResponseError>> {
        if !self.sending.is_done() && self.broken.is_none() {
            match self.sending.poll(&mut self.socket, cx) {
                Poll::Ready(Err(SendError::Content(error))) => {
                    return Poll::Ready(Err(ResponseError::Content(error)));
                }
                // The upstream may have responded before it closed its end.
                Poll::Ready(Err(SendError::Write(error))) => self.broken = Some(error),
                Poll::Ready(Ok(())) => self.socket.state().on_request_sent(),
                Poll::Pending => {}
            }
        }
        loop {
            if !self.input.is_empty()
                && let Some(head) = head::next(&mut self.input, self.is_head)?
            {
                if head.status.is_informational() && head.status != StatusCode::SWITCHING_PROTOCOLS
                {
                    on_informational(head.status, head.headers);
                    continue;
                }
                self.is_kept = head.is_kept;
                self.keep_alive = head.keep_alive;
                self.content = head.content;
                self.socket.state().on_response_head();
                self.on_content_taken();
                let mut response = Response::new(());
                *response.status_mut() = head.status;
                *response.headers_mut() = head.headers;
                return Poll::Ready(Ok(response));
            }
            match self.input.poll_fill(&mut self.socket, cx) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(Err(self.response_error())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending if self.is_dead() => return Poll::Ready(Err(self.response_error())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Whether nothing more can come. After a failed write, what the upstream sent before may be unread, so its end
    /// has to be read first.
    fn is_dead(&self) -> bool {
        let closes = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        let kind = self.broken.as_ref().map(io::Error::kind);
        kind.is_some_and(|kind| !closes.contains(&kind))
    }

    fn response_error(&mut self) -> ResponseError {
        self.broken
            .take()
            .map_or(ResponseError::Ended, ResponseError::Io)
    }

    /// The next part of the response's content.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ContentError>>> {
        let frame = poll_frame(&mut self.content, &mut self.input, &mut self.socket, cx);
        self.on_content_taken();
        frame
    }

    fn on_content_taken(&self) {
        if self.content.has_ended() {
            self.socket.state().on_response_end();
        }
    }

    /// Whether no byte of the response has come.
    pub(super) fn is_silent(&self) -> bool {
        self.input.is_empty()
    }

    /// Takes the content back, if no byte of the request was sent; the inner `None` means that it had no content.
    pub(super) fn take_back(&mut self) -> Option<Option<OutgoingBody>> {
        self.sending.take_back()
    }

    /// Whether the whole request is sent.
    pub(super) fn is_sent(&self) -> bool {
        self.sending.is_done()
    }

    /// Whether all of the response's content was taken.
    pub(super) fn has_ended(&self) -> bool {
        self.content.has_ended()
    }

    /// Whether request and response are complete and another request may follow.
    pub(super) fn is_idle(&self) -> bool {
        self.is_kept && self.is_sent() && self.has_ended() && self.input.is_empty()
    }

    /// Releases memory that only a busy connection needs, and notes until when the upstream keeps it open. Reads the
    /// clock only if the upstream gave a time.
    pub(super) fn on_idle(&mut self) {
        self.usable_until = self.keep_alive.map(|limit| Instant::now() + limit);
        self.input.release_memory();
        self.sending.release_memory();
    }

    /// Whether an idle connection may be used: not near the end of the time that the upstream announced, and not if
    /// the upstream has closed it or sent anything.
    pub(super) fn is_alive(&mut self) -> bool {
        if self
            .usable_until
            .is_some_and(|until| Instant::now() >= until)
        {
            return false;
        }
        let mut noop = Context::from_waker(Waker::noop());
        let read = self.input.poll_fill(&mut self.socket, &mut noop);
        read.is_pending()
    }

    /// The socket, and what was read past the last head; `None` if the socket is gone.
    pub(super) fn into_parts(mut self) -> Option<(Socket, Bytes)> {
        self.limit_unacknowledged(false);
        let unread = std::mem::take(self.input.bytes()).freeze();
        Some((self.socket.take()?, unread))
    }

    /// Moves the rest of the request to a task, so that neither direction holds up the other.
    pub(super) fn split(mut self) -> Split {
        // The host is alive, and the upstream may take the rest as slowly as it likes.
        self.limit_unacknowledged(false);
        let state = Arc::clone(self.socket.state());
        let (reader, mut writer) = tokio::io::split(self.socket);
        let mut sending = self.sending;
        let sent_state = Arc::clone(&state);
        let sending = Owned::spawn("upstream request", async move {
            let sent = std::future::poll_fn(|cx| sending.poll(&mut writer, cx)).await;
            // Only the content's own error counts; an error of the connection shows in the response.
            match sent {
                Err(SendError::Content(error)) => Some(error),
                Err(SendError::Write(_)) => None,
                Ok(()) => {
                    sent_state.on_request_sent();
                    None
                }
            }
        });
        Split {
            reader,
            state,
            input: self.input,
            content: self.content,
            sending: Some(sending),
        }
    }
}

/// A connection whose request is still sent while its response is read.
pub(super) struct Split {
    reader: ReadHalf<UpstreamSocket>,
    state: Arc<ExchangeState>,
    input: Input,
    content: Content,
    /// Ends with the error of the request's content, if it failed.
    sending: Option<Owned<Option<BodyError>>>,
}

impl Split {
    /// The next part of the response's content.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ContentError>>> {
        if let Some(sending) = &mut self.sending
            && let Poll::Ready(failed) = std::pin::pin!(sending).poll(cx)
        {
            self.sending = None;
            let failed = failed.map_err(|_| ContentError::Incomplete);
            match failed.map(|error| error.map(ContentError::Request)) {
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let frame = poll_frame(&mut self.content, &mut self.input, &mut self.reader, cx);
        if self.content.has_ended() {
            self.state.on_response_end();
        }
        frame
    }

    /// Whether all of the response's content was taken.
    pub(super) fn has_ended(&self) -> bool {
        self.content.has_ended()
    }
}

fn poll_frame(
    content: &mut Content,
    input: &mut Input,
    connection: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, ContentError>>> {
    loop {
        if let Some(frame) = content.next(input)? {
            content.try_end(input);
            return Poll::Ready(Some(Ok(frame)));
        }
        if content.has_ended() {
            return Poll::Ready(None);
        }
        if !ready!(input.poll_fill(connection, cx))? {
            content.on_end_of_input()?;
            return Poll::Ready(None);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use socket2::SockRef;
    use tokio::net::{TcpListener, TcpStream};

    use super::super::progress::Progress;
    use super::*;

    #[tokio::test]
    async fn unacknowledged_bytes_end_a_connection_unless_the_upstream_may_close_its_window() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await;
        let memory = MemoryAccount::new(usize::MAX);
        let stream = stream.unwrap();
        // The kernel's own view, by another descriptor of the socket.
        let tcp = SockRef::from(&stream).try_clone().unwrap();
        let socket = UpstreamSocket::new(Socket::Plain(stream), &Arc::default());
        let mut connection = Connection::new(socket, None, &memory);
        let limit = || tcp.tcp_user_timeout().unwrap();
        let is_set = Some(Duration::from_secs(20));
        assert_eq!(limit(), is_set);
        connection.limit_unacknowledged(false);
        assert_eq!(limit(), None);
        let empty = OutgoingBody::empty(Progress::of_test());
        connection.send(&Method::GET, empty, |_, _| Framing::Length);
        assert_eq!(limit(), is_set, "for the next request");
        let _parts = connection.into_parts();
        assert_eq!(limit(), None, "upgraded");
    }
}
