//! Telemetry and tokio runtime of the commands that run until they are stopped by a signal.

use std::future::Future;

use tunnel_ops::descriptors;
use tunnel_ops::signals::Shutdown;
use tunnel_ops::telemetry::{self, Telemetry};

use super::Failure;
use crate::config::Given;

/// Tasks that run between two polls of the sockets, when there is always one to run. Each may move a batch of a large
/// body, so that many would delay new requests.
const TASKS_BETWEEN_EVENTS: u32 = 16;

/// Starts the log and the access log as configured, until the result is dropped.
pub(super) fn begin(given: &Given) -> Result<Telemetry, Failure> {
    let source = given.clone().merge().map_err(Failure::configuration)?;
    let settings = source.settings();
    // First, so that later steps can log.
    let telemetry =
        telemetry::init(settings.log_format, &settings.log_level).map_err(Failure::running)?;
    let opened = telemetry.open_access_log(&settings.access_log);
    telemetry.set_access_log(opened.map_err(Failure::running)?);
    descriptors::raise_limit();
    Ok(telemetry)
}

/// Runs on one thread: a client carries the traffic of one cluster, for which work stealing costs more than it gains.
pub(super) fn block_on(serving: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .event_interval(TASKS_BETWEEN_EVENTS)
        .enable_all()
        .build()
        .map_err(|error| Failure::running(format_args!("cannot start: {error}")))?;
    let result = runtime.block_on(serving);
    // The system's resolver may block a thread without limit; the exit does not wait for it.
    runtime.shutdown_background();
    result
}

/// Whether the program has stopped in order.
pub(super) fn unless_forced(shutdown: &Shutdown) -> Result<(), Failure> {
    match shutdown.is_forced() {
        true => Err(Failure::running(
            "stopped at once, as a second signal asked: what was open was cut",
        )),
        false => Ok(()),
    }
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
