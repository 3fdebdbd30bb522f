//! Draining: how a server stops without loss, from the signal to its end.
//!
//! ```text
//!   signal ─ drain-delay ─▶ draining ─ clients move ─▶ stopping ──────▶ ending ─▶ exit
//!            not ready,     no new        at most the   connections      what is left
//!            all is served  connections   spread        end with their   ends as its
//!                                         and a moment  requests         protocol allows
//! ```
//!
//! After a hand-over ([`super::handover`]) it begins at draining. Its clients have moved by then, unless the successor is of
//! an earlier version: then it accepts platform clients until its tunnel clients have moved, since only then their requests
//! find their runtimes at the successor.
//!
//! It ends shortly before the end of the grace period, which begins with the signal. The caller ends it early on
//! a second signal.

use std::time::Duration;

use futures_util::future::join;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tunnel_ops::task::Owned;
use tunnel_proto::control::millis;

use super::{
    finish,
    handover::Successor,
    parts::Parts,
    shard::Shard,
    spread::{MOVING, session_spread},
};

/// How long no exchange is open before nobody needs this server: a platform client with an open connection may be about to
/// send a request, whose answer makes it use another connection.
const QUIET: Duration = Duration::from_millis(200);

/// Time between two checks whether an exchange is open.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The part of the grace period, at most, for ending exchanges as their protocol provides.
const ENDING: Duration = Duration::from_secs(4);

/// The part of that, at most, for the sessions' close handshakes if connections did not end in time.
const CLOSE_HANDSHAKE: Duration = Duration::from_secs(1);

/// The part of the grace period, at most, for what follows the last session: the node's departure from etcd, and the last
/// events.
const FAREWELL: Duration = Duration::from_secs(1);

/// The part of the grace period, at most, in which the process exits, so that it has ended before a supervisor's equal
/// grace period is over.
const EXIT: Duration = Duration::from_millis(250);

/// Time for events that the platform has not taken yet when the server stops.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// When the steps of a stop are over at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deadlines {
    /// What is still open begins to end as its protocol provides.
    ending: Instant,
    /// Connections are cut.
    cut: Instant,
    /// Sessions have ended.
    sessions: Instant,
    /// All has ended but the process.
    pub(super) farewell: Instant,
}

impl Deadlines {
    /// The deadlines of a stop that begins now. `has_farewell`: something follows the last session.
    pub(super) fn new(grace: Duration, has_farewell: bool, now: Instant) -> Self {
        let farewell = now + grace - EXIT.min(grace / 20);
        let sessions = match has_farewell {
            true => farewell - FAREWELL.min(grace / 10),
            false => farewell,
        };
        Self {
            ending: sessions - ENDING.min(grace / 4),
            // The rest of the time is for the sessions' close handshakes, which give the reason.
            cut: sessions - CLOSE_HANDSHAKE.min(grace / 10),
            sessions,
            farewell,
        }
    }
}

