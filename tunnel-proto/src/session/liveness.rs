//! Whether the other end still lives: when to ping, when to send nothing new, when to give up, how long a
//! round trip takes.
//!
//! ```text
//!                 sent, and silent          silent for what the path is known to need
//!   no suspicion ───── 1 s ─────▶ ping ────── at least 2 s ──────▶ suspect ── 12 s more ──▶ dead
//!        ▲                          │                                 │
//!        └────────────────── anything heard ──────────────────────────┘
//! ```
//!
//! Two decisions are taken apart. A suspect session gets no new exchange, which costs nothing if the suspicion is
//! wrong, so it is raised early. A dead one is closed, and every exchange that is open on it is lost, so the
//! verdict waits until TCP has had the time to repeat what a short interruption of the path has swallowed.
//!
//! While an exchange waits for its answer, silence alone is as suspicious, whatever was heard before: an end
//! that may take long to answer is asked about once a second whether it is still there.
//!
//! Pure: it takes the time as an argument and says what to do. A session is dead when a suspect one stays
//! silent; when nothing at all was heard for two intervals; or when pings went unanswered for four although
//! other bytes came, which happens when a proxy on the way answers for a peer that is gone. It never calls a
//! path dead for being slow, as far as it knows how slow it is.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Intervals without any sign of life after which a session is dead.
const SILENT_INTERVALS: u32 = 2;
/// Intervals without a pong after which a session is dead, whatever else was heard.
const UNANSWERED_INTERVALS: u32 = 4;

/// Silence after something was sent that raises suspicion.
const SUSPICIOUS: Duration = Duration::from_secs(1);
/// Time to answer the ping that follows, at least.
const ANSWER: Duration = Duration::from_secs(2);
/// Silence of a suspect session after which it is dead. With the two before it makes 15 s: a TCP sender whose
/// round trip is short repeats about 0.2, 0.7, 1.6, 3.4, 7 and 14 s after the first loss, and every path that is
/// back by then has shown it.
const REPRIEVE: Duration = Duration::from_secs(12);
/// As many of the slowest round trips are waited for, since a path that is busy is slower than it was.
const ROUND_TRIPS: u32 = 4;
/// Bytes each second that any path is thought to carry: what lies before the ping has to pass first.
const SLOWEST_RATE: u64 = 32 * 1024;
/// Of a path that has carried more, this many times as much is expected.
const TRUST: u64 = 2;
/// Bytes not known to have arrived above which an answer has [`HEAVY_ANSWER`]: so many stand in the
/// buffers of the path, and that may have become much narrower than it was.
const HEAVY_BYTES: u64 = 256 * 1024;
/// Time to answer a ping that stands behind so much, at least.
const HEAVY_ANSWER: Duration = Duration::from_secs(5);
/// Bytes not known to have arrived that make a ping worth while, by which more of them are.
const UNPROVEN_BYTES: u64 = SLOWEST_RATE;
/// This end was held up itself when it finds out so much too late that the time is over: perhaps it
/// has not even read what the other end said.
const LATE: Duration = Duration::from_millis(500);

/// Pings whose sending is remembered. More are on their way only where a round trip takes very long.
const PINGS: usize = 8;
/// What a new value counts for in the smoothed one (as in RFC 6298), and what the extremes lose with it.
const SMOOTHING: u32 = 8;

/// What is due now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing before the next deadline.
    Nothing,
    /// Send the ping with this number: an interval is over.
    Ping(u64),
    /// Send a ping with this number as payload, to find out more.
    Probe(u64),
    /// Call [`Liveness::become_suspect`], unless something has come in this very moment.
    Suspect,
    /// Give up.
    Dead,
}

/// A ping that was sent.
#[derive(Debug, Clone, Copy)]
struct Ping {
    number: u64,
    at: Instant,
    /// Bytes that were sent before it.
    bytes: u64,
}

/// Whether the other end is thought to be gone.
#[derive(Debug, Clone, Copy)]
enum Suspicion {
    None,
    /// Something was sent: a ping follows now, unless anything is heard before.
    PingAt(Instant),
    /// The ping is sent: suspect then, unless anything is heard before. `None` while nothing is known of
    /// how long a round trip takes.
    SuspectAt(Option<Instant>),
    /// The other end is suspect: dead then, unless anything is heard before.
    DeadAt(Instant),
}

/// What the round trips of a session were like.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundTrips {
    /// The last one.
    pub(super) last: Duration,
    /// Their moving average.
    pub(super) smoothed: Duration,
    /// The longest of late.
    pub(super) slowest: Duration,
}

