//! The exchanges of a connection, by which it takes others or not.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How long a stream that this end has reset keeps its place. Upstreams count the handlers that still run, and end the
/// connection if there are too many.
pub(super) const RESET_HOLD: Duration = Duration::from_secs(5);

/// Resets after which a connection takes no new exchange.
pub(super) const RESETS: u32 = 100;

/// The exchanges of a connection.
#[derive(Debug, Default)]
pub(super) struct Places {
    open: usize,
    /// When streams were reset that still have their places.
    reset: VecDeque<Instant>,
    resets: u32,
}

impl Places {
    pub(super) fn on_open(&mut self) {
        self.open += 1;
    }

    /// An exchange is over; `was_reset` if this end did not wait for its end.
    pub(super) fn on_close(&mut self, was_reset: bool, now: Instant) {
        self.open -= 1;
        if was_reset {
            self.reset.push_back(now);
            self.resets += 1;
        }
    }

    /// The number of open exchanges.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Places that are taken.
    pub(super) fn taken(&mut self, now: Instant) -> usize {
        let is_over = |at: &Instant| now >= *at + RESET_HOLD;
        while self.reset.front().is_some_and(is_over) {
            self.reset.pop_front();
        }
        self.open + self.reset.len()
    }

    /// When the last reset stream gives its place back; `None` if all have.
    pub(super) fn resets_over(&mut self, now: Instant) -> Option<Instant> {
        self.taken(now);
        self.reset.back().map(|at| *at + RESET_HOLD)
    }

    /// Whether so many streams were reset that the connection takes no new exchange.
    pub(super) fn is_worn_out(&self) -> bool {
        self.resets >= RESETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_stream_keeps_its_place_for_a_while_and_wears_the_connection_out() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut places = Places::default();
        places.on_open();
        for _ in 0..RESETS - 1 {
            places.on_open();
            places.on_close(true, start);
        }
        places.on_open();
        places.on_close(false, start);
        assert_eq!((places.open(), places.taken(start)), (1, RESETS as usize));
        assert_eq!(places.taken(start + 4 * second), RESETS as usize);
        assert_eq!(places.resets_over(start), Some(start + 5 * second));
        assert_eq!(places.resets_over(start + 5 * second), None);
        assert_eq!(places.taken(start + 5 * second), 1);
        assert!(!places.is_worn_out());
        places.on_open();
        places.on_close(true, start + 5 * second);
        assert!(places.is_worn_out());
    }
}
