//! Leaving without loss: what a server does from the signal to its end, step by step.
//!
//! ```text
//!   signal ─ drain-delay ─▶ draining ─ clients move ─▶ stopping ──────▶ ending ─▶ exit
//!            not ready,     no new        at most the   connections      what is left
//!            all is served  connections   spread        end with their   ends as its
//!                                         and a moment  requests         protocol allows
//! ```
//!
//! The whole is over a moment before the grace period is, counted from the signal. A second signal ends it at
//! any point, which is the caller's business.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::{finish, shard::Shard};
use crate::{config::Config, lifecycle::Lifecycle};

/// How long clients may take, beside the spread, to have another session.
const MOVING: Duration = Duration::from_secs(2);

/// What of the grace period is kept, at most, for ends that the protocol of a connection provides for.
const ENDING: Duration = Duration::from_secs(4);

/// What of that is kept, at most, for the sessions' close handshakes when connections did not end in time.
const CLOSE_HANDSHAKE: Duration = Duration::from_secs(1);

/// What of the grace period is kept, at most, for the process to end in: a supervisor that counts the grace period
/// too is to find it gone.
const EXIT: Duration = Duration::from_millis(250);

/// The time over which clients are spread, when `sessions` are asked to leave, `per_second` of them in one second.
fn spread(sessions: usize, per_second: u32, longest: Duration) -> Duration {
    let sessions = u32::try_from(sessions).unwrap_or(u32::MAX);
    (Duration::from_secs(1) * (sessions / per_second.max(1))).min(longest)
}

/// Leads the server through its stages. Returns when nothing is left, or the grace period is over.
pub(super) async fn drain(lifecycle: &Lifecycle, config: &Config, running: &mut [Shard]) {
    let grace = config.settings.grace_period;
    let end = Instant::now() + grace - EXIT.min(grace / 20);
    let ending = end - ENDING.min(grace / 4);
    lifecycle.leave();
    // Load balancers that have seen "not ready" meanwhile send nothing new when the listeners close.
    sleep_until((Instant::now() + config.settings.drain_delay).min(ending)).await;
    let longest = config
        .settings
        .drain_spread
        .min((grace / 2).saturating_sub(MOVING));
    let sessions = lifecycle.unmoved_sessions.len();
    let spread = spread(sessions, config.leaving_per_second, longest);
    lifecycle.drain(spread);
    tracing::info!(
        ?spread,
        "draining: nothing new is accepted, clients are told to leave"
    );
    // The clients first: requests to another server find their runtimes there from now on.
    let moved = (Instant::now() + spread + MOVING).min(ending);
    let _ = timeout_at(moved, lifecycle.unmoved_sessions.wait()).await;
    lifecycle.stop();
    tracing::info!("stopping: connections end with the requests that they carry");
    tokio::select! {
        () = finish(running) => return,
        () = sleep_until(ending) => {}
    }
    lifecycle.end();
    tracing::info!("ending: what is still open ends as its protocol allows");
    // The rest of the time is for telling clients why their sessions end.
    let last = end - CLOSE_HANDSHAKE.min(grace / 10);
    if timeout_at(last, finish(running)).await.is_err() {
        lifecycle.cut();
        let _ = timeout_at(end, finish(running)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_grows_with_the_sessions_up_to_its_bound() {
        let longest = Duration::from_secs(5);
        let spreads = [0, 499, 500, 1_700, 100_000].map(|sessions| spread(sessions, 500, longest));
        assert_eq!(spreads.map(|spread| spread.as_secs()), [0, 0, 1, 3, 5]);
        assert_eq!(spread(3, 0, longest).as_secs(), 3);
    }
}
