//! From addresses to a TCP connection, with the options that every connection of a client has, and
//! those of connections to upstreams.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use super::race::{Won, race};

/// Silence on a connection to the server after which the kernel sends a keepalive probe, and the
/// time between two probes: with [`KEEPALIVE_RETRIES`] a lost peer is found after 30 s.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));
/// As [`KEEPALIVE`], to upstreams: 20 s, the time for which bytes may stay unacknowledged there. Where
/// that limit is set, the kernel goes by it instead of the number of probes, so that longer intervals
/// would end a connection after one lost probe.
const UPSTREAM_KEEPALIVE: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(4));
/// Probes without an answer after which the peer is lost.
const KEEPALIVE_RETRIES: u32 = 3;

/// A connection to an upstream: to the first of these addresses that takes one, see
/// [`super::race`].
///
/// # Errors
/// When none does: which ones, and why, as an [`super::race::AllFailed`].
pub(crate) async fn connect(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let won = race(addresses, limit, TcpStream::connect).await?;
    set_options(&won.made, UPSTREAM_KEEPALIVE)?;
    Ok(won.made)
}

/// A connection towards the server, and the addresses that were tried in vain before.
pub(super) async fn connect_first(
    addresses: &[SocketAddr],
    limit: Duration,
) -> io::Result<Won<TcpStream>> {
    let won = race(addresses, limit, TcpStream::connect).await?;
    set_options(&won.made, KEEPALIVE)?;
    Ok(won)
}

fn set_options(stream: &TcpStream, keepalive: (Duration, Duration)) -> io::Result<()> {
    // Whatever is written is a whole piece already; waiting for more would only delay it.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let (idle, interval) = keepalive;
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval);
    socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_RETRIES))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use tokio::net::TcpListener;

    use super::super::race::order;
    use super::*;

    /// An address that nobody listens on.
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
        let won = connect_first(&addresses, Duration::from_secs(5))
            .await
            .unwrap();
        let stream = won.made;
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
        let failed: Vec<_> = won.failed.iter().map(|tried| tried.address).collect();
        assert_eq!((won.address, failed), (addresses[1], vec![addresses[0]]));
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
        let stream = connect(&addresses, Duration::from_secs(5)).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), both[0]);
    }

    #[tokio::test]
    async fn when_all_refuse_each_is_named() {
        let addresses = [refusing().await, refusing().await];
        let error = connect(&addresses, Duration::from_secs(5))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let text = error.to_string();
        for address in addresses {
            assert!(text.contains(&format!("{address}: ")), "{text}");
        }
    }
}
