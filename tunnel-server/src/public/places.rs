//! The places for connections, in all and for each address; and what the connections of an address use.
//!
//! A network of IPv6 with 64 bits counts as one address: a customer mostly has all of it.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::budget::usage::{NetworkUsage, Usage, check_share};

/// Connections that a listener may have, however few files the process may have open.
const FEWEST: usize = 32;

/// The places for connections, in all and for each address.
pub struct Places {
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    max: usize,
    max_per_address: usize,
    in_all: usize,
    by_address: HashMap<IpAddr, FromAddress>,
    by_network: HashMap<IpAddr, FromNetwork>,
}

/// The connections from one address.
struct FromAddress {
    connections: usize,
    usage: Arc<Usage>,
}

/// The addresses of one network from which connections are open.
#[derive(Default)]
struct FromNetwork {
    addresses: usize,
    connections: usize,
    usage: Arc<NetworkUsage>,
}

/// One connection's place; given back when dropped.
pub struct Place {
    places: Arc<Places>,
    /// Where it is counted, and what is used from there.
    from: Option<(IpAddr, Arc<Usage>)>,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// As many connections as allowed are open.
    InAll,
    /// As many as allowed are open from one address, or from it or its network as are left for others.
    Address,
}

impl Full {
    /// The name in the metric: that of the flag.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InAll => "max_connections",
            Self::Address => "max_connections_per_address",
        }
    }
}

impl Places {
    /// So many places.
    #[must_use]
    pub fn new(max: usize, max_per_address: usize) -> Arc<Self> {
        let places = Arc::new(Self {
            taken: Mutex::default(),
        });
        places.set(max, max_per_address);
        places
    }

    /// So many from now on. Whoever has a place keeps it.
    pub fn set(&self, max: usize, max_per_address: usize) {
        let mut taken = self.taken.lock();
        (taken.max, taken.max_per_address) = (max, max_per_address);
    }

    /// Addresses from which connections are open.
    pub(crate) fn addresses(&self) -> usize {
        self.taken.lock().by_address.len()
    }

    /// Takes a place for a connection from `address`, if that is to be counted.
    ///
    /// # Errors
    /// When there is none.
    pub fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Place, Full> {
        let mut taken = self.taken.lock();
        if taken.in_all >= taken.max {
            return Err(Full::InAll);
        }
        let from = address.map(|address| taken.count(network(address)));
        let from = from.transpose()?;
        taken.in_all += 1;
        Ok(Place {
            places: self.clone(),
            from,
        })
    }
}

impl Place {
    /// Counts the connection for the address that it turns out to come from.
    ///
    /// # Errors
    /// When there is no place left for it.
    pub fn count_for(&mut self, address: IpAddr) -> Result<(), Full> {
        if self.from.is_none() {
            let mut taken = self.places.taken.lock();
            self.from = Some(taken.count(network(address))?);
        }
        Ok(())
    }

    /// What is used from the connection's address; `None` as long as it is counted for none.
    pub(crate) fn usage(&self) -> Option<Arc<Usage>> {
        self.from.as_ref().map(|(_, usage)| usage.clone())
    }
}

/// How many connections each of the two listeners may have, where so many are wanted and the process may
/// have so many files open: three quarters of them, so that a full listener leaves some for the other one, for
/// the operator's and for files.
pub(crate) fn within(wanted: usize, descriptors: Option<u64>) -> usize {
    let Some(descriptors) = descriptors.and_then(|all| usize::try_from(all).ok()) else {
        return wanted;
    };
    wanted.min((descriptors - descriptors / 4).max(FEWEST))
}

/// What an address is counted as: of IPv6 the network of 64 bits, named by its first address.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

/// The network of an address that is likely to be one customer's or one operator's: of IPv4 24 bits, of
/// IPv6 48, named by its first address.
pub(crate) fn wide_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() >> 8 << 8).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 80 << 80).into(),
    }
}

