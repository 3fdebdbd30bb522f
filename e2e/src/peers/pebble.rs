//! Pebble, the ACME server that Let's Encrypt tests clients with, and a name server whose records a hook sets.
//!
//! ```text
//!   server under test ──orders──▶ Pebble ──asks──▶ name server ◀──sets, removes── hook
//!                     ◀──verifies── front ◀───────────┘
//! ```
//!
//! All names lead to loopback, and port 443 is that of the front: a relay that stands for the network before the servers
//! under test. Both programs are those of `e2e/build-pebble`, which the first test runs.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, OnceLock},
    time::Duration,
};

use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::{
    curl::curl,
    port::{free_address, on_free_port},
};
use crate::{
    ca::Ca,
    deadline::{SOON, eventually},
    program::{Program, root},
    relay::Relay,
    secrets,
};

/// The external account that Pebble requires, and the file with its key.
const KID: &str = "kid-1";
const KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
const KEY_FILE: &str = "eab.key";

/// A running Pebble with its name server and the network before the servers under test.
#[derive(Debug)]
pub struct Pebble {
    program: Program,
    _names: Program,
    /// The way of servers to it.
    way: Relay,
    front: Relay,
    ca: Ca,
    management: SocketAddr,
    /// Where records are set.
    records: SocketAddr,
    directory: TempDir,
}

/// Where both programs are.
fn built() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let built = Command::new(root().join("e2e/build-pebble")).output();
        let built = built.unwrap_or_else(|error| panic!("e2e/build-pebble: {error}"));
        let complaint = String::from_utf8_lossy(&built.stderr);
        assert!(
            built.status.success(),
            "e2e/build-pebble needs Go: {complaint}"
        );
        String::from_utf8(built.stdout).unwrap().trim_end().into()
    })
}

impl Pebble {
    /// Starts one whose certificates are valid for this time. It gives none before it is opened.
    ///
    /// # Panics
    /// When it cannot be built or does not start.
    pub async fn start(validity: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        // Leads nowhere before a server listens.
        let front = Relay::start(free_address()).await;
        front.refuse();
        let (names, (dns, records)) = start_names().await;
        let path = directory.path().to_owned();
        secrets::keep("the key of an external account", KEY);
        fs::write(path.join(KEY_FILE), KEY).unwrap();
        let (program, acme, management) = on_free_port("pebble", async |acme| {
            let management = free_address();
            let config = config(&ca, [acme, management], front.address().port(), validity);
            let file = path.join("pebble.json");
            fs::write(&file, config.to_string()).unwrap();
            let mut command = Command::new(built().join("pebble"));
            command.arg("-config").arg(&file);
            command.args(["-strict", "-dnsserver", &dns.to_string()]);
            // One nonce in a hundred is rejected, as a client has to bear.
            command.envs([
                ("PEBBLE_VA_NOSLEEP", "1"),
                ("PEBBLE_AUTHZREUSE", "0"),
                ("PEBBLE_WFE_NONCEREJECT", "1"),
            ]);
            let program = Program::start("pebble", &mut command);
            let listens = [acme, management];
            has_started(&program, &listens)
                .await
                .then_some((program, acme, management))
        })
        .await;
        let way = Relay::start(acme).await;
        way.stall();
        Self {
            program,
            _names: names,
            way,
            front,
            ca,
            management,
            records,
            directory,
        }
    }

    /// The flags of a server that gets its certificates here, but for their names.
    pub fn flags(&self) -> Vec<String> {
        let ca = self.ca.file();
        let flags = [
            (
                "--acme-directory",
                format!("https://{}/dir", self.way.address()),
            ),
            ("--acme-ca-file", ca.display().to_string()),
            ("--acme-contact", "ops@example.com".to_owned()),
            ("--acme-dns-wait", "0s".to_owned()),
            ("--acme-eab-kid", KID.to_owned()),
            (
                "--acme-eab-key-file",
                self.directory.path().join(KEY_FILE).display().to_string(),
            ),
        ];
        let flags = flags.into_iter();
        flags
            .flat_map(|(flag, value)| [flag.to_owned(), value])
            .collect()
    }

