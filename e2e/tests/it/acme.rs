//! Certificates by ACME, from a real ACME server: Pebble.

use std::{fs, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use e2e::{
    ca::Ca,
    deadline::{SOON, eventually, within},
    entry::Entry,
    peers::pebble::Pebble,
    platform::PlatformClient,
    server::{Admin, Server, ServerFiles, ServerOptions},
};
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tempfile::TempDir;
use testkit::etcd::Etcd;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const DOMAIN: &str = "tunnels.example.com";
const HOST: &str = "register.example.com";
const WILDCARD: &str = "*.tunnels.example.com";
const RUNTIME: &str = "demo-app.tunnels.example.com";

/// Longer than any test.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

/// An ACME server, and the files of servers that get their certificates there.
struct Setup {
    pebble: Pebble,
    files: ServerFiles,
    directory: TempDir,
}

impl Setup {
    async fn new(validity: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let files = ServerFiles::new(directory.path(), &ca, DOMAIN, &[]);
        files.create_token("demo", "app");
        Self {
            pebble: Pebble::start(validity).await,
            files,
            directory,
        }
    }

    /// Starts a server with no certificate in files, and these flags.
    async fn start(&self, flags: &[&str]) -> Server {
        let given = flags.iter().map(|flag| (*flag).to_owned());
        let options = ServerOptions {
            domain: DOMAIN.to_owned(),
            tunnel_tls: false,
            flags: self.pebble.flags().into_iter().chain(given).collect(),
            ..ServerOptions::default()
        };
        Server::start(&self.files, &options).await
    }

    fn state(&self) -> String {
        let path: &Path = &self.directory.path().join("acme");
        path.display().to_string()
    }
}

/// The certificate that a listener shows for a name, if the client trusts it.
async fn shown(
    address: SocketAddr,
    name: &str,
    config: &Arc<ClientConfig>,
) -> Option<CertificateDer<'static>> {
    let socket = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let handshake = TlsConnector::from(config.clone()).connect(name, socket);
    let stream = within(SOON, "a TLS handshake", handshake).await.ok()?;
    let chain = stream.get_ref().1.peer_certificates()?;
    Some(chain.first()?.clone().into_owned())
}

/// Waits for such a certificate.
async fn wait_shown(
    address: SocketAddr,
    name: &str,
    config: &Arc<ClientConfig>,
) -> CertificateDer<'static> {
    let what = format!("a certificate for {name}");
    eventually(3 * SOON, &what, async || shown(address, name, config).await).await
}

