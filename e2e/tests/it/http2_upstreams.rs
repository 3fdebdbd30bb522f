//! Upstreams over HTTP/2 that others wrote, with requests for which some of them end connections: nobody else notices.

use std::{net::SocketAddr, process::Command, time::Duration};

use e2e::{
    http1::Head,
    peers::nginx::Nginx,
    program::{Program, root},
    raw::RawClient,
    system::System,
};
use tokio::task::JoinSet;

/// How long Node may take to start.
const START: Duration = Duration::from_secs(60);

/// More requests than wear a connection to an upstream out when they are given up.
const CANCELS: usize = 120;

/// Asks, and reads the head of the answer.
async fn begun(client: &mut RawClient, target: &str) -> Head {
    client.request("GET", target, "", b"").await;
    let head = client.head().await.unwrap();
    assert_eq!(head.status(), 200, "{target}");
    head
}

/// Node's origin with this module of HTTP, and its address.
async fn origin(module: &str) -> (Program, SocketAddr) {
    let mut node = Command::new("node");
    let script = root().join("e2e/peers/http2_origin.js");
    let node = Program::start("node", node.arg(script).arg(module));
    let line = node.wait_for_line("listening on", START).await;
    let port: u16 = line.rsplit(' ').next().unwrap().parse().unwrap();
    (node, ([127, 0, 0, 1], port).into())
}

/// Has long exchanges at an upstream while others ask what it may end a connection for. `takes_all` says whether it answers
/// that by 200.
async fn check(upstream: SocketAddr, takes_all: bool) {
    let system = System::start(&format!("h2c://{upstream}")).await;
    let entry = system.entry();
    let mut watching = Vec::new();
    for _ in 0..5 {
        let mut client = RawClient::connect(&entry).await;
        let head = begun(&mut client, "/watch").await;
        watching.push((client, head));
    }
    let mut client = RawClient::connect(&entry).await;
    let large = format!("Cookie: {}\r\n", "a".repeat(20_000));
    let response = client.exchange("GET", "/", &large).await;
    assert_eq!(response.head.status() == 200, takes_all);
    let mut client = RawClient::connect(&entry).await;
    let host = client.host_line();
    let with_trailer = format!(
        "POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
         2\r\nhi\r\n0\r\nx-sum: 1\r\n\r\n"
    );
    client.send(with_trailer).await;
    let status = client.response_to("POST").await.head.status();
    assert_eq!(status == 200, takes_all);
    let mut cancels = JoinSet::new();
    for _ in 0..CANCELS {
        let entry = entry.clone();
        cancels.spawn(async move {
            let mut client = RawClient::connect(&entry).await;
            begun(&mut client, "/slow").await;
        });
    }
    cancels.join_all().await;
    let mut client = RawClient::connect(&entry).await;
    let response = client.exchange("GET", "/finish", "").await;
    assert_eq!(response.head.status(), 200);
    for (mut client, head) in watching {
        let content = client.content(head.response_framing("GET")).await;
        assert_eq!(content.bytes, "begun whole");
    }
}

#[tokio::test]
async fn node_cuts_nobody_for_what_others_ask_and_give_up() {
    let (_node, address) = origin("node:http2").await;
    check(address, true).await;
}

/// nginx ends a connection for a large head, and for trailers.
#[tokio::test]
async fn nginx_cuts_nobody_for_what_others_ask_and_give_up() {
    let (_node, address) = origin("node:http").await;
    let nginx = Nginx::http2(address).await;
    check(nginx.address(), false).await;
}
