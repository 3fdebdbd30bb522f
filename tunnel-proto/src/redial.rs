//! Decides when a tunnel client dials again after a failed dial, an ended session or a refusal.
//!
//! Pure: random numbers and times are arguments. The waits depend on what was found:
//!
//! - **no server**: a bound that doubles up to two seconds, and then grows with the outage, of which it is a sixteenth. So
//!   all clients find a server within two seconds after a restart, or a sixteenth of a longer outage.
//! - **a server that refuses, or whose sessions end**: random between zero and a bound that doubles ("full jitter").
//! - **a server with too many handshakes**: until the server has room, as it says. Nothing grows.
//! - **another instance that has just taken the runtime**: as long as the server says. Nothing grows, since that one may leave.
//!
//! All slots of a tunnel share one [`Redial`], so that many slots dial a failed server no more often than one. Of several
//! servers each has its own, and [`Servers`] decides which is dialled next; [`Locations`] says what the dial keeps away from.

mod locations;
mod servers;

use std::time::Duration;

use tokio::time::Instant;

pub use self::{
    locations::{LocationId, Locations, Search, SessionLocation},
    servers::Servers,
};
use crate::{
    close::{AfterClose, CloseReason},
    handshake::Refusal,
    refusal::RefusalReason,
};

/// Longest time that a server can make a client wait with `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10 * 60);

/// Longest time that a response which may be another program's can make a client wait with `Retry-After`: a load balancer in
/// maintenance does not speak for the server behind it, and what comes before TLS may be anybody's.
const RETRY_AFTER_OTHER_MAX: Duration = Duration::from_secs(60);

/// Bound of the waits of a short outage, during which no server is found.
const OUTAGE_SHORTEST: Duration = Duration::from_secs(2);

/// The part of an outage that may pass between two dials.
const OUTAGE_PART: u32 = 16;

/// By how much clients are spread for which a server has room at one time: it says that in whole seconds.
const QUEUED_SPREAD: Duration = Duration::from_secs(1);

/// Bound of a wait while a server that has drained its sessions is replaced: requests for the runtime wait 5 s by default.
const REPLACED_MAX: Duration = Duration::from_secs(4);

/// How long a server is replaced, from its drain: longer than its grace period and its next start.
const REPLACED_WITHIN: Duration = Duration::from_secs(60);

/// Why a dial gave no session, with the `Retry-After` of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSession {
    /// No tunnel server answered: nobody, or something else in its name, such as a load balancer.
    NoServer(Option<Duration>),
    /// A tunnel server has refused, or has let the session end before its welcome, or the client itself failed.
    Refused(Option<Duration>),
    /// A tunnel server has too many handshakes in progress, and has room for this client after that time; or another instance
    /// has just taken the runtime, and is to be looked at again then.
    Queued(Duration),
}

/// Settings of the waits between dials.
#[derive(Debug, Clone)]
pub struct RedialSettings {
    /// Bound of the first wait.
    pub base: Duration,
    /// Bound of any wait.
    pub cap: Duration,
    /// How long a session has to last to reset the waits; one that the server drains: `base`.
    pub stable: Duration,
}

/// When the next dial is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextDial {
    /// Now.
    Now,
    /// At this time, or earlier if the network path or the credential changes.
    At(Instant),
    /// Never before this time, which the server has set by `Retry-After`.
    NotBefore(Instant),
}

/// Counts the failures since the last stable session, and decides when to dial again.
#[derive(Debug)]
pub struct Redial {
    settings: RedialSettings,
    /// Failed dials and short sessions. Sessions that are lost during a wait do not count, nor dials that find no server.
    failures: u32,
    /// The dials that have found no server since one was found, and the time of the first.
    outage: Option<(u32, Instant)>,
    /// When the server last drained a session that was not very short.
    drained: Option<Instant>,
    /// The end of the current wait.
    at: Option<Instant>,
    /// The earliest time by the server's `Retry-After`.
    not_before: Option<Instant>,
}

