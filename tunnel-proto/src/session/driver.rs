//! The driver: the one future that moves a session's bytes, control messages and pings.
//!
//! Each poll passes received WebSocket messages to the multiplexer, and sends what is queued there with one
//! flush. The driver never waits for a user of the session: a stream that its owner does not take is reset,
//! a control message that its owner does not take ends the session. It logs nothing. One timer serves all
//! deadlines: an earlier deadline moves it, a removed one does not, so that a busy session touches it about
//! once a second.

use std::{
    future::Future,
    hash::{BuildHasher, RandomState},
    mem,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    Session, Side,
    acceptance::{Acceptance, AcceptanceAction, Observation},
    events::EventSender,
    liveness::{Liveness, LivenessAction},
    mux::{MuxError, Opening},
    probe::Probe,
    websocket::{Received, WebSocket, WebSocketError},
};
use crate::{close::CloseReason, control::Control, limits};

/// Rounds in one poll, and bytes received in one round, so that a busy session cannot starve the other
/// tasks of its thread.
const ROUNDS: usize = 2;
const ROUND_BYTES: usize = limits::BATCH_BYTES;

/// Bytes that each received message counts for beside its content: about the cost of handling an empty one,
/// so that pings and empty messages use up a round too.
const MESSAGE_BYTES: usize = 256;

