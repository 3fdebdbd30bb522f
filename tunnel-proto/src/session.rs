//! One session: an established WebSocket connection with the multiplexer in it.
//!
//! ```text
//!   exchanges ──open──▶ Session (handle) ──▶ mux ──▶ driver ──▶ websocket
//!   SessionEvents ◀─accepted streams, control messages─ driver ◀─ websocket
//! ```
//!
//! [`Session::new`] splits a connection into three: a cheap cloneable **handle**; the **driver**, a future
//! that only moves bytes and must be polled by one task; and the **events** that the driver delivers to the
//! session's owner. The session ends when its driver does; every stream, waiting exchange and queued
//! message ends with it.

pub(crate) mod acceptance;
pub(crate) mod driver;
pub(crate) mod events;
pub(crate) mod idle;
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
    liveness::SilenceLimits,
    mux::MuxError,
    probe::ProbeError,
    websocket::WebSocketError,
};
use self::{
    idle::IdleStreams,
    mux::{Mux, MuxStream, Opening},
    websocket::WebSocket,
};
use crate::{close::CloseReason, control::Control, limits, memory::MemoryAccount};

/// Which end of a session this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The tunnel server: opens the streams, sends the requests.
    Server,
    /// The tunnel client: accepts the streams, answers.
    Client,
}

/// Time between pings of a session, unless configured otherwise: a quarter of 60 s, the usual idle limit of proxies and
/// load balancers.
pub const DEFAULT_PING_INTERVAL: Duration = Duration::from_secs(15);

/// What each end can configure for a session.
#[derive(Debug, Clone, Copy)]
pub struct SessionSettings {
    /// Time between pings. A session on which nothing is received is dead after two intervals. If something
    /// was sent on it, it is silent and dead after the times of `silence`: usually 3 s and 15 s.
    pub ping_interval: Duration,
    /// Exchanges open at once, at most [`limits::EXCHANGES_MAX`].
    pub exchanges: usize,
    /// How long the other end may be silent after something was sent.
    pub silence: SilenceLimits,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            ping_interval: DEFAULT_PING_INTERVAL,
            exchanges: limits::EXCHANGES,
            silence: SilenceLimits::ANY_PATH,
        }
    }
}

/// The handle of one session. Clones refer to one session.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

/// A stream that the tunnel server has opened. It carries exchanges one after another.
pub struct AcceptedStream {
    pub(crate) stream: MuxStream,
    pub(crate) session: Session,
}

/// Why an exchange could not be opened. Nothing of the request has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The session has ended or is draining.
    #[error("the session has ended")]
    Closed,
    /// As many exchanges as allowed are open.
    #[error("the session has reached its limit of open exchanges")]
    TooMany,
}

/// The control message was not queued: the session has ended, or too many messages already wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session has ended")]
pub struct SessionClosed;

pub(crate) struct Shared {
    side: Side,
    settings: SessionSettings,
    mux: Arc<Mux>,
    /// Streams that wait for their next exchange, the most recently used last.
    idle: Mutex<IdleStreams>,
    /// Open exchanges.
    outstanding: AtomicUsize,
    /// Open exchanges without a response yet.
    unanswered: AtomicUsize,
    /// Notified when `outstanding` falls to zero, and when the session ends.
    at_rest: Notify,
    draining: AtomicBool,
    controls_out: Mutex<VecDeque<Control>>,
    close: Mutex<Option<CloseReason>>,
    /// Whether `close` is set. Read in each poll of the driver, without the lock.
    is_closing: AtomicBool,
    /// Open exchanges are cut at once instead of going on until the close.
    is_cut: AtomicBool,
    /// The driver has to send a ping at once.
    is_asked_to_ping: AtomicBool,
    /// The other end has not answered a ping in time.
    is_silent: AtomicBool,
    /// Notified when `is_silent` changes.
    silence_changed: Notify,
    has_ended: AtomicBool,
    /// In microseconds, as is the next; zero before the first measurement.
    round_trip: AtomicU64,
    smoothed_round_trip: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
}

impl Session {
    /// Takes over a connection after its WebSocket handshake. `leftover` holds bytes that were read past
    /// the end of the handshake.
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
            is_asked_to_ping: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            silence_changed: Notify::new(),
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

    /// Counts the session's received but unread bytes in `account`, which resets single streams when its
    /// limit is reached. Only the first call has an effect.
    pub fn set_account(&self, account: &Arc<MemoryAccount>) {
        self.shared.mux.set_account(account);
    }

    /// Queues a control message.
    ///
    /// # Errors
    /// When the session has ended, or [`limits::CONTROLS_WAITING`] messages wait because the other end does
    /// not read.
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

