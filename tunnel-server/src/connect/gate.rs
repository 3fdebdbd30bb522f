//! The gate before the handshakes of tunnel clients: so many at once, a short queue, and then away.
//!
//! When a server comes back, all its clients dial at once. Without a gate their handshakes would all
//! go on side by side, and none would be done before most had given up. In: a client whose first
//! bytes are there. Out: a pass, held until its request is answered; or the word that there is no
//! room, with a time to come back that differs from client to client.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::public::places::network;

/// Shortest time after which a client that was sent away comes back.
const AWAY: Duration = Duration::from_secs(1);

/// How much later than the one before each further client comes back: about what the handshakes of
/// one core take.
const AWAY_EACH: Duration = Duration::from_millis(5);

/// Longest such time.
const AWAY_MAX: Duration = Duration::from_secs(60);

/// The gate.
pub(crate) struct Gate {
    handshakes: Arc<Semaphore>,
    /// Handshakes and waiting clients together.
    places: usize,
    /// Handshakes at once of one address: half of all, so that there is always room for others.
    per_address: usize,
    /// For those that are sent away, which takes a handshake too.
    refusals: Arc<Semaphore>,
    inside: Mutex<Inside>,
    /// Clients sent away since there was room without waiting.
    sent_away: AtomicUsize,
}

#[derive(Default)]
struct Inside {
    in_all: usize,
    by_address: HashMap<IpAddr, FromOne>,
}

/// The clients of one address.
struct FromOne {
    inside: usize,
    /// Handshakes that they may have at once.
    handshakes: Arc<Semaphore>,
}

/// A client's place inside, whether it waits or has its pass.
struct Place {
    gate: Arc<Gate>,
    address: IpAddr,
}

/// A client's way through the gate, which is free for the next when this is dropped.
pub(crate) struct Pass {
    _handshake: OwnedSemaphorePermit,
    _of_address: OwnedSemaphorePermit,
    _place: Place,
}

/// There is no room.
pub(crate) enum NoRoom {
    /// The client can be told when to come back, while this is held.
    Tell(OwnedSemaphorePermit, Duration),
    /// Not even that: its connection is to be closed.
    Close,
}

impl Gate {
    /// A gate for so many handshakes at once and so many clients that wait.
    pub(crate) fn new(handshakes: usize, queue: usize) -> Arc<Self> {
        Arc::new(Self {
            handshakes: Arc::new(Semaphore::new(handshakes)),
            places: handshakes + queue,
            per_address: handshakes.div_ceil(2),
            refusals: Arc::new(Semaphore::new(handshakes)),
            inside: Mutex::default(),
            sent_away: AtomicUsize::new(0),
        })
    }

    /// Lets a client through, when it is its turn.
    ///
    /// # Errors
    /// When as many as may wait do, or half of all are from its address.
    pub(crate) async fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Pass, NoRoom> {
        let (place, of_address) = self
            .place(network(address))
            .ok_or_else(|| self.send_away())?;
        // Those of one address wait for each other first, and so for nobody else's place. Neither
        // semaphore is ever closed.
        let Ok(of_address) = of_address.acquire_owned().await else {
            return Err(NoRoom::Close);
        };
        let handshake = match Arc::clone(&self.handshakes).try_acquire_owned() {
            Ok(handshake) => {
                self.sent_away.store(0, Ordering::Relaxed);
                handshake
            }
            Err(_) => match Arc::clone(&self.handshakes).acquire_owned().await {
                Ok(handshake) => handshake,
                Err(_) => return Err(NoRoom::Close),
            },
        };
        Ok(Pass {
            _handshake: handshake,
            _of_address: of_address,
            _place: place,
        })
    }

    /// Addresses that have clients inside.
    pub(crate) fn addresses(&self) -> usize {
        self.inside.lock().by_address.len()
    }

