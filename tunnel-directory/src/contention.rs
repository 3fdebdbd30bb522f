//! Instances that take a runtime from each other: how long the next takeover has to wait.
//!
//! Pure: the time is an argument. The first takeovers in a row need not wait, since a rollout and its rollback cause some;
//! further ones wait longer and longer, so that the holder can serve meanwhile.

use std::time::{Duration, Instant};

/// Takeovers in a row that need not wait: a rollout, its rollback, and one more.
const TAKEOVERS_WITHOUT_WAIT: u32 = 3;

/// Shortest and longest time that a takeover has to wait after the one before.
const WAITS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// A holder that keeps the runtime for this long after the wait is over ends the row of takeovers.
const RESET_AFTER: Duration = Duration::from_secs(60);

/// The takeovers of one runtime since it was free.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Contention {
    in_a_row: u32,
    last: Option<Instant>,
}

impl Contention {
    /// `in_a_row` takeovers, of which the last one was at `last`.
    pub(crate) fn of(in_a_row: u32, last: Instant) -> Self {
        Self {
            in_a_row,
            last: (in_a_row > 0).then_some(last),
        }
    }

    /// The takeovers in a row, and the time since the last one.
    pub(crate) fn parts(&self, now: Instant) -> (u32, Duration) {
        let since = self.last.map(|last| now.saturating_duration_since(last));
        (self.takeovers(now), since.unwrap_or_default())
    }

    /// The number of takeovers in a row, as of now.
    pub(crate) fn takeovers(&self, now: Instant) -> u32 {
        match self.last {
            Some(last) if now < last + self.wait_after_last() + RESET_AFTER => self.in_a_row,
            _ => 0,
        }
    }

    /// How long the next takeover has to wait.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        let Some(last) = self.last else {
            return Duration::ZERO;
        };
        (last + self.wait_after_last()).saturating_duration_since(now)
    }

    /// Counts a takeover.
    pub(crate) fn on_takeover(&mut self, now: Instant) {
        self.in_a_row = self.takeovers(now).saturating_add(1);
        self.last = Some(now);
    }

    /// The time between the last takeover and the next one.
    fn wait_after_last(&self) -> Duration {
        let Some(doublings) = self.in_a_row.checked_sub(TAKEOVERS_WITHOUT_WAIT) else {
            return Duration::ZERO;
        };
        let (shortest, longest) = WAITS;
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        shortest.saturating_mul(factor).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::start;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rollout_and_its_rollback_do_not_wait() {
        let (mut contention, now) = (Contention::default(), start());
        for _ in 0..TAKEOVERS_WITHOUT_WAIT {
            assert_eq!(contention.wait(now), Duration::ZERO);
            contention.on_takeover(now);
        }
        assert_eq!(contention.wait(now), 2 * SECOND);
    }

    #[test]
    fn repeated_takeovers_wait_longer_up_to_a_bound() {
        let (mut contention, mut now) = (Contention::default(), start());
        let mut waits = Vec::new();
        for _ in 0..12 {
            waits.push(contention.wait(now).as_secs());
            now += contention.wait(now);
            contention.on_takeover(now);
        }
        assert_eq!(waits, [0, 0, 0, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
    }

    #[test]
    fn a_holder_that_lasts_ends_the_row() {
        let (mut contention, now) = (Contention::default(), start());
        for _ in 0..5 {
            contention.on_takeover(now);
        }
        let later = now + 8 * SECOND + RESET_AFTER;
        assert_eq!(contention.takeovers(later - SECOND), 5);
        assert_eq!(contention.takeovers(later), 0);
        contention.on_takeover(later);
        assert_eq!(
            (contention.takeovers(later), contention.wait(later)),
            (1, Duration::ZERO)
        );
    }

    proptest! {
        #[test]
        fn no_takeover_waits_longer_than_the_bound(gaps in proptest::collection::vec(0_u64..100, 0..100)) {
            let (mut contention, mut now) = (Contention::default(), start());
            for gap in gaps {
                now += Duration::from_millis(500 * gap);
                prop_assert!(contention.wait(now) <= WAITS.1);
                contention.on_takeover(now);
            }
        }
    }
}
