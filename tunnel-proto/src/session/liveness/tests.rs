//! The ping plan on a clock of its own, and on paths that are slow, busy or gone.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const INTERVAL: Duration = Duration::from_secs(15);
const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn start() -> (Liveness, Instant) {
    let now = Instant::now();
    (Liveness::new(INTERVAL, now), now)
}

/// A session on which a round trip of this length was measured; the time after that.
fn measured(round_trip: Duration) -> (Liveness, Instant) {
    let (mut liveness, now) = start();
    assert_eq!(liveness.on_time(now), Due::Ping(1));
    assert!(pong(&mut liveness, 1, now + round_trip));
    (liveness, now + round_trip)
}

fn pong(liveness: &mut Liveness, number: u64, now: Instant) -> bool {
    liveness.on_pong(number, now)
}

/// The other end has not answered in time.
fn becomes_suspect(liveness: &mut Liveness, now: Instant) {
    assert_eq!(liveness.on_time(now), Due::Suspect);
    assert!(!liveness.is_suspect(), "something may have come");
    liveness.become_suspect(now);
    assert!(liveness.is_suspect());
}

#[test]
fn the_first_ping_goes_out_at_once_and_measures() {
    let (mut liveness, now) = measured(40 * MS);
    let times = liveness.round_trips().unwrap();
    assert_eq!((times.last, times.smoothed), (40 * MS, 40 * MS));
    assert!(!pong(&mut liveness, 1, now), "answered already");
    assert_eq!(liveness.on_time(now + INTERVAL), Due::Ping(2));
    pong(&mut liveness, 2, now + INTERVAL + 120 * MS);
    let times = liveness.round_trips().unwrap();
    assert_eq!((times.last, times.smoothed), (120 * MS, 50 * MS));
}

#[test]
fn silence_for_two_intervals_is_death() {
    let (mut liveness, now) = measured(Duration::ZERO);
    assert_eq!(liveness.on_time(now + INTERVAL), Due::Ping(2));
    assert_eq!(liveness.deadline(), now + INTERVAL * 2);
    assert_eq!(liveness.on_time(now + INTERVAL * 2), Due::Dead);
}

#[test]
fn other_traffic_does_not_replace_pongs_for_ever() {
    let (mut liveness, now) = start();
    for interval in 0..4 {
        let at = now + INTERVAL * interval;
        liveness.on_heard(at);
        assert!(
            matches!(liveness.on_time(at), Due::Ping(_)),
            "interval {interval}"
        );
    }
    liveness.on_heard(now + INTERVAL * 4);
    assert_eq!(liveness.on_time(now + INTERVAL * 4), Due::Dead);
}

#[test]
fn pongs_that_are_slower_than_pings_keep_a_session_alive_and_measure_too() {
    let (mut liveness, now) = start();
    for number in 1..10_u32 {
        let at = now + INTERVAL * (number - 1);
        assert_eq!(liveness.on_time(at), Due::Ping(number.into()));
        let answered = u64::from(number) - 1;
        assert_eq!(pong(&mut liveness, answered, at), number > 1);
    }
    assert_eq!(liveness.round_trips().unwrap().slowest, INTERVAL);
}

#[test]
fn one_pong_may_answer_several_pings() {
    let (mut liveness, now) = start();
    for interval in 0..3 {
        liveness.on_time(now + INTERVAL * interval);
        liveness.on_heard(now + INTERVAL * interval);
    }
    assert!(pong(&mut liveness, 3, now + INTERVAL * 2 + SECOND));
    assert_eq!(liveness.round_trips().unwrap().last, SECOND);
    assert!(!pong(&mut liveness, 2, now + INTERVAL * 2 + SECOND));
}

#[test]
fn a_pong_nobody_asked_for_is_no_proof() {
    let (mut liveness, now) = start();
    liveness.on_time(now);
    assert!(!liveness.on_pong(0, now));
    assert!(!pong(&mut liveness, 9, now));
    assert!(liveness.arrived_until().is_none());
}

