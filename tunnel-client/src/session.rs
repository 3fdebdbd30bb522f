//! One session with the server, from its 101 to its end.
//!
//! ```text
//!   slot ─▶ Session::start ── hello ─▶ … ◀─ welcome ──┐
//!        ◀── next: drain, superseded, expiring, ended │  one task runs the session, one moves its
//!        ──▶ use_credential: refresh-token            │  bytes, and each stream has its own
//!        ──▶ leave: drain, rest, close                │
//! ```
//!
//! In: an upgraded connection. Out: the server's messages that concern the tunnel, and finally how the session ended. It
//! never dials, and does not interpret exchanges.

mod offers;
mod route_report;

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use secrecy::ExposeSecret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tunnel_ops::task::Owned;
use tunnel_proto::close::CloseReason;
use tunnel_proto::control::Control;
use tunnel_proto::exchange::{RecvBody, serve};
use tunnel_proto::limits;
use tunnel_proto::memory::MemoryAccount;
use tunnel_proto::session::{
    Driver, Session as Handle, SessionEnd, SessionEvent, SessionEvents, SessionSettings, Side,
};
use tunnel_routing::request::{Informational, RequestBody};

use self::offers::{Offers, RefreshOutcome};
use self::route_report::{INTERVAL, RouteReporter};
use crate::admin::{LiveSession, LiveSessions};
use crate::config::TellRoutes;
use crate::credential::Credential;
use crate::dial::Connected;
use crate::exchange::Exchanges;
use crate::metrics::Metrics;
use crate::status::{SessionEntry, SessionInfo, TunnelStatus};

/// Most messages of the server that wait for the tunnel. The server sends each kind once in a session.
const NOTICES: usize = 8;
/// Bounds of the time-out of a session's close handshake.
const CLOSE_TIMES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The close handshake gets this part of the grace period, so that the program ends within the period.
const CLOSE_PART: u32 = 5;
/// Bounds of the time for which a leaving session has to be at rest: the server may have opened a last exchange before it
/// received the drain.
const QUIET: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The parts that all sessions of a client share.
#[derive(Clone)]
pub(crate) struct SessionParts {
    /// Answers the exchanges.
    pub(crate) exchanges: Exchanges,
    /// The metrics of the client.
    pub(crate) metrics: Arc<Metrics>,
    /// Counts received bytes until an upstream takes them.
    pub(crate) memory: Arc<MemoryAccount>,
    /// Counts welcomed sessions.
    pub(crate) live: Arc<LiveSessions>,
    /// Shows the tunnel to people.
    pub(crate) status: Arc<TunnelStatus>,
    /// The settings of the protocol.
    pub(crate) settings: SessionSettings,
    /// The time-out of the welcome.
    pub(crate) welcome_limit: Duration,
    /// Which part of the routes is reported to the server.
    pub(crate) tell_routes: TellRoutes,
}

/// A session that the server has welcomed.
pub(crate) struct Session {
    handle: Handle,
    notices: mpsc::Receiver<Notice>,
    /// Events before the welcome.
    early: VecDeque<Event>,
    task: Owned<SessionEnded>,
    began: Instant,
    welcome: Welcome,
    offers: Offers,
    /// Counts the session as live until it leaves.
    live: Option<LiveSession>,
    /// Shows it until it has ended.
    shown: Option<SessionEntry>,
    /// The last value of [`Handle::is_silent`] that was reported to the tunnel.
    is_silent: bool,
}

/// The server's welcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// The runtime's label.
    pub(crate) runtime: String,
    /// The session's id at the server.
    pub(crate) session: String,
    /// Version of the server.
    pub(crate) version: String,
    /// The server node, if it is one of several.
    pub(crate) node: Option<String>,
    /// Where platform clients reach the runtime, for people.
    pub(crate) url: Option<String>,
}

/// An event of a session that concerns the tunnel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The server drains this session; another is to be dialled.
    Drain {
        /// The time over which all clients of the server spread their dials.
        spread: Duration,
    },
    /// A newer instance holds the runtime.
    Superseded,
    /// The server is silent although it was pinged: the path may be lost.
    Silent,
    /// A session that was silent is heard again.
    HeardAgain,
    /// The credential expires.
    Expiring {
        /// The remaining time.
        within: Duration,
    },
    /// The session has ended.
    Ended(SessionEnded),
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionEnded {
    /// The close code, as a reason.
    pub(crate) reason: CloseReason,
    /// The description for a log.
    pub(crate) detail: String,
    /// How long it lasted.
    pub(crate) lived: Duration,
}

