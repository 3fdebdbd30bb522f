//! When a certificate is ordered: pure functions of the time.

use std::time::{Duration, SystemTime};

/// Time until the first order after a failed one is tried, which doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// Longest time until a failed order is tried again: some ten times before a certificate of six days expires.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(6 * 60 * 60);

/// Longest time for which nothing is ordered: the limits of public CAs are by the week. A longer one comes from a clock that
/// was ahead.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Most orders of one name in a time, failed ones included. Public CAs allow five failed proofs of a name in an hour.
const ORDERS: [(usize, Duration); 2] = [
    (4, Duration::from_secs(60 * 60)),
    (12, Duration::from_secs(24 * 60 * 60)),
];

/// How far the clock that noted an order may be ahead of this one: those of other nodes differ by less. A later order was noted
/// while this machine's clock was wrong, and says nothing of when it was made.
const AHEAD: Duration = Duration::from_secs(60);

/// The time in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) not_before: SystemTime,
    pub(super) not_after: SystemTime,
}

/// When the ACME server wants a certificate to be renewed (RFC 9773).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RenewalWindow {
    pub(super) start: SystemTime,
    pub(super) end: SystemTime,
}

/// When a certificate is to be renewed: at a random point of the window, if the ACME server has given one; else when two
/// thirds of its life are over, less up to a twentieth of it. In each case when a sixth of its life is left.
/// `share`, from 0 to 1, is random, and stays for the life of a certificate.
pub(super) fn renewal(validity: Validity, window: Option<RenewalWindow>, share: f64) -> SystemTime {
    let Validity {
        not_before,
        not_after,
    } = validity;
    let life = not_after.duration_since(not_before).unwrap_or_default();
    let at = match window {
        Some(RenewalWindow { start, end }) => {
            let length = end.duration_since(start).unwrap_or_default();
            start + length.mul_f64(share)
        }
        None => not_before + life * 2 / 3 - (life / 20).mul_f64(share),
    };
    at.min(not_after - life / 6)
}

/// Time until an order is tried again after so many failures in a row, one or more: 1, 2, 4 minutes and so on up to 6 hours,
/// less up to a quarter of it by the random `share`.
pub(super) fn pause(failures: u32, share: f64) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1));
    let pause = doubled.map_or(LONGEST_PAUSE, |factor| FIRST_PAUSE.saturating_mul(factor));
    let pause = pause.min(LONGEST_PAUSE);
    pause - (pause / 4).mul_f64(share)
}

/// When the next order is allowed, after those that were made at these times.
pub(super) fn next_allowed(orders: &[SystemTime], now: SystemTime) -> SystemTime {
    let mut newest_first = orders.to_vec();
    newest_first.sort_unstable_by(|a, b| b.cmp(a));
    let allowed = ORDERS.into_iter().filter_map(|(most, time)| {
        let last_of_full = newest_first.get(most - 1)?;
        Some(*last_of_full + time)
    });
    allowed.fold(now, SystemTime::max)
}

/// Forgets orders that do not count any more, or that a clock has noted that was ahead.
pub(super) fn forget_old(orders: &mut Vec<SystemTime>, now: SystemTime) {
    let longest = ORDERS.map(|(_, time)| time).into_iter().max();
    let counts = |order: &SystemTime| {
        let age = now.duration_since(*order).unwrap_or_default();
        longest.is_some_and(|longest| age < longest) && *order <= now + AHEAD
    };
    orders.retain(counts);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    const HOUR: Duration = Duration::from_secs(60 * 60);

    fn at(days: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * (20_000 + days)
    }

    fn validity(days: u32) -> Validity {
        Validity {
            not_before: at(0),
            not_after: at(days),
        }
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
        assert_eq!(renewal(validity(90), None, 0.0), at(60));
        assert_eq!(renewal(validity(90), None, 1.0), at(60) - DAY * 9 / 2);
        assert_eq!(renewal(validity(6), None, 0.0), at(4));
    }

    #[test]
    fn the_acme_servers_window_counts_but_for_the_last_sixth() {
        let window = |start, end| {
            Some(RenewalWindow {
                start: at(start),
                end: at(end),
            })
        };
        assert_eq!(renewal(validity(90), window(10, 12), 0.5), at(11));
        assert_eq!(renewal(validity(90), window(88, 89), 0.5), at(75));
        assert_eq!(
            renewal(validity(90), window(12, 10), 0.5),
            at(12),
            "no window"
        );
    }

    #[test]
    fn pauses_double_up_to_six_hours() {
        let minutes = |failures, share| pause(failures, share).as_secs() / 60;
        let pauses: Vec<_> = (1..12).map(|failures| minutes(failures, 0.0)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 360, 360]);
        assert_eq!(minutes(3, 1.0), 3);
        assert_eq!(pause(u32::MAX, 0.0), LONGEST_PAUSE);
    }

    #[test]
    fn orders_are_bounded_by_the_hour_and_by_the_day() {
        let now = at(1);
        assert_eq!(next_allowed(&[], now), now);
        let minutes_ago = |minutes: &[u32]| {
            let ago = |minutes: &u32| now - HOUR * *minutes / 60;
            minutes.iter().map(ago).collect::<Vec<_>>()
        };
        assert_eq!(next_allowed(&minutes_ago(&[1, 2, 59]), now), now);
        let full = minutes_ago(&[59, 2, 1, 3]);
        assert_eq!(next_allowed(&full, now), now + HOUR / 60);
        let of_day: Vec<u32> = (1..=12).map(|index| index * 100).collect();
        let allowed = next_allowed(&minutes_ago(&of_day), now);
        assert_eq!(allowed, now + DAY - HOUR * 20);
        let mut orders = minutes_ago(&[1, 24 * 60, 25 * 60]);
        forget_old(&mut orders, now);
        assert_eq!(orders, minutes_ago(&[1]));
    }

    #[test]
    fn a_clock_that_was_ahead_stops_no_order() {
        let now = at(1);
        let mut orders = vec![at(401); 4];
        orders.push(now + AHEAD);
        forget_old(&mut orders, now);
        assert_eq!(orders, [now + AHEAD]);
        assert_eq!(next_allowed(&orders, now), now);
    }

    proptest! {
        #[test]
        fn renewal_comes_before_the_end(days in 1_u32..400, share in 0.0..1.0_f64, from in 0_u32..800, length in 0_u32..800) {
            let window = RenewalWindow { start: at(from), end: at(from + length) };
            for window in [None, Some(window)] {
                prop_assert!(renewal(validity(days), window, share) < at(days));
            }
        }

        #[test]
        fn no_clock_breaks_the_bound(seconds in proptest::collection::vec(0_u64..400_000_000_000, 0..20), now in 0_u64..400_000_000_000) {
            let time = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let mut orders: Vec<_> = seconds.into_iter().map(time).collect();
            forget_old(&mut orders, time(now));
            let allowed = next_allowed(&orders, time(now));
            prop_assert!((time(now)..=time(now) + AHEAD + DAY).contains(&allowed));
        }
    }
}