#[test]
fn whoever_is_silent_when_spoken_to_is_asked_then_suspect_and_then_dead() {
    let (mut liveness, now) = measured(MS);
    assert!(liveness.on_sent(100, now));
    // More of the same does not put it off.
    assert!(!liveness.on_sent(100, now + 900 * MS));
    assert_eq!(liveness.deadline(), now + SECOND);
    assert_eq!(liveness.on_time(now + SECOND), Due::Probe(2));
    liveness.on_sent(100, now + 2 * SECOND);
    assert_eq!(liveness.deadline(), now + 3 * SECOND);
    assert_eq!(liveness.on_time(now + 3 * SECOND - MS), Due::Nothing);
    becomes_suspect(&mut liveness, now + 3 * SECOND);
    liveness.on_sent(100, now + 4 * SECOND);
    assert_eq!(liveness.on_time(now + 15 * SECOND - 2 * MS), Due::Nothing);
    assert_eq!(liveness.on_time(now + 15 * SECOND - MS), Due::Ping(3));
    assert_eq!(liveness.on_time(now + 15 * SECOND), Due::Dead);
}

#[test]
fn whoever_is_heard_again_is_no_longer_suspect() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100, now);
    assert_eq!(liveness.on_time(now + SECOND), Due::Probe(2));
    becomes_suspect(&mut liveness, now + 3 * SECOND);
    assert!(liveness.on_heard(now + 14 * SECOND));
    assert!(!liveness.is_suspect());
    assert_eq!(liveness.on_time(now + 14 * SECOND), Due::Nothing);
    assert_eq!(liveness.on_time(now + 15 * SECOND), Due::Ping(3));
    // The next silence is a suspicion of its own.
    liveness.on_sent(100, now + 20 * SECOND);
    assert_eq!(liveness.on_time(now + 21 * SECOND), Due::Probe(4));
    becomes_suspect(&mut liveness, now + 23 * SECOND);
}

#[test]
fn a_full_socket_that_takes_more_puts_the_end_off_and_clears_nobody() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100, now);
    assert_eq!(liveness.on_time(now + SECOND), Due::Probe(2));
    becomes_suspect(&mut liveness, now + 3 * SECOND);
    liveness.on_taken(now + 12 * SECOND);
    assert!(liveness.is_suspect());
    assert_eq!(liveness.on_time(now + 15 * SECOND), Due::Ping(3));
    assert_eq!(liveness.on_time(now + 24 * SECOND), Due::Dead);
}

#[test]
fn anything_heard_ends_the_suspicion() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100, now);
    liveness.on_heard(now + 500 * MS);
    assert_eq!(liveness.deadline(), now - MS + INTERVAL);
    liveness.on_sent(100, now + 2 * SECOND);
    assert_eq!(liveness.on_time(now + 3 * SECOND), Due::Probe(2));
    liveness.on_heard(now + 4 * SECOND);
    assert_eq!(liveness.on_time(now + 5 * SECOND), Due::Nothing);
}

#[test]
fn what_is_heard_too_soon_to_be_an_answer_only_puts_the_suspicion_off() {
    let (mut liveness, now) = measured(100 * MS);
    liveness.on_sent(100, now);
    liveness.on_sent(100, now + 300 * MS);
    assert!(!liveness.on_heard(now + 350 * MS));
    assert_eq!(liveness.on_time(now + 1_300 * MS), Due::Probe(2));
    liveness.on_sent(100, now + 1_400 * MS);
    assert!(
        liveness.on_heard(now + 1_450 * MS),
        "the deadline is nearer"
    );
    assert_eq!(liveness.deadline(), now + 2_400 * MS);
}

#[test]
fn a_path_that_is_known_to_be_slow_has_more_time() {
    let (mut liveness, now) = measured(3 * SECOND);
    liveness.on_sent(100, now);
    assert_eq!(liveness.on_time(now + SECOND), Due::Probe(2));
    assert_eq!(liveness.deadline(), now + 12 * SECOND, "the next ping");
    liveness.on_time(now + 12 * SECOND);
    becomes_suspect(&mut liveness, now + 13 * SECOND);
}

#[test]
fn while_no_round_trip_is_known_nobody_is_given_up_early() {
    let (mut liveness, now) = start();
    liveness.on_time(now);
    liveness.on_sent(100, now);
    assert_eq!(liveness.on_time(now + SECOND), Due::Probe(2));
    assert_eq!(liveness.deadline(), now + INTERVAL);
    liveness.on_time(now + INTERVAL);
    assert_eq!(liveness.on_time(now + 2 * INTERVAL), Due::Dead);
}

