//! `tail` of both programs: the same exchanges, seen from both ends of a tunnel.

use std::process::Command;

use e2e::{
    deadline::{SOON, eventually},
    platform::PlatformClient,
    program::{Program, built},
    server::Admin,
    system::{Options, System},
    upstream::Upstream,
};

/// A running `tail` of a program with this admin listener.
fn tail(program: &str, admin: Admin, arguments: &[&str]) -> Program {
    let mut command = Command::new(built(program));
    command.arg("tail").args(arguments);
    command.arg(format!("--admin=http://{}", admin.0));
    Program::start(&format!("{program} tail"), &mut command)
}

#[tokio::test]
async fn both_ends_show_an_answer_and_a_problem_with_its_hop() {
    let upstream = Upstream::start().await;
    let url = upstream.url();
    // Nothing listens at port 1.
    let table = format!(
        "[[route]]\nname = \"dead\"\npath = \"/dead/*\"\nupstream = \"http://127.0.0.1:1\"\n\n\
         [[route]]\nname = \"all\"\npath = \"/*\"\nupstream = \"{url}\"\n"
    );
    let system = System::with(Options::to("").client_file(&table)).await;
    let at_server = tail(
        "tunnel-server",
        system.server().admin(),
        &["demo-app", "--status=200,5xx", "--method=get"],
    );
    let at_client = tail(
        "tunnel-client",
        system.client().admin(),
        &["--status=502", "--output=json"],
    );
    let mut platform = PlatformClient::http1(&system.entry()).await;
    // Exchanges are shown from the moment at which a tail is open.
    eventually(SOON, "both tails", async || {
        assert_eq!(platform.get("/dead/early").await.status, 502);
        let is_open = |tail: &Program| tail.text().contains("/dead/early");
        (is_open(&at_server) && is_open(&at_client)).then_some(())
    })
    .await;
    assert_eq!(platform.get("/status/200?secret=1").await.status, 200);
    assert_eq!(platform.get("/status/404").await.status, 404);
    assert_eq!(platform.get("/dead/late").await.status, 502);

    let host = system.host_of("demo-app");
    let problem = at_server.wait_for_line("/dead/late", SOON).await;
    for part in [
        "  502  GET ",
        &host,
        "connection_refused at the tunnel-client",
    ] {
        assert!(problem.contains(part), "{problem}");
    }
    let answer = at_server.wait_for_line("/status/200", SOON).await;
    assert!(
        answer.contains("  200  GET ") && answer.ends_with("  whole"),
        "{answer}"
    );
    let text = at_server.text();
    assert!(
        !text.contains("/status/404") && !text.contains("secret"),
        "{text}"
    );

    let problem = at_client.wait_for_line("/dead/late", SOON).await;
    let problem: serde_json::Value = serde_json::from_str(&problem).unwrap();
    assert_eq!(problem["hop"], "tunnel-client");
    assert_eq!(problem["end"], "connection_refused");
    assert_eq!(problem["route"], "dead");
    let text = at_client.text();
    assert!(!text.contains("/status/"), "{text}");
}
