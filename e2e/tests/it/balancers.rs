//! Load balancers before one address for tunnel clients and platform clients, configured as
//! docs/guides/load-balancers.md says.

use std::net::{IpAddr, SocketAddr};

use e2e::{
    ca::Certificate,
    peers::{curl::curl, envoy::Envoy, nginx::Nginx},
    system::{Options, System},
    upstream::Upstream,
};

/// From where a balancer connects to the server: not from where clients do.
const BALANCER: &str = "127.0.0.9";

fn balancer() -> IpAddr {
    BALANCER.parse().unwrap()
}

/// A server with one listener, and a client that is not there yet.
async fn waiting(flags: &[&str], public_tls: bool) -> (Upstream, System) {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url())
        .not_connected()
        .server_flags(&[
            "--tunnel-host",
            "localhost",
            "--trusted-proxies",
            "127.0.0.9/32",
        ])
        .server_flags(flags);
    let system = match public_tls {
        true => System::with(options.public_tls()).await,
        false => System::with(options).await,
    };
    (upstream, system)
}

/// Checks that a tunnel client and a platform client reach each other by way of a balancer, and that the operator sees
/// the tunnel client's own address, which begins with `peer`, in place of the balancer's.
async fn assert_carries(system: &mut System, balancer: SocketAddr, peer: &str) {
    let options = system.client_options("demo-app");
    options.server = balancer;
    options.server_name = Some("localhost".to_owned());
    options.clone().check().await.assert_held();
    system.start_client("demo-app").await;
    let (host, port) = (system.host_of("demo-app"), balancer.port());
    let (ca, resolve) = (system.ca().file(), format!("{host}:{port}:127.0.0.1"));
    let url = format!("https://{host}:{port}/status/200");
    let ca = ca.to_str().unwrap();
    let answer = curl(["--cacert", ca, "--resolve", &resolve, &url]).await;
    assert_eq!(
        (answer.status(), answer.head().start.as_str()),
        (200, "HTTP/2 200 "),
        "{answer:?}"
    );
    let admin = system.server().admin();
    let view: serde_json::Value = admin.get("/api/v1/runtimes/demo-app").await.json();
    let shown = view["sessions"][0]["peer"].as_str().unwrap();
    let is_balancer = shown.starts_with(BALANCER);
    assert!(shown.starts_with(peer) && !is_balancer, "{shown}");
}

/// A certificate for the tunnel's host and the runtimes' hosts.
fn certificate(system: &System) -> Certificate {
    let names = ["localhost", "*.tunnels.localhost"];
    system.ca().issue("balancer", &names)
}

#[tokio::test]
async fn nginx_passes_tls_through_with_a_proxy_header() {
    let (_upstream, mut system) = waiting(&["--proxy-protocol"], true).await;
    assert_eq!(system.server().tunnel_address(), system.entry().address());
    let nginx = Nginx::passing(system.entry().address(), balancer()).await;
    assert_carries(&mut system, nginx.address(), "127.0.0.1:").await;
}

#[tokio::test]
async fn nginx_ends_tls_before_plain_http() {
    let (_upstream, mut system) = waiting(&["--tunnel-tls=false"], false).await;
    let certificate = certificate(&system);
    let nginx = Nginx::terminating(system.entry().address(), balancer(), &certificate).await;
    assert_carries(&mut system, nginx.address(), "127.0.0.1").await;
}

#[tokio::test]
async fn envoy_ends_tls_before_plain_http() {
    let (_upstream, mut system) = waiting(&["--tunnel-tls=false"], false).await;
    let certificate = certificate(&system);
    let envoy = Envoy::terminating(system.entry().address(), balancer(), &certificate).await;
    // Envoy names its own address for a client on the same machine.
    assert_carries(&mut system, envoy.address(), "").await;
}
