//! Restarts under load: of the client, of single paths, of the server. What is asked meanwhile is
//! answered, and what is long is ended in the way of its protocol.
//!
//! The load is of every kind at once ([`e2e::load`]), through one tunnel client with two sessions.

use std::time::Duration;

use e2e::{
    deadline::{SOON, eventually},
    http1::End,
    load::{ExchangeKind, Failure, Load, OpenStreams, Plan},
    program::{Program, Signal},
    raw::RawClient,
    system::{ADMIN_TOKEN, Options, System},
    upstream::Upstream,
};
use tokio::time::{Instant, sleep};

const APP: &str = "demo-app";

/// As an operator who rolls servers out gives them, beside the grace period.
const SERVER: [&str; 4] = ["--drain-delay", "1s", "--offline-wait", "6s"];

/// And the grace period, which is also the longest that a long stream can hold a server up.
const GRACE: &str = "15s";

/// The client has two sessions, and long streams do not hold its end up for long.
const CLIENT: [&str; 4] = ["--sessions", "2", "--grace-period", "2s"];

/// What has no end of its own.
const LONG: [ExchangeKind; 3] = [
    ExchangeKind::Events,
    ExchangeKind::WebSocket,
    ExchangeKind::Stream,
];

fn options(upstream: &Upstream) -> Options {
    options_with(upstream, GRACE)
}

fn options_with(upstream: &Upstream, grace: &str) -> Options {
    let options = Options::to(&upstream.h2c_url()).server_flags(&SERVER);
    options
        .server_flags(&["--grace-period", grace, "--drain-spread", "300ms"])
        .client_flags(&CLIENT)
        .with_admin_token()
}

/// A system under load of every kind.
async fn under_load(options: Options) -> (System, Load) {
    let system = System::with(options).await;
    let load = Load::start(system.entry(), &Plan::every_kind());
    load.wait_progress(10).await;
    (system, load)
}

/// Each of the long streams that were open is ended once by its protocol, all of them are begun anew,
/// and the load goes on.
async fn wait_moved(load: &Load, streams: &OpenStreams) {
    load.wait_ended_by_protocol(streams).await;
    load.mark("every long stream was ended");
    load.wait_progress(10).await;
}

/// Waits, after the last change of the system, until every long stream was ended, and asserts that nothing has failed.
async fn assert_nothing_lost(load: Load, streams: OpenStreams) {
    wait_moved(&load, &streams).await;
    load.finish().await.assert_none_failed();
}

/// What a rollout does with each of several replicas, or with one again and again.
const ROUNDS: usize = 3;

/// Clients whose long streams hold their end up for a moment only, so that several rounds are short.
const ROLLED: [&str; 4] = ["--sessions", "2", "--grace-period", "1s"];

fn rolled(upstream: &Upstream) -> Options {
    let mut options = options(upstream);
    options.client_flags.clear();
    options.client_flags(&ROLLED)
}

#[tokio::test]
async fn a_client_is_replaced_by_its_successor_again_and_again_without_loss() {
    let upstream = Upstream::start().await;
    let (mut system, load) = under_load(rolled(&upstream)).await;
    for _ in 0..ROUNDS {
        let streams = load.open_streams(&LONG);
        let newer = system.another_client(APP).await;
        load.mark("the newer instance is up");
        let mut older = system.replace_client(APP, newer).unwrap();
        older.program().signal(Signal::TERM);
        load.mark("the older has a SIGTERM");
        older.program_mut().wait_exit(SOON).await;
        load.mark("the older is gone");
        wait_moved(&load, &streams).await;
    }
    let report = load.finish().await;
    report.assert_none_failed();
    let again = ExchangeKind::ALL.map(|kind| report.counts(kind).again);
    assert_eq!(again, [0; 6], "public connections stay open\n{report}");
}

#[tokio::test]
async fn a_client_may_be_away_for_a_moment_while_requests_wait() {
    let upstream = Upstream::start().await;
    let (mut system, load) = under_load(options(&upstream)).await;
    let streams = load.open_streams(&LONG);
    let mut older = system.take_client(APP);
    older.program().signal(Signal::TERM);
    load.mark("the only instance has a SIGTERM");
    assert!(older.program_mut().wait_exit(SOON).await.success());
    load.mark("it is gone");
    system.start_client(APP).await;
    load.mark("the next one is up");
    assert_nothing_lost(load, streams).await;
}

