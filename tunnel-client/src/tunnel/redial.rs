//! Decides when to dial again after a failed dial, an ended session or a refusal.
//!
//! Pure: random numbers and times are arguments. Waits after failures are random between zero and a bound that doubles
//! ("full jitter"), so that the clients of a lost server do not return at once; waits after refusals and takeovers are
//! in the upper half of such a bound. All slots of a tunnel share one [`Redial`], so that many slots dial a failed
//! server no more often than one.

use std::time::Duration;

use tokio::time::Instant;
use tunnel_proto::close::{AfterClose, CloseReason};

use crate::dial::RetryAfter;

/// Longest time that a server can make a client wait with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10 * 60);

/// Longest time that a response of another program can make a client wait with `Retry-After`: a load balancer in
/// maintenance does not speak for the server behind it.
const RETRY_AFTER_OTHER_MAX: Duration = Duration::from_secs(60);

/// Bound of the first wait after a refusal of the credential: a list that is being edited, or was not read yet, is
/// soon correct.
const REFUSED_FIRST: Duration = Duration::from_secs(10);

/// How long a client that exits on refusals keeps dialling after pending ones: longer than it takes to distribute a token
/// to both ends (a kubelet needs up to two minutes for each), short enough to be noticed.
pub(crate) const PENDING_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Longest time from the end of a wait to the next refusal of one series: a few dials that fail for other causes fit in.
/// After an outage, which is longer, a new series begins.
const REFUSALS_APART: Duration = Duration::from_secs(60);

/// Bound of a wait while a server that has drained its sessions is replaced: requests for the runtime wait 5 s by default.
const REPLACED_MAX: Duration = Duration::from_secs(4);

/// How long a server is replaced, from its drain: longer than its grace period and its next start.
const REPLACED_WITHIN: Duration = Duration::from_secs(60);

/// Bound of the first wait after the runtime was lost to another instance.
const STANDBY_FIRST: Duration = Duration::from_secs(30);

/// Settings of the waits between dials.
#[derive(Debug, Clone)]
pub(crate) struct RedialSettings {
    /// Bound of the first wait.
    pub(crate) base: Duration,
    /// Bound of any wait.
    pub(crate) cap: Duration,
    /// How long a session has to last to reset the waits; one that the server drains: `base`.
    pub(crate) stable: Duration,
}

/// When the next dial is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextDial {
    /// Now.
    Now,
    /// At this time, or earlier if the network path or the credential changes.
    At(Instant),
    /// Never before this time, which the server has set by `Retry-After`.
    NotBefore(Instant),
}

/// Counts the failures since the last stable session, and decides when to dial again.
#[derive(Debug)]
pub(crate) struct Redial {
    settings: RedialSettings,
    /// Failed dials and short sessions. Sessions that are lost during a wait do not count.
    failures: u32,
    /// When the server last drained a session that was not very short.
    drained: Option<Instant>,
    /// The end of the current wait.
    at: Option<Instant>,
    /// The earliest time by the server's `Retry-After`.
    not_before: Option<Instant>,
}

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

impl NextDial {
    /// The time from now until then.
    pub(crate) fn after(self, now: Instant) -> Duration {
        match self {
            Self::Now => Duration::ZERO,
            Self::At(at) | Self::NotBefore(at) => at.saturating_duration_since(now),
        }
    }
}

impl Redial {
    /// Without failures.
    pub(crate) fn new(settings: RedialSettings) -> Self {
        Self {
            settings,
            failures: 0,
            drained: None,
            at: None,
            not_before: None,
        }
    }

    /// When to dial next.
    pub(crate) fn next_dial(&self, now: Instant) -> NextDial {
        let ahead = |at: &Instant| *at > now;
        match (self.not_before.filter(ahead), self.at.filter(ahead)) {
            (Some(not_before), _) => NextDial::NotBefore(not_before),
            (None, Some(at)) => NextDial::At(at),
            (None, None) => NextDial::Now,
        }
    }

