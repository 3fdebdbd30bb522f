//! The multiplexer: many streams in one session, as yamux has it.
//!
//! ```text
//!   MuxStream ─┐                       ┌─▶ receive ◀─ driver ◀─ WebSocket
//!   MuxStream ─┼─▶ one table, locked ──┤
//!   MuxStream ─┘                       └─▶ take ───▶ driver ──▶ WebSocket
//! ```
//!
//! Whoever holds a stream works on the table itself, for the time of one poll; the driver carries what
//! came of it. Bodies are slices of the messages that brought them, and go out as they were given.
//! Traps of the protocol are handled here: at most 256 new streams wait to be acknowledged, in turn;
//! streams that wait for the WebSocket take turns by frames; windows grow only where they are short.

mod frame;
mod incoming;
mod output;
mod streams;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use self::streams::Streams;
use super::Side;
use crate::{close::CloseReason, limits, memory::MemoryAccount};

/// Why the multiplexer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MuxError {
    /// The other end broke the multiplexer's protocol, or passed a limit of it.
    #[error("multiplexer protocol broken: {0}")]
    Protocol(&'static str),
    /// It has ended in order.
    #[error("the multiplexer has ended")]
    Ended,
}

/// All streams of one session.
pub(crate) struct Mux {
    streams: Mutex<Streams>,
    /// Exchanges that wait until the other end has acknowledged enough of the new streams.
    openings: Mutex<VecDeque<oneshot::Sender<MuxStream>>>,
    driver: AtomicWaker,
    /// Where what is held counts.
    account: OnceLock<Arc<MemoryAccount>>,
}

/// A stream that was asked for.
pub(super) enum Opening {
    /// Here it is.
    Open(MuxStream),
    /// It comes when others were acknowledged or given up; never, if the session ends before.
    Waiting(oneshot::Receiver<MuxStream>),
}

impl Mux {
    pub(super) fn new(side: Side) -> Arc<Self> {
        Arc::new(Self {
            streams: Mutex::new(Streams::new(side)),
            openings: Mutex::default(),
            driver: AtomicWaker::new(),
            account: OnceLock::new(),
        })
    }

    /// Has what is held count in this account; only the first one counts.
    pub(super) fn account_to(self: &Arc<Self>, account: &Arc<MemoryAccount>) {
        if self.account.set(account.clone()).is_ok() {
            account.enter_session(self);
        }
    }

    /// Bytes of memory in which unread bytes lie.
    pub(crate) fn held_bytes(&self) -> usize {
        self.streams.lock().held()
    }

    /// Ends the stream that holds the most; `false` if none is worth it.
    pub(crate) fn shed(&self) -> bool {
        let mut streams = self.streams.lock();
        let has_shed = streams.shed();
        let unreported = self.unreported(&mut streams);
        let woken = std::mem::take(&mut streams.woken);
        let has_news = streams.has_news();
        drop(streams);
        self.report(unreported);
        self.wake(woken);
        if has_news {
            self.driver.wake();
        }
        has_shed
    }

    /// What the account, if there is one, is to be told.
    fn unreported(&self, streams: &mut Streams) -> Option<(usize, usize)> {
        self.account.get().and_then(|_| streams.unreported())
    }

    /// Tells the account how much is held instead of how much was; whether it is more. Without the lock.
    fn report(&self, unreported: Option<(usize, usize)>) -> bool {
        let (Some((before, now)), Some(account)) = (unreported, self.account.get()) else {
            return false;
        };
        match now.checked_sub(before) {
            Some(more) => account.hold(more),
            None => account.release(before - now),
        }
        now > before
    }

    /// Keeps the waker of the driver's task.
    pub(super) fn register_driver(&self, waker: &Waker) {
        self.driver.register(waker);
    }

    /// Has the driver polled.
    pub(super) fn wake_driver(&self) {
        self.driver.wake();
    }

    /// Opens a stream, in turn: 256 new ones at most wait to be acknowledged by the other end.
    pub(super) fn open(self: &Arc<Self>) -> Result<Opening, MuxError> {
        let mut openings = self.openings.lock();
        if openings.is_empty()
            && let Some(stream) = self.try_open()?
        {
            return Ok(Opening::Open(stream));
        }
        if openings.len() >= limits::EXCHANGES_MAX {
            // No more than that are open, so that the others were given up.
            openings.retain(|waiting| !waiting.is_closed());
        }
        let (hand_over, opening) = oneshot::channel();
        openings.push_back(hand_over);
        Ok(Opening::Waiting(opening))
    }

    fn try_open(self: &Arc<Self>) -> Result<Option<MuxStream>, MuxError> {
        let id = self.streams.lock().open()?;
        Ok(id.map(|id| MuxStream::new(self, id)))
    }

    /// Hands new streams to those that wait.
    pub(super) fn open_waiting(self: &Arc<Self>) -> Result<(), MuxError> {
        let mut openings = self.openings.lock();
        while let Some(first) = openings.front() {
            if !first.is_closed() {
                let Some(stream) = self.try_open()? else {
                    break;
                };
                if let Some(first) = openings.pop_front() {
                    // Given up in this very moment, it is dropped.
                    let _ = first.send(stream);
                }
            } else {
                openings.pop_front();
            }
        }
        Ok(())
    }

