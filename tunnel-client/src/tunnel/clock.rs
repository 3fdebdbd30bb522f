//! Whether time has jumped: the machine slept, the process was paused, or the clock was set.
//!
//! Pure: it is shown both clocks at each tick, and says what it makes of them. The monotonic clock
//! stands still while a machine sleeps, the wall clock does not; while only the process is paused,
//! both go on, and the tick is late. After either the connections may have been dead for long. A
//! clock that jumps again and again has the sessions replaced once in a while, not each time.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Time from one tick to the next.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// What is no jump: a correction by NTP, or a machine under load. Hardly longer than a server takes, under
/// traffic, to give a silent session up; and to replace sessions without need costs a dial.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Shortest time from one renewal of all sessions to the next: long enough for a dial to come to its
/// end, whatever the clock does meanwhile.
const RENEWAL: Duration = Duration::from_secs(60);

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// What people see; it can be set, and goes on while the machine sleeps.
    pub(crate) wall: SystemTime,
    /// What timers use.
    pub(crate) monotonic: Instant,
}

/// The clocks as they were at the last tick.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Reading,
}

/// How time has jumped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jump {
    /// The wall clock went on by this much more than the monotonic one, or less.
    Wall(Duration),
    /// The tick came so late.
    Late(Duration),
}

/// When all sessions are to be replaced.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    /// When they last were.
    renewed: Option<Instant>,
    /// The last jump.
    jumped: Option<Instant>,
    /// There was a jump since they last were.
    is_due: bool,
}

/// All sessions are to be replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Renewal {
    /// But not by other dials than those that began after this.
    pub(crate) spares: Option<Instant>,
}

impl Clock {
    /// Starts with these clocks.
    pub(crate) fn new(now: Reading) -> Self {
        Self { last: now }
    }

    /// Compares the clocks to the last tick's.
    pub(crate) fn on_tick(&mut self, now: Reading) -> Option<Jump> {
        let last = std::mem::replace(&mut self.last, now);
        let monotonic = now.monotonic.saturating_duration_since(last.monotonic);
        let apart = match now.wall.duration_since(last.wall) {
            Ok(forth) => forth.abs_diff(monotonic),
            Err(back) => back.duration().saturating_add(monotonic),
        };
        let late = monotonic.saturating_sub(TICK);
        if apart > TOLERANCE {
            Some(Jump::Wall(apart))
        } else if late > TOLERANCE {
            Some(Jump::Late(late))
        } else {
            None
        }
    }
}

impl Renewals {
    /// After each tick: whether time has jumped. A jump soon after a renewal is not forgotten, but put
    /// off.
    pub(crate) fn on_tick(&mut self, has_jumped: bool, now: Instant) -> Option<Renewal> {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < RENEWAL;
        // Another one than the present one, or the one that was put off.
        let spares = self.jumped.filter(|at| !has_jumped || is_recent(at));
        if has_jumped {
            self.jumped = Some(now);
            self.is_due = true;
        }
        if !self.is_due || self.renewed.as_ref().is_some_and(is_recent) {
            return None;
        }
        self.is_due = false;
        self.renewed = Some(now);
        Some(Renewal { spares })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The result of a tick after the wall clock moved by so many milliseconds, and the monotonic
    /// one by so many.
    fn tick(wall_ms: i64, monotonic_ms: u64) -> Option<Jump> {
        let start = Reading {
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
        Clock::new(start).on_tick(Reading { wall, monotonic })
    }

    #[test]
    fn a_machine_that_slept_is_noticed_and_one_under_load_is_not() {
        assert_eq!(tick(1_000, 1_000), None);
        assert_eq!(tick(5_000, 5_000), None, "under load");
        assert_eq!(tick(60_000, 1_000), Some(Jump::Wall(59 * SECOND)), "slept");
        assert_eq!(
            tick(60_000, 60_000),
            Some(Jump::Late(59 * SECOND)),
            "paused"
        );
    }

    #[test]
    fn a_clock_that_is_set_is_a_jump_and_one_that_is_corrected_is_none() {
        assert_eq!(tick(-3_600_000, 1_000), Some(Jump::Wall(3_601 * SECOND)));
        assert_eq!(tick(3_601_000, 1_000), Some(Jump::Wall(3_600 * SECOND)));
        assert_eq!(tick(1_500, 1_000), None);
        assert_eq!(tick(-2_000, 1_000), None);
    }

    #[test]
    fn a_jump_is_told_once_and_drift_never_sums_up() {
        let mut now = Reading {
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
        let mut renewals = Renewals::default();
        let mut on_tick = |second: u32, has_jumped| {
            let renewal = renewals.on_tick(has_jumped, began + second * SECOND);
            renewal.map(|renewal| renewal.spares.map(|at| (at - began).as_secs()))
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
