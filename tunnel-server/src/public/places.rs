//! The places for connections, in all and for each address.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

/// The places for connections, in all and for each address.
pub struct Places {
    max: usize,
    max_per_address: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
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
        Arc::new(Self {
            max,
            max_per_address,
            taken: Mutex::default(),
        })
    }

    /// Takes a place for a connection from `address`, if that is to be counted.
    ///
    /// # Errors
    /// When there is none.
    pub fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Place, Full> {
        let mut taken = self.taken.lock();
        if taken.in_all >= self.max {
            return Err(Full::InAll);
        }
        if let Some(address) = address {
            taken.count(address, self.max_per_address)?;
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
            let mut taken = self.places.taken.lock();
            taken.count(address, self.places.max_per_address)?;
            self.address = Some(address);
        }
        Ok(())
    }
}

impl Taken {
    fn count(&mut self, address: IpAddr, max: usize) -> Result<(), Full> {
        let count = self.by_address.entry(address).or_default();
        if *count >= max {
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
    fn an_address_without_connections_is_forgotten() {
        let places = Places::new(3, 2);
        let mut place = places.enter(None).unwrap();
        place.count_for("::1".parse().unwrap()).unwrap();
        drop(place);
        assert!(places.taken.lock().by_address.is_empty());
    }
}