impl NoSession {
    /// After a response without a session. `refusal` is its content, if that is a tunnel server's.
    #[must_use]
    pub fn after_response(refusal: Option<&Refusal>, retry_after: Option<Duration>) -> Self {
        match (refusal.map(Refusal::known), retry_after) {
            (
                Some(Some(RefusalReason::HandshakeQueue | RefusalReason::RuntimeContested)),
                Some(after),
            ) => Self::Queued(after),
            (Some(_), after) => Self::Refused(after),
            (None, after) => Self::NoServer(after),
        }
    }
}

impl NextDial {
    /// The time from now until then.
    #[must_use]
    pub fn after(self, now: Instant) -> Duration {
        match self {
            Self::Now => Duration::ZERO,
            Self::At(at) | Self::NotBefore(at) => at.saturating_duration_since(now),
        }
    }
}

impl Redial {
    /// Without failures.
    #[must_use]
    pub fn new(settings: RedialSettings) -> Self {
        Self {
            settings,
            failures: 0,
            outage: None,
            drained: None,
            at: None,
            not_before: None,
        }
    }

    /// When to dial next.
    #[must_use]
    pub fn next_dial(&self, now: Instant) -> NextDial {
        let ahead = |at: &Instant| *at > now;
        match (self.not_before.filter(ahead), self.at.filter(ahead)) {
            (Some(not_before), _) => NextDial::NotBefore(not_before),
            (None, Some(at)) => NextDial::At(at),
            (None, None) => NextDial::Now,
        }
    }

    /// Whether dials have failed, or sessions were short, since the last stable session.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.failures > 0 || self.outage.is_some()
    }

    /// After a dial that gave no session. `random` is any number.
    pub fn after_failure(&mut self, failure: NoSession, now: Instant, random: u64) {
        let wait = match failure {
            NoSession::NoServer(_) => self.outage_wait(now, random),
            NoSession::Refused(_) => self.grow(now, random),
            NoSession::Queued(_) => {
                self.failures = 1;
                self.outage = None;
                fraction(QUEUED_SPREAD, random)
            }
        };
        // After the time that the response sets, and not all clients at once.
        let after = match failure {
            NoSession::Refused(after) => after.unwrap_or_default().min(RETRY_AFTER_MAX),
            NoSession::NoServer(after) => after.unwrap_or_default().min(RETRY_AFTER_OTHER_MAX),
            NoSession::Queued(after) => after.min(RETRY_AFTER_OTHER_MAX),
        };
        if matches!(failure, NoSession::Refused(Some(_))) {
            self.not_before = self.not_before.max(Some(now + after + wait));
        }
        self.at = self.at.max(Some(now + after + wait));
    }

    /// After an internal error, which may recur.
    pub fn after_fault(&mut self, now: Instant, random: u64) {
        self.after_failure(NoSession::Refused(None), now, random);
    }

    /// After a session that lasted for `lived`. `random` is any number.
    pub fn after_session(
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
    pub fn after_drain(&mut self, lived: Duration, now: Instant, random: u64) {
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
            self.start_over();
            self.at = self.at.map(|at| at.min(soon));
        }
        was_stable
    }

    /// A session has lasted for `lived`. If it was stable, failures before it no longer count. Returns whether it was.
    pub fn on_lived(&mut self, lived: Duration) -> bool {
        let was_stable = lived >= self.settings.stable;
        if was_stable {
            self.start_over();
        }
        was_stable
    }

    fn start_over(&mut self) {
        self.failures = 0;
        self.outage = None;
    }

    /// Ends the wait, except for a `Retry-After` of the server.
    pub fn retry_now(&mut self) {
        self.at = None;
    }

    /// Time has jumped: ends every wait, since the clock that measured it had stopped.
    pub fn after_jump(&mut self) {
        self.at = None;
        self.not_before = None;
    }

    /// The wait after a dial that has found no server. Its random part is the upper half of the bound, except for the first,
    /// which spreads the clients that have lost a server together.
    fn outage_wait(&mut self, now: Instant, random: u64) -> Duration {
        let base = self.settings.base;
        let (dials, since) = self.outage.get_or_insert((0, now));
        let part = (now.saturating_duration_since(*since) / OUTAGE_PART).max(OUTAGE_SHORTEST);
        let bound = doubled(base, *dials)
            .min(part.max(base))
            .min(self.settings.cap);
        let is_first = *dials == 0;
        *dials = dials.saturating_add(1);
        match is_first {
            true => fraction(bound, random),
            false => bound / 2 + fraction(bound / 2, random),
        }
    }

    /// The wait after a failure of a server that is there.
    fn grow(&mut self, now: Instant, random: u64) -> Duration {
        self.outage = None;
        let bound = doubled(self.settings.base, self.failures);
        self.failures = self.failures.saturating_add(1);
        let is_replaced = self.drained.is_some_and(|at| now < at + REPLACED_WITHIN);
        let cap = match is_replaced {
            true => self.settings.cap.min(REPLACED_MAX),
            false => self.settings.cap,
        };
        fraction(bound.min(cap), random)
    }
}

