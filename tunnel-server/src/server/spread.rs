//! Over which time the sessions of a server are told to leave.

use std::time::Duration;

use super::parts::Parts;

/// Time for clients to get a session at another server, in addition to the spread.
pub(super) const MOVING: Duration = Duration::from_secs(2);

/// The time over which the drain messages to `sessions` are spread, `per_second` of them per second.
fn spread(sessions: usize, per_second: u32, max_spread: Duration) -> Duration {
    let sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
    (Duration::from_secs(1) * (sessions / per_second.max(1))).min(max_spread)
}

/// The time over which the sessions that are open now are told to leave, of a server with this grace period.
pub(super) fn session_spread(parts: &Parts) -> Duration {
    let config = parts.config.load();
    let most = (config.settings.grace_period / 2).saturating_sub(MOVING);
    let max_spread = config.settings.drain_spread.min(most);
    let sessions = parts.lifecycle.unmoved_sessions.len();
    spread(sessions, config.leaving_per_second, max_spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_grows_with_the_sessions_up_to_its_bound() {
        let max_spread = Duration::from_secs(5);
        let spreads =
            [0, 499, 500, 1_700, 100_000].map(|sessions| spread(sessions, 500, max_spread));
        assert_eq!(spreads.map(|spread| spread.as_secs()), [0, 0, 1, 3, 5]);
        assert_eq!(spread(3, 0, max_spread).as_secs(), 3);
    }
}
