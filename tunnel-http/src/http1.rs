//! The guard between the socket of an HTTP/1 client and hyper: only bytes that [`framing`] accepts reach hyper, and an idle
//! client does not keep its connection.
//!
//! ```text
//!   socket --->  Guard --->  hyper --->  service --> GuardHandle
//!          <---        <---        <---                  |
//!                 ^----------------- 103, upgraded, exchange begins and ends
//! ```
//!
//! In: bytes of a client. Out: the valid bytes, whole heads at a time; then, after a violation, the end of input when hyper
//! has finished its open exchanges. The refusal is written by the code that runs the connection, see
//! [`GuardHandle::refusal`].
//!
//! Its time-outs, in this order of precedence: for a complete head, for the next request, and for the next byte of a body
//! that hyper reads, until the response to its request has begun. Responses have no time-out.
//! It never changes a byte in either direction, and keeps at most one incomplete head. While an answer is written whose end is
//! that of the connection, a connection that is dropped is reset.
//!
//! hyper must run with `half_close(false)`, or a disconnect would not end an exchange. It needs no timer, and must accept at
//! least as many fields as [`HeadLimits`] allow.

mod chunked;
pub mod framing;
mod handle;
mod head;
mod syntax;
#[cfg(test)]
mod tests;
mod violation;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use self::framing::{Framing, HeadLimits, Phase, Scan};
pub use self::handle::{GuardHandle, InFlight, Refusal};
use self::handle::{Shared, Upgrade};
pub(crate) use self::syntax::host_length;
pub use self::violation::Violation;
use tunnel_ops::alarm::Alarm;

/// How much is read at once behind a head that is not whole. Small, since it is copied.
const READ_BYTES: usize = 4 * 1024;
/// How much a client may send behind its request for an upgrade before that is answered: no more
/// than hyper takes at once, so that it is all with hyper or all here when hyper gives the socket back.
const EARLY_BYTES: usize = 8 * 1024;
/// What hyper writes by itself when the body of a request that expects it is read: not yet an answer, so that other
/// informational heads may follow.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection that can be made to end by a reset.
pub trait ResetWhenDropped {
    /// Has the connection reset when it is dropped, also by the end of the process, so that its peer sees an error and no
    /// orderly end; or not any more.
    fn reset_when_dropped(&self, is_reset: bool);
}

/// A head and content up to this length together are written as one piece.
const JOINED_BYTES: usize = 1024;

/// What a connection may take, and how long.
#[derive(Clone, Copy, Debug)]
pub struct GuardConfig {
    /// Bounds of a request's head.
    pub limits: HeadLimits,
    /// From the first byte of a head, or from the start of the connection, to the end of the head.
    pub head_timeout: Duration,
    /// From the end of an answer to the first byte of the next request.
    pub keep_alive_timeout: Duration,
    /// Between two bytes of a body whose request is not being answered.
    pub body_idle_timeout: Duration,
    /// How long an exchange outlives the end of its client's input: a client that has sent all its
    /// requests, and says so, still gets the answers that are quick.
    pub hang_up_grace: Duration,
}

/// A socket whose readers see only requests that are in order. See the [module](self).
pub struct Guard<IO> {
    io: IO,
    config: GuardConfig,
    framing: Framing,
    shared: Arc<Shared>,
    /// What came and was not handed on: first `passable` bytes that may be, then the rest.
    buffered: BytesMut,
    passable: usize,
    /// `framing` has not scanned `buffered` as it is.
    is_buffer_new: bool,
    /// At least one head was handed on.
    is_started: bool,
    input: Input,
    alarm: Alarm,
    /// What is waited for, and until when.
    due: Option<(Wait, Instant)>,
    /// Informational heads that are being written.
    informational: BytesMut,
    /// hyper wrote something since its last complete flush.
    is_unflushed: bool,
    /// The reader is to be woken once nothing is open and all is written.
    waits_for_quiet: bool,
}

/// Whether more can come from the client.
#[derive(Clone, Copy, Debug)]
enum Input {
    Open,
    /// The client will send no more; hyper does not know yet.
    HungUp,
    /// A head is refused; hyper does not know yet.
    Refused(Refusal),
    /// hyper was given the end of the input.
    Ended,
    /// hyper was given an error, since the body breaks a rule.
    BrokenBody(Violation),
    /// hyper was given an error, since the body does not come.
    StalledBody,
}

