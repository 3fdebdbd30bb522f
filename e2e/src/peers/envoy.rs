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

/// What the types of Envoy's parts begin with.
const EXTENSIONS: &str = "type.googleapis.com/envoy.extensions";

fn configuration(
    address: SocketAddr,
    target: SocketAddr,
    from: IpAddr,
    Certificate { certificate, key }: &Certificate,
) -> String {
    let socket = |address: SocketAddr| {
        let (ip, port) = (address.ip(), address.port());
        format!("{{ socket_address: {{ address: {ip}, port_value: {port} }} }}")
    };
    let (listen, target) = (socket(address), socket(target));
    let (certificate, key) = (certificate.display(), key.display());
    format!(
        "static_resources:
  listeners:
  - address: {listen}
    filter_chains:
    - transport_socket:
        name: tls
        typed_config:
          \"@type\": {EXTENSIONS}.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [h2, http/1.1]
            tls_certificates:
            - certificate_chain: {{ filename: {certificate} }}
              private_key: {{ filename: {key} }}
      filters:
      - name: http
        typed_config:
          \"@type\": {EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: tunnels
          use_remote_address: true
          stream_idle_timeout: 60s
          upgrade_configs: [{{ upgrade_type: websocket }}]
          http_filters:
          - name: router
            typed_config: {{ \"@type\": {EXTENSIONS}.filters.http.router.v3.Router }}
          route_config:
            virtual_hosts:
            - name: all
              domains: [\"*\"]
              routes: [{{ match: {{ prefix: / }}, route: {{ cluster: server, timeout: 0s }} }}]
  clusters:
  - name: server
    type: STATIC
    upstream_bind_config: {{ source_address: {{ address: {from}, port_value: 0 }} }}
    load_assignment:
      cluster_name: server
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {target} }} }}] }}]
"
    )
}
