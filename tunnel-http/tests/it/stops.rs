//! What connections do when the program stops.

use std::time::Duration;

use testkit::deadline::at_once;
use testkit::http1::{End, RawConnection};
use tokio::time::{Instant, sleep};

use crate::rig::{Rig, ok};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A gateway, and a connection to it that is idle.
async fn idle(is_trusted: bool) -> (Rig, RawConnection) {
    let rig = Rig::with(is_trusted, |_| async { ok("x") }).await;
    let mut raw = rig.connect().await;
    let answer = at_once(raw.ask(GET)).await;
    assert_eq!(answer.head.value("connection"), Some("keep-alive"));
    (rig, raw)
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_stays_for_one_more_request() {
    for (is_trusted, grace) in [(false, 1_000), (true, 5_000)] {
        let (rig, mut raw) = idle(is_trusted).await;
        rig.stop.request();
        sleep(Duration::from_millis(grace - 10)).await;
        let answer = at_once(raw.ask(GET)).await;
        assert_eq!(
            (&*answer.text(), answer.head.value("connection")),
            ("x", Some("close"))
        );
        assert_eq!(answer.head.value("keep-alive"), None);
        assert_eq!(raw.closes().await, End::Clean);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_idle_after_the_grace_is_closed() {
    for (is_trusted, grace) in [(false, 1), (true, 5)] {
        let (rig, mut raw) = idle(is_trusted).await;
        rig.stop.request();
        let began = Instant::now();
        assert_eq!(raw.closes().await, End::Clean);
        assert_eq!(began.elapsed().as_secs(), grace);
    }
}

#[tokio::test(start_paused = true)]
async fn no_idle_connection_stays_when_no_time_is_left() {
    let (rig, mut raw) = idle(true).await;
    rig.stop.request();
    let began = Instant::now();
    rig.end.request();
    assert_eq!(raw.closes().await, End::Clean);
    assert!(began.elapsed() < Duration::from_millis(100));
}
