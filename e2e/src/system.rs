//! The whole system: a server, and a client for each runtime, around upstreams of the test.
//!
//! [`System::start`] gives the usual one: runtime `app` of account `demo`, connected. More runtimes,
//! a relay before the server, and flags are options. Certificates, runtimes file and tokens lie in
//! a directory that goes with the system.

use tempfile::TempDir;

use crate::{
    ca::Ca,
    client::{Client, ClientOptions},
    entry::Entry,
    relay::Relay,
    server::{Server, ServerFiles, ServerOptions},
};

/// What a system consists of.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The server.
    pub server: ServerOptions,
    /// Flags for every client.
    pub client_flags: Vec<String>,
    /// Whether clients reach the server by way of a [`Relay`].
    pub relay: bool,
}

/// A runtime and its client.
#[derive(Debug)]
pub struct Runtime {
    host: String,
    options: ClientOptions,
    client: Option<Client>,
}

/// A running system.
#[derive(Debug)]
pub struct System {
    // Dropped in this order: clients, then the server, then the network, then the files.
    runtimes: Vec<Runtime>,
    server: Server,
    relay: Option<Relay>,
    files: ServerFiles,
    ca: Ca,
    options: Options,
    directory: TempDir,
}

impl System {
    /// The usual system around the upstream at this URL, ready for requests.
    pub async fn start(upstream: &str) -> Self {
        Self::with(Options::default(), upstream).await
    }

    /// A system with these options, ready for requests.
    pub async fn with(options: Options, upstream: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let files = ServerFiles::new(directory.path(), &ca, &options.server.domain);
        // The runtimes file must be there before the server, or the server refuses to start.
        files.create_token("demo", "app");
        let server = Server::start(&files, &options.server).await;
        let relay = match options.relay {
            true => Some(Relay::start(server.tunnel_address()).await),
            false => None,
        };
        let mut system =
            Self { runtimes: Vec::new(), server, relay, files, ca, options, directory };
        system.add_client("demo", "app", upstream).await;
        system
    }

    /// A system with these runtimes of account `demo`, each before its own upstream.
    pub async fn with_runtimes(options: Options, runtimes: &[(&str, &str)]) -> Self {
        let (first, others) = runtimes.split_first().expect("at least one runtime");
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let files = ServerFiles::new(directory.path(), &ca, &options.server.domain);
        for (runtime, _) in runtimes {
            files.create_token("demo", runtime);
        }
        let _ = (first, others, options, files);
        unreachable!("replaced below")
    }

    async fn add_client(&mut self, _: &str, _: &str, _: &str) {}
}
