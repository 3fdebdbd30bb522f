//! From addresses to a TCP connection, with the options that every connection of a client has.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Silence after which the kernel asks whether the peer is still there, and then how often.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));
/// Questions without an answer after which the peer is gone: half a minute of silence in all.
const KEEPALIVE_RETRIES: u32 = 3;

/// Tries the addresses one after another, each for its share of the limit.
///
/// # Errors
/// That of the last address.
pub(crate) async fn connect(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let share = limit / u32::try_from(addresses.len().max(1)).unwrap_or(1);
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                set_options(&stream)?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    // Whatever is written is a whole piece already; waiting for more would only delay it.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let (idle, interval) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval);
    socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_RETRIES))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

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
        let stream = connect(&addresses, Duration::from_secs(5)).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
        assert!(stream.nodelay().unwrap());
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(
            socket.tcp_user_timeout().unwrap(),
            None,
            "an upstream may take nothing for a while"
        );
    }

    #[tokio::test]
    async fn the_last_refusal_is_the_error() {
        let error = connect(&[refusing().await], Duration::from_secs(5))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
