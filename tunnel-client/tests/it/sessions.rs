//! How the sessions of one tunnel live side by side, replace each other, and end together.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use http::Response;
use testkit::deadline::SOON;
use testkit::scripted::{ScriptedUpstream, slow};
use testkit::tunnel::server::{FakeServer, ServerSession, refusal};
use testkit::tunnel::whole;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tunnel_client::client::Client;
use tunnel_client::config::Config;
use tunnel_http::access_log::AccessLog;
use tunnel_proto::close::CloseReason;
use tunnel_proto::control::Control;
use tunnel_proto::exchange::{ExchangeError, RecvBody, exchange};

use crate::setup::{Running, Setup, get};

/// An upstream nobody asks anything.
const NOBODY: &str = "http://127.0.0.1:1";

/// Long enough for what must not happen to happen.
const A_WHILE: Duration = Duration::from_millis(150);

/// Time in which the client looks at the clock.
const LONGER_THAN_A_TICK: Duration = Duration::from_millis(1_500);

/// A client with two sessions.
struct Two {
    client: Running,
    server: FakeServer,
    first: ServerSession,
    second: ServerSession,
}

impl Two {
    async fn new(upstream: &str) -> Self {
        Self::with(upstream, |_| {}).await
    }

    async fn with(upstream: &str, change: impl FnOnce(&mut Config)) -> Self {
        let mut server = FakeServer::start().await;
        let client = Running::start(&server, upstream, |config| {
            config.settings.sessions = 2;
            change(config);
        });
        let first = server.welcome().await;
        let second = server.welcome().await;
        client.wait_metric("sessions", 2.0).await;
        Self {
            client,
            server,
            first,
            second,
        }
    }
}

/// An exchange under way.
type Open = Pin<Box<dyn Future<Output = Result<Response<RecvBody>, ExchangeError>> + Send>>;

/// One exchange on each of these sessions, all of which the upstream has got.
async fn open(sessions: [&ServerSession; 2], asked: &mut mpsc::Receiver<()>) -> [Open; 2] {
    let mut opened = sessions.map(|session| {
        let session = session.session.clone();
        Box::pin(async move { exchange(&session, get("/"), |_, _| {}).await }) as Open
    });
    let [one, other] = &mut opened;
    tokio::select! {
        _ = one => panic!("nobody answers yet"),
        _ = other => panic!("nobody answers yet"),
        () = async { asked.recv().await.unwrap(); asked.recv().await.unwrap() } => {}
    }
    opened
}

/// One exchange on this session, which the upstream has got.
async fn open_one(session: &ServerSession, asked: &mut mpsc::Receiver<()>) -> Open {
    let session = session.session.clone();
    let mut open: Open = Box::pin(async move { exchange(&session, get("/"), |_, _| {}).await });
    tokio::select! {
        _ = &mut open => panic!("nobody answers yet"),
        _ = asked.recv() => {}
    }
    open
}

/// Has the upstream answer both, which must be well.
async fn end_well(opened: [Open; 2], answer: &mpsc::Sender<()>) {
    for _ in &opened {
        answer.send(()).await.unwrap();
    }
    for open in opened {
        let response = timeout(SOON, open).await.unwrap().unwrap();
        assert_eq!(whole(response).await.body(), "late");
    }
}

fn superseded() -> Control {
    Control::Superseded {
        instance: "0".repeat(32),
    }
}

fn drain(spread_ms: u64) -> Control {
    Control::Drain {
        spread_ms: Some(spread_ms),
    }
}

/// The client has no session, dials nobody for a while, and goes on running.
async fn assert_stands_by(client: Running, server: &mut FakeServer) {
    client.wait_metric("sessions", 0.0).await;
    assert!(server.is_left_alone(A_WHILE).await);
    client.trigger.request();
    client.ended().await.unwrap();
}