    fn place(self: &Arc<Self>, address: IpAddr) -> Option<(Place, Arc<Semaphore>)> {
        let mut inside = self.inside.lock();
        if inside.in_all >= self.places {
            return None;
        }
        // So that one address cannot keep all others out.
        let from_here = inside.by_address.entry(address).or_insert_with(|| FromOne {
            inside: 0,
            handshakes: Arc::new(Semaphore::new(self.per_address)),
        });
        if from_here.inside >= self.places.div_ceil(2) {
            return None;
        }
        from_here.inside += 1;
        let handshakes = from_here.handshakes.clone();
        inside.in_all += 1;
        let place = Place {
            gate: self.clone(),
            address,
        };
        Some((place, handshakes))
    }

    /// What there is for a client that cannot come in, or has waited for too long.
    pub(crate) fn send_away(&self) -> NoRoom {
        let before = self.sent_away.fetch_add(1, Ordering::Relaxed);
        let each = u32::try_from(before).unwrap_or(u32::MAX);
        let later = AWAY_EACH.saturating_mul(each);
        match Arc::clone(&self.refusals).try_acquire_owned() {
            Ok(telling) => NoRoom::Tell(telling, (AWAY + later).min(AWAY_MAX)),
            Err(_) => NoRoom::Close,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inside = self.gate.inside.lock();
        inside.in_all -= 1;
        if let Some(from_here) = inside.by_address.get_mut(&self.address) {
            from_here.inside -= 1;
            if from_here.inside == 0 {
                inside.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn address(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    async fn pass(gate: &Arc<Gate>, number: u8) -> Pass {
        match gate.enter(address(number)).await {
            Ok(pass) => pass,
            Err(_) => panic!("no room"),
        }
    }

    async fn away(gate: &Arc<Gate>, number: u8) -> Option<Duration> {
        match gate.enter(address(number)).await {
            Ok(_) => panic!("room"),
            Err(NoRoom::Tell(_, after)) => Some(after),
            Err(NoRoom::Close) => None,
        }
    }

    #[tokio::test]
    async fn so_many_pass_some_wait_and_the_rest_is_sent_away() {
        let gate = Gate::new(1, 1);
        let first = pass(&gate, 1).await;
        let mut second = pin!(pass(&gate, 2));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert_eq!(away(&gate, 3).await, Some(AWAY));
        assert_eq!(away(&gate, 3).await, Some(AWAY + AWAY_EACH), "spread");
        drop(first);
        assert!(matches!(second.as_mut().poll(&mut cx), Poll::Ready(_)));
    }

    #[tokio::test]
    async fn one_address_leaves_room_for_others() {
        let gate = Gate::new(2, 2);
        let _held = pass(&gate, 1).await;
        let mut second = pin!(gate.enter(address(1)));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(
            second.as_mut().poll(&mut cx).is_pending(),
            "waits for its own"
        );
        assert!(away(&gate, 1).await.is_some(), "half of all are its");
        let other = pass(&gate, 2).await;
        drop(other);
        assert!(second.as_mut().poll(&mut cx).is_pending(), "still");
    }

    #[tokio::test]
    async fn who_cannot_even_be_told_is_closed() {
        let gate = Gate::new(1, 0);
        let _held = pass(&gate, 1).await;
        let Err(NoRoom::Tell(telling, _)) = gate.enter(address(2)).await else {
            panic!("expected to be told")
        };
        assert_eq!(away(&gate, 2).await, None);
        drop(telling);
        assert!(away(&gate, 2).await.is_some());
    }

    #[tokio::test]
    async fn places_come_back_whatever_happens() {
        let gate = Gate::new(1, 1);
        let first = pass(&gate, 1).await;
        {
            let mut given_up = pin!(gate.enter(address(2)));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(given_up.as_mut().poll(&mut cx).is_pending());
        }
        drop(first);
        assert!(gate.inside.lock().by_address.is_empty());
        assert_eq!(gate.inside.lock().in_all, 0);
    }
}