#[test]
fn what_stands_before_the_ping_has_time_to_pass() {
    let sent = 8 * SLOWEST_RATE;
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(sent as usize, now);
    liveness.on_time(now + SECOND);
    assert_eq!(liveness.deadline(), now + 9 * SECOND);
    // Whatever else is heard shows nothing of it.
    liveness.on_heard(now + 2 * SECOND);
    liveness.on_sent(100, now + 2 * SECOND);
    liveness.on_time(now + 3 * SECOND);
    assert_eq!(liveness.deadline(), now + 11 * SECOND + 3 * MS);
}

#[test]
fn a_path_that_has_carried_much_is_known_to_be_fast() {
    let (mut liveness, mut now) = measured(MS);
    let sent = 8 * SLOWEST_RATE as usize;
    // Something is heard all the time, so that nothing is suspected: it is asked all the same.
    for number in 2..10 {
        liveness.on_sent(sent, now);
        liveness.on_heard(now + 10 * MS);
        assert_eq!(liveness.on_time(now + 500 * MS), Due::Probe(number));
        assert_eq!(liveness.on_time(now + 500 * MS), Due::Nothing, "asked");
        now += SECOND;
        pong(&mut liveness, number, now);
    }
    liveness.on_sent(sent, now);
    liveness.on_time(now + SECOND);
    assert_eq!(liveness.deadline(), now + 3 * SECOND);
}

#[test]
fn after_much_was_sent_a_path_has_more_time_even_if_it_was_fast() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100_000_000, now);
    assert_eq!(liveness.on_time(now), Due::Probe(2));
    let now = now + 100 * MS;
    assert!(pong(&mut liveness, 2, now));
    // Twenty times as fast as what is sent now needs: then it is narrow all of a sudden.
    liveness.on_sent(HEAVY_BYTES as usize + 1, now);
    assert_eq!(liveness.on_time(now + SECOND), Due::Probe(3));
    assert_eq!(liveness.deadline(), now + 6 * SECOND);
    // Whatever the socket still takes shows that it is not black.
    assert!(liveness.on_taken(now + 5 * SECOND));
    assert_eq!(liveness.on_time(now + 6 * SECOND), Due::Probe(4));
    assert_eq!(liveness.deadline(), now + 11 * SECOND);
}

#[test]
fn a_full_socket_that_takes_more_is_a_sign_of_life_for_a_while() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100, now);
    for second in 1..=28 {
        let at = now + SECOND * second;
        assert_ne!(liveness.on_time(at), Due::Dead, "second {second}");
        liveness.on_taken(at);
    }
    assert_eq!(liveness.on_time(now + 2 * INTERVAL), Due::Dead);
    let (mut liveness, now) = measured(MS);
    liveness.on_taken(now);
    assert_eq!(liveness.deadline(), now - MS + INTERVAL, "nothing was sent");
}

#[test]
fn whoever_finds_out_much_too_late_asks_again() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100, now);
    assert_eq!(liveness.on_time(now + SECOND), Due::Probe(2));
    assert_eq!(liveness.on_time(now + 5 * SECOND), Due::Probe(3));
    becomes_suspect(&mut liveness, now + 7 * SECOND);
    // Nothing is known of the time in between.
    assert_eq!(liveness.on_time(now + 28 * SECOND), Due::Probe(4));
    assert!(!liveness.is_suspect());
}

#[test]
fn a_suspicion_from_outside_asks_at_once() {
    let (mut liveness, now) = measured(MS);
    let now = now + 3 * SECOND;
    liveness.suspect(now);
    assert_eq!(liveness.deadline(), now);
    assert_eq!(liveness.on_time(now), Due::Probe(2));
    liveness.suspect(now + SECOND);
    becomes_suspect(&mut liveness, now + 2 * SECOND);
    liveness.suspect(now + 3 * SECOND);
    assert!(liveness.is_suspect());
}

