//! Decides whether the other end is alive: when to ping, when to start no new exchange, when to end the
//! session; and measures round trips.
//!
//! ```text
//!                 sent, then silence        silence for as long as the path needs
//!     heard   ─────── 1 s ─────▶ ping ────── at least 2 s ──────▶ silent ─── 12 s more ──▶ dead
//!        ▲                          │                                 │
//!        └────────────────── anything received ───────────────────────┘
//! ```
//! (the times are those for any path; [`SilenceLimits`] has shorter ones)
//!
//! These are two separate decisions. A silent session gets no new exchange; a false alarm costs
//! nothing, so it is raised early. A dead session is closed and all its open exchanges are lost, so that
//! decision waits until TCP has had time to retransmit what a short interruption of the path has lost.
//!
//! While an exchange waits for its response, silence alone causes a ping, whatever was received before:
//! an end that takes long to respond is pinged about once a second.
//!
//! Pure: takes the time as an argument and returns what to do. A session is dead when it is silent and
//! stays silent; when nothing was received for two ping intervals; or when no pong was received for four
//! although other bytes were, which happens when a proxy on the path answers for a peer that is gone. A
//! slow path is not declared dead, as far as measurements show how slow it is.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::control::millis;

/// Ping intervals without any received byte after which a session is dead.
const SILENT_INTERVALS: u32 = 2;
/// Ping intervals without a pong after which a session is dead, whatever else was received.
const UNANSWERED_INTERVALS: u32 = 4;

/// How long the other end may be silent, by the path to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilenceLimits {
    /// Silence after something was sent, after which a ping is sent.
    ping_after: Duration,
    /// Least time allowed for the answer to that ping.
    answer: Duration,
    /// Further silence of a silent session after which it is dead.
    silent: Duration,
    /// Least time allowed for the answer to a ping that is queued behind [`HEAVY_BYTES`].
    heavy_answer: Duration,
    /// A timer that fires this much too late shows that this end itself was delayed, and may not have read what
    /// has arrived. It pings again instead of deciding.
    late: Duration,
}

impl SilenceLimits {
    /// For any path. Its first three times make 15 s: a TCP sender with a short round trip retransmits about 0.2, 0.7, 1.6,
    /// 3.4, 7 and 14 s after the first loss, so a path that is back within 14 s has delivered something by then.
    pub const ANY_PATH: Self = Self {
        ping_after: Duration::from_secs(1),
        answer: Duration::from_secs(2),
        silent: Duration::from_secs(12),
        heavy_answer: Duration::from_secs(5),
        late: Duration::from_millis(500),
    };

    /// For a path within a data centre, where it is better to go another way than to wait: dead 0.7 s after the first
    /// silence.
    pub const DATA_CENTRE: Self = Self {
        ping_after: Duration::from_millis(200),
        answer: Duration::from_millis(300),
        silent: Duration::from_millis(200),
        heavy_answer: Duration::from_secs(1),
        late: Duration::from_millis(100),
    };
}

/// Multiple of the slowest round trip that is allowed for an answer, since a path that has become busy is
/// slower than it was.
const ROUND_TRIPS: u32 = 4;
/// Bytes each second that any path is assumed to carry: bytes sent before the ping have to pass first.
const SLOWEST_RATE: u64 = 32 * 1024;
/// Multiple of the measured rate that a faster path is assumed to carry.
const RATE_FACTOR: u64 = 2;
/// Unconfirmed bytes above which an answer may take [`SilenceLimits::heavy_answer`]: so many wait in the buffers of
/// the path, and its bandwidth may have dropped far below the measured rate.
const HEAVY_BYTES: u64 = 256 * 1024;
/// Unconfirmed bytes above which a ping is sent in order to confirm them.
const UNCONFIRMED_BYTES: u64 = SLOWEST_RATE;

/// Unanswered pings that are remembered. More are in flight only where a round trip takes very long.
const PINGS_REMEMBERED: usize = 8;
/// Weight of a new value in the moving average, 1/8 as in RFC 6298, and the share by which the extremes
/// decay with each.
const SMOOTHING: u32 = 8;

/// What the driver has to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LivenessAction {
    /// Nothing before the next deadline.
    Nothing,
    /// Send the ping with this number: a ping interval has passed.
    Ping(u64),
    /// Send the ping with this number before the interval has passed: the other end is silent, or sent bytes are to be
    /// confirmed.
    ExtraPing(u64),
    /// Process what has arrived; if nothing has, call [`Liveness::become_silent`].
    Silent,
    /// End the session.
    Dead,
}

