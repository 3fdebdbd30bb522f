//! The cached answer for one name: no clock, no network.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::answer::{DnsAnswer, LookUpError, Resolution};

/// Bounds of the time for which an answer is used: with a TTL of 0 s each dial would query, and a TTL of a day would
/// keep a mistake for a day.
const SHORTEST: Duration = Duration::from_secs(1);
pub(super) const LONGEST: Duration = Duration::from_secs(5 * 60);
/// How long the absence of a name is cached. Short, so that a new name is found soon.
const ABSENT: Duration = Duration::from_secs(5);
/// How soon a failed query is repeated while there are stale addresses, and how long a partial answer is used at most.
const RETRY_STALE: Duration = Duration::from_secs(5);
/// How soon a failed query is repeated without addresses: requests wait for it.
const RETRY_EMPTY: Duration = Duration::from_secs(1);
/// How long the last good addresses are used while no name server answers.
const STALE: Duration = Duration::from_secs(60 * 60);

/// The addresses of a name; one `Arc` while they do not change.
type Addresses = Arc<[IpAddr]>;

/// The last answer for a name.
#[derive(Debug, Default)]
pub(super) struct CachedName {
    /// The last answer, and when it expires.
    answer_until: Option<(Instant, Result<Addresses, LookUpError>)>,
    /// The last good addresses, and until when they may be used without an answer.
    last_good: Option<(Instant, Addresses)>,
    /// Why the addresses are stale, if they are.
    stale: Option<LookUpError>,
}

impl CachedName {
    /// The cached answer, unless it has expired.
    pub(super) fn at(&self, now: Instant) -> Option<Result<Resolution, LookUpError>> {
        let (until, answer) = self
            .answer_until
            .as_ref()
            .filter(|(until, _)| now < *until)?;
        let resolution = |addresses: &Addresses| Resolution {
            addresses: Arc::clone(addresses),
            until: *until,
        };
        Some(answer.as_ref().map(resolution).map_err(LookUpError::clone))
    }

    /// The addresses of the last answer, even if it has expired.
    pub(super) fn last_answer(&self) -> Option<Addresses> {
        let (_, answer) = self.answer_until.as_ref()?;
        answer.as_ref().ok().map(Arc::clone)
    }

    /// Whether there are addresses to use if no name server answers.
    pub(super) fn has_good(&self, now: Instant) -> bool {
        self.last_good
            .as_ref()
            .is_some_and(|(until, _)| now < *until)
    }

    /// Whether stale addresses are in use.
    pub(super) fn is_stale(&self) -> bool {
        self.stale.is_some()
    }

    /// Why the addresses are stale.
    pub(super) fn why_stale(&self) -> Option<&LookUpError> {
        self.stale.as_ref()
    }

    /// Records the result of a query, and returns the answer to use.
    pub(super) fn on_answer(
        &mut self,
        answer: Result<DnsAnswer, LookUpError>,
        now: Instant,
    ) -> Result<Resolution, LookUpError> {
        self.stale = None;
        let (until, answer) = match answer {
            Ok(mut found) => {
                let longest = if found.is_partial {
                    RETRY_STALE
                } else {
                    LONGEST
                };
                let until = now + found.ttl.clamp(SHORTEST, longest);
                let good_until = self.complete(&mut found, now).unwrap_or(until + STALE);
                let addresses = self.kept(found.addresses);
                self.last_good = Some((good_until, Arc::clone(&addresses)));
                (until, Ok(addresses))
            }
            Err(LookUpError::NotFound) => {
                self.last_good = None;
                (now + ABSENT, Err(LookUpError::NotFound))
            }
            Err(error) => match &self.last_good {
                Some((until, addresses)) if now < *until => {
                    let addresses = Arc::clone(addresses);
                    self.stale = Some(error);
                    (now + RETRY_STALE, Ok(addresses))
                }
                _ => (now + RETRY_EMPTY, Err(error)),
            },
        };
        self.answer_until = Some((until, answer.clone()));
        answer.map(|addresses| Resolution { addresses, until })
    }

    /// Adds the last good addresses of the family that a partial answer lacks; returns until when they may be used, if
    /// there are any.
    fn complete(&self, found: &mut DnsAnswer, now: Instant) -> Option<Instant> {
        let (until, last_good) = self.last_good.as_ref().filter(|(until, _)| now < *until)?;
        let is_v4 = found
            .addresses
            .first()
            .filter(|_| found.is_partial)?
            .is_ipv4();
        let before = found.addresses.len();
        let missing = last_good
            .iter()
            .filter(|address| address.is_ipv4() != is_v4);
        found.addresses.extend(missing);
        (found.addresses.len() > before).then_some(*until)
    }

