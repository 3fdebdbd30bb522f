//! A tunnel server as a child process, started on free ports.
//!
//! Its addresses come from its own log: a line `listening` for each listener, with the listener's
//! name and address as fields.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    ca::{Ca, Certificate},
    deadline::{SOON, eventually},
    entry::Entry,
    platform::PlatformClient,
    program::{Line, Program, built},
};

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The domain under which runtimes have their hosts.
    pub domain: String,
    /// Whether the public listener speaks TLS.
    pub public_tls: bool,
    /// Flags beside those that are always given.
    pub flags: Vec<String>,
    /// Where the tunnel listener is to be, for a server that returns; else a free port.
    pub tunnel_listen: Option<SocketAddr>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            domain: "tunnels.localhost".to_owned(),
            public_tls: false,
            flags: Vec::new(),
            tunnel_listen: None,
        }
    }
}

/// A running tunnel server.
#[derive(Debug)]
pub struct Server {
    program: Program,
    tunnel: SocketAddr,
    public: SocketAddr,
    admin: SocketAddr,
}

/// The files a server needs: certificate of the tunnel listener, and the runtimes.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// For `localhost` and `127.0.0.1`.
    pub tunnel_certificate: Certificate,
    /// For the domain and what is below it.
    pub public_certificate: Certificate,
    /// The runtimes and their tokens' hashes.
    pub runtimes: PathBuf,
    directory: PathBuf,
}

impl ServerFiles {
    /// Makes the certificates in `directory`; the runtimes file appears with the first token.
    pub fn new(directory: &Path, ca: &Ca, domain: &str) -> Self {
        let all = format!("*.{domain}");
        Self {
            tunnel_certificate: ca.issue("tunnel", &["localhost", "127.0.0.1"]),
            public_certificate: ca.issue("public", &[domain, &all]),
            runtimes: directory.join("runtimes.toml"),
            directory: directory.to_owned(),
        }
    }

    /// Adds a runtime by way of `tunnel-server token create` and gives its token's file.
    ///
    /// # Panics
    /// When the program refuses.
    pub fn create_token(&self, account: &str, runtime: &str) -> PathBuf {
        let mut command = Command::new(built("tunnel-server"));
        command.args([
            "token",
            "create",
            "--account",
            account,
            "--runtime",
            runtime,
        ]);
        command.arg("--runtimes").arg(&self.runtimes);
        let output = command.output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {complaint}");
        let path = self.directory.join(format!("{account}-{runtime}.token"));
        fs::write(&path, &output.stdout).unwrap();
        path
    }
}

impl Server {
    /// Starts a server and waits until it listens.
    ///
    /// # Panics
    /// When it does not.
    pub async fn start(files: &ServerFiles, options: &ServerOptions) -> Self {
        let free: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut command = Command::new(built("tunnel-server"));
        command.args(["run", "--log-format", "json", "--domain", &options.domain]);
        command.args([
            "--tunnel-listen",
            &options.tunnel_listen.unwrap_or(free).to_string(),
        ]);
        command.args([
            "--public-listen",
            &free.to_string(),
            "--admin-listen",
            &free.to_string(),
        ]);
        command
            .arg("--tls-cert")
            .arg(&files.tunnel_certificate.certificate);
        command.arg("--tls-key").arg(&files.tunnel_certificate.key);
        if options.public_tls {
            command
                .arg("--public-tls-cert")
                .arg(&files.public_certificate.certificate);
            command
                .arg("--public-tls-key")
                .arg(&files.public_certificate.key);
        }
        command
            .arg("--runtimes")
            .arg(&files.runtimes)
            .args(&options.flags);
        let program = Program::start("tunnel-server", &mut command);
        let tunnel = wait_listening(&program, "tunnel").await;
        let public = wait_listening(&program, "public").await;
        let admin = wait_listening(&program, "admin").await;
        Self {
            program,
            tunnel,
            public,
            admin,
        }
    }

    /// The process.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The process, to end it.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Where tunnel clients connect to.
    pub fn tunnel_address(&self) -> SocketAddr {
        self.tunnel
    }

    /// Where platform clients connect to.
    pub fn public_address(&self) -> SocketAddr {
        self.public
    }

    /// Metrics and health.
    pub fn admin(&self) -> Admin {
        Admin(self.admin)
    }
}

/// The admin listener of either program.
#[derive(Clone, Copy, Debug)]
pub struct Admin(pub SocketAddr);

impl Admin {
    /// The status of `path`.
    pub async fn status(&self, path: &str) -> u16 {
        self.client().await.get(path).await.status.as_u16()
    }

    /// Waits until `/readyz` says that it is, or is not, ready.
    pub async fn wait_ready(&self, ready: bool) {
        let what = if ready {
            "to be ready"
        } else {
            "to be not ready"
        };
        let ask = async || ((self.status("/readyz").await == 200) == ready).then_some(());
        eventually(SOON, &format!("{} {what}", self.0), ask).await;
    }

    /// The metrics in the text format.
    pub async fn metrics(&self) -> String {
        self.client().await.get("/metrics").await.text().to_owned()
    }

    /// The sum of a metric's series whose line contains each of `labels`.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let metrics = self.metrics().await;
        let values = metrics
            .lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(name))
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        values.reduce(|sum, value| sum + value)
    }

    async fn client(&self) -> PlatformClient {
        PlatformClient::http1(&Entry::direct(self.0)).await
    }
}

/// Waits for the line in which a program says where its `listener` is.
pub(crate) async fn wait_listening(program: &Program, listener: &str) -> SocketAddr {
    let what = format!("a line that says where the {listener} listener is");
    program
        .log()
        .wait_for(&what, SOON, |line| listening(line, listener))
        .await
}

fn listening(line: &Line, listener: &str) -> Option<SocketAddr> {
    let event: Value = serde_json::from_str(line.text()).ok()?;
    // Fields stand beside the message, either in an object of their own or at the top.
    let fields = event.get("fields").unwrap_or(&event);
    let is_it = fields.get("message")?.as_str()?.contains("listening")
        && fields.get("listener")?.as_str()? == listener;
    if is_it {
        fields.get("address")?.as_str()?.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_listener_in_a_line_of_either_form() {
        let address = Some("127.0.0.1:9".parse().unwrap());
        for line in [
            r#"{"level":"INFO","fields":{"message":"listening","listener":"admin","address":"127.0.0.1:9"}}"#,
            r#"{"level":"INFO","message":"listening","listener":"admin","address":"127.0.0.1:9"}"#,
        ] {
            let line = Line::Err(line.to_owned());
            assert_eq!(listening(&line, "admin"), address);
            assert_eq!(listening(&line, "public"), None);
        }
        assert_eq!(listening(&Line::Out("listening".to_owned()), "admin"), None);
    }
}