/// A ping that was sent.
#[derive(Debug, Clone, Copy)]
struct Ping {
    number: u64,
    at: Instant,
    /// Bytes sent before it.
    bytes: u64,
}

/// The steps of a silence of the other end. Received bytes end or restart it.
#[derive(Debug, Clone, Copy)]
enum Silence {
    None,
    /// Something was sent, or a response is awaited: a ping follows at this moment.
    PingAt(Instant),
    /// The ping was sent: the other end is silent at this moment. `None` before the first measured round
    /// trip.
    SilentAt(Option<Instant>),
    /// The other end is silent, and dead at this moment.
    DeadAt(Instant),
}

/// The measured round trips of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundTrips {
    /// The last one.
    pub(super) last: Duration,
    /// The moving average.
    pub(super) smoothed: Duration,
    /// The longest recent one: a maximum that decays.
    pub(super) slowest: Duration,
}

/// The state of the liveness check of one session.
#[derive(Debug)]
pub(super) struct Liveness {
    interval: Duration,
    limits: SilenceLimits,
    last_received: Instant,
    last_pong: Instant,
    next_ping: Instant,
    /// Pings without an answer, the oldest first.
    pings: VecDeque<Ping>,
    number: u64,
    /// The last ping that was answered.
    answered: Option<Ping>,
    round_trips: Option<RoundTrips>,
    silence: Silence,
    last_sent: Option<Instant>,
    /// Bytes sent in all.
    bytes: u64,
    /// Bytes each second that the path has recently carried, at least.
    rate: u64,
}

impl Liveness {
    pub(super) fn new(interval: Duration, limits: SilenceLimits, now: Instant) -> Self {
        // The first ping is due at once: it measures the round trip and proves the path.
        Self {
            interval,
            limits,
            last_received: now,
            last_pong: now,
            next_ping: now,
            pings: VecDeque::new(),
            number: 0,
            answered: None,
            round_trips: None,
            silence: Silence::None,
            last_sent: None,
            bytes: 0,
            rate: 0,
        }
    }

    /// Records that bytes were sent, for which the other end has to send something sooner or later. Like
    /// the next two functions, returns whether the caller has to check [`Self::deadline`] again.
    pub(super) fn on_sent(&mut self, bytes: usize, now: Instant) -> bool {
        self.bytes += bytes as u64;
        self.last_sent = Some(now);
        let is_new = matches!(self.silence, Silence::None);
        if is_new {
            self.silence = Silence::PingAt(now + self.limits.ping_after);
        }
        is_new
    }

    /// Records that a full socket has taken more bytes: something on the path works, though not necessarily
    /// the other end. Postpones the next step, and does not end the silence.
    pub(super) fn on_socket_resumed(&mut self, now: Instant) -> bool {
        match &mut self.silence {
            Silence::None => false,
            Silence::DeadAt(at) => {
                *at = now + self.limits.silent;
                false
            }
            Silence::PingAt(_) | Silence::SilentAt(_) => self.wait_from(now),
        }
    }

    /// Records that something was received.
    pub(super) fn on_received(&mut self, now: Instant) -> bool {
        self.last_received = now;
        if matches!(self.silence, Silence::None) {
            return false;
        }
        // Bytes sent less than a round trip ago cannot have been answered yet: the silence restarts.
        let round_trip = self.round_trips.map_or(Duration::ZERO, |all| all.last);
        match self.last_sent {
            Some(sent) if now < sent + round_trip => self.wait_from(sent),
            _ => {
                let had_pinged = self.has_pinged();
                self.silence = Silence::None;
                had_pinged
            }
        }
    }

    /// Records that a response is awaited: a ping follows once the other end has been silent for
    /// [`SilenceLimits::ping_after`], whatever it sent before.
    pub(super) fn on_response_awaited(&mut self) {
        if matches!(self.silence, Silence::None) {
            self.silence = Silence::PingAt(self.last_received + self.limits.ping_after);
        }
    }

    /// Whether the silence has caused a ping.
    fn has_pinged(&self) -> bool {
        matches!(self.silence, Silence::SilentAt(_) | Silence::DeadAt(_))
    }

