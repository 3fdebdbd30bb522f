//! Several server nodes on a real etcd, as programs, with relays in the places where their network can break.
//!
//! ```text
//!   clients ─▶ tunnel address ─▶ node ─▶ way to each member of etcd
//!                                  ▲
//!                    other nodes ──┴── way to its peer listener
//! ```

mod agreement;
mod operator;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;
use testkit::etcd::Etcd;

use crate::{
    ca::Ca,
    client::{Client, ClientOptions},
    deadline::{SOON, eventually},
    entry::Entry,
    load::{Load, Plan},
    platform::PlatformClient,
    program::{Signal, built},
    relay::Relay,
    server::{Server, ServerFiles, ServerOptions, wait_listening},
    upstream::Upstream,
};

/// The label of the first runtime, and of two more.
pub const APP: &str = "demo-app";
/// See [`APP`].
pub const OTHER: &str = "demo-other";
/// See [`APP`].
pub const THIRD: &str = "demo-third";

/// The prefix of all keys of the directory.
const PREFIX: &str = "/tunnel/v1/";

/// Most nodes of a cluster; their certificates are made at once.
const MOST: usize = 3;

/// Nodes that share a directory.
pub struct Nodes {
    // Dropped in this order: the nodes before what they use.
    nodes: Vec<Node>,
    etcd: Etcd,
    files: ServerFiles,
    ca: Ca,
    tokens: BTreeMap<String, PathBuf>,
    /// Flags that all nodes have beside the usual ones.
    more_flags: Vec<String>,
    directory: TempDir,
}

/// One node: the program that runs it, and its network.
struct Node {
    server: Option<Server>,
    /// One for each member, in their order.
    to_etcd: Vec<Relay>,
    /// Before its peer listener.
    from_peers: Relay,
    before: Vec<String>,
}

/// The number of a node, from 0; the name of node 0 is `n1`.
pub type Number = usize;

