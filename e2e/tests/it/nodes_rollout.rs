//! Server nodes that are replaced one after another, under load through each of them: nobody notices.

use std::{net::SocketAddr, process::Command, time::Duration};

use e2e::{
    ca::Ca,
    client::{Client, ClientOptions},
    deadline::SOON,
    entry::Entry,
    load::{ExchangeKind, Load, Plan},
    platform::PlatformClient,
    program::{Signal, built},
    server::{Server, ServerFiles, ServerOptions},
    upstream::Upstream,
};
use tempfile::TempDir;
use testkit::etcd::Etcd;
use tokio::time::Instant;

const HOST: &str = "demo-app.tunnels.localhost";

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// As an operator who rolls servers out gives them: load balancers see for a second that a node is not ready. A node has
/// more shards than sessions, so that links end at shards without clients.
const FLAGS: [&str; 10] = [
    "--shards",
    "8",
    "--drain-delay",
    "1s",
    "--drain-spread",
    "300ms",
    "--offline-wait",
    "6s",
    "--grace-period",
    "15s",
];

/// Nodes that are linked to each other, and what they are started with.
struct Rollout {
    etcd: Etcd,
    files: ServerFiles,
    ca: Ca,
    token: std::path::PathBuf,
    directory: TempDir,
}

impl Rollout {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let files = ServerFiles::new(directory.path(), &ca, "tunnels.localhost", &[]);
        let token = files.create_token("demo", "app");
        let mut command = Command::new(built("tunnel-server"));
        command.arg("certs").arg("--out");
        command.arg(directory.path().join("peers"));
        command.args(NODES.iter().flat_map(|node| ["--peer", node]));
        assert!(command.output().unwrap().status.success());
        Self {
            etcd: Etcd::start(1).await,
            files,
            ca,
            token,
            directory,
        }
    }

    /// Starts a node at the addresses of the one that it replaces, if there is one.
    async fn start(&self, name: &str, before: Option<(SocketAddr, SocketAddr)>) -> Server {
        let peers = self.directory.path().join("peers");
        let path = |name: &str| peers.join(name).to_str().unwrap().to_owned();
        let flags = [
            ("--etcd", self.etcd.urls().join(",")),
            ("--node", name.to_owned()),
            ("--peer-listen", "127.0.0.1:0".to_owned()),
            ("--peer-ca", path("peer-ca.pem")),
            ("--peer-cert", path(&format!("peer-{name}.pem"))),
            ("--peer-key", path(&format!("peer-{name}.key"))),
        ];
        let flags = flags
            .into_iter()
            .flat_map(|(flag, value)| [flag.to_owned(), value]);
        let options = ServerOptions {
            flags: flags.chain(FLAGS.map(str::to_owned)).collect(),
            tunnel_listen: before.map(|(tunnel, _)| tunnel),
            public_listen: before.map(|(_, public)| public),
            ..ServerOptions::default()
        };
        let server = Server::start(&self.files, &options).await;
        server.admin().wait_ready(true).await;
        server
    }

    /// A client of two sessions that knows all nodes.
    async fn client(&self, servers: &[Server], upstream: &Upstream) -> Client {
        let others = servers[1..].iter().flat_map(|server| {
            let url = format!("wss://{}", server.tunnel_address());
            ["--server".to_owned(), url]
        });
        let options = ClientOptions {
            server: servers[0].tunnel_address(),
            server_name: None,
            token: self.token.clone(),
            ca: self.ca.file(),
            upstream: upstream.url(),
            flags: others.collect(),
            environment: Vec::new(),
        };
        let client = Client::start(&options).await;
        client.admin().wait_ready(true).await;
        client
            .admin()
            .wait_metric("tunnel_client_sessions", &[], |sessions| sessions >= 2.0)
            .await;
        client
    }
}

