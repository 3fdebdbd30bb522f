//! Weighted round-robin over several upstreams, with ejection: no clock, no network.
//!
//! An upstream is out while its health checks fail, or for a growing time after consecutive failures. Upstreams that
//! are out are passed over while there is any other; when all are out, all get requests again, since the checks may be
//! wrong.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tunnel_proto::control::millis;

use super::settings::EjectionOptions;

/// Most times that the ejection time is added.
const GROWTH_MAX: u32 = 10;

impl EjectionOptions {
    /// The duration of an ejection, the `times`th in a row.
    fn out(&self, times: u32) -> Duration {
        self.duration.saturating_mul(times.min(GROWTH_MAX))
    }
}

/// The state of a member, as it is copied to the balance of a new table of routes.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemberState {
    is_unhealthy: bool,
    failures: u32,
    ejections: u32,
    /// The start and end of its ejection.
    out: Option<(Instant, Instant)>,
}

/// The members of a set of upstreams, and which of them is next.
pub(super) struct Balance {
    members: Vec<Member>,
    /// Credits of the members: how far each is ahead of its share.
    turns: Mutex<Vec<i64>>,
    ejection: Option<EjectionOptions>,
    /// The origin of stored times.
    start: Instant,
}

struct Member {
    weight: u32,
    is_unhealthy: AtomicBool,
    /// Consecutive failures.
    failures: AtomicU32,
    /// Consecutive ejections.
    ejections: AtomicU32,
    /// End of the ejection, in milliseconds from `start`; 0 for none.
    out_until: AtomicU64,
    /// Start of the last ejection, in milliseconds from `start`.
    out_since: AtomicU64,
}

impl Balance {
    /// Members with these weights, none of them out.
    pub(super) fn new(
        weights: impl IntoIterator<Item = u32>,
        ejection: Option<EjectionOptions>,
        start: Instant,
    ) -> Self {
        let member = |weight| Member {
            weight,
            is_unhealthy: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            out_until: AtomicU64::new(0),
            out_since: AtomicU64::new(0),
        };
        let members: Vec<_> = weights.into_iter().map(member).collect();
        Self {
            turns: Mutex::new(vec![0; members.len()]),
            members,
            ejection,
            start,
        }
    }

    /// The state of a member.
    pub(super) fn state(&self, index: usize) -> MemberState {
        let member = &self.members[index];
        let time = |millis: &AtomicU64| {
            let since = Duration::from_millis(millis.load(Ordering::Relaxed));
            self.start.checked_add(since)
        };
        let is_out = member.out_until.load(Ordering::Relaxed) > 0;
        MemberState {
            is_unhealthy: member.is_unhealthy.load(Ordering::Relaxed),
            failures: member.failures.load(Ordering::Relaxed),
            ejections: member.ejections.load(Ordering::Relaxed),
            out: time(&member.out_since)
                .zip(time(&member.out_until))
                .filter(|_| is_out),
        }
    }

    /// Gives a member the state that its upstream had in another balance. Unhealthiness is copied only if health checks
    /// can end it here (`is_checked`), an ejection only if there are ejections here, and for no longer than they last here.
    pub(super) fn restore(&self, index: usize, state: &MemberState, is_checked: bool) {
        let member = &self.members[index];
        let is_unhealthy = state.is_unhealthy && is_checked;
        member.is_unhealthy.store(is_unhealthy, Ordering::Relaxed);
        let Some(settings) = self.ejection else {
            return;
        };
        member.failures.store(state.failures, Ordering::Relaxed);
        member.ejections.store(state.ejections, Ordering::Relaxed);
        if let Some((since, until)) = state.out {
            let longest = since.checked_add(settings.out(state.ejections));
            let until = longest.map_or(until, |longest| longest.min(until));
            member
                .out_since
                .store(self.millis(since), Ordering::Relaxed);
            member
                .out_until
                .store(self.millis(until), Ordering::Relaxed);
        }
    }

    /// The next member by weight, except these; `None` when there is no other.
    pub(super) fn next(&self, except: &[usize], now: Instant) -> Option<usize> {
        let other = |index: &usize| !except.contains(index);
        let is_in = |index: &usize| other(index) && !self.is_out(*index, now);
        self.turn(is_in).or_else(|| self.turn(other))
    }

