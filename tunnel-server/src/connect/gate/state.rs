//! The state of the gate: which clients have a handshake permit, which wait for one, and which is next. Without clock,
//! tasks and sockets.
//!
//! ```text
//!   arrive ──▶ waiting ─permit─▶ silent ──on_request──▶ answered     any of them ──leave──▶ removed
//!                 │                 │ older than GRACE, and an address with fewer waits
//!                 │ queue full      ▼
//!                 └──────────▶ displaced
//! ```
//!
//! In: arrivals with their address, and the time. Out: the stage of each. Permits and the queue are shared between
//! networks (IPv4 /24, IPv6 /48) first, then between the addresses of a network (IPv4 address, IPv6 /64), so that many
//! clients from few addresses delay a newcomer from another one by at most the grace of one silent client.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tunnel_http::permits::{network, wide_network};

/// How long a client may be silent with a permit before a client of an address with fewer permits may displace it.
/// A client needs one round trip to send its request with TLS 1.3, and two with TLS 1.2: this leaves time for a slow
/// path and one lost packet.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// The stage of a client at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits for a handshake permit.
    Waiting,
    /// It holds a handshake permit since this instant; its request has not arrived.
    Silent(Instant),
    /// Its request is being answered.
    Answered,
}

/// All clients at the gate, and the permits that they hold.
#[derive(Debug)]
pub(super) struct GateState {
    /// Most permits at once.
    max_permits: usize,
    /// Most waiting clients.
    max_waiting: usize,
    /// Number of the next client.
    next: u64,
    /// Number of the last permit that was given.
    last_permit: u64,
    clients: BTreeMap<u64, Client>,
    waiting: usize,
    addresses: HashMap<IpAddr, Address>,
    networks: HashMap<IpAddr, Network>,
}

#[derive(Debug)]
struct Client {
    address: IpAddr,
    stage: Stage,
    /// Notified when another client changes the stage, or displaces this one.
    changed: Arc<Notify>,
}

/// A client that has been silent for longer than [`GRACE`], and how many permits the clients of its network and of its address hold.
#[derive(Debug)]
struct Overdue {
    number: u64,
    address: IpAddr,
    network: IpAddr,
    of_network: usize,
    of_address: usize,
}

/// The clients of one address. Removed with the last of them.
#[derive(Debug)]
struct Address {
    network: IpAddr,
    permits: usize,
    last_permit: u64,
    /// In the order of arrival.
    waiting: VecDeque<u64>,
}

/// The clients of one network.
#[derive(Debug, Default)]
struct Network {
    permits: usize,
    last_permit: u64,
    waiting: usize,
    addresses: usize,
}

impl GateState {
    pub(super) fn new(max_permits: usize, max_waiting: usize) -> Self {
        Self {
            max_permits,
            max_waiting,
            next: 0,
            last_permit: 0,
            clients: BTreeMap::new(),
            waiting: 0,
            addresses: HashMap::new(),
            networks: HashMap::new(),
        }
    }

    /// Adds a client; returns its number, and what is notified of changes. `None` if there is neither a permit for it
    /// nor room in the queue, and no address has more waiting clients, one of which it could displace.
    pub(super) fn arrive(&mut self, address: IpAddr, now: Instant) -> Option<(u64, Arc<Notify>)> {
        let (number, changed) = self.add(address);
        self.admit_waiting(now);
        if self.waiting > self.max_waiting {
            let displaced = self.newest_of_longest_queue()?;
            self.displace(displaced);
            if displaced == number {
                return None;
            }
        }
        Some((number, changed))
    }

    /// The stage of a client; `None` if it was displaced.
    pub(super) fn stage(&self, number: u64) -> Option<Stage> {
        Some(self.clients.get(&number)?.stage)
    }

    /// The client's request has been received: it keeps its permit until it is answered.
    pub(super) fn on_request(&mut self, number: u64) {
        if let Some(client) = self.clients.get_mut(&number) {
            client.stage = Stage::Answered;
        }
    }

    /// Removes a client, unless it was displaced, and gives its permit to the next.
    pub(super) fn leave(&mut self, number: u64, now: Instant) {
        self.remove(number);
        self.admit_waiting(now);
    }

