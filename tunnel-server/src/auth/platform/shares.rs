//! Shares of the open queries to the platform, for clients whose tokens were never approved.
//!
//! The platform may take long to answer about a token, which its sender can choose. The clients of one network wait for
//! each other, so that they never use up what there is for all.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The share of each network.
pub(super) struct Shares {
    most: usize,
    /// With the number of clients that have or await a permit. An entry is removed with the last of them.
    networks: Mutex<HashMap<IpAddr, (usize, Arc<Semaphore>)>>,
}

/// A client's place in the share of its network, until it is dropped.
pub(super) struct Share<'a> {
    shares: &'a Shares,
    network: IpAddr,
    permits: Arc<Semaphore>,
}

impl Shares {
    /// Half of `all` permits for each network, at least one.
    pub(super) fn new(all: usize) -> Self {
        Self {
            most: (all / 2).max(1),
            networks: Mutex::default(),
        }
    }

    pub(super) fn join(&self, network: IpAddr) -> Share<'_> {
        let mut networks = self.networks.lock();
        let entry = networks.entry(network);
        let (clients, permits) = entry.or_insert_with(|| (0, Arc::new(Semaphore::new(self.most))));
        *clients += 1;
        Share {
            shares: self,
            network,
            permits: Arc::clone(permits),
        }
    }
}

impl Share<'_> {
    /// Waits for a permit; `None` never happens, since the semaphore is not closed.
    pub(super) async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.acquire().await.ok()
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut networks = self.shares.networks.lock();
        if let Entry::Occupied(mut entry) = networks.entry(self.network) {
            let (clients, _) = entry.get_mut();
            *clients -= 1;
            if *clients == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_network_has_its_share_and_leaves_the_rest_to_others() {
        let shares = Shares::new(4);
        let (one, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let own: Vec<_> = (0..3).map(|_| shares.join(one)).collect();
        let permits: Vec<_> = own.iter().map(|it| it.permit().now_or_never()).collect();
        assert!(permits[0].is_some() && permits[1].is_some() && permits[2].is_none());
        let of_other = shares.join(other);
        assert!(of_other.permit().now_or_never().is_some());
        drop((permits, of_other));
        drop(own);
        assert!(shares.networks.lock().is_empty());
    }
}
