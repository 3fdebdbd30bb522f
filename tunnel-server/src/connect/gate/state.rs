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
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tunnel_http::permits::{network, wide_network};

use super::{pace::Pace, ranking::Ranking};

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
    /// The clients with a permit.
    holders: BTreeSet<u64>,
    waiting: usize,
    addresses: HashMap<IpAddr, Address>,
    networks: HashMap<IpAddr, Network>,
    /// The networks with waiting clients in the order in which they get permits: by the number of permits, the last one, and
    /// the first client.
    turns: Ranking<(usize, u64, u64)>,
    /// The networks with waiting clients by their number, that of the address with the most, and its newest.
    queues: Ranking<(usize, usize, u64)>,
    pace: Pace,
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
    waiting: BTreeSet<u64>,
}

/// The clients of one network.
#[derive(Debug, Default)]
struct Network {
    permits: usize,
    last_permit: u64,
    waiting: usize,
    addresses: usize,
    /// The addresses with waiting clients in the order in which they get permits: by the number of permits, the last one,
    /// and the first client.
    turns: Ranking<(usize, u64, u64)>,
    /// The addresses with waiting clients by their number, and the newest of them.
    queues: Ranking<(usize, u64)>,
}

/// A client that gets a permit, and the one that is displaced for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Admission {
    number: u64,
    displaced: Option<u64>,
}

impl GateState {
    pub(super) fn new(max_permits: usize, max_waiting: usize) -> Self {
        Self {
            max_permits,
            max_waiting,
            next: 0,
            last_permit: 0,
            clients: BTreeMap::new(),
            holders: BTreeSet::new(),
            waiting: 0,
            addresses: HashMap::new(),
            networks: HashMap::new(),
            turns: Ranking::default(),
            queues: Ranking::default(),
            pace: Pace::new(),
        }
    }

