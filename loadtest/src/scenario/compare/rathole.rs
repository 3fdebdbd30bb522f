//! rathole, if its program is installed: a server and a client with the Noise protocol between.
//!
//! It forwards bytes and understands no HTTP, so it says what a tunnel costs that does no more.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{
    scenario::compare::nginx::{free_address, installed},
    stack::child::Child,
};

/// The client dials at once; it takes a few milliseconds.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Between two questions whether it listens.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// A running server and client. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Rathole {
    /// The processes.
    pub(super) server: Child,
    /// The one beside the upstream.
    pub(super) client: Child,
    /// Where its service listens.
    pub(super) address: SocketAddr,
    /// Where the configuration is.
    pub(super) directory: TempDir,
}

/// Where the program is, if installed.
pub(super) fn program() -> Option<PathBuf> {
    installed("rathole")
}

/// Starts both ends before `upstream`, and waits until the service listens.
pub(super) async fn start(upstream: SocketAddr) -> anyhow::Result<Rathole> {
    let Some(program) = program() else {
        bail!("rathole is not installed");
    };
    let directory = TempDir::with_prefix("loadtest-rathole-").context("cannot make a directory")?;
    let keys = Command::new(&program).arg("--genkey").output();
    let keys = keys.context("cannot run rathole --genkey")?;
    let text = String::from_utf8_lossy(&keys.stdout).into_owned();
    let Some((private, public)) = parse_keys(&text) else {
        let complaint = String::from_utf8_lossy(&keys.stderr);
        bail!(
            "rathole --genkey gave no keys; is it built with noise? {}",
            complaint.trim()
        );
    };
    let (control, service) = (free_address()?, free_address()?);
    let server = server_configuration(control, service, &private);
    let client = client_configuration(control, upstream, &public);
    let server = run(&program, directory.path(), "server", &server)?;
    let client = run(&program, directory.path(), "client", &client)?;
    let started = Rathole {
        server,
        client,
        address: service,
        directory,
    };
    let until = Instant::now() + START_LIMIT;
    while TcpStream::connect(service).await.is_err() {
        if Instant::now() >= until {
            let (server, client) = (started.server.tail(), started.client.tail());
            bail!("rathole does not listen{server}{client}");
        }
        sleep(ASK_AGAIN).await;
    }
    Ok(started)
}

fn run(program: &Path, directory: &Path, end: &str, text: &str) -> anyhow::Result<Child> {
    let file = directory.join(format!("{end}.toml"));
    fs::write(&file, text)?;
    let mut command = Command::new(program);
    command.arg(format!("--{end}")).arg(file);
    // A line for each connection would be part of what is measured.
    command.env("RUST_LOG", "error");
    Child::start(format!("rathole {end}"), command)
}

/// Private and public key, from what `--genkey` writes: a line that names each stands above it.
fn parse_keys(text: &str) -> Option<(String, String)> {
    let after = |name: &str| {
        let mut lines = text.lines().map(str::trim);
        lines.find(|line| line.starts_with(name))?;
        lines.find(|line| !line.is_empty()).map(str::to_owned)
    };
    Some((after("Private Key")?, after("Public Key")?))
}

fn server_configuration(control: SocketAddr, service: SocketAddr, private: &str) -> String {
    format!(
        "[server]\nbind_addr = \"{control}\"\ndefault_token = \"loadtest\"\n\
         [server.transport]\ntype = \"noise\"\n\
         [server.transport.noise]\nlocal_private_key = \"{private}\"\n\
         [server.services.web]\nbind_addr = \"{service}\"\n"
    )
}

fn client_configuration(control: SocketAddr, upstream: SocketAddr, public: &str) -> String {
    format!(
        "[client]\nremote_addr = \"{control}\"\ndefault_token = \"loadtest\"\n\
         [client.transport]\ntype = \"noise\"\n\
         [client.transport.noise]\nremote_public_key = \"{public}\"\n\
         [client.services.web]\nlocal_addr = \"{upstream}\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_what_it_writes() {
        let text = "Private Key:\nabc=\n\nPublic Key:\ndef=\n\n";
        assert_eq!(
            parse_keys(text),
            Some(("abc=".to_owned(), "def=".to_owned()))
        );
        assert_eq!(parse_keys("error: not compiled\n"), None);
    }

    #[test]
    fn both_ends_agree() {
        let (control, service) = (([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into());
        let server = server_configuration(control, service, "private");
        let client = client_configuration(control, ([127, 0, 0, 1], 3).into(), "public");
        assert!(server.contains("bind_addr = \"127.0.0.1:1\"") && !server.contains("public"));
        assert!(client.contains("remote_addr = \"127.0.0.1:1\"") && !client.contains("private"));
        assert!(client.contains("local_addr = \"127.0.0.1:3\""));
    }
}
