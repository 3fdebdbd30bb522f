//! Which of several upstreams is asked next, by weights and by how they have done: no clock, no
//! network.
//!
//! An upstream is out while its checks fail, or for a growing time after it failed too often in a
//! row. Those that are out are passed over as long as any other is there; when all are, all are asked
//! again: perhaps it is the checks that are wrong.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Largest weight: with the number of upstreams that a file can name, sums stay far from any limit.
pub(crate) const WEIGHT_MAX: u32 = 1000;
/// Most times that the time out is grown by.
const GROWTH_MAX: u32 = 10;

/// When an upstream that fails is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EjectionSettings {
    /// Failures in a row, to connect or to answer. At least 1.
    pub(crate) after: u32,
    /// For how long the first time; each further time in a row for as much more, up to ten times it.
    pub(crate) duration: Duration,
}

impl EjectionSettings {
    /// For how long an upstream is left alone when it is put out for this time in a row.
    fn out(&self, times: u32) -> Duration {
        self.duration.saturating_mul(times.min(GROWTH_MAX))
    }
}

/// What is known of an upstream, wherever its place is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    is_unhealthy: bool,
    failures: u32,
    ejections: u32,
    /// Since when it is out, and until when.
    out: Option<(Instant, Instant)>,
}

/// The upstreams' places.
pub(super) struct Balance {
    places: Vec<Place>,
    /// How far each place is ahead of its share.
    turns: Mutex<Vec<i64>>,
    ejection: Option<EjectionSettings>,
    /// From where times are counted.
    start: Instant,
}

struct Place {
    weight: u32,
    is_unhealthy: AtomicBool,
    /// In a row.
    failures: AtomicU32,
    /// Ejections in a row.
    ejections: AtomicU32,
    /// Until when it is out, in milliseconds from the start; 0 for not at all.
    out_until: AtomicU64,
    /// When it was put out the last time, counted in the same way.
    out_since: AtomicU64,
}

impl Balance {
    /// Places with these weights, none of them out.
    pub(super) fn new(
        weights: impl IntoIterator<Item = u32>,
        ejection: Option<EjectionSettings>,
        start: Instant,
    ) -> Self {
        let place = |weight| Place {
            weight,
            is_unhealthy: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            out_until: AtomicU64::new(0),
            out_since: AtomicU64::new(0),
        };
        let places: Vec<_> = weights.into_iter().map(place).collect();
        Self {
            turns: Mutex::new(vec![0; places.len()]),
            places,
            ejection,
            start,
        }
    }

    /// What is known of the upstream at a place.
    pub(super) fn known(&self, index: usize) -> Known {
        let place = &self.places[index];
        let time = |millis: &AtomicU64| {
            let since = Duration::from_millis(millis.load(Ordering::Relaxed));
            self.start.checked_add(since)
        };
        let is_out = place.out_until.load(Ordering::Relaxed) > 0;
        Known {
            is_unhealthy: place.is_unhealthy.load(Ordering::Relaxed),
            failures: place.failures.load(Ordering::Relaxed),
            ejections: place.ejections.load(Ordering::Relaxed),
            out: time(&place.out_since)
                .zip(time(&place.out_until))
                .filter(|_| is_out),
        }
    }

    /// Takes over what was known of an upstream elsewhere, as far as something here can take it back:
    /// checks, if there are any, and time, which is no longer than it would be here.
    pub(super) fn learn(&self, index: usize, known: &Known, is_checked: bool) {
        let place = &self.places[index];
        let is_unhealthy = known.is_unhealthy && is_checked;
        place.is_unhealthy.store(is_unhealthy, Ordering::Relaxed);
        let Some(settings) = self.ejection else {
            return;
        };
        place.failures.store(known.failures, Ordering::Relaxed);
        place.ejections.store(known.ejections, Ordering::Relaxed);
        if let Some((since, until)) = known.out {
            let longest = since.checked_add(settings.out(known.ejections));
            let until = longest.map_or(until, |longest| longest.min(until));
            place.out_since.store(self.millis(since), Ordering::Relaxed);
            place.out_until.store(self.millis(until), Ordering::Relaxed);
        }
    }

    /// The next place by its weight, but none of these; `None` when there is no other.
    pub(super) fn next(&self, except: &[usize], now: Instant) -> Option<usize> {
        let other = |index: &usize| !except.contains(index);
        let is_in = |index: &usize| other(index) && !self.is_out(*index, now);
        self.turn(is_in).or_else(|| self.turn(other))
    }

