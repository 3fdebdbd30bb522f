//! The network path to the server: whether it exists, and whether it has changed.
//!
//! Read from the kernel's routing table by connecting a UDP socket, which sends nothing. A laptop that wakes up, or a
//! cable that is plugged in, is detected within a second and ends the wait for the next dial.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How often the path is read.
const INTERVAL: Duration = Duration::from_secs(1);

/// The destination while the server's address is unknown: an address for documentation (RFC 5737), which takes the
/// default route.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

/// The local address of connections to the server; `None` without a route.
pub(crate) type Path = Option<IpAddr>;

/// The current path to the server, or to [`ANYWHERE`].
pub(crate) fn current(server: Option<SocketAddr>) -> Path {
    let target = server.unwrap_or(ANYWHERE);
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(target).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// Waits for `limit`, or until the network path has changed to a usable one. Returns whether it has changed.
///
/// The first read is after [`INTERVAL`], so that a path that comes and goes causes at most one dial per interval.
pub(crate) async fn wait(limit: Duration, read: impl Fn() -> Path) -> bool {
    let end = Instant::now() + limit;
    let mut known = read();
    let mut next = Instant::now() + INTERVAL;
    while next < end {
        sleep_until(next).await;
        next += INTERVAL;
        let now = read();
        if now.is_some() && now != known {
            tracing::info!("the network has changed, dialling now");
            return true;
        }
        known = now;
    }
    sleep_until(end).await;
    false
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn this_machine_is_always_reached() {
        let own: SocketAddr = "127.0.0.1:9".parse().unwrap();
        assert_eq!(current(Some(own)), Some(own.ip()));
    }

    /// How long a wait of a minute lasts when these paths are read, the last for good.
    async fn waited(paths: &[Path]) -> Duration {
        let reads = Cell::new(0);
        let started = Instant::now();
        let limit = Duration::from_secs(60);
        let has_changed = wait(limit, || {
            let read = reads.replace(reads.get() + 1);
            paths[read.min(paths.len() - 1)]
        })
        .await;
        assert_eq!(has_changed, started.elapsed() < limit);
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_path_that_returns_or_changes_ends_the_wait() {
        let (one, other) = (Some([10, 0, 0, 1].into()), Some([10, 0, 0, 2].into()));
        assert_eq!(waited(&[one]).await, Duration::from_secs(60));
        assert_eq!(
            waited(&[None, None, None, one]).await,
            Duration::from_secs(3)
        );
        assert_eq!(waited(&[one, other]).await, Duration::from_secs(1));
        assert_eq!(
            waited(&[one, None, None, one]).await,
            Duration::from_secs(3)
        );
        assert_eq!(
            waited(&[one, None]).await,
            Duration::from_secs(60),
            "lost and gone"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_wait_is_not_looked_into() {
        let started = Instant::now();
        wait(Duration::from_millis(300), || None).await;
        assert_eq!(started.elapsed(), Duration::from_millis(300));
    }
}
