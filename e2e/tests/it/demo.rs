//! `cargo demo`: what it prints works as it is printed, and Ctrl-C ends it.

use std::{path::Path, process::Command};

use e2e::{
    deadline::SOON,
    entry::Entry,
    payload::sha256,
    peers::{
        browser::{Window, visit},
        curl::{Output, curl},
        python::{Step, websocket_client},
    },
    program::{Program, Signal, built, root, run as run_program},
    raw::RawClient,
    upstream::Upstream,
};
use serde_json::json;

/// Starts the demo and waits until it says what to try.
async fn start(flags: &[&str]) -> Program {
    let mut command = Command::new(built("demo"));
    command
        .args(["--public-listen", "127.0.0.1:0"])
        .args(flags)
        .current_dir(root());
    let demo = Program::start("demo", &mut command);
    demo.wait_for_line("Ctrl-C ends the demo", SOON).await;
    demo
}

/// The commands that the demo says to try, without their comments.
fn commands(demo: &Program) -> Vec<String> {
    let lines = demo.log().all();
    let commands = lines
        .iter()
        .filter_map(|line| line.text().strip_prefix("    curl "));
    commands
        .map(|command| command.split('#').next().unwrap().trim().to_owned())
        .collect()
}

async fn run(command: &str, more: &[&str]) -> Output {
    let upload = root().join("Cargo.lock");
    let arguments = command.split(' ').map(|word| match word {
        "Cargo.lock" => upload.to_str().unwrap(),
        word => word,
    });
    curl(arguments.chain(more.iter().copied())).await
}

#[tokio::test]
async fn what_it_prints_works_as_it_is_printed() {
    let mut demo = start(&[]).await;
    let commands = commands(&demo);
    let page = run(&commands[0], &[]).await;
    assert!(page.text().ends_with("</html>\n"), "{page:?}");
    let events = run(&commands[1], &["--max-time", "2.5"]).await;
    let count = events.text().matches("event: tick").count();
    assert!((2..=4).contains(&count), "{events:?}");
    let checksum = run(&commands[2], &[]).await;
    let uploaded = sha256(&std::fs::read(root().join("Cargo.lock")).unwrap());
    assert!(checksum.text().contains(&uploaded), "{checksum:?}");
    for path in ["/ ", "/events", "/checksum"] {
        demo.wait_for_line(path, SOON).await;
    }

    let url = commands[0].as_str();
    let authority = url.trim_start_matches("http://").trim_end_matches('/');
    let (host, port) = authority.split_once(':').unwrap();
    let entry = Entry::plain(([127, 0, 0, 1], port.parse::<u16>().unwrap()).into(), host);
    let report = websocket_client(&entry, "/ws", &[], &[Step::Text("hello")]).await;
    assert_eq!(report[1], json!({"text": "hello"}));

    // Something that never ends by itself is no reason to stay.
    let mut endless = RawClient::connect(&entry).await;
    endless.request("GET", "/events", "", b"").await;
    assert_eq!(endless.head().await.unwrap().status(), 200);
    demo.signal(Signal::INT);
    assert!(demo.wait_exit(SOON).await.success());
}

#[tokio::test]
async fn its_page_works_in_a_browser() {
    let demo = start(&[]).await;
    let url = commands(&demo)[0].clone();
    // As soon as the page has its WebSocket; before, there is nothing to send on.
    let act = "const poll = setInterval(() => {
        if (document.getElementById('ws-state').innerText != 'open') return;
        clearInterval(poll);
        ['fetch-one', 'upload-random', 'ws-send'].forEach(
            id => document.getElementById(id).click());
    }, 20)";
    let shows = |part: &str, text: &str| {
        format!("document.getElementById('{part}-log').innerText.includes('{text}')")
    };
    let expected = [
        shows("fetch", "via: tunnel-"),
        shows("events", "#1"),
        shows("ws", "hello"),
        shows("upload", "the same on both sides"),
    ]
    .join(" && ");
    for (width, scheme) in [(1280, "light"), (400, "dark")] {
        visit(&url, Window { width, scheme }, act, &expected).await;
    }
}

#[tokio::test]
async fn it_can_stand_before_a_service_of_the_users_own() {
    let upstream = Upstream::start().await;
    let demo = start(&["--upstream", &upstream.url()]).await;
    for command in commands(&demo).iter().take(3) {
        assert_eq!(run(command, &[]).await.status(), 200, "curl {command}");
    }
    upstream.wait_request("/").await;
}

/// It goes on with requests while a node is dead, and leaves no etcd behind.
#[tokio::test]
async fn it_shows_a_node_that_dies_and_comes_back() {
    let mut demo = start(&["--nodes", "3"]).await;
    for line in ["node n1 is killed", "requests, ", "node n1 is back"] {
        let line = demo.next_line(line).await;
        let is_good = !line.contains("requests, ") || line.contains(" 0 failed");
        assert!(is_good, "{line}");
    }
    let etcd = children(demo.id());
    assert_eq!(etcd.len(), 1);
    demo.signal(Signal::INT);
    assert!(demo.wait_exit(SOON).await.success());
    assert!(!Path::new(&format!("/proc/{}", etcd[0])).exists());
}

/// The processes that this one has started.
fn children(parent: u32) -> Vec<String> {
    let file = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(file).unwrap();
    children.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn it_says_so_where_there_is_no_etcd() {
    let mut command = Command::new(built("demo"));
    command.args(["--nodes", "3"]).env("PATH", "");
    let ended = run_program("demo", command, SOON).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("no `etcd` is on PATH"), "{}", ended.err);
}
