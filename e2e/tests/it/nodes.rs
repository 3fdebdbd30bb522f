//! Several server nodes as programs, over a real etcd: what platform clients notice of a node that is lost, replaced, or
//! stopped in order.

use std::{path::Path, process::Command, time::Duration};

use e2e::{
    ca::Ca,
    client::{Client, ClientOptions},
    deadline::{SOON, eventually},
    entry::Entry,
    platform::PlatformClient,
    program::built,
    server::{Server, ServerFiles, ServerOptions},
    upstream::Upstream,
};
use tempfile::TempDir;
use testkit::etcd::Etcd;
use tokio::time::Instant;

const HOST: &str = "demo-app.tunnels.localhost";

/// Nodes that share a directory, and their files.
struct Nodes {
    etcd: Etcd,
    files: ServerFiles,
    ca: Ca,
    token: std::path::PathBuf,
    directory: TempDir,
}

impl Nodes {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let files = ServerFiles::new(directory.path(), &ca, "tunnels.localhost", &[]);
        let token = files.create_token("demo", "app");
        let mut command = Command::new(built("tunnel-server"));
        command
            .arg("certs")
            .arg("--out")
            .arg(directory.path().join("peers"));
        command.args(["--peer", "n1", "--peer", "n2"]);
        assert!(command.output().unwrap().status.success());
        Self {
            etcd: Etcd::start(3).await,
            files,
            ca,
            token,
            directory,
        }
    }

    /// Starts a node; `before` is the one that it replaces, at the same address of tunnel clients.
    async fn start(&self, name: &str, before: Option<&Server>) -> Server {
        let peers = self.directory.path().join("peers");
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let flags = [
            ("--etcd", self.etcd.urls().join(",")),
            ("--node", name.to_owned()),
            ("--peer-listen", "127.0.0.1:0".to_owned()),
            ("--peer-ca", path(&peers.join("peer-ca.pem"))),
            ("--peer-cert", path(&peers.join(format!("peer-{name}.pem")))),
            ("--peer-key", path(&peers.join(format!("peer-{name}.key")))),
        ];
        let flags = flags
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value]);
        let options = ServerOptions {
            flags: flags.collect(),
            tunnel_listen: before.map(Server::tunnel_address),
            ..ServerOptions::default()
        };
        let server = Server::start(&self.files, &options).await;
        server.admin().wait_ready(true).await;
        server
    }

    async fn client(&self, server: &Server, upstream: &Upstream) -> Client {
        let options = ClientOptions {
            server: server.tunnel_address(),
            server_name: None,
            token: self.token.clone(),
            ca: self.ca.file(),
            upstream: upstream.url(),
            flags: Vec::new(),
            environment: Vec::new(),
        };
        let client = Client::start(&options).await;
        client.admin().wait_ready(true).await;
        client
    }
}

async fn status(server: &Server) -> u16 {
    let entry = Entry::plain(server.public_address(), HOST);
    let mut client = PlatformClient::http1(&entry).await;
    client.get("/").await.status.as_u16()
}

async fn is_served(server: &Server) {
    eventually(SOON, "the runtime to be served", async || {
        (status(server).await == 200).then_some(())
    })
    .await;
}

/// A node that is killed and started again under its name at once: nothing is sent to what it was, and its runtimes are
/// served through the other node as soon as their client has dialled.
#[tokio::test]
async fn a_node_that_is_killed_and_comes_back_is_another_one() {
    let (nodes, upstream) = (Nodes::new().await, Upstream::start().await);
    let mut one = nodes.start("n1", None).await;
    let two = nodes.start("n2", None).await;
    let _client = nodes.client(&one, &upstream).await;
    is_served(&two).await;
    one.program_mut().kill();
    let one = nodes.start("n1", Some(&one)).await;
    is_served(&one).await;
    is_served(&two).await;
}

/// etcd is lost as a whole, and comes back: nobody notices.
#[tokio::test]
async fn requests_go_on_while_etcd_is_away() {
    let (mut nodes, upstream) = (Nodes::new().await, Upstream::start().await);
    let one = nodes.start("n1", None).await;
    let two = nodes.start("n2", None).await;
    let _client = nodes.client(&one, &upstream).await;
    is_served(&two).await;
    for member in 0..3 {
        nodes.etcd.kill(member);
    }
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        assert_eq!((status(&one).await, status(&two).await), (200, 200));
    }
    for member in 0..3 {
        nodes.etcd.begin_again(member);
    }
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        assert_eq!((status(&one).await, status(&two).await), (200, 200));
    }
}

/// A node that stops in order takes its records with it.
#[tokio::test]
async fn a_node_that_stops_leaves_nothing_behind() {
    let (nodes, upstream) = (Nodes::new().await, Upstream::start().await);
    let mut one = nodes.start("n1", None).await;
    let _client = nodes.client(&one, &upstream).await;
    is_served(&one).await;
    assert_eq!(one.program_mut().stop().await, Some(0));
    let keys = nodes
        .etcd
        .ctl(&["get", "--prefix", "--keys-only", "/tunnel/v1/"])
        .await;
    assert!(
        !keys.contains("/node/") && !keys.contains("/held/"),
        "{keys}"
    );
}
