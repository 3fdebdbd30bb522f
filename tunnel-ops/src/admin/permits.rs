//! How many connections the admin listener serves, in all and of one address, and which one is closed when there
//! are no more permits.
//!
//! A connection whose whole request has not arrived may be closed for a newcomer; one whose request has is
//! answered. So silent connections never keep a probe out.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::evicting::{EvictingPermit, EvictingPermits, Holders};

/// Connections served at once: many times what scrapers and probes need, a few MiB at most. More wait in
/// the kernel's queue.
pub(super) const MAX_CONNECTIONS: usize = 256;

/// Of these, those of one address: a scraper, a probe and a few people at once. Connections from this machine may
/// use all.
pub(super) const MAX_OF_ADDRESS: usize = 8;

/// The permits of the listener's connections. A permit is secure once the connection's request is there.
#[derive(Default)]
pub(super) struct ConnectionPermits(Arc<EvictingPermits<IpAddr>>);

pub(super) type ConnectionPermit = EvictingPermit<IpAddr>;

impl ConnectionPermits {
    /// A permit for a connection from this address. Waits while all are secure; `None` when all those of the
    /// address are.
    pub(super) async fn enter(&self, peer: SocketAddr) -> Option<ConnectionPermit> {
        let address = peer.ip().to_canonical();
        loop {
            let mut is_address_full = false;
            let permit = self.0.enter(address, |holders| {
                is_address_full = !address.is_loopback()
                    && !make_room(holders, MAX_OF_ADDRESS, |holder| *holder == address);
                !is_address_full && make_room(holders, MAX_CONNECTIONS, |_| true)
            });
            if permit.is_some() || is_address_full {
                return permit;
            }
            self.0.returned().await;
        }
    }
}

/// Whether one more has room where `most` such may be; evicts the oldest of them if need be.
fn make_room(
    holders: &mut Holders<IpAddr>,
    most: usize,
    is_such: impl Fn(&IpAddr) -> bool,
) -> bool {
    let count = holders.keys().filter(|address| is_such(address)).count();
    count < most || holders.evict_oldest(is_such)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 1)
    }

    /// An address for each number.
    fn nth(number: usize) -> SocketAddr {
        at(&format!("10.0.{}.{}", number / 200, number % 200))
    }

    fn is_done(future: impl Future) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        pin!(future).as_mut().poll(&mut cx).is_ready()
    }

    fn is_evicted(permit: &ConnectionPermit) -> bool {
        is_done(permit.evicted())
    }

    #[tokio::test]
    async fn the_oldest_that_has_not_asked_goes_when_all_are_taken() {
        let permits = ConnectionPermits::default();
        let mut taken = Vec::new();
        for number in 0..MAX_CONNECTIONS {
            taken.push(permits.enter(nth(number)).await.unwrap());
        }
        taken[0].secure();
        let newcomer = permits.enter(at("192.0.2.1")).await.unwrap();
        assert!(!is_evicted(&taken[0]) && is_evicted(&taken[1]));
        assert!(!is_evicted(&taken[2]) && !is_evicted(&newcomer));
        assert_eq!(permits.0.held(), MAX_CONNECTIONS);
        // What was evicted leaves later, and does not release the permit of another connection.
        drop(taken.remove(1));
        assert_eq!(permits.0.held(), MAX_CONNECTIONS);
    }

    #[tokio::test]
    async fn who_is_being_answered_is_waited_for() {
        let permits = ConnectionPermits::default();
        let mut taken = Vec::new();
        for number in 0..MAX_CONNECTIONS {
            taken.push(permits.enter(nth(number)).await.unwrap());
            taken[number].secure();
        }
        let mut next = pin!(permits.enter(at("192.0.2.1")));
        assert!(!is_done(next.as_mut()));
        taken.pop();
        assert!(next.await.is_some());
        assert!(taken.iter().all(|permit| !is_evicted(permit)));
    }

    #[tokio::test]
    async fn an_address_has_its_own_bound() {
        let permits = ConnectionPermits::default();
        let mut taken = Vec::new();
        for _ in 0..MAX_OF_ADDRESS {
            taken.push(permits.enter(at("192.0.2.1")).await.unwrap());
        }
        let other = permits.enter(at("192.0.2.2")).await.unwrap();
        // The same address, written in the other family.
        taken.push(permits.enter(at("::ffff:192.0.2.1")).await.unwrap());
        assert!(is_evicted(&taken[0]) && !is_evicted(&other));
        taken.remove(0);
        taken.iter().for_each(ConnectionPermit::secure);
        assert!(permits.enter(at("192.0.2.1")).await.is_none());
        assert!(permits.enter(at("192.0.2.2")).await.is_some());
        taken.pop();
        assert!(permits.enter(at("192.0.2.1")).await.is_some());
    }

    #[tokio::test]
    async fn this_machine_may_have_all() {
        let permits = ConnectionPermits::default();
        let mut taken = Vec::new();
        for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            for _ in 0..=MAX_OF_ADDRESS {
                taken.push(permits.enter(at(address)).await.unwrap());
            }
        }
        assert!(taken.iter().all(|permit| !is_evicted(permit)));
    }

    #[tokio::test]
    async fn a_permit_is_free_again_however_it_ends() {
        let permits = ConnectionPermits::default();
        let permit = permits.enter(at("192.0.2.1")).await.unwrap();
        permit.secure();
        drop(permit);
        drop(permits.enter(at("192.0.2.1")).await);
        assert_eq!(permits.0.held(), 0);
    }
}