impl Nodes {
    /// This etcd, and no nodes yet.
    pub fn on(etcd: Etcd) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let files = ServerFiles::new(directory.path(), &ca, "tunnels.localhost", &[]);
        let mut command = Command::new(built("tunnel-server"));
        command
            .arg("certs")
            .arg("--out")
            .arg(directory.path().join("peers"));
        for number in 0..MOST {
            command.args(["--peer", &name(number)]);
        }
        assert!(command.output().unwrap().status.success());
        let mut nodes = Self {
            nodes: Vec::new(),
            etcd,
            files,
            ca,
            tokens: BTreeMap::new(),
            more_flags: Vec::new(),
            directory,
        };
        for label in [APP, OTHER, THIRD] {
            nodes.add_runtime(label);
        }
        nodes
    }

    /// Adds a runtime of the account `demo`, which nodes know that are started later.
    ///
    /// # Panics
    /// When that is not the account of this label.
    pub fn add_runtime(&mut self, label: &str) {
        let name = label.strip_prefix("demo-").unwrap();
        let token = self.files.create_token("demo", name);
        self.tokens.insert(label.to_owned(), token);
    }

    /// The file with the token of a runtime.
    ///
    /// # Panics
    /// When there is none.
    pub fn token(&self, label: &str) -> &Path {
        &self.tokens[label]
    }

    /// So many nodes on an etcd of three members, all linked to each other.
    pub async fn start(count: usize) -> Self {
        let mut nodes = Self::on(Etcd::start(3).await);
        for _ in 0..count {
            nodes.add(Vec::new()).await;
        }
        nodes.wait_linked().await;
        nodes
    }

    /// Adds a node that is started by this command line, such as of a program that runs it, and waits until it is ready.
    pub async fn add(&mut self, before: Vec<String>) {
        let number = self.nodes.len();
        assert!(number < MOST, "there are certificates for {MOST} nodes");
        let mut to_etcd = Vec::new();
        for member in self.etcd.addresses() {
            to_etcd.push(Relay::start(member).await);
        }
        // Leads nowhere before the node listens.
        let from_peers = Relay::start(self.etcd.addresses()[0]).await;
        from_peers.refuse();
        self.nodes.push(Node {
            server: None,
            to_etcd,
            from_peers,
            before,
        });
        self.launch(number, ServerOptions::default()).await;
    }

    /// Kills a node, as a crash would.
    pub fn kill(&mut self, number: Number) {
        self.server_mut(number).program_mut().kill();
    }

    /// Starts a node that has ended, at its addresses for clients.
    pub async fn start_again(&mut self, number: Number) {
        let former = self.nodes[number].server.take().unwrap();
        let options = ServerOptions {
            tunnel_listen: Some(former.tunnel_address()),
            public_listen: Some(former.public_address()),
            ..ServerOptions::default()
        };
        drop(former);
        self.launch(number, options).await;
    }

    async fn launch(&mut self, number: Number, options: ServerOptions) {
        let options = ServerOptions {
            flags: self.flags(number),
            before: self.nodes[number].before.clone(),
            ..options
        };
        let server = Server::start(&self.files, &options).await;
        let relay = &self.nodes[number].from_peers;
        relay.lead_to(wait_listening(server.program(), "peer").await);
        relay.resume();
        server.admin().wait_ready(true).await;
        self.nodes[number].server = Some(server);
    }

    fn flags(&self, number: Number) -> Vec<String> {
        let peers = self.directory.path().join("peers");
        let path = |file: String| path_text(&peers.join(file));
        let (node, name) = (&self.nodes[number], name(number));
        let etcd = node.to_etcd.iter();
        let etcd: Vec<_> = etcd
            .map(|relay| format!("http://{}", relay.address()))
            .collect();
        let flags = [
            ("--etcd", etcd.join(",")),
            ("--node", name.clone()),
            ("--peer-listen", "127.0.0.1:0".to_owned()),
            ("--peer-advertise", node.from_peers.address().to_string()),
            ("--peer-ca", path("peer-ca.pem".to_owned())),
            ("--peer-cert", path(format!("peer-{name}.pem"))),
            ("--peer-key", path(format!("peer-{name}.key"))),
            ("--shards", "1".to_owned()),
        ];
        let flags = flags.into_iter();
        let flags = flags.flat_map(|(flag, value)| [flag.to_owned(), value]);
        flags.chain(self.more_flags.iter().cloned()).collect()
    }

    /// Waits until each node has a link to each other one.
    pub async fn wait_linked(&self) {
        #[allow(clippy::cast_precision_loss, reason = "a handful")]
        let links = (self.nodes.len() - 1) as f64;
        for node in &self.nodes {
            let admin = node.server.as_ref().unwrap().admin();
            let is_all = |value: f64| value >= links;
            admin
                .wait_metric("tunnel_server_peer_links", &[], is_all)
                .await;
        }
    }

    /// A node.
    ///
    /// # Panics
    /// When it was not started.
    pub fn server(&self, number: Number) -> &Server {
        self.nodes[number].server.as_ref().unwrap()
    }

    /// A node, to end it.
    ///
    /// # Panics
    /// As [`Nodes::server`].
    pub fn server_mut(&mut self, number: Number) -> &mut Server {
        self.nodes[number].server.as_mut().unwrap()
    }

    /// Sends a signal to a node.
    pub fn signal(&self, number: Number, signal: Signal) {
        self.server(number).program().signal(signal);
    }

    /// The network between a node and the members of etcd.
    pub fn to_etcd(&self, number: Number) -> &[Relay] {
        &self.nodes[number].to_etcd
    }

    /// The network before a node's peer listener.
    pub fn from_peers(&self, number: Number) -> &Relay {
        &self.nodes[number].from_peers
    }

    /// etcd.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// etcd, to break it.
    pub fn etcd_mut(&mut self) -> &mut Etcd {
        &mut self.etcd
    }

    /// Where requests for a runtime go in at a node.
    pub fn entry(&self, number: Number, label: &str) -> Entry {
        let host = format!("{label}.tunnels.localhost");
        Entry::plain(self.server(number).public_address(), &host)
    }

    /// Where tunnel clients connect to at a node, for a [`crate::stranger::Stranger`].
    pub fn tunnel_entry(&self, number: Number) -> Entry {
        Entry::tls(self.server(number).tunnel_address(), "localhost", &self.ca)
    }

    /// Starts a load of requests for [`APP`] at a node.
    pub fn load(&self, number: Number, plan: &Plan) -> Load {
        Load::start(self.entry(number, APP), plan)
    }

    /// A network between clients and all nodes, to which connections go in turn.
    pub async fn balancer(&self) -> Relay {
        let nodes = self.nodes.iter().filter_map(|node| node.server.as_ref());
        let addresses: Vec<_> = nodes.map(Server::tunnel_address).collect();
        let relay = Relay::start(addresses[0]).await;
        relay.lead_to_each(&addresses);
        relay
    }

    /// What a client of a runtime that dials this address is started with.
    pub fn client_options(
        &self,
        label: &str,
        server: SocketAddr,
        upstream: &Upstream,
    ) -> ClientOptions {
        let quick = ["--redial-base", "100ms", "--redial-cap", "500ms"];
        ClientOptions {
            server,
            server_name: None,
            token: self.token(label).to_owned(),
            ca: self.ca.file(),
            upstream: upstream.h2c_url(),
            flags: quick.map(str::to_owned).to_vec(),
            environment: Vec::new(),
        }
    }

    /// Starts a client of a runtime that dials this address, with so many sessions, and waits until it is ready.
    pub async fn client(
        &self,
        label: &str,
        server: SocketAddr,
        upstream: &Upstream,
        sessions: usize,
    ) -> Client {
        let mut options = self.client_options(label, server, upstream);
        let sessions = ["--sessions".to_owned(), sessions.to_string()];
        options.flags.extend(sessions);
        let client = Client::start(&options).await;
        client.admin().wait_ready(true).await;
        client
    }

    /// Waits until a runtime is served at a node.
    pub async fn wait_served(&self, number: Number, label: &str) {
        let what = format!("{label} to be served at {}", name(number));
        eventually(SOON, &what, async || {
            (self.status(number, label).await == 200).then_some(())
        })
        .await;
    }

    /// Waits until this node knows that these hold a runtime, its own sessions among them.
    pub async fn wait_holders(&self, number: Number, label: &str, holders: &[Number]) {
        let others = holders.iter().filter(|holder| **holder != number);
        let others: Vec<_> = others.map(|holder| name(*holder)).collect();
        let path = format!("/api/v1/runtimes/{label}?scope=node");
        let admin = self.server(number).admin();
        let what = format!("{} to know that {others:?} hold {label}", name(number));
        eventually(SOON, &what, async || {
            let runtime: serde_json::Value = admin.get(&path).await.json();
            let known = runtime["nodes"].as_array()?.clone();
            let known = known.iter().filter_map(|node| node.as_str());
            let mut known: Vec<_> = known.filter(|node| *node != name(number)).collect();
            known.sort_unstable();
            (known == others).then_some(())
        })
        .await;
    }

    /// The status of a request for a runtime at a node.
    pub async fn status(&self, number: Number, label: &str) -> u16 {
        let mut client = PlatformClient::http1(&self.entry(number, label)).await;
        client.get("/status/200").await.status.as_u16()
    }

    /// A metric of a node, 0 while there is none.
    pub async fn metric(&self, number: Number, metric: &str, labels: &[&str]) -> f64 {
        let admin = self.server(number).admin();
        admin.metric(metric, labels).await.unwrap_or_default()
    }

    /// The keys of the directory below a prefix.
    pub async fn keys(&self, below: &str) -> Vec<String> {
        let prefix = format!("{PREFIX}{below}");
        let text = self
            .etcd
            .ctl(&["get", "--prefix", "--keys-only", &prefix])
            .await;
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    }

    /// The value of the claim of a runtime.
    pub async fn claim(&self, label: &str) -> String {
        let key = format!("{PREFIX}claim/{label}");
        self.etcd.ctl(&["get", &key, "--print-value-only"]).await
    }
}

/// The name of a node.
fn name(number: Number) -> String {
    format!("n{}", number + 1)
}

fn path_text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
