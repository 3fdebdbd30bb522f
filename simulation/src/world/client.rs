//! Clients: each keeps two sessions, by the real client's rules for when and where to dial.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tunnel_directory::{
    AccountName, ClaimRefusal, Claimant, OnConflict, RuntimeLabel, RuntimeName,
};
use tunnel_proto::{
    close::CloseReason,
    handshake::{InstanceId, InstanceSecret, Placement},
    redial::{
        LocationId, Locations, NextDial, NoSession, RedialSettings, Search, Servers,
        SessionLocation,
    },
    refusal::RefusalReason,
};

use super::{
    Event, World,
    names::{Address, DialId, DialResult, SessionEnd, SessionId},
};

/// Sessions of a client.
const SESSIONS: usize = 2;

/// Bounds of the waits after failures, as in the client's settings.
const FIRST_WAIT: Duration = Duration::from_secs(1);
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(30);
const STABLE: Duration = Duration::from_secs(60);

/// Bound of the first wait after the runtime was lost to another instance.
pub(crate) const STANDBY: Duration = Duration::from_secs(30);

/// `Retry-After` of a node whose runtime another instance holds, and of one that cannot write.
const HELD_RETRY: Duration = Duration::from_secs(10);
const DIRECTORY_RETRY: Duration = Duration::from_secs(2);

/// Time until a dial that is not answered has failed.
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);

/// The number of the first runtime whose label is that of another one.
pub(crate) const STRANGERS: usize = 100;

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
    servers: Servers,
    locations: Locations,
    /// The slots that need a session, in the order in which they dial.
    queue: VecDeque<usize>,
    /// The dial under way.
    dial: Option<Dial>,
    /// The number of the newest wait for a dial.
    wait: u64,
    /// Another instance has the runtime: nothing is dialled until then.
    stands_by: Option<Instant>,
    pub(crate) is_standby: bool,
    pub(crate) began: Instant,
}

/// One of a client's sessions.
#[derive(Debug, Default)]
struct Slot {
    current: Option<OpenSession>,
    search: Search,
    /// It needs a session, or another one.
    seeks: bool,
}

#[derive(Clone, Copy, Debug)]
struct OpenSession {
    at: Address,
    id: SessionId,
    dial: u64,
    location: LocationId,
    server: usize,
    since: Instant,
}

#[derive(Debug)]
struct Dial {
    id: DialId,
    server: usize,
    peer: SocketAddr,
    placement: Placement,
}

impl Runtime {
    fn new(number: usize) -> Self {
        Self::named(&format!("a{number}"), "x-prod")
    }

    /// The runtime of another account that has the same label.
    pub(crate) fn stranger(number: usize) -> Self {
        Self::named(&format!("a{number}-x"), "prod")
    }

    fn named(account: &str, name: &str) -> Self {
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

    pub(crate) fn claimant<'a>(
        &'a self,
        instance: &'a InstanceId,
        on_conflict: OnConflict,
    ) -> Claimant<'a> {
        Claimant {
            label: &self.label,
            account: &self.account,
            name: &self.name,
            is_listed: false,
            instance,
            on_conflict,
        }
    }
}

impl Client {
    /// Where its open sessions are.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (Address, SessionId)> {
        let open = self.slots.iter().filter_map(|slot| slot.current);
        open.map(|session| (session.at, session.id))
    }

    /// A client that stands by takes the runtime from nobody.
    pub(crate) fn on_conflict(&self) -> OnConflict {
        match self.is_standby {
            true => OnConflict::Reject,
            false => OnConflict::Supersede,
        }
    }

    /// The slot of a session that has this dial's number.
    fn slot_of(&self, dial: DialId) -> Option<usize> {
        let is_of = |slot: &Slot| slot.current.is_some_and(|open| open.dial == dial.number);
        self.slots.iter().position(is_of)
    }
}

impl World {
    /// Starts a client of a runtime: another instance than any before. Returns its number.
    pub(crate) fn start_client(&mut self, number: usize) -> usize {
        self.start_client_of(Runtime::new(number), number)
    }

