//! The hand-over of a running server to a new process of the program, which loses nothing.
//!
//! ```text
//!   running process (predecessor)                                new process (successor)
//!     starts it with its listening sockets ────────────────────▶ checks its configuration, makes everything ready
//!     ◀──────────────────────────────────────────────── ready ── or fails: the predecessor goes on, and says why
//!     accepts no tunnel clients, drains ── claims ─────────────▶ accepts tunnel clients, answers at the admin listener
//!     accepts platform clients, until its clients have moved
//!     stops accepting, finishes what is open ── public ────────▶ accepts platform clients
//!     exits ── end of the channel
//! ```
//!
//! The sockets are the same ones, inherited in the way of systemd (`tunnel_ops::inherited`), so that no connection is
//! refused: what one process does not accept waits in the kernel for the other. The channel is a socket, which is the
//! successor's standard input: lines of JSON in both directions. If it ends early, the successor serves everything.
//!
//! The claims of the directory in memory go along, so that an instance that has not moved yet is known: another one that
//! dials meanwhile supersedes it, and not the other way round.

mod predecessor;
mod successor;

use std::{io, sync::Arc};

use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

pub use self::predecessor::Predecessor;
pub(super) use self::successor::Successor;
pub(crate) use self::successor::{Program, UpgradeError};
use super::parts::Parts;
use crate::registry::HandedRuntime;

/// The environment variable that makes a process a successor: the predecessor's process id.
const VARIABLE: &str = "TUNNEL_PREDECESSOR";

/// Longest line, in bytes: the records of some hundred thousand runtimes.
const LINE_BYTES: u64 = 256 * 1024 * 1024;

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

/// What the successor reports.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SuccessorReport {
    /// It can serve.
    Ready {
        /// Its version.
        version: String,
    },
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
    /// Accept tunnel clients, and answer at the admin listener.
    Tunnels {
        /// Those that are held at the predecessor.
        runtimes: Vec<HandedRuntime>,
    },
    /// Accept platform clients.
    Public,
}