    /// Smooth weighted round-robin among the members for which `is_asked` holds: each gains its weight, the one ahead
    /// of all is picked and loses the sum of the weights. So picks are spread as evenly as possible.
    fn turn(&self, is_asked: impl Fn(&usize) -> bool) -> Option<usize> {
        let mut turns = self.turns.lock();
        let (mut best, mut all) = (None, 0);
        for (index, turn) in turns
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| is_asked(index))
        {
            let weight = i64::from(self.members[index].weight);
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

    /// Whether a member is passed over.
    pub(super) fn is_out(&self, index: usize, now: Instant) -> bool {
        self.is_unhealthy(index) || self.is_ejected(index, now)
    }

    /// Whether its health checks fail.
    pub(super) fn is_unhealthy(&self, index: usize) -> bool {
        self.members[index].is_unhealthy.load(Ordering::Relaxed)
    }

    /// Whether it is ejected.
    pub(super) fn is_ejected(&self, index: usize, now: Instant) -> bool {
        let until = self.members[index].out_until.load(Ordering::Relaxed);
        until > 0 && until > self.millis(now)
    }

    /// Records the result of the health checks. A success forgets earlier failures.
    pub(super) fn set_unhealthy(&self, index: usize, is_unhealthy: bool) {
        let member = &self.members[index];
        member.is_unhealthy.store(is_unhealthy, Ordering::Relaxed);
        if !is_unhealthy {
            self.forget(index);
        }
    }

    /// Records a response to a request for which it was picked at this time. A response that was under way when the
    /// member was ejected says nothing about it since.
    pub(super) fn on_success(&self, index: usize, picked: Instant) {
        let member = &self.members[index];
        let was_out = member.out_until.load(Ordering::Relaxed) > 0;
        if was_out && self.millis(picked) < member.out_since.load(Ordering::Relaxed) {
            return;
        }
        self.forget(index);
    }

    /// Forgets failures and ejections.
    fn forget(&self, index: usize) {
        let member = &self.members[index];
        // No write while there is nothing to forget: other threads read these.
        for count in [&member.failures, &member.ejections] {
            if count.load(Ordering::Relaxed) > 0 {
                count.store(0, Ordering::Relaxed);
            }
        }
        if member.out_until.load(Ordering::Relaxed) > 0 {
            member.out_until.store(0, Ordering::Relaxed);
        }
    }

    /// Records a failure; returns the duration of the ejection if it causes one.
    pub(super) fn on_failure(&self, index: usize, now: Instant) -> Option<Duration> {
        let settings = self.ejection?;
        let member = &self.members[index];
        let failures = member.failures.fetch_add(1, Ordering::Relaxed) + 1;
        // Requests from before the ejection may fail after it began.
        if failures < settings.after || self.is_ejected(index, now) {
            return None;
        }
        member.failures.store(0, Ordering::Relaxed);
        let times = member.ejections.load(Ordering::Relaxed).saturating_add(1);
        member.ejections.store(times, Ordering::Relaxed);
        let out = settings.out(times);
        let until = self.millis(now.checked_add(out).unwrap_or(now)).max(1);
        member.out_since.store(self.millis(now), Ordering::Relaxed);
        member.out_until.store(until, Ordering::Relaxed);
        Some(out)
    }

    /// A time as it is stored.
    fn millis(&self, time: Instant) -> u64 {
        millis(time.saturating_duration_since(self.start))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const EJECTION: EjectionOptions = EjectionOptions {
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
            balance.members[0].failures.store(0, Ordering::Relaxed);
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

    /// A balance with these settings, whose second member has the state of the first member of `from`.
    fn handed_over(from: &Balance, ejection: Option<EjectionOptions>, now: Instant) -> Balance {
        let to = Balance::new([1, 1], ejection, now);
        to.restore(1, &from.state(0), true);
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
        let short = EjectionOptions {
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
        to.restore(0, &from.state(0), false);
        assert!(!to.is_unhealthy(0));
        to.restore(0, &from.state(0), true);
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
