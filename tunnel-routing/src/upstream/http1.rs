//! One HTTP/1.1 connection to an upstream, driven by whoever uses it: it has no task of its own.
//!
//! ```text
//!   task of an exchange ── send ───▶ sending ─▶ upstream
//!                       ── poll ───▶ head, content ◀─ input ◀─┘
//! ```
//!
//! In: a request's head as bytes, and its content. Out: the head of the response, then its content.
//! A request is sent and its response is read side by side, in the task that waits for the response,
//! so that a request costs no change of tasks. Between two requests nobody polls anything.

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
use http_body::Frame;
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
use super::outgoing::OutgoingBody;
use super::socket::Socket;
use tunnel_ops::alarm::Alarm;

/// A connection that can be asked one thing at a time.
pub(super) struct Connection {
    socket: Socket,
    /// Where a name led to; none when there was no name.
    peer: Option<IpAddr>,
    input: Input,
    sending: Sending,
    /// Why no more of the request can be sent.
    broken: Option<io::Error>,
    /// What was asked is answered by a head alone.
    is_head: bool,
    /// The upstream keeps it for another request.
    is_kept: bool,
    content: Content,
    /// For the heads of its responses.
    pub(super) alarm: Alarm,
    /// See [`Socket::limit_unacknowledged`].
    is_limited: bool,
    /// How long the upstream keeps it open between two requests, as it said with its last response.
    keep_alive: Option<Duration>,
    /// Until when it may be used again, if the upstream said so.
    usable_until: Option<Instant>,
}

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
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
    /// A new connection, to this address of the upstream's name if it has one. What it reads at once counts
    /// in `memory`.
    pub(super) fn new(socket: Socket, peer: Option<IpAddr>, memory: &Arc<MemoryAccount>) -> Self {
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

    /// Limits the time for which sent bytes may stay unacknowledged, or lifts the limit. Costs a system
    /// call only where that changes something.
    pub(super) fn limit_unacknowledged(&mut self, is_limited: bool) {
        if self.is_limited != is_limited {
            self.is_limited = is_limited;
            self.socket.limit_unacknowledged(is_limited);
        }
    }

    /// The address of the upstream's name that it leads to.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// Begins a request whose head `write` writes; it says how the content is framed.
    pub(super) fn send(
        &mut self,
        method: &Method,
        body: OutgoingBody,
        write: impl FnOnce(&mut Vec<u8>, &OutgoingBody) -> Framing,
    ) {
        self.limit_unacknowledged(true);
        self.is_head = *method == Method::HEAD;
        let framing = write(self.sending.head(), &body);
        self.sending.begin(framing, body);
    }

    /// Waits for the head of the response, the request sent on meanwhile. `on_informational` gets
    /// the heads that come before it.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        mut on_informational: impl FnMut(StatusCode, HeaderMap),
    ) -> Poll<Result<Response<()>, NoAnswer>> {
        if !self.sending.is_done() && self.broken.is_none() {
            match self.sending.poll(&mut self.socket, cx) {
                Poll::Ready(Err(SendError::Content(error))) => {
                    return Poll::Ready(Err(NoAnswer::Content(error)));
                }
                // It may have answered before it closed its end.
                Poll::Ready(Err(SendError::Write(error))) => self.broken = Some(error),
                Poll::Ready(Ok(())) | Poll::Pending => {}
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
                let mut response = Response::new(());
                *response.status_mut() = head.status;
                *response.headers_mut() = head.headers;
                return Poll::Ready(Ok(response));
            }
            match self.input.poll_fill(&mut self.socket, cx) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(Err(self.no_answer())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending if self.is_dead() => return Poll::Ready(Err(self.no_answer())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Whether nothing more is to be expected. Of an upstream that takes no more, because it has
    /// closed its end, what it said before may not have been looked at; its end is news in any case.
    fn is_dead(&self) -> bool {
        let closes = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        let kind = self.broken.as_ref().map(io::Error::kind);
        kind.is_some_and(|kind| !closes.contains(&kind))
    }

    fn no_answer(&mut self) -> NoAnswer {
        self.broken.take().map_or(NoAnswer::Ended, NoAnswer::Io)
    }

    /// The next part of the response's content.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ContentError>>> {
        poll_frame(&mut self.content, &mut self.input, &mut self.socket, cx)
    }

    /// Whether not a byte of an answer came.
    pub(super) fn is_silent(&self) -> bool {
        self.input.is_empty()
    }

    /// The content, if the upstream has seen nothing of the request; `None` inside for none at all.
    pub(super) fn take_back(&mut self) -> Option<Option<OutgoingBody>> {
        self.sending.take_back()
    }

    /// Whether all of the request is sent.
    pub(super) fn is_sent(&self) -> bool {
        self.sending.is_done()
    }

    /// Whether all of the response's content was taken.
    pub(super) fn has_ended(&self) -> bool {
        self.content.has_ended()
    }

    /// Whether everything asked is answered to its end, and another request may follow.
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_kept && self.is_sent() && self.has_ended() && self.input.is_empty()
    }

    /// Gives memory back that it only needs while it is busy, and notes until when the upstream keeps
    /// it open. The clock is read only where the upstream said so.
    pub(super) fn rest(&mut self) {
        self.usable_until = self.keep_alive.map(|limit| Instant::now() + limit);
        self.input.rest();
        self.sending.rest();
    }

    /// Whether a connection that rested may be used: it is false near the end of the time for which
    /// the upstream keeps it, and when the upstream has closed it or sent what nobody asked for.
    pub(super) fn is_alive(&mut self) -> bool {
        if self
            .usable_until
            .is_some_and(|until| Instant::now() >= until)
        {
            return false;
        }
        let mut unheard = Context::from_waker(Waker::noop());
        let read = self.input.poll_fill(&mut self.socket, &mut unheard);
        read.is_pending()
    }

    /// The connection below, and what was read of it past the last head.
    pub(super) fn into_parts(mut self) -> (Socket, Bytes) {
        self.limit_unacknowledged(false);
        let unread = std::mem::take(self.input.bytes()).freeze();
        (self.socket, unread)
    }

    /// Has the rest of the request sent by a task, so that neither direction holds up the other.
    pub(super) fn split(mut self) -> Split {
        // The host has answered, and the upstream may take the rest as slowly as it likes.
        self.limit_unacknowledged(false);
        let (reader, mut writer) = tokio::io::split(self.socket);
        let mut sending = self.sending;
        let sending = Owned::spawn("upstream request", async move {
            let sent = std::future::poll_fn(|cx| sending.poll(&mut writer, cx)).await;
            // The content that failed is the platform client's, the connection is the upstream's.
            match sent {
                Err(SendError::Content(error)) => Some(error),
                Err(SendError::Write(_)) | Ok(()) => None,
            }
        });
        Split {
            reader,
            input: self.input,
            content: self.content,
            sending: Some(sending),
        }
    }
}

/// A connection whose request goes on while its response is read.
pub(super) struct Split {
    reader: ReadHalf<Socket>,
    input: Input,
    content: Content,
    /// Tells how the request's content failed, if it did.
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
        poll_frame(&mut self.content, &mut self.input, &mut self.reader, cx)
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
        let mut connection = Connection::new(Socket::Plain(stream.unwrap()), None, &memory);
        let limit = |connection: &Connection| {
            let tcp = SockRef::from(connection.socket.tcp().unwrap());
            tcp.tcp_user_timeout().unwrap()
        };
        let is_set = Some(Duration::from_secs(20));
        assert_eq!(limit(&connection), is_set);
        connection.limit_unacknowledged(false);
        assert_eq!(limit(&connection), None);
        let empty = OutgoingBody::empty(Progress::of_test());
        connection.send(&Method::GET, empty, |_, _| Framing::Length);
        assert_eq!(limit(&connection), is_set, "for the next request");
        let (socket, _) = connection.into_parts();
        let tcp = SockRef::from(socket.tcp().unwrap());
        assert_eq!(tcp.tcp_user_timeout().unwrap(), None, "upgraded");
    }
}
