//! Envoy as a load balancer before the tunnel server.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    process::Command,
};

use tempfile::TempDir;

use super::{port::on_free_port, python::environment};
use crate::{ca::Certificate, deadline::SOON, program::Program};

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    address: SocketAddr,
    _program: Program,
    _directory: TempDir,
}

impl Envoy {
    /// One that ends TLS with this certificate before plain HTTP/1.1 at `target`, to which it connects from the address
    /// `from`. It names its clients in `X-Forwarded-For`, and passes WebSockets.
    ///
    /// # Panics
    /// When the peers are not installed.
    pub async fn terminating(target: SocketAddr, from: IpAddr, certificate: &Certificate) -> Self {
        on_free_port("envoy", async |address| {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("envoy.yaml");
            fs::write(&file, configuration(address, target, from, certificate)).unwrap();
            let mut command = Command::new(environment().join("envoy/bin/envoy"));
            command.args(["--concurrency", "1", "--disable-hot-restart", "-c"]);
            let program = Program::start("envoy", command.arg(file));
            let verdict = program.log().wait_for("envoy to start", 3 * SOON, |line| {
                let text = line.text();
                let taken = text.contains("Address already in use");
                (taken || text.contains("starting main dispatch loop")).then_some(!taken)
            });
            verdict.await.then_some(Self {
                address,
                _program: program,
                _directory: directory,
            })
        })
        .await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The configuration, with placeholders.
const TEMPLATE: &str = include_str!("../../peers/envoy.yaml");

fn configuration(
    listen: SocketAddr,
    target: SocketAddr,
    from: IpAddr,
    Certificate { certificate, key }: &Certificate,
) -> String {
    let values = [
        ("@listen.ip@", listen.ip().to_string()),
        ("@listen.port@", listen.port().to_string()),
        ("@target.ip@", target.ip().to_string()),
        ("@target.port@", target.port().to_string()),
        ("@from@", from.to_string()),
        ("@certificate@", certificate.display().to_string()),
        ("@key@", key.display().to_string()),
    ];
    let text = TEMPLATE.to_owned();
    let fill = |text: String, (name, value): (&str, String)| text.replace(name, &value);
    values.into_iter().fold(text, fill)
}
