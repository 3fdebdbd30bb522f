//! Tests with real signals, which need a process of their own: its handling of signals changes for good.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::future::Future;
use std::process::Command;
use std::time::Duration;

use tokio::time::timeout;
use tunnel_ops::signals::Shutdown;
use tunnel_ops::watch::{Change, FileWatch};

/// Far longer than the delivery of a signal takes.
const TIMEOUT: Duration = Duration::from_secs(10);

fn send(signal: &str) {
    let own = std::process::id().to_string();
    let sent = Command::new("kill").args([signal, &own]).status().unwrap();
    assert!(sent.success());
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(TIMEOUT, future)
        .await
        .expect("the signal was missed")
}

#[tokio::test]
async fn the_first_signal_asks_and_the_second_forces() {
    let shutdown = Shutdown::on_signals().unwrap();
    assert!(!shutdown.is_requested());
    send("-TERM");
    soon(shutdown.requested()).await;
    assert!(
        timeout(Duration::ZERO, shutdown.forced()).await.is_err(),
        "one signal does not force"
    );
    send("-INT");
    soon(shutdown.forced()).await;
}

#[tokio::test]
async fn a_hangup_requests_all_files() {
    let mut watch = FileWatch::new(["/nowhere/a".into()]).unwrap();
    for _ in 0..2 {
        send("-HUP");
        let change = soon(watch.changed()).await;
        let expected = Change {
            files: Vec::new(),
            is_requested: true,
        };
        assert_eq!(change, expected);
    }
}
