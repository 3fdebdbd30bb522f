//! An etcd of the demo's own: one member on loopback, whose data is removed when the demo ends.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};

use crate::assembly::FREE;

/// How often other ports are tried when another program was faster.
const ATTEMPTS: usize = 3;

/// Time until it answers.
const READY: Duration = Duration::from_secs(20);

/// Time between two tries to connect.
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// A running etcd, which is killed when this is dropped.
pub(crate) struct Etcd {
    child: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl Etcd {
    /// Starts the `etcd` of `PATH`, and waits until it answers.
    ///
    /// # Errors
    /// When there is none, or it does not answer.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        for _ in 0..ATTEMPTS {
            let mut etcd = Self::launch()?;
            tokio::select! {
                ready = timeout(READY, answers(etcd.address)) => {
                    ready.context("etcd does not answer")?;
                    return Ok(etcd);
                }
                // One of its ports was taken meanwhile.
                _ = etcd.child.wait() => {}
            }
        }
        bail!("etcd ended {ATTEMPTS} times at its start: run it by hand to see why")
    }

    fn launch() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("cannot make a directory for etcd")?;
        let (client, peer) = free_ports().context("cannot find free ports for etcd")?;
        let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
        let mut command = Command::new("etcd");
        command
            .args(["--name", "demo", "--unsafe-no-fsync"])
            .arg("--data-dir")
            .arg(directory.path().join("data"))
            .args(["--listen-client-urls", &client_url])
            .args(["--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url])
            .args(["--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("demo={peer_url}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C goes to the demo alone, which needs etcd until its nodes have stopped.
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => anyhow::anyhow!(
                "several nodes share an etcd, and no `etcd` is on PATH: install it (Debian: apt install etcd-server), or \
                 run the demo without --nodes"
            ),
            _ => anyhow::anyhow!("cannot start etcd: {error}"),
        })?;
        Ok(Self {
            child,
            address: client,
            _directory: directory,
        })
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends it, and waits until it has ended.
    pub(crate) async fn stop(mut self) {
        drop(self.child.kill().await);
    }
}

/// Waits until connections are accepted at this address.
async fn answers(address: SocketAddr) {
    while TcpStream::connect(address).await.is_err() {
        sleep(BETWEEN_TRIES).await;
    }
}

/// Two ports that are free now.
fn free_ports() -> io::Result<(SocketAddr, SocketAddr)> {
    // Both at once, so that they differ.
    let (client, peer) = (TcpListener::bind(FREE)?, TcpListener::bind(FREE)?);
    Ok((client.local_addr()?, peer.local_addr()?))
}
