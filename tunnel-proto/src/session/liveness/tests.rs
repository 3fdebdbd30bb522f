//! The liveness check on simulated time, over paths that are slow, busy or lost.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const INTERVAL: Duration = Duration::from_secs(15);
const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn start() -> (Liveness, Instant) {
    let now = Instant::now();
    (Liveness::new(INTERVAL, SilenceLimits::ANY_PATH, now), now)
}

/// A session with one measured round trip of this length, and the time at which it ended.
fn measured(round_trip: Duration) -> (Liveness, Instant) {
    let (mut liveness, now) = start();
    assert_eq!(liveness.on_time(now), LivenessAction::Ping(1));
    assert!(pong(&mut liveness, 1, now + round_trip));
    (liveness, now + round_trip)
}

fn pong(liveness: &mut Liveness, number: u64, now: Instant) -> bool {
    liveness.on_pong(number, now)
}

/// Checks that the answer is overdue, and takes the other end for silent.
fn becomes_silent(liveness: &mut Liveness, now: Instant) {
    assert_eq!(liveness.on_time(now), LivenessAction::Silent);
    assert!(!liveness.is_silent(), "unread bytes may have arrived");
    liveness.become_silent(now);
    assert!(liveness.is_silent());
}

#[test]
fn the_first_ping_is_sent_at_once_and_measures_the_round_trip() {
    let (mut liveness, now) = measured(40 * MS);
    let times = liveness.round_trips().unwrap();
    assert_eq!((times.last, times.smoothed), (40 * MS, 40 * MS));
    assert!(!pong(&mut liveness, 1, now), "answered already");
    assert_eq!(liveness.on_time(now + INTERVAL), LivenessAction::Ping(2));
    pong(&mut liveness, 2, now + INTERVAL + 120 * MS);
    let times = liveness.round_trips().unwrap();
    assert_eq!((times.last, times.smoothed), (120 * MS, 50 * MS));
}

/// A node that was stopped costs less than a second.
#[test]
fn within_a_data_centre_silence_is_death_after_less_than_a_second() {
    let now = Instant::now();
    let mut liveness = Liveness::new(2 * SECOND, SilenceLimits::DATA_CENTRE, now);
    assert_eq!(liveness.on_time(now), LivenessAction::Ping(1));
    assert!(pong(&mut liveness, 1, now + MS));
    liveness.on_sent(1_000, now + 10 * MS);
    let asked = now + 210 * MS;
    assert_eq!(liveness.deadline(), asked);
    assert_eq!(liveness.on_time(asked), LivenessAction::ExtraPing(2));
    becomes_silent(&mut liveness, asked + 300 * MS);
    assert_eq!(liveness.on_time(asked + 500 * MS), LivenessAction::Dead);
}

#[test]
fn a_session_is_dead_after_two_silent_intervals() {
    let (mut liveness, now) = measured(Duration::ZERO);
    assert_eq!(liveness.on_time(now + INTERVAL), LivenessAction::Ping(2));
    assert_eq!(liveness.deadline(), now + INTERVAL * 2);
    assert_eq!(liveness.on_time(now + INTERVAL * 2), LivenessAction::Dead);
}

#[test]
fn other_traffic_replaces_pongs_for_four_intervals_only() {
    let (mut liveness, now) = start();
    for interval in 0..4 {
        let at = now + INTERVAL * interval;
        liveness.on_received(at);
        assert!(
            matches!(liveness.on_time(at), LivenessAction::Ping(_)),
            "interval {interval}"
        );
    }
    liveness.on_received(now + INTERVAL * 4);
    assert_eq!(liveness.on_time(now + INTERVAL * 4), LivenessAction::Dead);
}

#[test]
fn pongs_slower_than_the_interval_keep_a_session_alive_and_are_measured() {
    let (mut liveness, now) = start();
    for number in 1..10_u32 {
        let at = now + INTERVAL * (number - 1);
        assert_eq!(liveness.on_time(at), LivenessAction::Ping(number.into()));
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
        liveness.on_received(now + INTERVAL * interval);
    }
    assert!(pong(&mut liveness, 3, now + INTERVAL * 2 + SECOND));
    assert_eq!(liveness.round_trips().unwrap().last, SECOND);
    assert!(!pong(&mut liveness, 2, now + INTERVAL * 2 + SECOND));
}

