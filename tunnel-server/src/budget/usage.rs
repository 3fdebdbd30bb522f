//! The usage of platform clients by address, so that few addresses cannot use up a limit.
//!
//! In: how much of a limit is free. Out: whether an address may have one more, by the rule of
//! [`tunnel_http::permits`].

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tunnel_http::permits::{AddressState, ExhaustedShare, check_share};
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::OPEN_RETRY;

/// The usage of the platform clients of one address. Shared by their connections.
#[derive(Debug)]
pub struct Usage {
    /// At all runtimes together.
    all: OpenCounts,
    network: Arc<NetworkUsage>,
    /// At each runtime, by its budget's number. Locked when an exchange begins, by connections of this address only.
    runtimes: Mutex<Vec<(u64, Arc<RuntimeUsage>)>>,
}

/// The usage of the platform clients of one network.
#[derive(Debug, Default)]
pub struct NetworkUsage {
    all: OpenCounts,
    runtimes: Mutex<Vec<(u64, Arc<OpenCounts>)>>,
}

/// The usage of one address, and of its network, at one runtime.
#[derive(Debug, Default)]
struct RuntimeUsage {
    own: OpenCounts,
    network: Arc<OpenCounts>,
}

/// The counts of one address or network.
#[derive(Debug, Default)]
struct OpenCounts {
    exchanges: AtomicUsize,
    websockets: AtomicUsize,
    waiting: AtomicUsize,
    waiting_bytes: AtomicUsize,
    head_bytes: AtomicUsize,
}

/// A kind of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Exchanges, including upgraded connections.
    Exchange,
    /// Upgraded connections.
    Websocket,
    /// Exchanges that wait for a runtime to come back.
    Waiting,
    /// The memory of waiting exchanges, in bytes.
    WaitingBytes,
    /// The memory of the long heads of open requests, in bytes.
    HeadBytes,
}

/// The counters of one address at one runtime.
#[derive(Debug)]
pub(super) struct Share {
    usage: Arc<Usage>,
    runtime: Arc<RuntimeUsage>,
}

/// The unused part of a limit, of one runtime and of the node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    pub(super) runtime: usize,
    pub(super) node: usize,
}

impl AddressState for Usage {
    type Network = NetworkUsage;

    fn new(network: &Arc<NetworkUsage>) -> Self {
        Self {
            all: OpenCounts::default(),
            network: network.clone(),
            runtimes: Mutex::default(),
        }
    }
}

impl Usage {
    /// The counters at the runtime with this number.
    pub(super) fn at(self: &Arc<Self>, runtime: u64) -> Share {
        let runtime = entry(&self.runtimes, runtime, || RuntimeUsage {
            own: OpenCounts::default(),
            network: entry(&self.network.runtimes, runtime, OpenCounts::default),
        });
        Share {
            usage: self.clone(),
            runtime,
        }
    }
}

/// The entry of a runtime, which is added if missing. Unused entries are removed then.
fn entry<T>(entries: &Mutex<Vec<(u64, Arc<T>)>>, runtime: u64, new: impl FnOnce() -> T) -> Arc<T> {
    let mut entries = entries.lock();
    if let Some((_, found)) = entries.iter().find(|(number, _)| *number == runtime) {
        return found.clone();
    }
    entries.retain(|(_, entry)| Arc::strong_count(entry) > 1);
    let entry = Arc::new(new());
    entries.push((runtime, entry.clone()));
    entry
}

