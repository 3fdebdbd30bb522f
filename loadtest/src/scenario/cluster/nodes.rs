//! The server nodes of a cluster and the etcd that they share, as child processes.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use futures_util::future::{join_all, try_join_all};
use http::Method;
use rustix::process::Signal;

use crate::{
    client::template::within,
    fleet::watch::Crowd,
    measure::usage::{Cpu, Roles, resident},
    relay::Link,
    report::{Usage, tables::TUNNEL_SERVER},
    scenario::cluster::balance::NodeAddresses,
    serve::FREE_PORT,
    stack::{self, Running, START_LIMIT, Server, child::Child},
    target::Target,
};

/// The role of etcd.
const ETCD: &str = "etcd";

/// What etcd writes when it answers.
const ETCD_READY: &str = "ready to serve client requests";

/// How often other ports are tried when another program was faster.
const ATTEMPTS: usize = 3;

/// How long a node that leaves is still sent requests to, so that each probe sees in time that it is not ready.
const DRAIN_DELAY: &str = "--drain-delay=1s";

/// Longest time until a node has ended after SIGTERM: the server's own grace period, and some more.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Longest time for the metrics of a node.
const METRICS_LIMIT: Duration = Duration::from_secs(5);

/// Most bytes of the metrics of a node, each of whose runtimes has some.
const METRICS_BYTES: usize = 16 << 20;

/// Nodes that share an etcd. All are killed when this is dropped.
pub(super) struct Nodes<'a> {
    // Dropped in this order: the nodes before what they use.
    nodes: Vec<Node>,
    relays: Option<Relays>,
    etcd: Child,
    etcd_at: SocketAddr,
    crowd: &'a Crowd<'a>,
}

struct Node {
    server: Server,
    admin: SocketAddr,
    is_restarted: bool,
}

/// The network of one node.
struct Relays {
    to_etcd: Running,
    /// Before its listener for other nodes, which is at `peer_listen`.
    from_peers: Running,
    peer_listen: SocketAddr,
}

impl Relays {
    async fn start(etcd: SocketAddr) -> anyhow::Result<Self> {
        // Nodes are told of the relay before the listener is there.
        let peer_listen = TcpListener::bind(FREE_PORT)?.local_addr()?;
        Ok(Self {
            to_etcd: stack::start_relay(etcd, Link::default()).await?,
            from_peers: stack::start_relay(peer_listen, Link::default()).await?,
            peer_listen,
        })
    }
}

impl<'a> Nodes<'a> {
    /// Starts etcd and so many nodes for the runtimes of this crowd, the last of them behind relays if wanted, and waits
    /// until all are ready.
    ///
    /// # Errors
    /// There is no etcd, or a program does not start.
    pub(super) async fn start(
        crowd: &'a Crowd<'a>,
        count: usize,
        is_relayed: bool,
    ) -> anyhow::Result<Self> {
        create_certificates(crowd, count)?;
        let (etcd, etcd_at) = start_etcd(crowd).await?;
        let relays = match is_relayed {
            true => Some(Relays::start(etcd_at).await?),
            false => None,
        };
        let mut nodes = Self {
            nodes: Vec::new(),
            relays,
            etcd,
            etcd_at,
            crowd,
        };
        let relays = |number| nodes.relays.as_ref().filter(|_| number + 1 == count);
        let starting = (0..count).map(|number| nodes.launch(number, None, relays(number)));
        nodes.nodes = try_join_all(starting).await?;
        Ok(nodes)
    }