/// What a reader waits for, where that has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Head,
    NextRequest,
    Body,
    HangUp,
}

impl<IO> fmt::Debug for Guard<IO> {
    /// Without the buffered bytes: heads have credentials in them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("phase", &self.framing.phase())
            .field("input", &self.input)
            .field("buffered", &self.buffered.len())
            .finish_non_exhaustive()
    }
}

impl<IO> Guard<IO> {
    /// Guards `io`, from which `first_bytes` were read already.
    pub fn new(io: IO, first_bytes: Bytes, config: GuardConfig) -> (Self, GuardHandle) {
        let (handle, shared) = GuardHandle::new();
        let guard = Self {
            io,
            config,
            framing: Framing::new(config.limits),
            shared,
            is_buffer_new: !first_bytes.is_empty(),
            buffered: BytesMut::from(first_bytes),
            passable: 0,
            is_started: false,
            input: Input::Open,
            alarm: Alarm::default(),
            due: Some((Wait::Head, Instant::now() + config.head_timeout)),
            informational: BytesMut::new(),
            is_unflushed: false,
            waits_for_quiet: false,
        };
        (guard, handle)
    }

    /// The socket, and what was read from it and not handed on.
    pub fn into_inner(self) -> (IO, Bytes) {
        (self.io, self.buffered.freeze())
    }

    /// Whether hyper would lose something if its input ended now.
    fn is_busy(&self) -> bool {
        self.is_unflushed || self.shared.open() > 0
    }

    /// Takes note of what `framing` found in new bytes.
    fn note(&mut self, scan: Scan) {
        if scan.heads > 0 {
            self.is_started = true;
            self.shared
                .passed_on(scan.heads, self.framing.phase() == Phase::Upgrade);
        }
        // The time for a head does not start anew with each of its bytes, all others do.
        if scan.pass > 0 || !matches!(self.due, Some((Wait::Head, _))) {
            self.due = None;
        }
        if let Some(violation) = scan.violation {
            self.input = match self.framing.phase() {
                Phase::Body => Input::BrokenBody(violation),
                _ => Input::Refused(Refusal::Violation(violation)),
            };
        }
    }

    fn scan_buffer(&mut self) {
        self.is_buffer_new = false;
        let scan = self.framing.scan(&self.buffered);
        self.passable = scan.pass;
        self.note(scan);
    }

    /// Moves what may be handed on from `buffered` to `buf`.
    fn hand_on(&mut self, buf: &mut ReadBuf<'_>) {
        let bytes = self.passable.min(buf.remaining());
        buf.put_slice(&self.buffered[..bytes]);
        self.buffered.advance(bytes);
        self.passable -= bytes;
        if self.buffered.is_empty() {
            // Mostly nothing is buffered: a connection at rest owns no memory for it.
            self.buffered = BytesMut::new();
        }
    }

    /// Goes on by whether the requested upgrade was granted; `false` while that is not decided.
    fn settle_upgrade(&mut self) -> bool {
        match self.shared.upgrade() {
            Upgrade::Granted => self.framing.upgraded(),
            Upgrade::Undecided if self.shared.open() > 0 => return false,
            Upgrade::NotAsked | Upgrade::Undecided | Upgrade::Refused => {
                self.framing.not_upgraded();
            }
        }
        self.is_buffer_new = true;
        true
    }

    /// Whether a part of a head has come: more than the empty line that may stand in front of one.
    fn has_head_begun(&self) -> bool {
        !matches!(&self.buffered[..], b"" | b"\r" | b"\r\n")
    }

    /// What the reader waits for while nothing comes, where that has a limit.
    fn wait(&self) -> Option<Wait> {
        match self.framing.phase() {
            // The two directions are independent streams from then on, and either may rest.
            Phase::Body if self.shared.is_answering() => None,
            Phase::Body => Some(Wait::Body),
            Phase::Head if self.has_head_begun() || !self.is_started => Some(Wait::Head),
            Phase::Head if self.shared.open() == 0 => Some(Wait::NextRequest),
            Phase::Head | Phase::Upgrade | Phase::Raw => None,
        }
    }

