//! Permits: how many connections, or requests, there may be at once, in all and for each address.
//!
//! In: the address of a peer, or none if the peer is not to be counted by its address. Out: a [`Permit`], which is
//! given back when it is dropped, or [`Exhausted`]. Permits are not waited for.
//!
//! A network of IPv6 with 64 bits counts as one address, since a customer mostly has all of it. An address may have as
//! many permits as are left for others, and its network (IPv4 /24, IPv6 /48) three times as many. So one address gets
//! half of all permits at most, two a third each, and of `n` addresses that take all they can an `n + 1`th part is
//! left. No address needs to be known ahead, and nothing has to be configured.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Permits that one address may have however few are left, so that one address can use up a small limit.
pub const MIN_SHARE: usize = 16;

/// How many times the share of an address its network may have.
const NETWORK_SHARES: usize = 3;

/// What is kept for an address as long as it has a permit, and for its network.
pub trait AddressState: Send + Sync + 'static {
    /// What the addresses of a network share.
    type Network: Default + Send + Sync;

    /// The state of an address without permits.
    fn new(network: &Arc<Self::Network>) -> Self;
}

impl AddressState for () {
    type Network = ();

    fn new(_: &Arc<()>) -> Self {}
}

/// A number of permits.
pub struct Permits<S: AddressState = ()> {
    max: AtomicUsize,
    acquired: AtomicUsize,
    /// Locked only for permits that are counted by address.
    addresses: Mutex<Addresses<S>>,
}

struct Addresses<S: AddressState> {
    max_per_address: usize,
    by_address: HashMap<IpAddr, Address<S>>,
    by_network: HashMap<IpAddr, Network<S>>,
}

/// The permits of one address.
struct Address<S> {
    acquired: usize,
    state: Arc<S>,
}

/// The addresses of one network that have permits.
struct Network<S: AddressState> {
    addresses: usize,
    acquired: usize,
    state: Arc<S::Network>,
}

/// The right to one connection or request.
pub struct Permit<S: AddressState = ()> {
    permits: Arc<Permits<S>>,
    /// The address by which it is counted, and what is kept for that.
    address: Option<(IpAddr, Arc<S>)>,
}

/// Why there is no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// All permits are acquired.
    #[error("the limit is reached")]
    Total,
    /// The address has as many as one address may have, or it or its network as many as are left for others.
    #[error("the limit of the address or its network is reached")]
    Address,
}

/// The share that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExhaustedShare {
    /// That of the address.
    Address,
    /// That of its network.
    Network,
}

/// Checks whether an address may have one more. It has `of_address`, its network has `of_network`, and `free` more
/// may be had in all.
///
/// # Errors
/// When the share of one of them is used up.
pub fn check_share(
    of_address: usize,
    of_network: usize,
    free: usize,
) -> Result<(), ExhaustedShare> {
    if of_address >= free.max(MIN_SHARE) {
        return Err(ExhaustedShare::Address);
    }
    if of_network >= free.saturating_mul(NETWORK_SHARES).max(MIN_SHARE) {
        return Err(ExhaustedShare::Network);
    }
    Ok(())
}

impl<S: AddressState> Permits<S> {
    /// `max` permits, `max_per_address` of them for one address.
    #[must_use]
    pub fn new(max: usize, max_per_address: usize) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicUsize::new(max),
            acquired: AtomicUsize::new(0),
            addresses: Mutex::new(Addresses {
                max_per_address,
                by_address: HashMap::new(),
                by_network: HashMap::new(),
            }),
        })
    }

    /// Changes the numbers. Permits that are acquired stay.
    pub fn set(&self, max: usize, max_per_address: usize) {
        self.max.store(max, Ordering::Relaxed);
        self.addresses.lock().max_per_address = max_per_address;
    }

    /// Addresses that have permits.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.addresses.lock().by_address.len()
    }

    /// The number of acquired permits, and of all.
    #[must_use]
    pub fn usage(&self) -> (usize, usize) {
        let acquired = self.acquired.load(Ordering::Relaxed);
        (acquired, self.max.load(Ordering::Relaxed))
    }

    /// Acquires a permit, counted by `address` if there is one.
    ///
    /// # Errors
    /// When there is none left.
    pub fn acquire(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Permit<S>, Exhausted> {
        let max = self.max.load(Ordering::Relaxed);
        let one_more = |acquired| (acquired < max).then_some(acquired + 1);
        let before = self
            .acquired
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .map_err(|_| Exhausted::Total)?;
        let mut permit = Permit {
            permits: Arc::clone(self),
            address: None,
        };
        if let Some(address) = address {
            permit.count(address, max - before)?;
        }
        Ok(permit)
    }
}

impl<S: AddressState> Permit<S> {
    /// Counts the permit by the address that the peer turns out to have, if it is counted by none.
    ///
    /// # Errors
    /// When the address may have no more.
    pub fn count_for(&mut self, address: IpAddr) -> Result<(), Exhausted> {
        if self.address.is_some() {
            return Ok(());
        }
        let max = self.permits.max.load(Ordering::Relaxed);
        let acquired = self.permits.acquired.load(Ordering::Relaxed);
        self.count(address, max.saturating_sub(acquired))
    }

    fn count(&mut self, address: IpAddr, free: usize) -> Result<(), Exhausted> {
        let address = network(address);
        let state = self.permits.addresses.lock().count(address, free)?;
        self.address = Some((address, state));
        Ok(())
    }

    /// What is kept for the address by which the permit is counted.
    #[must_use]
    pub fn state(&self) -> Option<Arc<S>> {
        self.address.as_ref().map(|(_, state)| Arc::clone(state))
    }
}

