//! The whole system: a server, and a client for each runtime, before upstreams of the test.
//!
//! [`System::start`] gives the usual one: runtime `app` of account `demo`, connected and ready.
//! More runtimes, a relay before the server, and flags are [`Options`]. Certificates, runtimes
//! file and tokens lie in a directory that goes when the system goes.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Arc,
};

use tempfile::TempDir;

use crate::{
    ca::Ca,
    client::{Client, ClientOptions},
    deadline::SOON,
    entry::Entry,
    program::{Ended, run},
    relay::Relay,
    secrets,
    server::{Server, ServerFiles, ServerOptions},
};

/// What a system consists of.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server.
    pub server: ServerOptions,
    /// Flags for every client.
    pub client_flags: Vec<String>,
    /// Whether clients reach the server by way of a [`Relay`].
    pub relay: bool,
    /// Whether clients are started with the system; if not, [`System::start_client`] does it.
    pub connected: bool,
    runtimes: Vec<(String, String, String)>,
    /// Flag, name and content of further files that the server is given.
    server_files: Vec<(String, String, String)>,
    /// More names by which clients reach the server.
    tunnel_names: Vec<String>,
    /// What stands in the runtimes file after the last runtime.
    runtimes_tail: String,
    /// The file that every client is given.
    client_file: Option<String>,
}

/// The bearer token for the server's admin listener, in systems that have one.
pub const ADMIN_TOKEN: &str = "the-operator-of-a-test-and-nobody-else-1234567890";

/// The name of the file that clients are given, in systems that give one.
pub const CLIENT_FILE: &str = "client.toml";

/// A running system.
#[derive(Debug)]
pub struct System {
    // Dropped in this order: clients, then the server, then the network, then the files.
    runtimes: Vec<Runtime>,
    server: Server,
    relay: Option<Relay>,
    files: ServerFiles,
    ca: Ca,
    options: ServerOptions,
    directory: TempDir,
}

/// A runtime and its client.
#[derive(Debug)]
struct Runtime {
    label: String,
    options: ClientOptions,
    client: Option<Client>,
}

impl Options {
    /// The usual system: runtime `app` of account `demo` before the upstream at this URL.
    pub fn to(upstream: &str) -> Self {
        Self {
            server: ServerOptions::default(),
            client_flags: Vec::new(),
            relay: false,
            connected: true,
            runtimes: Vec::new(),
            server_files: Vec::new(),
            tunnel_names: Vec::new(),
            runtimes_tail: String::new(),
            client_file: None,
        }
        .and("demo", "app", upstream)
    }

    /// One more runtime, before its own upstream.
    #[must_use]
    pub fn and(mut self, account: &str, runtime: &str, upstream: &str) -> Self {
        self.runtimes
            .push((account.to_owned(), runtime.to_owned(), upstream.to_owned()));
        self
    }

    /// Clients reach the server by way of a relay.
    #[must_use]
    pub fn through_relay(self) -> Self {
        Self {
            relay: true,
            ..self
        }
    }

    /// Clients are not started with the system.
    #[must_use]
    pub fn not_connected(self) -> Self {
        Self {
            connected: false,
            ..self
        }
    }

    /// More flags for the server.
    #[must_use]
    pub fn server_flags(mut self, flags: &[&str]) -> Self {
        self.server
            .flags
            .extend(flags.iter().map(ToString::to_string));
        self
    }

    /// More flags for every client.
    #[must_use]
    pub fn client_flags(mut self, flags: &[&str]) -> Self {
        self.client_flags
            .extend(flags.iter().map(ToString::to_string));
        self
    }

    /// Every client is given this file as its `--config`; it lies in [`System::directory`] as
    /// `client.toml`.
    #[must_use]
    pub fn client_file(self, toml: &str) -> Self {
        Self {
            client_file: Some(toml.to_owned()),
            ..self
        }
    }

    /// Gives the server a file of this name and content by this flag; it lies in
    /// [`System::directory`].
    #[must_use]
    pub fn server_file(mut self, flag: &str, name: &str, content: &str) -> Self {
        let file = (flag.to_owned(), name.to_owned(), content.to_owned());
        self.server_files.push(file);
        self
    }

    /// The admin listener lets whoever has [`ADMIN_TOKEN`] change things.
    #[must_use]
    pub fn with_admin_token(self) -> Self {
        self.server_file("--admin-token-file", "admin.token", ADMIN_TOKEN)
    }

