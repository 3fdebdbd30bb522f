//! When a client that has no session dials again. Pure: random numbers and times are arguments.
//!
//! Waits are drawn from the whole range up to a bound that doubles, so that clients that lost the
//! same server do not come back together. The figures are those of `docs/protocol.md`.

use std::time::Duration;

use tunnel_proto::close::{AfterClose, CloseReason};

/// Longest time that a server can make a client wait with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10 * 60);

/// Bound of the first wait, and of any wait.
const BASE: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_secs(30);

/// What went wrong so far, for one client.
#[derive(Debug)]
pub(super) struct Redial {
    /// How long a session has to last for the waits to start over.
    stable: Duration,
    failures: u32,
}

impl Redial {
    /// Without a failure yet.
    pub(super) fn new(stable: Duration) -> Self {
        Self {
            stable,
            failures: 0,
        }
    }

    /// The wait after a failed dial; `random` is any number.
    pub(super) fn after_failure(&mut self, retry_after: Option<Duration>, random: u64) -> Duration {
        let wait = self.wait(random);
        // After the requested time, and not all at once.
        retry_after.unwrap_or_default().min(RETRY_AFTER_MAX) + wait
    }

    /// The wait after a session; none when its end says that the client should stay away.
    pub(super) fn after_session(
        &mut self,
        reason: CloseReason,
        lived: Duration,
        random: u64,
    ) -> Option<Duration> {
        let was_stable = lived >= self.stable;
        if was_stable {
            self.failures = 0;
        }
        match reason.after() {
            AfterClose::Stop => None,
            AfterClose::Redial if was_stable => Some(fraction(BASE / 4, random)),
            AfterClose::Redial | AfterClose::Wait => Some(self.wait(random)),
        }
    }

    fn wait(&mut self, random: u64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let bound = BASE.saturating_mul(factor).min(CAP);
        self.failures = self.failures.saturating_add(1);
        fraction(bound, random)
    }
}

/// A part of the bound, each as likely as any other.
fn fraction(bound: Duration, random: u64) -> Duration {
    // 32 bits are fine enough, and exact in floating point.
    bound.mul_f64((random >> 32) as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LARGEST: u64 = u64::MAX;

    fn redial() -> Redial {
        Redial::new(60 * SECOND)
    }

    #[test]
    fn waits_double_up_to_the_cap_and_lie_anywhere_below() {
        let mut redial = redial();
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            assert_eq!(redial.after_failure(None, LARGEST), seconds * SECOND);
        }
        assert_eq!(redial.after_failure(None, 0), Duration::ZERO);
    }

    #[test]
    fn a_server_is_dialled_no_earlier_than_it_asks() {
        let mut redial = redial();
        assert_eq!(redial.after_failure(Some(7 * SECOND), 0), 7 * SECOND);
        assert_eq!(redial.after_failure(Some(7 * SECOND), LARGEST), 9 * SECOND);
        assert_eq!(
            redial.after_failure(Some(Duration::MAX), 0),
            RETRY_AFTER_MAX
        );
    }

    #[test]
    fn a_stable_session_lets_the_waits_start_over() {
        let mut redial = redial();
        let lost = CloseReason::Other(1006);
        assert_eq!(redial.after_session(lost, SECOND, LARGEST), Some(SECOND));
        assert_eq!(
            redial.after_session(lost, SECOND, LARGEST),
            Some(2 * SECOND)
        );
        assert_eq!(
            redial.after_session(lost, 60 * SECOND, LARGEST),
            Some(SECOND)
        );
        let drained = redial.after_session(CloseReason::Drained, 60 * SECOND, LARGEST);
        assert_eq!(drained, Some(SECOND / 4));
        let revoked = redial.after_session(CloseReason::Revoked, 60 * SECOND, LARGEST);
        assert_eq!(revoked, None);
    }
}
