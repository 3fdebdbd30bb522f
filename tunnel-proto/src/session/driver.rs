//! The driver: the one future that moves a session's bytes, control messages and pings.
//!
//! Each poll hands what the WebSocket has received to the multiplexer, and sends what waits there with
//! one flush. It never waits for anybody who uses the session: a stream
//! nobody takes is reset, a control message nobody takes ends the session. It logs nothing.
//! One timer serves all that has to be done in time: a deadline that comes nearer moves it, one that
//! goes away does not, so that a busy session touches it about once a second.

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
    acceptance::{Acceptance, Seen, Step},
    events::Owner,
    liveness::{Due, Liveness},
    mux::{MuxError, Opening},
    probe::Probe,
    websocket::{Received, WebSocket, WebSocketError},
};
use crate::{close::CloseReason, control::Control, limits};

/// Rounds in one poll, and bytes received in one round, so that a busy session cannot keep its thread
/// from the others.
const ROUNDS: usize = 2;
const ROUND_BYTES: usize = limits::BATCH_BYTES;

/// What each received message counts as beside its content, in bytes: about what taking an empty one costs,
/// so that pings and empty messages use up a round too.
const MESSAGE_BYTES: usize = 256;

/// How long the other end may take to answer a close frame.
const FAREWELL: Duration = Duration::from_secs(1);

