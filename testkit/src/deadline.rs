//! Bounded waiting: what a test awaits either happens in time, or ends the test with its name.
//!
//! Nothing here decides that something has happened because time has passed.

use std::sync::mpsc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout_at};

/// How long a test waits for what should happen at once: long, because the machine may be busy,
/// and a test that passes never waits for it.
pub const SOON: Duration = Duration::from_secs(20);

/// How often [`eventually`] asks again where nothing announces itself.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// Awaits `future`.
///
/// # Panics
/// When it has not ended after `limit`; the message names `what` was awaited.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match timeout_at(Instant::now() + limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {limit:?}"),
    }
}

/// Awaits what should happen at once.
///
/// # Panics
/// When it has not happened after [`SOON`]; the message names `what` was awaited.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    within(SOON, what, future).await
}

/// Awaits what needs no time to pass, in a test whose time is paused. The time stands still meanwhile, for up to [`SOON`] of
/// real time: it would move on whenever the kernel takes a moment for what is sent over a real socket.
pub async fn at_once<T>(future: impl Future<Output = T>) -> T {
    let (done, awaited) = mpsc::channel::<()>();
    // Paused time does not move on while a blocking task runs.
    let standing_still = spawn_blocking(move || {
        let _ = awaited.recv_timeout(SOON);
    });
    let value = future.await;
    drop(done);
    let _ = standing_still.await;
    value
}

/// Asks until there is an answer, where the other side offers no event to await (a program's
/// `/readyz`, a count of its descriptors).
///
/// # Panics
/// When there is no answer after `limit`; the message names `what` was awaited.
pub async fn eventually<T>(
    limit: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> T {
    within(limit, what, async {
        loop {
            if let Some(value) = ask().await {
                return value;
            }
            sleep(ASK_AGAIN).await;
        }
    })
    .await
}
