//! Two tunnel clients for one runtime: which of them holds it, from when on, and what the other is
//! told.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use e2e::{
    client::{Client, ClientOptions},
    deadline::{SOON, eventually},
    http1::End,
    platform::PlatformClient,
    program::{OutputLine, Program, Signal},
    raw::RawClient,
    system::{Options, System},
    upstream::Upstream,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};

const APP: &str = "demo-app";

/// More than the 100 ms that are promised: the machine may be busy, and the programs are built for
/// debugging.
const AT_ONCE: Duration = Duration::from_millis(250);

/// A day, after which the times of [`time_of_day`] begin anew.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The time of day of a log line, whose `timestamp` is `2026-11-22T09:14:28.709236Z`.
fn time_of_day(line: &str) -> Duration {
    let (_, rest) = line.split_once("\"timestamp\":\"").unwrap();
    let (_, time) = rest.split_once('T').unwrap();
    let (time, _) = time.split_once('Z').unwrap();
    let parts: Vec<f64> = time.split(':').map(|part| part.parse().unwrap()).collect();
    Duration::from_secs_f64(parts[0] * 3600.0 + parts[1] * 60.0 + parts[2])
}

/// When the server let the newer instance have the runtime, by the clock that people see.
async fn accepted(server: &Program, newer: &Client) -> Duration {
    let line = newer.program().wait_for_line("\"instance\":", SOON).await;
    let (_, instance) = line.split_once("\"instance\":\"").unwrap();
    let instance = &instance[..32];
    let begun = |line: &OutputLine| {
        let text = line.text();
        let is_it = text.contains("a session has begun") && text.contains(instance);
        is_it.then(|| time_of_day(text))
    };
    let what = "the newer instance to be accepted";
    server.log().wait_for(what, SOON, begun).await
}

#[tokio::test]
async fn the_later_holds_the_runtime_at_once_and_the_older_ends_what_it_has() {
    let (old, new) = (Upstream::start().await, Upstream::start().await);
    let mut system = System::start(&old.url()).await;
    let mut long = RawClient::connect(&system.entry()).await;
    long.request("GET", "/events?count=15&every_ms=100", "", b"")
        .await;
    let head = long.head().await.unwrap();

    let mut options = system.client_options(APP).clone();
    options.upstream = new.url();
    let newer = Client::start(&options).await;
    // All the time, before and after: who answers what was begun when.
    let asking = async {
        let mut client = PlatformClient::http1(&system.entry()).await;
        let mut last_of_older = None;
        for number in 0.. {
            let target = format!("/who?{number}");
            let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            assert_eq!(client.get(&target).await.status, 200);
            let is_new = new.record().all().iter().any(|event| {
                matches!(event, e2e::upstream::Event::Request(seen) if seen.target == target)
            });
            if is_new {
                break;
            }
            last_of_older = Some(begun);
        }
        last_of_older.expect("the older was asked before the newer came")
    };
    let accepted = accepted(system.server().program(), &newer);
    let (accepted, last_of_older) = tokio::join!(accepted, asking);
    let last_of_older = last_of_older.as_secs_f64() % DAY.as_secs_f64();
    // Negative where the older was asked last before.
    let late = last_of_older - accepted.as_secs_f64();
    eprintln!(
        "the older was asked last {:.1} ms after the newer was accepted",
        late * 1e3
    );
    assert!(late < AT_ONCE.as_secs_f64(), "{late} s");

    let content = long.content(head.response_framing("GET")).await;
    assert_eq!(content.end, End::Clean, "what the older had, it ended");
    let older = system.client();
    older.program().wait_for_line("has taken over", SOON).await;
    older.admin().wait_ready(false).await;
    let mut client = PlatformClient::http1(&system.entry()).await;
    assert_eq!(client.get("/after").await.status, 200);
    new.wait_request("/after").await;
}

#[tokio::test]
async fn a_server_may_be_told_to_keep_the_older() {
    let (old, new) = (Upstream::start().await, Upstream::start().await);
    let options = Options::to(&old.url()).server_flags(&["--on-conflict", "reject"]);
    let mut system = System::with(options).await;
    let mut options = system.client_options(APP).clone();
    options.upstream = new.url();
    let quick = ["--redial-base", "100ms", "--redial-cap", "300ms"];
    options.flags = quick.map(str::to_owned).to_vec();
    let newer = Client::start(&options).await;
    newer.program().wait_for_line("runtime_held", SOON).await;
    let mut client = PlatformClient::http1(&system.entry()).await;
    for _ in 0..20 {
        assert_eq!(client.get("/status/200").await.status, 200);
    }
    assert!(new.record().is_empty(), "{}", new.record().tail());

    // Once the older has left, the newer is let in without anybody's doing.
    let mut older = system.take_client(APP);
    older.program().signal(Signal::TERM);
    assert!(older.program_mut().wait_exit(SOON).await.success());
    newer.admin().wait_ready(true).await;
    assert_eq!(client.get("/status/200").await.status, 200);
    new.wait_request("/status/200").await;
}

/// Kills a client that has lost the runtime and starts another, as an orchestrator does that goes by readiness.
async fn keep_alive(options: ClientOptions, starts: Arc<watch::Sender<usize>>) {
    loop {
        let mut client = Client::start(&options).await;
        starts.send_modify(|count| *count += 1);
        // Bounded only by the test's own end.
        let superseded = client.program().wait_for_line("has taken over", 10 * SOON);
        drop(timeout(10 * SOON, superseded).await);
        client.program_mut().kill();
    }
}

#[tokio::test]
async fn two_that_fight_are_slowed_and_the_runtime_answers_all_the_time() {
    let upstream = Upstream::start().await;
    let mut system = System::start(&upstream.url()).await;
    let options = system.client_options(APP).clone();
    system.kill_client(APP);
    let starts = Arc::new(watch::Sender::new(0));
    let mut fighting = JoinSet::new();
    for _ in 0..2 {
        fighting.spawn(keep_alive(options.clone(), starts.clone()));
    }
    let admin = system.server().admin();
    let contested = async || {
        let labels = ["result=\"runtime_contested\""];
        let count = admin
            .metric("tunnel_server_handshakes_total", &labels)
            .await;
        count.filter(|count| *count >= 2.0)
    };
    let entry = system.entry();
    let asking = async {
        let mut client = PlatformClient::http1(&entry).await;
        loop {
            let answer = client.get("/status/200").await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    };
    tokio::select! {
        () = asking => {}
        _ = eventually(SOON, "the server to slow them", contested) => {}
    }
    let log = system.server().program();
    log.wait_for_line("from each other", SOON).await;
    // From here on there is peace: in a time in which each could have come many times, the runtime
    // changes hands seldom.
    let before = *starts.borrow();
    let quiet = async {
        let mut client = PlatformClient::http1(&entry).await;
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            assert_eq!(client.get("/status/200").await.status, 200);
        }
    };
    quiet.await;
    let restarts = *starts.borrow() - before;
    assert!(restarts <= 4, "{restarts} restarts in three seconds");
}