#[tokio::test]
async fn a_client_restarted_again_and_again_takes_over_from_the_one_that_leaves() {
    let upstream = Upstream::start().await;
    let (mut system, load) = under_load(rolled(&upstream)).await;
    for _ in 0..ROUNDS {
        let streams = load.open_streams(&LONG);
        let mut older = system.take_client(APP);
        older.program().signal(Signal::TERM);
        load.mark("the only instance has a SIGTERM");
        system.start_client(APP).await;
        load.mark("the next one is up");
        older.program_mut().wait_exit(SOON).await;
        load.mark("the older is gone");
        wait_moved(&load, &streams).await;
    }
    load.finish().await.assert_none_failed();
}

#[tokio::test]
async fn paths_that_are_replaced_one_after_the_other_again_and_again_cost_nothing() {
    let upstream = Upstream::start().await;
    let (system, load) = under_load(rolled(&upstream).through_relay()).await;
    let path = format!("/api/v1/runtimes/{APP}/drain");
    for round in 1..=ROUNDS {
        let streams = load.open_streams(&LONG);
        let before = system.relay().wait_connections(2).await;
        let answer = system.server().admin().post(&path, Some(ADMIN_TOKEN)).await;
        assert!(answer.status.is_success(), "{answer:?}");
        load.mark("the runtime's sessions are drained");
        let replaced = async || {
            let now = system.relay().connections();
            let is_new = now.iter().all(|number| !before.contains(number));
            (is_new && now.len() == 2).then_some(())
        };
        eventually(SOON, "two new sessions, and no old one", replaced).await;
        load.mark("both have been replaced");
        assert_eq!(
            system.relay().dials().len(),
            2 + 2 * round,
            "one dial for each"
        );
        wait_moved(&load, &streams).await;
    }
    let report = load.finish().await;
    report.assert_none_failed();
    let again = ExchangeKind::ALL.map(|kind| report.counts(kind).again);
    assert_eq!(again, [0; 6], "public connections stay open\n{report}");
}

/// What a failure on a path that broke may look like: what docs/life-of-a-tunnel.md says under "Waiting and
/// retrying". A GET goes by the other path.
fn is_told_as_documented(failure: &Failure) -> bool {
    let says = |what: &str| failure.what.contains(what);
    match failure.kind {
        ExchangeKind::Get => false,
        // Its answer may have begun.
        ExchangeKind::Post => (says("502") && says("session_lost")) || says("200 OK and then"),
        ExchangeKind::Call | ExchangeKind::Stream => says("Unavailable") || says("Internal"),
        ExchangeKind::Events | ExchangeKind::WebSocket => says("cut"),
    }
}

#[tokio::test]
async fn one_of_two_paths_that_breaks_costs_no_get_and_nothing_that_comes_after() {
    let upstream = Upstream::start().await;
    let (system, load) = under_load(options(&upstream).through_relay()).await;
    const CUTS: u64 = 3;
    for _ in 0..CUTS {
        let [first, _] = system.relay().wait_connections(2).await[..] else {
            unreachable!()
        };
        // The path is away for a while, and nobody can come by it.
        system.relay().refuse();
        system.relay().cut_one(first);
        load.mark("one path is cut");
        load.wait_progress(10).await;
        system.relay().resume();
        load.mark("it is back");
        system.relay().wait_connections(2).await;
        load.wait_progress(10).await;
    }
    let report = load.finish().await;
    eprintln!("what was under way on a path that broke:\n{report}");
    // Of each worker one thing at most each time: what comes after goes by the path that is there.
    report.assert_at_most_failed(CUTS);
    report.assert_none_failed_but(is_told_as_documented);
}

#[tokio::test]
async fn a_server_is_replaced_by_another_behind_a_load_balancer() {
    let upstream = Upstream::start().await;
    let options = options_with(&upstream, "6s").through_relay();
    let (mut system, load) = under_load(options).await;
    let streams = load.open_streams(&LONG);
    let newer = system.another_server(None, None).await;
    system.relay().lead_to(newer.tunnel_address());
    let entry = system.entry_at(&newer, APP);
    let mut older = system.replace_server(newer);
    let asked = Instant::now();
    older.program().signal(Signal::TERM);
    load.mark("the older server has a SIGTERM");
    older.admin().wait_ready(false).await;
    load.lead_to(entry);
    load.mark("the load balancer asks the newer server");
    let exit = older.program_mut().wait_exit(SOON).await;
    let took = asked.elapsed();
    load.mark("the older server is gone");
    assert!(exit.success(), "{exit}");
    assert!(took < Duration::from_secs(7), "it took {took:?}");
    assert_nothing_lost(load, streams).await;
}