    /// Gives permits to waiting clients while there are any.
    pub(super) fn admit_waiting(&mut self, now: Instant) {
        while self.waiting > 0 {
            // Looked up once for all candidates, of which there may be many.
            let overdue = self.overdue(now);
            let is_full = self.clients.len() - self.waiting >= self.max_permits;
            if is_full && overdue.is_empty() {
                return;
            }
            let mut candidates: Vec<_> = self
                .addresses
                .iter()
                .filter(|(_, of_address)| !of_address.waiting.is_empty())
                .map(|(address, of_address)| (self.order(of_address), *address))
                .collect();
            candidates.sort_unstable_by_key(|(order, _)| *order);
            let mut candidates = candidates.iter();
            if !candidates.any(|(_, address)| self.admit_from(*address, &overdue, now)) {
                return;
            }
        }
    }

    /// The number of addresses that have clients here.
    pub(super) fn addresses(&self) -> usize {
        self.addresses.len()
    }

    fn add(&mut self, address: IpAddr) -> (u64, Arc<Notify>) {
        let number = self.next;
        self.next += 1;
        let (address, wide) = (network(address), wide_network(address));
        let of_address = self.addresses.entry(address).or_insert_with(|| {
            self.networks.entry(wide).or_default().addresses += 1;
            Address {
                network: wide,
                permits: 0,
                last_permit: 0,
                waiting: VecDeque::new(),
            }
        });
        of_address.waiting.push_back(number);
        if let Some(of_network) = self.networks.get_mut(&wide) {
            of_network.waiting += 1;
        }
        self.waiting += 1;
        let changed = Arc::new(Notify::new());
        let client = Client {
            address,
            stage: Stage::Waiting,
            changed: changed.clone(),
        };
        self.clients.insert(number, client);
        (number, changed)
    }

    fn remove(&mut self, number: u64) -> Option<Client> {
        let client = self.clients.remove(&number)?;
        let of_address = self.addresses.get_mut(&client.address)?;
        let of_network = self.networks.get_mut(&of_address.network)?;
        if client.stage == Stage::Waiting {
            of_address.waiting.retain(|waiting| *waiting != number);
            of_network.waiting -= 1;
            self.waiting -= 1;
        } else {
            of_address.permits -= 1;
            of_network.permits -= 1;
        }
        if of_address.permits == 0 && of_address.waiting.is_empty() {
            of_network.addresses -= 1;
            if of_network.addresses == 0 {
                self.networks.remove(&of_address.network);
            }
            self.addresses.remove(&client.address);
        }
        Some(client)
    }

    fn displace(&mut self, number: u64) {
        if let Some(client) = self.remove(number) {
            client.changed.notify_one();
        }
    }

    /// The order in which addresses get permits, the least first: by the number of permits and then by the last one, of
    /// the network before those of the address.
    fn order(&self, of_address: &Address) -> (usize, u64, usize, u64, Option<u64>) {
        let of_network = self.networks.get(&of_address.network);
        (
            of_network.map_or(0, |network| network.permits),
            of_network.map_or(0, |network| network.last_permit),
            of_address.permits,
            of_address.last_permit,
            of_address.waiting.front().copied(),
        )
    }

    /// Gives the next client of an address a permit, displacing a silent client if necessary. Returns `false` if it
    /// cannot have one.
    fn admit_from(&mut self, address: IpAddr, overdue: &[Overdue], now: Instant) -> bool {
        let Some(of_address) = self.addresses.get(&address) else {
            return false;
        };
        let Some(number) = of_address.waiting.front().copied() else {
            return false;
        };
        let of_network = self.networks.get(&of_address.network);
        let (own, of_network) = (
            of_address.permits,
            of_network.map_or(0, |network| network.permits),
        );
        // An address has at most half, a network three quarters, so that clients of others need not wait.
        let is_full = self.clients.len() - self.waiting >= self.max_permits
            || own >= self.max_permits.div_ceil(2)
            || of_network >= (self.max_permits * 3).div_ceil(4);
        if is_full {
            match self.displaceable(address, overdue) {
                Some(number) => self.displace(number),
                None => return false,
            }
        }
        self.admit(number, now);
        true
    }