    pub(crate) fn start_client_of(&mut self, runtime: Runtime, number: usize) -> usize {
        let random = self.random.next_number();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&random.to_be_bytes());
        bytes[8..].copy_from_slice(&self.next_id().to_be_bytes());
        let instance = InstanceSecret::from_random(bytes).id().clone();
        let client = self.clients.len();
        let settings = RedialSettings {
            base: FIRST_WAIT,
            cap: LONGEST_WAIT,
            stable: STABLE,
        };
        let servers = match self.has_balancer {
            true => 1,
            false => self.nodes.len(),
        };
        self.clients.push(Client {
            runtime,
            number,
            instance,
            is_running: true,
            slots: Default::default(),
            servers: Servers::new(servers, &settings, random),
            locations: Locations::default(),
            queue: VecDeque::new(),
            dial: None,
            wait: 0,
            stands_by: None,
            is_standby: false,
            began: self.now,
        });
        for slot in 0..SESSIONS {
            let delay = self.within(100);
            self.after(delay, Event::SlotDials(client, slot));
        }
        client
    }

    /// Ends a client: its connections are closed.
    pub(crate) fn stop_client(&mut self, client: usize) {
        let ended = &mut self.clients[client];
        ended.is_running = false;
        let instance = ended.instance.clone();
        let open: Vec<_> = ended.sessions().collect();
        for slot in &mut ended.slots {
            slot.current = None;
        }
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

    /// The client of a dial that is under way.
    pub(crate) fn client_of(&mut self, dial: DialId) -> Option<&mut Client> {
        let client = &mut self.clients[dial.client];
        let is_current = client
            .dial
            .as_ref()
            .is_some_and(|current| current.id == dial);
        (client.is_running && is_current).then_some(client)
    }

    /// A slot needs a session, or another one.
    pub(crate) fn seek(&mut self, client: usize, slot: usize) {
        let seeking = &mut self.clients[client];
        if !std::mem::replace(&mut seeking.slots[slot].seeks, true) {
            seeking.queue.push_back(slot);
        }
        self.dial_next(client);
    }

    /// A wait for a dial is over.
    pub(crate) fn on_dial_due(&mut self, client: usize, wait: u64) {
        if self.clients[client].wait == wait {
            self.dial_next(client);
        }
    }

    /// Dials for the next slot, or waits until that is due.
    fn dial_next(&mut self, number: usize) {
        let now = self.now;
        let client = &mut self.clients[number];
        if !client.is_running || client.dial.is_some() {
            return;
        }
        let Some(slot) = client.queue.front().copied() else {
            return;
        };
        let (seeking, locations) = (&client.slots[slot], &client.locations);
        let own = seeking.current.map(|open| open.location);
        let load = |server| locations.load(server, own);
        let refused = seeking.search.servers();
        let (server, due) = client.servers.next(now.into(), load, refused);
        let due = match due {
            NextDial::Now => now,
            NextDial::At(at) | NextDial::NotBefore(at) => at.into_std(),
        };
        let due = due.max(client.stands_by.unwrap_or(due));
        if due > now {
            let wait = self.next_id();
            self.clients[number].wait = wait;
            self.after(due - now, Event::DialDue(number, wait));
            return;
        }
        client.stands_by = None;
        client.queue.pop_front();
        client.servers.on_dial(server);
        let placement = client.locations.placement(own, &seeking.search);
        let id = DialId {
            client: number,
            slot,
            number: self.next_id(),
        };
        let node = match self.has_balancer {
            true => self.balance(),
            false => server,
        };
        let peer = SocketAddr::from(([10, 0, 0, 1], u16::try_from(node).unwrap_or(0)));
        self.clients[number].dial = Some(Dial {
            id,
            server,
            peer,
            placement,
        });
        let delay = self.within(20);
        self.after(delay, Event::DialArrives(id, node));
        self.after(DIAL_TIMEOUT, Event::DialEnds(id, DialResult::Unreachable));
    }

    /// The node to which the balancer leads a dial: mostly the next one that is ready.
    fn balance(&mut self) -> usize {
        let all = 0..self.nodes.len();
        let ready: Vec<usize> = all.filter(|node| self.nodes[*node].is_ready()).collect();
        if ready.is_empty() || self.random.below(5) == 0 {
            return self.random.below(self.nodes.len());
        }
        self.balancer_turn += 1;
        ready[self.balancer_turn % ready.len()]
    }

    /// A dial has reached a node.
    pub(crate) fn on_dial(&mut self, dial: DialId, node: usize) {
        let (at, now) = (self.address(node), self.now);
        let Some(client) = self.client_of(dial) else {
            return;
        };
        let (runtime, instance) = (client.runtime.clone(), client.instance.clone());
        let on_conflict = client.on_conflict();
        let placement = client.dial.as_ref().map(|dial| dial.placement.clone());
        let placement = placement.unwrap_or_else(|| Placement::avoiding(Vec::new()));
        let process = self.nodes[node].process.as_ref();
        let result = match process.filter(|process| process.directory.is_ready()) {
            None => Some(DialResult::Unreachable),
            Some(process) => {
                let directory = &process.directory;
                let is_avoided = |name: &tunnel_directory::NodeName| {
                    placement.avoid.iter().any(|node| node == name.as_str())
                };
                match directory.precheck(runtime.claimant(&instance, on_conflict), now) {
                    Err(refusal) => Some(DialResult::Refused(refusal)),
                    Ok(()) => (placement.may_go_elsewhere()
                        && directory.is_better_elsewhere(process.is_leaving, is_avoided))
                    .then_some(DialResult::Elsewhere),
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
        let (now, random) = (self.now, self.random.next_number());
        let Some(client) = self.client_of(dial) else {
            // The client is gone, or has given the dial up: the connection is closed.
            if let DialResult::Welcome(at, session) = result {
                self.after(Duration::ZERO, Event::SessionEnds(at, session));
            }
            return;
        };
        let Some(ended) = client.dial.take() else {
            return;
        };
        let slot = &mut client.slots[dial.slot];
        let redial = client.servers.of(ended.server);
        let mut fail = |failure| redial.after_failure(failure, now.into(), random);
        let goes_on = match result {
            DialResult::Welcome(at, id) if is_open => {
                return self.on_welcome(dial, &ended, (at, id));
            }
            DialResult::Welcome(..) => {
                let lost = CloseReason::CONNECTION_LOST;
                redial.after_session(lost, Duration::ZERO, now.into(), random);
                false
            }
            DialResult::Elsewhere => {
                let reason = Some(RefusalReason::Elsewhere);
                let goes_on = slot.search.goes_on_after(ended.server, ended.peer, reason);
                if !goes_on {
                    fail(NoSession::Refused(Some(Duration::ZERO)));
                }
                goes_on
            }
            DialResult::Superseded => {
                client.queue.push_back(dial.slot);
                return self.stand_by(dial.client);
            }
            DialResult::Refused(refusal) => {
                let after = match refusal {
                    ClaimRefusal::Contested { retry_after, .. } => Some(retry_after),
                    ClaimRefusal::Superseded { .. } | ClaimRefusal::Held { .. } => Some(HELD_RETRY),
                    ClaimRefusal::Unavailable => Some(DIRECTORY_RETRY),
                    ClaimRefusal::LabelTaken(_) => None,
                };
                fail(NoSession::Refused(after));
                false
            }
            DialResult::Unreachable => {
                fail(NoSession::NoServer(None));
                false
            }
        };
        if !goes_on {
            slot.search = Search::default();
        }
        client.queue.push_back(dial.slot);
        self.dial_next(dial.client);
    }

    /// A session is welcome: the former one of its slot leaves.
    fn on_welcome(&mut self, dial: DialId, dialled: &Dial, (at, id): (Address, SessionId)) {
        let now = self.now;
        let node = self.nodes[at.node].name.to_string();
        let client = &mut self.clients[dial.client];
        client.is_standby = false;
        let location = client.locations.add(SessionLocation {
            server: dialled.server,
            peer: dialled.peer,
            node: Some(node),
        });
        let open = OpenSession {
            at,
            id,
            dial: dial.number,
            location,
            server: dialled.server,
            since: now,
        };
        let slot = &mut client.slots[dial.slot];
        (slot.seeks, slot.search) = (false, Search::default());
        if let Some(former) = slot.current.replace(open) {
            client.locations.remove(former.location);
            let delay = self.within(50);
            self.after(delay, Event::SessionEnds(former.at, former.id));
        }
        self.dial_next(dial.client);
    }

    /// Another instance has the runtime: all slots wait.
    fn stand_by(&mut self, number: usize) {
        let wait = STANDBY / 2 + self.part_of(STANDBY / 2);
        let client = &mut self.clients[number];
        client.is_standby = true;
        client.stands_by = Some(self.now + wait);
        for slot in 0..SESSIONS {
            if self.clients[number].slots[slot].current.is_none() {
                self.seek(number, slot);
            }
        }
        self.dial_next(number);
    }

    fn part_of(&mut self, bound: Duration) -> Duration {
        let milliseconds = usize::try_from(bound.as_millis()).unwrap_or(usize::MAX);
        self.within(milliseconds.max(1))
    }

    /// The client notices that a session ends, or is to be left.
    pub(crate) fn on_session_end(&mut self, dial: DialId, end: SessionEnd) {
        let (now, random) = (self.now, self.random.next_number());
        let client = &mut self.clients[dial.client];
        let Some(slot) = client.slot_of(dial).filter(|_| client.is_running) else {
            return;
        };
        let Some(open) = client.slots[slot].current else {
            return;
        };
        let (lived, redial) = (now - open.since, client.servers.of(open.server));
        match end {
            SessionEnd::Drained => {
                client.locations.set_left(open.location, true);
                redial.after_drain(lived, now.into(), random);
                self.seek(dial.client, slot);
            }
            SessionEnd::Lost => {
                client.locations.remove(open.location);
                client.slots[slot].current = None;
                let lost = CloseReason::CONNECTION_LOST;
                redial.after_session(lost, lived, now.into(), random);
                self.seek(dial.client, slot);
            }
            SessionEnd::Superseded => {
                client.locations.remove(open.location);
                client.slots[slot].current = None;
                self.stand_by(dial.client);
            }
        }
    }
}
