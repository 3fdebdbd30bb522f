//! The places of the admin listener's connections: how many there are, how many one address gets, and
//! who has to go when there are no more.
//!
//! ```text
//!   accepted ──take──▶ asking ──asked──▶ answered        in: addresses; out: a place, or none
//!                        │ the oldest, when a place is needed
//!                        ▼
//!                      evicted
//! ```
//!
//! Whoever has not sent his whole request yet may have to go for a newcomer; whoever has is answered. So a
//! crowd that connects and says nothing never keeps a probe out. Nothing here reads or writes: the
//! connection itself ends when [`Place::evicted`] says so.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Connections served at once: many times what scrapers and probes need, a few MiB at most. More wait in
/// the kernel's queue.
pub(super) const MAX_CONNECTIONS: usize = 256;

/// Of these, those of one address: a scraper, a probe and a few people at once. This machine's own may
/// have all.
pub(super) const MAX_OF_ADDRESS: usize = 8;

/// All places, taken and free.
#[derive(Default)]
pub(super) struct Places {
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    /// The number of the next place.
    next: u64,
    /// In the order in which they were taken.
    by_number: BTreeMap<u64, Taker>,
}

struct Taker {
    address: IpAddr,
    /// Until he has sent his whole request: how he is told to go.
    asking: Option<Arc<Notify>>,
}

/// A connection's place, free again when this is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    eviction: Arc<Notify>,
}

impl Places {
    /// A place for a connection from this address; waits while everybody who has one is being answered.
    /// `None` when that is so of all that this address may have.
    pub(super) async fn take(self: &Arc<Self>, peer: SocketAddr) -> Option<Place> {
        let address = peer.ip().to_canonical();
        loop {
            {
                let mut taken = self.taken.lock();
                if !address.is_loopback() && !taken.make_room(MAX_OF_ADDRESS, Some(address)) {
                    return None;
                }
                if taken.make_room(MAX_CONNECTIONS, None) {
                    return Some(self.place(&mut taken, address));
                }
            }
            // Only whoever accepts waits here; a place that is freed before he does is remembered.
            self.freed.notified().await;
        }
    }

    fn place(self: &Arc<Self>, taken: &mut Taken, address: IpAddr) -> Place {
        let number = taken.next;
        taken.next += 1;
        let eviction = Arc::new(Notify::new());
        let asking = Some(Arc::clone(&eviction));
        taken.by_number.insert(number, Taker { address, asking });
        Place {
            places: Arc::clone(self),
            number,
            eviction,
        }
    }
}

impl Taken {
    /// Whether there is room for one more where `most` may be, of this address or of all; if need be, the
    /// oldest of those that have not asked yet has to go.
    fn make_room(&mut self, most: usize, of: Option<IpAddr>) -> bool {
        let is_counted = |taker: &Taker| of.is_none_or(|address| taker.address == address);
        let counted = self.by_number.iter().filter(|(_, taker)| is_counted(taker));
        if counted.clone().count() < most {
            return true;
        }
        let mut asking =
            counted.filter_map(|(number, taker)| Some((*number, taker.asking.as_ref()?)));
        let Some((number, eviction)) = asking.next() else {
            return false;
        };
        eviction.notify_one();
        self.by_number.remove(&number);
        true
    }
}

impl Place {
    /// The whole request is here: from now on the place is safe.
    pub(super) fn asked(&self) {
        if let Some(taker) = self.places.taken.lock().by_number.get_mut(&self.number) {
            taker.asking = None;
        }
    }

    /// Gives the place back, and the connection goes on without: it has a place elsewhere.
    pub(super) fn leave(&self) {
        let left = self.places.taken.lock().by_number.remove(&self.number);
        // Who was evicted has left his place to another already.
        if left.is_some() {
            self.places.freed.notify_one();
        }
    }

    /// Resolves when the connection has to go.
    pub(super) async fn evicted(&self) {
        self.eviction.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
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

    fn is_evicted(place: &Place) -> bool {
        is_done(place.evicted())
    }

    #[tokio::test]
    async fn the_oldest_that_has_not_asked_goes_when_all_are_taken() {
        let places = Arc::<Places>::default();
        let mut taken = Vec::new();
        for number in 0..MAX_CONNECTIONS {
            taken.push(places.take(nth(number)).await.unwrap());
        }
        taken[0].asked();
        let newcomer = places.take(at("192.0.2.1")).await.unwrap();
        assert!(!is_evicted(&taken[0]) && is_evicted(&taken[1]));
        assert!(!is_evicted(&taken[2]) && !is_evicted(&newcomer));
        assert_eq!(places.taken.lock().by_number.len(), MAX_CONNECTIONS);
        // What was evicted leaves later, and takes nobody else's place with it.
        drop(taken.remove(1));
        assert_eq!(places.taken.lock().by_number.len(), MAX_CONNECTIONS);
    }

    #[tokio::test]
    async fn who_is_being_answered_is_waited_for() {
        let places = Arc::<Places>::default();
        let mut taken = Vec::new();
        for number in 0..MAX_CONNECTIONS {
            taken.push(places.take(nth(number)).await.unwrap());
            taken[number].asked();
        }
        let mut next = pin!(places.take(at("192.0.2.1")));
        assert!(!is_done(next.as_mut()));
        taken.pop();
        assert!(next.await.is_some());
        assert!(taken.iter().all(|place| !is_evicted(place)));
    }

    #[tokio::test]
    async fn an_address_has_its_own_bound() {
        let places = Arc::<Places>::default();
        let mut taken = Vec::new();
        for _ in 0..MAX_OF_ADDRESS {
            taken.push(places.take(at("192.0.2.1")).await.unwrap());
        }
        let other = places.take(at("192.0.2.2")).await.unwrap();
        // The same address, written in the other family.
        taken.push(places.take(at("::ffff:192.0.2.1")).await.unwrap());
        assert!(is_evicted(&taken[0]) && !is_evicted(&other));
        taken.remove(0);
        taken.iter().for_each(Place::asked);
        assert!(places.take(at("192.0.2.1")).await.is_none());
        assert!(places.take(at("192.0.2.2")).await.is_some());
        taken.pop();
        assert!(places.take(at("192.0.2.1")).await.is_some());
    }

    #[tokio::test]
    async fn this_machine_may_have_all() {
        let places = Arc::<Places>::default();
        let mut taken = Vec::new();
        for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            for _ in 0..=MAX_OF_ADDRESS {
                taken.push(places.take(at(address)).await.unwrap());
            }
        }
        assert!(taken.iter().all(|place| !is_evicted(place)));
    }

    #[tokio::test]
    async fn a_place_is_free_again_however_it_ends() {
        let places = Arc::<Places>::default();
        let place = places.take(at("192.0.2.1")).await.unwrap();
        place.asked();
        drop(place);
        drop(places.take(at("192.0.2.1")).await);
        assert!(places.taken.lock().by_number.is_empty());
    }
}