/// Why a session did not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotWelcome {
    /// It ended before the welcome.
    #[error("the session ended before it began, {}: {}", .0.reason.name(), .0.detail)]
    Ended(SessionEnded),
    /// The server did not send the welcome in time.
    #[error("the server did not send the welcome within {0:?}")]
    Late(Duration),
}

/// A message from the session's task.
enum Notice {
    Welcome(Welcome),
    /// Any event but [`Event::Ended`].
    Event(Event),
    /// The answer to the offered credential.
    Answer(RefreshOutcome),
}

impl Session {
    /// Starts a session on an upgraded connection, and waits for the welcome.
    pub(crate) async fn start(
        connected: Connected,
        parts: &SessionParts,
    ) -> Result<Self, NotWelcome> {
        let Connected {
            io,
            unread,
            credential,
            ..
        } = connected;
        let began = Instant::now();
        let (handle, events, driver) = Handle::new(io, unread, Side::Client, parts.settings);
        handle.set_account(&parts.memory);
        // If the session has ended, `welcomed` below returns that.
        let _ = handle.send(Control::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
        });
        let (notices_in, mut notices) = mpsc::channel(NOTICES);
        let running = run(handle.clone(), events, driver, parts.clone(), notices_in);
        let task = Owned::spawn("session", running);
        let mut early = VecDeque::new();
        let welcomed = async {
            loop {
                match notices.recv().await {
                    Some(Notice::Welcome(welcome)) => return Some(welcome),
                    Some(Notice::Event(event)) => queue_early(&mut early, event),
                    Some(Notice::Answer(_)) => {}
                    None => return None,
                }
            }
        };
        match timeout(parts.welcome_limit, welcomed).await {
            Ok(Some(welcome)) => Ok(Self {
                handle,
                notices,
                early,
                task,
                began,
                welcome,
                offers: Offers::new(credential),
                live: Some(LiveSession::begin(&parts.live)),
                shown: None,
                is_silent: false,
            }),
            Ok(None) => Err(NotWelcome::Ended(ended(task.await, began))),
            Err(_) => {
                handle.close(CloseReason::ProtocolError);
                let _ = timeout(CLOSE_TIMES.1, task).await;
                Err(NotWelcome::Late(parts.welcome_limit))
            }
        }
    }

    /// The server's welcome.
    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Shows it in the status of the tunnel until it has ended.
    pub(crate) fn show(&mut self, status: &Arc<TunnelStatus>, info: SessionInfo) {
        let Welcome { runtime, url, .. } = &self.welcome;
        let (runtime, url) = (runtime.clone(), url.clone());
        self.shown = Some(status.on_session(info, runtime, url, self.handle.clone()));
    }

    /// How long it has lasted.
    pub(crate) fn lived(&self) -> Duration {
        self.began.elapsed()
    }

    /// The next event. Cancel safe.
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.early.pop_front() {
                return event;
            }
            let retry_at = self.offers.retry_at();
            let to_offer = tokio::select! {
                notice = self.notices.recv() => match notice {
                    Some(Notice::Event(event)) => return event,
                    Some(Notice::Answer(answer)) => self.offers.on_answer(answer, Instant::now()),
                    Some(Notice::Welcome(_)) => None,
                    None => return Event::Ended(ended((&mut self.task).await, self.began)),
                },
                is_silent = self.handle.silence_changed(self.is_silent) => {
                    self.is_silent = is_silent;
                    return match is_silent {
                        true => Event::Silent,
                        false => Event::HeardAgain,
                    };
                }
                () = at(retry_at) => self.offers.retry(),
            };
            if let Some(credential) = to_offer {
                self.offer(&credential);
            }
        }
    }

    /// Whether the session uses a credential with equal content, or has offered it to the server.
    pub(crate) fn uses(&self, credential: &Credential) -> bool {
        self.offers.latest().is_same(credential)
    }

    /// The credential that the server has accepted last.
    pub(crate) fn credential(&self) -> &Credential {
        self.offers.current()
    }

    /// Continues with this credential; a new token is sent to the server. Returns false if only a new session can use it.
    pub(crate) fn use_credential(&mut self, credential: Arc<Credential>) -> bool {
        if self.uses(&credential) {
            // Discards a refused credential that waits to be offered again: the files no longer hold it.
            self.offers.want(credential);
            return true;
        }
        let Some(refresh) = refresh(&credential) else {
            return false;
        };
        let has_same_identity = self.offers.current().has_identity_of(&credential);
        if !has_same_identity || refresh.encode().len() > limits::CONTROL_BYTES {
            return false;
        }
        if let Some(credential) = self.offers.want(credential) {
            self.offer(&credential);
        }
        true
    }

    fn offer(&self, credential: &Credential) {
        tracing::info!(
            session = self.welcome.session,
            "the token has changed, sending it to the server"
        );
        if let Some(refresh) = refresh(credential) {
            // Fails if the session has ended, which is an event of its own.
            let _ = self.handle.send(refresh);
        }
    }

    /// Pings the server: the session is replaced and ends, unless the server is heard within seconds.
    pub(crate) fn ping_now(&self) {
        self.handle.ping_now();
    }

    /// Notifies the server, which drains this session, that another one has replaced it. The server then closes it when its
    /// exchanges have ended.
    pub(crate) fn send_moved(&self) {
        let _ = self.handle.send(Control::Moved);
    }

    /// Requests that the server opens no more exchanges.
    pub(crate) fn send_drain(&mut self) {
        // The session no longer counts for readiness.
        if self.live.take().is_some() {
            let _ = self.handle.send(Control::Drain { spread_ms: None });
        }
    }

    /// Waits until no exchange is open and none arrives for a moment, after the drain was sent.
    pub(crate) fn at_rest(&self) -> impl Future<Output = ()> + Send + use<> {
        let handle = self.handle.clone();
        async move { at_rest(&handle).await }
    }

    /// Leaves without loss: the server opens no more exchanges, and the session closes when the open ones have ended or
    /// only the time for the close handshake is left of the grace period.
    pub(crate) async fn leave(mut self, grace: Duration) {
        self.send_drain();
        tokio::select! {
            _ = timeout(grace.saturating_sub(close_time(grace)), at_rest(&self.handle)) => {}
            () = self.handle.closed() => {}
        }
        self.end(grace).await;
    }

    /// Closes the session now, and waits for the close handshake for a part of the grace period.
    pub(crate) async fn end(self, grace: Duration) {
        let Self {
            handle,
            task,
            shown: _shown,
            ..
        } = self;
        let left = handle.outstanding();
        if left > 0 && !handle.is_closed() {
            tracing::warn!(
                exchanges = left,
                "the grace period of a session is over, cutting its open exchanges"
            );
        }
        handle.close(CloseReason::Left);
        let _ = timeout(close_time(grace), task).await;
    }
}