    /// The turn of one of these. Each gets ahead by its weight, and who is furthest goes back by the
    /// weight of all: so turns are spread as evenly as they can be.
    fn turn(&self, is_asked: impl Fn(&usize) -> bool) -> Option<usize> {
        let mut turns = self.turns.lock();
        let (mut best, mut all) = (None, 0);
        for (index, turn) in turns
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| is_asked(index))
        {
            let weight = i64::from(self.places[index].weight);
            *turn += weight;
            all += weight;
            if best.is_none_or(|(_, most)| *turn > most) {
                best = Some((index, *turn));
            }
        }
        let (index, _) = best?;
        turns[index] -= all;
        Some(index)
    }

    /// Whether a place is passed over.
    pub(super) fn is_out(&self, index: usize, now: Instant) -> bool {
        self.is_unhealthy(index) || self.is_ejected(index, now)
    }

    /// Whether its checks fail.
    pub(super) fn is_unhealthy(&self, index: usize) -> bool {
        self.places[index].is_unhealthy.load(Ordering::Relaxed)
    }

    /// Whether it is left alone for a time.
    pub(super) fn is_ejected(&self, index: usize, now: Instant) -> bool {
        let until = self.places[index].out_until.load(Ordering::Relaxed);
        until > 0 && until > self.millis(now)
    }

    /// What its checks say. When they hold again, what was before is forgotten.
    pub(super) fn set_unhealthy(&self, index: usize, is_unhealthy: bool) {
        let place = &self.places[index];
        place.is_unhealthy.store(is_unhealthy, Ordering::Relaxed);
        if !is_unhealthy {
            self.forget(index);
        }
    }

    /// It answered whom it was picked for at this time. An answer that was on its way when the place
    /// was put out says nothing of how it is since.
    pub(super) fn on_success(&self, index: usize, picked: Instant) {
        let place = &self.places[index];
        let was_out = place.out_until.load(Ordering::Relaxed) > 0;
        if was_out && self.millis(picked) < place.out_since.load(Ordering::Relaxed) {
            return;
        }
        self.forget(index);
    }

    /// Nothing is held against it any more.
    fn forget(&self, index: usize) {
        let place = &self.places[index];
        // Nothing is written while all is well: others read it.
        for count in [&place.failures, &place.ejections] {
            if count.load(Ordering::Relaxed) > 0 {
                count.store(0, Ordering::Relaxed);
            }
        }
        if place.out_until.load(Ordering::Relaxed) > 0 {
            place.out_until.store(0, Ordering::Relaxed);
        }
    }

    /// It could not be reached, or did not answer. For how long it is left alone, if that was one
    /// time too often.
    pub(super) fn on_failure(&self, index: usize, now: Instant) -> Option<Duration> {
        let settings = self.ejection?;
        let place = &self.places[index];
        let failures = place.failures.fetch_add(1, Ordering::Relaxed) + 1;
        // What was asked before it was out may fail after.
        if failures < settings.after || self.is_ejected(index, now) {
            return None;
        }
        place.failures.store(0, Ordering::Relaxed);
        let times = place.ejections.load(Ordering::Relaxed).saturating_add(1);
        place.ejections.store(times, Ordering::Relaxed);
        let out = settings.out(times);
        let until = self.millis(now.checked_add(out).unwrap_or(now)).max(1);
        place.out_since.store(self.millis(now), Ordering::Relaxed);
        place.out_until.store(until, Ordering::Relaxed);
        Some(out)
    }

    /// A time as it is kept.
    fn millis(&self, time: Instant) -> u64 {
        let since = time.saturating_duration_since(self.start).as_millis();
        u64::try_from(since).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const EJECTION: EjectionSettings = EjectionSettings {
        after: 3,
        duration: Duration::from_secs(10),
    };

    fn balance(weights: &[u32]) -> (Balance, Instant) {
        let start = Instant::now();
        let balance = Balance::new(weights.iter().copied(), Some(EJECTION), start);
        (balance, start)
    }

    fn turns(balance: &Balance, now: Instant, count: usize) -> Vec<usize> {
        (0..count)
            .map(|_| balance.next(&[], now).unwrap())
            .collect()
    }

    #[test]
    fn turns_are_spread_by_weight() {
        let (balance, now) = balance(&[3, 1, 1]);
        assert_eq!(turns(&balance, now, 5), [0, 1, 0, 2, 0]);
        assert_eq!(turns(&balance, now, 5), [0, 1, 0, 2, 0]);
    }

    #[test]
    fn who_is_out_is_passed_over_unless_all_are() {
        let (balance, now) = balance(&[1, 1, 1]);
        balance.set_unhealthy(1, true);
        assert!(!turns(&balance, now, 10).contains(&1));
        balance.set_unhealthy(0, true);
        assert_eq!(turns(&balance, now, 3), [2, 2, 2]);
        assert!(
            balance.next(&[2], now).is_some(),
            "the others are better than none"
        );
        balance.set_unhealthy(2, true);
        let mut all = turns(&balance, now, 3);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
        balance.set_unhealthy(1, false);
        assert_eq!(turns(&balance, now, 3), [1, 1, 1]);
    }

    #[test]
    fn one_alone_has_no_other() {
        let (balance, now) = balance(&[1]);
        assert_eq!(balance.next(&[], now), Some(0));
        assert_eq!(balance.next(&[0], now), None);
    }

    #[test]
    fn failures_in_a_row_put_one_out_for_a_growing_time() {
        let (balance, start) = balance(&[1, 1]);
        let mut now = start;
        for times in [1, 2, 3] {
            assert_eq!(balance.on_failure(0, now), None);
            assert_eq!(balance.on_failure(0, now), None);
            let out = balance.on_failure(0, now).unwrap();
            assert_eq!(out, EJECTION.duration * times);
            assert!(balance.is_ejected(0, now + out - SECOND));
            assert_eq!(balance.on_failure(0, now), None, "it is out already");
            balance.places[0].failures.store(0, Ordering::Relaxed);
            now += out;
            assert!(!balance.is_ejected(0, now));
        }
        for _ in 0..100 {
            now += 1000 * SECOND;
            let out = balance.on_failure(0, now).unwrap_or_default();
            assert!(out <= EJECTION.duration * GROWTH_MAX);
        }
        balance.on_success(0, now);
        assert!(!balance.is_ejected(0, now));
        assert_eq!(balance.on_failure(0, now), None);
    }

    #[test]
    fn an_answer_from_before_does_not_bring_one_back() {
        let (balance, start) = balance(&[1, 1]);
        let now = start + SECOND;
        let out = (0..3).find_map(|_| balance.on_failure(0, now)).unwrap();
        balance.on_success(0, start);
        assert!(balance.is_ejected(0, now));
        // Nor does it count after: the next time is longer.
        let later = now + out;
        balance.on_success(0, start);
        let again = (0..3).find_map(|_| balance.on_failure(0, later)).unwrap();
        assert_eq!(again, 2 * out);
        balance.on_success(0, later);
        assert!(!balance.is_ejected(0, later));
    }

    #[test]
    fn a_success_in_between_starts_the_count_anew() {
        let (balance, now) = balance(&[1, 1]);
        for _ in 0..10 {
            assert_eq!(balance.on_failure(0, now), None);
            assert_eq!(balance.on_failure(0, now), None);
            balance.on_success(0, now);
        }
    }

    /// What is known of the first place, at another one that is put out by these settings.
    fn handed_over(from: &Balance, ejection: Option<EjectionSettings>, now: Instant) -> Balance {
        let to = Balance::new([1, 1], ejection, now);
        to.learn(1, &from.known(0), true);
        to
    }

    #[test]
    fn who_was_out_elsewhere_is_out_here_for_as_long() {
        let (from, start) = balance(&[1, 1]);
        let since = start + SECOND;
        let out = (0..3).find_map(|_| from.on_failure(0, since)).unwrap();
        let now = since + 4 * SECOND;
        let to = handed_over(&from, Some(EJECTION), now);
        assert!(to.is_ejected(1, now) && !to.is_ejected(0, now));
        assert!(to.is_ejected(1, since + out - SECOND));
        assert!(!to.is_ejected(1, since + out));
        // It was out before, so that the next time is longer.
        let again = (0..3).find_map(|_| to.on_failure(1, since + out));
        assert_eq!(again, Some(2 * out));
        let answered = handed_over(&from, Some(EJECTION), now);
        answered.on_success(1, now);
        assert!(!answered.is_ejected(1, now));
    }

    #[test]
    fn what_is_known_holds_no_longer_than_it_would_here() {
        let (from, start) = balance(&[1, 1]);
        let out = (0..3).find_map(|_| from.on_failure(0, start));
        assert_eq!(out, Some(10 * SECOND));
        let short = EjectionSettings {
            after: 1,
            duration: 3 * SECOND,
        };
        let to = handed_over(&from, Some(short), start + SECOND);
        assert!(to.is_ejected(1, start + 2 * SECOND));
        assert!(!to.is_ejected(1, start + 3 * SECOND));
        // Nobody would ever take it back.
        let to = handed_over(&from, None, start + SECOND);
        assert!(!to.is_ejected(1, start + SECOND));
        from.set_unhealthy(0, true);
        let to = Balance::new([1], Some(EJECTION), start);
        to.learn(0, &from.known(0), false);
        assert!(!to.is_unhealthy(0));
        to.learn(0, &from.known(0), true);
        assert!(to.is_unhealthy(0));
    }

    #[test]
    fn failures_are_counted_on() {
        let (from, now) = balance(&[1, 1]);
        for _ in 0..2 {
            assert_eq!(from.on_failure(0, now), None);
        }
        let to = handed_over(&from, Some(EJECTION), now);
        assert!(!to.is_ejected(1, now));
        assert_eq!(to.on_failure(1, now), Some(EJECTION.duration));
    }

    proptest! {
        #[test]
        fn each_gets_its_share_exactly(weights in prop::collection::vec(1u32..20, 1..8)) {
            let (balance, now) = balance(&weights);
            let all: u32 = weights.iter().sum();
            let turns = turns(&balance, now, 2 * all as usize);
            for (index, weight) in weights.iter().enumerate() {
                let got = turns.iter().filter(|turn| **turn == index).count();
                prop_assert_eq!(got, 2 * *weight as usize);
            }
        }
    }
}
