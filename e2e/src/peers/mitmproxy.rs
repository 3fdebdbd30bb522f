//! mitmproxy, a proxy that inspects TLS: for every name it presents a certificate that is signed by its own CA, which it
//! makes when it starts.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use tempfile::TempDir;

use super::python::environment;
use crate::{ca::Ca, deadline::SOON, program::Program};

/// A running mitmproxy.
#[derive(Debug)]
pub struct Mitmproxy {
    address: SocketAddr,
    program: Program,
    directory: TempDir,
}

impl Mitmproxy {
    /// Starts one that trusts servers of this authority.
    ///
    /// # Panics
    /// When the peers are not installed.
    pub async fn start(trusted: &Ca) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(environment().join("mitmproxy/bin/mitmdump"));
        command.env("PYTHONUNBUFFERED", "1");
        command.args(["--listen-host", "127.0.0.1", "--listen-port", "0", "--set"]);
        command.arg(format!("confdir={}", directory.path().display()));
        command.args(["--set", "connection_strategy=lazy", "--set"]);
        command.arg(format!(
            "ssl_verify_upstream_trusted_ca={}",
            trusted.file().display()
        ));
        let program = Program::start("mitmproxy", &mut command);
        // Python starts slowly on a busy machine.
        let line = program.wait_for_line("proxy listening at", 3 * SOON).await;
        let address = line.rsplit(' ').next().unwrap().trim_end_matches('.');
        Self {
            address: address.parse().unwrap(),
            program,
            directory,
        }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// PEM file of its CA.
    pub fn ca_file(&self) -> PathBuf {
        self.directory.path().join("mitmproxy-ca-cert.pem")
    }

    /// The process, which writes a line for each request and each handshake that fails.
    pub fn program(&self) -> &Program {
        &self.program
    }
}
