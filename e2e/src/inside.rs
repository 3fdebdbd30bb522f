//! Tunnel clients inside the test's own process, which cost little.
//!
//! For tests with many clients, or with clients that live shorter than a process takes to start. Tests of signals, of
//! files at the start or of a process's end use [`crate::client::Client`].

use std::time::Duration;

use clap::Parser;
use tokio::time::timeout;
use tunnel_client::{
    cli::{Cli, Command},
    client::{Client, ClientError},
    config::Config,
};
use tunnel_http::access_log::AccessLog;
use tunnel_ops::{
    signals::{Shutdown, Trigger},
    task::Owned,
};

use crate::client::ClientOptions;

/// A running tunnel client. Dropping it cuts its sessions, as a kill does.
#[derive(Debug)]
pub struct InsideClient {
    trigger: Trigger,
    running: Owned<Result<(), ClientError>>,
}

impl InsideClient {
    /// Starts a client, which dials.
    ///
    /// # Panics
    /// When it cannot be started with these options.
    pub fn start(options: &ClientOptions) -> Self {
        let mut arguments = vec!["tunnel-client".to_owned()];
        arguments.extend(options.arguments());
        let off = ["--admin-listen", "off"];
        arguments.extend(off.map(str::to_owned));
        let cli = Cli::try_parse_from(arguments).unwrap();
        let Command::Run(given) = cli.command else {
            panic!("{options:?} is no `run`");
        };
        let config = Config::check(&given.merge().unwrap()).unwrap();
        let client = Client::new(config, AccessLog::off()).unwrap();
        let (trigger, shutdown) = Shutdown::manual();
        let running = async move { Box::pin(client.run(shutdown)).await };
        Self {
            trigger,
            running: Owned::spawn("inside-client", running),
        }
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.running.is_finished()
    }

    /// Requests a shutdown, as SIGTERM does, and waits for the end.
    ///
    /// # Panics
    /// When it has not ended within `limit`.
    pub async fn leave(mut self, limit: Duration) {
        self.trigger.request();
        let left = timeout(limit, &mut self.running).await;
        assert!(left.is_ok(), "a client did not leave within {limit:?}");
    }
}
