//! How long one call may take: as configured, and longer where etcd is slow everywhere.
//!
//! A short time finds a member that stands still, or has lost the others, within a moment. It must not be the end of an etcd
//! that answers, if late. So it grows when several members have let calls time out for longer than an election takes, in
//! which no member answers a write, and shrinks with the first answers that are quick.
//!
//! Pure: the time is an argument.

use std::time::{Duration, Instant};

/// Longer than an election takes, during which nothing is to change.
const ELECTION: Duration = Duration::from_secs(2);

/// The longest time, as a multiple of the configured one: bounds how much later an etcd is found that is back.
const MOST: u32 = 4;

/// How many times as long as the last answer a call may take.
const MARGIN: u32 = 4;

/// The time for one call.
#[derive(Debug)]
pub(crate) struct CallTime {
    configured: Duration,
    now: Duration,
    silence: Option<Silence>,
}

/// Calls that have timed out without an answer in between.
#[derive(Debug, Clone, Copy)]
struct Silence {
    /// When the first one began.
    since: Instant,
    /// The member of the first one.
    member: usize,
    /// Whether another member was called, too, or there is none.
    is_shared: bool,
}

impl CallTime {
    pub(crate) fn new(configured: Duration) -> Self {
        Self {
            configured,
            now: configured,
            silence: None,
        }
    }

    /// The time for a call that begins now.
    pub(crate) fn get(&self) -> Duration {
        self.now
    }

    /// A call of this member, which is one of `members`, has timed out.
    pub(crate) fn on_time_out(
        &mut self,
        member: usize,
        members: usize,
        began: Instant,
        now: Instant,
    ) {
        let silence = self.silence.get_or_insert(Silence {
            since: began,
            member,
            is_shared: members <= 1,
        });
        silence.is_shared |= silence.member != member;
        if silence.is_shared && now.saturating_duration_since(silence.since) >= ELECTION {
            self.now = (self.now * 2).min(self.configured * MOST);
            self.silence = None;
        }
    }

    /// A call was answered after this time.
    pub(crate) fn on_answer(&mut self, took: Duration) {
        self.silence = None;
        self.now = (took * MARGIN).clamp(self.configured, self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_millis(500);

    /// Calls that time out at these members, one after another. Returns the time after each, in milliseconds.
    fn timed_out(time: &mut CallTime, members: &[usize]) -> Vec<u128> {
        let mut now = tokio::time::Instant::now().into_std();
        let mut times = Vec::new();
        for member in members {
            let began = now;
            now += time.get();
            time.on_time_out(*member, 3, began, now);
            times.push(time.get().as_millis());
        }
        times
    }

    #[test]
    fn a_slow_etcd_is_given_more_time_and_an_election_is_not() {
        let mut time = CallTime::new(USUAL);
        let election = timed_out(&mut time, &[0, 1, 2]);
        assert_eq!(election, [500, 500, 500]);
        time.on_answer(Duration::from_millis(9));
        let slow = timed_out(&mut time, &[0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(slow, [500, 500, 500, 1_000, 1_000, 2_000, 2_000, 2_000]);
        time.on_answer(Duration::from_millis(700));
        assert_eq!(time.get().as_millis(), 2_000);
        time.on_answer(Duration::from_millis(300));
        assert_eq!(time.get().as_millis(), 1_200);
        time.on_answer(Duration::from_millis(5));
        assert_eq!(time.get(), USUAL);
    }

    #[test]
    fn one_member_that_stands_still_changes_nothing() {
        let mut time = CallTime::new(USUAL);
        let stuck = timed_out(&mut time, &[1; 20]);
        assert_eq!(stuck, [500; 20]);
        // The only member there is.
        let (began, mut alone) = (tokio::time::Instant::now().into_std(), CallTime::new(USUAL));
        alone.on_time_out(0, 1, began, began + ELECTION);
        assert_eq!(alone.get(), 2 * USUAL);
    }
}