    /// Adds this TOML to the runtimes file: it belongs to the last runtime, or begins others.
    #[must_use]
    pub fn runtimes_tail(mut self, toml: &str) -> Self {
        self.runtimes_tail.push_str(toml);
        self
    }

    /// Clients may reach the server by this name or address too.
    #[must_use]
    pub fn tunnel_name(mut self, name: &str) -> Self {
        self.tunnel_names.push(name.to_owned());
        self
    }

    /// The public listener speaks TLS.
    #[must_use]
    pub fn public_tls(mut self) -> Self {
        self.server.public_tls = true;
        self
    }

    /// Writes what server and clients are to find when they start.
    fn write_files(&mut self, directory: &Path, files: &ServerFiles) {
        for (flag, name, content) in &self.server_files {
            let path = directory.join(name);
            std::fs::write(&path, content).unwrap();
            if flag.contains("token") {
                secrets::keep_file(&path);
            }
            let path = path.to_str().unwrap().to_owned();
            self.server.flags.extend([flag.clone(), path]);
        }
        if !self.runtimes_tail.is_empty() {
            let runtimes = std::fs::read_to_string(&files.runtimes).unwrap();
            let runtimes = format!("{runtimes}\n{}", self.runtimes_tail);
            std::fs::write(&files.runtimes, runtimes).unwrap();
        }
        if let Some(toml) = &self.client_file {
            let path = directory.join(CLIENT_FILE);
            std::fs::write(&path, toml).unwrap();
            let path = path.to_str().unwrap().to_owned();
            self.client_flags.extend(["--config".to_owned(), path]);
        }
    }
}

impl System {
    /// The usual system before the upstream at this URL, ready for requests.
    pub async fn start(upstream: &str) -> Self {
        Self::with(Options::to(upstream)).await
    }

    /// A system with these options, ready for requests.
    ///
    /// # Panics
    /// When a program does not come up.
    pub async fn with(mut options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let (domain, names) = (&options.server.domain, &options.tunnel_names);
        let files = ServerFiles::new(directory.path(), &ca, domain, names);
        // Tokens come first: a server without a runtimes file refuses to start.
        let tokens: Vec<_> = (options.runtimes.iter())
            .map(|(account, runtime, _)| files.create_token(account, runtime))
            .collect();
        options.write_files(directory.path(), &files);
        let server = Server::start(&files, &options.server).await;
        let mut reach = server.tunnel_address();
        let mut relay = None;
        if options.relay {
            reach = relay.insert(Relay::start(reach).await).address();
        }
        let runtimes = options.runtimes.iter().zip(tokens);
        let runtimes = runtimes.map(|((account, runtime, upstream), token)| Runtime {
            label: format!("{account}-{runtime}"),
            options: ClientOptions {
                server: reach,
                server_name: None,
                token,
                ca: ca.file(),
                upstream: upstream.clone(),
                flags: options.client_flags.clone(),
                environment: Vec::new(),
            },
            client: None,
        });
        let runtimes = runtimes.collect();
        let mut system = Self {
            runtimes,
            server,
            relay,
            files,
            ca,
            options: options.server,
            directory,
        };
        for index in 0..if options.connected {
            system.runtimes.len()
        } else {
            0
        } {
            let label = system.runtimes[index].label.clone();
            system.start_client(&label).await;
        }
        system
    }

    /// Where requests for the first runtime go in.
    pub fn entry(&self) -> Entry {
        self.entry_of(&self.runtimes[0].label)
    }

    /// Where requests for the runtime with this label go in.
    pub fn entry_of(&self, label: &str) -> Entry {
        let (address, host) = (self.server.public_address(), self.host_of(label));
        if self.options.public_tls {
            Entry::tls(address, &host, &self.ca)
        } else {
            Entry::plain(address, &host)
        }
    }

    /// Where requests for the runtime with this label go in at another server of the same domain.
    pub fn entry_at(&self, server: &Server, label: &str) -> Entry {
        Entry::plain(server.public_address(), &self.host_of(label))
    }

    /// Where tunnel clients connect, for a [`crate::stranger::Stranger`].
    pub fn tunnel_entry(&self) -> Entry {
        Entry::tls(self.server.tunnel_address(), "localhost", &self.ca)
    }

    /// The file with the token of the runtime with this label.
    pub fn token_of(&mut self, label: &str) -> PathBuf {
        self.runtime(label).options.token.clone()
    }

    /// The host of the runtime with this label.
    pub fn host_of(&self, label: &str) -> String {
        format!("{label}.{}", self.options.domain)
    }

