//! Several servers on one etcd, of which one is killed every few seconds while requests go on.
//!
//! ```text
//!   browser, curl ─▶ balancer ─▶ n1, n2, n3 ◀─ balancer ◀─ client ─▶ sample service
//!                                └─── etcd
//! ```

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, anyhow};
use tokio::time::{Instant, interval, sleep, timeout};
use tunnel_client::client::Client;
use tunnel_http::access_log::AccessLog;
use tunnel_ops::{
    signals::Shutdown,
    task::Owned,
    tls_files::{Identity, Roots, client_config},
};
use tunnel_server::{
    certs::NodeAuthority,
    config::{PeerLinks, SharedDirectory},
    peer_tls::PeerCa,
    runtimes::HostName,
    server::{Addresses, RunError, Server},
};

use crate::{
    assembly::{Credentials, FREE, client_configuration, host, server_configuration, upstream},
    balancer::Balancer,
    cli::Cli,
    display::Display,
    etcd::Etcd,
    probe::{self, ask, is_from_upstream},
};

/// Time between a node's return and the next death.
const CALM: Duration = Duration::from_secs(6);

/// How long a node stays dead.
const DEAD: Duration = Duration::from_secs(6);

/// Time between two requests of the demo.
const PACE: Duration = Duration::from_millis(100);

/// Time for a node to be ready.
const READY: Duration = Duration::from_secs(20);

/// Time between two looks at whether it is.
const LOOK_EACH: Duration = Duration::from_millis(50);

/// Time for one call of etcd.
const ETCD_CALL: Duration = Duration::from_millis(500);

/// What each node is made of.
struct Plan<'a> {
    display: &'a Display,
    shutdown: Shutdown,
    credentials: Credentials,
    authority: NodeAuthority,
    etcd: Etcd,
}

/// A node that runs.
struct Running {
    name: String,
    addresses: Addresses,
    server: Owned<Result<(), RunError>>,
}

/// All nodes, and what leads to them.
struct Cluster<'a> {
    plan: Plan<'a>,
    /// `None` for a node that is dead.
    nodes: Vec<Option<Running>>,
    public: Balancer,
    tunnel: Balancer,
}

/// The demo's own requests since the last look.
#[derive(Default)]
struct Score {
    sent: u32,
    failed: u32,
    slowest: Duration,
}

/// Starts everything and runs it until Ctrl-C.
pub(crate) async fn run(cli: &Cli, display: &Display) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals().context("cannot listen for Ctrl-C")?;
    let plan = Plan {
        display,
        shutdown: shutdown.clone(),
        credentials: Credentials::make(&HostName::default_domain())?,
        authority: NodeAuthority::generate(1)?,
        etcd: Etcd::start().await?,
    };
    let (sample, upstream) = upstream(cli).await?;
    let _sample = sample.map(|sample| Owned::spawn("sample", sample.run(std::future::pending())));
    let mut cluster = Cluster::start(plan, cli).await?;
    let config = client_configuration(
        &cluster.plan.credentials,
        cluster.tunnel.address(),
        &upstream,
    )?;
    let client = Client::new(config, AccessLog::off())?;
    let (public, host) = (cluster.public.address(), host());
    let result = {
        let show = async {
            tokio::select! {
                result = probe::first_request(public, &host) => result?,
                () = shutdown.requested() => return Ok(()),
            }
            display.welcome(&host, public, cli.upstream.as_deref());
            cluster.show_off().await
        };
        // Boxed, since the client's future is large.
        let client = Box::pin(client.run(shutdown.clone()));
        let client = async { client.await.context("the client failed") };
        tokio::try_join!(client, show)
    };
    cluster.stop().await;
    display.say("the demo has ended");
    result.map(drop)
}

impl<'a> Cluster<'a> {
    async fn start(plan: Plan<'a>, cli: &Cli) -> anyhow::Result<Self> {
        let public = Balancer::bind(cli.public_listen).await.map_err(|error| {
            let address = cli.public_listen;
            anyhow!("cannot listen on {address}: {error}; try --public-listen 127.0.0.1:0, which takes a free port")
        })?;
        let tunnel = Balancer::bind(FREE)
            .await
            .context("cannot listen on loopback")?;
        let mut nodes = Vec::new();
        for number in 1..=cli.nodes {
            nodes.push(Some(plan.start(format!("n{number}")).await?));
        }
        let cluster = Self {
            plan,
            nodes,
            public,
            tunnel,
        };
        cluster.balance();
        Ok(cluster)
    }

    /// Sends connections to the nodes that live.
    fn balance(&self) {
        let living = || self.nodes.iter().flatten().map(|node| node.addresses);
        self.public
            .lead_to(living().map(|addresses| addresses.public).collect());
        self.tunnel
            .lead_to(living().map(|addresses| addresses.tunnel).collect());
    }

