//! Detection of dead peers: a lost path is detected soon, a slow one is never declared dead, and a client
//! that only answers pings is wedged.

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    sync::Semaphore,
    task::JoinSet,
    time::Instant,
};
use tokio_tungstenite::tungstenite::Message;
use tunnel_proto::{
    close::CloseReason,
    exchange::{BodyError, EncodedHead, ExchangeError, RecvBody, exchange, open},
    problem::Reason,
    session::{
        OpenError, ProbeError, Session, SessionEnd, SessionEvent, SessionEvents, SessionSettings,
        Side,
    },
};

use crate::{
    content::{empty, fed, feed, full, get, never, next_data, pattern, read, request, start},
    pair::{Drivers, Handler, Pair, Relay, serve_with, session, settle, within},
    path::Path,
    peer::{ACK, DATA, Frame, Peer, RST, SYN, WINDOW},
};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A pair over a path that can be stopped, with measured round trips.
async fn over_relay(delay: Duration, handler: Answer) -> (Relay, Pair) {
    let (relay, server_io, client_io) = Relay::start(delay);
    let settings = SessionSettings::default();
    let pair = match handler {
        Answer::AtOnce => Pair::start_over(server_io, client_io, settings, empty).await,
        Answer::Never => Pair::start_over(server_io, client_io, settings, never).await,
    };
    tokio::time::sleep(SECOND).await;
    assert!(pair.server.round_trip().is_some() && pair.client.round_trip().is_some());
    (relay, pair)
}

enum Answer {
    AtOnce,
    Never,
}

/// Time until each of the two is silent.
async fn silences(pair: &Pair) -> [Duration; 2] {
    let start = Instant::now();
    let silent = async |session: &Session| {
        assert!(session.silence_changed(false).await);
        start.elapsed()
    };
    let (server, client) = tokio::join!(silent(&pair.server), silent(&pair.client));
    [server, client]
}

/// Time from silent to dead.
const SILENT_TIME: Duration = Duration::from_secs(12);

/// Time until each of the two is dead.
async fn deaths(pair: &mut Pair) -> Vec<(Side, Duration)> {
    let start = Instant::now();
    let mut deaths = Vec::new();
    for _ in 0..2 {
        let (side, end) = pair.drivers.next_end().await;
        assert!(matches!(end, SessionEnd::Dead), "{side:?}: {end}");
        deaths.push((side, start.elapsed()));
    }
    deaths
}

/// A pong sent before its ping has arrived would make the round trip look shorter than it is.
#[tokio::test(start_paused = true)]
async fn ping_payloads_are_unpredictable() {
    let mut drivers = Drivers::default();
    let (server, _events, mut peer) = Peer::of(Side::Server, &mut drivers).await;
    let first = peer.next_ping().await;
    tokio::time::sleep(50 * MS).await;
    assert!(peer.send(Message::Pong(first.clone())).await);
    tokio::time::sleep(SECOND).await;
    let honest = server.round_trip().unwrap();
    assert!(honest >= 50 * MS, "{honest:?}");
    // The second ping was sent, and is not read yet.
    tokio::time::sleep(14 * SECOND - 40 * MS).await;
    for counter in [0..8, first.len() - 8..first.len()] {
        let mut guess = first.to_vec();
        let next = u64::from_be_bytes(guess[counter.clone()].try_into().unwrap()).wrapping_add(1);
        guess[counter].copy_from_slice(&next.to_be_bytes());
        assert!(peer.send(Message::Pong(guess.into())).await);
        tokio::time::sleep(MS).await;
        assert_eq!(server.round_trip(), Some(honest));
    }
    let second = peer.next_ping().await;
    assert!(peer.send(Message::Pong(second)).await);
    tokio::time::sleep(MS).await;
    assert_ne!(server.round_trip(), Some(honest));
}