impl Taken {
    fn count(&mut self, address: IpAddr) -> Result<(IpAddr, Arc<Usage>), Full> {
        let free = self.max.saturating_sub(self.in_all);
        let network = self.by_network.entry(wide_network(address)).or_default();
        let from = self.by_address.entry(address).or_insert_with(|| {
            network.addresses += 1;
            FromAddress {
                connections: 0,
                usage: Usage::new(network.usage.clone()),
            }
        });
        let is_full = from.connections >= self.max_per_address
            || check_share(from.connections, network.connections, free).is_err();
        from.connections += 1;
        network.connections += 1;
        let usage = from.usage.clone();
        if is_full {
            self.forget(address);
            return Err(Full::Address);
        }
        Ok((address, usage))
    }

    /// Counts a connection of this address out.
    fn forget(&mut self, address: IpAddr) {
        let Some(from) = self.by_address.get_mut(&address) else {
            return;
        };
        let wide = wide_network(address);
        let network = self.by_network.get_mut(&wide);
        from.connections -= 1;
        let is_gone = from.connections == 0;
        if is_gone {
            self.by_address.remove(&address);
        }
        if let Some(network) = network {
            network.connections -= 1;
            network.addresses -= usize::from(is_gone);
            if network.addresses == 0 {
                self.by_network.remove(&wide);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.in_all -= 1;
        if let Some((address, _)) = self.from {
            taken.forget(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_in_all_and_per_address_and_come_back() {
        let places = Places::new(3, 2);
        let [a, b]: [Option<IpAddr>; 2] =
            ["192.0.2.1", "192.0.2.2"].map(|text| Some(text.parse().unwrap()));
        let first = places.enter(a).unwrap();
        let _second = places.enter(a).unwrap();
        assert_eq!(places.enter(a).err(), Some(Full::Address));
        let _third = places.enter(b).unwrap();
        assert_eq!(places.enter(b).err(), Some(Full::InAll));
        drop(first);
        let _again = places.enter(a).unwrap();
        assert_eq!(places.taken.lock().by_address.len(), 2);
    }

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        assert_eq!(within(50_000, None), 50_000);
        assert_eq!(within(50_000, Some(1_048_576)), 50_000);
        assert_eq!(within(50_000, Some(4_096)), 3_072);
        assert_eq!(within(100, Some(4_096)), 100);
        assert_eq!(within(50_000, Some(10)), FEWEST);
    }

    #[test]
    fn few_addresses_leave_room_for_others() {
        let places = Places::new(1_000, 1_000);
        let fill = |address: &str| {
            let address: IpAddr = address.parse().unwrap();
            let taken = std::iter::from_fn(|| places.enter(Some(address)).ok());
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
        let taken = places.taken.lock();
        assert!(taken.by_address.is_empty() && taken.by_network.is_empty());
    }

    #[test]
    fn other_limits_count_for_whoever_comes_then() {
        let places = Places::new(1, 1);
        let first = places.enter(None).unwrap();
        places.set(2, 1);
        let second = places.enter(None).unwrap();
        places.set(1, 1);
        drop(first);
        assert_eq!(places.enter(None).err(), Some(Full::InAll));
        drop(second);
        let _third = places.enter(None).unwrap();
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let places = Places::new(10, 2);
        let enter = |text: &str| places.enter(Some(text.parse().unwrap()));
        let _first = enter("2001:db8:0:1::1").unwrap();
        let second = enter("2001:db8:0:1:ffff::2").unwrap();
        assert_eq!(enter("2001:db8:0:1::3").err(), Some(Full::Address));
        let _other = enter("2001:db8:0:2::1").unwrap();
        let mut later = places.enter(None).unwrap();
        let address = "2001:db8:0:1::3".parse().unwrap();
        assert_eq!(later.count_for(address), Err(Full::Address));
        drop(second);
        assert_eq!(later.count_for(address), Ok(()));
        let _v4 = [
            enter("192.0.2.1").unwrap(),
            enter("::ffff:192.0.2.1").unwrap(),
        ];
        assert_eq!(enter("192.0.2.1").err(), Some(Full::Address));
    }

    #[test]
    fn an_address_without_connections_is_forgotten() {
        let places = Places::new(3, 2);
        let mut place = places.enter(None).unwrap();
        place.count_for("::1".parse().unwrap()).unwrap();
        drop(place);
        let taken = places.taken.lock();
        assert!(taken.by_address.is_empty() && taken.by_network.is_empty());
    }
}
