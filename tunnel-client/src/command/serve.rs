//! `tunnel-client serve`: runs a listener until it has stopped.

use tunnel_http::access_log::AccessLog;
use tunnel_ops::{build, inherited::Inherited, signals::Shutdown};

use super::{Failure, program};
use crate::config::Given;
use crate::serving::{Serving, ServingError};

pub(super) fn serve(given: Given) -> Result<(), Failure> {
    // While this is the only thread, since it changes the environment.
    let inherited = Inherited::from_environment().map_err(Failure::configuration)?;
    program::run(given, |given, access_log| run(given, access_log, inherited))
}

async fn run(given: Given, access_log: AccessLog, inherited: Inherited) -> Result<(), Failure> {
    // First: as process 1 of a container, the program ignores signals without a handler.
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::running(format_args!("cannot listen for signals: {error}")))?;
    let serving =
        Serving::with_reload(given, access_log, inherited).map_err(|error| match error {
            ServingError::Config(error) => Failure::configuration(error),
            ServingError::Unclaimed(error) => Failure::configuration(error),
            other => Failure::running(other),
        })?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        commit = build::commit(),
        "tunnel-client starts, without a tunnel"
    );
    // Boxed, since it holds the whole client.
    Box::pin(serving.run(shutdown.clone()))
        .await
        .map_err(Failure::running)?;
    Failure::of_forced(&shutdown)
}