    /// Starts the node with this number, for tunnels at `tunnel` and behind relays if given, and waits until it is ready.
    async fn launch(
        &self,
        number: usize,
        tunnel: Option<SocketAddr>,
        relays: Option<&Relays>,
    ) -> anyhow::Result<Node> {
        let name = name(number);
        let etcd = relays.map_or(self.etcd_at, |relays| relays.to_etcd.address);
        let peer_listen = relays.map_or(FREE_PORT, |relays| relays.peer_listen);
        let file = |file: String| {
            self.crowd
                .files
                .path("peers")
                .join(file)
                .display()
                .to_string()
        };
        let flags = [
            format!("--etcd=http://{etcd}"),
            format!("--node={name}"),
            format!("--peer-listen={peer_listen}"),
            format!("--peer-ca={}", file("peer-ca.pem".to_owned())),
            format!("--peer-cert={}", file(format!("peer-{name}.pem"))),
            format!("--peer-key={}", file(format!("peer-{name}.key"))),
        ];
        let mut programs = self.crowd.args.programs.clone();
        let given = &programs.server_flags;
        if !given.iter().any(|flag| flag.starts_with("--drain-delay")) {
            programs.server_flags.push(DRAIN_DELAY.to_owned());
        }
        programs.server_flags.extend(flags);
        let advertised = relays.map(|relays| relays.from_peers.address);
        let advertised = advertised.map(|address| format!("--peer-advertise={address}"));
        programs.server_flags.extend(advertised);
        let server = stack::start_server(&programs, &self.crowd.files, tunnel).await?;
        let admin = server.child.wait_listening("admin", START_LIMIT).await?;
        server.child.wait_ready(admin, START_LIMIT).await?;
        Ok(Node {
            server,
            admin,
            is_restarted: tunnel.is_some(),
        })
    }

    /// Their servers.
    pub(super) fn servers(&self) -> Vec<&Server> {
        self.nodes.iter().map(|node| &node.server).collect()
    }

    /// Their addresses.
    pub(super) fn addresses(&self) -> Vec<NodeAddresses> {
        self.nodes.iter().map(Node::addresses).collect()
    }

    /// The processes of all nodes, and etcd.
    pub(super) fn roles(&self) -> Roles {
        let mut roles = Roles::default();
        for node in &self.nodes {
            roles.add(TUNNEL_SERVER, node.server.child.id());
        }
        roles.add(ETCD, self.etcd.id());
        if let Some(Relays {
            to_etcd,
            from_peers,
            ..
        }) = &self.relays
        {
            for Running { child, .. } in [to_etcd, from_peers] {
                roles.add(child.role(), child.id());
            }
        }
        roles
    }

    /// Adds what the nodes that were started again have used since then.
    pub(super) fn add_restarted(&self, usage: &mut Usage) {
        for node in self.nodes.iter().filter(|node| node.is_restarted) {
            let id = node.server.child.id();
            let cpu = Cpu::of(id).unwrap_or_default();
            usage.cpu_seconds += cpu.since(Cpu::default()).as_secs_f64();
            usage.rss += resident(id).unwrap_or(0);
            usage.processes += 1;
        }
    }

    /// Kills a node, as a crash would.
    pub(super) fn kill(&mut self, number: usize) {
        if let Some(node) = self.nodes.get_mut(number) {
            node.server.child.kill();
        }
    }

    /// Sends a signal to a node.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn signal(&self, number: usize, signal: Signal) -> anyhow::Result<()> {
        let node = self.nodes.get(number).context("no such node")?;
        node.server.child.signal(signal)
    }

    /// Sends a signal to the relays of the last node.
    ///
    /// # Errors
    /// There are none, or one has ended.
    pub(super) fn signal_relays(&self, signal: Signal) -> anyhow::Result<()> {
        let relays = self.relays.as_ref().context("no relays")?;
        relays.to_etcd.child.signal(signal)?;
        relays.from_peers.child.signal(signal)
    }

    /// Waits until a node is ready, and returns its addresses.
    ///
    /// # Errors
    /// It has ended, or is not ready in time.
    pub(super) async fn wait_ready(&self, number: usize) -> anyhow::Result<NodeAddresses> {
        let node = self.nodes.get(number).context("no such node")?;
        node.server
            .child
            .wait_ready(node.admin, START_LIMIT)
            .await?;
        Ok(node.addresses())
    }

    /// Asks a node to stop, waits for its end, and starts it again.
    ///
    /// # Errors
    /// It does not end in time, or does not start again.
    pub(super) async fn restart(&mut self, number: usize) -> anyhow::Result<NodeAddresses> {
        let node = self.nodes.get_mut(number).context("no such node")?;
        node.server.child.signal(Signal::TERM)?;
        node.server.child.wait_end(END_LIMIT).await?;
        let tunnel = node.server.tunnel;
        let launched = self.launch(number, Some(tunnel), None).await?;
        let addresses = launched.addresses();
        self.nodes[number] = launched;
        Ok(addresses)
    }

    /// A metric of each node, all its series together; none for a node that does not answer.
    pub(super) async fn metric(&self, name: &str) -> Vec<Option<f64>> {
        let asking = self.nodes.iter().map(|node| metric(node.admin, name));
        join_all(asking).await.into_iter().map(Result::ok).collect()
    }
}