#[test]
fn an_unsolicited_pong_confirms_nothing() {
    let (mut liveness, now) = start();
    liveness.on_time(now);
    assert!(!liveness.on_pong(0, now));
    assert!(!pong(&mut liveness, 9, now));
    assert!(liveness.arrived_until().is_none());
}

#[test]
fn a_silent_end_is_pinged_then_silent_then_dead() {
    let (mut liveness, now) = measured(MS);
    assert!(liveness.on_sent(100, now));
    // Sending more does not postpone the ping.
    assert!(!liveness.on_sent(100, now + 900 * MS));
    assert_eq!(liveness.deadline(), now + SECOND);
    assert_eq!(liveness.on_time(now + SECOND), LivenessAction::ExtraPing(2));
    liveness.on_sent(100, now + 2 * SECOND);
    assert_eq!(liveness.deadline(), now + 3 * SECOND);
    assert_eq!(
        liveness.on_time(now + 3 * SECOND - MS),
        LivenessAction::Nothing
    );
    becomes_silent(&mut liveness, now + 3 * SECOND);
    liveness.on_sent(100, now + 4 * SECOND);
    assert_eq!(
        liveness.on_time(now + 15 * SECOND - 2 * MS),
        LivenessAction::Nothing
    );
    assert_eq!(
        liveness.on_time(now + 15 * SECOND - MS),
        LivenessAction::Ping(3)
    );
    assert_eq!(liveness.on_time(now + 15 * SECOND), LivenessAction::Dead);
}

#[test]
fn received_bytes_make_a_silent_end_alive() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100, now);
    assert_eq!(liveness.on_time(now + SECOND), LivenessAction::ExtraPing(2));
    becomes_silent(&mut liveness, now + 3 * SECOND);
    assert!(liveness.on_received(now + 14 * SECOND));
    assert!(!liveness.is_silent());
    assert_eq!(liveness.on_time(now + 14 * SECOND), LivenessAction::Nothing);
    assert_eq!(liveness.on_time(now + 15 * SECOND), LivenessAction::Ping(3));
    // The next silence causes a ping again.
    liveness.on_sent(100, now + 20 * SECOND);
    assert_eq!(
        liveness.on_time(now + 21 * SECOND),
        LivenessAction::ExtraPing(4)
    );
    becomes_silent(&mut liveness, now + 23 * SECOND);
}

#[test]
fn a_resumed_socket_postpones_death_and_does_not_end_the_silence() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100, now);
    assert_eq!(liveness.on_time(now + SECOND), LivenessAction::ExtraPing(2));
    becomes_silent(&mut liveness, now + 3 * SECOND);
    liveness.on_socket_resumed(now + 12 * SECOND);
    assert!(liveness.is_silent());
    assert_eq!(liveness.on_time(now + 15 * SECOND), LivenessAction::Ping(3));
    assert_eq!(liveness.on_time(now + 24 * SECOND), LivenessAction::Dead);
}

#[test]
fn received_bytes_end_the_silence() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100, now);
    liveness.on_received(now + 500 * MS);
    assert_eq!(liveness.deadline(), now - MS + INTERVAL);
    liveness.on_sent(100, now + 2 * SECOND);
    assert_eq!(
        liveness.on_time(now + 3 * SECOND),
        LivenessAction::ExtraPing(2)
    );
    liveness.on_received(now + 4 * SECOND);
    assert_eq!(liveness.on_time(now + 5 * SECOND), LivenessAction::Nothing);
}

#[test]
fn bytes_received_too_soon_to_be_an_answer_only_restart_the_silence() {
    let (mut liveness, now) = measured(100 * MS);
    liveness.on_sent(100, now);
    liveness.on_sent(100, now + 300 * MS);
    assert!(!liveness.on_received(now + 350 * MS));
    assert_eq!(
        liveness.on_time(now + 1_300 * MS),
        LivenessAction::ExtraPing(2)
    );
    liveness.on_sent(100, now + 1_400 * MS);
    assert!(
        liveness.on_received(now + 1_450 * MS),
        "the deadline is nearer"
    );
    assert_eq!(liveness.deadline(), now + 2_400 * MS);
}

