//! `tunnel-client serve`: from what was given to a listener that has stopped.

use tunnel_ops::signals::Shutdown;

use super::{Failure, program};
use crate::config::Given;
use crate::serving::{Serving, ServingError};

pub(super) fn serve(given: Given) -> Result<(), Failure> {
    let _telemetry = program::begin(&given)?;
    program::block_on(run(given))
}

async fn run(given: Given) -> Result<(), Failure> {
    // Before anything is read: as the first process of a container it would not hear of them otherwise.
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::running(format_args!("cannot listen for signals: {error}")))?;
    let serving = Serving::with_reload(given).map_err(|error| match error {
        ServingError::Config(error) => Failure::configuration(error),
        other => Failure::running(other),
    })?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        "tunnel-client starts, without a tunnel"
    );
    // It holds the whole client, too much to be moved about on the stack.
    Box::pin(serving.run(shutdown))
        .await
        .map_err(Failure::running)
}
