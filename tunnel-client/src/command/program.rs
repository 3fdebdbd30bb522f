//! Telemetry and tokio runtime of the commands that run until they are stopped by a signal.

use std::future::Future;

use tunnel_http::access_log::AccessLog;
use tunnel_ops::descriptors;
use tunnel_ops::telemetry::{self, LogFormat, Telemetry};

use super::Failure;
use crate::config::Given;

/// Tasks that run between two polls of the sockets, when there is always one to run. Each may move a batch of a large
/// body, so that many would delay new requests.
const TASKS_BETWEEN_EVENTS: u32 = 16;

/// Starts the log and the access log as configured, and runs a command on one thread. Its failure is logged where lines
/// are read by a machine.
pub(super) fn run<F>(
    given: Given,
    serving: impl FnOnce(Given, AccessLog) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let (telemetry, format) = begin(&given)?;
    let access_log = AccessLog::new(telemetry.access_log());
    let result = block_on(serving(given, access_log));
    result.map_err(|failure| failure.logged(format))
}

fn begin(given: &Given) -> Result<(Telemetry, LogFormat), Failure> {
    let source = given.clone().merge().map_err(Failure::configuration)?;
    let settings = source.settings();
    // First, so that later steps can log.
    let telemetry =
        telemetry::init(settings.log_format, &settings.log_level).map_err(Failure::running)?;
    let opened = telemetry.open_access_log(&settings.access_log);
    telemetry.set_access_log(opened.map_err(Failure::running)?);
    descriptors::raise_limit();
    Ok((telemetry, settings.log_format))
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
