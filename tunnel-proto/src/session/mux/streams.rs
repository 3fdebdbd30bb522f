//! The table of a session's streams, and what each frame does to them.
//!
//! ```text
//!   received bytes ─▶ frame ─▶ Streams ─▶ unread bytes, windows, wakers ─▶ streams' readers
//!   streams' writers ─▶ Streams ─▶ output ─▶ bytes to send
//! ```
//!
//! In: received bytes, and what the holders of streams do. Out: bytes to send, and the wakers of those
//! for whom something has changed. Pure but for the time at which streams are opened and windows
//! updated; whoever holds the lock around it wakes nobody before letting go.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes};
use nohash_hasher::BuildNoHashHasher;
use tokio::time::Instant;

use super::{
    Cut, MuxError,
    frame::{ACK, FIN, Frames, HEADER_BYTES, Header, Kind, Part, RST, SYN},
    incoming::{Unread, Window},
    output::Output,
};
use crate::{
    close::CloseReason,
    limits,
    memory::{self, MemoryAccount},
    session::Side,
};

/// Writes up to this length do not wait for their turn, so that a small message is not held up by
/// large ones.
const SHORT_BYTES: usize = 2 * 1024;

/// Least that a stream has to hold for its end to be worth it.
const SHED_BYTES: usize = 4 * 1024;

/// A stream of which nothing was read for so long, though there was something, has a reader that stands still.
pub(super) const STILL: Duration = Duration::from_secs(1);

/// One stream.
struct Stream {
    unread: Unread,
    receive: Window,
    /// What the other end takes.
    send: usize,
    /// What the next frame has to say first: that the stream is new, or accepted.
    first: u16,
    /// The other end has said so.
    is_acknowledged: bool,
    /// When we have opened it, until the other end says anything on it.
    unheard_since: Option<Instant>,
    /// Nothing more comes.
    has_ended: bool,
    /// The other end takes nothing more, or the session has ended.
    is_reset: bool,
    /// This end has reset it, since it held too much. What the other end sends before it knows is dropped.
    is_shed: bool,
    /// Since when there is something to be read and nothing was.
    waits_since: Option<Instant>,
    turn: Turn,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Who wants to know of a reset while nobody reads or writes.
    watcher: Option<Waker>,
}

/// Whether a stream waits for the WebSocket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    None,
    /// It stands among those that do.
    Waits,
    /// It may write one frame.
    Granted,
}

/// All streams of a session.
pub(super) struct Streams {
    side: Side,
    table: HashMap<u32, Stream, BuildNoHashHasher<u32>>,
    /// The id of the next stream of ours.
    next: u32,
    /// Streams of ours that the other end has not acknowledged.
    unacknowledged: usize,
    frames: Frames,
    output: Output,
    /// Streams that wait for the WebSocket, in turn; those that have ended meanwhile among them.
    waiting: VecDeque<u32>,
    granted: usize,
    growth: usize,
    round_trip: Duration,
    /// Bytes of memory in which unread bytes lie, and how many of them the account knows of.
    held: usize,
    reported: usize,
    /// What the other end may have sent on streams that have ended here before it learned of that.
    strays: usize,
    /// Why the session has ended.
    ended: Option<CloseReason>,
    /// The driver was told that there is something to send.
    pub(super) is_driver_told: bool,
    /// Streams that the other end has opened, to be handed on.
    pub(super) accepted: Vec<u32>,
    /// To be woken once the lock is free.
    pub(super) woken: Vec<Waker>,
}

impl Stream {
    fn new(first: u16) -> Self {
        Self {
            unread: Unread::default(),
            receive: Window::new(),
            send: limits::STREAM_WINDOW_BYTES,
            first,
            is_acknowledged: first == ACK,
            unheard_since: (first == SYN).then(Instant::now),
            has_ended: false,
            is_reset: false,
            is_shed: false,
            waits_since: None,
            turn: Turn::None,
            reader: None,
            writer: None,
            watcher: None,
        }
    }

    fn header(&mut self, kind: Kind, flags: u16, stream: u32, value: usize) -> Header {
        Header {
            kind,
            flags: flags | std::mem::take(&mut self.first),
            stream,
            // Windows and frames are far smaller.
            value: u32::try_from(value).unwrap_or(u32::MAX),
        }
    }

