//! One session: an established WebSocket connection with the multiplexer in it.
//!
//! ```text
//!   exchanges ──open──▶ Session (handle) ──▶ mux ──▶ driver ──▶ websocket
//!   SessionEvents ◀─accepted streams, control messages─ driver ◀─ websocket
//! ```
//!
//! [`Session::new`] splits a connection into three: a cheap cloneable **handle**, the **driver**,
//! a future that does nothing but move bytes and must be polled by one task, and the **events** that
//! the driver hands to the session's owner. The session ends when its driver does; every stream,
//! waiting exchange and queued message ends with it.

pub(crate) mod acceptance;
pub(crate) mod driver;
pub(crate) mod events;
pub(crate) mod liveness;
pub(crate) mod mux;
pub(crate) mod probe;
pub(crate) mod websocket;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
};

pub use self::{
    driver::{Driver, SessionEnd},
    events::{SessionEvent, SessionEvents},
    mux::MuxError,
    probe::ProbeError,
    websocket::WebSocketError,
};
use self::{
    mux::{Mux, MuxStream, Opening},
    websocket::WebSocket,
};
use crate::{close::CloseReason, control::Control, exchange::Idle, limits, memory::MemoryAccount};

/// Which end of a session this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The tunnel server: opens the streams, sends the requests.
    Server,
    /// The tunnel client: accepts the streams, answers.
    Client,
}

/// What an end may set for a session.
#[derive(Debug, Clone, Copy)]
pub struct SessionSettings {
    /// Time between pings. A silent session is dead after two of them, and after 15 s if something was sent
    /// on it; in that case it is suspect after 3 s.
    pub ping_interval: Duration,
    /// Exchanges open at once, at most [`limits::EXCHANGES_MAX`].
    pub exchanges: usize,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(15),
            exchanges: limits::EXCHANGES,
        }
    }
}

/// The handle of one session. Clones are the same session.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

/// A stream that the tunnel server opened; it carries one exchange after another.
pub struct AcceptedStream {
    pub(crate) stream: MuxStream,
    pub(crate) session: Session,
}

/// Why an exchange could not be opened. Nothing of it has left this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The session has ended, or takes no new exchange.
    #[error("the session has ended")]
    Closed,
    /// As many exchanges as allowed are open.
    #[error("as many exchanges as allowed are open on the session")]
    TooMany,
}

/// The session has ended, or takes no more messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session has ended")]
pub struct SessionClosed;

pub(crate) struct Shared {
    side: Side,
    settings: SessionSettings,
    mux: Arc<Mux>,
    /// Streams at rest between two exchanges, the most recently used last.
    idle: Mutex<Idle>,
    outstanding: AtomicUsize,
    /// Those of them that the other end has not answered yet.
    unanswered: AtomicUsize,
    /// Told when `outstanding` falls to zero, and when the session ends.
    at_rest: Notify,
    draining: AtomicBool,
    controls_out: Mutex<VecDeque<Control>>,
    close: Mutex<Option<CloseReason>>,
    /// `close` has something: looked at for each poll of the driver.
    is_closing: AtomicBool,
    /// What is open is not to go on until then.
    is_cut: AtomicBool,
    /// The driver is to ping the other end at once.
    is_asked_to_probe: AtomicBool,
    /// The other end is silent although it was asked.
    is_suspect: AtomicBool,
    /// Told when that changes.
    suspicion_changed: Notify,
    has_ended: AtomicBool,
    /// In microseconds, zero while nothing was measured.
    round_trip: AtomicU64,
    smoothed_round_trip: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
}