/// The part of the grace period that is kept for the close handshake.
fn close_time(grace: Duration) -> Duration {
    let (shortest, longest) = CLOSE_TIMES;
    (grace / CLOSE_PART).clamp(shortest, longest)
}

/// The message that offers this credential's token to the server; `None` without a token.
fn refresh(credential: &Credential) -> Option<Control> {
    let token = credential.token()?.expose_secret().to_owned();
    Some(Control::RefreshToken { token })
}

/// Queues an event before the welcome; one that ends the tunnel comes first.
fn queue_early(early: &mut VecDeque<Event>, event: Event) {
    if early.contains(&event) {
        return;
    }
    match event {
        Event::Superseded => early.push_front(event),
        _ => early.push_back(event),
    }
    early.truncate(NOTICES);
}

/// Waits until this moment; for ever without one.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

/// Waits until no exchange is open and none arrives for a moment.
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
) -> SessionEnded
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let began = Instant::now();
    // A task of its own, so that moving bytes does not wait for other work. Without a span, which would be entered for each
    // of its many polls.
    let mut driving = JoinSet::new();
    driving.spawn(driver);
    let mut streams = JoinSet::new();
    // Each ping measures the round-trip time.
    let mut round_trips = interval(parts.settings.ping_interval);
    round_trips.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Set at the welcome.
    let mut reporter: Option<RouteReporter> = None;
    let mut reports = interval(INTERVAL);
    reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.next(&session) => match event {
                Some(SessionEvent::Stream(stream)) => {
                    let exchanges = parts.exchanges.clone();
                    let answer = move |request: Request<RecvBody>, informational| {
                        let request = request.map(RequestBody::Session);
                        exchanges.answer(request, Informational::Session(informational))
                    };
                    streams.spawn(serve(stream, answer));
                }
                Some(SessionEvent::Control(control)) => {
                    if matches!(control, Control::Welcome { .. }) && reporter.is_none() {
                        reporter = Some(RouteReporter::new(Instant::now()));
                        reports.reset_immediately();
                    }
                    on_control(control, &notices);
                }
                None => break,
            },
            Some(stream) = streams.join_next() => {
                // The stream is already reset: a panic affects only its exchange.
                if stream.is_err_and(|error: JoinError| error.is_panic()) {
                    tracing::error!("an exchange panicked");
                }
            }
            _ = round_trips.tick() => {
                if let Some(time) = session.round_trip() {
                    parts.metrics.on_round_trip(time);
                }
            }
            _ = reports.tick() => report_routes(&mut reporter, &session, &parts),
        }
    }
    match driving.join_next().await {
        Some(Ok(end)) => SessionEnded::new(&end, began.elapsed()),
        Some(Err(_)) | None => {
            SessionEnded::by_fault("the session's driver panicked".to_owned(), began)
        }
    }
}