    /// Takes received bytes in, and hands over the streams that the other end has opened.
    pub(super) fn receive(
        self: &Arc<Self>,
        bytes: Bytes,
        accept: impl FnMut(MuxStream),
    ) -> Result<(), MuxError> {
        let mut streams = self.streams.lock();
        let received = streams.receive(bytes);
        let accepted = std::mem::take(&mut streams.accepted);
        let woken = std::mem::take(&mut streams.woken);
        let unreported = self.unreported(&mut streams);
        drop(streams);
        if self.report(unreported)
            && let Some(account) = self.account.get()
        {
            account.keep_limit();
        }
        self.wake(woken);
        let stream = |id| MuxStream::new(self, id);
        accepted.into_iter().map(stream).for_each(accept);
        received
    }

    /// The next bytes to send, at most a batch. `None` when there are none: whatever comes then wakes
    /// the driver.
    pub(super) fn take(&self) -> Option<Bytes> {
        let mut streams = self.streams.lock();
        let bytes = streams.take();
        streams.is_driver_told = bytes.is_some();
        let woken = std::mem::take(&mut streams.woken);
        drop(streams);
        self.wake(woken);
        bytes
    }

    /// Wakes everybody who waits for bytes of a stream, although none have come.
    pub(super) fn wake_readers(&self) {
        let readers = self.streams.lock().readers();
        readers.into_iter().for_each(Waker::wake);
    }

    /// Wakes everybody, and keeps the list's space for the next time.
    fn wake(&self, mut woken: Vec<Waker>) {
        if woken.is_empty() {
            return;
        }
        woken.drain(..).for_each(Waker::wake);
        let mut streams = self.streams.lock();
        if streams.woken.capacity() == 0 {
            streams.woken = woken;
        }
    }

    /// The round-trip time, by which windows grow.
    pub(super) fn set_round_trip(&self, time: Duration) {
        self.streams.lock().set_round_trip(time);
    }

    /// Gives back what a burst has left.
    pub(super) fn trim(&self) {
        self.streams.lock().trim();
    }

    /// Since when the oldest new stream waits for the other end to say anything on it.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.streams.lock().waiting_since()
    }

    /// How many streams there are, those at rest among them.
    pub(super) fn stream_count(&self) -> usize {
        self.streams.lock().len()
    }

    /// Why nothing is sent or received any more.
    pub(super) fn ended(&self) -> Option<CloseReason> {
        self.streams.lock().ended()
    }

    /// Nothing is sent or received from here on.
    pub(super) fn end(&self, reason: CloseReason) {
        let mut streams = self.streams.lock();
        streams.end(reason);
        let woken = std::mem::take(&mut streams.woken);
        drop(streams);
        self.wake(woken);
        let openings = std::mem::take(&mut *self.openings.lock());
        drop(openings);
    }
}

impl Drop for Mux {
    fn drop(&mut self) {
        if let Some(account) = self.account.get() {
            account.release(self.streams.get_mut().reported());
        }
    }
}

impl std::fmt::Debug for Mux {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mux").finish_non_exhaustive()
    }
}

/// The stream can take no more bytes: it was reset, or its session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut;

/// One stream. Dropped, it is reset unless it was finished.
pub(crate) struct MuxStream {
    mux: Arc<Mux>,
    id: u32,
    is_finished: bool,
}

impl MuxStream {
    fn new(mux: &Arc<Mux>, id: u32) -> Self {
        Self {
            mux: mux.clone(),
            id,
            is_finished: false,
        }
    }

    /// Does something to the table, and tells the driver if there is something to send.
    fn with<T>(&self, work: impl FnOnce(&mut Streams) -> T) -> T {
        let mut streams = self.mux.streams.lock();
        let done = work(&mut streams);
        let has_news = streams.has_news();
        let unreported = self.mux.unreported(&mut streams);
        drop(streams);
        self.mux.report(unreported);
        if has_news {
            self.mux.driver.wake();
        }
        done
    }

    /// The next bytes as one chunk; `None` when no more can come, for whatever cause.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let account = self.mux.account.get().map(AsRef::as_ref);
        self.with(|streams| streams.poll_read(self.id, cx, account))
    }

    /// Whether this end has reset the stream, since too much was held.
    pub(crate) fn is_shed(&self) -> bool {
        self.mux.streams.lock().is_shed(self.id)
    }

    /// Takes some of the bytes; pending while the other end's window, or the way there, is full.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut impl Buf,
    ) -> Poll<Result<(), Cut>> {
        self.with(|streams| streams.poll_write(self.id, cx, bytes))
    }

    /// Tells the other end of a new stream on which nothing is written yet.
    pub(crate) fn announce(&self) {
        self.with(|streams| streams.announce(self.id));
    }

    /// Why the session has ended, if it has.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.mux.ended()
    }

    /// Whether the other end has reset the stream, or the session has ended.
    pub(crate) fn is_reset(&self) -> bool {
        self.mux.streams.lock().is_reset(self.id)
    }

    /// Ready when that is so.
    pub(crate) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.mux.streams.lock().poll_reset(self.id, cx)
    }

    /// Whether the stream is open and nothing has come on it that was not read.
    pub(crate) fn is_quiet(&self) -> bool {
        self.mux.streams.lock().is_quiet(self.id)
    }

    /// Ends the stream in order, so that dropping it is no reset. Only for a stream at rest.
    pub(crate) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for MuxStream {
    fn drop(&mut self) {
        let mut streams = self.mux.streams.lock();
        streams.remove(self.id, self.is_finished);
        let woken = std::mem::take(&mut streams.woken);
        let has_ended = streams.ended().is_some();
        let unreported = self.mux.unreported(&mut streams);
        drop(streams);
        self.mux.report(unreported);
        // Of this stream; whoever still waits for something of it is to find out.
        self.mux.wake(woken);
        if !has_ended {
            // There may be a frame to send, and room for another stream.
            self.mux.driver.wake();
        }
    }
}