#[tokio::test]
async fn sessions_are_dialled_one_after_the_other_and_serve_side_by_side() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, &upstream.url(), |config| {
        config.settings.sessions = 3
    });
    let mut sessions = Vec::new();
    for number in 1..=3 {
        let session = server.accept().await;
        assert_eq!(session.request.greeting.session_number, number);
        let is_left_alone = server.is_left_alone(Duration::from_millis(50)).await;
        assert!(is_left_alone, "the next comes when this one is welcome");
        session.welcome();
        client.wait_metric("sessions", f64::from(number)).await;
        sessions.push(session);
    }
    let [one, two, three] = &sessions[..] else {
        panic!("three")
    };
    assert_eq!(
        one.request.greeting.instance,
        three.request.greeting.instance
    );
    let answers = tokio::join!(
        one.fetch(get("/")),
        two.fetch(get("/")),
        three.fetch(get("/"))
    );
    assert_eq!(answers.2.body(), "ok");
    assert!(server.is_left_alone(A_WHILE).await);
}

#[tokio::test]
async fn when_one_is_lost_the_other_serves_and_it_returns() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let mut two = Two::new(&upstream.url()).await;
    drop(two.first);
    two.client.wait_metric("sessions", 1.0).await;
    two.client.wait_ready(true).await;
    two.second.fetch(get("/")).await;
    let third = two.server.welcome().await;
    assert_eq!(third.request.greeting.session_number, 3);
    two.client.wait_metric("sessions", 2.0).await;
    third.fetch(get("/")).await;
    two.second.fetch(get("/")).await;
}

#[tokio::test]
async fn the_place_of_a_session_that_drains_is_filled_before_it_leaves() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let mut two = Two::new(&upstream.url()).await;
    two.first.send(drain(10));
    let new = two.server.accept().await;
    assert!(two.first.is_quiet(A_WHILE).await, "it stays");
    two.first.fetch(get("/")).await;
    new.welcome();
    assert_eq!(two.first.notice().await, Control::Moved);
    two.first.fetch(get("/")).await;
    two.first.session.close(CloseReason::Drained);
    assert_eq!(two.first.ended().await.reason(), CloseReason::Drained);
    assert!(two.second.is_quiet(A_WHILE).await, "it is not concerned");
    new.fetch(get("/")).await;
    two.client.wait_metric("sessions", 2.0).await;
    assert!(two.server.is_left_alone(A_WHILE).await);
}

/// Each session draws its own moment, so that not even those of one client leave together.
#[tokio::test]
async fn sessions_that_are_to_spread_leave_at_moments_of_their_own_within_the_time() {
    const SESSIONS: usize = 8;
    let spread = Duration::from_secs(2);
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, NOBODY, |config| {
        config.settings.sessions = SESSIONS as u32
    });
    let mut old = Vec::new();
    for _ in 0..SESSIONS {
        old.push(server.welcome().await);
    }
    client.wait_metric("sessions", 8.0).await;
    let told = Instant::now();
    for session in &old {
        session.send(drain(2_000));
    }
    let (mut new, mut moments) = (Vec::new(), Vec::new());
    for _ in 0..SESSIONS {
        new.push(server.welcome().await);
        moments.push(told.elapsed());
    }
    let (first, last) = (moments[0], moments[SESSIONS - 1]);
    // That none of them is drawn in such a part of the time happens once in a hundred thousand times.
    assert!(first < spread * 3 / 4, "{moments:?}");
    assert!(last > spread / 4, "{moments:?}");
    assert!(last < spread + Duration::from_millis(1_250), "{moments:?}");
    for session in &mut old {
        assert_eq!(session.notice().await, Control::Moved);
    }
}

#[tokio::test]
async fn what_is_said_before_the_welcome_is_not_forgotten() {
    let mut server = FakeServer::start().await;
    let _client = Running::start(&server, NOBODY, |_| {});
    let mut early = server.accept().await;
    early.send(drain(0));
    early.welcome();
    let _next = server.welcome().await;
    assert_eq!(early.notice().await, Control::Moved);
}

#[tokio::test]
async fn nothing_that_is_said_before_the_welcome_hides_that_another_has_taken_over() {
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, NOBODY, |_| {});
    let early = server.accept().await;
    early.send(superseded());
    early.send(drain(60_000));
    early.welcome();
    assert_stands_by(client, &mut server).await;
}