/// Time for sending what is queued before a close frame, and again for the other end to answer it.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// How a session ended. What it displays goes with the name of its [reason](SessionEnd::reason).
#[derive(Debug, thiserror::Error)]
pub enum SessionEnd {
    /// This end closed it.
    #[error("closed by this end")]
    Closed(CloseReason),
    /// The other end closed it.
    #[error("closed by the other end")]
    ClosedByPeer(CloseReason),
    /// Nothing was received for too long.
    #[error("nothing was received from the other end for too long")]
    Dead,
    /// The connection failed.
    #[error(transparent)]
    WebSocket(WebSocketError),
    /// The multiplexer ended.
    #[error(transparent)]
    Mux(MuxError),
    /// The other end broke the protocol of control messages.
    #[error("protocol broken: {0}")]
    Protocol(&'static str),
}

impl SessionEnd {
    /// The close reason that this end has sent or received, or that describes the failure.
    #[must_use]
    pub fn reason(&self) -> CloseReason {
        match self {
            Self::Closed(reason) | Self::ClosedByPeer(reason) => *reason,
            Self::Dead => CloseReason::Dead,
            Self::WebSocket(WebSocketError::Io(_)) => CloseReason::CONNECTION_LOST,
            Self::WebSocket(WebSocketError::Protocol(_)) | Self::Mux(_) | Self::Protocol(_) => {
                CloseReason::ProtocolError
            }
        }
    }
}

/// Moves the bytes of one session until it ends. Dropping it ends the session at once.
#[must_use = "a session lives only while its driver is polled"]
pub struct Driver<IO> {
    websocket: WebSocket<IO>,
    session: Session,
    /// `None` once the session ends.
    owner: Option<EventSender>,
    liveness: Liveness,
    /// The value of [`Liveness::is_silent`] that the other end was last notified of.
    hears_nothing: bool,
    /// Whether the other end has reported that it receives nothing from this one.
    is_unheard: bool,
    /// The value last published to the session's users.
    is_silent: bool,
    acceptance: Acceptance,
    /// A probe of the tunnel client that is not accepted yet.
    probe: Option<Probe>,
    timer: Pin<Box<Sleep>>,
    /// Runs once a close is requested: limits the wait for queued bytes to be sent.
    close_timer: Option<Pin<Box<Sleep>>>,
    unknown_controls: usize,
    /// The key of the hashes in ping payloads.
    ping_key: RandomState,
    state: State,
}

/// The result of sending.
struct SendOutcome {
    /// Whether anything was queued for the socket.
    any: bool,
    /// Whether the socket has taken everything.
    all: bool,
}

enum State {
    Running,
    /// The close handshake is under way: why the session ends, and the time-out of the handshake.
    Closing(SessionEnd, Pin<Box<Sleep>>),
    Ended,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Driver<IO> {
    pub(super) fn new(websocket: WebSocket<IO>, session: Session, owner: EventSender) -> Self {
        let now = Instant::now();
        Self {
            websocket,
            liveness: Liveness::new(
                session.shared.settings.ping_interval,
                session.shared.settings.silence,
                now,
            ),
            hears_nothing: false,
            is_unheard: false,
            is_silent: false,
            acceptance: Acceptance::new(now),
            probe: None,
            session,
            owner: Some(owner),
            timer: Box::pin(sleep_until(now)),
            close_timer: None,
            unknown_controls: 0,
            ping_key: RandomState::new(),
            state: State::Running,
        }
    }

    /// The work of one poll while the session runs; `Err` when it has to end.
    fn run(&mut self, cx: &mut Context<'_>) -> Result<(), SessionEnd> {
        for _ in 0..ROUNDS {
            self.tick(cx)?;
            let received = self.receive(cx)?;
            self.session
                .shared
                .mux
                .open_waiting()
                .map_err(SessionEnd::Mux)?;
            let sent = self.send(cx)?;
            if let Some(reason) = self.requested_cut().filter(|_| sent.all) {
                // Nothing that is received from now on has a reader.
                return Err(SessionEnd::Closed(reason));
            }
            if sent.any || received {
                continue;
            }
            return match self.requested_close() {
                Some(reason) if sent.all => Err(SessionEnd::Closed(reason)),
                _ => Ok(()),
            };
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn requested_close(&self) -> Option<CloseReason> {
        let shared = &self.session.shared;
        let is_closing = shared.is_closing.load(Ordering::SeqCst);
        is_closing.then(|| *shared.close.lock()).flatten()
    }

    fn requested_cut(&self) -> Option<CloseReason> {
        let is_cut = self.session.shared.is_cut.load(Ordering::SeqCst);
        self.requested_close().filter(|_| is_cut)
    }

    /// Handles expired timers. Runs first in each poll, because a peer that sends without end uses up
    /// Tokio's cooperative budget of the task, and timers need it too.
    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), SessionEnd> {
        if let Some(reason) = self.requested_close() {
            let mux = &self.session.shared.mux;
            if self.requested_cut().is_some() && mux.ended().is_none() {
                mux.end(reason);
                self.probe = None;
            }
            let start = || Box::pin(sleep_until(Instant::now() + CLOSE_TIME));
            let close_timer = self.close_timer.get_or_insert_with(start);
            if close_timer.as_mut().poll(cx).is_ready() {
                return Err(SessionEnd::Closed(reason));
            }
        }
        let is_asked = &self.session.shared.is_asked_to_ping;
        if is_asked.load(Ordering::SeqCst) && is_asked.swap(false, Ordering::SeqCst) {
            let now = Instant::now();
            self.liveness.ping_now(now);
            self.timer.as_mut().reset(now);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let next = self.on_time(cx)?;
            self.timer.as_mut().reset(next);
        }
        Ok(())
    }

    /// Performs the due action and returns the next deadline.
    fn on_time(&mut self, cx: &mut Context<'_>) -> Result<Instant, SessionEnd> {
        let mut now = Instant::now();
        self.check_awaited_response();
        let mut action = self.liveness.on_time(now);
        // Bytes that arrived or left while this thread was busy are processed before the session is taken for silent or
        // ended.
        if matches!(action, LivenessAction::Silent | LivenessAction::Dead)
            && (self.receive(cx)? | self.flush(cx).1)
        {
            now = Instant::now();
            action = self.liveness.on_time(now);
        }
        match action {
            LivenessAction::Nothing => {}
            LivenessAction::Silent => self.liveness.become_silent(now),
            LivenessAction::ExtraPing(number) => self.send_ping(number)?,
            LivenessAction::Ping(number) => {
                self.send_ping(number)?;
                self.session.shared.idle.lock().trim();
                self.session.shared.mux.trim();
                self.websocket.trim();
            }
            LivenessAction::Dead => return Err(SessionEnd::Dead),
        }
        self.publish_silence();
        let next = self.liveness.deadline();
        let check = self.check_acceptance(cx, now)?;
        Ok(check.map_or(next, |check| check.min(next)))
    }

    /// Publishes whether the session is silent, if that has changed: because this end receives nothing, or
    /// because the other end reports so. The other end is notified of the former, since only one direction
    /// may be lost.
    fn publish_silence(&mut self) {
        let hears_nothing = self.liveness.is_silent();
        if hears_nothing != self.hears_nothing {
            self.hears_nothing = hears_nothing;
            // Fails only when too many messages wait, and the session is then about to end.
            let _ = self.session.send(Control::Unheard {
                is_over: !hears_nothing,
            });
        }
        let is_silent = hears_nothing || self.is_unheard;
        if is_silent != self.is_silent {
            self.is_silent = is_silent;
            self.session.set_silent(is_silent);
        }
    }

    /// The payload of the ping with this number: the number and a keyed hash of it. The hash keeps a peer
    /// from sending a pong before its ping has arrived, which would make the round trip look shorter than
    /// it is.
    fn ping_payload(&self, number: u64) -> [u8; 16] {
        let mut payload = [0; 16];
        payload[..8].copy_from_slice(&number.to_be_bytes());
        payload[8..].copy_from_slice(&self.ping_key.hash_one(number).to_be_bytes());
        payload
    }

    fn send_ping(&mut self, number: u64) -> Result<(), SessionEnd> {
        let payload = Bytes::copy_from_slice(&self.ping_payload(number));
        self.websocket
            .send_ping(payload)
            .map_err(SessionEnd::WebSocket)
    }

    /// While an exchange waits for its response, silence alone causes a ping. Called when a timer fires
    /// or bytes arrive, never once for each exchange; sending a request has set the timer.
    fn check_awaited_response(&mut self) {
        if self.session.shared.side == Side::Server && self.session.has_unanswered() {
            self.liveness.on_response_awaited();
        }
    }

    /// Checks whether the tunnel client accepts exchanges, and returns when to check again. Each exchange
    /// sends something, which sets the timer, so a check when the timer fires is enough.
    fn check_acceptance(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Result<Option<Instant>, SessionEnd> {
        if self.session.shared.side == Side::Client {
            return Ok(None);
        }
        let mut action = self.acceptance.on_time(now, &self.observe());
        // As before the session is declared dead: what has arrived is processed first.
        if action == AcceptanceAction::Wedged && self.receive(cx)? {
            action = self.acceptance.on_time(Instant::now(), &self.observe());
        }
        match action {
            AcceptanceAction::Idle => Ok(None),
            AcceptanceAction::CheckAt(at) => Ok(Some(at)),
            AcceptanceAction::Probe(next) => {
                // If none can be opened, others wait to be accepted, and serve as the probe.
                if let Ok(Opening::Open(stream)) = self.session.shared.mux.open() {
                    self.probe = Some(Probe::new(stream));
                }
                Ok(Some(next))
            }
            AcceptanceAction::Wedged => Err(SessionEnd::Closed(CloseReason::Wedged)),
        }
    }

    fn observe(&self) -> Observation {
        let round_trips = self.liveness.round_trips();
        Observation {
            waiting_since: self.session.shared.mux.waiting_since(),
            arrived_until: self.liveness.arrived_until(),
            round_trip: round_trips.map_or(Duration::ZERO, |all| all.slowest),
            has_exchanges: self.session.outstanding() > 0,
            is_probing: self.probe.is_some(),
        }
    }

    /// Takes the probe's result, if it is there. Acceptance and reset both show that the client is not wedged.
    fn poll_probe(&mut self, cx: &mut Context<'_>) {
        if let Some(probe) = &mut self.probe
            && let Poll::Ready(answer) = probe.poll(cx)
            && let Some(probe) = self.probe.take()
            && answer.is_ok()
        {
            probe.rest(&self.session);
        }
    }

    /// Handles received messages until there are none or the round is used up; whether there were any.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, SessionEnd> {
        let mut received_at = None;
        let (mut work, mut has_data) = (0, false);
        while work < ROUND_BYTES {
            let Poll::Ready(message) = self.websocket.poll_receive(cx) else {
                break;
            };
            if received_at.is_none() {
                let now = Instant::now();
                if self.liveness.on_received(now) {
                    self.check_awaited_response();
                    self.advance_timer();
                }
                self.publish_silence();
                received_at = Some(now);
            }
            work += MESSAGE_BYTES;
            match message {
                Some(Ok(Received::Data(data))) => {
                    work += data.len();
                    has_data |= !data.is_empty();
                    self.on_data(data)?;
                }
                Some(Ok(Received::Control(text))) => {
                    work += text.len();
                    self.on_control(&text)?;
                }
                Some(Ok(Received::Part | Received::Ping(_))) => {}
                Some(Ok(Received::Pong(payload))) => self.on_pong(&payload),
                Some(Ok(Received::Close(reason))) => {
                    let reason = reason.unwrap_or(CloseReason::Other(1005));
                    return Err(SessionEnd::ClosedByPeer(reason));
                }
                Some(Err(error)) => return Err(SessionEnd::WebSocket(error)),
                None => return Err(SessionEnd::ClosedByPeer(CloseReason::CONNECTION_LOST)),
            }
        }
        if let Some(received_at) = received_at.filter(|_| has_data) {
            self.acceptance.on_moved(received_at);
            self.poll_probe(cx);
        }
        Ok(received_at.is_some())
    }

    fn on_pong(&mut self, payload: &[u8]) {
        let Some(number) = payload.first_chunk().copied().map(u64::from_be_bytes) else {
            return;
        };
        if payload == self.ping_payload(number)
            && self.liveness.on_pong(number, Instant::now())
            && let Some(times) = self.liveness.round_trips()
        {
            let shared = &self.session.shared;
            shared.mux.set_round_trip(times.last);
            let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            let store = |to: &AtomicU64, time| to.store(micros(time).max(1), Ordering::Relaxed);
            store(&shared.round_trip, times.last);
            store(&shared.smoothed_round_trip, times.smoothed);
        }
    }

    fn on_control(&mut self, text: &str) -> Result<(), SessionEnd> {
        let control = Control::decode(text)
            .map_err(|_| SessionEnd::Protocol("an unreadable control message"))?;
        if control == Control::Unknown {
            self.unknown_controls += 1;
            return if self.unknown_controls > limits::CONTROLS_UNKNOWN {
                Err(SessionEnd::Protocol(
                    "too many control messages of unknown kind",
                ))
            } else {
                Ok(())
            };
        }
        if let Control::Unheard { is_over } = control {
            self.is_unheard = !is_over;
            self.publish_silence();
            return Ok(());
        }
        let Some(owner) = &self.owner else {
            return Ok(());
        };
        owner
            .control(control)
            .map_err(|_| SessionEnd::Protocol("more control messages than are handled"))
    }

    fn on_data(&self, data: Bytes) -> Result<(), SessionEnd> {
        let mux = &self.session.shared.mux;
        let accept = |stream| {
            if let Some(owner) = &self.owner {
                owner.stream(stream);
            }
        };
        mux.receive(data, accept).map_err(SessionEnd::Mux)
    }

    /// Sends what is queued, until the socket takes no more.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<SendOutcome, SessionEnd> {
        let mut any = false;
        loop {
            match self.flush(cx).0 {
                Poll::Ready(flushed) => flushed.map_err(SessionEnd::WebSocket)?,
                Poll::Pending => return Ok(SendOutcome { any, all: false }),
            }
            let bytes = self.queue_next()?;
            if bytes == 0 {
                return Ok(SendOutcome { any, all: true });
            }
            any = true;
            if self.liveness.on_sent(bytes, Instant::now()) {
                self.advance_timer();
            }
        }
    }

    /// Flushes what was already passed to the WebSocket; the second value says whether a full socket has
    /// taken more bytes.
    fn flush(&mut self, cx: &mut Context<'_>) -> (Poll<Result<(), WebSocketError>>, bool) {
        let flushed = self.websocket.poll_flush(cx);
        let has_resumed = self.websocket.has_resumed();
        if has_resumed {
            let now = Instant::now();
            if self.liveness.on_socket_resumed(now) {
                self.advance_timer();
            }
            self.acceptance.on_moved(now);
        }
        (flushed, has_resumed)
    }

    /// Moves the timer to the next deadline of the liveness check, if that is earlier.
    fn advance_timer(&mut self) {
        let deadline = self.liveness.deadline();
        if self.timer.deadline() > deadline {
            self.timer.as_mut().reset(deadline);
        }
    }

    /// Passes all waiting control messages and about a batch of stream data to the WebSocket; returns the
    /// number of bytes.
    fn queue_next(&mut self) -> Result<usize, SessionEnd> {
        let mut control_bytes = 0;
        let mut controls = self.session.shared.controls_out.lock();
        // Gives back its memory too, since control messages are rare.
        for control in mem::take(&mut *controls) {
            let text = control.encode();
            control_bytes += text.len();
            self.websocket
                .send_control(text)
                .map_err(SessionEnd::WebSocket)?;
        }
        drop(controls);
        let mut bytes = 0;
        while bytes < limits::BATCH_BYTES
            && let Some(batch) = self.session.shared.mux.take()
        {
            bytes += batch.len();
            self.websocket
                .send_data(batch)
                .map_err(SessionEnd::WebSocket)?;
        }
        Ok(control_bytes + bytes)
    }

    /// Publishes the byte counts.
    fn publish_byte_counts(&self) {
        let shared = &self.session.shared;
        let (sent, received) = self.websocket.bytes();
        shared.bytes_sent.store(sent, Ordering::Relaxed);
        shared.bytes_received.store(received, Ordering::Relaxed);
    }

    /// Ends the session and starts the close handshake that the cause calls for.
    fn begin_close(&mut self, end: SessionEnd) -> State {
        self.session.end(end.reason());
        self.owner = None;
        self.probe = None;
        let lost = matches!(
            end,
            SessionEnd::Dead | SessionEnd::WebSocket(WebSocketError::Io(_))
        );
        if lost {
            // This direction may still work, so a close frame is sent, without waiting for the answer.
            let _ = self.websocket.send_close(end.reason());
            return State::Closing(end, Box::pin(sleep_until(Instant::now())));
        }
        if !matches!(end, SessionEnd::ClosedByPeer(_)) {
            let _ = self.websocket.send_close(end.reason());
        }
        State::Closing(end, Box::pin(sleep_until(Instant::now() + CLOSE_TIME)))
    }

    /// Ready when the close handshake is complete or its time-out has passed.
    fn poll_close(&mut self, cx: &mut Context<'_>, timeout: &mut Pin<Box<Sleep>>) -> Poll<()> {
        // The time-out first, for the reason given at `tick`; but one attempt is always made.
        let is_over = timeout.as_mut().poll(cx).is_ready();
        let closed = self.websocket.poll_close(cx);
        if is_over { Poll::Ready(()) } else { closed }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Future for Driver<IO> {
    type Output = SessionEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        let this = &mut *self;
        this.session.shared.mux.register_driver(cx.waker());
        if matches!(this.state, State::Running) {
            let ran = this.run(cx);
            this.publish_byte_counts();
            match ran {
                Ok(()) => return Poll::Pending,
                Err(end) => this.state = this.begin_close(end),
            }
        }
        match mem::replace(&mut this.state, State::Ended) {
            State::Closing(end, mut timeout) => match this.poll_close(cx, &mut timeout) {
                Poll::Ready(()) => Poll::Ready(end),
                Poll::Pending => {
                    this.state = State::Closing(end, timeout);
                    Poll::Pending
                }
            },
            State::Running | State::Ended => Poll::Pending,
        }
    }
}

impl<IO> Drop for Driver<IO> {
    fn drop(&mut self) {
        // No close frame was exchanged, unless the session has ended in order before.
        let reason = self.session.close_reason();
        self.session
            .end(reason.unwrap_or(CloseReason::CONNECTION_LOST));
    }
}
