//! The hand-over of a running server to a new process of the program, which loses nothing.
//!
//! ```text
//!   running process (predecessor)                                new process (successor)
//!     starts it with its listening sockets ────────────────────▶ starts itself once more, and ends
//!     ◀──────────────────────────────────────────── started ──
//!                                                                checks its configuration, makes everything ready
//!     ◀──────────────────────────────────────────────── ready ── or fails: the predecessor goes on, and says why
//!     accepts no tunnel clients ── claims ─────────────────────▶ accepts tunnel clients
//!     ◀──────────────────────────────────────────── tunnels ──
//!     has its tunnel clients move there
//!     still accepts platform clients ── public ────────────────▶ accepts platform clients
//!     ◀──────────────────────────────────────────── serving ──
//!     closes the admin listener ── confirmed ──────────────────▶ answers at the admin listener
//!     stops accepting, finishes what is open
//!     exits ── end of the channel
//! ```
//!
//! Until the successor serves, the predecessor only pauses its listeners, and its sessions take exchanges although their clients
//! have newer ones. If the successor ends or stands still, it is killed, and the predecessor accepts again (`trial`).
//!
//! The sockets are the same ones, inherited in the way of systemd (`tunnel_ops::inherited`), so that no connection is
//! refused: what one process does not accept waits in the kernel for the other. The channel is a socket, which is the
//! successor's standard input: lines of JSON in both directions. If it ends early, the successor serves everything. A
//! successor of an earlier version reports nothing after `ready`: it serves tunnel clients and the admin listener from the
//! claims on, and the predecessor cannot go back then.
//!
//! The claims of the directory in memory go along, so that an instance that has not moved yet is known: another one that
//! dials meanwhile supersedes it, and not the other way round.

mod detached;
mod predecessor;
mod successor;
mod trial;

use std::{io, net::TcpListener, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

pub(crate) use self::detached::detach;
pub use self::predecessor::Predecessor;
pub(super) use self::successor::Successor;
use self::successor::{Program, UpgradeError};
use super::{parts::Parts, reload::EmptyList};
use crate::{
    events::{Event, EventKind},
    registry::{HandedRuntimes, Registry},
};

/// The environment variable that makes a process a successor: the predecessor's process id.
const VARIABLE: &str = "TUNNEL_PREDECESSOR";

/// The environment variable that says what the predecessor knows: its process id, and words. Earlier versions pass on what
/// they were given themselves, with another id.
const WORDS: &str = "TUNNEL_HANDOVER";

/// The word of [`WORDS`] that asks a new process to start the program once more, so that it is no child of its predecessor.
const DETACH: &str = "detach";

/// The word of [`WORDS`] of a predecessor that waits until its successor reports that it serves.
const REPORTS: &str = "reports";

/// Longest line, in bytes: the records of some hundred thousand runtimes.
const LINE_BYTES: u64 = 256 * 1024 * 1024;

/// Time from when a process serves everything to when it can be replaced: a tunnel client waits longer and longer before it
/// dials if its sessions are drained within a second (`--redial-base`).
const SETTLING: Duration = Duration::from_secs(1);

/// Time in which another one of the tunnel clients comes that were handed over: they are spread over seconds, and then need 2 s.
const COMING: Duration = Duration::from_secs(2);

/// Requests an upgrade at each SIGUSR2. Never ends.
///
/// # Errors
/// When signals cannot be received.
pub(crate) fn on_signal(parts: Arc<Parts>) -> io::Result<impl Future<Output = ()> + Send> {
    let mut signals = signal(SignalKind::user_defined2())?;
    Ok(async move {
        while signals.recv().await.is_some() {
            if let Err(error) = parts.lifecycle.upgrades.request() {
                tracing::warn!(%error, signal = "SIGUSR2", "no upgrade");
            }
        }
    })
}

/// Starts a new process whenever one is requested, until one serves, or is ready if it is of an earlier version.
pub(super) async fn successor(parts: &Parts, kept: &[(&'static str, TcpListener)]) -> Successor {
    let upgrades = &parts.lifecycle.upgrades;
    // Not before this process has everything that its own predecessor hands over.
    parts.lifecycle.serving_public().await;
    settled(&parts.registry).await;
    loop {
        upgrades.requested().await;
        tracing::info!("starting a new process to take over");
        match start_successor(parts, kept).await {
            Ok(successor) => return successor,
            Err(error) => {
                let reason = error.to_string();
                tracing::error!(reason, "no upgrade: this process continues");
                let failed = Event::new(EventKind::UpgradeFailed);
                let first = reason.lines().next().unwrap_or_default();
                parts.events.report(failed.detail(first.to_owned()));
                upgrades.on_failed(reason);
            }
        }
    }
}

/// Waits until tunnel clients take their sessions here for good ones, and all that were handed over have come, or none of them
/// comes any more.
async fn settled(registry: &Registry) {
    sleep(SETTLING).await;
    let mut expected = registry.expected();
    while expected > 0 {
        sleep(COMING).await;
        let before = std::mem::replace(&mut expected, registry.expected());
        if expected == before {
            return;
        }
    }
}

async fn start_successor(
    parts: &Parts,
    kept: &[(&'static str, TcpListener)],
) -> Result<Successor, UpgradeError> {
    if parts.registry.directory().shared().is_some() {
        return Err(UpgradeError::SeveralNodes);
    }
    let program = Program::this();
    let clones = kept
        .iter()
        .map(|(name, socket)| Ok((*name, socket.try_clone()?)));
    let sockets = clones.collect::<io::Result<_>>();
    let sockets = sockets.map_err(UpgradeError::Sockets)?;
    let mut successor = program.start(sockets).await?;
    // Ends it otherwise.
    parts.check_not_emptied(successor.empty_lists())?;
    if successor.reports() {
        trial::run(parts, &mut successor).await?;
    }
    Ok(successor)
}

/// What the successor reports.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SuccessorReport {
    /// It has started the program once more.
    Started {
        /// The process that is the successor from now on.
        process: u32,
    },
    /// It can serve.
    Ready {
        /// Its version.
        version: String,
        /// The lists that it has found empty.
        #[serde(default)]
        empty: Vec<EmptyList>,
        /// It reports when it serves.
        #[serde(default)]
        reports: bool,
    },
    /// It accepts tunnel clients.
    Tunnels,
    /// It accepts platform clients, too.
    Serving,
    /// It cannot.
    Failed {
        /// Why not: one fault a line.
        reason: String,
    },
}

/// What the predecessor allows.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PredecessorOrder {
    /// Accept tunnel clients.
    Tunnels(HandedRuntimes),
    /// Accept platform clients.
    Public,
    /// Report once more that all is served.
    Report,
    /// Answer at the admin listener: the predecessor cannot take its clients back any more.
    Confirmed,
}
