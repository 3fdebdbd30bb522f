//! Detects a wedged tunnel client: one that answers pings but accepts no exchange.
//!
//! Pure: takes the time and an observation of the session, and returns what to do. An exchange may take as
//! long as it needs, but a new stream has to be accepted at once, so acceptance is what is timed. While
//! exchanges wait on streams that were accepted long ago, a new stream is opened as a probe. It runs by a
//! timer and costs an exchange nothing.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits;

/// First byte from the tunnel client on a new stream: it has accepted the stream.
///
/// Sending it also makes the multiplexer acknowledge the stream; only 256 may be unacknowledged.
pub(crate) const ACCEPTED: u8 = 1;

/// Time without stream data after which a client with open exchanges is probed.
const NO_DATA: Duration = Duration::from_secs(5);
/// Least time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
/// Factor by which a new stream may wait longer while bytes move, since its first frame may be queued
/// behind them.
const WHILE_MOVING: u32 = 3;
/// Round trips that a new stream may wait in any case.
const ROUND_TRIPS: u32 = 4;
/// Time to the next check, where no deadline is known yet.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What the driver observes of its session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    /// When the oldest stream was opened that is not accepted yet.
    pub(super) waiting_since: Option<Instant>,
    /// Bytes sent before this moment have arrived, as a pong showed.
    pub(super) arrived_until: Option<Instant>,
    /// The longest recent round trip.
    pub(super) round_trip: Duration,
    /// Whether exchanges are open.
    pub(super) has_exchanges: bool,
    /// Whether a probe is open that is not accepted yet.
    pub(super) is_probing: bool,
}

/// What the driver has to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AcceptanceAction {
    /// Nothing before something is sent.
    Idle,
    /// Nothing before this moment.
    CheckAt(Instant),
    /// Open a stream as a probe, and check again at this moment.
    Probe(Instant),
    /// End the session: the client accepts no exchange.
    Wedged,
}

/// The state of the detection for one session.
#[derive(Debug)]
pub(super) struct Acceptance {
    moved_at: Instant,
    probed_at: Option<Instant>,
}

