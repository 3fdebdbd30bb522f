//! `tunnel-client serve`: from what was given to a listener that has stopped.

use tunnel_ops::signals::Shutdown;

use super::{Failure, program};
use crate::config::{Given, ServeConfig};
use crate::serving::Serving;

pub(super) fn serve(given: Given) -> Result<(), Failure> {
    let (source, _telemetry) = program::begin(given)?;
    let config = ServeConfig::check(source).map_err(Failure::configuration)?;
    program::block_on(run(config))
}

async fn run(config: ServeConfig) -> Result<(), Failure> {
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::running(format_args!("cannot listen for signals: {error}")))?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        "tunnel-client starts, without a tunnel"
    );
    let serving = Serving::new(config).map_err(Failure::running)?;
    // It holds the whole client, too much to be moved about on the stack.
    Box::pin(serving.run(shutdown))
        .await
        .map_err(Failure::running)
}