    fn admit(&mut self, number: u64, now: Instant) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        client.stage = Stage::Silent(now);
        client.changed.notify_one();
        self.last_permit += 1;
        self.waiting -= 1;
        if let Some(of_address) = self.addresses.get_mut(&client.address) {
            of_address.waiting.retain(|waiting| *waiting != number);
            of_address.permits += 1;
            of_address.last_permit = self.last_permit;
            if let Some(of_network) = self.networks.get_mut(&of_address.network) {
                of_network.waiting -= 1;
                of_network.permits += 1;
                of_network.last_permit = self.last_permit;
            }
        }
    }

    /// The clients that have been silent for too long.
    fn overdue(&self, now: Instant) -> Vec<Overdue> {
        let clients = self.clients.iter();
        let overdue = clients.filter(|(_, client)| is_overdue(client, now));
        let counted = overdue.filter_map(|(number, client)| {
            let of_address = self.addresses.get(&client.address)?;
            let of_network = self.networks.get(&of_address.network)?;
            Some(Overdue {
                number: *number,
                address: client.address,
                network: of_address.network,
                of_network: of_network.permits,
                of_address: of_address.permits,
            })
        });
        counted.collect()
    }

    /// The overdue client that a client of this address may displace: of the network with the most permits, in it of
    /// the address with the most, of that the oldest. Apart from its own address, only addresses and networks with more
    /// permits than this one's count.
    fn displaceable(&self, address: IpAddr, overdue: &[Overdue]) -> Option<u64> {
        let own = self.addresses.get(&address)?;
        let own_network = self.networks.get(&own.network)?;
        let is_full = own.permits >= self.max_permits.div_ceil(2);
        let is_network_full = own_network.permits >= (self.max_permits * 3).div_ceil(4);
        let may_displace = |other: &&Overdue| {
            if other.address == address {
                true
            } else if is_full {
                false
            } else if other.network == own.network {
                other.of_address > own.permits
            } else {
                !is_network_full && other.of_network > own_network.permits
            }
        };
        let displaceable = overdue.iter().filter(may_displace);
        let most =
            displaceable.max_by_key(|other| (other.of_network, other.of_address, !other.number));
        most.map(|other| other.number)
    }

    /// The newest waiting client of the address with the longest queue, in the network with the longest queue.
    fn newest_of_longest_queue(&self) -> Option<u64> {
        let addresses = self.addresses.values();
        let longest = addresses.max_by_key(|of_address| {
            let of_network = self.networks.get(&of_address.network);
            let in_network = of_network.map_or(0, |network| network.waiting);
            let last = of_address.waiting.back().copied();
            (in_network, of_address.waiting.len(), last)
        });
        longest?.waiting.back().copied()
    }
}

