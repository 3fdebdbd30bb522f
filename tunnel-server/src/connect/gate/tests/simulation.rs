//! Simulates a fleet of tunnel clients that has lost its server: the gate and the redial rules are the real ones, and
//! clock, processor and network are modelled.
//!
//! ```text
//!   client: wait (redial) ─▶ dial ─▶ no server, or a balancer that closes ─▶ wait …
//!                             └────▶ accept ─▶ gate ─▶ TLS ─▶ request ─▶ served
//!                                               └─▶ rejected ─▶ wait …
//! ```
//!
//! A server's processor does one thing after another; all times are shares of what one handshake takes. Time is paused,
//! random numbers have a seed. `FLEET_CLIENTS=100000` simulates a fleet of that size.

use std::{cell::Cell, net::Ipv4Addr, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{sleep_until, timeout_at};
use tunnel_proto::{
    close::CloseReason,
    redial::{NoSession, Redial, RedialSettings},
};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The limits of both ends on one step of a dial.
const STEP_LIMIT: Duration = Duration::from_secs(10);

/// Shares of the work of one handshake: until its ClientHello is read, for TLS, and for the rest.
const ACCEPT: f64 = 0.05;
const TLS: f64 = 0.55;
const REST: f64 = 0.4;

/// Shares of a rejection: of the response over TLS, beside TLS, and of the one before TLS.
const ANSWER: f64 = 0.05;
const CLOSE: f64 = 0.03;

/// A fleet, and what befalls it.
#[derive(Debug, Clone, Copy)]
struct Fleet {
    clients: usize,
    /// Clients with one address.
    per_address: usize,
    /// Servers that come back, or that are left of a cluster.
    servers: usize,
    /// Handshakes of one server in a second.
    rate: f64,
    /// Most handshakes under way at one server.
    permits: usize,
    /// How long no server listens.
    outage: Duration,
    /// How long a balancer goes on to send a part of the dials to a server that is gone.
    notices_after: Duration,
    /// Round trip between client and server.
    round_trip: Duration,
    /// Whether the clients know nothing of bookings and outages: they wait for the growing delay after whatever fails.
    are_older: bool,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            clients: 2_000,
            per_address: 1,
            servers: 1,
            rate: 2_900.0,
            permits: 64,
            outage: SECOND,
            notices_after: Duration::ZERO,
            round_trip: Duration::ZERO,
            are_older: false,
        }
    }
}

/// What was seen since the servers listen.
#[derive(Debug, Default)]
struct Seen {
    served: Vec<Duration>,
    dials: Vec<Duration>,
    /// Rejected with a response over TLS, and before TLS.
    answered: usize,
    closed: usize,
    /// Begun, but not finished in time or displaced.
    lost: usize,
}

impl Seen {
    fn on_rejection(&mut self, has_response: bool) {
        match has_response {
            true => self.answered += 1,
            false => self.closed += 1,
        }
    }
}

/// A processor.
struct Processor {
    handshake: Duration,
    free_at: Cell<Instant>,
    busy: Cell<Duration>,
}

struct Server {
    gate: Arc<Gate>,
    processor: Processor,
}

/// The servers, and what is counted.
struct World {
    fleet: Fleet,
    began: Instant,
    servers: Vec<Server>,
    seen: Mutex<Seen>,
    /// Work that was done until nine tenths were served.
    busy: Cell<Duration>,
}

/// A random number generator for each client (SplitMix64).
struct Random(u64);

const MISSING: NoSession = NoSession::NoServer(None);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl Processor {
    /// Does this share of a handshake, after all that was begun before.
    async fn work(&self, share: f64) {
        let took = self.handshake.mul_f64(share);
        let done = self.free_at.get().max(Instant::now()) + took;
        self.free_at.set(done);
        self.busy.set(self.busy.get() + took);
        sleep_until(done).await;
    }
}

impl World {
    fn new(fleet: Fleet) -> Self {
        let server = |_| Server {
            gate: Gate::new(fleet.permits, 16_384),
            processor: Processor {
                handshake: Duration::from_secs_f64(1.0 / fleet.rate),
                free_at: Cell::new(Instant::now()),
                busy: Cell::default(),
            },
        };
        Self {
            fleet,
            began: Instant::now(),
            servers: (0..fleet.servers).map(server).collect(),
            seen: Mutex::default(),
            busy: Cell::default(),
        }
    }

    /// The time since the servers listen.
    fn listening_for(&self) -> Option<Duration> {
        (Instant::now() - self.began).checked_sub(self.fleet.outage)
    }