/// How a session ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionEnd {
    /// This end closed it.
    #[error("closed by this end: {}", .0.name())]
    Closed(CloseReason),
    /// The other end closed it.
    #[error("closed by the other end: {}", .0.name())]
    ClosedByPeer(CloseReason),
    /// Nothing was heard for too long.
    #[error("nothing was heard from the other end for too long")]
    Dead,
    /// The connection under it failed.
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
    /// The close reason that this end tells, or was told.
    #[must_use]
    pub fn reason(&self) -> CloseReason {
        match self {
            Self::Closed(reason) | Self::ClosedByPeer(reason) => *reason,
            Self::Dead => CloseReason::Dead,
            Self::WebSocket(WebSocketError::Io(_)) => CloseReason::Other(1006),
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
    owner: Option<Owner>,
    liveness: Liveness,
    /// What [`Liveness::is_suspect`] said when the other end was told last.
    is_silent: bool,
    /// The other end has said that it hears nothing of this one.
    is_unheard: bool,
    /// Whether the session's users were told that it is suspect.
    is_suspect: bool,
    acceptance: Acceptance,
    /// A stream that was opened to see whether it is accepted.
    probe: Option<Probe>,
    timer: Pin<Box<Sleep>>,
    /// Until when a close waits for what is on its way out.
    patience: Option<Pin<Box<Sleep>>>,
    unknown_controls: usize,
    /// Makes the payloads of pings.
    ping_key: RandomState,
    state: State,
}

/// What came of sending.
struct Sent {
    any: bool,
    /// Nothing is left for the socket to take.
    all: bool,
}

enum State {
    Running,
    /// A close frame is on its way; this is why, and until when the other end may answer it.
    Closing(SessionEnd, Pin<Box<Sleep>>),
    Ended,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Driver<IO> {
    pub(super) fn new(websocket: WebSocket<IO>, session: Session, owner: Owner) -> Self {
        let now = Instant::now();
        Self {
            websocket,
            liveness: Liveness::new(session.shared.settings.ping_interval, now),
            is_silent: false,
            is_unheard: false,
            is_suspect: false,
            acceptance: Acceptance::new(now),
            probe: None,
            session,
            owner: Some(owner),
            timer: Box::pin(sleep_until(now)),
            patience: None,
            unknown_controls: 0,
            ping_key: RandomState::new(),
            state: State::Running,
        }
    }

    /// One poll's work while the session lives; `Err` when it has to end.
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
            if let Some(reason) = self.asked_to_cut().filter(|_| sent.all) {
                // Whatever else comes, nobody takes it any more.
                return Err(SessionEnd::Closed(reason));
            }
            if sent.any || received {
                continue;
            }
            return match self.asked_to_close() {
                Some(reason) if sent.all => Err(SessionEnd::Closed(reason)),
                _ => Ok(()),
            };
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    fn asked_to_close(&self) -> Option<CloseReason> {
        let shared = &self.session.shared;
        let is_closing = shared.is_closing.load(Ordering::SeqCst);
        is_closing.then(|| *shared.close.lock()).flatten()
    }

    fn asked_to_cut(&self) -> Option<CloseReason> {
        let is_cut = self.session.shared.is_cut.load(Ordering::SeqCst);
        self.asked_to_close().filter(|_| is_cut)
    }

    /// Does what the time calls for. Before anything else, because a peer that sends without end
    /// uses up what the runtime allows one poll to do, timers included.
    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), SessionEnd> {
        if let Some(reason) = self.asked_to_close() {
            let mux = &self.session.shared.mux;
            if self.asked_to_cut().is_some() && mux.ended().is_none() {
                mux.end(reason);
                self.probe = None;
            }
            let until = || Box::pin(sleep_until(Instant::now() + FAREWELL));
            let patience = self.patience.get_or_insert_with(until);
            if patience.as_mut().poll(cx).is_ready() {
                return Err(SessionEnd::Closed(reason));
            }
        }
        let is_asked = &self.session.shared.is_asked_to_probe;
        if is_asked.load(Ordering::SeqCst) && is_asked.swap(false, Ordering::SeqCst) {
            let now = Instant::now();
            self.liveness.suspect(now);
            self.timer.as_mut().reset(now);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let next = self.on_time(cx)?;
            self.timer.as_mut().reset(next);
        }
        Ok(())
    }

    /// Does what is due; the time for which the timer is to be set next.
    fn on_time(&mut self, cx: &mut Context<'_>) -> Result<Instant, SessionEnd> {
        let mut now = Instant::now();
        self.suspect_if_waited_for();
        let mut due = self.liveness.on_time(now);
        // What came, or went, while this thread was busy elsewhere is to be seen first.
        if matches!(due, Due::Suspect | Due::Dead) && (self.receive(cx)? | self.flush(cx).1) {
            now = Instant::now();
            due = self.liveness.on_time(now);
        }
        match due {
            Due::Nothing => {}
            Due::Suspect => self.liveness.become_suspect(now),
            Due::Probe(number) => self.send_ping(number)?,
            Due::Ping(number) => {
                self.send_ping(number)?;
                self.session.shared.idle.lock().trim();
                self.session.shared.mux.trim();
                self.websocket.trim();
            }
            Due::Dead => return Err(SessionEnd::Dead),
        }
        self.publish_suspicion();
        let next = self.liveness.deadline();
        let look = self.look_at_acceptance(cx, now)?;
        Ok(look.map_or(next, |look| look.min(next)))
    }

    /// Lets the session's users know whether it is suspect, if that has changed: because this end hears nothing of the
    /// other one, or the other way round. The other end is told of the former, as one direction may be open.
    fn publish_suspicion(&mut self) {
        let is_silent = self.liveness.is_suspect();
        if is_silent != self.is_silent {
            self.is_silent = is_silent;
            // A session that takes no more messages ends anyway.
            let _ = self.session.send(Control::Unheard {
                is_over: !is_silent,
            });
        }
        let is_suspect = is_silent || self.is_unheard;
        if is_suspect != self.is_suspect {
            self.is_suspect = is_suspect;
            self.session.set_suspect(is_suspect);
        }
    }

    /// The payload of the ping with this number: the number, and a keyed hash of it. Without the hash of a ping that
    /// has not arrived, a peer could send its pong ahead, and look nearer than it is.
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

    /// While an exchange waits for its answer, silence is suspicious. Asked by the clock, which each
    /// exchange has set by what it sent, and after a suspicion: never for a single exchange.
    fn suspect_if_waited_for(&mut self) {
        if self.session.shared.side == Side::Server && self.session.has_unanswered() {
            self.liveness.on_waited_for();
        }
    }

    /// Looks whether the tunnel client takes exchanges; when to look again. Each exchange sends
    /// something, for which the timer is set: so it is enough to look when that has come.
    fn look_at_acceptance(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Result<Option<Instant>, SessionEnd> {
        if self.session.shared.side == Side::Client {
            return Ok(None);
        }
        let mut step = self.acceptance.on_time(now, &self.seen());
        // As before a death.
        if step == Step::Wedged && self.receive(cx)? {
            step = self.acceptance.on_time(Instant::now(), &self.seen());
        }
        match step {
            Step::Rest => Ok(None),
            Step::Until(look) => Ok(Some(look)),
            Step::Ask(look) => {
                // Where none can be opened, others wait to be accepted, and tell as much.
                if let Ok(Opening::Open(stream)) = self.session.shared.mux.open() {
                    self.probe = Some(Probe::new(stream));
                }
                Ok(Some(look))
            }
            Step::Wedged => Err(SessionEnd::Closed(CloseReason::Wedged)),
        }
    }

    fn seen(&self) -> Seen {
        let round_trips = self.liveness.round_trips();
        Seen {
            waiting_since: self.session.shared.mux.waiting_since(),
            arrived_until: self.liveness.arrived_until(),
            round_trip: round_trips.map_or(Duration::ZERO, |all| all.slowest),
            has_exchanges: self.session.outstanding() > 0,
            is_asking: self.probe.is_some(),
        }
    }

    /// Whether the stream that was opened to ask is accepted. If it is reset, the client lives too.
    fn look_at_probe(&mut self, cx: &mut Context<'_>) {
        if let Some(probe) = &mut self.probe
            && let Poll::Ready(answer) = probe.poll(cx)
            && let Some(probe) = self.probe.take()
            && answer.is_ok()
        {
            probe.rest(&self.session);
        }
    }

    /// Takes messages until there are none, or others should have their turn.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, SessionEnd> {
        let mut heard_at = None;
        let (mut work, mut has_data) = (0, false);
        while work < ROUND_BYTES {
            let Poll::Ready(message) = self.websocket.poll_receive(cx) else {
                break;
            };
            if heard_at.is_none() {
                let now = Instant::now();
                if self.liveness.on_heard(now) {
                    self.suspect_if_waited_for();
                    self.hasten();
                }
                self.publish_suspicion();
                heard_at = Some(now);
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
                Some(Ok(Received::Ping(_))) => {}
                Some(Ok(Received::Pong(payload))) => self.on_pong(&payload),
                Some(Ok(Received::Close(reason))) => {
                    let reason = reason.unwrap_or(CloseReason::Other(1005));
                    return Err(SessionEnd::ClosedByPeer(reason));
                }
                Some(Err(error)) => return Err(SessionEnd::WebSocket(error)),
                None => return Err(SessionEnd::ClosedByPeer(CloseReason::Other(1006))),
            }
        }
        if let Some(heard_at) = heard_at.filter(|_| has_data) {
            self.acceptance.on_moved(heard_at);
            self.look_at_probe(cx);
        }
        Ok(heard_at.is_some())
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
            .map_err(|_| SessionEnd::Protocol("a control message that cannot be read"))?;
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
            self.publish_suspicion();
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

    /// Sends what is queued, as long as the socket takes it.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<Sent, SessionEnd> {
        let mut any = false;
        loop {
            match self.flush(cx).0 {
                Poll::Ready(flushed) => flushed.map_err(SessionEnd::WebSocket)?,
                Poll::Pending => return Ok(Sent { any, all: false }),
            }
            let bytes = self.queue_next()?;
            if bytes == 0 {
                return Ok(Sent { any, all: true });
            }
            any = true;
            if self.liveness.on_sent(bytes, Instant::now()) {
                self.hasten();
            }
        }
    }

    /// Writes what the socket takes of what it did not before; and whether it did take more.
    fn flush(&mut self, cx: &mut Context<'_>) -> (Poll<Result<(), WebSocketError>>, bool) {
        let flushed = self.websocket.poll_flush(cx);
        let has_taken = self.websocket.has_taken();
        if has_taken {
            let now = Instant::now();
            if self.liveness.on_taken(now) {
                self.hasten();
            }
            self.acceptance.on_moved(now);
        }
        (flushed, has_taken)
    }

    /// Has the timer ring no later than there is something to do.
    fn hasten(&mut self) {
        let deadline = self.liveness.deadline();
        if self.timer.deadline() > deadline {
            self.timer.as_mut().reset(deadline);
        }
    }

    /// Queues all waiting control messages and about a batch of bytes; how many bytes in all.
    fn queue_next(&mut self) -> Result<usize, SessionEnd> {
        let mut control_bytes = 0;
        let mut controls = self.session.shared.controls_out.lock();
        // With its space, since hardly any come.
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

    /// Lets the owner see how many bytes there were.
    fn tell_bytes(&self) {
        let shared = &self.session.shared;
        let (sent, received) = self.websocket.bytes();
        shared.bytes_sent.store(sent, Ordering::Relaxed);
        shared.bytes_received.store(received, Ordering::Relaxed);
    }

    /// From a cause to the farewell that it calls for.
    fn begin_close(&mut self, end: SessionEnd) -> State {
        self.session.end(end.reason());
        self.owner = None;
        self.probe = None;
        let lost = matches!(
            end,
            SessionEnd::Dead | SessionEnd::WebSocket(WebSocketError::Io(_))
        );
        if lost {
            // Told all the same, should the way be open in this direction; but nobody waits.
            let _ = self.websocket.send_close(end.reason());
            return State::Closing(end, Box::pin(sleep_until(Instant::now())));
        }
        if !matches!(end, SessionEnd::ClosedByPeer(_)) {
            let _ = self.websocket.send_close(end.reason());
        }
        State::Closing(end, Box::pin(sleep_until(Instant::now() + FAREWELL)))
    }

    /// Until the close frame is out and the other end has closed too, or its time is over.
    fn poll_farewell(&mut self, cx: &mut Context<'_>, until: &mut Pin<Box<Sleep>>) -> Poll<()> {
        // The time first, for the reason given at `tick`; but one attempt is always made.
        let is_over = until.as_mut().poll(cx).is_ready();
        let farewell = self.websocket.poll_farewell(cx);
        if is_over { Poll::Ready(()) } else { farewell }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Future for Driver<IO> {
    type Output = SessionEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        let this = &mut *self;
        this.session.shared.mux.register_driver(cx.waker());
        if matches!(this.state, State::Running) {
            let ran = this.run(cx);
            this.tell_bytes();
            match ran {
                Ok(()) => return Poll::Pending,
                Err(end) => this.state = this.begin_close(end),
            }
        }
        match mem::replace(&mut this.state, State::Ended) {
            State::Closing(end, mut until) => match this.poll_farewell(cx, &mut until) {
                Poll::Ready(()) => Poll::Ready(end),
                Poll::Pending => {
                    this.state = State::Closing(end, until);
                    Poll::Pending
                }
            },
            State::Running | State::Ended => Poll::Pending,
        }
    }
}

impl<IO> Drop for Driver<IO> {
    fn drop(&mut self) {
        // Without a word, unless it has ended in order before.
        let reason = self.session.close_reason();
        self.session.end(reason.unwrap_or(CloseReason::Other(1006)));
    }
}
