//! What a command that goes on until it is asked to stop begins with, and what it runs on.

use std::future::Future;

use tunnel_ops::descriptors;
use tunnel_ops::telemetry::{self, Telemetry};

use super::Failure;
use crate::config::Given;

/// Tasks that run between two polls of the sockets, when there is always one to run. Each may move a batch of a large
/// body, so that many would delay new requests.
const TASKS_BETWEEN_EVENTS: u32 = 16;

/// Begins the log as it is given, which ends with what this returns.
pub(super) fn begin(given: &Given) -> Result<Telemetry, Failure> {
    let source = given.clone().merge().map_err(Failure::configuration)?;
    let settings = source.settings();
    // The log comes first, so that nothing the next steps have to say is lost.
    let telemetry =
        telemetry::init(settings.log_format, &settings.log_level).map_err(Failure::running)?;
    descriptors::raise_limit();
    Ok(telemetry)
}

/// One thread does all: a client carries one cluster's traffic, and work stealing costs more than
/// it gives.
pub(super) fn block_on(serving: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .event_interval(TASKS_BETWEEN_EVENTS)
        .enable_all()
        .build()
        .map_err(|error| Failure::running(format_args!("cannot start: {error}")))?;
    let result = runtime.block_on(serving);
    // The system may look up a name for as long as it likes: the end does not wait for that.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_look_up_that_hangs_does_not_hold_up_the_end() {
        let (_held, never) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel();
        let limit = Duration::from_secs(5);
        let started = Instant::now();
        let stopped = block_on(async move {
            tokio::task::spawn_blocking(move || {
                begun.send(()).unwrap();
                never.recv_timeout(limit)
            });
            has_begun.recv().unwrap();
            Ok(())
        });
        assert!(stopped.is_ok());
        assert!(started.elapsed() < limit);
    }
}
