//! One exchange: an HTTP request and its response over one stream of a session.
//!
//! ```text
//!             tunnel server                                   tunnel client
//!   opening ─▶ request head ─▶ content… ─▶ end      head ─▶ service ─▶ response
//!      │            (sending and receiving go on side by side)             │
//!      ▼                                                                   ▼
//!   waiting ◀─ accepted ◀─ informational… ◀─ head ◀─ content… ◀─ end ◀─────┘
//! ```
//!
//! Each direction is one binary HTTP message that says itself where it ends, so a stream whose two
//! messages ended whole rests and carries the next exchange. After anything else it is reset, which
//! the other end sees as a cut, never as an end. An upgraded connection is an exchange like any
//! other: its contents are the bytes of the two directions, and the end of a content is the
//! half-close of that direction.

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
    accept::{AsProblem, Informational, serve},
    body::{BodyError, RecvBody},
    head::{EncodedHead, HeadEncoder},
    open::{ExchangeError, Opened, exchange, open},
    upgrade::{Protocol, UnknownProtocol, copy_body, read_body},
};
use crate::{
    bhttp::{DecodeError, Decoder, Event},
    close::CloseReason,
    limits,
    problem::Problem,
    session::{
        Outstanding,
        mux::{Cut, MuxStream},
    },
};

/// First byte of the tunnel client on a new stream: the exchange is in its hands.
///
/// It also makes the multiplexer acknowledge the stream, which allows only 256 that are not.
pub(crate) const ACCEPTED: u8 = 1;

/// Pseudo-field that names the protocol of an upgrade (RFC 8441 section 4).
pub(crate) const PROTOCOL: &str = ":protocol";
/// Pseudo-field of a request with content whose length is not known: `content: unknown`. One that has
/// neither it nor `content-length` has no content, as in HTTP/1.1 (RFC 9112 section 6.3).
pub(crate) const CONTENT: &str = ":content";
/// What stands in it.
pub(crate) const UNKNOWN: &str = "unknown";
/// Pseudo-field by which the tunnel client names its own failure.
pub(crate) const PROBLEM: &str = ":problem";
/// Pseudo-field with the failure's detail.
pub(crate) const DETAIL: &str = ":detail";

/// Why nothing more can be read from an exchange.
#[derive(Debug)]
pub(crate) enum WireError {
    /// The stream was reset or, with a reason, its session has ended.
    Cut(Option<CloseReason>),
    /// This end has reset the stream: nobody read what came, and too much is held.
    Shed,
    /// The other end's message cannot be read.
    Malformed(DecodeError),
    /// The first byte of a new stream was not [`ACCEPTED`].
    NotAccepted,
    /// This end has reset the stream: its own message broke off.
    Failed(Box<Problem>),
}

/// The stream of one exchange with what is known of both its messages.
///
/// Shared by the one who sends and the one who receives; locked for single polls only. When the
/// last of them lets go, the stream rests if both messages were whole, and is reset if not.
pub(crate) struct Wire {
    stream: Option<MuxStream>,
    decoder: Decoder,
    /// The other end has the exchange in its hands.
    accepted: bool,
    /// Our message is out, to its end.
    sent: bool,
    /// The other end's message is in, to its end.
    received: bool,
    /// Why our message broke off, if that is why the stream was reset.
    failure: Option<Box<Problem>>,
    /// Somebody holds the other end's message, to read it.
    is_read: bool,
    /// To be woken when nobody does any more.
    unread: Option<Waker>,
    /// The exchange's place among those that are open. The tunnel client has none between two.
    outstanding: Option<Outstanding>,
}

pub(crate) type SharedWire = Arc<Mutex<Wire>>;