/// A node that stops in the middle of everything: requests at another one wait for it no longer than its silence takes to
/// be noticed.
#[tokio::test]
async fn a_node_that_stands_still_costs_a_moment_only() {
    let (rollout, upstream) = (Rollout::new().await, Upstream::start().await);
    let mut servers = Vec::new();
    for name in NODES {
        servers.push(rollout.start(name, None).await);
    }
    let _client = rollout.client(&servers, &upstream).await;
    let mut holds = Vec::new();
    for server in &servers {
        let view = server
            .admin()
            .get("/api/v1/runtimes/demo-app?scope=node")
            .await;
        let view: serde_json::Value = serde_json::from_slice(&view.body).unwrap();
        holds.push(view["instance"].is_string());
    }
    assert_eq!(holds.iter().filter(|holds| **holds).count(), 2, "two nodes");
    let held = holds.iter().position(|holds| *holds).unwrap();
    let free = holds.iter().position(|holds| !*holds).unwrap();
    let ask = async || {
        let asked = Instant::now();
        let mut platform = PlatformClient::http1(&entry(&servers[free])).await;
        assert_eq!(platform.get("/").await.status, 200);
        asked.elapsed()
    };
    ask().await;
    servers[held].program().signal(Signal::STOP);
    let stopped = Instant::now();
    let mut longest = Duration::ZERO;
    while stopped.elapsed() < Duration::from_secs(3) {
        longest = longest.max(ask().await);
    }
    servers[held].program().signal(Signal::CONT);
    // 0.7 s of silence, and the request again, on a machine that may be busy.
    assert!(longest < Duration::from_secs(2), "{longest:?}");
}

/// Its claims are in etcd, by its name and its run: the other nodes serve while it is restarted.
#[tokio::test]
async fn a_node_is_not_upgraded_in_place() {
    let rollout = Rollout::new().await;
    let node = rollout.start(NODES[0], None).await;
    node.program().signal(Signal::USR2);
    node.program()
        .wait_for_line("one of several nodes", SOON)
        .await;
    assert_eq!(node.admin().status("/readyz").await, 200);
}

fn entry(server: &Server) -> Entry {
    Entry::plain(server.public_address(), HOST)
}

#[tokio::test]
async fn all_nodes_are_replaced_one_after_another_without_loss() {
    replace_all(1).await;
}

#[tokio::test]
#[ignore = "takes minutes: e2e/run-cluster runs it"]
async fn all_nodes_are_replaced_five_times_without_loss() {
    replace_all(5).await;
}

/// Replaces each node so many times.
async fn replace_all(rounds: usize) {
    let (rollout, upstream) = (Rollout::new().await, Upstream::start().await);
    let mut servers = Vec::new();
    for name in NODES {
        servers.push(rollout.start(name, None).await);
    }
    let _client = rollout.client(&servers, &upstream).await;
    let plan = Plan::only(
        &[
            ExchangeKind::Get,
            ExchangeKind::Post,
            ExchangeKind::WebSocket,
        ],
        2,
    );
    let loads: Vec<Load> = servers
        .iter()
        .map(|server| Load::start(entry(server), &plan))
        .collect();
    for load in &loads {
        load.wait_progress(10).await;
    }
    for number in (0..NODES.len()).cycle().take(rounds * NODES.len()) {
        let next = entry(&servers[(number + 1) % NODES.len()]);
        let (load, server) = (&loads[number], &mut servers[number]);
        let addresses = (server.tunnel_address(), server.public_address());
        server.program().signal(Signal::TERM);
        load.mark("the node has a SIGTERM");
        server.admin().wait_ready(false).await;
        load.lead_to(next);
        assert!(server.program_mut().wait_exit(2 * SOON).await.success());
        load.mark("the node is gone");
        servers[number] = rollout.start(NODES[number], Some(addresses)).await;
        load.lead_to(entry(&servers[number]));
        load.mark("its successor is ready");
        for load in &loads {
            load.wait_progress(10).await;
        }
    }
    for load in loads {
        let report = load.finish().await;
        eprintln!("{report}");
        report.assert_none_failed();
    }
}
