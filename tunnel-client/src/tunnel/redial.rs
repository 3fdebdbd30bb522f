//! When to dial again after a failed dial or an ended session, and whether after a refusal.
//!
//! Pure: the random numbers and the times come as arguments. The waits are drawn from the whole
//! range up to a bound that doubles ("full jitter"), so that clients that lost the same server do
//! not come back together. All places of a tunnel share one [`Redial`], so that many of them dial a
//! server that is down no more often than one would.

use std::time::Duration;

use tokio::time::Instant;
use tunnel_proto::close::{AfterClose, CloseReason};

/// Longest time that a server can make a client wait with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10 * 60);

/// Longest time that a superseded client stays away, unless its first time is set to a longer one.
const HOLD_OFF_MAX: Duration = Duration::from_secs(60 * 60);

/// How a client waits.
#[derive(Debug, Clone)]
pub(crate) struct RedialSettings {
    /// Bound of the first wait.
    pub(crate) base: Duration,
    /// Bound of any wait.
    pub(crate) cap: Duration,
    /// How long a session has to last for the waits to start over.
    pub(crate) stable: Duration,
}

/// When the next dial is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Now.
    Now,
    /// At this moment, or when there is a reason to think that things have changed.
    At(Instant),
    /// At this moment, whatever happens meanwhile: the server has asked for it.
    NotBefore(Instant),
}

/// Counts what went wrong since a session was last stable, and knows when to dial again.
#[derive(Debug)]
pub(crate) struct Redial {
    settings: RedialSettings,
    /// Dials and sessions that came to nothing; what is lost while a wait lasts belongs to the
    /// failure before it.
    failures: u32,
    /// The end of the present wait.
    at: Option<Instant>,
    /// Until when the server wants to be left alone.
    not_before: Option<Instant>,
}

/// How long a tunnel stays away after a refusal for good, if it ever comes back.
#[derive(Debug)]
pub(crate) struct HoldOff {
    /// The first time; `None` to give up instead.
    first: Option<Duration>,
    /// How often the tunnel was superseded without having held the runtime for long.
    superseded: u32,
}

impl Due {
    /// How long that is from now.
    pub(crate) fn after(self, now: Instant) -> Duration {
        match self {
            Self::Now => Duration::ZERO,
            Self::At(at) | Self::NotBefore(at) => at.saturating_duration_since(now),
        }
    }
}

impl Redial {
    /// Nothing has gone wrong so far.
    pub(crate) fn new(settings: RedialSettings) -> Self {
        Self {
            settings,
            failures: 0,
            at: None,
            not_before: None,
        }
    }

    /// When to dial next.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let ahead = |at: &Instant| *at > now;
        match (self.not_before.filter(ahead), self.at.filter(ahead)) {
            (Some(not_before), _) => Due::NotBefore(not_before),
            (None, Some(at)) => Due::At(at),
            (None, None) => Due::Now,
        }
    }

    /// After a dial that gave no session. `random` is any number.
    pub(crate) fn after_failure(
        &mut self,
        retry_after: Option<Duration>,
        now: Instant,
        random: u64,
    ) {
        let wait = self.grow(random);
        self.at = self.at.max(Some(now + wait));
        if let Some(after) = retry_after {
            // Later than asked, never earlier, and not all at the same moment.
            let not_before = now + after.min(RETRY_AFTER_MAX) + wait;
            self.not_before = self.not_before.max(Some(not_before));
        }
    }

    /// After a session that lasted for `lived`. `random` is any number.
    pub(crate) fn after_session(
        &mut self,
        reason: CloseReason,
        lived: Duration,
        now: Instant,
        random: u64,
    ) {
        let was_stable = self.on_lived(lived);
        if self.due(now) != Due::Now {
            // Lost together with another, or while the server is away. But one that has left in good order
            // has refused all dials while it did: that is over, and the next one is there, or soon will be.
            if reason == CloseReason::Drained && lived >= self.settings.base {
                let soon = now + fraction(2 * self.settings.base, random);
                self.failures = self.failures.min(1);
                self.at = self.at.map(|at| at.min(soon));
            }
            return;
        }
        let wait = match reason.after() {
            // The server is there and wants us elsewhere, or the way to it broke: no reason to
            // wait, but for a moment, in which the others of this server come as well.
            AfterClose::Redial if was_stable => fraction(self.settings.base / 4, random),
            AfterClose::Redial | AfterClose::Wait | AfterClose::Stop => self.grow(random),
        };
        self.at = Some(now + wait);
    }

    /// After the server has told a session that lasted for `lived` to leave. It says itself when to
    /// dial; but one that says so to every new session must not be dialled without end.
    pub(crate) fn after_drain(&mut self, lived: Duration, now: Instant, random: u64) {
        self.on_lived(lived);
        if lived < self.settings.base {
            self.after_session(CloseReason::Drained, lived, now, random);
        }
    }

    /// A session has lasted for `lived`, whatever becomes of it: what went wrong before one that was
    /// stable says nothing any more. Whether it was.
    pub(crate) fn on_lived(&mut self, lived: Duration) -> bool {
        let was_stable = lived >= self.settings.stable;
        if was_stable {
            self.failures = 0;
        }
        was_stable
    }

    /// Things may have changed: only what the server asked for is waited for.
    pub(crate) fn hurry(&mut self) {
        self.at = None;
    }

    fn grow(&mut self, random: u64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let bound = self.settings.base.saturating_mul(factor);
        self.failures = self.failures.saturating_add(1);
        fraction(bound.min(self.settings.cap), random)
    }
}

