//! Exchanges over HTTP/2 with an upstream that does at random what upstreams may do: late and changing settings, little window,
//! resets, orderly and disorderly ends of connections. Time is paused, so that hours pass in a second.
//!
//! Each exchange ends once, with its own answer or a named reason for which there is a cause. No request is acted on twice that
//! must not be. Nothing is left when all is over.

mod peer;

use std::collections::HashMap;

use http::{HeaderMap, HeaderValue, Method};
use http_body::Frame;
use parking_lot::Mutex;
use testkit::random::Random;
use testkit::tunnel::body::{AnyBody, Failure, fed, internal};
use tokio::net::UnixListener;
use tokio::time::sleep;
use tunnel_proto::exchange::{ExchangeError, Protocol, exchange};
use tunnel_proto::session::Session;

use self::peer::{World, millis};
use super::*;

/// Cases of one run, and exchanges of a case.
const CASES: usize = 100;
const EXCHANGES: u32 = 24;
/// The time in which every exchange ends.
const PATIENCE: Duration = Duration::from_secs(600);

/// The digits of an exchange's number in its path: all letters whose code in HPACK has five bits, in its order.
const DIGITS: &[u8; 10] = b"012aceiost";

/// What the upstream of a case does at all.
#[derive(Debug, Clone, Copy)]
struct Habits {
    /// Its settings come late.
    is_late: bool,
    changes_settings: bool,
    leaves: bool,
    dies: bool,
    is_slow: bool,
    resets: bool,
    /// It gives each stream window for its content and not a byte more.
    is_stingy: bool,
    /// It never answers some.
    ignores: bool,
}

/// What a platform client does.
#[derive(Debug, Clone)]
struct Script {
    number: u32,
    begins_after: Duration,
    method: Method,
    has_trailers: bool,
    has_large_field: bool,
    is_upgrade: bool,
    /// Pieces of content, and how long each takes to come.
    pieces: Vec<(Duration, usize)>,
    /// Whether the content fails behind them.
    is_broken: bool,
    leaves_after: Option<Duration>,
    /// How long each frame of the response takes.
    reads_after: Duration,
}

/// How an exchange ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Whole,
    Cancelled,
    /// Its own content broke off.
    Broken,
    /// Before or after the head of its response.
    Failed(Reason, bool),
}

/// The path of an exchange.
fn path_of(number: u32) -> String {
    let digit = |power| usize::try_from(number / power % 10).unwrap();
    let digits = [100, 10, 1].map(|power| char::from(DIGITS[digit(power)]));
    format!("/{}", String::from_iter(digits))
}

fn number_of(path: &str) -> Option<u32> {
    let mut number = 0;
    for letter in path.bytes().take(3) {
        let digit = DIGITS.iter().position(|digit| *digit == letter)?;
        number = 10 * number + u32::try_from(digit).ok()?;
    }
    Some(number)
}

/// Content of an exchange, in either direction, from this offset on.
fn content(number: u32, from: usize, length: usize) -> Vec<u8> {
    let pattern = format!("<{number}>").into_bytes();
    let bytes = pattern.iter().cycle().skip(from % pattern.len());
    bytes.take(length).copied().collect()
}

impl Habits {
    fn draw(random: &mut Random) -> Self {
        let mut is = |of| random.below(of) == 0;
        Self {
            is_late: is(3),
            changes_settings: is(3),
            leaves: is(3),
            dies: is(4),
            is_slow: is(3),
            resets: is(3),
            is_stingy: is(3),
            ignores: is(4),
        }
    }
}