#[test]
fn a_path_measured_as_slow_has_more_time() {
    let (mut liveness, now) = measured(3 * SECOND);
    liveness.on_sent(100, now);
    assert_eq!(liveness.on_time(now + SECOND), LivenessAction::ExtraPing(2));
    assert_eq!(liveness.deadline(), now + 12 * SECOND, "the next ping");
    liveness.on_time(now + 12 * SECOND);
    becomes_silent(&mut liveness, now + 13 * SECOND);
}

#[test]
fn without_a_measured_round_trip_only_the_intervals_count() {
    let (mut liveness, now) = start();
    liveness.on_time(now);
    liveness.on_sent(100, now);
    assert_eq!(liveness.on_time(now + SECOND), LivenessAction::ExtraPing(2));
    assert_eq!(liveness.deadline(), now + INTERVAL);
    liveness.on_time(now + INTERVAL);
    assert_eq!(liveness.on_time(now + 2 * INTERVAL), LivenessAction::Dead);
}

#[test]
fn bytes_queued_before_a_ping_extend_its_time() {
    let sent = 8 * SLOWEST_RATE;
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(sent as usize, now);
    liveness.on_time(now + SECOND);
    assert_eq!(liveness.deadline(), now + 9 * SECOND);
    // Other received bytes confirm nothing of what was sent.
    liveness.on_received(now + 2 * SECOND);
    liveness.on_sent(100, now + 2 * SECOND);
    liveness.on_time(now + 3 * SECOND);
    assert_eq!(liveness.deadline(), now + 11 * SECOND + 3 * MS);
}

#[test]
fn a_measured_high_rate_shortens_the_time() {
    let (mut liveness, mut now) = measured(MS);
    let sent = 8 * SLOWEST_RATE as usize;
    // Bytes are received all the time, so there is no silence; pings are sent to confirm what was sent.
    for number in 2..10 {
        liveness.on_sent(sent, now);
        liveness.on_received(now + 10 * MS);
        assert_eq!(
            liveness.on_time(now + 500 * MS),
            LivenessAction::ExtraPing(number)
        );
        assert_eq!(
            liveness.on_time(now + 500 * MS),
            LivenessAction::Nothing,
            "pinged already"
        );
        now += SECOND;
        pong(&mut liveness, number, now);
    }
    liveness.on_sent(sent, now);
    liveness.on_time(now + SECOND);
    assert_eq!(liveness.deadline(), now + 3 * SECOND);
}

#[test]
fn many_unconfirmed_bytes_give_even_a_fast_path_more_time() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100_000_000, now);
    assert_eq!(liveness.on_time(now), LivenessAction::ExtraPing(2));
    let now = now + 100 * MS;
    assert!(pong(&mut liveness, 2, now));
    // Measured at twenty times the rate that is needed now, then the bandwidth drops.
    liveness.on_sent(HEAVY_BYTES as usize + 1, now);
    assert_eq!(liveness.on_time(now + SECOND), LivenessAction::ExtraPing(3));
    assert_eq!(liveness.deadline(), now + 6 * SECOND);
    // Bytes that the socket takes show that the path still carries something.
    assert!(liveness.on_socket_resumed(now + 5 * SECOND));
    assert_eq!(
        liveness.on_time(now + 6 * SECOND),
        LivenessAction::ExtraPing(4)
    );
    assert_eq!(liveness.deadline(), now + 11 * SECOND);
}

#[test]
fn a_resumed_socket_postpones_death_for_two_intervals_at_most() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100, now);
    for second in 1..=28 {
        let at = now + SECOND * second;
        assert_ne!(
            liveness.on_time(at),
            LivenessAction::Dead,
            "second {second}"
        );
        liveness.on_socket_resumed(at);
    }
    assert_eq!(liveness.on_time(now + 2 * INTERVAL), LivenessAction::Dead);
    let (mut liveness, now) = measured(MS);
    liveness.on_socket_resumed(now);
    assert_eq!(liveness.deadline(), now - MS + INTERVAL, "nothing was sent");
}

#[test]
fn a_timer_that_fires_much_too_late_sends_another_ping() {
    let (mut liveness, now) = measured(MS);
    liveness.on_sent(100, now);
    assert_eq!(liveness.on_time(now + SECOND), LivenessAction::ExtraPing(2));
    assert_eq!(
        liveness.on_time(now + 5 * SECOND),
        LivenessAction::ExtraPing(3)
    );
    becomes_silent(&mut liveness, now + 7 * SECOND);
    // What arrived in between was not read.
    assert_eq!(
        liveness.on_time(now + 28 * SECOND),
        LivenessAction::ExtraPing(4)
    );
    assert!(!liveness.is_silent());
}

