//! What is known of one name, and for how long: no clock, no network.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Answer, Found, LookUpError};

/// Bounds of the time for which an answer is used: with 0 s each dial would ask, and a mistake of a
/// day would last for a day.
const SHORTEST: Duration = Duration::from_secs(1);
pub(super) const LONGEST: Duration = Duration::from_secs(5 * 60);
/// How long it is believed that a name is not there: one that is being made should be found soon.
const ABSENT: Duration = Duration::from_secs(5);
/// How soon a failed question is asked again: with old addresses to go on with, and without.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));
/// How long the last good addresses go on while nobody answers.
const STALE: Duration = Duration::from_secs(60 * 60);

/// The addresses of a name; the same as long as they do not change.
type Addresses = Arc<[IpAddr]>;

/// What was last said of a name.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Until when it is not asked again, and what is said meanwhile.
    said: Option<(Instant, Result<Addresses, LookUpError>)>,
    /// The last good addresses, and until when they may be used without an answer.
    good: Option<(Instant, Addresses)>,
    /// Why the addresses are old ones.
    stale: Option<LookUpError>,
}

impl Known {
    /// What needs no question now.
    pub(super) fn at(&self, now: Instant) -> Option<Result<Answer, LookUpError>> {
        let (until, said) = self.said.as_ref().filter(|(until, _)| now < *until)?;
        let answer = |addresses: &Addresses| Answer {
            addresses: Arc::clone(addresses),
            until: *until,
        };
        Some(said.as_ref().map(answer).map_err(LookUpError::clone))
    }

    /// Whether there are addresses to go on with, should nobody answer.
    pub(super) fn has_good(&self, now: Instant) -> bool {
        self.good.as_ref().is_some_and(|(until, _)| now < *until)
    }

    /// Whether addresses are used that nobody has confirmed in time.
    pub(super) fn is_stale(&self) -> bool {
        self.stale.is_some()
    }

    /// Why that is so.
    pub(super) fn why_stale(&self) -> Option<&LookUpError> {
        self.stale.as_ref()
    }

    /// Takes note of an answer, or of none, and says what that means.
    pub(super) fn on_asked(
        &mut self,
        asked: Result<Found, LookUpError>,
        now: Instant,
    ) -> Result<Answer, LookUpError> {
        self.stale = None;
        let (until, said) = match asked {
            Ok(mut found) => {
                let longest = if found.is_half { RETRY.0 } else { LONGEST };
                let until = now + found.ttl.clamp(SHORTEST, longest);
                let good_until = self.complete(&mut found, now).unwrap_or(until + STALE);
                let addresses = self.kept(found.addresses);
                self.good = Some((good_until, Arc::clone(&addresses)));
                (until, Ok(addresses))
            }
            Err(LookUpError::NotFound) => {
                self.good = None;
                (now + ABSENT, Err(LookUpError::NotFound))
            }
            Err(error) => match &self.good {
                Some((until, addresses)) if now < *until => {
                    let addresses = Arc::clone(addresses);
                    self.stale = Some(error);
                    (now + RETRY.0, Ok(addresses))
                }
                _ => (now + RETRY.1, Err(error)),
            },
        };
        self.said = Some((until, said.clone()));
        said.map(|addresses| Answer { addresses, until })
    }

    /// Adds the last good addresses of the kind that half an answer is missing. Until when they are
    /// good, if there are any.
    fn complete(&self, found: &mut Found, now: Instant) -> Option<Instant> {
        let (until, good) = self.good.as_ref().filter(|(until, _)| now < *until)?;
        let is_v4 = found.addresses.first().filter(|_| found.is_half)?.is_ipv4();
        let before = found.addresses.len();
        let missing = good.iter().filter(|address| address.is_ipv4() != is_v4);
        found.addresses.extend(missing);
        (found.addresses.len() > before).then_some(*until)
    }