impl Script {
    fn draw(number: u32, within: usize, random: &mut Random) -> Self {
        let mut is = |of| random.below(of) == 0;
        let has_content = is(2);
        let has_trailers = has_content && is(4);
        let (has_large_field, is_broken, is_cancelled) = (is(10), has_content && is(15), is(5));
        let pieces = if has_content { 1 + random.below(5) } else { 0 };
        let mut piece = |_| {
            let most = random.pick(&[1, 1_000]);
            (millis(random, most), random.pick(&[1, 100, 4_000, 12_000]))
        };
        let pieces = (0..pieces).map(&mut piece).collect();
        let is_upgrade = has_content && !has_trailers && random.below(6) == 0;
        let slowness = random.pick(&[1, 1, 1_000]);
        Self {
            number,
            begins_after: millis(random, within),
            method: match has_content {
                _ if is_upgrade => Method::CONNECT,
                true => [Method::POST, Method::PUT][random.below(2)].clone(),
                false => [Method::GET, Method::GET, Method::POST][random.below(3)].clone(),
            },
            has_trailers,
            has_large_field,
            is_upgrade,
            pieces,
            is_broken,
            leaves_after: is_cancelled.then(|| millis(random, 5_000)),
            reads_after: millis(random, slowness),
        }
    }

    fn request(&self) -> (Request<AnyBody>, impl Future<Output = ()> + Send + 'static) {
        let uri = format!("https://a-b.tunnels.test{}", path_of(self.number));
        let mut request = Request::builder().method(self.method.clone()).uri(uri);
        if self.has_trailers {
            request = request.header("trailer", "x-end");
        }
        if self.has_large_field {
            request = request.header("cookie", "a".repeat(6_000));
        }
        if self.is_upgrade {
            request = request.extension(Protocol::WEBSOCKET);
        }
        let (feed, body) = fed();
        let script = self.clone();
        let feeding = async move {
            let mut sent = 0;
            for (delay, length) in script.pieces {
                sleep(delay).await;
                let data = Frame::data(content(script.number, sent, length).into());
                sent += length;
                if feed.send(Ok(data)).await.is_err() {
                    return;
                }
            }
            if script.is_broken {
                let _ = feed.send(Err(Failure(internal()))).await;
            } else if script.has_trailers {
                let trailers = HeaderMap::from_iter([(
                    "x-end".parse().unwrap(),
                    HeaderValue::from_static("1"),
                )]);
                let _ = feed.send(Ok(Frame::trailers(trailers))).await;
            }
        };
        let body = if self.pieces.is_empty() {
            testkit::tunnel::body::empty()
        } else {
            body
        };
        (request.body(body).unwrap(), feeding)
    }

    /// Whether asking twice does harm.
    fn is_unsafe(&self) -> bool {
        !self.pieces.is_empty() || !self.method.is_idempotent()
    }

    async fn run(self, session: Session) -> Outcome {
        let (request, feeding) = self.request();
        let feeding = Owned::spawn("feeding", feeding);
        let outcome = async {
            let (asked, reads_after) = (exchange(&session, request, |_, _| {}), self.reads_after);
            let response = match asked.await {
                Ok(response) => response,
                Err(ExchangeError::Failed { problem, .. }) => {
                    return Outcome::Failed(problem.reason(), false);
                }
                Err(ExchangeError::RequestBody(_)) => return Outcome::Broken,
                Err(error) => panic!("{error:?}"),
            };
            let number = self.number.to_string();
            assert_eq!(response.headers()["x-number"], number.as_str());
            let mut body = response.into_body();
            let mut received = 0;
            while let Some(frame) = body.frame().await {
                let frame = match frame {
                    Ok(frame) => frame,
                    Err(error) => {
                        return Outcome::Failed(error.problem(Hop::Client).reason(), true);
                    }
                };
                match frame.into_data() {
                    Ok(data) => {
                        assert_eq!(data, content(self.number, received, data.len()));
                        received += data.len();
                    }
                    Err(frame) => {
                        assert_eq!(frame.trailers_ref().unwrap()["x-end"], number.as_str());
                    }
                }
                sleep(reads_after).await;
            }
            Outcome::Whole
        };
        let ended = timeout(self.leaves_after.unwrap_or(PATIENCE), outcome).await;
        drop(feeding);
        match ended {
            Ok(outcome) => outcome,
            Err(_) if self.leaves_after.is_some() => Outcome::Cancelled,
            Err(_) => panic!("{self:?} does not end"),
        }
    }
}

