//! What is known of a server must be what is reported of it.

use crate::language::{Upstream, http, http_alone, loadtest};

#[test]
fn a_known_delay_is_reported() {
    let upstream = Upstream::start("--delay 20ms");
    let measured = http(&upstream.url, "--connections 4");
    assert_eq!(measured.code, 0, "{measured:#?}");
    assert!(measured.run()["errors"].as_object().unwrap().is_empty());
    // Never shorter than it was; the histogram keeps three digits.
    assert!(measured.latency("min") >= 0.019_98, "{measured:#?}");
    let median = measured.latency("p50");
    assert!((0.019_98..0.200).contains(&median), "{measured:#?}");
    // Four connections that each wait 20 ms can do 100 in half a second, no more.
    assert!((1..=104).contains(&measured.completed()), "{measured:#?}");
}

#[test]
fn a_known_share_of_errors_is_reported_exactly() {
    let upstream = Upstream::start("--error-rate 0.1");
    let measured = http(&upstream.url, "--connections 1");
    let (completed, failed) = (measured.completed(), measured.errors("status_503"));
    let errors = measured.run()["errors"].as_object().unwrap();
    assert_eq!(errors.len(), 1, "{measured:#?}");
    // Every tenth answer is an error, so any row of answers has a tenth, give or take one.
    let tenth = (completed + failed) as f64 / 10.0;
    assert!((failed as f64 - tenth).abs() <= 1.0, "{completed} {failed}");
    assert!(completed > 10, "{measured:#?}");
}

#[test]
fn open_loop_shows_the_queue_that_closed_loop_hides() {
    // At most 100 a second fit through one connection, and twice as many are due.
    let upstream = Upstream::start("--delay 10ms");
    let closed = http(&upstream.url, "--connections 1");
    let open = http(&upstream.url, "--connections 1 --rate 200");
    assert!(closed.latency("p50") < 0.200, "{closed:#?}");
    // The last that was sent was due half the run before.
    assert!(open.latency("max") > 0.17, "{open:#?}");
    assert!(
        open.latency("p50") > closed.latency("p50") * 2.0,
        "{open:#?}"
    );
    // Nothing that was due is missing.
    assert!(open.errors("not_sent") >= 45, "{open:#?}");
    assert_eq!(open.completed() + open.errors("not_sent"), 100, "{open:#?}");
}

#[test]
fn open_loop_keeps_its_rate_when_it_can() {
    // There is a connection for each request, so that none has to wait.
    let upstream = Upstream::start("");
    for arguments in [
        "--connections 100 --rate 100",
        "--connections 100 --rate 100 --threads 2",
    ] {
        let measured = http_alone(&upstream.url, arguments);
        assert_eq!(measured.completed(), 50, "{measured:#?}");
        assert!(measured.run()["errors"].as_object().unwrap().is_empty());
    }
}

#[test]
fn the_warm_up_does_not_count() {
    // At this rate two requests fit into the warm-up and two into the window.
    let upstream = Upstream::start("");
    let url = &upstream.url;
    let arguments = format!("http --url {url} --rate 4 --warm-up 500ms --duration 500ms");
    let measured = loadtest(&arguments);
    assert_eq!(measured.completed(), 2, "{measured:#?}");
}

#[test]
fn bytes_are_those_of_the_contents() {
    let upstream = Upstream::start("");
    let url = format!("{}/bytes/1000", upstream.url);
    for protocol in ["", "--http2"] {
        let arguments = format!("--method POST --body-size 10KB --rate 20 {protocol}");
        let measured = http(&url, &arguments);
        measured.assert_sent(10);
        let completed = measured.completed();
        assert_eq!(
            measured.run()["bytes_down"],
            1_000 * completed,
            "{measured:#?}"
        );
        assert_eq!(
            measured.run()["bytes_up"],
            10_000 * completed,
            "{measured:#?}"
        );
    }
}

#[test]
fn what_a_process_uses_is_told_by_its_role() {
    let upstream = Upstream::start("");
    let arguments = format!("--connections 4 --pid gateway={}", upstream.id());
    let measured = http(&upstream.url, &arguments);
    let usage = &measured.run()["usage"];
    for role in ["gateway", "load generator"] {
        assert_eq!(usage[role]["processes"], 1, "{measured:#?}");
        assert!(
            usage[role]["cpu_seconds"].as_f64().unwrap() > 0.0,
            "{measured:#?}"
        );
        assert!(
            usage[role]["rss"].as_u64().unwrap() > 100_000,
            "{measured:#?}"
        );
    }
    // The cost is the gateway's alone.
    let cost = measured.run()["cpu_us_per_request"].as_f64().unwrap();
    let used = usage["gateway"]["cpu_seconds"].as_f64().unwrap();
    let expected = used * 1e6 / measured.completed() as f64;
    assert!((cost - expected).abs() < expected / 100.0, "{measured:#?}");
}

#[test]
fn the_timeline_adds_up() {
    let upstream = Upstream::start("--delay 5ms");
    let measured = http(&upstream.url, "--connections 2");
    let timeline = measured.run()["timeline"].as_array().unwrap();
    assert!(timeline.len() >= 4, "{measured:#?}");
    let mut sum = 0.0;
    let mut before = 0.0;
    for interval in timeline {
        let at = interval["at"].as_f64().unwrap();
        sum += interval["rate"].as_f64().unwrap() * (at - before);
        before = at;
    }
    // The last answers come after the last interval.
    let completed = measured.completed() as f64;
    assert!(
        (completed - sum).abs() <= 4.0,
        "{sum} of {completed}: {measured:#?}"
    );
}

#[test]
fn streams_share_connections() {
    // The upstream sleeps for each stream on its own, so what one connection carries shows
    // whether streams run side by side.
    let upstream = Upstream::start("--delay 100ms");
    let one = http(&upstream.url, "--connections 1 --http2");
    let many = http(&upstream.url, "--connections 1 --http2 --streams 20");
    assert!((1..=5).contains(&one.completed()), "{one:#?}");
    assert!(many.completed() > 20, "{many:#?}");
    assert!(
        many.run()["errors"].as_object().unwrap().is_empty(),
        "{many:#?}"
    );
}