    /// Adds a client that waits for `patience` at most; returns its number, and what is notified of changes. `None` if there is
    /// neither a permit for it nor room in the queue, and no address has more waiting clients, one of which it could displace.
    /// The queue has room for those that have their permit within half of the time, as there are clients that come later and go
    /// before.
    pub(super) fn arrive(
        &mut self,
        address: IpAddr,
        patience: Duration,
        now: Instant,
    ) -> Option<(u64, Arc<Notify>)> {
        self.pace.on_arrival();
        let (number, changed) = self.add(address);
        self.admit_waiting(now);
        let in_time = self.pace.within(patience / 2).max(self.max_permits);
        if self.waiting > self.max_waiting.min(in_time) {
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
        if self.holders.contains(&number) {
            self.pace.on_end(self.waiting > 0, now);
        }
        self.remove(number);
        self.admit_waiting(now);
    }

    /// When a client is to come that is rejected.
    pub(super) fn retry_after(&mut self, now: Instant) -> Duration {
        self.pace.retry_after(self.waiting, now)
    }

    /// Gives permits to waiting clients while there are any.
    pub(super) fn admit_waiting(&mut self, now: Instant) {
        while self.waiting > 0 {
            // Looked up once for all candidates, of which there may be many.
            let overdue = self.overdue(now);
            let is_full = self.holders.len() >= self.max_permits;
            if is_full && overdue.is_empty() {
                return;
            }
            let Some(admission) = self.admission(&overdue) else {
                return;
            };
            if let Some(number) = admission.displaced {
                self.displace(number);
            }
            self.admit(admission.number, now);
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
                waiting: BTreeSet::new(),
            }
        });
        of_address.waiting.insert(number);
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
        self.rank(address, wide);
        (number, changed)
    }

    /// Puts an address and its network where they belong after a change.
    fn rank(&mut self, address: IpAddr, network: IpAddr) {
        let Some(of_network) = self.networks.get_mut(&network) else {
            self.turns.set(network, None);
            self.queues.set(network, None);
            return;
        };
        let of_address = self.addresses.get(&address);
        let ends = of_address.and_then(|of_address| {
            let waiting = &of_address.waiting;
            Some((of_address, *waiting.first()?, *waiting.last()?))
        });
        let turn = ends.map(|(one, first, _)| (one.permits, one.last_permit, first));
        of_network.turns.set(address, turn);
        let queue = ends.map(|(one, _, last)| (one.waiting.len(), last));
        of_network.queues.set(address, queue);
        // Networks differ in their last permit, or have had none, nor have their addresses: then the first client counts.
        let turn = of_network.turns.first();
        let turn = turn.map(|((.., first), _)| (of_network.permits, of_network.last_permit, first));
        self.turns.set(network, turn);
        let queue = of_network.queues.last();
        let queue = queue.map(|((length, last), _)| (of_network.waiting, length, last));
        self.queues.set(network, queue);
    }

    fn remove(&mut self, number: u64) -> Option<Client> {
        let client = self.clients.remove(&number)?;
        self.holders.remove(&number);
        let of_address = self.addresses.get_mut(&client.address)?;
        let wide = of_address.network;
        let of_network = self.networks.get_mut(&wide)?;
        if client.stage == Stage::Waiting {
            of_address.waiting.remove(&number);
            of_network.waiting -= 1;
            self.waiting -= 1;
        } else {
            of_address.permits -= 1;
            of_network.permits -= 1;
        }
        if of_address.permits == 0 && of_address.waiting.is_empty() {
            of_network.addresses -= 1;
            if of_network.addresses == 0 {
                self.networks.remove(&wide);
            }
            self.addresses.remove(&client.address);
        }
        self.rank(client.address, wide);
        Some(client)
    }

    fn displace(&mut self, number: u64) {
        if let Some(client) = self.remove(number) {
            client.changed.notify_one();
        }
    }

    /// The next client that gets a permit; `None` if nobody can have one.
    fn admission(&self, overdue: &[Overdue]) -> Option<Admission> {
        let is_full = self.holders.len() >= self.max_permits;
        let most = overdue.iter().map(|other| other.of_network).max();
        // While all permits are held, clients of the other networks can displace only those of their own network.
        let first = self.turns.iter();
        let first = first.take_while(|((permits, ..), _)| !is_full || Some(*permits) < most);
        let own = overdue
            .iter()
            .filter_map(|other| self.turns.entry(other.network));
        let own: BTreeSet<_> = own.collect();
        let mut networks = first.chain(own);
        networks.find_map(|(_, network)| self.admission_of_network(network, overdue))
    }

    fn admission_of_network(&self, network: IpAddr, overdue: &[Overdue]) -> Option<Admission> {
        let turns = &self.networks.get(&network)?.turns;
        // The first address has the fewest permits: where it can have none, the others can displace only clients of their own.
        let own = overdue
            .iter()
            .filter_map(|other| turns.entry(other.address));
        let own: BTreeSet<_> = own.collect();
        let mut addresses = turns.first().into_iter().chain(own);
        addresses.find_map(|(_, address)| self.admission_from(address, overdue))
    }

    /// A permit for the first waiting client of an address, for which a silent client is displaced if necessary.
    fn admission_from(&self, address: IpAddr, overdue: &[Overdue]) -> Option<Admission> {
        let of_address = self.addresses.get(&address)?;
        let number = *of_address.waiting.first()?;
        let of_network = self.networks.get(&of_address.network)?;
        // An address has at most half, a network three quarters, so that clients of others need not wait.
        let is_full = self.holders.len() >= self.max_permits
            || of_address.permits >= self.max_permits.div_ceil(2)
            || of_network.permits >= (self.max_permits * 3).div_ceil(4);
        let displaced = match is_full {
            true => Some(self.displaceable(address, overdue)?),
            false => None,
        };
        Some(Admission { number, displaced })
    }

    fn admit(&mut self, number: u64, now: Instant) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        client.stage = Stage::Silent(now);
        client.changed.notify_one();
        let address = client.address;
        self.holders.insert(number);
        self.last_permit += 1;
        self.waiting -= 1;
        let Some(of_address) = self.addresses.get_mut(&address) else {
            return;
        };
        of_address.waiting.remove(&number);
        of_address.permits += 1;
        of_address.last_permit = self.last_permit;
        let network = of_address.network;
        if let Some(of_network) = self.networks.get_mut(&network) {
            of_network.waiting -= 1;
            of_network.permits += 1;
            of_network.last_permit = self.last_permit;
        }
        self.rank(address, network);
    }

    /// The clients that have been silent for too long.
    fn overdue(&self, now: Instant) -> Vec<Overdue> {
        let holders = self.holders.iter();
        let clients = holders.filter_map(|number| Some((number, self.clients.get(number)?)));
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
        let (_, network) = self.queues.last()?;
        let ((_, newest), _) = self.networks.get(&network)?.queues.last()?;
        Some(newest)
    }
}

