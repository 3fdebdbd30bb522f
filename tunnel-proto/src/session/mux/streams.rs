//! The table of a session's streams, and the effect of each frame on it.
//!
//! ```text
//!   received bytes ─▶ frame ─▶ Streams ─▶ unread bytes, windows, wakers ─▶ streams' readers
//!   streams' writers ─▶ Streams ─▶ output ─▶ bytes to send
//! ```
//!
//! In: received bytes, and the operations of the streams' users. Out: bytes to send, and the wakers of
//! tasks for which something has changed. Does no I/O; reads the clock when streams are opened and windows
//! updated. The caller holds the lock around it, and wakes the tasks only after releasing the lock.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes};
use nohash_hasher::BuildNoHashHasher;
use tokio::time::Instant;

use super::{
    MuxError, StreamCut,
    frame::{ACK, FIN, FrameKind, FramePart, Frames, HEADER_BYTES, Header, RST, SYN},
    output::Output,
    stream::{Stream, WriteTurn},
};
use crate::{
    close::CloseReason,
    limits,
    memory::{self, MemoryAccount},
    session::Side,
};

/// Writes up to this length do not wait for their turn, so that large messages do not delay a small one.
const SHORT_BYTES: usize = 2 * 1024;

/// Least memory that a stream has to hold to be reset for it.
const SHED_BYTES: usize = 4 * 1024;

/// Time without a read, although bytes are unread, after which the reader of a stream counts as stalled.
pub(super) const STALLED_AFTER: Duration = Duration::from_secs(1);

/// All streams of a session.
pub(super) struct Streams {
    side: Side,
    table: HashMap<u32, Stream, BuildNoHashHasher<u32>>,
    /// The id of the next stream that this end opens.
    next: u32,
    /// Streams opened by this end that the other end has not acknowledged.
    unacknowledged: usize,
    frames: Frames,
    output: Output,
    /// The queue of streams that wait for the WebSocket. May contain ids of streams that have ended.
    waiting: VecDeque<u32>,
    /// Streams that may write a frame and have not yet.
    granted: usize,
    /// Bytes by which the receive windows may still grow.
    growth_left: usize,
    round_trip: Duration,
    /// Bytes of memory that unread bytes occupy, and how many of them were reported to the account.
    held: usize,
    reported: usize,
    /// Bytes that may still arrive for streams that have ended at this end: the windows that the other end
    /// had when they ended.
    stray_bytes: usize,
    /// Why the session has ended.
    ended: Option<CloseReason>,
    /// Whether the driver was notified that there is something to send.
    pub(super) is_driver_notified: bool,
    /// Ids of streams that the other end has opened, for the caller to take.
    pub(super) accepted: Vec<u32>,
    /// Wakers for the caller to wake once it has released the lock.
    pub(super) woken: Vec<Waker>,
}

impl Streams {
    pub(super) fn new(side: Side) -> Self {
        Self {
            side,
            table: HashMap::default(),
            next: 1,
            unacknowledged: 0,
            frames: Frames::default(),
            output: Output::default(),
            waiting: VecDeque::new(),
            granted: 0,
            growth_left: limits::WINDOW_GROWTH_BYTES,
            round_trip: Duration::ZERO,
            held: 0,
            reported: 0,
            stray_bytes: 0,
            ended: None,
            is_driver_notified: false,
            accepted: Vec::new(),
            woken: Vec::new(),
        }
    }

    /// Opens a stream; `None` while too many are unacknowledged. The other end learns of it with the first
    /// write or [`Self::announce`].
    pub(super) fn open(&mut self) -> Result<Option<u32>, MuxError> {
        if self.ended.is_some() {
            return Err(MuxError::Ended);
        }
        if self.unacknowledged >= limits::STREAMS_UNACKNOWLEDGED {
            return Ok(None);
        }
        let id = self.next;
        let used_up = || MuxError::Protocol("all stream ids are used up");
        self.next = id.checked_add(2).ok_or_else(used_up)?;
        self.unacknowledged += 1;
        self.table.insert(id, Stream::new(SYN));
        Ok(Some(id))
    }

