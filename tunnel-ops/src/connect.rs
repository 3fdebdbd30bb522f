//! Connections that are dialled: TCP to the first of several addresses that accepts, then TLS.
//!
//! ```text
//!   addresses ─▶ race ─▶ TCP with its options ─▶ tls
//!   └───────── step: each within its limit ────────┘
//! ```
//!
//! Names are resolved by the caller.

mod race;
pub mod step;
pub mod tls;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

pub use self::race::{AllFailed, Attempt, Connected, order};

/// Keepalive probes without an answer after which the peer is lost.
const KEEPALIVE_RETRIES: u32 = 3;

/// When the kernel sends keepalive probes; after three without an answer the peer is lost.
#[derive(Debug, Clone, Copy)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between two probes.
    pub interval: Duration,
}

/// Connects to the first of these addresses that accepts; the result also has the addresses that failed before it.
///
/// # Errors
/// An [`AllFailed`] when none accepts within the limit.
pub async fn connect(
    addresses: &[SocketAddr],
    limit: Duration,
    keepalive: Keepalive,
) -> io::Result<Connected<TcpStream>> {
    let connected = race::race(addresses, limit, TcpStream::connect).await?;
    set_options(&connected.stream, keepalive)?;
    Ok(connected)
}

fn set_options(stream: &TcpStream, keepalive: Keepalive) -> io::Result<()> {
    // Writes are whole messages already; waiting for more would only delay them.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let probes = TcpKeepalive::new()
        .with_time(keepalive.idle)
        .with_interval(keepalive.interval);
    socket.set_tcp_keepalive(&probes.with_retries(KEEPALIVE_RETRIES))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use tokio::net::TcpListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);
    const KEEPALIVE: Keepalive = Keepalive {
        idle: LIMIT,
        interval: LIMIT,
    };

    /// An address without a listener.
    async fn refusing() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap()
    }

    #[tokio::test]
    async fn the_next_address_is_tried_when_one_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = [refusing().await, listener.local_addr().unwrap()];
        let connected = connect(&addresses, LIMIT, KEEPALIVE).await.unwrap();
        let stream = connected.stream;
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
        let failed: Vec<_> = connected.failed.iter().map(|tried| tried.address).collect();
        assert_eq!(
            (connected.address, failed),
            (addresses[1], vec![addresses[0]])
        );
        assert!(stream.nodelay().unwrap());
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
    }

    #[tokio::test]
    async fn a_family_that_nobody_listens_on_does_not_keep_the_other_from_being_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let both = [
            ([127, 0, 0, 1], port).into(),
            (Ipv6Addr::LOCALHOST, port).into(),
        ];
        let addresses = order(both);
        assert!(addresses[0].is_ipv6());
        let connected = connect(&addresses, LIMIT, KEEPALIVE).await.unwrap();
        assert_eq!(connected.stream.peer_addr().unwrap(), both[0]);
    }

    #[tokio::test]
    async fn when_all_refuse_each_is_named() {
        let addresses = [refusing().await, refusing().await];
        let error = connect(&addresses, LIMIT, KEEPALIVE).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let text = error.to_string();
        for address in addresses {
            assert!(text.contains(&format!("{address}: ")), "{text}");
        }
    }
}