fn is_overdue(client: &Client, now: Instant) -> bool {
    matches!(client.stage, Stage::Silent(since) if now.duration_since(since) >= GRACE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Address `number` of network `network`.
    fn at(network: u8, number: u8) -> IpAddr {
        [10, 0, network, number].into()
    }

    fn start() -> Instant {
        Instant::now()
    }

    fn arrive(state: &mut GateState, address: IpAddr, now: Instant) -> Option<u64> {
        state
            .arrive(address, 10 * GRACE, now)
            .map(|(number, _)| number)
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
        assert!(state.turns.first().is_none() && state.queues.first().is_none());
        assert!(state.holders.is_empty());
    }

    /// The next admission by a search among all addresses.
    fn admission_by_search(state: &GateState, overdue: &[Overdue]) -> Option<Admission> {
        let waiting = state.addresses.iter();
        let waiting = waiting.filter(|(_, of_address)| !of_address.waiting.is_empty());
        let order = |(address, of_address): (&IpAddr, &Address)| {
            let of_network = &state.networks[&of_address.network];
            let network = (of_network.permits, of_network.last_permit);
            let first = of_address.waiting.first().copied();
            let turn = (of_address.permits, of_address.last_permit, first);
            (network, turn, *address)
        };
        let order: BTreeSet<_> = waiting.map(order).collect();
        let mut addresses = order.into_iter().map(|(.., address)| address);
        addresses.find_map(|address| state.admission_from(address, overdue))
    }

    /// The newest client of the longest queue by a search among all addresses.
    fn newest_by_search(state: &GateState) -> Option<u64> {
        let queues = state.addresses.values().map(|of_address| {
            let in_network = state.networks[&of_address.network].waiting;
            let newest = of_address.waiting.last().copied();
            (in_network, of_address.waiting.len(), newest)
        });
        queues.max()?.2
    }

    proptest! {
        /// The rankings give what a search among all addresses would find.
        #[test]
        fn rankings_agree_with_a_search(
            steps in proptest::collection::vec((0_u8..6, 0_u8..4, 0_u8..4, 0_usize..40, 0_u64..1_000), 1..300),
        ) {
            let (mut state, mut now) = (GateState::new(8, 12), start());
            for (step, network, number, chosen, later) in steps {
                now += Duration::from_millis(later);
                let client = state.clients.keys().nth(chosen % state.clients.len().max(1)).copied();
                match (step, client) {
                    (0, Some(client)) => drop(state.remove(client)),
                    (1, Some(client)) if has_permit(&state, client) => state.on_request(client),
                    _ => drop(state.add(at(network, number))),
                }
                loop {
                    let overdue = state.overdue(now);
                    let admission = state.admission(&overdue);
                    prop_assert_eq!(admission, admission_by_search(&state, &overdue));
                    prop_assert_eq!(state.newest_of_longest_queue(), newest_by_search(&state));
                    let Some(Admission { number, displaced }) = admission else { break };
                    displaced.into_iter().for_each(|displaced| state.displace(displaced));
                    state.admit(number, now);
                }
                if state.waiting > state.max_waiting && let Some(newest) = state.newest_of_longest_queue() {
                    state.displace(newest);
                }
            }
        }
    }
}