fn is_overdue(client: &Client, now: Instant) -> bool {
    matches!(client.stage, Stage::Silent(since) if now.duration_since(since) >= GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Address `number` of network `network`.
    fn at(network: u8, number: u8) -> IpAddr {
        [10, 0, network, number].into()
    }

    fn start() -> Instant {
        Instant::now()
    }

    fn arrive(state: &mut GateState, address: IpAddr, now: Instant) -> Option<u64> {
        state.arrive(address, now).map(|(number, _)| number)
    }

    fn has_permit(state: &GateState, number: u64) -> bool {
        matches!(state.stage(number), Some(Stage::Silent(_)))
    }

    /// Fills gate and queue from these addresses, and returns when all clients inside are overdue.
    fn flooded(state: &mut GateState, addresses: &[IpAddr]) -> Instant {
        let now = start();
        for _ in 0..=(state.max_permits + state.max_waiting) / addresses.len() {
            for address in addresses {
                arrive(state, *address, now);
            }
        }
        now + GRACE
    }

    #[test]
    fn a_newcomer_gets_a_permit_at_once_when_others_are_overdue() {
        let network = |network| (0..=255).map(|number| at(network, number)).collect();
        let floods: [(&str, Vec<IpAddr>, &[IpAddr]); 5] = [
            ("one address", vec![at(1, 1)], &[at(1, 2), at(2, 1)]),
            (
                "two addresses of one network",
                vec![at(1, 1), at(1, 2)],
                &[at(1, 3), at(2, 1)],
            ),
            (
                "two networks",
                vec![at(1, 1), at(2, 1)],
                &[at(1, 2), at(3, 1)],
            ),
            ("a whole network", network(1), &[at(2, 1)]),
            (
                "100 networks",
                (0..100).map(|network| at(network, 1)).collect(),
                &[at(200, 1)],
            ),
        ];
        for (flood, addresses, newcomers) in floods {
            for newcomer in newcomers {
                let mut state = GateState::new(64, 512);
                let later = flooded(&mut state, &addresses);
                // All silent clients have left, and others of the flood have taken their permits.
                state.admit_waiting(later);
                let later = later + GRACE;
                let number = arrive(&mut state, *newcomer, later).unwrap();
                assert!(has_permit(&state, number), "{flood}, {newcomer}");
            }
        }
    }

    #[test]
    fn no_client_is_displaced_within_the_grace_or_by_an_address_with_as_many() {
        let mut state = GateState::new(2, 2);
        let now = start();
        let first = arrive(&mut state, at(1, 1), now).unwrap();
        let second = arrive(&mut state, at(2, 1), now).unwrap();
        let third = arrive(&mut state, at(1, 1), now).unwrap();
        state.admit_waiting(now + GRACE - Duration::from_millis(1));
        assert!(!has_permit(&state, third));
        state.on_request(first);
        state.admit_waiting(now + GRACE);
        // The overdue client's address has no more permits than its own; the other client has sent its request.
        assert!(has_permit(&state, second) && !has_permit(&state, third));
        let other = arrive(&mut state, at(3, 1), now + GRACE).unwrap();
        assert!(has_permit(&state, other));
        assert_eq!(state.stage(second), None);
        assert_eq!(state.stage(first), Some(Stage::Answered));
    }

    #[test]
    fn permits_go_round_networks_and_their_addresses() {
        let mut state = GateState::new(1, 10);
        let now = start();
        let holder = arrive(&mut state, at(9, 9), now).unwrap();
        let flood: Vec<_> = (0..4)
            .map(|number| arrive(&mut state, at(1, number % 2), now).unwrap())
            .collect();
        let other = arrive(&mut state, at(2, 1), now).unwrap();
        state.leave(holder, now);
        let mut order = Vec::new();
        while let Some(next) = (0..state.next).find(|number| has_permit(&state, *number)) {
            order.push(next);
            state.leave(next, now);
        }
        assert_eq!(order, [flood[0], other, flood[1], flood[2], flood[3]]);
    }

    #[test]
    fn a_full_queue_makes_room_for_an_address_with_less_in_it() {
        let mut state = GateState::new(0, 3);
        let now = start();
        let flood: Vec<_> = (0..3)
            .map(|_| arrive(&mut state, at(1, 1), now).unwrap())
            .collect();
        assert_eq!(arrive(&mut state, at(1, 1), now), None);
        assert!(arrive(&mut state, at(1, 2), now).is_some());
        assert_eq!(state.stage(flood[2]), None);
        assert!(arrive(&mut state, at(2, 1), now).is_some());
        assert_eq!(state.stage(flood[1]), None);
        assert!(arrive(&mut state, at(3, 1), now).is_some());
        // Now each network has one, and the client that came last is displaced.
        assert_eq!(arrive(&mut state, at(4, 1), now), None);
        assert_eq!(state.stage(flood[0]), Some(Stage::Waiting));
    }

    #[test]
    fn an_address_has_half_and_a_network_three_quarters_of_the_permits() {
        let mut state = GateState::new(8, 100);
        let now = start();
        let mut permits = |address| {
            let arrived: Vec<_> = (0..8)
                .map(|_| arrive(&mut state, address, now).unwrap())
                .collect();
            let with_permit = arrived.iter().filter(|number| has_permit(&state, **number));
            with_permit.count()
        };
        assert_eq!(permits(at(1, 1)), 4);
        assert_eq!(permits(at(1, 2)), 2);
        assert_eq!(permits(at(2, 1)), 2);
    }

    #[test]
    fn clients_that_have_left_are_removed_entirely() {
        let mut state = GateState::new(2, 3);
        let later = flooded(&mut state, &[at(1, 1), at(1, 2), at(2, 1)]);
        state.admit_waiting(later);
        for number in 0..state.next {
            state.leave(number, later);
        }
        assert!(state.clients.is_empty() && state.addresses.is_empty());
        assert!(state.networks.is_empty() && state.waiting == 0);
    }
}