    /// Whether the other end is silent.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.silence, Silence::DeadAt(_))
    }

    /// Restarts the silence from a moment at which something was sent; whether a ping was already out.
    fn wait_from(&mut self, sent: Instant) -> bool {
        let had_pinged = self.has_pinged();
        self.silence = Silence::PingAt(sent + self.limits.ping_after);
        had_pinged
    }

    /// Records the pong to the ping with this number; whether it has measured a round trip.
    pub(super) fn on_pong(&mut self, number: u64, now: Instant) -> bool {
        self.on_received(now);
        if number == 0 || number > self.number {
            return false;
        }
        // On a slow path this may answer an earlier ping than the last, which is proof enough.
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
            // All bytes sent between the two pings have passed since the first of them.
            let took = millis(now - before.at).max(1);
            let measured = (ping.bytes - before.bytes).saturating_mul(1_000) / took;
            self.rate = measured.max(self.rate - self.rate / u64::from(SMOOTHING));
        }
    }

    /// Makes a ping due now, without anything having been sent.
    pub(super) fn ping_now(&mut self, now: Instant) {
        if !self.has_pinged() {
            self.silence = Silence::PingAt(now);
        }
    }

    /// What to do at this moment. To be called when [`Self::deadline`] has passed.
    pub(super) fn on_time(&mut self, now: Instant) -> LivenessAction {
        if now >= self.silent_until() {
            return LivenessAction::Dead;
        }
        match self.silence {
            Silence::SilentAt(Some(at)) | Silence::DeadAt(at) if now >= at + self.limits.late => {
                return LivenessAction::ExtraPing(self.timed_ping(now));
            }
            Silence::SilentAt(Some(at)) if now >= at => return LivenessAction::Silent,
            Silence::DeadAt(at) if now >= at => return LivenessAction::Dead,
            Silence::PingAt(at) if now >= at => {
                return LivenessAction::ExtraPing(self.timed_ping(now));
            }
            _ => {}
        }
        if self.pings.is_empty() && self.unconfirmed_bytes() > UNCONFIRMED_BYTES {
            return LivenessAction::ExtraPing(self.ping(now));
        }
        if now < self.next_ping {
            return LivenessAction::Nothing;
        }
        self.next_ping = now + self.interval;
        LivenessAction::Ping(self.ping(now))
    }

    /// Takes the other end for silent until something is received from it.
    pub(super) fn become_silent(&mut self, now: Instant) {
        self.silence = Silence::DeadAt(now + self.limits.silent);
    }

    /// A ping whose answer is due at a certain time.
    fn timed_ping(&mut self, now: Instant) -> u64 {
        self.silence = Silence::SilentAt(self.answer_time().map(|time| now + time));
        self.ping(now)
    }

    fn ping(&mut self, now: Instant) -> u64 {
        self.number += 1;
        if self.pings.len() < PINGS_REMEMBERED {
            self.pings.push_back(Ping {
                number: self.number,
                at: now,
                bytes: self.bytes,
            });
        }
        self.number
    }

    /// Time allowed for the answer to a ping that is sent now; `None` before the first measured round trip.
    fn answer_time(&self) -> Option<Duration> {
        let round_trips = self.round_trips?;
        let rate = SLOWEST_RATE.max(self.rate.saturating_mul(RATE_FACTOR));
        let unconfirmed = self.unconfirmed_bytes();
        let transfer = Duration::from_millis(unconfirmed.saturating_mul(1_000) / rate);
        let least = match unconfirmed > HEAVY_BYTES {
            true => self.limits.heavy_answer,
            false => self.limits.answer,
        };
        Some(least.max(round_trips.slowest * ROUND_TRIPS).max(transfer))
    }

    /// Bytes sent that no pong has confirmed yet.
    fn unconfirmed_bytes(&self) -> u64 {
        self.bytes - self.answered.map_or(0, |ping| ping.bytes)
    }

    /// When to call [`Self::on_time`] next.
    pub(super) fn deadline(&self) -> Instant {
        let next = self.next_ping.min(self.silent_until());
        match self.silence {
            Silence::PingAt(at) | Silence::SilentAt(Some(at)) | Silence::DeadAt(at) => next.min(at),
            Silence::None | Silence::SilentAt(None) => next,
        }
    }

    fn silent_until(&self) -> Instant {
        let silent = self.last_received + self.interval * SILENT_INTERVALS;
        silent.min(self.last_pong + self.interval * UNANSWERED_INTERVALS)
    }

    /// The measured round trips, if there is any.
    pub(super) fn round_trips(&self) -> Option<RoundTrips> {
        self.round_trips
    }

    /// When the last answered ping was sent: bytes sent before that have arrived.
    pub(super) fn arrived_until(&self) -> Option<Instant> {
        self.answered.map(|ping| ping.at)
    }
}

#[cfg(test)]
mod tests;
