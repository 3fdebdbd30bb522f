//! One session with the server, from its 101 to its end.
//!
//! ```text
//!   tunnel ─▶ Session::start ── hello ─▶ … ◀─ welcome ──┐
//!          ◀── next: drain, superseded, ended           │  one task runs the session, one moves its
//!          ──▶ leave: drain, rest, close                │  bytes, and each stream has its own
//! ```
//!
//! In: a connection that the server has accepted. Out: the few things that the server says which
//! concern the tunnel, and at last how it ended. It never dials, and knows nothing of what the
//! exchanges are about.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tunnel_ops::task::Owned;
use tunnel_proto::close::CloseReason;
use tunnel_proto::control::Control;
use tunnel_proto::exchange::serve;
use tunnel_proto::session::{
    Driver, Session as Handle, SessionEnd, SessionEvent, SessionEvents, SessionSettings, Side,
};

use crate::admin::LiveSession;
use crate::exchange::Exchanges;
use crate::metrics::Metrics;

/// Things the server said that wait for the tunnel. It says each once in a session's life.
const NOTICES: usize = 8;
/// Longest time for a session's end to be told and answered.
const FAREWELL: Duration = Duration::from_secs(2);
/// Bounds of the time for which a session that leaves has to be at rest: the server's last exchange
/// may be on its way while the server is told.
const QUIET: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What all sessions of a client have in common.
#[derive(Clone)]
pub(crate) struct SessionParts {
    /// Answers the exchanges.
    pub(crate) exchanges: Exchanges,
    /// Where a welcomed session counts.
    pub(crate) metrics: Arc<Metrics>,
    /// Of the wire.
    pub(crate) settings: SessionSettings,
    /// Time for the server to say welcome.
    pub(crate) welcome_limit: Duration,
}

/// A session that the server has welcomed.
pub(crate) struct Session {
    handle: Handle,
    notices: mpsc::Receiver<Notice>,
    task: Owned<Ended>,
    began: Instant,
    welcome: Welcome,
}

/// What the server said of a session when it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// The runtime's label.
    pub(crate) runtime: String,
    /// The session's id at the server.
    pub(crate) session: String,
    /// Version of the server.
    pub(crate) version: String,
}

/// What a tunnel has to know of a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The server wants this session to leave, the new one to be dialled within this time.
    Drain {
        /// Over which all clients of the server are to be spread.
        spread: Duration,
    },
    /// A newer instance holds the runtime.
    Superseded,
    /// It is over.
    Ended(Ended),
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    /// As the wire has it.
    pub(crate) reason: CloseReason,
    /// For a person.
    pub(crate) detail: String,
    /// How long it lasted.
    pub(crate) lived: Duration,
}

/// Why a session did not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotWelcome {
    /// It ended first.
    #[error("the session ended before it began: {}", .0.detail)]
    Ended(Ended),
    /// The server said nothing, or something else, for too long.
    #[error("the server did not say welcome within {0:?}")]
    Late(Duration),
}

/// What the session's task has to say.
enum Notice {
    Welcome(Welcome),
    Drain { spread: Duration },
    Superseded,
}

impl Session {
    /// Begins a session on a connection that the server has accepted. `unread` are bytes that were
    /// read past the 101.
    pub(crate) async fn start<IO>(
        io: IO,
        unread: Bytes,
        parts: &SessionParts,
    ) -> Result<Self, NotWelcome>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let began = Instant::now();
        let (handle, events, driver) = Handle::new(io, unread, Side::Client, parts.settings);
        // A session that has ended already says so below.
        let _ = handle.send(Control::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
        });
        let (notices_in, mut notices) = mpsc::channel(NOTICES);
        let running = run(handle.clone(), events, driver, parts.clone(), notices_in);
        let task = Owned::spawn("session", running);
        let welcomed = async {
            loop {
                match notices.recv().await {
                    Some(Notice::Welcome(welcome)) => return Some(welcome),
                    Some(Notice::Drain { .. } | Notice::Superseded) => {}
                    None => return None,
                }
            }
        };
        match timeout(parts.welcome_limit, welcomed).await {
            Ok(Some(welcome)) => Ok(Self {
                handle,
                notices,
                task,
                began,
                welcome,
            }),
            Ok(None) => Err(NotWelcome::Ended(ended(task.await, began))),
            Err(_) => {
                handle.close(CloseReason::ProtocolError);
                let _ = timeout(FAREWELL, task).await;
                Err(NotWelcome::Late(parts.welcome_limit))
            }
        }
    }

    /// What the server said when it began.
    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The next thing that the tunnel has to know.
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            match self.notices.recv().await {
                Some(Notice::Drain { spread }) => return Event::Drain { spread },
                Some(Notice::Superseded) => return Event::Superseded,
                Some(Notice::Welcome(_)) => {}
                None => return Event::Ended(ended((&mut self.task).await, self.began)),
            }
        }
    }

    /// Leaves without loss: the server sends nothing new, what is open ends, and only then, or when
    /// the grace period is over, the session does.
    pub(crate) async fn leave(self, grace: Duration) {
        let _ = self.handle.send(Control::Drain { spread_ms: None });
        tokio::select! {
            _ = timeout(grace, at_rest(&self.handle)) => {}
            () = self.handle.closed() => {}
        }
        let left = self.handle.outstanding();
        if left > 0 && !self.handle.is_closed() {
            tracing::warn!(
                exchanges = left,
                "the grace period is over, open exchanges are cut"
            );
        }
        self.handle.close(CloseReason::Left);
        let _ = timeout(FAREWELL, self.task).await;
    }
}