/// Whether there is a cause for this outcome.
fn is_explained(outcome: &Outcome, script: &Script, world: &World, span: [Instant; 2]) -> bool {
    let exchange = &world.exchanges[&script.number];
    let was_killed = (world.kills.iter()).any(|at| span[0] <= *at && *at <= span[1]);
    let is_refused_often = exchange.all.iter().filter(|one| one.is_refused).count() > 3;
    match outcome {
        Outcome::Whole => true,
        Outcome::Cancelled => script.leaves_after.is_some(),
        Outcome::Broken => script.is_broken,
        Outcome::Failed(Reason::ResponseTimeout, false) => exchange.is_ignored,
        Outcome::Failed(Reason::ResponseInvalid, _) => was_killed,
        // Without settings in time it is taken for one that accepts no upgrades.
        Outcome::Failed(Reason::UpgradeFailed, false) => script.is_upgrade && world.habits.is_late,
        Outcome::Failed(reason, is_after_head) => {
            let expected = match is_after_head {
                true => Reason::ResponseIncomplete,
                false => Reason::ConnectionTerminated,
            };
            let may_break = script.is_broken && *reason == Reason::InternalError;
            may_break
                || *reason == expected
                    && (exchange.is_cut || exchange.is_ignored || was_killed || is_refused_often)
        }
    }
}

async fn run_case(seed: u64) {
    let mut random = Random::new(seed);
    let habits = Habits::draw(&mut random);
    let within = random.pick(&[500, 5_000, 20_000]);
    let scripts = (0..EXCHANGES).map(|number| Script::draw(number, within, &mut random));
    let scripts: Vec<_> = scripts.collect();
    let of_script = |script: &Script| {
        let deliveries = peer::Deliveries {
            is_unsafe: script.is_unsafe(),
            is_hazardous: script.has_trailers || script.has_large_field,
            is_upgrade: script.is_upgrade,
            length: script.pieces.iter().map(|(_, length)| length).sum(),
            ..peer::Deliveries::default()
        };
        (script.number, deliveries)
    };
    let world = Arc::new(Mutex::new(World {
        random,
        habits,
        exchanges: scripts.iter().map(of_script).collect::<HashMap<_, _>>(),
        kills: Vec::new(),
        open_connections: 0,
        faults: Vec::new(),
    }));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let _peer = Owned::spawn("peer", peer::serve_all(listener, Arc::clone(&world)));
    let url = format!("h2c+unix:{}", path.display());
    let upstream = upstream(
        &url,
        &UpstreamOptions {
            head_timeout: Duration::from_secs(60),
            ..options()
        },
    );
    let route = Route::to(Arc::clone(&upstream));
    let mut running = JoinSet::new();
    for script in scripts {
        let session = route.server.session.clone();
        running.spawn(async move {
            sleep(script.begins_after).await;
            let begun = Instant::now();
            let outcome = script.clone().run(session).await;
            (script, outcome, [begun, Instant::now()])
        });
    }
    while let Some(ended) = running.join_next().await {
        let (script, outcome, span) = ended.unwrap();
        let world = world.lock();
        assert!(
            is_explained(&outcome, &script, &world, span),
            "{outcome:?}: {script:?} {:?} {habits:?}",
            world.exchanges[&script.number]
        );
    }
    // Streams that were reset keep their places for some seconds.
    sleep(Duration::from_secs(10)).await;
    assert_eq!(upstream.http2.places_taken(), 0);
    assert_eq!(upstream.shared.memory.held(), 0);
    drop(route);
    sleep(Duration::from_secs(70)).await;
    let world = world.lock();
    assert_eq!(world.open_connections, 0);
    assert!(world.faults.is_empty(), "{:?}", world.faults);
}

#[test]
fn exchanges_end_once_for_a_cause_whatever_the_upstream_does() {
    let (cases, mut random) = Random::of_test_with("HTTP2_UPSTREAM", CASES, 1);
    for _ in 0..cases {
        let seed = random.next_number();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let case = std::panic::AssertUnwindSafe(|| runtime.block_on(run_case(seed)));
        if let Err(panic) = std::panic::catch_unwind(case) {
            eprintln!("the seed of the case: {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
