//! How long a session is used before another one replaces it, where the operator sets a bound.
//!
//! Each session draws its own age, so that those that began together do not end together; and only one
//! of a tunnel is replaced for its age at a time, from when it is due until the next one serves.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until};

use super::redial::fraction;

/// The ages of all sessions of a tunnel.
pub(super) struct Ages {
    /// `None` where sessions are used for as long as they last.
    max: Option<Duration>,
    turn: Arc<Mutex<()>>,
}

/// Belongs to the slot that replaces its session for its age, until the next one serves.
pub(super) type Turn = OwnedMutexGuard<()>;

impl Ages {
    /// With this bound, if there is one.
    pub(super) fn new(max: Option<Duration>) -> Self {
        Self {
            max,
            turn: Arc::default(),
        }
    }

    /// When a session that begins now is due: after three quarters of the bound at the earliest.
    /// `random` is any number.
    pub(super) fn due(&self, now: Instant, random: u64) -> Option<Instant> {
        let max = self.max?;
        Some(now + max - fraction(max / 4, random))
    }

    /// Returns when a session that is due then is to be replaced, and no other is.
    pub(super) async fn turn(&self, due: Option<Instant>) -> Turn {
        match due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
        Arc::clone(&self.turn).lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::time::timeout;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn only_one_session_is_replaced_at_a_time() {
        let ages = Ages::new(Some(4 * MINUTE));
        let began = Instant::now();
        let due = ages.due(began, 0);
        let turn = ages.turn(due).await;
        assert_eq!(began.elapsed(), 4 * MINUTE);
        assert!(timeout(MINUTE, ages.turn(due)).await.is_err(), "not both");
        drop(turn);
        ages.turn(due).await;
        assert_eq!(began.elapsed(), 5 * MINUTE);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_bound_no_session_is_ever_due() {
        let ages = Ages::new(None);
        let due = ages.due(Instant::now(), 0);
        assert_eq!(due, None);
        assert!(timeout(10_000 * MINUTE, ages.turn(due)).await.is_err());
    }

    proptest! {
        #[test]
        fn a_session_is_due_within_the_last_quarter_of_the_bound(random: u64, minutes in 1_u32..100_000) {
            let max = MINUTE * minutes;
            let now = Instant::now();
            let age = Ages::new(Some(max)).due(now, random).unwrap() - now;
            prop_assert!(age <= max && age >= max * 3 / 4);
        }
    }
}