#[tokio::test]
async fn a_session_that_the_server_drains_outlives_the_client_s_grace_period() {
    let (upstream, mut asked, answer) = slow().await;
    let grace = Duration::from_millis(200);
    let mut setup = Setup::with(&upstream.url(), |config| {
        config.settings.grace_period = grace
    })
    .await;
    let mut old = setup.session;
    let open = open_one(&old, &mut asked).await;
    old.send(drain(0));
    let _new = setup.server.welcome().await;
    assert_eq!(old.notice().await, Control::Moved);
    assert!(old.is_quiet(3 * grace).await);
    answer.send(()).await.unwrap();
    assert_eq!(whole(open.await.unwrap()).await.body(), "late");
    assert!(!old.session.is_closed());
    setup.client.trigger.request();
    assert!(matches!(old.notice().await, Control::Drain { .. }));
    assert_eq!(old.ended().await.reason(), CloseReason::Left);
    setup.client.ended().await.unwrap();
}

#[tokio::test]
async fn the_oldest_of_too_many_sessions_that_leave_is_cut() {
    let mut setup = Setup::new(NOBODY).await;
    let mut old = vec![setup.session];
    for _ in 0..5 {
        let last = old.last_mut().unwrap();
        last.send(drain(0));
        let new = setup.server.welcome().await;
        assert_eq!(last.notice().await, Control::Moved);
        old.push(new);
    }
    let mut oldest = old.remove(0);
    assert_eq!(oldest.ended().await.reason(), CloseReason::Left);
    for session in old {
        assert!(!session.session.is_closed());
    }
}

#[tokio::test]
async fn a_superseded_tunnel_ends_what_is_open_and_stands_by() {
    let (upstream, mut asked, answer) = slow().await;
    let mut two = Two::new(&upstream.url()).await;
    let opened = open([&two.first, &two.second], &mut asked).await;
    two.first.send(superseded());
    assert!(matches!(two.first.notice().await, Control::Drain { .. }));
    assert!(matches!(two.second.notice().await, Control::Drain { .. }));
    two.client.wait_ready(false).await;
    end_well(opened, &answer).await;
    assert_eq!(two.first.ended().await.reason(), CloseReason::Left);
    assert_eq!(two.second.ended().await.reason(), CloseReason::Left);
    assert_stands_by(two.client, &mut two.server).await;
}

#[tokio::test]
async fn a_superseded_tunnel_comes_back_with_all_sessions_each_time() {
    let wait = Duration::from_millis(300);
    let mut two = Two::with(NOBODY, |config| config.settings.refusal_wait = wait).await;
    for _ in 0..2 {
        let told = Instant::now();
        two.second.send(superseded());
        (two.first, two.second) = (two.server.welcome().await, two.server.welcome().await);
        assert!(told.elapsed() >= wait / 2);
        let stand_by = [&two.first, &two.second].map(|session| session.request.greeting.stands_by);
        assert_eq!(stand_by, [true, false], "it holds the runtime by the first");
        two.client.wait_metric("sessions", 2.0).await;
    }
}

#[tokio::test]
async fn a_tunnel_that_is_superseded_while_a_place_redials_stands_by() {
    let mut two = Two::with(NOBODY, |config| {
        config.settings.redial_base = Duration::from_secs(5)
    })
    .await;
    two.server
        .refuse((0..100).map(|_| refusal(503, "overloaded", false)));
    drop(two.first);
    two.client.wait_metric("sessions", 1.0).await;
    two.second.send(superseded());
    assert_stands_by(two.client, &mut two.server).await;
}

#[tokio::test]
async fn a_tunnel_that_is_superseded_while_all_places_dial_stands_by() {
    let mut two = Two::new(NOBODY).await;
    two.first.send(drain(0));
    two.second.send(drain(0));
    let _never_welcome = two.server.accept().await;
    two.second.send(superseded());
    assert_stands_by(two.client, &mut two.server).await;
}

#[tokio::test]
async fn a_place_that_is_refused_for_good_leaves_the_others_alone_as_long_as_there_are_any() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let mut two = Two::new(&upstream.url()).await;
    two.server.refuse([
        refusal(401, "token_unknown", true),
        refusal(401, "token_unknown", true),
    ]);
    two.first.send(drain(0));
    let refused = "dials_total{result=\"refused\"}";
    two.client.wait_metric(refused, 1.0).await;
    assert!(two.first.is_quiet(A_WHILE).await);
    assert!(two.second.is_quiet(A_WHILE).await);
    two.first.fetch(get("/")).await;
    two.second.fetch(get("/")).await;
    drop(two.first);
    two.client.wait_metric("sessions", 1.0).await;
    two.second.fetch(get("/")).await;
    two.client.wait_metric(refused, 1.0).await;
    drop(two.second);
    let text = two.client.ended().await.unwrap_err().to_string();
    assert!(text.contains("token_unknown"), "{text}");
}