    /// A hook that sets and removes records at the name server.
    pub fn hook(&self) -> String {
        let (name, records) = ("{\\\"host\\\":\\\"$2.\\\"", self.records);
        self.hook_of(&format!(
            "case $1 in\n\
             present) set -- set-txt \"{name},\\\"value\\\":\\\"$3\\\"}}\" ;;\n\
             cleanup) set -- clear-txt \"{name}}}\" ;;\n\
             esac\n\
             exec curl -q -fsS --noproxy '*' -d \"$2\" \"http://{records}/$1\""
        ))
    }

    /// A hook of these lines of shell.
    pub fn hook_of(&self, lines: &str) -> String {
        let path = self.directory.path().join("hook");
        fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    /// Lets Pebble reach these public listeners in turn, as port 443 of all names, and then servers reach Pebble.
    pub fn open(&self, public: &[SocketAddr]) {
        self.front.lead_to_each(public);
        self.front.resume();
        self.way.resume();
    }

    /// Servers do not reach Pebble any more.
    pub fn close(&self) {
        self.way.refuse();
    }

    /// What it has written.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The number of orders that were made.
    pub fn orders(&self) -> usize {
        let text = self.program.text();
        text.lines()
            .filter(|line| line.contains("Added order"))
            .count()
    }

    /// A TLS client's configuration that trusts the certificates issued here and nobody else.
    pub async fn client_config(&self) -> Arc<ClientConfig> {
        let url = format!("https://{}/roots/0", self.management);
        let ca = self.ca.file().display().to_string();
        let answer = curl(["--cacert", &ca, &url]).await;
        assert_eq!(answer.status(), 200);
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&answer.body).unwrap())
            .unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }
}

/// Starts a name server. Returns it with its addresses, for questions and for setting records.
async fn start_names() -> (Program, (SocketAddr, SocketAddr)) {
    on_free_port("pebble-challtestsrv", async |dns| {
        let records = free_address();
        let mut command = Command::new(built().join("pebble-challtestsrv"));
        let (dns_text, records_text) = (dns.to_string(), records.to_string());
        for (flag, value) in [
            ("-dnsserver", &*dns_text),
            ("-management", &records_text),
            ("-defaultIPv6", ""),
            ("-http01", ""),
            ("-https01", ""),
            ("-tlsalpn01", ""),
            ("-doh", ""),
        ] {
            command.args([flag, value]);
        }
        let program = Program::start("pebble-challtestsrv", &mut command);
        let started = has_started(&program, &[dns, records]).await;
        started.then_some((program, (dns, records)))
    })
    .await
}

/// Waits until a program listens at these addresses; false if another program does.
async fn has_started(program: &Program, addresses: &[SocketAddr]) -> bool {
    eventually(SOON, "a program to listen", async || {
        if program.text().contains("address already in use") {
            return Some(false);
        }
        for address in addresses {
            TcpStream::connect(address).await.ok()?;
        }
        Some(true)
    })
    .await
}

fn config(
    ca: &Ca,
    [acme, management]: [SocketAddr; 2],
    port: u16,
    validity: Duration,
) -> serde_json::Value {
    let certificate = ca.issue("pebble", &["localhost", "127.0.0.1"]);
    serde_json::json!({
        "pebble": {
            "listenAddress": acme.to_string(),
            "managementListenAddress": management.to_string(),
            "certificate": certificate.certificate,
            "privateKey": certificate.key,
            "httpPort": 1,
            "tlsPort": port,
            "retryAfter": { "authz": 1, "order": 1 },
            "keyAlgorithm": "ecdsa",
            "externalAccountBindingRequired": true,
            "externalAccountMACKeys": { KID: KEY },
            "profiles": {
                "default": { "description": "of a test", "validityPeriod": validity.as_secs() },
            },
        },
    })
}
