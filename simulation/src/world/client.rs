//! Clients: each keeps two sessions, dials through a balancer, and waits after failures as the real client does.

use std::time::Duration;

use tunnel_directory::{
    AccountName, ClaimRefusal, Claimant, OnConflict, RuntimeLabel, RuntimeName,
};
use tunnel_proto::handshake::{InstanceId, InstanceSecret};

use super::{
    Event, World,
    names::{Address, DialId, DialResult, SessionEnd, SessionId},
};

/// Sessions of a client.
const SESSIONS: usize = 2;

/// Bounds of the waits after failures, as in the client's settings.
const FIRST_WAIT: Duration = Duration::from_secs(1);
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Bound of the first wait after the runtime was lost to another instance.
pub(crate) const STANDBY: Duration = Duration::from_secs(30);

/// Dials in a row that may be sent to another node.
const ELSEWHERE: u32 = 2;

/// Time until a dial that is not answered has failed.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);

/// The runtime of a client.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    pub(crate) label: RuntimeLabel,
    pub(crate) account: AccountName,
    name: RuntimeName,
}

/// A process of a client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) runtime: Runtime,
    /// The number of the runtime, which clients that share a credential have in common.
    pub(crate) number: usize,
    pub(crate) instance: InstanceId,
    pub(crate) is_running: bool,
    slots: [Slot; SESSIONS],
    failures: u32,
    /// Another instance has the runtime: when the next dial is due.
    pub(crate) is_standby: bool,
    pub(crate) began: std::time::Instant,
}

/// One of a client's sessions, or its next dial.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    dial: u64,
    attempt: u32,
    open: Option<(Address, SessionId)>,
}

impl Runtime {
    fn new(number: usize) -> Self {
        let (account, name) = (format!("a{number}"), "prod");
        let parsed = (account.parse(), name.parse());
        let (Ok(account), Ok(name)) = parsed else {
            panic!("{account} and {name} are names");
        };
        let Ok(label) = RuntimeLabel::new(&account, &name) else {
            panic!("they make a label");
        };
        Self {
            label,
            account,
            name,
        }
    }

    pub(crate) fn claimant<'a>(&'a self, instance: &'a InstanceId) -> Claimant<'a> {
        Claimant {
            label: &self.label,
            account: &self.account,
            name: &self.name,
            is_listed: true,
            instance,
            on_conflict: OnConflict::Supersede,
        }
    }
}

impl Client {
    /// Where its open sessions are.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (Address, SessionId)> {
        self.slots.iter().filter_map(|slot| slot.open)
    }
}