    /// Whether dials have failed, or sessions were short, since the last stable session.
    pub(crate) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// After a dial that gave no session. `random` is any number.
    pub(crate) fn after_failure(
        &mut self,
        retry_after: Option<RetryAfter>,
        now: Instant,
        random: u64,
    ) {
        let wait = self.grow(now, random);
        self.at = self.at.max(Some(now + wait));
        // After the time that the server set, and not all clients at once.
        match retry_after {
            Some(RetryAfter::Server(after)) => {
                let not_before = now + after.min(RETRY_AFTER_MAX) + wait;
                self.not_before = self.not_before.max(Some(not_before));
            }
            Some(RetryAfter::Other(after)) => {
                let at = now + after.min(RETRY_AFTER_OTHER_MAX) + wait;
                self.at = self.at.max(Some(at));
            }
            None => {}
        }
    }

    /// After an internal error, which may recur.
    pub(crate) fn after_fault(&mut self, now: Instant, random: u64) {
        self.after_failure(None, now, random);
    }

    /// After a session that lasted for `lived`. `random` is any number.
    pub(crate) fn after_session(
        &mut self,
        reason: CloseReason,
        lived: Duration,
        now: Instant,
        random: u64,
    ) {
        let was_stable = match reason {
            CloseReason::Drained => self.on_drained(lived, now, random),
            _ => self.on_lived(lived),
        };
        if self.next_dial(now) != NextDial::Now {
            // Lost together with another session, or while the server is down.
            return;
        }
        let wait = match reason.after() {
            // The server drains, or the path to it broke: only a short random wait, since its other clients dial too.
            AfterClose::Redial if was_stable => fraction(self.settings.base / 4, random),
            AfterClose::Redial | AfterClose::Wait | AfterClose::Stop => self.grow(now, random),
        };
        self.at = Some(now + wait);
    }

    /// After the server's directive to drain a session that has lasted for `lived`. The directive says when to dial, but a
    /// server that drains every new session is dialled with growing waits.
    pub(crate) fn after_drain(&mut self, lived: Duration, now: Instant, random: u64) {
        let was_stable = self.on_drained(lived, now, random);
        if !was_stable && self.next_dial(now) == NextDial::Now {
            let wait = self.grow(now, random);
            self.at = Some(now + wait);
        }
    }

    /// The server drains a session that has lasted for `lived`: mostly, another process takes its place now or soon. So
    /// failures until now do not count, and the wait for them is cut short, unless the session was very short. Returns
    /// whether it was not.
    fn on_drained(&mut self, lived: Duration, now: Instant, random: u64) -> bool {
        let was_stable = lived >= self.settings.base;
        if was_stable {
            self.drained = Some(now);
            let soon = now + fraction(self.settings.base, random);
            self.failures = 0;
            self.at = self.at.map(|at| at.min(soon));
        }
        was_stable
    }

    /// A session has lasted for `lived`. If it was stable, failures before it no longer count. Returns whether it was.
    pub(crate) fn on_lived(&mut self, lived: Duration) -> bool {
        let was_stable = lived >= self.settings.stable;
        if was_stable {
            self.failures = 0;
        }
        was_stable
    }

    /// Ends the wait, except for a `Retry-After` of the server.
    pub(crate) fn retry_now(&mut self) {
        self.at = None;
    }

    /// Time has jumped: ends every wait, since the clock that measured it had stopped.
    pub(crate) fn after_jump(&mut self) {
        self.at = None;
        self.not_before = None;
    }

