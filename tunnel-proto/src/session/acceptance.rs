//! Whether the tunnel client still takes exchanges: one that answers pings and nothing else is wedged.
//!
//! Pure: it takes the time and what is seen of the session as arguments and says what to do. An
//! exchange may take as long as it likes, but a new stream has to be accepted at once; so that is what
//! is waited for, and where exchanges wait on streams that were accepted long ago, a new one is opened
//! to ask. It costs an exchange nothing: it is asked by the clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::limits;

/// Time in which nothing of any stream came, after which a client with open exchanges is asked.
const SILENT: Duration = Duration::from_secs(5);
/// Between two questions.
const PAUSE: Duration = Duration::from_secs(15);
/// As many times as long a new stream may wait while bytes move: it may stand behind them.
const WHILE_MOVING: u32 = 3;
/// As many round trips it may wait in any case.
const ROUND_TRIPS: u32 = 4;
/// When to look again, if no moment is known at which something changes.
const LOOK: Duration = Duration::from_secs(1);

/// What is seen of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Since when the oldest new stream waits to be accepted.
    pub(super) waiting_since: Option<Instant>,
    /// What was sent before has arrived, as a pong showed.
    pub(super) arrived_until: Option<Instant>,
    /// The longest round trip of late.
    pub(super) round_trip: Duration,
    /// Exchanges are open.
    pub(super) has_exchanges: bool,
    /// A stream that was opened to ask is not accepted yet.
    pub(super) is_asking: bool,
}

/// What is due now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, until something is sent.
    Rest,
    /// Nothing, until then.
    Until(Instant),
    /// Open a stream to ask, and look again then.
    Ask(Instant),
    /// The client takes no exchanges.
    Wedged,
}

/// What is remembered of a session.
#[derive(Debug)]
pub(super) struct Acceptance {
    moved_at: Instant,
    asked_at: Option<Instant>,
}

impl Acceptance {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            moved_at: now,
            asked_at: None,
        }
    }

    /// Bytes of streams came, or more of them were taken than the socket had room for.
    pub(super) fn on_moved(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// What is due at this moment.
    pub(super) fn on_time(&mut self, now: Instant, seen: &Seen) -> Step {
        let wedged_at = self.wedged_at(seen);
        if wedged_at.is_some_and(|at| now >= at) {
            return Step::Wedged;
        }
        let look_at = seen.waiting_since.map(|_| wedged_at.unwrap_or(now + LOOK));
        if !seen.has_exchanges || seen.is_asking {
            return look_at.map_or(Step::Rest, Step::Until);
        }
        let silent_at = self.moved_at + SILENT;
        let ask_at = self
            .asked_at
            .map_or(silent_at, |asked_at| silent_at.max(asked_at + PAUSE));
        if now >= ask_at {
            self.asked_at = Some(now);
            return Step::Ask(now + LOOK);
        }
        Step::Until(look_at.map_or(ask_at, |look_at| look_at.min(ask_at)))
    }

    /// When a client that accepts nothing until then is wedged. `None` while it may not have heard of
    /// the stream that waits.
    fn wedged_at(&self, seen: &Seen) -> Option<Instant> {
        let since = seen.waiting_since?;
        seen.arrived_until.filter(|until| *until >= since)?;
        let time = limits::ACCEPT_TIME.max(seen.round_trip * ROUND_TRIPS);
        let at_rest = (since + time).max(self.moved_at + SILENT);
        Some(at_rest.min(since + time * WHILE_MOVING))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> (Acceptance, Seen, Instant) {
        let now = Instant::now();
        let seen = Seen {
            waiting_since: None,
            arrived_until: None,
            round_trip: Duration::from_millis(1),
            has_exchanges: false,
            is_asking: false,
        };
        (Acceptance::new(now), seen, now)
    }

    /// A new stream that waits, of which the client knows.
    fn waiting(seen: Seen, now: Instant) -> Seen {
        Seen {
            waiting_since: Some(now),
            arrived_until: Some(now + SECOND),
            has_exchanges: true,
            is_asking: true,
            ..seen
        }
    }

    #[test]
    fn a_stream_that_is_not_accepted_in_time_shows_a_wedged_client() {
        let (mut acceptance, seen, now) = start();
        let seen = waiting(seen, now);
        let end = now + limits::ACCEPT_TIME;
        assert_eq!(acceptance.on_time(now + SECOND, &seen), Step::Until(end));
        assert_eq!(acceptance.on_time(end, &seen), Step::Wedged);
    }

    #[test]
    fn a_client_that_may_not_have_heard_of_the_stream_is_not_wedged() {
        let (mut acceptance, seen, now) = start();
        let later = now + limits::ACCEPT_TIME * 10;
        let seen = waiting(seen, now);
        for arrived_until in [None, Some(now - SECOND)] {
            let seen = Seen {
                arrived_until,
                ..seen
            };
            assert_eq!(acceptance.on_time(later, &seen), Step::Until(later + LOOK));
        }
    }

    #[test]
    fn a_slow_path_and_one_that_is_busy_have_more_time() {
        let (mut acceptance, seen, now) = start();
        let seen = waiting(seen, now);
        let slow = Seen {
            round_trip: 6 * SECOND,
            ..seen
        };
        let step = acceptance.on_time(now + limits::ACCEPT_TIME, &slow);
        assert_eq!(step, Step::Until(now + 24 * SECOND));
        for second in 0..30 {
            acceptance.on_moved(now + second * SECOND);
            let step = acceptance.on_time(now + second * SECOND, &seen);
            assert!(matches!(step, Step::Until(_)), "after {second} s: {step:?}");
        }
        assert_eq!(acceptance.on_time(now + 30 * SECOND, &seen), Step::Wedged);
    }

    #[test]
    fn a_silent_client_is_asked_now_and_then_while_exchanges_are_open() {
        let (mut acceptance, seen, now) = start();
        assert_eq!(acceptance.on_time(now + PAUSE, &seen), Step::Rest);
        let seen = Seen {
            has_exchanges: true,
            ..seen
        };
        acceptance.on_moved(now + SECOND);
        let asked_at = now + SECOND + SILENT;
        assert_eq!(acceptance.on_time(now, &seen), Step::Until(asked_at));
        let ask = Step::Ask(asked_at + LOOK);
        assert_eq!(acceptance.on_time(asked_at, &seen), ask);
        let asking = Seen {
            is_asking: true,
            ..seen
        };
        assert_eq!(acceptance.on_time(asked_at + PAUSE, &asking), Step::Rest);
        let again = asked_at + PAUSE;
        assert_eq!(acceptance.on_time(asked_at, &seen), Step::Until(again));
        assert_eq!(acceptance.on_time(again, &seen), Step::Ask(again + LOOK));
    }

    #[test]
    fn new_streams_that_wait_do_not_keep_it_from_being_asked() {
        // Their holders may give up one after another, so that no single one waits for long.
        let (mut acceptance, seen, now) = start();
        let seen = Seen {
            is_asking: false,
            ..waiting(seen, now + 4 * SECOND)
        };
        let step = acceptance.on_time(now + SILENT, &seen);
        assert_eq!(step, Step::Ask(now + SILENT + LOOK));
    }
}
