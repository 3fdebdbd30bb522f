//! How long a tunnel stays that was told to move to another node and has come back: its client reaches no other node.
//!
//! Pure: the time is an argument.

use std::time::{Duration, Instant};

/// Shortest and longest time until it is told again: the first is longer than a client needs for its dials at other nodes.
const PAUSES: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(64));

/// The pauses of one tunnel.
#[derive(Debug, Default)]
pub(super) struct MovePauses {
    /// How often it was told in a row.
    moves: u32,
    /// The end of the current pause.
    until: Option<Instant>,
}

impl MovePauses {
    /// Whether it may be told to move now.
    pub(super) fn may_move(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// It is told to move.
    pub(super) fn on_move(&mut self, now: Instant) {
        let (shortest, longest) = PAUSES;
        if self.until.is_some_and(|until| now > until + longest) {
            // Nobody wanted it to move for a while.
            self.moves = 0;
        }
        let factor = 1_u32.checked_shl(self.moves).unwrap_or(u32::MAX);
        self.until = Some(now + shortest.saturating_mul(factor).min(longest));
        self.moves += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_that_comes_back_is_told_again_after_growing_pauses() {
        let (mut pauses, start) = (
            MovePauses::default(),
            tokio::time::Instant::now().into_std(),
        );
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..7 {
            assert!(pauses.may_move(now));
            pauses.on_move(now);
            let told = now;
            while !pauses.may_move(now) {
                now += Duration::from_secs(1);
            }
            waits.push((now - told).as_secs());
        }
        assert_eq!(waits, [4, 8, 16, 32, 64, 64, 64]);
        now += 2 * PAUSES.1;
        pauses.on_move(now);
        assert!(pauses.may_move(now + PAUSES.0), "it starts over");
    }
}
