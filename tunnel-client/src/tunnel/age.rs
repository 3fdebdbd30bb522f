//! Replaces sessions by age, if the operator sets a bound.
//!
//! Each session gets a random age, so that sessions that began together do not end together. A tunnel replaces only one
//! session for its age at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until};
use tunnel_proto::redial::fraction;

/// The ages of all sessions of a tunnel.
pub(super) struct Ages {
    /// `None` without a bound.
    max: Option<Duration>,
    permit: Arc<Mutex<()>>,
}

/// Held by the slot that replaces its session for its age, until the next session serves.
pub(super) type AgePermit = OwnedMutexGuard<()>;

impl Ages {
    /// `max` is the bound.
    pub(super) fn new(max: Option<Duration>) -> Self {
        Self {
            max,
            permit: Arc::default(),
        }
    }

    /// When a session that begins now is due: at a random time in the last quarter of the bound. `random` is any number.
    pub(super) fn due(&self, now: Instant, random: u64) -> Option<Instant> {
        let max = self.max?;
        Some(now + max - fraction(max / 4, random))
    }

    /// Waits until `due` and until no other session is being replaced for its age; for ever without `due`.
    pub(super) async fn reached(&self, due: Option<Instant>) -> AgePermit {
        match due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
        Arc::clone(&self.permit).lock_owned().await
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
        let permit = ages.reached(due).await;
        assert_eq!(began.elapsed(), 4 * MINUTE);
        assert!(
            timeout(MINUTE, ages.reached(due)).await.is_err(),
            "not both"
        );
        drop(permit);
        ages.reached(due).await;
        assert_eq!(began.elapsed(), 5 * MINUTE);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_bound_no_session_is_ever_due() {
        let ages = Ages::new(None);
        let due = ages.due(Instant::now(), 0);
        assert_eq!(due, None);
        assert!(timeout(10_000 * MINUTE, ages.reached(due)).await.is_err());
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
