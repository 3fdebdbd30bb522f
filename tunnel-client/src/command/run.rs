//! `tunnel-client run`: runs a client until it has stopped.

use tunnel_http::access_log::AccessLog;
use tunnel_ops::{build, signals::Shutdown};

use super::{Failure, program};
use crate::client::{Client, ClientError};
use crate::config::Given;

pub(super) fn run(given: Given) -> Result<(), Failure> {
    program::run(given, async move |given, access_log| {
        let (client, shutdown) = prepare(given, access_log)?;
        until_stopped(client, shutdown).await
    })
}

/// A client that has not dialled yet, and the signals that stop it.
pub(super) fn prepare(given: Given, access_log: AccessLog) -> Result<(Client, Shutdown), Failure> {
    // First: as process 1 of a container, the program ignores signals without a handler.
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::running(format_args!("cannot listen for signals: {error}")))?;
    // Reports all faults of the configuration before the first dial.
    let client = Client::with_reload(given, access_log).map_err(|error| match error {
        ClientError::Config(error) => Failure::configuration(error),
        other => Failure::running(other),
    })?;
    Ok((client, shutdown))
}

pub(super) async fn until_stopped(client: Client, shutdown: Shutdown) -> Result<(), Failure> {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        commit = build::commit(),
        "tunnel-client starts"
    );
    // Boxed, since it holds the whole client.
    Box::pin(client.run(shutdown.clone()))
        .await
        .map_err(Failure::running)?;
    Failure::of_forced(&shutdown)
}
