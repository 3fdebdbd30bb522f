//! One exchange: an HTTP request and its response over one stream of a session.
//!
//! ```text
//!             tunnel server                                   tunnel client
//!   opening ─▶ request head ─▶ content… ─▶ end      head ─▶ service ─▶ response
//!      │            (sending and receiving are concurrent)                 │
//!      ▼                                                                   ▼
//!   waiting ◀─ accepted ◀─ informational… ◀─ head ◀─ content… ◀─ end ◀─────┘
//! ```
//!
//! Each direction is one self-delimiting binary HTTP message, so a stream whose two messages are complete
//! becomes idle and carries the next exchange. Otherwise it is reset, which the other end reports as a cut,
//! never as an end. An upgraded connection is an exchange like any other: the content of each message is
//! the bytes of one direction, and its end is the half-close of that direction.

mod accept;
mod body;
mod head;
mod open;
mod send;
mod upgrade;

use std::{
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;

pub use self::{
    accept::{AsProblem, ForwardHints, ForwardNote, Informational, serve},
    body::{BodyError, RecvBody},
    head::{EncodedHead, HeadEncoder},
    open::{ExchangeError, Opened, exchange, open},
    upgrade::{Protocol, ReadBody, UnknownProtocol, copy_body, read_body},
};
use crate::{
    bhttp::{DecodeError, Decoder, Event},
    close::CloseReason,
    problem::{Hop, Problem},
    session::{
        Outstanding,
        acceptance::ACCEPTED,
        mux::{MuxStream, StreamCut},
    },
};

/// Pseudo-field that names the protocol of an upgrade (RFC 8441 section 4).
pub(crate) const PROTOCOL: &str = ":protocol";
/// Pseudo-field of a request whose content has no declared length, with the value [`UNKNOWN`]. A request
/// with neither it nor `content-length` has no content, as in HTTP/1.1 (RFC 9112 section 6.3).
pub(crate) const CONTENT: &str = ":content";
/// The only value of [`CONTENT`].
pub(crate) const UNKNOWN: &str = "unknown";
/// Pseudo-field by which the tunnel client names its own failure.
pub(crate) const PROBLEM: &str = ":problem";
/// Pseudo-field with the failure's detail.
pub(crate) const DETAIL: &str = ":detail";

/// Pseudo-field of a request that one server node forwards to another: metadata of the sending node, one string.
pub(crate) const FORWARD: &str = ":forward";
/// Pseudo-field of such a request with more metadata, which the other node may ignore.
pub(crate) const FORWARD_HINTS: &str = ":forward-hints";
/// Pseudo-field of a failure that a server node names to another, with the value [`SERVER`].
pub(crate) const HOP: &str = ":hop";
/// The only value of [`HOP`].
pub(crate) const SERVER: &str = "server";
/// Pseudo-field of such a failure with the time after which a retry makes sense, in seconds.
pub(crate) const RETRY_AFTER: &str = ":retry-after";
/// Pseudo-field, without a value, of such a failure if the node has received nothing from the tunnel client for the exchange.
pub(crate) const UNHEARD: &str = ":unheard";

/// Why reading from an exchange failed.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The stream was reset or, with a reason, its session has ended.
    Cut(Option<CloseReason>),
    /// This end has reset the stream because too many received bytes were unread, see [`crate::memory`].
    MemoryLimit,
    /// The other end's message cannot be read.
    Malformed(DecodeError),
    /// The first byte of a new stream was not [`ACCEPTED`].
    NotAccepted,
    /// This end has reset the stream because its own message failed.
    Failed(Box<Problem>),
}

/// The stream of one exchange, with the state of both messages.
///
/// Shared by the sender and the receiver, and locked for single polls only. When the last of them drops it,
/// the stream becomes idle if both messages are complete, and is reset otherwise.
pub(crate) struct ExchangeStream {
    stream: Option<MuxStream>,
    decoder: Decoder,
    /// Whether the other end has accepted the stream.
    accepted: bool,
    /// Whether it carries an upgraded connection, and so no other exchange: an end that reads nothing more resets it, which
    /// the other end may learn after it has sent and received all.
    is_upgrade: bool,
    /// Whether this end's message is completely sent.
    sent: bool,
    /// Whether the other end's message is completely received.
    received: bool,
    /// Why this end's message failed, if the stream was reset for that.
    failure: Option<Box<Problem>>,
    /// Whether a body exists that reads the other end's message.
    has_reader: bool,
    /// The task to wake when that body is dropped.
    no_reader_waker: Option<Waker>,
    /// The count of the open exchange, at the tunnel server. The tunnel client counts for itself, as its
    /// stream outlives an exchange.
    outstanding: Option<Outstanding>,
}