impl HoldOff {
    /// Stays away for `first`, or does not come back when that is `None`.
    pub(crate) fn new(first: Option<Duration>) -> Self {
        Self {
            first,
            superseded: 0,
        }
    }

    /// After a refusal that a person has to mend.
    pub(crate) fn after_refusal(&self) -> Option<Duration> {
        self.first
    }

    /// After another instance took the runtime over that this one held for `held`. Two that fight for
    /// it would do so without end: so each time is longer than the last.
    pub(crate) fn after_superseded(&mut self, held: Duration, random: u64) -> Option<Duration> {
        let first = self.first?;
        let longest = HOLD_OFF_MAX.max(first);
        if held > longest {
            // Longer than the other can have stayed away: this is no fight.
            self.superseded = 0;
        }
        let factor = 1_u32.checked_shl(self.superseded).unwrap_or(u32::MAX);
        self.superseded = self.superseded.saturating_add(1);
        let bound = first.saturating_mul(factor).min(longest);
        Some(bound + fraction(bound / 4, random))
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

    fn redial() -> (Redial, Instant) {
        let settings = RedialSettings {
            base: SECOND,
            cap: 30 * SECOND,
            stable: 60 * SECOND,
        };
        (Redial::new(settings), Instant::now())
    }

    /// How long the wait is that begins now, after the longest random part.
    fn wait_after_failure(redial: &mut Redial, now: &mut Instant) -> Duration {
        redial.after_failure(None, *now, LARGEST);
        pass(redial, now)
    }

    /// Lets the wait pass.
    fn pass(redial: &Redial, now: &mut Instant) -> Duration {
        let began = *now;
        loop {
            match redial.due(*now) {
                Due::Now => return *now - began,
                Due::At(at) | Due::NotBefore(at) => *now = at,
            }
        }
    }

    #[test]
    fn waits_double_up_to_the_cap() {
        let (mut redial, mut now) = redial();
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            assert_eq!(wait_after_failure(&mut redial, &mut now), seconds * SECOND);
        }
        for _ in 0..100 {
            assert_eq!(wait_after_failure(&mut redial, &mut now), 30 * SECOND);
        }
    }

    #[test]
    fn only_a_stable_session_lets_them_start_over() {
        let (mut redial, mut now) = redial();
        wait_after_failure(&mut redial, &mut now);
        let ended = CloseReason::Overloaded;
        redial.after_session(ended, 59 * SECOND, now, LARGEST);
        assert_eq!(pass(&redial, &mut now), 2 * SECOND);
        redial.after_session(ended, 60 * SECOND, now, LARGEST);
        assert_eq!(pass(&redial, &mut now), SECOND);
    }

    #[test]
    fn dials_that_failed_while_a_session_stood_do_not_hold_up_the_next_for_long() {
        let (mut redial, mut now) = redial();
        for _ in 0..8 {
            wait_after_failure(&mut redial, &mut now);
        }
        redial.after_failure(None, now, LARGEST);
        redial.after_session(CloseReason::Drained, 120 * SECOND, now, LARGEST);
        assert_eq!(pass(&redial, &mut now), 2 * SECOND);
    }

    #[test]
    fn sessions_that_are_lost_together_count_once() {
        let (mut redial, mut now) = redial();
        for _ in 0..8 {
            redial.after_session(CloseReason::Internal, SECOND, now, LARGEST);
        }
        assert_eq!(pass(&redial, &mut now), SECOND);
        wait_after_failure(&mut redial, &mut now);
        redial.after_failure(None, now, LARGEST);
        redial.after_session(CloseReason::Dead, 3_600 * SECOND, now, 0);
        assert_eq!(pass(&redial, &mut now), 4 * SECOND, "the server is away");
    }

    #[test]
    fn whatever_becomes_of_a_stable_session_what_went_wrong_before_it_is_forgotten() {
        let cases: [fn(&mut Redial, Instant); 3] = [
            |redial, now| {
                redial.after_failure(None, now, LARGEST);
                redial.after_session(CloseReason::Dead, 60 * SECOND, now, LARGEST);
            },
            |redial, now| redial.after_drain(60 * SECOND, now, LARGEST),
            |redial, _| assert!(redial.on_lived(60 * SECOND)),
        ];
        for befall in cases {
            let (mut redial, mut now) = redial();
            for _ in 0..3 {
                wait_after_failure(&mut redial, &mut now);
            }
            befall(&mut redial, now);
            pass(&redial, &mut now);
            assert_eq!(wait_after_failure(&mut redial, &mut now), SECOND);
        }
    }