    /// Ready when `wait` has taken too long.
    fn poll_due(&mut self, cx: &mut Context<'_>, wait: Wait) -> Poll<()> {
        let due = match self.due {
            Some((kind, due)) if kind == wait => due,
            _ => {
                let limit = match wait {
                    Wait::Head => self.config.head_timeout,
                    Wait::NextRequest => self.config.keep_alive_timeout,
                    Wait::Body => self.config.body_idle_timeout,
                    Wait::HangUp => self.config.hang_up_grace,
                };
                let due = Instant::now() + limit;
                self.due = Some((wait, due));
                due
            }
        };
        self.alarm.poll(cx, due)
    }

    /// Waits with the client; ready when it took too long and the input has changed for that.
    fn poll_time_limits(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(wait) = self.wait() else {
            // A later wait has its whole time.
            self.due = None;
            return Poll::Pending;
        };
        ready!(self.poll_due(cx, wait));
        self.input = match wait {
            // A client that connected ahead of need gets no 408.
            Wait::Head if !self.has_head_begun() => Input::Ended,
            Wait::Head => Input::Refused(Refusal::HeadTimeout),
            Wait::Body => Input::StalledBody,
            Wait::NextRequest | Wait::HangUp => Input::Ended,
        };
        Poll::Ready(())
    }

    /// Ready when hyper's input may end: when nothing is open and all is written, or when what is
    /// still to be written does not move; in the case of a hang-up also when the grace is over.
    fn poll_quiet(&mut self, cx: &mut Context<'_>, is_hang_up: bool) -> Poll<()> {
        self.shared.park(cx, true);
        self.waits_for_quiet = self.is_busy();
        if !self.waits_for_quiet {
            return Poll::Ready(());
        }
        if is_hang_up {
            self.poll_due(cx, Wait::HangUp)
        } else if self.shared.open() == 0 {
            self.poll_due(cx, Wait::NextRequest)
        } else {
            Poll::Pending
        }
    }

    /// The end or the error that hyper gets when nothing more can come, once it may have it.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.input {
            Input::Open | Input::Ended => {}
            // The rest of this body will never come, and the exchange must not take it for whole.
            Input::HungUp if self.framing.phase() == Phase::Body => {}
            Input::HungUp => ready!(self.poll_quiet(cx, true)),
            Input::Refused(refusal) => {
                ready!(self.poll_quiet(cx, false));
                // In the middle of an answer there is no place for another one.
                if !self.is_busy() {
                    let is_head_request = self.framing.is_head_request();
                    self.shared.refuse(refusal, is_head_request);
                }
            }
            Input::BrokenBody(violation) => {
                self.shared.refuse_body(violation);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
            }
            Input::StalledBody => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
        self.input = Input::Ended;
        Poll::Ready(Ok(()))
    }

    /// Wakes the reader if hyper's write, or its attempt, has brought the connection to rest. hyper does not read
    /// again only because an answer is complete, so this cannot be left to reading.
    fn after_output(&mut self, cx: &mut Context<'_>, has_written: bool) {
        if self.shared.open() > 0 {
            return;
        }
        // A client that reads slowly is not one that does not read.
        if has_written && matches!(self.due, Some((Wait::NextRequest | Wait::HangUp, _))) {
            self.due = None;
        }
        let is_quiet = self.waits_for_quiet && !self.is_unflushed;
        let wait = match (self.input, self.due) {
            (Input::Open, None) => self.wait(),
            _ => None,
        };
        let is_late = match wait {
            Some(wait @ (Wait::NextRequest | Wait::Body)) => self.poll_due(cx, wait).is_ready(),
            _ => false,
        };
        if is_quiet || is_late {
            self.waits_for_quiet = false;
            cx.waker().wake_by_ref();
        }
    }
}