/// The bound, doubled so often.
fn doubled(bound: Duration, times: u32) -> Duration {
    bound.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX))
}

/// A random part of the bound, with uniform distribution.
#[must_use]
pub fn fraction(bound: Duration, random: u64) -> Duration {
    // 32 bits suffice, and are exact in floating point.
    bound.mul_f64((random >> 32) as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LARGEST: u64 = u64::MAX;
    const REFUSED: NoSession = NoSession::Refused(None);
    const NO_SERVER: NoSession = NoSession::NoServer(None);

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
        redial.after_failure(REFUSED, *now, LARGEST);
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

    /// Goes on for this time with dials that find no server, and returns the waits.
    fn outage(
        redial: &mut Redial,
        now: &mut Instant,
        lasts: Duration,
        random: u64,
    ) -> Vec<Duration> {
        let end = *now + lasts;
        let mut waits = Vec::new();
        while *now < end {
            redial.after_failure(NO_SERVER, *now, random);
            waits.push(pass(redial, now));
        }
        waits
    }

    #[test]
    fn a_server_that_is_back_is_found_within_two_seconds_or_a_sixteenth_of_the_outage() {
        let (mut redial, mut now) = redial();
        let waits = outage(&mut redial, &mut now, 32 * SECOND, LARGEST);
        assert_eq!(waits[0], SECOND);
        assert!(
            waits[1..].iter().all(|wait| *wait == 2 * SECOND),
            "{waits:?}"
        );
        let began = now - 33 * SECOND;
        for wait in outage(&mut redial, &mut now, 3_600 * SECOND, LARGEST) {
            let longest = ((now - began) / 16).min(30 * SECOND);
            assert!(
                wait >= 2 * SECOND && wait <= longest,
                "{wait:?}, {longest:?}"
            );
        }
        redial.after_failure(NO_SERVER, now, 0);
        assert_eq!(
            pass(&redial, &mut now),
            15 * SECOND,
            "no more often than that"
        );
    }

    #[test]
    fn the_settings_bound_the_waits_of_an_outage() {
        for (base, cap, expected) in [
            (200, 1_000, [200, 400, 800, 1_000]),
            (10_000, 30_000, [10_000; 4]),
        ] {
            let settings = RedialSettings {
                base: Duration::from_millis(base),
                cap: Duration::from_millis(cap),
                stable: 60 * SECOND,
            };
            let (mut redial, mut now) = (Redial::new(settings), Instant::now());
            let waits = outage(&mut redial, &mut now, 100 * SECOND, LARGEST);
            assert_eq!(waits[..4], expected.map(Duration::from_millis));
        }
    }

    #[test]
    fn an_outage_and_refusals_do_not_lengthen_the_waits_of_each_other() {
        let (mut redial, mut now) = redial();
        outage(&mut redial, &mut now, 600 * SECOND, LARGEST);
        assert_eq!(wait_after_failure(&mut redial, &mut now), SECOND);
        assert_eq!(wait_after_failure(&mut redial, &mut now), 2 * SECOND);
        assert_eq!(outage(&mut redial, &mut now, SECOND, LARGEST), [SECOND]);
        assert_eq!(wait_after_failure(&mut redial, &mut now), 4 * SECOND);
        assert!(redial.on_lived(60 * SECOND));
        assert!(!redial.is_failing());
    }

    #[test]
    fn a_client_comes_when_there_is_room_however_often_it_is_told_so() {
        let (mut redial, mut now) = redial();
        outage(&mut redial, &mut now, 600 * SECOND, LARGEST);
        for _ in 0..10 {
            redial.after_failure(NoSession::Queued(7 * SECOND), now, 0);
            assert_eq!(redial.next_dial(now), NextDial::At(now + 7 * SECOND));
            pass(&redial, &mut now);
            redial.after_failure(NoSession::Queued(Duration::MAX), now, LARGEST);
            assert_eq!(
                pass(&redial, &mut now),
                RETRY_AFTER_OTHER_MAX + QUEUED_SPREAD
            );
            assert!(redial.is_failing(), "another server has its turn");
        }
        assert_eq!(wait_after_failure(&mut redial, &mut now), 2 * SECOND);
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
        redial.after_failure(REFUSED, now, LARGEST);
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
        redial.after_failure(REFUSED, now, LARGEST);
        redial.after_session(CloseReason::Dead, 3_600 * SECOND, now, 0);
        assert_eq!(pass(&redial, &mut now), 4 * SECOND, "the server is away");
    }

    #[test]
    fn whatever_becomes_of_a_stable_session_what_went_wrong_before_it_is_forgotten() {
        let cases: [fn(&mut Redial, Instant); 3] = [
            |redial, now| {
                redial.after_failure(REFUSED, now, LARGEST);
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
            redial.after_failure(NoSession::Refused(Some(asked)), now, 0);
            assert_eq!(redial.next_dial(now), NextDial::NotBefore(now + kept));
            redial.retry_now();
            assert_eq!(redial.next_dial(now), NextDial::NotBefore(now + kept));
        }
    }

    #[test]
    fn who_has_a_reason_to_does_not_wait() {
        let (mut redial, now) = redial();
        redial.after_failure(REFUSED, now, LARGEST);
        assert_eq!(redial.next_dial(now), NextDial::At(now + SECOND));
        redial.retry_now();
        assert_eq!(redial.next_dial(now), NextDial::Now);
    }

    #[test]
    fn a_load_balancer_keeps_a_client_away_for_a_minute_and_not_after_a_change_of_path() {
        let (mut redial, now) = redial();
        let hour = NoSession::NoServer(Some(3_600 * SECOND));
        redial.after_failure(hour, now, 0);
        assert_eq!(redial.next_dial(now), NextDial::At(now + 60 * SECOND));
        redial.retry_now();
        assert_eq!(redial.next_dial(now), NextDial::Now);
    }

    #[test]
    fn a_jump_of_time_ends_every_wait() {
        let (mut redial, now) = redial();
        redial.after_failure(NoSession::Refused(Some(600 * SECOND)), now, 0);
        redial.after_jump();
        assert_eq!(redial.next_dial(now), NextDial::Now);
    }

    proptest! {
        #[test]
        fn no_wait_is_beyond_its_bound(failures in 0_u32..200, random: u64) {
            let (mut redial, now) = redial();
            redial.failures = failures;
            let bound = SECOND.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
            redial.after_failure(REFUSED, now, random);
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
                redial.after_failure(REFUSED, now, LARGEST);
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