impl Acceptance {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            moved_at: now,
            probed_at: None,
        }
    }

    /// Records that stream data was received, or that a full socket has taken more bytes.
    pub(super) fn on_moved(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// What to do at this moment.
    pub(super) fn on_time(&mut self, now: Instant, observed: &Observation) -> AcceptanceAction {
        let wedged_at = self.wedged_at(observed);
        if wedged_at.is_some_and(|at| now >= at) {
            return AcceptanceAction::Wedged;
        }
        let check_at = observed
            .waiting_since
            .map(|_| wedged_at.unwrap_or(now + CHECK_INTERVAL));
        if !observed.has_exchanges || observed.is_probing {
            return check_at.map_or(AcceptanceAction::Idle, AcceptanceAction::CheckAt);
        }
        let no_data_at = self.moved_at + NO_DATA;
        let probe_at = self.probed_at.map_or(no_data_at, |probed_at| {
            no_data_at.max(probed_at + PROBE_INTERVAL)
        });
        if now >= probe_at {
            self.probed_at = Some(now);
            return AcceptanceAction::Probe(now + CHECK_INTERVAL);
        }
        AcceptanceAction::CheckAt(check_at.map_or(probe_at, |check_at| check_at.min(probe_at)))
    }

    /// When the client counts as wedged unless it accepts before. `None` while the stream's first frame may
    /// not have arrived.
    fn wedged_at(&self, observed: &Observation) -> Option<Instant> {
        let since = observed.waiting_since?;
        observed.arrived_until.filter(|until| *until >= since)?;
        let time = limits::ACCEPT_TIME.max(observed.round_trip * ROUND_TRIPS);
        let at_rest = (since + time).max(self.moved_at + NO_DATA);
        Some(at_rest.min(since + time * WHILE_MOVING))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> (Acceptance, Observation, Instant) {
        let now = Instant::now();
        let observed = Observation {
            waiting_since: None,
            arrived_until: None,
            round_trip: Duration::from_millis(1),
            has_exchanges: false,
            is_probing: false,
        };
        (Acceptance::new(now), observed, now)
    }

    /// A new stream that is not accepted, although the client has received its first frame.
    fn waiting(observed: Observation, now: Instant) -> Observation {
        Observation {
            waiting_since: Some(now),
            arrived_until: Some(now + SECOND),
            has_exchanges: true,
            is_probing: true,
            ..observed
        }
    }

    #[test]
    fn a_client_that_does_not_accept_a_stream_in_time_is_wedged() {
        let (mut acceptance, observed, now) = start();
        let observed = waiting(observed, now);
        let end = now + limits::ACCEPT_TIME;
        assert_eq!(
            acceptance.on_time(now + SECOND, &observed),
            AcceptanceAction::CheckAt(end)
        );
        assert_eq!(acceptance.on_time(end, &observed), AcceptanceAction::Wedged);
    }

    #[test]
    fn a_client_that_may_not_have_received_the_stream_is_not_wedged() {
        let (mut acceptance, observed, now) = start();
        let later = now + limits::ACCEPT_TIME * 10;
        let observed = waiting(observed, now);
        for arrived_until in [None, Some(now - SECOND)] {
            let observed = Observation {
                arrived_until,
                ..observed
            };
            assert_eq!(
                acceptance.on_time(later, &observed),
                AcceptanceAction::CheckAt(later + CHECK_INTERVAL)
            );
        }
    }

    #[test]
    fn slow_and_busy_paths_have_more_time() {
        let (mut acceptance, observed, now) = start();
        let observed = waiting(observed, now);
        let slow = Observation {
            round_trip: 6 * SECOND,
            ..observed
        };
        let action = acceptance.on_time(now + limits::ACCEPT_TIME, &slow);
        assert_eq!(action, AcceptanceAction::CheckAt(now + 24 * SECOND));
        for second in 0..30 {
            acceptance.on_moved(now + second * SECOND);
            let action = acceptance.on_time(now + second * SECOND, &observed);
            assert!(
                matches!(action, AcceptanceAction::CheckAt(_)),
                "after {second} s: {action:?}"
            );
        }
        assert_eq!(
            acceptance.on_time(now + 30 * SECOND, &observed),
            AcceptanceAction::Wedged
        );
    }

    #[test]
    fn a_client_with_open_exchanges_and_no_data_is_probed_at_intervals() {
        let (mut acceptance, observed, now) = start();
        assert_eq!(
            acceptance.on_time(now + PROBE_INTERVAL, &observed),
            AcceptanceAction::Idle
        );
        let observed = Observation {
            has_exchanges: true,
            ..observed
        };
        acceptance.on_moved(now + SECOND);
        let probed_at = now + SECOND + NO_DATA;
        assert_eq!(
            acceptance.on_time(now, &observed),
            AcceptanceAction::CheckAt(probed_at)
        );
        let probe = AcceptanceAction::Probe(probed_at + CHECK_INTERVAL);
        assert_eq!(acceptance.on_time(probed_at, &observed), probe);
        let probing = Observation {
            is_probing: true,
            ..observed
        };
        assert_eq!(
            acceptance.on_time(probed_at + PROBE_INTERVAL, &probing),
            AcceptanceAction::Idle
        );
        let again = probed_at + PROBE_INTERVAL;
        assert_eq!(
            acceptance.on_time(probed_at, &observed),
            AcceptanceAction::CheckAt(again)
        );
        assert_eq!(
            acceptance.on_time(again, &observed),
            AcceptanceAction::Probe(again + CHECK_INTERVAL)
        );
    }

    #[test]
    fn waiting_new_streams_do_not_prevent_a_probe() {
        // Their exchanges may be cancelled one after another, so that no single stream waits for long.
        let (mut acceptance, observed, now) = start();
        let observed = Observation {
            is_probing: false,
            ..waiting(observed, now + 4 * SECOND)
        };
        let action = acceptance.on_time(now + NO_DATA, &observed);
        assert_eq!(
            action,
            AcceptanceAction::Probe(now + NO_DATA + CHECK_INTERVAL)
        );
    }
}
