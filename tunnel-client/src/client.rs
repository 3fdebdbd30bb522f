//! The composition root: starts the parts of a client in order, and stops them in order.

use tunnel_ops::signals::Shutdown;

use crate::config::Config;

/// A client that has not dialled yet.
#[derive(Debug)]
pub struct Client {
    _config: Config,
}

/// Why a client cannot start, or could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {}

impl Client {
    /// Prepares what does not need the network.
    pub fn new(config: Config) -> Result<Self, ClientError> {
        Ok(Self { _config: config })
    }

    /// Keeps the tunnel up until asked to stop.
    pub async fn run(self, shutdown: Shutdown) -> Result<(), ClientError> {
        shutdown.asked().await;
        Ok(())
    }
}