    /// A URL of the first runtime.
    pub fn url(&self, path: &str) -> String {
        self.entry().url(path)
    }

    /// The server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The server, to end it.
    pub fn server_mut(&mut self) -> &mut Server {
        &mut self.server
    }

    /// The client of the first runtime.
    pub fn client(&self) -> &Client {
        self.client_of(&self.runtimes[0].label)
    }

    /// The client of the runtime with this label.
    ///
    /// # Panics
    /// When it is not running.
    pub fn client_of(&self, label: &str) -> &Client {
        let runtime = self.runtimes.iter().find(|runtime| runtime.label == label);
        let client = runtime.and_then(|runtime| runtime.client.as_ref());
        client.unwrap_or_else(|| panic!("{label} has no client"))
    }

    /// What a client of the runtime with this label is started with, for tests that start more.
    pub fn client_options(&mut self, label: &str) -> &mut ClientOptions {
        &mut self.runtime(label).options
    }

    /// The network between clients and server.
    ///
    /// # Panics
    /// When the options did not ask for one.
    pub fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("a system with a relay")
    }

    /// The authority behind all certificates here.
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// The server's files.
    pub fn files(&self) -> &ServerFiles {
        &self.files
    }

    /// A directory that goes with the system.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Kills the client of this runtime, as a crash would.
    ///
    /// # Panics
    /// When it is not running.
    pub fn kill_client(&mut self, label: &str) {
        let client = self.runtime(label).client.take();
        drop(client.expect("a running client"));
    }

    /// Starts the client of this runtime and waits until it has a session.
    pub async fn start_client(&mut self, label: &str) {
        let runtime = self.runtime(label);
        let client = Client::start(&runtime.options).await;
        client.admin().wait_ready(true).await;
        runtime.client = Some(client);
    }

    /// Starts one more client of this runtime, and waits until it has a session. The test has it.
    pub async fn another_client(&mut self, label: &str) -> Client {
        let client = Client::start(&self.runtime(label).options).await;
        client.admin().wait_ready(true).await;
        client
    }

    /// Makes this client the one of its runtime; the one before, if any, is the test's.
    pub fn replace_client(&mut self, label: &str, client: Client) -> Option<Client> {
        self.runtime(label).client.replace(client)
    }

    /// The client of this runtime, for a test that wants to see it end.
    ///
    /// # Panics
    /// When it is not running.
    pub fn take_client(&mut self, label: &str) -> Client {
        let client = self.runtime(label).client.take();
        client.unwrap_or_else(|| panic!("{label} has no client"))
    }

    /// One more server with the same files and flags, at these addresses or at free ports. The test
    /// has it.
    pub async fn another_server(
        &self,
        tunnel: Option<SocketAddr>,
        public: Option<SocketAddr>,
    ) -> Server {
        let options = ServerOptions {
            tunnel_listen: tunnel,
            public_listen: public,
            ..self.options.clone()
        };
        Server::start(&self.files, &options).await
    }

    /// What becomes of a server with the same files and flags that inherits these sockets, and is not to start.
    pub async fn refused_server(&self, sockets: Vec<Arc<TcpListener>>) -> Ended {
        let options = ServerOptions {
            sockets,
            ..self.options.clone()
        };
        let command = Server::command(&self.files, &options);
        run("tunnel-server", command, SOON).await
    }

    /// Makes this server the system's; the one before is the test's.
    pub fn replace_server(&mut self, server: Server) -> Server {
        std::mem::replace(&mut self.server, server)
    }

    /// Kills the client of this runtime and starts it again.
    pub async fn restart_client(&mut self, label: &str) {
        self.kill_client(label);
        self.start_client(label).await;
    }

    /// Kills the server, as a crash would.
    pub fn kill_server(&mut self) {
        self.server.program_mut().kill();
    }

    /// Starts the server again after [`System::kill_server`], where its clients look for it. Its
    /// public address is a new one.
    pub async fn start_server(&mut self) {
        let mut options = self.options.clone();
        if self.relay.is_none() {
            options.tunnel_listen = Some(self.server.tunnel_address());
        }
        self.server = Server::start(&self.files, &options).await;
        if let Some(relay) = &self.relay {
            relay.lead_to(self.server.tunnel_address());
        }
    }

    fn runtime(&mut self, label: &str) -> &mut Runtime {
        let found = self
            .runtimes
            .iter_mut()
            .find(|runtime| runtime.label == label);
        found.unwrap_or_else(|| panic!("there is no runtime {label}"))
    }
}