    /// One client: dials until it is served.
    async fn client(&self, number: usize) {
        let mut random = Random(number as u64);
        let mut redial = Redial::new(RedialSettings {
            base: SECOND,
            cap: 30 * SECOND,
            stable: 60 * SECOND,
        });
        let lost = CloseReason::CONNECTION_LOST;
        redial.after_session(lost, 3_600 * SECOND, Instant::now(), random.next());
        let address =
            u32::from(Ipv4Addr::new(10, 0, 0, 0)) + (number / self.fleet.per_address) as u32 * 7;
        loop {
            let now = Instant::now();
            sleep(redial.next_dial(now).after(now)).await;
            let dialled = self
                .dial(Ipv4Addr::from(address).into(), random.next())
                .await;
            let now = Instant::now();
            match dialled {
                Ok(()) => break,
                Err(failure) => {
                    let failure = match failure {
                        NoSession::Queued(_) | NoSession::NoServer(_) if self.fleet.are_older => {
                            NoSession::Refused(None)
                        }
                        failure => failure,
                    };
                    redial.after_failure(failure, now, random.next());
                }
            }
        }
        let mut seen = self.seen.lock();
        seen.served.extend(self.listening_for());
        if seen.served.len() == self.fleet.clients * 9 / 10 {
            let busy = self
                .servers
                .iter()
                .map(|server| server.processor.busy.get());
            self.busy.set(busy.sum());
        }
    }

    async fn dial(&self, address: IpAddr, random: u64) -> Result<(), NoSession> {
        let Some(since) = self.listening_for() else {
            return Err(MISSING);
        };
        self.seen.lock().dials.push(since);
        let gone = usize::from(since < self.fleet.notices_after);
        let chosen = usize::try_from(random >> 32).unwrap_or(0) % (self.servers.len() + gone);
        let server = self.servers.get(chosen).ok_or(MISSING)?;
        let has_begun = Cell::new(false);
        let limit = Instant::now() + STEP_LIMIT;
        let shaken = timeout_at(limit, self.shake(server, address, &has_begun)).await;
        let shaken = shaken.unwrap_or(Err(MISSING));
        if has_begun.get() && shaken == Err(MISSING) {
            self.seen.lock().lost += 1;
        }
        shaken
    }

    /// A handshake with a server; notes when it has begun.
    async fn shake(
        &self,
        server: &Server,
        address: IpAddr,
        has_begun: &Cell<bool>,
    ) -> Result<(), NoSession> {
        let processor = &server.processor;
        sleep(self.fleet.round_trip).await;
        processor.work(ACCEPT).await;
        match server.gate.enter(address, STEP_LIMIT).await {
            Ok(permit) => {
                has_begun.set(true);
                let handshake = async {
                    processor.work(TLS).await;
                    sleep(self.fleet.round_trip).await;
                    permit.on_request();
                    processor.work(REST).await;
                };
                tokio::select! {
                    () = handshake => Ok(()),
                    () = permit.displaced() => Err(MISSING),
                }
            }
            Err(Rejection {
                retry_after,
                permit,
            }) => {
                let has_response = permit.is_some();
                self.seen.lock().on_rejection(has_response);
                let work = if has_response { TLS + ANSWER } else { CLOSE };
                processor.work(work).await;
                sleep(self.fleet.round_trip).await;
                Err(NoSession::Queued(retry_after))
            }
        }
    }
}

impl Fleet {
    /// How long the servers need for all handshakes.
    fn work(&self) -> Duration {
        Duration::from_secs_f64(self.clients as f64 / self.rate / self.servers as f64)
    }

    /// Within which time all are to be served.
    fn goal(&self) -> Duration {
        match self.are_older {
            // Until the longest wait is over, and some of a further one.
            true => self.work() + 45 * SECOND,
            false => {
                let found = (self.outage / 16).max(2 * SECOND);
                self.work().mul_f64(1.2) + found + self.notices_after
            }
        }
    }

    /// Simulates it until all are served; returns what missed its goal.
    async fn faults(&self) -> Vec<String> {
        let world = World::new(*self);
        let clients = (0..self.clients).map(|number| world.client(number));
        let mut clients: FuturesUnordered<_> = clients.collect();
        while clients.next().await.is_some() {}
        drop(clients);
        let seen = world.seen.into_inner();
        let all = seen.served.last().copied().unwrap_or_default();
        let most = seen.served[self.clients * 9 / 10 - 1];
        let busy = world.busy.get().as_secs_f64() / self.servers as f64 / most.as_secs_f64();
        let goal = self.goal();
        let (served, dials) = (seen.served.len(), seen.dials.len());
        let peak = seen
            .dials
            .iter()
            .fold((0, 0, 0), |(second, count, peak), at| {
                let count = 1 + if at.as_secs() == second { count } else { 0 };
                (at.as_secs(), count, peak.max(count))
            });
        let text = format!(
            "{self:?}: all {served} after {all:.1?} (goal {goal:.1?}), 90 % after {most:.1?}, busy {busy:.2}, dials {dials}, \
             {} in a second at most, answered {}, closed {}, lost {}",
            peak.2, seen.answered, seen.closed, seen.lost
        );
        eprintln!("{text}");
        let is_missed = [
            all > goal,
            self.work() > 3 * SECOND && busy < 0.8 && !self.are_older,
            seen.lost > self.clients / 50,
            dials > 4 * self.clients,
        ];
        let names = ["late", "idle", "lost", "too many dials"];
        let missed = names.iter().zip(is_missed).filter(|(_, missed)| *missed);
        missed.map(|(name, _)| format!("{name}: {text}")).collect()
    }
}

