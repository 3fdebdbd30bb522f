//! Requests that the demo sends through the tunnel itself.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Time-out of the first request through the tunnel.
const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// Sends a request through the tunnel, which proves that the tunnel is up.
///
/// # Errors
/// When no response of the upstream comes in time.
pub(crate) async fn first_request(mut public: SocketAddr, host: &str) -> anyhow::Result<()> {
    if public.ip().is_unspecified() {
        public.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let answer = timeout(FIRST_REQUEST, ask(public, host, "HEAD /")).await;
    let answer = answer.context("the tunnel did not come up in time")??;
    if !is_from_upstream(&answer) {
        let status = answer
            .lines()
            .next()
            .unwrap_or("a response without a status");
        bail!("the tunnel did not come up: a request through it got {status}");
    }
    Ok(())
}

/// Whether a response is one of the upstream. Any status is a success, since the user's own service may be down; only a
/// response of the tunnel server itself means that the request did not reach the client.
pub(crate) fn is_from_upstream(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 ") && !answer.contains("proxy-status: tunnel-server;")
}

/// Sends a request on a connection of its own and reads the response to its end.
///
/// # Errors
/// When the connection is refused or lost.
pub(crate) async fn ask(address: SocketAddr, host: &str, request: &str) -> io::Result<String> {
    let request = format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    Ok(answer)
}