#[tokio::test(start_paused = true)]
async fn under_traffic_a_black_hole_is_silent_within_three_seconds_and_dead_within_fifteen() {
    for delay in [MS, 20 * MS, 150 * MS] {
        for rest in [0, 3, 60, 200] {
            let (relay, mut pair) = over_relay(delay, Answer::AtOnce).await;
            let (mut traffic, session) = (JoinSet::new(), pair.server.clone());
            traffic.spawn(async move {
                let mut exchanges = JoinSet::new();
                loop {
                    start(&mut exchanges, &session, "/");
                    tokio::time::sleep(100 * MS).await;
                }
            });
            tokio::time::sleep(20 * SECOND + rest * MS).await;
            assert!(!pair.server.is_closed() && !pair.client.is_closed());
            relay.stop();
            for time in silences(&pair).await {
                // Detection starts with the next request that is sent.
                let most = 3 * SECOND + 100 * MS;
                assert!(time <= most, "{delay:?}: {time:?}");
            }
            assert!(!pair.server.is_closed() && !pair.client.is_closed());
            for (side, time) in deaths(&mut pair).await {
                assert!(time <= SILENT_TIME, "{side:?}, {delay:?}: {time:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_single_waiting_exchange_is_enough_to_detect_a_black_hole() {
    for waited in [50, 999, 1_000, 1_030, 3_000, 7_300, 60_000] {
        let (relay, mut pair) = over_relay(20 * MS, Answer::Never).await;
        let mut exchanges = JoinSet::new();
        start(&mut exchanges, &pair.server, "/");
        tokio::time::sleep(waited * MS).await;
        assert!(!pair.server.is_closed(), "slow to answer is not dead");
        relay.stop();
        let start = Instant::now();
        assert!(pair.server.silence_changed(false).await);
        let took = start.elapsed();
        assert!(took <= 3 * SECOND + 50 * MS, "after {waited} ms: {took:?}");
        // The client may have sent something a moment before, and detect it too.
        loop {
            let (side, end) = pair.drivers.next_end().await;
            assert!(matches!(end, SessionEnd::Dead), "{end}");
            if side == Side::Server {
                break;
            }
        }
        assert!(
            start.elapsed() - took <= SILENT_TIME,
            "{:?}",
            start.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_with_a_waiting_exchange_pings_about_once_a_second() {
    let (_relay, pair) = over_relay(20 * MS, Answer::Never).await;
    let bytes = async || {
        let (before, _) = pair.server.bytes();
        tokio::time::sleep(60 * SECOND).await;
        pair.server.bytes().0 - before
    };
    let mut exchanges = JoinSet::new();
    start(&mut exchanges, &pair.server, "/");
    // A ping with its mask is 22 bytes. The count includes pings of the interval and pongs.
    let waiting = bytes().await;
    assert!((50 * 18..100 * 22).contains(&waiting), "{waiting} bytes");
    exchanges.shutdown().await;
    tokio::time::sleep(30 * SECOND).await;
    let resting = bytes().await;
    assert!(resting < 15 * 22, "{resting} bytes");
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_detects_a_black_hole_within_two_intervals() {
    let (relay, mut pair) = over_relay(20 * MS, Answer::AtOnce).await;
    within(exchange(&pair.server, get("/"), |_, _| {}))
        .await
        .unwrap();
    tokio::time::sleep(40 * SECOND).await;
    relay.stop();
    for (side, time) in deaths(&mut pair).await {
        assert!(time <= 30 * SECOND, "{side:?}: {time:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_requested_ping_is_sent_at_once() {
    let (relay, mut pair) = over_relay(20 * MS, Answer::AtOnce).await;
    tokio::time::sleep(20 * SECOND).await;
    for session in [&pair.server, &pair.client] {
        session.ping_now();
    }
    tokio::time::sleep(5 * SECOND).await;
    assert!(!pair.server.is_closed() && !pair.client.is_closed());
    relay.stop();
    for session in [&pair.server, &pair.client] {
        session.ping_now();
    }
    for time in silences(&pair).await {
        assert!(time <= 2 * SECOND + MS, "{time:?}");
    }
    for (side, time) in deaths(&mut pair).await {
        assert!(time <= SILENT_TIME, "{side:?}: {time:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_exchange_is_lost_on_a_path_that_recovers_in_time() {
    for blackout in [2, 4, 10, 14] {
        let (relay, pair) = over_relay(20 * MS, Answer::AtOnce).await;
        relay.hold(true);
        let mut exchanges = JoinSet::new();
        for _ in 0..12 {
            start(&mut exchanges, &pair.server, "/");
        }
        tokio::time::sleep(blackout * SECOND).await;
        assert_eq!(pair.server.is_silent(), blackout > 3);
        relay.hold(false);
        assert!(!pair.server.silence_changed(true).await);
        while let Some(done) = within(exchanges.join_next()).await {
            assert_ne!(done.unwrap().unwrap(), "failed", "{blackout} s");
        }
        assert!(!pair.server.is_closed() && !pair.client.is_closed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_path_of_which_one_direction_is_lost_is_silent_at_both_ends_within_three_seconds() {
    for side in [Side::Server, Side::Client] {
        let (relay, pair) = over_relay(20 * MS, Answer::AtOnce).await;
        let (mut traffic, session) = (JoinSet::new(), pair.server.clone());
        traffic.spawn(async move {
            let mut exchanges = JoinSet::new();
            // Sends nothing new while the session is silent, as a caller with another session does.
            while !session.is_silent() {
                start(&mut exchanges, &session, "/");
                tokio::time::sleep(100 * MS).await;
            }
            exchanges.detach_all();
        });
        tokio::time::sleep(20 * SECOND).await;
        relay.hold_from(side, true);
        for time in silences(&pair).await {
            assert!(time <= 3 * SECOND + 200 * MS, "{side:?}: {time:?}");
        }
        tokio::time::sleep(SECOND).await;
        relay.hold_from(side, false);
        tokio::time::sleep(SECOND).await;
        for session in [&pair.server, &pair.client] {
            assert!(!session.is_silent() && !session.is_closed(), "{side:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_exchange_on_a_silent_session_fails_once_there_is_another_session() {
    let (relay, pair) = over_relay(20 * MS, Answer::Never).await;
    // A reused stream, on which nothing is received before the response.
    within(pair.server.probe()).await.unwrap();
    let (ready, elsewhere) = tokio::sync::oneshot::channel();
    let session = pair.server.clone();
    let mut carried = JoinSet::new();
    carried.spawn(async move {
        let opened = open(&session).await.unwrap();
        let head = EncodedHead::of(&get("/"));
        let elsewhere = async { elsewhere.await.unwrap() };
        let carried = opened.carry(&head, get("/").into_body(), |_, _| {}, elsewhere);
        carried.await.map(drop)
    });
    ready.send(()).unwrap();
    tokio::time::sleep(60 * SECOND).await;
    assert!(carried.try_join_next().is_none(), "the session is good");
    relay.stop();
    let began = Instant::now();
    let Err(ExchangeError::Failed {
        problem, is_heard, ..
    }) = carried.join_next().await.unwrap().unwrap()
    else {
        panic!("the exchange completed");
    };
    assert_eq!((problem.reason(), is_heard), (Reason::SessionLost, false));
    assert!(
        began.elapsed() <= 3 * SECOND + 50 * MS,
        "{:?}",
        began.elapsed()
    );
    assert!(!pair.server.is_closed());
}

/// Exchanges with long contents in both directions, for some minutes.
async fn keep_busy(pair: &Pair, length: usize) {
    let mut exchanges = JoinSet::new();
    for number in 0..20_usize {
        let session = pair.server.clone();
        exchanges.spawn(async move {
            tokio::time::sleep(SECOND * 7 * u32::try_from(number).unwrap()).await;
            // The longest first, before the path is measured.
            let body = full(pattern(length * (3 - number % 4)));
            let request = request(Method::POST, "/", body);
            let response = exchange(&session, request, |_, _| {}).await.unwrap();
            read(response.into_body()).await
        });
    }
    while let Some(arrived) = exchanges.join_next().await {
        let arrived = arrived.unwrap();
        assert!(arrived.error.is_none(), "{:?}", arrived.error);
        assert_eq!(arrived.content.len(), length);
    }
    tokio::time::sleep(60 * SECOND).await;
    assert!(!pair.server.is_closed() && !pair.client.is_closed());
}

/// A pair over this path, whose client reads the request and answers with this many bytes.
async fn over(path: Path, length: usize) -> (JoinSet<()>, Pair) {
    let (tasks, server_io, client_io) = path.start();
    let settings = SessionSettings::default();
    let pair = Pair::start_over(
        server_io,
        client_io,
        settings,
        move |request: Request<RecvBody>| async move {
            read(request.into_body()).await;
            Ok(Response::new(full(pattern(length))))
        },
    )
    .await;
    (tasks, pair)
}

#[tokio::test(start_paused = true)]
async fn a_path_that_takes_seconds_is_not_dead() {
    for delay in [700 * MS, 2 * SECOND, 5 * SECOND] {
        let path = Path {
            delay,
            bytes_each_second: 1_000_000,
            buffer: 64 * 1024,
        };
        let (_tasks, pair) = over(path, 100_000).await;
        keep_busy(&pair, 100_000).await;
        let time = pair.server.smoothed_round_trip().unwrap();
        assert!(time >= 2 * delay, "{time:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_narrow_path_is_not_dead() {
    for (bytes_each_second, buffer) in [
        (100_000, 8 * 1024),
        (40_000, 64 * 1024),
        (33_000, 256 * 1024),
        (12_000, 8 * 1024),
    ] {
        let path = Path {
            delay: 10 * MS,
            bytes_each_second,
            buffer,
        };
        // Idle at first, so that only fast round trips are measured.
        let (_tasks, pair) = over(path, 50_000).await;
        tokio::time::sleep(20 * SECOND).await;
        assert!(pair.server.round_trip().unwrap() < 100 * MS);
        keep_busy(&pair, 50_000).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_resumed_socket_is_noticed_before_the_session_is_declared_dead() {
    let (io, mut peer) = duplex(512);
    let settings = SessionSettings::default();
    let (server, _events, mut driver) = Session::new(io, Bytes::new(), Side::Server, settings);
    let mut drive = async |time| tokio::time::timeout(time, &mut driver).await.err();
    assert!(drive(MS).await.is_some());
    // The peer answers one ping and then sends nothing.
    let mut ping = [0; 18];
    peer.read_exact(&mut ping).await.unwrap();
    let pong = [&[0x8a, 0x90, 0, 0, 0, 0], &ping[2..]].concat();
    peer.write_all(&pong).await.unwrap();
    assert!(drive(MS).await.is_some() && server.round_trip().is_some());
    let mut exchanges = JoinSet::new();
    let request = request(Method::POST, "/", full(pattern(8_000)));
    let asking = server.clone();
    exchanges.spawn(async move { exchange(&asking, request, |_, _| {}).await.map(drop) });
    assert!(drive(2_900 * MS).await.is_some());
    // The peer reads more while this end is busy elsewhere, until the time-out has passed.
    peer.read_exact(&mut [0; 512]).await.unwrap();
    tokio::time::sleep(200 * MS).await;
    assert!(drive(500 * MS).await.is_some());
    assert!(!server.is_silent());
    assert!(drive(3 * SECOND).await.is_some() && server.is_silent());
    assert!(
        drive(SILENT_TIME).await.is_none(),
        "the loss is never detected"
    );
}

#[tokio::test(start_paused = true)]
async fn a_probe_passes_the_whole_path() {
    let pair = Pair::start(empty).await;
    for _ in 0..3 {
        within(pair.server.probe()).await.unwrap();
    }
    assert_eq!(pair.streams.all(), 3);
    // The stream of the probe carries the exchanges.
    within(exchange(&pair.server, get("/"), |_, _| {}))
        .await
        .unwrap();
    assert_eq!((pair.streams.all(), pair.streams.open()), (3, 3));
    assert_eq!(pair.server.outstanding() + pair.client.outstanding(), 0);
    let refused = within(pair.client.probe()).await;
    assert_eq!(refused, Err(ProbeError::NotOpened(OpenError::Closed)));
    pair.server.close(CloseReason::Drained);
    within(pair.server.closed()).await;
    let refused = within(pair.server.probe()).await;
    assert_eq!(refused, Err(ProbeError::NotOpened(OpenError::Closed)));
    assert_eq!(pair.server.close_reason(), Some(CloseReason::Drained));
}

#[tokio::test(start_paused = true)]
async fn a_probe_is_one_frame_and_its_answer_one_byte() {
    let mut drivers = Drivers::default();
    let (server, _events, mut peer) = Peer::of(Side::Server, &mut drivers).await;
    let mut probes = JoinSet::new();
    let start_probe = |probes: &mut JoinSet<_>| {
        let server = server.clone();
        probes.spawn(async move { server.probe().await });
    };
    start_probe(&mut probes);
    assert_eq!(peer.opened().await, Frame::bare(WINDOW, SYN, 1, 0));
    peer.frame(Frame::data(ACK, 1, &[1])).await;
    within(probes.join_next()).await.unwrap().unwrap().unwrap();
    // Any other answer is an error.
    start_probe(&mut probes);
    assert_eq!(peer.opened().await.stream, 3);
    peer.frame(Frame::data(ACK, 3, &[1, 3])).await;
    let refused = within(probes.join_next()).await.unwrap().unwrap();
    assert_eq!(refused, Err(ProbeError::NotAccepted));
    assert_eq!(peer.next_of(3).await.flags, RST);
    start_probe(&mut probes);
    assert_eq!(peer.opened().await.stream, 5);
    peer.frame(Frame::bare(DATA, RST, 5, 0)).await;
    let refused = within(probes.join_next()).await.unwrap().unwrap();
    assert_eq!(refused, Err(ProbeError::Cut(None)));
    // The first stream is still idle, and is not announced again.
    let session = server.clone();
    probes.spawn(async move {
        let _ = exchange(&session, get("/"), |_, _| {}).await;
        Ok(())
    });
    let frame = peer.next_data().await;
    assert_eq!((frame.stream, frame.flags), (1, 0));
    assert!(!server.is_closed());
}

#[tokio::test(start_paused = true)]
async fn the_client_accepts_a_stream_before_receiving_content() {
    let mut drivers = Drivers::default();
    let (client, mut events, mut peer) = Peer::of(Side::Client, &mut drivers).await;
    let mut serving = JoinSet::new();
    let session = client.clone();
    serving.spawn(async move {
        while let Some(SessionEvent::Stream(stream)) = events.next(&session).await {
            serve_with(stream, Handler(Arc::new(empty))).await;
        }
    });
    peer.frame(Frame::bare(WINDOW, SYN, 1, 0)).await;
    assert_eq!(peer.next_data().await, Frame::data(ACK, 1, &[1]));
    // A stream without any content is valid.
    peer.reset(1).await;
    peer.frame(Frame::bare(WINDOW, SYN, 3, 0)).await;
    assert_eq!(peer.next_data().await, Frame::data(ACK, 3, &[1]));
    assert_eq!((client.outstanding(), client.is_closed()), (0, false));
}

/// A pair whose client is alive but may stop accepting streams.
struct Wedge {
    server: Session,
    client: Session,
    drivers: Drivers,
    _server_events: SessionEvents,
    serving: JoinSet<()>,
}

impl Wedge {
    /// The client accepts this many streams, and answers on them when the gate is open.
    async fn after(streams: usize, gate: Arc<Semaphore>) -> Self {
        let (server_io, client_io) = duplex(64 * 1024);
        let mut drivers = Drivers::default();
        let settings = SessionSettings::default();
        let (server, server_events) =
            session(&mut drivers, server_io, Side::Server, settings).await;
        let (client, mut events) = session(&mut drivers, client_io, Side::Client, settings).await;
        let service = Handler(Arc::new(move |_: Request<RecvBody>| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(Response::new(full("answered")))
            }
        }));
        let mut serving = JoinSet::new();
        let session = client.clone();
        serving.spawn(async move {
            let mut tasks = JoinSet::new();
            for _ in 0..streams {
                if let Some(SessionEvent::Stream(stream)) = events.next(&session).await {
                    tasks.spawn(serve_with(stream, service.clone()));
                }
            }
            pending::<()>().await;
        });
        Self {
            server,
            client,
            drivers,
            _server_events: server_events,
            serving,
        }
    }

    /// Starts an exchange that has to fail; yields how.
    fn start_exchange(&self, exchanges: &mut JoinSet<Result<(), Lost>>) {
        let server = self.server.clone();
        exchanges.spawn(async move {
            match exchange(&server, get("/"), |_, _| {}).await {
                Ok(_) => Ok(()),
                Err(ExchangeError::Failed {
                    problem,
                    is_heard,
                    close,
                }) => Err((problem.reason(), is_heard, close)),
                Err(error) => panic!("{error}"),
            }
        });
    }
}

/// How an exchange failed, whether anything was received for it, and why its session ended.
type Lost = (Reason, bool, Option<CloseReason>);

const UNANSWERED: Lost = (Reason::SessionLost, false, Some(CloseReason::Wedged));

#[tokio::test(start_paused = true)]
async fn a_client_that_accepts_nothing_is_wedged() {
    let mut wedge = Wedge::after(0, Arc::new(Semaphore::new(0))).await;
    tokio::time::sleep(60 * SECOND).await;
    assert!(!wedge.server.is_closed(), "no exchange was open");
    let mut exchanges = JoinSet::new();
    let start = Instant::now();
    for _ in 0..5 {
        wedge.start_exchange(&mut exchanges);
    }
    let (server, client) = wedge.drivers.ends().await;
    let time = start.elapsed();
    assert!((10..12).contains(&time.as_secs()), "{time:?}");
    assert!(matches!(server, SessionEnd::Closed(CloseReason::Wedged)));
    assert_eq!(client.reason(), CloseReason::Wedged);
    assert_eq!(wedge.client.close_reason(), Some(CloseReason::Wedged));
    while let Some(failed) = within(exchanges.join_next()).await {
        assert_eq!(failed.unwrap(), Err(UNANSWERED));
    }
    wedge.serving.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_answer_is_unread_is_not_wedged() {
    let (server_io, client_io) = duplex(64 * 1024);
    let mut drivers = Drivers::default();
    let settings = SessionSettings::default();
    let (server, _events, mut driver) =
        Session::new(server_io, Bytes::new(), Side::Server, settings);
    let (client, mut events) = session(&mut drivers, client_io, Side::Client, settings).await;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { server.probe().await.is_ok() });
    let lives = tokio::time::timeout(9_500 * MS, &mut driver).await;
    assert!(lives.is_err(), "{lives:?}");
    // The client accepts in time, while this end is busy elsewhere.
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Some(SessionEvent::Stream(stream)) = events.next(&client).await {
            serve_with(stream, Handler(Arc::new(empty))).await;
        }
    });
    tokio::time::sleep(SECOND).await;
    let lives = tokio::time::timeout(SECOND, &mut driver).await;
    assert!(lives.is_err(), "{lives:?}");
    assert!(within(tasks.join_next()).await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_client_is_wedged_even_if_every_exchange_is_cancelled_early() {
    let mut wedge = Wedge::after(0, Arc::new(Semaphore::new(0))).await;
    let server = wedge.server.clone();
    let mut asking = JoinSet::new();
    asking.spawn(async move {
        while !server.is_closed() {
            let attempt = exchange(&server, get("/"), |_, _| {});
            let _ = tokio::time::timeout(3 * SECOND, attempt).await;
        }
    });
    let start = Instant::now();
    let (server, _) = wedge.drivers.ends().await;
    assert_eq!(server.reason(), CloseReason::Wedged);
    assert!(start.elapsed() < 20 * SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_wedged_client_is_detected_on_a_reused_stream_too() {
    let gate = Arc::new(Semaphore::new(1));
    let mut wedge = Wedge::after(1, gate).await;
    let mut exchanges = JoinSet::new();
    wedge.start_exchange(&mut exchanges);
    within(exchanges.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    tokio::time::sleep(5 * SECOND).await;
    let start = Instant::now();
    wedge.start_exchange(&mut exchanges);
    let (server, _) = wedge.drivers.ends().await;
    assert_eq!(server.reason(), CloseReason::Wedged);
    assert!(start.elapsed() <= 16 * SECOND, "{:?}", start.elapsed());
    let failed = within(exchanges.join_next()).await.unwrap().unwrap();
    assert_eq!(failed, Err(UNANSWERED));
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_upstream_is_slow_is_not_wedged() {
    let gate = Arc::new(Semaphore::new(0));
    let mut wedge = Wedge::after(usize::MAX, gate.clone()).await;
    let mut exchanges = JoinSet::new();
    wedge.start_exchange(&mut exchanges);
    tokio::time::sleep(300 * SECOND).await;
    assert!(!wedge.server.is_closed() && !wedge.client.is_closed());
    assert_eq!(exchanges.len(), 1);
    gate.add_permits(1);
    within(exchanges.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    wedge.serving.shutdown().await;
    wedge.drivers.drop_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_probed_at_the_interval_only() {
    let pair = Pair::start(never).await;
    let mut exchanges = JoinSet::new();
    start(&mut exchanges, &pair.server, "/");
    tokio::time::sleep(300 * SECOND).await;
    assert!(
        (15..=21).contains(&pair.streams.all()),
        "{}",
        pair.streams.all()
    );
    assert!(
        pair.streams.open() <= 4,
        "{} left over",
        pair.streams.open()
    );
    exchanges.shutdown().await;
    tokio::time::sleep(60 * SECOND).await;
    let before = pair.streams.all();
    assert_eq!(pair.streams.open(), 0, "unused streams are ended");
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(pair.streams.all(), before, "no exchange waits");
}

#[tokio::test(start_paused = true)]
async fn a_reader_learns_why_the_session_ended() {
    use CloseReason::{Drained, Left, Revoked, Superseded};
    for (side, reason) in [
        (Side::Server, Superseded),
        (Side::Server, Drained),
        (Side::Server, Revoked),
        (Side::Client, Left),
    ] {
        let (feeding, answer) = fed();
        let answer = std::sync::Mutex::new(Some(answer));
        let (give, mut requests) = tokio::sync::mpsc::channel(1);
        let mut pair = Pair::start(move |request: Request<RecvBody>| {
            let answer = answer.lock().unwrap().take();
            give.try_send(request.into_body()).unwrap();
            async { Ok(Response::new(answer.unwrap())) }
        })
        .await;
        let (_upload, body) = fed();
        let request = request(Method::POST, "/", body);
        let response = within(exchange(&pair.server, request, |_, _| {}))
            .await
            .unwrap();
        let mut response = response.into_body();
        feed(&feeding, "some").await;
        assert_eq!(within(next_data(&mut response)).await, "some");
        assert_eq!(pair.server.close_reason(), None);
        let closing = match side {
            Side::Server => &pair.server,
            Side::Client => &pair.client,
        };
        closing.close(reason);
        assert_eq!(closing.close_reason(), Some(reason));
        let upload = requests.recv().await.unwrap();
        for body in [response, upload] {
            let error = within(read(body)).await.error.unwrap();
            assert!(matches!(error, BodyError::Cut(_)), "{error}");
            assert_eq!(error.close_reason(), Some(reason), "{side:?}: {error}");
            assert!(error.to_string().contains(reason.name()), "{error}");
        }
        pair.drivers.ends().await;
        for session in [&pair.server, &pair.client] {
            assert_eq!(session.close_reason(), Some(reason));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_without_a_close_frame_has_a_reason_too() {
    let mut pair = Pair::start(never).await;
    let server = pair.server.clone();
    let mut exchanges = JoinSet::new();
    exchanges.spawn(async move { exchange(&server, get("/"), |_, _| {}).await.map(drop) });
    settle().await;
    pair.drivers.drop_all().await;
    let failed = within(exchanges.join_next()).await.unwrap().unwrap();
    let Err(ExchangeError::Failed { close, .. }) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(close, Some(CloseReason::Other(1006)));
    assert_eq!(pair.server.close_reason(), close);
}

#[tokio::test(start_paused = true)]
async fn bytes_are_counted_at_both_ends() {
    let pair = Pair::start(empty).await;
    settle().await;
    let before = pair.server.bytes();
    assert!(before.0 > 0 && before.1 > 0, "a ping and its answer");
    let request = request(Method::POST, "/", full(pattern(100_000)));
    within(exchange(&pair.server, request, |_, _| {}))
        .await
        .unwrap();
    settle().await;
    let (sent, received) = pair.server.bytes();
    assert!((100_000..102_000).contains(&(sent - before.0)), "{sent}");
    assert!((1..1_000).contains(&(received - before.1)), "{received}");
    assert_eq!(pair.client.bytes(), (received, sent));
}
