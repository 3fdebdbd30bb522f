//! One session with the server, from its 101 to its end.
//!
//! ```text
//!   place ─▶ Session::start ── hello ─▶ … ◀─ welcome ──┐
//!         ◀── next: drain, superseded, expiring, ended │  one task runs the session, one moves its
//!         ──▶ use_credential: refresh-token            │  bytes, and each stream has its own
//!         ──▶ leave: drain, rest, close                │
//! ```
//!
//! In: a connection that the server has accepted. Out: the few things that the server says which
//! concern the tunnel, and at last how it ended. It never dials, and knows nothing of what the
//! exchanges are about.

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

use self::offers::{Answer, Offers};
use self::route_report::{INTERVAL, RouteReporter};
use crate::admin::{LiveSession, LiveSessions};
use crate::config::TellRoutes;
use crate::credential::Credential;
use crate::dial::Connected;
use crate::exchange::Exchanges;
use crate::metrics::Metrics;

/// Things the server said that wait for the tunnel. It says each once in a session's life.
const NOTICES: usize = 8;
/// Bounds of the time for the close handshake of a session.
const CLOSE_TIMES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The part of the grace period that this may take: the program has ended when the period is over.
const CLOSE_PART: u32 = 5;
/// Bounds of the time for which a session that leaves has to be at rest: the server's last exchange
/// may be on its way while the server is notified.
const QUIET: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What all sessions of a client have in common.
#[derive(Clone)]
pub(crate) struct SessionParts {
    /// Answers the exchanges.
    pub(crate) exchanges: Exchanges,
    /// Where what is measured goes.
    pub(crate) metrics: Arc<Metrics>,
    /// Where what is received counts until an upstream takes it.
    pub(crate) memory: Arc<MemoryAccount>,
    /// Where a welcomed session counts.
    pub(crate) live: Arc<LiveSessions>,
    /// Of the wire.
    pub(crate) settings: SessionSettings,
    /// Time for the server to say welcome.
    pub(crate) welcome_limit: Duration,
    /// What the server gets of the routes.
    pub(crate) tell_routes: TellRoutes,
}

/// A session that the server has welcomed.
pub(crate) struct Session {
    handle: Handle,
    notices: mpsc::Receiver<Notice>,
    /// What was said before the welcome.
    early: VecDeque<Event>,
    task: Owned<Ended>,
    began: Instant,
    welcome: Welcome,
    offers: Offers,
    /// Until it leaves.
    live: Option<LiveSession>,
    /// The last value of [`Handle::is_suspect`] that the tunnel got.
    is_suspect: bool,
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
    /// The server is silent although it was probed: the path may be lost.
    Silent,
    /// A session that was silent is heard again.
    HeardAgain,
    /// The credential runs out.
    Expiring {
        /// After this time.
        within: Duration,
    },
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
    /// Never of its end.
    Event(Event),
    /// To the credential that was offered.
    Answer(Answer),
}