    /// The `Arc` of the last good addresses if they are equal in any order, else a new one.
    fn kept(&self, mut found: Vec<IpAddr>) -> Addresses {
        found.sort_unstable();
        found.dedup();
        match &self.last_good {
            Some((_, before)) if **before == *found => Arc::clone(before),
            _ => found.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(addresses: &[&str], ttl: u64) -> Result<DnsAnswer, LookUpError> {
        Ok(DnsAnswer {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ttl: Duration::from_secs(ttl),
            is_partial: false,
        })
    }

    fn half(addresses: &[&str]) -> Result<DnsAnswer, LookUpError> {
        let whole = found(addresses, 300)?;
        Ok(DnsAnswer {
            is_partial: true,
            ..whole
        })
    }

    fn addresses(cached: &CachedName, now: Instant) -> Option<Vec<String>> {
        let answer = cached.at(now)?.unwrap();
        Some(answer.addresses.iter().map(ToString::to_string).collect())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_answer_holds_as_long_as_it_says_within_bounds() {
        let start = Instant::now();
        for (ttl, holds) in [(0, 1), (30, 30), (86_400, 300)] {
            let mut cached = CachedName::default();
            assert_eq!(cached.at(start), None);
            let answer = cached.on_answer(found(&["10.0.0.1"], ttl), start).unwrap();
            let end = start + Duration::from_secs(holds);
            assert_eq!(answer.until, end, "{ttl}");
            assert!(cached.at(end - Duration::from_millis(1)).is_some());
            assert_eq!(cached.at(end), None);
        }
    }

    #[test]
    fn another_order_is_no_change() {
        let (mut cached, start) = (CachedName::default(), Instant::now());
        let one = cached.on_answer(found(&["10.0.0.1", "10.0.0.2"], 5), start);
        let two = cached.on_answer(found(&["10.0.0.2", "10.0.0.1"], 5), start + 6 * SECOND);
        assert!(Arc::ptr_eq(
            &one.unwrap().addresses,
            &two.unwrap().addresses
        ));
    }

    #[test]
    fn the_last_good_addresses_go_on_for_a_while_when_nobody_answers() {
        let (mut cached, start) = (CachedName::default(), Instant::now());
        let _ = cached.on_answer(found(&["10.0.0.1"], 30), start);
        let later = start + 31 * SECOND;
        assert!(cached.has_good(later) && !cached.is_stale());
        let answer = cached.on_answer(Err(LookUpError::TimedOut), later).unwrap();
        assert!(cached.is_stale());
        assert_eq!(answer.until, later + RETRY_STALE);
        assert_eq!(addresses(&cached, later).unwrap(), ["10.0.0.1"]);
        // An answer ends that.
        let _ = cached.on_answer(found(&["10.0.0.2"], 30), later + 5 * SECOND);
        assert!(!cached.is_stale());
        let end = later + 5 * SECOND + 30 * SECOND + STALE;
        assert!(!cached.has_good(end));
        let error = cached.on_answer(Err(LookUpError::TimedOut), end);
        assert_eq!(error, Err(LookUpError::TimedOut));
        assert_eq!(cached.at(end), Some(Err(LookUpError::TimedOut)));
        assert_eq!(cached.at(end + RETRY_EMPTY), None);
    }

    #[test]
    fn half_an_answer_holds_shortly_and_takes_nothing_away_for_a_while() {
        let (mut cached, start) = (CachedName::default(), Instant::now());
        let first = cached.on_answer(half(&["fd00::1"]), start).unwrap();
        assert_eq!(first.until, start + RETRY_STALE);
        assert_eq!(addresses(&cached, start).unwrap(), ["fd00::1"]);
        let mut now = first.until;
        let whole = cached.on_answer(found(&["10.0.0.1", "fd00::1"], 300), now);
        now = whole.unwrap().until;
        let end = now + STALE;
        while now < end {
            let answer = cached.on_answer(half(&["fd00::2"]), now).unwrap();
            assert_eq!(addresses(&cached, now).unwrap(), ["10.0.0.1", "fd00::2"]);
            now = answer.until;
        }
        let _ = cached.on_answer(half(&["fd00::2"]), now);
        assert_eq!(addresses(&cached, now).unwrap(), ["fd00::2"]);
        // A complete answer without IPv4 addresses removes them at once.
        let _ = cached.on_answer(found(&["10.0.0.1", "fd00::2"], 1), now + RETRY_STALE);
        let _ = cached.on_answer(found(&["fd00::2"], 1), now + 2 * RETRY_STALE);
        assert_eq!(
            addresses(&cached, now + 2 * RETRY_STALE).unwrap(),
            ["fd00::2"]
        );
    }

    #[test]
    fn a_name_that_is_gone_is_gone() {
        let (mut cached, start) = (CachedName::default(), Instant::now());
        let _ = cached.on_answer(found(&["10.0.0.1"], 30), start);
        let later = start + 31 * SECOND;
        let _ = cached.on_answer(Err(LookUpError::NotFound), later);
        assert_eq!(cached.at(later), Some(Err(LookUpError::NotFound)));
        let failed = cached.on_answer(Err(LookUpError::TimedOut), later + ABSENT);
        assert_eq!(failed, Err(LookUpError::TimedOut));
    }
}
