//! Bounded waiting: what a test awaits either happens in time, or ends the test with its name.

use std::{future::Future, time::Duration};

use tokio::time::timeout;

/// How long a test waits for what should happen at once: long, because the machine may be busy,
/// and nobody waits for it when all is well.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Awaits `future`, and says what did not happen if it takes too long.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {SOON:?}"),
    }
}

/// Asks until there is an answer, where nothing announces itself.
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    soon(what, async {
        loop {
            if let Some(value) = ask().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}