impl Wire {
    /// The next part of the other end's message.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, WireError>> {
        loop {
            if let Some(event) = self.buffered_event()? {
                return Poll::Ready(Ok(event));
            }
            let Some(stream) = &mut self.stream else {
                let failure = self.failure.clone();
                return Poll::Ready(Err(failure.map_or(WireError::Cut(None), WireError::Failed)));
            };
            match stream.poll_read(cx) {
                Poll::Ready(Some(bytes)) => self.take_in(bytes)?,
                Poll::Ready(None) if stream.is_shed() => {
                    return Poll::Ready(Err(WireError::Shed));
                }
                Poll::Ready(None) => {
                    return Poll::Ready(Err(WireError::Cut(stream.close_reason())));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The next part, if it has arrived already.
    fn buffered_event(&mut self) -> Result<Option<Event>, WireError> {
        let event = self.decoder.next().map_err(WireError::Malformed)?;
        if matches!(event, Some(Event::End(_))) {
            self.received = true;
        }
        Ok(event)
    }

    fn take_in(&mut self, mut bytes: Bytes) -> Result<(), WireError> {
        if !self.accepted {
            if bytes.get_u8() != ACCEPTED {
                return Err(WireError::NotAccepted);
            }
            self.accepted = true;
        }
        if !bytes.is_empty() {
            self.decoder.push(bytes);
        }
        Ok(())
    }

    /// Writes all of the buffer; pending while the other end's window is full.
    fn poll_write(&mut self, cx: &mut Context<'_>, out: &mut impl Buf) -> Poll<Result<(), Cut>> {
        while out.has_remaining() {
            let Some(stream) = &mut self.stream else {
                return Poll::Ready(Err(Cut));
            };
            ready!(stream.poll_write(cx, out))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the other end has given the exchange up, or broken the protocol.
    fn poll_cancelled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(());
        };
        match (self.received, self.sent) {
            // What its message still brings is for whoever reads it.
            (false, _) => stream.poll_reset(cx),
            // Its message is in: any byte more is a breach, and the end of the stream a cancellation.
            (true, false) => stream.poll_read(cx).map(drop),
            // With both messages whole, what comes belongs to the next exchange.
            (true, true) => stream.poll_reset(cx),
        }
    }

    /// Whether the exchange is open on a session that is suspect.
    fn is_suspect(&self) -> bool {
        let outstanding = self.outstanding.as_ref();
        outstanding.is_some_and(|outstanding| outstanding.session().is_suspect())
    }

    /// Resets the stream, should it still be open, because our message broke off.
    fn fail(&mut self, problem: Problem) {
        self.failure = Some(Box::new(problem));
        self.stream = None;
    }

    /// Whether both messages are whole and not one byte came after them.
    fn is_whole(&self) -> bool {
        self.sent && self.received && self.decoder.is_between_messages()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if !self.is_whole() {
            return;
        }
        if let (Some(stream), Some(outstanding)) = (self.stream.take(), &self.outstanding) {
            outstanding.session().idle().lock().put(stream);
        }
    }
}

/// Streams at rest, each ready to carry the next exchange.
#[derive(Default)]
pub(crate) struct Idle {
    /// The most recently used last.
    streams: Vec<MuxStream>,
    /// How many at the front were not used since the last trim.
    untouched: usize,
}

impl Idle {
    /// A stream to use, the most recently used one. One that ended at rest, or on which something
    /// came that nobody asked for, is dropped.
    fn take(&mut self) -> Option<MuxStream> {
        let taken = loop {
            let Some(stream) = self.streams.pop() else {
                break None;
            };
            if stream.is_quiet() {
                break Some(stream);
            }
        };
        self.untouched = self.untouched.min(self.streams.len());
        taken
    }

    /// Has a stream rest that was accepted, and on which nothing is open.
    pub(crate) fn put(&mut self, stream: MuxStream) {
        if self.streams.len() < limits::IDLE_STREAMS && !stream.is_reset() {
            self.streams.push(stream);
        } else {
            stream.finish();
        }
    }

    /// Ends the streams that nothing needed since the last call.
    pub(crate) fn trim(&mut self) {
        for stream in self.streams.drain(..self.untouched) {
            stream.finish();
        }
        self.untouched = self.streams.len();
    }

    /// Drops all streams; for a session that has ended.
    pub(crate) fn clear(&mut self) {
        self.streams = Vec::new();
        self.untouched = 0;
    }
}

/// Adds the pseudo-fields of a problem.
fn encode_problem(out: &mut BytesMut, problem: &Problem) {
    use crate::bhttp::encode;
    encode::field(out, PROBLEM.as_bytes(), problem.reason().name().as_bytes());
    let detail = problem.wire_detail();
    if !detail.is_empty() {
        encode::field(out, DETAIL.as_bytes(), detail.as_bytes());
    }
}