    fn grow(&mut self, now: Instant, random: u64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let bound = self.settings.base.saturating_mul(factor);
        self.failures = self.failures.saturating_add(1);
        let is_replaced = self.drained.is_some_and(|at| now < at + REPLACED_WITHIN);
        let cap = match is_replaced {
            true => self.settings.cap.min(REPLACED_MAX),
            false => self.settings.cap,
        };
        fraction(bound.min(cap), random)
    }
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

/// A random part of the bound, with uniform distribution.
pub(crate) fn fraction(bound: Duration, random: u64) -> Duration {
    // 32 bits suffice, and are exact in floating point.
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
            match redial.next_dial(*now) {
                NextDial::Now => return *now - began,
                NextDial::At(at) | NextDial::NotBefore(at) => *now = at,
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

    /// Requests wait for the runtime for 5 s: one that comes at the start of the server's new process is answered.
    #[test]
    fn a_server_that_leaves_is_dialled_often_until_another_is_in_its_place() {
        let (mut redial, mut now) = redial();
        for _ in 0..8 {
            wait_after_failure(&mut redial, &mut now);
        }
        redial.after_failure(None, now, LARGEST);
        redial.after_drain(SECOND, now, LARGEST);
        let drained = now;
        let waits = [SECOND, SECOND, 2 * SECOND, 4 * SECOND, 4 * SECOND];
        assert_eq!(pass(&redial, &mut now), waits[0]);
        for wait in &waits[1..] {
            assert_eq!(wait_after_failure(&mut redial, &mut now), *wait);
        }
        now = drained + REPLACED_WITHIN;
        assert_eq!(wait_after_failure(&mut redial, &mut now), 16 * SECOND);
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
        for _ in 0..3 {
            redial.after_session(CloseReason::Drained, SECOND, now, LARGEST);
            assert_eq!(pass(&redial, &mut now), SECOND / 4);
        }
        // Unless it leaves again and again, at once.
        for seconds in [1, 2, 4, 4] {
            redial.after_session(CloseReason::Drained, SECOND / 2, now, LARGEST);
            assert_eq!(pass(&redial, &mut now), seconds * SECOND);
        }
    }

    #[test]
    fn who_drains_every_new_session_is_not_dialled_without_end() {
        let (mut redial, mut now) = redial();
        redial.after_drain(5 * SECOND, now, LARGEST);
        assert_eq!(redial.next_dial(now), NextDial::Now);
        now += REPLACED_WITHIN;
        for seconds in [1, 2, 4, 8] {
            redial.after_drain(SECOND / 10, now, LARGEST);
            assert_eq!(pass(&redial, &mut now), seconds * SECOND);
        }
    }

    #[test]
    fn retry_after_is_kept_but_not_for_ever() {
        for (asked, kept) in [(7 * SECOND, 7 * SECOND), (Duration::MAX, RETRY_AFTER_MAX)] {
            let (mut redial, now) = redial();
            redial.after_failure(Some(RetryAfter::Server(asked)), now, 0);
            assert_eq!(redial.next_dial(now), NextDial::NotBefore(now + kept));
            redial.retry_now();
            assert_eq!(redial.next_dial(now), NextDial::NotBefore(now + kept));
        }
    }

    #[test]
    fn who_has_a_reason_to_does_not_wait() {
        let (mut redial, now) = redial();
        redial.after_failure(None, now, LARGEST);
        assert_eq!(redial.next_dial(now), NextDial::At(now + SECOND));
        redial.retry_now();
        assert_eq!(redial.next_dial(now), NextDial::Now);
    }

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

    #[test]
    fn a_load_balancer_keeps_a_client_away_for_a_minute_and_not_after_a_change_of_path() {
        let (mut redial, now) = redial();
        let hour = RetryAfter::Other(3_600 * SECOND);
        redial.after_failure(Some(hour), now, 0);
        assert_eq!(redial.next_dial(now), NextDial::At(now + 60 * SECOND));
        redial.retry_now();
        assert_eq!(redial.next_dial(now), NextDial::Now);
    }

    #[test]
    fn a_jump_of_time_ends_every_wait() {
        let (mut redial, now) = redial();
        redial.after_failure(Some(RetryAfter::Server(600 * SECOND)), now, 0);
        redial.after_jump();
        assert_eq!(redial.next_dial(now), NextDial::Now);
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

        /// However many slots there are, and whatever befalls them, there are no more dials than
        /// one slot alone could make; but each stable session that is lost lets the waits start
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