    /// The other end ends the stream at once.
    fn reset(&mut self, woken: &mut Vec<Waker>) {
        self.has_ended = true;
        self.is_reset = true;
        self.unheard_since = None;
        woken.extend(self.reader.take());
        woken.extend(self.writer.take());
        woken.extend(self.watcher.take());
    }
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
            growth: limits::WINDOW_GROWTH_BYTES,
            round_trip: Duration::ZERO,
            held: 0,
            reported: 0,
            strays: 0,
            ended: None,
            is_driver_told: false,
            accepted: Vec::new(),
            woken: Vec::new(),
        }
    }

    /// A new stream; `None` while too many wait to be acknowledged. The other end learns of it with
    /// the first write.
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

    /// Tells the other end of a new stream without writing anything: yamux lets a stream begin with an
    /// update of its window.
    pub(super) fn announce(&mut self, id: u32) {
        if let Some(stream) = self.table.get_mut(&id)
            && stream.first == SYN
        {
            let header = stream.header(Kind::WindowUpdate, 0, id, 0);
            self.output.push(header);
        }
    }

    /// When the oldest stream was opened that the other end was told of and has said nothing on. Looks
    /// at all streams: not for each exchange.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        let told = self.table.values().filter(|stream| stream.first != SYN);
        told.filter_map(|stream| stream.unheard_since).min()
    }

    /// The wakers of all that wait for bytes of a stream.
    pub(super) fn readers(&mut self) -> Vec<Waker> {
        let streams = self.table.values_mut();
        streams.filter_map(|stream| stream.reader.take()).collect()
    }

    /// Takes received bytes in.
    pub(super) fn receive(&mut self, mut bytes: Bytes) -> Result<(), MuxError> {
        if self.ended.is_some() {
            // The other end goes on until it is told.
            return Ok(());
        }
        while let Some(part) = self.frames.next(&mut bytes)? {
            match part {
                Part::Header(header) => self.on_header(header)?,
                Part::Body(header, piece, is_last) => {
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
            Kind::Ping => return self.on_ping(header),
            Kind::GoAway => return Err(MuxError::Ended),
            Kind::Data | Kind::WindowUpdate => {}
        }
        if header.flags & SYN != 0 {
            self.accept(header.stream)?;
        }
        let Some(stream) = self.table.get_mut(&header.stream) else {
            // It has ended here, and the other end does not know yet.
            return self.on_stray(header);
        };
        if header.flags & ACK != 0 && !stream.is_acknowledged {
            stream.is_acknowledged = true;
            self.unacknowledged -= 1;
        }
        if header.flags & RST != 0 {
            stream.reset(&mut self.woken);
            // Whoever holds it has no use for its turn any more.
            if std::mem::replace(&mut stream.turn, Turn::None) == Turn::Granted {
                self.granted -= 1;
            }
            return Ok(());
        }
        let value = header.value as usize;
        if header.kind == Kind::WindowUpdate {
            stream.send += value;
            if stream.send > u32::MAX as usize {
                return Err(MuxError::Protocol("a window beyond any number"));
            }
            self.woken.extend(stream.writer.take());
        } else if stream.has_ended && value > 0 && !stream.is_shed {
            return Err(MuxError::Protocol("data after a stream's end"));
        } else if !stream.receive.allows(value) {
            return Err(MuxError::Protocol("more data than the window allows"));
        }
        if header.flags & FIN != 0 && (header.kind == Kind::WindowUpdate || value == 0) {
            self.on_end(header.stream);
        }
        Ok(())
    }

    /// A frame for a stream that does not exist: what was allowed when the stream ended may still come.
    fn on_stray(&mut self, header: Header) -> Result<(), MuxError> {
        if header.kind == Kind::Data {
            let left = self.strays.checked_sub(header.value as usize);
            self.strays =
                left.ok_or(MuxError::Protocol("data for a stream that does not exist"))?;
        }
        Ok(())
    }

    /// Answers a ping, unless the other end takes nothing: then it can wait for no answer.
    fn on_ping(&mut self, header: Header) -> Result<(), MuxError> {
        if header.flags & SYN == 0 || header.stream != 0 {
            return Err(MuxError::Protocol("an answer to no ping"));
        }
        if self.output.len() < 2 * limits::OUTPUT_BYTES {
            self.output.push(Header {
                flags: ACK,
                ..header
            });
        }
        Ok(())
    }

    /// The other end opens a stream: only the tunnel server does, and numbers them as yamux's client.
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
        let Entry::Vacant(place) = self.table.entry(id) else {
            return Err(MuxError::Protocol("a new stream with a used id"));
        };
        place.insert(Stream::new(ACK));
        self.accepted.push(id);
        Ok(())
    }

    /// Resets a stream beyond the limit. It may be an honest one: those that were reset count until
    /// their holders know.
    fn refuse(&mut self, stream: u32) -> Result<(), MuxError> {
        if self.output.len() >= 2 * limits::OUTPUT_BYTES {
            return Err(MuxError::Protocol("more streams than allowed"));
        }
        self.output.push(Header {
            kind: Kind::Data,
            flags: RST,
            stream,
            value: 0,
        });
        self.strays = self.strays.saturating_add(limits::STREAM_WINDOW_BYTES);
        Ok(())
    }

    /// Takes a piece in, unless the stream has ended, or began only after the frame did.
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
                stream.waits_since = Some(Instant::now());
            }
            let before = stream.unread.held();
            stream.unread.push(piece);
            self.held += stream.unread.held() - before;
            stream.unheard_since = None;
            self.woken.extend(stream.reader.take());
        }
    }

    fn on_end(&mut self, id: u32) {
        if let Some(stream) = self.table.get_mut(&id) {
            stream.has_ended = true;
            self.woken.extend(stream.reader.take());
        }
    }

    /// The next bytes of a stream; `None` when no more can come.
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
            stream.waits_since = (!stream.unread.is_empty()).then(Instant::now);
            if !stream.has_ended {
                let is_pressed = || account.is_some_and(MemoryAccount::is_pressed);
                let (unread, growth) = (stream.unread.len(), &mut self.growth);
                let receive = &mut stream.receive;
                let more = receive.update(unread, self.round_trip, growth, is_pressed);
                if more > 0 {
                    let header = stream.header(Kind::WindowUpdate, 0, id, more);
                    self.output.push(header);
                }
            }
            return Poll::Ready(Some(chunk));
        }
        if stream.has_ended {
            return Poll::Ready(None);
        }
        set(&mut stream.reader, cx, &mut self.woken);
        Poll::Pending
    }

    /// Whether nothing has come on an open stream that was not read.
    pub(super) fn is_quiet(&self, id: u32) -> bool {
        let stream = self.table.get(&id);
        stream.is_some_and(|stream| stream.unread.is_empty() && !stream.has_ended)
    }

    /// Whether the stream was reset, by the other end or the end of the session.
    pub(super) fn is_reset(&self, id: u32) -> bool {
        self.table.get(&id).is_none_or(|stream| stream.is_reset)
    }

    /// Ready when the other end has reset the stream, whatever was not read of it.
    pub(super) fn poll_reset(&mut self, id: u32, cx: &Context<'_>) -> Poll<()> {
        match self.table.get_mut(&id) {
            Some(stream) if !stream.is_reset => {
                set(&mut stream.watcher, cx, &mut self.woken);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// Takes some of the bytes as one frame.
    pub(super) fn poll_write(
        &mut self,
        id: u32,
        cx: &Context<'_>,
        bytes: &mut impl Buf,
    ) -> Poll<Result<(), Cut>> {
        let Some(stream) = self.table.get_mut(&id).filter(|stream| !stream.is_reset) else {
            return Poll::Ready(Err(Cut));
        };
        let wanted = bytes.remaining();
        if stream.send == 0 {
            set(&mut stream.writer, cx, &mut self.woken);
            return Poll::Pending;
        }
        let is_free = self.output.len() < limits::OUTPUT_BYTES && self.waiting.is_empty();
        let is_short = wanted <= SHORT_BYTES && self.output.len() < 2 * limits::OUTPUT_BYTES;
        match stream.turn {
            Turn::Granted => {
                stream.turn = Turn::None;
                self.granted -= 1;
            }
            _ if is_free || is_short => stream.turn = Turn::None,
            turn => {
                set(&mut stream.writer, cx, &mut self.woken);
                if turn == Turn::None {
                    stream.turn = Turn::Waits;
                    self.waiting.push_back(id);
                }
                return Poll::Pending;
            }
        }
        let length = wanted.min(stream.send).min(limits::FRAME_BYTES);
        stream.send -= length;
        let header = stream.header(Kind::Data, 0, id, length);
        self.output.push_body(header, bytes);
        Poll::Ready(Ok(()))
    }

    /// The next bytes for the WebSocket; those who wait to write get their turn as it takes them.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let bytes = self.output.pop();
        // One at least, since short messages fill the output beyond what is granted from.
        while self.granted == 0
            || self.output.len() + self.granted * limits::FRAME_BYTES < limits::OUTPUT_BYTES
        {
            let Some(id) = self.waiting.pop_front() else {
                break;
            };
            if let Some(stream) = self.table.get_mut(&id)
                && stream.turn == Turn::Waits
            {
                stream.turn = Turn::Granted;
                self.granted += 1;
                self.woken.extend(stream.writer.take());
            }
        }
        bytes
    }

    /// Whether there is something to send that the driver was not told of; it counts as told then.
    pub(super) fn has_news(&mut self) -> bool {
        let has_news = self.output.len() > 0 && !self.is_driver_told;
        self.is_driver_told |= has_news;
        has_news
    }

    /// Nobody holds the stream any more: it is reset, or if `is_whole` ended in order.
    pub(super) fn remove(&mut self, id: u32, is_whole: bool) {
        let Some(mut stream) = self.table.remove(&id) else {
            return;
        };
        self.growth += stream.receive.growth();
        self.held -= stream.unread.held();
        if !stream.has_ended || stream.is_shed {
            self.strays = self.strays.saturating_add(stream.receive.left());
        }
        if stream.turn == Turn::Granted {
            self.granted -= 1;
        }
        if !stream.is_acknowledged {
            self.unacknowledged -= 1;
        }
        // The other end never heard of a stream that has to say it is new.
        if !stream.is_reset && self.ended.is_none() && stream.first != SYN {
            let flags = if is_whole { FIN } else { RST };
            let header = stream.header(Kind::Data, flags, id, 0);
            self.output.push(header);
        }
        // Wakers may be the last to hold a task: dropped with the lock held, it could want it.
        self.woken.extend(stream.reader);
        self.woken.extend(stream.writer);
        self.woken.extend(stream.watcher);
    }

    /// The session has ended: what was received can still be read, nothing can be sent.
    pub(super) fn end(&mut self, reason: CloseReason) {
        self.ended.get_or_insert(reason);
        self.waiting.clear();
        self.granted = 0;
        self.output = Output::default();
        for stream in self.table.values_mut() {
            stream.reset(&mut self.woken);
            stream.turn = Turn::None;
        }
    }

    /// Why the session has ended, if it has.
    pub(super) fn ended(&self) -> Option<CloseReason> {
        self.ended
    }

    /// What is to be told to the account: how much it was told last, and how much is held now. Nothing while
    /// the difference is small, unless nothing is held any more.
    pub(super) fn unreported(&mut self) -> Option<(usize, usize)> {
        let difference = self.held.abs_diff(self.reported);
        if difference == 0 || (difference < memory::STEP_BYTES && self.held > 0) {
            return None;
        }
        let reported = std::mem::replace(&mut self.reported, self.held);
        Some((reported, self.held))
    }

    /// Bytes that the account knows of.
    pub(super) fn reported(&self) -> usize {
        self.reported
    }

    /// Bytes of memory in which unread bytes lie.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Resets the stream that holds the most, one whose reader stands still if there is any, and drops
    /// what it holds; `false` if none holds enough to be worth it.
    pub(super) fn shed(&mut self) -> bool {
        let now = Instant::now();
        let is_still = |stream: &Stream| stream.waits_since.is_some_and(|at| now - at > STILL);
        let largest = self
            .table
            .iter_mut()
            .filter(|(_, stream)| stream.unread.held() >= SHED_BYTES)
            .max_by_key(|(_, stream)| (is_still(stream), stream.unread.held()));
        let Some((&id, stream)) = largest else {
            return false;
        };
        self.held -= std::mem::take(&mut stream.unread).held();
        stream.is_shed = true;
        if !stream.is_reset && self.ended.is_none() {
            let header = stream.header(Kind::Data, RST, id, 0);
            self.output.push(header);
        }
        stream.reset(&mut self.woken);
        if std::mem::replace(&mut stream.turn, Turn::None) == Turn::Granted {
            self.granted -= 1;
        }
        true
    }

    /// Whether the stream was reset since it held too much.
    pub(super) fn is_shed(&self, id: u32) -> bool {
        self.table.get(&id).is_some_and(|stream| stream.is_shed)
    }

    pub(super) fn set_round_trip(&mut self, time: Duration) {
        self.round_trip = time;
    }

    /// Gives back what a burst has left.
    pub(super) fn trim(&mut self) {
        self.output.trim();
        self.waiting.shrink_to_fit();
        self.woken.shrink_to_fit();
        if self.table.capacity() > 4 * self.table.len() {
            self.table.shrink_to(2 * self.table.len());
        }
    }

    /// How many streams there are.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Streams, those that are not acknowledged, and those that have their turn.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.table.len(), self.unacknowledged, self.granted)
    }

    /// Bytes that wait to be sent.
    #[cfg(test)]
    pub(super) fn output_bytes(&self) -> usize {
        self.output.len()
    }
}

/// Keeps the waker of this task. One of another task is not dropped here: it may be the last to hold
/// that task, which could want the lock.
fn set(waker: &mut Option<Waker>, cx: &Context<'_>, woken: &mut Vec<Waker>) {
    let is_same = |waker: &Waker| waker.will_wake(cx.waker());
    if !waker.as_ref().is_some_and(is_same) {
        woken.extend(waker.replace(cx.waker().clone()));
    }
}

const _: () = assert!(limits::FRAME_BYTES + HEADER_BYTES < limits::BATCH_BYTES);
