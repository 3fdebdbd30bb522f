//! What platform clients of one address have open, so that few addresses cannot take all there is.
//!
//! In: how much of a limit is free. Out: whether an address may have one more. An address may have as many
//! as are left free for others, and its network (IPv4 /24, IPv6 /48) three times as many. So one
//! address gets half of a limit at most, two a third each, and of `n` addresses that take all they can an
//! `n + 1`th part stays free. No address needs to be known ahead, and nothing has to be configured.
//! Connections go by the same rule ([`is_within`]).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tunnel_proto::problem::{Hop, Problem, Reason};

use super::OPEN_RETRY;

/// As many as an address may have open however little is left, so that small limits can be used up by one.
const FEW: usize = 16;

/// How many times as much as one address a network may have.
const NETWORK: usize = 3;

/// Whether an address that has so many may have one more, and its network with so many, where so many are
/// free.
pub(crate) fn is_within(of_address: usize, of_network: usize, free: usize) -> Result<(), Whose> {
    if of_address >= free.max(FEW) {
        return Err(Whose::Address);
    }
    if of_network >= free.saturating_mul(NETWORK).max(FEW) {
        return Err(Whose::Network);
    }
    Ok(())
}

/// Whose share is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The address's own.
    Address,
    /// That of its network.
    Network,
}

/// What is open for the platform clients of one address. Shared by the connections from there.
#[derive(Debug)]
pub struct Usage {
    own: Open,
    network: Arc<Open>,
}

/// Numbers of what is open.
#[derive(Debug, Default)]
pub struct Open {
    exchanges: AtomicUsize,
    websockets: AtomicUsize,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Exchanges, upgraded connections among them.
    Exchange,
    /// Upgraded connections.
    Websocket,
}

impl Usage {
    /// What one address uses, which lies in a network that uses this.
    #[must_use]
    pub fn new(network: Arc<Open>) -> Arc<Self> {
        Arc::new(Self {
            own: Open::default(),
            network,
        })
    }

    /// Counts one more in, when so many are free.
    ///
    /// # Errors
    /// When the address, or its network, has as many already as are left for others. Nothing is counted
    /// then.
    pub(super) fn enter(&self, counted: Counted, free: usize) -> Result<(), Problem> {
        let (own, network) = (self.own.of(counted), self.network.of(counted));
        let of_address = own.load(Ordering::Relaxed);
        let of_network = network.load(Ordering::Relaxed);
        is_within(of_address, of_network, free).map_err(|whose| {
            let (whose, open) = match whose {
                Whose::Address => ("address", of_address),
                Whose::Network => ("address's network", of_network),
            };
            let what = match counted {
                Counted::Exchange => "exchanges",
                Counted::Websocket => "upgraded connections",
            };
            let detail = format!("the {whose} has {open} {what} open, its share of what is left");
            Problem::new(Hop::Server, Reason::AddressLimit, detail).retry_after(OPEN_RETRY)
        })?;
        own.fetch_add(1, Ordering::Relaxed);
        network.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn leave(&self, counted: Counted) {
        self.own.of(counted).fetch_sub(1, Ordering::Relaxed);
        self.network.of(counted).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Open {
    fn of(&self, counted: Counted) -> &AtomicUsize {
        match counted {
            Counted::Exchange => &self.exchanges,
            Counted::Websocket => &self.websockets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many of `max` as each address gets, in turn; how many they have, and how many are free.
    fn taken(max: usize, addresses: &[Arc<Usage>]) -> (Vec<usize>, usize) {
        let mut taken = vec![0; addresses.len()];
        loop {
            let before: usize = taken.iter().sum();
            for (taken_here, usage) in taken.iter_mut().zip(addresses) {
                let free = max - addresses.iter().map(|usage| open(usage)).sum::<usize>();
                if free > 0 && usage.enter(Counted::Exchange, free).is_ok() {
                    *taken_here += 1;
                }
            }
            let after: usize = taken.iter().sum();
            if after == before {
                return (taken, max - after);
            }
        }
    }

    fn open(usage: &Usage) -> usize {
        usage.own.exchanges.load(Ordering::Relaxed)
    }

    fn addresses(number: usize, network: &Arc<Open>) -> Vec<Arc<Usage>> {
        (0..number).map(|_| Usage::new(network.clone())).collect()
    }

    fn apart(number: usize) -> Vec<Arc<Usage>> {
        (0..number).map(|_| Usage::new(Arc::default())).collect()
    }

    #[test]
    fn however_much_a_few_addresses_take_others_find_room() {
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
        let (_, free) = taken(2_048, &addresses(500, &Arc::default()));
        assert!((500..=512).contains(&free), "{free}");
    }

    #[test]
    fn a_small_limit_may_be_used_up_by_one() {
        assert_eq!(taken(FEW, &apart(1)), (vec![FEW], 0));
    }

    #[test]
    fn what_is_given_back_is_counted_no_more() {
        let usage = Usage::new(Arc::default());
        for _ in 0..FEW {
            usage.enter(Counted::Websocket, 1).unwrap();
        }
        let refused = usage.enter(Counted::Websocket, 1).unwrap_err();
        assert_eq!(refused.reason(), Reason::AddressLimit);
        assert_eq!(refused.retry_after_value().unwrap(), "1");
        // Of another kind, and where more is free.
        usage.enter(Counted::Exchange, 1).unwrap();
        usage.enter(Counted::Websocket, FEW + 1).unwrap();
        for _ in 0..=FEW {
            usage.leave(Counted::Websocket);
        }
        assert_eq!(usage.network.websockets.load(Ordering::Relaxed), 0);
        assert_eq!(usage.network.exchanges.load(Ordering::Relaxed), 1);
    }
}