#[tokio::test]
async fn a_server_is_replaced_in_place_once_the_older_is_gone() {
    let upstream = Upstream::start().await;
    // As shipped, the waits between dials grow past the `--offline-wait` of this test while nothing listens.
    let options =
        options(&upstream).client_flags(&["--redial-base", "100ms", "--redial-cap", "500ms"]);
    let mut system = System::with(options).await;
    let server = system.server();
    let (tunnel, public) = (server.tunnel_address(), server.public_address());
    server.program().signal(Signal::TERM);
    let exit = system.server_mut().program_mut().wait_exit(SOON).await;
    assert!(exit.success(), "{exit}");
    let newer = system.another_server(Some(tunnel), Some(public)).await;
    drop(system.replace_server(newer));
    // Whoever asks before the tunnel client has moved waits for it.
    let mut client = RawClient::connect(&system.entry()).await;
    let answer = client.exchange("GET", "/status/200", "").await;
    assert_eq!(answer.head.status(), 200);
}

#[tokio::test]
async fn a_server_that_is_asked_to_stop_serves_on_for_a_while_and_ends_what_is_under_way() {
    let upstream = Upstream::start().await;
    let mut system = System::with(options(&upstream)).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client
        .request("GET", "/events?count=20&every_ms=100", "", b"")
        .await;
    let head = client.head().await.unwrap();
    let asked = Instant::now();
    system.server().program().signal(Signal::TERM);
    system.server().admin().wait_ready(false).await;
    // Not ready any more, but whoever has not heard of that is served.
    let mut late = RawClient::connect(&system.entry()).await;
    let answer = late.exchange("GET", "/status/200", "").await;
    assert_eq!(answer.head.status(), 200);
    let content = client.content(head.response_framing("GET")).await;
    assert_eq!(content.end, End::Clean);
    let server = system.server_mut().program_mut();
    assert!(server.wait_exit(SOON).await.success());
    let took = asked.elapsed();
    assert!(
        took < Duration::from_secs(16),
        "exit before the grace ends, not after {took:?}"
    );
}

/// The program stays for what is open when it is asked to stop, and ends when it is asked again.
async fn assert_ends_when_asked_again(program: &mut Program) {
    program.signal(Signal::TERM);
    program.wait_for_line("shutting down", SOON).await;
    sleep(Duration::from_millis(500)).await;
    assert!(
        !program.log().is_closed(),
        "it has not waited for what is open"
    );
    program.signal(Signal::TERM);
    // Far less than the first signal alone would have given it.
    let exit = program.wait_exit(Duration::from_secs(2)).await;
    assert_eq!(exit.code(), Some(1), "what is open is cut");
    program.wait_for_line("stopping immediately", SOON).await;
}

/// What either program would wait for what is open, were it asked only once.
const PATIENT: [&str; 2] = ["--grace-period", "60s"];

/// A system in which one request is open for as long as anybody waits for it.
async fn with_one_held(upstream: &Upstream) -> (System, RawClient) {
    let options = Options::to(&upstream.h2c_url()).server_flags(&["--drain-delay", "20s"]);
    with_held(
        upstream,
        options.server_flags(&PATIENT).client_flags(&PATIENT),
    )
    .await
}

async fn with_held(upstream: &Upstream, options: Options) -> (System, RawClient) {
    let system = System::with(options).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client.request("GET", "/hold", "", b"").await;
    upstream.wait_request("/hold").await;
    (system, client)
}

#[tokio::test]
async fn a_second_signal_ends_the_server_at_once() {
    let upstream = Upstream::start().await;
    let (mut system, mut held) = with_one_held(&upstream).await;
    assert_ends_when_asked_again(system.server_mut().program_mut()).await;
    held.wait_end(SOON).await;
    let program = system.server().program();
    let line = program.wait_for_line("\"/hold\"", SOON).await;
    assert!(line.contains("cut_by_stop"), "{line}");
}

#[tokio::test]
async fn what_is_open_when_the_grace_period_ends_is_cut_by_the_stop() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.h2c_url()).server_flags(&["--grace-period", "1s"]);
    let (mut system, mut held) = with_held(&upstream, options).await;
    let program = system.server_mut().program_mut();
    program.signal(Signal::TERM);
    assert!(program.wait_exit_alone(SOON).await.success());
    held.wait_end(SOON).await;
    let line = program.wait_for_line("\"/hold\"", SOON).await;
    assert!(line.contains("cut_by_stop"), "{line}");
}

#[tokio::test]
async fn a_second_signal_ends_the_client_at_once() {
    let upstream = Upstream::start().await;
    let (mut system, mut held) = with_one_held(&upstream).await;
    let mut client = system.take_client(APP);
    assert_ends_when_asked_again(client.program_mut()).await;
    assert_eq!(held.head().await.unwrap().status(), 502);
}