impl<S: AddressState> Drop for Permit<S> {
    fn drop(&mut self) {
        self.permits.acquired.fetch_sub(1, Ordering::Relaxed);
        if let Some((address, _)) = self.address {
            self.permits.addresses.lock().release(address);
        }
    }
}

impl<S: AddressState> Addresses<S> {
    /// Counts one more permit of an address, of which `free` are left in all.
    fn count(&mut self, address: IpAddr, free: usize) -> Result<Arc<S>, Exhausted> {
        let network = self.by_network.entry(wide_network(address));
        let network = network.or_insert_with(|| Network {
            addresses: 0,
            acquired: 0,
            state: Arc::default(),
        });
        let from = self.by_address.entry(address).or_insert_with(|| {
            network.addresses += 1;
            Address {
                acquired: 0,
                state: Arc::new(S::new(&network.state)),
            }
        });
        let is_exhausted = from.acquired >= self.max_per_address
            || check_share(from.acquired, network.acquired, free).is_err();
        from.acquired += 1;
        network.acquired += 1;
        let state = Arc::clone(&from.state);
        if is_exhausted {
            self.release(address);
            return Err(Exhausted::Address);
        }
        Ok(state)
    }

    /// Counts one permit of an address less. An address without permits is forgotten.
    fn release(&mut self, address: IpAddr) {
        let Some(from) = self.by_address.get_mut(&address) else {
            return;
        };
        from.acquired -= 1;
        let is_gone = from.acquired == 0;
        if is_gone {
            self.by_address.remove(&address);
        }
        let wide = wide_network(address);
        if let Some(network) = self.by_network.get_mut(&wide) {
            network.acquired -= 1;
            network.addresses -= usize::from(is_gone);
            if network.addresses == 0 {
                self.by_network.remove(&wide);
            }
        }
    }
}

/// What an address is counted as: of IPv6 the network of 64 bits, named by its first address.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// The network of an address that is likely to belong to one customer or operator: of IPv4 24 bits, of IPv6 48, named
/// by its first address.
#[must_use]
pub fn wide_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() >> 8 << 8).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 80 << 80).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(max: usize, max_per_address: usize) -> Arc<Permits> {
        Permits::new(max, max_per_address)
    }

    #[test]
    fn permits_are_bounded_in_all_and_per_address_and_come_back() {
        let permits = permits(3, 2);
        let [a, b]: [Option<IpAddr>; 2] =
            ["192.0.2.1", "192.0.2.2"].map(|text| Some(text.parse().unwrap()));
        let first = permits.acquire(a).unwrap();
        let _second = permits.acquire(a).unwrap();
        assert_eq!(permits.acquire(a).err(), Some(Exhausted::Address));
        let _third = permits.acquire(b).unwrap();
        assert_eq!(permits.acquire(b).err(), Some(Exhausted::Total));
        drop(first);
        let _again = permits.acquire(a).unwrap();
        assert_eq!(permits.addresses.lock().by_address.len(), 2);
    }

    #[test]
    fn few_addresses_leave_room_for_others() {
        let permits = permits(1_000, 1_000);
        let fill = |address: &str| {
            let address: IpAddr = address.parse().unwrap();
            let taken = std::iter::from_fn(|| permits.acquire(Some(address)).ok());
            taken.collect::<Vec<_>>()
        };
        let one = fill("192.0.2.1");
        assert_eq!(one.len(), 500);
        let other = fill("192.0.2.2");
        assert_eq!(other.len(), 250);
        let of_the_same_network = fill("192.0.2.3");
        assert_eq!(of_the_same_network.len(), 0);
        assert_eq!(fill("198.51.100.1").len(), 125);
        drop((one, other));
        let addresses = permits.addresses.lock();
        assert!(addresses.by_address.is_empty() && addresses.by_network.is_empty());
    }

    #[test]
    fn other_limits_hold_for_permits_acquired_later() {
        let permits = permits(1, 1);
        let first = permits.acquire(None).unwrap();
        permits.set(2, 1);
        let second = permits.acquire(None).unwrap();
        permits.set(1, 1);
        drop(first);
        assert_eq!(permits.acquire(None).err(), Some(Exhausted::Total));
        drop(second);
        let _third = permits.acquire(None).unwrap();
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let permits = permits(10, 2);
        let acquire = |text: &str| permits.acquire(Some(text.parse().unwrap()));
        let _first = acquire("2001:db8:0:1::1").unwrap();
        let second = acquire("2001:db8:0:1:ffff::2").unwrap();
        assert_eq!(acquire("2001:db8:0:1::3").err(), Some(Exhausted::Address));
        let _other = acquire("2001:db8:0:2::1").unwrap();
        let mut later = permits.acquire(None).unwrap();
        let address = "2001:db8:0:1::3".parse().unwrap();
        assert_eq!(later.count_for(address), Err(Exhausted::Address));
        drop(second);
        assert_eq!(later.count_for(address), Ok(()));
        let _v4 = [
            acquire("192.0.2.1").unwrap(),
            acquire("::ffff:192.0.2.1").unwrap(),
        ];
        assert_eq!(acquire("192.0.2.1").err(), Some(Exhausted::Address));
    }

    #[test]
    fn an_address_without_permits_is_forgotten() {
        let permits = permits(3, 2);
        let mut permit = permits.acquire(None).unwrap();
        permit.count_for("::1".parse().unwrap()).unwrap();
        drop(permit);
        let addresses = permits.addresses.lock();
        assert!(addresses.by_address.is_empty() && addresses.by_network.is_empty());
    }
}
