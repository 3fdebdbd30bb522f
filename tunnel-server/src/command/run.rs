//! `tunnel-server run`: from what was given to a server that has stopped.

use std::future::Future;

use tunnel_ops::signals::Shutdown;
use tunnel_ops::{descriptors, telemetry};

use super::Failure;
use crate::config::{Config, Given};
use crate::server::Server;

pub(super) fn run(given: Given) -> Result<(), Failure> {
    let source = given.merge().map_err(Failure::configuration)?;
    // The log comes first, so that nothing the next steps have to say is lost.
    let format = source.log_format.unwrap_or_default();
    let filter = source.log_level.clone().unwrap_or_default();
    let _telemetry = telemetry::init(format, &filter).map_err(Failure::running)?;
    descriptors::raise_limit();
    // All that can be wrong with the configuration is told before anything is bound.
    let config = Config::check(source).map_err(Failure::configuration)?;
    if config.runtimes.token_count() == 0 {
        tracing::warn!("the runtimes file holds no token: no client can connect");
    }
    block_on(serve(config))
}

/// One thread controls; the shards that carry traffic have their own.
fn block_on(serving: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|error| Failure::running(format_args!("cannot start: {error}")))?
        .block_on(serving)
}

async fn serve(config: Config) -> Result<(), Failure> {
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::running(format_args!("cannot listen for signals: {error}")))?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "tunnel-server starts");
    let server = Server::bind(config).await.map_err(Failure::running)?;
    server.run(shutdown).await.map_err(Failure::running)
}
