//! The multiplexer: many streams in one session, with the wire format of yamux.
//!
//! ```text
//!   MuxStream ─┐                       ┌─▶ receive ◀─ driver ◀─ WebSocket
//!   MuxStream ─┼─▶ one table, locked ──┤
//!   MuxStream ─┘                       └─▶ take ───▶ driver ──▶ WebSocket
//! ```
//!
//! A stream's user works on the table itself, locked for one poll; the driver moves the resulting bytes.
//! Received bodies are slices of the messages that brought them, and sent bodies are not copied. Pitfalls
//! of the protocol are handled here: at most 256 new streams are unacknowledged at a time, and further ones
//! wait in order; streams that wait for the WebSocket take turns frame by frame; windows grow only where
//! they limit the sender.

mod frame;
mod incoming;
mod output;
mod stream;
mod streams;
#[cfg(test)]
mod tests;
mod window;

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use self::streams::Streams;
use super::Side;
use crate::{
    close::CloseReason,
    limits,
    memory::{AccountPart, MemoryAccount},
};

/// Why the multiplexer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MuxError {
    /// The other end broke the multiplexer's protocol, or exceeded a limit.
    #[error("multiplexer protocol broken: {0}")]
    Protocol(&'static str),
    /// The multiplexer has ended in order.
    #[error("the multiplexer has ended")]
    Ended,
}

/// All streams of one session.
pub(crate) struct Mux {
    streams: Mutex<Streams>,
    /// Exchanges that wait for a stream until the other end has acknowledged earlier ones.
    openings: Mutex<VecDeque<oneshot::Sender<MuxStream>>>,
    driver: AtomicWaker,
    /// The account in which held memory counts.
    account: OnceLock<Arc<MemoryAccount>>,
}

/// The result of opening a stream.
pub(super) enum Opening {
    /// The stream is open.
    Open(MuxStream),
    /// The stream arrives once others are acknowledged or dropped. The channel closes if the session ends
    /// before.
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

    /// Counts held memory in this account. Only the first call has an effect.
    pub(super) fn set_account(self: &Arc<Self>, account: &Arc<MemoryAccount>) {
        if self.account.set(account.clone()).is_ok() {
            let part: Weak<Self> = Arc::downgrade(self);
            account.enter(part);
        }
    }

    /// The change to report to the account, if there is one.
    fn unreported(&self, streams: &mut Streams) -> Option<(usize, usize)> {
        self.account.get().and_then(|_| streams.unreported())
    }

    /// Reports a change to the account; whether more is held than before. To be called without the lock of
    /// the streams.
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

    /// Wakes the driver's task.
    pub(super) fn wake_driver(&self) {
        self.driver.wake();
    }

    /// Opens a stream, in the order of the calls: at most 256 may be unacknowledged by the other end.
    pub(super) fn open(self: &Arc<Self>) -> Result<Opening, MuxError> {
        let mut openings = self.openings.lock();
        if openings.is_empty()
            && let Some(stream) = self.try_open()?
        {
            return Ok(Opening::Open(stream));
        }
        if openings.len() >= limits::EXCHANGES_MAX {
            // No more exchanges than that can be open, so the others were cancelled.
            openings.retain(|waiting| !waiting.is_closed());
        }
        let (sender, opening) = oneshot::channel();
        openings.push_back(sender);
        Ok(Opening::Waiting(opening))
    }

    fn try_open(self: &Arc<Self>) -> Result<Option<MuxStream>, MuxError> {
        let id = self.streams.lock().open()?;
        Ok(id.map(|id| MuxStream::new(self, id)))
    }

    /// Opens streams for the exchanges that wait for one.
    pub(super) fn open_waiting(self: &Arc<Self>) -> Result<(), MuxError> {
        let mut openings = self.openings.lock();
        while let Some(first) = openings.front() {
            if !first.is_closed() {
                let Some(stream) = self.try_open()? else {
                    break;
                };
                if let Some(first) = openings.pop_front() {
                    // If the exchange was cancelled just now, this drops the stream.
                    let _ = first.send(stream);
                }
            } else {
                openings.pop_front();
            }
        }
        Ok(())
    }

