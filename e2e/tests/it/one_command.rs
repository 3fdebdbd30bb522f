//! `tunnel-client http`: one command puts a service of this machine behind the tunnel.

use std::process::Command;

use e2e::{
    deadline::SOON,
    platform::PlatformClient,
    program::{Program, built},
    secrets,
    system::{Options, System},
    upstream::Upstream,
};

#[tokio::test]
async fn a_port_is_served_and_where_it_is_reached_is_printed() {
    let upstream = Upstream::start().await;
    let url = upstream.url();
    let (_, port) = url.rsplit_once(':').unwrap();
    let options = Options::to(&url).not_connected();
    let mut system = System::with(options).await;
    let options = system.client_options("demo-app").clone();
    secrets::keep_file(&options.token);
    let mut command = Command::new(built("tunnel-client"));
    command
        .args([
            "http",
            port,
            "--server",
            &format!("wss://{}", options.server),
        ])
        .arg("--token-file")
        .arg(&options.token)
        .arg("--ca-file")
        .arg(&options.ca);
    let program = Program::start("tunnel-client", &mut command);
    let line = program.wait_for_line(" -> ", SOON).await;
    let printed = format!("{} -> {url}", system.url("").trim_end_matches('/'));
    assert_eq!(line, printed);
    let mut platform = PlatformClient::http1(&system.entry()).await;
    assert_eq!(platform.get("/status/200").await.status, 200);
}