#[tokio::test]
async fn a_place_that_is_refused_for_good_comes_again_after_a_long_wait() {
    let wait = Duration::from_millis(300);
    let mut two = Two::with(NOBODY, |config| config.settings.refusal_wait = wait).await;
    two.server.refuse([refusal(401, "token_unknown", true)]);
    let lost = Instant::now();
    drop(two.first);
    let _next = two.server.welcome().await;
    assert!(lost.elapsed() >= wait / 2);
    two.client.wait_metric("sessions", 2.0).await;
}

/// All slots wait together, however long a load balancer in maintenance has asked one of them to.
#[tokio::test]
async fn a_drain_ends_the_wait_after_a_failed_dial() {
    let mut two = Two::new(NOBODY).await;
    let maintenance = Response::builder().status(503).header("retry-after", "60");
    two.server
        .refuse([maintenance.body(String::new()).unwrap()]);
    drop(two.second);
    let refused = "dials_total{result=\"refused\"}";
    two.client.wait_metric(refused, 1.0).await;
    two.first.send(drain(0));
    two.server.welcome().await;
    two.server.welcome().await;
}

#[tokio::test]
async fn who_finds_the_runtime_held_waits_as_told_and_comes_again() {
    let mut server = FakeServer::start().await;
    let mut held = refusal(409, "runtime_held", true);
    held.headers_mut()
        .insert("retry-after", "1".parse().unwrap());
    server.refuse([held]);
    let started = Instant::now();
    let _client = Running::start(&server, NOBODY, |_| {});
    let session = server.welcome().await;
    assert!(started.elapsed() >= Duration::from_secs(1));
    session.session.close(CloseReason::Conflict);
    server.welcome().await;
}

#[tokio::test]
async fn a_tunnel_that_is_asked_to_stop_ends_what_is_open_on_all_sessions() {
    let (upstream, mut asked, answer) = slow().await;
    let mut two = Two::new(&upstream.url()).await;
    let opened = open([&two.first, &two.second], &mut asked).await;
    two.client.trigger.request();
    assert!(matches!(two.first.notice().await, Control::Drain { .. }));
    assert!(matches!(two.second.notice().await, Control::Drain { .. }));
    two.client.wait_ready(false).await;
    end_well(opened, &answer).await;
    assert_eq!(two.first.ended().await.reason(), CloseReason::Left);
    assert_eq!(two.second.ended().await.reason(), CloseReason::Left);
    two.client.ended().await.unwrap();
}

#[tokio::test]
async fn what_is_open_when_the_grace_period_ends_is_cut_before_it_has_ended() {
    let (upstream, mut asked, _answer) = slow().await;
    let grace = Duration::from_millis(600);
    let mut two = Two::with(&upstream.url(), |config| {
        config.settings.grace_period = grace
    })
    .await;
    let opened = open([&two.first, &two.second], &mut asked).await;
    let asked_at = Instant::now();
    two.client.trigger.request();
    let ends = async { tokio::join!(two.first.ended(), two.second.ended()) };
    let ((first, second), ended) = tokio::join!(ends, two.client.ended());
    let reasons = (first.reason(), second.reason());
    assert_eq!(reasons, (CloseReason::Left, CloseReason::Left));
    ended.unwrap();
    assert!(asked_at.elapsed() < grace, "{:?}", asked_at.elapsed());
    for open in opened {
        assert!(open.await.is_err());
    }
}

#[tokio::test]
async fn a_dial_that_hangs_does_not_hold_up_the_end() {
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, NOBODY, |config| config.settings.sessions = 2);
    let _first = server.welcome().await;
    let _never_welcome = server.accept().await;
    client.trigger.request();
    client.ended().await.unwrap();
}

/// A wall clock that a test sets.
#[derive(Clone, Default)]
struct Hands(Arc<AtomicU64>);

impl Hands {
    fn forward(&self, time: Duration) {
        self.0.fetch_add(time.as_secs(), Ordering::SeqCst);
    }