    /// Opens the stream at the other end without writing to it: in yamux a window update may be a stream's
    /// first frame.
    pub(super) fn announce(&mut self, id: u32) {
        if let Some(stream) = self.table.get_mut(&id)
            && stream.first == SYN
        {
            let header = stream.header(FrameKind::WindowUpdate, 0, id, 0);
            self.output.push(header);
        }
    }

    /// When the oldest announced stream was opened on which the other end has sent nothing. Iterates over
    /// all streams, so not to be called for each exchange.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        let announced = self.table.values().filter(|stream| stream.first != SYN);
        announced.filter_map(|stream| stream.unanswered_since).min()
    }

    /// Takes the wakers of all tasks that wait to read.
    pub(super) fn readers(&mut self) -> Vec<Waker> {
        let streams = self.table.values_mut();
        streams
            .filter_map(|stream| stream.read_waker.take())
            .collect()
    }

    /// Processes received bytes.
    pub(super) fn receive(&mut self, mut bytes: Bytes) -> Result<(), MuxError> {
        if self.ended.is_some() {
            // The other end may send until it receives the close frame.
            return Ok(());
        }
        while let Some(part) = self.frames.next(&mut bytes)? {
            match part {
                FramePart::Header(header) => self.on_header(header)?,
                FramePart::Body(header, piece, is_last) => {
                    self.on_body(header.stream, piece);
                    if is_last && header.flags & FIN != 0 {
                        self.on_end(header.stream);
                    }
                }
            }
        }
        Ok(())
    }

    fn on_header(&mut self, header: Header) -> Result<(), MuxError> {
        match header.kind {
            FrameKind::Ping => return self.on_ping(header),
            FrameKind::GoAway => return Err(MuxError::Ended),
            FrameKind::Data | FrameKind::WindowUpdate => {}
        }
        if header.flags & SYN != 0 {
            self.accept(header.stream)?;
        }
        let Some(stream) = self.table.get_mut(&header.stream) else {
            // The stream has ended at this end, and the other end may not know it yet.
            return self.on_stray(header);
        };
        if header.flags & ACK != 0 && !stream.is_acknowledged {
            stream.is_acknowledged = true;
            self.unacknowledged -= 1;
        }
        let value = header.value as usize;
        if header.kind == FrameKind::Data && value > 0 {
            if stream.has_ended && !stream.is_shed {
                return Err(MuxError::Protocol("data after a stream's end"));
            }
            if !stream.receive.allows(value) {
                return Err(MuxError::Protocol("more data than the window allows"));
            }
        }
        if header.flags & RST != 0 {
            stream.reset(&mut self.woken);
            // Its user has no use for the granted turn any more.
            if std::mem::replace(&mut stream.turn, WriteTurn::None) == WriteTurn::Granted {
                self.granted -= 1;
            }
            return Ok(());
        }
        if header.kind == FrameKind::WindowUpdate {
            stream.send += value;
            if stream.send > u32::MAX as usize {
                return Err(MuxError::Protocol("a send window that overflows"));
            }
            self.woken.extend(stream.write_waker.take());
        }
        if header.flags & FIN != 0 && (header.kind == FrameKind::WindowUpdate || value == 0) {
            self.on_end(header.stream);
        }
        Ok(())
    }

    /// Handles a frame for a stream that does not exist: what its window allowed when it ended may still
    /// arrive.
    fn on_stray(&mut self, header: Header) -> Result<(), MuxError> {
        if header.kind == FrameKind::Data {
            let left = self.stray_bytes.checked_sub(header.value as usize);
            self.stray_bytes =
                left.ok_or(MuxError::Protocol("data for a stream that does not exist"))?;
        }
        Ok(())
    }

    /// Answers a ping, unless the output is full because the other end does not read.
    fn on_ping(&mut self, header: Header) -> Result<(), MuxError> {
        if header.flags & SYN == 0 || header.stream != 0 {
            return Err(MuxError::Protocol("an answer to a ping that was not sent"));
        }
        if self.output.len() < 2 * limits::OUTPUT_BYTES {
            self.output.push(Header {
                flags: ACK,
                ..header
            });
        }
        Ok(())
    }

    /// Accepts a stream that the other end opens. Only the tunnel server opens streams, with the odd ids of
    /// a yamux client.
    fn accept(&mut self, id: u32) -> Result<(), MuxError> {
        if self.side == Side::Server {
            return Err(MuxError::Protocol("the tunnel client opened a stream"));
        }
        if id.is_multiple_of(2) {
            return Err(MuxError::Protocol("a new stream with an even id"));
        }
        if self.table.len() >= limits::STREAMS {
            return self.refuse(id);
        }
        let Entry::Vacant(entry) = self.table.entry(id) else {
            return Err(MuxError::Protocol("a new stream with a used id"));
        };
        entry.insert(Stream::new(ACK));
        self.accepted.push(id);
        Ok(())
    }

    /// Resets a stream beyond the limit. A correct peer can exceed it, since streams that it has reset
    /// count until their users drop them.
    fn refuse(&mut self, stream: u32) -> Result<(), MuxError> {
        if self.output.len() >= 2 * limits::OUTPUT_BYTES {
            return Err(MuxError::Protocol("more streams than allowed"));
        }
        self.output.push(Header {
            kind: FrameKind::Data,
            flags: RST,
            stream,
            value: 0,
        });
        self.stray_bytes = self.stray_bytes.saturating_add(limits::STREAM_WINDOW_BYTES);
        Ok(())
    }

    /// Stores a piece of a body, unless the stream has ended, or did not exist yet when the frame began.
    fn on_body(&mut self, id: u32, piece: Bytes) {
        if let Some(stream) = self.table.get_mut(&id)
            && (!stream.has_ended || stream.is_shed)
            && stream.receive.allows(piece.len())
        {
            stream.receive.take(piece.len());
            if stream.is_shed {
                return;
            }
            if stream.unread.is_empty() {
                stream.unread_since = Some(Instant::now());
            }
            let before = stream.unread.held();
            stream.unread.push(piece);
            self.held += stream.unread.held() - before;
            stream.unanswered_since = None;
            self.woken.extend(stream.read_waker.take());
        }
    }

    fn on_end(&mut self, id: u32) {
        if let Some(stream) = self.table.get_mut(&id) {
            stream.has_ended = true;
            self.woken.extend(stream.read_waker.take());
        }
    }

    /// Reads the next bytes of a stream; `None` when no more can come.
    pub(super) fn poll_read(
        &mut self,
        id: u32,
        cx: &Context<'_>,
        account: Option<&MemoryAccount>,
    ) -> Poll<Option<Bytes>> {
        let Some(stream) = self.table.get_mut(&id) else {
            return Poll::Ready(None);
        };
        let before = stream.unread.held();
        if let Some(chunk) = stream.unread.pop() {
            self.held -= before - stream.unread.held();
            stream.unread_since = (!stream.unread.is_empty()).then(Instant::now);
            if !stream.has_ended {
                let is_scarce = || account.is_some_and(MemoryAccount::is_scarce);
                let (unread, left) = (stream.unread.len(), &mut self.growth_left);
                let receive = &mut stream.receive;
                let more = receive.update(unread, self.round_trip, left, is_scarce);
                if more > 0 {
                    let header = stream.header(FrameKind::WindowUpdate, 0, id, more);
                    self.output.push(header);
                }
            }
            return Poll::Ready(Some(chunk));
        }
        if stream.has_ended {
            return Poll::Ready(None);
        }
        set_waker(&mut stream.read_waker, cx, &mut self.woken);
        Poll::Pending
    }

    /// Whether the stream is open and nothing is unread on it.
    pub(super) fn is_quiet(&self, id: u32) -> bool {
        let stream = self.table.get(&id);
        stream.is_some_and(|stream| stream.unread.is_empty() && !stream.has_ended)
    }

    /// Whether the stream was reset or the session has ended.
    pub(super) fn is_reset(&self, id: u32) -> bool {
        self.table.get(&id).is_none_or(|stream| stream.is_reset)
    }

    /// Ready when [`Self::is_reset`], whatever is still unread.
    pub(super) fn poll_reset(&mut self, id: u32, cx: &Context<'_>) -> Poll<()> {
        match self.table.get_mut(&id) {
            Some(stream) if !stream.is_reset => {
                set_waker(&mut stream.reset_waker, cx, &mut self.woken);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Queues some of the bytes as one frame.
    pub(super) fn poll_write(
        &mut self,
        id: u32,
        cx: &Context<'_>,
        bytes: &mut impl Buf,
    ) -> Poll<Result<(), StreamCut>> {
        let Some(stream) = self.table.get_mut(&id).filter(|stream| !stream.is_reset) else {
            return Poll::Ready(Err(StreamCut));
        };
        let wanted = bytes.remaining();
        if stream.send == 0 {
            set_waker(&mut stream.write_waker, cx, &mut self.woken);
            return Poll::Pending;
        }
        let is_free = self.output.len() < limits::OUTPUT_BYTES && self.waiting.is_empty();
        let is_short = wanted <= SHORT_BYTES && self.output.len() < 2 * limits::OUTPUT_BYTES;
        match stream.turn {
            WriteTurn::Granted => {
                stream.turn = WriteTurn::None;
                self.granted -= 1;
            }
            _ if is_free || is_short => stream.turn = WriteTurn::None,
            turn => {
                set_waker(&mut stream.write_waker, cx, &mut self.woken);
                if turn == WriteTurn::None {
                    stream.turn = WriteTurn::Waits;
                    self.waiting.push_back(id);
                }
                return Poll::Pending;
            }
        }
        let length = wanted.min(stream.send).min(limits::FRAME_BYTES);
        stream.send -= length;
        let header = stream.header(FrameKind::Data, 0, id, length);
        self.output.push_body(header, bytes);
        Poll::Ready(Ok(()))
    }

    /// The next bytes for the WebSocket. Grants waiting writers their turns as output is taken.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let bytes = self.output.pop();
        // At least one, since short writes may keep the output above the level below which turns are
        // granted.
        while self.granted == 0
            || self.output.len() + self.granted * limits::FRAME_BYTES < limits::OUTPUT_BYTES
        {
            let Some(id) = self.waiting.pop_front() else {
                break;
            };
            if let Some(stream) = self.table.get_mut(&id)
                && stream.turn == WriteTurn::Waits
            {
                stream.turn = WriteTurn::Granted;
                self.granted += 1;
                self.woken.extend(stream.write_waker.take());
            }
        }
        bytes
    }

    /// Whether there is output of which the driver is not notified yet. If so, marks it as notified: the
    /// caller has to wake the driver.
    pub(super) fn take_notification(&mut self) -> bool {
        let is_due = self.output.len() > 0 && !self.is_driver_notified;
        self.is_driver_notified |= is_due;
        is_due
    }

    /// Removes a stream that its user has dropped: ends it in order if `is_whole`, else resets it.
    pub(super) fn remove(&mut self, id: u32, is_whole: bool) {
        let Some(mut stream) = self.table.remove(&id) else {
            return;
        };
        self.growth_left += stream.receive.growth();
        self.held -= stream.unread.held();
        if !stream.has_ended || stream.is_shed {
            self.stray_bytes = self.stray_bytes.saturating_add(stream.receive.left());
        }
        if stream.turn == WriteTurn::Granted {
            self.granted -= 1;
        }
        if !stream.is_acknowledged {
            self.unacknowledged -= 1;
        }
        // A stream that was never announced does not exist at the other end.
        if !stream.is_reset && self.ended.is_none() && stream.first != SYN {
            let flags = if is_whole { FIN } else { RST };
            let header = stream.header(FrameKind::Data, flags, id, 0);
            self.output.push(header);
        }
        // Not dropped here: a waker may hold the last reference to a task, whose drop may take this lock.
        self.woken.extend(stream.read_waker);
        self.woken.extend(stream.write_waker);
        self.woken.extend(stream.reset_waker);
    }

    /// Ends all streams with the session: what was received can still be read, nothing can be sent.
    pub(super) fn end(&mut self, reason: CloseReason) {
        self.ended.get_or_insert(reason);
        self.waiting.clear();
        self.granted = 0;
        self.output = Output::default();
        for stream in self.table.values_mut() {
            stream.reset(&mut self.woken);
            stream.turn = WriteTurn::None;
        }
    }

    /// Why the session has ended, if it has.
    pub(super) fn ended(&self) -> Option<CloseReason> {
        self.ended
    }

    /// The change to report to the account: the bytes reported last, and the bytes held now. `None` while
    /// the difference is small, unless nothing is held any more.
    pub(super) fn unreported(&mut self) -> Option<(usize, usize)> {
        let difference = self.held.abs_diff(self.reported);
        if difference == 0 || (difference < memory::STEP_BYTES && self.held > 0) {
            return None;
        }
        let reported = std::mem::replace(&mut self.reported, self.held);
        Some((reported, self.held))
    }

    /// Bytes that were reported to the account.
    pub(super) fn reported(&self) -> usize {
        self.reported
    }

    /// Bytes of memory that unread bytes occupy.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Resets the stream that holds the most memory, preferably one with a stalled reader, and drops what
    /// it holds; `false` if none holds [`SHED_BYTES`].
    pub(super) fn shed(&mut self) -> bool {
        let now = Instant::now();
        let is_stalled = |stream: &Stream| {
            stream
                .unread_since
                .is_some_and(|at| now - at > STALLED_AFTER)
        };
        let largest = self
            .table
            .iter_mut()
            .filter(|(_, stream)| stream.unread.held() >= SHED_BYTES)
            .max_by_key(|(_, stream)| (is_stalled(stream), stream.unread.held()));
        let Some((&id, stream)) = largest else {
            return false;
        };
        self.held -= std::mem::take(&mut stream.unread).held();
        stream.is_shed = true;
        if !stream.is_reset && self.ended.is_none() {
            let header = stream.header(FrameKind::Data, RST, id, 0);
            self.output.push(header);
        }
        stream.reset(&mut self.woken);
        if std::mem::replace(&mut stream.turn, WriteTurn::None) == WriteTurn::Granted {
            self.granted -= 1;
        }
        true
    }

    /// Whether this end has reset the stream because it held too much memory.
    pub(super) fn is_shed(&self, id: u32) -> bool {
        self.table.get(&id).is_some_and(|stream| stream.is_shed)
    }

    pub(super) fn set_round_trip(&mut self, time: Duration) {
        self.round_trip = time;
    }

    /// Gives back memory that a burst has left.
    pub(super) fn trim(&mut self) {
        self.output.trim();
        self.waiting.shrink_to_fit();
        self.woken.shrink_to_fit();
        if self.table.capacity() > 4 * self.table.len() {
            self.table.shrink_to(2 * self.table.len());
        }
    }

    /// Number of streams.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Number of streams, of unacknowledged ones, and of those with a granted turn.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.table.len(), self.unacknowledged, self.granted)
    }

    /// Bytes queued to be sent.
    #[cfg(test)]
    pub(super) fn output_bytes(&self) -> usize {
        self.output.len()
    }
}

/// Stores the waker of this task. The waker of another task is not dropped but added to `woken`: it may
/// hold the last reference to that task, whose drop may take the lock.
fn set_waker(waker: &mut Option<Waker>, cx: &Context<'_>, woken: &mut Vec<Waker>) {
    let is_same = |waker: &Waker| waker.will_wake(cx.waker());
    if !waker.as_ref().is_some_and(is_same) {
        woken.extend(waker.replace(cx.waker().clone()));
    }
}

const _: () = assert!(limits::FRAME_BYTES + HEADER_BYTES < limits::BATCH_BYTES);
