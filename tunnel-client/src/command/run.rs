//! `tunnel-client run`: runs a client until it has stopped.

use tunnel_http::access_log::AccessLog;
use tunnel_ops::signals::Shutdown;

use super::{Failure, program};
use crate::client::{Client, ClientError};
use crate::config::Given;

pub(super) fn run(given: Given) -> Result<(), Failure> {
    let telemetry = program::begin(&given)?;
    let access_log = AccessLog::new(telemetry.access_log());
    program::block_on(serve(given, access_log))
}

async fn serve(given: Given, access_log: AccessLog) -> Result<(), Failure> {
    // First: as process 1 of a container, the program ignores signals without a handler.
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::running(format_args!("cannot listen for signals: {error}")))?;
    // Reports all faults of the configuration before the first dial.
    let client = Client::with_reload(given, access_log).map_err(|error| match error {
        ClientError::Config(error) => Failure::configuration(error),
        other => Failure::running(other),
    })?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "tunnel-client starts");
    // Boxed, since it holds the whole client.
    Box::pin(client.run(shutdown))
        .await
        .map_err(Failure::running)
}
