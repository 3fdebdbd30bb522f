//! The driver: the one future that moves a session's bytes, control messages and pings.
//!
//! Each poll hands what the WebSocket has received to the multiplexer, and sends what waits there with
//! one flush. It never waits for anybody who uses the session: a stream
//! nobody takes is reset, a control message nobody takes ends the session. It logs nothing.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, Sleep, sleep_until},
};

use super::{
    Session,
    events::Owner,
    liveness::{Due, Liveness},
    mux::MuxError,
    websocket::{Received, WebSocket, WebSocketError},
};
use crate::{close::CloseReason, control::Control, limits};

/// Rounds in one poll, and bytes received in one round, so that a busy session cannot keep its thread
/// from the others.
const ROUNDS: usize = 2;
const ROUND_BYTES: usize = limits::BATCH_BYTES;

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
    timer: Pin<Box<Sleep>>,
    /// Until when a close waits for what is on its way out.
    patience: Option<Pin<Box<Sleep>>>,
    unknown_controls: usize,
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
            session,
            owner: Some(owner),
            timer: Box::pin(sleep_until(now)),
            patience: None,
            unknown_controls: 0,
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
        *self.session.shared.close.lock()
    }

    /// Does what the time calls for. Before anything else, because a peer that sends without end
    /// uses up what the runtime allows one poll to do, timers included.
    fn tick(&mut self, cx: &mut Context<'_>) -> Result<(), SessionEnd> {
        if let Some(reason) = self.asked_to_close() {
            let until = || Box::pin(sleep_until(Instant::now() + FAREWELL));
            let patience = self.patience.get_or_insert_with(until);
            if patience.as_mut().poll(cx).is_ready() {
                return Err(SessionEnd::Closed(reason));
            }
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            match self.liveness.on_time(Instant::now()) {
                Due::Nothing => {}
                Due::Ping(number) => {
                    let payload = Bytes::copy_from_slice(&number.to_be_bytes());
                    self.websocket
                        .send_ping(payload)
                        .map_err(SessionEnd::WebSocket)?;
                    self.session.shared.idle.lock().trim();
                    self.session.shared.mux.trim();
                    self.websocket.trim();
                }
                Due::Dead => return Err(SessionEnd::Dead),
            }
            let deadline = self.liveness.deadline();
            self.timer.as_mut().reset(deadline);
        }
        Ok(())
    }

    /// Takes messages until there are none, or others should have their turn.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, SessionEnd> {
        let mut any = false;
        let mut bytes = 0;
        while bytes < ROUND_BYTES {
            let Poll::Ready(message) = self.websocket.poll_receive(cx) else {
                break;
            };
            if !any {
                self.liveness.on_heard(Instant::now());
            }
            any = true;
            match message {
                Some(Ok(Received::Data(data))) => {
                    bytes += data.len();
                    self.on_data(data)?;
                }
                Some(Ok(Received::Control(text))) => self.on_control(&text)?,
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
        Ok(any)
    }

    fn on_pong(&mut self, payload: &[u8]) {
        if let Some(time) = self.liveness.on_pong(payload, Instant::now()) {
            self.session.shared.mux.set_round_trip(time);
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
            self.session
                .shared
                .round_trip_micros
                .store(micros, Ordering::Relaxed);
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
            match self.websocket.poll_flush(cx) {
                Poll::Ready(flushed) => flushed.map_err(SessionEnd::WebSocket)?,
                Poll::Pending => return Ok(Sent { any, all: false }),
            }
            if !self.queue_next()? {
                return Ok(Sent { any, all: true });
            }
            any = true;
        }
    }

    /// Queues all waiting control messages and about a batch of bytes.
    fn queue_next(&mut self) -> Result<bool, SessionEnd> {
        let mut any = false;
        let mut controls = self.session.shared.controls_out.lock();
        for control in controls.drain(..) {
            self.websocket
                .send_control(control.encode())
                .map_err(SessionEnd::WebSocket)?;
            any = true;
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
        Ok(any || bytes > 0)
    }

    /// From a cause to the farewell that it calls for.
    fn begin_close(&mut self, end: SessionEnd) -> State {
        self.session.end();
        self.owner = None;
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
            match this.run(cx) {
                Ok(()) => return Poll::Pending,
                Err(end) => this.state = this.begin_close(end),
            }
        }
        match std::mem::replace(&mut this.state, State::Ended) {
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
        self.session.end();
    }
}
