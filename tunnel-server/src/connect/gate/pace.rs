//! How many handshakes a server does in a second, how many clients may wait for theirs, and when the others are to come.
//!
//! In: handshakes that end, and whether clients wait for their permits: only then does the number of handshakes say how
//! many the server can do. Out: the length of the queue, and when each rejected client is to come. These times are booked one
//! handshake apart, and begin when half of the queue is done, so that the clients come before the server has nothing to do,
//! and few are rejected again. Without a clock.

use std::time::Duration;

use tokio::time::Instant;

/// Handshakes in a second before any was measured. Too many cost less than too few, for which clients come late.
const FIRST_RATE: f64 = 1_000.0;

/// A sample has so many handshakes and takes so long, or takes [`SAMPLE_LONGEST`].
const SAMPLE_HANDSHAKES: u32 = 32;
const SAMPLE_SHORTEST: Duration = Duration::from_millis(20);
const SAMPLE_LONGEST: Duration = Duration::from_millis(250);

/// Samples of this time have all the weight.
const MEMORY: Duration = Duration::from_millis(500);

/// What an arrival takes of the work of a handshake, mostly with a rejection: a crowd slows down the handshakes, but only for
/// as long as it comes.
const ARRIVAL: f64 = 0.08;

/// How many clients are booked for each handshake: some do not come.
const OVERBOOKED: f64 = 1.25;

/// The shortest and the longest `Retry-After`. When all times up to the longest are booked, they are booked once more from
/// the first on.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The pace of handshakes.
#[derive(Debug)]
pub(super) struct Pace {
    /// Handshakes in a second.
    rate: f64,
    is_measured: bool,
    sample: Option<Sample>,
    /// The last time that was booked.
    booked: Option<Instant>,
}

/// What happens from some time on, while clients wait.
#[derive(Debug, Clone, Copy)]
struct Sample {
    since: Instant,
    handshakes: u32,
    arrivals: u32,
}

impl Sample {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            handshakes: 0,
            arrivals: 0,
        }
    }
}

impl Pace {
    /// Nothing is measured yet.
    pub(super) fn new() -> Self {
        Self {
            rate: FIRST_RATE,
            is_measured: false,
            sample: None,
            booked: None,
        }
    }

    /// A client arrives.
    pub(super) fn on_arrival(&mut self) {
        if let Some(sample) = &mut self.sample {
            sample.arrivals += 1;
        }
    }

    /// A handshake ends. `is_full` says whether other clients wait for its permit.
    pub(super) fn on_end(&mut self, is_full: bool, now: Instant) {
        if !is_full {
            self.sample = None;
            return;
        }
        let Some(sample) = &mut self.sample else {
            self.sample = Some(Sample::new(now));
            return;
        };
        sample.handshakes += 1;
        let took = now.saturating_duration_since(sample.since);
        let is_enough = sample.handshakes >= SAMPLE_HANDSHAKES && took >= SAMPLE_SHORTEST;
        if !is_enough && took < SAMPLE_LONGEST {
            return;
        }
        let work = f64::from(sample.handshakes) + ARRIVAL * f64::from(sample.arrivals);
        let measured = work / took.as_secs_f64();
        let weight = match self.is_measured {
            true => took.div_duration_f64(MEMORY).min(1.0),
            false => 1.0,
        };
        self.rate += (measured - self.rate) * weight;
        self.is_measured = true;
        self.sample = Some(Sample::new(now));
    }

    /// How many clients have their handshake within this time.
    pub(super) fn within(&self, time: Duration) -> usize {
        (self.rate * time.as_secs_f64()) as usize
    }

    /// When a client is to come that is rejected while so many wait, in whole seconds from now.
    pub(super) fn retry_after(&mut self, waiting: usize, now: Instant) -> Duration {
        let handshakes = |count: f64| Duration::try_from_secs_f64(count / self.rate);
        let half = handshakes(waiting as f64 / 2.0).unwrap_or(LONGEST);
        let first = now + half.min(LONGEST);
        let step = handshakes(1.0 / OVERBOOKED).unwrap_or(LONGEST);
        let next = self
            .booked
            .map_or(first, |booked| first.max(booked + step.min(LONGEST)));
        let time = match next > now + LONGEST {
            true => first,
            false => next,
        };
        self.booked = Some(time);
        // Rounded down, since the client adds up to a second.
        Duration::from_secs((time - now).as_secs()).max(SHORTEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A pace after a second in which handshakes have ended at this rate while clients waited.
    fn at_rate(rate: u32) -> (Pace, Instant) {
        let (mut pace, began) = (Pace::new(), Instant::now());
        let mut now = began;
        while now <= began + SECOND {
            pace.on_end(true, now);
            now += SECOND / rate;
        }
        (pace, now)
    }

    #[test]
    fn the_queue_holds_those_that_are_served_in_time() {
        for rate in [3, 100, 5_000] {
            let (pace, _) = at_rate(rate);
            let (served, expected) = (pace.within(5 * SECOND), 5 * rate as usize);
            assert!(
                served.abs_diff(expected) <= 1 + expected / 20,
                "{served}, {expected}"
            );
        }
    }

    #[test]
    fn what_a_server_does_for_few_clients_says_nothing() {
        let (mut pace, mut now) = at_rate(1_000);
        let before = pace.within(SECOND);
        for number in 0..1_000 {
            // In between there is a client that waits.
            pace.on_end(number % 100 == 0, now);
            now += SECOND / 10;
        }
        assert_eq!(pace.within(SECOND), before);
    }

    #[test]
    fn a_change_of_the_rate_is_followed_within_a_second() {
        let (mut pace, mut now) = at_rate(1_000);
        for _ in 0..100 {
            now += SECOND / 100;
            pace.on_end(true, now);
        }
        assert!((100..200).contains(&pace.within(SECOND)), "{pace:?}");
    }

    #[test]
    fn rejected_clients_come_one_handshake_apart_when_half_of_the_queue_is_done() {
        let (mut pace, now) = at_rate(100);
        let times: Vec<_> = (0..1_000)
            .map(|_| pace.retry_after(500, now).as_secs())
            .collect();
        assert_eq!(times[0], 2);
        assert!(times.is_sorted());
        let in_second = |second| times.iter().filter(|time| **time == second).count();
        for second in 3..10 {
            assert!(
                (120..=130).contains(&in_second(second)),
                "{}",
                in_second(second)
            );
        }
        let later = now + 20 * SECOND;
        assert_eq!(
            pace.retry_after(500, later).as_secs(),
            2,
            "nobody is booked then"
        );
    }

    #[test]
    fn times_are_booked_again_when_those_of_a_minute_are() {
        let (mut pace, now) = at_rate(100);
        let times: Vec<_> = (0..20_000).map(|_| pace.retry_after(500, now)).collect();
        let in_second = |second| times.iter().filter(|time| time.as_secs() == second).count();
        assert!(times.iter().all(|time| (SHORTEST..=LONGEST).contains(time)));
        assert!((3..60).all(|second| (240..=400).contains(&in_second(second))));
    }

    #[test]
    fn a_server_that_does_nothing_says_when_to_come_too() {
        let (mut pace, now) = (Pace::new(), Instant::now());
        pace.on_end(true, now);
        pace.on_end(true, now + 1_000_000 * SECOND);
        let now = now + 1_000_000 * SECOND;
        assert!((0..100).all(|_| pace.retry_after(1_000, now) <= LONGEST));
    }
}
