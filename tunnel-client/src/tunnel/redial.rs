//! What follows a failed dial or an ended session: another dial after some time, or none.
//!
//! Pure: the random numbers and the times come as arguments. The waits are drawn from the whole
//! range up to a bound that doubles ("full jitter"), so that clients that lost the same server do
//! not come back together.

use std::time::Duration;

use tunnel_proto::close::{AfterClose, CloseReason};

/// Longest time that a server can make a client wait with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10 * 60);

/// How a client waits.
#[derive(Debug, Clone)]
pub(crate) struct RedialSettings {
    /// Bound of the first wait.
    pub(crate) base: Duration,
    /// Bound of any wait.
    pub(crate) cap: Duration,
    /// How long a session has to last for the waits to start over.
    pub(crate) stable: Duration,
    /// Wait after a refusal that a person has to mend; `None` to give up instead.
    pub(crate) after_refusal: Option<Duration>,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Dial again after this time.
    Dial(Duration),
    /// Dial again after this time, whatever happens to the network meanwhile: a person has to do
    /// something first.
    DialNotBefore(Duration),
    /// Give up.
    Stop,
}

/// Counts what went wrong since a session was last stable.
#[derive(Debug)]
pub(crate) struct Redial {
    settings: RedialSettings,
    /// Dials and sessions in a row that came to nothing.
    failures: u32,
}

impl Redial {
    /// Nothing has gone wrong so far.
    pub(crate) fn new(settings: RedialSettings) -> Self {
        Self {
            settings,
            failures: 0,
        }
    }

    /// After a dial that gave no session. `random` is any number.
    pub(crate) fn after_failure(
        &mut self,
        is_fatal: bool,
        retry_after: Option<Duration>,
        random: u64,
    ) -> Next {
        if is_fatal {
            return self.after_refusal();
        }
        let wait = self.wait(random);
        match retry_after {
            // Later than asked, never earlier, and not all at the same moment.
            Some(after) => Next::DialNotBefore(after.min(RETRY_AFTER_MAX) + wait),
            None => Next::Dial(wait),
        }
    }

    /// After a session that lasted for `lived`. `random` is any number.
    pub(crate) fn after_session(
        &mut self,
        reason: CloseReason,
        lived: Duration,
        random: u64,
    ) -> Next {
        let was_stable = lived >= self.settings.stable;
        if was_stable {
            self.failures = 0;
        }
        match reason.after() {
            AfterClose::Stop => self.after_refusal(),
            // The server is there and wants us elsewhere, or the way to it broke: no reason to
            // wait, but for a moment, in which the others of this server come as well.
            AfterClose::Redial if was_stable => {
                Next::Dial(fraction(self.settings.base / 4, random))
            }
            AfterClose::Redial | AfterClose::Wait => Next::Dial(self.wait(random)),
        }
    }

    fn after_refusal(&mut self) -> Next {
        self.failures = 0;
        self.settings
            .after_refusal
            .map_or(Next::Stop, Next::DialNotBefore)
    }

    fn wait(&mut self, random: u64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let bound = self
            .settings
            .base
            .saturating_mul(factor)
            .min(self.settings.cap);
        self.failures = self.failures.saturating_add(1);
        fraction(bound, random)
    }
}

/// A part of the bound, each as likely as any other.
pub(crate) fn fraction(bound: Duration, random: u64) -> Duration {
    // 32 bits are fine enough, and exact in floating point.
    bound.mul_f64((random >> 32) as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LARGEST: u64 = u64::MAX;

    fn redial(after_refusal: Option<Duration>) -> Redial {
        Redial::new(RedialSettings {
            base: SECOND,
            cap: 30 * SECOND,
            stable: 60 * SECOND,
            after_refusal,
        })
    }

    fn failed(redial: &mut Redial) -> Next {
        redial.after_failure(false, None, LARGEST)
    }

    #[test]
    fn waits_double_up_to_the_cap() {
        let mut redial = redial(None);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            assert_eq!(failed(&mut redial), Next::Dial(seconds * SECOND));
        }
        for _ in 0..100 {
            assert_eq!(failed(&mut redial), Next::Dial(30 * SECOND));
        }
    }

    #[test]
    fn only_a_stable_session_lets_them_start_over() {
        let mut redial = redial(None);
        failed(&mut redial);
        let ended = CloseReason::Overloaded;
        let next = redial.after_session(ended, 59 * SECOND, LARGEST);
        assert_eq!(next, Next::Dial(2 * SECOND));
        let next = redial.after_session(ended, 60 * SECOND, LARGEST);
        assert_eq!(next, Next::Dial(SECOND));
    }

    #[test]
    fn a_server_that_leaves_is_dialled_again_almost_at_once() {
        let mut redial = redial(None);
        let next = redial.after_session(CloseReason::Drained, 60 * SECOND, LARGEST);
        assert_eq!(next, Next::Dial(SECOND / 4));
        // Unless it leaves again and again.
        for seconds in [1, 2, 4] {
            let next = redial.after_session(CloseReason::Drained, SECOND, LARGEST);
            assert_eq!(next, Next::Dial(seconds * SECOND));
        }
    }

    #[test]
    fn retry_after_is_kept_but_not_for_ever() {
        let mut redial = redial(None);
        let next = redial.after_failure(false, Some(7 * SECOND), 0);
        assert_eq!(next, Next::DialNotBefore(7 * SECOND));
        let next = redial.after_failure(false, Some(Duration::MAX), 0);
        assert_eq!(next, Next::DialNotBefore(RETRY_AFTER_MAX));
    }

    #[test]
    fn what_a_person_has_to_mend_ends_it_or_waits_long() {
        let minutes = 5 * 60 * SECOND;
        for (setting, expected) in [
            (None, Next::Stop),
            (Some(minutes), Next::DialNotBefore(minutes)),
        ] {
            let mut redial = redial(setting);
            assert_eq!(redial.after_failure(true, None, 0), expected);
            for reason in [CloseReason::Superseded, CloseReason::Revoked] {
                assert_eq!(redial.after_session(reason, SECOND, 0), expected);
            }
        }
    }

    proptest! {
        #[test]
        fn no_wait_is_beyond_its_bound(failures in 0_u32..200, random: u64) {
            let mut redial = redial(None);
            redial.failures = failures;
            let bound = SECOND.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
            let Next::Dial(wait) = redial.after_failure(false, None, random) else {
                panic!("only a fatal refusal is an end");
            };
            prop_assert!(wait <= bound.min(30 * SECOND));
        }

        #[test]
        fn waits_are_spread_over_the_whole_range(random: u64) {
            let wait = fraction(SECOND, random);
            let mirrored = fraction(SECOND, !random);
            prop_assert!((wait + mirrored).abs_diff(SECOND) < Duration::from_micros(1));
        }
    }
}
