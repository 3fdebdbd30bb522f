//! The places for connections, in all and for each address.
//!
//! Who has IPv6 mostly has 64 bits of it for himself: such a network counts as one address.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;

/// The places for connections, in all and for each address.
pub struct Places {
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    max: usize,
    max_per_address: usize,
    in_all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// One connection's place; given back when dropped.
pub struct Place {
    places: Arc<Places>,
    address: Option<IpAddr>,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// As many connections as allowed are open.
    InAll,
    /// As many as allowed are open from one address.
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
        let address = address.map(network);
        if let Some(address) = address {
            taken.count(address)?;
        }
        taken.in_all += 1;
        Ok(Place {
            places: self.clone(),
            address,
        })
    }
}

impl Place {
    /// Counts the connection for the address that it turns out to come from.
    ///
    /// # Errors
    /// When there is no place left for it.
    pub fn count_for(&mut self, address: IpAddr) -> Result<(), Full> {
        if self.address.is_none() {
            let address = network(address);
            let mut taken = self.places.taken.lock();
            taken.count(address)?;
            self.address = Some(address);
        }
        Ok(())
    }
}

/// What an address is counted as: of IPv6 the network of 64 bits, named by its first address.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

impl Taken {
    fn count(&mut self, address: IpAddr) -> Result<(), Full> {
        let count = self.by_address.entry(address).or_default();
        if *count >= self.max_per_address {
            return Err(Full::Address);
        }
        *count += 1;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.in_all -= 1;
        if let Some(address) = self.address
            && let Some(count) = taken.by_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&address);
            }
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
        assert!(places.taken.lock().by_address.is_empty());
    }
}