impl World {
    /// Starts a client of a runtime: another instance than any before. Returns its number.
    pub(crate) fn start_client(&mut self, number: usize) -> usize {
        let random = self.random.next_number().to_be_bytes();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&random);
        bytes[8..].copy_from_slice(&self.next_id().to_be_bytes());
        let instance = InstanceSecret::from_random(bytes).id().clone();
        let client = self.clients.len();
        self.clients.push(Client {
            runtime: Runtime::new(number),
            number,
            instance,
            is_running: true,
            slots: [Slot::default(); SESSIONS],
            failures: 0,
            is_standby: false,
            began: self.now,
        });
        for slot in 0..SESSIONS {
            let delay = self.within(100);
            self.dial_after(client, slot, delay);
        }
        client
    }

    /// Ends a client: its connections are closed.
    pub(crate) fn stop_client(&mut self, client: usize) {
        let ended = &mut self.clients[client];
        ended.is_running = false;
        let instance = ended.instance.clone();
        let open: Vec<_> = ended
            .slots
            .iter_mut()
            .filter_map(|slot| slot.open.take())
            .collect();
        self.history.on_stopped(&instance, self.now);
        for (at, session) in open {
            let delay = self.within(20);
            self.after(delay, Event::SessionEnds(at, session));
        }
    }

    /// The running client of a runtime that was started last.
    pub(crate) fn running_client(&self, number: usize) -> Option<usize> {
        let clients = self.clients.iter().enumerate();
        let mut clients =
            clients.filter(|(_, client)| client.number == number && client.is_running);
        clients.next_back().map(|(at, _)| at)
    }

    pub(crate) fn stop_all_clients(&mut self) {
        for client in 0..self.clients.len() {
            if self.clients[client].is_running {
                self.stop_client(client);
            }
        }
    }

    /// The client of a dial that is the newest of its slot.
    pub(crate) fn client_of(&mut self, dial: DialId) -> Option<&mut Client> {
        let client = &mut self.clients[dial.client];
        let is_current = client.is_running && client.slots[dial.slot].dial == dial.number;
        is_current.then_some(client)
    }

    fn dial_after(&mut self, client: usize, slot: usize, delay: Duration) {
        let number = self.next_id();
        self.clients[client].slots[slot].dial = number;
        let dial = DialId {
            client,
            slot,
            number,
        };
        self.after(delay, Event::Dial(client, dial));
    }

    /// A dial: the balancer picks a node, mostly one that is ready.
    pub(crate) fn dial(&mut self, client: usize, dial: DialId) {
        if self.client_of(dial).is_none() {
            return;
        }
        self.clients[client].slots[dial.slot].open = None;
        let ready: Vec<usize> = (0..self.nodes.len())
            .filter(|node| self.nodes[*node].is_ready())
            .collect();
        let node = match ready.is_empty() || self.random.below(5) == 0 {
            true => self.random.below(self.nodes.len()),
            false => self.random.pick(&ready),
        };
        let delay = self.within(20);
        self.after(delay, Event::DialArrives(dial, node));
        self.after(DIAL_TIMEOUT, Event::DialEnds(dial, DialResult::Unreachable));
    }

    /// A dial has reached a node.
    pub(crate) fn on_dial(&mut self, dial: DialId, node: usize) {
        let at = self.address(node);
        let now = self.now;
        let name = |world: &Self, node: usize| world.nodes[node].name.clone();
        let Some(client) = self.client_of(dial) else {
            return;
        };
        let (runtime, instance) = (client.runtime.clone(), client.instance.clone());
        let attempt = client.slots[dial.slot].attempt;
        let held: Vec<usize> = client.sessions().map(|(at, _)| at.node).collect();
        let avoid: Vec<_> = held.into_iter().map(|node| name(self, node)).collect();
        let own = name(self, node);
        let result = match self.nodes[node].process.as_ref() {
            None => Some(DialResult::Unreachable),
            Some(process) if !process.directory.is_ready() => Some(DialResult::Unreachable),
            Some(process) => {
                let is_bad = process.is_leaving
                    || process.directory.state().is_behind()
                    || avoid.contains(&own);
                let directory = &process.directory;
                let is_better_elsewhere =
                    is_bad && directory.has_other_serving(|name| avoid.contains(name));
                if is_better_elsewhere && attempt < ELSEWHERE {
                    Some(DialResult::Elsewhere)
                } else {
                    let checked = directory.precheck(runtime.claimant(&instance), now);
                    checked.err().map(DialResult::Refused)
                }
            }
        };
        match result {
            Some(result) => {
                let delay = self.within(10);
                self.after(delay, Event::DialEnds(dial, result));
            }
            None => self.claim(at, dial),
        }
    }

    pub(crate) fn on_dial_end(&mut self, dial: DialId, result: DialResult) {
        // The session may have ended while its welcome was on its way.
        let is_open = match result {
            DialResult::Welcome(at, session) => self.is_open(at, session),
            _ => false,
        };
        let Some(client) = self.client_of(dial) else {
            // The client is gone, or has given the dial up: the connection is closed.
            if let DialResult::Welcome(at, session) = result {
                self.after(Duration::ZERO, Event::SessionEnds(at, session));
            }
            return;
        };
        let slot = &mut client.slots[dial.slot];
        if slot.open.is_some() {
            return;
        }
        match result {
            DialResult::Welcome(..) if !is_open => {
                self.dial_again(dial, Duration::ZERO);
            }
            DialResult::Welcome(at, session) => {
                slot.open = Some((at, session));
                slot.attempt = 0;
                client.failures = 0;
                client.is_standby = false;
            }
            DialResult::Elsewhere => {
                slot.attempt += 1;
                self.dial_after(dial.client, dial.slot, Duration::ZERO);
            }
            DialResult::Superseded | DialResult::Refused(ClaimRefusal::Superseded { .. }) => {
                self.stand_by(dial.client);
            }
            DialResult::Refused(ClaimRefusal::Contested { retry_after, .. }) => {
                self.dial_again(dial, retry_after);
            }
            DialResult::Refused(_) | DialResult::Unreachable => {
                self.dial_again(dial, Duration::ZERO);
            }
        }
    }

    fn dial_again(&mut self, dial: DialId, not_before: Duration) {
        let client = &mut self.clients[dial.client];
        client.slots[dial.slot].attempt = 0;
        let bound = FIRST_WAIT
            .saturating_mul(1 << client.failures.min(10))
            .min(LONGEST_WAIT);
        client.failures += 1;
        let wait = self.part_of(bound);
        self.dial_after(dial.client, dial.slot, not_before + wait);
    }

    /// Another instance has the runtime: both slots wait.
    fn stand_by(&mut self, client: usize) {
        self.clients[client].is_standby = true;
        let wait = STANDBY / 2 + self.part_of(STANDBY / 2);
        for slot in 0..SESSIONS {
            if self.clients[client].slots[slot].open.is_none() {
                self.dial_after(client, slot, wait);
            }
        }
    }

    fn part_of(&mut self, bound: Duration) -> Duration {
        let milliseconds = usize::try_from(bound.as_millis()).unwrap_or(usize::MAX);
        self.within(milliseconds.max(1))
    }

    /// The client notices that a session is over.
    pub(crate) fn on_session_end(&mut self, dial: DialId, end: SessionEnd) {
        let Some(client) = self.client_of(dial) else {
            return;
        };
        let slot = &mut client.slots[dial.slot];
        if slot.open.take().is_none() {
            return;
        }
        match end {
            SessionEnd::Superseded => self.stand_by(dial.client),
            SessionEnd::Lost | SessionEnd::Drained => {
                let wait = self.within(250);
                self.dial_after(dial.client, dial.slot, wait);
            }
        }
    }
}
