//! Tunnel clients inside the test's own process: the real code, many at little cost.
//!
//! For tests about many clients, or about lives so short that starting a process would be most of
//! them. What concerns signals, files at start or a process's end is [`crate::client::Client`]'s.

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

/// A running tunnel client; dropped, it breaks off as if it were killed.
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

    /// Asks it to leave, as a SIGTERM would, and waits until it has.
    ///
    /// # Panics
    /// When it does not within `limit`.
    pub async fn leave(mut self, limit: Duration) {
        self.trigger.ask();
        let left = timeout(limit, &mut self.running).await;
        assert!(left.is_ok(), "a client did not leave within {limit:?}");
    }
}
