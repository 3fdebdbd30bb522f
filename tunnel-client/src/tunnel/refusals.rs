//! Decides how long a client waits after a refusal of its credential, and after it has lost its runtime to another instance.
//!
//! Pure: random numbers and times are arguments. Waits are in the upper half of a bound that doubles. When to dial again
//! after a failure is decided by [`tunnel_proto::redial`].

use std::time::Duration;

use tokio::time::Instant;
use tunnel_proto::redial::fraction;

/// Bound of the first wait after a refusal of the credential: a list that is being edited, or was not read yet, is
/// soon correct.
const REFUSED_FIRST: Duration = Duration::from_secs(10);

/// How long a client that exits on refusals keeps dialling after pending ones: longer than it takes to distribute a token
/// to both ends (a kubelet needs up to two minutes for each), short enough to be noticed.
pub(crate) const PENDING_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Longest time from the end of a wait to the next refusal of one series: a few dials that fail for other causes fit in.
/// After an outage, which is longer, a new series begins.
const REFUSALS_APART: Duration = Duration::from_secs(60);

/// Bound of the first wait after the runtime was lost to another instance.
const STANDBY_FIRST: Duration = Duration::from_secs(30);

/// Waits with a bound that doubles up to a maximum. Each wait is random in the upper half of its bound, so that clients
/// that were refused together do not return at once.
#[derive(Debug)]
struct Backoff {
    first: Duration,
    longest: Duration,
    /// Waits since the last reset.
    count: u32,
}

/// A series of refusals of the credential.
#[derive(Debug)]
pub(crate) struct Refusals {
    backoff: Backoff,
    /// The time of the first refusal.
    since: Option<Instant>,
    /// The end of the current wait.
    until: Option<Instant>,
}

/// The waits of a client that lost its runtime to another instance.
#[derive(Debug)]
pub(crate) struct Standby {
    backoff: Backoff,
}

impl Backoff {
    fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first: first.min(longest),
            longest,
            count: 0,
        }
    }

    fn next(&mut self, random: u64) -> Duration {
        let factor = 1_u32.checked_shl(self.count).unwrap_or(u32::MAX);
        self.count = self.count.saturating_add(1);
        let bound = self.first.saturating_mul(factor).min(self.longest);
        bound / 2 + fraction(bound / 2, random)
    }

    fn start_over(&mut self) {
        self.count = 0;
    }
}

impl Refusals {
    /// No wait is longer than `longest`.
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            backoff: Backoff::new(REFUSED_FIRST, longest),
            since: None,
            until: None,
        }
    }

    /// Notes a refusal. Returns how long to wait.
    pub(crate) fn on_refusal(&mut self, now: Instant, random: u64) -> Duration {
        if self.until.is_some_and(|until| now > until + REFUSALS_APART) {
            self.start_over();
        }
        self.since.get_or_insert(now);
        let wait = self.backoff.next(random);
        self.until = Some(now + wait);
        wait
    }

    /// How long the series has lasted.
    pub(crate) fn lasted(&self, now: Instant) -> Duration {
        self.since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Ends the series: a session began, or there is another credential.
    pub(crate) fn start_over(&mut self) {
        self.since = None;
        self.until = None;
        self.backoff.start_over();
    }
}

impl Standby {
    /// No wait is longer than `longest`.
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            backoff: Backoff::new(STANDBY_FIRST, longest),
        }
    }

    /// Returns how long to wait after another instance has taken over the runtime, which this one held for `held`, if at
    /// all. The server gives the runtime back only when no other instance holds it, so the waits grow only if instances
    /// take it from each other repeatedly.
    pub(crate) fn after_superseded(&mut self, held: Option<Duration>, random: u64) -> Duration {
        if held.is_none_or(|held| held > self.backoff.longest) {
            self.backoff.start_over();
        }
        self.backoff.next(random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LARGEST: u64 = u64::MAX;

    #[test]
    fn a_credential_that_is_refused_is_shown_again_after_seconds_and_then_less_often() {
        let now = Instant::now();
        let mut refusals = Refusals::new(5 * 60 * SECOND);
        assert_eq!(refusals.lasted(now), Duration::ZERO);
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(refusals.on_refusal(now, LARGEST), seconds * SECOND);
        }
        assert_eq!(refusals.on_refusal(now, 0), 150 * SECOND, "not all at once");
        assert_eq!(refusals.lasted(now + SECOND), SECOND);
        refusals.start_over();
        assert_eq!(refusals.on_refusal(now + SECOND, 0), 5 * SECOND);
        assert_eq!(refusals.lasted(now + SECOND), Duration::ZERO);
        let mut short = Refusals::new(SECOND);
        assert_eq!(short.on_refusal(now, LARGEST), SECOND);
    }

    /// A server that refuses once, is away for minutes, and refuses once more while it starts has not refused for
    /// minutes.
    #[test]
    fn refusals_before_an_outage_do_not_count() {
        let now = Instant::now();
        let mut refusals = Refusals::new(5 * 60 * SECOND);
        assert_eq!(refusals.on_refusal(now, LARGEST), 10 * SECOND);
        let later = now + 10 * SECOND + REFUSALS_APART;
        assert_eq!(refusals.on_refusal(later, LARGEST), 20 * SECOND);
        assert_eq!(refusals.lasted(later), later - now);
        let after_outage = later + 21 * SECOND + REFUSALS_APART;
        assert_eq!(refusals.on_refusal(after_outage, LARGEST), 10 * SECOND);
        assert_eq!(refusals.lasted(after_outage), Duration::ZERO);
    }

    /// Somebody else's client that runs for ten seconds costs the runtime no more than a standby's wait.
    #[test]
    fn who_lost_the_runtime_stands_by_and_waits_longer_only_after_losing_it_again() {
        let minute = 60 * SECOND;
        let mut standby = Standby::new(5 * minute);
        let held = Some(SECOND);
        for seconds in [30, 60, 120, 240, 300, 300] {
            assert_eq!(standby.after_superseded(held, LARGEST), seconds * SECOND);
        }
        assert_eq!(standby.after_superseded(held, 0), 150 * SECOND);
        let long = Some(6 * minute);
        assert_eq!(standby.after_superseded(long, 0), 15 * SECOND);
        for _ in 0..3 {
            let waited = standby.after_superseded(None, LARGEST);
            assert_eq!(waited, 30 * SECOND, "it has not had it in between");
        }
    }
}