pub(crate) type SharedStream = Arc<Mutex<ExchangeStream>>;

impl ExchangeStream {
    /// Reads the next event of the other end's message.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, ReadError>> {
        loop {
            if let Some(event) = self.buffered_event()? {
                return Poll::Ready(Ok(event));
            }
            let Some(stream) = &mut self.stream else {
                let failure = self.failure.clone();
                return Poll::Ready(Err(failure.map_or(ReadError::Cut(None), ReadError::Failed)));
            };
            match stream.poll_read(cx) {
                Poll::Ready(Some(bytes)) => self.take_in(bytes)?,
                Poll::Ready(None) if stream.is_shed() => {
                    return Poll::Ready(Err(ReadError::MemoryLimit));
                }
                Poll::Ready(None) => {
                    return Poll::Ready(Err(ReadError::Cut(stream.close_reason())));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The next event, if it was received already.
    fn buffered_event(&mut self) -> Result<Option<Event>, ReadError> {
        let event = self.decoder.next().map_err(ReadError::Malformed)?;
        if matches!(event, Some(Event::End(_))) {
            self.received = true;
        }
        Ok(event)
    }

    fn take_in(&mut self, mut bytes: Bytes) -> Result<(), ReadError> {
        if !self.accepted {
            if bytes.get_u8() != ACCEPTED {
                return Err(ReadError::NotAccepted);
            }
            self.accepted = true;
        }
        if !bytes.is_empty() {
            self.decoder.push(bytes);
        }
        Ok(())
    }

    /// Writes all of the buffer; pending while the send window or the session's output is full.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut impl Buf,
    ) -> Poll<Result<(), StreamCut>> {
        while out.has_remaining() {
            let Some(stream) = &mut self.stream else {
                return Poll::Ready(Err(StreamCut));
            };
            ready!(stream.poll_write(cx, out))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the other end has cancelled the exchange, or broken the protocol.
    fn poll_cancelled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(());
        };
        match (self.received, self.sent) {
            // The rest of its message is for the reader of the body.
            (false, _) => stream.poll_reset(cx),
            // Its message is complete, and this end's is not: another byte breaks the protocol, and the end of the
            // stream cancels the exchange.
            (true, false) if !self.decoder.is_between_messages() => Poll::Ready(()),
            (true, false) => stream.poll_read(cx).map(drop),
            // Both messages are complete: further bytes belong to the next exchange.
            (true, true) => stream.poll_reset(cx),
        }
    }

    /// Whether the exchange is open on a session that is silent.
    fn is_silent(&self) -> bool {
        let outstanding = self.outstanding.as_ref();
        outstanding.is_some_and(|outstanding| outstanding.session().is_silent())
    }

    /// Resets the stream because this end's message has failed.
    fn fail(&mut self, problem: Problem) {
        self.failure = Some(Box::new(problem));
        self.stream = None;
    }

    /// Whether both messages are complete and no byte was received after them.
    fn is_whole(&self) -> bool {
        self.sent && self.received && self.decoder.is_between_messages()
    }
}

impl Drop for ExchangeStream {
    fn drop(&mut self) {
        if !self.is_whole() {
            return;
        }
        match (self.stream.take(), &self.outstanding) {
            (Some(stream), _) if self.is_upgrade => stream.finish(),
            (Some(stream), Some(outstanding)) => outstanding.session().idle().lock().put(stream),
            // Dropping the stream resets it.
            _ => {}
        }
    }
}

/// Encodes the pseudo-fields of a problem.
fn encode_problem(out: &mut BytesMut, problem: &Problem) {
    use crate::bhttp::encode;
    encode::field(out, PROBLEM.as_bytes(), problem.reason().name().as_bytes());
    let detail = problem.wire_detail();
    if !detail.is_empty() {
        encode::field(out, DETAIL.as_bytes(), detail.as_bytes());
    }
    if problem.hop() == Hop::Server {
        encode::field(out, HOP.as_bytes(), SERVER.as_bytes());
        if let Some(after) = problem.retry_after_seconds() {
            encode::field(out, RETRY_AFTER.as_bytes(), after.to_string().as_bytes());
        }
        if problem.is_unheard() {
            encode::field(out, UNHEARD.as_bytes(), b"");
        }
    }
}
