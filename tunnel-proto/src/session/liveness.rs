//! Whether the other end still lives: when to ping, when to give up, how long a round trip takes.
//!
//! Pure: it takes the time as an argument and says what to do. A session is dead when nothing at
//! all was heard for two intervals, or when pings went unanswered for four although other bytes
//! came, which happens when a proxy on the way answers for a peer that is gone.

use std::time::Duration;

use tokio::time::Instant;

/// Intervals without any sign of life after which a session is dead.
const SILENT_INTERVALS: u32 = 2;
/// Intervals without a pong after which a session is dead, whatever else was heard.
const UNANSWERED_INTERVALS: u32 = 4;

/// What is due now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing before the next deadline.
    Nothing,
    /// Send a ping with this number as payload.
    Ping(u64),
    /// Give up.
    Dead,
}

/// The ping plan of one session.
#[derive(Debug)]
pub(super) struct Liveness {
    interval: Duration,
    last_heard: Instant,
    last_pong: Instant,
    next_ping: Instant,
    sent: Option<(u64, Instant)>,
    number: u64,
}

impl Liveness {
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        // The first ping at once: it measures the round trip and proves the path.
        Self {
            interval,
            last_heard: now,
            last_pong: now,
            next_ping: now,
            sent: None,
            number: 0,
        }
    }

    /// Something was received.
    pub(super) fn on_heard(&mut self, now: Instant) {
        self.last_heard = now;
    }

    /// A pong was received; the round trip, if it answers the ping that is on its way.
    pub(super) fn on_pong(&mut self, payload: &[u8], now: Instant) -> Option<Duration> {
        self.last_heard = now;
        let number = u64::from_be_bytes(payload.try_into().ok()?);
        if number == 0 || number > self.number {
            return None;
        }
        // On a slow path it may answer an earlier ping than the last: proof enough.
        self.last_pong = now;
        let (_, sent_at) = self.sent.take_if(|(sent, _)| *sent == number)?;
        Some(now - sent_at)
    }

    /// What is due at this moment. Call it when [`Self::deadline`] has come.
    pub(super) fn on_time(&mut self, now: Instant) -> Due {
        if now >= self.dead_at() {
            return Due::Dead;
        }
        if now < self.next_ping {
            return Due::Nothing;
        }
        self.next_ping = now + self.interval;
        self.number += 1;
        self.sent = Some((self.number, now));
        Due::Ping(self.number)
    }

    /// When [`Self::on_time`] is to be asked next.
    pub(super) fn deadline(&self) -> Instant {
        self.next_ping.min(self.dead_at())
    }

    fn dead_at(&self) -> Instant {
        let silent = self.last_heard + self.interval * SILENT_INTERVALS;
        silent.min(self.last_pong + self.interval * UNANSWERED_INTERVALS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(15);

    fn start() -> (Liveness, Instant) {
        let now = Instant::now();
        (Liveness::new(INTERVAL, now), now)
    }

    #[test]
    fn the_first_ping_goes_out_at_once_and_measures() {
        let (mut liveness, now) = start();
        assert_eq!(liveness.on_time(now), Due::Ping(1));
        let later = now + Duration::from_millis(40);
        assert_eq!(
            liveness.on_pong(&1_u64.to_be_bytes(), later),
            Some(Duration::from_millis(40))
        );
        assert_eq!(
            liveness.on_pong(&1_u64.to_be_bytes(), later),
            None,
            "answered already"
        );
    }

    #[test]
    fn silence_for_two_intervals_is_death() {
        let (mut liveness, now) = start();
        liveness.on_time(now);
        liveness.on_pong(&1_u64.to_be_bytes(), now);
        assert_eq!(liveness.on_time(now + INTERVAL), Due::Ping(2));
        assert_eq!(liveness.deadline(), now + INTERVAL * 2);
        assert_eq!(liveness.on_time(now + INTERVAL * 2), Due::Dead);
    }

    #[test]
    fn other_traffic_does_not_replace_pongs_for_ever() {
        let (mut liveness, now) = start();
        for interval in 0..4 {
            let at = now + INTERVAL * interval;
            liveness.on_heard(at);
            assert!(
                matches!(liveness.on_time(at), Due::Ping(_)),
                "interval {interval}"
            );
        }
        liveness.on_heard(now + INTERVAL * 4);
        assert_eq!(liveness.on_time(now + INTERVAL * 4), Due::Dead);
    }

    #[test]
    fn pongs_that_are_slower_than_pings_keep_a_session_alive() {
        let (mut liveness, now) = start();
        for interval in 0..10 {
            let at = now + INTERVAL * interval;
            assert_eq!(liveness.on_time(at), Due::Ping(u64::from(interval) + 1));
            assert_eq!(
                liveness.on_pong(&u64::from(interval).to_be_bytes(), at),
                None
            );
        }
    }

    #[test]
    fn a_pong_nobody_asked_for_is_no_proof() {
        let (mut liveness, now) = start();
        liveness.on_time(now);
        assert_eq!(liveness.on_pong(b"anything", now), None);
        assert_eq!(liveness.on_pong(&9_u64.to_be_bytes(), now), None);
    }
}