    /// The addresses that were there before, if they are the same in whatever order.
    fn kept(&self, mut found: Vec<IpAddr>) -> Addresses {
        found.sort_unstable();
        found.dedup();
        match &self.good {
            Some((_, before)) if **before == *found => Arc::clone(before),
            _ => found.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(addresses: &[&str], ttl: u64) -> Result<Found, LookUpError> {
        Ok(Found {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ttl: Duration::from_secs(ttl),
            is_half: false,
        })
    }

    fn half(addresses: &[&str]) -> Result<Found, LookUpError> {
        let whole = found(addresses, 300)?;
        Ok(Found {
            is_half: true,
            ..whole
        })
    }

    fn addresses(known: &Known, now: Instant) -> Option<Vec<String>> {
        let answer = known.at(now)?.unwrap();
        Some(answer.addresses.iter().map(ToString::to_string).collect())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_answer_holds_as_long_as_it_says_within_bounds() {
        let start = Instant::now();
        for (ttl, holds) in [(0, 1), (30, 30), (86_400, 300)] {
            let mut known = Known::default();
            assert_eq!(known.at(start), None);
            let answer = known.on_asked(found(&["10.0.0.1"], ttl), start).unwrap();
            let end = start + Duration::from_secs(holds);
            assert_eq!(answer.until, end, "{ttl}");
            assert!(known.at(end - Duration::from_millis(1)).is_some());
            assert_eq!(known.at(end), None);
        }
    }

    #[test]
    fn another_order_is_no_change() {
        let (mut known, start) = (Known::default(), Instant::now());
        let one = known.on_asked(found(&["10.0.0.1", "10.0.0.2"], 5), start);
        let two = known.on_asked(found(&["10.0.0.2", "10.0.0.1"], 5), start + 6 * SECOND);
        assert!(Arc::ptr_eq(
            &one.unwrap().addresses,
            &two.unwrap().addresses
        ));
    }

    #[test]
    fn the_last_good_addresses_go_on_for_a_while_when_nobody_answers() {
        let (mut known, start) = (Known::default(), Instant::now());
        let _ = known.on_asked(found(&["10.0.0.1"], 30), start);
        let later = start + 31 * SECOND;
        assert!(known.has_good(later) && !known.is_stale());
        let answer = known.on_asked(Err(LookUpError::TimedOut), later).unwrap();
        assert!(known.is_stale());
        assert_eq!(answer.until, later + RETRY.0);
        assert_eq!(addresses(&known, later).unwrap(), ["10.0.0.1"]);
        // An answer ends that.
        let _ = known.on_asked(found(&["10.0.0.2"], 30), later + 5 * SECOND);
        assert!(!known.is_stale());
        let end = later + 5 * SECOND + 30 * SECOND + STALE;
        assert!(!known.has_good(end));
        let error = known.on_asked(Err(LookUpError::TimedOut), end);
        assert_eq!(error, Err(LookUpError::TimedOut));
        assert_eq!(known.at(end), Some(Err(LookUpError::TimedOut)));
        assert_eq!(known.at(end + RETRY.1), None);
    }

    #[test]
    fn half_an_answer_holds_shortly_and_takes_nothing_away_for_a_while() {
        let (mut known, start) = (Known::default(), Instant::now());
        let first = known.on_asked(half(&["fd00::1"]), start).unwrap();
        assert_eq!(first.until, start + RETRY.0);
        assert_eq!(addresses(&known, start).unwrap(), ["fd00::1"]);
        let mut now = first.until;
        let whole = known.on_asked(found(&["10.0.0.1", "fd00::1"], 300), now);
        now = whole.unwrap().until;
        let end = now + STALE;
        while now < end {
            let answer = known.on_asked(half(&["fd00::2"]), now).unwrap();
            assert_eq!(addresses(&known, now).unwrap(), ["10.0.0.1", "fd00::2"]);
            now = answer.until;
        }
        let _ = known.on_asked(half(&["fd00::2"]), now);
        assert_eq!(addresses(&known, now).unwrap(), ["fd00::2"]);
        // That there is none of the other kind ends it at once.
        let _ = known.on_asked(found(&["10.0.0.1", "fd00::2"], 1), now + RETRY.0);
        let _ = known.on_asked(found(&["fd00::2"], 1), now + 2 * RETRY.0);
        assert_eq!(addresses(&known, now + 2 * RETRY.0).unwrap(), ["fd00::2"]);
    }

    #[test]
    fn a_name_that_is_gone_is_gone() {
        let (mut known, start) = (Known::default(), Instant::now());
        let _ = known.on_asked(found(&["10.0.0.1"], 30), start);
        let later = start + 31 * SECOND;
        let _ = known.on_asked(Err(LookUpError::NotFound), later);
        assert_eq!(known.at(later), Some(Err(LookUpError::NotFound)));
        let failed = known.on_asked(Err(LookUpError::TimedOut), later + ABSENT);
        assert_eq!(failed, Err(LookUpError::TimedOut));
    }
}