    #[test]
    fn a_server_that_leaves_is_dialled_again_almost_at_once() {
        let (mut redial, mut now) = redial();
        redial.after_session(CloseReason::Drained, 60 * SECOND, now, LARGEST);
        assert_eq!(pass(&redial, &mut now), SECOND / 4);
        // Unless it leaves again and again.
        for seconds in [1, 2, 4] {
            redial.after_session(CloseReason::Drained, SECOND, now, LARGEST);
            assert_eq!(pass(&redial, &mut now), seconds * SECOND);
        }
    }

    #[test]
    fn who_drains_every_new_session_is_not_dialled_without_end() {
        let (mut redial, mut now) = redial();
        redial.after_drain(5 * SECOND, now, LARGEST);
        assert_eq!(redial.due(now), Due::Now);
        for seconds in [1, 2, 4] {
            redial.after_drain(SECOND / 10, now, LARGEST);
            assert_eq!(pass(&redial, &mut now), seconds * SECOND);
        }
    }

    #[test]
    fn retry_after_is_kept_but_not_for_ever() {
        for (asked, kept) in [(7 * SECOND, 7 * SECOND), (Duration::MAX, RETRY_AFTER_MAX)] {
            let (mut redial, now) = redial();
            redial.after_failure(Some(asked), now, 0);
            assert_eq!(redial.due(now), Due::NotBefore(now + kept));
            redial.hurry();
            assert_eq!(redial.due(now), Due::NotBefore(now + kept));
        }
    }

    #[test]
    fn who_has_a_reason_to_does_not_wait() {
        let (mut redial, now) = redial();
        redial.after_failure(None, now, LARGEST);
        assert_eq!(redial.due(now), Due::At(now + SECOND));
        redial.hurry();
        assert_eq!(redial.due(now), Due::Now);
    }

    #[test]
    fn what_a_person_has_to_mend_ends_it_or_waits_long() {
        let minutes = 5 * 60 * SECOND;
        let mut hold_off = HoldOff::new(None);
        assert_eq!(hold_off.after_refusal(), None);
        assert_eq!(hold_off.after_superseded(SECOND, 0), None);
        assert_eq!(HoldOff::new(Some(minutes)).after_refusal(), Some(minutes));
    }

    #[test]
    fn two_that_fight_stay_away_longer_each_time() {
        let minute = 60 * SECOND;
        let mut hold_off = HoldOff::new(Some(5 * minute));
        for minutes in [5, 10, 20, 40, 60, 60] {
            let held = 59 * minute;
            let waited = hold_off.after_superseded(held, 0);
            assert_eq!(waited, Some(minutes * minute));
        }
        assert_eq!(hold_off.after_superseded(61 * minute, 0), Some(5 * minute));
        let longest = hold_off.after_superseded(SECOND, LARGEST);
        assert_eq!(longest, Some(10 * minute * 5 / 4), "not both at once");
    }

    proptest! {
        #[test]
        fn no_wait_is_beyond_its_bound(failures in 0_u32..200, random: u64) {
            let (mut redial, now) = redial();
            redial.failures = failures;
            let bound = SECOND.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
            redial.after_failure(None, now, random);
            prop_assert!(redial.at.unwrap() - now <= bound.min(30 * SECOND));
        }

        #[test]
        fn waits_are_spread_over_the_whole_range(random: u64) {
            let wait = fraction(SECOND, random);
            let mirrored = fraction(SECOND, !random);
            prop_assert!((wait + mirrored).abs_diff(SECOND) < Duration::from_micros(1));
        }

        /// However many places there are, and whatever befalls them, there are no more dials than
        /// one place alone could make; but each stable session that is lost lets the waits start
        /// over, once.
        #[test]
        fn a_server_that_is_down_is_dialled_no_more_often_by_many(
            losses in proptest::collection::vec((0_u64..120_000, 0_u64..120, any::<u64>()), 0..100),
        ) {
            let (mut redial, began) = redial();
            let mut now = began;
            let mut losses: Vec<_> = losses.into_iter().collect();
            losses.sort_unstable();
            let stable = losses.iter().filter(|loss| loss.1 >= 60).count();
            let mut dials = 0;
            let mut failures = 0_u32;
            while now < began + 120 * SECOND {
                redial.after_failure(None, now, LARGEST);
                dials += 1;
                let bound = SECOND.saturating_mul(1 << failures.min(10)).min(30 * SECOND);
                failures += 1;
                let next = now + bound;
                while let Some((at, lived, random)) = losses.first().copied()
                    && began + Duration::from_millis(at) < next
                {
                    let at = (began + Duration::from_millis(at)).max(now);
                    let lived = Duration::from_secs(lived);
                    redial.after_session(CloseReason::Dead, lived, at, random);
                    if lived >= 60 * SECOND {
                        failures = 0;
                    }
                    losses.remove(0);
                }
                prop_assert!(pass(&redial, &mut now) >= bound);
            }
            // At most five more, up to the longest wait, for each.
            prop_assert!(dials <= 8 + 5 * stable);
        }
    }
}