/// Moves the server through its stages. Returns when all sessions have ended, or their time is over. A successor has
/// the listeners already.
pub(super) async fn drain(
    parts: &Parts,
    running: &mut [Shard],
    successor: Option<Successor>,
    deadlines: Deadlines,
) {
    let (lifecycle, config) = (&parts.lifecycle, parts.config.load_full());
    let Deadlines {
        ending,
        cut,
        sessions,
        ..
    } = deadlines;
    if successor.is_none() {
        // Load balancers that have seen "not ready" meanwhile send no new connections when the listeners close.
        sleep_until((Instant::now() + config.settings.drain_delay).min(ending)).await;
    }
    let spread = session_spread(parts);
    lifecycle.drain(spread);
    let all_moved = lifecycle.unmoved_sessions.wait();
    let spread_ends = Instant::now() + spread;
    match successor {
        None => {
            lifecycle.close();
            tracing::info!(
                spread_ms = millis(spread),
                "draining: accepting no new connections, sending drain messages to tunnel clients"
            );
            // Tunnel clients move first, so that requests to another server find their runtimes there.
            tokio::select! {
                () = all_moved => {}
                () = not_needed(parts, spread_ends) => {}
                () = sleep_until((spread_ends + MOVING).min(ending)) => {}
            }
        }
        Some(successor) if successor.is_confirmed() => {
            // Its clients have moved.
            lifecycle.close();
            let rest = ending.saturating_duration_since(Instant::now()) / 2;
            let _ = timeout(rest.min(MOVING), quiet(parts)).await;
        }
        Some(mut successor) => {
            tracing::info!(
                spread_ms = millis(spread),
                "draining: sending drain messages to tunnel clients, which dial the new process"
            );
            // Where tunnel clients come by the public listener, it is the successor's at once, and requests wait there for
            // their runtimes.
            let takes_tunnels = !config.settings.tunnel_host.is_empty();
            if takes_tunnels {
                successor.serve_public().await;
                lifecycle.close();
            }
            // The requests of runtimes that need longer wait at the successor, as those of runtimes that dial it afresh wait here.
            let _ = timeout_at((spread_ends + MOVING).min(ending), all_moved).await;
            if !takes_tunnels {
                successor.serve_public().await;
                lifecycle.close();
            }
            // The rest is for connections, which are told to close only then.
            let now = Instant::now();
            let rest = ending.saturating_duration_since(now) / 2;
            let _ = timeout_at(now + rest.min(MOVING), quiet(parts)).await;
        }
    }
    lifecycle.stop();
    tracing::info!("stopping: connections close after their current requests");
    tokio::select! {
        () = finish(running) => return,
        () = sleep_until(ending) => {}
    }
    lifecycle.end();
    tracing::info!("ending: what is still open ends as its protocol allows");
    if timeout_at(cut, finish(running)).await.is_err() {
        lifecycle.cut();
        let _ = timeout_at(sessions, finish(running)).await;
    }
}

/// What follows the last session: the node leaves the directory, and the platform gets the last events.
pub(super) async fn take_leave(parts: &Parts, webhook: Option<(oneshot::Sender<()>, Owned<()>)>) {
    let departing = async {
        if let Some(directory) = parts.registry.directory().shared() {
            directory.depart().await;
        }
    };
    let sending = async {
        if let Some((running, webhook)) = webhook {
            drop(running);
            let _ = timeout(LAST_EVENTS, webhook).await;
        }
    };
    join(departing, sending).await;
}

/// Resolves when clients that move slowly, or find no other server, are not needed by anybody: when it is quiet, `from` then
/// on. Never with other nodes, which may forward a request in the next moment.
async fn not_needed(parts: &Parts, from: Instant) {
    if parts.registry.directory().shared().is_some() {
        return std::future::pending().await;
    }
    sleep_until(from).await;
    quiet(parts).await;
}

/// Resolves when there is no public connection, or no exchange for a while.
async fn quiet(parts: &Parts) {
    let mut since = Instant::now();
    while !parts.lifecycle.public_connections.is_empty() && since.elapsed() < QUIET {
        sleep(CHECK_INTERVAL).await;
        if parts.registry.open() > 0 {
            since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_a_stop_is_within_the_grace_period() {
        let now = Instant::now();
        let after = |grace: u64, has_farewell: bool| {
            let grace = Duration::from_millis(grace);
            let deadlines = Deadlines::new(grace, has_farewell, now);
            let steps = [
                deadlines.ending,
                deadlines.cut,
                deadlines.sessions,
                deadlines.farewell,
            ];
            assert!(steps.is_sorted(), "{steps:?}");
            steps.map(|step| (step - now).as_millis())
        };
        assert_eq!(after(25_000, false), [20_750, 23_750, 24_750, 24_750]);
        assert_eq!(after(25_000, true), [19_750, 22_750, 23_750, 24_750]);
        assert_eq!(after(4_000, true), [2_400, 3_000, 3_400, 3_800]);
        assert_eq!(after(0, true), [0; 4]);
    }
}