impl Session {
    /// Begins a session on a connection that the server has accepted.
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
        handle.account_to(&parts.memory);
        // A session that has ended already says so below.
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
                    Some(Notice::Event(event)) => keep_early(&mut early, event),
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
                is_suspect: false,
            }),
            Ok(None) => Err(NotWelcome::Ended(ended(task.await, began))),
            Err(_) => {
                handle.close(CloseReason::ProtocolError);
                let _ = timeout(CLOSE_TIMES.1, task).await;
                Err(NotWelcome::Late(parts.welcome_limit))
            }
        }
    }

    /// What the server said when it began.
    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// How long it has lasted.
    pub(crate) fn lived(&self) -> Duration {
        self.began.elapsed()
    }

    /// The next thing that the tunnel has to know. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.early.pop_front() {
                return event;
            }
            let again_at = self.offers.again_at();
            let to_offer = tokio::select! {
                notice = self.notices.recv() => match notice {
                    Some(Notice::Event(event)) => return event,
                    Some(Notice::Answer(answer)) => self.offers.on_answer(answer, Instant::now()),
                    Some(Notice::Welcome(_)) => None,
                    None => return Event::Ended(ended((&mut self.task).await, self.began)),
                },
                is_suspect = self.handle.suspicion(self.is_suspect) => {
                    self.is_suspect = is_suspect;
                    return match is_suspect {
                        true => Event::Silent,
                        false => Event::HeardAgain,
                    };
                }
                () = at(again_at) => self.offers.again(),
            };
            if let Some(credential) = to_offer {
                self.offer(&credential);
            }
        }
    }

    /// Whether it goes by what this credential holds, or has asked to.
    pub(crate) fn goes_by(&self, credential: &Credential) -> bool {
        self.offers.wanted().is_same(credential)
    }

    /// What the server has let it go by until now.
    pub(crate) fn went_by(&self) -> &Credential {
        self.offers.own()
    }

    /// Goes on by this credential, whose token is sent to the server if it is another. False when
    /// only another session can go by it.
    pub(crate) fn use_credential(&mut self, credential: Arc<Credential>) -> bool {
        if self.goes_by(&credential) {
            // Another one that waits to be offered again is not in the files any more.
            self.offers.want(credential);
            return true;
        }
        let Some(refresh) = refresh(&credential) else {
            return false;
        };
        let has_same_identity = self.offers.own().has_identity_of(&credential);
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
            "the token is another than the session goes by, the server is told"
        );
        if let Some(refresh) = refresh(credential) {
            // A session that has ended says so by itself.
            let _ = self.handle.send(refresh);
        }
    }

    /// Has it prove within seconds that it lives, or be replaced and end.
    pub(crate) fn suspect(&self) {
        self.handle.suspect();
    }

    /// Has another session in its stead, since the server asked for that, which ends this one when nothing
    /// comes to it any more.
    pub(crate) fn say_moved(&self) {
        let _ = self.handle.send(Control::Moved);
    }

    /// Wants nothing new from here on.
    pub(crate) fn say_drain(&mut self) {
        // Nobody should count on it from here on.
        if self.live.take().is_some() {
            let _ = self.handle.send(Control::Drain { spread_ms: None });
        }
    }

    /// Returns when nothing is open, and nothing comes for a moment; for one that has said drain.
    pub(crate) fn at_rest(&self) -> impl Future<Output = ()> + Send + use<> {
        let handle = self.handle.clone();
        async move { at_rest(&handle).await }
    }

    /// Leaves without loss: the server sends nothing new, what is open ends, and only then, or when
    /// too little of the grace period is left for more, the session does.
    pub(crate) async fn leave(mut self, grace: Duration) {
        self.say_drain();
        tokio::select! {
            _ = timeout(grace.saturating_sub(close_time(grace)), at_rest(&self.handle)) => {}
            () = self.handle.closed() => {}
        }
        self.end(grace).await;
    }

    /// Ends it as it is, and waits for that no longer than a part of the grace period.
    pub(crate) async fn end(self, grace: Duration) {
        let Self { handle, task, .. } = self;
        let left = handle.outstanding();
        if left > 0 && !handle.is_closed() {
            tracing::warn!(
                exchanges = left,
                "a session has had its time, open exchanges are cut"
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

/// Asks the server to go on by this credential.
fn refresh(credential: &Credential) -> Option<Control> {
    let token = credential.token()?.expose_secret().to_owned();
    Some(Control::RefreshToken { token })
}

/// Keeps what is said before the welcome; what ends the tunnel comes before all else.
fn keep_early(early: &mut VecDeque<Event>, event: Event) {
    if early.contains(&event) {
        return;
    }
    match event {
        Event::Superseded => early.push_front(event),
        _ => early.push_back(event),
    }
    early.truncate(NOTICES);
}

/// Waits for this moment, or for ever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
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
    // A task of its own, since moving bytes must not wait for other work; without a span, which would be
    // entered for each of its many polls.
    let mut driving = JoinSet::new();
    driving.spawn(driver);
    let mut streams = JoinSet::new();
    // There is a new round-trip time as often as there is a ping.
    let mut round_trips = interval(parts.settings.ping_interval);
    round_trips.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Begins with the welcome.
    let mut reporter: Option<RouteReporter> = None;
    let mut reports = interval(INTERVAL);
    reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.next(&session) => match event {
                Some(SessionEvent::Exchanges(stream)) => {
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
                // The stream is reset by then: a panic costs its exchange, and nothing else.
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
        Some(Ok(end)) => Ended::new(&end, began.elapsed()),
        Some(Err(_)) | None => Ended::by_fault("the session's driver panicked".to_owned(), began),
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
    if let Some(reporter) = reporter.as_mut().filter(|reporter| reporter.is_due(now))
        && let Some(routes) = reporter.next(parts.exchanges.routes(with_upstreams), now)
    {
        // A session that has ended says so by itself.
        let _ = session.send(Control::Routes(routes));
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
            tracing::info!(good_for, "the session goes on by the new token");
            Notice::Answer(Answer::Taken)
        }
        Control::RefreshRefused { reason, detail } => {
            let answer = Answer::refused(&reason);
            tracing::warn!(
                ?reason,
                ?detail,
                is_offered_again = answer == Answer::NotNow,
                "the server does not take the new token, the session goes on by the one before"
            );
            Notice::Answer(answer)
        }
        Control::Revoked { detail } => {
            // The server ends the session next, with the same reason.
            tracing::warn!(?detail, "the credential is no longer valid");
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

    /// By a fault of our own, for a session that began then.
    pub(crate) fn by_fault(detail: String, began: Instant) -> Self {
        Self {
            reason: CloseReason::Internal,
            detail,
            lived: began.elapsed(),
        }
    }
}

/// How the session's task says that it ended; should it have panicked, that is how.
fn ended(task: Result<Ended, JoinError>, began: Instant) -> Ended {
    let fault = |error| Ended::by_fault(format!("the session's task failed: {error}"), began);
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
            keep_early(&mut early, event);
        }
        assert_eq!(early, [Event::Superseded, drain(), expiring(60)]);
        for seconds in 0..100 {
            keep_early(&mut early, expiring(seconds));
        }
        assert_eq!((early.len(), &early[0]), (NOTICES, &Event::Superseded));
    }
}