async fn check(fleets: &[Fleet]) {
    let mut faults = Vec::new();
    for fleet in fleets {
        faults.extend(fleet.faults().await);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_fleet_whose_server_restarts_is_served_as_fast_as_it_can_be() {
    let fleet = Fleet::default();
    check(&[
        Fleet {
            clients: 10,
            rate: 100.0,
            ..fleet
        },
        fleet,
        Fleet {
            rate: 100.0,
            ..fleet
        },
        Fleet {
            rate: 1_000.0,
            outage: 30 * SECOND,
            ..fleet
        },
        Fleet {
            clients: 500,
            outage: 600 * SECOND,
            ..fleet
        },
        Fleet {
            clients: 10_000,
            ..fleet
        },
        Fleet {
            clients: 10_000,
            rate: 500.0,
            outage: 10 * SECOND,
            ..fleet
        },
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_fleet_behind_few_addresses_is_served_as_fast() {
    let fleet = Fleet {
        per_address: 1_000,
        ..Fleet::default()
    };
    check(&[
        fleet,
        Fleet {
            clients: 5_000,
            rate: 500.0,
            ..fleet
        },
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_fleet_of_most_sizes_is_served_as_fast_after_most_outages() {
    let sizes = [
        (10, 100.0),
        (300, 100.0),
        (300, 500.0),
        (3_000, 500.0),
        (3_000, 5_000.0),
    ];
    let outages = [Duration::ZERO, 5 * SECOND, 60 * SECOND];
    let fleets = sizes.iter().flat_map(|(clients, rate)| {
        outages.map(|outage| Fleet {
            clients: *clients,
            rate: *rate,
            outage,
            ..Fleet::default()
        })
    });
    check(&fleets.collect::<Vec<_>>()).await;
}

/// They come back as fast as their waits let them.
#[tokio::test(start_paused = true)]
async fn older_clients_are_served_too() {
    let fleet = Fleet {
        are_older: true,
        ..Fleet::default()
    };
    check(&[
        fleet,
        Fleet {
            clients: 10_000,
            ..fleet
        },
        Fleet {
            clients: 5_000,
            rate: 500.0,
            ..fleet
        },
    ])
    .await;
}

/// A permit is held for a round trip.
#[tokio::test(start_paused = true)]
async fn a_fleet_far_away_is_served_as_fast_by_enough_permits() {
    let fleet = Fleet {
        clients: 5_000,
        round_trip: Duration::from_millis(100),
        permits: 512,
        ..Fleet::default()
    };
    check(&[
        fleet,
        Fleet {
            clients: 1_000,
            rate: 100.0,
            permits: 64,
            ..fleet
        },
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn clients_of_a_node_that_is_gone_are_taken_by_the_others() {
    let fleet = Fleet {
        clients: 3_333,
        servers: 2,
        rate: 1_000.0,
        outage: Duration::ZERO,
        ..Fleet::default()
    };
    check(&[
        fleet,
        Fleet {
            notices_after: 10 * SECOND,
            ..fleet
        },
    ])
    .await;
}

/// By hand.
#[tokio::test(start_paused = true)]
async fn a_fleet_of_any_size_is_served_as_fast_as_it_can_be() {
    let Some(clients) = std::env::var("FLEET_CLIENTS")
        .ok()
        .and_then(|text| text.parse().ok())
    else {
        return;
    };
    let fleet = Fleet {
        clients,
        outage: 10 * SECOND,
        ..Fleet::default()
    };
    check(&[
        Fleet {
            rate: 5_000.0,
            ..fleet
        },
        fleet,
        Fleet {
            rate: 1_000.0,
            ..fleet
        },
        Fleet {
            outage: 600 * SECOND,
            ..fleet
        },
        Fleet {
            per_address: 1_000,
            ..fleet
        },
    ])
    .await;
}
