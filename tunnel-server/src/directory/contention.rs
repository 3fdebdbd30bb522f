//! Instances that take a runtime from each other: how long the next takeover has to wait.
//!
//! Pure: the time is an argument. The first takeovers in a row need not wait, since a rollout and its rollback cause some;
//! further ones wait longer and longer, so that the holder can serve meanwhile.

use std::time::Duration;

use tokio::time::Instant;

/// Takeovers in a row that need not wait: a rollout, its rollback, and one more.
const FREE: u32 = 3;

/// Shortest and longest time that a takeover has to wait.
const HOLD_OFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// A holder that keeps the runtime for this long after the wait is over ends the row of takeovers.
const CALM: Duration = Duration::from_secs(60);

/// The takeovers of one runtime.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Contention {
    in_a_row: u32,
    last: Option<Instant>,
}

impl Contention {
    /// So many takeovers in a row, of which the last one was at that time.
    pub(super) fn of(in_a_row: u32, last: Instant) -> Self {
        Self {
            in_a_row,
            last: (in_a_row > 0).then_some(last),
        }
    }

    /// The takeovers in a row, and the time since the last one.
    pub(super) fn parts(&self, now: Instant) -> (u32, Duration) {
        let since = self.last.map(|last| now.saturating_duration_since(last));
        (self.takeovers(now), since.unwrap_or_default())
    }

    /// The number of takeovers in a row, as of now.
    pub(super) fn takeovers(&self, now: Instant) -> u32 {
        match self.last {
            Some(last) if now < last + self.hold_off() + CALM => self.in_a_row,
            _ => 0,
        }
    }

    /// How long the next takeover has to wait.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let Some(last) = self.last else {
            return Duration::ZERO;
        };
        (last + self.hold_off()).saturating_duration_since(now)
    }

    /// Counts a takeover.
    pub(super) fn on_takeover(&mut self, now: Instant) {
        self.in_a_row = self.takeovers(now).saturating_add(1);
        self.last = Some(now);
    }

    /// How long after the last takeover the next one is allowed.
    fn hold_off(&self) -> Duration {
        let Some(doublings) = self.in_a_row.checked_sub(FREE) else {
            return Duration::ZERO;
        };
        let (shortest, longest) = HOLD_OFF;
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        shortest.saturating_mul(factor).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rollout_and_its_rollback_do_not_wait() {
        let (mut contention, now) = (Contention::default(), Instant::now());
        for _ in 0..FREE {
            assert_eq!(contention.wait(now), Duration::ZERO);
            contention.on_takeover(now);
        }
        assert_eq!(contention.wait(now), 2 * SECOND);
    }

    #[test]
    fn repeated_takeovers_wait_longer_up_to_a_bound() {
        let (mut contention, mut now) = (Contention::default(), Instant::now());
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
        let (mut contention, now) = (Contention::default(), Instant::now());
        for _ in 0..5 {
            contention.on_takeover(now);
        }
        let later = now + 8 * SECOND + CALM;
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
            let (mut contention, mut now) = (Contention::default(), Instant::now());
            for gap in gaps {
                now += Duration::from_millis(500 * gap);
                prop_assert!(contention.wait(now) <= HOLD_OFF.1);
                contention.on_takeover(now);
            }
        }
    }
}