    /// Kills one node after the other, and starts it again, until the demo is to end.
    async fn show_off(&mut self) -> anyhow::Result<()> {
        let shutdown = self.plan.shutdown.clone();
        let display = self.plan.display;
        let living = self.nodes.iter().flatten();
        let living: Vec<_> = living
            .map(|node| (node.name.clone(), node.addresses.public))
            .collect();
        display.nodes(&living);
        let public = self.public.address();
        for number in (0..self.nodes.len()).cycle() {
            tokio::select! {
                () = shutdown.requested() => return Ok(()),
                score = requests(public, CALM) => score.show(display),
            }
            let Some(node) = self.nodes[number].take() else {
                continue;
            };
            let name = node.name.clone();
            display.announce(&format!("node {name} is killed"));
            node.kill().await;
            tokio::select! {
                () = shutdown.requested() => return Ok(()),
                score = requests(public, DEAD) => score.show(display),
            }
            // The load balancer looks only now, so that connections have found out by themselves.
            tokio::select! {
                // First: a node that starts ends by the same request.
                biased;
                () = shutdown.requested() => return Ok(()),
                started = self.plan.start(name.clone()) => self.nodes[number] = Some(started?),
            }
            self.balance();
            let back = self.nodes[number].as_ref();
            let at = back.map(|node| format!(" at http://{}", node.addresses.public));
            display.announce(&format!("node {name} is back{}", at.unwrap_or_default()));
        }
        Ok(())
    }

    /// Waits for the end of the nodes, and then ends etcd.
    async fn stop(self) {
        for node in self.nodes.into_iter().flatten() {
            drop(node.server.await);
        }
        self.plan.etcd.stop().await;
    }
}

impl Plan<'_> {
    /// Starts a node, and waits until it is ready.
    async fn start(&self, name: String) -> anyhow::Result<Running> {
        let domain = HostName::default_domain();
        let mut config = server_configuration(FREE, &self.credentials, domain)?;
        config.settings.peer_listen = Some(FREE);
        config.shared_directory = Some(self.directory(&name)?);
        let access_log = self.display.access_log_of_node(&name);
        let server = Server::bind(config, access_log).await?;
        let addresses = server.addresses();
        let mut server = Owned::spawn("node", server.run(self.shutdown.clone()));
        let ready = async {
            loop {
                let answer = ask(addresses.admin, "localhost", "GET /readyz").await;
                if answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ")) {
                    return;
                }
                sleep(LOOK_EACH).await;
            }
        };
        tokio::select! {
            ready = timeout(READY, ready) => ready.with_context(|| format!("node {name} is not ready"))?,
            ended = &mut server => {
                ended?.with_context(|| format!("node {name} failed"))?;
                anyhow::bail!("node {name} has ended before it was ready");
            }
        }
        Ok(Running {
            name,
            addresses,
            server,
        })
    }

    /// How a node shares the directory with the others, and is linked to them.
    fn directory(&self, name: &str) -> anyhow::Result<SharedDirectory> {
        let etcd = tunnel_etcd::Settings {
            members: vec![self.etcd.url().parse()?],
            tls: client_config(&Roots::none(), None, &[b"h2"])?,
            user: None,
            timeout: ETCD_CALL,
        };
        let node = name.parse()?;
        let (certificate, key) = self.authority.issue(&node, 1)?;
        let identity = Identity::from_pem(&certificate, &key)?;
        let ca = PeerCa::from_pem(&self.authority.pem)?;
        let mut directory = SharedDirectory::new(etcd, node);
        directory.links = Some(PeerLinks::new(FREE.to_string(), ca, identity));
        Ok(directory)
    }
}

impl Running {
    /// Ends it as a crash would: all its connections are cut.
    async fn kill(self) {
        self.server.abort();
        drop(self.server.await);
    }
}

/// Sends requests for some time.
async fn requests(public: SocketAddr, time: Duration) -> Score {
    let mut score = Score::default();
    let mut pace = interval(PACE);
    let sending = async {
        loop {
            pace.tick().await;
            let start = Instant::now();
            let answer = ask(public, &host(), "HEAD /").await;
            score.sent += 1;
            score.failed += u32::from(!answer.is_ok_and(|answer| is_from_upstream(&answer)));
            score.slowest = score.slowest.max(start.elapsed());
        }
    };
    drop(timeout(time, sending).await);
    score
}

impl Score {
    fn show(&self, display: &Display) {
        let Self {
            sent,
            failed,
            slowest,
        } = self;
        let slowest = slowest.as_millis();
        display.say(&format!(
            "  {sent} requests, {failed} failed, the slowest took {slowest} ms"
        ));
    }
}