    /// Refuses new exchanges from now on. Open exchanges continue.
    pub fn start_drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
    }

    /// Ends the session. Bytes queued before are still sent, as far as the other end reads them within a
    /// second; then a close frame with `reason` follows, and open exchanges are cut. Only the first reason
    /// counts.
    pub fn close(&self, reason: CloseReason) {
        self.start_drain();
        self.shared.close.lock().get_or_insert(reason);
        self.shared.is_closing.store(true, Ordering::SeqCst);
        self.shared.mux.wake_driver();
    }

    /// Ends the session and cuts open exchanges at once: only control messages queued before are still
    /// sent. For a session that may no longer serve, such as one whose credential is revoked.
    pub fn cut(&self, reason: CloseReason) {
        self.shared.is_cut.store(true, Ordering::SeqCst);
        self.close(reason);
    }

    /// Why the session has ended, or why this end has begun to close it.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        let ended = self.shared.mux.ended();
        ended.or_else(|| *self.shared.close.lock())
    }

    /// Pings the other end now. If nothing is received within about 2 s the session is silent, and 12 s
    /// later it ends as dead. For callers with evidence that the path is lost, such as a changed network
    /// address. Before the first round trip is measured, only the ping intervals count.
    pub fn ping_now(&self) {
        self.shared.is_asked_to_ping.store(true, Ordering::SeqCst);
        self.shared.mux.wake_driver();
    }

    /// Whether the other end is silent: a ping was not answered in time. Open exchanges continue and may
    /// still complete; new ones should use another session if there is one.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.shared.is_silent.load(Ordering::SeqCst)
    }

    /// Resolves with the value of [`Self::is_silent`] once it differs from `known`.
    pub async fn silence_changed(&self, known: bool) -> bool {
        loop {
            let changed = self.shared.silence_changed.notified();
            let is_silent = self.is_silent();
            if is_silent != known {
                return is_silent;
            }
            changed.await;
        }
    }

    /// Whether both handles refer to one session.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Whether the session has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.has_ended.load(Ordering::SeqCst)
    }

    /// Whether new exchanges are accepted: the session has not ended and is not draining.
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

    /// Number of open exchanges.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.shared.outstanding.load(Ordering::SeqCst)
    }

    /// Number of streams: those of open exchanges and the idle ones.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.shared.mux.stream_count()
    }

    /// The last measured round-trip time; `None` before the first.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        from_micros(&self.shared.round_trip)
    }

    /// The moving average of the round-trip times; `None` before the first.
    #[must_use]
    pub fn smoothed_round_trip(&self) -> Option<Duration> {
        from_micros(&self.shared.smoothed_round_trip)
    }

    /// Bytes sent and received so far on the connection, as plaintext of TLS.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let load = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        (
            load(&self.shared.bytes_sent),
            load(&self.shared.bytes_received),
        )
    }

    /// Counts a new exchange until the returned value is dropped. Fails when the session takes no exchange,
    /// or as many as allowed are open.
    pub(crate) fn enter(&self) -> Result<Outstanding, OpenError> {
        // Counted before the check, so that a drain that starts in between does not find the session at
        // rest.
        let entered = Outstanding::new(self.clone());
        if !self.is_open() {
            return Err(OpenError::Closed);
        }
        if self.outstanding() > self.shared.settings.exchanges.min(limits::EXCHANGES_MAX) {
            return Err(OpenError::TooMany);
        }
        Ok(entered)
    }

    /// Publishes whether the other end is silent. When it has become so, wakes the exchanges that wait for
    /// a response, so that they need no watcher of their own.
    fn set_silent(&self, is_silent: bool) {
        self.shared.is_silent.store(is_silent, Ordering::SeqCst);
        self.shared.silence_changed.notify_waiters();
        if is_silent {
            self.shared.mux.wake_readers();
        }
    }

    /// Whether an exchange waits for its response.
    pub(crate) fn has_unanswered(&self) -> bool {
        self.shared.unanswered.load(Ordering::Relaxed) > 0
    }

    /// A new stream for an exchange. Waits in turn while too many new streams are unacknowledged.
    pub(crate) async fn open_stream(&self) -> Result<MuxStream, OpenError> {
        match self.shared.mux.open() {
            Ok(Opening::Open(stream)) => Ok(stream),
            Ok(Opening::Waiting(opening)) => opening.await.map_err(|_| OpenError::Closed),
            Err(_) => {
                // The stream ids are used up: another session has to take over.
                self.close(CloseReason::Internal);
                Err(OpenError::Closed)
            }
        }
    }

    pub(crate) fn idle(&self) -> &Mutex<IdleStreams> {
        &self.shared.idle
    }

    /// Releases all that the session holds, when its driver ends. Only the first reason counts.
    fn end(&self, reason: CloseReason) {
        // First, so that the tasks woken below do not try this session again.
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

/// Counts one open exchange until dropped.
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

    /// Records that the response has begun.
    pub(crate) fn set_answered(&mut self) {
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
        self.set_answered();
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
