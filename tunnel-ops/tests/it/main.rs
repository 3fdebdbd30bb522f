//! What needs a process of its own: real signals, which from then on no longer end it by themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::future::Future;
use std::process::Command;
use std::time::Duration;

use tokio::time::timeout;
use tunnel_ops::signals::Shutdown;
use tunnel_ops::watch::{Change, FileWatch};

/// Far longer than a signal takes; only there because nothing gentler could end this process.
const PATIENCE: Duration = Duration::from_secs(10);

fn send(signal: &str) {
    let own = std::process::id().to_string();
    let sent = Command::new("kill").args([signal, &own]).status().unwrap();
    assert!(sent.success());
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future)
        .await
        .expect("the signal was noticed")
}

#[tokio::test]
async fn the_first_signal_asks_and_the_second_forces() {
    let shutdown = Shutdown::on_signals().unwrap();
    assert!(!shutdown.is_asked());
    send("-TERM");
    soon(shutdown.asked()).await;
    assert!(
        timeout(Duration::ZERO, shutdown.forced()).await.is_err(),
        "one signal only asks"
    );
    send("-INT");
    soon(shutdown.forced()).await;
}

#[tokio::test]
async fn a_hangup_asks_to_look_at_all_files_again() {
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