impl<IO: AsyncRead + Unpin> Guard<IO> {
    /// Reads from the socket, into `buf` if what comes may be handed on as it comes. Ready with
    /// whether something was handed on; if not, something else has changed.
    fn poll_socket(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<bool>> {
        if !self.buffered.is_empty() || self.framing.phase() == Phase::Upgrade {
            return self.poll_socket_held(cx).map_ok(|()| false);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let fresh = &buf.filled()[before..];
        if fresh.is_empty() {
            self.input = Input::HungUp;
            return Poll::Ready(Ok(false));
        }
        let scan = self.framing.scan(fresh);
        if scan.violation.is_none() {
            self.buffered.extend_from_slice(&fresh[scan.pass..]);
        }
        buf.set_filled(before + scan.pass);
        self.note(scan);
        Poll::Ready(Ok(scan.pass > 0))
    }

    /// Reads from the socket behind what is buffered.
    fn poll_socket_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let room = match self.framing.phase() {
            Phase::Upgrade => EARLY_BYTES.saturating_sub(self.buffered.len()),
            _ => READ_BYTES,
        };
        if room == 0 {
            return Poll::Pending;
        }
        self.buffered.reserve(room.min(READ_BYTES));
        let mut end = (&mut self.buffered).limit(room);
        // The future keeps nothing between two polls, so it may be made anew for each.
        if ready!(pin!(self.io.read_buf(&mut end)).poll(cx))? == 0 {
            self.input = Input::HungUp;
        } else {
            self.is_buffer_new = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: ResetWhenDropped> Guard<IO> {
    /// Starts a write of hyper's. Informational heads that wait are written before it.
    fn begin_write(&mut self, is_answer: bool) {
        if self.is_unflushed {
            return;
        }
        self.is_unflushed = true;
        let begun = self.shared.begin_write(is_answer);
        if let Some(heads) = begun.informational {
            self.informational.extend_from_slice(&heads);
        }
        if begun.is_close_delimited {
            self.io.reset_when_dropped(true);
        }
    }
}

impl<IO: AsyncWrite + Unpin> Guard<IO> {
    /// Sends informational heads while hyper only reads, since it waits for the service.
    fn send_informational(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.framing.phase() == Phase::Raw || self.shared.open() == 0 {
            return Ok(());
        }
        // First, so that a head that is offered during this call wakes the task.
        self.shared.park(cx, self.framing.phase() == Phase::Upgrade);
        self.take_informational();
        if !self.informational.is_empty() && self.poll_informational(cx)?.is_ready() {
            // If this does not end at once, hyper's next flush ends it.
            let _ = Pin::new(&mut self.io).poll_flush(cx)?;
        }
        Ok(())
    }

    fn take_informational(&mut self) {
        if !self.is_unflushed
            && let Some(heads) = self.shared.take_informational()
        {
            self.informational.extend_from_slice(&heads);
        }
    }

    /// Writes the informational heads that were taken. Ready when none is left.
    fn poll_informational(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.informational.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.informational))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.informational.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guard<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.is_buffer_new {
                this.scan_buffer();
            }
            if this.passable > 0 {
                this.hand_on(buf);
                return Poll::Ready(Ok(()));
            }
            if !matches!(this.input, Input::Open) {
                return this.poll_end(cx);
            }
            if this.framing.phase() == Phase::Upgrade {
                this.shared.park(cx, true);
                if this.settle_upgrade() {
                    continue;
                }
            }
            match this.poll_socket(cx, buf)? {
                Poll::Ready(true) => return Poll::Ready(Ok(())),
                Poll::Ready(false) => {}
                Poll::Pending => {
                    this.send_informational(cx)?;
                    ready!(this.poll_time_limits(cx));
                }
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + ResetWhenDropped + Unpin> AsyncWrite for Guard<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.begin_write(buf != CONTINUE);
        ready!(this.poll_informational(cx))?;
        let written = Pin::new(&mut this.io).poll_write(cx, buf);
        this.after_output(cx, written.is_ready());
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.begin_write(!matches!(bufs, [only] if &**only == CONTINUE));
        ready!(this.poll_informational(cx))?;
        let io = Pin::new(&mut this.io);
        let mut space = [0; JOINED_BYTES];
        let written = match joined(bufs, &mut space) {
            Some(bytes) => io.poll_write(cx, bytes),
            None => io.poll_write_vectored(cx, bufs),
        };
        this.after_output(cx, written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.take_informational();
        ready!(this.poll_informational(cx))?;
        let flushed = Pin::new(&mut this.io).poll_flush(cx);
        if flushed.is_ready() && std::mem::take(&mut this.is_unflushed) {
            this.shared.flushed();
        }
        this.after_output(cx, false);
        flushed
    }

    /// Ends the output. After a refusal this only flushes, since the response to it is written later.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        let this = self.get_mut();
        if this.shared.is_refused() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

/// Short pieces as one: a vectored write costs more than the copy.
fn joined<'a>(bufs: &'a [io::IoSlice<'_>], space: &'a mut [u8; JOINED_BYTES]) -> Option<&'a [u8]> {
    if let [only] = bufs {
        return Some(only);
    }
    let mut used = 0;
    for piece in bufs {
        space
            .get_mut(used..used + piece.len())?
            .copy_from_slice(piece);
        used += piece.len();
    }
    Some(&space[..used])
}
