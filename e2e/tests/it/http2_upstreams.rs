//! Upstreams over HTTP/2 that others wrote, with requests for which some of them end connections: nobody else notices.

use std::{process::Command, time::Duration};

use e2e::{
    http1::Head,
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

#[tokio::test]
async fn requests_that_upstreams_fear_and_cancels_cut_nobody_else_at_node() {
    let mut node = Command::new("node");
    node.arg(root().join("e2e/peers/http2_origin.js"));
    let node = Program::start("node", &mut node);
    let line = node.wait_for_line("listening on", START).await;
    let port = line.rsplit(' ').next().unwrap();
    let system = System::start(&format!("h2c://127.0.0.1:{port}")).await;
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
    assert_eq!(response.head.status(), 200);
    let host = client.host_line();
    let with_trailer = format!(
        "POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
         2\r\nhi\r\n0\r\nx-sum: 1\r\n\r\n"
    );
    client.send(with_trailer).await;
    assert_eq!(client.response_to("POST").await.head.status(), 200);
    let mut cancels = JoinSet::new();
    for _ in 0..CANCELS {
        let entry = entry.clone();
        cancels.spawn(async move {
            let mut client = RawClient::connect(&entry).await;
            begun(&mut client, "/slow").await;
        });
    }
    cancels.join_all().await;
    assert_eq!(
        client.exchange("GET", "/finish", "").await.head.status(),
        200
    );
    for (mut client, head) in watching {
        let content = client.content(head.response_framing("GET")).await;
        assert_eq!(content.bytes, "begun whole");
    }
}