impl Node {
    fn addresses(&self) -> NodeAddresses {
        NodeAddresses {
            public: self.server.public,
            admin: self.admin,
        }
    }
}

/// The name of a node.
pub(super) fn name(number: usize) -> String {
    format!("n{}", number + 1)
}

/// Has the server's program make the nodes' certificates.
fn create_certificates(crowd: &Crowd<'_>, count: usize) -> anyhow::Result<()> {
    let mut command = Command::new(stack::program(&crowd.args.programs, "tunnel-server")?);
    command
        .args(["certs", "--out"])
        .arg(crowd.files.path("peers"));
    for number in 0..count {
        command.args(["--peer", &name(number)]);
    }
    let output = command
        .output()
        .context("cannot make certificates of nodes")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cannot make certificates of nodes: {complaint}"
    );
    Ok(())
}

/// Starts the etcd of `PATH` with one member, and waits until it answers. Returns its address, too.
async fn start_etcd(crowd: &Crowd<'_>) -> anyhow::Result<(Child, SocketAddr)> {
    for attempt in 0..ATTEMPTS {
        let (address, peer) = free_addresses().context("cannot find free ports for etcd")?;
        let (client, peer) = (format!("http://{address}"), format!("http://{peer}"));
        let mut command = Command::new(ETCD);
        command
            .args(["--name", "loadtest", "--unsafe-no-fsync"])
            .arg("--data-dir")
            .arg(crowd.files.path(&format!("etcd-{attempt}")))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("loadtest={peer}")]);
        let child = Child::start(ETCD, command).map_err(|error| {
            match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(io::ErrorKind::NotFound) => anyhow!(
                    "several nodes share an etcd, and no `etcd` is on PATH: install it (Debian: apt install etcd-server)"
                ),
                _ => error,
            }
        })?;
        let is_ready = |line: &str| line.contains(ETCD_READY).then_some(());
        let ready = child
            .wait_line("that it answers", START_LIMIT, is_ready)
            .await;
        match ready {
            Ok(()) => return Ok((child, address)),
            Err(error) if attempt + 1 == ATTEMPTS => return Err(error),
            // One of its ports was taken meanwhile.
            Err(_) => {}
        }
    }
    bail!("etcd was not started")
}

/// Two addresses on ports that are free now.
fn free_addresses() -> io::Result<(SocketAddr, SocketAddr)> {
    // Both at once, so that they differ.
    let (one, other) = (TcpListener::bind(FREE_PORT)?, TcpListener::bind(FREE_PORT)?);
    Ok((one.local_addr()?, other.local_addr()?))
}

async fn metric(admin: SocketAddr, name: &str) -> anyhow::Result<f64> {
    let template = Target::plain(admin)
        .await?
        .template(Method::GET, Some("/metrics"))?;
    let (mut connection, content) = template.open(METRICS_LIMIT).await?;
    let reading = connection.collect(content, METRICS_BYTES);
    let text = within(METRICS_LIMIT, reading).await?;
    Ok(sum(&String::from_utf8_lossy(&text), name))
}

/// The sum of all series of a metric in the Prometheus text format.
fn sum(text: &str, name: &str) -> f64 {
    let series = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let is_it = rest.starts_with(['{', ' ']);
        is_it.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    series.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_a_metric_are_added() {
        let text = "# TYPE forwards counter\nforwards{result=\"a b\"} 3\nforwards{result=\"c\"} 4\nforwards_served 9\nopen 2\n";
        assert_eq!(sum(text, "forwards"), 7.0);
        assert_eq!(sum(text, "open"), 2.0);
        assert_eq!(sum(text, "closed"), 0.0);
    }
}
