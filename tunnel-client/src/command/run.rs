//! `tunnel-client run`: from what was given to a client that has stopped.

use tunnel_ops::signals::Shutdown;

use super::{Failure, program};
use crate::client::{Client, ClientError};
use crate::config::Given;

pub(super) fn run(given: Given) -> Result<(), Failure> {
    let _telemetry = program::begin(&given)?;
    program::block_on(serve(given))
}

async fn serve(given: Given) -> Result<(), Failure> {
    // Before anything is read: as the first process of a container it would not hear of them otherwise.
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::running(format_args!("cannot listen for signals: {error}")))?;
    // All faults of the configuration are reported before anything is dialled.
    let client = Client::with_reload(given).map_err(|error| match error {
        ClientError::Config(error) => Failure::configuration(error),
        other => Failure::running(other),
    })?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "tunnel-client starts");
    // It holds the whole client, too much to be moved about on the stack.
    Box::pin(client.run(shutdown))
        .await
        .map_err(Failure::running)
}