impl Session {
    /// Takes over a connection whose upgrade is done. `leftover` are bytes of the WebSocket that
    /// were read together with the end of the handshake.
    pub fn new<IO>(
        io: IO,
        leftover: Bytes,
        side: Side,
        settings: SessionSettings,
    ) -> (Self, SessionEvents, Driver<IO>)
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let websocket = WebSocket::new(io, leftover, side);
        let (owner, events) = events::events();
        let shared = Arc::new(Shared {
            side,
            settings,
            mux: Mux::new(side),
            idle: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
            at_rest: Notify::new(),
            draining: AtomicBool::new(false),
            controls_out: Mutex::default(),
            close: Mutex::new(None),
            is_closing: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            is_asked_to_probe: AtomicBool::new(false),
            is_suspect: AtomicBool::new(false),
            suspicion_changed: Notify::new(),
            has_ended: AtomicBool::new(false),
            round_trip: AtomicU64::new(0),
            smoothed_round_trip: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
        });
        let session = Self { shared };
        let driver = Driver::new(websocket, session.clone(), owner);
        (session, events, driver)
    }

    /// Has the received bytes that nobody has read yet count in this account, which ends single streams
    /// when its limit is reached. Only the first account counts.
    pub fn account_to(&self, account: &Arc<MemoryAccount>) {
        self.shared.mux.account_to(account);
    }

    /// Sends a control message.
    ///
    /// # Errors
    /// When the session has ended, or the other end does not take what was sent before.
    pub fn send(&self, control: Control) -> Result<(), SessionClosed> {
        let mut queue = self.shared.controls_out.lock();
        if self.is_closed() || queue.len() >= limits::CONTROLS_WAITING {
            return Err(SessionClosed);
        }
        queue.push_back(control);
        drop(queue);
        self.shared.mux.wake_driver();
        Ok(())
    }

    /// Takes no new exchange from here on; those that are open go on.
    pub fn start_drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
    }

    /// Ends the session: what was sent before still goes out, as far as the other end takes it
    /// within a second; then it is told why, and whatever is open is cut.
    pub fn close(&self, reason: CloseReason) {
        self.start_drain();
        self.shared.close.lock().get_or_insert(reason);
        self.shared.is_closing.store(true, Ordering::SeqCst);
        self.shared.mux.wake_driver();
    }

    /// The same, but whatever is open is cut at once: only control messages that were sent before
    /// still go out. For a session that has no right to go on.
    pub fn cut(&self, reason: CloseReason) {
        self.shared.is_cut.store(true, Ordering::SeqCst);
        self.close(reason);
    }

    /// Why the session has ended, or was asked to end by this side.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        let ended = self.shared.mux.ended();
        ended.or_else(|| *self.shared.close.lock())
    }

    /// Pings the other end now. If nothing is heard within about 2 s the session is suspect, and 12 s later it
    /// ends as dead. For callers that have cause to think that the path is gone. While no round trip was measured
    /// yet, only the ping intervals count.
    pub fn suspect(&self) {
        self.shared.is_asked_to_probe.store(true, Ordering::SeqCst);
        self.shared.mux.wake_driver();
    }

    /// Whether the other end is suspect: it was asked and is silent. What is open goes on, and may yet end well;
    /// new exchanges should go to another session if there is one.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.shared.is_suspect.load(Ordering::SeqCst)
    }

    /// Resolves with the new value when [`Self::is_suspect`] is no longer what the caller knows.
    pub async fn suspicion(&self, known: bool) -> bool {
        loop {
            let changed = self.shared.suspicion_changed.notified();
            let is_suspect = self.is_suspect();
            if is_suspect != known {
                return is_suspect;
            }
            changed.await;
        }
    }

    /// Whether both handles are of the same session.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether the session has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.has_ended.load(Ordering::SeqCst)
    }

    /// Whether a new exchange may be opened now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.shared.draining.load(Ordering::SeqCst) && !self.is_closed()
    }

    /// Resolves when the session has ended.
    pub async fn closed(&self) {
        loop {
            let notified = self.shared.at_rest.notified();
            if self.is_closed() {
                return;
            }
            notified.await;
        }
    }

    /// Resolves when no exchange is open, or the session has ended.
    pub async fn at_rest(&self) {
        loop {
            let notified = self.shared.at_rest.notified();
            if self.outstanding() == 0 || self.is_closed() {
                return;
            }
            notified.await;
        }
    }

    /// Exchanges that are open now.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.shared.outstanding.load(Ordering::SeqCst)
    }

    /// Streams that are there now: those of open exchanges, and those at rest between two.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.shared.mux.stream_count()
    }

    /// The round-trip time that the last pong showed.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        from_micros(&self.shared.round_trip)
    }

    /// The moving average of the round-trip times.
    #[must_use]
    pub fn smoothed_round_trip(&self) -> Option<Duration> {
        from_micros(&self.shared.smoothed_round_trip)
    }

    /// Bytes that were sent and received so far on the connection below, before TLS.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let load = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        (
            load(&self.shared.bytes_sent),
            load(&self.shared.bytes_received),
        )
    }

    /// Counts an exchange in, unless as many as allowed are open.
    pub(crate) fn enter(&self) -> Result<Outstanding, OpenError> {
        // Counted first, so that nobody who drains sees a session at rest in between.
        let entered = Outstanding::new(self.clone());
        if !self.is_open() {
            return Err(OpenError::Closed);
        }
        if self.outstanding() > self.shared.settings.exchanges.min(limits::EXCHANGES_MAX) {
            return Err(OpenError::TooMany);
        }
        Ok(entered)
    }

    /// Lets all users know that the other end has become suspect, or is no longer. Exchanges that wait for
    /// their answer are woken, so that they need not watch for it.
    fn set_suspect(&self, is_suspect: bool) {
        self.shared.is_suspect.store(is_suspect, Ordering::SeqCst);
        self.shared.suspicion_changed.notify_waiters();
        if is_suspect {
            self.shared.mux.wake_readers();
        }
    }

    /// Whether an exchange waits for its answer.
    pub(crate) fn has_unanswered(&self) -> bool {
        self.shared.unanswered.load(Ordering::Relaxed) > 0
    }

    /// A new stream for an exchange, when it is its turn.
    pub(crate) async fn open_stream(&self) -> Result<MuxStream, OpenError> {
        match self.shared.mux.open() {
            Ok(Opening::Open(stream)) => Ok(stream),
            Ok(Opening::Waiting(opening)) => opening.await.map_err(|_| OpenError::Closed),
            Err(_) => {
                // Nothing can be opened on it any more: another session has to take over.
                self.close(CloseReason::Internal);
                Err(OpenError::Closed)
            }
        }
    }

    pub(crate) fn idle(&self) -> &Mutex<Idle> {
        &self.shared.idle
    }

    /// Leaves nothing behind: called when the driver ends. Only the first reason counts.
    fn end(&self, reason: CloseReason) {
        // Whoever is woken by what follows must not think that it could be tried here again.
        self.start_drain();
        self.shared.mux.end(reason);
        self.shared.idle.lock().clear();
        self.shared.controls_out.lock().clear();
        self.shared.has_ended.store(true, Ordering::SeqCst);
        self.shared.at_rest.notify_waiters();
    }
}

fn from_micros(micros: &AtomicU64) -> Option<Duration> {
    let micros = micros.load(Ordering::Relaxed);
    (micros > 0).then(|| Duration::from_micros(micros))
}

/// One open exchange; counts itself out when dropped.
pub(crate) struct Outstanding {
    session: Session,
    is_answered: bool,
}

impl Outstanding {
    pub(crate) fn new(session: Session) -> Self {
        session.shared.outstanding.fetch_add(1, Ordering::SeqCst);
        session.shared.unanswered.fetch_add(1, Ordering::Relaxed);
        Self {
            session,
            is_answered: false,
        }
    }

    /// The other end has answered: nobody waits for a word of it any more.
    pub(crate) fn answered(&mut self) {
        if !self.is_answered {
            self.is_answered = true;
            let unanswered = &self.session.shared.unanswered;
            unanswered.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.answered();
        if self
            .session
            .shared
            .outstanding
            .fetch_sub(1, Ordering::SeqCst)
            == 1
        {
            self.session.shared.at_rest.notify_waiters();
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("side", &self.shared.side)
            .field("outstanding", &self.outstanding())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