/// Sends the server the routes, if their report has changed.
fn report_routes(reporter: &mut Option<RouteReporter>, session: &Handle, parts: &SessionParts) {
    let with_upstreams = match parts.tell_routes {
        TellRoutes::Full => true,
        TellRoutes::Names => false,
        TellRoutes::None => return,
    };
    let now = Instant::now();
    if let Some(reporter) = reporter.as_mut()
        && reporter.is_due(now)
        && let Some(routes) = reporter.next(parts.exchanges.routes(with_upstreams), now)
    {
        // Fails if the session has ended, which is an event of its own.
        let _ = session.send(Control::Routes(routes));
    }
}

fn on_control(control: Control, notices: &mpsc::Sender<Notice>) {
    let notice = match control {
        Control::Welcome {
            runtime,
            session,
            version,
            node,
            url,
        } => Notice::Welcome(Welcome {
            runtime,
            session,
            version,
            node,
            url,
        }),
        Control::Drain { spread_ms } => Notice::Event(Event::Drain {
            spread: Duration::from_millis(spread_ms.unwrap_or_default()),
        }),
        Control::Superseded { instance } => {
            tracing::warn!(?instance, "a newer instance holds the runtime");
            Notice::Event(Event::Superseded)
        }
        Control::Expiring { in_ms } => Notice::Event(Event::Expiring {
            within: Duration::from_millis(in_ms),
        }),
        Control::Refreshed { expires_in_ms } => {
            let good_for =
                expires_in_ms.map(|time| tracing::field::debug(Duration::from_secs(time / 1_000)));
            tracing::info!(good_for, "the server has accepted the new token");
            Notice::Answer(RefreshOutcome::Accepted)
        }
        Control::RefreshRefused { reason, detail } => {
            let answer = RefreshOutcome::refused(&reason);
            tracing::warn!(
                ?reason,
                ?detail,
                is_offered_again = answer == RefreshOutcome::RefusedForNow,
                "the server refuses the new token, the session continues with the old one"
            );
            Notice::Answer(answer)
        }
        Control::Revoked { detail } => {
            // The server ends the session next, with the same reason.
            tracing::warn!(?detail, "the credential is no longer valid");
            return;
        }
        other => {
            tracing::debug!(control = other.name(), "ignoring a control message");
            return;
        }
    };
    // Full only if the server repeats messages.
    let _ = notices.try_send(notice);
}

impl SessionEnded {
    fn new(end: &SessionEnd, lived: Duration) -> Self {
        Self {
            reason: end.reason(),
            detail: end.to_string(),
            lived,
        }
    }

    /// An internal error, for a session that began then.
    pub(crate) fn by_fault(detail: String, began: Instant) -> Self {
        Self {
            reason: CloseReason::Internal,
            detail,
            lived: began.elapsed(),
        }
    }
}

/// The end of a session, from the result of its task, which fails by a panic.
fn ended(task: Result<SessionEnded, JoinError>, began: Instant) -> SessionEnded {
    let fault =
        |error| SessionEnded::by_fault(format!("the session's task failed: {error}"), began);
    task.unwrap_or_else(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_said_before_the_welcome_is_kept_and_the_end_comes_first() {
        let drain = || Event::Drain {
            spread: Duration::from_secs(1),
        };
        let expiring = |seconds| Event::Expiring {
            within: Duration::from_secs(seconds),
        };
        let mut early = VecDeque::new();
        for event in [drain(), expiring(60), Event::Superseded, drain()] {
            queue_early(&mut early, event);
        }
        assert_eq!(early, [Event::Superseded, drain(), expiring(60)]);
        for seconds in 0..100 {
            queue_early(&mut early, expiring(seconds));
        }
        assert_eq!((early.len(), &early[0]), (NOTICES, &Event::Superseded));
    }
}