    fn read(&self) -> SystemTime {
        SystemTime::now() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

#[tokio::test]
async fn after_a_jump_of_the_clock_all_sessions_are_replaced_by_new_ones() {
    let mut server = FakeServer::start().await;
    let (client, hands) = with_clock(&server, NOBODY, |config| config.settings.sessions = 2);
    let mut old = [server.welcome().await, server.welcome().await];
    client.wait_metric("sessions", 2.0).await;

    hands.forward(Duration::from_secs(3_600));
    let mut new = Vec::new();
    for number in [3, 4] {
        let session = server.accept().await;
        assert_eq!(session.request.greeting.session_number, number);
        new.push(session);
        if number == 3 {
            let [one, other] = &mut old;
            assert!(one.is_quiet(A_WHILE).await && other.is_quiet(A_WHILE).await);
        }
        new.last().unwrap().welcome();
    }
    for mut session in old {
        assert!(matches!(session.notice().await, Control::Drain { .. }));
        assert_eq!(session.ended().await.reason(), CloseReason::Left);
    }
    client.wait_metric("sessions", 2.0).await;
    assert!(server.is_left_alone(A_WHILE).await, "once is enough");
}

/// A client with a clock that the test sets.
fn with_clock(
    server: &FakeServer,
    upstream: &str,
    change: impl FnOnce(&mut Config),
) -> (Running, Hands) {
    let folder = tempfile::tempdir().unwrap();
    let config = Running::config(server, upstream, folder.path(), change);
    let hands = Hands::default();
    let clock = hands.clone();
    let client = Client::new(config, AccessLog::off()).unwrap();
    let client = Running::begin(client.with_wall_clock(move || clock.read()), folder);
    (client, hands)
}

#[tokio::test]
async fn a_dial_from_before_a_jump_is_given_up_and_one_from_after_it_outlives_the_next() {
    let mut server = FakeServer::start().await;
    let (client, hands) = with_clock(&server, NOBODY, |_| {});
    let _never_welcome = server.accept().await;
    hands.forward(Duration::from_secs(60));
    let next = server.accept().await;
    assert_eq!(next.request.greeting.session_number, 2);
    hands.forward(Duration::from_secs(60));
    assert!(server.is_left_alone(LONGER_THAN_A_TICK).await);
    next.welcome();
    client.wait_metric("sessions", 1.0).await;
    hands.forward(Duration::from_secs(60));
    assert!(
        server.is_left_alone(LONGER_THAN_A_TICK).await,
        "not so soon"
    );
}

#[tokio::test]
async fn what_is_open_on_a_session_that_is_replaced_by_choice_has_all_the_time_it_needs() {
    let (upstream, mut asked, answer) = slow().await;
    let grace = Duration::from_millis(200);
    let mut server = FakeServer::start().await;
    let (_client, hands) = with_clock(&server, &upstream.url(), |config| {
        config.settings.grace_period = grace
    });
    let mut old = server.welcome().await;
    let open = open_one(&old, &mut asked).await;
    hands.forward(Duration::from_secs(60));
    let _new = server.welcome().await;
    assert!(matches!(old.notice().await, Control::Drain { .. }));
    assert!(old.is_quiet(3 * grace).await);
    answer.send(()).await.unwrap();
    assert_eq!(whole(open.await.unwrap()).await.body(), "late");
    assert_eq!(old.ended().await.reason(), CloseReason::Left);
}

#[tokio::test]
async fn a_session_that_has_begun_when_its_dial_is_given_up_leaves_without_loss() {
    let (upstream, mut asked, answer) = slow().await;
    let mut server = FakeServer::start().await;
    let (client, hands) = with_clock(&server, &upstream.url(), |_| {});
    let mut first = server.accept().await;
    hands.forward(Duration::from_secs(60));
    let mut second = server.accept().await;
    for (session, is_asked_to_stop) in [(&mut first, false), (&mut second, true)] {
        if is_asked_to_stop {
            client.trigger.request();
        }
        session.welcome();
        assert!(matches!(session.notice().await, Control::Drain { .. }));
        let open = open_one(session, &mut asked).await;
        answer.send(()).await.unwrap();
        assert_eq!(whole(open.await.unwrap()).await.body(), "late");
    }
    assert_eq!(first.ended().await.reason(), CloseReason::Left);
    assert_eq!(second.ended().await.reason(), CloseReason::Left);
    client.ended().await.unwrap();
}