/// The ping plan of one session.
#[derive(Debug)]
pub(super) struct Liveness {
    interval: Duration,
    last_heard: Instant,
    last_pong: Instant,
    next_ping: Instant,
    /// Pings without an answer, the oldest first.
    pings: VecDeque<Ping>,
    number: u64,
    /// The last ping with an answer.
    answered: Option<Ping>,
    round_trips: Option<RoundTrips>,
    suspicion: Suspicion,
    last_sent: Option<Instant>,
    /// Bytes sent in all.
    bytes: u64,
    /// Bytes each second that the path has carried of late, at least.
    rate: u64,
}

impl Liveness {
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        // The first ping at once: it measures the round trip and proves the path.
        Self {
            interval,
            last_heard: now,
            last_pong: now,
            next_ping: now,
            pings: VecDeque::new(),
            number: 0,
            answered: None,
            round_trips: None,
            suspicion: Suspicion::None,
            last_sent: None,
            bytes: 0,
            rate: 0,
        }
    }

    /// This many bytes are on their way that call for an answer, sooner or later. Like the two that
    /// follow, it says whether [`Self::deadline`] may have come nearer, or is to be looked at.
    pub(super) fn on_sent(&mut self, bytes: usize, now: Instant) -> bool {
        self.bytes += bytes as u64;
        self.last_sent = Some(now);
        let is_new = matches!(self.suspicion, Suspicion::None);
        if is_new {
            self.suspicion = Suspicion::PingAt(now + SUSPICIOUS);
        }
        is_new
    }

    /// The socket was full and takes more again: something on the way there lives, which is no word of
    /// the other end. It puts off what the suspicion leads to next.
    pub(super) fn on_taken(&mut self, now: Instant) -> bool {
        match &mut self.suspicion {
            Suspicion::None => false,
            Suspicion::DeadAt(at) => {
                *at = now + REPRIEVE;
                false
            }
            Suspicion::PingAt(_) | Suspicion::SuspectAt(_) => self.wait_from(now),
        }
    }

    /// Something was received.
    pub(super) fn on_heard(&mut self, now: Instant) -> bool {
        self.last_heard = now;
        if matches!(self.suspicion, Suspicion::None) {
            return false;
        }
        // What was sent a moment ago cannot have been answered: the other end may have gone since.
        let round_trip = self.round_trips.map_or(Duration::ZERO, |all| all.last);
        match self.last_sent {
            Some(sent) if now < sent + round_trip => self.wait_from(sent),
            _ => {
                let was_asked = self.is_asked();
                self.suspicion = Suspicion::None;
                was_asked
            }
        }
    }

    /// Somebody waits for a word of the other end, whatever it has said before: it is asked once it has been
    /// silent for as long as is suspicious.
    pub(super) fn on_waited_for(&mut self) {
        if matches!(self.suspicion, Suspicion::None) {
            self.suspicion = Suspicion::PingAt(self.last_heard + SUSPICIOUS);
        }
    }

    /// Whether a ping is out that a suspicion has called for.
    fn is_asked(&self) -> bool {
        matches!(
            self.suspicion,
            Suspicion::SuspectAt(_) | Suspicion::DeadAt(_)
        )
    }

    /// Whether nothing new should be handed to the other end for now.
    pub(super) fn is_suspect(&self) -> bool {
        matches!(self.suspicion, Suspicion::DeadAt(_))
    }

    /// Begins anew to wait for an answer.
    fn wait_from(&mut self, sent: Instant) -> bool {
        let was_asked = self.is_asked();
        self.suspicion = Suspicion::PingAt(sent + SUSPICIOUS);
        was_asked
    }

    /// The pong to the ping with this number was received; whether it has measured a round trip.
    pub(super) fn on_pong(&mut self, number: u64, now: Instant) -> bool {
        self.on_heard(now);
        if number == 0 || number > self.number {
            return false;
        }
        // On a slow path it may answer an earlier ping than the last: proof enough.
        self.last_pong = now;
        let mut answered = None;
        // An end may answer the last of several pings alone (RFC 6455 section 5.5.3).
        while self.pings.front().is_some_and(|ping| ping.number <= number) {
            answered = self.pings.pop_front();
        }
        match answered {
            Some(ping) if ping.number == number => self.measure(ping, now),
            _ => return false,
        }
        true
    }

    fn measure(&mut self, ping: Ping, now: Instant) {
        let time = now - ping.at;
        self.round_trips = Some(match self.round_trips {
            None => RoundTrips {
                last: time,
                smoothed: time,
                slowest: time,
            },
            Some(before) => RoundTrips {
                last: time,
                smoothed: before.smoothed - before.smoothed / SMOOTHING + time / SMOOTHING,
                slowest: time.max(before.slowest - before.slowest / SMOOTHING),
            },
        });
        if let Some(before) = self.answered.replace(ping) {
            // All that was sent between the two has passed since the first of them.
            let millis = u64::try_from((now - before.at).as_millis()).unwrap_or(u64::MAX);
            let shown = (ping.bytes - before.bytes).saturating_mul(1_000) / millis.max(1);
            self.rate = shown.max(self.rate - self.rate / u64::from(SMOOTHING));
        }
    }

    /// Suspects the other end without having sent anything: a ping is due now.
    pub(super) fn suspect(&mut self, now: Instant) {
        if !self.is_asked() {
            self.suspicion = Suspicion::PingAt(now);
        }
    }

    /// What is due at this moment. Call it when [`Self::deadline`] has come.
    pub(super) fn on_time(&mut self, now: Instant) -> Due {
        if now >= self.silent_until() {
            return Due::Dead;
        }
        match self.suspicion {
            Suspicion::SuspectAt(Some(at)) | Suspicion::DeadAt(at) if now >= at + LATE => {
                return Due::Probe(self.probe(now));
            }
            Suspicion::SuspectAt(Some(at)) if now >= at => return Due::Suspect,
            Suspicion::DeadAt(at) if now >= at => return Due::Dead,
            Suspicion::PingAt(at) if now >= at => return Due::Probe(self.probe(now)),
            _ => {}
        }
        if self.pings.is_empty() && self.unproven_bytes() > UNPROVEN_BYTES {
            return Due::Probe(self.ping(now));
        }
        if now < self.next_ping {
            return Due::Nothing;
        }
        self.next_ping = now + self.interval;
        Due::Ping(self.ping(now))
    }

    /// The other end is suspect from now on, until something is heard of it.
    pub(super) fn become_suspect(&mut self, now: Instant) {
        self.suspicion = Suspicion::DeadAt(now + REPRIEVE);
    }

    fn probe(&mut self, now: Instant) -> u64 {
        self.suspicion = Suspicion::SuspectAt(self.patience().map(|patience| now + patience));
        self.ping(now)
    }

    fn ping(&mut self, now: Instant) -> u64 {
        self.number += 1;
        if self.pings.len() < PINGS {
            self.pings.push_back(Ping {
                number: self.number,
                at: now,
                bytes: self.bytes,
            });
        }
        self.number
    }

    /// How long the answer to a ping that is sent now may take, if anything is known of that.
    fn patience(&self) -> Option<Duration> {
        let round_trips = self.round_trips?;
        let rate = SLOWEST_RATE.max(self.rate.saturating_mul(TRUST));
        let unproven = self.unproven_bytes();
        let passing = Duration::from_millis(unproven.saturating_mul(1_000) / rate);
        let least = match unproven > HEAVY_BYTES {
            true => HEAVY_ANSWER,
            false => ANSWER,
        };
        Some(least.max(round_trips.slowest * ROUND_TRIPS).max(passing))
    }

    /// Bytes that were sent and may still be on their way, for all that pongs have shown.
    fn unproven_bytes(&self) -> u64 {
        self.bytes - self.answered.map_or(0, |ping| ping.bytes)
    }

    /// When [`Self::on_time`] is to be asked next.
    pub(super) fn deadline(&self) -> Instant {
        let next = self.next_ping.min(self.silent_until());
        match self.suspicion {
            Suspicion::PingAt(at) | Suspicion::SuspectAt(Some(at)) | Suspicion::DeadAt(at) => {
                next.min(at)
            }
            Suspicion::None | Suspicion::SuspectAt(None) => next,
        }
    }

    fn silent_until(&self) -> Instant {
        let silent = self.last_heard + self.interval * SILENT_INTERVALS;
        silent.min(self.last_pong + self.interval * UNANSWERED_INTERVALS)
    }

    /// What the round trips were like, if any was measured.
    pub(super) fn round_trips(&self) -> Option<RoundTrips> {
        self.round_trips
    }

    /// When the last ping was sent that was answered: whatever was sent before has arrived.
    pub(super) fn arrived_until(&self) -> Option<Instant> {
        self.answered.map(|ping| ping.at)
    }
}

#[cfg(test)]
mod tests;