/// Bytes sent at once on a [`Path`]: each millisecond that many are less than the slowest path is thought to carry, so
/// that no answer is waited for longer on account of them.
const SENT: usize = 30;

/// A path that delays in order, and may stop carrying anything.
struct Path {
    liveness: Liveness,
    now: Instant,
    /// Pongs on their way, with the time of their arrival.
    pongs: VecDeque<(Instant, u64)>,
    black_at: Option<Instant>,
}

impl Path {
    fn new() -> Self {
        let (liveness, now) = start();
        Self {
            liveness,
            now,
            pongs: VecDeque::new(),
            black_at: None,
        }
    }

    /// Lives until `until`; false as soon as the other end becomes suspect, or is thought dead.
    fn live(&mut self, until: Instant, delay: &mut impl FnMut() -> Duration) -> bool {
        loop {
            let pong = self.pongs.front().map(|(at, _)| *at);
            let deadline = self.liveness.deadline();
            let next = pong.map_or(deadline, |pong| pong.min(deadline));
            if next > until {
                self.now = until;
                return true;
            }
            self.now = self.now.max(next);
            if pong == Some(next) {
                let (at, number) = self.pongs.pop_front().unwrap();
                if self.black_at.is_none_or(|black_at| at < black_at) {
                    pong_at(&mut self.liveness, number, self.now);
                }
                continue;
            }
            match self.liveness.on_time(self.now) {
                Due::Nothing => {}
                Due::Ping(number) | Due::Probe(number) => {
                    let last = self.pongs.back().map_or(self.now, |(at, _)| *at);
                    let at = (self.now + delay()).max(last);
                    self.pongs.push_back((at, number));
                }
                Due::Suspect => {
                    self.liveness.become_suspect(self.now);
                    return false;
                }
                Due::Dead => return false,
            }
        }
    }
}

fn pong_at(liveness: &mut Liveness, number: u64, now: Instant) {
    liveness.on_pong(number, now);
}

proptest! {
    #[test]
    fn a_path_is_suspect_and_dead_when_it_is_black_and_never_before(
        base in 1_u32..3_000,
        delays in proptest::collection::vec(0.0..1.0_f64, 1..100),
        gaps in proptest::collection::vec(1_u32..6_000, 1..200),
        longest_gap_after in 1_u32..5_000,
    ) {
        let mut path = Path::new();
        let begin = path.now;
        // Between the shortest round trip and the longest that is never too long.
        let limits = (base, (base * 7 / 2).max(1_900));
        let mut number = 0;
        let mut delay = move || {
            number += 1;
            let at = delays[number % delays.len()];
            MS * (limits.0 + (at * f64::from(limits.1 - limits.0)) as u32)
        };
        for gap in &gaps {
            let next = path.now + MS * *gap;
            prop_assert!(path.live(next, &mut delay), "alive after {:?}", path.now - begin);
            path.liveness.on_sent(SENT, path.now);
        }
        let black_at = path.now;
        path.black_at = Some(black_at);
        let slowest = path.liveness.round_trips().map(|times| times.slowest);
        // Something is sent often enough, or nothing.
        let is_idle = longest_gap_after > 4_500;
        let mut is_alive = true;
        while is_alive {
            is_alive = path.live(path.now + MS * longest_gap_after, &mut delay);
            if !is_idle {
                path.liveness.on_sent(SENT, path.now);
            }
            prop_assert!(path.now < black_at + 10 * INTERVAL, "it is never found");
        }
        let found_after = path.now - black_at;
        prop_assert!(found_after <= 2 * INTERVAL, "{found_after:?}");
        if let Some(slowest) = slowest.filter(|_| !is_idle) {
            let gap = MS * longest_gap_after;
            let most = gap + SUSPICIOUS + ANSWER.max(slowest * ROUND_TRIPS);
            prop_assert!(found_after <= most, "{found_after:?}, at most {most:?}");
        }
        if path.liveness.is_suspect() {
            let found_at = path.now;
            while path.live(path.now + MS * longest_gap_after, &mut delay) {
                path.liveness.on_sent(SENT, path.now);
            }
            let is_over = path.now == path.liveness.silent_until();
            prop_assert!(is_over || path.now - found_at == REPRIEVE);
        }
    }
}
