//! Detects jumps of time: the machine slept, the process was paused, or the clock was set.
//!
//! Pure: in come both clocks at each tick. While a machine sleeps, the monotonic clock stops and the wall clock does not;
//! while only the process is paused, both continue and the tick is late. After either the connections may be dead, so
//! all sessions are renewed. Renewals have a shortest interval, for a clock that jumps again and again.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Time from one tick to the next.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// Differences up to this are not a jump: corrections by NTP, a machine under load. About the time after which a server
/// with traffic gives up a silent session; a lower value would cost dials without need.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Shortest time from one renewal of all sessions to the next: long enough for a dial to end.
const RENEWAL: Duration = Duration::from_secs(60);

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockReading {
    /// The time of day. It can be set, and continues while the machine sleeps.
    pub(crate) wall: SystemTime,
    /// The clock of timers.
    pub(crate) monotonic: Instant,
}

/// The clocks as they were at the last tick.
#[derive(Debug)]
pub(crate) struct Clock {
    last: ClockReading,
}

/// A jump of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClockJump {
    /// The wall clock moved by this much more or less than the monotonic clock.
    Wall(Duration),
    /// The tick was late by this time.
    Late(Duration),
}

/// Decides when all sessions are replaced.
#[derive(Debug, Default)]
pub(crate) struct RenewalSchedule {
    /// The last renewal.
    renewed: Option<Instant>,
    /// The last jump.
    jumped: Option<Instant>,
    /// Whether there was a jump since the last renewal.
    is_due: bool,
}

/// Replaces all sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Renewal {
    /// Dials that began after this continue; earlier ones start over.
    pub(crate) keeps_dials_after: Option<Instant>,
}

impl Clock {
    /// Starts with these clocks.
    pub(crate) fn new(now: ClockReading) -> Self {
        Self { last: now }
    }

    /// Compares the clocks with those of the last tick.
    pub(crate) fn on_tick(&mut self, now: ClockReading) -> Option<ClockJump> {
        let last = std::mem::replace(&mut self.last, now);
        let monotonic = now.monotonic.saturating_duration_since(last.monotonic);
        let apart = match now.wall.duration_since(last.wall) {
            Ok(forth) => forth.abs_diff(monotonic),
            Err(back) => back.duration().saturating_add(monotonic),
        };
        let late = monotonic.saturating_sub(TICK);
        if apart > TOLERANCE {
            Some(ClockJump::Wall(apart))
        } else if late > TOLERANCE {
            Some(ClockJump::Late(late))
        } else {
            None
        }
    }
}

impl RenewalSchedule {
    /// Call after each tick. A jump soon after a renewal takes effect when [`RENEWAL`] is over.
    pub(crate) fn on_tick(&mut self, has_jumped: bool, now: Instant) -> Option<Renewal> {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < RENEWAL;
        // The jump before this one, or the postponed one.
        let keeps_dials_after = self.jumped.filter(|at| !has_jumped || is_recent(at));
        if has_jumped {
            self.jumped = Some(now);
            self.is_due = true;
        }
        if !self.is_due || self.renewed.as_ref().is_some_and(is_recent) {
            return None;
        }
        self.is_due = false;
        self.renewed = Some(now);
        Some(Renewal { keeps_dials_after })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The result of a tick after the wall clock moved by so many milliseconds, and the monotonic
    /// one by so many.
    fn tick(wall_ms: i64, monotonic_ms: u64) -> Option<ClockJump> {
        let start = ClockReading {
            wall: SystemTime::UNIX_EPOCH + 1_000_000 * SECOND,
            monotonic: Instant::now(),
        };
        let moved = Duration::from_millis(wall_ms.unsigned_abs());
        let wall = if wall_ms < 0 {
            start.wall - moved
        } else {
            start.wall + moved
        };
        let monotonic = start.monotonic + Duration::from_millis(monotonic_ms);
        Clock::new(start).on_tick(ClockReading { wall, monotonic })
    }

    #[test]
    fn a_machine_that_slept_is_noticed_and_one_under_load_is_not() {
        assert_eq!(tick(1_000, 1_000), None);
        assert_eq!(tick(5_000, 5_000), None, "under load");
        assert_eq!(
            tick(60_000, 1_000),
            Some(ClockJump::Wall(59 * SECOND)),
            "slept"
        );
        assert_eq!(
            tick(60_000, 60_000),
            Some(ClockJump::Late(59 * SECOND)),
            "paused"
        );
    }

    #[test]
    fn a_clock_that_is_set_is_a_jump_and_one_that_is_corrected_is_none() {
        assert_eq!(
            tick(-3_600_000, 1_000),
            Some(ClockJump::Wall(3_601 * SECOND))
        );
        assert_eq!(
            tick(3_601_000, 1_000),
            Some(ClockJump::Wall(3_600 * SECOND))
        );
        assert_eq!(tick(1_500, 1_000), None);
        assert_eq!(tick(-2_000, 1_000), None);
    }

    #[test]
    fn a_jump_is_reported_once_and_drift_never_sums_up() {
        let mut now = ClockReading {
            wall: SystemTime::UNIX_EPOCH + 1_000_000 * SECOND,
            monotonic: Instant::now(),
        };
        let mut clock = Clock::new(now);
        now.wall += 3_600 * SECOND;
        now.monotonic += SECOND;
        assert!(clock.on_tick(now).is_some());
        for _ in 0..1_000 {
            now.wall += Duration::from_millis(1_100);
            now.monotonic += SECOND;
            assert_eq!(clock.on_tick(now), None);
        }
    }

    #[test]
    fn sessions_are_renewed_at_once_but_not_more_often_than_once_a_minute() {
        let began = Instant::now();
        let mut renewals = RenewalSchedule::default();
        let mut on_tick = |second: u32, has_jumped| {
            let renewal = renewals.on_tick(has_jumped, began + second * SECOND);
            renewal.map(|renewal| renewal.keeps_dials_after.map(|at| (at - began).as_secs()))
        };
        assert_eq!(on_tick(1, false), None);
        assert_eq!(on_tick(2, true), Some(None));
        assert_eq!(on_tick(3, true), None);
        assert_eq!(on_tick(20, true), None);
        assert_eq!(on_tick(61, false), None);
        assert_eq!(on_tick(62, false), Some(Some(20)), "put off");
        assert_eq!(on_tick(123, false), None, "once");
        assert_eq!(on_tick(200, true), Some(None), "a new one");
        assert_eq!(on_tick(230, true), None);
        assert_eq!(on_tick(260, true), Some(Some(230)), "again and again");
    }

    proptest! {
        #[test]
        fn only_what_is_beyond_the_tolerance_is_a_jump(wall in -100_000_i64..100_000, late in 0_u64..100_000) {
            let monotonic = 1_000 + late;
            let apart = wall.abs_diff(i64::try_from(monotonic).unwrap());
            let is_jump = apart > 5_000 || late > 5_000;
            prop_assert_eq!(tick(wall, monotonic).is_some(), is_jump);
        }
    }
}