#[test]
fn a_requested_ping_is_sent_at_once() {
    let (mut liveness, now) = measured(MS);
    let now = now + 3 * SECOND;
    liveness.ping_now(now);
    assert_eq!(liveness.deadline(), now);
    assert_eq!(liveness.on_time(now), LivenessAction::ExtraPing(2));
    liveness.ping_now(now + SECOND);
    becomes_silent(&mut liveness, now + 2 * SECOND);
    liveness.ping_now(now + 3 * SECOND);
    assert!(liveness.is_silent());
}

/// Bytes sent at once on a [`Path`]: so few that even the slowest assumed path carries them within a
/// millisecond, and they extend no time-out.
const SENT: usize = 30;

/// A path that delays pongs in order, and loses everything from `lost_at` on.
struct Path {
    liveness: Liveness,
    now: Instant,
    /// Pongs in flight, with the time of their arrival.
    pongs: VecDeque<(Instant, u64)>,
    lost_at: Option<Instant>,
}

impl Path {
    fn new() -> Self {
        let (liveness, now) = start();
        Self {
            liveness,
            now,
            pongs: VecDeque::new(),
            lost_at: None,
        }
    }

    /// Runs the check until `until`; false as soon as the other end becomes silent or dead.
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
                if self.lost_at.is_none_or(|lost_at| at < lost_at) {
                    pong_at(&mut self.liveness, number, self.now);
                }
                continue;
            }
            match self.liveness.on_time(self.now) {
                LivenessAction::Nothing => {}
                LivenessAction::Ping(number) | LivenessAction::ExtraPing(number) => {
                    let last = self.pongs.back().map_or(self.now, |(at, _)| *at);
                    let at = (self.now + delay()).max(last);
                    self.pongs.push_back((at, number));
                }
                LivenessAction::Silent => {
                    self.liveness.become_silent(self.now);
                    return false;
                }
                LivenessAction::Dead => return false,
            }
        }
    }
}

fn pong_at(liveness: &mut Liveness, number: u64, now: Instant) {
    liveness.on_pong(number, now);
}

proptest! {
    #[test]
    fn a_path_is_silent_and_dead_once_it_is_lost_and_never_before(
        base in 1_u32..3_000,
        delays in proptest::collection::vec(0.0..1.0_f64, 1..100),
        gaps in proptest::collection::vec(1_u32..6_000, 1..200),
        longest_gap_after in 1_u32..5_000,
    ) {
        let mut path = Path::new();
        let begin = path.now;
        // The shortest round trip, and the longest that never makes the other end silent.
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
        let lost_at = path.now;
        path.lost_at = Some(lost_at);
        let slowest = path.liveness.round_trips().map(|times| times.slowest);
        // Either bytes are sent often enough, or none are.
        let is_idle = longest_gap_after > 4_500;
        let mut is_alive = true;
        while is_alive {
            is_alive = path.live(path.now + MS * longest_gap_after, &mut delay);
            if !is_idle {
                path.liveness.on_sent(SENT, path.now);
            }
            prop_assert!(path.now < lost_at + 10 * INTERVAL, "the loss is never detected");
        }
        let found_after = path.now - lost_at;
        prop_assert!(found_after <= 2 * INTERVAL, "{found_after:?}");
        if let Some(slowest) = slowest.filter(|_| !is_idle) {
            let gap = MS * longest_gap_after;
            let limits = SilenceLimits::ANY_PATH;
            let most = gap + limits.ping_after + limits.answer.max(slowest * ROUND_TRIPS);
            prop_assert!(found_after <= most, "{found_after:?}, at most {most:?}");
        }
        if path.liveness.is_silent() {
            let found_at = path.now;
            while path.live(path.now + MS * longest_gap_after, &mut delay) {
                path.liveness.on_sent(SENT, path.now);
            }
            let is_over = path.now == path.liveness.silent_until();
            prop_assert!(is_over || path.now - found_at == SilenceLimits::ANY_PATH.silent);
        }
    }
}
