//! `tunnel-client run`: from what was given to a client that has stopped.

use tunnel_ops::signals::Shutdown;

use super::{Failure, program};
use crate::client::Client;
use crate::config::{Config, Given};

pub(super) fn run(given: Given) -> Result<(), Failure> {
    let (source, _telemetry) = program::begin(given)?;
    // All that can be wrong with the configuration is told before anybody is dialled.
    let config = Config::check(source).map_err(Failure::configuration)?;
    program::block_on(serve(config))
}

async fn serve(config: Config) -> Result<(), Failure> {
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::running(format_args!("cannot listen for signals: {error}")))?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "tunnel-client starts");
    let client = Client::new(config).map_err(Failure::running)?;
    // It holds the whole client, too much to be moved about on the stack.
    Box::pin(client.run(shutdown))
        .await
        .map_err(Failure::running)
}