/// Returns when nothing is open, and nothing comes for a moment.
async fn at_rest(session: &Handle) {
    let (shortest, longest) = QUIET;
    loop {
        session.at_rest().await;
        let round_trip = session.round_trip().unwrap_or(longest / 2);
        sleep((round_trip * 2).clamp(shortest, longest)).await;
        if session.outstanding() == 0 {
            return;
        }
    }
}

/// Runs a session to its end.
async fn run<IO>(
    session: Handle,
    mut events: SessionEvents,
    driver: Driver<IO>,
    parts: SessionParts,
    notices: mpsc::Sender<Notice>,
) -> Ended
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let began = Instant::now();
    // A task of its own, since moving bytes must wait for nobody; without a span, which would be
    // entered for each of its many polls.
    let mut driving = JoinSet::new();
    driving.spawn(driver);
    let mut streams = JoinSet::new();
    let mut live = None;
    // There is a new round-trip time as often as there is a ping.
    let mut look = interval(parts.settings.ping_interval);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.next(&session) => match event {
                Some(SessionEvent::Exchanges(stream)) => {
                    let exchanges = parts.exchanges.clone();
                    let answer = move |request, informational| exchanges.answer(request, informational);
                    streams.spawn(serve(stream, answer));
                }
                Some(SessionEvent::Control(control)) => {
                    if matches!(control, Control::Welcome { .. }) && live.is_none() {
                        live = Some(LiveSession::begin(&parts.metrics));
                    }
                    on_control(control, &notices);
                }
                None => break,
            },
            Some(stream) = streams.join_next() => {
                // The stream is reset by then: a panic costs its exchange, and nothing else.
                if stream.is_err_and(|error: JoinError| error.is_panic()) {
                    tracing::error!("an exchange panicked");
                }
            }
            _ = look.tick() => {
                if let Some(time) = session.round_trip() {
                    parts.metrics.on_round_trip(time);
                }
            }
        }
    }
    drop(live);
    match driving.join_next().await {
        Some(Ok(end)) => Ended::new(&end, began.elapsed()),
        Some(Err(_)) | None => Ended {
            reason: CloseReason::Internal,
            detail: "the session's driver panicked".to_owned(),
            lived: began.elapsed(),
        },
    }
}

fn on_control(control: Control, notices: &mpsc::Sender<Notice>) {
    let notice = match control {
        Control::Welcome {
            runtime,
            session,
            version,
        } => Notice::Welcome(Welcome {
            runtime,
            session,
            version,
        }),
        Control::Drain { spread_ms } => Notice::Drain {
            spread: Duration::from_millis(spread_ms.unwrap_or_default()),
        },
        Control::Superseded { instance } => {
            tracing::warn!(?instance, "a newer instance holds the runtime");
            Notice::Superseded
        }
        Control::Revoked { detail } => {
            // The server ends the session next, with the same reason.
            tracing::warn!(?detail, "the token is no longer good");
            return;
        }
        other => {
            tracing::debug!(
                control = other.name(),
                "a control message that says nothing to us"
            );
            return;
        }
    };
    // Full only if the server repeats itself.
    let _ = notices.try_send(notice);
}

impl Ended {
    fn new(end: &SessionEnd, lived: Duration) -> Self {
        Self {
            reason: end.reason(),
            detail: end.to_string(),
            lived,
        }
    }
}

/// How the session's task says that it ended; should it have panicked, that is how.
fn ended(task: Result<Ended, JoinError>, began: Instant) -> Ended {
    task.unwrap_or_else(|error| Ended {
        reason: CloseReason::Internal,
        detail: format!("the session's task failed: {error}"),
        lived: began.elapsed(),
    })
}