    /// Processes received bytes, and calls `accept` for each stream that the other end has opened.
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

    /// The next bytes to send, at most a batch. After `None`, new output wakes the driver.
    pub(super) fn take(&self) -> Option<Bytes> {
        let mut streams = self.streams.lock();
        let bytes = streams.take();
        streams.is_driver_notified = bytes.is_some();
        let woken = std::mem::take(&mut streams.woken);
        drop(streams);
        self.wake(woken);
        bytes
    }

    /// Wakes all tasks that wait to read, although nothing was received.
    pub(super) fn wake_readers(&self) {
        let readers = self.streams.lock().readers();
        readers.into_iter().for_each(Waker::wake);
    }

    /// Wakes all tasks in the list, and keeps its memory for the next time.
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

    /// Sets the round-trip time, by which windows grow.
    pub(super) fn set_round_trip(&self, time: Duration) {
        self.streams.lock().set_round_trip(time);
    }

    /// Gives back memory that a burst has left.
    pub(super) fn trim(&self) {
        self.streams.lock().trim();
    }

    /// When the oldest announced stream on which the other end has sent nothing was opened.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        self.streams.lock().waiting_since()
    }

    /// Number of streams, including idle ones.
    pub(super) fn stream_count(&self) -> usize {
        self.streams.lock().len()
    }

    /// Why the session has ended, if it has.
    pub(super) fn ended(&self) -> Option<CloseReason> {
        self.streams.lock().ended()
    }

    /// Ends all streams: nothing is sent or received from now on.
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

impl AccountPart for Mux {
    fn held(&self) -> usize {
        self.streams.lock().held()
    }

    fn shed(&self) -> bool {
        let mut streams = self.streams.lock();
        let has_shed = streams.shed();
        let unreported = self.unreported(&mut streams);
        let woken = std::mem::take(&mut streams.woken);
        let needs_driver = streams.take_notification();
        drop(streams);
        self.report(unreported);
        self.wake(woken);
        if needs_driver {
            self.driver.wake();
        }
        has_shed
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

/// Nothing more can be written to the stream: it was reset, or its session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamCut;

/// One stream. Dropping it resets it, unless it was finished.
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

    /// Runs an operation on the table, and wakes the driver if there is something to send.
    fn with<T>(&self, work: impl FnOnce(&mut Streams) -> T) -> T {
        let mut streams = self.mux.streams.lock();
        let done = work(&mut streams);
        let needs_driver = streams.take_notification();
        let unreported = self.mux.unreported(&mut streams);
        drop(streams);
        self.mux.report(unreported);
        if needs_driver {
            self.mux.driver.wake();
        }
        done
    }

    /// Reads the next chunk; `None` when no more can come, for whatever reason.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let account = self.mux.account.get().map(AsRef::as_ref);
        self.with(|streams| streams.poll_read(self.id, cx, account))
    }

    /// The account in which the session's held memory counts.
    pub(crate) fn account(&self) -> Option<&Arc<MemoryAccount>> {
        self.mux.account.get()
    }

    /// Whether this end has reset the stream because it held too much memory.
    pub(crate) fn is_shed(&self) -> bool {
        self.mux.streams.lock().is_shed(self.id)
    }

    /// Writes some of the bytes; pending while the send window or the output queue is full.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut impl Buf,
    ) -> Poll<Result<(), StreamCut>> {
        self.with(|streams| streams.poll_write(self.id, cx, bytes))
    }

    /// Opens the stream at the other end before anything is written to it.
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

    /// Ready when [`Self::is_reset`].
    pub(crate) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.mux.streams.lock().poll_reset(self.id, cx)
    }

    /// Whether the stream is open and nothing is unread on it.
    pub(crate) fn is_quiet(&self) -> bool {
        self.mux.streams.lock().is_quiet(self.id)
    }

    /// Ends the stream in order instead of resetting it. Only for one on which no message is under way.
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
        // Wakers of this stream: tasks that still wait on it have to notice.
        self.mux.wake(woken);
        if !has_ended {
            // There may be a frame to send, and a waiting exchange may get its stream.
            self.mux.driver.wake();
        }
    }
}