async fn certificates(admin: Admin) -> Vec<Value> {
    let status: Value = admin.get("/api/v1/status").await.json();
    status["certificates"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

#[tokio::test]
async fn the_first_certificates_come_by_handshake_and_by_hook_and_last_a_restart() {
    let setup = Setup::new(LONG).await;
    let (state, hook) = (setup.state(), setup.pebble.hook());
    let names = format!("{HOST},{WILDCARD}");
    let flags = [
        "--acme-dir",
        &state,
        "--acme-name",
        &names,
        "--acme-dns-hook",
        &hook,
    ];
    let mut server = setup.start(&flags).await;
    let trust = setup.pebble.client_config().await;
    let (admin, public, tunnel) = (
        server.admin(),
        server.public_address(),
        server.tunnel_address(),
    );
    // Before there is one.
    assert_eq!(shown(tunnel, HOST, &trust).await, None);
    let ready = admin.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains(WILDCARD), "{}", ready.text());
    setup.pebble.open(&[public]);
    // For the tunnel's name, and for each runtime's.
    let of_host = wait_shown(tunnel, HOST, &trust).await;
    let of_runtime = wait_shown(public, RUNTIME, &trust).await;
    admin.wait_ready(true).await;
    assert_eq!(setup.pebble.orders(), 2);
    let certificates = certificates(admin).await;
    let names: Vec<_> = certificates
        .iter()
        .map(|of| of["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, [HOST, WILDCARD]);
    assert!(
        certificates.iter().all(|of| of["not_after"].is_string()),
        "{certificates:?}"
    );
    let orders = "tunnel_server_acme_orders_total";
    assert_eq!(admin.metric(orders, &["obtained"]).await, Some(2.0));
    let end = "tunnel_server_certificate_not_after_seconds";
    for listener in ["public", "tunnel"] {
        admin
            .wait_metric(end, &[listener], |seconds| seconds > 0.0)
            .await;
    }
    // A restart needs no ACME server.
    assert_eq!(server.program_mut().stop().await, Some(0));
    setup.pebble.close();
    let server = setup.start(&flags).await;
    assert_eq!(
        shown(server.tunnel_address(), HOST, &trust).await,
        Some(of_host)
    );
    assert_eq!(
        shown(server.public_address(), RUNTIME, &trust).await,
        Some(of_runtime)
    );
    assert_eq!(server.admin().status("/readyz").await, 200);
    assert_eq!(setup.pebble.orders(), 2);
}

#[tokio::test]
async fn a_renewal_leaves_open_connections() {
    let setup = Setup::new(Duration::from_secs(24)).await;
    let state = setup.state();
    let server = setup
        .start(&["--acme-dir", &state, "--acme-name", HOST])
        .await;
    let trust = setup.pebble.client_config().await;
    let public = server.public_address();
    // The ACME server has to reach it.
    server.admin().wait_ready(true).await;
    setup.pebble.open(&[public]);
    let first = wait_shown(public, HOST, &trust).await;
    let mut client = PlatformClient::http1(&Entry::tls_by(public, HOST, trust.clone())).await;
    assert_eq!(client.get("/").await.status, 404);
    eventually(3 * SOON, "another certificate", async || {
        (shown(public, HOST, &trust).await? != first).then_some(())
    })
    .await;
    assert_eq!(client.get("/").await.status, 404);
}

/// Its clean-up does not end.
#[tokio::test]
async fn a_certificate_is_kept_before_its_proof_is_removed() {
    let setup = Setup::new(LONG).await;
    let state = setup.state();
    let lines = fs::read_to_string(setup.pebble.hook()).unwrap();
    let hook = format!("[ \"$1\" = cleanup ] && exec sleep 600\n{lines}");
    let flags = [
        "--acme-dir",
        &state,
        "--acme-dns-hook",
        &setup.pebble.hook_of(&hook),
        "--grace-period=1s",
    ];
    let mut server = setup.start(&flags).await;
    let trust = setup.pebble.client_config().await;
    setup.pebble.open(&[server.public_address()]);
    let first = wait_shown(server.public_address(), RUNTIME, &trust).await;
    assert_eq!(server.program_mut().stop().await, Some(0));
    let server = setup.start(&flags).await;
    let again = shown(server.public_address(), RUNTIME, &trust).await;
    assert_eq!((again, setup.pebble.orders()), (Some(first), 1));
}

/// While the server gives up the order that it has begun, or the clean-up runs already.
#[tokio::test]
async fn a_stop_leaves_no_proof_behind() {
    for action in ["present", "cleanup"] {
        let setup = Setup::new(LONG).await;
        let folder = setup.directory.path().display();
        let lines = fs::read_to_string(setup.pebble.hook()).unwrap();
        let hook = format!(
            "echo $1 >> {folder}/calls\n[ \"$1\" = {action} ] && sleep 1\n(\n{lines}\n)\necho $1 >> {folder}/ended"
        );
        let state = setup.state();
        let hook = setup.pebble.hook_of(&hook);
        let flags = ["--acme-dir", &state, "--acme-dns-hook", &hook];
        let mut server = setup.start(&flags).await;
        setup.pebble.open(&[server.public_address()]);
        let read = |name: &str| fs::read_to_string(setup.directory.path().join(name)).ok();
        let is_called = async || read("calls")?.contains(action).then_some(());
        eventually(3 * SOON, action, is_called).await;
        assert_eq!(server.program_mut().stop().await, Some(0));
        let ended = read("ended").unwrap_or_default();
        assert!(ended.ends_with("cleanup\n"), "{action}: {ended:?}");
    }
}

#[tokio::test]
async fn a_broken_hook_is_reported_with_what_it_wrote() {
    let setup = Setup::new(LONG).await;
    let state = setup.state();
    let hook = setup
        .pebble
        .hook_of("echo \"the provider refuses $1 of $2\" >&2; exit 7");
    let server = setup
        .start(&["--acme-dir", &state, "--acme-dns-hook", &hook])
        .await;
    let admin = server.admin();
    setup.pebble.open(&[server.public_address()]);
    admin
        .wait_metric("tunnel_server_acme_orders_total", &["failed"], |count| {
            count > 0.0
        })
        .await;
    let problem = "the provider refuses present of _acme-challenge.tunnels.example.com";
    let certificates = certificates(admin).await;
    let shown = certificates[0]["problem"].as_str().unwrap();
    assert!(
        shown.contains("exit status: 7") && shown.contains(problem),
        "{shown}"
    );
    server
        .program()
        .wait_for_line("no certificate was obtained, trying again", SOON)
        .await;
    // What a failed hook may have set is removed.
    server
        .program()
        .wait_for_line("the provider refuses cleanup", SOON)
        .await;
    assert_eq!(admin.status("/readyz").await, 503);
}

#[tokio::test]
async fn nodes_share_one_certificate_and_answer_the_acme_server_for_each_other() {
    let setup = Setup::new(LONG).await;
    let etcd = Etcd::start(1).await;
    let url = format!("http://{}", etcd.addresses()[0]);
    let node = async |name| {
        setup
            .start(&["--etcd", &url, "--node", name, "--acme-name", HOST])
            .await
    };
    let first = node("n1").await;
    // It orders as soon as the ACME server answers.
    eventually(SOON, "the lock", async || {
        let holder = etcd
            .ctl(&["get", "--prefix", "/tunnel/v1/acme/", "--print-value-only"])
            .await;
        holder.contains("n1").then_some(())
    })
    .await;
    let second = node("n2").await;
    setup.pebble.open(&[second.public_address()]);
    let trust = setup.pebble.client_config().await;
    let here = wait_shown(first.public_address(), HOST, &trust).await;
    let there = wait_shown(second.tunnel_address(), HOST, &trust).await;
    assert_eq!(here, there);
    assert_eq!(setup.pebble.orders(), 1);
}