impl Share {
    /// Adds `many` to the counts, if the share allows it.
    ///
    /// # Errors
    /// When the address, or its network, already has as many as are free. Nothing is counted then.
    pub(super) fn enter(&self, counted: Counted, many: usize, free: Free) -> Result<(), Problem> {
        let [own, network, all, all_of_network] = self.counts(counted);
        let check_share = |own: &AtomicUsize, network: &AtomicUsize, free| {
            let of_address = own.load(Ordering::Relaxed);
            let of_network = network.load(Ordering::Relaxed);
            check_share(of_address, of_network, free).map_err(|full| {
                let (owner, open) = match full {
                    ExhaustedShare::Address => ("address", of_address),
                    ExhaustedShare::Network => ("address's network", of_network),
                };
                let what = match counted {
                    Counted::Exchange => "exchanges open",
                    Counted::Websocket => "upgraded connections open",
                    Counted::Waiting => "requests waiting",
                    Counted::WaitingBytes => "bytes of requests waiting",
                    Counted::HeadBytes => "bytes of heads of open requests",
                };
                let detail = format!("the {owner} has {open} {what}, its share of what is left");
                Problem::new(Hop::Server, Reason::AddressLimit, detail).retry_after(OPEN_RETRY)
            })
        };
        check_share(own, network, free.runtime)?;
        check_share(all, all_of_network, free.node)?;
        for count in [own, network, all, all_of_network] {
            count.fetch_add(many, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn leave(&self, counted: Counted, many: usize) {
        for count in self.counts(counted) {
            count.fetch_sub(many, Ordering::Relaxed);
        }
    }

    /// The counts of the address and of its network at the runtime, and of both at all runtimes.
    fn counts(&self, counted: Counted) -> [&AtomicUsize; 4] {
        let (runtime, usage) = (&self.runtime, &self.usage);
        [
            runtime.own.of(counted),
            runtime.network.of(counted),
            usage.all.of(counted),
            usage.network.all.of(counted),
        ]
    }
}

/// The part of a waiting request in its address's share; returned when dropped.
#[derive(Debug)]
pub(super) struct WaitingShare {
    share: Share,
    bytes: usize,
}

impl WaitingShare {
    /// Counts a waiting request that holds `bytes` of memory.
    ///
    /// # Errors
    /// See [`Share::enter`].
    pub(super) fn enter(
        share: Share,
        bytes: usize,
        requests: Free,
        free_bytes: Free,
    ) -> Result<Self, Problem> {
        share.enter(Counted::Waiting, 1, requests)?;
        if let Err(full) = share.enter(Counted::WaitingBytes, bytes, free_bytes) {
            share.leave(Counted::Waiting, 1);
            return Err(full);
        }
        Ok(Self { share, bytes })
    }
}

impl Drop for WaitingShare {
    fn drop(&mut self) {
        self.share.leave(Counted::WaitingBytes, self.bytes);
        self.share.leave(Counted::Waiting, 1);
    }
}

impl OpenCounts {
    fn of(&self, counted: Counted) -> &AtomicUsize {
        match counted {
            Counted::Exchange => &self.exchanges,
            Counted::Websocket => &self.websockets,
            Counted::Waiting => &self.waiting,
            Counted::WaitingBytes => &self.waiting_bytes,
            Counted::HeadBytes => &self.head_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use tunnel_http::permits::MIN_SHARE;

    use super::*;

    fn usage(network: &Arc<NetworkUsage>) -> Arc<Usage> {
        Arc::new(Usage::new(network))
    }

    const UNLIMITED: usize = usize::MAX;

    fn enter(share: &Share, counted: Counted, runtime: usize) -> Result<(), Problem> {
        let free = Free {
            runtime,
            node: UNLIMITED,
        };
        share.enter(counted, 1, free)
    }

    /// Lets addresses take as many of `max` as they get, in turn; returns how many each has, and how many are free.
    fn taken(max: usize, addresses: &[Share]) -> (Vec<usize>, usize) {
        let mut taken = vec![0; addresses.len()];
        loop {
            let before: usize = taken.iter().sum();
            for (number, share) in addresses.iter().enumerate() {
                let free = max - taken.iter().sum::<usize>();
                if free > 0 && enter(share, Counted::Exchange, free).is_ok() {
                    taken[number] += 1;
                }
            }
            let after: usize = taken.iter().sum();
            if after == before {
                return (taken, max - after);
            }
        }
    }

    fn of_one_network(number: usize) -> Vec<Share> {
        let network = Arc::default();
        let new = || usage(&network).at(1);
        (0..number).map(|_| new()).collect()
    }

    fn apart(number: usize) -> Vec<Share> {
        let new = || usage(&Arc::default()).at(1);
        (0..number).map(|_| new()).collect()
    }

    #[test]
    fn a_few_addresses_leave_room_for_others() {
        assert_eq!(taken(2_048, &apart(1)), (vec![1_024], 1_024));
        let (_, free) = taken(2_048, &apart(2));
        assert!((682..=683).contains(&free), "{free}");
        let (_, free) = taken(2_048, &apart(10));
        assert!((180..=190).contains(&free), "{free}");
        let (each, free) = taken(2_048, &apart(100));
        assert!((16..=48).contains(&free), "{free}");
        assert!(
            each.iter().all(|taken| (16..=24).contains(taken)),
            "{each:?}"
        );
    }

    #[test]
    fn a_network_of_many_addresses_leaves_a_quarter() {
        let (_, free) = taken(2_048, &of_one_network(500));
        assert!((500..=512).contains(&free), "{free}");
    }

    #[test]
    fn a_small_limit_may_be_used_up_by_one() {
        assert_eq!(taken(MIN_SHARE, &apart(1)), (vec![MIN_SHARE], 0));
    }

    #[test]
    fn usage_at_one_runtime_does_not_count_at_another() {
        let usage = usage(&Arc::default());
        let (one, other) = (usage.at(1), usage.at(2));
        for _ in 0..1_000 {
            enter(&one, Counted::Exchange, 2_000).unwrap();
        }
        for _ in 0..MIN_SHARE {
            enter(&other, Counted::Exchange, 1).unwrap();
        }
        assert!(enter(&other, Counted::Exchange, 1).is_err());
        // But it counts for the limit of all runtimes.
        let free = Free {
            runtime: UNLIMITED,
            node: 1_000,
        };
        let refused = other.enter(Counted::Exchange, 1, free).unwrap_err();
        assert_eq!(refused.reason(), Reason::AddressLimit);
    }

    #[test]
    fn returned_usage_is_not_counted_and_unused_entries_are_removed() {
        let usage = usage(&Arc::default());
        let share = usage.at(1);
        for _ in 0..MIN_SHARE {
            enter(&share, Counted::Websocket, 1).unwrap();
        }
        let refused = enter(&share, Counted::Websocket, 1).unwrap_err();
        assert_eq!(refused.retry_after_value().unwrap(), "1");
        // Another kind of usage, and a larger free part.
        enter(&share, Counted::Exchange, 1).unwrap();
        enter(&share, Counted::Websocket, MIN_SHARE + 1).unwrap();
        for _ in 0..=MIN_SHARE {
            share.leave(Counted::Websocket, 1);
        }
        share.leave(Counted::Exchange, 1);
        for counted in [Counted::Websocket, Counted::Exchange] {
            let left = share
                .counts(counted)
                .map(|count| count.load(Ordering::Relaxed));
            assert_eq!(left, [0; 4]);
        }
        drop(share);
        let _other = usage.at(2);
        assert_eq!(usage.runtimes.lock().len(), 1);
    }
}
